"""The initiator's handshake: §4.9, §4.10, §6 and the first table of §16."""

import hashlib
import hmac
import secrets
import struct
import time
from collections import namedtuple

from withheld import Limit

from . import blocks, frame, opaque
from .discovery import open_outside, outside
from .link import BROADCAST, wait

GROUP, TARGET, INITIATOR, ISID, COOKIE, SID, PARAMETERS = range(0x81, 0x88)
KE1, KE2, KE3, TOKEN, INSTANCE, RETRY_AFTER, STRETCH, PROOF = 0x88, 0x89, 0x8A, 0x8B, 0x8C, 0x0D, 0x8E, 0x8F
HELLO_MIN = 63
REASONS = {1: "not authorized", 2: "parameters", 3: "busy", 4: "shutdown", 5: "a password is needed", 6: "the group has no password",
           7: "version"}
BUSY = 3
DOUBT_S, STEP_S, OTHER_COOKIE_S, ANSWERS_MAX = 1.0, 4.0, 1.0, 4
# §4.10: name, bytes, default.
PARAMETER = {1: ("frame_max", 2, 1500), 2: ("frames_initial", 4, 32), 3: ("ack_delay_max", 4, 100), 4: ("levels", 1, 7),
             5: ("exchanges", 2, 512), 6: ("first_burst", 4, 65536), 7: ("burst_max", 4, 1048576), 8: ("paths", 1, 8),
             9: ("repair", 1, 0), 10: ("lost_after", 4, 30000)}
LEGAL = {"frame_max": lambda v: v >= 1500, "frames_initial": lambda v: v >= 1, "levels": lambda v: 0 < v < 8,
         "exchanges": lambda v: 1 <= v <= 512, "burst_max": lambda v: v >= 1,
         "paths": lambda v: v >= 1, "repair": lambda v: v <= 1, "lost_after": lambda v: v >= 1}
CHOSEN_SMALLER = ("exchanges", "first_burst", "burst_max", "paths", "lost_after")
Parameters = namedtuple("Parameters", [name for name, _, _ in PARAMETER.values()])
DEFAULTS = Parameters(*(default for _, _, default in PARAMETER.values()))
Accepted = namedtuple("Accepted", "peer here there offered chosen token instance session_key transcript")


class Failed(Exception):
    """The handshake ended without a session, with the reason that was heard first (§6.1)."""


def pack_parameters(values):
    return b"".join(blocks.item(kind, getattr(values, name).to_bytes(length, "big")) for kind, (name, length, _) in PARAMETER.items())


def parse_parameters(data):
    found, values = blocks.items(data, PARAMETER), {}
    for kind, (name, length, default) in PARAMETER.items():
        raw = found.get(kind, default.to_bytes(length, "big"))
        values[name] = int.from_bytes(raw, "big")
        if len(raw) != length or not LEGAL.get(name, lambda _: True)(values[name]):
            raise frame.Malformed(name)
    return Parameters(**values)


def within(chosen, offered):
    """§4.10: the initiator must not take a choice outside its offer."""
    return (all(getattr(chosen, name) <= getattr(offered, name) for name in CHOSEN_SMALLER)
            and not chosen.levels & ~offered.levels and chosen.repair >= offered.repair)


def acceptable(memory, passes, lanes):
    """§6.3: what an initiator computes at most."""
    return 8 * lanes <= memory <= 262144 and 1 <= lanes <= 16 and passes >= 1 and memory * passes <= 5 * 65536 * 3


class Try:
    """One HANDSHAKE: its blocks, and what it heard."""

    def __init__(self, names, offer, password, sid):
        self.names, self.offer = names, offer
        self.handshake, self.sid = secrets.token_bytes(16), sid
        self.client = opaque.Client(password, names.group) if password is not None else None
        self.cookie = self.peer = self.start = self.finish = self.other_cookie_at = None
        self.context, self.session_key, self.there, self.seen, self.said = b"", b"", 0, set(), {}

    def block(self, kind, *pairs):
        return blocks.block(kind, 0, self.handshake, b"".join(blocks.item(*pair) for pair in pairs))

    def hello(self):
        """§6.2: padded to 63 bytes."""
        return self.block(blocks.HELLO, (GROUP, self.names.group), (TARGET, self.names.target)).ljust(HELLO_MIN, b"\0")

    def take_cookie(self, cookie, peer):
        """START, whose COOKIE comes last."""
        self.cookie, self.peer = cookie, peer
        pairs = [(GROUP, self.names.group), (TARGET, self.names.target), (INITIATOR, self.names.initiator), (ISID, self.names.isid),
                 (SID, struct.pack(">I", self.sid)), (PARAMETERS, pack_parameters(self.offer))]
        if self.client:
            pairs.append((KE1, self.client.ke1))
        self.start = self.block(blocks.START, *pairs, (COOKIE, cookie))

    def open_answer(self, answer, found):
        """§6.3: FINISH; opaque.Refused if the ANSWER does not open."""
        if set(found) != {SID, PARAMETERS, STRETCH, KE2} or len(found[KE2]) != opaque.KE2_LEN or len(found[STRETCH]) != 9:
            raise frame.Malformed("ANSWER")
        stretch = struct.unpack(">IIB", found[STRETCH])
        if not acceptable(*stretch):
            raise opaque.Refused("Argon2id costs too much")
        zeroed = self.start[:-len(self.cookie)] + bytes(len(self.cookie)), answer[:-opaque.KE2_LEN] + bytes(opaque.KE2_LEN)
        head = b"HyperSCSI v2 handshake" + bytes([frame.VERSION]) + struct.pack(">I", len(self.start))
        context = hashlib.sha512(head + b"".join(zeroed)).digest()
        ke3, self.session_key = self.client.finish(found[KE2], context, stretch)
        self.context, self.there = context, int.from_bytes(found[SID], "big")
        self.finish = self.block(blocks.FINISH, (SID, found[SID]), (KE3, ke3))

    def proof(self, accept):
        covered = b"HyperSCSI v2 accept" + self.context + accept[:-32] + bytes(32)
        return hmac.new(self.session_key, covered, hashlib.sha512).digest()[:32]


class Handshake:
    """Drives one Try after another until a session, a reason, or the limit of time."""

    def __init__(self, link, names, offer, password=None, address=BROADCAST, sid=None):
        self.link, self.names, self.offer, self.password, self.address = link, names, offer, password, address
        self.reason = self.reason_at = self.quiet_until = None
        self.sid = sid or (lambda: 1 + secrets.randbelow(0xFFFFFFFF))
        self.begin()

    def begin(self):
        self.trying = Try(self.names, self.offer, self.password, self.sid())
        self.stepped_at, self.pause, self.again = time.monotonic(), 0.05, 0.0

    def step(self):
        """Says the present step (again)."""
        trying = self.trying
        payload = trying.finish or trying.start or trying.hello()
        self.link.send(trying.peer or self.address, outside(frame.NEGOTIATE, payload))

    def next_step(self):
        self.stepped_at, self.pause, self.again = time.monotonic(), 0.05, 0.0

    def run(self, seconds=30.0):
        """Accepted, or Failed."""
        limit = Limit(seconds)
        while not limit.over():
            now = time.monotonic()
            if self.reason and now >= self.reason_at + DOUBT_S:
                raise Failed(self.reason)
            if self.stale(now):
                self.begin()
            if now >= self.again and now >= (self.quiet_until or 0.0):
                self.step()
                self.again, self.pause = now + self.pause, min(self.pause * 2, 1.0)
            wait([self.link], min(limit.end, max(self.again, self.quiet_until or 0.0), now + 0.1))
            while came := self.link.receive():
                accepted = self.hear(*came)
                if accepted:
                    return accepted
        raise Failed(self.reason or "no answer")

    def stale(self, now):
        trying = self.trying
        if trying.start and now >= self.stepped_at + STEP_S:
            return True
        return trying.other_cookie_at is not None and now >= trying.other_cookie_at + OTHER_COOKIE_S and self.quiet_until is None

    def doubt(self, reason):
        if self.reason is None:
            self.reason, self.reason_at = reason, time.monotonic()

    def hear(self, source, data):
        """One frame: Accepted if it was the last of the handshake."""
        try:
            payload = open_outside(data, frame.NEGOTIATED)
            kind, info, rest, behind = blocks.split_block(payload)
            (handshake,), rest = blocks.fields("16s", rest)
            found = blocks.items(rest, (COOKIE, SID, PARAMETERS, KE2, TOKEN, INSTANCE, RETRY_AFTER, STRETCH, PROOF))
            if handshake != self.trying.handshake:
                return None
            whole = payload[:len(payload) - len(behind)]
            return self.said(source, kind, info, whole, found)
        except frame.Malformed:
            return None

    def said(self, source, kind, info, whole, found):
        if kind == blocks.COOKIE and len(found.get(COOKIE, b"")) == 40:
            self.cookie(source, found[COOKIE])
        elif kind == blocks.NEGOTIATED_ANSWER and source == self.trying.peer:
            self.answer(whole, found)
        elif kind == blocks.REFUSE:
            self.refuse(info, int.from_bytes(found.get(RETRY_AFTER, b""), "big"))
        elif kind == blocks.ACCEPT and source == self.trying.peer:
            return self.accept(whole, found)
        return None

    def cookie(self, source, cookie):
        """§6.4: without a password never two cookies in one START."""
        trying = self.trying
        if trying.finish or cookie == trying.cookie or (trying.peer and source != trying.peer):
            return
        if trying.cookie is None or trying.client:
            trying.take_cookie(cookie, source)
            self.next_step()
        elif trying.other_cookie_at is None:
            trying.other_cookie_at = time.monotonic()

    def answer(self, whole, found):
        trying = self.trying
        if not trying.client or trying.finish or whole in trying.seen or len(trying.seen) >= ANSWERS_MAX:
            return
        trying.seen.add(whole)
        try:
            trying.open_answer(whole, found)
            self.reason = None
            self.next_step()
        except opaque.Refused:
            self.doubt("wrong password")

    def refuse(self, why, after):
        if why == BUSY:
            self.quiet_until = time.monotonic() + min(after, 2000) / 1000
            self.stepped_at = self.quiet_until
        else:
            self.doubt(REASONS.get(why, f"reason {why}"))

    def accept(self, whole, found):
        trying = self.trying
        if not trying.start or not {SID, PARAMETERS, TOKEN, INSTANCE} <= set(found):
            return None
        chosen, there = parse_parameters(found[PARAMETERS]), int.from_bytes(found[SID], "big")
        if trying.client and PROOF not in found:
            return self.doubt("the group is open")
        if trying.client and (there != trying.there or not hmac.compare_digest(trying.proof(whole), found[PROOF])):
            return None
        if not there or not within(chosen, self.offer):
            return self.doubt("parameters outside of the offer")
        return Accepted(trying.peer, trying.sid, there, self.offer, chosen, found[TOKEN], found[INSTANCE], trying.session_key,
                        trying.context)
