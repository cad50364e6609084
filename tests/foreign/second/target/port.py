"""A port (§2): an Ethernet interface for whole frames; and a bad port, which drops, repeats, reorders and damages."""

import contextlib
import heapq
import random
import socket
import struct
import fcntl
import time

from .frames import ETHER_TYPE

ETHERNET = struct.Struct(">6s6sH")
PACKET_OTHERHOST, PACKET_OUTGOING = 3, 4
SO_RCVBUFFORCE, SO_TIMESTAMPNS = 33, 35
SOL_PACKET, PACKET_STATISTICS = 263, 6
BUFFER_BYTES = 32 << 20
SIOCGIFMTU = 0x8921


class Port:
    """One interface. `open_socket` makes the socket, in a network namespace if need be."""

    def __init__(self, interface, open_socket=socket.socket):
        self.interface = interface
        self.socket = open_socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        except PermissionError:
            # Root of a user namespace gets no more than net.core.rmem_max.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self.socket.bind((interface, ETHER_TYPE))
        self.socket.setblocking(False)
        self.mac = self.socket.getsockname()[4]
        request = fcntl.ioctl(self.socket, SIOCGIFMTU, struct.pack("16sI12x", interface.encode(), 0))
        self.mtu = struct.unpack_from("I", request, 16)[0]
        # How many frames the receive buffer holds. The kernel counts the memory of a waiting frame: up to twice the frame, and
        # up to 1 KiB of its own data about the frame.
        self.slots = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // (2 * self.mtu + 1024)
        self.sent = self.received = 0
        # When the last frame came, by the kernel's clock; known once it was asked for.
        self.came_at = None

    def stamps(self):
        """Asks the kernel when each frame comes from now on."""
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def overruns(self):
        """How many frames the kernel dropped since the last call because the receive buffer was full."""
        _, dropped = struct.unpack("II", self.socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        return dropped

    def fileno(self):
        return self.socket.fileno()

    def send(self, to, payload):
        self.sent += 1
        self.put(ETHERNET.pack(to, self.mac, ETHER_TYPE) + payload)

    def put(self, frame):
        """What the interface refuses is lost, as on the wire; loss is repaired above."""
        with contextlib.suppress(OSError):
            self.socket.send(frame)

    def receive(self):
        """(to a group, source, Ethernet payload) of one frame; None if there is none. §3.1: frames to other stations and
        in other VLANs are marked by the kernel as another host's."""
        while True:
            try:
                frame, told, _, address = self.socket.recvmsg(65600, 64)
            except BlockingIOError:
                return None
            if address[2] in (PACKET_OTHERHOST, PACKET_OUTGOING) or frame[6] & 1:
                continue
            self.received += 1
            for _, kind, stamp in told:
                if kind == SO_TIMESTAMPNS:
                    seconds, nanoseconds = struct.unpack("qq", stamp)
                    self.came_at = seconds + nanoseconds / 1e9
            return bool(frame[0] & 1), frame[6:12], frame[14:]

    def due(self):
        """When frames that are held back want attention; None if there are none."""
        return None

    def close(self):
        self.socket.close()


class BadPort(Port):
    """A port whose wire is bad in both directions, by a seed. `rates` has drop, twice, late and flip (a damaged copy beside
    the good frame), and replay (an old frame comes again)."""

    def __init__(self, interface, open_socket=socket.socket, seed=1, **rates):
        super().__init__(interface, open_socket)
        self.random, self.rates = random.Random(seed), rates
        self.counts = dict.fromkeys(("drop", "twice", "late", "flip", "replay"), 0)
        self.held, self.order, self.old, self.arrived = [], 0, {}, []

    def happens(self, name):
        happened = self.random.random() < self.rates.get(name, 0)
        self.counts[name] += happened
        return happened

    def hold(self, seconds, way, frame):
        self.order += 1
        heapq.heappush(self.held, (time.monotonic() + seconds, self.order, way, frame))

    def fates(self, way, frame):
        """The frames that come of one frame, in order."""
        if self.happens("drop"):
            return []
        frames = [frame]
        if self.happens("flip"):
            frames.insert(0, self.flipped(way, frame))
        if self.happens("replay") and self.old.get(way):
            frames.append(self.random.choice(self.old[way]))
        if self.rates.get("replay"):
            self.old[way] = (self.old.get(way, []) + [frame])[-2000:]
        if self.happens("twice"):
            frames.append(frame)
        if self.happens("late"):
            self.hold(self.random.uniform(0.0002, 0.002), way, frames.pop())
        return frames

    def flipped(self, way, frame):
        """One bit of the Ethernet payload turned over; addresses stay, as the switch reads them."""
        (data, meta) = frame if way == "in" else (frame, None)
        bit = self.random.randrange(14 * 8, len(data) * 8)
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        return (bytes(damaged), meta) if way == "in" else bytes(damaged)

    def put(self, frame):
        self.release()
        for each in self.fates("out", frame):
            super().put(each)

    def release(self):
        while self.held and self.held[0][0] <= time.monotonic():
            _, _, way, frame = heapq.heappop(self.held)
            if way == "out":
                super().put(frame)
            else:
                self.arrived.append(frame)

    def receive(self):
        self.release()
        while not self.arrived:
            got = super().receive()
            if got is None:
                return None
            group, source, payload = got
            whole = (bytes(14) + payload, (group, source))
            self.arrived.extend(self.fates("in", whole))
        data, (group, source) = self.arrived.pop(0)
        return group, source, data[14:]

    def due(self):
        return self.held[0][0] if self.held else None
