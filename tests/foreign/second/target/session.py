"""A session at the target: opening frames, acknowledging, sending and repairing (§7 to §14)."""

import collections
import secrets
import struct
import time

from . import asks, frames
from .asks import MTU, PING
from .blocks import Block, block
from .exchange import Class
from .frames import (ABORT, ACK, ACKS, ASK, DISCONNECT, ELICITS, ENCRYPT, ENCRYPTED, INTEGRITY, NONE, PARTS, REPLY, REQUEST, Drop)
from .path import Path, Sent, read_ack
from .seal import TO_INITIATOR, TO_TARGET, Opener, Sealer, first_secret

GOODBYE, DONE = 1, 2
PARTS_MOST, PROBE_SMALL = 64, 1500
DONE_LIFE, GOODBYE_EVERY = 1.0, 0.05
MTU_TRIES, MTU_PAUSE = 3, 0.5


class Session:
    """An I_T nexus. `keys` is (session key, transcript) of a keyed session."""

    def __init__(self, target, group, sid, items, offer, choice, place, keys):
        self.target, self.group, self.sid, self.offer, self.choice = target, group, sid, offer, choice
        self.peer_sid = int.from_bytes(items[0x86], "big")
        self.nexus = (items[0x83], items[0x84], group.name)
        self.keyed, self.token = keys is not None, secrets.token_bytes(16)
        self.least_protected = INTEGRITY if keys else NONE
        self.sealer = Sealer(first_secret(*keys, TO_INITIATOR), target.rekey_after) if keys else None
        self.opener = Opener(first_secret(*keys, TO_TARGET)) if keys else None
        self.classes = {0: Class(self, 0), 1: Class(self, 1)}
        self.queues = {0: collections.deque(), 1: collections.deque()}
        self.ended, self.farewell, self.farewell_at = None, None, 0.0
        self.paths = {0: self.new_path(0, *place)}

    def new_path(self, number, port, address):
        return Path(number, port, address, self.offer["frames_initial"], self.choice["frames_initial"], self.offer["frame_max"],
                    self.offer["ack_delay_max"] / 1e6, time.monotonic())

    def spaces(self, port):
        """How many packet number spaces the session uses on a port."""
        return sum(path.port is port for path in self.paths.values()) * (1 + self.keyed)

    # Receiving.

    def take(self, port, source, frame, now):
        """A frame with this session's SID: §3.4 from the path on."""
        path = self.paths.get(frame.path)
        if path and (path.port is not port or path.address != source) or path and path.left:
            raise Drop("path")
        begins = path is None
        if begins:
            path = self.beginning(port, source, frame)
        sealed = frame.protected
        if sealed and not self.keyed:
            raise Drop("not keyed")
        excused = (not self.keyed or sealed) and (begins or now - path.heard > self.lost_after() or not path.receivers[sealed].largest)
        path.receivers[sealed].check(frame.count, excused and path.number != 0 or excused and now - path.heard > self.lost_after())
        if sealed:
            frame.payload = self.opener.open(frame, now, 3 * path.pto())
        else:
            frames.check_crc(frame)
            if self.keyed and (frame.command not in (REQUEST, REPLY) or frame.flags & ACKS):
                raise Drop("open frame")
        path.receivers[sealed].take(frame.count, bool(frame.flags & ELICITS), now)
        if sealed or not self.keyed:
            path.heard = now
        if self.target.watch:
            self.target.watch(self, path, frame)
        self.look(path, frame, now)
        if begins and path.challenge:
            self.paths[path.number] = path

    def beginning(self, port, source, frame):
        """Only an Ask may begin a path (§8.2)."""
        if frame.command != ASK or not 0 < frame.path < 256 or len(self.paths) >= self.choice["paths"]:
            raise Drop("path")
        return self.new_path(frame.path, port, source)

    def lost_after(self):
        return self.choice["lost_after"] / 1000

    def look(self, path, frame, now):
        payload = frame.payload
        if frame.flags & ACKS:
            ack = Block(payload, {1: 32, 2: 32})
            payload = ack.rest
            if not frame.flags & PARTS:
                self.acknowledge(ack, now)
        parts = frames.split(frame, payload)
        if frame.flags & ACKS and frame.flags & PARTS:
            self.acknowledge(ack, now)
        if frame.command == ACK:
            self.acknowledge(Block(payload, {1: 32, 2: 32}), now)
        elif frame.command == ASK:
            asks.take(self, path, frame, payload, now)
        elif frame.command == REQUEST:
            self.each(parts, frame, lambda part: self.classes[part.xid >> 31].request(part, frame.level()))
        elif frame.command == ABORT:
            self.each(parts, frame, lambda part: self.give_up(part, frame))
        elif frame.command == DISCONNECT:
            self.disconnect(path, payload, now)
        else:
            raise Drop("command")

    def each(self, parts, frame, what):
        """Parts are judged one by one (§4.11)."""
        for part in parts:
            try:
                what(part)
            except Drop as drop:
                self.target.count_drop(f"part: {drop}")

    def give_up(self, part, frame):
        said = Block(part.body, {1: 0})
        if said.info > 2 or said.rest:
            raise Drop("abort")
        self.classes[part.xid >> 31].give_up(part, frame.level())

    def acknowledge(self, ack, now):
        """An Ack block (§4.4)."""
        sealed = ack.kind - 1
        number, ranges, delay, limit, _ = read_ack(ack.fixed, ack.info, ack.raw_items)
        path = self.paths.get(number)
        if not path or sealed and not self.keyed:
            raise Drop("ack")
        sender = path.senders[sealed]
        try:
            came, mistakes = sender.acknowledged(ranges)
        except Drop:
            if sealed:
                self.end(3)
            raise
        sender.limit = max(sender.limit, limit)
        if came:
            self.arrived(path, sender, ranges, came, delay, now)
        if mistakes:
            path.mistaken(now)
        self.repair(path, now)

    def arrived(self, path, sender, ranges, came, delay, now):
        top = ranges[0][1]
        if top > sender.largest and top in came:
            path.sample(now - came[top].time, delay)
        sender.largest = max(sender.largest, top)
        path.progress, path.probes, path.blocked_since = now, 0, None
        for sent in came.values():
            path.in_flight = max(0, path.in_flight - sent.size)
            if sent.size > PROBE_SMALL:
                path.large_lost = 0
            if self.sealer and sent.generation is not None:
                self.sealer.heard(sent.generation, now)
            for piece in sent.pieces:
                piece.flights -= 1
                piece.done()
            if sent.probe:
                path.mtu, path.ladder = max(path.mtu, sent.probe), []
        path.outcome(len(came), 0)

    def repair(self, path, now):
        """What is lost goes back to the front of the queue (§10.3)."""
        lost = path.lost(now, self.choice["repair"])
        for sent in reversed(lost):
            self.again(sent)
            self.shrink(path, sent, now)
        if lost:
            path.outcome(0, sum(not sent.probe for sent in lost))

    def again(self, sent):
        for piece in reversed(sent.pieces):
            piece.flights -= 1
            if not piece.acked and not piece.children and piece.flights <= 0:
                self.queues[piece.level > NONE].appendleft(piece)

    def shrink(self, path, sent, now):
        """§12: a probe's loss leads down the table; four long frames lost in a row, back to 1500."""
        if sent.probe:
            path.search_at = now
            return
        path.large_lost += sent.size > PROBE_SMALL
        if path.large_lost >= 4 and path.mtu > 1500:
            path.mtu, path.ladder, path.tries, path.large_lost = 1500, path.sizes(), 0, 0
            path.search_at = now + MTU_PAUSE

    def disconnect(self, path, payload, now):
        said = Block(payload, {GOODBYE: 0, DONE: 0})
        if said.kind == GOODBYE:
            self.say(path, DISCONNECT, block(DONE), ELICITS)
            self.over(now)
        elif self.farewell is not None:
            self.over(now)
            self.farewell = None

    # Ends.

    def end(self, why):
        """GOODBYE, repeated until DONE or for a second (§14)."""
        if self.ended is None:
            self.farewell = why
            self.over(time.monotonic())

    def over(self, now):
        self.ended = self.ended or now
        for queue in self.queues.values():
            queue.clear()
        for path in self.paths.values():
            for sender in path.senders.values():
                sender.under_way.clear()

    # Sending.

    def queue(self, piece):
        self.queues[piece.level > NONE].append(piece)

    def say(self, path, command, payload, flags, pieces=(), level=None, tried=0, place=frames.place(0, 1, 0), xid=0, off=0):
        """Seals one frame and sends it on a path."""
        now = time.monotonic()
        level = self.least_protected if level is None else level
        sealed = int(level > NONE)
        sender = path.senders[sealed]
        pn = path.number << 56 | sender.count()
        generation = None
        if sealed:
            self.sealer.change(now)
            generation = self.sealer.now.number
            flags |= self.sealer.phase() | (ENCRYPTED if level == ENCRYPT else 0)
        head = frames.header(place, sealed << 7 | command, flags, len(payload), self.peer_sid, pn, xid, off)
        if sealed:
            behind = self.sealer.seal(level, pn, head, payload)
        else:
            behind = payload + frames.crc32c(head + payload)
        if flags & ELICITS:
            size = len(head) + len(behind)
            sender.under_way[pn & frames.COUNT_MASK] = Sent(now, size, pieces, generation, tried)
            path.in_flight += size
            for piece in pieces:
                piece.flights += 1
        path.port.send(path.address, head + behind)

    def ack_block(self, path, sealed, now):
        """The Ack about one space, the XID LIMIT of its class with it."""
        most = self.target.share(path.port)
        return path.receivers[sealed].ack(sealed, path.number, self.classes[sealed].limit(), now, path.rtt, most)

    def acknowledge_all(self, now):
        """Ack frames for what waits, at once: so later than no ACK DELAY MAX (§9.1)."""
        for path in self.paths.values():
            for sealed, receiver in path.receivers.items():
                if receiver.waiting or receiver.largest and receiver.credit_low():
                    said = self.ack_block(path, sealed, now)
                    way = path if path.answers() and path.usable else self.best_path(int(self.keyed)) or path
                    for _ in range(2 if said[1] >= 8 else 1):
                        self.say(way, ACK, said, 0)

    def waiting_ack(self, path, level, now):
        """An Ack block to go in front of a payload; none if nothing waits, or the frame may not hold one (§7.1)."""
        if level >= self.least_protected:
            for sealed, receiver in path.receivers.items():
                if receiver.waiting:
                    return self.ack_block(path, sealed, now)
        return b""

    def best_path(self, sealed):
        """§8.3."""
        roomy = [path for path in self.paths.values() if path.roomy(sealed)]
        good = [path for path in roomy if path.answers()] or roomy
        return min(good, key=lambda path: path.rtt * (1 + path.in_flight / path.window()), default=None)

    def send(self, now):
        """Sends what waits, as far as credit and windows go."""
        for sealed in (1, 0):
            queue = self.queues[sealed]
            while queue:
                path = self.best_path(sealed)
                if path is None:
                    for each in self.paths.values():
                        if not each.senders[sealed].room() and each.blocked_since is None:
                            each.blocked_since = now
                    break
                if not self.send_pieces(path, queue, now):
                    break

    def send_pieces(self, path, queue, now, most=65535):
        """One frame of as many pieces as fit (§4.11); False if there was nothing."""
        while queue and (queue[0].acked or queue[0].children or queue[0].exchange and queue[0].exchange.over):
            queue.popleft()
        if not queue:
            return False
        level, command = queue[0].level, queue[0].command
        ack = self.waiting_ack(path, level, now)
        room = min(path.mtu, most) - frames.HEADER_LEN - frames.TAG_LEN - len(ack)
        pieces = [queue.popleft()]
        if len(pieces[0].body) > room:
            first, second = pieces[0].cut(room)
            pieces = [first]
            queue.appendleft(second)
        else:
            self.fill(pieces, queue, room - len(pieces[0].body))
        parts = [frames.Part(frames.place(p.place, p.last, p.off // 1024), p.flags, p.xid, p.off, p.body) for p in pieces]
        flags = ELICITS | pieces[0].flags | (ACKS if ack else 0) | (PARTS if len(parts) > 1 else 0)
        first = parts[0]
        self.say(path, command, ack + frames.join(parts), flags, pieces, level,
                 place=frames.place(first.tag, first.last, first.frag), xid=first.xid, off=first.off)
        return True

    def fill(self, pieces, queue, room):
        """Further parts, up to the first that does not fit whole."""
        if pieces[0].command != REPLY:
            return
        room -= 4
        while queue and len(pieces) < PARTS_MOST:
            piece = queue[0]
            if piece.acked or piece.children or piece.exchange and piece.exchange.over:
                queue.popleft()
                continue
            room -= frames.PART.size + len(piece.body)
            if room < 0 or piece.level != pieces[0].level or piece.command != REPLY:
                return
            pieces.append(queue.popleft())

    # Time.

    def turn(self, now):
        """What time brings: acknowledgements, repairs, probes, signs of life. False when the session may be forgotten."""
        if self.ended is not None:
            return self.farewells(now)
        for path in list(self.paths.values()):
            self.repair(path, now)
            if path.probe_due(now):
                self.probe(path, now)
            self.life(path, now)
            self.search(path, now)
        self.send(now)
        self.acknowledge_all(now)
        for kind in self.classes.values():
            kind.expire(now)
        spent = self.sealer and self.sealer.spent()
        if spent or all(now - path.heard > self.lost_after() for path in self.paths.values()):
            self.over(now)
        return True

    def farewells(self, now):
        if self.farewell is not None and now - self.farewell_at > GOODBYE_EVERY:
            self.farewell_at = now
            self.say(self.paths[min(self.paths)], DISCONNECT, block(GOODBYE, self.farewell), ELICITS)
        self.acknowledge_all(now)
        return now - self.ended < DONE_LIFE

    def probe(self, path, now):
        """§10.2: the oldest data again, else new data, else PING; at most two frames, beyond credit and window."""
        path.probes, path.progress, path.blocked_since = path.probes + 1, now, None
        most = PROBE_SMALL if path.probes > 2 else 65535
        probed = 0
        others = any(other is not path and other.usable and other.left is None and other.answers() for other in self.paths.values())
        if others and not path.answers():
            self.abandon(path)
        for sealed, sender in path.senders.items():
            if others and not path.answers():
                break
            queue = self.queues[sealed]
            for sent in [each for each in sender.under_way.values() if each.pieces][:2]:
                queue.extendleft(piece for piece in reversed(sent.pieces) if not piece.acked and not piece.children)
            while probed < 2 and self.send_pieces(path, queue, now, most):
                probed += 1
        if not probed:
            self.say(path, ASK, block(PING), ELICITS)

    def abandon(self, path):
        """§8.3: what was sent on a path that does not answer is sent again on others at once."""
        for sender in path.senders.values():
            for count in [count for count, sent in sender.under_way.items() if sent.pieces]:
                self.again(path.give_up(sender, count))

    def life(self, path, now):
        """§10.4."""
        silent = now - path.heard
        pause = 1 if silent > self.lost_after() else self.lost_after() / 8
        if path.usable and silent > self.lost_after() / 2 and now - path.pinged > pause:
            path.pinged = now
            self.say(path, ASK, block(PING), ELICITS)

    def search(self, path, now):
        """§12: Ask MTU, padded to the length in question; three tries each."""
        if not path.ladder or now < path.search_at or not path.usable:
            return
        if path.tries == MTU_TRIES:
            path.ladder, path.tries = path.ladder[1:], 0
            return
        length = path.ladder[0]
        trailer = frames.TAG_LEN if self.keyed else frames.CRC_LEN
        payload = block(MTU, 0, struct.pack(">H", length)).ljust(length - frames.HEADER_LEN - trailer, b"\0")
        path.tries, path.search_at = path.tries + 1, now + 0.1
        self.say(path, ASK, payload, ELICITS, tried=length)

    def due(self, now):
        """How long until `turn` is wanted, seconds."""
        busy = any(path.busy() or path.ladder or path.blocked_since for path in self.paths.values())
        return 0.001 if busy or any(self.queues.values()) or self.ended else 0.1
