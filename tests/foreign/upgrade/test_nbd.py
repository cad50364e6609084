"""Live upgrades of LUNs whose blocks come from NBD servers that others wrote: the next process goes on with the same connection.

qemu-nbd and nbdkit serve one connection here, and end with it: a second one would find nobody."""

import os
import signal
import subprocess

import pytest

import servers
from hostile.initiator import write_10
from nbd.exports import NbdServer, Targe, export, nbdkit, wait_for
from servers import MIB, Export
from upgrade.held import GOOD, Answering, Held
from upgrade.live import SECOND, Late, Load, Replaced, begun_anew
from upgrade.test_upgrade import fail, query
from verdicts import expect, same

SIZE = 8 * MIB
UPGRADES = 4
# Each gives up with or without the sockets.
FAILURES = ("ends when it is prepared", "cannot resume the sessions", "ends with the sessions", "is ready and ends", "keeps silent with the sessions",
            "fails when it is ready")
# Error recovery level, connections, reactor, and the servers, each with a reactor of its own.
CASES = [(0, 1, "uring", ["qemu-nbd"]), (2, 4, "epoll", ["nbdkit"]), (2, 2, "uring", ["qemu-nbd", "nbdkit"]), (0, 1, "epoll", ["nbdkit", "qemu-nbd"])]
SECTOR = 512
FLUSH, READ = 0x35, 0x28
pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(900)]


class Exporting(Replaced, Targe):
    """One LUN at an NBD server, and one more of another target on another reactor."""

    def __init__(self, folder, *uris, **more):
        luns = [export(uri, **more) for uri in uris]
        super().__init__(os.path.join(folder, "targe"), Export(tuple(luns[:1]), level=2, connections=8))
        self.second = uris[1:]

    def config_lines(self):
        if self.second:
            yield 'cores = "{},{}"'.format(*sorted(os.sched_getaffinity(0))[:2])
        yield from super().config_lines()
        for uri in self.second:
            yield from ("[[target]]", f'name = "{SECOND}"', "[[target.lun]]", "lun = 0", 'type = "nbd"', f'uri = "{uri}"')


class Once:
    """A server of an image that accepts one connection only."""

    def __init__(self, folder, kind):
        folder.mkdir()
        self.image = folder / "disk"
        form = "qcow2" if kind == "qemu-nbd" else "raw"
        subprocess.run(["qemu-img", "create", "-q", "-f", form, self.image, str(SIZE)], check=True, timeout=60)
        words = {"qemu-nbd": ("qemu-nbd", "--format=qcow2", "--socket=SOCKET", "--discard=unmap", str(self.image)),
                 "nbdkit": ("nbdkit", "--foreground", "--unix", "SOCKET", "--filter=exitlast", "file", str(self.image))}
        self.server = NbdServer(folder, *words[kind])

    def holds(self, data):
        """Whether it has ended by itself when its client did, and its image is this."""
        same("the end of the server", self.server.process.wait(60), 0)
        raw = f"{self.image}.raw"
        subprocess.run(["qemu-img", "convert", "-O", "raw", self.image, raw], check=True, timeout=60)
        with open(raw, "rb") as file:
            return file.read() == data


def read(server, iqn, lun=0):
    url = f"iscsi://127.0.0.1:{server.port}/{iqn}/{lun}"
    done = subprocess.run([server.binary, "read", url, "--bs=1M"], capture_output=True, timeout=200)
    expect(done.returncode == 0, done.stderr.decode())
    return done.stdout


def upgrade(server):
    answer, why = server.upgrade()
    expect(answer, f"an upgrade is refused: {why}")
    server.expect_replaced_ended()
    return answer


def refused(server, words, wait_s=60):
    answer, why = server.upgrade("--wait", str(wait_s), wanted=words)
    expect(answer is None and words in why and "\n" not in why, f"an upgrade that is to be refused: {answer or why}")
    expect(server.is_alive(), "the daemon has ended")


@pytest.mark.parametrize("level, connections, reactor, kinds", CASES,
                         ids=[f"level {level}, {connections} connections, {reactor}, {' and '.join(kinds)}" for level, connections, reactor, kinds in CASES])
def test_nobody_notices(tmp_path, seed, level, connections, reactor, kinds):
    if len(os.sched_getaffinity(0)) < len(kinds):
        pytest.skip("two reactors need two cores")
    disks = [Once(tmp_path / kind, kind) for kind in kinds]
    try:
        for disk in disks:
            disk.server.start()
        server = Exporting(str(tmp_path), *(disk.server.uri() for disk in disks))
        server.reactor = reactor
        server.start()
        try:
            targets = (server.iqn, SECOND)[:len(kinds)]
            loads = [Load(server, 0, query(level, connections, "none"), seed + at, iqn) for at, iqn in enumerate(targets)]
            for load in loads:
                load.start()
            steps = [None] * UPGRADES + list(FAILURES)
            for at in range(len(steps)):
                step = steps[at * 3 % len(steps)]
                if step:
                    fail(server, tmp_path, step)
                else:
                    upgrade(server)
            for load in loads:
                load.judge()
            data = [read(server, iqn) for iqn in targets]
            expect(not any(disk.server.process.poll() is not None for disk in disks), "a server has lost its client")
            expect("answers again" not in server.log_of_this_run(), "a connection was lost")
            expect(server.stop() == 0, "the daemon does not end in order")
            for disk, held in zip(disks, data):
                expect(disk.holds(held), f"{disk.image} holds something else")
        finally:
            server.kill()
    finally:
        for disk in disks:
            disk.server.end(signal.SIGKILL)


def losing(folder, disk):
    """A server that loses what was not flushed when it is killed."""
    with open(disk, "wb") as file:
        file.truncate(SIZE)
    return nbdkit(folder, "--filter=cache", "file", str(disk), "cache=writeback")


def test_a_server_is_killed_right_after_an_upgrade(tmp_path, seed):
    """It loses what was not flushed. Nothing that was acknowledged is lost, and no command fails."""
    with losing(tmp_path, tmp_path / "disk") as nbd:
        server = Exporting(str(tmp_path), nbd.uri())
        server.start()
        try:
            held = Held(server.port, server.iqn, "iqn.2026-11.org.targe:writer")
            held.ready()
            for at in range(UPGRADES):
                data = bytes([at + 1]) * SECTOR
                same("a write", held.command(write_10(at, 1), write=data)[0], GOOD)
                with Answering([held]):
                    upgrade(server)
                nbd.restart()
                status, got = held.command(bytes([READ, 0, 0, 0, 0, at, 0, 0, 1, 0]), read=SECTOR)
                expect(status == GOOD and got == data, f"sector {at} is lost: {status} {got[:8].hex()}")
            held.close()
            load = Load(server, 0, query(0, 1, "none"), seed)
            load.start()
            for _ in range(UPGRADES):
                wrote = server.unit()["write_bytes"]
                wait_for("a write", lambda: server.unit()["write_bytes"] > wrote)
                upgrade(server)
                nbd.restart()
                wait_for("the return", lambda: not server.unit()["not_ready"])
            load.judge()
            data = read(server, server.iqn)
            expect(server.stop() == 0, "the daemon does not end in order")
            nbd.end(signal.SIGKILL)
            expect(data == (tmp_path / "disk").read_bytes(), "after the end of targe, the file lacks what was written")
        finally:
            server.kill()


def test_a_server_is_away(tmp_path, seed):
    """While it is down or hangs, an upgrade is refused and commands wait. They are carried out when it is back."""
    with losing(tmp_path, tmp_path / "disk") as nbd:
        server = Exporting(str(tmp_path), nbd.uri())
        server.start()
        try:
            load = Load(server, 0, query(2, 2, "none"), seed)
            load.start()
            wait_for("a write", lambda: server.unit()["write_bytes"])
            nbd.end(signal.SIGKILL)
            wait_for("the loss", lambda: server.unit()["not_ready"])
            refused(server, "does not answer")
            nbd.start()
            wait_for("the return", lambda: not server.unit()["not_ready"])
            upgrade(server)
            wrote = server.unit()["write_bytes"]
            wait_for("a write", lambda: server.unit()["write_bytes"] > wrote)
            nbd.send(signal.SIGSTOP)
            refused(server, "under way", wait_s=2)
            nbd.send(signal.SIGCONT)
            upgrade(server)
            load.judge()
            # Nobody waits for it, and only it could tell that it is away.
            nbd.end(signal.SIGKILL)
            wait_for("the loss", lambda: server.unit()["not_ready"])
            refused(server, "does not answer")
            nbd.start()
            wait_for("the return", lambda: not server.unit()["not_ready"])
            upgrade(server)
            expect(server.stop() == 0, "the daemon does not end in order")
        finally:
            server.kill()


def replaced_while_a_flush_is_slow(server, held):
    same("a write", held.command(write_10(0, 1), write=b"a" * SECTOR)[0], GOOD)
    with Answering([held]):
        answer = upgrade(server)
    # The flush began before the sessions were frozen, where a machine is not so slow that it takes another second.
    if answer["attempts"] != 1:
        raise Late(f"{answer['attempts']} attempts")


def test_a_flush_fails_or_is_slow(tmp_path):
    """A slow flush delays an upgrade. One that fails refuses it; what was to be flushed is written again before the next one."""
    fails, slow, disk = (tmp_path / name for name in ("fails", "slow", "disk"))
    with open(disk, "wb") as file:
        file.truncate(MIB)
    plugin = (f"get_size=echo {MIB}", "can_write=exit 0", "can_flush=exit 0", f"pread=dd if={disk} skip=$4 count=$3 iflag=skip_bytes,count_bytes status=none",
              f"pwrite=dd of={disk} seek=$4 oflag=seek_bytes conv=notrunc status=none",
              f"flush=if [ -e {fails} ]; then echo EIO >&2; exit 1; fi; if [ -e {slow} ]; then sleep 0.5; fi")
    with nbdkit(tmp_path, "eval", *plugin) as nbd:
        server = Exporting(str(tmp_path), nbd.uri())
        server.start()
        try:
            held = Held(server.port, server.iqn, "iqn.2026-11.org.targe:writer")
            held.ready()
            slow.touch()
            begun_anew(replaced_while_a_flush_is_slow, server, held)
            slow.unlink()
            fails.touch()
            same("a write", held.command(write_10(1, 1), write=b"b" * SECTOR)[0], GOOD)
            with Answering([held]):
                refused(server, "could not make durable")
                refused(server, "could not make durable")
            fails.unlink()
            same("the next flush", held.command(bytes([FLUSH, 0, 0, 0, 0, 0, 0, 0, 0, 0]))[0], GOOD)
            with Answering([held]):
                upgrade(server)
            held.close()
            expect(server.stop() == 0, "the daemon does not end in order")
        finally:
            server.kill()


__all__ = ["test_a_flush_fails_or_is_slow", "test_a_server_is_away",
           "test_a_server_is_killed_right_after_an_upgrade", "test_nobody_notices"]
