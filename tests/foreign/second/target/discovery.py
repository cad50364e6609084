"""Discovery (§4.8, §5): questions of initiators and the target's answers."""

import time

from . import blocks
from .frames import DISCOVERY, Drop, outside


class Bucket:
    """So many at once, and one more each so many seconds."""

    def __init__(self, size, seconds):
        self.size, self.seconds = size, seconds
        self.level, self.at = size, time.monotonic()

    def take(self):
        now = time.monotonic()
        self.level, self.at = min(self.size, self.level + (now - self.at) / self.seconds), now
        if self.level < 1:
            return False
        self.level -= 1
        return True


class Discovery:
    """Answers for one target."""

    def __init__(self, target):
        self.target = target
        self.questions, self.answers = Bucket(64, 0.05), Bucket(512, 0.005)

    def question(self, port, source, frame):
        asked = blocks.Block(frame.payload, {1: 16})
        items = asked.items({blocks.GROUP: (1, 64), blocks.TARGET: (5, 223)})
        if asked.info or blocks.GROUP not in items:
            raise Drop("question")
        group = self.target.groups.get(items[blocks.GROUP])
        if not group or items.get(blocks.TARGET, self.target.name) != self.target.name:
            return
        if self.questions.take() and self.answers.take():
            port.send(source, outside(DISCOVERY, self.answer(port, group, asked.fixed)))

    def answer(self, port, group, nonce):
        item = blocks.item
        items = (item(blocks.GROUP, group.name) + item(blocks.TARGET, self.target.name)
                 + item(blocks.LUNS, bytes(8) + bytes([group.disk.least_level]))
                 + item(blocks.PORTS, b"".join(each.mac for each in self.target.ports[:8]))
                 + item(blocks.FRAME_MAX, port.mtu.to_bytes(2, "big")))
        return blocks.block(2, 0x80 if group.record else 0, nonce + self.target.instance, items)
