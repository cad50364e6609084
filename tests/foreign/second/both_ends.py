"""The two ends of the second implementation against each other, without a line of ours: where they part, the document is to blame."""

import sys
import time

import cases
import withheld
from initiator import discovery, scsi
from initiator.keys import ENCRYPT
from initiator.link import BadLink, Link
from initiator.workload import Disk, log_in, whole_disk
from initiator_host import GROUP, NAME, OPEN_AND_KEYED, PASSWORD, Rig
from target_host import link_of
from verdicts import expect


def case(*variants):
    def keep(function):
        def judged(seed, **options):
            # Both ends are threads of one process: neither should wait for long until the other lets go.
            sys.setswitchinterval(0.0002)
            with Rig(seed=seed, **options) as rig:
                return function(rig, seed)
        judged.__name__ = function.__name__
        for variant, options in variants:
            cases.add("both ends", judged, variant, options, True)
        return function
    return keep


@case(*OPEN_AND_KEYED)
def find_each_other(rig, seed):
    link = link_of(rig.net.initiator)
    found = discovery.discover(link, GROUP, bytes(16), 1.0, enough=1)
    expect(len(found) == 1 and found[0].target == NAME and found[0].password == rig.keyed, f"{found}")
    expect(found[0].luns == {scsi.lun(0): rig.disk.least_level}, f"{found}")
    expect(not discovery.discover(link, b"others", bytes(16), 0.3), "another group is told")


@case(*((f"{name}, MTU {mtu}", {"mtu": mtu} | rig) for mtu in (1500, 9000) for name, rig in OPEN_AND_KEYED))
def write_and_read_a_whole_disk(rig, seed):
    return moved(rig, seed, link_of(rig.net.initiator, kind=Link))


@case(*OPEN_AND_KEYED)
def write_and_read_a_whole_disk_on_a_bad_cable(rig, seed):
    link = link_of(rig.net.initiator, kind=BadLink, seed=seed)
    told = moved(rig, seed, link)
    expect(link.counts["lost"] > link.counts["sent"] * 0.03, f"the cable is too good: {link.counts}")
    return f"{told}, {link.counts['lost']} of {link.counts['sent']} frames lost"


def moved(rig, seed, link):
    """A session from its login to DONE, with every block written and read; each command ran once."""
    began = time.monotonic()
    session = log_in(rig, link, PASSWORD if rig.keyed else None, seconds=20.0, seed=seed)
    disk = Disk(session, level=ENCRYPT if rig.keyed else None)
    expect(disk.do(scsi.test_unit_ready()).good, "TEST UNIT READY")
    before = len(rig.target.runs)
    count = whole_disk(disk, seed, total=rig.size, seconds=40.0)
    expect(rig.once() - before == count, f"{count} commands were sent, {rig.once() - before} ran")
    expect(session.goodbye(), "no DONE")
    expect(rig.target.counts["sessions"] == 1, f"{rig.target.counts}")
    return f"{count} commands in {time.monotonic() - began:.1f} s, MTU {session.paths[0].mtu}"


@case(*OPEN_AND_KEYED)
def goodbye_is_answered(rig, seed):
    session = log_in(rig, link_of(rig.net.initiator), PASSWORD if rig.keyed else None, seconds=10.0, seed=seed)
    expect(Disk(session, level=ENCRYPT if rig.keyed else None).do(scsi.test_unit_ready()).good, "TEST UNIT READY")
    told = next(iter(rig.target.sessions.values()))
    rig.duties.append(lambda: told.end(2) or True)
    limit = withheld.Limit(5)
    while not session.ended and not limit.over():
        session.turn(limit.end)
    limit = withheld.Limit(0.3)
    while told.farewell is not None and not limit.over():
        session.farewell(0.05)
    expect(session.ended == "GOODBYE 2", f"ended: {session.ended}")
    expect(told.farewell is None, "DONE was not heard")
