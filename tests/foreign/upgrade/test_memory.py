"""Live upgrades of a daemon whose disks are in its memory: the memory moves, while hosts write to it and when nobody touches it."""

import os
import random
import statistics
import threading
import time

import pytest

from hostile.initiator import read_10, write_10
from servers import IQN, MIB, Export, Lun
from upgrade.held import GOOD, Held
from upgrade.live import Load, Replaced, histogram
from upgrade.test_upgrade import fail
from verdicts import expect, same

pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(900)]
HOST = "iqn.2026-11.org.targe:host"
BLOCK, CHUNK_BLOCKS, TRANSFER_BLOCKS = 512, 128, 512
SIZE, LARGE = 24 * MIB, 512 * MIB
# The memory of the daemon beside that of its disks, and what is copied at a time.
MORE = 192 * MIB
UPGRADES, IN_A_ROW = 6, 3
# UNMAP of one range, with a list of this many bytes.
UNMAP, UNMAP_LIST = 0x42, 24


@pytest.fixture(name="server")
def one_disk(tmp_path, request):
    server = Replaced(str(tmp_path), Export((Lun("ram", size=getattr(request, "param", SIZE)),)))
    server.start()
    try:
        yield server
        expect(server.stop() == 0, "the daemon does not end in order")
    finally:
        server.kill()


def upgraded(server):
    answer, why = server.upgrade()
    expect(answer, f"an upgrade is refused: {why}")
    return answer["pause_ms"]


@pytest.mark.parametrize("query", ["erl=0", "erl=2&connections=4"])
def test_nobody_notices(server, tmp_path, seed, query):
    chance, load, pauses = random.Random(seed), Load(server, 0, query, seed), []
    server.export = Export(server.export.luns, level=2, connections=4)
    server.reload()
    load.start()
    for at in range(UPGRADES):
        time.sleep(chance.random() * 0.3)
        if at % 2:
            fail(server, tmp_path, "ends with the sessions" if at == 1 else "is ready and ends")
        pauses.append(upgraded(server))
        server.expect_replaced_ended()
    print(histogram(pauses), flush=True)
    load.judge()


def test_what_nobody_touches_moves_again_and_again(server, tmp_path, seed):
    """Chunks that were never used in between are handed on from process to process; holes stay holes, and zeros that were written stay."""
    chance = random.Random(seed)
    host = Held(server.port, IQN, HOST)
    host.ready()
    kept = {chunk: chance.randbytes(BLOCK) for chunk in chance.sample(range(SIZE // BLOCK // CHUNK_BLOCKS), 40)}
    for chunk, data in kept.items():
        write(host, chunk * CHUNK_BLOCKS + 5, data)
    [hole, *others] = kept
    unmap(host, hole * CHUNK_BLOCKS, CHUNK_BLOCKS)
    kept[hole] = bytes(BLOCK)
    mapped = allocation(host)
    for at in range(IN_A_ROW):
        fail(server, tmp_path, "ends with the sessions")
        upgraded(server)
        same("what is allocated", allocation(host), mapped)
        # One is read, one written, one discarded; the others stay where the last process left them.
        some = chance.sample(others, 3)
        same(f"chunk {some[0]} after upgrade {at}", read(host, some[0] * CHUNK_BLOCKS + 5), kept[some[0]])
        kept[some[1]] = chance.randbytes(BLOCK)
        write(host, some[1] * CHUNK_BLOCKS + 5, kept[some[1]])
        unmap(host, some[2] * CHUNK_BLOCKS, CHUNK_BLOCKS)
        kept[some[2]] = bytes(BLOCK)
        mapped = allocation(host)
    for chunk, data in kept.items():
        same(f"chunk {chunk}", read(host, chunk * CHUNK_BLOCKS + 5), data)
        same(f"the block before, of chunk {chunk}", read(host, chunk * CHUNK_BLOCKS + 4), bytes(BLOCK))
    host.close()


@pytest.mark.parametrize("server", [LARGE], indirect=True)
def test_a_large_disk_pauses_no_longer(server, seed):
    """512 MiB are full, and a host writes random blocks meanwhile: only what changes last is copied in the pause."""
    chance = random.Random(seed)
    hosts = [Held(server.port, IQN, f"{HOST}{at}") for at in range(2)]
    for host in hosts:
        host.ready()
    for at in range(0, LARGE // BLOCK, TRANSFER_BLOCKS):
        write(hosts[0], at, pattern(at) * TRANSFER_BLOCKS)
    written, ends = {}, threading.Event()

    most, failed = [0], []

    def scatter():
        block = chance.randrange(LARGE // BLOCK)
        written[block] = chance.randbytes(BLOCK)
        write(hosts[1], block, written[block])

    def measure():
        most[0] = max(most[0], memory_of(server.pid))
        time.sleep(0.005)

    def repeat(step):
        try:
            while not ends.is_set():
                step()
        except Exception as error:
            failed.append(f"{error!r}")

    threads = [threading.Thread(target=repeat, args=(step,), daemon=True) for step in (scatter, measure)]
    for thread in threads:
        thread.start()
    pauses = []
    for _ in range(IN_A_ROW):
        pauses.append(upgraded(server))
        server.expect_replaced_ended()
        time.sleep(0.5)
    ends.set()
    for thread in threads:
        thread.join()
    print(histogram(pauses), f"\n   {len(written)} blocks were written meanwhile, and the daemon had {most[0] // MIB} MiB", flush=True)
    same("what fails", failed, [])
    expect(most[0] < LARGE + MORE, f"the daemon had {most[0]} bytes of memory")
    # What is copied in the pause is copied each time; one pause may be that of the machine.
    expect(statistics.median(pauses) < 500, f"pauses of {pauses} ms")
    for at in range(0, LARGE // BLOCK, TRANSFER_BLOCKS):
        blocks = range(at, at + TRANSFER_BLOCKS)
        wanted = b"".join(written.get(block, pattern(at)) for block in blocks)
        same(f"the blocks from {at}", read(hosts[0], at, TRANSFER_BLOCKS) == wanted, True)
    for host in hosts:
        host.close()


def test_memory_with_a_key_stays(tmp_path):
    server = Replaced(str(tmp_path), Export((Lun("ram", size=MIB, encrypted=True),)))
    server.start()
    try:
        answer, why = server.upgrade()
        expect(answer is None and "key is in the memory of this process" in why and "\n" not in why, f"{answer} {why}")
        expect(server.stop() == 0, "the daemon does not end in order")
    finally:
        server.kill()


def memory_of(pid):
    """What a process has in its own memory and in anonymous files."""
    total, files = 0, {}
    try:
        with open(f"/proc/{pid}/status") as status:
            total += sum(1024 * int(line.split()[1]) for line in status if line.startswith("RssAnon:"))
        for name in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{name}"
            if os.readlink(path).startswith("/memfd:targe-lun"):
                facts = os.stat(path)
                files[facts.st_ino] = 512 * facts.st_blocks
    except OSError:
        # It has ended, or has closed the file.
        pass
    return total + sum(files.values())


def pattern(at):
    return at.to_bytes(8, "big") * (BLOCK // 8)


def write(host, block, data):
    same(f"the status of a write at {block}", host.command(write_10(block, len(data) // BLOCK), write=data)[0], GOOD)


def read(host, block, count=1):
    status, data = host.command(read_10(block, count), read=count * BLOCK)
    same(f"the status of a read at {block}", status, GOOD)
    return data


def unmap(host, block, count):
    ranges = block.to_bytes(8, "big") + count.to_bytes(4, "big") + bytes(4)
    parameters = (UNMAP_LIST - 2).to_bytes(2, "big") + len(ranges).to_bytes(2, "big") + bytes(4) + ranges
    cdb = bytes([UNMAP, 0, 0, 0, 0, 0, 0, 0, len(parameters), 0])
    same("the status of an UNMAP", host.command(cdb, write=parameters)[0], GOOD)


def allocation(host):
    """The answer to GET LBA STATUS for the whole disk."""
    allocated = 4096
    cdb = bytes([0x9E, 0x12]) + bytes(8) + allocated.to_bytes(4, "big") + bytes(2)
    status, data = host.command(cdb, read=allocated)
    same("the status of GET LBA STATUS", status, GOOD)
    return data
