"""Snapshots, clones and drained LUNs, under load: what a host was told is written is in the copy, and nothing else is lost."""

import contextlib
import json
import os
import subprocess
import tempfile
import threading

import pytest

import namespaces
import servers
from changes.daemon import Daemon
from serving import add_verdict
from verdicts import eventually, expect, same

pytestmark = pytest.mark.servers("targe")
NAME = "iqn.2026-11.org.targe:disk"
WAIT_S = 120
TOO_SLOW = "no snapshot: its commands do not end within"
MIB = 1 << 20
# Each writer has one command at a time, and a part of the LUN, which it writes again and again.
WRITERS, PART, BLOCK = 3, MIB, 4096
BLOCKS = PART // BLOCK
HEAD = """state_dir = "{state}"
admin_socket = "{state}/admin/admin.sock"

[[portal]]
listen = "127.0.0.1:{port}"

[[target]]
name = "iqn.2026-11.org.targe:disk"
"""


def lun(kind, **keys):
    return f'\n[[target.lun]]\ntype = "{kind}"\n' + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())


@pytest.fixture(scope="module")
def reflinks(tmp_path_factory):
    """A folder whose files can share storage."""
    if not namespaces.is_real_root():
        pytest.skip("mounting needs root")
    image, folder = tmp_path_factory.mktemp("btrfs") / "image", tmp_path_factory.mktemp("mounted")
    with open(image, "wb") as file:
        file.truncate(512 * MIB)
    subprocess.run(["mkfs.btrfs", "--quiet", image], check=True, timeout=WAIT_S)
    mounted = subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, text=True, timeout=WAIT_S)
    if mounted.returncode != 0:
        pytest.skip(f"no loop device with Btrfs: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True, timeout=WAIT_S)


@contextlib.contextmanager
def serving(request, folder, *luns, reactor="auto"):
    port = servers.free_port()
    text = f'reactor = "{reactor}"\n' + HEAD.format(state=folder / "state", port=port) + "".join(luns)
    daemon = Daemon(folder / "etc", text)
    daemon.socket = str(folder / "state" / "admin" / "admin.sock")
    daemon.url = f"iscsi://127.0.0.1:{port}/{NAME}"
    request.addfinalizer(daemon.kill)
    daemon.start()
    yield daemon
    add_verdict(request, f"{request.node.name}: the daemon ends as it should", daemon.stop)


def done(daemon, *words):
    """A command that ends well. A snapshot holds commands for five seconds, within which the disk of a busy machine may not end them."""
    for _ in range(4):
        code, said = daemon.command(*words)
        if code == 0 or TOO_SLOW not in said:
            break
    expect(code == 0, f"{words} ended with {code}: {said}")
    return said


def refused(daemon, *words, code=1):
    """A command that must change nothing."""
    before, generation = daemon.read(), daemon.ask("status")["generation"]
    ended, said = daemon.command(*words)
    same(f"the exit code of {words}, which said {said!r}", ended, code)
    same("the file", daemon.read(), before)
    same("the generation", daemon.ask("status")["generation"], generation)
    return said


def luns(daemon):
    return {one["lun"]: one for one in daemon.ask("luns")["luns"]}


def content(daemon, number, length):
    read = subprocess.run([servers.Targe.binary, "read", f"{daemon.url}/{number}", "--length", str(length)], capture_output=True,
                          timeout=WAIT_S, check=False)
    expect(read.returncode == 0, read.stderr.decode())
    return read.stdout


class Writer(threading.Thread):
    """qemu-io, which writes one block after the other, and is told of each when it is written, until it is to stop."""

    def __init__(self, url, at):
        super().__init__(daemon=True)
        self.at, self.acknowledged, self.wrong, self.ends = at, 0, None, threading.Event()
        self.source = tempfile.NamedTemporaryFile()
        self.process = subprocess.Popen(["qemu-io", "-f", "raw", "-t", "none", url], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True, bufsize=1, preexec_fn=servers.die_with_parent)

    def run(self):
        try:
            while not self.ends.is_set():
                number = self.acknowledged
                fill(self.source, number)
                write(self.process, self.source, self.at + number % BLOCKS * BLOCK)
                self.acknowledged = number + 1
        except Exception as error:
            self.wrong = f"{error!r}"

    def stop(self):
        self.ends.set()
        self.join(WAIT_S)
        with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
            self.process.communicate("quit\n", timeout=WAIT_S)
        expect(self.wrong is None, f"a write failed: {self.wrong}")


def write(process, source, at):
    """Lets qemu-io write a block, and waits for its answer."""
    process.stdin.write(f"write -s {source.name} {at} {BLOCK}\n")
    while "wrote" not in (line := process.stdout.readline()):
        expect(line and "fail" not in line and "rror" not in line, line or "qemu-io has ended")


@contextlib.contextmanager
def load(url):
    writers = [Writer(url, number * PART) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    go_on(writers, [20] * WRITERS)
    yield writers
    for writer in writers:
        writer.stop()


def go_on(writers, counts):
    """Waits until each writer has written more blocks than so many. Writers end by nothing but an error."""
    def have():
        for writer in writers:
            expect(writer.wrong is None and writer.is_alive(), f"a write failed: {writer.wrong}")
        return all(writer.acknowledged > count for writer, count in zip(writers, counts))
    wait_for(have, f"a write after {counts}")


def wait_for(holds, what):
    eventually(holds, what, WAIT_S)


def pattern(number):
    """The block of a write: its number, counted from 1, again and again. A block that no write reached holds zeroes."""
    return (number + 1).to_bytes(8, "big") * (BLOCK // 8)


def fill(source, number):
    """Puts the block of a write into the file that qemu-io takes it from."""
    source.seek(0)
    source.write(pattern(number))
    source.flush()


def written(data, at, least):
    """How many writes of a writer are there, which are at least so many: each is whole, and none is missing before the last.

    The number in a block says which write it is of, so a writer may be any number of writes ahead of `least`."""
    blocks = [data[start:start + BLOCK] for start in range(at, at + PART, BLOCK)]
    count = max(least, max(int.from_bytes(block[:8], "big") for block in blocks))
    for place, block in enumerate(blocks):
        # The last write of this block among the first `count`.
        last = count - 1 - (count - 1 - place) % BLOCKS
        expected = pattern(last) if last >= 0 else bytes(BLOCK)
        expect(block == expected, f"block {place} of the writer at {at} holds {block[:8].hex()} and not write {last + 1} of {count} writes, "
                                  f"{least} of them acknowledged")
    return count


def test_a_lost_torn_or_late_write_is_found():
    """The judge of the other tests."""
    def after(count):
        blocks = [bytes(BLOCK)] * BLOCKS
        for number in range(count):
            blocks[number % BLOCKS] = pattern(number)
        return blocks

    def found(blocks, least):
        return written(b"".join(blocks), 0, least)

    def refuses(blocks, least):
        with pytest.raises(AssertionError):
            found(blocks, least)

    for count in (0, 1, 5, BLOCKS - 1, BLOCKS, BLOCKS + 1, 3 * BLOCKS + 7):
        whole = after(count)
        for least in {0, count // 2, *range(max(0, count - 3), count + 1)}:
            same("the writes", found(whole, least), count)
        for number in range(count - 1, max(-1, count - 1 - BLOCKS), -5):
            place = number % BLOCKS
            refuses(after(number), count)
            before = after(number)[place]
            for block in (before, whole[place][:512] + before[512:]):
                refuses(whole[:place] + [block] + whole[place + 1:], count)
    # A write that was not acknowledged is there, and not the one before it.
    refuses(after(7)[:8] + after(9)[8:], 7)


@pytest.mark.parametrize("reactor", ["uring", "epoll"])
@pytest.mark.parametrize("direct", [pytest.param(False, id="cached"), pytest.param(True, id="direct")])
def test_a_snapshot_holds_what_was_acknowledged(request, tmp_path, reflinks, reactor, direct):
    disk = reflinks / f"{reactor}-{direct}.img"
    with serving(request, tmp_path, lun("file", path=str(disk), size="32M", bs=4096, direct=direct), reactor=reactor) as daemon, \
            load(f"{daemon.url}/0") as writers:
        for number in range(6):
            copy = f"{disk}.{number}"
            before = [writer.acknowledged for writer in writers]
            done(daemon, "lun", "snapshot", NAME, "0", copy)
            after = [writer.acknowledged for writer in writers]
            with open(copy, "rb") as file:
                data = file.read()
            same("the length of the snapshot", len(data), 32 * MIB)
            same("its mode", os.stat(copy).st_mode & 0o777, 0o600)
            for writer, least, most in zip(writers, before, after):
                # One more can be under way than was acknowledged.
                count = written(data, writer.at, least)
                expect(least <= count <= most + 1, f"snapshot {number} has {count} blocks, of {least} to {most}")
        code, said = daemon.command("lun", "snapshot", NAME, "0", copy)
        expect(code == 1 and "exists already" in said, said)
        go_on(writers, [writer.acknowledged for writer in writers])
    expect(not [name for name in os.listdir(reflinks) if name.startswith("#")], "a file without a name is left")


def test_a_clone_is_another_disk(request, tmp_path, reflinks):
    disk, secret = reflinks / "plain.img", tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("a secret of the rig, which is long enough\n")
    encrypted = lun("file", path=str(reflinks / "luks.img"), size="16M", encrypt=str(secret), serial="S1", vendor="ACME")
    with serving(request, tmp_path, lun("file", path=str(disk), size="16M", bs=4096), encrypted) as daemon:
        for number in (0, 1):
            made = subprocess.run([servers.Targe.binary, "write", f"{daemon.url}/{number}", "--write"], input=bytes([number + 7]) * MIB,
                                  capture_output=True, timeout=WAIT_S, check=False)
            expect(made.returncode == 0, made.stderr.decode())
            done(daemon, "lun", "clone", NAME, str(number), f"{reflinks}/clone{number}.img")
        known = luns(daemon)
        same("the LUNs", sorted(known), [0, 1, 2, 3])
        same("the world-wide names", len({one["naa"] for one in known.values()}), 4)
        same("the serial numbers", len({one["serial"] for one in known.values()}), 4)
        for source, clone in ((0, 2), (1, 3)):
            same("what the clone has", content(daemon, clone, 2 * MIB), content(daemon, source, 2 * MIB))
            for key in ("bytes", "block_bytes", "encrypted", "thin"):
                same(key, known[clone][key], known[source][key])
        with open(reflinks / "clone1.img", "rb") as file:
            expect(file.read(6) == b"LUKS\xba\xbe", "the clone of an encrypted LUN is no LUKS image")
        # A write of one is not seen in the other.
        subprocess.run([servers.Targe.binary, "write", f"{daemon.url}/2", "--write"], input=b"\x55" * 4096, check=True, timeout=WAIT_S)
        same("the source", content(daemon, 0, 4096), b"\x07" * 4096)
        # What is refused leaves no file.
        said = refused(daemon, "lun", "clone", NAME, "0", f"{reflinks}/never.img", "bs=1000", code=2)
        expect(not os.path.exists(reflinks / "never.img"), said)
        done(daemon, "lun", "clone", NAME, "0", f"{reflinks}/again.img", "lun=9", "ro=true")
        expect(luns(daemon)[9]["read_only"], "the keys of the command are ignored")
        audit = [json.loads(line) for line in open(tmp_path / "state" / "audit.log")]
        expect({"lun snapshot", "lun clone"} <= {entry["action"] for entry in audit}, f"the audit log misses something: {audit}")


def test_what_cannot_be_cloned_is_refused(request, tmp_path, reflinks):
    (tmp_path / "disc.iso").write_bytes(b"\0" * MIB)
    subprocess.run([servers.Targe.binary, "tape", "create", tmp_path / "TAPE01"], check=True, capture_output=True, timeout=WAIT_S)
    kinds = (lun("file", path=str(tmp_path / "here.img"), size="4M"), lun("ram", size="1M"), lun("disc", path=str(tmp_path / "disc.iso")),
             lun("tape", path=str(tmp_path / "TAPE01")), lun("file", path=str(reflinks / "there.img"), size="4M"))
    with serving(request, tmp_path, *kinds) as daemon:
        away = tmp_path / "new.img"
        shared = os.statvfs(tmp_path).f_fsid == os.statvfs(reflinks).f_fsid or can_clone(tmp_path)
        for number, why in ((0, "reflink"), (1, "in no file"), (2, "drive for discs"), (3, "tape drive"), (4, "another file system"),
                            (7, "there is no LUN")):
            if number == 0 and shared:
                continue
            for words in (["snapshot"], ["clone"]):
                said = refused(daemon, "lun", *words, NAME, str(number), str(away))
                expect(why in said or number == 7 and "no LUN 7" in said, f"LUN {number}: {said}")
                same(f"the lines of {said!r}", len(said.strip().splitlines()), 1)
                expect(not away.exists(), f"LUN {number} leaves a file")
        refused(daemon, "lun", "snapshot", NAME, "4", "/nowhere/at/all.img")
        expect("no target is named" in refused(daemon, "lun", "snapshot", "iqn.x", "0", str(away)), "another target")


@pytest.mark.parametrize("reactor", ["uring", "epoll"])
def test_a_refused_snapshot_holds_no_write(request, tmp_path, reflinks, reactor):
    """The file system refuses to clone the file when the writes wait for that."""
    disk = lun("file", path=str(reflinks / f"refused-{reactor}.img"), size="4M", bs=4096)
    with serving(request, tmp_path, disk, reactor=reactor) as daemon, load(f"{daemon.url}/0") as writers:
        for _ in range(6):
            expect("another file system" in refused(daemon, "lun", "snapshot", NAME, "0", str(tmp_path / "new.img")), "another reason")
            go_on(writers, [writer.acknowledged for writer in writers])


def can_clone(folder):
    (folder / "probe").write_bytes(b"x" * BLOCK)
    return subprocess.run(["cp", "--reflink=always", folder / "probe", folder / "probe2"], capture_output=True, check=False).returncode == 0


def test_a_drained_lun_waits(request, tmp_path):
    with serving(request, tmp_path, lun("file", path=str(tmp_path / "disk.img"), size="32M"), lun("ram", size="1M")) as daemon:
        with load(f"{daemon.url}/0") as writers:
            said = done(daemon, "lun", "drain", NAME, "0")
            expect("it has no tasks" in said, said)
            known = luns(daemon)
            same("what is told of it", (known[0]["not_ready"], known[1]["not_ready"]), ("the operator drains it", None))
            before = [writer.acknowledged for writer in writers]
            commands = known[0]["commands"]
            # Hosts repeat their commands; none of them is carried out.
            wait_for(lambda: luns(daemon)[0]["commands"] > commands, "another command")
            acknowledged = [writer.acknowledged for writer in writers]
            # The answer to the last command before the drain may have come later to the writer than the end of the drain to this test.
            expect(all(now - then in (0, 1) for now, then in zip(acknowledged, before)), f"a drained LUN is written: {before}, then {acknowledged}")
            commands = luns(daemon)[0]["commands"]
            wait_for(lambda: luns(daemon)[0]["commands"] > commands, "another command")
            same("the writes of a drained LUN", [writer.acknowledged for writer in writers], acknowledged)
            same("the other LUN", content(daemon, 1, BLOCK), bytes(BLOCK))
            with open(tmp_path / "disk.img", "rb") as file:
                data = file.read()
            for writer, count in zip(writers, acknowledged):
                expect(written(data, writer.at, count) <= count + 1, "the file has not what was acknowledged")
            # A reload does not end it.
            reloads = daemon.ask("status")["reloads"]
            os.kill(daemon.process.pid, 1)
            wait_for(lambda: daemon.ask("status")["reloads"] > reloads, "the reload")
            same("after a reload", luns(daemon)[0]["not_ready"], "the operator drains it")
            same("a second time", json.loads(done(daemon, "lun", "drain", NAME, "0", "--json")), {"drained": True, "ended": True, "durable": True, "tasks": 0})
            expect("can be used again" in done(daemon, "lun", "drain", NAME, "0", "--undo"), "the end of the drain")
            go_on(writers, acknowledged)
        same("after it", luns(daemon)[0]["not_ready"], None)
        expect("no LUN" in refused(daemon, "lun", "drain", NAME, "5"), "another LUN")
