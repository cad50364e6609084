"""Our target on a host of its own, judged by the second initiator at the other end of the cables."""

import json
import os
import signal
import socket
import subprocess
import tempfile
import time

import cases
import network
import served
import withheld
from initiator import scsi
from initiator.discovery import discover
from initiator.link import Link
from initiator.session import Lost
from initiator.workload import whole_disk
from verdicts import expect

PATIENCE_S = 60
GROUP = b"backup"


def case(*variants, waits=False):
    """Keeps a case of our target, one for each (name, options)."""
    def keep(function):
        for variant, options in variants or (("", {}),):
            cases.add("target", function, variant, options, waits)
        return function
    return keep


class Rig:
    """`targe serve` at the far end of cables."""

    target_name = "iqn.2026-01.org.example:disk"

    def __init__(self, *luns, mtu=1500, cables=1, group=GROUP.decode(), password=None):
        self.luns, self.cables, self.group, self.password = luns, cables, group, password
        self.folder = tempfile.mkdtemp(prefix="target-", dir=cases.out())
        self.net, self.server = network.Network(mtu, cables, wired=False), None
        try:
            self.serve()
        except BaseException:
            self.__exit__(True)
            raise

    def __enter__(self):
        return self

    def __exit__(self, failed=None, *_):
        try:
            # A case may have ended it, which then judges that itself.
            if self.server and not failed and self.server.returncode is None:
                served.end_server(self.net.target, self.folder, self.server)
        finally:
            self.stop()
            self.net.end()

    def serve(self):
        """Starts the target, and waits until it answers."""
        ports = ",".join(f"eth{number}" for number in range(self.cables))
        flags = [f"--iface={ports}", f"--group={self.group}", f"--target={self.target_name}"]
        if self.password is not None:
            with open(os.open(f"{self.folder}/password", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(self.password)
            flags.append(f"--group-password-file={self.folder}/password")
        self.server = served.start_server(self.net.target, self.folder, *flags, *(f"--lun={lun}" for lun in self.luns))
        withheld.count(self.server.pid)
        link, limit = self.link(), withheld.Limit(PATIENCE_S)
        while not discover(link, self.group.encode(), os.urandom(16), 0.2, enough=1):
            expect(self.server.poll() is None and not limit.over(), f"never up: {served.told(self.folder)[-600:]}")
        link.close()

    def link(self, *interface, **options):
        """A port at the near end."""
        return link_of(self.net.initiator, *interface, **options)

    def ask(self, what):
        """What the admin socket tells: `status`, `sessions` or `luns`."""
        return served.asked(self.net.target, self.folder, what)

    def stop(self, number=signal.SIGKILL):
        """Ends the target; by SIGKILL unless told otherwise."""
        if self.server and self.server.poll() is None:
            self.server.send_signal(number)
            try:
                self.server.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()
                raise


def link_of(host, interface="eth0", kind=Link, **options):
    """A port of the second initiator on a host."""
    shown = json.loads(host.run("ip", "-j", "link", "show", interface).stdout)[0]
    raw = host.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    return kind(raw, interface, bytes.fromhex(shown["address"].replace(":", "")), shown["mtu"], **options)


def commands_run(rig):
    """How many commands the target says that LUN 0 was given."""
    return next(lun["commands"] for lun in rig.ask("luns")["luns"] if lun["lun"] == 0)


def transfer(rig, session, disk, seed, total=8 << 20, **options):
    """The whole-disk test; each command ran once, by the target's own count."""
    disk.do(scsi.test_unit_ready())
    before, began = commands_run(rig), time.monotonic()
    count = whole_disk(disk, seed, total=total, **options)
    took, ran = time.monotonic() - began, commands_run(rig) - before
    expect(ran == count, f"{count} commands were sent and {ran} ran")
    expect(session.goodbye(), "no DONE")
    return f"{count} commands, {total >> 19} MiB in {took:.1f} s, MTU {session.paths[0].mtu}"


def ended(session, reason, seconds=5):
    """Works until the session ends, which it must, for this reason."""
    try:
        session.run(lambda: False, seconds)
    except Lost as why:
        expect(str(why) == reason, f"ended with {why}, not with {reason}")
    except TimeoutError:
        raise AssertionError(f"the session did not end with {reason}") from None
