"""Live upgrades while whole disks are verified: no error, no wrong block, no login. What the initiators wait is printed."""

import json
import os
import random
import stat
import time

import pytest

import servers
from hostile.initiator import write_10
from servers import IQN, MIB, Export, Lun
from upgrade.held import CONFLICT, GOOD, PREEMPT, REGISTER, RESERVE, WRITE_EXCLUSIVE, Answering, Held
from upgrade.live import SECOND, Load, Replaced, histogram
from verdicts import expect, same

# Error recovery level, connections, digests and reactor.
CASES = [(0, 1, "none", "uring"), (1, 1, "crc32c", "epoll"), (2, 4, "crc32c", "uring")]
SIZE = 16 * MIB
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
}
FOLDER = os.path.dirname(os.path.abspath(__file__))
PRETENDER, UNCOMMITTED = (os.path.join(FOLDER, name) for name in ("pretender.py", "uncommitted.py"))


def fail(server, folder, failure):
    """An upgrade that cannot succeed: one sentence, and the daemon goes on."""
    program = script(folder, f"exec /usr/bin/python3 {PRETENDER} '{failure}' {server.config_path()}")
    if failure == "is no program":
        program = "/nonexistent/targe"
    if failure == "has too little memory":
        program = script(folder, f"ulimit -v 30000; exec {server.binary} \"$@\"")
    if failure == "is ready and ends":
        program = script(folder, f"exec /usr/bin/python3 {UNCOMMITTED} {server.binary} \"$@\"")
    answer, why = server.upgrade("--binary", program)
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


def test_data_in_memory_is_not_lost(tmp_path):
    server = Replaced(str(tmp_path), Export((Lun("ram", size=MIB),)))
    server.start()
    try:
        answer, why = server.upgrade()
        expect(answer is None and "in the memory of this process" in why, why)
        expect(server.stop() == 0, "the daemon does not end in order")
    finally:
        server.kill()


__all__ = ["test_a_file_that_is_not_what_runs_is_refused", "test_data_in_memory_is_not_lost", "test_initiators_find_what_they_left",
           "test_nobody_notices"]
