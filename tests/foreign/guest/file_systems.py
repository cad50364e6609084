"""File systems on disks of a guest, and files in them whose `fsync` had returned."""

import os
import time

from verdicts import expect

# Longest the guest's I/O may take to come back after the target is gone, seconds. The kernel retries every few.
RESUME_MAX_S = 400


def expect_synced(guest, disk):
    """The file system on the disk is clean, and has every file that the writer had synced."""
    guest.run(f"e2fsck -fn {disk} 2>&1")
    guest.run("echo 3 > /proc/sys/vm/drop_caches")
    guest.run(f"mount -t ext4 {disk} /mnt")
    synced = dict(line.split()[:2] for line in guest.run("cat /tmp/synced").splitlines())
    sums = guest.run("cd /mnt; sha256sum [0-9]*; cd /", limit_s=RESUME_MAX_S)
    guest.run("umount /mnt")
    found = {name: digest for digest, name in map(str.split, sums.splitlines())}
    lost = [name for name, digest in synced.items() if found.get(name) != digest]
    expect(not lost, f"{len(lost)} of {len(synced)} synced files are lost or differ: {lost[:5]}")


def more_synced(guest):
    """Waits until the writer has synced another dozen files."""
    def count():
        return int(guest.run("wc -l < /tmp/synced"))

    deadline, target = time.monotonic() + RESUME_MAX_S, count() + 12
    while (reached := count()) < target:
        expect(time.monotonic() < deadline, f"I/O does not resume: {reached} files synced after {RESUME_MAX_S} s")
        time.sleep(0.2)


def outlives(guest, disk, interrupt, times=2):
    """Calls `interrupt` under load, `times` times. The guest's I/O resumes each time, and every file is there whose fsync had returned."""
    make_file_system(guest, disk)
    guest.run("rm -f /tmp/enough /tmp/synced; touch /tmp/synced; /writer & writer=$!")
    more_synced(guest)
    for _ in range(times):
        interrupt()
        more_synced(guest)
    guest.run("touch /tmp/enough; wait $writer", limit_s=RESUME_MAX_S)
    guest.run("umount /mnt", limit_s=RESUME_MAX_S)
    expect_synced(guest, disk)


def make_file_system(guest, disk):
    guest.run(f"mkfs.ext4 -q -F {disk} 2>&1")
    guest.run(f"mount -t ext4 {disk} /mnt")


def allocated(path):
    os.sync()
    return os.stat(path).st_blocks * 512
