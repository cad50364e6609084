"""Programs that burn discs write the discs of ours in a guest, over the kernel's own initiator: growisofs, wodim and xorriso.

What they wrote is read back by the kernel, and by xorriso from the image itself, which is a plain one. The daemon is killed in the
middle of a burn, and what was burned before is there.
"""

import json
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

MIB = 1 << 20
# What is in the drives: the name in the tests, and the kind of disc.
DISCS = {"dvd+rw": "dvd+rw", "bd-re": "bd-re", "dvd-r": "dvd-r", "bd-r": "bd-r", "dvd-r at once": "dvd-r"}
EXPORT = servers.Export(luns=tuple(servers.Lun(medium="disc", size=64 * MIB, writable=kind) for kind in DISCS.values()))
# The longest that a burn may take to reach the image, seconds.
BURNING_MAX_S = 120
pytestmark = pytest.mark.timeout(900)


class WriterInitiator(Initiator):
    kind = "sr"

    def __init__(self, guest, server):
        super().__init__(guest, server)
        for module in ("sr_mod", "isofs", "sg"):
            guest.run(f"modprobe {module}")
        for name in ("first", "second", "third"):
            # The same bytes in every run, and no sector like another.
            guest.run(f"mkdir -p /tmp/{name} && seq 100000 119999 | sed 's/$/ {name}/' > /tmp/{name}/{name}.txt")
        # genisoimage opens the disc by the number of a file descriptor.
        guest.run("[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd")


class Writer:
    """The drives in the guest, one with each kind of disc."""

    def __init__(self, initiator):
        self.initiator, self.guest, self.server = initiator, initiator.guest, initiator.server

    def drive(self, kind):
        return self.initiator.disk(unit=list(DISCS).index(kind))

    def burn(self, device, command):
        """Burns, and loads the disc again: only then the kernel reads how long it is."""
        told = self.guest.run(f"{command} 2>&1", limit_s=300)
        self.reload(device)
        return told

    def reload(self, device):
        self.guest.run(f"eject {device} && eject -t {device}")

    def path(self, kind):
        return self.server.medium_path(list(DISCS).index(kind))

    def listing(self, kind):
        told = subprocess.run([self.server.binary, "disc", "ls", "--json", self.path(kind)], check=True, capture_output=True)
        return json.loads(told.stdout)

    def wait_until_written(self, kind):
        """Waits until the image takes more storage than now, or is newer."""
        def now():
            facts = os.stat(self.path(kind))
            return facts.st_blocks, facts.st_mtime_ns
        before, deadline = now(), time.monotonic() + BURNING_MAX_S
        while now() == before:
            expect(time.monotonic() < deadline, "nothing is written to the image")
            time.sleep(0.05)

    def expect_files(self, device, *names):
        """Mounts the disc, and expects these files."""
        self.guest.run(f"mount -t iso9660 -o ro {device} /mnt")
        found = self.guest.run("ls /mnt").split()
        digests = self.guest.run("cd /mnt && sha256sum * | cut -d ' ' -f 1; cd /").split()
        self.guest.run("umount /mnt")
        wanted = [f"{name}.txt" for name in sorted(names)]
        expect(sorted(found) == wanted, f"the disc has the files {found}, and not {wanted}")
        for name, digest in zip(sorted(names), digests):
            expect(digest == self.guest.run(f"sha256sum < /tmp/{name}/{name}.txt | cut -d ' ' -f 1").strip(), f"{name} differs")

    def expect_plain_image(self, kind, *names):
        """The image on the host is an image as any other."""
        told = subprocess.run(["xorriso", "-indev", f"stdio:{self.path(kind)}", "-find", "/", "-type", "f"], check=True, capture_output=True, text=True)
        found = sorted(line.strip("'/\n") for line in told.stdout.splitlines())
        expect(found == [f"{name}.txt" for name in sorted(names)], f"the image has the files {found}; {told.stderr}")

    def kill_and_restart(self):
        self.server.kill()
        time.sleep(1)
        self.server.start(fresh=False)


@pytest.fixture(scope="module")
def writer(request, kind, server_name):
    if server_name != "targe":
        pytest.skip("the drives of others are others' business")
    out = os.path.join(servers.OUT, "guest")
    folder = os.path.join(out, "writer")
    os.makedirs(folder, exist_ok=True)
    kernel, initramfs = image.prepare_writer(out)
    server = kind(folder, EXPORT)
    with serving(request, "writer", server), Guest(kernel, initramfs, folder) as guest:
        yield Writer(WriterInitiator(guest, server))


def growisofs(device, option, volume, folder):
    return f"growisofs {option} {device} -quiet -R -V {volume} {folder}"


def test_growisofs_writes_a_dvd_plus_rw(writer):
    with writer.initiator.logged_in():
        device = writer.drive("dvd+rw")
        writer.burn(device, growisofs(device, "-Z", "ONE", "/tmp/first"))
        writer.expect_files(device, "first")
        writer.burn(device, growisofs(device, "-M", "TWO", "/tmp/second"))
        writer.expect_files(device, "first", "second")
        writer.expect_plain_image("dvd+rw", "first", "second")


def test_a_killed_daemon_loses_nothing_that_was_written_to_a_dvd_plus_rw(writer):
    with writer.initiator.logged_in():
        guest, device = writer.guest, writer.drive("dvd+rw")
        guest.run("seq 1000000 1999999 > /tmp/blocks")
        guest.tell(f"dd if=/tmp/blocks of={device} bs=64k conv=notrunc,fsync 2>&1")
        writer.wait_until_written("dvd+rw")
        writer.kill_and_restart()
        guest.answer("dd", 300)
        guest.run("echo 3 > /proc/sys/vm/drop_caches")
        written = guest.run(f"cmp {device} /tmp/blocks 2>&1", check=False)
        expect("EOF on /tmp/blocks" in written, f"what was written is not there: {written}")


def test_xorriso_writes_a_bd_re(writer):
    with writer.initiator.logged_in():
        device = writer.drive("bd-re")
        writer.burn(device, f"xorriso -outdev {device} -blank as_needed -map /tmp/first/first.txt /first.txt -commit")
        writer.burn(device, f"xorriso -dev {device} -map /tmp/second/second.txt /second.txt -commit")
        writer.expect_files(device, "first", "second")
        writer.expect_plain_image("bd-re", "first", "second")


def test_growisofs_goes_on_with_a_dvd_r_after_the_daemon_was_killed_in_a_burn(writer):
    with writer.initiator.logged_in():
        guest, device = writer.guest, writer.drive("dvd-r")
        writer.burn(device, growisofs(device, "-Z", "ONE", "/tmp/first"))
        writer.expect_files(device, "first")
        writer.burn(device, growisofs(device, "-M", "TWO", "/tmp/second"))
        writer.expect_files(device, "first", "second")
        guest.run("mkdir -p /tmp/large && seq 1000000 1999999 > /tmp/large/large.txt")
        guest.tell(f"{growisofs(device, '-M', 'LARGE', '/tmp/large')} > /tmp/large.log 2>&1")
        writer.wait_until_written("dvd-r")
        writer.kill_and_restart()
        guest.answer("growisofs", 300, check=False)
        expect(guest.code != "0", "a burn whose drive was gone says that it succeeded")
        writer.reload(device)
        writer.expect_files(device, "first", "second")
        writer.burn(device, growisofs(device, "-M", "THREE", "/tmp/third"))
        writer.expect_files(device, "first", "second", "third")
        sessions = [track["session"] for track in writer.listing("dvd-r")["tracks"]]
        expect(sessions == [1, 2, 3], f"the disc has the sessions {sessions}")


def test_xorriso_writes_sessions_and_completes_a_bd_r(writer):
    with writer.initiator.logged_in():
        device = writer.drive("bd-r")
        writer.burn(device, f"xorriso -outdev {device} -map /tmp/first/first.txt /first.txt -commit")
        writer.expect_plain_image("bd-r", "first")
        writer.burn(device, f"xorriso -dev {device} -map /tmp/second/second.txt /second.txt -close on -commit")
        writer.expect_files(device, "first", "second")
        expect(writer.listing("bd-r")["state"] == "complete", writer.listing("bd-r"))
        told = writer.guest.run(f"xorriso -outdev {device} -toc 2>&1")
        expect("is written , is closed" in told, told)


def test_wodim_writes_a_dvd_r_at_once(writer):
    with writer.initiator.logged_in():
        device = writer.drive("dvd-r at once")
        writer.guest.run("genisoimage -quiet -R -V ONE -o /tmp/first.iso /tmp/first")
        writer.burn(device, f"wodim dev={device} -dao -v /tmp/first.iso")
        writer.expect_files(device, "first")
        writer.expect_plain_image("dvd-r at once", "first")
        expect(writer.listing("dvd-r at once")["state"] == "complete", writer.listing("dvd-r at once"))
