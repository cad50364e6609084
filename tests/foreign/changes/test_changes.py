"""Random sequences of admin commands, edits by hand, reloads and kills of the daemon and of commands, at any moment.

After each step the file parses, what runs equals the file, the file is either as it was or as the command made it, and no comment and
no word is lost that the step is not about. Everything follows from the seed, which is printed, except the moments at which processes die.
One sequence begins with the file that all begin with, so that `--seed S --sequences 1 --first N` replays the N-th.
"""

import contextlib
import itertools
import json
import os
import random
import re
import signal
import socket
import subprocess
import time
import tomllib

import pytest

import servers
from changes.daemon import COMMAND_MAX_S, Daemon, admitted, meaning, revision
from serving import add_verdict
from verdicts import eventually, expect, same

pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(3600 * 6)]
STEPS = 8
STILL = """
# A target that no step is about: 7 * 6 = 42.
[[target]]
name = "iqn.2026-11.org.targe:still" # keep it
alias = 'quoted otherwise'
lun = [ { type = "null", size = "3M" }, {type="ram",size="1M"} ]   # inline, with odd spaces
"""
HEAD = """# Line one of the head.
log = "info"  # beside a key
state_dir = "state"
admin_socket = "admin/admin.sock"
reactor = "epoll"

[[portal]]
listen = "127.0.0.1:{port}"     # the first
"""
FIRST = """
# Above the first target.
[[target]]
name = "iqn.2026-11.org.targe:first"

# Above its LUN.
[[target.lun]]
type = "ram"
size = "1M"

[[target.lun]]
type = "null"
size = "2M"
"""
SHARED = """
# Shared by several.
[[lun]]
name = "common"
type = "ram"
size = "1M"
"""
# Tables of two lists take turns, some LUNs have no number of their own, and several entries match one initiator.
MIXED = """
[[group]]
name = "lab"
initiators = ["iqn.2000-01.org.example:i3"]

# Above the last target.
[[target]]
name = "iqn.2026-11.org.targe:mixed"

[[target.lun]]
type = "null"
size = "1M"

[[target.acl]]
initiators = ["iqn.2000-01.org.example:i0", "@lab", "iqn.2000-01.org.example:i1"]
ro = true

[[target.lun]]
type = "null"
size = "2M"

[target.session]
data_digest = "offer"

[[target.lun]]
lun = 1
type = "null"
size = "1M"

[[target.acl]]
initiators = ["iqn.2000-01.org.example:i*"]
luns = [1, 2]

[[target.lun]]
type = "null"
size = "3M"
"""
INITIATORS = (*(f"iqn.2000-01.org.example:i{number}" for number in range(5)), "iqn.2000-01.org.example:i*", "@lab")
# What must be there whatever happens.
KEPT = ("# Line one of the head.", "# beside a key", "# the first", *STILL.strip().splitlines(), "# Shared by several.")
KILLS = ("command", "daemon", "both")
# What must have happened before a run counts.
WANTED = ("two commands", "restart", "edit during a command", "apply done", "apply refused", "lun done", "reload refused",
          *(f"{who} killed, the file {what}" for who in KILLS for what in ("changes", "stays")))


class Trial:
    def __init__(self, folder, seed):
        self.port = servers.free_port()
        self.bases = [HEAD.format(port=self.port) + SHARED + FIRST + STILL + more for more in ("", MIXED)]
        self.base = self.bases[0]
        self.seed = seed
        self.daemon = Daemon(folder, self.base)
        self.happened = {}
        self.did = []

    # Steps: each returns the words of a command, or None where there is nothing to do.

    def targets(self):
        return [target for target in tomllib.loads(self.daemon.read())["target"] if not target["name"].endswith(":still")]

    def a_target(self, chance):
        targets = self.targets()
        return chance.choice(targets) if targets else None

    def a_lun(self, chance):
        target = self.a_target(chance)
        if not target:
            return None, None
        return target["name"], chance.choice(sorted(meaning(self.daemon.read())[0][target["name"]]["luns"]))

    def spec(self, chance):
        kind = chance.choice(("ram", "null", "file", "share"))
        size = f"{chance.randint(1, 4)}M"
        if kind == "share":
            return "share:common"
        if kind == "file":
            return f"file:disk{chance.randrange(1000)}.img,size={size}"
        return f"{kind}:{size}{chance.choice(('', ',ro', ',lun=%d' % chance.randrange(9)))}"

    def target_add(self, chance):
        luns = [word for _ in range(chance.randint(1, 3)) for word in ("--lun", self.spec(chance))]
        alias = [f"alias=name {chance.randrange(99)}"] * chance.randrange(2)
        return ["target", "add", f"iqn.2026-11.org.targe:t{chance.randrange(6)}", *alias, *luns]

    def target_set(self, chance):
        target = self.a_target(chance)
        setting = chance.choice(("alias=", f"alias=name {chance.randrange(99)}", f"max_sessions={chance.randint(1, 99)}",
                                 "session.data_digest=require", "session.data_digest=", "queue_depth=0", "nonsense=1"))
        return target and ["target", "set", target["name"], setting]

    def target_remove(self, chance):
        target = self.a_target(chance)
        return target and ["target", "remove", target["name"]]

    def lun_add(self, chance):
        target = self.a_target(chance)
        return target and ["lun", "add", target["name"], self.spec(chance)]

    def lun_set(self, chance):
        target, lun = self.a_lun(chance)
        setting = chance.choice(("ro=true", "ro=", "size=5M", "vendor=ACME", "write_cache=no", "bs=4096"))
        return target and ["lun", "set", target, str(lun), setting]

    def lun_resize(self, chance):
        target, lun = self.a_lun(chance)
        return target and ["lun", "resize", target, str(lun), f"{chance.randint(1, 9)}M"]

    def lun_remove(self, chance):
        target, lun = self.a_lun(chance)
        return target and ["lun", "remove", target, str(lun)]

    def acl_add(self, chance):
        target = self.a_target(chance)
        names = chance.sample(INITIATORS, chance.randint(1, 2))
        return target and ["acl", "add", target["name"], *names, *["--ro"] * chance.randrange(2), *["--first"] * chance.randrange(2)]

    def acl_set(self, chance):
        target = self.a_target(chance)
        return target and ["acl", "set", target["name"], chance.choice(INITIATORS), chance.choice(("ro=true", "ro="))]

    def acl_remove(self, chance):
        target = self.a_target(chance)
        return target and ["acl", "remove", target["name"], chance.choice(INITIATORS),
                           *["--admit-all"] * chance.randrange(2), *["--even-if-others-match"] * chance.randrange(2)]

    def user_add(self, chance):
        target = self.a_target(chance)
        where = chance.choice(([], ["--initiator", chance.choice(INITIATORS)]))
        return target and ["user", "add", target["name"], "host", "--secret-file", "host.secret", *where]

    def user_remove(self, chance):
        target = self.a_target(chance)
        return target and ["user", "remove", target["name"], "host", "--admit-all"]

    def apply_file(self, chance):
        """Another file takes the place of the daemon's. Some of them cannot be applied."""
        text = self.by_hand(chance)
        other = os.path.join(self.daemon.folder, "other.toml")
        with open(os.open(other, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        return ["apply", other]

    def by_hand(self, chance):
        """The file as an operator edits it: good, with a mistake, or such that it cannot be applied."""
        text = self.daemon.read()
        kind = chance.choice(("portal", "comment", "alias", "broken", "taken", "missing", "base"))
        if kind == "portal":
            parts = re.split(r"(?m)^(?=\[\[portal\]\]\nlisten = \"127\.0\.0\.2)", text, maxsplit=1)
            if len(parts) == 1:
                return text.replace("\n# Shared", f'\n[[portal]]\nlisten = "127.0.0.2:{self.port}"\n\n# Shared', 1)
            return parts[0] + parts[1].split("\n", 2)[2].lstrip("\n")
        return {
            "comment": lambda: text + f"# by hand {chance.randrange(99)}\n",
            "alias": lambda: text.replace("alias = 'quoted otherwise'", f"alias = 'quoted otherwise'\nmax_sessions = {chance.randint(1, 9)}", 1)
                if "max_sessions = " not in text.split(":still")[1].split("lun =")[0] else text,
            "broken": lambda: text + "[[target]\n",
            # The rig's own socket listens there, which shows only when the daemon tries.
            "taken": lambda: text.replace("\n# Shared", f'\n[[portal]]\nlisten = "127.0.0.3:{self.taken_port}"\n\n# Shared', 1),
            "missing": lambda: text + '[[target]]\nname = "iqn.2026-11.org.targe:t9"\nlun = [{ type = "file", path = "/nowhere/x", size = "1M" }]\n',
            "base": lambda: self.base,
        }[kind]()

    # Ways to carry out a step

    def plain(self, chance):
        """A command, and its verdict: the file changes if and only if it says so."""
        words = self.words(chance)
        if not words:
            return
        before, identities = self.daemon.read(), self.daemon.identities()
        code, said = self.daemon.command(*words)
        after = self.daemon.read()
        expect(code in (0, 1, 2), f"{words} ended with {code}: {said}")
        expect("panicked" not in said, said)
        if code != 0:
            same(f"the file after {words}, which said {said!r}", after, before)
        self.judge_others(words, identities)
        self.count(f"{words[0]} {'done' if code == 0 else 'refused'}")

    def dry(self, chance):
        """A trial changes nothing."""
        words = self.words(chance)
        if not words:
            return
        before, generation = self.daemon.read(), self.daemon.ask("status")["generation"]
        code, said = self.daemon.command(*words, "--dry-run", "--json")
        if code == 0:
            expect(json.loads(said)["applied"] is False, said)
        same("the file after a trial", self.daemon.read(), before)
        same("the generation after a trial", self.daemon.ask("status")["generation"], generation)
        self.count("dry run")

    def kill(self, chance):
        """A process dies at any moment of a command."""
        words = self.words(chance)
        if not words:
            return
        before, identities, who = self.daemon.read(), self.daemon.identities(), chance.choice(KILLS)
        command = self.daemon.command(*words, wait=False)
        time.sleep(chance.random() * self.daemon.usual_s * 1.2)
        if who != "command":
            self.daemon.process.kill()
        if who != "daemon":
            command.kill()
        command.communicate()
        if who != "command":
            self.daemon.kill()
            self.daemon.start()
        else:
            self.settle()
        self.judge_others(words, identities)
        self.count(f"{who} killed, the file {'stays' if self.daemon.read() == before else 'changes'}")

    def two(self, chance):
        """Two commands at the same time: each is done or refused as a whole, in one order or the other."""
        pair = [self.words(chance), self.words(chance)]
        if None in pair:
            return
        started = [self.daemon.command(*words, wait=False) for words in pair]
        for command in started:
            said, _ = command.communicate(timeout=COMMAND_MAX_S)
            expect(command.returncode in (0, 1, 2), f"{command.args} ended with {command.returncode}: {said}")
        self.count("two commands")

    def edit(self, chance):
        """An edit by hand, and then a reload or `targe apply`."""
        before = self.daemon.read()
        text = self.by_hand(chance)
        self.daemon.write(text)
        if chance.randrange(2):
            reloads = self.daemon.ask("status")["reloads"]
            self.daemon.process.send_signal(signal.SIGHUP)
            eventually(lambda: self.daemon.ask("status")["reloads"] > reloads, "the reload ends")
            done = self.daemon.ask("status")["reload"]["applied"]
            self.count(f"reload {'applied' if done else 'refused'}")
        else:
            code, said = self.daemon.command("apply")
            expect(code in (0, 1, 2), f"apply ended with {code}: {said}")
            done = code == 0
            self.count(f"apply of the edited file {'done' if done else 'refused'}")
        same("the file that was edited by hand", self.daemon.read(), text)
        if not done:
            if chance.randrange(2):
                # Nothing else is applied on top of what the operator has not finished.
                code, said = self.daemon.command("target", "set", "iqn.2026-11.org.targe:still", "alias=never")
                expect(code != 0, f"an unfinished file was changed: {said}")
                same("the unfinished file", self.daemon.read(), text)
            self.daemon.write(before)
            code, said = self.daemon.command("apply")
            expect(code == 0, f"the former file cannot be applied: {said}")

    def race(self, chance):
        """An edit by hand at any moment of a command: the edit is never lost."""
        words = self.words(chance)
        if not words:
            return
        mark = f"# in a hurry {chance.randrange(1 << 30)}"
        text = f"{self.daemon.read()}{mark}\n"
        command = self.daemon.command(*words, wait=False)
        time.sleep(chance.random() * self.daemon.usual_s)
        self.daemon.write(text)
        said, _ = command.communicate(timeout=COMMAND_MAX_S)
        expect(command.returncode in (0, 1, 2), f"{words} ended with {command.returncode}: {said}")
        after = self.daemon.read()
        if command.returncode != 0:
            same(f"the file that was edited during {words}, which said {said!r}", after, text)
        # A command that began after the edit has changed the edited file.
        expect(mark in after, f"the edit during {words} is lost")
        code, said = self.daemon.command("apply")
        expect(code == 0, f"the edited file cannot be applied: {said}")
        self.count("edit during a command")

    def restart(self, _chance):
        self.daemon.kill()
        self.daemon.start()
        self.count("restart")

    COMMANDS = (target_add, target_set, target_remove, lun_add, lun_add, lun_set, lun_resize, lun_remove, acl_add, acl_set, acl_remove,
                user_add, user_remove, apply_file)
    WAYS = (plain, plain, plain, plain, dry, kill, kill, kill, two, edit, race, restart)

    def words(self, chance):
        words = chance.choice(self.COMMANDS)(self, chance)
        self.did.append(" ".join(words) if words else "nothing")
        return words

    def count(self, what):
        self.happened[what] = self.happened.get(what, 0) + 1

    # Judgements

    def settle(self):
        """A command was killed, and the daemon decides by the file what becomes of its change."""
        with contextlib.suppress(AssertionError):
            eventually(self.is_sound, "what runs is what the file says")

    def is_sound(self):
        try:
            self.judge()
            return True
        except (AssertionError, KeyError):
            # What a change takes away while it is looked at has no target.
            return False

    def judge(self):
        text = self.daemon.read()
        running, portals, runs = self.daemon.running()
        same("the revision that runs", runs, revision(text))
        same("what runs", (running, portals), meaning(text))
        for line in KEPT:
            expect(line in text, f"the file lost {line!r}")
        expect(self.base == text or STILL.splitlines()[1] in text, "the file lost a comment")

    def judge_others(self, words, before):
        """A step changes nothing of what it does not name."""
        if words[0] == "apply":
            return
        (kind, _, named, *rest), after = words, self.daemon.identities()
        for name in (before.keys() | after.keys()) - {named}:
            same(f"{name} after {words}", after.get(name), before.get(name))
        if kind == "target" or named not in before:
            return
        was, now = before[named], after[named]
        changed = {int(rest[0])} if kind == "lun" and rest[0].isdigit() else set()
        new = now["luns"].keys() - was["luns"].keys()
        expect(not new or words[:2] == ["lun", "add"] and len(new) == 1, f"{words} adds the LUNs {new}")
        for lun in was["luns"].keys() - changed:
            same(f"LUN {lun} of {named} after {words}", now["luns"].get(lun), was["luns"][lun])
        if kind == "lun":
            same(f"who may use {named} after {words}", [entry["initiators"] for entry in now["acl"] or []],
                 [entry["initiators"] for entry in was["acl"] or []])

    def judge_deeply(self):
        """What an initiator finds, and what a new start makes of the file."""
        text = self.daemon.read()
        discovered = subprocess.run([servers.Targe.binary, "discover", f"127.0.0.1:{self.port}", "--json", "--initiator",
                                     "iqn.2000-01.org.example:stranger"], capture_output=True, text=True, timeout=60).stdout
        for target, names in admitted(text).items():
            expected = meaning(text)[0][target]["luns"] if names is None else {}
            if "auth" in next(one for one in tomllib.loads(text)["target"] if one["name"] == target):
                continue
            found = {int(lun) for lun in re.findall(rf"{re.escape(target)}/(\d+)", discovered)}
            same(f"the LUNs of {target} that a stranger finds", found, set(expected))
        identities = self.daemon.identities()
        self.daemon.kill()
        self.daemon.start()
        self.judge()
        same("the identities after a new start", self.daemon.identities(), identities)

    def never_happened(self):
        return [what for what in WANTED if what not in self.happened]

    def sequence(self, number):
        chance = random.Random(f"{self.seed} {number}")
        self.did = [f"sequence {number}"]
        self.base = chance.choice(self.bases)
        self.daemon.write(self.base)
        code, said = self.daemon.command("apply")
        if code != 0:
            # A disk in memory cannot become another one: it goes with a restart.
            self.daemon.kill()
            self.daemon.start()
        self.judge()
        for _ in range(STEPS):
            way = chance.choice(self.WAYS)
            self.did.append(f"[{way.__name__}]")
            way(self, chance)
            self.judge()
        self.judge_deeply()


def test_sequences(request, tmp_path, fresh_seed, pytestconfig):
    """Each property is judged after each step."""
    count, first = pytestconfig.getoption("sequences"), pytestconfig.getoption("first")
    trial = Trial(tmp_path, fresh_seed)
    with open(os.open(tmp_path / "host.secret", os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write("a secret of the rig\n")
    with contextlib.ExitStack() as stack:
        taken = stack.enter_context(socket.socket())
        taken.bind(("127.0.0.3", 0))
        taken.listen()
        trial.taken_port = taken.getsockname()[1]
        trial.daemon.start()
        stack.callback(trial.daemon.kill)
        for number in itertools.count(first):
            # Kills meet each moment by chance, so sequences are added until every one was met.
            if number >= first + count and (count < 40 or number >= first + 4 * count or not trial.never_happened()):
                break
            try:
                trial.sequence(number)
            except Exception as error:
                raise AssertionError(f"seed {fresh_seed}, {' | '.join(trial.did)}: {error}; the file:\n{trial.daemon.read()}") from error
        add_verdict(request, "the daemon ends as it should", trial.daemon.stop)
        audit = [json.loads(line) for line in open(tmp_path / "state" / "audit.log")]
        log = trial.daemon.log()
    for what, times in sorted(trial.happened.items()):
        print(f"{times:7} {what}")
    expect(all(entry["result"] in ("applied", "refused", "abandoned", "done") for entry in audit), "the audit log has other results")
    expect(any(entry["uid"] == os.getuid() and entry["action"] == "lun add" for entry in audit) or count < 20, "the audit log misses who did it")
    expect("a secret of the rig" not in log + json.dumps(audit), "a secret was written to a log")
    if count >= 40:
        same("what never happened", trial.never_happened(), [])
