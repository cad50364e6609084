"""Linux uses a drive for discs of ours: mounts what is in it, ejects it, and sees it replaced by the operator.

The images are made by xorriso, and read by the kernel, by sg3_utils and by xorriso in the guest.
"""

import hashlib
import os
import subprocess
import time

import pytest

import servers
from guest import image
from guest.initiator import Initiator
from guest.machine import Guest
from serving import serving
from verdicts import expect

EXPORT = servers.Export(luns=(servers.Lun(medium="disc"),))
# What mount(2) and open(2) say where there is no disc.
NO_DISC = "No medium found"
# The longest that a reload may take to reach the drive, seconds.
RELOAD_MAX_S = 200
pytestmark = pytest.mark.timeout(2000)


class DriveInitiator(Initiator):
    kind = "sr"

    def __init__(self, guest, server):
        super().__init__(guest, server)
        for module in ("sr_mod", "isofs", "sg"):
            guest.run(f"modprobe {module}")
        # The kernel would close an open tray by itself when a program opens the drive.
        guest.run("echo 0 > /proc/sys/dev/cdrom/autoclose")


def digest_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_image(path, folder, volume, seed):
    """An image with a file of a few megabytes and one of a few bytes; returns the first one's digest."""
    os.makedirs(folder, exist_ok=True)
    large, small = os.path.join(folder, "large"), os.path.join(folder, "small")
    with open(large, "wb") as file:
        # The same bytes in every run, and no sector like another.
        file.write(b"".join((seed + number).to_bytes(8, "big") * 256 for number in range(2048)))
    with open(small, "w") as file:
        file.write(f"{volume}\n")
    new = path + ".new"
    subprocess.run(["xorriso", "-as", "mkisofs", "-quiet", "-V", volume, "-o", new, folder], check=True, capture_output=True)
    os.replace(new, path)
    return digest_of(large)


class Drive:
    """The drive in the guest, and what its operator does."""

    def __init__(self, initiator):
        self.initiator, self.guest, self.server = initiator, initiator.guest, initiator.server
        self.path = self.server.medium_path()

    def put(self, volume, seed):
        """Replaces the file of the disc; a reload puts it into the drive."""
        return make_image(self.path, os.path.join(self.server.folder, volume), volume, seed)

    def reload(self, says):
        """Reloads, and waits until the log says how the drive took it."""
        before = self.server.log_of_this_run().count(says)
        self.server.reload()
        deadline = time.monotonic() + RELOAD_MAX_S
        while self.server.log_of_this_run().count(says) == before:
            expect(time.monotonic() < deadline, f"the log does not say \"{says}\"; {self.server.log_tail()}")
            time.sleep(0.1)

    def files(self, device):
        """Mounts the disc; returns its small file, and the digest of its large one."""
        self.guest.run(f"mount -t iso9660 -o ro {device} /mnt")
        found = self.guest.run("cat /mnt/small; sha256sum < /mnt/large | cut -d ' ' -f 1").split()
        self.guest.run("umount /mnt")
        return found


@pytest.fixture(scope="module")
def drive(request, kind, server_name):
    if server_name != "targe":
        pytest.skip("the drives of others are others' business")
    out = os.path.join(servers.OUT, "guest")
    folder = os.path.join(out, "disc")
    os.makedirs(folder, exist_ok=True)
    kernel, initramfs = image.prepare_disc(out)
    server = kind(folder, EXPORT)
    with serving(request, "disc", server), Guest(kernel, initramfs, folder) as guest:
        yield Drive(DriveInitiator(guest, server))


@pytest.fixture
def disc(drive):
    """The drive with a disc that every test knows, and the digest of its large file."""
    digest = drive.put("FIRST", 1 << 32)
    drive.reload("lun0.img is in the drive")
    return digest


def test_mounts_a_disc(drive, disc):
    with drive.initiator.logged_in() as device:
        expect(drive.files(device) == ["FIRST", disc], "the files are others than in the image")
        whole = drive.guest.run(f"sha256sum < {device} | cut -d ' ' -f 1").strip()
        expect(whole == digest_of(drive.path), "the sectors are others than those of the image")
        expect(not drive.initiator.complaints(), drive.initiator.complaints())


def test_is_a_drive_to_others(drive, disc):
    guest = drive.guest
    with drive.initiator.logged_in() as device:
        told = guest.run(f"sg_inq {device}")
        expect("cd/dvd" in told and "RMB=1" in told, told)
        told = guest.run(f"sg_get_config --current {device}")
        expect("CD-ROM" in told and "Removable media feature" in told, told)
        told = guest.run(f"xorriso -outdev {device} -toc 2>&1")
        expect("Media current: CD-ROM" in told and "2232s , FIRST" in told, told)
        expect("is written , is closed" in told, f"the disc is not complete: {told}")
        # A whole sector, raw: the first volume descriptor is in sector 16.
        guest.run(f"sg_raw -r 2352 -o /tmp/sector {device} be 00 00 00 00 10 00 00 01 f8 00 00 2> /dev/null")
        user = guest.run("echo $(dd if=/tmp/sector bs=1 skip=17 count=5 2> /dev/null)")
        expect(user == "CD001", f"the user data of sector 16 begin with {user!r}")
        said = guest.run(f"sg_raw {device} 8a 00 00 00 00 00 00 00 00 00 00 00 00 01 00 00 2>&1", check=False)
        expect("Invalid command operation code" in said, f"a command of disks ends with: {said}")


def test_ejects_and_loads(drive, disc):
    guest = drive.guest
    with drive.initiator.logged_in() as device:
        guest.run(f"eject {device}")
        said = guest.run(f"dd if={device} of=/dev/null bs=2k count=1 2>&1", check=False)
        expect(guest.code != "0" and NO_DISC in said, f"the tray is open, and a read ends with: {said}")
        luns = drive.server.admin("luns")
        expect("an initiator has ejected the disc" in luns, luns)
        guest.run(f"eject -t {device}")
        expect(drive.files(device) == ["FIRST", disc], "the disc that was loaded has other files")


def test_sees_the_disc_replaced(drive, disc):
    with drive.initiator.logged_in() as device:
        expect(drive.files(device) == ["FIRST", disc], "the first disc has other files")
        second = drive.put("SECOND", 2 << 32)
        drive.reload("lun0.img is in the drive")
        expect(drive.files(device) == ["SECOND", second], "the second disc has other files")


def test_keeps_a_mounted_disc(drive, disc):
    guest = drive.guest
    with drive.initiator.logged_in() as device:
        guest.run(f"mount -t iso9660 -o ro {device} /mnt")
        second = drive.put("SECOND", 3 << 32)
        drive.reload("an initiator prevents its removal")
        # Longer than targe takes to notice that the file of a disk was replaced.
        time.sleep(2)
        guest.run("echo 3 > /proc/sys/vm/drop_caches")
        found = guest.run("sha256sum < /mnt/large | cut -d ' ' -f 1").strip()
        expect(found == disc, "the mounted disc has changed")
        guest.run("umount /mnt")
        drive.reload("lun0.img is in the drive")
        expect(drive.files(device) == ["SECOND", second], "after it was unmounted the disc was not replaced")


def test_finds_an_empty_drive_and_a_filled_one(drive, disc):
    guest = drive.guest
    with drive.initiator.logged_in() as device:
        os.remove(drive.path)
        drive.reload("the drive is empty")
        said = guest.run(f"mount -t iso9660 -o ro {device} /mnt 2>&1", check=False)
        expect(guest.code != "0" and "no medium" in said.lower(), f"mounting an empty drive ends with: {said}")
        filled = drive.put("FILLED", 4 << 32)
        drive.reload("lun0.img is in the drive")
        expect(drive.files(device) == ["FILLED", filled], "the disc that was put in has other files")
