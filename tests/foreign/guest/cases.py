"""What the kernel's initiator must be able to do with a disk of ours, one function each.

Every case logs in by itself and leaves nothing mounted, so that one failure is one failure.
"""

import os
import re
import time

from servers import MIB
from verdicts import Skip, expect

FILE_MIB = 24
# Longest the guest's I/O may take to come back after the target is gone, seconds. The kernel retries every few.
RESUME_MAX_S = 120


def discovers(initiator):
    initiator.clear()
    found = initiator.discover()
    expect(initiator.server.iqn in found, f"discovery names other targets: {found}")
    if not initiator.server.export.announce or initiator.server.first_lun:
        return
    expect(f"{initiator.portal},1 {initiator.server.iqn}" in found, f"not the announced address: {found}")


def proves_itself_both_ways(initiator, algorithm):
    if initiator.server.first_lun and algorithm != "MD5":
        raise Skip(f"tgt has no {algorithm} by its number in RFC 7143")
    with initiator.logged_in(algorithm=algorithm) as disk:
        initiator.guest.run(f"dd if={disk} of=/dev/null bs=4k count=1 iflag=direct 2>&1")


def refuses_wrong_secrets(initiator):
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


def agrees_on_digests(initiator, header, data):
    with initiator.logged_in(header=header, data=data, algorithm="MD5") as disk:
        agreed = initiator.negotiated()
        expect((agreed["HeaderDigest"], agreed["DataDigest"]) == (header, data), f"agreed on {agreed}")
        guest = initiator.guest
        guest.run("dd if=/dev/urandom of=/tmp/sample bs=1M count=4 2> /dev/null")
        guest.run(f"dd if=/tmp/sample of={disk} bs=1M oflag=direct 2> /dev/null")
        guest.run(f"dd if={disk} of=/tmp/back bs=64k count=64 iflag=direct 2> /dev/null")
        guest.run("cmp /tmp/sample /tmp/back")
        expect(not initiator.complaints(), initiator.complaints())


def carries_a_file_system(initiator):
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


def gives_holes_back(initiator):
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


def keeps_reservations(initiator):
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


def sees_a_resize(initiator):
    server, guest = initiator.server, initiator.guest
    if not hasattr(server, "reload"):
        raise Skip("tgt cannot change the size of a unit")
    with initiator.logged_in(algorithm="MD5") as disk:
        before = initiator.size(disk)
        os.truncate(server.medium_path(), before + 64 * MIB)
        server.reload()
        grown = before + 64 * MIB
        # The unit attention comes with the next command; give the reload a moment.
        for _ in range(20):
            guest.run(f"echo 1 > /sys/block/{disk.removeprefix('/dev/')}/device/rescan")
            if initiator.size(disk) == grown:
                break
            time.sleep(0.2)
        expect(initiator.size(disk) == grown, f"{initiator.size(disk)} bytes after the medium grew to {grown}")
        guest.run(f"dd if=/dev/urandom of={disk} bs=1M seek={before // MIB} count=1 oflag=direct 2> /dev/null")
def outlives_crashes(initiator):
    def crash(server):
        server.kill()
        # The initiator shall run into the closed port before the target is back.
        time.sleep(2)
        server.start(fresh=False)

    outlives(initiator, crash)


def outlives_a_restart(initiator):
    if initiator.server.first_lun:
        raise Skip("tgt does not end while a session lives")

    def restart(server):
        code = server.stop()
        expect(code == 0, f"exit code {code} after SIGTERM with a session at work")
        server.start(fresh=False)

    outlives(initiator, restart)


def outlives(initiator, fate):
    """The target goes away under load, twice. The guest's I/O resumes, and every file is there whose fsync had
    returned."""
    server, guest = initiator.server, initiator.guest
    with initiator.logged_in(algorithm="MD5") as disk:
        make_file_system(guest, disk)
        guest.run("rm -f /tmp/enough /tmp/synced; touch /tmp/synced; /writer & writer=$!")
        more_synced(guest)
        for _ in range(2):
            fate(server)
            more_synced(guest)
        guest.run("touch /tmp/enough; wait $writer", limit_s=RESUME_MAX_S)
        guest.run("umount /mnt", limit_s=RESUME_MAX_S)
        expect_synced(guest, disk)


def expect_synced(guest, disk):
    """The file system on the disk is clean, and has every file that the writer had synced."""
    guest.run(f"e2fsck -fn {disk} 2>&1")
    guest.run("echo 3 > /proc/sys/vm/drop_caches")
    guest.run(f"mount -t ext4 {disk} /mnt")
    synced = dict(line.split()[:2] for line in guest.run("cat /tmp/synced").splitlines())
    sums = guest.run("cd /mnt; sha256sum [0-9]*; cd /", limit_s=RESUME_MAX_S)
    guest.run("umount /mnt")
    found = {name: digest for digest, name in map(str.split, sums.splitlines())}
    lost = [name for name, digest in synced.items() if found.get(name) != digest]
    expect(not lost, f"{len(lost)} of {len(synced)} synced files are lost or differ: {lost[:5]}")


def more_synced(guest):
    """Waits until the writer has synced another dozen files."""
    def count():
        return int(guest.run("wc -l < /tmp/synced"))

    deadline, target = time.monotonic() + RESUME_MAX_S, count() + 12
    while (reached := count()) < target:
        expect(time.monotonic() < deadline, f"I/O does not resume: {reached} files synced after {RESUME_MAX_S} s")
        time.sleep(0.2)


def make_file_system(guest, disk):
    guest.run(f"mkfs.ext4 -q -F {disk} 2>&1")
    guest.run(f"mount -t ext4 {disk} /mnt")


def allocated(path):
    os.sync()
    return os.stat(path).st_blocks * 512


# Name, function, arguments after the initiator.
CASES = [
    ("discovers the target", discovers),
    *[(f"logs in with CHAP both ways, {algorithm}", proves_itself_both_ways, algorithm)
      for algorithm in ("MD5", "SHA1", "SHA256", "SHA3-256")],
    ("is refused with a wrong name or secret, and refuses one", refuses_wrong_secrets),
    *[(f"agrees on digests: header {header}, data {data}", agrees_on_digests, header, data)
      for header in ("None", "CRC32C") for data in ("None", "CRC32C")],
    ("carries a file system: mkfs, write, fsck, read back", carries_a_file_system),
    ("gives holes back to the medium on fstrim", gives_holes_back),
    ("keeps persistent reservations between two sessions", keeps_reservations),
    ("sees a resize", sees_a_resize),
    ("resumes after SIGKILL of the target under load, nothing synced is lost", outlives_crashes),
    ("resumes after SIGTERM of the target under load, nothing synced is lost", outlives_a_restart),
]
