"""Ports: sockets for whole Ethernet frames, and one that loses, repeats and reorders what it carries."""

import random
import select
import socket
import struct
import time
from collections import deque

from .frame import ETHER_TYPE, HEADER_LEN

BROADCAST = b"\xff" * 6
SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23
SO_RCVBUFFORCE = 33
SO_TIMESTAMPNS = 35
HELD_S = 0.002


class Link:
    """A port (§2): whole frames of EtherType 889Ah. Its socket is made in the namespace where the port is."""

    def __init__(self, raw, interface, mac, mtu):
        self.raw, self.mac, self.mtu = raw, mac, mtu
        raw.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        try:
            raw.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 32 << 20)
        except PermissionError:
            # As root of a user namespace only as much as net.core.rmem_max allows.
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 20)
        raw.bind((interface, ETHER_TYPE))
        raw.setblocking(False)
        self.tap = None
        # When the last frame came, by the kernel's clock; known once it was asked for.
        self.came_at = None

    def stamps(self):
        """Asks the kernel when each frame comes from now on."""
        self.raw.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    def fileno(self):
        return self.raw.fileno()

    def send(self, destination, payload):
        frame = destination + self.mac + ETHER_TYPE.to_bytes(2, "big") + payload
        if self.tap:
            self.tap(destination, payload)
        self.transmit(frame)

    def transmit(self, frame):
        try:
            self.raw.send(frame)
        except (BlockingIOError, OSError):
            return

    def receive(self):
        """The next frame as (source, payload), or None. What went to another station, or came from a group, is passed over (§3.1)."""
        while True:
            try:
                frame, told, _, _ = self.raw.recvmsg(65600, 64)
            except (BlockingIOError, OSError):
                return None
            for _, kind, stamp in told:
                if kind == SO_TIMESTAMPNS:
                    seconds, nanoseconds = struct.unpack("qq", stamp)
                    self.came_at = seconds + nanoseconds / 1e9
            if frame[:6] == self.mac and not frame[6] & 1 and len(frame) >= 14 + HEADER_LEN:
                return frame[6:12], frame[14:]

    def due(self):
        """When something here wants to be looked at although the socket is silent."""
        return None

    def close(self):
        self.raw.close()


class BadLink(Link):
    """A port on a bad cable: seeded loss, repetition, and holding back, in both directions."""

    def __init__(self, raw, interface, mac, mtu, seed, loss=0.05, twice=0.02, held=0.02):
        super().__init__(raw, interface, mac, mtu)
        self.random = random.Random(seed)
        self.loss, self.twice, self.held = loss, twice, held
        self.out, self.incoming = deque(), deque()
        self.counts = dict.fromkeys(("sent", "lost", "twice", "held"), 0)

    def fates(self, now):
        """When each copy of a frame goes on: none, one, or two of them."""
        self.counts["sent"] += 1
        if self.random.random() < self.loss:
            self.counts["lost"] += 1
            return []
        copies = 2 if self.random.random() < self.twice else 1
        self.counts["twice"] += copies - 1
        late = [self.random.random() < self.held for _ in range(copies)]
        self.counts["held"] += sum(late)
        return [now + HELD_S if held else now for held in late]

    def transmit(self, frame):
        now = time.monotonic()
        self.out.extend((when, frame) for when in self.fates(now))
        self.flush(now)

    def flush(self, now):
        waiting = deque()
        for when, frame in self.out:
            if when <= now:
                super().transmit(frame)
            else:
                waiting.append((when, frame))
        self.out = waiting

    def receive(self):
        now = time.monotonic()
        self.flush(now)
        for _ in range(64):
            came = super().receive()
            if came is None:
                break
            self.incoming.extend((when, came) for when in self.fates(now))
        for place, (when, came) in enumerate(self.incoming):
            if when <= now:
                del self.incoming[place]
                return came
        return None

    def due(self):
        return min((when for when, _ in [*self.out, *self.incoming]), default=None)


def wait(links, deadline):
    """Waits until a frame may be there on one of the links, at most until `deadline`."""
    due = [when for when in (link.due() for link in links) if when is not None]
    timeout = min([deadline, *due]) - time.monotonic()
    select.select(links, [], [], max(0.0, timeout))
