"""Every configuration that docs/config.md advertises, run end to end with data.

On each disk QEMU's driver writes an image and compares it, our own initiator reads it back and then verifies the whole disk with
signed blocks, and what lies in the medium is compared with what was written.
"""

import contextlib
import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

import namespaces
import servers
from qemu.driver import disk, img
from servers import MIB, Export, Lun
from verdicts import expect

SIZE = 32 * MIB
OUT = os.path.join(servers.OUT, "configured")
# Longest one verify of a whole disk may take, and a daemon to have applied a reload, seconds.
VERIFY_MAX_S, APPLIED_MAX_S = 200, 90
TARGETS, RELOADS = 4, 12
# Longer than any reloads take: a verify that is to go on until it is told to end.
ENDLESS_S = 86400
pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(1000)]
both_engines = pytest.mark.parametrize("reactor", ["uring", "epoll"])


@pytest.fixture(autouse=True, scope="module")
def folder():
    os.makedirs(OUT, exist_ok=True)


@both_engines
@pytest.mark.parametrize("lun", [pytest.param(Lun(size=SIZE), id="as it comes"),
                                 pytest.param(Lun(size=SIZE, block=4096, claims=(("direct", True),)), id="past the page cache"),
                                 pytest.param(Lun(size=SIZE, write_cache=False), id="written through")])
def test_file(reactor, lun):
    server = servers.Targe(os.path.join(OUT, "disk"), Export(luns=(lun,)))
    server.reactor = reactor
    with server:
        expect_engine(server, reactor)
        carries_data(server)


def carries_data(server, host="127.0.0.1"):
    """By QEMU's driver, by our initiator, and as it lies in the medium."""
    source = image(server.folder)
    options = disk(server).replace("127.0.0.1", host)
    img(server, "convert", "-n", "-f", "raw", "--target-image-opts", source, options)
    img(server, "compare", "--image-opts", f"driver=raw,file.driver=file,file.filename={source}", options)
    url = server.url(host=host)
    done = subprocess.run([server.binary, "read", url, "--bs=64K"], capture_output=True, timeout=VERIFY_MAX_S)
    with open(source, "rb") as file:
        whole = file.read()
    expect(done.returncode == 0 and done.stdout == whole, f"targe read: {len(done.stdout)} bytes, {done.stderr[-300:]}")
    with open(server.medium_path(), "rb") as medium:
        expect(medium.read() == whole, "the medium holds something else")
    finish(start_verify(server, url))


def image(folder):
    """An image with something else in every block, and a hole."""
    path = os.path.join(folder, "source.raw")
    with open(path, "wb") as file:
        for block in range(SIZE // 4096):
            file.write(block.to_bytes(8, "big") * 512 if not SIZE // 2 <= block * 4096 < SIZE // 2 + MIB else bytes(4096))
    return path


def start_verify(server, url, *flags):
    command = [server.binary, "verify", "--write", "--json", "--seed=1", *(flags or ("--full",)), url]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            preexec_fn=servers.die_with_parent)


def finish(process):
    """The report of a verify, which must be a good one."""
    said, aside = all_it_said(process)
    expect(process.returncode == 0, f"verify: exit code {process.returncode}: {aside[-500:]} {said[-800:]}")
    report = json.loads(said)
    expect(report["sound"] and report["complete"] and report["errors"] == 0, f"{said[-800:]}")
    return report


def end_in_the_middle(process):
    """The report of a verify that SIGTERM ends while it writes: so far it must have seen nothing wrong."""
    process.send_signal(signal.SIGTERM)
    said, aside = all_it_said(process)
    expect(process.returncode == 1, f"verify: exit code {process.returncode}: {aside[-500:]} {said[-800:]}")
    report = json.loads(said)
    expect(report["writes"] > 0 and not report["complete"] and report["errors"] == sum(report["wrong"].values()) == 0, f"{said[-800:]}")
    return report


def all_it_said(process):
    try:
        return process.communicate(timeout=VERIFY_MAX_S)
    except BaseException:
        process.kill()
        raise


def judge_by_journal(server, url, journal):
    """Whether every block that a verify left holds what its journal says."""
    command = [server.binary, "verify", "--check", "--json", f"--journal={journal}", url]
    finish(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            preexec_fn=servers.die_with_parent))


def status(server):
    return json.loads(server.admin("status"))


def expect_engine(server, reactor, count=1):
    engines = [each["engine"] for each in status(server)["reactors"]]
    expect(engines == [{"uring": "io_uring"}.get(reactor, reactor)] * count, f"reactors: {engines}")


@both_engines
@pytest.mark.parametrize("claims", [pytest.param((), id="as it comes"), pytest.param((("direct", True),), id="past the page cache")])
def test_block_device(reactor, claims):
    """A loop device over a file."""
    if not namespaces.is_real_root():
        pytest.skip("loop devices need root")
    folder = os.path.join(OUT, "block")
    os.makedirs(folder, exist_ok=True)
    backing = os.path.join(folder, "backing.img")
    with open(backing, "wb") as file:
        file.truncate(SIZE)
    made = subprocess.run(["losetup", "--find", "--show", backing], capture_output=True, text=True, timeout=60)
    if made.returncode != 0:
        pytest.skip(f"no loop device: {made.stderr}")
    device = made.stdout.strip()
    try:
        server = servers.Targe(folder, Export(luns=(Lun("block", size=SIZE, claims=claims),)))
        server.reactor, server.medium_path = reactor, lambda unit=0: device
        with server:
            expect_engine(server, reactor)
            carries_data(server)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True, timeout=60)


class Several(servers.Targe):
    """Targets with a disk each, which share nothing."""

    def config_lines(self):
        lines = list(super().config_lines())
        at = lines.index("[[target]]")
        yield 'cores = "0-1"'
        yield from lines[:at]
        for number in range(len(self.export.luns)):
            yield from ("[[target]]", f'name = "{self.name(number)}"', "[[target.lun]]", "lun = 0", 'type = "file"',
                        f'path = "{self.medium_path(number)}"')

    def name(self, number):
        return f"{self.iqn}-{number}"

    def place(self, number):
        return f"iscsi://127.0.0.1:{self.port}/{self.name(number)}/0"


@both_engines
def test_several_targets_on_several_reactors(reactor):
    """All of them are written and verified at the same time; then each holds its own."""
    if len(os.sched_getaffinity(0) & {0, 1}) < 2:
        pytest.skip("this machine has one core")
    server = Several(os.path.join(OUT, "several"), Export(luns=(Lun(size=SIZE),) * TARGETS))
    server.reactor = reactor
    with server:
        expect_engine(server, reactor, 2)
        for process in [start_verify(server, server.place(number)) for number in range(TARGETS)]:
            finish(process)
        for number in range(TARGETS):
            done = subprocess.run([server.binary, "write", server.place(number), "--write"], input=bytes([number + 1]) * SIZE,
                                  capture_output=True, timeout=VERIFY_MAX_S)
            expect(done.returncode == 0, f"targe write: {done.stderr}")
        for number in range(TARGETS):
            done = subprocess.run([server.binary, "read", server.place(number)], capture_output=True, timeout=VERIFY_MAX_S)
            expect(done.stdout == bytes([number + 1]) * SIZE, f"target {number} reads otherwise")
            with open(server.medium_path(number), "rb") as medium:
                expect(medium.read() == bytes([number + 1]) * SIZE, f"the medium of target {number} holds something else")


@both_engines
def test_reloads_under_load(reactor):
    """Disks and targets come and go beside a disk that is verified: it sees no error, and its session lives through all of it.

    The verify goes on until the last reload is applied, however long that takes; its journal then judges every block."""
    folder = os.path.join(OUT, "reload")
    server = servers.Targe(folder, Export(luns=(Lun(size=SIZE),)))
    server.reactor = reactor
    plain = server.config_lines
    journal = os.path.join(folder, "verify.journal")
    with contextlib.suppress(FileNotFoundError):
        os.remove(journal)
    with server:
        process = start_verify(server, server.url(), f"--time={ENDLESS_S}", f"--journal={journal}")
        try:
            for number in range(RELOADS):
                more = [] if number % 2 else [
                    "[[target.lun]]", "lun = 5", 'type = "ram"', 'size = "8M"',
                    "[[target]]", f'name = "{server.iqn}-{number}"', "[[target.lun]]", 'type = "ram"', 'size = "8M"']
                server.config_lines = lambda: [*plain(), *more]
                server.reload()
                wanted = 1 + bool(more)
                deadline = time.monotonic() + APPLIED_MAX_S
                while len(status(server)["targets"]) != wanted or number_of_luns(server) != wanted:
                    expect(time.monotonic() < deadline, f"reload {number} is not applied: {server.log_tail()}")
                    time.sleep(0.05)
                if more:
                    # What has come can be used at once.
                    for url in (server.url(5), f"iscsi://127.0.0.1:{server.port}/{server.iqn}-{number}/0"):
                        finish(start_verify(server, url))
            expect(process.poll() is None, f"verify ended before the reloads: {process.returncode}")
            report = end_in_the_middle(process)
        finally:
            process.kill()
            process.wait()
        expect(report["session"]["sessions_rebuilt"] == report["session"]["connections_lost"] == 0, f"{report['session']}")
        judge_by_journal(server, server.url(), journal)


def number_of_luns(server):
    """Of the first target."""
    return next(target["luns"] for target in status(server)["targets"] if target["name"] == server.iqn)


class OnIpv6(servers.Targe):
    """Listens on ::1 beside the addresses that rigs use."""

    def config_lines(self):
        lines = list(super().config_lines())
        at = lines.index("[[portal]]")
        yield from (*lines[:at], "[[portal]]", f'listen = "[::1]:{self.port}"', *lines[at:])


def test_ipv6():
    if not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("this kernel has no IPv6")
    server = OnIpv6(os.path.join(OUT, "ipv6"), Export(luns=(Lun(size=SIZE),)))
    with server:
        carries_data(server, "[::1]")
        found = json.loads(subprocess.run([server.binary, "discover", f"[::1]:{server.port}", "--json"], capture_output=True, text=True,
                                          check=True, timeout=60).stdout)
        expect(any(f"[::1]:{server.port}" in unit["url"] for unit in found), f"discovery on ::1 names {found}")
        expect(any("[::1]" in json.dumps(unit["portals"]) for unit in found), f"no portal on ::1: {found}")


class Unprivileged(servers.Targe):
    """Runs as a user that owns its folder and nothing else."""

    user = None

    def command(self):
        command = super().command()
        if self.user is None:
            return command
        return ["setpriv", f"--reuid={self.user.pw_uid}", f"--regid={self.user.pw_gid}", "--clear-groups", "--bounding-set=-all",
                "--inh-caps=-all", "--no-new-privs", *command]

    def write_config(self):
        super().write_config()
        self.give_away()

    def make_media(self):
        super().make_media()
        self.give_away()

    def give_away(self):
        if self.user:
            for path in (self.folder, *(entry.path for entry in os.scandir(self.folder))):
                os.chown(path, self.user.pw_uid, self.user.pw_gid)


def test_user_without_rights():
    with tempfile.TemporaryDirectory(prefix="targe-configured-") as folder:
        os.chmod(folder, 0o755)
        server = Unprivileged(os.path.join(folder, "home"), Export(luns=(Lun(size=SIZE),)))
        server.user = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        # Where it can be reached by everybody.
        server.binary = shutil.copy(server.binary, os.path.join(folder, "targe"))
        with server:
            with open(f"/proc/{server.process.pid}/status") as file:
                facts = file.read()
            uid, rights = re.search(r"Uid:\s+(\d+)", facts)[1], re.search(r"CapEff:\s+(\w+)", facts)[1]
            expect(uid != "0" and int(rights, 16) == 0, f"it runs as {uid} with the capabilities {rights}")
            carries_data(server)
