"""HyperSCSI frames by hand, from docs/hyperscsi.md alone: for stations that do what no initiator of ours would."""

import os
import struct

from hyperscsi import network

REQUEST, DISCOVERY, NEGOTIATE, NEGOTIATED = 0x00, 0x10, 0x11, 0x12
HEADER_LEN = 28
GROUP, TARGET, INITIATOR, ISID, COOKIE, SID, PARAMETERS, KE1 = 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88
# A valid encoding of a point of ristretto255, its generator (RFC 9496 §A.1): good for both points of KE1.
POINT = bytes.fromhex("e2f2ae0a6abc4e71a884a961c500515f58e30b6aa582dd8db6a65945e08d2d76")
BROADCAST = b"\xff" * 6


def crc_table():
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        yield byte


CRC_TABLE = tuple(crc_table())


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def frame(cmd, payload, version=0x20, flags=0, sid=0, pn=0, res=0, xid=0, length=None):
    """The Ethernet payload of a frame at level `none`, by section 3."""
    head = (res << 20 | 1 << 10).to_bytes(3, "big") + bytes((version, cmd, flags))
    head += struct.pack(">HIQII", len(payload) if length is None else length, sid, pn, xid, 0)
    return head + payload + struct.pack(">I", crc32c(head + payload))


def item(kind, value):
    return struct.pack(">BH", kind, len(value)) + value


def block(kind, *parts):
    body = b"".join(parts)
    return struct.pack(">BBH", kind, 0, 4 + len(body)) + body


def items_of(payload, start=20):
    """The items of a block, by their type."""
    items, at = {}, start
    while at + 3 <= len(payload):
        kind, length = struct.unpack_from(">BH", payload, at)
        items[kind] = payload[at + 3:at + 3 + length]
        at += 3 + length
    return items


def question(group, nonce):
    return frame(DISCOVERY, block(1, nonce, item(GROUP, group.encode())))


def write_of_one_block(sid, pn, xid, lba, block_len=512):
    """A WRITE(10) with its data, for a session that is somebody else's, as whoever has no keys would put it."""
    cdb = struct.pack(">BBIBHB", 0x2A, 0, lba, 0, 1, 0)
    command = struct.pack(">BBHIQIIIHH", 1, 1, 32 + len(cdb), 0, 0, 0, block_len, block_len, len(cdb), 0) + cdb
    return frame(REQUEST, command + b"\x66" * block_len, flags=0x80, sid=sid, pn=pn, xid=xid)


def parameters():
    """What every initiator may offer: the defaults of section 4.10."""
    return b"".join(item(kind, value.to_bytes(length, "big")) for kind, length, value in (
        (1, 2, 1500), (2, 4, 32), (3, 4, 100), (4, 1, 7), (5, 2, 512), (6, 4, 65536), (7, 4, 1 << 20), (8, 1, 8), (9, 1, 0), (10, 4, 30000)))


def hello(handshake, group, target):
    said = block(1, handshake, item(GROUP, group.encode()), item(TARGET, target.encode()))
    return frame(NEGOTIATE, said.ljust(HELLO_MIN, b"\0"))


# A shorter one gets no answer: a COOKIE would be longer.
HELLO_MIN = 63


def start(handshake, group, target, cookie, with_password=True):
    proof = (item(KE1, POINT + os.urandom(32) + POINT),) if with_password else ()
    return frame(NEGOTIATE, block(3, handshake, item(GROUP, group.encode()), item(TARGET, target.encode()),
                                  item(INITIATOR, b"iqn.2026-11.com.example:guesser"), item(ISID, os.urandom(6)),
                                  item(SID, os.urandom(3) + b"\1"), item(PARAMETERS, parameters()), *proof, item(COOKIE, cookie)))


def ethernet(to, source, payload, vlan=None):
    """A whole frame; `vlan` is the number of a VLAN, or 0 for a tag that says a priority alone."""
    tag = b"" if vlan is None else struct.pack(">HH", 0x8100, 5 << 13 | vlan)
    return to + source + tag + struct.pack(">H", network.ETHER_TYPE) + payload


def station(number):
    """The address of a station that there is not."""
    return b"\x02\xbd" + number.to_bytes(4, "big")
