"""A file system is frozen, as a snapshot of LVM does it, while hosts use a disk on it: only that disk waits.

Its file is on ext4 or XFS, or the disk is a loop device whose backing file is on the frozen file system. A host of the frozen disk has as many
commands in flight as it can have. Other hosts log in meanwhile, read a RAM disk, write and flush a disk on another file system; `targe status`
answers: what touches no disk in less than 100 ms, in the median. Each command for the frozen disk fails by its `io_timeout`, and after the
thaw everything goes on.
"""

import contextlib
import os
import signal
import statistics
import tempfile
import time

import pytest

from crash.storage import IQN, Daemon, loop_device, mounted, tool
from hostile.initiator import RESPONSE, Session, number, read_10, write_10
from verdicts import eventually, expect
from withheld import Standstill

pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(600),
              pytest.mark.skipif(os.geteuid() != 0, reason="mounts file systems")]

BLOCK = 512
# Of each kind of command for the frozen disk: writes, unmaps and flushes.
IN_FLIGHT = 16
IO_TIMEOUT_S = 3
ROUNDS = 9
# What touches no disk takes less than this, seconds, whatever is frozen.
MEDIAN_MAX_S = 0.1
SYNCHRONIZE_CACHE = b"\x35" + bytes(9)
UNMAP = b"\x42" + bytes(7) + b"\x18" + bytes(1)
GOOD, CHECK_CONDITION, BUSY = 0, 2, 8


def unmapped(block, count):
    """The UNMAP parameter list (SBC-4 §5.35.2)."""
    return bytes([0, 22, 0, 16, 0, 0, 0, 0]) + block.to_bytes(8, "big") + count.to_bytes(4, "big") + bytes(4)


@contextlib.contextmanager
def frozen_disk(folder, kind):
    """A LUN, as a line of TOML, and the file system to freeze."""
    with contextlib.ExitStack() as undo:
        image = os.path.join(folder, "image")
        with open(image, "wb") as file:
            file.truncate(400 << 20)
        tool(f"mkfs.{'xfs' if kind == 'xfs' else 'ext4'}", "-q", image)
        files = undo.enter_context(mounted(undo.enter_context(loop_device(image)), os.path.join(folder, "files")))
        disk = os.path.join(files, "disk")
        with open(disk, "wb") as file:
            file.truncate(64 << 20)
        if kind == "loop device":
            disk = undo.enter_context(loop_device(disk))
        yield f'{{ type = "{"block" if kind == "loop device" else "file"}", path = "{disk}", io_timeout = "{IO_TIMEOUT_S}s" }}', files


def session(daemon, lun, name):
    made = Session(daemon.port, IQN, f"iqn.2026-11.org.targe:{name}")
    made.lun = lun
    return made.ready()


def works(host, cdb, data):
    """A command for the disk that is not frozen ends well. It is repeated: the disk of a busy machine can take longer than `io_timeout`."""
    eventually(lambda: host.command(cdb, write=data)[0] == GOOD, f"command {cdb[0]:#x} ends well while nothing is frozen", 120)


def took(what):
    """Seconds that a call takes, which returns whether it went well, less those for which the machine stood still."""
    with Standstill() as standstill:
        began = time.monotonic()
        expect(what(), "a disk that is not frozen does not answer as it should")
        seconds = time.monotonic() - began
    return max(0.0, seconds - standstill.longest)


def send_many(host):
    """Sends writes, unmaps and flushes. Returns how many commands there are."""
    for number_of in range(IN_FLIGHT):
        block = number_of * 64
        host.socket.sendall(host.request(write_10(block, 16), write=bytes(16 * BLOCK))[0])
        host.socket.sendall(host.request(UNMAP, write=unmapped(65536 + block, 64))[0])
        host.socket.sendall(host.request(SYNCHRONIZE_CACHE)[0])
    return 3 * IN_FLIGHT


def statuses(host, count):
    found = []
    while len(found) < count:
        header, _ = host.receive()
        if header[0] & 0x3F == RESPONSE:
            host.exp_stat_sn = number(header, 24) + 1
            found.append(header[3])
        else:
            host.pong(header)
    return found


@pytest.mark.parametrize("reactor", ["uring", "epoll"])
@pytest.mark.parametrize("medium", ["ext4", "xfs", "loop device"])
def test_only_the_disk_on_the_frozen_file_system_waits(kind, medium, reactor):
    with tempfile.TemporaryDirectory() as folder, frozen_disk(folder, medium) as (disk, files):
        other = f'{{ type = "file", path = "{folder}/other.img", size = "64M" }}'
        daemon = Daemon(folder, [disk, '{ type = "ram", size = "16M" }', other], f'reactor = "{reactor}"')
        daemon.start()
        frozen = False
        try:
            host, memory, healthy = session(daemon, 0, "host"), session(daemon, 1, "memory"), session(daemon, 2, "healthy")
            # What no answer has come to until the time is over is never answered: the watchdog would end a reactor that waits.
            host.socket.settimeout(120)
            works(host, write_10(0, 16), bytes(16 * BLOCK))
            tool("fsfreeze", "--freeze", files)
            frozen = True
            count = send_many(host)
            measured = {
                "read a RAM disk": lambda: memory.command(read_10(0, 8), 8 * BLOCK)[0] == GOOD,
                "write and flush another disk": lambda: healthy.command(write_10(0, 16), write=bytes(16 * BLOCK))[0] == GOOD
                and healthy.command(SYNCHRONIZE_CACHE)[0] == GOOD,
                "log in": lambda: session(daemon, 1, "newcomer").close() is None,
                "targe status": lambda: daemon.targe("status", f"--socket={daemon.socket}")[0] == 0,
            }
            for what, act in measured.items():
                seconds = [took(act) for _ in range(ROUNDS)]
                median = statistics.median(seconds)
                print(f"{medium}, {reactor}: {what}: {median * 1000:.1f} ms, at most {max(seconds) * 1000:.1f} ms")
                # The other disk is the machine's, which may be slow.
                expect(median < MEDIAN_MAX_S or "another disk" in what, f"{what} takes {median:.3f} s in the median of {ROUNDS}")
            ended = statuses(host, count)
            expect(set(ended) <= {GOOD, CHECK_CONDITION, BUSY} and CHECK_CONDITION in ended, f"commands for the frozen disk end with {ended}")
            tool("fsfreeze", "--unfreeze", files)
            frozen = False
            fresh = session(daemon, 0, "later")
            fresh.socket.settimeout(120)
            for cdb, data in ((write_10(0, 16), b"\5" * 16 * BLOCK), (SYNCHRONIZE_CACHE, b"")):
                works(fresh, cdb, data)
            expect(fresh.command(read_10(0, 16), 16 * BLOCK) == (GOOD, b"\5" * 16 * BLOCK), "another block than the last written is read")
            expect(daemon.process.poll() is None, "the daemon ended")
            for one in (host, memory, healthy, fresh):
                one.close()
        finally:
            if frozen:
                tool("fsfreeze", "--unfreeze", files)
            daemon.end(signal.SIGTERM)
