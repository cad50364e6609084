"""Single rules of exchanges that our target keeps: data, giving up, functions, parts, and Requests that make no sense."""

from initiator import blocks, frame, scsi
from initiator.keys import ENCRYPT
from initiator.watch import PATIENCE_S, blocks_of
from initiator.workload import Disk
from target_host import Rig, case, commands_run
from verdicts import expect
from watching import PASSWORD, PLAIN, TUR, says, watch, write_of

BROKEN = (blocks.GIVEN_UP, 3, b"")
BOTH = ("without password", {"password": None, "level": 0}), ("encrypt", {"password": PASSWORD, "level": ENCRYPT})


@case()
def takes_data_earliers_request_and_no_byte_twice(seed):
    """§13.2, §13.3."""
    with Rig(PLAIN) as rig:
        session, disk = watch(rig)
        slot = session.name()
        session.say(frame.REQUEST, b"B" * 1024, flags=frame.ELICITS | frame.DATA, off=1024, **slot)
        session.listen(0.05)
        session.say(frame.REQUEST, b"X" * 512, flags=frame.ELICITS | frame.DATA, off=1536, **slot)
        session.say(frame.REQUEST, write_of(2048, 2048) + b"A" * 1024, **slot)
        expect(blocks_of(session.listen(0.1, says(frame.REPLY)), frame.REPLY), "no RESPONSE")
        read = disk.read(0, 4)
        disk.settle([read], 5)
        expect(read.data_in == b"A" * 1024 + b"B" * 1024, f"{bytes(read.data_in[::512])}")


@case()
def gives_up_before_while_and_instead_of_a_request(seed):
    """§13.8: GIVE UP before, while and instead of a Request."""
    with Rig(PLAIN) as rig:
        session, _ = watch(rig)
        missing = session.name()
        for said, info in ((None, 0), (write_of(2048), 1), (write_of(2048, after=missing["xid"]), 0)):
            slot = session.name()
            if said:
                session.say(frame.REQUEST, said, **slot)
                session.listen(0.05)
            session.say(frame.ABORT, blocks.block(blocks.GIVE_UP, 0), **slot)
            came = blocks_of(session.listen(0.1, says(frame.ABORT)), frame.ABORT)
            expect(set(came) == {(blocks.GIVEN_UP, info, b"")}, f"{came}, not GIVEN UP {info}")
        before = commands_run(rig)
        session.say(frame.REQUEST, TUR, **slot)
        session.listen(0.05)
        expect(commands_run(rig) == before, "a Request that was given up ran")


@case()
def functions_end_tasks(seed):
    """§13.7: QUERY TASK; and the last words of a task that ABORT TASK or LOGICAL UNIT RESET ended."""
    with Rig(PLAIN) as rig:
        session, disk = watch(rig)
        for function, result, last in ((9, 7, []), (1, 0, [1]), (5, 0, [1])):
            expect(disk.do(scsi.test_unit_ready()).good, "TEST UNIT READY")
            task = session.name()
            session.say(frame.REQUEST, write_of(2048), **task)
            session.listen(0.05)
            named = task["xid"] if function != 5 else 0
            session.say(frame.REQUEST, blocks.manage(function, scsi.lun(0), task["xid"], named), **session.name())
            heard = session.listen(0.1, says(frame.REPLY, *[frame.ABORT] * len(last)))
            managed, ended_by = blocks_of(heard, frame.REPLY), blocks_of(heard, frame.ABORT)
            expect(set(managed) == {(blocks.MANAGED, result, b"")}, f"function {function}: {managed}")
            expect(sorted({info for _, info, _ in ended_by}) == last, f"function {function}: {ended_by}")
            session.say(frame.ABORT, blocks.block(blocks.GIVE_UP, 0), **task)
            session.listen(0.05)


@case()
def parts_are_judged_whole_and_then_one_by_one(seed):
    """§4.11."""
    with Rig(PLAIN) as rig:
        session, disk = watch(rig)
        before = commands_run(rig)
        for place, value in ((0, 2), (1, 0), (1, 2), (1, 64), (4, 0x10), (7, 0x80), (7, 0x02), (8, 2), (3, 17)):
            one, other = session.name(), session.name()
            payload = bytearray(blocks.parts(TUR, [blocks.Part(other["tag"], True, 0, 0, other["xid"], 0, TUR)]))
            payload[place] = value
            pn = session.say(frame.REQUEST, bytes(payload), flags=frame.ELICITS | frame.PARTS, **one)
            expect(session.is_acknowledged_alone(pn), f"byte {place} = {value} is not acknowledged")
            session.listen(0.03)
            expect(commands_run(rig) == before, f"byte {place} = {value} is taken")
        slots = [session.name() for _ in range(3)]
        further = [blocks.Part(slot["tag"], True, 0, 0, slot["xid"], 0, block) for slot, block in zip(slots[1:], (b"\x09\0\0\4", TUR))]
        session.say(frame.REQUEST, blocks.parts(TUR, further), flags=frame.ELICITS | frame.PARTS, **slots[0])
        session.listen(0.05)
        expect(commands_run(rig) == before + 2, "the good parts beside a bad one did not run")
        reads = [disk.read(block, 1) for block in range(60)]
        disk.settle(reads, 5)
        expect(any(opened.flags & frame.PARTS and opened.cmd == frame.REPLY for opened in session.heard), "the target sent no parts")


def nonsense(session):
    """Requests that begin nothing, by name: block, and how its names differ from what would be right."""
    body, next_xid = TUR[4:], session.classes[0].top | session.classes[0].next
    yield "an item of bit 7", blocks.block(1, 1, body, blocks.item(0x85, b"x")), {}
    yield "a reserved field", blocks.block(1, 1, body[:26] + b"\0\1" + body[28:]), {}
    yield "CDB LEN 0", blocks.block(1, 1, body[:24] + bytes(4)), {}
    yield "CDB LEN 300", blocks.block(1, 1, body[:24] + b"\1\x2c" + body[26:]), {}
    yield "task attribute 0", blocks.block(1, 0, body), {}
    yield "task attribute 5", blocks.block(1, 5, body), {}
    yield "LEN 3", b"\1\1\0\3", {}
    yield "KIND 7", blocks.block(7), {}
    yield "nothing", b"", {}
    yield "data that was not announced", TUR + bytes(512), {}
    yield "something behind MANAGE", blocks.manage(scsi.QUERY_TASK, scsi.lun(0), 0, 0) + b"x", {}
    yield "more unsolicited data than FIRST BURST", write_of(102400, 70144), {}
    yield "more unsolicited data than data", write_of(512, 600), {}
    yield "AFTER itself", "AFTER", {"ahead": 0}
    yield "AFTER a later one", "AFTER", {"ahead": 100}
    yield "a TAG beyond EXCHANGES", TUR, {"tag": session.chosen.exchanges}


@case(*BOTH)
def requests_that_make_no_sense_are_given_up(seed, password, level):
    """§13.2: GIVEN UP 3, the XID counts as delivered, and the session goes on."""
    with Rig(PLAIN, password=password) as rig:
        session, disk = watch(rig, password, level)
        before = commands_run(rig)
        for name, payload, names in nonsense(session):
            slot = session.name(level)
            if payload == "AFTER":
                payload = blocks.command(scsi.lun(0), scsi.test_unit_ready(), 0, 0, 0, slot["xid"] + names["ahead"])
            slot["tag"] = names.get("tag", slot["tag"])
            given_up(session, name, payload, slot, level)
        expect(commands_run(rig) == before, "nonsense ran")
        goes_on(rig, session, disk, before)


@case(*BOTH)
def a_slot_whose_exchange_has_not_ended_takes_no_other(seed, password, level):
    """§13.1, §13.2: GIVEN UP 3 to the newcomer; the exchange in the slot ends as if nothing had been."""
    with Rig(PLAIN, password=password) as rig:
        session, disk = watch(rig, password, level)
        before, slot = commands_run(rig), session.name(level)
        session.say(frame.REQUEST, write_of(1024), level=level, **slot)
        session.listen(0.05)
        given_up(session, "a slot that is held", TUR, session.name(level) | {"tag": slot["tag"]}, level)
        session.say(frame.REQUEST, b"D" * 1024, flags=frame.ELICITS | frame.DATA, level=level, **slot)
        session.listen(0.1)
        read = disk.read(0, 2)
        disk.settle([read], 5)
        expect(read.data_in == b"D" * 1024, f"{bytes(read.data_in[::512])}")
        goes_on(rig, session, disk, before + 2)


def given_up(session, name, payload, slot, level):
    pn = session.say(frame.REQUEST, payload, level=level, **slot)
    before = len(session.heard)
    expect(session.is_acknowledged_alone(pn), f"{name} is not acknowledged")
    session.work(PATIENCE_S, lambda: says(frame.ABORT)(session.heard[before:]))
    session.listen(0.04)
    heard = session.heard[before:]
    said = [opened for opened in heard if opened.cmd == frame.ABORT]
    expect({(opened.tag, opened.xid) for opened in said} == {(slot["tag"], slot["xid"])}, f"{name}: {len(said)} Aborts")
    expect(set(blocks_of(said, frame.ABORT)) == {BROKEN}, f"{name}: {blocks_of(said, frame.ABORT)}")


def goes_on(rig, session, disk, before):
    """ORDERED commands and XID LIMIT move: as many commands run as would not fit without."""
    ordered = disk.begin(scsi.test_unit_ready(), attribute=2)
    reads = [disk.read(block, 1) for block in range(session.chosen.exchanges + 50)]
    disk.settle([ordered, *reads], 10)
    expect(commands_run(rig) == before + 1 + len(reads), "not every command ran once")


@case(*BOTH)
def data_that_nobody_asked_for_is_dropped(seed, password, level):
    """§13.3: data behind the end is acknowledged and dropped, and the exchange ends well with the right data."""
    with Rig(PLAIN, password=password) as rig:
        session, disk = watch(rig, password, level)
        slot = session.name(level)
        session.say(frame.REQUEST, write_of(1024, 512), level=level, **slot)
        for off in (1024, 1 << 20):
            pn = session.say(frame.REQUEST, b"X" * 512, flags=frame.ELICITS | frame.DATA, off=off, level=level, **slot)
            earlier = len(session.heard)
            expect(session.is_acknowledged_alone(pn), f"OFF {off} is not acknowledged")
            session.listen(0.05)
            expect(not blocks_of(session.heard[earlier:], frame.ABORT), f"OFF {off} is answered")
        for off in (0, 512):
            session.say(frame.REQUEST, b"G" * 512, flags=frame.ELICITS | frame.DATA, off=off, level=level, **slot)
        session.listen(0.1)
        read = disk.read(0, 2)
        disk.settle([read], 5)
        expect(read.data_in == b"G" * 1024, f"{bytes(read.data_in[::512])}")
