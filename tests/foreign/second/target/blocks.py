"""Blocks, items and parameters (§4)."""

import struct

from .frames import Drop

# Items of the handshake and of Discovery (§4.8, §4.9).
GROUP, TARGET, INITIATOR, ISID, COOKIE, SID, PARAMETERS, KE1, KE2, KE3 = 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A
TOKEN, INSTANCE, RETRY_AFTER, STRETCH, PROOF = 0x8B, 0x8C, 0x0D, 0x8E, 0x8F
LUNS, PORTS, FRAME_MAX = 0x03, 0x04, 0x05
PATH_TOKEN = 0x81
# Parameters (§4.10): TYPE, bytes, default, how the target chooses.
PARAMETER_TABLE = {
    "frame_max": (1, 2, 1500, "told"), "frames_initial": (2, 4, 32, "told"), "ack_delay_max": (3, 4, 100, "told"),
    "levels": (4, 1, 7, "both"), "exchanges": (5, 2, 512, "less"), "first_burst": (6, 4, 65536, "less"),
    "burst_max": (7, 4, 1048576, "less"), "paths": (8, 1, 8, "less"), "repair": (9, 1, 0, "either"),
    "lost_after": (10, 4, 30000, "less")}
LEGAL = {"frame_max": (1500, 65535), "frames_initial": (1, 2**32), "ack_delay_max": (0, 2**32), "levels": (1, 255),
         "exchanges": (1, 512), "first_burst": (0, 2**32), "burst_max": (1, 2**32), "paths": (1, 255), "repair": (0, 1),
         "lost_after": (1, 2**32)}


def block(kind, info=0, fixed=b"", items=b""):
    return struct.pack(">BBH", kind, info, 4 + len(fixed) + len(items)) + fixed + items


def item(kind, value):
    return struct.pack(">BH", kind, len(value)) + value


class Block:
    """A block that was read: KIND, INFO, the fixed fields, the items, and what stands behind it."""

    def __init__(self, payload, fixed):
        if len(payload) < 4:
            raise Drop("block")
        self.kind, self.info, length = struct.unpack_from(">BBH", payload)
        size = fixed.get(self.kind)
        if size is None or not 4 + size <= length <= len(payload):
            raise Drop("block")
        self.fixed, self.raw_items = payload[4:4 + size], payload[4 + size:length]
        self.whole, self.rest = payload[:length], payload[length:]

    def items(self, known):
        """The items by type, `known` telling their lengths: a number, a (least, most), or None for any."""
        return read_items(self.raw_items, known)


def read_items(raw, known):
    found, at = {}, 0
    while at < len(raw):
        if len(raw) - at < 3:
            raise Drop("items")
        kind, length = struct.unpack_from(">BH", raw, at)
        value = raw[at + 3:at + 3 + length]
        if len(value) < length:
            raise Drop("items")
        at += 3 + length
        if kind in known:
            least, most = known[kind] if isinstance(known[kind], tuple) else (known[kind],) * 2
            if kind in found or not least <= length <= most:
                raise Drop("items")
            found[kind] = value
        elif kind & 0x80:
            raise Drop("items")
    return found


def zeroed(whole, length):
    """A block whose last item has a value of `length` bytes, with zeros in its place (§4.9)."""
    return whole[:-length] + bytes(length)


def read_parameters(raw):
    """The values of PARAMETERS, defaults for what is missing; None if one is not legal."""
    found = read_items(raw, {row[0]: row[1] for row in PARAMETER_TABLE.values()})
    values = {name: int.from_bytes(found[row[0]], "big") if row[0] in found else row[2] for name, row in PARAMETER_TABLE.items()}
    legal = all(LEGAL[name][0] <= values[name] <= LEGAL[name][1] for name in values)
    return values if legal else None


def write_parameters(values):
    return b"".join(item(kind, values[name].to_bytes(size, "big")) for name, (kind, size, _, _) in PARAMETER_TABLE.items())


def choose(offer, own):
    """§4.10, last column."""
    rules = {"told": lambda o, w: w, "both": lambda o, w: o & w, "less": min, "either": lambda o, w: o | w}
    return {name: rules[row[3]](offer[name], own[name]) for name, row in PARAMETER_TABLE.items()}
