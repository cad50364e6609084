"""Exchanges at the target: names and slots, exactly once, data, responses, giving up (§13)."""

import struct
import time

from . import tasks
from .blocks import block
from .disk import CHECK_CONDITION, GOOD, NOT_AUTHORIZED, Failure
from .frames import ABORT, DATA, REPLY, Drop, Nonsense
from .frames import GOOD as GOOD_FLAG

COMMAND, MANAGE = 1, 2
TRANSFER_READY, RESPONSE = 1, 2
ORDERED, HEAD_OF_QUEUE = 2, 3
TURN = 2**31 - 1
EXCHANGE_WINDOW = 4096
READY_AT_ONCE = 4
UNBORN_LIFE = 60
REQUEST_FIELDS = struct.Struct(">I8sIIIHH")


def ahead(one, other):
    """How far an XID is behind another in the sequence 1 … 2^31 − 1, 1 …; negative if it is before (§13.1)."""
    distance = (one - other) % TURN
    return distance - TURN if distance > TURN // 2 else distance


def later(xid, distance):
    return (xid - 1 + distance) % TURN + 1


class Piece:
    """A message to send, or what is left or cut of one: a block, or data. Acknowledged once, wherever it was sent."""

    __slots__ = ("command", "place", "xid", "off", "flags", "last", "body", "level", "exchange", "acked", "flights", "children")

    def __init__(self, command, place, xid, off, flags, last, body, level, exchange):
        self.command, self.place, self.xid, self.off, self.flags, self.last = command, place, xid, off, flags, last
        self.body, self.level, self.exchange = body, level, exchange
        self.acked, self.flights, self.children = False, 0, None

    def cut(self, room):
        """Two pieces in place of this one, the first with `room` bytes; data alone is cut (§10.3)."""
        first = Piece(self.command, self.place, self.xid, self.off, self.flags & ~GOOD_FLAG, 0, self.body[:room], self.level,
                      self.exchange)
        second = Piece(self.command, self.place, self.xid, self.off + room, self.flags, self.last, self.body[room:], self.level,
                       self.exchange)
        self.children = (first, second)
        self.exchange.pending += 1
        return self.children

    def done(self):
        """Its bytes came."""
        if self.children:
            for child in self.children:
                child.done()
        elif not self.acked:
            self.acked = True
            if self.exchange:
                self.exchange.acknowledged()


class Exchange:
    """One exchange, in its slot."""

    def __init__(self, owner, tag, xid, level):
        self.owner, self.tag, self.xid, self.level = owner, tag, xid, level
        self.since = time.monotonic()
        self.born = self.delivered = self.answered = self.over = False
        self.early, self.pending = [], 0

    def request(self, kind, info, fixed):
        """The Request block: the exchange is born."""
        self.born, self.kind, self.info = True, kind, info
        if kind == MANAGE:
            self.after, self.lun, self.referenced = struct.unpack(">I8sI", fixed)
            return
        self.after, self.lun, self.in_len, self.out_len, self.unsolicited, _, _ = REQUEST_FIELDS.unpack(fixed[:28])
        self.cdb = fixed[28:]

    def begin(self, unit):
        """Handed up to the task set."""
        self.unit = unit
        self.wanted = min(unit.wants(self.cdb), self.out_len)
        self.buffer, self.got, self.number = bytearray(self.out_len if self.out_len < 1 << 26 else 0), [], 0
        self.open_until = self.unsolicited
        for off, body in self.early:
            self.data(off, body)
        self.early = []

    def data(self, off, body):
        """§13.3: within what came unasked or was asked for; what came already stays."""
        if off + len(body) > self.open_until:
            raise Drop("data not asked for")
        at, fresh = off, []
        for low, high in self.got + [(off + len(body), off + len(body))]:
            if low > at:
                fresh.append((at, min(low, off + len(body))))
            at = max(at, high)
        for low, high in fresh:
            if low < high:
                self.buffer[low:high] = body[low - off:high - off]
        self.got = merge(self.got + [(off, off + len(body))] if body else self.got)

    def have(self):
        """How many bytes from the first on came."""
        return self.got[0][1] if self.got and self.got[0][0] == 0 else 0

    def ask(self, burst):
        """TRANSFER READY for what is still wanted (§13.3)."""
        while self.open_until < self.wanted and self.open_until - self.have() < READY_AT_ONCE * burst:
            length = min(burst, self.wanted - self.open_until)
            self.say(block(TRANSFER_READY, 0, struct.pack(">III", self.number, self.open_until, length)))
            self.number, self.open_until = self.number + 1, self.open_until + length

    def complete(self):
        return self.have() >= self.wanted

    def queue(self, command, off, flags, body, level=None):
        self.pending += 1
        self.owner.session.queue(Piece(command, self.tag, self.wire_xid(), off, flags, 1, body, self.level if level is None else level,
                                       self))

    def say(self, body, command=REPLY, level=None):
        self.queue(command, 0, 0, body, level)

    def wire_xid(self):
        return self.xid | self.owner.top

    def run(self):
        """The device carries the command out, once."""
        try:
            if self.out_len < self.unit.wants(self.cdb):
                raise Failure(0x2400)
            found = self.unit.execute(self.cdb, self.buffer[:self.wanted])
        except Failure as failure:
            return self.respond(CHECK_CONDITION, 0, 0, failure.sense)
        moved = min(len(found), self.in_len)
        if moved and moved == len(found):
            self.answered = True
            return self.queue(REPLY, 0, DATA | GOOD_FLAG, memoryview(found))
        if moved:
            self.queue(REPLY, 0, DATA, memoryview(found)[:moved])
        self.respond(GOOD, moved, len(found) or self.wanted, b"")

    def respond(self, status, moved, transferable, sense, level=None):
        self.answered = True
        self.say(block(RESPONSE, status, struct.pack(">IQHH", moved, transferable, len(sense), 0) + sense), level=level)

    def give_up(self, why):
        """GIVEN UP (§4.6); the target's last word."""
        self.answered = True
        self.say(block(2, why), ABORT, max(self.level, self.owner.session.least_protected))

    def acknowledged(self):
        self.pending -= 1
        if self.answered and not self.pending:
            self.owner.free(self)


def merge(ranges):
    merged = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return merged


class Class:
    """One of the two classes of exchanges of a session (§13.1)."""

    def __init__(self, session, sealed):
        self.session, self.sealed, self.top = session, sealed, sealed << 31
        self.through, self.beyond = 0, set()
        self.slots, self.waiting, self.tasks = {}, [], []
        self.limit_from = session.choice["exchanges"]

    def limit(self):
        """XID LIMIT, never going back."""
        return later(self.through, self.limit_from) | self.top if self.through else self.limit_from | self.top

    def new(self, xid):
        """§13.6: neither delivered nor beyond the window."""
        distance = ahead(xid, self.through) if self.through else xid
        return 0 < distance <= EXCHANGE_WINDOW and xid not in self.beyond

    def deliver(self, xid):
        self.beyond.add(xid)
        while later(self.through, 1) in self.beyond:
            self.through = later(self.through, 1)
            self.beyond.remove(self.through)

    def free(self, exchange):
        if self.slots.get(exchange.tag) is exchange:
            del self.slots[exchange.tag]

    def slot(self, part, level):
        """The exchange that a part is of; a new one if there is none (§13.1, §13.2)."""
        xid = part.xid & TURN
        if part.xid >> 31 != self.sealed or xid == 0:
            raise Drop("exchange")
        held = self.slots.get(part.tag)
        if held and held.xid == xid:
            return held
        if not self.new(xid):
            raise Drop("exchange is over")
        if part.tag >= self.session.choice["exchanges"]:
            raise Nonsense("tag")
        if held and (ahead(xid, held.xid) < 0 or not held.answered and held.born):
            raise Nonsense("slot in use")
        if held:
            held.over = True
        self.slots[part.tag] = exchange = Exchange(self, part.tag, xid, level)
        return exchange

    def request(self, part, level):
        """A part of a Request frame. What begins nothing is answered, and counts as delivered (§13.2)."""
        try:
            self.take(self.slot(part, level), part, level)
        except Nonsense:
            if not part.flags & DATA:
                self.refuse(part, level)
            raise

    def refuse(self, part, level):
        held = self.slots.get(part.tag)
        if held and held.xid == part.xid & TURN:
            if held.born:
                return
            self.free(held)
        self.deliver(part.xid & TURN)
        level = max(level, self.session.least_protected)
        self.session.queue(Piece(ABORT, part.tag, part.xid, 0, 0, 1, block(2, 3), level, None))
        self.turn()

    def take(self, exchange, part, level):
        if exchange.born and level < exchange.level:
            raise Drop("level")
        if part.flags & DATA:
            return self.data(exchange, part.off, part.body)
        kind, info, fixed, rest = read_request(part.body)
        if not exchange.born:
            self.check_after(exchange, struct.unpack_from(">I", fixed)[0])
            exchange.level = level
            exchange.request(kind, info, fixed)
            self.waiting.append(exchange)
            if kind == COMMAND and (exchange.unsolicited > exchange.out_len
                                    or exchange.unsolicited > self.session.choice["first_burst"]):
                self.waiting.remove(exchange)
                self.deliver(exchange.xid)
                return exchange.give_up(3)
        else:
            self.session.target.counts["request again"] += 1
        if rest and kind == COMMAND:
            self.data(exchange, 0, rest)
        self.turn()

    def check_after(self, exchange, after):
        """§13.5: nothing, or an earlier exchange of the class."""
        if after and (after >> 31 != self.sealed or not after & TURN or ahead(after & TURN, exchange.xid) >= 0):
            raise Nonsense("after")

    def data(self, exchange, off, body):
        if exchange.answered:
            raise Drop("exchange is over")
        if exchange.delivered and exchange.kind == COMMAND:
            exchange.data(off, body)
            return self.turn()
        if off + len(body) > self.session.choice["first_burst"]:
            raise Drop("data not asked for")
        exchange.early.append((off, bytes(body)))

    def turn(self):
        """Hands up what may be, asks for data, and carries out what is complete and whose turn it is (§13.5)."""
        again = True
        while again:
            again = False
            for exchange in [each for each in self.waiting if self.reached(each.after)]:
                self.waiting.remove(exchange)
                self.deliver(exchange.xid)
                self.hand_up(exchange)
                again = True
        self.run_ready()

    def reached(self, after):
        after &= TURN
        return not after or self.through and ahead(after, self.through) <= 0

    def hand_up(self, exchange):
        exchange.delivered = True
        session = self.session
        if exchange.kind == MANAGE:
            return tasks.manage(session, self, exchange)
        unit = session.group.unit(exchange.lun)
        if exchange.level < unit.least_level:
            return exchange.respond(CHECK_CONDITION, 0, 0, Failure(NOT_AUTHORIZED).sense, max(exchange.level, session.least_protected))
        session.target.ran(exchange)
        try:
            unit.check(exchange.cdb)
            exchange.begin(unit)
        except Failure as failure:
            return exchange.respond(CHECK_CONDITION, 0, 0, failure.sense)
        self.tasks.append(exchange)

    def run_ready(self):
        for exchange in list(self.tasks):
            exchange.ask(self.session.choice["burst_max"])
            if exchange.complete() and self.may_run(exchange):
                self.tasks.remove(exchange)
                exchange.run()

    def may_run(self, exchange):
        """Task attributes (SAM-5 §8): ORDERED waits for all before it, and those behind it wait for it."""
        attribute = exchange.info & 15
        before = self.tasks[:self.tasks.index(exchange)]
        if attribute == HEAD_OF_QUEUE:
            return True
        return not before if attribute == ORDERED else not any(each.info & 15 == ORDERED for each in before)

    def give_up(self, part, level):
        """GIVE UP (§13.8)."""
        exchange = self.slot(part, level)
        if exchange.answered:
            return
        if not exchange.delivered:
            if exchange in self.waiting:
                self.waiting.remove(exchange)
            exchange.born = True
            self.deliver(exchange.xid)
            exchange.give_up(0)
        else:
            self.abort(exchange)
        self.turn()

    def abort(self, exchange):
        self.tasks.remove(exchange)
        exchange.give_up(1)

    def expire(self, now):
        """Data of which no Request came for 60 s (§13.2)."""
        for exchange in [each for each in self.slots.values() if not each.born and now - each.since > UNBORN_LIFE]:
            self.free(exchange)


def read_request(body):
    """(KIND, INFO, fixed fields with the CDB, data behind) of a Request block."""
    if len(body) < 4:
        raise Nonsense("request")
    kind, info, length = struct.unpack_from(">BBH", body)
    least = {COMMAND: 33, MANAGE: 20}.get(kind)
    if least is None or not least <= length <= len(body):
        raise Nonsense("request")
    if kind == MANAGE:
        if len(body) > length:
            raise Nonsense("request")
        return kind, info, body[4:20], b""
    cdb_len, reserved = struct.unpack_from(">HH", body, 28)
    if not 1 <= cdb_len <= 260 or reserved or 32 + cdb_len > length or not 1 <= info & 15 <= 4:
        raise Nonsense("request")
    rest = body[length:]
    if len(rest) > struct.unpack_from(">I", body, 24)[0]:
        raise Nonsense("request")
    return kind, info, body[4:32 + cdb_len], rest
