#!/usr/bin/env python3
"""Instructions and allocations of the target or of the initiator process per I/O, counted by valgrind.

    bench/instructions.py [--role target] [--block SIZE] [--seconds S] [--rounds N] [--json FILE]
    bench/instructions.py --role initiator [--block SIZE] [--count N] [--rounds N] [--json FILE]

The release binary ($TARGE, else target/dist/targe) serves a LUN, and `targe bench` loads it. One of the two processes runs
under callgrind, then under memcheck, over epoll (valgrind has no io_uring). The target is counted with memory and a file,
and loaded for S seconds and for four times as long. The initiator is counted with memory, and does N and four times N
commands. What the longer run counted more, divided by the I/Os that it did more, is the figure: start, login and end are
the same in both and cancel out. Of several rounds the median is told; --json keeps all. The kernel's part is not seen.
The initiator's figures include the load generator.
"""

import argparse
import ctypes
import errno
import json
import os
import re
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BINARY = os.environ.get("TARGE", os.path.join(ROOT, "target", "dist", "targe"))
IQN = "iqn.2026-11.org.targe:counted"
# Longest that a start under valgrind may take, and an end.
START_MAX_S = 60
END_MAX_S = 120
# Longest that a load may take.
RUN_MAX_S = 600
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
    parser.add_argument("--role", choices=("target", "initiator"), default="target")
    parser.add_argument("--block", default="4K")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    options = parser.parse_args()
    samples = []
    print(f"{'medium':8}{options.block:8}{'depth':>6} {'digests':9}{'instructions':>14}{'allocations':>13}")
    with tempfile.TemporaryDirectory() as folder:
        for medium in ("ram:64M", f"file:{folder}/disk.img,size=64M")[:2 if options.role == "target" else 1]:
            for shape in SHAPES:
                rounds = [per_io(folder, tool, medium, shape, options) for tool in TOOLS]
                figures = [statistics.median(each) for each in rounds]
                access, depth, digests = shape
                name = medium.partition(":")[0]
                samples.append({"role": options.role, "medium": name, "access": access, "block": options.block, "depth": depth, "digests": digests,
                                **dict(zip(TOOLS, rounds))})
                print(f"{name:8}{access:8}{depth:>6} {digests:9}{figures[0]:>14.0f}{figures[1]:>13.3f}", flush=True)
    if options.json:
        with open(options.json, "w") as out:
            json.dump({"binary": BINARY, "samples": samples}, out, separators=(",", ":"))


def per_io(folder, tool, medium, shape, options):
    is_target = options.role == "target"
    unit, length = ("--time", options.seconds) if is_target else ("--count", options.count)

    def once():
        for _ in range(TRIES_MAX):
            short, long = (count(folder, tool, medium, (*shape, options.block), is_target, (unit, n)) for n in (length, 4 * length))
            # Where neighbours took the processors from one of the runs, the difference says nothing.
            if long[0] > 2 * short[0]:
                return (long[1] - short[1]) / (long[0] - short[0])
        return float("nan")
    return [once() for _ in range(options.rounds)]


def count(folder, tool, medium, shape, is_target, length):
    """I/Os done, and what was counted of all of the process's life."""
    arguments, pattern = TOOLS[tool]
    access, depth, digests, block = shape
    log = os.path.join(folder, "valgrind.log")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    valgrind = ["valgrind", *arguments, f"--log-file={log}"]
    environment = dict(os.environ, XDG_STATE_HOME=folder, XDG_RUNTIME_DIR=folder)
    target = subprocess.Popen(
        [*(valgrind if is_target else []), BINARY, "serve", "--reactor", "epoll", "--listen", f"127.0.0.1:{port}",
         "--target", IQN, "--lun", medium], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(target, port)
        url = f"iscsi://127.0.0.1:{port}/{IQN}/0?header_digest={digests}&data_digest={digests}"
        bench = subprocess.run(
            [*([] if is_target else valgrind), BINARY, "bench", url, "--reactor", "epoll", "--rw", access, "--random",
             "--bs", block, "--depth", str(depth), length[0], str(length[1]), "--json", "--write"],
            env=environment, stdout=subprocess.PIPE, check=True, timeout=RUN_MAX_S, preexec_fn=hide_from_valgrind)
        target.send_signal(signal.SIGTERM)
        target.wait(END_MAX_S)
    finally:
        target.kill()
        target.wait()
    with open(log) as lines:
        counted = re.search(pattern, lines.read())
    return json.loads(bench.stdout)["ios"], int(counted[1].replace(",", ""))


def hide_from_valgrind():
    """Lets two system calls fail in this process that its valgrind does not know well. io_uring_setup: the session of
    `targe bench` that reads the geometry of the LUN does not obey --reactor, and stops for ever with an io_uring. And
    prctl(PR_GET_AUXV), which names a vDSO that valgrind has unmapped."""
    load, equal, end, allow = 0x20, 0x15, 0x06, 0x7FFF0000
    refuse = 0x00050000 | errno.ENOSYS
    program = b"".join(struct.pack("HBBI", *each) for each in (
        (load, 0, 0, 0),              # the number of the system call
        (equal, 4, 0, 425),           # io_uring_setup: refuse
        (equal, 0, 2, 157),           # not prctl: allow
        (load, 0, 0, 16),             # its first argument
        (equal, 1, 0, 0x41555856),    # PR_GET_AUXV: refuse
        (end, 0, 0, allow),
        (end, 0, 0, refuse),
    ))
    code = ctypes.create_string_buffer(program)
    header = ctypes.create_string_buffer(struct.pack("HP", len(program) // 8, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    # PR_SET_NO_NEW_PRIVS, then PR_SET_SECCOMP with SECCOMP_MODE_FILTER.
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, header, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def wait_for(target, port):
    deadline = time.monotonic() + START_MAX_S
    while time.monotonic() < deadline and target.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    sys.exit("the target does not start")


if __name__ == "__main__":
    main()
