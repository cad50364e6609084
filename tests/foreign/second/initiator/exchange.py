"""Exchanges at the initiator: §13."""

from collections import namedtuple

from . import blocks, frame, keys, scsi
from .intervals import Intervals

PROTECTED, SERIAL = 1 << 31, (1 << 31) - 1
SIMPLE, ORDERED, HEAD_OF_QUEUE = 1, 2, 3
MAY_HANG = (scsi.ABORT_TASK, scsi.QUERY_TASK)
# A piece of what is to be said: of `exchange`, bytes [off, off + length) of a message that ends at `end`, behind the block or without.
Chunk = namedtuple("Chunk", "exchange block off length end")


class Exchange:
    """One SCSI command or task management function, from its request to its end."""

    def __init__(self, block_after, level, attribute=None, data_out=b"", unsolicited=0, data_in_len=0, function=None):
        """`block_after` makes the block when AFTER is known; `attribute` is None for a function."""
        self.block_after, self.block, self.level, self.attribute, self.function = block_after, None, level, attribute, function
        self.data_out, self.unsolicited = data_out, unsolicited
        self.data_in, self.data_in_len = bytearray(data_in_len), data_in_len
        self.came, self.acked, self.block_acked = Intervals(), Intervals(), False
        self.tag = self.xid = None
        self.numbers, self.response, self.managed, self.given_up, self.moved = {}, None, None, None, None
        self.over, self.giving_up, self.dropped = False, False, 0

    def first(self):
        return Chunk(self, True, 0, self.unsolicited, self.unsolicited)

    def still_wanted(self, chunk):
        """What of a lost chunk must be said again."""
        if self.over:
            return []
        if chunk.block and not self.block_acked:
            return [chunk]
        return [Chunk(self, False, low, high - low, chunk.end) for low, high in self.acked.missing(chunk.off, chunk.off + chunk.length)]

    def acknowledged(self, chunk):
        self.block_acked |= chunk.block
        self.acked.add(chunk.off, chunk.off + chunk.length)

    def take(self, part):
        """A part of a Reply; what new chunks it asks for. Malformed if it makes no sense (§13.3, §13.4)."""
        if part.flags & frame.DATA:
            self.take_data(part)
            return []
        kind, info, fields, behind = blocks.split_block(part.payload)
        if behind:
            raise frame.Malformed("something behind a Reply's block")
        if kind == blocks.TRANSFER_READY and not info:
            return self.transfer_ready(*blocks.parse_transfer_ready(fields))
        if kind == blocks.RESPONSE:
            self.response = blocks.parse_response(info, fields)
            if self.response.data_in_len > self.data_in_len:
                raise frame.Broken("more Data-In than expected")
            self.moved = self.response.data_in_len
        elif kind == blocks.MANAGED:
            self.managed, self.moved = info, 0
        else:
            raise frame.Malformed(f"Reply of KIND {kind}")
        self.judge()
        return []

    def take_data(self, part):
        end = part.off + len(part.payload)
        if end > self.data_in_len:
            raise frame.Broken("data outside of DATA-IN LEN")
        for low, high in self.came.missing(part.off, end):
            self.data_in[low:high] = part.payload[low - part.off:high - part.off]
        self.came.add(part.off, end)
        if part.flags & frame.GOOD and part.last:
            self.moved = end
            self.response = self.response or blocks.Response(0, end, end, b"")
        self.judge()

    def judge(self):
        """§13.4: over when the response is here, and the data that it speaks of."""
        self.over = self.moved is not None and not self.came.missing(0, self.moved)

    def transfer_ready(self, number, offset, length):
        if offset + length > len(self.data_out):
            raise frame.Broken("TRANSFER READY beyond DATA-OUT LEN")
        if number in self.numbers:
            return []
        self.numbers[number] = (offset, length)
        return [Chunk(self, False, offset, length, offset + length)]

    def abort(self, info):
        """GIVEN UP (§4.6)."""
        self.given_up, self.over = info, True

    @property
    def good(self):
        return self.over and self.response is not None and self.response.status == 0


class ClassOf:
    """One class of exchanges: XIDs in order, slots, XID LIMIT, and AFTER (§13.1, §13.5)."""

    def __init__(self, protected, exchanges):
        self.top = PROTECTED if protected else 0
        self.next, self.limit = 1, exchanges
        self.slots = [None] * exchanges
        self.kept = min(max(exchanges // 4, 1), 8) if exchanges > 1 else 0
        self.latest = self.barrier = 0

    def told(self, limit):
        """Serial numbers; limits never go back."""
        limit &= SERIAL
        if 0 < (limit - self.limit) % (1 << 31) < 1 << 30:
            self.limit = limit

    def place(self, exchange):
        """A free slot if this exchange may begin now, else None. Commands leave slots for functions, and functions that may
        hang with a task leave half of these for the others."""
        if (self.limit - self.next) % (1 << 31) >= 1 << 30:
            return None
        leaves = self.kept if exchange.function is None else self.kept // 2 if exchange.function in MAY_HANG else 0
        free = [tag for tag, held in enumerate(self.slots) if held is None or held.over]
        return free[0] if len(free) > leaves else None

    def name(self, exchange, tag):
        exchange.tag, exchange.xid = tag, self.top | self.next
        exchange.block = exchange.block_after(self.barrier if exchange.attribute == SIMPLE else self.latest)
        self.slots[tag] = exchange
        self.next = self.next % SERIAL + 1
        self.latest = exchange.xid
        if exchange.attribute != SIMPLE:
            self.barrier = exchange.xid

    def find(self, tag, xid):
        held = self.slots[tag] if tag < len(self.slots) else None
        return held if held is not None and held.xid == xid and not held.over else None

    @property
    def under_way(self):
        return [held for held in self.slots if held is not None and not held.over]


def class_of(level):
    return int(level != keys.NONE)
