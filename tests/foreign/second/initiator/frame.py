"""Frames: header, trailer, and what a receiver checks first (§3)."""

import struct

from . import keys
from .crc import crc32c

ETHER_TYPE = 0x889A
VERSION = 0x20
HEADER = struct.Struct(">IBBHIQII")
HEADER_LEN, CRC_LEN = 28, 4
REQUEST, REPLY, DISCOVERY, NEGOTIATE, NEGOTIATED = 0x00, 0x01, 0x10, 0x11, 0x12
DISCONNECT, ASK, ACK, ABORT = 0x13, 0x20, 0x21, 0x40
COMMANDS = {REQUEST, REPLY, DISCOVERY, NEGOTIATE, NEGOTIATED, DISCONNECT, ASK, ACK, ABORT}
ELICITS, PHASE, ENCRYPTED, DATA, GOOD, ACKS, PARTS = 0x80, 0x40, 0x20, 0x10, 0x08, 0x04, 0x02
COUNT_MASK = (1 << 56) - 1


class Malformed(Exception):
    """What §3.4 or §4 has dropped and counted."""


class Broken(Malformed):
    """What the target must not say in an exchange (§14)."""


class Frame:
    """One frame, opened: header fields and the payload in clear."""

    __slots__ = ("cmd", "flags", "sid", "pn", "xid", "off", "tag", "last", "frag", "level", "payload", "came_at", "link", "source")

    def __init__(self, cmd, flags=0, sid=0, pn=0, xid=0, off=0, tag=0, last=True, frag=0, level=keys.NONE, payload=b""):
        self.cmd, self.flags, self.sid, self.pn, self.xid, self.off = cmd, flags, sid, pn, xid, off
        self.tag, self.last, self.frag, self.level, self.payload = tag, last, frag, level, payload
        self.came_at = self.link = self.source = None

    @property
    def path(self):
        return self.pn >> 56

    @property
    def count(self):
        return self.pn & COUNT_MASK

    def header(self, phase=0):
        """§3.2."""
        slot = pack_slot(self.tag, self.last, self.frag)
        sealed = self.level != keys.NONE
        flags = self.flags | (PHASE if phase else 0) | (ENCRYPTED if self.level == keys.ENCRYPT else 0)
        return HEADER.pack(slot << 8 | VERSION, sealed << 7 | self.cmd, flags, len(self.payload), self.sid, self.pn, self.xid, self.off)

    def pack(self, sender=None):
        """The Ethernet payload; `sender` seals it if its level asks for that (§3.3)."""
        if self.level == keys.NONE:
            covered = self.header() + self.payload
            return covered + crc32c(covered).to_bytes(4, "big")
        header = self.header(sender.generation.phase)
        return header + sender.seal(self.level, self.pn, header, self.payload)


def pack_slot(tag, last, frag):
    return tag << 11 | last << 10 | frag & 1023


def unpack_slot(value):
    """TAG, L and FRAG of 24 bits; RES is checked."""
    if value >> 20:
        raise Malformed("RES")
    return value >> 11, value >> 10 & 1, value & 1023


def trailer_len(level):
    return CRC_LEN if level == keys.NONE else keys.TAG_LEN


def parse(data):
    """The checks of §3.4 that need no session: (frame without payload, phase, what stands behind the header, less padding)."""
    if len(data) < HEADER_LEN:
        raise Malformed("short")
    slot, cmd, flags, length, sid, pn, xid, off = HEADER.unpack_from(data)
    sealed, cmd, version = cmd >> 7, cmd & 0x7F, slot & 0xFF
    end = HEADER_LEN + length + (keys.TAG_LEN if sealed else CRC_LEN)
    if len(data) < end:
        raise Malformed("LEN")
    if version != VERSION:
        raise Malformed("VERSION")
    tag, last, frag = unpack_slot(slot >> 8)
    if flags & 1 or (not sealed and flags & (PHASE | ENCRYPTED)):
        raise Malformed("FLAGS")
    if cmd not in COMMANDS or (flags & PARTS and cmd not in (REQUEST, REPLY)):
        raise Malformed("CMD")
    level = (keys.ENCRYPT if flags & ENCRYPTED else keys.INTEGRITY) if sealed else keys.NONE
    frame = Frame(cmd, flags & ~(PHASE | ENCRYPTED), sid, pn, xid, off, tag, last, frag, level)
    return frame, 1 if flags & PHASE else 0, data[HEADER_LEN:end]


def check_crc(data, rest):
    """The payload of a frame with P=0."""
    covered = data[:HEADER_LEN + len(rest) - CRC_LEN]
    if crc32c(covered) != int.from_bytes(rest[-CRC_LEN:], "big"):
        raise Malformed("CRC")
    return rest[:-CRC_LEN]
