"""The networks that HyperSCSI is measured on: two hosts, a cable between them, and on one of them the servers.

A host is a network namespace that dies with the rig. The cable is a virtual one as it comes, or its two interfaces are
slowed to a rate that counts what a real wire carries, or a wire of ours that loses frames lies in the middle.
"""

import array
import contextlib
import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import time
from dataclasses import dataclass

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(FOLDER)
sys.path[:0] = [FOLDER, os.path.join(ROOT, "tests", "foreign"), os.path.join(ROOT, "tests", "foreign", "hyperscsi")]

import network
import servers

MIB = 1 << 20
TARGE = servers.Targe.binary
BLAST = os.path.join(ROOT, "target", "release", "examples", "ether_blast")
LOAD = os.path.join(ROOT, "target", "release", "load")

# What a frame takes on the wire beside its Ethernet payload, bytes: preamble and SFD, addresses and type, FCS, gap.
ETHERNET = 14
BESIDE_FRAME = 8 + 4 + 12
# What HyperSCSI puts before and behind the data of a frame at `none` (docs/hyperscsi.md, sections 3.2 and 3.3).
HEADER, CRC = 28, 4
# And at `encrypt`.
TAG = 16
# An Ack block without ranges (section 4.4), which acknowledges the Request in front of the first data; a COMMAND block with a CDB
# of 10 bytes (section 4.2).
ACK, COMMAND = 36, 32 + 10

DISK = 256 * MIB
SHELF, SLOT = 7, 1
# How many requests vblade says that it has room for; 16 if it is not told otherwise, which is fewer than are under way here.
AOE_BUFFERS = 64
TARGET_ADDRESS, INITIATOR_ADDRESS = "10.0.0.1", "10.0.0.2"
NETWORK = "10.0.0.0/24"
# What a shaper lets through at once, bytes: it wakes late now and then, and would lose that time for good. As few milliseconds
# of traffic as that takes.
BURST = 64 << 10
# What waits for a shaped interface at most, bytes: as many full frames of 1500 bytes as an interface's own queue holds.
QUEUE = 1000 * 1514


@dataclass(frozen=True)
class Bed:
    mtu: int
    # Bits in a second on the wire; None for as fast as it goes.
    rate: int = 0
    # How often our wire in the middle loses a frame; None for no wire in the middle.
    loss: str = ""
    # What protects the disk.
    level: str = "none"

    @property
    def name(self):
        how = f"{self.rate // 1_000_000} Mbit/s" if self.rate else f"{self.loss} lost" if self.loss else "unshaped"
        return f"{how}, MTU {self.mtu}" + ("" if self.level == "none" else f", {self.level}")

    def goodput_max(self, size, direction, count):
        """The bytes of data per second that the frame format leaves of the rate, for so many commands of `size` bytes; what the
        shaper lets through at once comes on top."""
        trailer = CRC if self.level == "none" else TAG
        room = self.mtu - HEADER - trailer
        # A read's first answer acknowledges the command; a write's command travels in the data's own direction.
        extra = ACK if direction == "read" else COMMAND
        frames = -(-(size + extra) // room)
        wire = size + extra + frames * (HEADER + trailer + ETHERNET + BESIDE_FRAME)
        return self.rate / 8 * size * count / (wire * count - BURST) if self.rate else 0


class Network:
    """A bed that was made, with a disk served on it over both protocols."""

    def __init__(self, bed, folder):
        self.bed, self.stack, self.beside = bed, contextlib.ExitStack(), None
        try:
            self.net = self.stack.enter_context(network.Network(bed.mtu, wired=bool(bed.loss)))
            self.offloads(not bed.rate and not bed.loss)
            for host, address in ((self.net.target, TARGET_ADDRESS), (self.net.initiator, INITIATOR_ADDRESS)):
                host.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
                # The kernel's own choice, where the machine has another: BBR, for one, is far from the rate behind a token bucket.
                # By the route, as a namespace may not choose what the machine does not allow to everybody.
                host.run("ip", "route", "change", NETWORK, "dev", "eth0", "proto", "kernel", "scope", "link", "src", address, "congctl",
                         "cubic")
                if bed.rate:
                    shape(host, bed.rate)
            if bed.loss:
                self.stack.enter_context(self.net.wire(f"--loss={bed.loss}", "--ethertype=all", "--seed=1"))
            self.serve(folder)
        except BaseException:
            self.stack.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()

    def offloads(self, on):
        """Whether the kernel hands TCP's segments to an interface unsegmented. What a wire or a shaper is to see must be frames.
        Summing up stays with the interface but where a relay would carry sums that are not there yet."""
        for host, interface in self.net.along():
            names = ("tso", "gso", "gro") + (("tx",) if self.bed.loss else ())
            for name in names:
                set_offload(host, interface, name, on)

    def serve(self, folder):
        name = re.sub(r"\W+", "-", self.bed.name)
        self.folder = os.path.join(folder, name)
        os.makedirs(self.folder, 0o700)
        flags, query = [f"--lun=ram:{DISK},protection={self.bed.level}", "--iface=eth0", "--group=bench"], ""
        if self.bed.level != "none":
            password = os.path.join(self.folder, "password")
            with open(os.open(password, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                file.write("a password of some length\n")
            flags.append(f"--group-password-file={password}")
            query = f"?protection={self.bed.level}&password_file={password}"
        else:
            flags.append(f"--listen={TARGET_ADDRESS}:3260")
        log = os.path.join(self.folder, "server.log")
        with open(log, "ab") as file:
            self.server = self.net.target.start(TARGE, "serve", f"--state-dir={self.folder}/state", f"--socket={self.folder}/s",
                                                *flags, stdout=file, stderr=file)
        self.stack.callback(self.stop)
        deadline = time.monotonic() + network.PATIENCE_S
        while "State is kept" not in (told := open(log, errors="replace").read()):
            if self.server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"targe does not start: {told[-600:]}")
            time.sleep(0.02)
        found = json.loads(self.net.initiator.run(TARGE, "discover", "--group=bench", "--iface=eth0", "--json").stdout)
        self.ether = found[0]["url"] + query
        self.tcp = f"iscsi://{TARGET_ADDRESS}/{self.ether.split('/', 3)[3]}"
        self.fill()

    def fill(self):
        """What was never written costs a RAM disk less to read. Where a megabyte takes long, that is not what is measured."""
        if not self.bed.rate:
            self.net.initiator.run(TARGE, "bench", "--rw=write", "--write", "--bs=1M", "--depth=8", "--time=1", "--warmup=0", self.ether)

    def vblade(self):
        """Debian's target for ATA over Ethernet, with a disk in memory; started when it is asked for first."""
        if not self.beside:
            medium = os.path.join(self.folder, "aoe")
            with open(medium, "wb") as file:
                for _ in range(DISK // MIB):
                    file.write(bytes([0x5A]) * MIB)
            self.beside = self.net.target.start("vblade", "-b", AOE_BUFFERS, SHELF, SLOT, "eth0", medium, stdout=subprocess.DEVNULL,
                                                stderr=subprocess.DEVNULL)
            self.stack.callback(end, self.beside)
        return self.beside

    def stop(self):
        self.server.terminate()
        self.server.wait(timeout=servers.STOP_MAX_S)


def end(process):
    process.kill()
    process.wait()


def shape(host, rate):
    """A token bucket that counts each frame as a wire does. The kernel's own length has the Ethernet header already. TCP makes
    segments of many frames whatever the interface says, which are cut behind the bucket: not with this limit."""
    host.run("ip", "link", "set", "eth0", "gso_max_segs", 1)
    host.run("tc", "qdisc", "replace", "dev", "eth0", "root", "handle", "1:", "stab", "overhead", BESIDE_FRAME, "tbf", "rate",
             f"{rate}bit", "burst", BURST, "limit", QUEUE)


# linux/sockios.h and linux/ethtool.h
SIOCETHTOOL = 0x8946
OFFLOADS = {"tx": 0x17, "tso": 0x1F, "gso": 0x24, "gro": 0x2C}


def set_offload(host, interface, name, on):
    """As `ethtool -K INTERFACE NAME on|off`."""
    value = array.array("B", struct.pack("II", OFFLOADS[name], on))
    request = struct.pack("16sP", interface.encode(), value.buffer_info()[0])
    with host.socket(2, 2) as any_socket:
        fcntl.ioctl(any_socket, SIOCETHTOOL, request)
