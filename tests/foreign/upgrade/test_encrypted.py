"""Live upgrades of a daemon whose disk is encrypted: the key moves, also one that was replaced while the other process prepared."""

import contextlib
import random
import threading
import time

import pytest

from hostile.initiator import read_10, write_10
from servers import IQN, MIB, Export, Lun
from upgrade.held import CHECK, GOOD, Held
from upgrade.live import Load, Replaced, histogram
from upgrade.test_upgrade import fail
from verdicts import expect, same

SIZE = 16 * MIB
BLOCK = 512
UPGRADES, ERASURES = 6, 8
# SANITIZE with CRYPTOGRAPHIC ERASE, answered when it has ended.
CRYPTOGRAPHIC_ERASE = bytes([0x48, 0x03]) + bytes(8)
UNIT_ATTENTION, SANITIZE_IN_PROGRESS = 0x06, 0x041B
# A new process opens the header in about this time, seconds: it derives a key by Argon2id.
PREPARES_S = 0.4
pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(600)]


@contextlib.contextmanager
def encrypted(folder, seed):
    server = Replaced(str(folder), Export((Lun("file", size=SIZE, encrypted=True),)))
    server.start()
    try:
        yield server, random.Random(seed)
        expect(server.stop() == 0, "the daemon does not end in order")
    finally:
        server.kill()


def test_nobody_notices(tmp_path, seed):
    with encrypted(tmp_path, seed) as (server, chance):
        load, pauses = Load(server, 0, "erl=0", seed), []
        load.start()
        for at in range(UPGRADES):
            time.sleep(chance.random() * 0.3)
            if at == UPGRADES // 2:
                fail(server, tmp_path, "is ready and ends")
            answer, why = server.upgrade()
            expect(answer, f"an upgrade is refused: {why}")
            pauses.append(answer["pause_ms"])
            server.expect_replaced_ended()
        print(histogram(pauses), flush=True)
        load.judge()


def test_a_key_that_is_replaced_meanwhile_is_the_one_that_counts(tmp_path, seed):
    """A host erases the disk at any moment of an upgrade. What it writes afterwards is there in the new process and after a restart."""
    with encrypted(tmp_path, seed) as (server, chance):
        for number in range(ERASURES):
            host = Held(server.port, IQN, "iqn.2026-11.org.targe:host")
            host.ready()
            write(host, 7, chance.randbytes(BLOCK))
            told = []
            upgrading = threading.Thread(target=lambda: told.append(server.upgrade()), daemon=True)
            upgrading.start()
            time.sleep(chance.random() * PREPARES_S)
            same(f"erasure {number}", command(host, CRYPTOGRAPHIC_ERASE)[0], GOOD)
            content = chance.randbytes(BLOCK)
            write(host, 3, content)
            upgrading.join()
            [(answer, why)] = told
            # The daemon goes on if the other process has read the key that was replaced.
            expect(answer or "key" in why, f"erasure {number}: {why}")
            print(f"   erasure {number}: {'moved' if answer else why}", flush=True)
            server.expect_replaced_ended()
            same(f"the block after erasure {number}", command(host, read_10(3, 1), read=BLOCK), (GOOD, content))
            host.close()
            expect(server.stop() == 0, "the daemon does not end in order")
            server.start(fresh=False)
            again = Held(server.port, IQN, "iqn.2026-11.org.targe:host")
            again.ready()
            same(f"the block after erasure {number} and a restart", command(again, read_10(3, 1), read=BLOCK), (GOOD, content))
            again.close()
        answer, why = server.upgrade()
        expect(answer, f"an upgrade is refused although no key was replaced: {why}")


def write(host, block, data):
    same("the status of a write", command(host, write_10(block, 1), write=data)[0], GOOD)


def command(host, cdb, read=0, write=b""):
    """A command that is repeated while a sanitize operation goes on, or after a unit attention."""
    while True:
        status, data = host.command(cdb, read, write)
        if status != CHECK:
            return status, data
        key, code = data[4] & 0x0F, data[14] << 8 | data[15]
        expect(key == UNIT_ATTENTION or code == SANITIZE_IN_PROGRESS, f"sense {key:#x} {code:#06x}")
        time.sleep(0.01)
