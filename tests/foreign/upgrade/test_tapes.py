"""Live upgrades of tape drives and libraries: positions, records, keys and cartridges stay, and initiators notice nothing."""

import os
import subprocess
import threading

import pytest

from servers import MIB, Export, Lun
from upgrade.held import CHECK, GOOD, Answering, Held
from upgrade.live import Replaced
from upgrade.test_discs import is_locked
from upgrade.test_upgrade import fail
from verdicts import eventually, expect, same

REWIND, READ, WRITE, FILEMARKS, SPACE, LOAD_UNLOAD, PREVENT, READ_POSITION = 0x01, 0x08, 0x0A, 0x10, 0x11, 0x1B, 0x1E, 0x34
SECURITY_OUT, MOVE, ELEMENT_STATUS = 0xB5, 0xA5, 0xB8
DRIVE, SLOT = 500, 1000
RECORD, MARK_EVERY, RECORDS_MAX = 4096, 40, 20_000
# How often a record is written: seldom once half of them are, so that the last upgrade comes before the last record on a busy machine as well.
PACE_S, SLOW_PACE_S = 0.002, 0.05
UPGRADES = 3
NOT_PRESENT, NEW_CARTRIDGE = (2, 0x3A00), (6, 0x2800)
KEY = bytes(range(100, 132))
pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(1800)]


class Drive(Held):
    """A session that uses one LUN, with records that need no Data-Out PDU."""

    def __init__(self, server, name, lun=0):
        self.lun = lun
        super().__init__(server.port, server.iqn, f"iqn.2026-11.org.targe:{name}")

    def request(self, cdb, read=0, write=b"", expected=None):
        out, itt = super().request(cdb, read, write, expected)
        return out[:8] + self.lun.to_bytes(2, "big") + out[10:], itt

    def six(self, opcode, count=0, flags=0, read=0, write=b""):
        return self.command(bytes([opcode, flags]) + count.to_bytes(3, "big") + b"\0", read, write)

    def good(self, *command, **more):
        status, data = self.six(*command, **more)
        expect(status == GOOD, f"{self.name}: {command[0]:#x}: status {status:#x}, {data[:20].hex()}")
        return data

    def position(self):
        """The number of the object and of the file."""
        status, data = self.command(bytes([READ_POSITION, 6, *bytes(8)]), read=32)
        same("READ POSITION", status, GOOD)
        return int.from_bytes(data[8:16], "big"), int.from_bytes(data[16:24], "big")

    def write(self, number):
        self.good(WRITE, RECORD, write=record(number))

    def read(self, number):
        expect(self.good(READ, RECORD, read=RECORD) == record(number), f"record {number} is wrong")

    def mark(self):
        self.good(FILEMARKS, 1)

    def pass_mark(self):
        self.good(SPACE, 1, flags=1)


def record(number):
    return number.to_bytes(4, "big") * (RECORD // 4)


def upgrade(server, folder, *initiators):
    """One upgrade that fails at its last step before the commit, and one that succeeds."""
    with Answering(initiators):
        fail(server, folder, "is ready and ends")
        answer, why = server.upgrade()
    expect(answer, f"an upgrade is refused: {why}")
    same("connections that moved", answer["connections"], len(initiators))
    server.expect_replaced_ended()


class Writing(threading.Thread):
    """Writes records with a filemark now and then."""

    def __init__(self, drive):
        super().__init__(daemon=True)
        self.drive, self.ends, self.written, self.failed = drive, threading.Event(), 0, None

    def run(self):
        try:
            while not self.ends.wait(PACE_S if self.written < RECORDS_MAX // 2 else SLOW_PACE_S) and self.written < RECORDS_MAX:
                self.drive.write(self.written)
                self.written += 1
                if self.written % MARK_EVERY == 0:
                    self.drive.mark()
        except Exception as error:
            self.failed = repr(error)


def verify(server, folder):
    done = subprocess.run([server.binary, "tape", "verify", folder], capture_output=True, text=True, timeout=120)
    expect(done.returncode == 0, f"targe tape verify: {done.stdout}{done.stderr}")


def test_a_tape_is_written_meanwhile(tmp_path):
    """Records in the buffer, and those that are not durable, are neither lost nor there twice."""
    server = Replaced(str(tmp_path), Export((Lun("tape", size=256 * MIB),)))
    server.start()
    try:
        drive, idle = Drive(server, "drive"), Drive(server, "idle")
        for session in (drive, idle):
            session.ready()
        writing = Writing(drive)
        writing.start()
        with Answering([idle]):
            for number in range(UPGRADES):
                fail(server, tmp_path, ("is ready and ends", "keeps silent with the sessions", "cannot resume the sessions")[number])
                answer, why = server.upgrade()
                expect(answer, f"an upgrade is refused: {why}")
                server.expect_replaced_ended()
        writing.ends.set()
        writing.join()
        written, marks = writing.written, writing.written // MARK_EVERY
        expect(written < RECORDS_MAX, "everything was written before the last upgrade")
        same("what fails", writing.failed, None)
        same("the other initiator", idle.sense(), None)
        same("the position", drive.position(), (written + marks, marks))
        drive.good(REWIND)
        for number in range(written):
            if number in (0, written // 2):
                upgrade(server, tmp_path, drive, idle)
            drive.read(number)
            if number % MARK_EVERY == MARK_EVERY - 1:
                drive.pass_mark()
        for session in (drive, idle):
            session.close()
        expect(server.stop() == 0, "the daemon does not end in order")
        verify(server, server.medium_path())
    finally:
        server.kill()


def set_key(drive):
    page = bytes([0, 0x10, 0, 0, 0x40, 0, 2, 2, 1, 0, 0]) + bytes(7) + len(KEY).to_bytes(2, "big") + KEY
    page = page[:2] + (len(page) - 4).to_bytes(2, "big") + page[4:]
    cdb = bytes([SECURITY_OUT, 0x20, 0, 0x10, 0, 0, 0, 0]) + len(page).to_bytes(2, "big") + bytes(2)
    status, data = drive.command(cdb, write=page)
    expect(status == GOOD, f"SECURITY PROTOCOL OUT: {data.hex()}")


def files_with(folder, wanted):
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(root, name)
            if os.path.isfile(path) and not os.path.islink(path):
                with open(path, "rb") as file:
                    if wanted in file.read():
                        yield path


def test_what_is_set_stays(tmp_path):
    """Position, key, prevented removal, and a cartridge that is unloaded."""
    server = Replaced(str(tmp_path), Export((Lun("tape", size=64 * MIB),)))
    server.start()
    try:
        drive, idle = Drive(server, "drive"), Drive(server, "idle")
        for session in (drive, idle):
            session.ready()
        set_key(drive)
        for number in range(10):
            drive.write(number)
        upgrade(server, tmp_path, drive, idle)
        same("the position", drive.position(), (10, 0))
        drive.write(10)
        drive.good(REWIND)
        drive.read(0)
        drive.good(PREVENT, flags=0, count=1)
        with open(os.path.join(server.medium_path(), "label"), "rb") as label:
            expect(is_locked(label), "the cartridge is not locked")
            upgrade(server, tmp_path, drive, idle)
            expect(is_locked(label), "the cartridge is not locked")
        same("an unload that is prevented", drive.six(LOAD_UNLOAD)[0], CHECK)
        for number in range(1, 11):
            drive.read(number)
        drive.good(PREVENT)
        same("a file that holds what was encrypted or the key", [*files_with(tmp_path, record(7)), *files_with(tmp_path, KEY),
                                                                *files_with(tmp_path, KEY.hex().encode())], [])
        drive.good(LOAD_UNLOAD)
        upgrade(server, tmp_path, drive, idle)
        same("the drive", drive.sense(), NOT_PRESENT)
        drive.good(LOAD_UNLOAD, count=1)
        upgrade(server, tmp_path, drive, idle)
        same("the other initiator", idle.sense(), NEW_CARTRIDGE)
        same("the drive", drive.sense(), None)
        drive.read(0)
        for session in (drive, idle):
            session.close()
        expect(server.stop() == 0, "the daemon does not end in order")
        verify(server, server.medium_path())
    finally:
        server.kill()


def move(changer, source, destination):
    cdb = bytes([MOVE, 0]) + b"".join(address.to_bytes(2, "big") for address in (1, source, destination)) + bytes(4)
    return changer.command(cdb)


def elements(changer):
    """READ ELEMENT STATUS of everything, with volume tags."""
    status, data = changer.command(bytes([ELEMENT_STATUS, 0x10, 0, 0, 0xFF, 0xFF, 0, 0, 0x20, 0, 0, 0]), read=0x2000)
    same("READ ELEMENT STATUS", status, GOOD)
    return data


class Moving(threading.Thread):
    """Moves a cartridge to and fro, and writes a record each time that it is in the drive."""

    def __init__(self, changer, drive):
        super().__init__(daemon=True)
        self.changer, self.drive, self.ends, self.moves, self.failed = changer, drive, threading.Event(), 0, None

    def run(self):
        try:
            while not self.ends.is_set() or not self.moves:
                same("a motion", move(self.changer, SLOT + 1, DRIVE + 1)[0], GOOD)
                eventually(lambda: not self.drive.sense(), "the drive is ready")
                # To the end of data.
                self.drive.good(SPACE, flags=3)
                same("the position", self.drive.position()[0], self.moves)
                self.drive.write(self.moves)
                self.moves += 1
                same("a motion", move(self.changer, DRIVE + 1, SLOT + 1)[0], GOOD)
        except Exception as error:
            self.failed = repr(error)


def test_cartridges_move_while_the_daemon_is_replaced(tmp_path):
    """Cartridges in drives, whichever they are, with their positions; and motions meanwhile."""
    server = Replaced(str(tmp_path), Export((Lun("changer", size=64 * MIB),)))
    server.start()
    try:
        changer, first, second = (Drive(server, name, lun) for lun, name in enumerate(("changer", "first", "second")))
        sessions = (changer, first, second)
        changer.ready()
        # The cartridge in the first drive stays there.
        same("a motion", move(changer, SLOT, DRIVE)[0], GOOD)
        first.ready()
        for number in range(20):
            first.write(number)
        first.good(REWIND)
        for number in range(5):
            first.read(number)
        first.good(PREVENT, count=1)
        before = elements(changer)
        with open(os.path.join(server.medium_path(), "lock"), "rb") as lock:
            upgrade(server, tmp_path, *sessions)
            expect(is_locked(lock), "the library is not locked")
        same("the elements", elements(changer), before)
        same("the first drive", first.sense(), None)
        same("the position", first.position(), (5, 0))
        same("a motion that is prevented", move(changer, DRIVE, SLOT)[0], CHECK)
        moving = Moving(changer, second)
        moving.start()
        with Answering([first]):
            for number in range(UPGRADES):
                fail(server, tmp_path, "is ready and ends")
                answer, why = server.upgrade()
                expect(answer, f"an upgrade is refused: {why}")
                server.expect_replaced_ended()
        moving.ends.set()
        moving.join()
        same("what fails", moving.failed, None)
        for number in range(5, 20):
            first.read(number)
        upgrade(server, tmp_path, *sessions)
        first.good(PREVENT)
        same("a motion", move(changer, DRIVE, SLOT)[0], GOOD)
        same("the first drive", first.sense(), NOT_PRESENT)
        for session in sessions:
            session.close()
        expect(server.stop() == 0, "the daemon does not end in order")
    finally:
        server.kill()


__all__ = ["test_a_tape_is_written_meanwhile", "test_cartridges_move_while_the_daemon_is_replaced", "test_what_is_set_stays"]
