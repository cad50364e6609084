"""The Linux kernel's initiator in a QEMU guest, and one PDU with one wrong bit: what digests detect, and what stays silent without them.

The guest runs `dd` with O_DIRECT, so that each of its reads and writes is a command. docs/lab/risk.md has the results.
"""

import os

import pytest

import servers
from guest import image
from guest.damaging_relay import BLOCK, FAULTS, LBA_BIT, DamagingRelay
from guest.initiator import COMPLAINTS, Initiator
from guest.machine import Guest
from serving import serving
from verdicts import expect

# A trial reads or writes so many blocks: more than FirstBurstLength, so that a write has Data-Out PDUs. The next trial begins
# STEP blocks later; the address with the wrong bit lies between them.
COUNT, STEP = 1024, 2 * LBA_BIT
# What each choice of digests protects: a wrong bit in anything else stays silent.
DIGESTS = {"none": [], "header": ["header"], "data": ["data"], "both": ["header", "data"]}
TRIALS = [(digests, fault) for digests in DIGESTS for fault in FAULTS]
SIZE = (1 + len(TRIALS)) * STEP * BLOCK
# The target can recover more than open-iscsi asks for.
EXPORT = servers.Export(luns=(servers.Lun(size=SIZE),), level=2)
# Both are emulated: the guest's boot, and what it does.
pytestmark = pytest.mark.timeout(2000)


def block(what, number):
    """A block that says which one it is, as `Rig.make` makes it in the guest."""
    return f"{f'{what} {number}':<{BLOCK - 1}}\n".encode()


class Rig:
    """The guest's initiator, the relay that it logs in through, and what the medium must hold."""

    def __init__(self, initiator, relay):
        self.initiator, self.guest, self.relay = initiator, initiator.guest, relay
        self.expected = {number: block("old", number) for number in range(SIZE // BLOCK)}
        self.findings = []

    def make(self, what, blocks, path):
        """A file in the guest that has these blocks."""
        self.guest.run(f"awk 'BEGIN {{ for (i = {blocks.start}; i < {blocks.stop}; i++) printf \"%-{BLOCK - 1}s\\n\", \"{what} \" i }}' > {path}")

    def copy(self, source, target, options):
        """The exit code of `dd` in the guest."""
        self.guest.run(f"dd if={source} of={target} bs={COUNT * BLOCK} count=1 {options} 2>&1", check=False)
        return self.guest.code

    def read(self, disk, what, blocks):
        """Reads the blocks. Returns the exit code of `dd`, and which blocks are others than they must be."""
        self.make(what, blocks, "/tmp/expected")
        self.guest.run("rm -f /tmp/back")
        code = self.copy(disk, "/tmp/back", f"skip={blocks.start // COUNT} iflag=direct")
        differing = self.guest.run("cmp -l /tmp/expected /tmp/back 2> /dev/null | awk '{ print int(($1 - 1) / " + str(BLOCK) + ") }' | uniq", check=False)
        return code, {blocks.start + int(number) for number in differing.split()}

    def write(self, disk, what, blocks):
        """Writes the blocks. Returns the exit code of `dd`."""
        self.make(what, blocks, "/tmp/sent")
        self.expected.update((number, block(what, number)) for number in blocks)
        return self.copy("/tmp/sent", disk, f"seek={blocks.start // COUNT} oflag=direct")

    def wrong_on_medium(self):
        with open(self.initiator.server.medium_path(), "rb") as medium:
            return {number for number in range(SIZE // BLOCK) if medium.read(BLOCK) != self.expected[number]}

    def accept_medium(self):
        """What is on the medium now is what the next trial begins with."""
        with open(self.initiator.server.medium_path(), "rb") as medium:
            self.expected = {number: medium.read(BLOCK) for number in range(SIZE // BLOCK)}


@pytest.fixture(scope="module")
def rig(request, kind, server_name):
    out = os.path.join(servers.OUT, "guest")
    folder = os.path.join(out, server_name, "damage")
    os.makedirs(folder, exist_ok=True)
    server = kind(folder, EXPORT)
    server.make_media = lambda: make_medium(server)
    kernel, initramfs = image.prepare(out)
    with serving(request, "damage", server), DamagingRelay(server.port) as relay, Guest(kernel, initramfs, folder) as guest:
        initiator = Initiator(guest, server)
        initiator.use_port(relay.port)
        rig = Rig(initiator, relay)
        yield rig
        versions = guest.run("uname -r; iscsiadm --version").splitlines()
        report(os.path.join(folder, "findings.md"), versions, rig.findings)


def make_medium(server):
    with open(server.medium_path(), "wb") as medium:
        medium.writelines(block("old", number) for number in range(SIZE // BLOCK))


def report(path, versions, findings):
    """Writes what was found, as rows of a table."""
    with open(path, "w") as file:
        file.write(f"{', '.join(versions)}\n\n| fault | digests | dd ends with | wrong blocks for dd | wrong blocks on the medium | "
                   "new connections | reported by the target |\n|---|---|---|---|---|---|---|\n")
        file.writelines(f"| {' | '.join(map(str, row))} |\n" for row in findings)


def values(digests):
    """The values of HeaderDigest and DataDigest."""
    return ["CRC32C" if name in DIGESTS[digests] else "None" for name in ("header", "data")]


def damaged_part(fault):
    return "header" if fault.endswith("LBA") else "data"


@pytest.mark.parametrize("digests, fault", TRIALS, ids=lambda value: value.replace(" ", "-"))
def test_one_wrong_bit(rig, digests, fault):
    initiator, relay, guest = rig.initiator, rig.relay, rig.guest
    first = STEP * (1 + TRIALS.index((digests, fault)))
    blocks, writes = range(first, first + COUNT), fault.startswith("write")
    header, data = values(digests)
    with initiator.logged_in(header=header, data=data) as disk:
        agreed = initiator.negotiated()
        expect((agreed["HeaderDigest"], agreed["DataDigest"]) == (header, data), f"agreed on {agreed}")
        expect(guest.run("cat /sys/class/iscsi_session/session*/erl") == "0", "open-iscsi has another recovery level than 0")

        # Without a fault nothing happens.
        expect(not writes or rig.write(disk, "undamaged", blocks) == "0", "an undamaged write fails")
        what = "undamaged" if writes else "old"
        expect(rig.read(disk, what, blocks) == ("0", set()), "an undamaged read returns something else")
        expect(not rig.wrong_on_medium(), "the medium is wrong without a fault")
        expect(not initiator.complaints(), initiator.complaints())

        guest.run("dmesg -c > /dev/null")
        connections, reported = relay.connections, relay.reported.copy()
        relay.arm(fault, blocks)
        code, wrong = (rig.write(disk, "damaged", blocks), set()) if writes else rig.read(disk, what, blocks)
        damaged = relay.disarm()
        expect(damaged, "no PDU was damaged")
        if writes:
            # What the application finds when it reads what it wrote.
            again, wrong = rig.read(disk, "damaged", blocks)
            expect(again == "0", f"dd ends with {again} as it reads back")
        on_medium = rig.wrong_on_medium()
        renewed, reported = relay.connections - connections, relay.reported - reported
        said = guest.run(f"dmesg | grep -E '{COMPLAINTS}|DataDigest'", check=False)
        rig.findings.append((fault, digests, code, len(wrong), len(on_medium), renewed, dict(reported) or "nothing"))
        print(*rig.findings[-1], said, sep="\n")
        rig.accept_medium()
        judge(fault, digests, damaged, code, wrong, on_medium)
        expect_reaction(fault, digests, renewed, reported, said)


def expect_reaction(fault, digests, renewed, reported, said):
    """Nothing happens without the digest of what is damaged, whether or not there is the other one. With it the target answers a
    damaged Data-Out PDU on the same connection, by a Reject and a CHECK CONDITION, after which the kernel sends the command again (RFC
    7143 §7.8). Everything else ends the connection, and the kernel logs in again."""
    told = f"{renewed} new connections, {dict(reported)}; the kernel says {said!r}"
    if damaged_part(fault) not in DIGESTS[digests]:
        expect(renewed == 0 and not reported and not said, told)
    elif fault == "write data":
        expect(renewed == 0 and reported == {"Reject": 1, "status 02h": 1} and "rejected due to DataDigest error" in said, told)
    else:
        expect(renewed > 0 and not reported["Reject"] and "detected conn error" in said, told)


def judge(fault, digests, damaged, code, wrong, on_medium):
    """The application has no error in any case. With the digest of what is damaged it has the right data, and without it exactly the
    wrong data that follows from the wrong bit."""
    part = damaged_part(fault)
    expect(not damaged.before, f"the relay reads wrong digests: {damaged.before}")
    expect(damaged.after == [name for name in DIGESTS[digests] if name == part], f"after the damage do not match: {damaged.after}")
    expect(code == "0", f"dd ends with {code}")
    command = range(damaged.command.first, damaged.command.first + damaged.command.count)
    mistaken = {damaged.block} if part == "data" else set(command)
    elsewhere = {number ^ LBA_BIT for number in command} if part == "header" else set()
    if part in DIGESTS[digests]:
        mistaken = elsewhere = set()
    expect(wrong == mistaken, f"dd has {len(wrong)} wrong blocks, not {len(mistaken)}: {sorted(wrong)[:4]}, {sorted(mistaken)[:4]}")
    stored = mistaken | elsewhere if fault.startswith("write") else set()
    expect(on_medium == stored, f"the medium has {len(on_medium)} wrong blocks, not {len(stored)}: {sorted(on_medium)[:4]}")
