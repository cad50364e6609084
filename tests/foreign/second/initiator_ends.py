"""Our initiator where sessions end, or seem to: rules that the second target breaks, GOODBYE, and silence."""

import signal
import struct
import subprocess
import time
from unittest import mock

import servers
import withheld
from initiator_host import OPEN_AND_KEYED, Heard, case, last_words
from target.blocks import block
from target.exchange import Exchange
from target.frames import ACK, DATA, DISCONNECT, ELICITS, REPLY
from target.session import DONE, GOODBYE
from verdicts import expect

READ_16, WRITE_16 = 0x88, 0x8A
# In so many sessions the target breaks a rule, before it behaves.
WRONG_SESSIONS = 5
# For how long a GOODBYE is said again after the first, and how long after the last: §14 has it answered for 1 s, and on a busy machine
# the answer takes its time.
ANSWERED_S, PAUSE_S = 0.6, 0.1
# For how long DONE is repeated at most, until our acknowledgement is there.
REPEATED_S = 0.1
# Timeouts are as long as they get by then, and this many probes must come from then on, within so long a silence.
LONGEST_BY_S, PROBES, SILENT_MAX_S = 0.5, 10, 10
# Longest that whoever is interrupted may take to end, seconds.
INTERRUPTED_MAX_S = 5
# Where a frame has its SID: questions of discovery have none.
SID = slice(8, 12)


class Began:
    """When sessions began, and how long processors had been withheld by then."""

    def __init__(self, target):
        self.at, self.real = [], target.begin
        target.begin = self.begin

    def begin(self, session):
        self.at.append((time.monotonic(), withheld.total()))
        self.real(session)

    def pauses(self):
        """How long each session began after the one before, and how much of that the machine withheld at most."""
        return [(after[0] - before[0], after[1] - before[1]) for before, after in zip(self.at, self.at[1:])]


def expect_broken_off(rig, heard, began):
    """§14: every wrong session ended with GOODBYE 3, and each try for another came later: at once, then after 50 ms, twice that, …"""
    reasons = [each[2][1] for each in heard.said(DISCONNECT, GOODBYE)]
    expect(reasons.count(3) >= WRONG_SESSIONS, f"GOODBYE {reasons} for {WRONG_SESSIONS} broken rules")
    pauses = began.pauses()[:WRONG_SESSIONS]
    expect(len(pauses) == WRONG_SESSIONS, f"{len(pauses) + 1} sessions")
    least = [0] + [0.045 * 2**turn for turn in range(WRONG_SESSIONS - 1)]
    told = "pauses of " + ", ".join(f"{pause:.3f}" for pause, _ in pauses) + " s"
    expect(all(pause >= low for (pause, _), low in zip(pauses, least)), told)
    first, late = pauses[0]
    expect(first < 1 + late, f"the first pause was {first:.2f} s, {late:.2f} s of it without a processor")
    return told


@case(*OPEN_AND_KEYED, waits=True)
def ends_a_session_with_data_beyond_its_bounds(rig):
    """§13.3, §14: Data-In beyond DATA-IN LEN."""
    heard, began, real = Heard(rig), Began(rig.target), Exchange.run

    def run(self):
        if self.cdb[0] == READ_16 and rig.target.counts["sessions"] <= WRONG_SESSIONS:
            self.queue(REPLY, self.in_len - 100, DATA, bytes(200))
        real(self)
    rig.disk.data[:1 << 16] = bytes(range(256)) * 256
    with mock.patch.object(Exchange, "run", run):
        result = rig.ask("read", "--length", "64K", rig.url())
    expect(result.stdout == rig.disk.data[:1 << 16], "other bytes came")
    return expect_broken_off(rig, heard, began)


@case(*OPEN_AND_KEYED, waits=True)
def ends_a_session_with_a_transfer_ready_beyond_its_bounds(rig):
    """§13.3, §14: TRANSFER READY at DATA-OUT LEN."""
    heard, began = Heard(rig), Began(rig.target)
    wrong = lambda said, out_len: (said[0] + 9, out_len, 512) if rig.target.counts["sessions"] <= WRONG_SESSIONS else said
    with more_transfer_ready(wrong):
        rig.ask("write", "--write", rig.url(), data=b"\x5a" * (256 << 10))
    expect(rig.disk.data[:256 << 10] == b"\x5a" * (256 << 10), "other bytes are on the disk")
    return expect_broken_off(rig, heard, began)


@case(*OPEN_AND_KEYED)
def a_transfer_ready_that_comes_again_or_overlaps_does_no_harm(rig):
    """§13.3: the same NUMBER again is the same request; requests that overlap need not be noticed."""
    for more in (lambda said, _: said, lambda said, _: (said[0] + 9, *said[1:])):
        with more_transfer_ready(more):
            rig.verify()
    expect(rig.target.counts["sessions"] == 2, f"{rig.target.counts['sessions']} sessions")


def more_transfer_ready(change):
    """Behind each TRANSFER READY goes another: what `change` makes of (NUMBER, OFFSET, LENGTH) and DATA-OUT LEN."""
    real = Exchange.say

    def say(self, body, command=REPLY, level=None):
        real(self, body, command, level)
        if command == REPLY and body[0] == 1 and len(body) == 16:
            real(self, block(1, 0, struct.pack(">III", *change(struct.unpack(">III", body[4:]), self.out_len))), command, level)
    return mock.patch.object(Exchange, "say", say)


@case(*OPEN_AND_KEYED)
def an_ack_that_cannot_be_ends_a_keyed_session(rig):
    """§8.1, §14: GOODBYE 3 and another session; without keys it is passed over."""
    heard = Heard(rig)

    def lie():
        if len(rig.target.runs) < 12:
            return False
        session = next(iter(rig.target.sessions.values()))
        path, sealed = session.paths[0], int(session.keyed)
        receiver = path.receivers[sealed]
        fields = struct.pack(">QIIQII", path.senders[sealed].next + 4000, 0, 1, receiver.limit, session.classes[sealed].limit(), 0)
        session.say(path, ACK, block(2 if sealed else 1, 0, fields), 0)
        return True
    rig.duties.append(lie)
    rig.verify()
    reasons = [each[2][1] for each in heard.said(DISCONNECT, GOODBYE)]
    expect((3 in reasons) == rig.keyed, f"GOODBYE {reasons}")
    expect(rig.target.counts["sessions"] == 1 + rig.keyed, f"{rig.target.counts['sessions']} sessions")


@case(*OPEN_AND_KEYED)
def goodbye_1_is_told_and_nobody_comes_back(rig):
    """§6.6, §14: whoever was replaced says so to its user, and does not come back by itself."""
    leaves(rig, 1)
    result = rig.ask("verify", "--full", "--write", rig.url(), good=False)
    expect(result.returncode and b"another initiator with the same name and ISID took the place" in result.stderr,
           f"exit code {result.returncode}: {last_words(result)}")
    expect(rig.target.counts["sessions"] == 1, f"came back {rig.target.counts['sessions'] - 1} times")


@case(*OPEN_AND_KEYED)
def goodbye_1_is_answered(rig):
    """§14: by DONE, though nothing comes behind it."""
    heard, _ = Heard(rig), leaves(rig, 1)
    rig.ask("verify", "--full", "--write", rig.url(), good=False)
    limit = withheld.Limit(0.5)
    while not heard.said(DISCONNECT, DONE):
        expect(not limit.over(), "no DONE")
        time.sleep(0.01)


@case(*((f"GOODBYE {why}, {name}", rig | {"why": why, "size": 4 << 20}) for why in (0, 2) for name, rig in OPEN_AND_KEYED), waits=True)
def goodbye_is_answered_each_time(rig, why):
    """§14: DONE, and again for 1 s when GOODBYE comes again; another session goes on with the work."""
    heard = Heard(rig)
    said = leaves(rig, why, heard)
    report = rig.ask("verify", "--time", "2", "--write", "--seed", rig.seed, rig.url())
    expect(report.returncode == 0 and rig.target.counts["sessions"] == 2, f"{rig.target.counts['sessions']} sessions")
    done = [(each[0], each[5]) for each in heard.said(DISCONNECT, DONE)]
    # How soon no clause says; the next GOODBYE waits for it.
    answers = [[each for each in done if first <= each[0] < last] for first, last in zip(said, [*said[1:], said[0] + 1.5])]
    told = f"DONE after {[at - said[0] for at, _ in done]} s, GOODBYE after {[at - said[0] for at in said]} s"
    late = withheld.total() - said.waited[-1]
    if not all(answers) and said[-1] - said[0] + late > 1:
        raise withheld.Late(f"a GOODBYE {said[-1] - said[0]:.2f} s after the first may have come {late:.2f} s later")
    if len(said) == 1 and answers[0]:
        (first, waited), = answers[0][:1]
        late = waited - said.waited[0]
        # One that came soon enough was to be followed by another GOODBYE: the second target was too late to say it.
        if first - said[0] < ANSWERED_S - PAUSE_S + late:
            raise withheld.Late(f"the first DONE came after {first - said[0]:.2f} s, {late:.2f} s of it without a processor")
    expect(len(said) >= 2 and all(answers), told)
    # An acknowledgement takes its time, and what the machine withholds from both ends.
    repeated = [each[-1][0] - each[0][0] - (each[-1][1] - each[0][1]) for each in answers]
    again = sum(map(len, answers)) != len(done) or max(repeated) > REPEATED_S
    expect(not again, f"DONE was acknowledged, and came again: {told}")


class Said(list):
    """When something was said; and how long processors had been withheld by then."""

    def __init__(self):
        super().__init__()
        self.waited = []

    def say(self, now):
        self.append(now)
        self.waited.append(withheld.total())


def leaves(rig, why, heard=None):
    """After 12 commands the session ends with GOODBYE `why`, which is said again when DONE was heard, for as long as it is surely
    answered. When it was said, and how long processors had been withheld by then."""
    said, session = Said(), []

    def leave():
        now = time.monotonic()
        if not said:
            if len(rig.target.runs) >= 12:
                session.append(next(iter(rig.target.sessions.values())))
                said.say(now)
                session[0].end(why)
            return False
        if heard is None or now - said[0] > ANSWERED_S:
            return True
        if now - said[-1] > PAUSE_S and any(each[0] > said[-1] for each in heard.said(DISCONNECT, DONE)):
            said.say(now)
            session[0].say(session[0].paths[0], DISCONNECT, block(GOODBYE, why), ELICITS)
        return False
    rig.duties.append(leave)
    return said


@case(*OPEN_AND_KEYED, waits=True)
def who_is_interrupted_says_goodbye(rig):
    """§14: GOODBYE 0, though a command is out that was never answered."""
    heard, held, real = Heard(rig), [], Exchange.run

    def run(self):
        if self.cdb[0] == READ_16:
            held.append(self)
        else:
            real(self)
    with mock.patch.object(Exchange, "run", run):
        reader = subprocess.Popen(rig.net.initiator.inside(servers.Targe.binary, "read", "--length", "64K", rig.url()),
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=servers.die_with_parent)
        withheld.count(reader.pid)
        limit = withheld.Limit(INTERRUPTED_MAX_S)
        while not held:
            expect(not limit.over(), "no READ came")
            time.sleep(0.01)
        reader.send_signal(signal.SIGINT)
        began = time.monotonic()
        printed, told = rig.told(reader, None, INTERRUPTED_MAX_S)
    took = time.monotonic() - began
    expect(reader.returncode != 0 and not printed, f"exit code {reader.returncode}, {len(printed)} bytes")
    # The target takes what was sent in its own time.
    limit = withheld.Limit(INTERRUPTED_MAX_S)
    while not heard.said(DISCONNECT, GOODBYE):
        expect(not limit.over(), "no GOODBYE")
        time.sleep(0.01)
    reasons = {each[2][1] for each in heard.said(DISCONNECT, GOODBYE)}
    expect(reasons == {0}, f"GOODBYE {reasons}")
    return f"after {took:.2f} s: {told.decode().strip()}"


def probes(came):
    """What came from the third timeout on: it shows by its frames where those before carry as much as the path takes. Else it is long
    over after 0.3 s, as timeouts begin with a few milliseconds, and double."""
    first = next((at for at, size in came if size > 1500), 0)
    third = next((at for at, size in came if size == 1500 and at > first > 0), 0.3)
    return [each for each in came if each[0] >= third]


@case(*((name, rig | {"mtu": 9000}) for name, rig in OPEN_AND_KEYED), waits=True)
def into_silence_go_small_probes_only(rig):
    """§10.2: from the third timeout on, two frames of 1500 bytes at most each time, and nothing else."""
    port, silence = rig.ports[0], []
    put, receive, came = port.put, port.receive, []

    def hear():
        got = receive()
        if got and silence and port.put is not put and any(got[2][SID]) and port.came_at > silence[0]:
            came.append((round(port.came_at - silence[0], 4), len(got[2])))
        return got

    def fall_silent():
        now = time.time()
        if not silence and len(rig.target.runs) >= 12:
            silence.append(now)
            port.put = lambda frame: None
        # A busy machine may let them come more slowly.
        enough = sum(at > LONGEST_BY_S for at, _ in probes(came)) >= PROBES
        if silence and (now - silence[0] > SILENT_MAX_S or enough and now - silence[0] > 1.5):
            port.put = put
            return True
        return False
    port.receive = hear
    port.stamps()
    rig.duties.append(fall_silent)
    rig.verify()
    late = probes(came)
    # Where the third timeout shows by its frames, those of the two before may be longer, two of each.
    long = [each for each in came if each[0] > 0.3 and each[1] > 1500]
    expect(len(long) <= 4 and not any(size > 1500 for _, size in late), f"too long: {came}")
    # That is 4 PTO after the one before and the next 8 PTO later, and a PTO has 500 µs at least: so three frames span 4 ms.
    last = [each for each in late if each[0] > LONGEST_BY_S]
    first = next((at for at, _ in came if at > 0), 0)
    if len(last) < PROBES and first > LONGEST_BY_S:
        raise withheld.Late(f"round trips were so long that the first timeout came after {first:.2f} s")
    expect(len(last) >= PROBES, f"{len(last)} probes after {LONGEST_BY_S} s: {came}")
    for frames, span in ((late, 0.003), (last, 0.01)):
        crowds = [frames[first:first + 3] for first in range(len(frames) - 2) if frames[first + 2][0] - frames[first][0] < span]
        expect(not crowds, f"more than two frames at once: {crowds}")
    expect(rig.target.counts["sessions"] == 1, f"{rig.target.counts['sessions']} sessions")
    return f"{len(late)} probes, {len(last)} of them after {LONGEST_BY_S} s"
