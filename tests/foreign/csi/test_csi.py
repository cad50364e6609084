"""`targe csi` with a real daemon: killed at random moments, calls twice and out of order, a full pool, data that must not be lost.

csi-sanity, which judges the whole interface, is run by hand: test_sanity.py.
"""

import os
import random
import shutil
import socket
import subprocess
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor

import pytest

import namespaces
import servers
from csi.calls import MULTI_WRITER, Refused
from csi.driver import NODE, WAIT_S, Driver
from serving import add_verdict
from verdicts import expect, same

pytestmark = pytest.mark.servers("targe")
MIB = 1 << 20
OTHER = "iqn.2026-11.org.targe:other"
ROUNDS = 8


def need_loop():
    if not namespaces.is_real_root() or not os.path.exists("/dev/fuse") or not os.path.exists("/dev/loop-control"):
        pytest.skip("attaching volumes needs root, FUSE and loop devices")


def driver_of(request, folder, **how):
    driver = Driver(folder, **how)
    request.addfinalizer(driver.clean_up)
    driver.daemon.start()
    driver.start()
    return driver


def ends_well(request, driver):
    """The verdict on a driver and its daemon whose volumes are all gone."""
    driver.expect_nothing_left()
    same("targets", [target["name"] for target in tomllib.loads(driver.daemon.read())["target"]], ["iqn.2026-11.org.targe:none"])
    expect("# not the driver's" in driver.daemon.read(), "a comment is lost")
    add_verdict(request, f"{request.node.name}: the driver ends as it should", driver.stop)
    add_verdict(request, f"{request.node.name}: the daemon ends as it should", driver.daemon.stop)


def code_of(call, *words, **keys):
    """The code that a call is refused with."""
    try:
        call(*words, **keys)
    except Refused as refused:
        return refused.code
    raise AssertionError(f"{call.__name__} {words} is not refused")


def again(call, *words):
    """Repeats a call, as Kubernetes does: where something goes on for a call before, and where a busy machine does not end the commands of a
    volume within the time for which a snapshot holds them."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return call(*words)
        except Refused as refused:
            is_passing = any(why in str(refused) for why in ("under way", "do not end within"))
            expect(time.monotonic() < deadline and is_passing, str(refused))
            time.sleep(0.05)


def test_a_controller_that_is_killed_at_any_moment_goes_on(request, tmp_path, seed):
    chance = random.Random(seed)
    driver = driver_of(request, tmp_path, node=False)
    names, interrupted = [f"{number}-{'ü' * 60}"[:128] for number in range(3)], 0
    for _ in range(ROUNDS):
        name = chance.choice(names)
        killed = threading.Event()
        delay = chance.uniform(0, 0.25)

        def kill(delay=delay, killed=killed, process=driver.process):
            time.sleep(delay)
            process.kill()
            killed.set()

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        try:
            while not killed.is_set():
                whole_life(driver, name)
        except Refused as refused:
            expect(killed.wait(WAIT_S), f"refused before the kill: {refused}")
            interrupted += 1
        killer.join()
        driver.kill()
        driver.start()
        # Whatever was half done, the same calls go on and come to the same end.
        known = driver.calls.volumes()
        volume = driver.calls.create(name, 4 * MIB)
        expect(len(driver.calls.volumes()) <= max(1, len(known)), f"one name has several volumes: {driver.calls.volumes()}")
        context = driver.calls.publish(volume, NODE)
        same("the secret of a repeated call", driver.calls.publish(volume, NODE), context)
        login(driver, context)
        driver.calls.unpublish(volume, NODE)
        driver.calls.delete(volume)
    expect(interrupted > 0, "no call was interrupted")
    for volume in driver.calls.volumes():
        driver.calls.unpublish(volume, "")
        driver.calls.delete(volume)
    ends_well(request, driver)


def whole_life(driver, name):
    volume = driver.calls.create(name, 4 * MIB)
    driver.calls.publish(volume, NODE)
    driver.calls.expand(volume, 6 * MIB)
    driver.calls.unpublish(volume, NODE)
    driver.calls.delete(volume)


def login(driver, context, initiator=NODE, code=0, protection=None):
    """Logs in to a volume as its node does, or with another protection."""
    url = f"iscsi://{context['chap_user']}@{context['portals']}/{context['target']}/0?initiator={initiator}"
    protection = protection or context["protection"]
    url += f"&auth=opaque&protection={protection}" if protection != "none" else ""
    read = subprocess.run([servers.Targe.binary, "info", url], env={**os.environ, "TARGE_PASSWORD": context["chap_secret"]},
                          capture_output=True, text=True, timeout=WAIT_S, check=False)
    same(f"the exit code of a login, which said {read.stderr!r}", read.returncode, code)


def test_a_volume_has_the_protection_of_its_class(request, tmp_path):
    driver = driver_of(request, tmp_path, node=False)
    for protection in ("none", "integrity", "encrypt"):
        volume = driver.calls.create(protection, 4 * MIB, parameters={"protection": protection})
        context = driver.calls.publish(volume, NODE)
        same("the protection of a volume", context["protection"], protection)
        login(driver, context)
        driver.calls.unpublish(volume, NODE)
        driver.calls.delete(volume)
    try:
        driver.calls.create("other", 4 * MIB, parameters={"protection": "tls"})
        expect(False, "an unknown protection is taken")
    except Refused as refused:
        expect("not none, integrity or encrypt" in str(refused), str(refused))
    ends_well(request, driver)


def test_only_nodes_with_access_reach_a_volume(request, tmp_path):
    driver = driver_of(request, tmp_path, node=False)
    calls = driver.calls
    volume = calls.create("shared", 4 * MIB, block=True)
    same("before", code_of(calls.publish, volume, "fake-node-id-1"), "NOT_FOUND")
    one = calls.publish(volume, NODE, block=True, mode=MULTI_WRITER)
    other = calls.publish(volume, OTHER, block=True, mode=MULTI_WRITER)
    expect(one["chap_secret"] != other["chap_secret"], "nodes share a secret")
    login(driver, one)
    login(driver, other, initiator=OTHER)
    login(driver, one, initiator=OTHER, code=1)
    login(driver, one, initiator="iqn.2026-11.org.targe:third", code=1)
    # Nobody gets the data without encryption, not even with the right secret.
    same("the protection of a volume", one["protection"], "encrypt")
    login(driver, one, code=1, protection="none")
    same("deleted while published", code_of(calls.delete, volume), "FAILED_PRECONDITION")
    calls.unpublish(volume, NODE)
    login(driver, one, code=1)
    login(driver, other, initiator=OTHER)
    # Edits that nobody applied are not made the driver's.
    text = driver.daemon.read()
    driver.daemon.write(text.replace('size = "1M"', 'size = "2M"', 1))
    same("with an edit", code_of(calls.unpublish, volume, OTHER), "INTERNAL")
    driver.daemon.write(text)
    calls.unpublish(volume, OTHER)
    calls.unpublish(volume, OTHER)
    calls.delete(volume)
    calls.delete(volume)
    driver.daemon.kill()
    volume = calls.create("another", 4 * MIB)
    same("without a daemon", code_of(calls.publish, volume, NODE), "UNAVAILABLE")
    driver.daemon.start()
    calls.publish(volume, NODE)
    calls.unpublish(volume, NODE)
    calls.delete(volume)
    ends_well(request, driver)


def test_calls_at_the_same_time_leave_room_for_other_clients_of_the_daemon(request, tmp_path):
    driver = driver_of(request, tmp_path, node=False)
    volumes = [driver.calls.create(f"{number}", 4 * MIB) for number in range(24)]
    # An operator who looks now and then.
    operator = socket.socket(socket.AF_UNIX)
    operator.settimeout(WAIT_S)
    operator.connect(driver.daemon.socket)
    answers = operator.makefile("rb")

    def look():
        operator.sendall(b'{"method": "status"}\n')
        expect(answers.readline().startswith(b'{"result"'), "the operator gets no answer")

    with operator, answers, ThreadPoolExecutor(len(volumes)) as threads:
        look()
        for call in (driver.calls.publish, driver.calls.unpublish):
            ended = [threads.submit(call, volume, NODE) for volume in volumes]
            while not all(one.done() for one in ended):
                look()
                time.sleep(0.1)
            refused = [str(one.exception()) for one in ended if one.exception()]
            same(f"what {call.__name__} is refused with", refused, [])
    for volume in volumes:
        driver.calls.delete(volume)
    ends_well(request, driver)


def test_a_second_driver_of_a_pool_or_a_node_is_refused(request, tmp_path):
    driver = driver_of(request, tmp_path)
    words = driver.command()
    words[words.index("--endpoint") + 1] = f"unix://{tmp_path}/other.sock"
    for word, said in (("--node", "another driver uses the pool"), ("--controller", "another driver uses")):
        alone = words[:words.index("--node")] if word == "--node" else words[:4] + words[words.index("--node"):]
        second = subprocess.run(alone, capture_output=True, text=True, timeout=WAIT_S, check=False)
        same("exit code", second.returncode, 1)
        expect(said in second.stderr, second.stderr)
    ends_well(request, driver)


def fill(path):
    """Appends to a file until its file system is full."""
    filler = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for length in (MIB, 4096):
        with pytest.raises(OSError, match="No space left"):
            while True:
                os.write(filler, b"x" * length)
    os.close(filler)


def test_a_full_pool_is_told_and_nothing_is_left(request, tmp_path):
    if not namespaces.is_real_root():
        pytest.skip("mounting needs root")
    pool = tmp_path / "small"
    pool.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", pool], check=True, timeout=WAIT_S)
    driver = driver_of(request, tmp_path / "driver", pool=pool, node=False)
    same("too large", code_of(driver.calls.create, "large", 64 * MIB), "RESOURCE_EXHAUSTED")
    volume = driver.calls.create("small", 4 * MIB)
    gone = driver.calls.create("gone", 4 * MIB)
    fill(pool / "filler")
    same("no space", code_of(driver.calls.create, "more", MIB), "RESOURCE_EXHAUSTED")
    same("volumes", set(driver.calls.volumes()), {volume, gone})
    # Nodes get and lose a volume, also after a start, and the data of others use what that frees.
    nodes = [NODE, NODE + "-2"]
    for round_ in range(12):
        driver.calls.publish(volume, nodes[round_ % 2])
        fill(pool / "filler")
        driver.calls.unpublish(volume, nodes[round_ % 2])
        fill(pool / "filler")
        if round_ % 4 == 3:
            driver.kill()
            driver.start()
            fill(pool / "filler")
    driver.calls.delete(gone)
    same("volumes", driver.calls.volumes(), [volume])
    os.remove(pool / "filler")
    driver.calls.delete(driver.calls.create("more", MIB))
    driver.calls.delete(volume)
    ends_well(request, driver)


def tool(*words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=False)
    expect(done.returncode == 0, f"{words}: {done.stdout}{done.stderr}")
    return done.stdout


def has_capability(number):
    """Whether this process has a capability of root's: containers often lack CAP_SYS_RESOURCE, without which ext4 does not grow."""
    with open("/proc/self/status") as status:
        effective = next(line for line in status if line.startswith("CapEff"))
    return bool(int(effective.split()[1], 16) >> number & 1)


CAP_SYS_RESOURCE = 24


# mkfs.xfs makes none that is smaller.
@pytest.mark.parametrize(("kind", "size"), [("ext4", 48 * MIB), ("xfs", 320 * MIB)])
def test_data_survives_everything_that_a_node_does(request, tmp_path, kind, size):
    need_loop()
    driver = driver_of(request, tmp_path)
    calls = driver.calls
    staged, target = str(tmp_path / "staged"), str(tmp_path / "target")
    volume = calls.create("data", size)
    same("published before it is staged", code_of(calls.node_publish, volume, staged, target), "FAILED_PRECONDITION")
    same("staged before it is published", code_of(calls.stage, volume, staged, {}), "INVALID_ARGUMENT")
    context = calls.publish(volume, NODE)
    wrong = {**context, "naa": "3" + "0" * 15}
    same("another disk", code_of(calls.stage, volume, staged, wrong), "INTERNAL")
    calls.unstage(volume, staged)
    for _ in range(2):
        calls.stage(volume, staged, context, kind=kind)
        calls.node_publish(volume, staged, target)
    same("the file system", os.path.basename(tool("findmnt", "--noheadings", "--output", "FSTYPE", target).strip()), kind)
    same("published in another way", code_of(calls.node_publish, volume, staged, target, read_only=True), "ALREADY_EXISTS")
    with open(f"{target}/file", "w") as file:
        file.write("still here")
        file.flush()
        os.fsync(file.fileno())
    # A larger file system, without unmounting.
    total, used = calls.usage(volume, target)
    expect(total > used > 0, f"{total}, {used}")
    if kind == "xfs" or has_capability(CAP_SYS_RESOURCE):
        same("enlarged", calls.expand(volume, 2 * size), 2 * size)
        same("enlarged on the node", calls.node_expand(volume, target, 2 * size), 2 * size)
        expect(calls.usage(volume, target)[0] > 1.8 * total, "the file system did not grow")
    # A driver that dies leaves the disk alone, and the next one knows it.
    driver.kill()
    with open(f"{target}/file") as file:
        same("the file without a driver", file.read(), "still here")
    driver.start()
    calls = driver.calls
    calls.stage(volume, staged, context)
    calls.node_unpublish(volume, target)
    calls.node_unpublish(volume, target)
    expect(not os.path.exists(target), "the target path is still there")
    calls.unstage(volume, staged)
    calls.unstage(volume, staged)
    driver.expect_no_loop_device()
    calls.unpublish(volume, NODE)
    # Somewhere else, read-only.
    calls.stage(volume, staged, calls.publish(volume, NODE))
    calls.node_publish(volume, staged, target, read_only=True)
    with open(f"{target}/file") as file:
        same("the file", file.read(), "still here")
    with pytest.raises(OSError):
        open(f"{target}/new", "w")
    # The target dies first.
    driver.daemon.kill()
    calls.node_unpublish(volume, target)
    driver.daemon.start()
    calls.unstage(volume, staged)
    calls.unpublish(volume, NODE)
    calls.delete(volume)
    ends_well(request, driver)


def test_a_node_leaves_no_disk_behind_when_the_target_has_gone(request, tmp_path):
    need_loop()
    driver = driver_of(request, tmp_path)
    calls = driver.calls
    staged, target = str(tmp_path / "staged"), str(tmp_path / "target")
    volume = calls.create("raw", 8 * MIB, block=True)
    calls.stage(volume, staged, calls.publish(volume, NODE, block=True), block=True)
    calls.node_publish(volume, staged, target, block=True)
    same("enlarged", calls.expand(volume, 16 * MIB), 16 * MIB)
    same("enlarged on the node", calls.node_expand(volume, target, 16 * MIB), 16 * MIB)
    same("measured", calls.usage(volume, target), (16 * MIB, 16 * MIB))
    with open(target, "r+b") as device:
        device.write(b"raw data" * 512)
        device.flush()
        os.fsync(device.fileno())
    calls.unpublish(volume, NODE)
    driver.daemon.kill()
    calls.node_unpublish(volume, target)
    calls.unstage(volume, staged)
    driver.expect_no_loop_device()
    driver.daemon.start()
    # Data that is no file system is never formatted.
    context = calls.publish(volume, NODE)
    same("formatted", code_of(calls.stage, volume, staged, context), "FAILED_PRECONDITION")
    calls.unstage(volume, staged)
    with open(f"{driver.pool}/{volume}.img", "rb") as image:
        same("the data", image.read(16), b"raw data" * 2)
    calls.unpublish(volume, NODE)
    calls.delete(volume)
    ends_well(request, driver)


def test_a_file_system_that_was_mounted_and_not_enlarged_is_enlarged_by_the_next_call(request, tmp_path):
    need_loop()
    programs = tmp_path / "programs"
    programs.mkdir()
    driver = driver_of(request, tmp_path / "driver", environment={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"})
    calls = driver.calls
    staged, size = str(tmp_path / "staged"), 320 * MIB
    volume = calls.create("small", size)
    context = calls.publish(volume, NODE)
    calls.stage(volume, staged, context, kind="xfs")
    total, _ = calls.usage(volume, staged)
    calls.unstage(volume, staged)
    # As a clone that is larger than its source.
    calls.expand(volume, 2 * size)
    failing = programs / "xfs_growfs"
    failing.write_text("#!/bin/sh\necho planted >&2\nexit 1\n")
    failing.chmod(0o755)
    same("not enlarged", code_of(calls.stage, volume, staged, context, kind="xfs"), "INTERNAL")
    failing.unlink()
    for _ in range(2):
        calls.stage(volume, staged, context, kind="xfs")
        expect(calls.usage(volume, staged)[0] > 1.8 * total, "the file system did not grow")
    calls.unstage(volume, staged)
    calls.unpublish(volume, NODE)
    calls.delete(volume)
    ends_well(request, driver)


def test_a_read_only_publication_that_was_killed_between_its_steps_goes_on(request, tmp_path):
    need_loop()
    programs = tmp_path / "programs"
    programs.mkdir()
    driver = driver_of(request, tmp_path / "driver", environment={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"})
    calls = driver.calls
    staged, targets = str(tmp_path / "staged"), [str(tmp_path / f"target-{number}") for number in range(3)]
    volume = calls.create("data", 48 * MIB)
    calls.stage(volume, staged, calls.publish(volume, NODE))
    killing = programs / "mount"
    for target in targets[:2]:
        killing.write_text(f'#!/bin/sh\ncase "$*" in *remount*) kill -9 $PPID; exit 1;; esac\nexec {shutil.which("mount")} "$@"\n')
        killing.chmod(0o755)
        same("killed", code_of(calls.node_publish, volume, staged, target, read_only=True), "UNAVAILABLE")
        killing.unlink()
        driver.kill()
        driver.start()
        calls = driver.calls
    for target in targets[:2]:
        for _ in range(2):
            calls.node_publish(volume, staged, target, read_only=True)
            with pytest.raises(OSError, match="Read-only file system"):
                open(f"{target}/new", "w")
        same("published in another way", code_of(calls.node_publish, volume, staged, target), "ALREADY_EXISTS")
    # The mount of another caller stays as it is.
    calls.node_publish(volume, staged, targets[2])
    same("published in another way", code_of(calls.node_publish, volume, staged, targets[2], read_only=True), "ALREADY_EXISTS")
    open(f"{targets[2]}/new", "w").close()
    for target in targets:
        calls.node_unpublish(volume, target)
    calls.unstage(volume, staged)
    same("notes of unfinished calls", [name for name in os.listdir(driver.run_dir) if name not in ("lock", "staged")], [])
    calls.unpublish(volume, NODE)
    calls.delete(volume)
    ends_well(request, driver)


def test_a_volume_that_is_still_published_is_not_detached(request, tmp_path):
    need_loop()
    driver = driver_of(request, tmp_path)
    calls = driver.calls
    staged, target, block_staged, block_target = (str(tmp_path / name) for name in ("staged", "target", "block-staged", "block-target"))
    volume, block_volume = calls.create("files", 48 * MIB), calls.create("raw", 8 * MIB, block=True)
    calls.stage(volume, staged, calls.publish(volume, NODE))
    calls.node_publish(volume, staged, target)
    calls.stage(block_volume, block_staged, calls.publish(block_volume, NODE, block=True), block=True)
    calls.node_publish(block_volume, block_staged, block_target, block=True)
    with open(f"{target}/file", "w") as file:
        file.write("not written out yet")
    for _ in range(2):
        same("unstaged", code_of(calls.unstage, volume, staged), "FAILED_PRECONDITION")
        same("unstaged", code_of(calls.unstage, block_volume, block_staged), "FAILED_PRECONDITION")
    # Nothing was changed: another pod can use it.
    second = str(tmp_path / "second")
    calls.node_publish(volume, staged, second)
    calls.node_unpublish(volume, second)
    tool("sync", "-f", f"{target}/file")
    # A file that is still open keeps a file system that is at no path any more.
    with open(f"{target}/file") as file:
        tool("umount", "--lazy", target)
        calls.node_unpublish(volume, target)
        same("unstaged while a file is open", code_of(calls.unstage, volume, staged), "FAILED_PRECONDITION")
        same("the file", file.read(), "not written out yet")
        calls.stage(volume, staged, calls.publish(volume, NODE))
        calls.node_publish(volume, staged, target)
    calls.node_unpublish(volume, target)
    calls.unstage(volume, staged)
    with open(block_target, "r+b") as device:
        device.write(b"raw data")
    calls.node_unpublish(block_volume, block_target)
    calls.unstage(block_volume, block_staged)
    with open(f"{driver.pool}/{block_volume}.img", "rb") as image:
        same("the data", image.read(8), b"raw data")
    for one in (volume, block_volume):
        calls.unpublish(one, NODE)
        calls.delete(one)
    ends_well(request, driver)


@pytest.fixture(scope="module", params=["btrfs", "xfs"])
def reflinks(request, tmp_path_factory):
    """A folder whose files can share storage."""
    need_loop()
    image, folder = tmp_path_factory.mktemp(request.param) / "image", tmp_path_factory.mktemp("mounted")
    with open(image, "wb") as file:
        file.truncate(512 * MIB)
    tool(f"mkfs.{request.param}", "-q", str(image))
    tool("mount", "-o", "loop", str(image), str(folder))
    yield folder
    tool("umount", "--lazy", str(folder))


def test_a_snapshot_under_load_is_as_after_a_crash(request, tmp_path, reflinks):
    pool = reflinks / "pool"
    pool.mkdir()
    driver = driver_of(request, tmp_path, pool=pool)
    calls = driver.calls
    staged, target = str(tmp_path / "staged"), str(tmp_path / "target")
    volume = calls.create("data", 48 * MIB)
    calls.stage(volume, staged, calls.publish(volume, NODE))
    calls.node_publish(volume, staged, target)
    synced, ends = [], threading.Event()

    def write():
        number = 0
        while not ends.is_set():
            with open(f"{target}/{number % 16}", "w") as file:
                file.write(f"{number} " * 1000)
                file.flush()
                os.fsync(file.fileno())
            synced.append(number)
            number += 1

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        while len(synced) < 24:
            expect(writer.is_alive(), "the writer has ended")
            time.sleep(0.01)
        before = len(synced)
        snapshot = again(calls.snapshot, "under load", volume)
        same("a repeated call", calls.snapshot("under load", volume), snapshot)
    finally:
        ends.set()
        writer.join()
    clone = calls.create("clone", 48 * MIB, snapshot=snapshot)
    copy = calls.create("copy of what is used", 48 * MIB, volume=volume)
    image = f"{pool}/{snapshot}.img"
    calls.node_unpublish(volume, target)
    calls.unstage(volume, staged)
    calls.unpublish(volume, NODE)
    calls.delete(volume)
    # The journal is replayed, and then nothing is wrong.
    done = subprocess.run(["e2fsck", "-fy", image], capture_output=True, text=True, timeout=WAIT_S, check=False)
    expect(done.returncode in (0, 1) and "UNEXPECTED" not in done.stdout, done.stdout + done.stderr)
    for made in (clone, copy):
        calls.stage(made, staged, calls.publish(made, NODE))
        calls.node_publish(made, staged, target)
        found = max(int(open(f"{target}/{name}").read().split()[0] or 0) for name in os.listdir(target) if name.isdigit()
                    if os.path.getsize(f"{target}/{name}"))
        expect(found >= before - 1, f"{found} is the last file, and {before - 1} was synced before the snapshot")
        calls.node_unpublish(made, target)
        calls.unstage(made, staged)
        calls.unpublish(made, NODE)
        calls.delete(made)
    calls.delete_snapshot(snapshot)
    calls.delete_snapshot(snapshot)
    ends_well(request, driver)
