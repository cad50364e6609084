"""Judges what an initiator sends: each rule of the document that can be seen from the target's end, by section."""

import collections
import struct

from target import frames
from target.exchange import COMMAND, TURN, later, read_request
from target.frames import ABORT, ACK, ACKS, ASK, DATA, DISCONNECT, ELICITS, REQUEST
from target.path import MTU_TABLE, read_ack
from target.blocks import Block

ASK_MTU = 2


class Judge:
    """To be a target's `watch`. `broken` counts the rules that were broken, with one example each; `seen` what was seen at all."""

    def __init__(self):
        self.broken, self.examples, self.seen = collections.Counter(), {}, collections.Counter()
        self.last, self.asked, self.levels = {}, {}, {}
        self.next, self.anchor = {}, {}

    def rule(self, kept, name, what=""):
        if not kept:
            self.broken[name] += 1
            self.examples.setdefault(name, what)

    def __call__(self, session, path, frame):
        self.seen[frame.command] += 1
        where = (session.sid, path.number, frame.protected)
        self.numbers(where, path, frame)
        flags, payload = frame.flags, frame.payload
        elicits = bool(flags & ELICITS)
        self.rule(frame.command != ACK or not elicits, "§9.1 Ack frames do not elicit")
        self.rule(frame.command == ACK or elicits, "§3.2 frames of sessions elicit", f"{frame.command:x}")
        self.rule(flags & DATA or frame.off == 0, "§3.2 OFF is 0 without DATA", frame.off)
        self.rule(not flags & frames.GOOD, "§3.2 GOOD is the target's")
        if frame.command in (ACK, ASK, DISCONNECT):
            self.rule(frame.xid == 0 and frame.place >> 11 == 0, "§3.2 TAG and XID are 0 in frames of no exchange", frame.command)
        if flags & ACKS:
            ack = Block(payload, {1: 32, 2: 32})
            self.ack(session, ack)
            payload = ack.rest
        if frame.command == ACK:
            self.ack(session, Block(payload, {1: 32, 2: 32}))
        if frame.command == ASK:
            self.ask(path, frame, payload)
        if frame.command in (REQUEST, ABORT):
            parts = frames.split(frame, payload)
            self.seen["parts"] += len(parts) > 1
            for part in parts:
                self.part(session, frame, part)

    def numbers(self, where, path, frame):
        """§8.1 and §9.2, on a wire that keeps order and loses nothing."""
        before = self.last.get(where, 0)
        self.rule(frame.count - before <= 2, "§8.1 one count left out at most", (before, frame.count))
        self.rule(frame.count > before, "§8.1 frames leave in the order of their counts", (before, frame.count))
        self.last[where] = max(before, frame.count)
        limit = path.receivers[frame.protected].limit
        self.seen["beyond credit, no Ack"] += frame.count > limit and frame.command != ACK
        self.rule(frame.count <= limit + 64, "§9.2 far beyond PN LIMIT", (frame.count, limit))

    def ack(self, session, block):
        path, ranges, _, _, xid_limit = read_ack(block.fixed, block.info, block.raw_items)
        self.rule(xid_limit == 0, "§4.4 XID LIMIT is 0 from an initiator", xid_limit)
        self.rule(len(ranges) <= 33, "§9.1 at most 33 ranges")
        self.rule(len(block.raw_items) == 8 * block.info, "§4.4 length of an Ack block")
        self.seen["ack ranges"] = max(self.seen["ack ranges"], len(ranges))

    def ask(self, path, frame, payload):
        self.seen["ask", payload[0]] += 1
        if payload[0] != ASK_MTU:
            return
        length = struct.unpack_from(">H", payload, 4)[0]
        most = min(path.port.mtu, path.peer_frame_max)
        whole = frames.HEADER_LEN + len(frame.payload) + len(frame.trailer)
        self.rule(length == whole, "§4.5 LENGTH of MTU is that of this very frame", (length, whole))
        self.rule(length == most or length in MTU_TABLE and length < most, "§12 table of lengths", length)
        self.rule(not frame.flags & ACKS, "§9.1 no acknowledgement in front of an Ask MTU")

    def part(self, session, frame, part):
        kind = part.xid >> 31
        key, number = (session.sid, part.xid), part.xid & TURN
        self.rule(part.tag < session.choice["exchanges"], "§3.2 TAG below EXCHANGES", part.tag)
        self.rule(frame.level() >= self.levels.get(key, 0), "§7.1 level of an exchange", part.xid)
        if frame.command != REQUEST or part.flags & DATA:
            return
        self.rule(kind == frame.protected, "§13.1 top bit of XID", hex(part.xid))
        what, info, fixed, rest = read_request(part.body)
        self.levels[key] = frame.level()
        if key in self.asked:
            return
        self.asked[key] = part.body[:64]
        space = (session.sid, kind)
        self.rule(number == self.next.get(space, 1), "§13.1 XIDs in order, without gaps", (number, self.next.get(space, 1)))
        self.next[space] = later(number, 1)
        limit = session.classes[kind].limit()
        self.rule(number <= limit & TURN, "§13.1 none beyond XID LIMIT", (number, limit & TURN))
        after = struct.unpack(">I", fixed[:4])[0]
        simple = what == COMMAND and info & 15 == 1
        wanted = self.anchor.get(space, 0) if simple else number - 1
        kept = after & TURN == wanted and (after == 0 or after >> 31 == kind)
        self.rule(kept, "§13.5 AFTER", (simple, hex(part.xid), hex(after), wanted))
        if not simple:
            self.anchor[space] = number
        if what == COMMAND:
            self.command(session, part, fixed, rest)

    def command(self, session, part, fixed, rest):
        _, _, into, out, unasked, length, _ = struct.unpack(">I8sIIIHH", fixed[:28])
        self.rule(unasked <= min(out, session.choice["first_burst"]), "§13.2 UNSOLICITED LEN", (unasked, out))
        self.rule(len(rest) <= unasked, "§13.2 data behind the block", (len(rest), unasked))
        self.rule(len(part.body) - len(rest) == 32 + length, "§4.2 length of the block")
        self.rule(part.last == (len(rest) == unasked), "§3.2 L: the end of its message", (part.last, len(rest), unasked))
