"""Commands that change an encrypted disk, killed before each system call that changes a file, and repeated.

strace counts the calls of a whole run first. Then each run ends at the next of them, as a crash of the process would end it.
"""

import os
import re
import subprocess

import pytest

from test_luks import DATA, MIB, TARGE, cryptsetup, fixture_secret, run, serving, write_some, read  # noqa: F401

pytestmark = pytest.mark.without_targe
# The calls that change files. A call of another kind leaves the disk as the one before it did.
CHANGES = ["pwrite64", "fallocate", "ftruncate", "fsync", "fdatasync", "unlink", "unlinkat", "rename", "renameat2"]
KILLED = -9


def test_a_format_that_was_killed_is_repeated_or_complete(tmp_path, secret):
    disk = tmp_path / "disk.img"
    command = ["luks", "format", "--key-file", secret, disk]
    seen = set()

    def blank():
        disk.write_bytes(b"")
        os.truncate(disk, DATA + MIB)

    def go_on(where):
        again = subprocess.run([TARGE, *map(str, command)], capture_output=True, text=True)
        seen.add(again.returncode)
        # A complete header is not written again. It opens, and the daemon repairs a copy that is missing.
        assert again.returncode == 0 or "it is a LUKS2 image already" in again.stderr, (where, again.stderr)
        cryptsetup("open", "--test-passphrase", "--key-file", secret, disk)

    killed_everywhere(tmp_path, command, blank, go_on)
    assert seen == {0, 1}


def test_a_start_makes_an_image_of_a_disk_whose_format_was_killed(tmp_path, secret):
    disk = tmp_path / "disk.img"
    disk.write_bytes(b"")
    os.truncate(disk, DATA + 8 * MIB)
    # After the keyslot, before the copies of the header.
    ended = killed(["luks", "format", "--key-file", secret, disk], "pwrite64", 3)
    assert ended == KILLED and any(disk.read_bytes()[32768:DATA])
    with serving(disk, secret, 512) as url:
        content = write_some(url)
    with serving(disk, secret, 512) as url:
        assert {at: read(url, at, len(data)) for at, data in content.items()} == content


def killed_everywhere(folder, command, make, go_on):
    """Runs a command on what `make` makes, and ends it before each system call that changes a file."""
    make()
    counts = calls(folder, command)
    assert counts.get("fsync") and counts.get("pwrite64"), counts
    for call, times in counts.items():
        for number in range(1, times + 1):
            make()
            ended = killed(command, call, number)
            assert ended in (0, KILLED), (call, number, ended)
            if ended == KILLED:
                go_on((call, number))


def calls(folder, command):
    """Returns how often a run makes each call."""
    log = folder / "strace"
    run(["strace", "-f", "-qq", "-e", "trace=" + ",".join(CHANGES), "-o", log, TARGE, *command])
    made = re.findall(r"^(?:\d+\s+)?(\w+)\(", log.read_text(), re.M)
    log.unlink()
    return {call: made.count(call) for call in CHANGES if call in made}


def killed(command, call, number):
    """Runs a command, and kills it when it makes a call for the n-th time. Returns how it ended."""
    inject = f"inject={call}:signal=SIGKILL:when={number}"
    done = subprocess.run(["strace", "-f", "-qq", "-e", f"trace={call}", "-e", inject, "-o", "/dev/null", TARGE, *map(str, command)],
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return done.returncode
