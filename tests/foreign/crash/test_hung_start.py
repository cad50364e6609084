"""A daemon starts beside a file system that does not answer, and the command line answers.

The file system is FUSE with a server of the rig that holds back all requests, or those of one kind: the path cannot be looked at, the file
cannot be opened, created or enlarged. The healthy LUNs are served meanwhile, the other one says why it is not ready, and is served without a
restart when the server answers. What a thread of the daemon does that wakes up then is done once, and not at all for a LUN that was removed.
"""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import pytest

import servers

from crash.hanging import CREATE, FALLOCATE, FSYNC, OPEN, HangingFiles
from crash.storage import IQN, Daemon
from hostile.initiator import Session, read_10, write_10
from listening import free_port, listens
from verdicts import eventually, expect

pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(600),
              pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="mounts a file system")]

BLOCK, MIB = 512, 1 << 20
# A start looks at media for 3 s, and waits for media that are being opened for 12 s. A command looks at media for 3 s, or asks a daemon that
# does, twice at most. A change waits for 20 s for a file that is being enlarged. On a busy machine each takes several times as long, and what
# waits for the file system does not end at all.
START_MAX_S = COMMAND_MAX_S = CHANGE_MAX_S = STOP_MAX_S = NAMED_MAX_S = 110
GOOD = 0


class Hung:
    """A daemon with a LUN on the file system, RAM and a file elsewhere."""

    def __init__(self, folder, files, keys='type = "file", path = "{}/disk"'):
        self.files, self.http = files, free_port()
        hung = "{ " + keys.format(files.folder, folder) + ' }'
        other = f'{{ type = "file", path = "{folder}/other.img", size = "16M" }}'
        self.daemon = Daemon(folder, [hung, '{ type = "ram", size = "16M" }', other], f'http = {{ listen = "127.0.0.1:{self.http}" }}')
        self.config = os.path.join(folder, "targe.toml")

    def start(self):
        began = time.monotonic()
        self.daemon.start()
        # The portal listens before media are opened.
        while self.daemon.targe("status", f"--socket={self.daemon.socket}")[0] != 0:
            self.within(began, START_MAX_S, "the daemon serves")
            time.sleep(0.1)
        self.within(began, START_MAX_S, "the daemon starts")

    def stop(self):
        began = time.monotonic()
        self.daemon.end(signal.SIGTERM)
        self.within(began, STOP_MAX_S, "the daemon ends")

    @staticmethod
    def within(began, most, what):
        took = time.monotonic() - began
        expect(took < most, f"it takes {took:.0f} s until {what}")

    def targe(self, *words):
        began = time.monotonic()
        done = self.daemon.targe(*words)
        self.within(began, COMMAND_MAX_S, f"targe {' '.join(words[:2])} ends")
        return done

    def changed(self, *words):
        code, said = self.targe(*words, f"--socket={self.daemon.socket}")
        expect(code == 0, f"targe {' '.join(words)}: {said}")

    def reason(self, lun=0):
        code, said = self.targe("luns", "--json", f"--socket={self.daemon.socket}")
        expect(code == 0, said)
        return next(one["not_ready"] for one in json.loads(said)["luns"] if one["lun"] == lun)

    def ready(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/readyz", timeout=COMMAND_MAX_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def lengths(self):
        """The files and their lengths. Another thread changes them."""
        return {name: len(content) for name, content in self.files.files.copy().items()}

    def log(self):
        with open(os.path.join(self.daemon.folder, "log")) as file:
            return file.read()

    def works(self, lun):
        host = Session(self.daemon.port, IQN, f"iqn.2026-11.org.targe:host{time.monotonic_ns()}")
        host.lun = lun
        with contextlib.closing(host.ready()):
            data = bytes([lun + 1]) * 8 * BLOCK
            expect(host.command(write_10(0, 8), write=data)[0] == GOOD, f"LUN {lun} is not written")
            expect(host.command(read_10(0, 8), 8 * BLOCK) == (GOOD, data), f"LUN {lun} does not read what was written")

    def until_ready(self, lun=0):
        eventually(lambda: self.reason(lun) is None, lambda: f"LUN {lun} is served: {self.reason(lun)}", 120)

    def until_stopped(self):
        """The daemon has stopped, although its process may not end yet. A thread writes its log a little later."""
        eventually(lambda: self.log().rstrip().endswith("stopped"), lambda: f"the daemon stops: {self.log()[-600:]}", STOP_MAX_S)

    def until_undone(self, name, length):
        """A file was enlarged, and has its former length again."""
        eventually(lambda: self.files.growths > 0 and self.lengths()[name] == length,
                   lambda: f"{name} was enlarged and has {length} bytes again: {self.lengths()}, {self.files.growths} growths")

    def until_done(self, *words):
        """Repeats a command until it ends well, which it does once the daemon has noticed that the file system answers."""
        answers = []

        def is_done():
            answers.append(self.targe(*words))
            return answers[-1][0] == 0

        eventually(is_done, lambda: f"targe {' '.join(words[:2])} ends well: {answers[-1][1]}")


@contextlib.contextmanager
def hung(content, **keys):
    with tempfile.TemporaryDirectory() as folder, HangingFiles(os.path.join(folder, "hung"), content) as files:
        one = Hung(folder, files, **keys)
        try:
            yield one
        finally:
            # A process that waits for the file system cannot be killed.
            files.release()
            one.daemon.end(signal.SIGKILL)


NEW = 'type = "file", path = "{}/disk", size = "4M"'
FULL = 'type = "file", path = "{}/disk", size = "4M", provisioning = "full"'
DISC = 'type = "disc", path = "{}/disk"'
# What is not answered, the files, the LUN, and the length of its file at the end.
HANGS = {
    "everything": ((), {"disk": bytes(4 * MIB)}, 'type = "file", path = "{}/disk"', 4 * MIB),
    "open": ((OPEN,), {"disk": bytes(4 * MIB)}, 'type = "file", path = "{}/disk"', 4 * MIB),
    "sync": ((FSYNC,), {"disk": bytes(4 * MIB)}, 'type = "file", path = "{}/disk"', 4 * MIB),
    "create": ((CREATE,), {}, NEW, 4 * MIB),
    "enlarge": ((FALLOCATE,), {"disk": bytes(MIB)}, FULL, 4 * MIB),
    "everything, and the file is new": ((), {}, NEW, 4 * MIB),
}


@pytest.mark.parametrize("hangs", HANGS)
def test_healthy_luns_are_served_and_the_other_when_it_answers(kind, hangs):
    kinds, content, keys, length = HANGS[hangs]
    with hung(content, keys=keys) as one:
        one.files.hang(*kinds)
        one.start()
        for lun in (1, 2):
            # A busy machine can be late with a healthy file as well.
            one.until_ready(lun)
            one.works(lun)
        path = os.path.join(one.files.folder, "disk")
        expect("does not answer" in (one.reason() or ""), f"the LUN is not ready because of {one.reason()}")
        code, said = one.ready()
        expect(code == 503 and "does not answer" in said, f"/readyz: {code} {said}")
        eventually(lambda: f"{path} does not answer" in one.log(), "the log names the path")
        expect(one.targe("status", f"--socket={one.daemon.socket}")[0] == 0, "targe status fails")
        one.changed("lun", "add", IQN, "ram:1M,lun=7")
        one.changed("lun", "set", IQN, "7", "ro=true")
        one.changed("lun", "resize", IQN, "2", "32M")
        one.works(2)
        growths = one.files.growths
        one.files.release()
        one.until_ready()
        one.works(0)
        expect(one.reason() is None, "the LUN is not ready any more")
        expect(len(one.files.files["disk"]) == length, f"the file has {len(one.files.files['disk'])} bytes")
        expect(one.files.growths - growths <= 1, "the file was enlarged twice")
        one.stop()
        # The daemon logs it after `targe luns` shows the LUN ready.
        expect((times := one.log().count("its medium has come, and is served")) == 1, f"the medium has come {times} times")


@pytest.mark.parametrize("hangs", ["everything", "open"])
def test_the_daemon_ends_although_the_file_system_hangs(kind, hangs):
    with hung({"disk": bytes(4 * MIB)}) as one:
        one.files.hang(*HANGS[hangs][0])
        one.start()
        one.works(1)
        if hangs == "open":
            # The kernel ends no process with a request that was read: the daemon must have stopped before.
            one.daemon.process.send_signal(signal.SIGTERM)
            one.until_stopped()
            one.files.release()
        one.stop()


@pytest.mark.parametrize("hangs", ["create", "enlarge"])
def test_a_thread_that_wakes_up_changes_nothing_for_a_lun_that_was_removed(kind, hangs):
    kinds, content, keys, _ = HANGS[hangs]
    with hung(content, keys=keys) as one:
        one.files.hang(*kinds)
        one.start()
        one.changed("lun", "remove", IQN, "0")
        one.files.release()
        lengths = {name: len(content_of) for name, content_of in content.items()}
        eventually(lambda: one.lengths() == lengths, lambda: f"the files are as they were: {one.lengths()}")
        time.sleep(3)
        expect(one.lengths().keys() == content.keys(), f"the files are {one.lengths()}")
        if content:
            one.changed("lun", "add", IQN, f"file:{one.files.folder}/disk,lun=9")
            one.works(9)
        one.stop()


@pytest.mark.parametrize("hangs, lun, length", [(FSYNC, "", MIB), (FALLOCATE, ",size=4M,provisioning=full", 4 * MIB)], ids=["sync", "enlarge"])
def test_a_lun_whose_opening_takes_long_is_added_and_served_when_it_is_open(kind, hangs, lun, length):
    with hung({"disk": bytes(4 * MIB), "slow": bytes(MIB)}) as one:
        one.start()
        one.works(0)
        one.files.hang(hangs)
        began = time.monotonic()
        code, said = one.daemon.targe("lun", "add", IQN, f"file:{one.files.folder}/slow{lun},lun=9", "--json", f"--socket={one.daemon.socket}")
        one.within(began, COMMAND_MAX_S, "targe lun add ends")
        expect(code == 0, f"targe lun add: {code} {said}")
        expect("its medium is still being opened" in said, f"targe lun add: {said}")
        expect("preparing" in (one.reason(9) or ""), f"the LUN is not ready because of {one.reason(9)}")
        one.changed("lun", "add", IQN, "ram:1M,lun=7")
        one.changed("lun", "set", IQN, "7", "ro=true")
        for at in (1, 2):
            one.works(at)
        code, said = one.targe("apply", one.config, f"--socket={one.daemon.socket}")
        expect(code == 0 and "does not answer" not in said, f"targe apply: {code} {said}")
        one.files.release()
        one.until_ready(9)
        one.works(9)
        expect(len(one.files.files["slow"]) == length, f"the file has {len(one.files.files['slow'])} bytes")
        one.stop()


def test_a_lun_that_is_removed_while_it_is_opened_leaves_nothing(kind):
    with hung({"disk": bytes(4 * MIB), "slow": bytes(MIB)}) as one:
        one.start()
        one.files.hang(FALLOCATE)
        one.changed("lun", "add", IQN, f"file:{one.files.folder}/slow,size=4M,provisioning=full,lun=9")
        one.changed("lun", "remove", IQN, "9")
        one.files.release()
        one.until_undone("slow", MIB)
        one.until_done("lun", "add", IQN, f"file:{one.files.folder}/slow,lun=9", f"--socket={one.daemon.socket}")
        one.works(9)
        one.stop()


def test_a_change_that_hangs_is_refused_and_undone(kind):
    with hung({"disk": bytes(MIB)}, keys='type = "file", path = "{}/disk", size = "1M", provisioning = "full"') as one:
        one.start()
        one.works(0)
        one.files.hang(FALLOCATE)
        resize = ("lun", "resize", IQN, "0", "4M", f"--socket={one.daemon.socket}")
        began = time.monotonic()
        code, said = one.daemon.targe(*resize)
        one.within(began, CHANGE_MAX_S, "targe lun resize ends")
        expect(code != 0 and f"{one.files.folder}/disk does not answer" in said, f"targe lun resize: {code} {said}")
        code, said = one.targe(*resize)
        expect(code != 0 and "still does not answer an earlier change" in said, f"targe lun resize again: {code} {said}")
        for lun in (1, 2):
            one.works(lun)
        one.files.release()
        one.until_undone("disk", MIB)
        one.works(0)
        one.until_done(*resize)
        expect(len(one.files.files["disk"]) == 4 * MIB, f"the file has {len(one.files.files['disk'])} bytes")
        one.works(0)
        one.stop()


@pytest.mark.parametrize("keys", [HANGS["everything"][2], DISC], ids=["file", "disc"])
def test_commands_without_a_daemon_name_the_path(kind, keys):
    with hung({"disk": bytes(4 * MIB)}, keys=keys) as one:
        one.files.hang()
        path = os.path.join(one.files.folder, "disk")
        code, said = one.targe("check", one.config)
        expect(code == 2 and f"{path} does not answer" in said, f"targe check: {code} {said}")
        # 2 is for mistakes in the configuration: a service manager starts the daemon again after 1.
        code, said = one.targe("serve", "--strict", "--config", one.config)
        expect(code == 1 and f"{path} does not answer" in said, f"targe serve --strict: {code} {said}")
        code, said = one.targe("lun", "add", IQN, "ram:1M,lun=7", "--config", one.config)
        expect(code == 0 and f"{path} does not answer" in said, f"targe lun add: {code} {said}")
        with open(one.config) as file:
            expect("ram" in file.read(), "the LUN is not added")


def test_secrets_on_the_file_system_delay_their_luns_only(kind):
    secret = "s" * 40
    with hung({"secret": secret.encode(), "disk": b""}, keys='type = "file", path = "{1}/plain.img", size = "4M", encrypt = "{0}/secret"') as one:
        one.files.hang()
        one.start()
        one.works(1)
        expect(f"{one.files.folder}/secret does not answer" in (one.reason() or ""), f"the LUN is not ready because of {one.reason()}")
        one.files.release()
        eventually(lambda: "does not answer" not in (one.reason() or ""), "the secret is not waited for any more", 120)
        one.stop()


# The keys of the daemon and of its LUN 0 that name a file or folder on the file system, and what is there.
AWAITED = {
    "chap": ('discovery = {{ auth = {{ user = "host", secret_file = "{}/secret" }} }}', 'type = "ram", size = "1M"', {"secret": b"s" * 14}),
    "library": ("", 'type = "changer", path = "{}"', {"library": b"targe-library 1\nserial LIB00001\nprofile lto8\ndrives 1\n"}),
}


@pytest.mark.parametrize("awaited", AWAITED)
@pytest.mark.parametrize("ends", [False, True], ids=["answers", "sigterm"])
def test_a_start_waits_for_what_nothing_can_be_served_without(kind, awaited, ends):
    """No portal listens meanwhile, so that no host is refused for a secret that the daemon does not know."""
    keys, lun, content = AWAITED[awaited]
    with hung(content, keys=lun) as one:
        with open(one.config) as file:
            text = file.read()
        with open(one.config, "w") as file:
            file.write(keys.format(one.files.folder) + "\n" + text)
        one.files.hang()
        code, said = one.targe("serve", "--strict", "--config", one.config)
        expect(code == 1 and f"{one.files.folder}" in said and "does not answer" in said, f"targe serve --strict: {code} {said}")
        with open(os.path.join(one.daemon.folder, "log"), "ab") as log:
            command = [servers.Targe.binary, "serve", "--config", one.config]
            one.daemon.process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=servers.die_with_parent)
        deadline = time.monotonic() + START_MAX_S
        while "the start waits until it does" not in one.log():
            expect(one.daemon.process.poll() is None and time.monotonic() < deadline, f"the daemon does not wait: {one.log()}")
            time.sleep(0.1)
        # Longer than a look at a medium.
        time.sleep(5)
        expect(one.daemon.process.poll() is None, f"the daemon ends: {one.log()}")
        expect(not listens("127.0.0.1", one.daemon.port), "a portal listens")
        if ends:
            one.daemon.process.send_signal(signal.SIGTERM)
            one.until_stopped()
            one.files.release()
            expect(one.daemon.process.wait(timeout=STOP_MAX_S) == 0, "the exit code is not 0")
            one.daemon.process = None
            return
        one.files.release()
        if awaited == "library":
            # What the rig has there is no library: that is a mistake, which is found now.
            expect(one.daemon.process.wait(timeout=START_MAX_S) == 2, "the exit code is not 2")
            one.daemon.process = None
            return
        eventually(lambda: one.daemon.targe("status", f"--socket={one.daemon.socket}")[0] == 0, "the daemon serves", START_MAX_S)
        one.works(1)
        one.stop()


@pytest.mark.parametrize("what", ["configuration", "state directory"])
def test_a_start_names_the_file_that_it_waits_for_and_a_signal_ends_it(kind, what):
    with hung({"targe.toml": b""}, keys='type = "ram", size = "1M"') as one:
        with open(one.config) as file:
            text = file.read()
        config, path = one.config, one.files.folder
        if what == "configuration":
            config = path = os.path.join(one.files.folder, "targe.toml")
            one.files.files["targe.toml"] = bytearray(text.encode())
        else:
            with open(config, "w") as file:
                file.write(text.replace('state_dir = "state"', f'state_dir = "{one.files.folder}"'))
        one.files.hang()
        with open(os.path.join(one.daemon.folder, "log"), "ab") as log:
            command = [servers.Targe.binary, "serve", "--config", config]
            one.daemon.process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=servers.die_with_parent)
        deadline = time.monotonic() + NAMED_MAX_S
        while "the start waits until it does" not in one.log():
            expect(one.daemon.process.poll() is None and time.monotonic() < deadline, f"the daemon says nothing: {one.log()}")
            time.sleep(0.1)
        expect(path in one.log(), f"the log names another file: {one.log()}")
        one.daemon.process.send_signal(signal.SIGTERM)
        eventually(lambda: one.log().rstrip().endswith("stopped"), "the log says that the daemon stops", STOP_MAX_S)
        # The kernel ends no process with a request that was read.
        one.files.release()
        expect(one.daemon.process.wait(timeout=STOP_MAX_S) == 0, "the exit code is not 0")
        one.daemon.process = None
