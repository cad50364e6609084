"""`targe attach --ublk` in a guest whose kernel has ublk: what the block device must be able to do, one test each.

Every test attaches by itself and leaves no device behind, so that one failure is one failure.
"""

import contextlib
import os
import re
import time

import pytest

import servers
from guest import image
from guest.file_systems import RESUME_MAX_S, allocated, make_file_system, outlives
from guest.machine import HOST, Guest
from guest.relay import Relay
from servers import MIB, Lun
from serving import serving
from verdicts import expect

SIZE = 128 * MIB
# A plain one, one of long blocks that is written through, one that is read-only, one more to stripe with the first.
EXPORT = servers.Export(luns=(Lun(size=SIZE), Lun(size=SIZE, block=4096, write_cache=False), Lun(size=SIZE, readonly=True),
                              Lun(size=SIZE)))
PLAIN, LONG, READ_ONLY, SECOND = range(4)
# Longest a device may take to be there, or gone.
DEVICE_MAX_S = 100
FIO = ("fio --thread --randseed=7 --verify=crc32c --do_verify=1 --verify_fatal=1 --verify_state_save=0 --ioengine=libaio --direct=1 "
       "--name=data")
# By its path: the shell prefers its own, which cannot zero.
DISCARD = "/usr/sbin/blkdiscard"
COMPLAINTS = "I/O error|EXT4-fs error|Buffer I/O|blocked for more|BUG|WARNING"
# The guest is emulated: its boot, and what it does.
pytestmark = pytest.mark.timeout(2000)


@pytest.fixture(scope="module")
def disks(request, kind, server_name):
    out = os.path.join(servers.OUT, "guest")
    folder = os.path.join(out, server_name, "ublk")
    os.makedirs(folder, exist_ok=True)
    kernel, initramfs = image.prepare_ublk(out)
    with serving(request, "ublk", kind(folder, EXPORT)) as server, Guest(kernel, initramfs, folder) as guest:
        yield Disks(guest, server)



class Disks:
    """The guest, and the units of the server that it can attach."""

    def __init__(self, guest, server):
        self.guest, self.server = guest, server
        # How many attaches there were. Each leaves its exit code in a file of its own: one that was killed may end after the next began.
        self.attaches = 0
        for command in ("ifconfig lo 127.0.0.1 up", "modprobe virtio_pci || true", "modprobe virtio_net", "modprobe ext4",
                        "until [ -e /sys/class/net/eth0 ]; do sleep 0.1; done",
                        "ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up", "route add default gw 10.0.2.2"):
            guest.run(command)

    def url(self, unit=PLAIN, port=None, query=""):
        address = f"{HOST}:{port or self.server.port}"
        return f"iscsi://{address}/{self.server.iqn}/{self.server.first_lun + unit}{query}"

    def refused(self, prefix=""):
        """Runs an attach that must not work; what it said."""
        said = self.guest.run(f"{prefix} targe attach '{self.url()}' --ublk 2>&1", check=False)
        expect(self.guest.code == "1", f"exit code {self.guest.code}: {said}")
        return said

    @contextlib.contextmanager
    def attached(self, *units, **where):
        """Attaches units, yields the device's path, detaches; the device is gone then."""
        self.clear()
        path = self.attach(*units, **where)
        yield path
        code = self.detach()
        expect(code == "0", f"detach ends with {code}: {self.said()}")
        self.expect_gone(path)
        complaints = self.guest.run(f"dmesg | grep -E '{COMPLAINTS}'", check=False)
        expect(not complaints, complaints)

    def attach(self, *units, port=None, query="", options=""):
        urls = " ".join(f"'{self.url(unit, port, query)}'" for unit in units or (PLAIN,))
        self.guest.run("modprobe ublk_drv && rm -f /tmp/path")
        self.attaches += 1
        code = self.code_path()
        self.guest.run(f"{{ targe attach {urls} --ublk {options} > /tmp/path 2>> /tmp/said; echo $? > {code}; }} &")
        self.guest.run(f"for i in $(seq {DEVICE_MAX_S * 10}); do [ -s /tmp/path ] && break; [ -e {code} ] && break; sleep 0.1; done")
        path = self.guest.run("cat /tmp/path").strip()
        expect(re.fullmatch(r"/dev/ublkb\d+", path), f"no device: {self.said()}")
        return path

    def code_path(self):
        """Where the last attach leaves its exit code."""
        return f"/tmp/code.{self.attaches}"

    def process(self):
        return self.guest.run("pidof targe").strip()

    def signal(self, name="TERM"):
        self.guest.run(f"kill -{name} {self.process()}")

    def ended(self):
        """The exit code, once there is one."""
        self.guest.run(f"for i in $(seq {DEVICE_MAX_S * 10}); do [ -s {self.code_path()} ] && break; sleep 0.1; done")
        return self.guest.run(f"cat {self.code_path()}").strip()

    def detach(self):
        self.signal()
        return self.ended()

    def said(self):
        return self.guest.run("cat /tmp/said", check=False)

    def expect_gone(self, path):
        left = self.guest.run(f"ls {path} {path.replace('ublkb', 'ublkc')} 2> /dev/null", check=False)
        expect(not left, f"still there: {left}")

    def clear(self):
        """Ends what an earlier test left behind."""
        self.guest.run("umount /mnt 2> /dev/null; for i in 1 2 3; do killall targe 2> /dev/null && sleep 1; done", check=False)
        self.guest.run("dmesg -c > /dev/null; rm -f /tmp/said /tmp/code.*")

    def attribute(self, path, name):
        return self.guest.run(f"cat /sys/block/{path.removeprefix('/dev/')}/{name}").strip()


def test_says_what_is_missing(disks):
    guest = disks.guest
    disks.clear()
    guest.run("rmmod ublk_drv 2> /dev/null", check=False)
    said = disks.refused()
    expect("modprobe ublk_drv" in said, f"without the module: {said}")
    guest.run("mv /lib/modules /lib/elsewhere")
    said = disks.refused()
    guest.run("mv /lib/elsewhere /lib/modules")
    expect("CONFIG_BLK_DEV_UBLK" in said, f"without it anywhere: {said}")
    guest.run("modprobe ublk_drv")
    said = disks.refused("/usr/bin/setpriv --reuid 65534 --regid 65534 --clear-groups")
    expect("needs root" in said, f"not as root: {said}")
    guest.run("echo 2 > /proc/sys/kernel/io_uring_disabled")
    said = disks.refused()
    guest.run("echo 0 > /proc/sys/kernel/io_uring_disabled")
    expect("io_uring" in said, f"without io_uring: {said}")


def test_device_is_what_the_unit_says(disks):
    expected = {
        PLAIN: {"size": SIZE // 512, "ro": 0, "queue/logical_block_size": 512, "queue/physical_block_size": 4096,
                "queue/write_cache": "write back", "queue/fua": 1, "queue/discard_granularity": 4096},
        LONG: {"size": SIZE // 512, "ro": 0, "queue/logical_block_size": 4096, "queue/write_cache": "write through", "queue/fua": 0},
        READ_ONLY: {"ro": 1, "queue/logical_block_size": 512},
    }
    for unit, attributes in expected.items():
        with disks.attached(unit) as path:
            for name, value in attributes.items():
                found = disks.attribute(path, name)
                expect(found == str(value), f"unit {unit}: {name} is {found}, not {value}")
            for name in ("queue/discard_max_bytes", "queue/write_zeroes_max_bytes"):
                expect(int(disks.attribute(path, name)) > MIB, f"unit {unit}: {name} is {disks.attribute(path, name)}")


def test_keeps_what_is_written_whatever_the_blocks(disks):
    for unit, smallest in ((PLAIN, "512"), (LONG, "4k")):
        with disks.attached(unit) as path:
            disks.guest.run(f"{FIO} --filename={path} --rw=randwrite --bsrange={smallest}-1m --iodepth=32 --size=8m 2>&1",
                            limit_s=RESUME_MAX_S)


def test_carries_a_file_system(disks):
    guest, medium = disks.guest, disks.server.medium_path()
    with disks.attached() as path:
        make_file_system(guest, path)
        guest.run(f"{FIO} --directory=/mnt --rw=randrw --bsrange=4k-256k --iodepth=16 --numjobs=2 --size=8m --fsync=32 2>&1",
                  limit_s=RESUME_MAX_S)
        full = allocated(medium)
        guest.run("rm /mnt/data* && sync && fstrim -v /mnt")
        guest.run("umount /mnt")
        trimmed = allocated(medium)
        expect(full - trimmed >= 14 * MIB, f"{full} bytes allocated before fstrim, {trimmed} after")
        guest.run(f"e2fsck -fn {path} 2>&1")


def test_discards_and_zeroes_reach_the_medium(disks):
    guest, medium = disks.guest, disks.server.medium_path()
    with disks.attached() as path:
        guest.run(f"dd if=/dev/urandom of={path} bs=1M count=32 oflag=direct 2> /dev/null")
        full = allocated(medium)
        guest.run(f"{DISCARD} --offset $((8 << 20)) --length $((8 << 20)) {path}")
        expect(full - allocated(medium) >= 7 * MIB, f"{allocated(medium)} bytes are left of {full} after a discard")
        guest.run(f"{DISCARD} --zeroout --offset $((20 << 20)) --length $((4 << 20)) {path}")
        zeros = guest.run("dd if=/dev/zero bs=1M count=4 2> /dev/null | sha256sum")
        for offset in (8, 20):
            read = guest.run(f"dd if={path} bs=1M skip={offset} count=4 iflag=direct 2> /dev/null | sha256sum")
            expect(read == zeros, f"the blocks at {offset} MiB read otherwise than as zeros")
        guest.run(f"{DISCARD} -f {path}")
        expect(allocated(medium) < 2 * MIB, f"{allocated(medium)} bytes are left of the whole")


def test_flushes_and_durable_writes_reach_the_target_and_no_others(disks):
    """What the kernel asks to be durable is asked of the target, and nothing else is."""
    guest = disks.guest
    with Relay(disks.server.port) as relay:
        with disks.attached(port=relay.port, query="?header_digest=none&data_digest=none") as path:
            def seen_during(command):
                guest.run(command)
                before = dict(relay.seen)
                guest.run(command)
                return {name: count - before.get(name, 0) for name, count in relay.seen.items() if count > before.get(name, 0)}

            plain = seen_during(f"dd if=/dev/urandom of={path} bs=4k count=8 oflag=direct 2> /dev/null")
            expect(plain == {"write": 8}, f"eight plain writes are {plain}")
            synced = seen_during(f"dd if=/dev/urandom of={path} bs=4k count=8 oflag=direct conv=fsync 2> /dev/null")
            expect(synced == {"write": 8, "flush": 1}, f"eight writes and an fsync are {synced}")
            durable = seen_during(f"fio --name=durable --filename={path} --rw=write --bs=4k --size=32k --direct=1 --sync=dsync 2>&1")
            # The kernel follows such a write up with a flush, as it cannot know what the device made of it.
            expect(durable == {"durable write": 8, "flush": 8}, f"eight durable writes are {durable}")
            gone = seen_during(f"{DISCARD} --length $((1 << 20)) {path}")
            expect(gone == {"unmap": 1}, f"a discard is {gone}")
            zeroed = seen_during(f"{DISCARD} --zeroout --length $((1 << 20)) {path}")
            expect(zeroed == {"write same": 1}, f"zeroing is {zeroed}")


def test_target_killed_under_load_and_nothing_synced_is_lost(disks):
    """The target is killed and restarted under load, twice; every file is there whose fsync had returned."""
    def crash():
        disks.server.kill()
        # The device shall run into the closed port before the target is back.
        time.sleep(1)
        disks.server.start(fresh=False)

    with disks.attached() as path:
        outlives(disks.guest, path, crash)
        expect("reconnected" in disks.said(), f"attach did not notice: {disks.said()}")


def test_attach_killed_under_load_takes_the_device_over_and_nothing_synced_is_lost(disks):
    """`targe attach` itself is killed under load, twice, and started again: it takes the device over."""
    def crash():
        disks.signal("KILL")
        expect(disks.attach() == path, "it is another device")
        expect("takes it over" in disks.said(), f"nothing was taken over: {disks.said()}")

    with disks.attached() as path:
        outlives(disks.guest, path, crash)


def test_device_of_a_killed_attach_is_deleted_with_the_writes_that_wait_in_it(disks):
    guest = disks.guest
    disks.clear()
    path = disks.attach()
    guest.run(f"dd if=/dev/zero of={path} bs=4k count=1 oflag=direct conv=fsync 2>&1")
    served = guest.run(f"targe attach '{disks.url()}' --ublk --delete 2>&1", check=False)
    expect(guest.code == "1" and "already attached" in served, f"a device is deleted that is served: {served}")
    disks.signal("KILL")
    guest.run(f"{{ yes | dd of={path} bs=4k count=1 iflag=fullblock oflag=direct 2> /dev/null; echo $? > /tmp/written; }} &")
    guest.run("sleep 2; [ ! -s /tmp/written ]")
    said = guest.run(f"targe attach '{disks.url()}' --ublk --delete 2>&1")
    expect(f"{path} is deleted" in said, f"nothing is deleted: {said}")
    guest.run(f"for i in $(seq {DEVICE_MAX_S * 10}); do [ -s /tmp/written ] && break; sleep 0.1; done")
    expect(guest.run("cat /tmp/written").strip() == "1", "the write that waited does not fail")
    disks.expect_gone(path)
    said = guest.run(f"targe attach '{disks.url()}' --ublk --delete 2>&1")
    expect("no device of this disk" in said, f"a second deletion: {said}")
    path = disks.attach()
    expect("takes it over" not in disks.said(), f"the device is taken over: {disks.said()}")
    found = guest.run(f"dd if={path} bs=4k count=1 iflag=direct 2> /dev/null | tr -d '\\000' | wc -c").strip()
    expect(found == "0", f"the write that waited was repeated: {found} bytes")
    expect(disks.detach() == "0", f"detach: {disks.said()}")
    disks.expect_gone(path)


def test_device_in_use_is_served_until_it_is_let_go(disks):
    guest = disks.guest
    with disks.attached() as path:
        make_file_system(guest, path)
        disks.signal()
        guest.run("for i in $(seq 1000); do grep -q 'still uses' /tmp/said && break; sleep 0.1; done")
        guest.run("dd if=/dev/urandom of=/mnt/file bs=64k count=8 conv=fsync 2>&1")
        expect("still uses it" in disks.said(), f"a mounted device is let go: {disks.said()}")
        guest.run("umount /mnt")
        expect(disks.ended() == "0", f"it does not end once it is unmounted: {disks.said()}")
        disks.expect_gone(path)
        expect(disks.attach() == path, "it can be attached again")
        guest.run(f"e2fsck -fn {path} 2>&1")
        # A program that has it open is heeded too, and cut off by a second signal.
        guest.run(f"sleep 1000 < {path} & sleeper=$!")
        disks.signal()
        guest.run("for i in $(seq 1000); do [ $(grep -c 'still uses' /tmp/said) = 2 ] && break; sleep 0.1; done")
        disks.signal()
        expect(disks.ended() == "0", f"a second signal does not end it: {disks.said()}")
        guest.run("kill $sleeper")
        disks.expect_gone(path)
        disks.attach()


def test_disk_is_attached_once(disks):
    with disks.attached() as path:
        said = disks.refused()
        expect(path in said and "already" in said, f"a second attach says {said}")
        disks.guest.run(f"dd if=/dev/urandom of={path} bs=64k count=1 oflag=direct 2>&1")


def test_only_the_same_disk_takes_a_device_over(disks):
    if not hasattr(disks.server, "reload"):
        pytest.skip("another disk under the same name is made by targe's configuration")
    with disks.attached() as path:
        disks.signal("KILL")
        with another_disk(disks.server):
            # The killed attach has not logged out: the target withholds the LUN from its successor, whose end is a logout.
            said = disks.refused()
            expect("no LUN 0" in said, f"the target reaches another disk: {said}")
            # From here on the initiator's own check protects the device.
            said = disks.refused()
            expect("another disk" in said, f"another disk: {said}")
        expect(disks.attach() == path, "it is taken over once its own disk is back")


@contextlib.contextmanager
def another_disk(server):
    """For a while, the first unit is another device."""
    server.stop()
    plain = server.config_lines

    def renamed():
        for line in plain():
            yield line
            if line == "lun = 0":
                yield 'naa = "3000000000000001"'

    server.config_lines = renamed
    server.start(fresh=False)
    try:
        yield
    finally:
        server.stop()
        del server.config_lines
        server.start(fresh=False)


def test_stripes_two_units(disks):
    guest = disks.guest
    with disks.attached(PLAIN, SECOND, options="--stripe 64K") as path:
        expect(disks.attribute(path, "size") == str(2 * SIZE // 512), f"{disks.attribute(path, 'size')} sectors")
        make_file_system(guest, path)
        guest.run(f"{FIO} --directory=/mnt --rw=randwrite --bsrange=4k-512k --iodepth=16 --size=16m 2>&1", limit_s=RESUME_MAX_S)
        guest.run("umount /mnt")
        guest.run(f"e2fsck -fn {path} 2>&1")
    for unit in (PLAIN, SECOND):
        expect(allocated(disks.server.medium_path(unit)) > 6 * MIB, f"unit {unit} has too little of it")
