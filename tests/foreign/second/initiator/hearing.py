"""What a session does with the frames that come (§3.4, §4, §6.6)."""

import struct
import time

from . import blocks, frame, keys
from .frame import Malformed
from .path import OPEN, SEALED


class Hearing:
    """The hearing half of a Session, whose state it uses."""

    def hear(self, link, source, data, now):
        try:
            opened, phase, rest = frame.parse(data)
            if opened.sid == 0:
                self.hear_outside(opened, data, rest, now)
                return
            path = self.paths.get(opened.path)
            if opened.sid != self.here or path is None or path.link is not link or path.address != source:
                raise Malformed("no path of this session")
            space = SEALED if opened.level else OPEN
            self.open(path, space, opened, phase, data, rest, now)
            self.frame_came(path, space, opened, now)
        except Malformed as why:
            self.counters[str(why)] += 1

    def open(self, path, space, opened, phase, data, rest, now):
        """§3.4: packet number, then CRC or tag."""
        into, count = path.into[space], opened.count
        if into.known(count):
            raise Malformed("replayed")
        if into.too_large(count) and not ((space == SEALED or not self.keyed) and count < 1 << 55 and (not path.up or not into.largest)):
            raise Malformed("PN too large")
        if opened.level == keys.NONE:
            opened.payload = frame.check_crc(data, rest)
            return
        if not self.keyed:
            raise Malformed("P=1 without keys")
        before = self.receiver.present.number
        opened.payload = self.receiver.open(opened.level, phase, opened.pn, data[:frame.HEADER_LEN], rest, now, 3 * path.pto)
        self.counters["peer rekeyed"] += self.receiver.present.number - before
        if opened.payload is None:
            raise Malformed("tag")

    def frame_came(self, path, space, opened, now):
        """The frame is right, so its number counts, whatever it says."""
        asks = opened.cmd == frame.ASK
        self.counters["overtaken"] += opened.count < path.into[space].largest
        path.into[space].take(opened.count, now, bool(opened.flags & frame.ELICITS), asks, self.offered.ack_delay_max / 1e6)
        if space == SEALED or not self.keyed:
            path.heard_at, self.unknown_at = now, None
        self.counters["frames in"] += 1
        payload = opened.payload
        if self.keyed and space == OPEN and (opened.cmd != frame.REPLY or opened.flags & frame.ACKS):
            raise Malformed("Open in a keyed session")
        if opened.flags & frame.ACKS or opened.cmd == frame.ACK:
            kind, info, fields, payload = blocks.split_block(payload)
            self.acknowledged(blocks.parse_ack(kind, info, fields), now)
        if opened.cmd == frame.REPLY:
            self.reply(opened, payload)
        elif opened.cmd == frame.ASK:
            self.asked(path, payload, now)
        elif opened.cmd == frame.ABORT:
            self.aborted(opened, payload)
        elif opened.cmd == frame.DISCONNECT:
            self.disconnected(payload)
        elif opened.cmd != frame.ACK:
            raise Malformed(f"CMD {opened.cmd:02x}h for an initiator")

    def hear_outside(self, opened, data, rest, now):
        """§6.6: UNKNOWN, a hint and no more."""
        if opened.cmd != frame.DISCONNECT or opened.level:
            raise Malformed("SID 0")
        kind, _, fields, _ = blocks.split_block(frame.check_crc(data, rest))
        if kind != blocks.UNKNOWN or fields != struct.pack(">I", self.there):
            raise Malformed("no UNKNOWN of this session")
        self.counters["UNKNOWN"] += 1
        if self.unknown_at is None:
            self.unknown_at = now
            for path in self.paths.values():
                self.control(frame.ASK, blocks.block(blocks.PING), path=path)

    def acknowledged(self, ack, now):
        space, path = ack.kind - 1, self.paths.get(ack.largest >> 56)
        if path is None:
            raise Malformed("an Ack about no path")
        if path.out[space].never_used(ack.ranges):
            if self.keyed and space == SEALED:
                self.break_off("an Ack that cannot be")
            raise Malformed("an Ack for a count that was never used")
        self.classes[space].told(ack.xid_limit)
        newly = path.acknowledge(space, ack, now)
        for sent in newly:
            if self.keyed and space == SEALED:
                self.sender.acknowledged(sent.generation, now)
            self.carried(path, sent)
        self.lose(path, space, now, None)
        newest = max((sent.at for sent in newly), default=None)
        self.lose(path, 1 - space, now, newest)

    def carried(self, path, sent):
        for what in sent.carries:
            if hasattr(what, "end"):
                what.exchange.acknowledged(what)
            elif what[0] == "mtu" and what[1] > path.mtu:
                path.mtu, path.mtu_probe = what[1], None

    def lose(self, path, space, now, newest):
        again = []
        for sent in path.detect(space, now, newest):
            path.lost += 1
            again += sent.carries
        self.again(again)

    def again(self, carried):
        """What is said again goes first (§10.3)."""
        chunks = []
        for what in carried:
            if hasattr(what, "end"):
                chunks += what.exchange.still_wanted(what)
            elif what[0] == frame.ABORT or (what[0] == frame.ASK and what[1][0] != blocks.PING):
                self.controls.append(what)
        self.queue.extendleft(reversed(chunks))

    def reply(self, opened, payload):
        for part in blocks.split_parts(opened, payload):
            try:
                exchange = self.classes[part.xid >> 31].find(part.tag, part.xid)
                if exchange is None:
                    raise Malformed("a Reply for what is over")
                if opened.level < exchange.level:
                    raise Malformed("a Reply below the level of its exchange")
                self.queue.extend(exchange.take(part))
            except frame.Broken as why:
                if opened.level != keys.NONE or not self.keyed:
                    self.break_off(str(why))
                raise
            except Malformed as why:
                self.counters[str(why)] += 1

    def asked(self, path, payload, now):
        kind, info, fields, _ = blocks.split_block(payload)
        self.counters[f"Ask {kind}"] += 1
        if kind == blocks.PATH:
            (challenge, echo, frame_max, zero), rest = blocks.fields(">8s8sHH", fields)
            blocks.items(rest, (0x81,))
            if zero:
                raise Malformed("PATH")
            path.frame_max = frame_max
            if challenge != bytes(8):
                path.echo = challenge
                self.say_path(path)
            if path.challenge and echo == path.challenge:
                path.challenge, path.up, path.mtu_probe = None, True, min(path.link.mtu, frame_max)
        elif kind == blocks.RECEIVES:
            (length,), _ = blocks.fields(">H", fields)
            path.frame_max, path.mtu = length, min(path.mtu, length)
        elif kind == blocks.LEAVE and len(self.paths) > 1:
            self.paths.pop(info, None)

    def say_path(self, path):
        token = b"" if self.keyed else blocks.item(0x81, self.token)
        fields = struct.pack(">8s8sHH", path.challenge or bytes(8), path.echo or bytes(8), path.link.mtu, 0)
        self.control(frame.ASK, blocks.block(blocks.PATH, 0, fields, token), path=path)

    def aborted(self, opened, payload):
        kind, info, _, _ = blocks.split_block(payload)
        exchange = self.classes[opened.xid >> 31].find(opened.tag, opened.xid)
        if kind != blocks.GIVEN_UP or exchange is None:
            raise Malformed("Abort")
        exchange.abort(info)

    def disconnected(self, payload):
        kind, info, _, _ = blocks.split_block(payload)
        if kind == blocks.DONE:
            self.goodbye_done = True
        elif kind == blocks.GOODBYE:
            self.control(frame.DISCONNECT, blocks.block(blocks.DONE))
            self.pump(time.monotonic())
            self.ended = f"GOODBYE {info}"
