"""Our target judged by the second initiator: discovery, handshakes, whole disks, and how sessions end."""

import random
import signal
import time
from unittest import mock

import withheld
from initiator import blocks, discovery, frame, scsi
from initiator.exchange import Exchange
from initiator.handshake import Failed
from initiator.keys import ENCRYPT, INTEGRITY
from initiator.link import BadLink
from initiator.workload import BLOCK, Disk, log_in, whole_disk
from target_host import Rig, case, commands_run, ended, transfer
from verdicts import expect

PASSWORD = b"correct horse battery staple"
PLAIN, SECRET = "ram:8M", "ram:8M,protection=encrypt"
OPEN = {"password": None, "lun": PLAIN, "level": None}
KEYED = {"password": PASSWORD, "lun": SECRET, "level": ENCRYPT}
BOTH = ("without password", OPEN), ("encrypt", KEYED)


def nonce(seed):
    return random.Random(seed).randbytes(16)


@case()
def discovery_finds_the_group_and_no_foreign_one(seed):
    """§5: answers to the own group; silence for another, and for another target. §6.4: a group without a password is not told of logical
    units that it cannot use."""
    for password, luns in ((None, {scsi.lun(0): 0}), (PASSWORD, {scsi.lun(0): 1, scsi.lun(1): 2})):
        with Rig(PLAIN, SECRET, password=password) as rig:
            link = rig.link()
            found = discovery.discover(link, b"backup", nonce(seed), 0.5)
            expect(len(found) == 1 and found[0].target == Rig.target_name.encode(), f"found {found}")
            expect(found[0].luns == luns and found[0].address in found[0].ports, f"LUNS or PORTS: {found[0]}")
            expect(found[0].password == bool(password) and found[0].frame_max == 1500, f"password or FRAME MAX: {found[0]}")
            expect(not discovery.discover(link, b"foreigners", nonce(seed + 1), 0.5), "a foreign group is answered")
            other = discovery.discover(link, b"backup", nonce(seed + 2), 0.5, b"iqn.2026-01.org.example:other")
            expect(not other, "another target is answered")
    return "1 target, 1 logical unit without a password and 2 with one"


@case()
def handshake_without_password_and_inventory(seed):
    """§6.4; and INQUIRY, REPORT LUNS, READ CAPACITY(16), TEST UNIT READY, LOGICAL UNIT RESET."""
    with Rig(PLAIN, "ram:4M,lun=7") as rig:
        session = log_in(rig, rig.link(), seed=seed)
        expect(session.chosen.levels == 1 and not session.keyed, f"chosen {session.chosen}")
        disk = Disk(session)
        inquiry = disk.do(scsi.inquiry(), data_in_len=96)
        expect(inquiry.good and inquiry.data_in[0] == 0 and inquiry.data_in[8:13] == b"TARGE", f"INQUIRY {bytes(inquiry.data_in)}")
        luns = disk.do(scsi.report_luns(), data_in_len=4096)
        found = scsi.parse_luns(luns.data_in)
        expect(found == [scsi.lun(0), scsi.lun(7)] and luns.moved == 24, f"REPORT LUNS {found}")
        capacity = disk.do(scsi.read_capacity(), data_in_len=32)
        expect(scsi.parse_capacity(capacity.data_in) == ((8 << 20) // BLOCK, BLOCK), f"READ CAPACITY {bytes(capacity.data_in)}")
        expect(disk.do(scsi.test_unit_ready()).good, "TEST UNIT READY")
        reset = session.manage(scsi.LUN_RESET, scsi.lun(0))
        session.run(lambda: reset.over, 5)
        expect(reset.managed == 0, f"LOGICAL UNIT RESET: {reset.managed}")
        expect(session.goodbye(), "no DONE")
        return bytes(inquiry.data_in[8:32]).decode()


@case(("without password, MTU 1500", OPEN | {"mtu": 1500}), ("encrypt, MTU 1500", KEYED | {"mtu": 1500}),
      ("encrypt, MTU 9000", KEYED | {"mtu": 9000}))
def writes_and_reads_a_whole_disk(seed, password, lun, level, mtu):
    with Rig(lun, mtu=mtu, password=password) as rig:
        session = log_in(rig, rig.link(), password, seed=seed)
        expect(session.keyed == bool(password) and session.chosen.levels & 1 << (level or 0), f"chosen {session.chosen}")
        told = transfer(rig, session, Disk(session, level=level), seed)
        expect(session.paths[0].mtu == mtu, f"frames of {session.paths[0].mtu} bytes at most")
        expect(session.counters["overtaken"] == 0, f"{session.counters['overtaken']} frames came behind later counts")
        return told


@case(("4 slots", {"exchanges": 4}), ("2 slots", {"exchanges": 2}), ("64 slots", {"exchanges": 64}))
def a_function_does_not_wait_for_commands(seed, exchanges):
    """§13.1, §13.7: commands that hang leave slots for functions, and ABORT TASK leaves one for a reset."""
    with Rig(PLAIN) as rig, mock.patch.object(Exchange, "transfer_ready", lambda self, *_: self.numbers.setdefault(0, True) and []):
        session = log_in(rig, rig.link(), seed=seed, offer={"exchanges": exchanges})
        disk, kept = Disk(session), min(max(exchanges // 4, 1), 8)
        expect(session.chosen.exchanges == exchanges and disk.do(scsi.test_unit_ready()).good, f"{session.chosen}")
        commands = [disk.write(8 * number, bytes(4096), unsolicited=0) for number in range(exchanges + 1)]
        session.run(lambda: sum(bool(one.numbers) for one in commands) == exchanges - kept, 10)
        abort = session.manage(scsi.ABORT_TASK, scsi.lun(0), commands[0])
        reset = session.manage(scsi.LUN_RESET, scsi.lun(0))
        session.run(lambda: abort.over and reset.over, 10)
        expect(abort.managed == 0 and commands[0].over and reset.managed == 0, f"MANAGED {abort.managed} and {reset.managed}")
        expect(session.goodbye(), "no DONE")


@case()
def too_low_a_level_is_refused(seed):
    """§7.1: CHECK CONDITION 5/74h/71h, protected; a function MANAGED 6."""
    with Rig(SECRET, password=PASSWORD) as rig:
        session = log_in(rig, rig.link(), PASSWORD, seed=seed)
        low = session.command(scsi.lun(0), scsi.test_unit_ready(), level=INTEGRITY)
        reset = session.manage(scsi.LUN_RESET, scsi.lun(0), level=INTEGRITY)
        session.run(lambda: low.over and reset.over, 5)
        expect(low.response.status == 2 and scsi.sense(low.response) == (5, 0x74, 0x71), f"{low.response}")
        expect(reset.managed == 6, f"MANAGED {reset.managed}")
        expect(session.goodbye(), "no DONE")


@case(waits=True)
def wrong_password_is_refused(seed):
    """§6.1: an ANSWER that does not open, and a second later the reason; and the two refusals of §6.3."""
    with Rig(PLAIN, password=PASSWORD) as rig:
        link, began, limit = rig.link(), time.monotonic(), withheld.Limit(4.0)
        refused(rig, link, b"wrong horse", "wrong password")
        took = time.monotonic() - began
        expect(1.0 <= took and not limit.over(), f"after {took:.1f} s")
        refused(rig, link, None, "a password is needed")
        expect(log_in(rig, link, PASSWORD, seed=seed).goodbye(), "the right password does not get in afterwards")
    with Rig(PLAIN) as rig:
        refused(rig, rig.link(), PASSWORD, "the group has no password")
    return f"after {took:.1f} s"


def refused(rig, link, password, reason):
    try:
        log_in(rig, link, password)
    except Failed as why:
        expect(str(why) == reason, f"refused with {why}, not {reason}")
    else:
        raise AssertionError(f"a session with {password}")


@case(("without password, MTU 1500", OPEN | {"mtu": 1500}), ("encrypt, MTU 1500", KEYED | {"mtu": 1500}),
      ("encrypt, MTU 9000", KEYED | {"mtu": 9000}), waits=True)
def writes_and_reads_a_disk_on_a_bad_cable(seed, password, lun, level, mtu):
    with Rig(lun, mtu=mtu, password=password) as rig:
        link = rig.link(kind=BadLink, seed=seed)
        session = log_in(rig, link, password, seconds=20.0, seed=seed)
        told = transfer(rig, session, Disk(session, level=level), seed, total=3 << 20, seconds=40.0)
        counts = link.counts
        expect(counts["lost"] > counts["sent"] * 0.03 and counts["twice"] and counts["held"], f"the cable is too good: {counts}")
        expect(session.counters["replayed"], "nothing came twice")
        return f"{told}, {counts['lost']} of {counts['sent']} frames lost, {counts['twice']} twice, {counts['held']} late"


def pattern(seed):
    return random.Random(seed).randbytes(BLOCK)


def contents(disk, block):
    exchange = disk.read(block, 1)
    disk.settle([exchange], 5)
    return bytes(exchange.data_in)


@case(*BOTH)
def a_request_that_comes_again_does_not_run_again(seed, password, lun, level):
    """A Request again, to the byte (§7.5), and in a new frame with its old XID (§13.6)."""
    with Rig(lun, password=password) as rig:
        session = log_in(rig, rig.link(), password, seed=seed)
        disk, path = Disk(session, level=level), session.paths[0]
        expect(disk.do(scsi.test_unit_ready()).good, "TEST UNIT READY")
        old = disk.begin(scsi.write(5, 1), data_out=pattern(seed))
        caught = []
        path.link.tap = lambda _, payload: caught.append(payload)
        disk.settle([old], 5)
        path.link.tap = None
        disk.settle([disk.write(5, pattern(seed + 1))], 5)
        before = commands_run(rig)
        path.link.send(path.address, next(payload for payload in caught if payload[4] & 0x7F == frame.REQUEST))
        session.queue.append(old.first())
        session.run(lambda: not path.in_flight and not session.queue, 5)
        expect(commands_run(rig) == before, "the command ran twice")
        expect(contents(disk, 5) == pattern(seed + 1), "old data came back")
        repairs = rig.ask("sessions")["hyperscsi"][0]["repairs"]
        expect(repairs["replayed_frames"] == 1, f"the target counted {repairs}")
        expect(session.goodbye(), "no DONE")


@case(*BOTH)
def frames_with_a_flipped_bit_do_nothing(seed, password, lun, level):
    """Every bit of a Request's header and some of its payload, flipped: nothing of it counts (§3.4)."""
    with Rig(lun, password=password) as rig:
        session = log_in(rig, rig.link(), password, seed=seed)
        disk, path = Disk(session, level=level), session.paths[0]
        disk.settle([disk.write(9, pattern(seed))], 5) if disk.do(scsi.test_unit_ready()).good else None
        exchange = disk.write(9, pattern(seed + 1))
        caught, send = [], path.link.transmit
        path.link.transmit = caught.append
        session.begin()
        session.pump(time.monotonic())
        path.link.transmit = send
        whole, before = caught[0], commands_run(rig)
        for bit in [*range(14 * 8, (14 + 28) * 8), *random.Random(seed).sample(range((14 + 28) * 8, len(whole) * 8), 100)]:
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 0x80 >> bit % 8
            path.link.transmit(bytes(damaged))
        # It has taken them once it answers a question behind them.
        expect(discovery.discover(rig.link(), rig.group.encode(), nonce(seed), 10, enough=1), "a QUESTION is not answered")
        time.sleep(0.2)
        expect(commands_run(rig) == before, "a damaged frame was executed")
        disk.settle([exchange], 5)
        expect(contents(disk, 9) == pattern(seed + 1), "wrong data")
        expect(session.goodbye(), "no DONE")
        return f"{28 * 8 + 100} damaged frames"


@case(waits=True)
def follows_new_keys_in_mid_transfer(seed):
    """§7.4: new keys after every 300 frames, but at most once in a second."""
    with Rig(SECRET, password=PASSWORD) as rig:
        session = log_in(rig, rig.link(), PASSWORD, seed=seed, frames_max=300)
        disk, generations = Disk(session, level=ENCRYPT), set()
        began = time.monotonic()
        disk.do(scsi.test_unit_ready())
        while time.monotonic() < began + 3.5:
            whole_disk(disk, seed, total=2 << 20, during=lambda _: generations.add(session.sender.generation.number))
        expect(len(generations) >= 3, f"generations {generations}")
        expect(session.goodbye(), "no DONE")
        return f"generations {sorted(generations)}"


@case(*BOTH, waits=True)
def goodbye_ends_a_session_and_is_answered_for_a_second(seed, password, lun, level):
    """§4.7, §14: DONE, and again for 1 s; then nobody knows the session, and the target lists it no more."""
    with Rig(lun, password=password) as rig:
        session = log_in(rig, rig.link(), password, seed=seed)
        expect(Disk(session, level=level).do(scsi.test_unit_ready()).good, "TEST UNIT READY")
        expect(len(rig.ask("sessions")["hyperscsi"]) == 1, "not listed")
        began = time.monotonic()
        expect(session.goodbye(), "no DONE")
        for pause in (0.01, 0.3, 0.3):
            time.sleep(pause)
            session.goodbye_done, said, waited = False, time.monotonic() - began, withheld.total()
            answered, late = session.goodbye(seconds=0.2), withheld.total() - waited
            if not answered and said + late > 1:
                raise withheld.Late(f"a GOODBYE {said:.2f} s after the first may have come {late:.2f} s later")
            expect(answered, f"no DONE to the GOODBYE after {said:.2f} s")
        expect(not rig.ask("sessions")["hyperscsi"], "listed still")
        withheld.sleep(1.2)
        session.control(frame.ASK, blocks.block(blocks.PING))
        ended(session, "UNKNOWN")


@case()
def restarted_target_says_unknown(seed):
    """§6.6: within a fraction of a second; and a new session is had."""
    with Rig(PLAIN) as rig:
        link = rig.link()
        session = log_in(rig, link, seed=seed)
        disk = Disk(session)
        disk.settle([disk.write(1, pattern(seed))], 5) if disk.do(scsi.test_unit_ready()).good else None
        rig.stop()
        rig.serve()
        began = time.monotonic()
        disk.write(1, pattern(seed))
        ended(session, "UNKNOWN")
        took = time.monotonic() - began
        expect(session.ended == "UNKNOWN" and session.counters["UNKNOWN"], f"ended: {session.ended}")
        expect(log_in(rig, link, seed=seed).goodbye(), "no DONE")
        return f"after {took:.2f} s, {session.counters['UNKNOWN']} times"


@case()
def newer_session_replaces_the_older(seed):
    """§6.6: GOODBYE 1 to the old one."""
    with Rig(PLAIN) as rig:
        link = rig.link()
        old = log_in(rig, link, seed=seed)
        expect(Disk(old).do(scsi.test_unit_ready()).good, "TEST UNIT READY")
        new = log_in(rig, rig.link(), seed=seed)
        ended(old, "GOODBYE 1")
        expect(old.ended == "GOODBYE 1", f"ended: {old.ended}")
        expect(Disk(new).do(scsi.test_unit_ready()).good and new.goodbye(), "the new session does not work")


@case(*BOTH)
def shutdown_says_goodbye_2(seed, password, lun, level):
    """§4.7: GOODBYE with its reason; and the process ends well."""
    with Rig(lun, password=password) as rig:
        session = log_in(rig, rig.link(), password, seed=seed)
        expect(Disk(session, level=level).do(scsi.test_unit_ready()).good, "TEST UNIT READY")
        rig.server.send_signal(signal.SIGTERM)
        ended(session, "GOODBYE 2", 3)
        session.farewell(0.2)
        expect(rig.server.wait(5) == 0, f"exit code {rig.server.returncode}")
