"""The client and the clocks of the laboratory beside tools of others. No test here depends on how fast anything is.

* `targe bench` counts what the target counts, and so does QEMU's driver: the same load moves the same bytes.
* The processor time that `targe lab targets` charges to a target is what the kernel tells of its process in /proc/PID/stat.
"""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

import servers
from lab_runs import RUN_MAX_S, Lab

sys.path.insert(0, os.path.join(servers.ROOT, "tests", "foreign", "qemu"))
import driver

TARGE = servers.Targe.binary
COUNT, BLOCK = 3000, 4096
# A client reads a few blocks of its own accord, such as QEMU's driver the first one.
UNASKED_BLOCKS_MAX = 64
# How often the clock of the target is read, seconds.
INTERVAL_S = 0.005
# Depth 1 and no warm-up: the commands of the measurement are all commands but one.
PLAN = """
rounds = 1
seconds = 3.0
warmup = 0.0
conformance = []
[[workload]]
access = "random"
mix = "read"
block = "4K"
depth = 1
"""
# How far the two accounts of processor time may lie apart: a share, and the ends of a session that only one has, seconds.
SHARE_MAX, SESSION_MAX_S = 0.05, 0.03


@pytest.fixture
def target(tmp_path):
    with servers.Targe(tmp_path / "target", servers.Export(luns=(servers.Lun("ram", size=64 * servers.MIB),))) as server:
        yield server


def moved(server, work):
    """The bytes that the unit read and wrote while something ran, by its own counters."""
    def counters():
        unit, = json.loads(server.admin("luns"))["luns"]
        return unit["read_bytes"], unit["write_bytes"]
    before = counters()
    work()
    return [after - begun for after, begun in zip(counters(), before)]


def by_bench(server, access):
    done = subprocess.run([TARGE, "bench", server.url(), "--rw", access, "--write", "--bs", str(BLOCK), "--depth", "8", "--count", str(COUNT), "--json"],
                          capture_output=True, text=True, timeout=driver.TOOL_MAX_S)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ios"] == COUNT


def by_qemu(server, access):
    driver.run("qemu-img", "bench", *(["-w"] if access == "write" else []), "-t", "none", "-c", str(COUNT), "-d", "8", "-s", str(BLOCK),
               "--image-opts", driver.disk(server))


@pytest.mark.parametrize("client", [by_bench, by_qemu])
@pytest.mark.parametrize("access", ["read", "write"])
def test_a_load_moves_as_many_bytes_as_the_target_counts(target, client, access):
    read, written = moved(target, lambda: client(target, access))
    asked, other = (read, written) if access == "read" else (written, read)
    assert asked >= COUNT * BLOCK, "what the client counts and the target does not"
    assert asked - COUNT * BLOCK <= UNASKED_BLOCKS_MAX * BLOCK and other <= UNASKED_BLOCKS_MAX * BLOCK, (read, written)


class Clock(threading.Thread):
    """Reads the processor time of a target and whether a session is open, until the target ends. The rival between the two
    measurements of a target leaves it idle for seconds, so that no session is missed."""

    def __init__(self, process):
        super().__init__(daemon=True)
        self.process, self.readings = process, []

    def run(self):
        pid = None
        while self.process.poll() is None:
            pid = pid or target_process(self.process)
            if pid:
                try:
                    self.readings.append((has_session(pid), processor_s(pid)))
                except OSError:
                    return
            time.sleep(INTERVAL_S)

    def sessions(self):
        """The processor time of each session: from the last reading before it to the first one after it."""
        found, before = [], None
        for (was_open, was), (is_open, now) in zip(self.readings, self.readings[1:]):
            if is_open and not was_open:
                before = was
            if was_open and not is_open and before is not None:
                found.append(now - before)
        return found


def target_process(process):
    """The process of targe among the targets of an experiment: the one that serves."""
    mark = f"example:targe-{process.pid}\0".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environment, open(f"/proc/{pid}/cmdline", "rb") as line:
                if mark in environment.read() and line.read().split(b"\0")[1:2] == [b"serve"]:
                    return int(pid)
        except OSError:
            continue
    return None


def has_session(pid):
    """Whether the network namespace of a process has an established connection to its portal, the first of the targets."""
    with open(f"/proc/{pid}/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return any(row[1].endswith(f":{3260:04X}") and row[3] == "01" for row in rows)


def processor_s(pid):
    """User and system time, proc_pid_stat(5)."""
    with open(f"/proc/{pid}/stat") as stat:
        user, system = map(int, stat.read().rpartition(")")[2].split()[11:13])
    return (user + system) / os.sysconf("SC_CLK_TCK")


def test_processor_time_of_a_target_is_what_the_kernel_tells(tmp_path, root):
    lab = Lab("targets", PLAN, tmp_path)
    process = lab.start("--rival=tgt")
    clock = Clock(process)
    clock.start()
    _, errors = process.communicate(timeout=RUN_MAX_S)
    clock.join()
    assert process.returncode == 0, errors
    metrics = {metric["quantity"]: metric["samples"] for metric in lab.report()["metrics"]
               if dict(metric["circumstances"])["target"] == "targe"}
    (rate,), (each_us,) = metrics["commands"], metrics["processor time of the target for each command"]
    told = rate * 3.0 * each_us / 1e6
    # Of the long sessions, the first was measured, and the second counted system calls.
    sessions = clock.sessions()
    longest = sorted(sorted(range(len(sessions)), key=lambda at: sessions[at])[-2:])
    kernel = sessions[longest[0]]
    assert abs(told - kernel) <= SHARE_MAX * kernel + SESSION_MAX_S, (told, kernel, sessions)
