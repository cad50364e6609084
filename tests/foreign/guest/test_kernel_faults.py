"""What goes wrong on the target's side, as Linux and open-iscsi see it: a session that is dropped and a disk that is replaced meanwhile, a
target that stands still, a medium that is not there when the target starts, one whose server has gone, and a thin pool that runs full.

The guest has its disk open all the time, as a mounted file system has. What must not happen is a write on another disk, and an error where
the target's operator would expect that the host waits.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time

import pytest

import servers
from guest import image
from guest.initiator import Initiator
from guest.machine import HOST, Guest
from servers import MIB
from verdicts import expect, same

SIZE = 16 * MIB
NAME = "iqn.2026-11.org.targe:guest"
# Longest open-iscsi may take to log in again, and a write to go on after that, seconds.
LOGIN_MAX_S, GOES_ON_MAX_S = 300, 300
# Longest the target may take to apply a reload, and to find its NBD server or that it has gone, seconds.
REACHED_MAX_S = 120
# How long the target stands still, and how long the guest runs without its medium.
STOPPED_S, AWAY_S = 12, 8
WRITE = "dd if=/dev/urandom of={disk} bs=4k count=1 seek=16 oflag=direct 2>&1"
READ = "dd if={disk} of=/dev/null bs=4k count=1 iflag=direct 2>&1"
# Both are emulated: the guest's boot, and what it does.
pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(1800)]


class Faulty(servers.Targe):
    """Serves a file that can be replaced by another one in the configuration, and an export of an NBD server."""

    other = None

    def medium_path(self, unit=0):
        return self.other or super().medium_path(unit)

    def nbd_socket(self):
        return os.path.join(self.folder, "nbd.sock")

    def config_lines(self):
        yield from super().config_lines()
        yield from ("[[target.lun]]", "lun = 7", 'type = "nbd"', f'uri = "nbd+unix:///?socket={self.nbd_socket()}"', 'io_timeout = "10s"')

    def start_nbd(self):
        # An earlier run that was killed has left its socket, on which nobody listens.
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.nbd_socket())
        self.nbd = subprocess.Popen(["nbdkit", "--foreground", "--exit-with-parent", "-U", self.nbd_socket(), "memory", "16M"])
        while not os.path.exists(self.nbd_socket()):
            time.sleep(0.01)

    def stop_nbd(self):
        self.nbd.kill()
        self.nbd.wait()
        os.remove(self.nbd_socket())

    def sessions(self):
        return json.loads(self.admin("sessions"))["sessions"]

    def wait(self, what, limit_s, is_so):
        deadline = time.monotonic() + limit_s
        while not is_so():
            expect(time.monotonic() < deadline, f"{what} takes too long")
            time.sleep(0.1)

    def drop(self):
        command = [self.binary, "session", "drop", NAME, "--socket", os.path.join(self.folder, "admin", "admin.sock")]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    def is_ready(self, lun):
        (found,) = [one for one in json.loads(self.admin("luns"))["luns"] if one["lun"] == lun]
        return found["not_ready"] is None


@pytest.fixture(scope="module")
def initiator():
    out = os.path.join(servers.OUT, "guest")
    folder = os.path.join(out, "faults")
    os.makedirs(folder, exist_ok=True)
    kernel, initramfs = image.prepare_faults(out)
    server = Faulty(folder, servers.Export((servers.Lun(size=SIZE),), announce=HOST))
    server.start_nbd()
    server.start()
    try:
        with Guest(kernel, initramfs, folder) as guest:
            yield Initiator(guest, server)
        expect(server.stop() == 0, "the daemon does not end in order")
    finally:
        server.kill()
        server.stop_nbd()


def opened(initiator):
    """Logs in without pings of the guest's own, which end a session whose target stands still, and keeps the disk open."""
    guest = initiator.guest
    initiator.clear()
    initiator.set_up(header="None", data="None")
    for key in ("noop_out_interval", "noop_out_timeout"):
        initiator.update(f"node.conn[0].timeo.{key}", 0)
    guest.run(f"{initiator.record} --login")
    disk = initiator.disk()
    guest.run(f"sleep 100000 < {disk} & echo $! > /tmp/holder")
    guest.run(WRITE.format(disk=disk))
    return disk


def closed(initiator):
    initiator.guest.run("kill $(cat /tmp/holder)")
    initiator.guest.run(f"{initiator.record} --logout", limit_s=180)


def test_a_dropped_session_comes_back_to_its_disk_or_to_none(initiator, tmp_path):
    server, guest = initiator.server, initiator.guest
    disk = opened(initiator)
    first = server.medium_path()
    before, logins = server.medium_digest(), json.loads(server.admin("status"))["logins"]
    server.other = str(tmp_path / "other.img")
    with open(server.other, "wb") as file:
        file.truncate(SIZE)
    try:
        server.drop()
        server.reload()
        server.wait("the reload", REACHED_MAX_S, lambda: server.other in server.admin("luns"))
        server.wait("another login", LOGIN_MAX_S, lambda: json.loads(server.admin("status"))["logins"] > logins and server.sessions())
        said = guest.run(WRITE.format(disk=disk), check=False, limit_s=GOES_ON_MAX_S)
        expect(guest.code != "0", f"a write of an open disk succeeds although the disk was replaced: {said}")
        with open(server.other, "rb") as file:
            expect(not any(file.read()), "the write has changed another disk")
        server.other = None
        same("the first disk", server.medium_digest(), before)
    finally:
        server.other = None
        server.reload()
        server.wait("the reload", REACHED_MAX_S, lambda: first in server.admin("luns"))
    # The host gives the disk up and finds it again.
    closed(initiator)
    closed_again = opened(initiator)
    guest.run(READ.format(disk=closed_again))
    closed(initiator)


def test_a_target_that_stood_still_keeps_the_session_of_a_writer(initiator):
    server, guest = initiator.server, initiator.guest
    disk = opened(initiator)
    logins = json.loads(server.admin("status"))["logins"]
    write = f"dd if=/dev/zero of={disk} bs=256k count=40 oflag=direct 2>&1"
    server.process.send_signal(signal.SIGSTOP)
    guest.tell(write)
    time.sleep(STOPPED_S)
    server.process.send_signal(signal.SIGCONT)
    guest.answer(write, GOES_ON_MAX_S)
    same("logins", json.loads(server.admin("status"))["logins"], logins)
    expect(not initiator.complaints(), initiator.complaints())
    closed(initiator)


def test_a_writer_waits_for_a_medium_that_is_late(initiator):
    """The target's machine was restarted, and its daemon is up before the volume is."""
    server, guest = initiator.server, initiator.guest
    disk = opened(initiator)
    path, away = server.medium_path(), server.medium_path() + ".away"
    expect(server.stop() == 0, "the daemon does not end in order")
    shutil.move(path, away)
    write = f"dd if=/dev/zero of={disk} bs=4k count=16 oflag=direct 2>&1"
    guest.tell(write)
    server.start(fresh=False)
    server.wait("another login", LOGIN_MAX_S, server.sessions)
    server.wait("the other LUN", REACHED_MAX_S, lambda: server.is_ready(7))
    expect(not server.is_ready(0), "the LUN of the missing file is ready")
    time.sleep(AWAY_S)
    shutil.move(away, path)
    guest.answer(write, GOES_ON_MAX_S)
    server.wait("the LUN whose medium has come", REACHED_MAX_S, lambda: server.is_ready(0))
    said = guest.run("dmesg | grep 'I/O error'", check=False)
    expect(not said, said)
    closed(initiator)


def test_a_path_checker_finds_a_unit_whose_server_has_gone(initiator):
    """What dm-multipath's checker "tur" asks: TEST UNIT READY."""
    server, guest = initiator.server, initiator.guest
    opened(initiator)
    disk = initiator.disk(unit=7)
    guest.run(f"sg_turs {disk}")
    server.stop_nbd()
    server.wait("the loss of the server", REACHED_MAX_S, lambda: not server.is_ready(7))
    said = guest.run(f"sg_turs -v {disk} 2>&1", check=False)
    # sg_turs ends with 2 for NOT READY.
    same(f"exit code of sg_turs ({said})", guest.code, "2")
    server.start_nbd()
    server.wait("the server", REACHED_MAX_S, lambda: server.is_ready(7))
    server.wait("TEST UNIT READY", REACHED_MAX_S, lambda: guest.run(f"sg_turs {disk}", check=False) is not None and guest.code == "0")
    closed(initiator)


# A pool with room for half of its volume, and what is written: more than the pool takes, less than the volume.
POOL_MIB, ENLARGED_MIB, VOLUME_MIB, WRITTEN_MIB = 16, 64, 32, 24
THIN_IQN = "iqn.2026-11.org.targe:thin"
THIN_PORTAL = "127.0.0.1:3270"
THIN_CONFIG = f"""\
state_dir = "/tmp/thin/state"
admin_socket = "/tmp/thin/admin.sock"
[[portal]]
listen = "{THIN_PORTAL}"
[[target]]
name = "{THIN_IQN}"
[[target.lun]]
lun = 0
type = "block"
path = "/dev/mapper/thin"
"""


def pool_table(mib):
    """The pool: its metadata, its data, blocks of 64 KiB, and errors at once where it is full."""
    return f"0 {mib * 2048} thin-pool /dev/ram0 /dev/ram1 128 0 1 error_if_no_space"


def test_a_thin_pool_that_ran_full_is_enlarged_and_its_loss_accepted(initiator):
    """The guest's own target serves a volume of the pool, the guest's own initiator uses it."""
    guest = initiator.guest
    initiator.clear()
    record = f"iscsiadm -m node -T {THIN_IQN} -p {THIN_PORTAL}"
    for command in ("export DM_DISABLE_UDEV=1", "modprobe dm_thin_pool", f"modprobe brd rd_nr=2 rd_size={ENLARGED_MIB << 10}",
                    f"dmsetup create pool --table '{pool_table(POOL_MIB)}'", "dmsetup message pool 0 'create_thin 0'",
                    f"dmsetup create thin --table '0 {VOLUME_MIB * 2048} thin /dev/mapper/pool 0'",
                    "mkdir -m 700 /tmp/thin", *(f"echo '{line}' >> /tmp/thin/targe.toml" for line in THIN_CONFIG.splitlines()),
                    "{ targe serve --config /tmp/thin/targe.toml > /tmp/thin/log 2>&1; echo $? > /tmp/thin/code; } &",
                    f"{record} -o new"):
        guest.run(command)
    socket = "--socket=/tmp/thin/admin.sock"
    guest.run(f"until targe status {socket} > /dev/null 2>&1 || [ -s /tmp/thin/code ]; do sleep 0.2; done")
    expect(guest.run("cat /tmp/thin/code 2> /dev/null", check=False) == "", f"targe ends: {guest.run('cat /tmp/thin/log')}")
    guest.run(f"{record} --login")
    found = "ls -d /sys/class/iscsi_session/session*/device/target*/*:0/block/sd*"
    disk = "/dev/" + guest.run(f"for i in $(seq 300); do {found} 2> /dev/null && break; sleep 0.1; done").rsplit("/", 1)[1]
    guest.run(f"for i in $(seq 300); do [ -b {disk} ] && break; sleep 0.1; done")
    luns = f"targe luns {socket} --json"

    def write_all(is_durable):
        guest.run(f"dd if=/tmp/thin/data of={disk} bs=256k oflag=direct 2>&1", check=is_durable)
        said = guest.run(f"dd if=/dev/zero of={disk} bs=4k count=1 seek={(VOLUME_MIB << 8) - 1} conv=fsync,notrunc 2>&1", check=False)
        expect((guest.code == "0") == is_durable, f"writing and flushing ends with {guest.code}: {said}; {guest.run(luns)}")

    def lost_writes():
        (lun,) = json.loads(guest.run(luns))["luns"]
        return lun["lost_writes"]

    guest.run(f"dd if=/dev/urandom of=/tmp/thin/data bs=1M count={WRITTEN_MIB} 2>&1")
    expect(lost_writes() is None, "the LUN has lost writes from the start")
    write_all(is_durable=False)
    expect(lost_writes() is not None, f"targe luns shows no lost writes: {guest.run(luns)}")
    guest.run(f"dmsetup suspend pool && dmsetup load pool --table '{pool_table(ENLARGED_MIB)}' && dmsetup resume pool")
    # The pool takes everything now, and what was lost stays lost until the operator says otherwise.
    write_all(is_durable=False)
    guest.run(f"targe lun accept-loss {THIN_IQN} 0 {socket}")
    write_all(is_durable=True)
    expect(lost_writes() is None, f"targe luns shows a loss that was accepted: {guest.run(luns)}")
    same("what the pool has", guest.run(f"dd if=/dev/mapper/thin bs=1M count={WRITTEN_MIB} 2> /dev/null | sha256sum"), guest.run("sha256sum < /tmp/thin/data"))
    guest.run(f"{record} --logout")
    guest.run("kill $(pidof targe); for i in $(seq 600); do [ -s /tmp/thin/code ] && break; sleep 0.1; done")
    same("exit code of targe", guest.run("cat /tmp/thin/code").strip(), "0")
    guest.run("dmsetup remove thin && dmsetup remove pool")
