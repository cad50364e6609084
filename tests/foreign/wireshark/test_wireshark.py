"""Capture what foreign initiators and a target say to each other, and let Wireshark's dissectors read it.

Three captures: discovery and a cross-section of SCSI by libiscsi's tools with header digests, large transfers by
QEMU's driver, and a file system by the kernel's initiator with both digests. In none may a dissector find a malformed
packet, an unknown key or a digest that does not match; and it must have seen what the capture is for.
"""

import contextlib
import functools
import os
import re
import subprocess
import time

import pytest

import listening
import servers
from guest import image
from guest.initiator import Initiator
from guest.machine import Guest
from verdicts import expect

# Tests that together send every kind of command, and no PDU that is wrong on purpose.
TESTS = ["SCSI.Inquiry", "SCSI.ModeSense6", "SCSI.ReportSupportedOpcodes", "SCSI.ReadCapacity16", "SCSI.Read16.Simple",
         "SCSI.Write10.Simple", "SCSI.WriteVerify16.Simple", "SCSI.WriteSame16.Simple", "SCSI.Unmap.Simple",
         "SCSI.GetLBAStatus.Simple", "SCSI.CompareAndWrite.Simple", "SCSI.OrWrite.Simple", "SCSI.Verify10.Mismatch",
         "SCSI.PrinReadKeys", "SCSI.PrinReportCapabilities", "SCSI.ProutRegister", "SCSI.ProutReserve.AccessWE",
         "SCSI.Reserve6.Simple", "iSCSI.iSCSITMF"]
# What no dissector may say.
WRONG = ("_ws.malformed || _ws.short || _ws.expert.severity == error || iscsi.opcode.invalid || iscsi.keyvalue.invalid")
# What says that the capture has holes: on loopback no segment is lost but by the capture itself.
HOLES = "tcp.analysis.lost_segment || tcp.analysis.ack_lost_segment"
ALLOCATION_LENGTHS = ["scsi.cdb.alloclen", "scsi.cdb.alloclen16", "scsi.cdb.alloclen32", "scsi_sbc.alloclen16",
                      "scsi_sbc.alloclen32"]
TOOL_MAX_S = 300
TRIES = 6
# Each try of the kernel boots a guest.
pytestmark = pytest.mark.timeout(3000)
# dumpcap comes before all that a busy machine has to do, where that is allowed.
FIRST = ["nice", "-n", "-15"] if os.geteuid() == 0 else []


@pytest.fixture
def out(server_name):
    return os.path.join(servers.OUT, "wireshark", server_name)


class Lossy(Exception):
    """The kernel dropped packets of a capture, which says nothing about the target."""


def with_whole_capture(case):
    """Makes a test run again while its capture is not whole: that happens when other work keeps dumpcap off the processor. A test that
    never gets a whole one has judged nothing, and fails."""
    @functools.wraps(case)
    def judged(**arguments):
        for _ in range(TRIES):
            try:
                return case(**arguments)
            except Lossy as lossy:
                reason = lossy
        raise AssertionError(f"no whole capture in {TRIES} tries: {reason}")
    return judged


@with_whole_capture
def test_reads_libiscsi_with_header_digests(kind, out):
    # The tool offers None first, and a target has to take the first that it may: so None it may not.
    export = servers.Export(luns=(servers.Lun("ram", size=16 * servers.MIB), servers.Lun("ram")), digests="header")
    with kind(out, export) as server:
        url = server.url(query="?header_digest=crc32c")
        with capture(server, "libiscsi") as file:
            run("iscsi-ls", "-s", f"iscsi://127.0.0.1:{server.port}")
            run("iscsi-inq", url)
            run("iscsi-inq", "-e", "1", "-c", "131", url)
            run("iscsi-readcapacity16", url)
            for test in TESTS:
                # Which of them pass is the libiscsi rig's business.
                run("iscsi-test-cu", "-d", "-s", "-t", test, url, check=False)
    digests = judge(file, server.port, out)
    expect(digests["HeaderDigest", "Good"] > 500, f"digests seen: {digests}")


@with_whole_capture
def test_reads_the_large_transfers_of_qemu(kind, out):
    with kind(out, servers.Export(luns=(servers.Lun("ram", size=64 * servers.MIB),))) as server:
        host, lun = f"127.0.0.1:{server.port}", server.first_lun
        disk = f"driver=iscsi,transport=tcp,portal={host},target={server.iqn},lun={lun},header-digest=crc32c"
        with capture(server, "qemu") as file:
            commands = ["write -P 0x5a 0 4M", "read -P 0x5a 0 4M", "aio_write -P 0xa5 8M 1M", "aio_write -P 0x3c 9M 1M",
                        "aio_flush", "read -P 0xa5 8M 1M", "write -z 16M 1M", "read -P 0 16M 1M", "discard 0 4M", "flush"]
            run("qemu-io", "--image-opts", *[part for command in commands for part in ("-c", command)], disk)
    digests = judge(file, server.port, out)
    expect(digests["HeaderDigest", "Good"] > 50, f"digests seen: {digests}")


@with_whole_capture
def test_reads_the_kernel_with_both_digests(kind, out):
    kernel, initramfs = image.prepare(os.path.join(servers.OUT, "guest"))
    export = servers.Export(luns=(servers.Lun(size=64 * servers.MIB),), incoming=("guest", "secret-of-guest"),
                            outgoing=("targe", "secret-of-targe"), digests="required")
    with kind(out, export) as server, Guest(kernel, initramfs, out) as guest:
        initiator = Initiator(guest, server)
        with capture(server, "kernel") as file, initiator.logged_in(algorithm="MD5") as disk:
            guest.run(f"mkfs.ext4 -q -F {disk} 2>&1 && mount -t ext4 {disk} /mnt")
            guest.run("dd if=/dev/urandom of=/mnt/file bs=1M count=4 conv=fsync 2>&1")
            guest.run("rm /mnt/file && fstrim /mnt && umount /mnt")
    digests = judge(file, server.port, out)
    expect(digests["HeaderDigest", "Good"] > 100 and digests["DataDigest", "Good"] > 50, f"digests seen: {digests}")


@contextlib.contextmanager
def capture(server, name):
    """Captures the server's port on the loopback interface; yields the file's path."""
    file = os.path.join(server.folder, f"{name}.pcapng")
    if os.path.exists(file):
        os.remove(file)
    process = subprocess.Popen([*FIRST, "dumpcap", "-q", "-i", "lo", "-B", "256", "-f", f"tcp port {server.port}", "-w", file],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               preexec_fn=servers.die_with_parent)
    said = ""
    while "File: " not in said:
        line = process.stdout.readline()
        if not line:
            pytest.skip(f"no right to capture on lo: {said}")
        said += line
    wait_for_first_packet(server, file)
    try:
        yield file
        # What is still in the capture's buffers.
        time.sleep(1)
    finally:
        process.terminate()
        said, _ = process.communicate(timeout=TOOL_MAX_S)
    dropped = re.search(r"received/dropped on interface .*: (\d+)/(\d+)", said)
    if not dropped or dropped[2] != "0":
        raise Lossy(f"the capture lost packets: {said}")


def wait_for_first_packet(server, file):
    """The capture says that it is on a little before it is: knock until something is written."""
    deadline = time.monotonic() + TOOL_MAX_S
    while not os.path.exists(file) or os.path.getsize(file) < 400:
        expect(time.monotonic() < deadline, "the capture does not begin")
        listening.listens("127.0.0.1", server.port)
        time.sleep(0.1)


def judge(file, port, out):
    """Fails on anything wrong; returns how many digests of each kind were good or bad."""
    read = ["tshark", "-r", file, "-d", f"tcp.port=={port},iscsi", "-o", "iscsi.bogus_pdu_max_data_len:16777216"]
    if holes := run(*read, "-Y", HOLES).splitlines():
        raise Lossy(f"{len(holes)} holes: {holes[:2]}")
    cut = answers_cut_short(read)
    wrong = [line for line in run(*read, "-Y", f"({WRONG})").splitlines() if line.split()[0] not in cut]
    expect(not wrong, f"{len(wrong)} packets are wrong: {wrong[:4]}")
    digests = {(kind, verdict): 0 for kind in ("HeaderDigest", "DataDigest") for verdict in ("Good", "Bad")}
    text = os.path.join(out, os.path.basename(file) + ".txt")
    with open(text, "w") as dissected:
        subprocess.run([*read, "-O", "iscsi"], stdout=dissected, stderr=subprocess.DEVNULL, check=True)
    with open(text, errors="replace") as lines:
        for line in lines:
            if found := re.search(r"(HeaderDigest|DataDigest): 0x\w+ \((Good|Bad) CRC32", line):
                digests[found.groups()] += 1
    bad = {kind: count for (kind, verdict), count in digests.items() if verdict == "Bad" and count}
    expect(not bad, f"digests that do not match: {bad}; see {text}")
    return digests


def answers_cut_short(read):
    """Numbers of the packets whose data end exactly where the command's allocation length makes them end. That is
    how it must be; the dissectors, which go by what the answer says of its own length, call some of them malformed."""
    fields = ["frame.number", "scsi.request_frame", "iscsi.datasegmentlength", *ALLOCATION_LENGTHS]
    rows = run(*read, "-Y", "iscsi", "-T", "fields", *[part for field in fields for part in ("-e", field)])
    allocated, cut = {}, set()
    for row in rows.splitlines():
        number, requests, lengths, *allocations = row.split("\t")
        allocated[number] = {length for column in allocations for length in column.split(",") if length}
        if any(allocated.get(request, set()) & set(lengths.split(",")) for request in requests.split(",")):
            cut.add(number)
    return cut


def run(*command, check=True):
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TOOL_MAX_S)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} exits {done.returncode}: {(done.stdout + done.stderr)[-500:]}")
    return done.stdout
