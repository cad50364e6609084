"""Frames: header, CRC32C and the first checks (§3), and Parts (§4.11)."""

import ctypes
import struct

ETHER_TYPE = 0x889A
VERSION = 0x20
REQUEST, REPLY, DISCOVERY, NEGOTIATE, NEGOTIATED, DISCONNECT, ASK, ACK, ABORT = 0, 1, 0x10, 0x11, 0x12, 0x13, 0x20, 0x21, 0x40
COMMANDS = {REQUEST, REPLY, DISCOVERY, NEGOTIATE, NEGOTIATED, DISCONNECT, ASK, ACK, ABORT}
ELICITS, PHASE, ENCRYPTED, DATA, GOOD, ACKS, PARTS = 0x80, 0x40, 0x20, 0x10, 0x08, 0x04, 0x02
NONE, INTEGRITY, ENCRYPT = 0, 1, 2
HEADER = struct.Struct(">IBBHIQII")
HEADER_LEN = HEADER.size
PART = struct.Struct(">3sBHII")
TAG_LEN, CRC_LEN = 16, 4
COUNT_MASK = (1 << 56) - 1


class Drop(Exception):
    """A frame or payload is dropped and counted under the words of the exception (§3.4)."""


class Nonsense(Drop):
    """A Request that begins nothing: GIVEN UP 3 (§13.2)."""


def crc_tables():
    low = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        low.append(number)
    return low, [step(low, n) for n in range(65536)]


def step(low, number):
    """Two bytes through the register."""
    number = low[number & 255] ^ number >> 8
    return low[number & 255] ^ number >> 8


LOW, TWO = crc_tables()


def crc32c_by_words(data):
    """§3.3, two bytes at a time."""
    crc, odd = 0xFFFFFFFF, len(data) & 1
    words = memoryview(data)[:len(data) - odd].cast("H")
    table = TWO
    for word in words:
        word ^= crc & 0xFFFF
        crc = crc >> 16 ^ table[word]
    if odd:
        crc = LOW[(crc ^ data[-1]) & 255] ^ crc >> 8
    return (crc ^ 0xFFFFFFFF).to_bytes(4, "big")


def crc32c_of_ext2():
    """The same by the library that makes file systems, which is a hundred times as fast; None if it is not there."""
    try:
        through = ctypes.CDLL("libext2fs.so.2").ext2fs_crc32c_le
    except (OSError, AttributeError):
        return None
    through.argtypes, through.restype = (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t), ctypes.c_uint32
    return lambda data: (through(0xFFFFFFFF, bytes(data), len(data)) ^ 0xFFFFFFFF).to_bytes(4, "big")


crc32c = crc32c_of_ext2() or crc32c_by_words


class Part:
    """What a frame carries of one message (§2): TAG, L, FRAG, the DATA and GOOD flags, XID, OFF, and the bytes."""

    __slots__ = ("tag", "last", "frag", "flags", "xid", "off", "body")

    def __init__(self, place, flags, xid, off, body):
        self.tag, self.last, self.frag = place >> 11 & 511, place >> 10 & 1, place & 1023
        self.flags, self.xid, self.off, self.body = flags, xid, off, body


class Frame:
    """A frame whose header was read; `payload` is plain once it was opened."""

    __slots__ = ("place", "protected", "command", "flags", "sid", "path", "count", "pn", "xid", "off", "payload", "header", "trailer")

    def level(self):
        """The level of the frame (§7.1)."""
        return NONE if not self.protected else ENCRYPT if self.flags & ENCRYPTED else INTEGRITY


def parse(data):
    """The checks of §3.4 up to CMD, in their order."""
    if len(data) < HEADER_LEN:
        raise Drop("short")
    frame = Frame()
    first, command, frame.flags, length, frame.sid, frame.pn, frame.xid, frame.off = HEADER.unpack_from(data)
    frame.protected, frame.command = command >> 7, command & 127
    end = HEADER_LEN + length
    tail = end + (TAG_LEN if frame.protected else CRC_LEN)
    if len(data) < tail:
        raise Drop("short")
    if first & 255 != VERSION:
        raise Drop("version")
    if first >> 28 or frame.flags & 1:
        raise Drop("reserved")
    if not frame.protected and frame.flags & (PHASE | ENCRYPTED):
        raise Drop("flags")
    if frame.command not in COMMANDS or frame.flags & PARTS and frame.command not in (REQUEST, REPLY):
        raise Drop("command")
    frame.place, frame.path, frame.count = first >> 8, frame.pn >> 56, frame.pn & COUNT_MASK
    frame.header, frame.payload, frame.trailer = data[:HEADER_LEN], data[HEADER_LEN:end], data[end:tail]
    return frame


def check_crc(frame):
    if crc32c(frame.header + frame.payload) != frame.trailer:
        raise Drop("crc")


def header(place, command, flags, length, sid, pn=0, xid=0, off=0):
    return HEADER.pack(place << 8 | VERSION, command, flags, length, sid, pn, xid, off)


def place(tag, last, frag):
    return tag << 11 | last << 10 | frag & 1023


def outside(command, payload):
    """A whole frame outside of sessions: SID 0, level none, one message."""
    head = header(place(0, 1, 0), command, 0, len(payload), 0)
    return head + payload + crc32c(head + payload)


def split(frame, payload):
    """The parts of a payload proper, Ack block taken off already (§4.11)."""
    first_flags = frame.flags & (DATA | GOOD)
    if not frame.flags & PARTS:
        return [Part(frame.place, first_flags, frame.xid, frame.off, payload)]
    if len(payload) < 4:
        raise Drop("parts")
    kind, further, length = struct.unpack_from(">BBH", payload)
    if kind != 1 or not 1 <= further <= 63 or length != 4 + PART.size * further or length > len(payload):
        raise Drop("parts")
    entries = list(PART.iter_unpack(payload[4:length]))
    if any(entry[0][0] >> 4 or entry[1] & ~(DATA | GOOD) for entry in entries):
        raise Drop("parts")
    at = len(payload) - sum(entry[2] for entry in entries)
    if at < length:
        raise Drop("parts")
    parts = [Part(frame.place, first_flags, frame.xid, frame.off, payload[length:at])]
    for where, flags, size, xid, off in entries:
        parts.append(Part(int.from_bytes(where, "big"), flags, xid, off, payload[at:at + size]))
        at += size
    return parts


def join(parts):
    """The Parts block for `parts`, and their bodies behind it; one part alone has no block."""
    bodies = b"".join([part.body for part in parts])
    if len(parts) == 1:
        return bodies
    entries = b"".join([PART.pack(place(p.tag, p.last, p.frag).to_bytes(3, "big"), p.flags, len(p.body), p.xid, p.off)
                        for p in parts[1:]])
    return struct.pack(">BBH", 1, len(parts) - 1, 4 + len(entries)) + entries + bodies
