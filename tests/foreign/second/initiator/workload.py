"""What the cases have in common: names, sessions, and the whole-disk test."""

import random
from collections import namedtuple

from withheld import Limit

from . import scsi
from .handshake import DEFAULTS, Handshake

from .session import Session

Names = namedtuple("Names", "group target initiator isid")
INITIATOR, ISID = b"iqn.2026-01.org.example:host", bytes.fromhex("800000000001")
ACK_DELAY_US, FRAMES_INITIAL = 1000, 64
BLOCK, LONGEST = 512, 256 << 10
UNIT_ATTENTION = 6


def names(rig, isid=ISID):
    return Names(rig.group.encode(), rig.target_name.encode(), INITIATOR, isid)


def log_in(rig, link, password=None, seconds=30.0, isid=ISID, offer=None, kind=Session, **options):
    """A session over one link. The password is stretched here, which takes a busy machine many seconds."""
    told = {"frame_max": link.mtu, "frames_initial": FRAMES_INITIAL, "ack_delay_max": ACK_DELAY_US}
    offered = DEFAULTS._replace(**(told | (offer or {})))
    return kind(link, Handshake(link, names(rig, isid), offered, password).run(seconds), **options)


class Disk:
    """A logical unit as a caller sees it."""

    def __init__(self, session, number=0, level=None):
        self.session, self.lun, self.level = session, scsi.lun(number), level

    def begin(self, cdb, **options):
        return self.session.command(self.lun, cdb, level=self.level, **options)

    def do(self, cdb, seconds=10.0, **options):
        """A command from begin to end; UNIT ATTENTION, which every new nexus has, is taken and the command said again."""
        exchange = self.begin(cdb, **options)
        self.session.run(lambda: exchange.over, seconds)
        attention = exchange.response and exchange.response.status == 2 and (scsi.sense(exchange.response) or (0,))[0] == UNIT_ATTENTION
        return self.do(cdb, seconds, **options) if attention else exchange

    def write(self, block, data, **options):
        return self.begin(scsi.write(block, len(data) // BLOCK), data_out=data, **options)

    def read(self, block, count):
        return self.begin(scsi.read(block, count), data_in_len=count * BLOCK)

    def settle(self, exchanges, seconds):
        self.session.run(lambda: all(exchange.over for exchange in exchanges), seconds)
        bad = [exchange for exchange in exchanges if not exchange.good]
        if bad:
            raise AssertionError(f"{len(bad)} of {len(exchanges)} commands failed: {bad[0].response} given up {bad[0].given_up}")


def pieces(choice, total):
    """The whole of `total` bytes in commands of 1 block to 256 KiB, in a shuffled order."""
    found, place = [], 0
    while place < total:
        longest = choice.choice((1, 8, 64, LONGEST // BLOCK)) * BLOCK
        length = min(choice.randint(1, longest // BLOCK) * BLOCK, total - place)
        found.append((place, length))
        place += length
    choice.shuffle(found)
    return found


def in_depth(session, begin, todo, depth, seconds, during=None):
    """Keeps `depth` commands under way until all are over."""
    limit, under_way, over = Limit(seconds), [], []
    todo = list(reversed(todo))
    while todo or under_way:
        while todo and len(under_way) < depth:
            under_way.append(begin(*todo.pop()))
        session.run(lambda: any(exchange.over for exchange in under_way), max(0.0, limit.left()))
        over += [exchange for exchange in under_way if exchange.over]
        under_way = [exchange for exchange in under_way if not exchange.over]
        if during:
            during(len(over))
    return over


def whole_disk(disk, seed, total=8 << 20, depth=12, seconds=60.0, during=None):
    """Writes random data over the whole disk, reads it back in other pieces, and compares. How many commands that were."""
    choice = random.Random(seed)
    data, session = choice.randbytes(total), disk.session
    begin = lambda place, length: disk.write(place // BLOCK, data[place:place + length], unsolicited=choice.choice((None, 0, length // 2)))
    wrote = in_depth(session, begin, pieces(choice, total), depth, seconds, during)
    disk.settle(wrote, 1)
    parts = pieces(choice, total)
    places = {}

    def begin_read(place, length):
        exchange = disk.read(place // BLOCK, length // BLOCK)
        places[exchange] = place
        return exchange
    read = in_depth(session, begin_read, parts, depth, seconds, during)
    disk.settle(read, 1)
    wrong = [place for exchange, place in places.items() if exchange.data_in != data[place:place + len(exchange.data_in)]]
    if wrong:
        raise AssertionError(f"{len(wrong)} pieces are wrong, the first at byte {wrong[0]}")
    return len(wrote) + len(read)
