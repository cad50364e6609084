"""The power goes: what was acknowledged as durable is on the medium whatever moment that happens at.

SIGKILL shows none of this, as the page cache outlives it. Here the medium is a file on a disk of the rig's own, which remembers in what
order writes and flushes reached it. Sessions write, zero, unmap and flush; afterwards the power goes at every moment at which
something was promised, and at others, each time with nothing or some of what the disk had not been told to keep.
"""

import contextlib
import os
import subprocess
import threading

import pytest

import namespaces
import servers
from hostile.initiator import Session
from power import cuts
from power.medium import Medium
from power.writer import CELL, Account, Writer
from servers import MIB, Export
from verdicts import expect

SIZE = 2 * MIB
SESSIONS, STEPS = 4, 120
# What a writer does: everything, or what shows one promise alone.
FLUSHED = ("write", "write_same_zeros", "flush", "flush_16")
FORCED = ("write", "write_fua", "write_16_fua")
DEALLOCATED = ("write_fua", "unmap", "write_same_unmap", "write_same_zeros", "flush")
ALL = (*FLUSHED, *FORCED, *DEALLOCATED)
# A block device promises nothing of what is read after a deallocation.
BLOCK_ALL = (*FLUSHED, *FORCED)


class Powered(servers.Targe):
    """Serves one unit whose medium is the rig's."""

    place, bug = None, None

    def medium_path(self, unit=0):
        return self.place

    def make_media(self):
        """It is there."""

    def environment(self):
        return super().environment() | ({"TARGE_PLANTED": self.bug} if self.bug else {})


def loses_power(seed, reactor, lun, ways, sessions=SESSIONS, bug=None):
    out = os.path.join(servers.OUT, "power-planted" if bug else "power")
    with Medium(os.path.join(out, "medium"), SIZE) as medium, device_of(medium, lun) as place:
        server = Powered(out, Export(luns=(lun,)))
        server.place, server.reactor, server.bug = place, reactor, bug
        with server:
            account = write(server, medium, lun, ways, sessions, seed)
    expect(None in medium.history, "nothing was ever flushed")
    changes = sum(change is not None for change in medium.history)
    tried = cuts.judge(medium, account, seed)
    print(f"   {account.versions} commands made {changes} changes and {len(medium.history) - changes} syncs; {tried} cuts", flush=True)


def write(server, medium, lun, ways, sessions, seed):
    """Lets sessions write side by side; returns the account of it."""
    account = Account(medium, not lun.write_cache)
    share = SIZE // CELL // sessions
    writers = [Writer(Session(server.port, server.iqn, f"iqn.2026-11.org.targe:power-{number}", number).ready(), account,
                      range(number * share, (number + 1) * share), f"{seed}/{number}", ways, lun.block) for number in range(sessions)]
    threads = [threading.Thread(target=writer.run, args=(STEPS * SESSIONS // sessions,)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for writer in writers:
        writer.session.close()
        if writer.failure:
            raise writer.failure
    return account


@contextlib.contextmanager
def device_of(medium, lun):
    """Where the medium is found: its file, or a loop device on it, which has a cache of its own."""
    if lun.medium != "block":
        yield medium.path
        return
    if not namespaces.is_real_root():
        pytest.skip("loop devices need root")
    done = subprocess.run(["losetup", "--find", "--show", medium.path], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        pytest.skip(f"no loop device: {done.stderr}")
    try:
        yield done.stdout.strip()
    finally:
        subprocess.run(["losetup", "--detach", done.stdout.strip()], check=True, timeout=60)
