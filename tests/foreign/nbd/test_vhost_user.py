"""LUNs that are block devices of other processes, over vhost-user: QEMU's storage daemon, the example in Rust, and back ends that
break the protocol.

The processes are killed, stopped and changed while hosts read and write.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest

import servers
from exports import NbdServer, device, qemu_storage_daemon, wait_for
from libiscsi.suite import Runner, build_counter, list_suites
from servers import MIB, Export, Lun
from test_nbd import (SIZE, VERIFY_MAX_S, both_engines, finish, kill_until_writes_are_repeated, kill_while_verifying, read, start_verify,
                      targe)
from verdicts import expect

# One suite of libiscsi for each kind of command that becomes another request.
SUITES = ("Unmap",)
FOLDER = os.path.dirname(os.path.abspath(__file__))
BACK_END, SCSI_BACK_END = (os.path.join(FOLDER, name) for name in ("back_end.py", "scsi_back_end.py"))
pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(600)]


def back_end(folder, what):
    return NbdServer(folder, sys.executable, BACK_END, "SOCKET", what)


@both_engines
def test_a_file_of_qemu_holds_what_was_written_although_the_process_is_killed(tmp_path, reactor):
    disk = tmp_path / "disk"
    with open(disk, "wb") as file:
        file.truncate(SIZE)
    with qemu_storage_daemon(tmp_path, disk, "raw") as qemu, targe(tmp_path, device(qemu), reactor=reactor) as server:
        kill_while_verifying(server, qemu)
        code, data, said = read(server, "--bs=1M")
        expect(code == 0, said)
        expect(data == disk.read_bytes(), "the file holds something else")


def test_a_qcow2_image_loses_nothing_that_qemu_held_in_memory_when_it_was_killed(tmp_path):
    image = tmp_path / "disk.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", image, str(SIZE)], check=True, timeout=60)
    with qemu_storage_daemon(tmp_path, image, "qcow2") as qemu, targe(tmp_path, device(qemu)) as server:
        kill_until_writes_are_repeated(server, qemu)
        code, data, said = read(server, "--bs=1M")
        expect(code == 0, said)
        server.stop()
        qemu.end()
    subprocess.run(["qemu-img", "convert", "-O", "raw", image, tmp_path / "raw"], check=True, timeout=60)
    expect(data == (tmp_path / "raw").read_bytes(), "the image holds something else")


def test_libiscsi_finds_no_fault(tmp_path):
    disk = tmp_path / "disk"
    with open(disk, "wb") as file:
        file.truncate(100 * MIB)
    with qemu_storage_daemon(tmp_path, disk, "raw") as qemu, targe(tmp_path, device(qemu)) as server:
        runner = Runner(server, [server.url()], str(tmp_path / "suite"), build_counter(tmp_path))
        known, wrong, passed = list_suites(), [], 0
        for suite in (f"SCSI.{word}" for word in SUITES):
            for test, verdict in runner.run_suite(suite, known[suite]).items():
                passed += verdict.kind == "PASS"
                if verdict.kind not in ("PASS", "SKIP"):
                    wrong.append(f"{suite}.{test}: {verdict.kind}: {verdict.reasons}")
        expect(not wrong and passed >= 3, f"{passed} passed; {wrong}")


def test_a_process_that_is_silent_holds_up_its_own_hosts_only(tmp_path):
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(SIZE))
    with qemu_storage_daemon(tmp_path, disk, "raw") as qemu:
        # A busy machine takes seconds for an answer.
        luns = (device(qemu, reconnect_timeout="8s"), Lun(medium="ram", size=SIZE))
        with targe(tmp_path, *luns) as server:
            # The device is in use before its process is stopped.
            finish(start_verify(server, "--count=5"))
            others = start_verify(server, "--count=300", unit=1)
            qemu.send(signal.SIGSTOP)
            code, _, said = read(server, "--bs=64K")
            expect(code != 0 and "NOT READY" in said.upper(), f"a read without an answer: {code} {said}")
            server.expect_away()
            qemu.send(signal.SIGCONT)
            wait_for("the return", lambda: not server.unit()["not_ready"])
            finish(start_verify(server, "--count=50"))
            qemu.end(signal.SIGKILL)
            code, _, said = read(server, "--bs=64K")
            expect(code != 0 and "NOT READY" in said.upper(), f"a read of a process that is gone: {code} {said}")
            finish(others)
            qemu.start()
            wait_for("the return", lambda: not server.unit()["not_ready"])
            finish(start_verify(server, "--count=50"))


@pytest.mark.parametrize("what, why", [
    ("index", "the device reports more used requests than are under way"),
    ("stranger", "the device reports a used request that is not under way"),
    ("short", "the device reports a read as good and has not written all of its data"),
    ("message", "the process sent a message that nobody asked for"),
])
def test_a_process_that_breaks_the_protocol_is_left_and_told_of(tmp_path, what, why):
    with back_end(tmp_path, what) as process:
        luns = (device(process, reconnect_timeout="1s"), Lun(medium="ram", size=SIZE))
        with targe(tmp_path, *luns) as server:
            code, _, said = read(server, "--bs=64K")
            if what != "message":
                expect(code != 0 and "NOT READY" in said.upper(), f"{code} {said}")
            server.log_says(why)
            finish(start_verify(server, "--count=100", unit=1))


@pytest.mark.parametrize("what, why", [
    ("old", "does not support VIRTIO 1.0"),
    ("unconfigured", "does not support VHOST_USER_PROTOCOL_F_CONFIG"),
    ("huge", "cannot be used: it claims a size of 18446744073709551615 sectors, which no device has"),
    ("nonsense", "the negotiation with"),
    ("death", "the negotiation with"),
])
def test_a_process_that_is_no_block_device_is_refused_in_one_sentence(tmp_path, what, why):
    with back_end(tmp_path, what) as process:
        server = targe(tmp_path, device(process))
        server.strict = True
        # It listens before it opens its disks, so it may seem to have started.
        with contextlib.suppress(RuntimeError):
            server.start()
        wait_for("the refusal", lambda: server.process is None or server.process.poll() is not None)
        server.kill()
        expect(why in server.log_of_this_run(), server.log_tail())


def test_the_memory_that_a_process_is_given_cannot_be_cut(tmp_path):
    with back_end(tmp_path, "cut") as process, targe(tmp_path, device(process)) as server:
        code, data, said = read(server, "--bs=64K")
        expect(code == 0 and data == bytes(8 * MIB), f"{code} {said}")
        expect("cannot be cut" in (tmp_path / "nbd.log").read_text(), "the process cut the memory")


def test_a_device_that_is_read_only_is_served_only_if_that_is_wanted(tmp_path):
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(MIB))
    with qemu_storage_daemon(tmp_path, disk, "raw", writable=False) as qemu:
        server = targe(tmp_path, device(qemu))
        with contextlib.suppress(RuntimeError):
            server.start()
        wait_for("the refusal", lambda: server.process is None or server.process.poll() is not None)
        server.kill()
        expect("is read-only; give \"ro\" to serve it" in server.log_of_this_run(), server.log_tail())
        with targe(tmp_path, device(qemu, readonly=True)) as server:
            code, data, said = read(server, "--bs=64K")
            expect(code == 0 and data == bytes(MIB), f"{code} {said}")


def scsi_back_end(folder, *what):
    """A SCSI disk of a file over vhost-user. Returns the process and the file."""
    disk = folder / "disk"
    disk.write_bytes(bytes(SIZE))
    return NbdServer(folder, sys.executable, SCSI_BACK_END, "SOCKET", str(disk), *what), disk


def scsi(server, **more):
    return device(server, medium="vhost-user-scsi", **more)


def test_a_scsi_disk_loses_nothing_although_its_process_is_killed(tmp_path):
    process, disk = scsi_back_end(tmp_path)
    with process, targe(tmp_path, scsi(process)) as server:
        kill_while_verifying(server, process)
        code, data, said = read(server, "--bs=1M")
        expect(code == 0, said)
        expect(data == disk.read_bytes(), "the file holds something else")


def test_a_process_that_says_no_more_than_it_must_is_used(tmp_path):
    """QEMU's sample has no configuration and counts no bytes, and SPDK leaves sense data out."""
    process, disk = scsi_back_end(tmp_path, "plain")
    with process, targe(tmp_path, scsi(process)) as server:
        finish(start_verify(server, "--count=50"))
        code, data, said = read(server, "--bs=1M")
        expect(code == 0, said)
        expect(data == disk.read_bytes(), "the file holds something else")


def test_commands_that_were_under_way_are_executed_once_by_the_process_that_comes_back(tmp_path):
    process, disk = scsi_back_end(tmp_path)
    hold, data = tmp_path / "disk.hold", tmp_path / "data"
    data.write_bytes(b"x" * 65536)
    with process, targe(tmp_path, scsi(process)) as server:
        code, _, said = read(server, "--length=4K")
        expect(code == 0, said)
        hold.touch()
        with open(data, "rb") as source:
            write = subprocess.Popen([server.binary, "write", "--write", "--bs=4K", server.url()], stdin=source, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, text=True, preexec_fn=servers.die_with_parent)
        log = tmp_path / "nbd.log"
        wait_for("the commands", lambda: "holds" in log.read_text())
        for restarts in (1, 2):
            # The commands are in the process, which dies before it executes them.
            process.restart()
            wait_for("the return", lambda: log.read_text().count("goes on with") >= restarts)
        hold.unlink()
        said, _ = write.communicate(timeout=VERIFY_MAX_S)
        expect(write.returncode == 0, said)
        expect(disk.read_bytes()[:65536] == data.read_bytes(), "the file holds something else")
        writes = (tmp_path / "disk.writes").read_text().split()
        expect(sorted(writes, key=int) == [str(at) for at in range(0, 128, 8)], f"each write once: {writes}")


def test_commands_of_a_process_without_a_region_end_and_later_ones_wait_up_to_a_limit(tmp_path):
    process, disk = scsi_back_end(tmp_path, "forgetful")
    hold, log = tmp_path / "disk.hold", tmp_path / "nbd.log"
    with process:
        # A busy machine takes seconds for an answer.
        luns = (scsi(process, reconnect_timeout="8s"), Lun(medium="ram", size=SIZE))
        with targe(tmp_path, *luns) as server:
            others = start_verify(server, "--count=300", unit=1)
            code, _, said = read(server, "--length=4K")
            expect(code == 0, said)
            hold.touch()
            # The initiator sends a command again that was aborted.
            reading = start_read(server)
            wait_for("the command", lambda: "holds" in log.read_text())
            hold.unlink()
            process.restart()
            code, said = reading.wait(VERIFY_MAX_S), reading.stderr.read()
            expect(code == 0, f"{code} {said}")
            process.end(signal.SIGKILL)
            server.log_says("commands wait up to 8s for its process")
            code, _, said = read(server, "--length=4K")
            expect(code != 0 and "NOT READY" in said.upper(), f"{code} {said}")
            server.expect_away()
            finish(others)
            process.start()
            wait_for("the return", lambda: not server.unit()["not_ready"])
            finish(start_verify(server, "--count=50"))


def start_read(server):
    command = [server.binary, "read", "--length=4K", server.url()]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                            preexec_fn=servers.die_with_parent)


@pytest.mark.parametrize("what, why", [
    ("residual", "the device reports more bytes than the request has room for"),
])
def test_a_process_of_a_scsi_device_that_breaks_the_protocol_is_left_and_told_of(tmp_path, what, why):
    process, disk = scsi_back_end(tmp_path)
    with process:
        with targe(tmp_path, scsi(process, reconnect_timeout="8s"), Lun(medium="ram", size=SIZE)) as server:
            finish(start_verify(server, "--count=20"))
            process.end(signal.SIGKILL)
            process.command = [*process.command, what]
            process.start()
            code, _, said = read(server, "--length=4K")
            expect(code != 0, f"{code} {said}")
            server.log_says(why)
            finish(start_verify(server, "--count=100", unit=1))


def test_a_lun_is_removed_and_added_again_while_its_process_runs(tmp_path):
    block, commands = tmp_path / "block", tmp_path / "commands"
    block.mkdir()
    commands.mkdir()
    disk = block / "disk"
    disk.write_bytes(bytes(SIZE))
    process, _ = scsi_back_end(commands)
    with qemu_storage_daemon(block, disk, "raw") as qemu, process:
        ram = Lun(medium="ram", size=SIZE)
        with targe(tmp_path, ram) as server:
            for _ in range(2):
                server.export = Export(luns=(ram, device(qemu), scsi(process)))
                server.reload()
                wait_for("the LUNs", lambda: len(json.loads(server.admin("luns"))["luns"]) == 3)
                for unit in (1, 2):
                    finish(start_verify(server, "--count=50", unit=unit))
                server.export = Export(luns=(ram,))
                server.reload()
                wait_for("the removal", lambda: len(json.loads(server.admin("luns"))["luns"]) == 1)
            expect(qemu.process.poll() is None and process.process.poll() is None, "a process has ended")


@pytest.mark.skipif("VHOST_DEVICE_SCSI" not in os.environ, reason="the variable VHOST_DEVICE_SCSI names no vhost-device-scsi of rust-vmm")
def test_the_scsi_device_of_rust_vmm_is_read_also_after_a_kill(tmp_path):
    """It has no commands for writing, and READ(10) only, which QEMU sends."""
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    disk.write_bytes(os.urandom(SIZE))
    words = (os.environ.get("VHOST_DEVICE_SCSI"), "--read-only", "--socket-path", "SOCKET", str(disk))
    with NbdServer(tmp_path, *words) as process, targe(tmp_path, scsi(process)) as server:
        for _ in range(2):
            subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "raw", server.url(), copy], check=True, timeout=VERIFY_MAX_S)
            expect(copy.read_bytes() == disk.read_bytes(), "other data was read")
            process.restart()
            wait_for("the return", lambda: not server.unit()["not_ready"])
