"""Linux uses a tape library of ours: ch and Debian's mtx move cartridges, tar writes and reads them in both drives.

An operator puts cartridges in and takes them out while the library is served; the target is killed while cartridges move.
"""

import json
import os
import random
import subprocess
import time

import pytest

import servers
from guest import image
from guest.initiator import Initiator
from guest.machine import COMMAND_MAX_S, CommandFailed, Guest
from serving import serving
from verdicts import expect

MIB = servers.MIB
EXPORT = servers.Export(luns=(servers.Lun(medium="changer", size=256 * MIB),))
CARTRIDGES = ["A00001L8", "A00002L8", "A00003L8"]
pytestmark = pytest.mark.timeout(2000)


class Library:
    """The library as the guest sees it, and as an operator does. The LUNs of its drives follow that of the changer."""

    def __init__(self, guest, server, lun=0):
        self.guest, self.server = guest, server
        self.initiator = Initiator(guest, server)
        for module in ("st", "sg", "ch"):
            guest.run(f"modprobe {module}")
        self.initiator.clear()
        self.initiator.set_up()
        guest.run(f"{self.initiator.record} --login")
        self.lun = lun
        self.find_devices()

    def find_devices(self):
        """Looks the device files up, which are others after each login."""
        self.changer = self.device("scsi_changer", "sch[0-9]*", self.lun)
        self.generic = self.device("scsi_generic", "sg*", self.lun)
        self.drives = [self.device("scsi_tape", "nst[0-9]", self.lun + number) for number in (1, 2)]

    def device(self, kind, names, lun):
        for _ in range(300):
            found = self.guest.run(f"ls -d /sys/class/iscsi_session/session*/device/target*/*:{lun}/{kind}/{names} 2> /dev/null", check=False)
            if found.split():
                device = f"/dev/{found.split()[-1].rsplit('/', 1)[1]}"
                self.guest.run(f"until [ -c {device} ]; do sleep 0.1; done")
                return device
            self.guest.run("sleep 0.1")
        raise CommandFailed(f"LUN {lun} has no {kind}: {self.guest.run('dmesg | tail -n 15')}")

    def mtx(self, command, check=True):
        return self.guest.run(f"mtx -f {self.changer} {command} 2>&1", check=check)

    def refused(self, command):
        said = self.mtx(command, check=False)
        expect(self.guest.code != "0", f"mtx {command} succeeds: {said}")
        return said

    def inventory(self):
        """Where the cartridges are, as mtx says: {"drive 0": "A00001L8", "slot 2": …}."""
        held = {}
        for line in self.mtx("status").splitlines():
            if "VolumeTag" in line:
                place, tag = line.split(":", 1)[0].strip(), line.split("VolumeTag")[1].strip(" =")
                kind, number = ("drive", place.split()[3]) if place.startswith("Data Transfer") else ("slot", place.split()[2])
                held[f"{kind} {number}"] = tag
        return held

    def operator(self, *words, check=True):
        """An operator's command; what it said."""
        action, *rest = words
        done = subprocess.run([self.server.binary, "changer", action, self.server.medium_path(), *rest, "--socket",
                               os.path.join(self.server.folder, "admin", "admin.sock")], capture_output=True, text=True, timeout=COMMAND_MAX_S)
        expect((done.returncode == 0) == check, f"targe changer {words}: {done.returncode} {done.stderr}")
        return done.stderr

    def listed(self):
        """Where the cartridges are, as `targe changer ls` says."""
        done = subprocess.run([self.server.binary, "changer", "ls", "--json", self.server.medium_path()], capture_output=True, text=True,
                              check=True, timeout=COMMAND_MAX_S)
        elements = json.loads(done.stdout)["elements"]
        numbers = {"drive": lambda number: number - 1, "slot": lambda number: number, "mail": lambda number: number + 4}
        kinds = {"drive": "drive", "slot": "slot", "mail": "slot"}
        return {f"{kinds[one['kind']]} {numbers[one['kind']](one['number'])}": one["cartridge"]["barcode"]
                for one in elements if one["cartridge"]}

    def attention(self, device):
        """Takes the unit attention that is pending: key, code and qualifier."""
        told = self.guest.run(f"sg_raw -r 18 {device} 03 00 00 00 12 00 2>&1")
        line = next(line for line in told.splitlines() if line.strip().startswith("00 "))
        data = line.split()[1:17]
        return int(data[2], 16) & 15, int(data[12], 16), int(data[13], 16)

    def ready(self, number):
        """Waits until the drive has loaded its cartridge, as mtx-changer does."""
        self.guest.run(f"until mt-gnu -f {self.drives[number]} rewind 2> /dev/null; do sleep 0.1; done")
        return self.drives[number]

    def emptied(self):
        """Puts every cartridge back into its slot."""
        for number in (0, 1):
            if f"drive {number}" in self.inventory():
                self.mtx(f"unload {CARTRIDGES.index(self.inventory()[f'drive {number}']) + 1} {number}")


@pytest.fixture(scope="module")
def library(request, kind, server_name):
    if server_name != "targe":
        pytest.skip("the libraries of others are others' business")
    out = os.path.join(servers.OUT, "guest")
    folder = os.path.join(out, "changer")
    os.makedirs(folder, exist_ok=True)
    kernel, initramfs = image.prepare_changer(out)
    server = kind(folder, EXPORT)
    with serving(request, "changer", server), Guest(kernel, initramfs, folder) as guest:
        yield Library(guest, server)


def test_is_a_library(library):
    guest = library.guest
    said = guest.run("dmesg | grep 'ch0\\|sch0\\|\\[ch'", check=False)
    for part in ("type #1 (mt): 0x1+1", "type #2 (st): 0x3e8+4", "type #3 (ie): 0xa+2", "type #4 (dt): 0x1f4+2"):
        expect(part in said, f"the kernel does not say {part}: {said}")
    told = library.mtx("inquiry")
    expect("Medium Changer" in told and "Virtual Library" in told, told)
    told = library.mtx("status")
    expect("2 Drives, 6 Slots ( 2 Import/Export )" in told, told)
    expect(library.inventory() == {f"slot {number + 1}": tag for number, tag in enumerate(CARTRIDGES)} == library.listed(), told)
    library.mtx("inventory")
    told = guest.run(f"sg_opcodes {library.generic}")
    for name in ("Move medium", "Read element status", "Exchange medium"):
        expect(name.lower() in told.lower(), f"sg_opcodes does not list {name}: {told}")
    # Without this flag the kernel waits two minutes for a cartridge.
    said = guest.run(f"/usr/bin/dd iflag=nonblock if={library.drives[0]} of=/dev/null bs=1000 count=1 2>&1", check=False)
    expect(guest.code != "0" and "No medium found" in said, f"an empty drive: {said}")


def test_moves_cartridges(library):
    library.mtx("load 1 0")
    library.mtx("transfer 2 4")
    expect(library.inventory() == {"drive 0": "A00001L8", "slot 4": "A00002L8", "slot 3": "A00003L8"} == library.listed(), library.mtx("status"))
    said = library.refused("load 3 0")
    expect("Full" in said, said)
    said = library.refused("transfer 2 3")
    expect("Empty" in said or "Sense" in said, said)
    # What is in the drive goes to the slot that it came from.
    library.mtx("transfer 4 2")
    library.mtx("eepos 0 transfer 3 5", check=False)
    library.mtx("unload")
    expected = {"slot 1": "A00001L8", "slot 2": "A00002L8", "slot 5": "A00003L8"}
    expect(library.inventory() == expected == library.listed(), library.mtx("status"))
    library.mtx("exchange 1 2")
    expect(library.inventory() == {"slot 1": "A00002L8", "slot 2": "A00001L8", "slot 5": "A00003L8"} == library.listed(), library.mtx("status"))
    library.mtx("exchange 1 2")
    library.mtx("transfer 5 3")
    library.mtx("first 0")
    library.mtx("next 0")
    expect(library.inventory()["drive 0"] == "A00002L8", library.mtx("status"))
    library.emptied()


def test_writes_two_cartridges_in_two_drives(library):
    guest = library.guest
    guest.run("mkdir -p /tmp/data && cd /tmp/data && for i in 1 2 3; do /usr/bin/dd if=/dev/urandom of=$i bs=200k count=$i 2> /dev/null; done")
    library.mtx("load 1 0")
    library.mtx("load 2 1")
    for number in (0, 1):
        guest.run(f"cd /tmp/data && /usr/bin/tar -b 128 -cf {library.ready(number)} {number + 1} 3")
    # Without `mt offline`: the library unloads what it moves. Each is read in the other drive.
    library.mtx("unload 4 0")
    library.mtx("unload 2 1")
    library.mtx("load 4 1")
    library.mtx("load 2 0")
    for number in (0, 1):
        guest.run(f"cd /tmp/data && /usr/bin/tar -b 128 -df {library.ready(1 - number)}")
        listed = guest.run(f"mt-gnu -f {library.ready(1 - number)} rewind && /usr/bin/tar -b 128 -tf {library.drives[1 - number]}").split()
        expect(listed == [str(number + 1), "3"], f"cartridge {number + 1} has {listed}")
    # A host locks a drive.
    guest.run(f"mt -f {library.drives[0]} lock")
    said = library.refused("unload 2 0")
    guest.run(f"mt -f {library.drives[0]} unlock")
    expect("53" in said, f"a locked drive: {said}")
    library.mtx("unload 2 0")
    library.mtx("unload 1 1")


def test_an_operator_works_while_hosts_do(library):
    guest, folder = library.guest, library.server.medium_path()
    subprocess.run([library.server.binary, "tape", "create", os.path.join(folder, "B00001L8"), "--barcode", "B00001L8", "--capacity",
                    str(64 * MIB)], check=True, capture_output=True)
    library.operator("load", "mail1", "B00001L8")
    expect(library.attention(library.generic) == (6, 0x28, 1), "no IMPORT OR EXPORT ELEMENT ACCESSED")
    expect(library.inventory()["slot 5"] == "B00001L8", library.mtx("status"))
    library.operator("vault", "mail1")
    library.attention(library.generic)
    said = library.refused("load 5 0")
    expect("53" in said, f"a locked cartridge: {said}")
    said = library.operator("load", "4", "B00001L8", check=False)
    expect("in the library already" in said, said)
    said = library.operator("eject", "4", check=False)
    expect("there is no cartridge" in said, said)
    library.operator("release", "mail1")
    library.attention(library.generic)
    library.mtx("load 5 0")
    library.ready(0)
    library.mtx("unload 5 0")
    guest.run(f"sg_raw {library.generic} 1e 00 00 00 01 00 2> /dev/null")
    said = library.operator("eject", "mail1", check=False)
    expect("a host prevents access to the mail slots" in said, said)
    guest.run(f"sg_raw {library.generic} 1e 00 00 00 00 00 2> /dev/null")
    library.operator("eject", "mail1")
    library.attention(library.generic)
    expect("slot 5" not in library.inventory(), library.mtx("status"))


def test_a_kill_leaves_each_cartridge_in_one_place(library):
    """The target is killed while mtx moves cartridges in and out of a drive, and while the other drive is read."""
    guest = library.guest
    guest.run("cd /tmp/data && /usr/bin/dd if=/dev/urandom of=kept bs=100k count=5 2> /dev/null")
    library.mtx("load 3 1")
    guest.run(f"cd /tmp/data && /usr/bin/tar -b 128 -cf {library.ready(1)} kept")
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    pauses = random.Random(seed)
    guest.run("echo > /tmp/moved")
    for _ in range(2):
        guest.tell("(for i in 1 2 3 4 5 6 7 8 9 10; do mtx -f " + library.changer + " load 1 0; mtx -f " + library.changer +
                   " unload 1 0; done > /tmp/moved 2>&1; echo over >> /tmp/moved) &")
        guest.answer("moving", COMMAND_MAX_S)
        before = library.listed()
        for _ in range(300):
            if library.listed() != before:
                break
            time.sleep(0.02)
        time.sleep(pauses.uniform(0, 0.2))
        library.server.kill()
        held = library.listed()
        expect(sorted(held.values()) == CARTRIDGES, f"after a kill: {held}")
        library.server.start(fresh=False)
        guest.run("until grep -q over /tmp/moved; do sleep 0.2; done", limit_s=300)
        # The kernel's unit attentions are told to programs.
        guest.run(f"until mtx -f {library.changer} status > /dev/null 2>&1; do sleep 0.2; done", limit_s=COMMAND_MAX_S)
        expect(library.inventory() == library.listed() and sorted(library.listed().values()) == CARTRIDGES, library.mtx("status"))
        if "drive 0" in library.inventory():
            library.mtx("unload 1 0")
    guest.run(f"cd /tmp/data && /usr/bin/tar -b 128 -df {library.ready(1)}")
    library.emptied()
    library.server.stop()
    for name in CARTRIDGES:
        verified = subprocess.run([library.server.binary, "tape", "verify", os.path.join(library.server.medium_path(), name)],
                                  capture_output=True, text=True)
        expect(verified.returncode == 0, f"targe tape verify {name}: {verified.stdout}{verified.stderr}")
    # The operator's commands work without the target too.
    library.operator("load", "mail2", "B00001L8")
    library.operator("eject", "mail2")
    library.server.start(fresh=False)
