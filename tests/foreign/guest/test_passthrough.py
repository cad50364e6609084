"""targe serves SCSI devices of a guest to two initiators outside it: QEMU's SCSI disk, CD drive and ATA disk, and the kernel's
scsi_debug.

targe runs in the guest, where /dev/sg* are. The initiators are a session of the rig's own for each, libiscsi's tools, and targe.
"""

import hashlib
import os
import re
import struct
import subprocess

import pytest

import servers
from guest import image
from guest.machine import Guest
from hostile.initiator import COMMAND, DATA_IN, IMMEDIATE, NOP_IN, R2T, RESPONSE, TASK, Session, number, pdu, read_10, write_10
from listening import free_port
from verdicts import expect

MIB = servers.MIB
DISK, DISC, DEBUG, ATA = range(4)
DISK_SIZE = 8 * MIB
GUEST_PORT = 3260
CONFIG, LOG = "/tmp/targe.toml", "/tmp/targe.log"
KNOBS = "/sys/bus/pseudo/drivers/scsi_debug"
# Longest that targe may take to start in the emulated machine, or to write what it must to its log.
WAIT_MAX_S = 120
# How often something is looked for, with a pause of 0.1 s: that takes less than a command of the guest may take.
LOOKS = 1000
# An emulated machine may be too slow for an upgrade so often; nothing has changed then.
SLOW_UPGRADES_MAX = 15
LATE = ("in time", "no moment was found", "a reactor does not answer")
GOOD, CHECK_CONDITION, RESERVATION_CONFLICT, TASK_ABORTED = 0, 2, 0x18, 0x40
LUN_RESET, ABORT_TASK, TASK_RESPONSE = 5, 1, 0x22
READ_CAPACITY = struct.pack(">BBIxxxx", 0x25, 0, 0)
TEST_UNIT_READY = bytes(6)
REPORT_COMMANDS = bytes([0xA3, 0x0C, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0])
pytestmark = pytest.mark.timeout(2000)


class Answer:
    """How a command ended."""

    def __init__(self, header, data, sense):
        self.status, self.data, self.sense = header[3], bytes(data), sense
        flags = header[1]
        self.residual = number(header, 44) * (-1 if flags & 4 else 1) if flags & 6 else 0

    def code(self):
        """Sense key, additional sense code and qualifier."""
        if not self.sense:
            return None
        if self.sense[0] & 0x7F in (0x72, 0x73):
            return self.sense[1] & 15, self.sense[2], self.sense[3]
        return self.sense[2] & 15, self.sense[12], self.sense[13]

    def information(self):
        return int.from_bytes(self.sense[3:7], "big") if self.sense[0] & 0x80 else None


class Nexus(Session):
    """A session of one initiator, and the unit that its commands are for."""

    def __init__(self, rig, name, lun):
        self.lun = lun
        super().__init__(rig.port, rig.iqn, f"iqn.2026-11.org.targe:{name}")
        self.socket.settimeout(WAIT_MAX_S)

    def send(self, cdb, read=0, write=b""):
        flags = 0x80 | (0x40 if read else 0) | (0x20 if write else 0) | 1
        itt, self.itt = self.itt, self.itt + 1
        first = write[:8192]
        self.socket.sendall(pdu(COMMAND, flags, itt, first, self.lun, read or len(write), self.cmd_sn, self.exp_stat_sn, cdb))
        self.cmd_sn += 1
        return itt

    def answer(self, write=b""):
        got = bytearray()
        while True:
            header, data = self.receive()
            opcode = header[0] & 0x3F
            if opcode == DATA_IN:
                got += data
                if header[1] & 1:
                    self.exp_stat_sn = number(header, 24) + 1
                    return Answer(header, got, b"")
            elif opcode == RESPONSE:
                self.exp_stat_sn = number(header, 24) + 1
                return Answer(header, got, data[2:2 + int.from_bytes(data[:2], "big")])
            elif opcode == R2T:
                self.give(header, write)
            elif opcode == NOP_IN:
                self.pong(header)
            else:
                raise AssertionError(f"opcode {opcode:#x} comes")

    def run(self, cdb, read=0, write=b""):
        self.send(cdb, read, write)
        return self.answer(write)

    def manage(self, function, task=0xFFFFFFFF):
        """Requests a task management function."""
        itt, self.itt = self.itt, self.itt + 1
        self.socket.sendall(pdu(TASK | IMMEDIATE, 0x80 | function, itt, b"", self.lun, task, self.cmd_sn, self.exp_stat_sn,
                                struct.pack(">I", self.cmd_sn)))

    def managed(self):
        while True:
            header, _ = self.receive()
            if header[0] & 0x3F == TASK_RESPONSE:
                self.exp_stat_sn = number(header, 24) + 1
                return header[2]
            expect(header[0] & 0x3F == NOP_IN, f"opcode {header[0]:#x} comes instead of an answer")
            self.pong(header)

    def settle(self):
        """Hears the unit attentions that are pending."""
        heard = []
        for _ in range(8):
            answer = self.run(TEST_UNIT_READY)
            if answer.status == GOOD:
                return heard
            heard.append(answer.code())
        raise AssertionError(f"the unit does not become ready: {heard}")


class Rig:
    """The guest with its devices, and targe in it."""

    def __init__(self, guest, folder, port):
        self.guest, self.folder, self.port, self.iqn = guest, folder, port, servers.IQN
        for module in ("virtio_pci || true", "virtio_net", "virtio_scsi", "sd_mod", "sr_mod", "sg", "scsi_debug dev_size_mb=16 delay=0"):
            guest.run(f"modprobe {module}")
        guest.run("ifconfig lo 127.0.0.1 up; until [ -e /sys/class/net/eth0 ]; do sleep 0.1; done; "
                  "ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up")
        self.nodes = [self.node(model) for model in ("QEMU HARDDISK", "QEMU CD-ROM", "scsi_debug")]
        # Its disk has the same model.
        guest.run("modprobe ahci")
        self.nodes.append(self.node("ATA", "vendor"))

    def node(self, name, attribute="model"):
        """The SG node of a device."""
        path = self.guest.run(f"until grep -l '{name}' /sys/class/scsi_generic/*/device/{attribute}; do sleep 0.1; done").split()[0]
        name = path.split("/")[4]
        self.guest.run(f"until [ -c /dev/{name} ]; do sleep 0.1; done")
        return f"/dev/{name}"

    def host(self, node):
        """What the kernel calls a device: host, channel, target and LUN."""
        return self.guest.run(f"basename $(readlink -f /sys/class/scsi_generic/{os.path.basename(node)}/device)").strip()

    def config(self, luns):
        lines = ['state_dir = "/tmp/state"', 'admin_socket = "/tmp/admin/admin.sock"', "[[portal]]", f'listen = "0.0.0.0:{GUEST_PORT}"',
                 "[[target]]", f'name = "{self.iqn}"']
        for lun, node in luns:
            lines += ["[[target.lun]]", f"lun = {lun}", 'type = "sg"', f'path = "{node}"']
        return "\\n".join(lines) + "\\n"

    def write_config(self, luns, path=CONFIG):
        self.guest.run(f"umask 077; printf '{self.config(luns)}' > {path}")

    def start(self):
        self.write_config(enumerate(self.nodes))
        self.guest.tell(f"targe serve --config {CONFIG} > {LOG} 2>&1 &")
        self.guest.answer("targe serve", WAIT_MAX_S)
        self.guest.run(f"for i in $(seq {LOOKS}); do netstat -ltn | grep -q :{GUEST_PORT} && break; "
                       f"pidof targe > /dev/null || break; sleep 0.1; done; netstat -ltn | grep -q :{GUEST_PORT} || {{ cat {LOG}; false; }}")

    def says(self, text):
        """Waits until the log says something."""
        self.guest.run(f"for i in $(seq {LOOKS}); do grep -q '{text}' {LOG} && exit_=0 && break; sleep 0.1; done; "
                       f"grep -q '{text}' {LOG} || {{ cat {LOG}; false; }}")

    def upgrade(self, *flags):
        """Replaces targe by another process; returns the complaint, if it is refused."""
        old = self.guest.run("pidof targe").split()
        for _ in range(SLOW_UPGRADES_MAX):
            said = self.guest.run(f"targe upgrade --socket /tmp/admin/admin.sock --wait 60 {' '.join(flags)} 2>&1", check=False)
            if not any(late in said for late in LATE):
                break
        is_done = self.guest.code == "0"
        self.guest.run(f"for i in $(seq {LOOKS}); do [ $(pidof targe | wc -w) = 1 ] && break; sleep 0.1; done; [ $(pidof targe | wc -w) = 1 ]")
        expect((self.guest.run("pidof targe").split() != old) == is_done, f"the process before was {old}: {said}")
        return None if is_done else said

    def url(self, lun):
        return f"iscsi://127.0.0.1:{self.port}/{self.iqn}/{lun}"

    def targe(self, *args, data=None):
        done = subprocess.run([servers.Targe.binary, *args], input=data, capture_output=True, timeout=WAIT_MAX_S * 2)
        expect(done.returncode == 0, f"targe {' '.join(args)} exits {done.returncode}: {done.stderr.decode()[-600:]}")
        return done.stdout

    def both(self, lun, names=("first", "second")):
        """Two initiators that have heard of everything that happened before."""
        pair = [Nexus(self, name, lun) for name in names]
        for nexus in pair:
            nexus.settle()
        return pair


@pytest.fixture(scope="module")
def rig(server_name):
    if server_name != "targe":
        pytest.skip("no other target serves devices from user space")
    out = os.path.join(servers.OUT, "guest")
    folder = os.path.join(out, "pass-through")
    os.makedirs(folder, exist_ok=True)
    kernel, initramfs = image.prepare_pass_through(out)
    disk, disc, ata = (os.path.join(folder, name) for name in ("disk.img", "disc.iso", "ata.img"))
    for path in (disk, ata):
        with open(path, "wb") as file:
            file.truncate(DISK_SIZE)
    with open(disc, "wb") as file:
        file.write(b"".join(sector.to_bytes(8, "big") * 256 for sector in range(512)))
    port = free_port()
    devices = ("-device", "virtio-scsi-pci", "-drive", f"if=none,id=disk,format=raw,file={disk}", "-device", "scsi-hd,drive=disk,serial=DISK-1",
               "-drive", f"if=none,id=disc,format=raw,readonly=on,file={disc}", "-device", "scsi-cd,drive=disc",
               "-device", "ich9-ahci,id=ahci", "-drive", f"if=none,id=ata,format=raw,file={ata}", "-device", "ide-hd,drive=ata,bus=ahci.0")
    with Guest(kernel, initramfs, folder, [("127.0.0.1", port, GUEST_PORT)], devices) as guest:
        rig = Rig(guest, folder, port)
        rig.disc = disc
        rig.start()
        yield rig
        guest.run(f"kill $(pidof targe); for i in $(seq {LOOKS}); do pidof targe > /dev/null || break; sleep 0.1; done")
        log = guest.run(f"cat {LOG}")
        expect("panick" not in log and not guest.run("pidof targe", check=False), f"targe does not end as it should: {log[-1000:]}")


def test_devices_are_themselves(rig):
    for lun, names in ((DISK, ("QEMU", "QEMU HARDDISK")), (DISC, ("QEMU", "QEMU CD-ROM")), (DEBUG, ("Linux", "scsi_debug"))):
        told = subprocess.run(["iscsi-inq", rig.url(lun)], capture_output=True, text=True, timeout=WAIT_MAX_S).stdout
        expect(all(name in told for name in names), f"LUN {lun}: {told}")
        info = rig.targe("info", rig.url(lun)).decode()
        expect(names[1] in info, info)
    told = subprocess.run(["iscsi-readcapacity16", rig.url(DISK)], capture_output=True, text=True, timeout=WAIT_MAX_S).stdout
    expect(str(DISK_SIZE) in told, told)
    first, _ = rig.both(DISK)
    serial = first.run(bytes([0x12, 1, 0x80, 0, 255, 0]), 255)
    expect(serial.data[3:10] == b"\6DISK-1", serial.data)
    # QEMU sends as many bytes as are asked for, scsi_debug those that there are.
    debug = Nexus(rig, "third", DEBUG)
    debug.settle()
    serial = debug.run(bytes([0x12, 1, 0x80, 0, 255, 0]), 255)
    length = 4 + serial.data[3]
    expect((len(serial.data), serial.residual) == (length, 255 - length), f"residual {serial.residual} for {len(serial.data)} bytes")
    names = first.run(bytes([0x12, 1, 0x83, 4, 0, 0]), 1024).data
    expect(rig.iqn.encode() in names, f"page 83h does not name the target's port: {names}")
    standard = first.run(bytes([0x12, 0, 0, 0, 96, 0]), 96).data
    expect(standard[0] == 0 and standard[5] & 0x30 == 0x10 and standard[7] & 2, standard.hex())
    luns = first.run(bytes([0xA0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]), 256).data
    expect(luns[:4] == struct.pack(">I", 8 * len(rig.nodes)), f"REPORT LUNS: {luns.hex()}")


def test_data_is_that_of_the_device(rig):
    data = hashlib.shake_128(b"pass-through").digest(MIB)
    rig.targe("write", rig.url(DISK), "--write", data=data)
    expect(rig.targe("read", rig.url(DISK))[:MIB] == data, "what is read differs from what was written")
    rig.targe("verify", rig.url(DISK), "--write")
    with open(rig.disc, "rb") as file:
        image_of_disc = file.read()
    disc, _ = rig.both(DISC)
    sectors = b"".join(disc.run(read_10(lba, 32), 32 * 2048).data for lba in range(0, len(image_of_disc) // 2048, 32))
    expect(sectors == image_of_disc, "the disc differs from its image")


def test_short_answers_contain_no_data_of_others(rig):
    """Linux's ATA driver tells no residual count before 6.13, and writes only the first 576 bytes of an answer that it makes up."""
    first, second = rig.both(ATA)
    secret, length, blocks = b"\xA5", 8192, 16
    for name, cdb in {
            "INQUIRY": struct.pack(">BBBHx", 0x12, 0, 0, length),
            "INQUIRY, page 80h": struct.pack(">BBBHx", 0x12, 1, 0x80, length),
            "MODE SENSE(10)": struct.pack(">BBB4xHx", 0x5A, 0, 0x3F, length),
            "READ CAPACITY(16)": struct.pack(">BB8xIxx", 0x9E, 0x10, length)}.items():
        for use in ("writes", "reads"):
            if use == "writes":
                answer = first.run(write_10(0, blocks), 0, secret * 512 * blocks)
            else:
                answer = first.run(read_10(0, blocks), 512 * blocks)
                expect(answer.data == secret * 512 * blocks, "what is read is not what was written")
            expect(answer.status == GOOD, f"the first initiator {use}: {answer.status} {answer.code()}")
            answer = second.run(cdb, length)
            expect(answer.status == GOOD and answer.data, f"{name}: {answer.status} {answer.code()}")
            expect(secret * 16 not in answer.data, f"{name} shows what another initiator {use}: {len(answer.data)} bytes")


def test_persistent_reservations_are_kept_between_initiators(rig):
    first, second = rig.both(DISK)

    def out(action, kind, key, new):
        return bytes([0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0]), 0, struct.pack(">QQ8x", key, new)

    block = bytes(512)
    expect(first.run(*out(0, 0, 0, 1)).status == GOOD and first.run(*out(1, 3, 1, 0)).status == GOOD, "exclusive access")
    expect(second.run(write_10(0, 1).ljust(16, b"\0"), 0, block).status == RESERVATION_CONFLICT, "a write of another initiator")
    expect(second.run(read_10(0, 1), 512).status == RESERVATION_CONFLICT, "a read of another initiator")
    expect(first.run(write_10(0, 1), 0, block).status == GOOD, "a write of the holder")
    keys = second.run(bytes([0x5E, 0, 0, 0, 0, 0, 0, 0, 32, 0]), 32).data
    expect(keys[8:16] == struct.pack(">Q", 1), keys.hex())
    # The second registers and preempts the first, which is fenced then.
    expect(second.run(*out(0, 0, 0, 2)).status == GOOD and second.run(*out(4, 3, 2, 1)).status == GOOD, "PREEMPT")
    expect(first.settle() != [], "the first hears that it was preempted")
    expect(first.run(write_10(0, 1), 0, block).status == RESERVATION_CONFLICT, "a write of the preempted initiator")
    expect(second.run(*out(3, 0, 2, 0)).status == GOOD, "CLEAR")
    first.settle()
    expect(first.run(write_10(0, 1), 0, block).status == GOOD, "a write after CLEAR")


@pytest.mark.parametrize("suite", ["TestUnitReady", "Inquiry.Standard", "Read10.Simple", "Write16.Simple", "Reserve6.Simple", "ProutReserve"])
def test_libiscsi(rig, suite):
    done = subprocess.run(["iscsi-test-cu", "--dataloss", "-t", f"ALL.{suite}", rig.url(DISK)],
                          capture_output=True, text=True, timeout=WAIT_MAX_S * 2)
    told = done.stdout + done.stderr
    tests = re.search(r"tests\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)", told)
    expect(tests and int(tests[2]) > 0 and tests[4] == "0", told[-1500:])


def test_medium_errors_come_as_they_are(rig):
    first, second = rig.both(DEBUG)
    rig.guest.run(f"echo 2 > {KNOBS}/opts")
    try:
        for nexus in (first, second):
            answer = nexus.run(read_10(0x1230, 8), 4096)
            expect(answer.status == CHECK_CONDITION and answer.code() == (3, 0x11, 0), f"{answer.status} {answer.sense.hex()}")
            expect(answer.information() == 0x1234, answer.sense.hex())
            expect(nexus.run(read_10(0, 8), 4096).status == GOOD, "other blocks")
    finally:
        rig.guest.run(f"echo 0 > {KNOBS}/opts")
    expect(first.run(read_10(0x1230, 8), 4096).status == GOOD, "without the error")


def test_unit_attentions_reach_each_initiator_once(rig):
    first, second = rig.both(DEBUG)
    # The device tells the first that asks that its capacity has changed.
    rig.guest.run(f"echo 1 > {KNOBS}/virtual_gb; echo 0 > {KNOBS}/virtual_gb")
    for nexus in (first, second):
        heard = nexus.settle()
        expect(heard.count((6, 0x2A, 9)) == 1, heard)
    # The control mode page with another value. scsi_debug tells the one initiator that it knows, which sent the command.
    page = bytes([0x1A, 8, 0x0A, 0, 64, 0])
    mode = bytearray(first.run(page, 64).data)
    expect(mode[4] & 0x3F == 0x0A, mode.hex())
    mode[0] = mode[2] = 0
    mode[4] &= 0x3F
    mode[6] ^= 0x04
    change = bytes([0x15, 0x10, 0, 0, len(mode), 0])
    expect(first.run(change, 0, bytes(mode)).status == GOOD, "MODE SELECT")
    heard = first.settle(), second.settle()
    expect(heard[0] in ([], [(6, 0x2A, 1)]) and heard[1] == [(6, 0x2A, 1)], f"MODE PARAMETERS CHANGED: {heard}")
    mode[6] ^= 0x04
    expect(first.run(change, 0, bytes(mode)).status == GOOD, "MODE SELECT")
    second.settle()


def test_slow_commands_are_aborted_and_the_unit_reset(rig):
    first, second = rig.both(DEBUG)
    rig.guest.run(f"echo 300 > {KNOBS}/delay")
    try:
        slow = first.send(read_10(0, 8), 4096)
        other = second.send(read_10(8, 8), 4096)
        first.manage(ABORT_TASK, slow)
        expect(first.managed() == 0, "ABORT TASK")
        expect(second.answer().status == GOOD and other, "the command of the other initiator")
    finally:
        rig.guest.run(f"until echo 0 > {KNOBS}/delay; do sleep 0.1; done")
    first.manage(LUN_RESET)
    expect(first.managed() == 0, "LOGICAL UNIT RESET")
    heard = [first.settle(), second.settle()]
    expect(all([code[:2] for code in codes] == [(6, 0x29)] for codes in heard), f"a reset is told once: {heard}")


def test_supported_commands_are_those_that_reach_the_device_and_those_of_targe(rig):
    first, _ = rig.both(DEBUG)
    told = first.run(REPORT_COMMANDS, 8192)
    expect(told.status == GOOD, told.sense.hex())
    length = int.from_bytes(told.data[:4], "big")
    codes = {told.data[at] for at in range(4, 4 + length, 8)}
    expect(length + 4 == len(told.data), f"{length} bytes of commands in {len(told.data)}")
    expect({0x00, 0x12, 0x28, 0x2A, 0x5E, 0x5F, 0x16, 0x17, 0xA0, 0xA3} <= codes, f"commands are missing: {sorted(codes)}")
    expect(not codes & {0x04, 0x48, 0x83}, f"commands that are refused are listed: {sorted(codes)}")
    one = first.run(bytes([0xA3, 0x0C, 1, 0x28, 0, 0, 0, 0, 0, 64, 0, 0]), 64).data
    expect(one[1] & 7 == 3 and one[4] == 0x28, one.hex())


def test_hung_commands_end_when_the_kernel_ends_them(rig):
    """The device never answers; the kernel gives REPORT SUPPORTED OPERATION CODES ten seconds."""
    first, second = rig.both(DEBUG)
    requests = f"/sys/class/scsi_device/{rig.host(rig.nodes[DEBUG])}/device/iorequest_cnt"

    def hang(nexus):
        before = rig.guest.run(f"cat {requests}").strip()
        rig.guest.run(f"echo 1 > {KNOBS}/every_nth; echo 4 > {KNOBS}/opts")
        task = nexus.send(REPORT_COMMANDS, 8192)
        rig.guest.run(f"until [ $(cat {requests}) != {before} ]; do sleep 0.1; done; echo 0 > {KNOBS}/opts; echo 0 > {KNOBS}/every_nth")
        return task

    task = hang(first)
    hang(second)
    # Others are served meanwhile, and the function is answered when the command has ended.
    third = Nexus(rig, "third", DEBUG)
    third.settle()
    expect(third.run(read_10(0, 8), 4096).status == GOOD, "a read beside commands that hang")
    first.manage(ABORT_TASK, task)
    expect(first.managed() == 0, "ABORT TASK")
    late = second.answer()
    expect(late.code() == (0x0B, 0x3E, 2), f"a command that takes too long: {late.status} {late.sense.hex()}")
    hang(second)
    first.manage(LUN_RESET)
    expect(first.managed() == 0, "LOGICAL UNIT RESET")
    ended = second.answer()
    expect(ended.status == TASK_ABORTED, f"a command of another initiator that is reset: {ended.status} {ended.sense.hex()}")
    heard = [nexus.settle() for nexus in (first, second, third)]
    expect(all([code[:2] for code in codes] == [(6, 0x29)] for codes in heard), f"a reset is told once: {heard}")
    expect(all(nexus.run(read_10(0, 8), 4096).status == GOOD for nexus in (first, second)), "reads after it")


def test_dangerous_and_overlong_commands_are_refused(rig):
    first, _ = rig.both(DEBUG)
    for cdb, write in ((bytes([0x04, 0, 0, 0, 0, 0]), b""), (bytes([0x48, 1, 0, 0, 0, 0, 0, 0, 8, 0]), bytes(8)),
                       (bytes([0x83] + [0] * 15), b"")):
        expect(first.run(cdb, 0, write).code() == (5, 0x20, 0), f"{cdb.hex()} is not refused")
    expect(first.run(bytes([0x3B, 5, 0, 0, 0, 0, 0, 0, 8, 0]), 0, bytes(8)).code() == (5, 0x24, 0), "a download of firmware")
    limits = first.run(bytes([0x12, 1, 0xB0, 0, 64, 0]), 64).data
    longest = int.from_bytes(limits[8:12], "big")
    expect(longest > 0, limits.hex())
    expect(first.run(struct.pack(">BBQIBB", 0x88, 0, 0, longest, 0, 0), longest * 512).status == GOOD, f"the longest transfer, {longest} blocks")
    beyond = 32 * MIB // 512
    answer = first.run(struct.pack(">BBQIBB", 0x88, 0, 0, beyond, 0, 0), beyond * 512)
    expect(answer.code() == (5, 0x24, 0), f"a longer transfer: {answer.status} {answer.sense.hex()}")
    # A command that no standard knows reaches the device, which refuses it.
    expect(first.run(bytes([0xC5] + [0] * 9)).code() == (5, 0x20, 0), "a vendor-specific command")


def test_a_check_of_the_configuration_leaves_the_devices_alone(rig):
    """When a CD drive is closed, the kernel allows the removal of its disc."""
    disc, looker = rig.both(DISC)
    expect(disc.run(bytes([0x1E, 0, 0, 0, 1, 0])).status == GOOD, "PREVENT ALLOW MEDIUM REMOVAL")
    rig.guest.run(f"targe check {CONFIG}")
    expect(looker.run(bytes([0x1B, 0, 0, 0, 2, 0])).status == CHECK_CONDITION, "an eject that is prevented")
    expect(disc.run(bytes([0x1E, 0, 0, 0, 0, 0])).status == GOOD, "PREVENT ALLOW MEDIUM REMOVAL")


def test_nobody_notices_an_upgrade(rig):
    """What the device has still to report comes to each initiator once, and none else; the device stays locked and reserved."""
    first, second = rig.both(DEBUG)
    disk, other = rig.both(DISK, ("owner", "other"))
    disc, looker = rig.both(DISC, ("viewer", "looker"))
    expect(disk.run(bytes([0x5F, 0, 0, 0, 0, 0, 0, 0, 24, 0]), 0, struct.pack(">QQ8x", 0, 1)).status == GOOD, "REGISTER")
    expect(disk.run(bytes([0x5F, 1, 3, 0, 0, 0, 0, 0, 24, 0]), 0, struct.pack(">QQ8x", 1, 0)).status == GOOD, "RESERVE")
    expect(disc.run(bytes([0x1E, 0, 0, 0, 1, 0])).status == GOOD, "PREVENT ALLOW MEDIUM REMOVAL")
    for number in range(3):
        # The first hears of it, so targe has it for the second; of the next change only the device knows.
        rig.guest.run(f"echo 1 > {KNOBS}/virtual_gb; echo 0 > {KNOBS}/virtual_gb")
        expect(first.settle().count((6, 0x2A, 9)) == 1, "the first did not hear of the first change")
        if number:
            rig.guest.run(f"echo 1 > {KNOBS}/virtual_gb; echo 0 > {KNOBS}/virtual_gb")
        expect("cannot start" in (why := rig.upgrade("--binary", "/nonexistent")), why)
        why = rig.upgrade()
        expect(why is None, f"an upgrade is refused: {why}")
        heard = [[code for code in nexus.settle() if code[0] == 6] for nexus in (first, second)]
        expect(heard == [[(6, 0x2A, 9)] * bool(number), [(6, 0x2A, 9)]] or heard == [[(6, 0x2A, 9)] * bool(number), [(6, 0x2A, 9)] * 2],
               f"upgrade {number}: {heard}")
        for nexus, size in ((first, 512), (second, 512), (disk, 512), (disc, 2048)):
            expect(nexus.run(read_10(0, 8), 8 * size).status == GOOD, "a read after an upgrade")
        expect(other.run(write_10(0, 1).ljust(16, b"\0"), 0, bytes(512)).status == RESERVATION_CONFLICT, "a write of another initiator")
        expect(looker.run(bytes([0x1B, 0, 0, 0, 2, 0])).status == CHECK_CONDITION, "an eject that is prevented")
        for node in rig.nodes:
            rig.guest.run(f"flock -n -x {node} true", check=False)
            expect(rig.guest.code != "0", f"{node} is not locked")
    data = hashlib.shake_128(b"upgrade").digest(MIB)
    expect(disk.run(write_10(8, 16), 0, data[:8192]).status == GOOD and disk.run(read_10(8, 16), 8192).data == data[:8192], "data after an upgrade")
    expect(disk.run(bytes([0x5F, 3, 0, 0, 0, 0, 0, 0, 24, 0]), 0, struct.pack(">QQ8x", 1, 0)).status == GOOD, "CLEAR")
    expect(disc.run(bytes([0x1E, 0, 0, 0, 0, 0])).status == GOOD, "PREVENT ALLOW MEDIUM REMOVAL")


def test_removal_is_told_and_a_reload_brings_the_device_back(rig):
    first, second = rig.both(DEBUG)
    address = rig.host(rig.nodes[DEBUG])
    rig.guest.run(f"echo 1 > /sys/class/scsi_device/{address}/device/delete")
    answer = first.run(read_10(0, 8), 4096)
    expect(answer.code() == (2, 5, 0), f"{answer.status} {answer.sense.hex()}")
    rig.says("the device was removed")
    expect(second.run(read_10(0, 8), 4096).code() == (2, 5, 0), "the other initiator")
    expect("cannot open" in (why := rig.upgrade() or ""), f"an upgrade without the device: {why}")
    rig.guest.run(f"until [ ! -e {rig.nodes[DEBUG]} ]; do sleep 0.1; done")
    rig.guest.run(f"echo '- - -' > /sys/class/scsi_host/host{address.split(':')[0]}/scan")
    expect(rig.node("scsi_debug") == rig.nodes[DEBUG], "the device has another number")
    rig.guest.run("kill -HUP $(pidof targe)")
    rig.says("is served again")
    for nexus in (first, second):
        nexus.settle()
        expect(nexus.run(read_10(0, 8), 4096).status == GOOD, "a read of the device that is back")
    expect((why := rig.upgrade()) is None, f"an upgrade is refused: {why}")
    for nexus in (first, second):
        expect(nexus.run(read_10(0, 8), 4096).status == GOOD, "a read after an upgrade")


def test_bad_configurations_are_refused(rig):
    def refused(node, luns=1, prefix=""):
        rig.write_config([(lun, node) for lun in range(luns)], "/tmp/other.toml")
        if prefix:
            rig.guest.run("chmod 644 /tmp/other.toml")
        said = rig.guest.run(f"{prefix} targe check /tmp/other.toml 2>&1", check=False)
        expect(rig.guest.code != "0", f"{node}: it is accepted: {said}")
        return said

    disk = rig.nodes[DISK]
    expect("is not a SCSI generic device" in (said := refused("/dev/null")), said)
    expect("no such file" in (said := refused("/dev/sg99")), said)
    expect("already the medium" in (said := refused(disk, luns=2)), said)
    said = refused(disk, prefix="/usr/bin/setpriv --reuid 65534 --regid 65534 --clear-groups")
    expect("permission denied" in said, said)
    block = rig.guest.run(f"ls /sys/class/scsi_generic/{os.path.basename(disk)}/device/block").strip()
    rig.guest.run(f"mkswap /dev/{block} && swapon /dev/{block}")
    said = refused(disk)
    rig.guest.run(f"swapoff /dev/{block}")
    expect("this host itself uses" in said and "shared_with_host" in said, said)
