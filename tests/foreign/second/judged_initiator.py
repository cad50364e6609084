"""Our initiator judged by the second target: discovery, handshakes, whole disks, keys, paths, and cables that fail."""

import json
import random
import time

from initiator_host import GROUP, NAME, OPEN_AND_KEYED, case
from verdicts import expect

BAD_WIRE = {"drop": 0.05, "twice": 0.05, "late": 0.05}
MTUS = tuple((f"{name}, MTU {mtu}", {"mtu": mtu} | rig) for mtu in (1500, 9000) for name, rig in OPEN_AND_KEYED)


@case(*OPEN_AND_KEYED)
def finds_the_group_and_no_foreign_one(rig):
    found = json.loads(rig.ask("discover", "--json", "--group", GROUP.decode(), "--iface", "eth0").stdout)
    expect(len(found) == 1 and NAME.decode() in json.dumps(found), f"{found}")
    other = rig.ask("discover", "--group", "another", "--iface", "eth0", "--wait", 1, good=False)
    expect(NAME not in other.stdout, f"told to another group: {other.stdout}")
    return f"other group: {other.stderr.decode().strip()}"


@case(*OPEN_AND_KEYED)
def knows_the_unit(rig):
    told = json.loads(rig.ask("info", "--json", rig.url()).stdout)
    expect(told["bytes"] == rig.size and told["vendor"] == "SECOND" and told["serial"] == "SECOND-0001", f"{told}")
    expect(told["session"]["authenticated"] == rig.keyed, f"{told['session']}")


@case(*OPEN_AND_KEYED)
def writes_and_reads(rig):
    data = random.Random(rig.seed).randbytes(1 << 20)
    rig.ask("write", "--write", "--offset", "1M", rig.url(), data=data)
    got = rig.ask("read", "--offset", "1M", "--length", "1M", rig.url()).stdout
    expect(got == data and rig.disk.data[1 << 20:2 << 20] == data, "other bytes came back")
    rig.once()


@case(*MTUS)
def verifies_a_whole_disk(rig):
    report = rig.verify()
    return f"{rig.once(report)} commands, {report['seconds']:.2f} s"


@case(("", {"keyed": True}), waits=True)
def tells_a_wrong_password(rig):
    rig.password_file(b"another word")
    began = time.monotonic()
    result = rig.ask("info", rig.url(), good=False)
    expect(result.returncode != 0 and b"wrong password" in result.stderr, f"{result.returncode}: {result.stderr}")
    expect(time.monotonic() - began > 1, "gave up before a second was over (§6.1)")
    expect(not rig.target.sessions and len(rig.target.handshakes.halves) == 1, "not one half-open handshake")


@case(("", {"keyed": True}), waits=True)
def tells_a_missing_password(rig):
    result = rig.ask("info", rig.url(password=False), good=False)
    expect(result.returncode != 0 and rig.target.counts["refuse 5"] > 1, f"{result.stderr}")
    return result.stderr.decode().strip().rpartition(": ")[2]


@case(waits=True)
def tells_a_password_where_there_is_none(rig):
    result = rig.ask("info", rig.url(password=True), good=False)
    expect(result.returncode != 0 and rig.target.counts["refuse 6"] > 1, f"{result.stderr}")
    return result.stderr.decode().strip().rpartition(": ")[2]


@case(*((name, BAD_WIRE | rig) for name, rig in MTUS), waits=True)
def verifies_through_a_bad_cable(rig):
    report = rig.verify()
    expect(all(rig.ports[0].counts[name] > 20 for name in BAD_WIRE), f"{rig.ports[0].counts}")
    return f"{rig.once(report)} commands, {report['seconds']:.2f} s, {dict(rig.ports[0].counts)}"


@case(*OPEN_AND_KEYED)
def survives_a_target_that_forgot_its_sessions(rig):
    """The target forgets its sessions twice, while commands are under way."""
    moments = [10, 24]

    def forget_in_time():
        if len(rig.target.runs) >= moments[0]:
            rig.target.forget()
            del moments[0]
        return not moments
    rig.duties.append(forget_in_time)
    report = rig.verify()
    expect(not moments and rig.target.counts["sessions"] == 3, f"{rig.target.counts}")
    expect(rig.target.counts["unknown"] > 0, "UNKNOWN was never said")
    rig.once()
    return f"{report['seconds']:.2f} s, UNKNOWN {rig.target.counts['unknown']} times"


@case(("", {"keyed": True, "rekey_after": 300}), waits=True)
def follows_new_keys(rig):
    changes = []
    rig.duties.append(lambda: changes.append(rig.target.changes()))
    report = json.loads(rig.ask("verify", "--time", 4, "--write", "--json", "--seed", rig.seed, rig.url()).stdout)
    expect(report["sound"] and report["errors"] == 0, f"{report}")
    expect(rig.target.counts["sessions"] == 1 and max(changes) >= 3, f"{max(changes)} changes")
    rig.once(report)
    return f"{max(changes)} changes of keys"


@case(*((name, {"flip": 0.05, "replay": 0.05, "rekey_after": 1000} | rig) for name, rig in OPEN_AND_KEYED))
def frames_flipped_and_replayed_do_nothing(rig):
    """Beside the good frames come damaged copies and old frames, in both directions."""
    report = rig.verify()
    counts = rig.target.counts
    expect(counts["dropped: came before"] > 20 and counts["dropped: tag" if rig.keyed else "dropped: crc"] > 20, f"{counts}")
    expect(counts["sessions"] == 1, f"{counts['sessions']} sessions")
    return f"{rig.once(report)} commands, {dict(rig.ports[0].counts)}"


@case(*((name, {"cables": 2} | rig) for name, rig in OPEN_AND_KEYED))
def two_paths_and_one_cable_is_cut(rig):
    """Two cables: the initiator adds a path; then one cable is cut."""
    seen = set()

    def cut_in_time():
        seen.update(number for session in rig.target.sessions.values() for number, path in session.paths.items() if path.usable)
        if len(seen) == 2 and len(rig.target.runs) > 12:
            rig.ports[0].rates.update(drop=1)
            return True
        return False
    rig.duties.append(cut_in_time)
    report = rig.verify()
    expect(len(seen) == 2, f"paths {seen}")
    expect(rig.ports[0].rates.get("drop") == 1 and rig.target.counts["sessions"] == 1, "not cut, or another session")
    return f"{rig.once(report)} commands, {report['seconds']:.2f} s"


@case(*OPEN_AND_KEYED, waits=True)
def the_only_cable_is_pulled_for_3_s(rig):
    """The only cable is pulled for 3 s in mid-transfer: the session outlives it (§10.2, §10.4)."""
    moments = []

    def pull():
        now = time.monotonic()
        if not moments and len(rig.target.runs) > 12:
            moments.append(now)
            rig.ports[0].rates.update(drop=1)
        if moments and now - moments[0] > 3:
            rig.ports[0].rates.update(drop=0)
            return True
        return False
    rig.duties.append(pull)
    report = rig.verify()
    expect(report["seconds"] > 3 and rig.target.counts["sessions"] == 1, f"{report['seconds']} s, {rig.target.counts}")
    return f"{rig.once(report)} commands, {report['seconds']:.2f} s"
