#!/usr/bin/env python3
"""Instructions and allocations of the target process per I/O, counted by valgrind.

    bench/instructions.py [--seconds S] [--rounds N]

The release binary serves memory and a file over epoll (valgrind has no io_uring) under callgrind, then under memcheck, and
`targe bench`, outside of valgrind, loads it for S seconds and for four times as long. What the longer run counted more,
divided by the I/Os that it did more, is the figure: start, login and end are the same in both and cancel out. Of several
rounds the median is told. The kernel's part is not seen.
"""

import argparse
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BINARY = os.environ.get("TARGE", os.path.join(ROOT, "target", "release", "targe"))
IQN = "iqn.2026-11.org.targe:counted"
# Longest that a start under valgrind may take, and an end.
START_MAX_S = 60
END_MAX_S = 120
# Pairs of runs before a figure is given up.
TRIES_MAX = 4
TOOLS = {
    "instructions": (["--tool=callgrind", "--callgrind-out-file=/dev/null"], r"Collected : (\d+)"),
    "allocations": (["--tool=memcheck", "--leak-check=no", "--undef-value-errors=no"], r"total heap usage: ([\d,]+) allocs"),
}
SHAPES = [("read", 32, "none"), ("read", 32, "crc32c"), ("write", 32, "none"), ("write", 32, "crc32c"), ("read", 1, "none"),
          ("write", 1, "none")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{'medium':8}{'4 KiB':8}{'depth':>6} {'digests':9}{'instructions':>14}{'allocations':>13}")
    with tempfile.TemporaryDirectory() as folder:
        for medium in ("ram:64M", f"file:{folder}/disk.img,size=64M"):
            for shape in SHAPES:
                figures = [per_io(folder, tool, medium, shape, options) for tool in TOOLS]
                access, depth, digests = shape
                name = medium.partition(":")[0]
                print(f"{name:8}{access:8}{depth:>6} {digests:9}{figures[0]:>14.0f}{figures[1]:>13.3f}", flush=True)


def per_io(folder, tool, medium, shape, options):
    def once():
        for _ in range(TRIES_MAX):
            short, long = (count(folder, tool, medium, shape, seconds) for seconds in (options.seconds, 4 * options.seconds))
            # Where neighbours took the processors from one of the runs, the difference says nothing.
            if long[0] > 2 * short[0]:
                return (long[1] - short[1]) / (long[0] - short[0])
        return float("nan")
    return statistics.median(once() for _ in range(options.rounds))


def count(folder, tool, medium, shape, seconds):
    """I/Os done, and what was counted of all of the target's life."""
    arguments, pattern = TOOLS[tool]
    access, depth, digests = shape
    log = os.path.join(folder, "valgrind.log")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = dict(os.environ, XDG_STATE_HOME=folder, XDG_RUNTIME_DIR=folder)
    target = subprocess.Popen(
        ["valgrind", *arguments, f"--log-file={log}", BINARY, "serve", "--reactor", "epoll", "--listen", f"127.0.0.1:{port}",
         "--target", IQN, "--lun", medium], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(target, port)
        url = f"iscsi://127.0.0.1:{port}/{IQN}/0?header_digest={digests}&data_digest={digests}"
        bench = subprocess.run(
            [BINARY, "bench", url, "--rw", access, "--random", "--bs", "4K", "--depth", str(depth), "--time", str(seconds),
             "--json", "--write"], env=environment, stdout=subprocess.PIPE, check=True, timeout=seconds + START_MAX_S)
        target.send_signal(signal.SIGTERM)
        target.wait(END_MAX_S)
    finally:
        target.kill()
        target.wait()
    with open(log) as lines:
        counted = re.search(pattern, lines.read())
    return json.loads(bench.stdout)["ios"], int(counted[1].replace(",", ""))


def wait_for(target, port):
    deadline = time.monotonic() + START_MAX_S
    while time.monotonic() < deadline and target.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    sys.exit("the target does not start under valgrind")


if __name__ == "__main__":
    main()
