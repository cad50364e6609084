"""Live upgrades under the Linux kernel's initiator: fio verifies what it writes, and neither it nor the kernel notices anything."""

import json
import os
import random
import time

import pytest

import servers
from guest import image
from guest.initiator import Initiator
from guest.machine import HOST, Guest
from servers import MIB, Export, Lun
from upgrade.live import Replaced, histogram
from verdicts import expect, same

SIZE = 64 * MIB
# Each block is read back soon after it was written, and again at the end of every pass.
FIO = ("fio --thread --name=data --filename={disk} --rw=randwrite --bsrange=4k-64k --iodepth=8 --ioengine=libaio --direct=1 --randseed={seed} "
       "--verify=crc32c --do_verify=1 --verify_backlog=64 --verify_fatal=1 --verify_state_save=0 --loops=1000 --time_based --runtime={seconds}s "
       "--eta=never --output-format=json --output=/tmp/fio.json")
# It runs again and again, for so long each time, until there is a file: an upgrade takes as long as it does on a busy machine.
RUN_S = 15
AGAIN = ("rm -f /tmp/enough /tmp/ended; ( code=0; while [ ! -e /tmp/enough ] && [ $code = 0 ]; do {fio}; code=$?; done; echo $code > /tmp/ended ) "
         "> /tmp/fio.log 2>&1 &")
# Longest between two upgrades, seconds.
BETWEEN_S = 1.0
# Longest fio may take to begin, and to end when its time is over: it verifies the rest of a pass.
BEGIN_MAX_S, END_MAX_S = 300, 400
# Both are emulated: the guest's boot, and what it does.
pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(3600)]


@pytest.mark.parametrize("digest", ["None", "CRC32C"])
def test_fio_notices_no_upgrade(pytestconfig, tmp_path, seed, digest):
    upgrades = -(-pytestconfig.getoption("upgrades") // 2)
    chance = random.Random(seed)
    kernel, initramfs = image.prepare_verify(os.path.join(servers.OUT, "guest"))
    server = Replaced(str(tmp_path), Export((Lun("file", size=SIZE),), digests="offered", announce=HOST))
    server.start()
    try:
        with Guest(kernel, initramfs, str(tmp_path)) as guest:
            initiator = Initiator(guest, server)
            with initiator.logged_in(header=digest, data=digest) as disk:
                written = written_bytes(server)
                guest.run(AGAIN.format(fio=FIO.format(disk=disk, seed=seed, seconds=RUN_S)))
                begun = time.monotonic()
                while written_bytes(server) < written + MIB:
                    expect(time.monotonic() < begun + BEGIN_MAX_S, "fio writes nothing")
                    time.sleep(0.1)
                pauses = []
                for _ in range(upgrades):
                    time.sleep(chance.random() * BETWEEN_S)
                    answer, why = server.upgrade()
                    expect(answer, f"an upgrade is refused: {why}")
                    same("sessions that moved", answer["sessions"], 1)
                    pauses.append(answer["pause_ms"])
                    server.expect_replaced_ended()
                print(histogram(pauses), flush=True)
                expect(not guest.run("cat /tmp/ended 2> /dev/null", check=False), f"fio has ended: {guest.run('cat /tmp/fio.log')}")
                guest.run("touch /tmp/enough; until [ -s /tmp/ended ]; do sleep 0.2; done", limit_s=RUN_S + END_MAX_S)
                same(f"fio, which says {guest.run('cat /tmp/fio.log')!r}, ends with", guest.run("cat /tmp/ended"), "0")
                (job,) = json.loads(guest.run("cat /tmp/fio.json"))["jobs"]
                expect(job["error"] == 0 and job["read"]["total_ios"] > 0, f"fio: error {job['error']}, {job['read']['total_ios']} reads")
                same("logins since the first", json.loads(server.admin("status"))["logins"], 0)
                expect(not initiator.complaints(), initiator.complaints())
        expect(server.stop() == 0, "the daemon does not end in order")
    finally:
        server.kill()


def written_bytes(server):
    """How many bytes the target was given to write."""
    return sum(lun["write_bytes"] for lun in json.loads(server.admin("luns"))["luns"])
