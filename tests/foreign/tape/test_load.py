"""A cartridge that was not unloaded is checked when it is loaded: how much of it, and what an operator sees meanwhile.

The target is killed after a host has written without a filemark. The files are real ones, and the target is the release binary.
"""

import json
import re
import subprocess
import time

import pytest

from servers import MIB, Export, Lun, Targe
from upgrade.test_tapes import FILEMARKS, WRITE, Drive
from verdicts import expect, same

CAPACITY, RECORD = 4096 * MIB, MIB
# What is written without a filemark: more than may be unchecked, which is 512 MiB, or a quarter of the cartridge if that is less.
RECORDS, UNCHECKED_MAX = 1400, 512
# Longest that a check may take, seconds: it reads with the speed of the disk.
CHECK_MAX_S = 300
CHECKED = re.compile(r"the cartridge was not unloaded and is checked; (\d+) % of its capacity so far")
pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(900)]


class Server(Targe):
    def luns(self):
        """What `targe luns` prints."""
        socket = f"{self.folder}/admin/admin.sock"
        return subprocess.run([self.binary, "luns", "--socket", socket], capture_output=True, text=True, timeout=60).stdout

    def checked(self):
        """The percentages that `targe luns` shows, until the cartridge is loaded, and how long that takes."""
        began, seen = time.monotonic(), []
        while time.monotonic() - began < CHECK_MAX_S:
            printed = self.luns()
            if found := CHECKED.search(printed):
                seen.append(int(found[1]))
            elif "becoming ready" not in printed:
                return seen, time.monotonic() - began
        raise AssertionError(f"the cartridge is still checked: {printed}")


def test_a_cartridge_that_was_not_unloaded_is_checked_from_a_checkpoint_on_and_shown(tmp_path):
    server = Server(str(tmp_path), Export((Lun("tape", size=CAPACITY),)))
    server.start()
    try:
        host = Drive(server, "writer")
        host.sense()
        record = bytes(range(256)) * (RECORD // 256)
        host.good(FILEMARKS, 1)
        for number in range(RECORDS):
            host.good(WRITE, RECORD, write=number.to_bytes(4, "big") + record[4:])
        server.kill()
        server.start(fresh=False)
        seen, seconds = server.checked()
        print(f"{RECORDS} MiB without a filemark: ready after {seconds:.1f} s, {seen[:1]} to {seen[-1:]} % shown")
        expect(seen and seen == sorted(seen), f"`targe luns` shows {seen}")
        # It begins at the last checkpoint.
        first = 100 * MIB * (RECORDS - UNCHECKED_MAX) // CAPACITY
        expect(seen[0] >= first, f"the check begins at {seen[0]} %, and {first} % were behind a checkpoint")
        # The columns of a disk are empty: size, blocks, flags and what is allocated.
        row = next(line for line in server.luns().splitlines() if server.medium_path() in line)
        same(f"the columns of a tape drive in {row!r}", len(row.split()), 4)
        # After a filemark nothing is left to be checked.
        host = Drive(server, "writer")
        while host.sense():
            pass
        status, _ = host.command(bytes([0x11, 3, *bytes(4)]))
        same("SPACE to the end of data", status, 0)
        host.good(FILEMARKS, 1)
        server.kill()
        server.start(fresh=False)
        seen, seconds = server.checked()
        print(f"after a filemark: ready after {seconds:.1f} s, {seen} % shown")
        server.stop()
    finally:
        server.kill()
    done = subprocess.run([server.binary, "tape", "verify", "--json", server.medium_path()], capture_output=True, text=True, timeout=CHECK_MAX_S)
    expect(done.returncode == 0, f"targe tape verify: {done.stderr}")
    same("the records that were acknowledged", json.loads(done.stdout)["partitions"][0]["records"], RECORDS)
