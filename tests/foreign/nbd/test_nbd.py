"""LUNs whose blocks come from NBD servers that others wrote: nbdkit with its plug-ins and filters, and qemu-nbd.

The servers are killed, stopped and changed while hosts read and write.
"""

import contextlib
import json
import os
import signal
import subprocess

import pytest

import servers
from exports import Targe, export, nbdkit, nbdkit_by_tcp, qemu_nbd, wait_for
from libiscsi.suite import Runner, build_counter, list_suites
from servers import MIB, Export, Lun
from verdicts import expect

VERIFY_MAX_S = 200
KILLS = 4
SIZE = 8 * MIB
EXAMPLE = os.path.join(servers.ROOT, "docs", "examples", "nbd_device.py")
# One suite of libiscsi for each kind of command that becomes another request, or whose answer comes from the export.
SUITES = ("Read16", "Unmap", "GetLBAStatus", "CompareAndWrite")
# The tool is wrong: libiscsi/exceptions.toml says how. It fails on a file, too.
WRONG_TEST = "SCSI.GetLBAStatus.UnmapSingle"
pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(600)]
both_engines = pytest.mark.parametrize("reactor", ["uring", "epoll"])


def targe(folder, *luns, reactor="auto"):
    server = Targe(os.path.join(folder, "targe"), Export(luns=luns))
    server.reactor = reactor
    return server


def start_verify(server, *flags, unit=0):
    command = [server.binary, "verify", "--write", "--json", "--seed=1", *(flags or ("--full",)), server.url(unit)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            preexec_fn=servers.die_with_parent)


def finish(process):
    """The report of a verify, which must be a good one."""
    try:
        said, aside = process.communicate(timeout=VERIFY_MAX_S)
    except BaseException:
        process.kill()
        raise
    expect(process.returncode == 0, f"verify: exit code {process.returncode}: {aside[-500:]} {said[-800:]}")
    report = json.loads(said)
    expect(report["sound"] and report["complete"] and report["errors"] == 0, f"{said[-800:]}")


def read(server, *flags, unit=0):
    """Returns the exit code of a read, the data, and what was said."""
    done = subprocess.run([server.binary, "read", server.url(unit), *flags], capture_output=True, timeout=VERIFY_MAX_S)
    return done.returncode, done.stdout, done.stderr.decode()


@both_engines
def test_a_file_of_nbdkit_holds_what_was_written(tmp_path, reactor):
    disk = tmp_path / "disk"
    with open(disk, "wb") as file:
        file.truncate(SIZE)
    start = {"uring": nbdkit, "epoll": nbdkit_by_tcp}[reactor]
    with start(tmp_path, "file", str(disk)) as nbd, targe(tmp_path, export(nbd.uri()), reactor=reactor) as server:
        finish(start_verify(server))
        code, data, said = read(server, "--bs=1M")
        expect(code == 0, said)
        expect(data == disk.read_bytes(), "the file holds something else")


def test_a_qcow2_image_of_qemu_nbd_survives_kills(tmp_path):
    image = tmp_path / "disk.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", image, str(SIZE)], check=True, timeout=60)
    with qemu_nbd(tmp_path, str(image), "qcow2") as nbd, targe(tmp_path, export(nbd.uri()), reactor="epoll") as server:
        kill_while_verifying(server, nbd)
        code, data, said = read(server, "--bs=1M")
        expect(code == 0, said)
        server.stop()
        nbd.end()
    subprocess.run(["qemu-img", "convert", "-O", "raw", image, tmp_path / "raw"], check=True, timeout=60)
    expect(data == (tmp_path / "raw").read_bytes(), "the image holds something else")


def kill_while_verifying(server, nbd):
    """Kills the server while blocks are written, and starts it again. Nothing may be lost, and no command may fail."""
    verify = start_verify(server)
    for kill in range(KILLS):
        wrote = server.unit()["write_bytes"]
        wait_for("a write", lambda: server.unit()["write_bytes"] > wrote or verify.poll() is not None)
        nbd.restart()
        wait_for("the return", lambda: not server.unit()["not_ready"])
    finish(verify)


def kill_until_writes_are_repeated(server, nbd):
    """Kills the server while blocks are written that it loses. A verification can be through with its writes before the first kill."""
    words = "writes that it may have lost were repeated"
    for _ in range(5):
        kill_while_verifying(server, nbd)
        if words in server.log_of_this_run():
            break
    server.log_says(words)


@both_engines
def test_a_server_that_loses_what_was_not_flushed_is_killed_and_nothing_is_lost(tmp_path, reactor):
    """The cache filter keeps writes in a file without a name until they are flushed: a kill loses them."""
    disk = tmp_path / "disk"
    with open(disk, "wb") as file:
        file.truncate(SIZE)
    words = ("--filter=cache", "file", str(disk), "cache=writeback")
    with nbdkit(tmp_path, *words) as nbd, targe(tmp_path, export(nbd.uri()), reactor=reactor) as server:
        kill_until_writes_are_repeated(server, nbd)
        code, data, _ = read(server, "--bs=1M")
        server.stop()
        nbd.end(signal.SIGKILL)
        expect(code == 0 and data == disk.read_bytes(), "after the end of targe, the file lacks what was written")


def test_errors_and_silence_of_one_export_reach_its_hosts_only(tmp_path):
    fail, (bad, slow) = tmp_path / "fail", (tmp_path / "bad", tmp_path / "slow")
    bad.mkdir()
    slow.mkdir()
    broken = nbdkit(bad, "--filter=error", "memory", "8M", "error-pread=EIO", "error-pread-rate=100%", f"error-pread-file={fail}")
    # nbdkit 1.32.4 to 1.33.9 abort when a client leaves while more than one of its threads has a reply to send.
    silent = nbdkit(slow, "--threads=1", "--filter=delay", "memory", "8M", "rdelay=20ms")
    with broken, silent:
        # A busy machine takes seconds for an answer.
        luns = (export(broken.uri()), export(silent.uri(), reconnect_timeout="8s"), Lun(medium="ram", size=SIZE))
        with targe(tmp_path, *luns) as server:
            others = start_verify(server, "--count=1000", unit=2)
            fail.touch()
            code, _, said = read(server, "--bs=64K")
            expect(code != 0 and "MEDIUM ERROR" in said.upper(), f"a read that fails: {code} {said}")
            fail.unlink()
            finish(start_verify(server, "--count=200"))
            finish(start_verify(server, "--count=20", unit=1))

            silent.send(signal.SIGSTOP)
            code, _, said = read(server, "--bs=64K", unit=1)
            expect(code != 0 and "NOT READY" in said.upper(), f"a read without an answer: {code} {said}")
            server.expect_away(1)
            silent.send(signal.SIGCONT)
            wait_for("the return", lambda: not server.unit(1)["not_ready"])
            finish(start_verify(server, "--count=50", unit=1))
            finish(others)
            expect(not server.unit(0)["not_ready"] and not server.unit(2)["not_ready"], "another LUN was not ready")


def test_an_export_that_grows_is_larger_and_one_that_shrinks_is_withheld_until_a_reload(tmp_path):
    disk = tmp_path / "disk"

    def resize(nbd, length):
        nbd.end(signal.SIGKILL)
        os.truncate(disk, length) if disk.exists() else disk.write_bytes(bytes(length))
        nbd.start()

    nbd = nbdkit(tmp_path, "file", str(disk))
    disk.write_bytes(bytes(SIZE))
    with nbd, targe(tmp_path, export(nbd.uri())) as server:
        name = server.unit()["naa"]
        resize(nbd, 2 * SIZE)
        wait_for("the new size", lambda: server.unit()["bytes"] == 2 * SIZE)
        finish(start_verify(server, "--count=200"))
        resize(nbd, SIZE)
        wait_for("the refusal", lambda: "has shrunk" in (server.unit()["not_ready"] or ""))
        code, _, said = read(server)
        expect(code != 0 and "NOT READY" in said.upper(), f"{code} {said}")
        server.reload()
        wait_for("the return", lambda: not server.unit()["not_ready"] and server.unit()["bytes"] == SIZE)
        finish(start_verify(server, "--count=200"))
        expect(server.unit()["naa"] == name, "the identity has changed")


def test_a_server_is_left_in_order_when_its_lun_is_removed_and_when_targe_ends(tmp_path):
    """qemu-nbd without --persistent ends when its only client leaves."""
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
        (folder / "disk").write_bytes(bytes(SIZE))
    servers_of = [qemu_nbd(folder, str(folder / "disk"), "raw") for folder in folders]
    for nbd in servers_of:
        nbd.command = [word for word in nbd.command if word not in ("--persistent", "--shared=4")]
    first, second = servers_of
    with first, second:
        with targe(tmp_path, export(first.uri())) as server:
            server.export = Export(luns=(export(first.uri()), export(second.uri())))
            server.reload()
            wait_for("the second LUN", lambda: len(json.loads(server.admin("luns"))["luns"]) == 2)
            finish(start_verify(server, "--count=100", unit=1))
            server.export = Export(luns=(export(first.uri()),))
            server.reload()
            wait_for("the end of the second server", lambda: second.process.poll() is not None)
            finish(start_verify(server, "--count=100"))
            expect(first.process.poll() is None, "the first server has ended")
        wait_for("the end of the first server", lambda: first.process.poll() is not None)
        expect(first.process.poll() == second.process.poll() == 0, "a server did not end as it should")


def test_the_example_counts_writes_of_two_hosts(tmp_path):
    with nbdkit(tmp_path, "python", EXAMPLE, "size=8M") as nbd, targe(tmp_path, export(nbd.uri())) as server:
        zeros = tmp_path / "zeros"
        zeros.write_bytes(bytes(4096))
        write = [server.binary, "write", "--write", server.url()]
        hosts = [subprocess.Popen(write + [f"--offset={at}"], stdin=open(zeros), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  preexec_fn=servers.die_with_parent) for at in (0, 0, 4096)]
        for host in hosts:
            said, _ = host.communicate(timeout=VERIFY_MAX_S)
            expect(host.returncode == 0, f"{said}")
        code, data, said = read(server, "--length=8K")
        expect(code == 0, said)
        counts = {int.from_bytes(data[at:at + 8], "big") for at in range(0, 4096, 512)}
        expect(counts == {2} and data[4096:4104] == (1).to_bytes(8, "big"), f"{counts}")


def test_libiscsi_finds_no_fault(tmp_path):
    disk = tmp_path / "disk"
    with open(disk, "wb") as file:
        file.truncate(100 * MIB)
    with nbdkit(tmp_path, "file", str(disk)) as nbd, targe(tmp_path, export(nbd.uri())) as server:
        runner = Runner(server, [server.url()], str(tmp_path / "suite"), build_counter(tmp_path))
        known, wrong, passed = list_suites(), [], 0
        for suite in (f"SCSI.{word}" for word in SUITES):
            for test, verdict in runner.run_suite(suite, known[suite]).items():
                passed += verdict.kind == "PASS"
                if verdict.kind not in ("PASS", "SKIP") and test != WRONG_TEST:
                    wrong.append(f"{suite}.{test}: {verdict.kind}: {verdict.reasons}")
        expect(not wrong and passed >= 15, f"{passed} passed; {wrong}")


@pytest.mark.parametrize("uri, why", [
    ("nbds://localhost/", "TLS to an NBD server is not supported"),
    ("nbd://127.0.0.1:1/", "cannot connect to nbd://127.0.0.1:1/: connection refused"),
    ("nbd+unix:///?socket=/nonexistent", "/nonexistent does not exist: is the NBD server running?"),
    ("nbd+unix:///nowhere?socket=SOCKET", "the server has no export of this name"),
    ("nbd+unix:///disk?socket=SOCKET", "is read-only; give \"ro\" to serve it"),
])
def test_an_export_that_cannot_be_served_is_refused_in_one_sentence(tmp_path, uri, why):
    image = tmp_path / "disk"
    image.write_bytes(bytes(MIB))
    nbd = qemu_nbd(tmp_path, str(image), "raw")
    nbd.command += ("--export-name=disk", "--read-only")
    with nbd:
        server = targe(tmp_path, export(uri.replace("SOCKET", nbd.socket)))
        server.strict = True
        # It listens before it opens its disks, so it may seem to have started.
        with contextlib.suppress(RuntimeError):
            server.start()
        wait_for("the refusal", lambda: server.process is None or server.process.poll() is not None)
        server.kill()
        expect(why in server.log_of_this_run(), server.log_tail())
        server = targe(tmp_path, export(nbd.uri("disk"), readonly=True))
        with server:
            code, data, said = read(server, "--bs=64K")
            expect(code == 0 and data == bytes(MIB), f"{code} {said}")


def test_a_server_that_comes_late_is_waited_for_and_hosts_see_what_the_operator_sees(tmp_path):
    image = tmp_path / "disk"
    image.write_bytes(os.urandom(MIB))
    nbd = qemu_nbd(tmp_path, str(image), "raw")
    with targe(tmp_path, Lun("ram", MIB), export(nbd.uri())) as server:
        wait_for("the other LUN", lambda: server.unit(0)["not_ready"] is None)
        other, late = server.unit(0), server.unit(1)
        expect(other["not_ready"] is None and late["not_ready"], f"{late}")
        ready = subprocess.run([server.binary, "info", server.url(1)], capture_output=True, text=True, timeout=60)
        expect(ready.returncode != 0, f"a host finds it ready: {ready.stdout}")
        with nbd:
            wait_for("the server", lambda: server.unit(1)["not_ready"] is None)
            code, data, said = read(server, "--bs=64K", unit=1)
            expect(code == 0 and data == image.read_bytes(), f"{code} {said}")
        wait_for("the end of the server", lambda: server.unit(1)["not_ready"] is not None)
