"""Disks that `targe attach` made, in use: file systems on loop devices, fio, and a target that dies and comes back meanwhile.

Whatever serves them: what is needed of a server is `url()`, `folder`, `kill()` and `start(fresh=False)`.
"""

import os
import random
import subprocess
import time

import pytest

import namespaces
import servers
from attach.attached import Attached
from verdicts import eventually, expect

TOOL_MAX_S = 300
# How often, and for how long, the target is dead while fio writes. What fio writes takes half a minute, so that a busy machine comes to the last
# kill before its end.
KILLS = 3
DEAD_S = 0.7


def carries_a_file_system_through_restarts(server, *load):
    need_fuse()
    with Attached(server, "fuse") as disk, Loop(disk.address) as loop:
        tool("mkfs.ext4", "-q", loop.device)
        with Mounted(loop.device, os.path.join(server.folder, "fs"), "errors=remount-ro") as folder:
            fio = start_fio_in(folder, "--rw=randwrite", "--bs=16k", "--iodepth=16", "--size=64m", "--fsync=32",
                               *(load or ("--loops=8", "--rate=20m")))
            kill_and_restart(server, disk, fio)
            finish_fio(fio, disk)
            with open(os.path.join(folder, "after"), "w") as file:
                file.write("still writable")
        tool("e2fsck", "-fn", loop.device)
        loop.detach()
        expect(disk.detach() == 0, f"detaches; it says {disk.said()[-300:]}")


class Loop:
    """A loop device over a file."""

    def __init__(self, path):
        self.path = path
        self.device = None

    def __enter__(self):
        if not os.path.exists("/dev/loop-control"):
            pytest.skip("no loop devices here")
        self.device = tool("losetup", "--find", "--show", "--direct-io=on", self.path).strip()
        return self

    def __exit__(self, *_):
        self.detach()

    def detach(self):
        if self.device:
            device, self.device = self.device, None
            tool("losetup", "--detach", device)


class Mounted:
    """A file system in a folder."""

    def __init__(self, device, folder, options="defaults"):
        self.device, self.folder, self.options = device, folder, options

    def __enter__(self):
        os.makedirs(self.folder, exist_ok=True)
        tool("mount", "-o", self.options, self.device, self.folder)
        return self.folder

    def __exit__(self, *_):
        tool("umount", self.folder)


def need_fuse():
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no /dev/fuse here")
    if not namespaces.is_real_root():
        pytest.skip("mounting needs root")


def kill_and_restart(server, disk, fio):
    """Kills the target a few times while fio runs; each time it is reached again before the next."""
    for number in range(KILLS):
        time.sleep(0.8)
        if fio.poll() is not None:
            raise RuntimeError(f"fio is through before the target was killed: {fio.stdout.read()[-500:]}")
        server.kill()
        time.sleep(DEAD_S)
        server.start(fresh=False)
        eventually(lambda: disk.said().count("reconnected") > number,
                   lambda: f"after restart {number + 1} the target is reached again: {disk.said()[-300:]}", TOOL_MAX_S)


def start_fio_in(folder, *arguments):
    return fio_process("--name=data", f"--directory={folder}", "--ioengine=libaio", "--direct=1", "--verify=crc32c", "--do_verify=1",
                       *arguments)


def fio_process(*arguments):
    return subprocess.Popen(["fio", "--thread", "--randseed=7", "--verify_fatal=1", "--verify_state_save=0", *arguments], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                            preexec_fn=servers.die_with_parent)


def finish_fio(fio, disk=None):
    try:
        said, _ = fio.communicate(timeout=TOOL_MAX_S)
    except subprocess.TimeoutExpired:
        fio.kill()
        raise RuntimeError(f"fio hangs; attach says {disk.said()[-400:] if disk else 'nothing'}") from None
    # What went wrong it says first.
    wrong = [line for line in said.splitlines() if line.startswith(("fio:", "verify:")) or "err=" in line]
    expect(fio.returncode == 0 and "err= 0" in said, f"fio ends with {fio.returncode}: {'; '.join(wrong[:6])} {said[-300:]}")


def tool(*command):
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TOOL_MAX_S)
    if done.returncode != 0:
        said = " ".join((done.stdout + done.stderr).split())
        raise RuntimeError(f"{' '.join(command)[:160]} exits {done.returncode}: {said[-300:]}")
    return done.stdout + done.stderr if command[0] == "qemu-io" else done.stdout


def image(server, size):
    """Random pieces between holes, the same on every run."""
    source, path = random.Random(7), os.path.join(server.folder, "source.raw")
    with open(path, "wb") as file:
        file.truncate(size)
        for _ in range(60):
            file.seek(source.randrange(size // 4096 - 256) * 4096)
            file.write(source.randbytes(source.randrange(1, 256) * 4096))
    return path


def same(one, other):
    tool("cmp", one, other)
