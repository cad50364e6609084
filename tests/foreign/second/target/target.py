"""The target: its groups, its sessions, and the loop that drives them."""

import collections
import secrets
import select
import time

from . import frames
from .blocks import block
from .discovery import Bucket, Discovery
from .disk import NoDisk
from .frames import ABORT, ASK, DISCOVERY, DISCONNECT, NEGOTIATE, REQUEST, Drop
from .handshake import Handshakes

# Frames that are read before they are acknowledged: no more than one Ack may be about (§9.1).
BATCH = 16
UNKNOWN = 3
OWN = {"frames_initial": 64, "ack_delay_max": 2000, "levels": 7, "exchanges": 128, "first_burst": 65536, "burst_max": 262144,
       "paths": 8, "repair": 0, "lost_after": 30000}


class Group:
    """Who may reach the disk: with a password (a Record of it), or without."""

    def __init__(self, name, disk, record=None):
        self.name, self.disk, self.record = name, disk, record

    def unit(self, lun):
        return NoDisk(self.disk) if any(lun) else self.disk


class Target:
    """One target on its ports. `counts` has what was dropped or done, `runs` how often each command of each session ran;
    `watch`, if set, is told of every frame of a session that was found good: (session, path, frame)."""

    def __init__(self, name, ports, groups, rekey_after=1 << 22):
        self.name, self.ports, self.rekey_after = name, ports, rekey_after
        self.groups = {group.name: group for group in groups}
        self.counts, self.runs = collections.Counter(), collections.Counter()
        self.watch = None
        self.forget()

    def forget(self):
        """As after a restart: no session, no handshake, other secrets, another INSTANCE; the disk stays."""
        self.sessions, self.instance = {}, secrets.token_bytes(16)
        self.discovery, self.handshakes, self.unknown = Discovery(self), Handshakes(self), Bucket(256, 1 / 256)

    def offer(self, port, keyed):
        initial = min(OWN["frames_initial"], self.share(port, 1 + keyed))
        return OWN | {"frame_max": port.mtu, "levels": 7 if keyed else 1, "frames_initial": initial}

    def share(self, port, more=0):
        """§9.2: the most frames that a window may have, so that all windows keep to 80 % of what the port holds, once there are
        `more` spaces on it than now."""
        spaces = more + sum(session.spaces(port) for session in self.sessions.values())
        return max(1, port.slots * 4 // 5 // max(1, spaces))

    def new_sid(self):
        while True:
            sid = secrets.randbits(32)
            if sid and sid not in self.sessions:
                return sid

    def begin(self, session):
        """A new session of an initiator port takes the place of the old one (§6.6)."""
        for other in self.sessions.values():
            if other.nexus == session.nexus:
                other.end(1)
        self.sessions[session.sid] = session
        self.counts["sessions"] += 1

    def ran(self, exchange):
        self.runs[exchange.owner.session.sid, exchange.wire_xid()] += 1

    def count_drop(self, why):
        self.counts[f"dropped: {why}"] += 1

    def take(self, port, group_address, source, payload, now):
        """One frame, as it came in."""
        try:
            frame = frames.parse(payload)
        except Drop as drop:
            if str(drop) == "version" and not group_address and payload[4] & 127 == NEGOTIATE:
                self.handshakes.other_version(port, source)
            raise
        if group_address and frame.command not in (DISCOVERY, NEGOTIATE):
            raise Drop("to a group")
        if frame.sid:
            return self.inside(port, source, frame, now)
        if frame.pn or frame.protected:
            raise Drop("outside of sessions")
        frames.check_crc(frame)
        if frame.command == DISCOVERY:
            self.discovery.question(port, source, frame)
        elif frame.command == NEGOTIATE:
            self.handshakes.take(port, source, frame)
        else:
            raise Drop("outside of sessions")

    def inside(self, port, source, frame, now):
        session = self.sessions.get(frame.sid)
        if session is None:
            if frame.command in (REQUEST, ABORT, ASK) and self.unknown.take():
                self.counts["unknown"] += 1
                port.send(source, frames.outside(DISCONNECT, block(UNKNOWN, 0, frame.sid.to_bytes(4, "big"))))
            raise Drop("no such session")
        if session.ended is None or frame.command == DISCONNECT:
            session.take(port, source, frame, now)

    def drain(self, port):
        for _ in range(BATCH):
            got = port.receive()
            if got is None:
                return
            try:
                self.take(port, *got, time.monotonic())
            except Drop as drop:
                self.count_drop(drop)

    def turn(self):
        """One turn of the loop: what came, then what time brings. At most a tenth of a second."""
        now = time.monotonic()
        wait = min([session.due(now) for session in self.sessions.values()] + [0.1])
        held = [port.due() for port in self.ports if port.due() is not None]
        if held:
            wait = min(wait, max(0, min(held) - now))
        select.select(self.ports, [], [], wait)
        for port in self.ports:
            self.drain(port)
        now = time.monotonic()
        for sid, session in list(self.sessions.items()):
            if not session.turn(now):
                del self.sessions[sid]

    def run(self, stop):
        """Until the event `stop` is set."""
        while not stop.is_set():
            self.turn()

    def changes(self):
        """How often the sessions that live changed their keys."""
        return sum(session.sealer.changes for session in self.sessions.values() if session.sealer)
