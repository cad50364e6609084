"""Paths: packet numbers, acknowledgement, credit and loss (§8 to §10)."""

import time

from . import blocks
from .intervals import Intervals

REPLAY_WINDOW, BEYOND = 16384, 2048
WINDOW_FIRST, WINDOW_MIN, WINDOW_MAX = 64, 8, 1024
BATCH_MAX, GAPS_TWICE = 16, 8
PTO_MIN, PTO_LONGEST, DOWN_PROBE_S = 0.0005, 0.064, 1.0
MTU_FIRST, MTU_TABLE = 1500, (65535, 16110, 9216, 9000, 8192, 4470, 4074, 3498, 2304, 1998)
MTU_TRIES = 3
ORDER_THRESHOLD, PATIENCE = 3, (1.125, 1.25, 1.5, 2.0)
FULL_FRAMES = 64
OPEN, SEALED = 0, 1


class Sent:
    """A frame under way."""

    __slots__ = ("count", "at", "size", "carries", "elicits", "generation", "given_up")

    def __init__(self, count, at, size, carries, elicits, generation):
        self.count, self.at, self.size, self.carries = count, at, size, carries
        self.elicits, self.generation, self.given_up = elicits, generation, False


class Outgoing:
    """The sending half of a space (§8.1, §9.2)."""

    def __init__(self, limit, random):
        self.next, self.limit, self.random = 1, limit, random
        self.under_way, self.largest_acked = {}, 0
        self.skip_at, self.skipped = random.randrange(4096, 8192), set()

    def take(self):
        """The next count; one in 4096 to 8192 is left out (§8.1)."""
        if self.next == self.skip_at:
            self.skipped.add(self.next)
            self.skip_at += self.random.randrange(4096, 8192)
            self.next += 1
        self.next += 1
        return self.next - 1

    @property
    def credit(self):
        return self.next <= self.limit

    def never_used(self, ranges):
        return any(high >= self.next or any(low <= count <= high for count in self.skipped) for low, high in ranges)


class Incoming:
    """The receiving half of a space: what came, what is to be acknowledged, and how far the other end may go (§7.5, §9)."""

    def __init__(self, initial):
        self.came, self.largest, self.largest_at = Intervals(), 0, 0.0
        self.window, self.told = WINDOW_FIRST, initial
        self.marked, self.marked_at = 0, time.monotonic()
        self.batch, self.pending, self.due = 2, 0, None
        self.came.forget_below(1)

    def too_large(self, count):
        return count > self.told + BEYOND

    def known(self, count):
        return count in self.came

    def take(self, count, now, elicits, at_once, delay):
        """A frame whose trailer was right."""
        gap = count != self.largest + 1
        self.came.add(count, count + 1)
        if count > self.largest:
            self.largest, self.largest_at = count, now
            self.came.forget_below(count - REPLAY_WINDOW + 1)
        if elicits:
            self.pending += 1
            urgent = gap or at_once or self.pending >= self.batch
            self.due = now if urgent else min(self.due or now + delay, now + delay)
        if self.told - self.largest <= self.window // 2:
            self.due = now

    def ack(self, kind, path, now, rtt, most=blocks.RANGES_MAX + 1):
        """The Ack block (§4.4); with it everything so far counts as acknowledged."""
        self.adapt(now, rtt)
        self.told = max(self.told, self.largest + self.window)
        ranges = self.came.newest(most, max(1, self.largest - REPLAY_WINDOW + 1))
        self.batch = 2 if len(ranges) > 1 else min(self.batch * 2, BATCH_MAX)
        self.pending, self.due = 0, None
        delay = int((now - self.largest_at) * 1e6) if self.largest else 0
        return blocks.ack(kind, path << 56 | self.largest, min(delay, 0xFFFFFFFF), ranges, path << 56 | self.told)

    def adapt(self, now, rtt):
        """§9.2: twice the window for who uses half of it within two round trips, half for who took more than 5 s."""
        if self.largest - self.marked < self.window // 2:
            return
        took = now - self.marked_at
        if took <= 2 * rtt:
            self.window = min(self.window * 2, WINDOW_MAX)
        elif took > 5:
            self.window = max(self.window // 2, WINDOW_MIN)
        self.marked, self.marked_at = self.largest, now

    @property
    def gaps(self):
        return len(self.came.lows) - 1


class Path:
    """A port here and a port there."""

    def __init__(self, number, link, address, told, initial, random, now):
        self.number, self.link, self.address = number, link, address
        self.out = [Outgoing(told.frames_initial, random), Outgoing(told.frames_initial, random)]
        self.into = [Incoming(initial), Incoming(initial)]
        self.peer_delay, self.frame_max = told.ack_delay_max / 1e6, told.frame_max
        self.rtt, self.variance, self.latest, self.shortest = 0.001, 0.0005, 0.001, None
        self.mtu, self.mtu_probe, self.mtu_tries, self.mtu_at = MTU_FIRST, None, 0, now
        self.heard_at = self.acked_at = self.pinged_at = now
        self.timeouts, self.in_flight, self.up = 0, 0, True
        self.reorders, self.mistake_at = 0, 0.0
        self.lost = self.given_up_wrongly = 0
        self.challenge, self.echo = None, None

    @property
    def pto(self):
        """§10.2."""
        return max(self.rtt + max(4 * self.variance, 0.0001) + self.peer_delay, PTO_MIN)

    def timeout_at(self):
        longest = max(PTO_LONGEST, self.pto) if self.up or self.challenge else DOWN_PROBE_S
        return self.acked_at + min(self.pto * 2**min(self.timeouts, 20), longest)

    @property
    def answers(self):
        """§8.3: up, and not after two probe timeouts in a row."""
        return self.up and self.timeouts < 2

    def abandon(self):
        """Gives up everything under way; what that carried."""
        carried = []
        for sent in [sent for out in self.out for sent in out.under_way.values() if sent.elicits and not sent.given_up]:
            self.uncount(sent)
            sent.given_up = True
            carried += sent.carries
        return carried

    @property
    def room(self):
        """Whether the window lets another frame go. It is fixed here: §11 is for links that fill."""
        return self.in_flight < FULL_FRAMES * self.mtu

    def sample(self, sent, delay, now):
        """§10.1: RFC 6298 with gains 1/8 and 1/4."""
        whole = now - sent.at
        self.shortest = min(whole, self.shortest or whole)
        self.latest = max(whole - min(delay, self.peer_delay), self.shortest)
        self.variance += (abs(self.rtt - self.latest) - self.variance) / 4
        self.rtt += (self.latest - self.rtt) / 8

    def sent(self, space, sent):
        self.out[space].under_way[sent.count] = sent
        if sent.elicits:
            if not self.in_flight:
                self.acked_at = sent.at
            self.in_flight += sent.size

    def remove(self, space, sent):
        del self.out[space].under_way[sent.count]
        self.uncount(sent)

    def uncount(self, sent):
        if sent.elicits and not sent.given_up:
            self.in_flight -= sent.size

    def acknowledge(self, space, ack, now):
        """What an Ack newly acknowledges, as Sent; what it says of credit is taken."""
        out, newly = self.out[space], []
        out.limit = max(out.limit, ack.pn_limit & (1 << 56) - 1)
        for low, high in ack.ranges:
            span = high - low + 1
            counts = [c for c in out.under_way if low <= c <= high] if span > len(out.under_way) else range(low, high + 1)
            newly += [out.under_way[count] for count in counts if count in out.under_way]
        for sent in newly:
            self.remove(space, sent)
            if sent.given_up:
                self.mistake(now)
        if newly:
            largest = max(newly, key=lambda sent: sent.count)
            if largest.count > out.largest_acked and largest.elicits:
                self.sample(largest, ack.delay / 1e6, now)
            out.largest_acked = max(out.largest_acked, largest.count)
            self.acked_at, self.timeouts = now, 0
        return newly

    def mistake(self, now):
        """§10.1: the path reorders; patience grows, once per round trip at most."""
        self.given_up_wrongly += 1
        if now - self.mistake_at > self.rtt:
            self.reorders, self.mistake_at = min(self.reorders + 1, len(PATIENCE)), now

    def detect(self, space, now, newest_sent_at):
        """§10.1: what of this space is lost now. `newest_sent_at` is when the latest acknowledged frame of the other space was sent."""
        if self.reorders and now - self.mistake_at > 16 * self.rtt:
            self.reorders = 0
        out, lost = self.out[space], []
        patience = PATIENCE[max(self.reorders - 1, 0)] * max(self.rtt, self.latest)
        for sent in list(out.under_way.values()):
            if sent.given_up:
                if now - sent.at > 2.0:
                    del out.under_way[sent.count]
                continue
            later = out.largest_acked > sent.count
            by_order = not self.reorders and out.largest_acked >= sent.count + ORDER_THRESHOLD
            by_other = newest_sent_at is not None and newest_sent_at - sent.at >= self.pto
            if by_other or (later and (by_order or now - sent.at > patience)):
                self.uncount(sent)
                sent.given_up = True
                lost.append(sent)
        return lost

    def loss_due(self):
        """When patience with the oldest frame before an acknowledged one ends."""
        patience = PATIENCE[max(self.reorders - 1, 0)] * max(self.rtt, self.latest)
        times = [sent.at for out in self.out for sent in out.under_way.values()
                 if sent.elicits and not sent.given_up and sent.count < out.largest_acked]
        return min(times) + patience + 0.0001 if times else None
