"""Kill the target with SIGKILL while QEMU's driver writes, and see that what it had acknowledged is there.

Also what happens to writes when the file system under the medium is full.
"""

import os
import random
import re
import subprocess
import threading
import time

import pytest

import servers
from qemu.driver import disk, io
from servers import MIB, Export, Lun
from verdicts import expect

ROUNDS = 4
PIECE = 64 << 10
# More than can be written before the kill.
SIZE = 512 * MIB
# Longest the writer runs before the target is killed, seconds; longer only where nothing is acknowledged by then.
LOAD_S = 1.5
TOOL_MAX_S = 60
# Commands one qemu-io is given: they must fit its command line.
READS_MAX = 2000


@pytest.fixture
def out(server_name):
    return os.path.join(servers.OUT, "crash", server_name)


def test_keeps_writes_that_were_flushed(kind, out):
    # Each piece and its flush are two commands; the piece counts once the flush behind it is answered.
    keeps_acknowledged(kind, out, Lun(size=SIZE), lambda pattern, at: [f"write -P {pattern} {at} {PIECE}", "flush"])


def test_keeps_writes_forced_to_the_medium(kind, out):
    keeps_acknowledged(kind, out, Lun(size=SIZE), lambda pattern, at: [f"write -f -P {pattern} {at} {PIECE}"])


def test_keeps_writes_of_a_disk_without_cache(kind, out):
    if kind.first_lun:
        pytest.skip("tgt always has a write cache")
    keeps_acknowledged(kind, out, Lun(size=SIZE, write_cache=False),
                       lambda pattern, at: [f"write -P {pattern} {at} {PIECE}"])


def test_keeps_flushed_writes_of_an_encrypted_disk(kind, out):
    if kind is not servers.Targe:
        pytest.skip("only targe encrypts at rest")
    keeps_acknowledged(kind, out, Lun(size=SIZE, encrypted=True),
                       lambda pattern, at: [f"write -P {pattern} {at} {PIECE}", "flush"])


def keeps_acknowledged(kind, out, lun, commands):
    chance = random.Random(11)
    with kind(out, Export(luns=(lun,))) as server:
        total = 0
        for round_number in range(ROUNDS):
            plan = [(pattern % 255 + 1, pattern * PIECE) for pattern in range(SIZE // PIECE)]
            chance.shuffle(plan)
            acknowledged = write_until_killed(server, plan, commands, chance.uniform(0.3, 1.0) * LOAD_S)
            expect(acknowledged, f"round {round_number}: nothing was acknowledged before the kill")
            server.start(fresh=False)
            for first in range(0, len(acknowledged), READS_MAX):
                some = acknowledged[first:first + READS_MAX]
                io(server, *[f"read -P {pattern} {at} {PIECE}" for pattern, at in some])
            io(server, f"write -z 0 {SIZE}", "flush")
            total += len(acknowledged)
        print(f"   {total} acknowledged pieces in {ROUNDS} rounds", flush=True)


def write_until_killed(server, plan, commands, load_s):
    """Writes the plan piece by piece, kills the target after `load_s`; returns the pieces that were acknowledged."""
    writer = subprocess.Popen(["stdbuf", "-oL", "qemu-io", "--image-opts", disk(server)], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    acknowledged = []

    def feed():
        try:
            for pattern, at in plan:
                # The answer to `length` says that every command before it has been carried out.
                for command in commands(pattern, at):
                    writer.stdin.write(command + "\n")
                writer.stdin.write("length\n")
                writer.stdin.flush()
        except OSError:
            pass

    def listen():
        ahead = iter(plan)
        for line in writer.stdout:
            if "failed" in line or "rror" in line:
                return
            # `length` answers with the size of the disk, nothing else does.
            if re.fullmatch(rf"(qemu-io> )*{SIZE // MIB} MiB", line.strip()):
                acknowledged.append(next(ahead))

    threads = [threading.Thread(target=feed, daemon=True), threading.Thread(target=listen, daemon=True)]
    for thread in threads:
        thread.start()
    time.sleep(load_s)
    deadline = time.monotonic() + TOOL_MAX_S
    while not acknowledged and writer.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    server.kill()
    # What was answered before the kill may still be on its way through the writer; it reconnects for ever.
    time.sleep(0.5)
    writer.kill()
    writer.wait()
    threads[1].join(10)
    return list(acknowledged)


def test_reports_a_full_medium_and_recovers(kind, out):
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    if kind.first_lun:
        pytest.skip("tgt answers MEDIUM ERROR, and the rig wants to see that space is what is missing")
    small = os.path.join(out, "small")
    os.makedirs(small, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", small], check=True)
    try:
        with kind(small, Export(luns=(Lun(size=64 * MIB),))) as server:
            io(server, "write -P 1 0 4M", "flush")
            done = subprocess.run(["qemu-io", "--image-opts", "-c", "write -P 2 4M 32M", disk(server)],
                                  capture_output=True, text=True, timeout=TOOL_MAX_S)
            said = done.stdout + done.stderr
            expect("No space left" in said, f"a write to a full medium says {said}")
            # Space comes back, and with it the disk.
            io(server, "discard 4M 32M", "write -P 3 40M 2M", "flush", "read -P 1 0 4M", "read -P 3 40M 2M")
    finally:
        subprocess.run(["umount", "-l", small], check=True)
