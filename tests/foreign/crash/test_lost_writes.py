"""What hosts had written is lost because the file system's own storage is full, and the kernel reports that once.

Whatever finds the report, a flush of a host fails from then on: over a reload, a stop, SIGKILL and an upgrade, until the operator accepts
the loss. The medium is a file on ext4, or on XFS for a snapshot, over a loop device whose backing file is on a tmpfs that is too small, and is
enlarged afterwards.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile

import pytest

from crash.storage import COMMAND_MAX_S, IQN, Daemon, loop_device, mounted, tool
from verdicts import expect

pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(600)]


@contextlib.contextmanager
def thin_folder(folder, kind="ext4"):
    """A folder whose file system promises more than its storage has, and what enlarges the storage."""
    # The journal of XFS takes 64 MiB.
    size = "116M" if kind == "xfs" else "48M"
    with contextlib.ExitStack() as undo:
        backing = undo.enter_context(mounted("none", os.path.join(folder, "backing"), "-t", "tmpfs", "-o", f"size={size}"))
        image = os.path.join(backing, "image")
        with open(image, "wb") as file:
            file.truncate((320 if kind == "xfs" else 120) << 20)
        tool(f"mkfs.{kind}", "-q", *(("-F", "-O", "^has_journal") if kind == "ext4" else ()), image)
        device = undo.enter_context(loop_device(image))
        thin = undo.enter_context(mounted(device, os.path.join(folder, "mounted")))
        yield thin, lambda: tool("mount", "-o", "remount,size=400M", backing)


def disk(folder, keys=""):
    """The LUN on a file system."""
    return f'{{ type = "file", path = "{folder}/disk.img", size = "80M"{keys} }}'


# What an operator may do that flushes the file system.
COMMANDS = {"resize": ("lun", "resize", IQN, "0", "81M"), "another LUN": ("lun", "add", IQN, "file:{thin}/other.img,size=1M"),
            "snapshot": ("lun", "snapshot", IQN, "0", "{thin}/copy.img")}


def upgrade(daemon):
    """Another process takes over."""
    before = daemon.process
    code, said = daemon.targe("upgrade", "--json", "--wait", "60", f"--socket={daemon.socket}")
    expect(code == 0, said)
    daemon.process = Successor(json.loads(said)["pid"])
    before.wait(timeout=COMMAND_MAX_S)


class Successor:
    """The process that took over, which is no child of the rig."""

    def __init__(self, pid):
        self.pid, self.descriptor = pid, os.pidfd_open(pid)

    def send_signal(self, how):
        signal.pidfd_send_signal(self.descriptor, how)

    def poll(self):
        return 0 if select.select([self.descriptor], [], [], 0)[0] else None

    def wait(self, timeout):
        expect(select.select([self.descriptor], [], [], timeout)[0], "the successor does not end")
        os.close(self.descriptor)


def expect_lost(daemon, when):
    code, said = daemon.write(0, b"\1" * 4096)
    expect(code != 0, f"a flush succeeds {when}")
    expect(daemon.lost_writes() is not None, f"targe luns shows no loss {when}")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems")
@pytest.mark.parametrize("found_by", ["a host", "reload", "stop", "start", "upgrade", "resize", "another LUN", "snapshot"])
def test_a_loss_stays_until_it_is_accepted(kind, found_by):
    with tempfile.TemporaryDirectory() as folder, thin_folder(folder, "xfs" if found_by == "snapshot" else "ext4") as (thin, enlarge):
        daemon = Daemon(folder, [disk(thin)])
        try:
            daemon.start()
            daemon.write(0, b"\1" * 4096)
            daemon.targe("bench", daemon.url, "--rw", "write", "--write", "--bs", "256K", "--depth", "8", "--time", "20", "--warmup", "0",
                         "--range", "4M,70M")
            synced = subprocess.run(["sync", "--file-system", thin], capture_output=True, timeout=COMMAND_MAX_S)
            if synced.returncode == 0:
                pytest.skip("everything could be written")
            enlarge()
            if found_by == "reload":
                daemon.write_config([disk(thin, ", write_cache = false")])
                daemon.targe("apply", f"--socket={daemon.socket}")
            elif found_by == "stop":
                daemon.end()
                daemon.start()
            elif found_by == "start":
                daemon.end(signal.SIGKILL)
                daemon.start()
            elif found_by == "upgrade":
                upgrade(daemon)
            elif found_by in COMMANDS:
                # A command may fail because of the loss.
                said = daemon.targe(*(word.format(thin=thin) for word in COMMANDS[found_by]), f"--socket={daemon.socket}")
                print(f"{found_by}: {said}")
            expect_lost(daemon, f"after the loss was found by {found_by}")
            upgrade(daemon)
            expect_lost(daemon, "after an upgrade")
            daemon.end(signal.SIGKILL)
            daemon.start()
            expect_lost(daemon, "after SIGKILL")
            daemon.end()
            daemon.start()
            expect_lost(daemon, "after a restart")
            code, said = daemon.targe("lun", "accept-loss", IQN, "0", f"--socket={daemon.socket}")
            expect(code == 0, said)
            code, said = daemon.write(0, b"\2" * 4096)
            expect(code == 0, f"a flush fails after the loss was accepted: {said}")
            expect(daemon.lost_writes() is None, "targe luns shows a loss that was accepted")
            with open(os.path.join(folder, "state", "audit.log")) as audit:
                entries = [json.loads(line) for line in audit]
            expect(entries[-1]["action"] == "lun accept-loss", f"the audit log ends with {entries[-1]}")
            code, said = daemon.targe("lun", "accept-loss", IQN, "0", f"--socket={daemon.socket}")
            expect(code != 0 and "has not lost writes" in said, said)
        finally:
            daemon.end(signal.SIGKILL)
