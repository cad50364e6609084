"""Discovery: §4.8 and §5."""

import struct
import time
from collections import namedtuple

from withheld import Limit

from . import blocks, frame, keys
from .link import BROADCAST, wait

GROUP, TARGET, LUNS, PORTS, FRAME_MAX = 0x81, 0x82, 0x03, 0x04, 0x05
Answer = namedtuple("Answer", "target password more instance luns ports frame_max address")


def outside(cmd, payload):
    """A frame of no session: SID 0, PN 0, level none."""
    return frame.Frame(cmd, payload=payload).pack()


def open_outside(data, cmd):
    """The payload of a frame of no session and this CMD; Malformed if it is none."""
    opened, _, rest = frame.parse(data)
    if opened.cmd != cmd or opened.sid or opened.pn or opened.level != keys.NONE:
        raise frame.Malformed("not outside of sessions")
    return frame.check_crc(data, rest)


def question(group, nonce, target=None):
    wanted = blocks.item(GROUP, group) + (blocks.item(TARGET, target) if target else b"")
    return outside(frame.DISCOVERY, blocks.block(blocks.QUESTION, 0, nonce, wanted))


def parse_answer(data, source, group, nonce):
    """An ANSWER to the question of this nonce and group."""
    kind, info, rest, _ = blocks.split_block(open_outside(data, frame.DISCOVERY))
    if kind != blocks.ANSWER or info & 0x3F:
        raise frame.Malformed("no ANSWER")
    (echoed, instance), rest = blocks.fields("16s16s", rest)
    found = blocks.items(rest, (GROUP, TARGET, LUNS, PORTS, FRAME_MAX))
    if echoed != nonce or found.get(GROUP) != group or TARGET not in found or len(found.get(FRAME_MAX, b"")) != 2:
        raise frame.Malformed("another question's, or incomplete")
    luns, ports = found.get(LUNS, b""), found.get(PORTS, b"")
    if len(luns) % 9 or len(ports) % 6:
        raise frame.Malformed("LUNS or PORTS")
    return Answer(found[TARGET], bool(info & 0x80), bool(info & 0x40), instance,
                  dict(struct.iter_unpack(">8sB", luns)), [ports[at:at + 6] for at in range(0, len(ports), 6)],
                  int.from_bytes(found[FRAME_MAX], "big"), source)


def discover(link, group, nonce, seconds, target=None, enough=256):
    """All different answers within `seconds`, or `enough` of them; the question is repeated with growing pauses."""
    limit, pause, answers = Limit(seconds), 0.05, {}
    again = 0.0
    while not limit.over() and len(answers) < enough:
        now = time.monotonic()
        if now >= again:
            link.send(BROADCAST, question(group, nonce, target))
            again, pause = now + pause, pause * 2
        wait([link], min(again, limit.end))
        while came := link.receive():
            try:
                answer = parse_answer(came[1], came[0], group, nonce)
            except frame.Malformed:
                continue
            answers[answer.target, answer.instance, answer.address] = answer
    return list(answers.values())
