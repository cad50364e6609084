"""Peers that mean harm, against the running daemon, while a session beside them does verified I/O.

Each case lets a crowd misbehave in one way. It fails when the session beside it gets a wrong answer or none in time,
when the daemon's resident memory goes beyond what its configuration allows, when a crowd that must be dropped is not,
or when memory and descriptors do not come back after the crowd has left. The limits are derived below; docs/serve.md tells
operators the same sum.
"""

import json
import os
import random
import re
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import servers
from hostile import initiator
from hostile.crowd import Crowd, vanish
from hostile.initiator import Session
from servers import MIB, Export, Lun
from verdicts import expect

FOLDER = os.path.dirname(os.path.abspath(__file__))
pytestmark = pytest.mark.servers("targe")

KIB = 1 << 10
OPEN_IQN = "iqn.2026-11.org.targe:open"
USER = ("witness", "secret-of-the-witness")
MALLORY = "iqn.2026-11.org.targe:mallory"
UNIT_BYTES = 64 * MIB

# What the daemon is given. The times are short so that the rig is.
MEMORY = 32 * MIB
CONNECTIONS_MAX = 16000
SESSIONS_MAX = 4000
LOGIN_TIMEOUT_S = 3
NOP_INTERVAL_S, NOP_TIMEOUT_S = 2, 2
SEND_TIMEOUT_S = 3
# A limit has passed, and everything about it is done: what a busy machine needs beyond it.
PATIENCE_S = 40
# Longest the session beside may wait for an answer, seconds. Linux gives a command 30 s.
HARMED_S = 25

# What each may cost beyond `memory`: docs/serve.md, "Memory".
CONNECTION_BYTES = 32 * KIB
SESSION_BYTES = 256 * KIB
# What the allocator may keep after the crowd has left, beside the buffers that are kept on purpose (a quarter of `memory`).
KEPT_BYTES = MEMORY // 4 + 8 * MIB


class Prey(servers.Targe):
    """Two targets: one that asks for CHAP, which the session beside uses, and one open to all."""

    def config_lines(self):
        yield from ('state_dir = "state"', 'admin_socket = "admin/admin.sock"', f'reactor = "{self.reactor}"',
                    f"memory = {MEMORY}", f"max_connections = {CONNECTIONS_MAX}", f"max_sessions = {SESSIONS_MAX}",
                    f'login_timeout = "{LOGIN_TIMEOUT_S}s"', f'nop_interval = "{NOP_INTERVAL_S}s"',
                    f'nop_timeout = "{NOP_TIMEOUT_S}s"', 'nop_idle_timeout = "0s"', f'send_timeout = "{SEND_TIMEOUT_S}s"')
        for host in ("127.0.0.1", "127.0.0.2"):
            yield from ("[[portal]]", f'listen = "{host}:{self.port}"')
        yield from ("[[lun]]", 'name = "shared"', 'type = "file"', f'path = "{self.medium_path()}"')
        yield from ("[[target]]", f'name = "{self.iqn}"', "[target.auth]", f'user = "{USER[0]}"\nsecret = "{USER[1]}"')
        yield from ("[[target.lun]]", 'share = "shared"')
        yield from ("[[target]]", f'name = "{OPEN_IQN}"', f"max_sessions = {SESSIONS_MAX}")
        yield from ("[[target.lun]]", 'share = "shared"')

    def resident(self):
        return self.status("VmRSS")

    def peak(self):
        return self.status("VmHWM")

    def status(self, field):
        with open(f"/proc/{self.process.pid}/status") as file:
            return int(re.search(rf"{field}:\s+(\d+)", file.read())[1]) * KIB

    def forget_peak(self):
        with open(f"/proc/{self.process.pid}/clear_refs", "w") as file:
            file.write("5")

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


class Witness:
    """The session beside, in a process of its own."""

    def __init__(self, server):
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(FOLDER, "witness.py"), str(server.port), server.iqn, *USER, "1"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=servers.die_with_parent)
        expect(self.process.stdout.readline(), "the session beside does not come up")

    def tell(self):
        """What it saw since it was last asked."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        expect(line, "the session beside is dead")
        return json.loads(line)

    def end(self):
        self.process.stdin.close()
        self.process.wait(PATIENCE_S * 2)


def pytest_generate_tests(metafunc):
    metafunc.parametrize("reactor, case", [
        pytest.param(reactor, case, id=f"{reactor}, {name}") for reactor in metafunc.config.getoption("reactor") or ["auto", "epoll"]
        for name, case in CASES if reactor != "epoll" or name in BOTH_ENGINES])


@pytest.fixture(scope="module")
def medium():
    """Makes the medium of a reactor's daemons when the first of them is to start."""
    made = set()

    def make(server):
        if server.folder not in made:
            server.make_media()
            made.add(server.folder)
    return make


def test_harms_nobody(seed, medium, reactor, case):
    server = Prey(os.path.join(servers.OUT, "hostile", reactor), Export(luns=(Lun(size=UNIT_BYTES, thin=False),)))
    server.reactor = reactor
    medium(server)
    trial(case, server, random.Random(seed))


def trial(case, server, chance):
    """Runs a case against a daemon of its own, so that its memory shows this case alone."""
    server.start(fresh=False)
    try:
        witness = Witness(server)
        judge(case, server, witness, chance)
        witness.end()
        expect(server.stop() == 0, f"the daemon does not end as asked; {server.log_tail()}")
    finally:
        server.kill()


def judge(case, server, witness, chance):
    """Runs a case between two looks at everything that it must not harm."""
    witness.tell()
    before, descriptors = server.resident(), server.descriptors()
    server.forget_peak()
    bound, what = case(server, chance)
    saw = witness.tell()
    peak = server.peak()
    expect(server.process.poll() is None, f"the daemon is gone; {server.log_tail()}")
    expect(not saw["wrong"], f"the session beside: {saw['wrong']}; {server.log_tail(5)}")
    expect(saw["commands"] and saw["longest_s"] < HARMED_S, f"the session beside waits: {saw}")
    expect(peak - before <= bound, f"{mib(peak - before)} more in memory, {mib(bound)} are allowed ({what})")
    after = recover(server, before, descriptors)
    print(f"   {what}; memory {mib(before)} + {mib(peak - before)} of {mib(bound)}, {mib(after - before)} stay; "
          f"beside: {saw['commands']} commands, median {saw['median_s'] * 1e3:.1f} ms, longest {saw['longest_s'] * 1e3:.0f} ms",
          flush=True)


def recover(server, before, descriptors):
    """Waits until memory and descriptors are back; returns how much memory is resident then."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        resident, still = server.resident(), server.descriptors()
        if resident - before <= KEPT_BYTES and still <= descriptors:
            return resident
        if time.monotonic() > deadline:
            raise AssertionError(f"{PATIENCE_S} s later {mib(resident - before)} more are in memory ({mib(KEPT_BYTES)} are "
                                 f"allowed), {still - descriptors} descriptors more are open")
        time.sleep(0.1)


def log_in(server, count, keys=()):
    """Sessions of as many initiators with the open target, without the attention that a new nexus finds."""
    return list(one_by_one(server, count, keys))


def one_by_one(server, count, keys=()):
    """The same, each as soon as it is there: on a busy machine the first may be dropped, as it answers no ping, before the last logs in."""
    for number in range(1, count + 1):
        yield Session(server.port, OPEN_IQN, f"{MALLORY}{number}", number, keys=keys).ready()


def allowed(connections, sessions):
    return MEMORY * 21 // 16 + connections * CONNECTION_BYTES + sessions * SESSION_BYTES


def all_dropped(crowd, within_s, what, reading=True):
    left = crowd.wait_until_dropped(within_s + PATIENCE_S, reading)
    expect(left == 0, f"{left} of {len(crowd.peers)} {what} are still there after {within_s} s")


def trickles_in_login(server, chance):
    request = initiator.plain_login(OPEN_IQN, MALLORY)
    with Crowd() as crowd:
        crowd.arrive(server.port, 300)
        for at in range(LOGIN_TIMEOUT_S):
            crowd.send(lambda _: request[at:at + 1])
            crowd.look(wait_s=1)
        all_dropped(crowd, LOGIN_TIMEOUT_S, "that trickle")
    return allowed(300, 0), "300 connections, a byte a second"


def trickles_in_full_feature_phase(server, chance):
    with Crowd() as crowd:
        crowd.adopt(log_in(server, 200))
        request = initiator.pdu(initiator.NOP_OUT | initiator.IMMEDIATE, 0x80, 5, bytes(4096), at20=initiator.NO_TAG)
        for at in range(NOP_INTERVAL_S + NOP_TIMEOUT_S):
            crowd.send(lambda _: request[at:at + 1])
            crowd.look(wait_s=1)
        all_dropped(crowd, NOP_INTERVAL_S + NOP_TIMEOUT_S, "that trickle")
    return allowed(200, 200), "200 sessions, a byte a second"


def ten_thousand_connections(server, chance):
    count, possible = 10_000, descriptors_max() - 200
    expect(possible >= count, f"only {possible} of {count} connections can be opened: raise the hard limit on open files")
    with Crowd() as crowd:
        for source in ("127.0.0.3", "127.0.0.4"):
            crowd.arrive(server.port, count // 2, source)
        held = crowd.present()
        Session(server.port, OPEN_IQN, MALLORY).ready().close()
        all_dropped(crowd, LOGIN_TIMEOUT_S, "that say nothing")
    expect(crowd.refused == 0, f"{crowd.refused} were refused below the limit")
    return allowed(held, 0), f"{held} connections at once"


def more_from_one_address_than_it_may_have(server, chance):
    share = CONNECTIONS_MAX * 3 // 4
    count = min(share + 500, descriptors_max() - 200)
    if count <= share:
        pytest.skip(f"only {count} descriptors are to be had, {share} would be needed")
    with Crowd() as crowd:
        crowd.arrive(server.port, count, "127.0.0.3")
        Session(server.port, OPEN_IQN, MALLORY).ready().close()
        # The target drops the others as it accepts them.
        deadline = time.monotonic() + PATIENCE_S
        while (left := crowd.look(wait_s=0.1)) > share:
            expect(time.monotonic() < deadline, f"{left} connections of one address, {share} are allowed")
    return allowed(share, 0), f"{count} connections of one address"


def never_answers_pings(server, chance):
    with Crowd() as crowd:
        crowd.adopt(log_in(server, 300))
        all_dropped(crowd, NOP_INTERVAL_S + NOP_TIMEOUT_S, "that answer no ping")
    return allowed(300, 300), "300 sessions"


def claims_huge_segments(server, chance):
    """As much as a header can claim, and as much as was agreed on, before and after the login; little of it comes."""
    sessions = log_in(server, 300)
    agreed = int(sessions[0].agreed["MaxRecvDataSegmentLength"])
    with Crowd() as crowd:
        crowd.adopt(sessions)
        crowd.arrive(server.port, 100)

        def claim(number):
            if number >= len(sessions):
                return initiator.login_pdu([], True, 1, 3, claimed=0xFFFFFF)
            opcode = [initiator.COMMAND, initiator.NOP_OUT, initiator.TEXT, initiator.DATA_OUT][number % 4]
            length = 0xFFFFFF if number < 100 else agreed
            tail = initiator.write_10(0, 1000)
            return initiator.pdu(opcode | (0 if opcode == initiator.DATA_OUT else initiator.IMMEDIATE), 0xA1, 9, bytes(1024),
                                 0, initiator.NO_TAG if opcode else 512000, 1, 0, tail, claimed=length)

        crowd.send(claim)
        all_dropped(crowd, NOP_INTERVAL_S + NOP_TIMEOUT_S, "that claim and do not send")
    return allowed(400, 300), f"16 MiB by 200, {agreed >> 10} KiB by 200"


def pings_without_reading(server, chance):
    with Crowd() as crowd:
        crowd.adopt(log_in(server, 200))
        ping = initiator.pdu(initiator.NOP_OUT | initiator.IMMEDIATE, 0x80, 5, bytes(8192), at20=initiator.NO_TAG, at24=1)
        sent, deadline = 0, time.monotonic() + SEND_TIMEOUT_S + PATIENCE_S
        while crowd.look(reading=False) and time.monotonic() < deadline:
            sent += crowd.send(lambda _: ping * 16)
            time.sleep(0.05)
        all_dropped(crowd, 0, "that read nothing", reading=False)
    return allowed(200, 200), f"200 sessions sent {mib(sent)} of pings"


def reads_nothing_of_much(server, chance):
    with Crowd() as crowd:
        crowd.adopt(ask_for_much(server, 200))
        all_dropped(crowd, SEND_TIMEOUT_S, "that read nothing", reading=False)
    return allowed(200, 200), "200 sessions, 32 MiB asked by each"


def ask_for_much(server, count):
    keys = ("MaxRecvDataSegmentLength=16777215", "MaxBurstLength=16777215")
    for session in one_by_one(server, count, keys):
        requests = [session.request(initiator.read_10(n * 2048, 2048), 1 << 20)[0] for n in range(32)]
        session.socket.sendall(b"".join(requests))
        yield session


def promises_data_and_sends_none(server, chance):
    with Crowd() as crowd:
        for session in one_by_one(server, 200):
            requests = [session.request(initiator.write_10(8192 + n * 2048, 2048), expected=1 << 20)[0] for n in range(32)]
            session.socket.sendall(b"".join(requests))
            crowd.add(session.socket)
        crowd.look(wait_s=2)
    return allowed(200, 200), "200 sessions, 32 MiB promised by each"


def texts_that_never_end(server, chance):
    piece = b"X-targe-rig=" + b"y" * 8000
    text = initiator.pdu(initiator.TEXT | initiator.IMMEDIATE, 0x40, 5, piece, at20=initiator.NO_TAG, at24=1)
    login = bytearray(initiator.login_pdu([], False, 1, 0, claimed=len(piece)) + piece)
    login[1] |= 0x40
    with Crowd() as crowd:
        crowd.adopt(log_in(server, 100))
        crowd.arrive(server.port, 900)
        for _ in range(8):
            crowd.send(lambda number: text if number < 100 else bytes(login))
            crowd.look(wait_s=0.1)
        all_dropped(crowd, NOP_INTERVAL_S + NOP_TIMEOUT_S, "that go on and on")
    return allowed(1000, 100), "900 logins and 100 texts of 64 KiB"


def early(session, ahead):
    """A request with as much data as one PDU may bring, for which a lower CmdSN is missing: pings, texts and writes in turn."""
    agreed = int(session.agreed["MaxRecvDataSegmentLength"])
    itt, cmd_sn = 1000 + ahead, session.cmd_sn + ahead
    if ahead % 3 == 0:
        return initiator.pdu(initiator.NOP_OUT, 0x80, itt, bytes(agreed), at20=initiator.NO_TAG, at24=cmd_sn)
    if ahead % 3 == 1:
        return initiator.pdu(initiator.TEXT, 0x80, itt, bytes(agreed), at20=initiator.NO_TAG, at24=cmd_sn)
    first = min(agreed, int(session.agreed.get("FirstBurstLength", 65536)))
    return initiator.pdu(initiator.COMMAND, 0xA1, itt, bytes(first), 0, first, cmd_sn, 0, initiator.write_10(0, first // 512))


def requests_after_a_missing_number(server, chance):
    sessions = log_in(server, 64)
    with Crowd() as crowd:
        crowd.adopt(sessions)
        sent = crowd.send(lambda number: b"".join(early(sessions[number], ahead) for ahead in range(1, 13)))
        deadline = time.monotonic() + PATIENCE_S
        while crowd.look() and time.monotonic() < deadline and any(peer.unsent for peer in crowd.peers if not peer.gone):
            sent += crowd.send(lambda _: b"")
        crowd.look(wait_s=1)
    return allowed(64, 64), f"64 sessions sent {mib(sent)} after a missing CmdSN"


def every_queue_at_once(server, chance):
    """Every queue that a peer can fill is filled by some, and all are full at the same time."""
    keys = ("MaxRecvDataSegmentLength=16777215", "MaxBurstLength=16777215")
    sessions = log_in(server, 60, keys)
    ping = initiator.pdu(initiator.NOP_OUT | initiator.IMMEDIATE, 0x80, 5, bytes(8192), at20=initiator.NO_TAG, at24=1)
    text = initiator.pdu(initiator.TEXT | initiator.IMMEDIATE, 0x40, 5, b"X-targe-rig=" + b"y" * 8000, at20=initiator.NO_TAG, at24=1)

    def fill(number):
        session = sessions[number]
        kind = number % 5
        if kind == 0:
            return b"".join(early(session, ahead) for ahead in range(1, 13))
        if kind == 1:
            return ping * 64
        if kind == 2:
            return text * 8
        if kind == 3:
            return b"".join(session.request(initiator.read_10(n * 2048, 2048), 1 << 20)[0] for n in range(16))
        return b"".join(session.request(initiator.write_10(8192 + n * 2048, 2048), expected=1 << 20)[0] for n in range(16))

    with Crowd() as crowd:
        crowd.adopt(sessions)
        sent = crowd.send(fill)
        deadline = time.monotonic() + SEND_TIMEOUT_S
        while crowd.look(reading=False) and time.monotonic() < deadline:
            sent += crowd.send(lambda _: b"")
            time.sleep(0.01)
    return allowed(60, 60), f"60 sessions sent {mib(sent)} into every queue"


def login_flood(server, chance):
    deadline, count = time.monotonic() + 3, 0
    while time.monotonic() < deadline:
        Session(server.port, OPEN_IQN, f"{MALLORY}{count % 50}", count % 7).close()
        count += 1
    return allowed(200, 200), f"{count} logins in 3 s"


def login_flood_with_chap(server, chance):
    deadline, count = time.monotonic() + 3, 0
    while time.monotonic() < deadline:
        try:
            Session(server.port, server.iqn, MALLORY, 1, (USER[0], f"guess-number-{count:06}"))
        except initiator.Refused as refused:
            expect("0201" in str(refused), f"a wrong secret is answered with {refused}")
        else:
            raise AssertionError("a guess let somebody in")
        count += 1
    return allowed(200, 0), f"{count} wrong secrets in 3 s"


def two_hosts_of_one_name(server, chance):
    """Hosts with one name and ISID, as cloned machines have them, and each comes back at once when the other ended its session."""
    began = time.monotonic()
    addresses = ("127.0.0.1", "127.0.0.2")
    logins, commands = dict.fromkeys(addresses, 0), dict.fromkeys(addresses, 0)

    def is_over():
        """After 5 s, or what it takes on a busy machine to have enough of both."""
        took, enough = time.monotonic() - began, min(logins.values()) > 10 and sum(commands.values()) > 10
        return took > 5 and enough or took > 5 + PATIENCE_S

    def log_in_again_and_again(source):
        while not is_over():
            try:
                session = Session(server.port, OPEN_IQN, MALLORY, 1, source=source)
                logins[source] += 1
                session.ready()
                while not is_over():
                    expect(session.command(initiator.read_10(0, 8), read=4096)[0] == 0, "a read fails")
                    commands[source] += 1
            except (initiator.Dropped, OSError):
                continue

    with ThreadPoolExecutor(len(addresses)) as hosts:
        list(hosts.map(log_in_again_and_again, addresses))
    expect(min(logins.values()) > 10 and sum(commands.values()) > 10, f"{logins} logins, {commands} commands")
    counted = json.loads(server.admin("status"))["rival_logins"]
    expect(counted >= 10, f"{counted} logins are counted as those of rivals")
    # A thread of its own writes the log.
    deadline = time.monotonic() + PATIENCE_S
    while not (told := [line for line in server.log_of_this_run().splitlines() if "two hosts use the name" in line]):
        expect(time.monotonic() < deadline, "the log does not tell of two hosts")
        time.sleep(0.05)
    expect(len(told) == 1 and all(address in told[0] for address in addresses), f"the log says {told}")
    return allowed(200, 200), f"{list(logins.values())} logins, {sum(commands.values())} commands between them"


def half_open(server, chance):
    """Some send half a login and close their half; some are gone without a word, in login and after it."""
    half = initiator.plain_login(OPEN_IQN, MALLORY)[:60]
    with Crowd() as crowd:
        crowd.arrive(server.port, 100)
        crowd.send(lambda _: half)
        for peer in crowd.peers[:50]:
            peer.socket.shutdown(1)
        silent = log_in(server, 100)
        vanished = 0
        try:
            for session in silent:
                vanish(session.socket)
                vanished += 1
        except OSError:
            crowd.adopt(silent[vanished:])
        all_dropped(crowd, max(LOGIN_TIMEOUT_S, NOP_INTERVAL_S + NOP_TIMEOUT_S), "half-open ones")
    return allowed(200, 100), f"100 halves of a login, {vanished} sessions gone without a word"


def garbage(server, chance):
    with Crowd() as crowd:
        crowd.adopt(log_in(server, 100))
        crowd.arrive(server.port, 300)
        for _ in range(20):
            crowd.send(lambda _: chance.randbytes(chance.randrange(1, 20_000)))
            crowd.look()
        all_dropped(crowd, max(LOGIN_TIMEOUT_S, NOP_INTERVAL_S + NOP_TIMEOUT_S), "that talk nonsense")
    return allowed(400, 100), "300 connections, 100 sessions"


def churn(server, chance):
    """Connections that come and go at every stage, by reset and in order."""
    request = initiator.plain_login(OPEN_IQN, MALLORY)
    for round_number in range(20):
        with Crowd() as crowd:
            # Fewer than wait to be accepted at most: what the kernel turns away comes again a second later.
            crowd.arrive(server.port, 100)
            crowd.send(lambda _: request[:chance.randrange(len(request) + 1)])
            if round_number % 2:
                crowd.look()
            crowd.leave(reset=round_number % 4 < 2)
    return allowed(600, 200), "2000 connections"


CASES = [
    ("a byte a second in login", trickles_in_login),
    ("a byte a second in full feature phase", trickles_in_full_feature_phase),
    ("10 000 connections that say nothing", ten_thousand_connections),
    ("one address that takes every place", more_from_one_address_than_it_may_have),
    ("pings that are not answered", never_answers_pings),
    ("claims of 16 MiB", claims_huge_segments),
    ("pings whose answers are not read", pings_without_reading),
    ("reads whose data are not read", reads_nothing_of_much),
    ("writes whose data are not sent", promises_data_and_sends_none),
    ("texts that never end", texts_that_never_end),
    ("requests after a missing CmdSN", requests_after_a_missing_number),
    ("every queue at once", every_queue_at_once),
    ("a flood of logins", login_flood),
    ("a flood of wrong secrets", login_flood_with_chap),
    ("two hosts under one name", two_hosts_of_one_name),
    ("half-open connections", half_open),
    ("garbage", garbage),
    ("connections that come and go", churn),
]


# What rests on how sockets are driven, and is seen with epoll too; the rest is the protocol's.
BOTH_ENGINES = {"a byte a second in full feature phase", "10 000 connections that say nothing",
                "pings whose answers are not read", "reads whose data are not read", "half-open connections", "garbage",
                "connections that come and go"}


def descriptors_max():
    """Raises the limit on open files as far as it goes, and returns it."""
    wanted = CONNECTIONS_MAX + 1000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in ((wanted, max(hard, wanted)), (hard, hard)):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
            break
        except (ValueError, OSError):
            continue
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def mib(count):
    return f"{count / MIB:.1f} MiB"
