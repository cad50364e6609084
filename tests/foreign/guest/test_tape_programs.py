"""What programs do on tapes of ours that only some drives take: the alerts of tapeinfo, two filemarks on WORM cartridges, Linux' driver for
medium changers at LUN 1, a full file system under a backup of GNU tar, two hosts at one drive, and LTFS.

LTFS is in no list of Debian: the variable LTFS names the folder that it was installed in (tests/foreign/README.md says how it is built).
"""

import contextlib
import json
import os
import subprocess

import pytest

import media
import servers
from guest import image
from guest.initiator import Initiator
from guest.machine import HOST, CommandFailed, Guest
from guest.test_changer import Library
from serving import serving
from upgrade.live import Replaced
from verdicts import expect, same

MIB = servers.MIB
# The LUNs of the drive that imitates one of IBM, of the library and its first drive, and of the drive with a WORM cartridge.
DRIVE, CHANGER, WORM = 0, 1, 4
CARTRIDGES = ["A00001L8", "A00002L8", "A00003L8"]
# The file system that the library is in has less space than its cartridges.
SMALL_MIB = 24
# What is backed up there, and does not fit.
BACKUP_MIB = 40
FILL_MAX_S = 900
# How tapeinfo names the flags of a cartridge that cannot be read.
DAMAGED = ["TapeAlert[3]", "TapeAlert[4]", "TapeAlert[5]"]
# A block whose place in the files of a cartridge can be found.
MARKED = b"a block that the disk will not keep "
SECOND_HOST = "iqn.2026-11.org.targe:second-guest"
# MODE SELECT(10) of the page control data protection: LBP_R, and guards by CRC32C.
GUARDED = bytes([0, 0, 0, 0x10, 0, 0, 0, 0, 0x4a, 0xf0, 0, 0x1c, 2, 4, 0x40]) + bytes(25)
LTFS = os.environ.get("LTFS")
pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(3600)]


class Tapes(Replaced):
    """A drive, a library at LUN 1 in a small file system, and a drive with a WORM cartridge."""

    def medium_path(self, unit=CHANGER):
        return os.path.join(self.folder, "small", "library") if unit == CHANGER else os.path.join(self.folder, f"cartridge{unit}")

    def make_media(self):
        media.make_cartridge(self.binary, self.medium_path(DRIVE), "B00001L8", 4096 * MIB)
        media.make_cartridge(self.binary, self.medium_path(WORM), "B00002LY", 1024 * MIB, "--worm")
        media.make_library(self.binary, self.medium_path(), servers.Lun(medium="changer", size=1024 * MIB))

    def config_lines(self):
        yield from super().config_lines()
        for unit, kind, claims in ((DRIVE, "tape", ('vendor = "IBM"', 'product = "ULT3580-TD8"')), (CHANGER, "changer", ("drive_lun = 2",)),
                                   (WORM, "tape", ())):
            yield from ("[[target.lun]]", f"lun = {unit}", f'type = "{kind}"', f'path = "{self.medium_path(unit)}"', *claims)


class Programs:
    """The guest, the library, and the drives by their device files."""

    def __init__(self, guest, server):
        self.guest, self.server = guest, server
        self.library = Library(guest, server, lun=CHANGER)
        self.find_drives()
        guest.run("mkdir -p /tmp/data/a /tmp/data/b && cd /tmp/data && for i in 1 2 3; do "
                  "/usr/bin/dd if=/dev/urandom of=a/$i bs=100k count=$i 2> /dev/null; echo $i > b/$i; done")

    def find_drives(self):
        self.drive, self.worm = (self.library.device("scsi_tape", "nst[0-9]", lun) for lun in (DRIVE, WORM))

    def alerts(self, number):
        """The flags that tapeinfo shows of a drive of the library."""
        told = self.guest.run(f"tapeinfo -f {self.library.device('scsi_generic', 'sg*', CHANGER + 1 + number)}")
        expect("Product Type: Tape Drive" in told and "Ready: yes" in told, f"tapeinfo: {told}")
        return [line.split(":")[0] for line in told.splitlines() if line.startswith("TapeAlert")]


@pytest.fixture(scope="module")
def programs(request):
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    out = os.path.join(servers.OUT, "guest")
    folder = os.path.join(out, "tape-programs")
    small = os.path.join(folder, "small")
    os.makedirs(small, exist_ok=True)
    kernel, initramfs = image.prepare_tape_programs(out, LTFS)
    with contextlib.ExitStack() as stack:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_MIB}m", "tmpfs", small], check=True)
        stack.callback(subprocess.run, ["umount", "-l", small], check=True)
        server = Tapes(folder, servers.Export(luns=(), announce=HOST))
        stack.enter_context(serving(request, "tape-programs", server))
        guest = stack.enter_context(Guest(kernel, initramfs, folder))
        yield Programs(guest, server)


def test_tapeinfo_shows_the_alerts_of_the_cartridge_in_the_drive_and_no_other(programs):
    guest, library = programs.guest, programs.library
    library.mtx("load 1 0")
    guest.run(f"i=0; while [ $i -lt 64 ]; do echo -n '{MARKED.decode()}'; i=$((i + 1)); done > /tmp/marked")
    guest.run(f"/usr/bin/dd if=/tmp/marked of={library.ready(0)} bs=2304 count=1 2> /dev/null")
    same("the alerts of a good cartridge", programs.alerts(0), [])
    library.mtx("unload 1 0")
    damage(os.path.join(programs.server.medium_path(), CARTRIDGES[0]))
    for is_shown in (True, False):
        library.mtx("load 1 0")
        said = guest.run(f"/usr/bin/dd if={library.ready(0)} of=/dev/null bs=2304 2>&1", check=False)
        expect(guest.code != "0" and "Input/output error" in said, f"a damaged cartridge is read: {said}")
        if is_shown:
            same("the alerts of a damaged cartridge", programs.alerts(0), DAMAGED)
            same("the alerts that were shown already", programs.alerts(0), [])
        library.mtx("unload 1 0")
        library.mtx("load 2 0")
        library.ready(0)
        same("the alerts of the next cartridge", programs.alerts(0), [])
        library.mtx("unload 2 0")


def damage(cartridge):
    """Changes one byte of the marked block."""
    for name in sorted(os.listdir(cartridge)):
        with open(os.path.join(cartridge, name), "r+b") as file:
            at = file.read().find(MARKED)
            if at >= 0:
                file.seek(at)
                file.write(b"A")
                return
    raise AssertionError(f"no file of {cartridge} has the block")


def test_two_backups_with_two_filemarks_each_fit_on_a_worm_cartridge(programs):
    guest, worm = programs.guest, programs.worm
    guest.run(f"mt-st -f {worm} stsetoptions two-fms")
    guest.run(f"cd /tmp/data && /usr/bin/tar -b 20 -cf {worm} a")
    # st stands between the filemarks, as it does for drives that end their data with two.
    guest.run(f"cd /tmp/data && /usr/bin/tar -b 20 -cf {worm} b")
    guest.run(f"mt-st -f {worm} stclearoptions two-fms")
    for number, name in enumerate("ab"):
        guest.run(f"mt-st -f {worm} asf {number} && cd /tmp/data && /usr/bin/tar -b 20 -df {worm}")
        listed = guest.run(f"mt-st -f {worm} asf {number} && /usr/bin/tar -b 20 -tf {worm}").split()
        expect(f"{name}/1" in listed, f"backup {number} has {listed}")
    # A cartridge keeps what is on it.
    said = guest.run(f"mt-st -f {worm} rewind && cd /tmp/data && /usr/bin/tar -b 20 -cf {worm} b 2>&1", check=False)
    expect(guest.code != "0", f"the first backup is overwritten: {said}")
    guest.run(f"mt-st -f {worm} asf 0 && cd /tmp/data && /usr/bin/tar -b 20 -df {worm}")


def test_the_driver_of_linux_moves_cartridges_at_lun_1(programs):
    guest, library = programs.guest, programs.library
    chio = f"chio {library.changer}"
    # Transports, slots, mail slots, drives.
    same("the elements", guest.run(f"{chio} parameters").split(), ["1", "4", "2", "2"])
    same("the slots", guest.run(f"{chio} status 1 4").split(), ["1", "1", "1", "0"])
    guest.run(f"{chio} move 1 1 3 1")
    same("the cartridge that was moved", library.listed(), {"slot 1": CARTRIDGES[0], "drive 1": CARTRIDGES[1], "slot 3": CARTRIDGES[2]})
    same("the drives", guest.run(f"{chio} status 3 2").split(), ["0", "1"])
    expect(CARTRIDGES[1] in guest.run(f"{chio} element 3 1"), "the driver shows no bar code")
    guest.run(f"{chio} position 1 0")
    guest.run(f"{chio} exchange 1 0 3 1 1 3")
    same("the cartridges that were exchanged", library.listed(), {"drive 1": CARTRIDGES[0], "slot 4": CARTRIDGES[1], "slot 3": CARTRIDGES[2]})
    guest.run(f"{chio} move 3 1 1 0 && {chio} move 1 3 1 1")
    same("every cartridge", library.listed(), {f"slot {number + 1}": name for number, name in enumerate(CARTRIDGES)})
    said = guest.run(f"{chio} move 1 0 1 1 2>&1", check=False)
    expect(guest.code != "0" and "Exchange full" in said, f"a move into a full slot: {said}")


def test_two_hosts_at_a_drive_have_guards_for_themselves(programs):
    guest, library = programs.guest, programs.library
    first = library.device("scsi_generic", "sg*", DRIVE)
    guest.run("/usr/bin/dd if=/dev/urandom of=/tmp/blocks bs=1000 count=3 2> /dev/null")
    (read_first, whole) = (guest.run(f"head -c {length} /tmp/blocks | sha256sum").split()[0] for length in (1000, 3000))
    second, record = second_host(programs)
    guest.run(f"/usr/bin/dd if=/tmp/blocks of={second} bs=1000 2> /dev/null && mt-st -f {second} rewind")
    guest.run("printf '%b' '" + "".join(f"\\0{byte:03o}" for byte in GUARDED) + "' > /tmp/guarded")
    guest.run(f"sg_turs {first}; sg_raw -s {len(GUARDED)} -i /tmp/guarded {first} 55 10 00 00 00 00 00 00 {len(GUARDED):02x} 00 2>&1")
    for is_there in (True, False):
        if is_there:
            # READ(6) of the host that has asked for guards: the block has four bytes more.
            guest.run(f"sg_raw -o /tmp/read -r 1004 {first} 08 00 00 03 ec 00 2>&1")
            same("the bytes of a block with its guard", guest.run("wc -c < /tmp/read").strip(), "1004")
            same("the block before its guard", guest.run("head -c 1000 /tmp/read | sha256sum").split()[0], read_first)
        else:
            guest.run(f"{programs.library.initiator.record} -I default --logout")
        guest.run(f"mt-st -f {second} rewind")
        same("what the other host reads", guest.run(f"/usr/bin/dd if={second} bs=4096 2> /dev/null | sha256sum").split()[0], whole)
        read = guest.run(f"mt-st -f {second} rewind && /usr/bin/dd if={second} of=/dev/null bs=1000 2>&1")
        expect("3+0 records in" in read, f"blocks of 1000 bytes are read as: {read}")
        guest.run(f"mt-st -f {second} rewind")
    guest.run(f"{record} --logout && {record} -o delete")
    # The setting was that of the nexus that is gone.
    library.initiator.set_up()
    guest.run(f"{library.initiator.record} --login")
    library.find_devices()
    programs.find_drives()
    again = library.device("scsi_generic", "sg*", DRIVE)
    guest.run(f"mt-st -f {programs.drive} rewind && sg_raw -o /tmp/read -r 1000 {again} 08 00 00 03 e8 00 2>&1")
    same("the block of a new session", guest.run("sha256sum < /tmp/read").split()[0], read_first)


def second_host(programs):
    """Logs in with another initiator name; the drive as that host sees it, and the words that end its session."""
    guest, library = programs.guest, programs.library
    before = set(guest.run("ls -d /dev/nst*").split())
    guest.run("iscsiadm -m iface -I second -o new")
    guest.run(f"iscsiadm -m iface -I second -o update -n iface.initiatorname -v {SECOND_HOST}")
    record = f"{library.initiator.record} -I second"
    guest.run(f"{record} -o new")
    guest.run(f"{record} --login")
    # The last session is the second host's.
    drive = library.device("scsi_tape", "nst[0-9]", DRIVE)
    for _ in range(300):
        if (drive := library.device("scsi_tape", "nst[0-9]", DRIVE)) not in before:
            return drive, record
        guest.run("sleep 0.1")
    raise CommandFailed("the second host has no drive")


def test_a_backup_goes_on_over_a_full_file_system_and_the_daemon_is_upgraded(programs):
    guest, library, server = programs.guest, programs.library, programs.server
    library.mtx("load 3 0")
    full, next_one = library.ready(0), programs.drive
    guest.run(f"mt-st -f {next_one} rewind && /usr/bin/dd if=/dev/urandom of=/tmp/data/long bs=1M count={BACKUP_MIB} 2> /dev/null")
    guest.run(f"printf '#!/bin/sh\\necho {next_one} >&$TAR_FD\\n' > /tmp/next && chmod +x /tmp/next")
    said = guest.run(f"cd /tmp/data && /usr/bin/tar -M -F /tmp/next -b 128 -cf {full} long 2>&1", limit_s=FILL_MAX_S, check=False)
    same(f"tar -M, which says {said!r}, ends with", guest.code, "0")
    state = os.statvfs(os.path.dirname(server.medium_path()))
    expect(state.f_bavail * state.f_frsize < MIB, f"{state.f_bavail * state.f_frsize} bytes of the file system are free")
    archive = f"mt-st -f {full} rewind && mt-st -f {next_one} rewind && cd /tmp/data && /usr/bin/tar -M -F /tmp/next -b 128 -df {full} 2>&1"
    guest.run(archive, limit_s=FILL_MAX_S)
    # Nothing but the write needed space: a move, and an upgrade of the daemon with the cartridge in a drive.
    library.mtx("unload 3 0")
    library.mtx("load 1 1")
    library.mtx("unload 1 1")
    library.mtx("load 3 0")
    full = library.ready(0)
    answer, why = server.upgrade()
    expect(answer, f"an upgrade is refused: {why}")
    same("sessions that moved", answer["sessions"], 1)
    server.expect_replaced_ended()
    guest.run(archive, limit_s=FILL_MAX_S)
    same("logins since the upgrade", json.loads(server.admin("status"))["logins"], 0)
    # Space comes back with a rewritten cartridge.
    guest.run(f"mt-st -f {full} rewind && cd /tmp/data && /usr/bin/tar -b 128 -cf {full} a && mt-st -f {full} rewind && /usr/bin/tar -b 128 -df {full}")
    library.mtx("unload 3 0")


@pytest.mark.skipif(not LTFS, reason="LTFS is not in Debian: the variable LTFS names a folder that it was installed in")
def test_ltfs_formats_a_cartridge_and_finds_its_files_again(programs):
    guest, library = programs.guest, programs.library
    device = library.device("scsi_generic", "sg*", DRIVE)
    tool = f"{LTFS}/bin"
    guest.run("modprobe fuse")
    guest.run(f"{tool}/mkltfs -d {device} -s B00001 -n archive -f 2>&1", limit_s=FILL_MAX_S)
    guest.run("cd /tmp/data && sha256sum a/* b/* > /tmp/sums")
    for is_new in (True, False):
        guest.run(f"{tool}/ltfs /mnt -o devname={device} 2>&1", limit_s=FILL_MAX_S)
        if is_new:
            guest.run("cp -r /tmp/data/a /tmp/data/b /mnt/")
        guest.run("cd /mnt && sha256sum -c /tmp/sums && cd /", limit_s=FILL_MAX_S)
        # The index is on the tape when ltfs has ended.
        guest.run("umount /mnt; while pidof ltfs > /dev/null; do sleep 0.2; done", limit_s=FILL_MAX_S)
    # It ends with 1, "errors were corrected", also where it has corrected nothing.
    said = guest.run(f"{tool}/ltfsck {device} 2>&1", limit_s=FILL_MAX_S, check=False)
    expect(guest.code in ("0", "1") and "Volume is consistent" in said, f"ltfsck ends with {guest.code}: {said}")
