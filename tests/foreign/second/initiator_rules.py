"""Our initiator in sessions in which the second target lies, or does what is rare; and what a judge sees of an initiator's manners."""

import struct
import time
from unittest import mock

import withheld
from initiator_host import OPEN_AND_KEYED, Heard, case
from judge import Judge
from target import blocks, frames
from target.exchange import Exchange
from target.frames import ASK, DATA, DISCONNECT, ELICITS, PARTS, REPLY
from target.path import Receiver
from verdicts import expect

# A target that gives no sign of life for 200 ms after an UNKNOWN is sought anew (§6.6): the second one must be well within.
SIGN_S = 0.1


@case(*OPEN_AND_KEYED)
def drops_responses_that_make_no_sense(rig):
    """§3.4, §4.1: a response with a reserved field that is not 0 is dropped; so is one of a wrong KIND or with data behind it."""
    real = Exchange.respond

    def respond(self, status, moved, transferable, sense, level=None):
        for body in (struct.pack(">BBHIQHH", 2, 8, 20, 0, 0, 0, 1), struct.pack(">BBHIQHH", 9, 8, 20, 0, 0, 0, 0),
                     struct.pack(">BBHIQHH", 2, 8, 20, 0, 0, 0, 0) + b"behind", struct.pack(">BBHIQHH", 2, 8, 20, 0, 0, 253, 0)):
            self.say(body, level=level)
        real(self, status, moved, transferable, sense, level)
    with mock.patch.object(Exchange, "respond", respond):
        return f"{rig.once(rig.verify())} commands"


@case(("", {"keyed": True}))
def drops_answers_below_the_level(rig):
    """§7.1: a frame below the level of its exchange is dropped."""
    real = Exchange.respond

    def respond(self, status, moved, transferable, sense, level=None):
        for less in (frames.NONE, frames.INTEGRITY):
            if self.level > less:
                self.say(struct.pack(">BBHIQHH", 2, 8, 20, 0, 0, 0, 0), level=less)
        real(self, status, moved, transferable, sense, level)
    with mock.patch.object(Exchange, "respond", respond):
        return f"{rig.once(rig.verify())} commands"


@case(*OPEN_AND_KEYED)
def drops_parts_that_make_no_sense(rig):
    """§4.11: a Parts block with something wrong drops the payload whole."""
    real = Exchange.run

    def run(self):
        good = struct.pack(">BBHIQHH", 2, 8, 20, 0, 0, 0, 0)
        one = bytes((1, 1, 0, 18))
        for head in (bytes((1, 0, 0, 4)), one + bytes(3) + b"\1" + bytes(10), one + bytes(5) + b"\xff" + bytes(8),
                     bytes((2, 1, 0, 18)) + bytes(14), bytes((1, 64, 0, 4)) + bytes(14 * 64)):
            session = self.owner.session
            session.say(session.paths[0], REPLY, head + good, ELICITS | PARTS, level=self.level, xid=self.wire_xid(),
                        place=frames.place(self.tag, 1, 0))
        real(self)
    with mock.patch.object(Exchange, "run", run):
        return f"{rig.once(rig.verify())} commands"


@case(*OPEN_AND_KEYED)
def drops_frames_that_make_no_sense(rig):
    """§3.4: RES, VERSION, the low flag, PHASE without P, unknown commands, damaged trailers, PNs far beyond; each an answer that lies."""
    real = Exchange.run

    def run(self):
        if self.cdb[0] == 0x88:
            lie(self)
        real(self)

    def lie(self):
        session = self.owner.session
        path, sealed = session.paths[0], int(self.level > 0)
        for name, place_bits, version, command, flags, far in (
                ("RES", 1 << 20, 0x20, REPLY, 0, 0), ("VERSION", 0, 0x21, REPLY, 0, 0), ("low flag", 0, 0x20, REPLY, 1, 0),
                ("PHASE", 0, 0x20, REPLY, 0 if sealed else frames.PHASE, 0), ("command", 0, 0x20, 0x30, 0, 0),
                ("far", 0, 0x20, REPLY, 0, 1 << 30), ("trailer", 0, 0x20, REPLY, 0, 0), ("zero", 0, 0x20, REPLY, 0, -1)):
            sender = path.senders[sealed]
            count = 0 if far < 0 else sender.next + far if far else sender.count()
            word = (place_bits | frames.place(self.tag, 1, 0)) << 8 | version
            body = bytes(512)
            flags |= DATA | frames.GOOD
            if sealed:
                flags |= session.sealer.phase() ^ (frames.PHASE if name == "PHASE" else 0) | frames.ENCRYPTED
            head = frames.HEADER.pack(word, sealed << 7 | command, flags, len(body), session.peer_sid, count, self.wire_xid(), 0)
            behind = session.sealer.now.seal(self.level, count, head, body) if sealed else body + frames.crc32c(head + body)
            if name == "trailer":
                behind = behind[:-1] + bytes([behind[-1] ^ 1])
            path.port.send(path.address, head + behind)
    with mock.patch.object(Exchange, "run", run):
        return f"{rig.once(rig.verify())} commands"


@case(*OPEN_AND_KEYED)
def keeps_the_data_that_came_first(rig):
    """§13.3: what came already stays: other bytes for the same place, sent later, change nothing."""
    real = Exchange.queue

    def queue(self, command, off, flags, body, level=None):
        if not flags & DATA or len(body) < 8192:
            return real(self, command, off, flags, body, level)
        real(self, command, 0, DATA, body[:4096])
        real(self, command, 512, DATA, b"\xee" * 3584)
        real(self, command, 4096, flags, body[4096:])
    with mock.patch.object(Exchange, "queue", queue):
        return f"{rig.once(rig.verify())} commands"


@case(*OPEN_AND_KEYED)
def keeps_to_little_credit(rig):
    """§9.2, §13.1: windows of 8 frames and 4 exchanges are kept to."""
    judge = rig.target.watch = Judge()
    with mock.patch.object(Receiver, "grow", lambda self, now, rtt: setattr(self, "window", 8)), \
            mock.patch("target.exchange.Class.limit", lambda self: 4 + self.through | self.top), \
            mock.patch.dict("target.target.OWN", {"exchanges": 4, "frames_initial": 8}):
        report = rig.verify()
    expect(not judge.broken, f"{judge.examples}")
    return f"{report['seconds']:.2f} s, {judge.seen['beyond credit, no Ack']} frames beyond credit"


@case(*((f"{mtu} {name}", {"mtu": mtu} | rig) for mtu in (1500, 9000) for name, rig in OPEN_AND_KEYED))
def keeps_every_rule_that_can_be_seen(rig):
    """Everything that the judge can see of an initiator on a good wire."""
    judge = rig.target.watch = Judge()
    rig.verify()
    overruns = sum(port.overruns() for port in rig.ports)
    expect(overruns == 0, f"{overruns} frames found no room in the second target's receive buffer; {judge.examples}")
    expect(not judge.broken, f"{judge.examples}")
    return f"{dict(judge.seen)}"


@case(*((name, {"mtu": 9000} | rig) for name, rig in OPEN_AND_KEYED))
def long_frames_vanish(rig):
    """§12: long frames vanish from some moment on; both ends fall back to 1500."""
    port = rig.ports[0]

    def dig():
        if len(rig.target.runs) < 12:
            return False
        real = port.fates
        port.fates = lambda way, frame: [] if len(frame[0] if way == "in" else frame) > 1600 else real(way, frame)
        return True
    rig.duties.append(dig)
    report = rig.verify()
    expect(rig.target.counts["sessions"] == 1, "another session")
    return f"{report['seconds']:.2f} s, {rig.once(report)} commands"


@case(*((name, {"drop": 0.05} | rig) for name, rig in OPEN_AND_KEYED))
def repairs_by_window(rig):
    """§10.3: REPAIR window."""
    report = rig.verify(keys=("retransmission=window",))
    return f"{report['seconds']:.2f} s, {rig.once(report)} commands, again: {rig.target.counts['request again']}"


@case(*((name, {"mtu": 9000} | rig) for name, rig in OPEN_AND_KEYED))
def its_port_shrinks(rig):
    """§8.2, §12: the initiator's port takes less from some moment on; it says so (RECEIVES), and work goes on."""
    heard = Heard(rig)

    def shrink():
        if len(rig.target.runs) < 12:
            return False
        rig.net.initiator.run("ip", "link", "set", "eth0", "mtu", "2000")
        return True
    rig.duties.append(shrink)
    report = rig.verify()
    expect(heard.said(ASK, 5), "RECEIVES was never said")
    return f"{report['seconds']:.2f} s, {rig.once(report)} commands"


@case(*OPEN_AND_KEYED)
def forged_unknowns_end_no_session(rig):
    """§6.6: UNKNOWN is a reason to ask for a sign of life, at most once in a second, and no more."""
    heard = Heard(rig)
    forged, turns = [0], [time.monotonic()]

    def forge():
        turns.append(time.monotonic())
        for session in rig.target.sessions.values():
            if forged[0] < 3000:
                path = session.paths[0]
                path.port.send(path.address, frames.outside(DISCONNECT, blocks.block(3, 0, session.sid.to_bytes(4, "big"))))
                forged[0] += 1
        return False
    rig.duties.append(forge)
    report = rig.verify()
    longest = max(after - before for before, after in zip(turns, turns[1:]))
    if rig.target.counts["sessions"] != 1 and longest > SIGN_S:
        raise withheld.Late(f"the second target gave no sign of life for {longest:.2f} s")
    expect(rig.target.counts["sessions"] == 1, f"{rig.target.counts['sessions']} sessions, the target was silent for {longest:.3f} s at most")
    return f"{forged[0]} forged, {len(heard.said(ASK, 1))} PINGs in {report['seconds']:.1f} s"
