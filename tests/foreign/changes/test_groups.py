"""Snapshots of several LUNs at one point in time, under load: no copy has a write that was sent after the acknowledgement of one that another copy lacks."""

import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time

import pytest

import servers
from changes.daemon import Daemon
from changes.test_luns import (BLOCK, BLOCKS, HEAD, MIB, PART, TOO_SLOW, WAIT_S, Writer, done, fill, lun, reflinks, refused, wait_for, write,
                               written)
from serving import add_verdict
from verdicts import expect, same

pytestmark = pytest.mark.servers("targe")
__all__ = ["reflinks"]
NAMES = ("iqn.2026-11.org.targe:disk", "iqn.2026-11.org.targe:other")
# Each stream has one command at a time, on the one LUN and on the other by turns, and a part of both.
STREAMS, ROUNDS = 3, 12
# How much longer than the daemon says a busy machine may take, seconds.
SLOW_S = 60


@contextlib.contextmanager
def serving(request, folder, disks, reactor, cores):
    """A daemon with one target for each disk: with two cores, each is on a reactor of its own."""
    port = servers.free_port()
    text = f'reactor = "{reactor}"\ncores = "{cores}"\n' + HEAD.format(state=folder / "state", port=port) + disks[0]
    for name, disk in zip(NAMES[1:], disks[1:]):
        text += f'\n[[target]]\nname = "{name}"\n{disk}'
    daemon = Daemon(folder / "etc", text)
    daemon.socket = str(folder / "state" / "admin" / "admin.sock")
    daemon.urls = [f"iscsi://127.0.0.1:{port}/{name}/0" for name in NAMES]
    request.addfinalizer(daemon.kill)
    daemon.start()
    yield daemon
    add_verdict(request, f"{request.node.name}: the daemon ends as it should", daemon.stop)


class Stream(threading.Thread):
    """Writes to two LUNs by turns, each after the acknowledgement of the other, until it is to stop."""

    def __init__(self, urls, at):
        super().__init__(daemon=True)
        self.at, self.acknowledged, self.wrong, self.ends = at, [0, 0], None, threading.Event()
        self.source = tempfile.NamedTemporaryFile()
        self.processes = [subprocess.Popen(["qemu-io", "-f", "raw", "-t", "none", url], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                           stderr=subprocess.STDOUT, text=True, bufsize=1, preexec_fn=servers.die_with_parent) for url in urls]

    def run(self):
        try:
            while not self.ends.is_set():
                for side, process in enumerate(self.processes):
                    number = self.acknowledged[side]
                    fill(self.source, number)
                    write(process, self.source, self.at + number % BLOCKS * BLOCK)
                    self.acknowledged[side] = number + 1
        except Exception as error:
            self.wrong = f"{error!r}"

    def stop(self):
        self.ends.set()
        self.join(WAIT_S)
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
                process.communicate("quit\n", timeout=WAIT_S)
        expect(self.wrong is None, f"a write failed: {self.wrong}")


@contextlib.contextmanager
def load(urls):
    streams = [Stream(urls, number * PART) for number in range(STREAMS)]
    for stream in streams:
        stream.start()
    go_on(streams, [20] * STREAMS)
    yield streams
    for stream in streams:
        stream.stop()


def go_on(streams, counts):
    def have():
        for stream in streams:
            expect(stream.wrong is None and stream.is_alive(), f"a write failed: {stream.wrong}")
        return all(stream.acknowledged[1] > count for stream, count in zip(streams, counts))
    wait_for(have, f"a write after {counts}")


def inconsistent(copies, streams, before):
    """The streams of which the copies do not show one point in time: after a write of the first LUN, or after one of the second."""
    data = []
    for copy in copies:
        with open(copy, "rb") as file:
            data.append(file.read())
    counts = [[written(data[side], stream.at, least[side]) for side in (0, 1)] for stream, least in zip(streams, before)]
    return [(first, second) for first, second in counts if first - second not in (0, 1)]


def disks_on(folder, name):
    return [lun("file", path=str(folder / f"{name}-{side}.img"), size="8M", bs=BLOCK) for side in (0, 1)]


@pytest.mark.parametrize("cores", [pytest.param("0", id="1-reactor"), pytest.param("0-1", id="2-reactors")])
@pytest.mark.parametrize("reactor", ["uring", "epoll"])
def test_copies_show_one_point_in_time(request, tmp_path, reflinks, reactor, cores):
    with serving(request, tmp_path, disks_on(reflinks, f"{reactor}-{cores}"), reactor, cores) as daemon:
        same("the reactors", len(daemon.ask("status")["reactors"]), 1 if cores == "0" else 2)
        with load(daemon.urls) as streams:
            for number in range(ROUNDS):
                copies = [f"{reflinks}/{reactor}-{cores}-{side}.{number}" for side in (0, 1)]
                before = [list(stream.acknowledged) for stream in streams]
                said = done(daemon, "lun", "snapshot", NAMES[0], "0", copies[0], "--and", NAMES[1], "0", copies[1])
                same("what is told", said.split("\n"), [f"{copy}: {8 * MIB} bytes" for copy in copies] + [""])
                same("these do not show one point in time", inconsistent(copies, streams, before), [])
                for copy in copies:
                    os.unlink(copy)
            go_on(streams, [stream.acknowledged[1] for stream in streams])
    expect(not [name for name in os.listdir(reflinks) if name.startswith("#")], "a file without a name is left")
    with open(tmp_path / "state" / "audit.log") as audit:
        entries = [json.loads(line) for line in audit]
    same("the audit log", [len(entry["changes"]) for entry in entries if entry["action"] == "lun snapshot"], [2] * ROUNDS)


def test_two_snapshots_one_after_the_other_do_not(request, tmp_path, reflinks):
    """The judge of the other test."""
    found = []
    with serving(request, tmp_path, disks_on(reflinks, "apart"), "auto", "0-1") as daemon, load(daemon.urls) as streams:
        for number in range(3):
            copies = [f"{reflinks}/apart-{side}.{number}" for side in (0, 1)]
            before = [list(stream.acknowledged) for stream in streams]
            for name, copy in zip(NAMES, copies):
                done(daemon, "lun", "snapshot", name, "0", copy)
                # Each stream has written more to both LUNs before the second snapshot.
                go_on(streams, [stream.acknowledged[1] + 1 for stream in streams])
            found += inconsistent(copies, streams, before)
    expect(found, "every copy of the one LUN fits to that of the other")


@pytest.fixture
def freezable(tmp_path):
    """The folder of another file system."""
    image, folder = tmp_path / "image", tmp_path / "mounted"
    folder.mkdir()
    with open(image, "wb") as file:
        file.truncate(256 * MIB)
    subprocess.run(["mkfs.btrfs", "--quiet", image], check=True, timeout=WAIT_S)
    subprocess.run(["mount", "-o", "loop", image, folder], check=True, timeout=WAIT_S)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True, timeout=WAIT_S)


def freeze(folder, word):
    subprocess.run(["fsfreeze", f"--{word}", folder], check=word == "freeze", capture_output=True, timeout=WAIT_S)


def refuse(daemon, copies):
    said = refused(daemon, "lun", "snapshot", NAMES[0], "0", copies[0], "--and", NAMES[1], "0", copies[1])
    expect(f"LUN {NAMES[1]}/0: no snapshot: its commands do not end within the 5 s" in said, said)


def pause_of(writer, act):
    """The longest time without a write meanwhile, until a write after it."""
    pauses, ends = [0], threading.Event()

    def measure():
        last, since = writer.acknowledged, time.monotonic()
        while not ends.wait(0.01):
            if writer.acknowledged > last:
                last, since = writer.acknowledged, time.monotonic()
            pauses.append(time.monotonic() - since)

    measuring = threading.Thread(target=measure, daemon=True)
    measuring.start()
    act()
    number = writer.acknowledged
    wait_for(lambda: writer.acknowledged > number, "a write of the other LUN")
    ends.set()
    measuring.join()
    return max(pauses)


@pytest.mark.parametrize("cores", [pytest.param("0", id="1-reactor"), pytest.param("0-1", id="2-reactors")])
def test_a_lun_that_hangs_holds_the_others_for_seconds_only(request, tmp_path, reflinks, freezable, cores):
    """The file system of the one LUN is frozen under a write, which does not end, so that the LUN is never quiet."""
    copies = [f"{reflinks}/hangs-{cores}-{side}" for side in (0, 1)]
    files = [reflinks / f"hangs-{cores}.img", freezable / "hangs.img"]
    disks = [lun("file", path=str(path), size="8M", bs=BLOCK, direct=True) for path in files]
    with serving(request, tmp_path, disks, "epoll", cores) as daemon:
        hanging, other = Writer(daemon.urls[1], 0), Writer(daemon.urls[0], 0)
        hanging.start()
        other.start()
        wait_for(lambda: min(hanging.acknowledged, other.acknowledged) > 20, "the first writes")
        request.addfinalizer(lambda: freeze(freezable, "unfreeze"))
        freeze(freezable, "freeze")
        # That they wait at all shows that they were held, if not the whole machine stood still meanwhile.
        longest = next((pause for _ in range(3) if (pause := pause_of(other, lambda: refuse(daemon, copies))) > 4), 0)
        expect(4 < longest < 5 + SLOW_S, f"the other LUN waited for {longest} s")
        expect(not any(map(os.path.exists, copies)), "a file is left")
        number = hanging.acknowledged
        freeze(freezable, "unfreeze")
        wait_for(lambda: hanging.acknowledged > number, "a write of the LUN that hung")
        for writer in (hanging, other):
            writer.stop()


@pytest.mark.parametrize("reactor", ["uring", "epoll"])
def test_all_files_are_made_or_none(request, tmp_path, reflinks, reactor):
    copies = [f"{reflinks}/none-{reactor}-{side}" for side in (0, 1)]
    with serving(request, tmp_path, disks_on(reflinks, f"none-{reactor}"), reactor, "0-1") as daemon, load(daemon.urls) as streams:
        (reflinks / "taken").touch()
        for words, why in [
            ((NAMES[1], "0", str(tmp_path / "new.img")), "another file system"),
            ((NAMES[1], "0", str(reflinks / "taken")), "exists already"),
            ((NAMES[1], "0", copies[0]), "another LUN, too"),
            ((NAMES[0], "0", copies[1]), "is the same disk"),
            ((NAMES[1], "1", copies[1]), "there is no LUN"),
            ((NAMES[1], "0", str(tmp_path / "missing" / "copy")), "no such file"),
        ]:
            said = refused(daemon, "lun", "snapshot", NAMES[0], "0", copies[0], "--and", *words)
            expect(why in said, said)
            same(f"the lines of {said!r}", len(said.strip().splitlines()), 1)
            go_on(streams, [stream.acknowledged[1] for stream in streams])
            expect(not any(map(os.path.exists, copies)), f"a file is left: {said}")
        expect("is not a LUN" in refused(daemon, "lun", "snapshot", NAMES[0], "0", copies[0], "--and", NAMES[1], "x", copies[1], code=2), "a word for a LUN")
        # Commands that disturb each other: each makes both files or none, and no LUN waits for long.
        racing = [[f"{reflinks}/race-{reactor}-{number}-{side}" for side in (0, 1)] for number in range(6)]
        commands = [daemon.command("lun", "snapshot", NAMES[number % 2], "0", pair[0], "--and", NAMES[1 - number % 2], "0", pair[1], "--json", wait=False)
                    for number, pair in enumerate(racing)]
        for command, pair in zip(commands, racing):
            said, _ = command.communicate(timeout=WAIT_S)
            expect(command.returncode == 0 or "another snapshot of it is under way" in said or TOO_SLOW in said, said)
            same(f"the files of {pair}, {said}", list(map(os.path.exists, pair)), [command.returncode == 0] * 2)
            if command.returncode == 0:
                same("the files that are told", [made["path"] for made in json.loads(said)["snapshots"]], pair)
        go_on(streams, [stream.acknowledged[1] for stream in streams])
        # A client that dies holds nothing.
        for number in range(6):
            dying = daemon.command("lun", "snapshot", NAMES[0], "0", f"{copies[0]}.{number}", "--and", NAMES[1], "0", f"{copies[1]}.{number}", wait=False)
            with contextlib.suppress(subprocess.TimeoutExpired):
                dying.wait(number * daemon.usual_s / 6)
            dying.kill()
            dying.communicate()
            go_on(streams, [stream.acknowledged[1] for stream in streams])
