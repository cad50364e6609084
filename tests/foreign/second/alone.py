"""The second implementation by itself: the document's vectors at both ends, and what no command can make the second target do: giving
up, task management, order, new keys of the other end."""

import os
import struct
import types

import cases
import initiator.crc
import initiator.vectors
import servers
import target.vectors
from initiator import scsi
from initiator.exchange import ClassOf, Exchange
from target import frames
from target.disk import Disk
from target.exchange import Class, later
from target.frames import ABORT, DATA, ENCRYPT, ENCRYPTED, REPLY, REQUEST, Drop, Part
from target.seal import TO_TARGET, Opener, Sealer, first_secret
from target.target import Group
from verdicts import expect

WRITE, READY = 0x2A, 0x00


def check(function):
    """Keeps a case that yields (name, whether it is right)."""
    def judged(seed):
        results = list(function())
        wrong = [name for name, right in results if not right]
        expect(results and not wrong, f"wrong: {', '.join(wrong)}")
        return f"{len(results)} right"
    judged.__name__ = function.__name__
    cases.add("alone", judged, "", {}, False)
    return judged


@check
def knows_the_vectors_of_the_document():
    with open(os.path.join(servers.ROOT, "docs", "hyperscsi.md"), encoding="utf-8") as file:
        document = file.read()
    for end, judged in (("initiator", initiator.vectors.judged), ("target", target.vectors.judged)):
        yield from ((f"{end}: {name}", right) for name, right in judged(document))


@check
def knows_a_checksum_with_and_without_a_library():
    """§3.3, as RFC 3720 §B.4 prints it; where the library is, the slow way must not fall into oblivion."""
    for length in (0, 1, 2, 9, 48, 1499, 1500):
        data = bytes(range(1, length + 1)) if length < 256 else os.urandom(length)
        want = initiator.crc.stepped(data)
        made = initiator.crc.crc32c(data), *(int.from_bytes(way(data), "big") for way in (frames.crc32c, frames.crc32c_by_words))
        yield f"{length} bytes", set(made) == {want}
    yield "RFC 3720", initiator.crc.crc32c(bytes(range(32))) == 0x46DD794E


class Nobody:
    """As much of a session as a class of exchanges needs; what it would send is kept in `said`."""

    def __init__(self):
        self.choice = {"exchanges": 8, "first_burst": 8192, "burst_max": 4096}
        self.group = Group(b"lab", Disk(1 << 20))
        self.least_protected, self.said, self.runs = 0, [], []
        self.target = types.SimpleNamespace(ran=lambda exchange: self.runs.append(exchange.xid), counts={"request again": 0})

    def queue(self, piece):
        self.said.append((piece.xid, piece.command, bytes(piece.body[:2])))


def command(xid, opcode, after=0, attribute=1, out=0, unasked=0, data=b"", tag=None):
    cdb = struct.pack(">BxIxHx", opcode, 0, max(out // 512, 1))
    head = struct.pack(">BBHI8sIIIHH", 1, attribute, 32 + len(cdb), after, bytes(8), 65536, out, unasked, len(cdb), 0)
    return Part(frames.place(xid % 8 if tag is None else tag, 1, 0), 0, xid, 0, head + cdb + data)


def manage(xid, function, referenced):
    body = struct.pack(">BBHI8sI", 2, function, 20, xid - 1, bytes(8), referenced)
    return Part(frames.place(xid % 8, 1, 0), 0, xid, 0, body)


def data(xid, off, body):
    return Part(frames.place(xid % 8, 1, 0), DATA, xid, off, body)


def give_up(xid):
    return Part(frames.place(xid % 8, 1, 0), 0, xid, 0, bytes((1, 0, 0, 4)))


def dropped(function, *arguments):
    try:
        function(*arguments)
    except Drop:
        return True
    return False


@check
def runs_a_request_once():
    """§13.6."""
    session = Nobody()
    kind = Class(session, 0)
    for _ in range(3):
        kind.request(command(1, READY), 0)
    yield "the same Request again does not run again", session.runs == [1]
    kind.slots.clear()
    yield "a Request of an exchange that is over is dropped", dropped(kind.request, command(1, READY), 0) and session.runs == [1]
    yield "a Request beyond the window is dropped", dropped(kind.request, command(5000, READY), 0)


@check
def keeps_the_order_of_tasks():
    """§13.5: AFTER; what comes before waits for it."""
    session = Nobody()
    kind = Class(session, 0)
    kind.request(command(3, READY, after=2, attribute=2), 0)
    kind.request(command(2, READY, after=0), 0)
    early = list(session.runs)
    kind.request(command(1, READY), 0)
    yield "ORDERED waits for every exchange up to AFTER", early == [2] and session.runs == [2, 1, 3]


@check
def takes_data_that_it_asked_for():
    """§13.2, §13.3."""
    session = Nobody()
    kind = Class(session, 0)
    kind.request(data(1, 512, b"b" * 512), 0)
    kind.request(command(1, WRITE, out=1024, unasked=1024, data=b"a" * 512), 0)
    yield "data may overtake its Request", session.group.disk.data[:1024] == b"a" * 512 + b"b" * 512
    kind.request(command(2, WRITE, out=2048, unasked=512, data=b"c" * 512), 0)
    yield "TRANSFER READY for the rest", session.said[-1] == (2, REPLY, b"\1\0")
    kind.request(data(2, 512, b"d" * 1000), 0)
    kind.request(data(2, 600, b"e" * 1448), 0)
    kept = bytes(session.group.disk.data[512:1512]) == b"d" * 1000 and session.group.disk.data[1512:2048] == b"e" * 536
    yield "what came already stays", kept
    yield "data that nobody asked for is dropped", dropped(kind.request, data(3, 8192, b"f"), 0)


@check
def gives_up_and_manages_tasks():
    """§13.7, §13.8."""
    session = Nobody()
    kind = Class(session, 0)
    kind.give_up(give_up(1), 0)
    yield "GIVE UP of what never came: GIVEN UP 0", session.said == [(1, ABORT, b"\2\0")]
    kind.request(command(1, READY), 0)
    yield "and it never runs", session.runs == []
    kind.request(command(2, WRITE, out=1024), 0)
    kind.give_up(give_up(2), 0)
    yield "GIVE UP of what runs: GIVEN UP 1", session.said[-1] == (2, ABORT, b"\2\1")
    kind.request(command(3, WRITE, out=1024), 0)
    kind.request(manage(4, 1, 3), 0)
    yield "ABORT TASK: MANAGED 0 and GIVEN UP 1", set(session.said[-2:]) == {(4, REPLY, b"\3\0"), (3, ABORT, b"\2\1")}
    kind.request(manage(5, 1, 3), 0)
    yield "ABORT TASK of no task: MANAGED 1", session.said[-1] == (5, REPLY, b"\3\1")
    kind.request(command(6, READY), 0)
    said = len(session.said)
    kind.give_up(give_up(6), 0)
    yield "GIVE UP of what had ended changes nothing", len(session.said) == said
    kind.request(command(7, WRITE, out=16384, unasked=9000), 0)
    yield "more than FIRST BURST unasked: GIVEN UP 3", session.said[-1] == (7, ABORT, b"\2\3")
    yield "XIDs turn over", later(2**31 - 1, 1) == 1


@check
def leaves_slots_for_functions():
    """§13.1."""
    for exchanges, commands, aborts in ((1, 1, 1), (2, 1, 2), (4, 3, 4), (8, 6, 7), (64, 56, 60), (512, 504, 508)):
        names = ClassOf(False, exchanges)

        def begin(function=None):
            exchange = Exchange(lambda after: b"", 0, None if function else 1, function=function)
            tag = names.place(exchange)
            return tag is not None and not names.name(exchange, tag)
        begun = [sum(iter(lambda: begin(function), False)) for function in (None, scsi.ABORT_TASK, scsi.LUN_RESET)]
        yield f"{exchanges} slots", begun == [commands, aborts - commands, exchanges - aborts]


@check
def requests_that_begin_nothing():
    """§13.2."""
    session = Nobody()
    kind = Class(session, 0)
    last_words = lambda: (session.said[-1], kind.through)
    for xid, part in enumerate((command(1, READY, after=1), command(2, READY, attribute=0), command(3, READY, tag=8)), 1):
        yield f"nonsense {xid} is dropped", dropped(kind.request, part, 0)
        yield f"nonsense {xid}: GIVEN UP 3, and delivered", last_words() == ((xid, ABORT, b"\2\3"), xid)
    said = len(session.said)
    yield "the same again is over", dropped(kind.request, command(1, READY, after=1), 0) and len(session.said) == said
    kind.request(command(4, WRITE, out=1024), 0)
    yield "a slot that is held", dropped(kind.request, command(5, READY, tag=4), 0) and last_words() == ((5, ABORT, b"\2\3"), 5)
    kind.request(command(6, READY, after=5), 0)
    yield "what comes behind goes on", session.runs == [4, 6]


@check
def follows_new_keys():
    """§7.4, with an order that changes on the way."""
    secret = first_secret(bytes(64), bytes(64), TO_TARGET)
    sealer, opener, now = Sealer(secret, 10), Opener(secret), 100.0
    made = []
    for pn in range(1, 41):
        sealer.change(now + pn / 10)
        head = frames.header(0, 0x80 | REQUEST, sealer.phase() | ENCRYPTED, 3, 1, pn)
        made.append((frames.parse(head + sealer.seal(ENCRYPT, pn, head, b"abc")), now + pn / 10))
        sealer.heard(sealer.now.number, now + pn / 10)
    made[10], made[11] = made[11], made[10]
    plain = [opener.open(frame, moment, 0.4) for frame, moment in made]
    yield "new keys are followed", plain == [b"abc"] * 40 and sealer.changes == 3 and opener.now.number == 3
    before = opener.now
    frame = made[-1][0]
    frame.flags ^= frames.PHASE
    yield "a frame that does not open changes nothing", dropped(opener.open, frame, now + 9, 0.4) and opener.now is before
