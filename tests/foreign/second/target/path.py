"""Paths: packet numbers, acknowledgement, credit, loss and congestion (§8 to §12)."""

import random
import struct
import time

from .blocks import block
from .frames import COUNT_MASK, Drop

REPLAY, BEYOND, RANGES = 16384, 2048, 32
WINDOW_FIRST, WINDOW_LEAST, WINDOW_MOST = 64, 8, 1024
PTO_LEAST, PTO_MOST = 0.0005, 0.064
MTU_TABLE = (65535, 16110, 9216, 9000, 8192, 4470, 4074, 3498, 2304, 1998)
ACK_FIELDS = struct.Struct(">QIIQII")
PATIENCE = (1 + 1 / 8, 1 + 1 / 4, 1 + 1 / 2, 2)
CWND_MOST = 512 * 1024


class Receiver:
    """One space of a path, as its receiver has it (§7.5, §9)."""

    def __init__(self, initial=WINDOW_FIRST):
        self.ranges, self.largest, self.came = [], 0, 0.0
        self.window, self.limit, self.told_at = min(WINDOW_FIRST, initial), initial, time.monotonic()
        self.waiting = 0
        self.told_largest = 0

    def check(self, count, excused):
        """§3.4: neither too large nor known to have come."""
        if count == 0 or count > self.limit + BEYOND and not (excused and count < 1 << 55):
            raise Drop("beyond credit")
        if count <= self.largest - REPLAY or any(low <= count <= high for low, high in self.near(count)):
            raise Drop("came before")

    def near(self, count):
        """The ranges from the newest down to the one that `count` is in or behind."""
        for each in reversed(self.ranges):
            yield each
            if each[0] <= count:
                return

    def take(self, count, elicits, now):
        """A frame was found good."""
        if count > self.largest:
            self.largest, self.came = count, now
        self.insert(count)
        self.waiting += elicits

    def insert(self, count):
        ranges, at = self.ranges, len(self.ranges)
        while at and ranges[at - 1][0] > count:
            at -= 1
        if at and ranges[at - 1][1] == count - 1:
            ranges[at - 1][1] = count
            if at < len(ranges) and ranges[at][0] == count + 1:
                ranges[at - 1][1] = ranges.pop(at)[1]
        elif at < len(ranges) and ranges[at][0] == count + 1:
            ranges[at][0] = count
        else:
            ranges.insert(at, [count, count])
        while ranges[0][1] <= self.largest - REPLAY:
            ranges.pop(0)

    def credit_low(self):
        """§9.2: half of the credit that the sender knows of is used."""
        return self.limit - self.largest <= self.window // 2

    def grow(self, now, rtt):
        """§9.2: the window of a sender that uses half of it in two round trips doubles."""
        if self.largest - self.told_largest < self.window // 2:
            return
        took = now - self.told_at
        if took < 2 * rtt:
            self.window = min(2 * self.window, WINDOW_MOST)
        elif took > 5:
            self.window = max(self.window // 2, WINDOW_LEAST)
        self.told_at, self.told_largest = now, self.largest

    def ack(self, sealed, path, xid_limit, now, rtt, most=WINDOW_MOST):
        """An Ack block (§4.4). `most` is this space's share of the port (§9.2)."""
        self.waiting = 0
        self.grow(now, rtt)
        self.window = min(self.window, most)
        self.limit = max(self.limit, self.largest + self.window)
        top = path << 56
        newest = self.ranges[-1] if self.ranges else [1, 0]
        further, above = b"", newest
        for low, high in self.ranges[-2:-2 - RANGES:-1]:
            further += struct.pack(">II", above[0] - high - 1, high - low + 1)
            above = (low, high)
        delay = min(int((now - self.came) * 1e6), 0xFFFFFFFF) if self.largest else 0
        fields = ACK_FIELDS.pack(top | self.largest, delay, newest[1] - newest[0] + 1, top | self.limit, xid_limit, 0)
        return block(2 if sealed else 1, len(further) // 8, fields, further)


class Sent:
    """A frame under way that elicits."""

    __slots__ = ("time", "size", "pieces", "generation", "probe")

    def __init__(self, now, size, pieces, generation, probe):
        self.time, self.size, self.pieces, self.generation, self.probe = now, size, pieces, generation, probe


class Sender:
    """One space of a path, as its sender has it (§8.1, §9.2, §10.1)."""

    def __init__(self, limit):
        self.next, self.limit, self.largest = 1, limit, 0
        self.under_way, self.given_up, self.skipped = {}, {}, set()
        self.skip_at = random.randint(4096, 8192)

    def count(self):
        """The next count; now and then one is left out (§8.1)."""
        if self.next >= self.skip_at:
            self.skipped.add(self.next)
            self.next += 1
            self.skip_at = self.next + random.randint(4096, 8192)
        self.next += 1
        return self.next - 1

    def room(self):
        return self.next <= self.limit

    def acknowledged(self, ranges):
        """The frames that an Ack says to have come, and those given up before; Drop if it cannot be."""
        if any(low < 1 or high >= self.next for low, high in ranges) or any(
                low <= count <= high for low, high in ranges for count in self.skipped):
            raise Drop("ack of what was not sent")
        came, mistakes = {}, 0
        for low, high in ranges:
            for store in (self.under_way, self.given_up):
                oldest = next(iter(store), high + 1)
                for count in range(max(low, oldest), high + 1):
                    if count in store:
                        came[count] = store.pop(count)
                        mistakes += store is self.given_up
        return came, mistakes


def read_ack(fixed, info, further):
    """(path, ranges from the largest down, DELAY in s, PN LIMIT, XID LIMIT) of an Ack block."""
    largest, delay, first, limit, xid_limit, _ = ACK_FIELDS.unpack(fixed)
    path, high = largest >> 56, largest & COUNT_MASK
    if info > RANGES or len(further) < 8 * info or first > high or limit >> 56 != path or (first == 0) != (high == 0):
        raise Drop("ack")
    ranges = [(high - first + 1, high)] if first else []
    low = high - first + 1
    for gap, count in struct.iter_unpack(">II", further[:8 * info]):
        high = low - gap - 1
        low = high - count + 1
        if not gap or not count or low < 1:
            raise Drop("ack")
        ranges.append((low, high))
    return path, ranges, delay / 1e6, limit & COUNT_MASK, xid_limit


class Path:
    """One path of a session, at the target."""

    def __init__(self, number, port, address, initial, own_initial, peer_frame_max, peer_delay, now):
        self.number, self.port, self.address = number, port, address
        self.receivers = {0: Receiver(own_initial), 1: Receiver(own_initial)}
        self.senders = {0: Sender(initial), 1: Sender(initial)}
        self.peer_delay, self.peer_frame_max = peer_delay, peer_frame_max
        self.rtt, self.variance, self.shortest, self.latest, self.measured = 0.001, 0.0005, None, 0.001, False
        self.heard, self.progress, self.probes = now, now, 0
        self.cwnd_frames, self.in_flight = 32, 0
        self.reorders, self.mistakes, self.mistake_at = False, 0, 0.0
        self.outcomes = []
        self.mtu, self.search_at, self.tries = 1500, now, 0
        self.ladder = self.sizes()
        self.large_lost = 0
        self.challenge, self.usable, self.left = None, number == 0, None
        self.pinged, self.blocked_since = 0.0, None

    def sizes(self):
        """What the MTU search asks for, one by one (§12)."""
        most = min(self.port.mtu, self.peer_frame_max)
        return [size for size in [most] + [each for each in MTU_TABLE if each < most] if size > 1500]

    def pto(self):
        """§10.2."""
        return max(self.rtt + max(4 * self.variance, 0.0001) + self.peer_delay, PTO_LEAST)

    def sample(self, trip, delay):
        """§10.1, RFC 6298."""
        self.shortest = trip if self.shortest is None else min(self.shortest, trip)
        trip = max(trip - min(delay, self.peer_delay), self.shortest)
        self.latest = trip
        if not self.measured:
            self.rtt, self.variance, self.measured = trip, trip / 2, True
            return
        self.variance += (abs(self.rtt - trip) - self.variance) / 4
        self.rtt += (trip - self.rtt) / 8

    def window(self):
        """Bytes that may be under way."""
        return min(self.cwnd_frames * self.mtu, max(CWND_MOST, 32 * self.mtu))

    def roomy(self, sealed):
        return self.usable and self.left is None and self.senders[sealed].room() and self.in_flight < self.window()

    def answers(self):
        """§8.3: a path does not after two probe timeouts in a row."""
        return self.probes < 2

    def outcome(self, came, lost):
        """§11, much shortened: a window of frames that shrinks beyond 13 % of loss, and grows else."""
        self.outcomes += [0] * came + [1] * lost
        if len(self.outcomes) < 64:
            return
        share = sum(self.outcomes) / len(self.outcomes)
        self.outcomes = []
        self.cwnd_frames = max(4, int(self.cwnd_frames * 0.85)) if share > 0.13 else min(self.cwnd_frames + 16, 1024)

    def patience(self):
        """How long a frame may be unacknowledged behind one that was (§10.1)."""
        return max(self.rtt, self.latest) * (PATIENCE[min(self.mistakes, 3)] if self.reorders else 9 / 8)

    def mistaken(self, now):
        """A frame given up was acknowledged after all."""
        if now - self.mistake_at > self.rtt:
            self.mistakes += self.reorders
            self.reorders, self.mistake_at = True, now

    def lost(self, now, window):
        """The frames of both spaces that are lost by now; with REPAIR window, all behind the first of a space too (§10.3)."""
        if self.reorders and now - self.mistake_at > 16 * self.rtt:
            self.reorders, self.mistakes = False, 0
        found = []
        for sender in self.senders.values():
            counts = [count for count, sent in sender.under_way.items() if self.is_lost(sender, count, sent, now)]
            if counts and window:
                counts = [count for count in sender.under_way if count >= counts[0]]
            found += [self.give_up(sender, count) for count in counts]
        return found

    def is_lost(self, sender, count, sent, now):
        """§10.1: a later one was acknowledged, and by count or by time it is too late."""
        if count > sender.largest:
            return False
        return not self.reorders and sender.largest >= count + 3 or now - sent.time > self.patience()

    def give_up(self, sender, count):
        sent = sender.under_way.pop(count)
        sender.given_up[count] = sent
        while len(sender.given_up) > 512:
            del sender.given_up[next(iter(sender.given_up))]
        self.in_flight -= sent.size
        return sent

    def busy(self):
        return any(sender.under_way for sender in self.senders.values())

    def probe_due(self, now):
        """Whether a probe timeout is over (§10.2); each in a row is twice as long."""
        if not self.busy() and self.blocked_since is None:
            return False
        pto = self.pto()
        wait = min(pto * 2 ** min(self.probes, 10), max(PTO_MOST, pto))
        newest = max([sent.time for sender in self.senders.values() for sent in list(sender.under_way.values())[-1:]], default=0)
        return now - max(self.progress, newest, self.blocked_since or 0) >= wait
