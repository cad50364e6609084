"""Single rules that our target keeps: of frames and paths, of discovery and handshakes, and of silence."""

import os
import struct
import time

import withheld
from initiator import blocks, discovery, frame, handshake, scsi
from initiator.handshake import DEFAULTS, Try
from initiator.keys import ENCRYPT, INTEGRITY
from initiator.link import BROADCAST, BadLink, wait
from initiator.workload import Disk, log_in, names, whole_disk
from initiator.watch import PATIENCE_S
from target_host import GROUP, Rig, case, commands_run, ended, transfer
from verdicts import expect
from watching import PASSWORD, PING, PLAIN, SECRET, TUR, watch, write_of

OPEN = {"password": None, "lun": PLAIN, "level": None}
KEYED = {"password": PASSWORD, "lun": SECRET, "level": ENCRYPT}
BOTH = ("without password", OPEN), ("encrypt", KEYED)


@case()
def frames_that_fail_a_check_are_dropped(seed):
    """§3.4: RES, low flag, PHASE and ENCRYPTED without P, VERSION, CMD, PARTS where it may not be."""
    changes = {"RES": (0, 0x10), "low flag": (5, 0x01), "PHASE": (5, 0x40), "ENCRYPTED": (5, 0x20), "VERSION": (3, 0x01), "CMD": (4, 0x02),
               "PARTS on Ask": (5, 0x02)}
    for password in (None, PASSWORD):
        with Rig(PLAIN, password=password) as rig:
            session, _ = watch(rig, password)
            for name, (place, bits) in changes.items():
                pn = session.say(frame.ASK, PING, mangle=lambda header: header.__setitem__(place, header[place] | bits))
                session.listen(0.05)
                expect(not session.was_acknowledged(pn), f"{name} is taken, password {password}")
            pn = session.say(frame.ASK, PING)
            session.listen(0.05)
            expect(session.was_acknowledged(pn), "a right PING is not acknowledged")


@case()
def an_ack_that_cannot_be_ends_a_keyed_session(seed):
    """§8.1, §14: passed over in a session without keys and for the Open space; GOODBYE 3 for the Sealed space."""
    never = lambda kind: blocks.ack(kind, 5000, 0, [(4999, 5000)], 64)
    with Rig(PLAIN) as rig:
        session, disk = watch(rig)
        session.say(frame.ACK, never(1), flags=0)
        expect(disk.do(scsi.test_unit_ready()).good, "the session is over")
    with Rig(PLAIN, password=PASSWORD) as rig:
        session, disk = watch(rig, PASSWORD)
        session.say(frame.ACK, never(1), flags=0)
        expect(disk.do(scsi.test_unit_ready()).good, "the session is over")
        session.say(frame.ACK, never(2), flags=0)
        ended(session, "GOODBYE 3", 2)


@case()
def keeps_the_level_of_an_exchange(seed):
    """§7.1: a frame below the level of its exchange is dropped, one above is taken; Open frames of a keyed session say nothing of it."""
    with Rig(PLAIN, password=PASSWORD) as rig:
        session, disk = watch(rig, PASSWORD)
        slot = session.name(ENCRYPT)
        session.say(frame.REQUEST, write_of(512, 512), level=ENCRYPT, **slot)
        for level, byte in ((INTEGRITY, b"L"), (ENCRYPT, b"M")):
            session.say(frame.REQUEST, byte * 512, flags=frame.ELICITS | frame.DATA, level=level, **slot)
            session.listen(0.05)
        read = disk.read(0, 1)
        disk.settle([read], 5)
        expect(read.data_in == b"M" * 512, f"{bytes(read.data_in[:4])}")
        # On a busy machine something may come again.
        session.calm(0.3)
        before, ran = len(session.heard), commands_run(rig)
        session.say(frame.ASK, PING, level=0)
        session.say(frame.REQUEST, TUR, level=0, **session.name(ENCRYPT))
        session.work(0.1)
        expect(len(session.heard) == before, "an Open frame is answered")
        # By now it has taken them: what answers a PING behind them is acknowledgements about the Sealed space.
        acks = len(session.acks)
        heard = session.listen(0.1)
        expect({(opened.cmd, opened.level > 0) for opened in heard} == {(frame.ACK, True)}, f"an Open frame is answered: {heard}")
        expect({ack.kind for ack in session.acks[acks:]} == {2} and commands_run(rig) == ran, "an Open frame is taken")


@case()
def answers_what_asks_in_unknown_sessions(seed):
    """§6.6: Request, Abort and Ask are answered, nothing else."""
    with Rig(PLAIN) as rig:
        session, _ = watch(rig)
        block, ack = blocks.block(1), blocks.ack(1, 0, 0, [], 64)
        for cmd, payload, answers in ((frame.REQUEST, TUR, 1), (frame.ABORT, block, 1), (frame.ASK, PING, 1), (frame.REPLY, TUR, 0),
                                      (frame.ACK, ack, 0), (frame.DISCONNECT, block, 0)):
            before = len(session.outside)
            session.say(cmd, payload, sid=0x0BADCAFE)
            session.listen(0.05)
            came = session.outside[before:]
            expect(len(came) == answers, f"CMD {cmd:02x}h: {len(came)} answers")
            expect(all(len(data) >= 40 and opened.sid == 0 for opened, data in came), "not as §6.6 says")


@case()
def answers_a_long_hello_and_another_version(seed):
    """§6.2: a HELLO of fewer than 63 bytes is dropped, and a COOKIE no longer; §6.5: REFUSE 7 to another VERSION, 8 at once."""
    with Rig(PLAIN) as rig:
        link = rig.link()
        trying = Try(names(rig), DEFAULTS, None, 5)
        short = trying.block(blocks.HELLO, (0x81, b"backup"))
        heard = said(link, discovery.outside(frame.NEGOTIATE, short))
        expect(len(short) < 63 and not heard, "a short HELLO is answered")
        hello = discovery.outside(frame.NEGOTIATE, trying.hello())
        heard = said(link, hello)
        expect(len(heard) == 1 and len(heard[0]) <= 95, "no COOKIE")
        other = bytearray(hello)
        other[3] = 0x21
        other[-4:] = struct.pack(">I", frame.crc32c(bytes(other[:-4])))
        heard, took = timed(link, *[bytes(other)] * 20)
        most = 9 + int(took / 0.25)
        expect(8 <= len(heard) <= most, f"{len(heard)} answers to 20 frames of another VERSION, {most} at most")
        expect(heard[0][28:48] == struct.pack(">BBH", 7, 7, 27) + bytes(16), heard[0].hex())


def said(link, *frames):
    """What answers frames to everybody, until 0.1 s after the target has taken them all."""
    return timed(link, *frames)[0]


def timed(link, *frames):
    """The same, and how long it took until they were taken: a target takes frames in their order, and the last is a QUESTION."""
    nonce, began, took, heard = os.urandom(16), time.monotonic(), None, []
    for each in (*frames, discovery.question(GROUP, nonce)):
        link.send(BROADCAST, each)
    limit = withheld.Limit(PATIENCE_S)
    while not limit.over():
        wait([link], limit.end)
        while came := link.receive():
            if not answers(*came, nonce):
                heard.append(came[1])
            elif took is None:
                took, limit = time.monotonic() - began, withheld.Limit(0.1)
    expect(took is not None, f"a QUESTION is not answered within {PATIENCE_S} s")
    return heard, took


def answers(source, data, nonce):
    """Whether a frame is the ANSWER to the QUESTION with this nonce."""
    try:
        return bool(discovery.parse_answer(data, source, GROUP, nonce))
    except frame.Malformed:
        return False


@case(waits=True)
def refuses_parameters_that_cannot_be(seed):
    """§4.10: REFUSE 2 to a value that is not legal, and to LEVELS that leave nothing; other bits of LEVELS mean nothing."""
    wrong = {"frame_max": 1400, "frames_initial": 0, "levels": 0, "exchanges": 0, "paths": 0, "repair": 2, "burst_max": 0, "lost_after": 0}
    with Rig(PLAIN) as rig:
        link = rig.link()
        for name, value in [*wrong.items(), ("exchanges", 600), ("levels", 8)]:
            heard = started(rig, link, DEFAULTS._replace(**{name: value}))
            expect([each[:2] for each in heard] == [bytes((blocks.REFUSE, 2))], f"{name} {value}: {[each[:2] for each in heard]}")
        for value in (9, 15):
            heard = started(rig, link, DEFAULTS._replace(levels=value))
            expect(len(heard) == 1 and heard[0][0] == blocks.ACCEPT, f"LEVELS {value}: {heard}")
            chosen = handshake.parse_parameters(blocks.items(heard[0][20:], range(0x81, 0x90))[handshake.PARAMETERS])
            expect(chosen.levels == 1, f"LEVELS {value}: chosen {chosen.levels}")


@case()
def a_start_whose_form_is_wrong_is_silence(seed):
    """§3.4: items that are missing, in the wrong place, or that make no sense."""
    changes = {"no PARAMETERS": lambda pairs: [pair for pair in pairs if pair[0] != handshake.PARAMETERS],
               "COOKIE not last": lambda pairs: [pairs[-1], *pairs[:-1]],
               "SID 0": lambda pairs: [(kind, bytes(4) if kind == handshake.SID else value) for kind, value in pairs],
               "capitals": lambda pairs: [(kind, value.upper() if kind == handshake.INITIATOR else value) for kind, value in pairs]}
    with Rig(PLAIN) as rig:
        link = rig.link()
        for name, change in changes.items():
            heard = started(rig, link, DEFAULTS, change)
            expect(not heard, f"{name}: {heard}")
        expect(len(started(rig, link, DEFAULTS)) == 1, "a right START is not answered")


def started(rig, link, offer, change=None):
    """Blocks that answer a START with a good cookie and this offer, whose items `change` may change."""
    trying = Try(names(rig), offer, None, 5)
    hello = discovery.outside(frame.NEGOTIATE, trying.hello())
    cookie = negotiated(link, hello)[0]
    trying.take_cookie(blocks.items(cookie[20:], range(0x81, 0x90))[handshake.COOKIE], None)
    start = trying.start
    if change:
        pairs = change([(start[at], start[at + 3:end]) for at, end in item_places(start)])
        start = trying.block(blocks.START, *pairs)
    return negotiated(link, discovery.outside(frame.NEGOTIATE, start))


def negotiated(link, step):
    """The blocks that answer a step, among the frames of sessions that may be there."""
    return [discovery.open_outside(each, frame.NEGOTIATED) for each in said(link, step) if each[4] == frame.NEGOTIATED]


def item_places(block):
    """Where the items of a step begin and end."""
    at = 20
    while at < len(block):
        end = at + 3 + int.from_bytes(block[at + 1:at + 3], "big")
        yield at, end
        at = end


@case(*BOTH, waits=True)
def two_paths_and_one_cable_is_cut(seed, password, lun, level):
    """§8.2, §8.3: a second path carries its share, also when the first one is cut in mid-transfer; LEAVE is acknowledged."""
    with Rig(lun, cables=2, password=password) as rig:
        first, second = rig.link("eth0"), rig.link("eth1")
        session = log_in(rig, first, password, offer={"lost_after": 3000})
        peer = discovery.discover(second, rig.group.encode(), os.urandom(16), 1.5, enough=1)[0].address
        added = session.add_path(1, second, peer)
        session.run(lambda: added.up, 5)
        disk, cut = Disk(session, level=level), []
        expect(disk.do(scsi.test_unit_ready()).good, "TEST UNIT READY")

        def cut_cable(over):
            if over >= 25 and not cut:
                cut.append(rig.net.initiator.run("ip", "link", "set", "eth0", "down"))
        before = commands_run(rig)
        count = whole_disk(disk, seed, total=2 << 20, during=cut_cable)
        expect(commands_run(rig) - before == count, "commands ran twice")
        expect(cut and min(sum(out.next for out in path.out) for path in session.paths.values()) > 50, "one path carried nothing")
        expect(session.goodbye(), "no DONE")


@case(waits=True)
def odd_parameters_on_a_bad_cable(seed):
    """§4.10: 3 exchanges, no unsolicited data, small bursts, repair by window; and a bad cable."""
    offer = {"exchanges": 3, "first_burst": 0, "burst_max": 5000, "repair": 1, "frames_initial": 1}
    with Rig(PLAIN) as rig:
        session = log_in(rig, rig.link(kind=BadLink, seed=seed), offer=offer, seconds=20)
        chosen = session.chosen._asdict()
        expect(all(chosen[name] == offer[name] for name in ("exchanges", "first_burst", "burst_max", "repair")), f"{chosen}")
        return transfer(rig, session, Disk(session), seed, total=1 << 20)


@case(waits=True)
def silence_ends_a_session(seed):
    """§10.4: PING after half of LOST AFTER; the end without a word; then UNKNOWN."""
    with Rig(PLAIN) as rig:
        session, _ = watch(rig, offer={"lost_after": 2000})
        # The target counts from the last frame that it was sent, and the kernel knows when its own came.
        link, said_at, pings = session.paths[0].link, [], []
        link.tap = lambda *_: said_at.append(time.time())
        link.stamps()
        session.calm(0.05)
        session.listen(0.05)
        session.calm(0.05)
        # What it waits for a processor makes it late.
        began, waits, limit = said_at[-1], withheld.Waits(lambda: [rig.server.pid]), withheld.Limit(3)
        while not limit.over():
            if came := link.receive():
                expect(came[1][4] == frame.ASK, f"{came[1].hex()}")
                pings.append((link.came_at - began, waits()))
            time.sleep(0.001)
        told = "PINGs after " + ", ".join(f"{at:.2f} s ({late:.3f} s without a processor)" for at, late in pings)
        expect(pings and 0.8 < pings[0][0] < 1.2 + pings[0][1] and pings[-1][0] < 2.2 + pings[-1][1], told)
        expect(not rig.ask("sessions")["hyperscsi"], "the session lives")
        link.tap = None
        session.paths[0].heard_at = time.monotonic()
        session.control(frame.ASK, PING)
        ended(session, "UNKNOWN")


@case(*BOTH, waits=True)
def into_silence_go_small_probes_only(seed, password, lun, level):
    """§10.2: from the third timeout on, two frames of 1500 bytes at most each time, and nothing else."""
    with Rig(lun, mtu=9000, password=password) as rig:
        session, disk = watch(rig, password, level)
        session.run(lambda: session.paths[0].mtu == 9000, 5)
        disk.settle([disk.write(0, bytes(32 << 10))], 5)
        disk.settle([disk.read(0, 64) for _ in range(4)], 5)
        came = [(at, size) for at, size, _ in unanswered(session, disk, scsi.read(0, 64), 32 << 10)]
        flight = next((count for count in range(len(came)) if sum(size for _, size in came[:count]) > 32 << 10), len(came))
        answer, again = came[:flight], came[flight:]
        if all(size <= 1500 for _, size in answer):
            raise withheld.Late("the target has fallen back to short frames before it is judged")
        # The third timeout shows by its frames: of the two before, two each carry as much as the path takes.
        third = next((at for at, size in again if size == 1500), None)
        expect(third is not None, f"no probe of 1500 bytes: {came[-3:]}")
        expect(sum(size > 1500 for _, size in again) <= 4, f"more than two timeouts with long frames: {came}")
        if again[0][0] > 0.5:
            raise withheld.Late(f"round trips were so long that the first timeout came after {again[0][0]:.2f} s")
        return probes_only([each for each in again if each[0] >= third])


@case(*BOTH, waits=True)
def one_message_is_probed_with_one_frame(seed, password, lun, level):
    """§10.2: a second frame goes only if there is more to say."""
    with Rig(lun, password=password) as rig:
        session, disk = watch(rig, password, level)
        came = unanswered(session, disk, scsi.test_unit_ready(), 0)
        expect(len(came) >= 10 and {cmd for _, _, cmd in came} == {frame.REPLY}, f"{came}")
        late = [at for at, _, _ in came if at > 0.05]
        expect(min(then - at for at, then in zip(late, late[1:])) > 0.01, f"two at once: {came}")


def probes_only(late):
    """Judges (seconds, bytes) of what is sent into silence from the third timeout on. That is 4 PTO after the one before and the next
    8 PTO later, and a PTO has 500 µs at least: so three frames span 4 ms. Timeouts of 64 ms are reached within half a second."""
    last = [each for each in late if each[0] > 0.5]
    expect(len(last) >= 10, f"{len(last)} probes once timeouts are as long as they get")
    expect(max(size for _, size in late) <= 1500, f"{late}")
    for frames, span in ((late, 0.003), (last, 0.01)):
        crowds = [frames[first:first + 3] for first in range(len(frames) - 2) if frames[first + 2][0] - frames[first][0] < span]
        expect(not crowds, f"more than two frames at once: {crowds}")
    return f"{len(late)} probes, {len(last)} of them after half a second"


def unanswered(session, disk, cdb, data_in_len):
    """What comes in answer to a command in 1.5 s or more in which nothing more is said: (seconds, bytes, command) of each frame."""
    disk.begin(cdb, data_in_len=data_in_len)
    session.begin()
    session.pump(time.monotonic())
    link, began, came = session.paths[0].link, time.monotonic(), []
    link.stamps()
    # As the kernel has it: this process may be late.
    offset = time.time() - time.monotonic()
    # A busy machine may let them come more slowly.
    while time.monotonic() < began + 1.5 or len(came) < 30 and time.monotonic() < began + 10:
        while got := link.receive():
            came.append((round(link.came_at - offset - began, 4), len(got[1]), got[1][4] & 0x7F))
        time.sleep(0.0005)
    return [each for each in came if each[2] != frame.ACK]
