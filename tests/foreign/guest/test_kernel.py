"""The Linux kernel's own initiator uses a disk of ours, in a QEMU guest with Debian's kernel.

Every test logs in by itself and leaves nothing mounted, so that one failure is one failure.
"""

import os
import re
import time

import pytest

import servers
from guest import image
from guest.file_systems import allocated, make_file_system, outlives
from guest.initiator import Initiator
from guest.machine import HOST, Guest
from servers import MIB
from serving import serving
from verdicts import expect

EXPORT = servers.Export(luns=(servers.Lun(size=128 * servers.MIB),), incoming=("guest", "secret-of-guest"),
                        outgoing=("targe", "secret-of-targe"), announce=HOST)
FILE_MIB = 24
# Longest a reload may take to reach the guest, seconds.
RELOAD_MAX_S = 120
# Both are emulated: the guest's boot, and what it does.
pytestmark = pytest.mark.timeout(2000)


@pytest.fixture(scope="module")
def initiator(request, kind, server_name):
    out = os.path.join(servers.OUT, "guest")
    folder = os.path.join(out, server_name)
    os.makedirs(folder, exist_ok=True)
    kernel, initramfs = image.prepare(out)
    with serving(request, "kernel", kind(folder, EXPORT)) as server, Guest(kernel, initramfs, folder) as guest:
        yield Initiator(guest, server)


def test_discovers_the_target(initiator):
    initiator.clear()
    found = initiator.discover()
    expect(initiator.server.iqn in found, f"discovery names other targets: {found}")
    if not initiator.server.export.announce or initiator.server.first_lun:
        return
    expect(f"{initiator.portal},1 {initiator.server.iqn}" in found, f"not the announced address: {found}")


@pytest.mark.parametrize("algorithm", ["MD5", "SHA1", "SHA256", "SHA3-256"])
def test_logs_in_with_chap_both_ways(initiator, algorithm):
    if initiator.server.first_lun and algorithm != "MD5":
        pytest.skip(f"tgt has no {algorithm} by its number in RFC 7143")
    with initiator.logged_in(algorithm=algorithm) as disk:
        initiator.guest.run(f"dd if={disk} of=/dev/null bs=4k count=1 iflag=direct 2>&1")


def test_is_refused_with_wrong_secrets_and_refuses_them(initiator):
    initiator.clear()
    (user, secret), (target, target_secret) = initiator.server.export.incoming, initiator.server.export.outgoing
    # iscsiadm: 24 the target refused the login, 19 the initiator gave it up.
    for incoming, outgoing, code in (((user, "not the secret"), (target, target_secret), "24"),
                                     (("nobody", secret), (target, target_secret), "24"),
                                     ((user, secret), (target, "not the secret"), "19")):
        initiator.set_up(secrets=(incoming, outgoing), algorithm="MD5")
        said = initiator.guest.run(f"{initiator.record} --login 2>&1", check=False)
        ended = initiator.guest.code
        expect(ended == code, f"login with {incoming} and {outgoing} ends with {ended}: {said}")


@pytest.mark.parametrize("header", ["None", "CRC32C"])
@pytest.mark.parametrize("data", ["None", "CRC32C"])
def test_agrees_on_digests(initiator, header, data):
    with initiator.logged_in(header=header, data=data, algorithm="MD5") as disk:
        agreed = initiator.negotiated()
        expect((agreed["HeaderDigest"], agreed["DataDigest"]) == (header, data), f"agreed on {agreed}")
        guest = initiator.guest
        guest.run("dd if=/dev/urandom of=/tmp/sample bs=1M count=4 2> /dev/null")
        guest.run(f"dd if=/tmp/sample of={disk} bs=1M oflag=direct 2> /dev/null")
        guest.run(f"dd if={disk} of=/tmp/back bs=64k count=64 iflag=direct 2> /dev/null")
        guest.run("cmp /tmp/sample /tmp/back")
        expect(not initiator.complaints(), initiator.complaints())


def test_carries_a_file_system(initiator):
    guest = initiator.guest
    with initiator.logged_in(algorithm="MD5") as disk:
        make_file_system(guest, disk)
        guest.run(f"dd if=/dev/urandom of=/tmp/sample bs=1M count={FILE_MIB} 2> /dev/null")
        guest.run("dd if=/tmp/sample of=/mnt/file bs=1M conv=fsync 2> /dev/null")
        written = guest.run("sha256sum < /tmp/sample; rm /tmp/sample")
        guest.run("umount /mnt && echo 3 > /proc/sys/vm/drop_caches")
        guest.run(f"e2fsck -fn {disk} 2>&1")
        guest.run(f"mount -t ext4 {disk} /mnt")
        expect(guest.run("sha256sum < /mnt/file") == written, "reads back other bytes than were written")
        guest.run("umount /mnt")
        expect(not initiator.complaints(), initiator.complaints())


def test_gives_holes_back_on_fstrim(initiator):
    guest, medium = initiator.guest, initiator.server.medium_path()
    with initiator.logged_in(algorithm="MD5") as disk:
        make_file_system(guest, disk)
        guest.run(f"dd if=/dev/urandom of=/mnt/file bs=1M count={FILE_MIB} conv=fsync 2> /dev/null")
        full = allocated(medium)
        expect(full >= FILE_MIB * MIB, f"only {full} bytes of the medium are allocated")
        guest.run("rm /mnt/file && sync && fstrim -v /mnt")
        guest.run("umount /mnt")
        trimmed = allocated(medium)
        expect(full - trimmed >= (FILE_MIB - 2) * MIB, f"{full} bytes allocated before fstrim, {trimmed} after")
        guest.run(f"e2fsck -fn {disk} 2>&1")
        expect(not initiator.complaints(), initiator.complaints())


def test_keeps_reservations_between_two_sessions(initiator):
    """Two sessions of the guest are two nexuses: one reserves, the other runs into it, then takes it over."""
    guest = initiator.guest
    with initiator.logged_in(algorithm="MD5") as first:
        session = re.search(r"\[(\d+)\]", guest.run("iscsiadm -m session"))[1]
        guest.run(f"iscsiadm -m session -r {session} --op new")
        initiator.disk(count=2)
        (second,) = [disk for disk in initiator.disks() if disk != first]
        persist = "sg_persist --no-inquiry"
        for disk, key in ((first, "0xa1"), (second, "0xb2")):
            guest.run(f"{persist} --out --register --param-sark={key} {disk}")
        keys = guest.run(f"{persist} --in --read-keys {first}")
        expect("0xa1" in keys and "0xb2" in keys, f"registered two keys, read {keys}")
        guest.run(f"{persist} --out --reserve --param-rk=0xa1 --prout-type=1 {first}")
        held = guest.run(f"{persist} --in --read-reservation {second}")
        expect("0xa1" in held and "Write Exclusive" in held, f"the reservation reads {held}")
        write = "dd if=/dev/zero of={} bs=4k count=1 oflag=direct 2>&1"
        guest.run(write.format(first))
        guest.run(write.format(second), check=False)
        expect(guest.code != "0", "the other nexus writes in spite of the reservation")
        guest.run(f"dd if={second} of=/dev/null bs=4k count=1 iflag=direct 2>&1")
        guest.run(f"{persist} --out --preempt --param-rk=0xb2 --param-sark=0xa1 --prout-type=3 {second}")
        keys = guest.run(f"{persist} --in --read-keys {second}")
        expect("0xa1" not in keys and "0xb2" in keys, f"after the preemption the keys are {keys}")
        guest.run(write.format(second))
        status = guest.run(f"{persist} --in --read-full-status {second}", check=False)
        if not initiator.server.first_lun:
            expect("iqn.2026-11.org.targe:guest" in status, f"full status does not name the holder: {status}")
        guest.run(f"{persist} --out --clear --param-rk=0xb2 {second}")
        expect("0xb2" not in guest.run(f"{persist} --in --read-keys {second}"), "keys are left after CLEAR")


def test_sees_a_resize(initiator):
    server, guest = initiator.server, initiator.guest
    if not hasattr(server, "reload"):
        pytest.skip("tgt cannot change the size of a unit")
    with initiator.logged_in(algorithm="MD5") as disk:
        before = initiator.size(disk)
        os.truncate(server.medium_path(), before + 64 * MIB)
        server.reload()
        grown = before + 64 * MIB
        # The unit attention comes with the next command; the reload takes its time.
        deadline = time.monotonic() + RELOAD_MAX_S
        while initiator.size(disk) != grown:
            expect(time.monotonic() < deadline, f"{initiator.size(disk)} bytes after the medium grew to {grown}")
            guest.run(f"echo 1 > /sys/block/{disk.removeprefix('/dev/')}/device/rescan")
            time.sleep(0.2)
        guest.run(f"dd if=/dev/urandom of={disk} bs=1M seek={before // MIB} count=1 oflag=direct 2> /dev/null")


def test_resumes_after_sigkill_and_nothing_synced_is_lost(initiator):
    def crash():
        initiator.server.kill()
        # The initiator shall run into the closed port before the target is back.
        time.sleep(2)
        initiator.server.start(fresh=False)

    with initiator.logged_in(algorithm="MD5") as disk:
        outlives(initiator.guest, disk, crash)


def test_resumes_after_sigterm_and_nothing_synced_is_lost(initiator):
    if initiator.server.first_lun:
        pytest.skip("tgt does not end while a session lives")

    def restart():
        code = initiator.server.stop()
        expect(code == 0, f"exit code {code} after SIGTERM with a session at work")
        initiator.server.start(fresh=False)

    with initiator.logged_in(algorithm="MD5") as disk:
        outlives(initiator.guest, disk, restart)
