"""Random reloads of the running daemon while three hosts have reads and writes under way.

Each reload, by SIGHUP or `targe apply`, adds, removes, swaps, remaps or replaces LUNs, resizes a disk, changes who may write or log in, or a
password. `targe lun add`, `remove`, `set` and `resize` do the same to one LUN. Between them hosts lose their connections or log out, and the
daemon is stopped, killed, upgraded, or loses its portal, with other LUNs when it is back. Every block that a host writes says for which disk it
is meant, and the hosts go on sending to LUNs that are gone. Judged are the properties below, each with one verdict; everything follows from the
seed, which is printed.
"""

import copy
import json
import os
import random
import signal
import socket
import subprocess
import time

import pytest

import servers
from listening import free_port
from reload.bindings import stored_bindings
from reload.host import BLOCK, GOOD, NO_LUN, Dropped, Host, label
from reload.plan import CHANGES, COMMANDS, DISK_MIB, DISKS, FOLDER, LUNS, NAA, STILL_DISK, TARGET, Plan, is_shared, swap
from servers import MIB, Export, Lun
from serving import add_verdict
from upgrade.live import Replaced
from verdicts import expect

STILL_IQN = "iqn.2026-11.org.targe:still"
NAMES = ("iqn.2026-11.org.example:first", "iqn.2026-11.org.example:second", "iqn.2026-11.org.example:third")
USER = "host"
DEPTH = 12
# Longest a reload may take, and a command, seconds. Nothing that is judged depends on them being short.
RELOAD_MAX_S, COMMAND_MAX_S = 90, 90
# What a host may be told when something changed for it.
ATTENTIONS = {0x2900, 0x2907, 0x2A01, 0x2A09, 0x3F0E}
WRITE_PROTECTED = (7, 0x2700)
WRONG_DISK, NO_END, DISTURBED, WINDOW, ELSEWHERE, LOST, COVERAGE = (
    "no block is on a disk that it was not meant for", "every command ends", "no session is disturbed by what does not touch it",
    "the command window stays as open as it was", "each LUN leads to the disk that its host opened, or to none",
    "no acknowledged write is lost", "everything happened that is to be judged")
PROPERTIES = (WRONG_DISK, NO_END, DISTURBED, WINDOW, ELSEWHERE, LOST, COVERAGE)
# A thousand rounds take a minute.
pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(1500)]


# What the hosts do by themselves, and what an operator makes them do: with "drop", the host obeys the requested logout, keeps its disks open,
# and logs in again after a reload that swaps LUNs. With "stop" and "kill" the daemon ends, and its LUNs are swapped when it starts again;
# with "portal" another portal takes the place of the one that the hosts use; with "upgrade" another process takes over, under load.
LOSSES = ("cut", "logout", "drop", "stop", "kill", "portal", "upgrade")
KINDS = [*CHANGES, *LOSSES]
OFTEN = ["remove", "swap", "replace", "restore", "add", *COMMANDS]


class Churned(Replaced):
    """Two targets: the first changes all the time, the second never does."""

    plan = Plan()

    def disk_path(self, disk):
        return os.path.join(self.folder, f"disk{disk}.img")

    def make_media(self):
        for disk in range(DISKS + 1):
            with open(self.disk_path(disk), "wb") as file:
                file.truncate(DISK_MIB * MIB)
                file.write(label(disk))

    def secret(self):
        return f"secret-number-{self.plan.secret:08}"

    def config_lines(self):
        plan = self.plan
        yield from ('state_dir = "state"', 'admin_socket = "admin/admin.sock"', f'reactor = "{self.reactor}"',
                    "[[portal]]", f'listen = "127.0.0.1:{self.port}"', f"tag = {plan.tag}")
        def keys(disk):
            return 'type = "file"', f'path = "{self.disk_path(disk)}"', f'size = "{plan.sizes[disk]}M"', f'naa = "{NAA}{disk}"'

        for disk in filter(is_shared, range(DISKS + 1)):
            yield from ("[[lun]]", f'name = "disk{disk}"', *keys(disk))
        yield from ("[[target]]", f'name = "{self.iqn}"', "[target.auth]", f'user = "{USER}"', f'secret = "{self.secret()}"')
        for lun, disk in sorted(plan.luns.items()):
            shown = (f'share = "disk{disk}"',) if is_shared(disk) else keys(disk)
            yield from ("[[target.lun]]", f"lun = {lun}", *shown, f"ro = {str(lun in plan.protected).lower()}")
        for host, rows in plan.rows.items():
            if host != plan.refused:
                row = [f"{{ lun = {lun}, as = {number}, ro = {str(ro).lower()} }}" for number, (lun, ro) in sorted(rows.items())]
                yield from ("[[target.acl]]", f'initiators = ["{NAMES[host]}"]', f"luns = [{', '.join(row)}]")
        yield from ("[[target]]", f'name = "{STILL_IQN}"', "[[target.lun]]", "lun = 0", f'share = "disk{STILL_DISK}"')

    def ask(self, method="status", **arguments):
        """The answer of the admin socket to a method."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(RELOAD_MAX_S)
            connection.connect(f"/proc/{self.pid}/cwd/admin/admin.sock")
            connection.sendall(json.dumps({"method": method, **arguments}).encode() + b"\n")
            text = b""
            while not text.endswith(b"\n"):
                more = connection.recv(1 << 16)
                expect(more, "the admin socket says nothing")
                text += more
        answer = json.loads(text)
        return answer.get("result", answer)


class Trial:
    def __init__(self, server, chance):
        self.server, self.chance = server, chance
        # Of its own, for how much traffic there is depends on time: the rounds follow from the seed all the same.
        self.traffic = random.Random(chance.random())
        self.hosts = [Host(number, name, DEPTH) for number, name in enumerate(NAMES)]
        self.faults = {name: [] for name in PROPERTIES}
        self.happened = dict.fromkeys([*CHANGES, *LOSSES, "good writes", "good reads", "ended by a change", "barred", "came back"], 0)
        self.what = "start"
        self.reloads = 0

    def fault(self, name, what):
        self.faults[name].append(f"{self.what}: {what}")

    def visible(self, plan, host):
        """What a host finds: what the plan shows it, less what is not the disk that it opened."""
        return {lun: row for lun, row in plan.view(host).items() if self.hosts[host].may_reach(lun, row[0])}

    # The course of a trial

    def run(self, rounds):
        server = self.server
        server.start()
        self.reloads = server.ask().get("reloads", 0)
        for host in self.hosts:
            self.log_in(host)
        for host in self.hosts:
            self.probe(host, server.plan)
        for number in range(1, rounds + 1):
            # What has not happened by then is made to.
            missing = [kind for kind in KINDS if not self.happened[kind]] if number > rounds // 2 else []
            if number > rounds // 2 and not self.happened["came back"]:
                missing.append("admission")
            self.round(number, self.chance.choice(missing or KINDS + OFTEN))
            if number % 50 == 0:
                self.look_at_disks()
        self.look_at_disks()
        for name, count in self.happened.items():
            if count == 0:
                self.fault(COVERAGE, f"never happened: {name}")

    def round(self, number, kind):
        before, plan = self.server.plan, copy.deepcopy(self.server.plan)
        plan.command = ()
        seen = [self.visible(before, host.number) for host in self.hosts]
        sizes = dict(before.sizes)
        self.what = f"round {number} ({kind})"
        if kind in LOSSES:
            self.happened[kind] += 1
            self.lose(kind, number)
            return
        if not CHANGES[kind](plan, self.chance):
            return
        plan.prune()
        self.happened[kind] += 1
        for host in self.hosts:
            host.ended = []
        self.busy(self.chance.random() * 0.02)
        self.server.plan = plan
        self.apply(plan)
        self.busy(self.chance.random() * 0.02, plan)
        self.drain(plan)
        for host in self.hosts:
            after = self.visible(plan, host.number)
            grown = any(plan.sizes[disk] != sizes[disk] for disk, _ in after.values())
            self.judge(host, seen[host.number], after, grown)
        for host in self.hosts:
            if host.session is None and host.number != plan.refused:
                self.happened["came back"] += 1
                self.log_in(host)
                self.probe(host, plan)
            elif host.session:
                self.probe(host, plan, seen[host.number])

    def apply(self, plan):
        """Has the daemon apply the configuration, by a signal or by a command, and goes on with the traffic meanwhile."""
        if plan.command:
            self.during(*plan.command, plan=plan)
            self.reloads = self.server.ask()["reloads"]
            return
        self.server.write_config()
        if self.chance.random() < 0.5:
            os.kill(self.server.pid, signal.SIGHUP)
            self.until_applied(plan)
        else:
            self.during("apply", "--force", plan=plan)
            self.reloads = self.server.ask()["reloads"]

    def during(self, *words, plan=None):
        """Goes on with the traffic until a command has ended. Returns what it printed."""
        words = [word.replace(TARGET, self.server.iqn).replace(FOLDER, self.server.folder) for word in words]
        command = [self.server.binary, *words, "--json", "--socket", self.server.socket]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
            deadline = time.monotonic() + RELOAD_MAX_S
            while run.poll() is None:
                self.busy(0.002, plan)
                expect(time.monotonic() < deadline, f"{self.what}: targe {words[0]} does not end")
            printed, complaint = run.communicate()
        expect(run.returncode == 0, f"{self.what}: targe {words[0]}: {complaint}")
        return json.loads(printed)

    def until_applied(self, plan):
        """Goes on with the traffic until the daemon has applied the reload."""
        deadline = time.monotonic() + RELOAD_MAX_S
        while True:
            self.busy(0.002, plan)
            status = self.server.ask()
            if status["reloads"] > self.reloads:
                break
            expect(time.monotonic() < deadline, f"{self.what}: the reload is not applied")
        self.reloads = status["reloads"]
        expect(status["reload"]["applied"], f"{self.what}: the reload is refused: {status['reload']['message']}")
        # Reactors answer in order: what is asked after the reload was told to them is answered after it.
        self.server.ask()

    def busy(self, seconds, plan=None):
        """Keeps commands under way. `plan`: the one that is just coming into force, if any."""
        until = time.monotonic() + seconds
        while True:
            for host in self.hosts:
                if host.session is None:
                    continue
                try:
                    while host.has_room() and host.bound and len(host.under_way) < DEPTH:
                        had = len(host.under_way)
                        host.read_or_write(self.traffic, self.traffic.choice(sorted(host.bound)))
                        if len(host.under_way) == had:
                            break
                    host.pump(0)
                except (Dropped, ConnectionError) as gone:
                    self.dropped(host, plan, gone)
            if time.monotonic() >= until:
                return
            time.sleep(0.0005)

    def dropped(self, host, plan, gone):
        if plan is None or host.number != plan.refused:
            self.fault(DISTURBED, f"host {host.number} lost its session: {gone}")
        host.forget_session()

    def drain(self, plan):
        """Waits for the end of every command."""
        deadline = time.monotonic() + COMMAND_MAX_S
        while waiting := [host for host in self.hosts if host.session and (host.under_way or host.number == plan.refused)]:
            for host in waiting:
                try:
                    host.pump(0.005)
                except (Dropped, ConnectionError) as gone:
                    self.dropped(host, plan, gone)
                    continue
                if time.monotonic() > deadline:
                    left = [str(command) for command in host.under_way.values()]
                    self.fault(NO_END, f"host {host.number}: {len(left)} commands have no end: {left[:3]}")
                    host.forget_session()

    # Judging

    def judge(self, host, before, after, grown):
        """Judges what ended while the plan changed from one that showed `before` to one that shows `after`."""
        touched = before != after or grown
        for command in host.ended:
            lun, sense = command.lun, command.sense
            rows = [view[lun] for view in (before, after) if lun in view and view[lun][0] == host.bound.get(lun)]
            if command.status == GOOD:
                self.happened[f"good {command.kind}s"] += 1
                if not rows:
                    self.fault(ELSEWHERE, f"host {host.number}: {command} is GOOD, but leads to no disk of its")
                for fault in command.faults:
                    self.fault(WRONG_DISK if "meant" in fault else LOST, f"host {host.number} reads: {fault}")
            elif sense == NO_LUN:
                self.happened["ended by a change"] += lun in before and lun not in after
                self.happened["barred"] += lun not in before
                if lun in before and lun in after and before[lun][0] == after[lun][0]:
                    self.fault(DISTURBED, f"host {host.number}: {command} finds no LUN, which did not change")
            elif sense == WRITE_PROTECTED and command.kind == "write":
                if not any(read_only for _, read_only in rows):
                    self.fault(DISTURBED, f"host {host.number}: {command} is write-protected")
            elif sense[0] == 6 and sense[1] in ATTENTIONS:
                if not touched:
                    self.fault(DISTURBED, f"host {host.number}: {command} meets attention {sense[1]:#x}, though nothing changed for it")
            else:
                self.fault(DISTURBED, f"host {host.number}: {command} ends with status {command.status}, sense {sense}")
        host.ended = []

    def probe(self, host, plan, before=None):
        """Compares every LUN with what it should lead to, and opens those that this host has not opened."""
        shown = self.visible(plan, host.number)
        for lun in range(LUNS):
            answer, attentions = host.settle(lun)
            if before is not None and before == shown and set(attentions) - {0x2A09}:
                told = [hex(code) for code in attentions]
                self.fault(DISTURBED, f"host {host.number}: LUN {lun} has attentions {told}, though nothing changed for it")
            if lun not in shown:
                if answer.sense != NO_LUN:
                    self.fault(ELSEWHERE, f"host {host.number}: LUN {lun} ends with {answer.status}, {answer.sense}; none is there")
                continue
            if answer.status != GOOD:
                self.fault(ELSEWHERE, f"host {host.number}: LUN {lun} ends with {answer.status}, {answer.sense}")
                continue
            disk = shown[lun][0]
            if host.read_label(lun) != label(disk):
                self.fault(WRONG_DISK, f"host {host.number}: LUN {lun} is not disk {disk}")
            host.open(lun, disk)
        listed = host.report_luns()
        if listed != sorted(shown):
            self.fault(ELSEWHERE, f"host {host.number}: REPORT LUNS lists {listed}, not {sorted(shown)}")
        window = host.open_window()
        host.window = host.window or window
        if window != host.window:
            self.fault(WINDOW, f"host {host.number}: {window} commands, {host.window} at first")

    def log_in(self, host):
        server = self.server
        if host.number == 2:
            host.log_in(server.port, STILL_IQN, None, server.plan.tag)
        else:
            host.log_in(server.port, server.iqn, (USER, server.secret()), server.plan.tag)

    def lose(self, kind, number):
        """A host loses its connection and comes back, or logs out and in again; or all of them do because of the daemon."""
        if kind == "upgrade":
            self.upgrade()
            return
        if kind in ("stop", "kill", "portal"):
            self.lose_all(kind)
            return
        plan = self.server.plan
        host = self.chance.choice([host for host in self.hosts[:2] if host.session])
        for other in self.hosts:
            other.ended = []
        self.busy(0.005)
        if kind == "cut":
            host.forget_session()
        self.drain(plan)
        for other in self.hosts:
            seen = self.visible(plan, other.number)
            self.judge(other, seen, seen, False)
        if kind == "logout":
            host.log_out()
        if kind == "drop":
            dropped = self.server.ask("drop-sessions", sessions={"initiator": host.name})
            expect(dropped.get("sessions") == 1, f"{self.what}: {dropped}")
            host.obey()
            # Usually there is a reload before the host comes back; it logs the host in.
            self.round(number, "swap")
        if host.session is None:
            self.log_in(host)
            self.probe(host, self.server.plan)

    def upgrade(self):
        """Another process takes over, under load."""
        server = self.server
        for host in self.hosts:
            host.ended = []
        self.busy(0.005)
        server.replaced.append(server.pid)
        server.pid = self.during("upgrade")["pid"]
        self.busy(0.005)
        self.drain(server.plan)
        server.expect_replaced_ended()
        self.reloads = server.ask()["reloads"]
        for host in self.hosts:
            seen = self.visible(server.plan, host.number)
            self.judge(host, seen, seen, False)
            if host.session:
                self.probe(host, server.plan, seen)

    def lose_all(self, kind):
        """The daemon ends, or loses its portal. The hosts keep their disks open, and find others under their LUNs when they log in again."""
        server, plan = self.server, copy.deepcopy(self.server.plan)
        self.busy(0.005)
        if kind == "portal":
            server.port = free_port()
            # Another one, or one that was there before.
            plan.tag = self.chance.choice([tag for tag in range(1, 5) if tag != plan.tag])
        elif kind == "stop":
            for host in self.hosts:
                host.forget_session()
            expect(server.stop() == 0, f"{self.what}: the daemon does not end in order")
        else:
            self.until_stored()
            server.expect_replaced_ended()
            server.kill()
            for host in self.hosts:
                host.forget_session()
        swap(plan, self.chance)
        plan.prune()
        server.plan = plan
        if kind == "portal":
            server.write_config()
            os.kill(server.pid, signal.SIGHUP)
            self.until_dropped()
            self.until_applied(plan)
        else:
            server.start(fresh=False)
            self.reloads = server.ask()["reloads"]
        for host in self.hosts:
            host.ended = []
            if host.number != plan.refused:
                self.log_in(host)
                self.probe(host, plan)

    def until_stored(self):
        """Waits until the state directory has what the hosts opened, which a killed daemon cannot store any more."""
        used = [(host.name, record is host.former, record) for host in self.hosts for record in (host.present, host.former)
                if record and record.luns]
        opened = {(name, former, str(lun), f"{NAA}{disk}/{BLOCK}") for name, former, record in used for lun, disk in record.luns.items()}
        opened |= {(name, former, "group", str(group)) for name, former, record in used for group in record.groups}
        opened |= {(name, former, "rejoined", str(group)) for name, former, record in used for group in record.rejoined}
        deadline = time.monotonic() + RELOAD_MAX_S
        while not opened <= (stored := stored_bindings(self.server.folder, NAMES)):
            expect(time.monotonic() < deadline, f"{self.what}: {opened - stored} is not stored, of {stored}")
            time.sleep(0.005)

    def until_dropped(self):
        """Waits until the target has ended all sessions."""
        deadline = time.monotonic() + RELOAD_MAX_S
        while sessions := [host for host in self.hosts if host.session]:
            for host in sessions:
                try:
                    host.pump(0.01)
                except (Dropped, ConnectionError):
                    host.forget_session()
            expect(time.monotonic() < deadline, f"{self.what}: sessions through a portal that was removed do not end")

    def look_at_disks(self):
        """Every block of every disk is one of its own, and the last that was acknowledged."""
        for disk in range(DISKS + 1):
            with open(self.server.disk_path(disk), "rb") as file:
                medium = file.read(DISK_MIB * MIB)
            if medium[:BLOCK] != label(disk):
                self.fault(WRONG_DISK, f"disk {disk} is not disk {disk} any more")
            for host in self.hosts:
                first = (1 + host.number * 16) * 64
                for lba in range(first, first + 16 * 64):
                    fault = host.faults_of(disk, lba, medium[lba * BLOCK:(lba + 1) * BLOCK])
                    if fault:
                        self.fault(WRONG_DISK if "meant" in fault else LOST, fault)


@pytest.fixture(scope="module")
def trial(request, pytestconfig, fresh_seed):
    """A trial that was gone through, with all that it found wrong."""
    rounds = pytestconfig.getoption("rounds")
    # A stage with more rounds may run at the same time.
    server = Churned(os.path.join(servers.OUT, "reload", str(rounds)), Export(luns=(Lun(size=DISK_MIB * MIB),)))
    server.reactor = (pytestconfig.getoption("reactor") or ["auto"])[0]
    server.plan = Plan()
    trial = Trial(server, random.Random(fresh_seed))
    # What ends it early is told by a test of its own; what it found until then counts.
    trial.ended = None
    try:
        try:
            trial.run(rounds)
        except Exception as failure:
            trial.ended = failure
        yield trial
        add_verdict(request, "the target ends as it should", server.stop)
    finally:
        server.kill()


def test_all_rounds_are_gone_through(trial, pytestconfig, fresh_seed):
    print(f"seed {fresh_seed}: " + ", ".join(f"{count} {name}" for name, count in trial.happened.items()))
    if trial.ended:
        raise trial.ended


@pytest.mark.parametrize("name", PROPERTIES)
def test_holds(trial, name, pytestconfig, fresh_seed):
    faults = trial.faults[name]
    again = f"--seed {fresh_seed} --rounds {pytestconfig.getoption('rounds')}"
    expect(not faults, f"{len(faults)} times; {'; '.join(faults[:3])}; again with {again}")
    expect(not trial.ended, f"it was not judged to the end: {trial.ended}; again with {again}")
