"""A session: paths, exchanges, timers, and its end (§6.6, §8 to §14)."""

import random
import secrets
import struct
import time
from collections import Counter, deque

from withheld import Limit

from . import blocks, frame, keys, packer
from .exchange import ClassOf, Exchange, SIMPLE, class_of
from .hearing import Hearing
from .link import wait
from .path import GAPS_TWICE, MTU_TABLE, MTU_TRIES, OPEN, SEALED, Path, Sent

TICK_S = 0.05
UNKNOWN_S = 0.2
PROBE_MAX = 1500


class Lost(Exception):
    """The session is over; why."""


class Session(Hearing):
    def __init__(self, link, accepted, seed=0, frames_max=2**22):
        self.here, self.there, self.keyed = accepted.here, accepted.there, bool(accepted.session_key)
        self.offered, self.chosen, self.token = accepted.offered, accepted.chosen, accepted.token
        self.random, self.counters = random.Random(seed), Counter()
        if self.keyed:
            make = lambda direction: keys.Generation.first(accepted.session_key, accepted.transcript, direction)
            self.sender, self.receiver = keys.Sender(make(keys.TO_TARGET), frames_max), keys.Receiver(make(keys.TO_INITIATOR))
        else:
            self.sender = self.receiver = None
        self.level = packer.level_of_session(self.keyed, self.chosen.levels)
        self.classes = [ClassOf(False, self.chosen.exchanges), ClassOf(True, self.chosen.exchanges)]
        self.functions, self.waiting, self.queue, self.controls = deque(), deque(), deque(), deque()
        self.paths, self.ended, self.unknown_at = {}, None, None
        self.goodbye_done = False
        first = self.add(0, link, accepted.peer)
        first.mtu_probe = min(link.mtu, first.frame_max)

    # What its owner says.

    def add(self, number, link, address):
        now = time.monotonic()
        path = Path(number, link, address, self.chosen, self.offered.frames_initial, self.random, now)
        self.paths[number] = path
        return path

    def add_path(self, number, link, address):
        """§8.2: a PATH with a challenge, until it is echoed."""
        path = self.add(number, link, address)
        path.challenge, path.up = secrets.token_bytes(8), False
        self.say_path(path)
        return path

    def command(self, lun, cdb, data_out=b"", data_in_len=0, attribute=SIMPLE, level=None, unsolicited=None):
        """Begins a command, at once or when there is a slot."""
        most = min(len(data_out), self.chosen.first_burst)
        unasked = most if unsolicited is None else min(unsolicited, most)
        block = lambda after: blocks.command(lun, cdb, data_in_len, len(data_out), unasked, after, attribute)
        exchange = Exchange(block, self.level_for(level), attribute, data_out, unasked, data_in_len)
        self.waiting.append(exchange)
        return exchange

    def manage(self, function, lun, referenced=None, level=None):
        """Begins a task management function (§13.7): before the commands that wait for a slot (§13.1)."""
        named = referenced.xid if referenced else 0
        exchange = Exchange(lambda after: blocks.manage(function, lun, after, named), self.level_for(level), function=function)
        self.functions.append(exchange)
        return exchange

    def level_for(self, wanted):
        lowest = next(level for level in range(3) if self.chosen.levels & 1 << level)
        return lowest if wanted is None else max(wanted, lowest)

    def give_up(self, exchange, why=0):
        """§13.8."""
        exchange.giving_up = True
        self.control(frame.ABORT, blocks.block(blocks.GIVE_UP, why), exchange)

    def control(self, cmd, payload, exchange=None, path=None):
        self.controls.append((cmd, payload, exchange, path))

    def run(self, done, seconds):
        """Works until `done()`, or raises Lost, or TimeoutError."""
        limit = Limit(seconds)
        while not done():
            if self.ended:
                raise Lost(self.ended)
            if limit.over():
                raise TimeoutError(f"not done within {seconds} s")
            self.turn(limit.end)

    def turn(self, deadline):
        """Everything that is to be done now, and a wait for more."""
        now = time.monotonic()
        for path in list(self.paths.values()):
            self.time(path, now)
        self.pump(now)
        self.flush(now)
        wait([path.link for path in self.paths.values()], min(deadline, self.next_time(now)))
        links = {path.link: None for path in self.paths.values()}
        for link in links:
            for _ in range(64):
                came = link.receive()
                if came is None:
                    break
                self.hear(link, *came, time.monotonic())

    def goodbye(self, seconds=2.0):
        """§4.7, §14: GOODBYE until DONE."""
        limit, again = Limit(seconds), 0.0
        while not self.goodbye_done and not limit.over() and not self.ended:
            if time.monotonic() >= again:
                self.control(frame.DISCONNECT, blocks.block(blocks.GOODBYE, 0))
                again = time.monotonic() + 0.05
            self.turn(min(limit.end, again))
        self.flush(time.monotonic() + self.offered.ack_delay_max / 1e6)
        return self.goodbye_done

    def farewell(self, seconds=1.0):
        """§14: who was told GOODBYE answers it again for a while, and acknowledges it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.turn(end)

    def break_off(self, why):
        """§14: the other end broke a rule: GOODBYE 3."""
        self.control(frame.DISCONNECT, blocks.block(blocks.GOODBYE, 3))
        self.pump(time.monotonic())
        self.ended = why

    # What goes.

    def pump(self, now):
        """Sends what waits, as far as credit and window go."""
        if self.sender:
            self.sender.update(now)
            if self.sender.exhausted:
                self.ended = "keys used up"
                return
        while self.controls:
            cmd, payload, exchange, path = self.controls.popleft()
            self.send_control(cmd, payload, exchange, path or self.best() or next(iter(self.paths.values())), now)
        self.begin()
        while self.queue:
            level = self.queue[0].exchange.level
            path = self.best(class_of(level))
            if path is None:
                return
            self.send_chunks(path, self.queue, level, now)

    def begin(self):
        """Names exchanges that wait, functions first, each kind in its order (§13.1)."""
        for waiting in (self.functions, self.waiting):
            while waiting:
                exchange = waiting[0]
                names = self.classes[class_of(exchange.level)]
                tag = names.place(exchange)
                if tag is None:
                    break
                names.name(waiting.popleft(), tag)
                self.queue.append(exchange.first())

    def best(self, space=None):
        """§8.3."""
        able = [path for path in self.paths.values() if path.up and (space is None or (path.room and path.out[space].credit))]
        able = [path for path in able if path.answers] or [path for path in able if not any(other.answers for other in self.paths.values())]
        return min(able, key=lambda path: path.rtt * (1 + path.in_flight / (64 * path.mtu)), default=None)

    def send_chunks(self, path, queue, level, now, most=None):
        ack = self.ack_in_front(path, level, now)
        room = packer.room_of(path, level, most) - len(ack)
        chunks = packer.gather(queue, room, level)
        opened = packer.frame_of(chunks, level, self.there, ack, room)
        self.send(path, opened, chunks, now)

    def ack_in_front(self, path, level, now):
        """An Ack block that is worth it, and may stand in a frame of this level."""
        if self.keyed and level == keys.NONE:
            return b""
        for other in self.paths.values():
            for space in (SEALED, OPEN):
                if other.into[space].due is not None and other.into[space].gaps < GAPS_TWICE:
                    return other.into[space].ack(space + 1, other.number, now, other.rtt)
        return b""

    def send_control(self, cmd, payload, exchange, path, now):
        level = max(self.level, exchange.level if exchange else self.level)
        flags = 0 if cmd == frame.ACK else frame.ELICITS
        opened = frame.Frame(cmd, flags, self.there, level=level, payload=payload)
        if exchange:
            opened.xid, opened.tag = exchange.xid, exchange.tag
        keep = [] if cmd == frame.DISCONNECT or payload[0] == blocks.PATH else [(cmd, payload, exchange, path)]
        self.send(path, opened, keep, now)

    def send(self, path, opened, carries, now):
        space = SEALED if opened.level else OPEN
        opened.pn = path.number << 56 | path.out[space].take()
        data = opened.pack(self.sender)
        generation = self.sender.generation.number if self.sender else 0
        path.sent(space, Sent(opened.count, time.monotonic(), len(data), carries, bool(opened.flags & frame.ELICITS), generation))
        self.counters["frames out"] += 1
        path.link.send(path.address, data)

    def flush(self, now):
        """Acks that are due (§9.1)."""
        for path in list(self.paths.values()):
            for space, into in enumerate(path.into):
                if into.due is None or into.due > now or not path.up:
                    continue
                twice = into.gaps >= GAPS_TWICE
                payload = into.ack(space + 1, path.number, now, path.rtt)
                for _ in range(1 + twice):
                    self.send(path, frame.Frame(frame.ACK, 0, self.there, level=self.level, payload=payload), [], now)

    # Time.

    def next_time(self, now):
        times = [now + TICK_S]
        for path in self.paths.values():
            times += [into.due for into in path.into if into.due is not None]
            if path.in_flight or self.queue or path.challenge:
                times.append(path.timeout_at())
            times += [due for due in (path.loss_due(),) if due is not None]
        return min(times)

    def time(self, path, now):
        self.silence(path, now)
        for space in (OPEN, SEALED):
            self.lose(path, space, now, None)
        if path.mtu_probe and now >= path.mtu_at:
            self.search(path, now)
        if (path.in_flight or self.queue or path.challenge) and now >= path.timeout_at():
            self.probe(path, now)

    def silence(self, path, now):
        """§10.4, and what follows from UNKNOWN (§6.6)."""
        lost_after = self.chosen.lost_after / 1000
        if self.unknown_at is not None and now - self.unknown_at > UNKNOWN_S:
            self.ended = "UNKNOWN"
        if now - max(path.heard_at, path.pinged_at) > lost_after / 3:
            path.pinged_at = now
            self.control(frame.ASK, blocks.block(blocks.PING), path=path)
        if path.up and now - path.heard_at > lost_after and len(self.paths) > 1:
            path.up = False
            self.again(path.abandon())
        if all(now - each.heard_at > lost_after for each in self.paths.values()):
            self.ended = "LOST AFTER"

    def probe(self, path, now):
        """§10.2: up to two frames that may pass credit and window."""
        path.timeouts, path.acked_at = path.timeouts + 1, now
        self.counters["timeouts"] += 1
        if path.challenge:
            self.say_path(path)
            return
        if path.timeouts >= 2 and any(other.answers for other in self.paths.values()):
            self.again(path.abandon())
            self.control(frame.ASK, blocks.block(blocks.PING), path=path)
            return
        most = PROBE_MAX if path.timeouts >= 3 else None
        oldest = self.oldest(path)
        for _ in range(2):
            source = oldest if oldest else self.queue
            if not source:
                self.control(frame.ASK, blocks.block(blocks.PING), path=path)
                return
            self.send_chunks(path, source, source[0].exchange.level, now, most)

    @staticmethod
    def oldest(path):
        """The oldest data that was not acknowledged, as chunks."""
        under_way = sorted((sent for out in path.out for sent in out.under_way.values() if not sent.given_up), key=lambda sent: sent.at)
        chunks = deque()
        for sent in under_way:
            for what in sent.carries:
                if hasattr(what, "end"):
                    chunks.extend(what.exchange.still_wanted(what))
            if len(chunks) >= 2:
                break
        return chunks

    def search(self, path, now):
        """§12: Ask MTU, padded to the length in question."""
        if path.mtu_probe <= path.mtu:
            path.mtu_probe = None
            return
        if path.mtu_tries == MTU_TRIES:
            path.mtu_probe = max((length for length in (*MTU_TABLE, path.mtu) if length < path.mtu_probe))
            path.mtu_tries = 0
            return
        path.mtu_tries, path.mtu_at = path.mtu_tries + 1, now + max(4 * path.pto, 0.02)
        length = packer.room_of(path, self.level, None) - path.mtu + path.mtu_probe
        payload = blocks.block(blocks.MTU, 0, struct.pack(">H", path.mtu_probe)).ljust(length, b"\0")
        opened = frame.Frame(frame.ASK, frame.ELICITS, self.there, level=self.level, payload=payload)
        self.send(path, opened, [("mtu", path.mtu_probe)], now)
