"""Linux uses a tape drive of ours: st with mt, tar and dd writes archives, finds them again, and sees marks, lengths and ends as SSC says.

Two programs named mt operate the drive: GNU's, and that of busybox, which sets block lengths and loads. tar and dd are GNU's, which the
guest's shell does not take for its own by their paths. sg3_utils ask what st does not.
"""

import json
import os
import subprocess
import time

import pytest

import servers
from guest import image
from guest.initiator import Initiator
from guest.machine import CommandFailed
from guest.machine import Guest
from serving import serving
from verdicts import expect

MIB = servers.MIB
# The first cartridge has more space than the tests use, the second one is soon full.
EXPORT = servers.Export(luns=(servers.Lun(medium="tape", size=4096 * MIB), servers.Lun(medium="tape", size=64 * MIB)))
FULL = 1
# The longest that 64 MiB may take through an emulated machine, seconds.
FILL_MAX_S = 300
NO_CARTRIDGE = "No medium found"
# What sg3_utils say of an additional sense code.
SENSE_TEXT = {"74 01": "Unable to decrypt data", "74 03": "Incorrect data encryption key"}
pytestmark = pytest.mark.timeout(2000)


class TapeInitiator(Initiator):
    def __init__(self, guest, server):
        super().__init__(guest, server)
        for module in ("st", "sg"):
            guest.run(f"modprobe {module}")

    def disks(self, unit=0):
        lun = self.server.first_lun + unit
        listed = self.guest.run(
            f"ls -d /sys/class/iscsi_session/session*/device/target*/*:{lun}/scsi_tape/nst[0-9] 2> /dev/null", check=False)
        return [f"/dev/{path.rsplit('/', 1)[1]}" for path in listed.split()]

    def disk(self, count=1, unit=0):
        for _ in range(300):
            if len(found := self.disks(unit)) >= count:
                break
            self.guest.run("sleep 0.1")
        else:
            raise CommandFailed(f"no tape drive: {self.guest.run('dmesg | tail -n 15')}")
        self.guest.run(f"until [ -c {found[-1]} ]; do sleep 0.1; done")
        return found[-1]


class Drive:
    """The drive in the guest: what programs write there, and where it is."""

    def __init__(self, initiator):
        self.initiator, self.guest, self.server = initiator, initiator.guest, initiator.server
        self.guest.run("mkdir -p /tmp/data/a /tmp/data/b && cd /tmp/data && for i in 1 2 3; do "
                       "/usr/bin/dd if=/dev/urandom of=a/$i bs=100k count=$i 2> /dev/null; echo $i > b/$i; done")

    def sum_of(self, command):
        """The digest of what a command prints."""
        return self.guest.run(f"{command} 2> /tmp/told | sha256sum | cut -d ' ' -f 1").strip()

    def refused(self, command):
        """What a command that must fail says."""
        said = self.guest.run(f"{command} 2>&1", check=False)
        expect(self.guest.code != "0", f"`{command}` succeeds: {said}")
        return said

    def told(self, device):
        """The number of the next block, as `mt tell` says."""
        return int(self.guest.run(f"mt -f {device} tell").split()[-1].rstrip("."))

    def blank(self, device):
        self.guest.run(f"mt -f {device} rewind && mt -f {device} setblk 0 && mt-gnu -f {device} weof 0 && mt -f {device} erase")
        self.guest.run(f"mt -f {device} rewind")


@pytest.fixture(scope="module")
def drive(request, kind, server_name):
    if server_name != "targe":
        pytest.skip("the drives of others are others' business")
    out = os.path.join(servers.OUT, "guest")
    folder = os.path.join(out, "tape")
    os.makedirs(folder, exist_ok=True)
    kernel, initramfs = image.prepare_tape(out)
    server = kind(folder, EXPORT)
    with serving(request, "tape", server), Guest(kernel, initramfs, folder) as guest:
        yield Drive(TapeInitiator(guest, server))


def test_is_a_tape_drive(drive):
    guest = drive.guest
    with drive.initiator.logged_in() as device:
        told = guest.run(f"mt-gnu -f {device} status")
        # The density is that of LTO-8, and the block length is variable.
        expect(f"drive status = {0x5e << 24}" in told and "file number = 0" in told and "block number = 0" in told, told)
        told = guest.run(f"sg_inq {device}")
        expect("tape" in told and "RMB=1" in told and "Virtual Tape" in told, told)
        told = guest.run(f"sg_opcodes {device}")
        for name in ("Rewind", "Write filemarks(6)", "Space(16)", "Locate(16)", "Read position", "Read attribute", "Report density support"):
            expect(name.lower() in told.lower(), f"sg_opcodes does not list {name}: {told}")
        told = guest.run(f"sg_modes -a {device}")
        for page in ("Data Compression", "Device Configuration", "Medium Partition", "Control"):
            expect(page.lower() in told.lower(), f"sg_modes does not show {page}: {told}")
        told = guest.run(f"sg_logs -p 0x2e {device}")
        expect("Hard error: 0" in told and "Read failure: 0" in told, told)
        told = guest.run(f"sg_read_attr {device}")
        expect("A00000L8" in told and "Maximum capacity" in told, told)
        told = guest.run(f"sg_raw -r 255 {device} 12 01 b0 00 ff 00 2>&1")
        # Sequential-access device capabilities: the drive supports WORM cartridges.
        expect("01 b0 00 01 01" in told, f"VPD page B0h: {told}")
        said = drive.refused(f"sg_raw {device} 25 00 00 00 00 00 00 00 00 00")
        expect("Invalid command operation code" in said, f"a command of disks ends with: {said}")
        expect(not drive.initiator.complaints(), drive.initiator.complaints())


def test_writes_and_compares_archives(drive):
    guest = drive.guest
    with drive.initiator.logged_in() as device:
        drive.blank(device)
        guest.run(f"cd /tmp/data && /usr/bin/tar -b 512 -cf {device} a")
        guest.run(f"cd /tmp/data && /usr/bin/tar -b 20 -cWf {device} b")
        guest.run(f"mt-gnu -f {device} rewind")
        guest.run(f"cd /tmp/data && /usr/bin/tar -b 512 -df {device}")
        # tar stops before the filemark.
        guest.run(f"mt-gnu -f {device} fsf 1")
        listed = guest.run(f"/usr/bin/tar -b 20 -tf {device}").split()
        expect(sorted(listed) == ["b/", "b/1", "b/2", "b/3"], f"the second archive has {listed}")
        # Another one is appended, and the first ones stay.
        guest.run(f"mt-gnu -f {device} eom && cd /tmp/data && /usr/bin/tar -b 128 -cf {device} a b")
        guest.run(f"mt-gnu -f {device} rewind && mt-gnu -f {device} asf 2 && cd /tmp/data && /usr/bin/tar -b 128 -df {device}")
        guest.run(f"mt-gnu -f {device} asf 0 && cd /tmp/data && /usr/bin/tar -b 512 -df {device}")
        expect(not drive.initiator.complaints(), drive.initiator.complaints())


def numbered(drive, device):
    """Three files: ten blocks of 1000 bytes, three of them, and one; the first byte of each block is its number."""
    drive.blank(device)
    for blocks in (range(10), range(11, 14), range(15, 16)):
        drive.guest.run("for i in " + " ".join(f"{number:02}" for number in blocks) +
                        "; do (echo -n $i; head -c 998 /dev/zero); done > /tmp/numbered")
        drive.guest.run(f"/usr/bin/dd if=/tmp/numbered of={device} bs=1000 2> /dev/null")


def next_block(drive, device):
    return drive.guest.run(f"/usr/bin/dd if={device} bs=1000 count=1 2> /dev/null | head -c 2; echo")


def test_spaces_and_finds(drive):
    guest = drive.guest
    with drive.initiator.logged_in() as device:
        numbered(drive, device)
        expect(drive.told(device) == 17, f"behind 14 blocks and three filemarks the position is {drive.told(device)}")
        guest.run(f"mt-gnu -f {device} rewind && mt-gnu -f {device} fsf 1")
        expect(drive.told(device) == 11 and next_block(drive, device) == "11", "behind the first filemark is block 11")
        guest.run(f"mt-gnu -f {device} bsfm 1")
        expect(drive.told(device) == 11, f"bsfm 1 ends at {drive.told(device)}")
        guest.run(f"mt-gnu -f {device} bsf 1")
        expect(drive.told(device) == 10, f"bsf 1 ends at {drive.told(device)}")
        guest.run(f"mt-gnu -f {device} bsr 2")
        expect(next_block(drive, device) == "08", "two blocks before the filemark is block 8")
        guest.run(f"mt-gnu -f {device} fsr 1")
        expect(drive.told(device) == 10, f"fsr 1 ends at {drive.told(device)}")
        drive.refused(f"mt-gnu -f {device} fsr 1")
        guest.run(f"mt-gnu -f {device} seek 12")
        expect(next_block(drive, device) == "12", "seek 12 finds another block")
        guest.run(f"mt-gnu -f {device} eom")
        expect(drive.told(device) == 17, f"eom ends at {drive.told(device)}")
        drive.refused(f"mt-gnu -f {device} fsf 1")
        guest.run(f"mt-gnu -f {device} asf 1")
        expect(next_block(drive, device) == "11", "asf 1 finds another block")
        # The forms of READ POSITION that st does not send.
        told = guest.run(f"sg_raw -r 32 {device} 34 06 00 00 00 00 00 00 00 00 2>&1")
        expect("00 00 00 00 00 00 00 0c" in told and "10     00 00 00 00 00 00 00 01" in told, told)


def test_reads_lengths_as_they_are(drive):
    guest = drive.guest
    with drive.initiator.logged_in() as device:
        numbered(drive, device)
        guest.run(f"mt-gnu -f {device} rewind")
        read = guest.run(f"/usr/bin/dd if={device} of=/dev/null bs=4096 count=3 2>&1")
        expect("0+3 records in" in read and "3000 bytes" in read, f"three shorter blocks are read as: {read}")
        said = drive.refused(f"/usr/bin/dd if={device} of=/dev/null bs=500 count=1")
        expect("Cannot allocate memory" in said, f"a longer block ends with: {said}")
        # In fixed-length mode several blocks come with one command, and a block of another length is an error.
        guest.run(f"mt -f {device} rewind && mt -f {device} setblk 1000")
        read = guest.run(f"/usr/bin/dd if={device} of=/dev/null bs=8000 2>&1")
        expect("10000 bytes" in read, f"ten blocks of a fixed length are read as: {read}")
        guest.run(f"mt -f {device} rewind && mt -f {device} setblk 512")
        drive.refused(f"/usr/bin/dd if={device} of=/dev/null bs=512 count=1")
        guest.run(f"mt -f {device} rewind && /usr/bin/dd if=/dev/zero of={device} bs=64k count=16 2> /dev/null && mt -f {device} rewind")
        expect("1048576 bytes" in guest.run(f"/usr/bin/dd if={device} of=/dev/null bs=64k 2>&1"), "16 times 64 KiB in blocks of 512 bytes")
        guest.run(f"mt -f {device} setblk 0")


def test_compresses_when_told(drive):
    guest = drive.guest
    with drive.initiator.logged_in() as device:
        drive.blank(device)
        guest.run(f"mt -f {device} datacompression 1")
        guest.run(f"/usr/bin/dd if=/dev/zero of={device} bs=256k count=64 2> /dev/null && mt-gnu -f {device} rewind")
        zeros = drive.sum_of("head -c 16777216 /dev/zero")
        expect(drive.sum_of(f"/usr/bin/dd if={device} bs=256k") == zeros, "other data come back")
        guest.run(f"mt -f {device} datacompression 0")
    folder = drive.server.medium_path()
    used = sum(os.stat(os.path.join(folder, name)).st_blocks * 512 for name in os.listdir(folder))
    expect(used < 8 * MIB, f"16 MiB of zeros take {used} bytes")


def medium_holds(drive, text):
    """Whether a file of the medium holds these bytes."""
    folder = drive.server.medium_path()
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file:
            if text in file.read():
                return True
    return False


def test_encrypts_with_the_keys_of_stenc(drive):
    guest = drive.guest
    secret = "tell nobody that this stands on the tape"
    guest.run("mkdir -p /tmp/secret /var/log && for i in 1 2 3 4 5 6; do echo $i; done > /tmp/secret/digits")
    guest.run(f"for i in $(cat /tmp/secret/digits); do echo '{secret}'; done > /tmp/secret/text")
    for name, digit in (("right", "1a"), ("wrong", "2b")):
        guest.run(f"(for i in $(seq 32); do echo -n {digit}; done; echo; echo name-of-{name}) > /tmp/{name}.key")
    with drive.initiator.logged_in() as device:
        drive.blank(device)
        # A plain archive shows that the search finds what is there.
        guest.run(f"cd /tmp && /usr/bin/tar -b 20 -cf {device} secret")
        expect(medium_holds(drive, secret.encode()), "the plain archive is not on the medium")
        drive.blank(device)
        guest.run(f"stenc -f {device} -e on -k /tmp/right.key -a 1")
        guest.run(f"cd /tmp && /usr/bin/tar -b 20 -cf {device} secret && mt-gnu -f {device} rewind")
        told = guest.run(f"stenc -f {device} --detail")
        for text in ("Drive Output:", "Encrypting", "name-of-right"):
            expect(text in told, f"stenc --detail does not tell {text!r}: {told}")
        guest.run(f"cd /tmp && /usr/bin/tar -b 20 -df {device}")
        for change, sense in (("-e off -a 1", "74 01"), ("-e on -k /tmp/wrong.key -a 1", "74 03")):
            guest.run(f"mt-gnu -f {device} rewind && stenc -f {device} {change}")
            drive.refused(f"/usr/bin/tar -b 20 -tf {device}")
            # READ(6) of one block, as st sends it, for its sense data.
            said = drive.refused(f"sg_raw -r 10240 {device} 08 00 00 28 00 00")
            expect("Data Protect" in said or "Data protect" in said, f"without the right key a read ends with: {said}")
            expect(sense in said.replace("\n", " ") or SENSE_TEXT[sense] in said, f"the sense data are not {sense}: {said}")
        guest.run(f"mt-gnu -f {device} rewind && stenc -f {device} -e on -k /tmp/right.key -a 1")
        guest.run(f"cd /tmp && /usr/bin/tar -b 20 -df {device}")
        guest.run(f"stenc -f {device} -e off -a 1 && mt-gnu -f {device} rewind")
    expect(not medium_holds(drive, secret.encode()), "the medium holds what was encrypted")
    drive.server.stop()
    targe = [drive.server.binary, "tape"]
    verified = subprocess.run([*targe, "verify", drive.server.medium_path()], capture_output=True, text=True)
    image = os.path.join(os.path.dirname(drive.server.medium_path()), "encrypted.tap")
    exported = subprocess.run([*targe, "export", drive.server.medium_path(), image], capture_output=True, text=True)
    drive.server.start(fresh=False)
    expect(verified.returncode == 0 and "are encrypted" in verified.stdout, f"targe tape verify: {verified.stdout}{verified.stderr}")
    expect(exported.returncode == 1 and "is encrypted" in exported.stderr, f"targe tape export: {exported.stdout}{exported.stderr}")
    expect(not os.path.exists(image), "an export that is refused leaves an image")


def test_divides_a_cartridge(drive):
    guest = drive.guest
    with drive.initiator.logged_in() as device:
        drive.blank(device)
        guest.run(f"cd /tmp/data && /usr/bin/tar -b 20 -cf {device} b && mt -f {device} rewind")
        # MT_ST_SETBOOLEANS with MT_ST_CAN_PARTITIONS, then partition 1 of 1000 MB, and partition 0 of the rest.
        guest.run(f"mt -f {device} drvbuffer $((0x30000400)) && mt -f {device} mkpart 1000")
        told = guest.run(f"sg_read_attr -f 0x0001 {device}")
        guest.run(f"mt -f {device} setpart 1")
        drive.refused(f"/usr/bin/tar -b 20 -tf {device}")
        guest.run(f"mt -f {device} rewind && cd /tmp/data && /usr/bin/tar -b 20 -cf {device} a")
        guest.run(f"mt -f {device} setpart 0 && mt -f {device} rewind")
        said = drive.refused(f"/usr/bin/dd if={device} of=/dev/null bs=10k count=1")
        expect("Input/output error" in said, f"partition 0 is not blank: {said}; {told}")
        guest.run(f"mt -f {device} rewind && cd /tmp/data && /usr/bin/tar -b 20 -cf {device} b")
        guest.run(f"mt -f {device} setpart 1 && mt -f {device} rewind && cd /tmp/data && /usr/bin/tar -b 20 -df {device}")
        guest.run(f"mt -f {device} setpart 0 && mt -f {device} rewind && cd /tmp/data && /usr/bin/tar -b 20 -df {device}")
        # One partition again, for those who come after.
        guest.run(f"mt -f {device} mkpart 0 && mt -f {device} drvbuffer $((0x40000400))")
        expect(not drive.initiator.complaints(), drive.initiator.complaints())


def test_unloads_and_loads(drive):
    guest = drive.guest
    with drive.initiator.logged_in() as device:
        numbered(drive, device)
        guest.run(f"mt-gnu -f {device} offline")
        # Without this flag the kernel waits two minutes for a cartridge.
        said = drive.refused(f"/usr/bin/dd iflag=nonblock if={device} of=/dev/null bs=1000 count=1")
        expect(NO_CARTRIDGE in said, f"without a cartridge a read ends with: {said}")
        luns = drive.server.admin("luns")
        expect("an initiator has unloaded the cartridge" in luns, luns)
        # busybox opens the drive such that the kernel waits for a cartridge.
        guest.run(f"sg_raw {device} 1b 00 00 00 01 00 2> /dev/null")
        expect(next_block(drive, device) == "00", "a loaded cartridge is at its start")
        guest.run(f"mt -f {device} lock")
        drive.refused(f"sg_raw {device} 1b 00 00 00 00 00")
        guest.run(f"mt -f {device} unlock && sg_raw {device} 1b 00 00 00 01 00 2> /dev/null")


def test_says_when_the_tape_is_full(drive):
    guest = drive.guest
    with drive.initiator.logged_in(unit=FULL) as device:
        drive.blank(device)
        said = guest.run(f"/usr/bin/dd if=/dev/urandom of={device} bs=1M count=80 2>&1", limit_s=FILL_MAX_S, check=False)
        expect(guest.code != "0" and "No space left on device" in said, f"80 MiB on 64 MiB end with: {said}")
        written = int(next(line for line in said.splitlines() if "records out" in line).split("+")[0])
        expect(48 <= written <= 63, f"{written} blocks of 1 MiB were written")
        guest.run(f"mt-gnu -f {device} rewind")
        read = guest.run(f"/usr/bin/dd if={device} of=/dev/null bs=1M 2>&1", limit_s=FILL_MAX_S)
        expect(int(read.split("+")[0]) >= written, f"{written} blocks were written, and read: {read}")


def written_bytes(drive):
    """How many bytes the target was given to write."""
    return sum(lun["write_bytes"] for lun in json.loads(drive.server.admin("luns"))["luns"])


def test_keeps_what_was_acknowledged(drive):
    """The target is killed while it is written to. Every block that was acknowledged is there, and what is before the last filemark can be
    appended to."""
    guest = drive.guest
    with drive.initiator.logged_in() as device:
        drive.blank(device)
        guest.run("/usr/bin/dd if=/dev/urandom of=/tmp/first bs=64k count=64 2> /dev/null; /usr/bin/dd if=/dev/urandom of=/tmp/second bs=10k count=77 2> /dev/null")
        first, second = (drive.sum_of(f"cat /tmp/{name}") for name in ("first", "second"))
        guest.run(f"/usr/bin/dd if=/tmp/first of={device} bs=64k 2> /dev/null && /usr/bin/dd if=/tmp/second of={device} bs=10k 2> /dev/null")
        before = written_bytes(drive)
        # One dd for each block: one for all would not tell its count, since closing the drive fails as well.
        guest.run(f"(exec 3> {device}; n=0; while /usr/bin/dd if=/dev/zero bs=64k count=1 status=none >&3 2> /tmp/third; do n=$((n + 1)); done; "
                  "echo $n+0 records out >> /tmp/third; exec 3>&-; echo done >> /tmp/third) &")
        # Several blocks were acknowledged then.
        deadline = time.monotonic() + FILL_MAX_S
        while written_bytes(drive) < before + 8 * (64 << 10):
            expect(time.monotonic() < deadline, "nothing is being written")
            time.sleep(0.1)
        drive.server.kill()
        drive.server.start(fresh=False)
        guest.run("until grep -q done /tmp/third; do sleep 0.2; done", limit_s=300)
        said = guest.run("cat /tmp/third")
        expect("Input/output error" in said, f"a program that was writing does not hear of the end: {said}")
        written = int(next(line for line in said.splitlines() if "records out" in line).split("+")[0])
    with drive.initiator.logged_in() as device:
        guest.run(f"mt-gnu -f {device} rewind")
        expect(drive.sum_of(f"/usr/bin/dd if={device} bs=64k") == first, "the first file is another")
        expect(drive.sum_of(f"/usr/bin/dd if={device} bs=64k") == second, "the second file is another")
        # No filemark follows: after a restart the drive refuses to write where the host believes to be. The end of data is an error.
        said = guest.run(f"/usr/bin/dd if={device} of=/dev/null bs=64k 2>&1", limit_s=FILL_MAX_S, check=False)
        read = int(next(line for line in said.splitlines() if "records in" in line).split("+")[0])
        expect(read >= written > 0, f"{written} blocks of the third file were acknowledged, and read: {said}")
        print(f"{written} blocks were acknowledged, {read} are there")
        guest.run(f"mt-gnu -f {device} asf 2 && cd /tmp/data && /usr/bin/tar -b 64 -cf {device} a")
        guest.run(f"mt-gnu -f {device} asf 2 && cd /tmp/data && /usr/bin/tar -b 64 -df {device}")
    # The other reader of cartridges agrees, when nobody serves them any more.
    drive.server.stop()
    verified = subprocess.run([drive.server.binary, "tape", "verify", drive.server.medium_path()], capture_output=True, text=True)
    drive.server.start(fresh=False)
    expect(verified.returncode == 0, f"targe tape verify: {verified.stdout}{verified.stderr}")
