"""LUNs that are devices of SPDK's vhost, over vhost-user: SCSI targets and block devices.

SPDK is in no distribution: `make test-spdk SPDK_VHOST=.../build/bin/vhost`. The README of the rigs tells how it is built. It runs without
huge pages and without devices, and its disks are files, so that what it holds outlives it.
"""

import contextlib
import json
import os
import re
import signal
import subprocess

import pytest

import servers
from exports import NbdServer, export, wait_for
from libiscsi.suite import Runner, build_counter, list_suites
from servers import MIB, Lun, call
from test_nbd import SIZE, VERIFY_MAX_S, finish, kill_while_verifying, read, start_verify, targe
from verdicts import expect

VHOST = os.environ.get("SPDK_VHOST")
# Memory, MiB, and the processor that it polls on.
POOLS_MIB, PROCESSOR = 512, 0
BLOCK = 512
KINDS = {"scsi": "vhost-user-scsi", "blk": "vhost-user-blk"}
# A write that waits so long is under way when the process is killed, microseconds.
HELD_US = 120_000_000
pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(600)]
# Suites of libiscsi. SPDK executes the commands of a SCSI device itself, so that the suites are those which it passes.
SUITES = {
    "scsi": ("ModeSense6", "PrinReadKeys", "Read6", "ReadCapacity10", "ReadCapacity16", "TestUnitReady"),
    "blk": ("CompareAndWrite", "Read16", "Unmap", "WriteSame16"),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


class Spdk(NbdServer):
    """SPDK's vhost with controllers: a name, and the calls that make it."""

    def __init__(self, folder, controllers, disks, *flags):
        if not VHOST:
            raise RuntimeError("the variable SPDK_VHOST must name SPDK's vhost")
        super().__init__(folder, VHOST, "--no-huge", "-s", str(POOLS_MIB), "--no-pci", "--disable-cpumask-locks", "--limit-coredump",
                         "-m", hex(1 << PROCESSOR), "-r", "admin.sock", "-S", str(folder), "-c", "spdk.json", *flags)
        self.controllers, self.disks = controllers, disks

    def start(self):
        subsystems = {"bdev": self.disks, "vhost_scsi": [], "vhost_blk": []}
        for name, (kind, calls) in self.controllers.items():
            subsystems[f"vhost_{kind}"] += calls(name)
        with open(os.path.join(self.folder, "spdk.json"), "w") as file:
            json.dump({"subsystems": [{"subsystem": name, "config": calls} for name, calls in subsystems.items()]}, file, indent=1)
        self.sockets = {os.path.join(self.folder, name) for name in self.controllers}
        for path in self.sockets:
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
        super().start()

    def listens(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"SPDK ended: {self.log()[-800:]}")
        with open("/proc/net/unix") as table:
            return self.sockets <= {line.split()[-1] for line in table if line.split()[3] == "00010000"}

    def log(self):
        with open(os.path.join(self.folder, "nbd.log"), errors="replace") as log:
            return log.read()

    def ask(self, method, **parameters):
        return servers.ask_spdk(self.process, method, **parameters)

    def under_way(self, name="a"):
        """How many commands it has taken and not ended."""
        sessions = self.ask("vhost_get_controllers", name=name)[0]["sessions"]
        return sum(session["inflight_task_cnt"] for session in sessions)

    def lun(self, name="a", **more):
        return export(None, medium=KINDS[self.controllers[name][0]], path=os.path.join(self.folder, name), **more)


def file_disk(folder, name, size=SIZE):
    """A disk of a file, and the call that makes it one of SPDK."""
    path = folder / name
    with open(path, "wb") as file:
        file.truncate(size)
    return path, call("bdev_aio_create", name=name, filename=str(path), block_size=BLOCK)


def scsi(*disks, first=0):
    """A controller with targets from number `first` on. Nobody can connect before it is complete."""
    def calls(name):
        yield call("vhost_create_scsi_controller", ctrlr=name, delay=True)
        for number, disk in enumerate(disks, first):
            yield call("vhost_scsi_controller_add_target", ctrlr=name, scsi_target_num=number, bdev_name=disk)
        yield call("vhost_start_scsi_controller", ctrlr=name)
    return "scsi", calls


def blk(disk):
    return "blk", lambda name: [call("vhost_create_blk_controller", ctrlr=name, dev_name=disk)]


def controller(kind, disk):
    return {"scsi": scsi, "blk": blk}[kind](disk)


@pytest.mark.parametrize("kind, flags", [("scsi", ()), ("blk", ()), ("blk", ("--interrupt-mode",))],
                         ids=["scsi", "blk", "blk, interrupts"])
def test_a_disk_loses_nothing_although_spdk_is_killed(tmp_path, kind, flags):
    """SPDK's SCSI devices cannot wait for interrupts: it reads a notice at each look at a queue, and takes its absence for commands."""
    path, disk = file_disk(tmp_path, "d0")
    with Spdk(tmp_path, {"a": controller(kind, "d0")}, [disk], *flags) as spdk, targe(tmp_path, spdk.lun()) as server:
        kill_while_verifying(server, spdk)
        code, data, said = read(server, "--bs=1M")
        expect(code == 0, said)
        expect(data == path.read_bytes(), "the file holds something else")


def test_hosts_see_the_first_target_as_spdk_describes_it(tmp_path):
    (_, first), (_, second) = (file_disk(tmp_path, name, size) for name, size in (("d0", SIZE), ("d1", 2 * SIZE)))
    with Spdk(tmp_path, {"a": scsi("d0", "d1")}, [first, second]) as spdk, targe(tmp_path, spdk.lun()) as server:
        said = ask_tool("iscsi-inq", server.url())
        expect("Vendor:INTEL" in said and "Product:AIO disk" in said and "DIRECT_ACCESS" in said, said)
        expect("Unit Serial Number:[d0]" in (said := ask_tool("iscsi-inq", "-e", "1", "-c", "128", server.url())), said)
        expect("NAA" in (said := ask_tool("iscsi-inq", "-e", "1", "-c", "131", server.url())), said)
        said = ask_tool("iscsi-readcapacity16", server.url())
        expect(re.search(rf"RETURNED LOGICAL BLOCK ADDRESS:{SIZE // BLOCK - 1}\b", said), said)
        said = ask_tool("iscsi-ls", "-s", f"iscsi://127.0.0.1:{server.port}")
        expect(set(re.findall(r"^Lun:\d+", said, re.MULTILINE)) == {"Lun:0"}, said)


def ask_tool(*words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=VERIFY_MAX_S)
    expect(done.returncode == 0, f"{words}: {done.stdout[-500:]} {done.stderr[-500:]}")
    return done.stdout


@each_kind
def test_libiscsi_finds_no_fault(tmp_path, kind):
    _, disk = file_disk(tmp_path, "d0", 100 * MIB)
    with Spdk(tmp_path, {"a": controller(kind, "d0")}, [disk]) as spdk, targe(tmp_path, spdk.lun()) as server:
        runner = Runner(server, [server.url()], str(tmp_path / "suite"), build_counter(tmp_path))
        known, wrong, passed = list_suites(), [], 0
        for suite in (f"SCSI.{word}" for word in SUITES[kind]):
            for test, verdict in runner.run_suite(suite, known[suite]).items():
                passed += verdict.kind == "PASS"
                if verdict.kind not in ("PASS", "SKIP"):
                    wrong.append(f"{suite}.{test}: {verdict.kind}: {verdict.reasons}")
        expect(not wrong and passed >= len(SUITES[kind]), f"{passed} passed; {wrong}")


def delayed(us):
    """A disk on top of another that takes so long for a write."""
    times = {f"{which}_{what}_latency": us if what == "write" else 0 for which in ("avg", "p99") for what in ("read", "write")}
    return call("bdev_delay_create", base_bdev_name="d0", name="slow", **times)


@each_kind
def test_commands_that_were_under_way_end_well_after_kills(tmp_path, kind):
    """QEMU sends no command again that was aborted."""
    path, disk = file_disk(tmp_path, "d0")
    with Spdk(tmp_path, {"a": controller(kind, "slow")}, [disk, delayed(HELD_US)]) as spdk, targe(tmp_path, spdk.lun()) as server:
        writes = [word for number in range(8) for word in ("-c", f"aio_write -P {number + 1} {number * 65536} 65536")]
        with subprocess.Popen(["qemu-io", "-f", "raw", *writes, "-c", "aio_flush", server.url()], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, preexec_fn=servers.die_with_parent) as host:
            for _ in range(2):
                wait_for("the writes", lambda: spdk.under_way() == 8)
                spdk.restart()
            wait_for("the writes", lambda: spdk.under_way() == 8)
            spdk.disks = [disk, delayed(0)]
            spdk.restart()
            said, _ = host.communicate(timeout=VERIFY_MAX_S)
        expect(host.returncode == 0 and said.count("wrote 65536/65536") == 8, said)
        expect(path.read_bytes()[:8 * 65536] == b"".join(bytes([number + 1]) * 65536 for number in range(8)), "the file holds something else")


@pytest.mark.parametrize("medium, served, why", [
    ("vhost-user-scsi", scsi("d0", first=1), "has no device at logical unit 0 of target 0"),
    ("vhost-user-scsi", scsi(), "has no device at logical unit 0 of target 0"),
    ("vhost-user-scsi", blk("d0"), "the device reports a status that does not exist"),
    ("vhost-user-blk", scsi("d0"), "does not support VHOST_USER_PROTOCOL_F_CONFIG"),
], ids=["another target", "no target", "a block device", "a scsi device"])
def test_a_controller_without_the_device_is_refused_in_one_sentence(tmp_path, medium, served, why):
    _, disk = file_disk(tmp_path, "d0")
    with Spdk(tmp_path, {"a": served}, [disk]) as spdk:
        server = targe(tmp_path, export(None, medium=medium, path=os.path.join(spdk.folder, "a")))
        # It listens before it opens its disks, so it may seem to have started.
        with contextlib.suppress(RuntimeError):
            server.start()
        wait_for("the refusal", lambda: server.process is None or server.process.poll() is not None)
        server.kill()
        expect(why in server.log_of_this_run(), server.log_tail())


def test_a_target_that_is_removed_in_use_ends_its_own_commands_only(tmp_path):
    (path, first), (_, second) = (file_disk(tmp_path, name) for name in ("d0", "d1"))
    with Spdk(tmp_path, {"a": scsi("d0"), "b": scsi("d1")}, [first, second]) as spdk:
        with targe(tmp_path, spdk.lun("a", reconnect_timeout="1s"), spdk.lun("b")) as server:
            others = start_verify(server, "--count=2000", unit=1)
            verify = start_verify(server, "--count=100000")
            wait_for("a write", lambda: server.unit()["write_bytes"] > 0)
            spdk.ask("vhost_scsi_controller_remove_target", ctrlr="a", scsi_target_num=0)
            verify.communicate(timeout=VERIFY_MAX_S)
            expect(verify.returncode != 0, "commands to a target that is gone ended well")
            code, _, said = read(server, "--bs=64K")
            expect(code != 0 and "NOT READY" in said.upper(), f"{code} {said}")
            finish(others)
            spdk.ask("vhost_scsi_controller_add_target", ctrlr="a", scsi_target_num=0, bdev_name="d0")
            wait_for("the return", lambda: not server.unit()["not_ready"] and read(server, "--length=4K")[0] == 0)
            finish(start_verify(server))
            code, data, said = read(server, "--bs=1M")
            expect(code == 0 and data == path.read_bytes(), said)


@pytest.mark.parametrize("meanwhile", ["a read", "no command"])
def test_another_disk_in_place_of_one_that_was_removed_is_not_written(tmp_path, meanwhile):
    """SPDK tells by an event, and by how it ends commands meanwhile."""
    (_, first), (path, second) = (file_disk(tmp_path, name) for name in ("d0", "d1"))
    with Spdk(tmp_path, {"a": scsi("d0")}, [first, second]) as spdk, targe(tmp_path, spdk.lun(reconnect_timeout="1s")) as server:
        finish(start_verify(server, "--count=50"))
        spdk.ask("vhost_scsi_controller_remove_target", ctrlr="a", scsi_target_num=0)
        if meanwhile == "a read":
            code, _, said = read(server, "--length=4K")
            expect(code != 0, said)
        spdk.ask("vhost_scsi_controller_add_target", ctrlr="a", scsi_target_num=0, bdev_name="d1")
        server.log_says("is not the device that was served before")
        verify = start_verify(server, "--count=50")
        verify.communicate(timeout=VERIFY_MAX_S)
        expect(verify.returncode != 0 and path.read_bytes() == bytes(SIZE), "the other disk was written")


def test_what_happens_to_another_target_disturbs_nobody(tmp_path):
    disks = [file_disk(tmp_path, name)[1] for name in ("d0", "d1")]
    with Spdk(tmp_path, {"a": scsi("d0")}, disks) as spdk, targe(tmp_path, spdk.lun()) as server:
        verify = start_verify(server, "--count=3000")
        wait_for("a write", lambda: server.unit()["write_bytes"] > 0)
        # More often than there are places for events.
        for _ in range(20):
            spdk.ask("vhost_scsi_controller_add_target", ctrlr="a", scsi_target_num=1, bdev_name="d1")
            spdk.ask("vhost_scsi_controller_remove_target", ctrlr="a", scsi_target_num=1)
        finish(verify)
        expect("has removed the device" not in server.log_of_this_run(), server.log_tail())
        expect("no avail ring entries" not in spdk.log(), spdk.log()[-500:])


@each_kind
def test_a_process_that_is_gone_holds_up_its_own_hosts_only(tmp_path, kind):
    _, disk = file_disk(tmp_path, "d0")
    with Spdk(tmp_path, {"a": controller(kind, "d0")}, [disk]) as spdk:
        with targe(tmp_path, spdk.lun(reconnect_timeout="1s"), Lun(medium="ram", size=SIZE)) as server:
            others = start_verify(server, "--count=300", unit=1)
            finish(start_verify(server, "--count=50"))
            spdk.end(signal.SIGKILL)
            code, _, said = read(server, "--bs=64K")
            expect(code != 0 and "NOT READY" in said.upper(), f"a read of a process that is gone: {code} {said}")
            expect("does not answer" in server.unit()["not_ready"], f"{server.unit()}")
            finish(others)
            spdk.start()
            wait_for("the return", lambda: not server.unit()["not_ready"])
            finish(start_verify(server, "--count=50"))
