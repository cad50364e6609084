"""The clients: each runs one load against one address and returns how many I/Os it did in how many seconds."""

import json
import os
import re
import subprocess
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(FOLDER)
sys.path[:0] = [os.path.join(ROOT, "tests", "foreign"), os.path.join(ROOT, "tests", "foreign", "qemu")]

from driver import disk

TARGE = os.path.join(ROOT, "target", "release", "targe")
LOAD = os.path.join(ROOT, "target", "release", "load")
# Longer than any run is meant to take.
RUN_MAX_S = 120


def iscsi_perf(server, row, seconds):
    """libiscsi's reader. Its header digest is all that Debian's version has."""
    random = ["-r"] if row.random else []
    printed = run(["iscsi-perf", "-m", str(row.depth), "-b", str(row.size // 512), *random, "-t", str(seconds),
                   server.url()])
    rate = int(re.findall(r"iops average (\d+)", printed)[-1])
    return rate * seconds, float(seconds)


def qemu_img(server, row, seconds):
    """QEMU's writer. It wants a count: a first short run finds how many writes fill the time. Its random order is a
    stride that is coprime with the number of blocks, and so meets each once."""
    step = row.size * 7919 if row.random else row.size

    def write(count):
        printed = run(["qemu-img", "bench", "-w", "-t", "none", "-c", str(count), "-d", str(row.depth), "-s", str(row.size),
                       "-S", str(step), "--image-opts", disk(server)])
        return count, float(re.search(r"completed in ([\d.]+) seconds", printed)[1])

    known = (row.name, server.name)
    if known not in qemu_img.rates:
        count, took = write(200)
        count, took = write(max(200, int(count / max(took, 0.001) * 0.3)))
        qemu_img.rates[known] = count / took
    return write(max(200, int(qemu_img.rates[known] * seconds)))


qemu_img.rates = {}


def load(server, row, seconds):
    """Our own minimal initiator; `server` may also be the bare echo."""
    options = ["--rw", row.direction, "--bs", str(row.size), "--depth", str(row.depth), "--seconds", str(seconds)]
    if row.random:
        options.append("--random")
    if row.digests:
        options.append("--digests")
    result = json.loads(run([LOAD, *server.load_arguments(), *options]))
    return result["completed"], result["seconds"]


def targe_bench(server, row, seconds):
    """Our own initiator, as users have it."""
    digest = "crc32c" if row.digests else "none"
    options = ["--rw", row.direction, "--bs", str(row.size), "--depth", str(row.depth), "--time", str(seconds), "--warmup", "0"]
    if row.random:
        options.append("--random")
    url = server.url(query=f"?header_digest={digest}&data_digest={digest}")
    result = json.loads(run([TARGE, "bench", url, "--write", "--json", *options]))
    return result["ios"], result["seconds"]


def run(command):
    done = subprocess.run(command, capture_output=True, timeout=RUN_MAX_S)
    printed = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} exits {done.returncode}: {printed[-300:]} {done.stderr[-300:]}")
    return printed
