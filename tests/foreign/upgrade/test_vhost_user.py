"""Live upgrades of LUNs that are devices of other processes, over vhost-user: the next process connects to them anew, and no initiator notices.

QEMU's storage daemon and the back ends of the rig accept one connection at a time."""

import os
import pathlib
import signal
import statistics
import sys
import tempfile
import threading
import time

import pytest

import withheld
from hostile.initiator import read_10, write_10
from nbd.exports import NbdServer, Targe, device, qemu_storage_daemon, wait_for
from servers import MIB, Export
from upgrade.held import GOOD, Answering, Held
from upgrade.live import Client, Late, Load, Replaced, begun_anew, histogram
from upgrade.test_nbd import SECTOR, read, refused, upgrade
from upgrade.test_upgrade import fail, query
from verdicts import expect, same

SIZE = 8 * MIB
UPGRADES = 4
FAILURES = ("is no program", "has too little memory", "cannot resume the sessions", "is ready and ends", "keeps silent with the sessions", "fails when it is ready",
            "ends when it is ready")
# No initiator waits longer than this for a command, milliseconds.
PAUSE_MAX_MS = 500
PULSE_S = 0.002
BLOCK, SCSI = 0, 1
FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "nbd")
pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(900)]


class Devices:
    """A block device of QEMU and a SCSI disk of the rig, each with its file."""

    def __init__(self, folder):
        self.files, self.processes = [], []
        for name in ("block", "scsi"):
            (folder / name).mkdir()
            self.files.append(folder / name / "disk")
            self.files[-1].write_bytes(bytes(SIZE))
        self.processes = [qemu_storage_daemon(folder / "block", self.files[BLOCK], "raw"),
                          NbdServer(folder / "scsi", sys.executable, os.path.join(FOLDER, "scsi_back_end.py"), "SOCKET", str(self.files[SCSI]))]

    def __enter__(self):
        for process in self.processes:
            process.start()
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.end(signal.SIGKILL)

    def luns(self, **more):
        return (device(self.processes[BLOCK], **more), device(self.processes[SCSI], medium="vhost-user-scsi", **more))

    def scsi_connections(self):
        with open(os.path.join(self.processes[SCSI].folder, "nbd.log")) as log:
            return log.read().count("is connected to")


class Serving(Replaced, Targe):
    """A target with these LUNs."""

    def __init__(self, folder, *luns):
        super().__init__(os.path.join(folder, "targe"), Export(luns, level=2, connections=8))

    def start(self, fresh=True):
        super().start(fresh)
        # It listens before it is connected to the devices.
        self.log_says("State is kept in")

    def is_ready(self):
        return not any(self.unit(number)["not_ready"] for number in (BLOCK, SCSI))


def read_first(held):
    """Reads the first block. Returns the status."""
    return held.command(read_10(0, 1), read=SECTOR)[0]


class Pulse(threading.Thread):
    """An initiator that reads a block of a LUN again and again, and notes how long that took at most."""

    def __init__(self, server, lun):
        super().__init__(daemon=True)
        self.held = Held(server.port, server.iqn, f"iqn.2026-11.org.targe:pulse-{lun}")
        self.held.lun, self.ends, self.failed, self.longest = lun, threading.Event(), None, 0
        self.held.ready()
        self.start()

    def run(self):
        try:
            while not self.ends.is_set():
                began = time.monotonic()
                status = read_first(self.held)
                expect(status == GOOD, f"a read ends with {status}")
                self.longest = max(self.longest, time.monotonic() - began)
                time.sleep(PULSE_S)
        except Exception as error:
            self.failed = f"{error!r}"

    def longest_ms(self):
        longest, self.longest = self.longest, 0
        return round(longest * 1000)

    def judge(self):
        self.ends.set()
        self.join()
        expect(self.failed is None, f"{self.failed}")
        self.held.close()


@pytest.mark.parametrize("reactor", ["uring", "epoll"])
def test_nobody_notices(tmp_path, seed, reactor):
    with Devices(tmp_path) as devices:
        server = Serving(str(tmp_path), *devices.luns())
        server.reactor = reactor
        server.start()
        try:
            loads = [Load(server, lun, query(2, 2, "none"), seed + lun) for lun in (BLOCK, SCSI)]
            pulses = [Pulse(server, lun) for lun in (BLOCK, SCSI)]
            for load in loads:
                load.start()
            steps, pauses, judged, connections = [None] * UPGRADES + list(FAILURES), [], [], 1
            for at in range(len(steps)):
                step = steps[at * 3 % len(steps)]
                for pulse in pulses:
                    pulse.longest_ms()
                waited = withheld.Waits(lambda: withheld.family(os.getpid()))
                if step:
                    fail(server, tmp_path, step)
                else:
                    upgrade(server)
                    connections += 1
                    wait_for("the connections", server.is_ready)
                time.sleep(0.1)
                waits = [pulse.longest_ms() for pulse in pulses]
                if not step:
                    # What a busy machine withheld meanwhile is no time of the program.
                    pauses += waits
                    judged += [wait - 1000 * waited() for wait in waits]
                # One that fails leaves the connection alone.
                same("connections to the SCSI device", devices.scsi_connections(), connections)
            print(histogram(pauses), flush=True)
            # A connection that comes late comes late each time; a single pause may be that of the machine.
            expect(statistics.median(judged) < PAUSE_MAX_MS, f"commands took {pauses} ms")
            for checked in (*pulses, *loads):
                checked.judge()
            log = server.log_of_this_run()
            for words in ("again", "is lost", "has ended:"):
                expect(words not in log, f"the log says that a device was away: {server.log_tail()}")
            for lun in (BLOCK, SCSI):
                expect(read(server, server.iqn, lun) == devices.files[lun].read_bytes(), f"the file of LUN {lun} holds something else")
            expect(server.stop() == 0, "the daemon does not end in order")
        finally:
            server.kill()


def test_a_process_is_killed_right_after_an_upgrade(tmp_path, seed):
    """Nothing that was acknowledged is lost, and no command fails."""
    with Devices(tmp_path) as devices:
        server = Serving(str(tmp_path), *devices.luns())
        server.start()
        try:
            loads = [Load(server, lun, query(0, 1, "none"), seed + lun) for lun in (BLOCK, SCSI)]
            for load in loads:
                load.start()
            for at in range(UPGRADES):
                upgrade(server)
                # Sometimes before they are connected to.
                time.sleep(at % 2 * 0.05)
                for process in devices.processes:
                    process.restart()
                wait_for("the return", server.is_ready)
                time.sleep(0.3)
                wait_for("the return", server.is_ready)
            for load in loads:
                load.judge()
            for lun in (BLOCK, SCSI):
                expect(read(server, server.iqn, lun) == devices.files[lun].read_bytes(), f"the file of LUN {lun} holds something else")
            expect(server.stop() == 0, "the daemon does not end in order")
        finally:
            server.kill()


def test_a_daemon_that_ends_late_holds_up_nobody(tmp_path):
    """It ends its connections when it lets go, and not when it ends: it gives its clients time to read their answers."""
    begun_anew(daemon_ends_late, tmp_path)


def daemon_ends_late(tmp_path):
    tmp_path = pathlib.Path(tempfile.mkdtemp(prefix="", dir=tmp_path))
    with Devices(tmp_path) as devices:
        server = Serving(str(tmp_path), *devices.luns())
        server.start()
        try:
            pulses = [Pulse(server, lun) for lun in (BLOCK, SCSI)]
            tracer, changer = Client(server.socket), Client(server.socket)
            sessions = {"initiator": pulses[0].held.name}
            traced = tracer.ask({"method": "trace", "trace": {"sessions": sessions, "plain": False, "follow": True}})
            expect("result" in traced and "result" in changer.ask({"method": "status"}), f"{traced}")
            told, pid = [], server.pid
            upgrading = threading.Thread(target=lambda: told.append(server.upgrade()), daemon=True)
            upgrading.start()
            wait_for("the other process", lambda: len(children(pid)) > 0)
            changer.send({"method": "reload"})
            answer = changer.receive()
            let_go = time.monotonic()
            upgrading.join()
            [(upgraded, why)] = told
            expect(upgraded, why)
            if "result" in answer:
                raise Late("the first upgrade came to nothing")
            expect("has taken over" in answer.get("error", {}).get("message", ""), f"reload is answered with {answer}")
            server.expect_replaced_ended()
            late_s = time.monotonic() - let_go
            longest = [pulse.longest_ms() for pulse in pulses]
            for pulse in pulses:
                pulse.judge()
            expect(server.stop() == 0, "the daemon does not end in order")
            if late_s < 1 or max(longest) > PAUSE_MAX_MS:
                raise Late(f"the daemon ended after {late_s} s, and commands took {longest} ms")
        finally:
            server.kill()


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()


@pytest.mark.parametrize("lun", [BLOCK, SCSI], ids=["block", "scsi"])
def test_a_process_is_away(tmp_path, seed, lun):
    """While it is down, an upgrade is refused and commands wait. They are carried out when it is back."""
    with Devices(tmp_path) as devices:
        server = Serving(str(tmp_path), *devices.luns())
        server.start()
        try:
            process = devices.processes[lun]
            for is_loaded in (False, True):
                if is_loaded:
                    load = Load(server, lun, query(2, 2, "none"), seed)
                    load.start()
                    wait_for("a write", lambda: server.unit(lun)["write_bytes"])
                said = server.log_of_this_run().count("commands wait")
                process.end(signal.SIGKILL)
                wait_for("the loss", lambda: server.log_of_this_run().count("commands wait") > said or server.unit(lun)["not_ready"])
                refused(server, "does not answer")
                process.start()
                wait_for("the return", lambda: "does not answer" not in (server.upgrade("--binary", "/nonexistent/targe")[1]))
                upgrade(server)
            load.judge()
            process.end(signal.SIGKILL)
            expect(server.stop() == 0 or lun == BLOCK, "the daemon does not end in order")
        finally:
            server.kill()


def test_a_process_that_is_away_for_too_long_refuses_an_upgrade(tmp_path):
    with Devices(tmp_path) as devices:
        server = Serving(str(tmp_path), *devices.luns(reconnect_timeout="1s"))
        server.start()
        try:
            for process in devices.processes:
                process.end(signal.SIGKILL)
                held = Held(server.port, server.iqn, "iqn.2026-11.org.targe:reader")
                held.lun = devices.processes.index(process)
                wait_for("the failure", lambda: read_first(held) != GOOD and "does not answer" in (server.unit(held.lun)["not_ready"] or ""))
                with Answering([held]):
                    refused(server, "does not answer")
                process.start()
                wait_for("the return", lambda: read_first(held) == GOOD and server.is_ready())
                with Answering([held]):
                    upgrade(server)
                held.close()
            expect(server.stop() == 0, "the daemon does not end in order")
        finally:
            server.kill()


def test_a_flush_fails(tmp_path):
    """What was written could not be repeated by the next process: the upgrade is refused."""
    back_end = NbdServer(tmp_path, sys.executable, os.path.join(FOLDER, "back_end.py"), "SOCKET", "unflushable")
    with back_end:
        server = Serving(str(tmp_path), device(back_end))
        server.start()
        try:
            held = Held(server.port, server.iqn, "iqn.2026-11.org.targe:writer")
            held.ready()
            with Answering([held]):
                upgrade(server)
            same("a write", held.command(write_10(0, 1), write=b"a" * SECTOR)[0], GOOD)
            with Answering([held]):
                refused(server, "could not make durable")
                refused(server, "could not make durable")
            same("a write", held.command(write_10(0, 1), write=b"b" * SECTOR)[0], GOOD)
            held.close()
            with pytest.raises(AssertionError, match="ended with 1; .*what hosts wrote last may be missing on"):
                server.stop()
        finally:
            server.kill()
