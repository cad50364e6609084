"""A session that remembers what it heard and says what it is told to, rules or not: for cases about single rules."""

import time

from . import blocks, frame, keys
from .path import SEALED, OPEN, Sent
from .session import Lost, Session

# Longest that an answer may take where no clause says how soon it comes, seconds.
PATIENCE_S = 10


class Watch(Session):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.heard, self.outside, self.acks = [], [], []

    def frame_came(self, path, space, opened, now):
        self.heard.append(opened)
        super().frame_came(path, space, opened, now)

    def hear_outside(self, opened, data, rest, now):
        self.outside.append((opened, data))
        super().hear_outside(opened, data, rest, now)

    def acknowledged(self, ack, now):
        self.acks.append(ack)
        super().acknowledged(ack, now)

    def say(self, cmd, payload, flags=frame.ELICITS, level=None, count=None, mangle=None, path=0, sid=None, **fields):
        """Sends one frame, which `mangle` may change before the trailer is made; its packet number."""
        way = self.paths[path]
        level = self.level if level is None else level
        space = SEALED if level else OPEN
        count = way.out[space].take() if count is None else count
        opened = frame.Frame(cmd, flags, self.there if sid is None else sid, path << 56 | count, level=level, payload=payload, **fields)
        data = opened.pack(self.sender) if mangle is None else self.mangled(opened, mangle)
        way.sent(space, Sent(count, time.monotonic(), len(data), [], False, self.sender.generation.number if self.sender else 0))
        way.link.send(way.address, data)
        return opened.pn

    def mangled(self, opened, mangle):
        """The frame with another header, and a trailer that is right for it."""
        header = bytearray(opened.header(self.sender.generation.phase if self.sender else 0))
        mangle(header)
        if opened.level == keys.NONE:
            covered = bytes(header) + opened.payload
            return covered + frame.crc32c(covered).to_bytes(4, "big")
        return bytes(header) + self.sender.seal(opened.level, opened.pn, bytes(header), opened.payload)

    def listen(self, seconds=0.08, until=lambda heard: True):
        """Works until the target has taken all that was said before, which shows by its acknowledgement of a PING behind that (§9.1: at
        once), until `until` holds of what was heard, and then for a while. What was heard meanwhile."""
        before = len(self.heard)
        behind = self.say(frame.ASK, blocks.block(blocks.PING))
        self.work(PATIENCE_S, lambda: self.was_acknowledged(behind))
        if not self.ended and not self.was_acknowledged(behind):
            raise AssertionError(f"a PING is not acknowledged within {PATIENCE_S} s")
        self.work(PATIENCE_S, lambda: until(self.heard[before:]))
        self.work(seconds)
        return self.heard[before:]

    def calm(self, seconds):
        """Works until nothing is heard for a while."""
        before = -1
        while before < len(self.heard):
            before = len(self.heard)
            self.work(seconds)

    def work(self, seconds, done=lambda: False):
        """Works until `done()`, for so long at most, or until the session ends."""
        try:
            self.run(done, seconds)
        except (TimeoutError, Lost):
            pass

    def was_acknowledged(self, pn):
        count = pn & frame.COUNT_MASK
        return any(ack.largest >> 56 == pn >> 56 and any(low <= count <= high for low, high in ack.ranges) for ack in self.acks)

    def is_acknowledged_alone(self, pn):
        """Whether a frame is acknowledged though nothing is said behind it."""
        self.work(PATIENCE_S, lambda: self.was_acknowledged(pn))
        return self.was_acknowledged(pn)

    def name(self, level=keys.NONE, skip=0):
        """The next XID of a class, and a slot from the upper half, which `command` is far from, in turn."""
        names = self.classes[int(level != keys.NONE)]
        half = len(names.slots) // 2
        tag, xid = half + names.next % half, names.top | names.next
        names.next += 1 + skip
        return {"tag": tag, "xid": xid}


def blocks_of(frames, cmd):
    """(KIND, INFO, fields) of the payloads of these frames that are blocks."""
    found = []
    for opened in frames:
        payload = opened.payload
        if opened.flags & frame.ACKS:
            payload = blocks.split_block(payload)[3]
        if opened.cmd == cmd and not opened.flags & (frame.DATA | frame.PARTS):
            found.append(blocks.split_block(payload)[:3])
    return found
