"""Live upgrades of drives for discs: the disc in the drive stays, whatever the configuration names, and its initiators notice nothing."""

import fcntl
import os
import threading

import pytest

from servers import MIB, Export, Lun
from upgrade.held import CHECK, GOOD, Answering, Held
from upgrade.live import Replaced
from upgrade.test_upgrade import fail
from verdicts import eventually, expect, same

SECTOR, BURST = 2048, 16
READ, WRITE, SYNCHRONIZE, START_STOP, PREVENT = 0x28, 0x2A, 0x35, 0x1B, 0x1E
EJECT, LOAD = 2, 3
NO_DISC_OPEN, NO_DISC_CLOSED = (2, 0x3A02), (2, 0x3A01)
NEW_DISC = (6, 0x2800)
UPGRADES = 4
SIZE = 128 * MIB
# Where the burning ends in any case, and how often a burst is written: seldom once half of that is written, so that it does not end before the
# last upgrade, however long a busy machine takes for the upgrades.
LAST = SIZE // SECTOR // 2
PACE_S, SLOW_PACE_S = 0.005, 0.25
pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(1200)]


def initiator(server, name="drive"):
    return Held(server.port, server.iqn, f"iqn.2026-11.org.targe:{name}")


def at(opcode, lba, count):
    return bytes([opcode, 0]) + lba.to_bytes(4, "big") + b"\0" + count.to_bytes(2, "big") + b"\0"


def read(held, lba, count=1):
    status, data = held.command(at(READ, lba, count), read=count * SECTOR)
    expect(status == GOOD, f"a read at {lba}: {data.hex()}")
    return data


def tray(held, what):
    return held.command(bytes([START_STOP, 0, 0, 0, what, 0]))[0]


def prevent(held, is_prevented):
    same("PREVENT ALLOW MEDIUM REMOVAL", held.command(bytes([PREVENT, 0, 0, 0, int(is_prevented), 0]))[0], GOOD)


def upgrade(server, folder, *initiators):
    """One upgrade that fails at its last step before the commit, and one that succeeds."""
    with Answering(initiators):
        fail(server, folder, "is ready and ends")
        answer, why = server.upgrade()
    expect(answer, f"an upgrade is refused: {why}")
    server.expect_replaced_ended()


def is_locked(file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False


def expect_unlocked(file):
    """A disc that has left its drive is closed by a thread, soon after the reload."""
    eventually(lambda: not is_locked(file), "the image of a disc that was taken out is not locked")


def image(path, byte):
    """An image at a path, as a new file."""
    with open(path + ".new", "wb") as file:
        file.write(bytes([byte]) * MIB)
    os.rename(path + ".new", path)


def test_the_disc_in_the_drive_is_not_the_configured_one(tmp_path):
    """Its file was replaced, and the reload that would change it was refused: the next process has the same one."""
    server = Replaced(str(tmp_path), Export((Lun("disc", size=MIB),)))
    server.start()
    try:
        path = server.medium_path()
        held = initiator(server)
        held.ready()
        first = read(held, 0)
        prevent(held, True)
        with open(path, "rb") as served:
            image(path, 2)
            server.reload()
            upgrade(server, tmp_path, held)
            same("the sector", read(held, 0), first)
            expect(is_locked(served), "the image of the disc is not locked")
            same("an eject that is prevented", tray(held, EJECT), CHECK)
            prevent(held, False)
            same("an eject", tray(held, EJECT), GOOD)
            upgrade(server, tmp_path, held)
            same("the tray", held.sense(), NO_DISC_OPEN)
            same("a load", tray(held, LOAD), GOOD)
            held.ready()
            upgrade(server, tmp_path, held)
            same("the drive", held.sense(), None)
            same("the sector", read(held, 0), first)
            server.reload()
            expect_unlocked(served)
        same("the drive", held.sense(), NEW_DISC)
        held.ready()
        same("the sector of the new disc", read(held, 0), bytes([2]) * SECTOR)
        held.close()
        expect(server.stop() == 0, "the daemon does not end in order")
    finally:
        server.kill()


def test_an_empty_drive_stays_empty(tmp_path):
    server = Replaced(str(tmp_path), Export((Lun("disc", size=MIB),)))
    server.make_media()
    path = server.medium_path()
    os.remove(path)
    server.start(fresh=False)
    try:
        held = initiator(server)
        eventually(lambda: held.sense() == NO_DISC_CLOSED, "the drive says that it has no disc")
        image(path, 3)
        upgrade(server, tmp_path, held)
        same("the drive", held.sense(), NO_DISC_CLOSED)
        server.reload()
        same("the drive", held.sense(), NEW_DISC)
        held.ready()
        same("the sector", read(held, 0), bytes([3]) * SECTOR)
        held.close()
        expect(server.stop() == 0, "the daemon does not end in order")
    finally:
        server.kill()


class Burn(threading.Thread):
    """Writes a disc from its begin on, and tells what has failed."""

    def __init__(self, held):
        super().__init__(daemon=True)
        self.held, self.ends, self.written, self.failed = held, threading.Event(), 0, None

    def run(self):
        try:
            while not self.ends.wait(PACE_S if self.written < LAST // 2 else SLOW_PACE_S) and self.written < LAST:
                status, data = self.held.command(at(WRITE, self.written, BURST), write=contents(self.written))
                expect(status == GOOD, f"a write at {self.written}: {data.hex()}")
                self.written += BURST
        except Exception as error:
            self.failed = repr(error)


def contents(lba):
    """What is written from a sector on."""
    return b"".join((lba + number).to_bytes(4, "big") * (SECTOR // 4) for number in range(BURST))


@pytest.mark.parametrize("kind", ["dvd-r", "bd-r"])
def test_a_disc_is_burned_meanwhile(tmp_path, kind):
    """Sequential writes of one initiator while another looks on: no error, no unit attention, each sector whole."""
    server = Replaced(str(tmp_path), Export((Lun("disc", size=SIZE, writable=kind),)))
    server.start()
    try:
        held, idle = initiator(server), initiator(server, "idle")
        held.ready()
        idle.ready()
        burn = Burn(held)
        burn.start()
        with Answering([idle]):
            for number in range(UPGRADES):
                fail(server, tmp_path, "is ready and ends" if number % 2 else "keeps silent with the sessions")
                answer, why = server.upgrade()
                expect(answer, f"an upgrade is refused: {why}")
                server.expect_replaced_ended()
        expect(burn.written < LAST, "the disc was full before the last upgrade")
        burn.ends.set()
        burn.join()
        sectors = burn.written
        same("what fails", burn.failed, None)
        same("the other initiator", idle.sense(), None)
        same("a flush", held.command(at(SYNCHRONIZE, 0, 0))[0], GOOD)
        upgrade(server, tmp_path, held, idle)
        for lba in range(0, sectors, BURST):
            expect(read(held, lba, BURST) == contents(lba), f"sectors from {lba} on are wrong")
        with open(server.medium_path(), "rb") as served:
            expect(is_locked(served), "the image of the disc is not locked")
        # It goes on where it has ended.
        same("a write elsewhere", held.command(at(WRITE, sectors + BURST, BURST), write=contents(0))[0], CHECK)
        same("a write", held.command(at(WRITE, sectors, BURST), write=contents(sectors))[0], GOOD)
        same("a flush", held.command(at(SYNCHRONIZE, 0, 0))[0], GOOD)
        for session in (held, idle):
            session.close()
        expect(server.stop() == 0, "the daemon does not end in order")
    finally:
        server.kill()


__all__ = ["test_a_disc_is_burned_meanwhile", "test_a_release_that_does_not_know_drives_is_refused", "test_an_empty_drive_stays_empty", "test_the_disc_in_the_drive_is_not_the_configured_one"]
