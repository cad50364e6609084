"""Our initiator on a host of its own, judged by the second target, which runs in a thread at the other end of the cables."""

import json
import os
import subprocess
import tempfile
import threading
import time

import cases
import network
import servers
import withheld
from target.blocks import Block
from target.disk import Disk
from target.frames import ACKS, DISCONNECT
from target.opaque import Record
from target.port import BadPort
from target.target import Group, Target
from verdicts import expect

NAME, GROUP, PASSWORD = b"iqn.2026-11.org.example:second", b"lab", b"a word between two ends"
SIZE = 2 << 20
COST = (8192, 1, 1)
# Longest a command may take, seconds.
COMMAND_MAX_S = 40
OPEN_AND_KEYED = ("without password", {}), ("encrypt", {"keyed": True})


def case(*variants, waits=False):
    """Keeps a case of our initiator, one for each (name, options of the rig)."""
    def keep(function):
        def judged(seed, why=None, **options):
            with Rig(seed=seed, **options) as rig:
                return function(rig) if why is None else function(rig, why)
        judged.__name__ = function.__name__
        for variant, options in variants or (("", {}),):
            cases.add("initiator", judged, variant, options, waits)
        return function
    return keep


class Rig:
    """The second target at one end; `ask` runs a command of ours at the other. `rates` are those of a bad port."""

    target_name, group = NAME.decode(), GROUP.decode()

    def __init__(self, mtu=1500, keyed=False, cables=1, rekey_after=1 << 22, seed=1, size=SIZE, **rates):
        self.keyed, self.size, self.seed = keyed, size, seed
        self.folder = tempfile.mkdtemp(prefix="initiator-", dir=cases.out())
        self.password_file(PASSWORD)
        self.net = network.Network(mtu, cables, wired=False)
        self.ports = [BadPort(f"eth{number}", self.net.target.socket, seed + number, **rates) for number in range(cables)]
        self.disk = Disk(size, 2 if keyed else 0)
        record = Record(PASSWORD, GROUP, COST) if keyed else None
        self.target = Target(NAME, self.ports, [Group(GROUP, self.disk, record)], rekey_after)
        self.stop, self.fault, self.duties = threading.Event(), None, []
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        try:
            while not self.stop.is_set():
                self.target.turn()
                for duty in list(self.duties):
                    if duty():
                        self.duties.remove(duty)
        except Exception as fault:  # Told by the case, whatever it is.
            self.fault = fault

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(5)
        self.net.end()
        for port in self.ports:
            port.close()
        if self.fault:
            raise RuntimeError(f"the second target: {self.fault!r}") from self.fault

    def password_file(self, word):
        self.word_file = os.path.join(self.folder, "password")
        with open(os.open(self.word_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(word)

    def url(self, *keys, password=None):
        query = [f"password_file={self.word_file}"] * (self.keyed if password is None else password)
        query += ["paths=" + ",".join(port.interface for port in self.ports)] * (len(self.ports) > 1) + list(keys)
        return f"hyperscsi://{self.group}@eth0/{self.target_name}/0" + ("?" + "&".join(query) if query else "")

    def ask(self, *command, data=b"", good=True):
        """Runs a command of ours; its result, in bytes."""
        inside = self.net.initiator.inside(servers.Targe.binary, *command)
        process = subprocess.Popen(inside, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   preexec_fn=servers.die_with_parent)
        result = subprocess.CompletedProcess(inside, None, *self.told(process, data, COMMAND_MAX_S))
        result.returncode = process.returncode
        if good:
            expect(result.returncode == 0, f"{command[0]}: exit code {result.returncode}: {last_words(result)}")
        return result

    @staticmethod
    def told(process, data, seconds):
        """What a command of ours told until it ended, which it must in time."""
        withheld.count(process.pid)
        limit = withheld.Limit(seconds)
        while True:
            try:
                return process.communicate(data, timeout=max(limit.left(), 0))
            except subprocess.TimeoutExpired:
                # It goes on with what it was given.
                data = None
                if limit.over():
                    process.kill()
                    raise

    def verify(self, *flags, keys=()):
        """Verifies the whole disk; the report."""
        result = self.ask("verify", "--full", "--write", "--json", f"--seed={self.seed}", *flags, self.url(*keys))
        report = json.loads(result.stdout)
        expect(report["sound"] and report["complete"] and report["errors"] == 0, f"verify: {report}")
        expect(report["verified_bytes"] == self.size, f"verified {report['verified_bytes']} bytes")
        return report

    def once(self, report=None):
        """No command ran twice; and as many as the initiator says that it sent."""
        runs = self.target.runs
        expect(runs and max(runs.values()) == 1, f"ran twice: {[each for each in runs.items() if each[1] > 1][:5]}")
        if report:
            expect(len(runs) == report["session"]["commands"], f"{len(runs)} ran, {report['session']['commands']} were sent")
        return len(runs)


class Heard:
    """A watch that keeps what matters of the frames of sessions: when each was taken, what it is, and of those that end sessions how
    long processors had been withheld by then."""

    def __init__(self, rig):
        self.frames = []
        rig.target.watch = self.hear

    def hear(self, session, path, frame):
        payload = Block(frame.payload, {1: 32, 2: 32}).rest if frame.flags & ACKS else frame.payload
        waited = withheld.total() if frame.command == DISCONNECT else None
        self.frames.append((time.monotonic(), frame.command, bytes(payload[:2]), frame.flags, frame.xid, waited))

    def said(self, command, kind):
        return [each for each in self.frames if each[1] == command and each[2][:1] == bytes([kind])]


def last_words(result):
    return result.stderr.decode(errors="replace").strip()[-300:]
