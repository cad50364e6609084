"""Who carries blocks over a cable: each runs one load on one network and tells how much it moved, and what that took."""

import contextlib
import json
import os
import re
import socket
import struct
import tempfile

import process
from beds import BESIDE_FRAME, BLAST, CRC, DISK, ETHERNET, HEADER, LOAD, SHELF, SLOT, TARGE

GB = 1_000_000_000
# Bare frames: one again and again, which a core's cache holds, and as many as a disk has room for.
FRAMES, DISK_FRAMES = "frames", "frames of a disk"
# Longer than any run is meant to take.
RUN_MAX_S = 120


def ride(rider, net, row, seconds):
    """A sample of one rider."""
    if "iSCSI" in rider:
        net.offloads(not row.bed.rate and not row.bed.loss and "no offload" not in rider)
    how = {FRAMES: frames, DISK_FRAMES: frames, "AoE": aoe}.get(rider, targe_bench)
    before = counts(net, rider)
    sample = how(net, rider, row, seconds)
    after = counts(net, rider)
    with open("/proc/loadavg") as file:
        load = float(file.read().split()[0])
    return {**sample, **{key: after[key] - before[key] for key in before}, "load": load}


def system_calls(rider, net, row, seconds):
    """How many system calls both ends make for a gigabyte; in a run of its own, since counting costs something."""
    server = process.SystemCalls(server_of(net, rider).pid)
    sample = targe_bench(net, rider, row, seconds, process.counted)
    return (server.end() + sample["client_calls"]) / (sample["bytes_per_s"] * sample["seconds"] / 1e9)


def server_of(net, rider):
    return net.vblade() if rider == "AoE" else net.server


def counts(net, rider):
    """What the kernel counted so far: frames at both ends, softirqs of the whole machine, and what the server took."""
    softirqs = dict(re.findall(r"(NET_[RT]X):((?:\s+\d+)+)", open("/proc/softirqs").read()))
    usage = process.usage(server_of(net, rider).pid)
    return {"frames_on_cable": frames_sent(net.net.target) + frames_sent(net.net.initiator),
            "softirqs": sum(int(number) for text in softirqs.values() for number in text.split()),
            "server_cpu_s": usage["cpu_ns"] / 1e9, "server_switches": usage["switches"]}


def frames_sent(host):
    with open(f"/proc/{host.holder.pid}/net/dev") as file:
        return int(re.search(r"eth0:\s*(.*)", file.read())[1].split()[9])


def targe_bench(net, rider, row, seconds, counted=None):
    digest = "crc32c" if "digests" in rider else "none"
    url = f"{net.tcp}?header_digest={digest}&data_digest={digest}" if "iSCSI" in rider else net.ether
    order = ["--random"] if row.random else []
    # On a slow link a time would end among commands that are half done; and what is counted here includes no warm-up.
    span = ["--count", commands(row, seconds)] if row.bed.rate or row.part == "f" else ["--time", seconds, "--warmup", 0.3]
    command = [TARGE, "bench", url, "--write", "--json", "--rw", row.direction, "--bs", row.size, "--depth", row.depth, *span, *order]
    with (counted or contextlib.nullcontext)() as counter:
        printed, usage = run(net.net.initiator, (counter.prefix if counter else []) + command)
        calls = counter.count() if counter else None
    told = json.loads(printed)
    latency = told["latency_us"]
    return {"count": told["ios"], "seconds": told["seconds"], "per_s": told["iops"], "bytes_per_s": told["bytes_per_s"],
            "p50_us": latency["p50"], "p99_us": latency["p99"], "client_calls": calls,
            "client_cpu_s": usage.ru_utime + usage.ru_stime, "client_switches": usage.ru_nvcsw + usage.ru_nivcsw}


def commands(row, seconds):
    """How many commands fill the time on a shaped link, enough that its first and last round trips do not show; elsewhere a GB or so."""
    if not row.bed.rate:
        return GB // row.size
    return max(8 * row.depth, int(seconds * row.bed.rate / 8 / row.size))


def run(host, command, **options):
    """What a command of one host printed, and what it took."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as talk:
        started = host.start("timeout", RUN_MAX_S, *command, stdout=out, stderr=talk, **options)
        _, status, usage = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
        for file in (out, talk):
            file.seek(0)
        printed = out.read()
        if started.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, command))} exits {started.returncode}: {printed[-300:]} {talk.read()[-600:]}")
        return printed, usage


def aoe(net, rider, row, seconds):
    """Our own client of ATA over Ethernet, with Debian's target. Its socket is made for it."""
    net.vblade()
    order = ["--random"] if row.random else []
    host = net.net.initiator
    with host.frames("eth0", AOE_TYPE) as frames:
        frames.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, AOE_WAIT_US))
        printed, usage = run(host, [LOAD, "aoe", host.mac().hex(":"), "--shelf", SHELF, "--slot", SLOT, "--mtu", net.bed.mtu, "--disk", DISK,
                                    "--rw", row.direction, "--bs", row.size, "--depth", row.depth, "--seconds", seconds, *order], stdin=frames)
    told = json.loads(printed)
    per_s = told["completed"] / told["seconds"]
    return {**told, "count": told["completed"], "per_s": per_s, "bytes_per_s": per_s * row.size,
            "client_cpu_s": usage.ru_utime + usage.ru_stime, "client_switches": usage.ru_nvcsw + usage.ru_nivcsw}


AOE_TYPE = 0x88A2
# How long the client waits for an answer before it looks what is overdue.
AOE_WAIT_US = 10_000


def frames(net, rider, row, seconds):
    """Bare frames, from the target's host to the initiator's. As data counts what a frame of HyperSCSI of this length has room for."""
    receiver = net.net.initiator.start(BLAST, "receive", "eth0", seconds)
    try:
        if receiver.stdout.readline() != "ready\n":
            raise RuntimeError(f"ether_blast: {receiver.communicate()[1][-600:]}")
        mac = net.net.initiator.mac().hex(":")
        net.net.target.run(BLAST, "send", "eth0", mac, seconds + 0.4, DISK if "disk" in rider else 0)
        told = json.loads(receiver.communicate(timeout=RUN_MAX_S)[0])
    finally:
        receiver.kill()
        receiver.wait()
    per_s = told["frames"] / told["seconds"]
    return {"count": told["frames"], "seconds": told["seconds"], "per_s": per_s, "bytes_per_s": per_s * (net.bed.mtu - HEADER - CRC),
            "wire_bytes_per_s": per_s * (net.bed.mtu + ETHERNET + BESIDE_FRAME)}
