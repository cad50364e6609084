"""Blocks, items and parts: §4."""

import struct
from collections import namedtuple

from .frame import DATA, GOOD, Malformed, pack_slot, unpack_slot

COMMAND, MANAGE = 1, 2
TRANSFER_READY, RESPONSE, MANAGED = 1, 2, 3
PING, MTU, PATH, LEAVE, RECEIVES = 1, 2, 3, 4, 5
GIVE_UP, GIVEN_UP = 1, 2
GOODBYE, DONE, UNKNOWN = 1, 2, 3
QUESTION, ANSWER = 1, 2
HELLO, COOKIE, START, NEGOTIATED_ANSWER, FINISH, ACCEPT, REFUSE = 1, 2, 3, 4, 5, 6, 7
BLOCK_MAX = 1024
RANGES_MAX = 32
PARTS_MAX = 64

Ack = namedtuple("Ack", "kind largest delay ranges pn_limit xid_limit overruns")
Part = namedtuple("Part", "tag last frag flags xid off payload")
Response = namedtuple("Response", "status data_in_len transferable sense")
ACK_FIELDS = struct.Struct(">QIIQII")
ENTRY = struct.Struct(">IHII")


def block(kind, info=0, fields=b"", items=b""):
    """§4.1."""
    return struct.pack(">BBH", kind, info, 4 + len(fields) + len(items)) + fields + items


def item(kind, value):
    return struct.pack(">BH", kind, len(value)) + value


def split_block(payload):
    """§4.1: (KIND, INFO, what stands behind these 4 bytes, what stands behind the block)."""
    if len(payload) < 4:
        raise Malformed("block")
    kind, info, length = struct.unpack_from(">BBH", payload)
    if not 4 <= length <= len(payload):
        raise Malformed("LEN of a block")
    return kind, info, payload[4:length], payload[length:]


def items(data, known):
    """The items by TYPE; one that is unknown and has bit 7, or comes twice, makes the payload malformed (§4.1)."""
    found = {}
    while data:
        if len(data) < 3:
            raise Malformed("item")
        kind, length = struct.unpack_from(">BH", data)
        if 3 + length > len(data):
            raise Malformed("LENGTH of an item")
        if kind in known:
            if kind in found:
                raise Malformed("an item twice")
            found[kind] = data[3:3 + length]
        elif kind & 0x80:
            raise Malformed(f"item {kind:02x}h")
        data = data[3 + length:]
    return found


def fields(format_, data):
    """Fixed fields, and the items behind them."""
    layout = struct.Struct(format_)
    if len(data) < layout.size:
        raise Malformed("fields")
    return layout.unpack_from(data), data[layout.size:]


def command(lun, cdb, data_in, data_out, unsolicited, after=0, attribute=1, priority=0):
    """§4.2."""
    body = struct.pack(">I8sIIIHH", after, lun, data_in, data_out, unsolicited, len(cdb), 0) + cdb
    return block(COMMAND, priority << 4 | attribute, body)


def manage(function, lun, after=0, referenced=0):
    """§4.2."""
    return block(MANAGE, function, struct.pack(">I8sI", after, lun, referenced))


def parse_transfer_ready(data):
    """§4.3: NUMBER, OFFSET, LENGTH."""
    (number, offset, length), rest = fields(">III", data)
    items(rest, ())
    if length == 0 or offset + length >= 1 << 32:
        raise Malformed("TRANSFER READY")
    return number, offset, length


def parse_response(info, data):
    """§4.3."""
    (data_in, transferable, sense_len, zero), rest = fields(">IQHH", data)
    if zero or sense_len > 252 or sense_len > len(rest):
        raise Malformed("RESPONSE")
    items(rest[sense_len:], ())
    return Response(info, data_in, transferable, rest[:sense_len])


def ack(kind, largest, delay, ranges, pn_limit, xid_limit=0, overruns=0):
    """§4.4. `ranges` are (lowest, highest) counts downwards, the first one with LARGEST at its top."""
    first = ranges[0][1] - ranges[0][0] + 1 if ranges else 0
    body = ACK_FIELDS.pack(largest, delay, first, pn_limit, xid_limit, overruns)
    for (above, _), (low, high) in zip(ranges, ranges[1:RANGES_MAX + 1]):
        body += struct.pack(">II", above - high - 1, high - low + 1)
    return block(kind, max(0, min(len(ranges) - 1, RANGES_MAX)), body)


def parse_ack(kind, info, data):
    """§4.4."""
    if kind not in (1, 2) or info > RANGES_MAX:
        raise Malformed("Ack")
    (largest, delay, first, pn_limit, xid_limit, overruns), rest = fields(">QIIQII", data)
    if len(rest) < 8 * info or largest >> 56 != pn_limit >> 56:
        raise Malformed("Ack")
    top = largest & (1 << 56) - 1
    ranges = [(top - first + 1, top)] if first else []
    low = top - first + 1
    for number in range(info):
        gap, count = struct.unpack_from(">II", rest, 8 * number)
        if not gap or not count or not first:
            raise Malformed("Ack range")
        ranges.append((low - gap - count, low - gap - 1))
        low -= gap + count
    if low < 1:
        raise Malformed("Ack below 1")
    items(rest[8 * info:], ())
    return Ack(kind, largest, delay, ranges, pn_limit, xid_limit, overruns)


def parts(first, further):
    """§4.11: Parts block and all parts behind it."""
    body = b"".join(ENTRY.pack(pack_slot(p.tag, p.last, p.frag) << 8 | p.flags, len(p.payload), p.xid, p.off) for p in further)
    return block(1, len(further), body) + first + b"".join(p.payload for p in further)


def split_parts(frame, payload):
    """All parts of a Request's or Reply's payload, behind the Ack block (§4.11)."""
    header_flags = frame.flags & (DATA | GOOD)
    if not frame.flags & 0x02:
        return [Part(frame.tag, frame.last, frame.frag, header_flags, frame.xid, frame.off, payload)]
    kind, count, entries, rest = split_block(payload)
    if kind != 1 or not 1 <= count < PARTS_MAX or len(entries) < ENTRY.size * count:
        raise Malformed("Parts block")
    items(entries[ENTRY.size * count:], ())
    found, total = [], 0
    for number in range(count):
        word, length, xid, off = ENTRY.unpack_from(entries, ENTRY.size * number)
        if word & 0xFF & ~(DATA | GOOD):
            raise Malformed("FLAGS of a part")
        found.append((unpack_slot(word >> 8), word & 0xFF, length, xid, off))
        total += length
    if total > len(rest):
        raise Malformed("parts")
    place = len(rest) - total
    result = [Part(frame.tag, frame.last, frame.frag, header_flags, frame.xid, frame.off, rest[:place])]
    for slot, flags, length, xid, off in found:
        result.append(Part(*slot, flags, xid, off, rest[place:place + length]))
        place += length
    return result
