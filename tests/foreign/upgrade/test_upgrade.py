"""Live upgrades while whole disks are verified: no error, no wrong block, no login. What the initiators wait is printed."""

import json
import os
import random
import resource
import signal
import socket
import stat
import tempfile
import threading
import time

import pytest

import servers
from configured.tls import Authority, trusting
from hostile.initiator import Dropped, Session, connect, pdu, write_10
from servers import IQN, MIB, Export, Lun
from upgrade.held import CONFLICT, GOOD, PREEMPT, REGISTER, RESERVE, WRITE_EXCLUSIVE, Answering, Held
from upgrade.live import END_MAX_S, GIVEN_AWAY, SECOND, Client, Late, Load, Replaced, begun_anew, histogram, wait_for
from verdicts import eventually, expect, same

# Error recovery level, connections, digests and reactor.
CASES = [(0, 1, "none", "uring"), (1, 1, "crc32c", "epoll"), (2, 4, "crc32c", "uring")]
SIZE = 16 * MIB
TLS_HOST = "127.0.0.3"
NOP_OUT, LOGOUT, LOGOUT_RESPONSE = 0x40, 0x46, 0x26
INQUIRY = bytes([0x12, 0, 0, 0, 36, 0])
# How often sessions inside TLS move.
TLS_UPGRADES = 10
# How many initiators log in and out meanwhile, and how many upgrades they see.
LOGGERS, LOGIN_UPGRADES = 4, 10
# How long a login may take while an upgrade waits for it, seconds.
LOGIN_MAX_S = 1
# How many initiators are idle while the limit of open files falls.
FILE_HOLDERS = 24
pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(3600)]


def query(level, connections, digest):
    return f"erl={level}&connections={connections}&header_digest={digest}&data_digest={digest}"


@pytest.mark.parametrize("level, connections, digest, reactor", CASES,
                         ids=[f"level {level}, {connections} connections, digest {digest}, {reactor}" for level, connections, digest, reactor in CASES])
def test_nobody_notices(pytestconfig, tmp_path, seed, level, connections, digest, reactor):
    upgrades, failures = -(-pytestconfig.getoption("upgrades") // len(CASES)), -(-pytestconfig.getoption("failures") // len(CASES))
    chance = random.Random(seed * 100 + level)
    export = Export((Lun("file", size=SIZE), Lun("file", size=SIZE)), digests="offered", level=2, connections=8)
    server = Replaced(str(tmp_path), export)
    server.reactor = reactor
    server.start()
    try:
        loads = [Load(server, lun, query(level, connections, digest), seed + lun) for lun in (0, 1)]
        for load in loads:
            load.start()
        # Each failure comes before any comes again.
        kinds = sorted(FAILURES)
        chance.shuffle(kinds)
        steps = [None] * upgrades + [kinds[at % len(kinds)] for at in range(failures)]
        chance.shuffle(steps)
        pauses = []
        for failure in steps:
            time.sleep(chance.random() * 0.5)
            if failure:
                fail(server, tmp_path, failure)
                continue
            answer, why = server.upgrade()
            expect(answer, f"an upgrade is refused: {why}")
            pauses.append(answer["pause_ms"])
            server.expect_replaced_ended()
        print(histogram(pauses), flush=True)
        for load in loads:
            load.judge()
        expect(server.stop() == 0, "the daemon does not end in order")
    finally:
        server.kill()


def read(path):
    with open(path) as file:
        return file.read()


def script(folder, text):
    """A program that is started instead of targe."""
    path = os.path.join(folder, "instead")
    with open(path, "w") as file:
        file.write(f"#!/bin/sh\n{text}\n")
    os.chmod(path, stat.S_IRWXU)
    return path


# What is wrong with the program that is to take over, and what `targe upgrade` says of it.
FAILURES = {
    "is no program": "cannot start",
    "has too little memory": "ended",
    "ends at once": "ended",
    "is another program": "is not targe",
    "reads another format": "does not read the state of sessions",
    "ends after its first message": "ended",
    "lacks memory": "cannot start: out of memory",
    "says nonsense": "expected value",
    "reads another file": "was changed meanwhile",
    "ends when it is prepared": "ended",
    "cannot resume the sessions": "the TSIH is zero",
    "ends with the sessions": "ended",
    "is ready and ends": "ended",
    "does not receive the sessions": "does not answer in time",
    "keeps silent with the sessions": "does not answer in time",
    "keeps silent when it is ready": "does not answer in time",
    "fails when it is ready": "nobody said that the sessions are mine",
    "ends when it is ready": "ended",
}
FOLDER = os.path.dirname(os.path.abspath(__file__))
PRETENDER, UNCOMMITTED = (os.path.join(FOLDER, name) for name in ("pretender.py", "uncommitted.py"))


def pretender(server, folder, step):
    """A program that pretends to take over, and what it does instead."""
    return script(folder, f"exec /usr/bin/python3 {PRETENDER} '{step}' {server.config_path()}")


def fail(server, folder, failure):
    """An upgrade that cannot succeed: one sentence, and the daemon goes on."""
    program = pretender(server, folder, failure)
    if failure == "is no program":
        program = "/nonexistent/targe"
    if failure == "has too little memory":
        program = script(folder, f"ulimit -v 30000; exec {server.binary} \"$@\"")
    if failure == "is ready and ends":
        program = script(folder, f"exec /usr/bin/python3 {UNCOMMITTED} {server.binary} \"$@\"")
    # Some processes are given the sessions three times, and each time a moment must be found first.
    answer, why = server.upgrade("--binary", program, wanted=FAILURES[failure])
    expect(answer is None, f"a program that {failure} took over")
    expect(FAILURES[failure] in why and "\n" not in why, f"a program that {failure}: {why}")
    expect(server.is_alive(), f"a program that {failure}: the daemon has ended")


def upgrade_and_fail(server, folder, initiators):
    """One upgrade that fails at its last step before the commit, and one that succeeds. No initiator logs in."""
    with Answering(initiators):
        fail(server, folder, "is ready and ends")
        answer, why = server.upgrade()
    expect(answer, f"an upgrade is refused: {why}")
    server.expect_replaced_ended()
    same("sessions and connections that moved", (answer["sessions"], answer["connections"]), (len(initiators), len(initiators)))
    status = json.loads(server.admin("status"))
    same("sessions", status["sessions"], len(initiators))
    same("logins in the process that took over", (status["logins"], status["failed_logins"]), (0, 0))


@pytest.mark.parametrize("reactor", ["uring", "epoll"])
def test_initiators_find_what_they_left(tmp_path, reactor):
    """Persistent reservations, registered keys and pending unit attentions, on two reactors."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two reactors need two cores")
    server = Replaced(str(tmp_path), Export((Lun("file", size=MIB),)))
    server.reactor, server.has_second = reactor, True
    server.start()
    try:
        holders, others, preempted = ([Held(server.port, iqn, f"iqn.2026-11.org.targe:{name}") for iqn in (IQN, SECOND)]
                                      for name in ("holder", "other", "preempted"))
        initiators = holders + others + preempted
        for at, initiator in enumerate(initiators):
            initiator.ready()
            initiator.reserve(REGISTER, new_key=at + 1)
        for at, holder in enumerate(holders):
            holder.reserve(RESERVE, WRITE_EXCLUSIVE, key=at + 1)
            holder.reserve(PREEMPT, WRITE_EXCLUSIVE, key=at + 1, new_key=at + 5)
        same("connections of each reactor", [it["connections"] for it in json.loads(server.admin("status"))["reactors"]], [3, 3])
        before = [holder.reservations() for holder in holders]
        expect(len(before[0][0]) == 8 + 2 * 8 and len(before[0][1]) == 24, f"{before}")
        for _ in range(3):
            upgrade_and_fail(server, tmp_path, initiators)
            same("keys and reservations", [holder.reservations() for holder in holders], before)
            for holder, other in zip(holders, others):
                same("the holder", holder.sense(), None)
                same("another", other.sense(), None)
                same("a write of the holder", holder.command(write_10(0, 1), write=bytes(512))[0], GOOD)
                same("a write of another", other.command(write_10(0, 1), write=bytes(512))[0], CONFLICT)
        for initiator in preempted:
            same("what was pending: REGISTRATIONS PREEMPTED", initiator.sense(), (6, 0x2A05))
            same("what follows", initiator.sense(), None)
        for initiator in initiators:
            initiator.close()
        expect(server.stop() == 0, "the daemon does not end in order")
    finally:
        server.kill()


@pytest.mark.parametrize("reactors", [1, 2])
def test_no_login_fails(tmp_path, reactors):
    """Initiators log in and out all the time: each login ends in the process where it began, or waits for the next one."""
    begun_anew(no_login_fails, tmp_path, reactors)


def no_login_fails(tmp_path, reactors):
    server = Replaced(str(tmp_path), Export((Lun("file", size=MIB),)))
    server.has_second = reactors == 2
    server.start()
    ends, logins, failed, late = threading.Event(), [0] * LOGGERS, [], []

    def log_in_and_out(number):
        while not ends.is_set():
            began = time.monotonic()
            try:
                session = Session(server.port, server.iqn, f"iqn.2026-11.org.targe:{number}")
                session.ready()
                session.close()
                logins[number] += 1
            except Exception as error:
                took = time.monotonic() - began
                # An upgrade ends a login that takes longer than a second.
                where = late if isinstance(error, (Dropped, ConnectionError)) and took > LOGIN_MAX_S else failed
                where.append(f"login {logins[number]} of initiator {number}, after {took:.3f} s: {error!r}")
                return

    threads = [threading.Thread(target=log_in_and_out, args=(number,), daemon=True) for number in range(LOGGERS)]
    # A peer that never logs in delays an upgrade, and ends with the process that has accepted it.
    with connect(server.port) as silent:
        try:
            for thread in threads:
                thread.start()
            for _ in range(LOGIN_UPGRADES):
                before = list(logins)
                answer, why = server.upgrade()
                expect(answer, f"an upgrade is refused: {why}")
                server.expect_replaced_ended()
                eventually(lambda: failed or late or all(now > was for now, was in zip(logins, before)),
                           lambda: f"every initiator logs in after an upgrade: {before}, then {logins}")
            ends.set()
            for thread in threads:
                thread.join()
            expect(not failed, f"{failed}")
            if late:
                raise Late(f"{late}")
            same("the silent peer receives", silent.recv(1), b"")
            expect(server.stop() == 0, "the daemon does not end in order")
        finally:
            ends.set()
            server.kill()


def test_a_file_that_is_not_what_runs_is_refused(tmp_path):
    server = Replaced(str(tmp_path), Export((Lun("file", size=MIB),)))
    server.start()
    try:
        with open(server.config_path(), "a") as file:
            file.write(f'[[portal]]\nlisten = "127.0.0.3:{server.port}"\n')
        answer, why = server.upgrade()
        expect(answer is None and "is not what runs" in why, why)
        server.write_config()
        answer, why = server.upgrade()
        expect(answer, f"an upgrade is refused although the file is what runs again: {why}")
        expect(server.stop() == 0, "the daemon does not end in order")
    finally:
        server.kill()


def test_a_disk_that_was_replaced_is_not_another_one_in_the_next_process(tmp_path):
    """A host keeps LUN 1 open while a reload puts another file in its place: it finds none there, also after an upgrade and a restart."""
    one, disk = Lun("file", size=MIB), Lun("file", size=MIB)
    server = Replaced(str(tmp_path), Export((one, disk)))
    server.start()
    host = "iqn.2026-11.org.targe:host"

    def log_in(name):
        session = Held(server.port, server.iqn, name)
        session.lun = 1
        return session

    try:
        initiator = log_in(host)
        initiator.ready()
        same("a write", initiator.command(write_10(0, 1), write=bytes(512))[0], GOOD)
        server.export = Export((one,))
        server.reload()
        with open(tmp_path / "new.img", "wb") as file:
            file.truncate(MIB)
        os.replace(file.name, server.medium_path(1))
        server.export = Export((one, disk))
        server.reload()
        for step in ("a reload", "an upgrade", "another upgrade"):
            same(f"the peripheral qualifier after {step}", initiator.command(INQUIRY, read=36)[1][0] >> 5, 3)
            expect(initiator.command(write_10(0, 1), write=bytes(512))[0] != GOOD, f"after {step}, the host writes to another disk")
            answer, why = server.upgrade()
            expect(answer, f"an upgrade is refused: {why}")
            server.expect_replaced_ended()
        initiator.socket.close()
        expect(server.stop() == 0, "the daemon does not end in order")
        server.start(fresh=False)
        initiator = log_in(host)
        same("the peripheral qualifier after a restart", initiator.command(INQUIRY, read=36)[1][0] >> 5, 3)
        # Only a logout clears the record.
        initiator.socket.sendall(pdu(LOGOUT, 0x80, 1, at24=initiator.cmd_sn, at28=initiator.exp_stat_sn))
        same("the response to a logout", initiator.receive()[0][0], LOGOUT_RESPONSE)
        initiator.close()
        for name in (host, "iqn.2026-11.org.targe:other"):
            initiator = log_in(name)
            initiator.ready()
            same("the peripheral qualifier after a logout, and for another host", initiator.command(INQUIRY, read=36)[1][0] >> 5, 0)
            initiator.close()
        expect(server.stop() == 0, "the daemon does not end in order")
    finally:
        server.kill()


class TlsReplaced(Replaced):
    """With one more portal, which accepts TLS only."""

    def config_lines(self):
        yield from super().config_lines()
        certificate, key = self.identity
        yield from ("[[portal]]", f'listen = "{TLS_HOST}:{self.port}"', f'tls_certificate = "{certificate}"', f'tls_key = "{key}"')


# Error recovery level and connections of our initiator inside TLS, and the reactor.
TLS_CASES = [(0, 1, "uring"), (2, 4, "epoll")]


@pytest.mark.parametrize("level, connections, reactor", TLS_CASES,
                         ids=[f"level {level}, {connections} connections, {reactor}" for level, connections, reactor in TLS_CASES])
def test_sessions_inside_tls_move(tmp_path, seed, level, connections, reactor):
    """Those of our initiator, which verifies a disk meanwhile, and of OpenSSL: again and again, and after upgrades that failed."""
    authority = Authority(tmp_path / "authority")
    export = Export((Lun("file", size=MIB), Lun("file", size=SIZE, claims=(("protection", "encrypt"),))), level=2, connections=8)
    server = TlsReplaced(str(tmp_path), export)
    server.identity, server.reactor = authority.sign("target", f"IP:{TLS_HOST}"), reactor
    server.start()

    def log_in(name):
        plain = socket.create_connection((TLS_HOST, server.port))
        return Held(server.port, server.iqn, name, over=trusting(authority).wrap_socket(plain, server_hostname=TLS_HOST))

    def protections():
        sessions = json.loads(server.admin("sessions"))["sessions"]
        return {session["initiator"]: (session["protection"], session["protection_by"]) for session in sessions if session["initiator"].endswith((":plain", ":tls"))}

    try:
        initiators = [Held(server.port, server.iqn, "iqn.2026-11.org.targe:plain"), log_in("iqn.2026-11.org.targe:tls")]
        for initiator in initiators:
            initiator.ready()
        before = protections()
        same("protection", sorted(before.values()), [("encrypt", f"TLS 1.3 on portal {TLS_HOST}:{server.port}"), ("none", None)])
        load = Load(server, 1, f"{query(level, connections, 'none')}&tls_ca={authority.certificate}", seed, host=TLS_HOST)
        load.start()
        pauses = []
        for number in range(TLS_UPGRADES):
            with Answering(initiators[:1]):
                if number % 4 == 1:
                    fail(server, tmp_path, "is ready and ends")
                answer, why = server.upgrade()
            expect(answer, f"an upgrade is refused: {why}")
            pauses.append(answer["pause_ms"])
            server.expect_replaced_ended()
            same("protection after an upgrade", protections(), before)
            for initiator in initiators:
                same("sense after an upgrade", initiator.sense(), None)
                same("a write", initiator.command(write_10(0, 1), write=bytes(512))[0], GOOD)
        print(histogram(pauses), flush=True)
        load.judge()
        # A session that logs in now is one as those that moved.
        initiators.append(log_in("iqn.2026-11.org.targe:late"))
        initiators[-1].ready()
        for initiator in initiators:
            same("sense after the upgrades", initiator.sense(), None)
            initiator.close()
        eventually(lambda: not json.loads(server.admin("status"))["sessions"], "the sessions have ended")
        expect(server.stop() == 0, "the daemon does not end in order")
    finally:
        server.kill()


# What the daemon waits for when it is told to stop.
WAITS = ("keeps silent", "keeps silent before it is prepared", "a session is busy")
# An upgrade waits so long, seconds, and a daemon that is told to stop must not.
WAIT_S = 300


@pytest.mark.parametrize("wait", WAITS)
def test_a_daemon_that_waits_can_be_stopped(tmp_path, wait):
    server = Replaced(str(tmp_path), Export((Lun("file", size=MIB),)))
    server.start()
    try:
        session = Session(server.port, server.iqn, "iqn.2026-11.org.targe:busy")
        flags = ("--wait", str(WAIT_S))
        if wait == "a session is busy":
            # It stops within a PDU, so that no moment is found.
            session.socket.sendall(pdu(NOP_OUT)[:20])
        else:
            flags += ("--binary", pretender(server, tmp_path, wait))
        upgrading = threading.Thread(target=server.upgrade, args=flags, daemon=True)
        upgrading.start()
        time.sleep(1)
        server.process.send_signal(signal.SIGTERM)
        code = server.process.wait(timeout=END_MAX_S)
        expect(code == 0, f"the daemon ended with {code}: {server.log_tail()}")
        upgrading.join(END_MAX_S)
        expect("stopped" in server.log_tail(), server.log_tail())
    finally:
        server.kill()


def test_a_process_that_was_replaced_does_nothing_for_its_clients(tmp_path):
    """Between the moment in which another process has the sessions, and its own end."""
    begun_anew(replaced_process_does_nothing, tmp_path)


def replaced_process_does_nothing(tmp_path):
    folder = tempfile.mkdtemp(prefix="", dir=tmp_path)
    server = Replaced(folder, Export((Lun("file", size=MIB),)))
    server.start()
    told, signals = [], lambda: read(server.config_path() + ".signals").split()
    flags = ("--binary", pretender(server, folder, "takes over"))
    upgrading = threading.Thread(target=lambda: told.append(server.upgrade(*flags)), daemon=True)
    try:
        admin = [Client(server.socket) for _ in range(3)]
        # A client that connects has a thread only when it has an answer.
        for client in admin:
            expect("result" in client.ask({"method": "status"}), "no status")
        upgrading.start()
        committed = server.config_path() + ".committed"
        eventually(lambda: os.path.exists(committed) or told, "the other process has the sessions", END_MAX_S)
        expect(os.path.exists(committed), f"{told}")
        for method in ("drain-lun", "snapshot-lun", "snapshot-luns", "drop-sessions", "library", "trace"):
            answer = admin[0].ask({"method": method})
            expect(answer.get("error", {}).get("kind") == "unavailable", f"{method} is answered with {answer}")
        # A client that connects now is one of the other process, which does not serve it.
        late = Client(server.socket)
        late.send({"method": "status"})
        admin[1].send({"method": "reload"})
        os.kill(server.pid, signal.SIGHUP)
        os.kill(server.pid, signal.SIGTERM)
        time.sleep(0.5)
        open(server.config_path() + ".serve", "w").close()
        answer = admin[1].receive()
        expect("has taken over" in answer.get("error", {}).get("message", ""), f"reload is answered with {answer}")
        upgrading.join(END_MAX_S)
        [(upgraded, why)] = told
        expect(upgraded, why)
        code = server.process.wait(timeout=END_MAX_S)
        expect(code == 0, f"the daemon ended with {code}: {server.log_tail()}")
        # They may still be on their way to the other process.
        eventually(lambda: sorted(signals()) == ["SIGHUP", "SIGTERM"], lambda: f"both signals are passed on: {signals()}")
        expect(not late.is_answered(), "a client of the other process was answered")
    except Exception as error:
        # The process that serves waits for five seconds until the other one says that it serves: this test must have told that to do so.
        if upgrading.ident:
            upgrading.join(END_MAX_S)
        if told and "does not answer in time" in told[0][1]:
            raise Late(told[0][1]) from error
        raise
    finally:
        open(server.config_path() + ".end", "w").close()
        server.kill()


def test_a_process_that_has_the_sessions_is_left_alone(tmp_path):
    """Nobody else can serve them any more, even if it does not say that it does."""
    server = Replaced(str(tmp_path), Export((Lun("file", size=MIB),)))
    server.start()
    try:
        answer, why = server.upgrade("--binary", pretender(server, tmp_path, "takes over"))
        expect(answer is None and "does not answer in time" in why and GIVEN_AWAY in why, why)
        code = server.process.wait(timeout=END_MAX_S)
        expect(code == 0, f"the daemon ended with {code}: {server.log_tail()}")
        with open(server.config_path() + ".committed") as file:
            other = int(file.read())
        open(server.config_path() + ".end", "w").close()
        # A process that was killed, and that nobody has waited for, still has its number: only how it ends tells.
        same("the end of a process that has the sessions", wait_for(other), 0)
    finally:
        open(server.config_path() + ".end", "w").close()
        server.kill()


def test_a_program_has_an_absolute_path(tmp_path):
    server = Replaced(str(tmp_path), Export((Lun("file", size=MIB),)))
    server.start()
    try:
        answer = Client(server.socket).ask({"method": "upgrade", "upgrade": {"binary": "targe"}})
        expect("not an absolute path" in answer.get("error", {}).get("message", ""), f"{answer}")
        expect(server.stop() == 0, "the daemon does not end in order")
    finally:
        server.kill()


def test_a_link_to_the_program_is_followed_again(tmp_path):
    """A release that was put in place by a link is the one that takes over."""
    server = Replaced(str(tmp_path), Export((Lun("file", size=MIB),)))
    program, link = server.binary, os.path.join(str(tmp_path), "current")
    os.symlink(program, link)
    server.binary = link
    server.start()
    try:
        server.binary = program
        os.remove(link)
        # What the link leads to now cannot take over, and says so.
        with open(os.path.join(str(tmp_path), "other"), "w") as file:
            file.write("#!/bin/sh\nexit 7\n")
        os.chmod(file.name, stat.S_IRWXU)
        os.symlink(file.name, link)
        answer, why = server.upgrade()
        expect(answer is None and link in why and "7" in why, why)
        expect(server.stop() == 0, "the daemon does not end in order")
    finally:
        server.kill()


__all__ = ["test_a_daemon_that_waits_can_be_stopped", "test_a_file_that_is_not_what_runs_is_refused", "test_a_link_to_the_program_is_followed_again",
           "test_a_process_that_has_the_sessions_is_left_alone", "test_a_process_that_was_replaced_does_nothing_for_its_clients",
           "test_a_program_has_an_absolute_path", "test_data_in_memory_is_not_lost", "test_initiators_find_what_they_left", "test_no_login_fails",
           "test_nobody_notices", "test_sessions_inside_tls_move"]


def test_a_limit_of_open_files_is_too_low(tmp_path):
    """The limit falls after each upgrade. From some limit on, upgrades fail, each with one sentence, and no session ends."""
    server = Replaced(str(tmp_path), Export((Lun("file", size=MIB),)))
    server.start()
    try:
        initiators = [Held(server.port, server.iqn, f"iqn.2026-11.org.targe:{number}") for number in range(FILE_HOLDERS)]
        for initiator in initiators:
            initiator.ready()
        least, moved, complaints = len(os.listdir(f"/proc/{server.pid}/fd")), 0, []
        with Answering(initiators):
            # With fewer files the daemon cannot hear what is asked of it.
            for limit in range(2 * least + FILE_HOLDERS, least + 3, -3):
                resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, limit))
                answer, why = server.upgrade()
                if answer:
                    expect(not complaints, f"{limit} open files are enough, and more are not: {complaints}")
                    same("sessions that moved", answer["sessions"], FILE_HOLDERS)
                    server.expect_replaced_ended()
                    moved += 1
                else:
                    complaints.append(why)
                    expect("too many open files" in why and "\n" not in why, f"with {limit} open files: {why}")
                    expect(server.is_alive(), f"with {limit} open files the daemon has ended: {why}")
        expect(moved > 0 and len(complaints) > FILE_HOLDERS // 6, f"{moved} upgrades, and {complaints}")
        for initiator in initiators:
            same("sense of a session that moved", initiator.sense(), None)
            initiator.close()
        expect(server.stop() == 0, "the daemon does not end in order")
    finally:
        server.kill()
