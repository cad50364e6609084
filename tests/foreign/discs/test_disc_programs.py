"""More programs that burn discs, and more discs, in a guest: by hand, since it takes minutes (`make test-discs`)."""

import pytest

from guest.disc_writer import growisofs, writing
from verdicts import expect

DISCS = {"dvd-r at once": "dvd-r", "dvd+rw": "dvd+rw", "bd-re": "bd-re", "bd-r": "bd-r", "bd-r of growisofs": "bd-r"}
pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def writer(request, kind, server_name):
    if server_name != "targe":
        pytest.skip("the drives of others are others' business")
    with writing(request, kind, "discs", DISCS) as writer:
        yield writer


def test_growisofs_writes_a_dvd_r_at_once(writer):
    with writer.initiator.logged_in():
        device = writer.drive("dvd-r at once")
        writer.guest.run("genisoimage -quiet -R -V ONE -o /tmp/first.iso /tmp/first")
        writer.burn(device, f"growisofs -use-the-force-luke=dao -Z {device}=/tmp/first.iso")
        writer.expect_files(device, "first")
        writer.expect_plain_image("dvd-r at once", "first")
        expect(writer.listing("dvd-r at once")["state"] == "complete", writer.listing("dvd-r at once"))


def test_xorriso_writes_a_bd_re(writer):
    with writer.initiator.logged_in():
        device = writer.drive("bd-re")
        writer.burn(device, f"xorriso -outdev {device} -blank as_needed -map /tmp/first/first.txt /first.txt -commit")
        writer.burn(device, f"xorriso -dev {device} -map /tmp/second/second.txt /second.txt -commit")
        writer.expect_files(device, "first", "second")
        writer.expect_plain_image("bd-re", "first", "second")


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


def test_growisofs_writes_a_bd_r(writer):
    with writer.initiator.logged_in():
        # Debian's growisofs closes the track, and leaves the session open.
        device = writer.drive("bd-r of growisofs")
        writer.burn(device, growisofs(device, "-Z", "ONE", "/tmp/first"))
        writer.expect_files(device, "first")


def test_a_killed_daemon_keeps_what_was_synchronized_on_a_dvd_plus_rw(writer):
    with writer.initiator.logged_in():
        guest, device = writer.guest, writer.drive("dvd+rw")
        writer.burn(device, growisofs(device, "-Z", "ONE", "/tmp/first"))
        guest.run("seq 1000000 1999999 > /tmp/blocks")
        guest.run(f"dd if=/tmp/blocks of={device} bs=64k count=16 conv=notrunc,fsync 2>&1")
        guest.tell(f"dd if=/tmp/blocks of={device} bs=64k skip=16 seek=16 conv=notrunc,fsync 2>&1")
        writer.wait_until_written("dvd+rw")
        writer.kill_and_restart()
        # Linux ends commands of a drive with a removable disc when the drive was reset.
        guest.answer("dd", 300, check=False)
        writer.reload(device)
        guest.run("echo 3 > /proc/sys/vm/drop_caches; head -c 1048576 /tmp/blocks > /tmp/begin")
        guest.run(f"head -c 1048576 {device} | cmp - /tmp/begin")
        guest.run(f"dd if=/tmp/blocks of={device} bs=64k skip=16 seek=16 conv=notrunc,fsync 2>&1")
        guest.run("echo 3 > /proc/sys/vm/drop_caches")
        compared = guest.run(f"cmp {device} /tmp/blocks 2>&1", check=False)
        expect("EOF on /tmp/blocks" in compared, f"what was written is not there: {compared}")
