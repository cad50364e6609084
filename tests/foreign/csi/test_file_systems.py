"""What `targe csi` does about the file system of a volume before a pod gets it: journals, checks, errors, unfinished ones."""

import os
import shutil
import subprocess

import pytest

from csi.calls import MULTI_READER, SINGLE_WRITER
from csi.driver import NODE
from csi.test_csi import (  # noqa: F401 (reflinks is a fixture)
    CAP_SYS_RESOURCE, MIB, again, code_of, driver_of, ends_well, has_capability, need_loop, reflinks, tool,
)
from verdicts import eventually, expect, same

pytestmark = pytest.mark.servers("targe")


def refusal_of(call, *words, **keys):
    try:
        call(*words, **keys)
    except Exception as refused:  # the message is judged
        return str(refused)
    raise AssertionError(f"{call.__name__} {words} is not refused")


def state_of(image):
    return tool("dumpe2fs", "-h", image).split("Filesystem state:")[1].split("\n")[0].strip()


@pytest.mark.parametrize(("kind", "size"), [("ext4", 48 * MIB), ("xfs", 320 * MIB)])
def test_a_read_only_copy_of_a_volume_in_use_has_what_was_synced(request, tmp_path, reflinks, kind, size):  # noqa: F811
    pool = reflinks / f"journals-{kind}"
    pool.mkdir()
    driver = driver_of(request, tmp_path, pool=pool)
    calls = driver.calls
    staged, target = str(tmp_path / "staged"), str(tmp_path / "target")
    volume = calls.create("data", size)
    calls.stage(volume, staged, calls.publish(volume, NODE), kind=kind)
    calls.node_publish(volume, staged, target)
    for number in range(8):
        with open(f"{target}/{number}", "w") as file:
            file.write(f"synced {number}")
            file.flush()
            os.fsync(file.fileno())
    snapshot = again(calls.snapshot, "in use", volume)
    calls.node_unpublish(volume, target)
    calls.unstage(volume, staged)
    calls.unpublish(volume, NODE)
    copy = calls.create("copy", size, snapshot=snapshot)

    def read():
        context = calls.publish(copy, NODE, mode=MULTI_READER)
        calls.stage(copy, staged, context, kind=kind, mode=MULTI_READER)
        calls.node_publish(copy, staged, target, kind=kind, mode=MULTI_READER)
        for number in range(8):
            with open(f"{target}/{number}") as file:
                same("a file", file.read(), f"synced {number}")
        same("options", {"noload", "norecovery"} & set(tool("findmnt", "--noheadings", "--output", "OPTIONS", target).strip().split(",")), set())
        calls.node_unpublish(copy, target)
        calls.unstage(copy, staged)
        calls.unpublish(copy, NODE)

    if kind == "xfs":
        # No program but the kernel replays its journal.
        context = calls.publish(copy, NODE, mode=MULTI_READER)
        same("not replayed", code_of(calls.stage, copy, staged, context, mode=MULTI_READER), "FAILED_PRECONDITION")
        said = refusal_of(calls.stage, copy, staged, context, mode=MULTI_READER)
        expect("journal" in said and "for writing once" in said, said)
        calls.unstage(copy, staged)
        calls.unpublish(copy, NODE)
        calls.stage(copy, staged, calls.publish(copy, NODE), kind=kind)
        calls.unstage(copy, staged)
        calls.unpublish(copy, NODE)
    read()
    for one in (copy, volume):
        calls.delete(one)
    calls.delete_snapshot(snapshot)
    ends_well(request, driver)


def test_a_file_system_with_errors_is_checked_before_it_is_mounted(request, tmp_path):
    need_loop()
    driver = driver_of(request, tmp_path)
    calls = driver.calls
    staged, target = str(tmp_path / "staged"), str(tmp_path / "target")
    volume = calls.create("data", 64 * MIB)
    image = f"{driver.pool}/{volume}.img"
    calls.stage(volume, staged, calls.publish(volume, NODE), kind="ext4")
    same("condition", calls.condition(volume, staged), "")
    calls.unstage(volume, staged)
    calls.unpublish(volume, NODE)
    # What the kernel leaves when it met an inconsistency that a check repairs by itself.
    for command in ("ssv state 2", "ssv free_inodes_count 3"):
        tool("debugfs", "-w", "-R", command, image)
    if has_capability(CAP_SYS_RESOURCE):
        # The kernel enlarges no file system with errors.
        same("enlarged", calls.expand(volume, 128 * MIB), 128 * MIB)
    context = calls.publish(volume, NODE)
    calls.stage(volume, staged, context, kind="ext4")
    calls.node_publish(volume, staged, target)
    eventually(lambda: "e2fsck repaired" in driver.log(), lambda: f"the log tells of the repair: {driver.log()}")
    # The kernel turns it read-only: no pod gets it for writing any more, and the next stage checks it.
    tool("mount", "-o", "remount,ro", staged)
    expect("read-only after an error" in calls.condition(volume, staged), calls.condition(volume, staged))
    second = str(tmp_path / "second")
    same("published", code_of(calls.node_publish, volume, staged, second), "FAILED_PRECONDITION")
    calls.stage(volume, staged, context, kind="ext4")
    calls.node_unpublish(volume, target)
    calls.stage(volume, staged, context, kind="ext4")
    same("condition", calls.condition(volume, staged), "")
    calls.node_publish(volume, staged, target)
    open(f"{target}/new", "w").close()
    calls.node_unpublish(volume, target)
    calls.unstage(volume, staged)
    calls.unpublish(volume, NODE)
    # What only a person can decide about is refused, and left as it is.
    tool("debugfs", "-w", "-R", "clri <2>", image)
    tool("debugfs", "-w", "-R", "ssv state 2", image)
    context = calls.publish(volume, NODE)
    said = refusal_of(calls.stage, volume, staged, context, kind="ext4")
    expect("FAILED_PRECONDITION" in said and "e2fsck -p does not repair" in said, said)
    expect("errors" in state_of(image), state_of(image))
    calls.unstage(volume, staged)
    calls.unpublish(volume, NODE)
    calls.delete(volume)
    ends_well(request, driver)


def test_the_mount_options_of_the_caller_win(request, tmp_path):
    need_loop()
    driver = driver_of(request, tmp_path)
    calls = driver.calls
    staged, target = str(tmp_path / "staged"), str(tmp_path / "target")
    volume = calls.create("data", 48 * MIB)
    context = calls.publish(volume, NODE)
    same("a blank volume", code_of(calls.stage, volume, staged, context, flags=["ro"]), "FAILED_PRECONDITION")
    calls.unstage(volume, staged)
    calls.stage(volume, staged, context)
    open(f"{staged}/file", "w").close()
    calls.unstage(volume, staged)
    calls.expand(volume, 64 * MIB)
    for _ in range(2):
        calls.stage(volume, staged, context, flags=["noatime", "ro"])
        calls.node_publish(volume, staged, target, flags=["noatime", "ro"])
    options = tool("findmnt", "--noheadings", "--output", "OPTIONS", staged).strip().split(",")
    expect("ro" in options and "noatime" in options, options)
    with pytest.raises(OSError, match="Read-only file system"):
        open(f"{target}/new", "w")
    expect(calls.usage(volume, target)[0] < 48 * MIB, "it was enlarged")
    calls.node_unpublish(volume, target)
    calls.unstage(volume, staged)
    calls.unpublish(volume, NODE)
    calls.delete(volume)
    ends_well(request, driver)


@pytest.mark.parametrize("block", [False, True])
def test_a_single_writer_has_one_path(request, tmp_path, block):
    need_loop()
    driver = driver_of(request, tmp_path)
    calls = driver.calls
    staged, target, second = (str(tmp_path / name) for name in ("staged", "target", "second"))
    volume = calls.create("data", 48 * MIB, block=block)
    calls.stage(volume, staged, calls.publish(volume, NODE, block=block, mode=SINGLE_WRITER), block=block, mode=SINGLE_WRITER)
    for _ in range(2):
        calls.node_publish(volume, staged, target, block=block, mode=SINGLE_WRITER)
    same("a second path", code_of(calls.node_publish, volume, staged, second, block=block, mode=SINGLE_WRITER), "FAILED_PRECONDITION")
    expect(not os.path.exists(second), "the second path was made")
    calls.node_unpublish(volume, target)
    calls.node_publish(volume, staged, second, block=block, mode=SINGLE_WRITER)
    calls.node_unpublish(volume, second)
    calls.unstage(volume, staged)
    calls.unpublish(volume, NODE)
    calls.delete(volume)
    ends_well(request, driver)


@pytest.mark.parametrize("left", ["a superblock", "no superblock"])
def test_a_node_that_lost_its_power_in_mkfs_leaves_no_half_file_system(request, tmp_path, left):
    need_loop()
    programs = tmp_path / "programs"
    programs.mkdir()
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    driver = driver_of(request, tmp_path / "driver", environment=environment)
    staged = str(tmp_path / "staged")
    volume = driver.calls.create("data", 48 * MIB)
    context = driver.calls.publish(volume, NODE)
    mkfs = programs / "mkfs.ext4"
    # Of the first blocks, only the superblock reached the disk, or everything else.
    wipe = f'dd if=/dev/zero of="$device" bs=4096 conv=notrunc {"seek=1 count=2000" if left == "a superblock" else "count=1"}'
    mkfs.write_text(f"""#!/bin/sh
{shutil.which("mkfs.ext4")} "$@" || exit
for word in "$@"; do case "$word" in /dev/*) device=$word;; esac; done
{wipe}
sync "$device"
kill -9 $PPID
""")
    mkfs.chmod(0o755)
    same("killed", code_of(driver.calls.stage, volume, staged, context), "UNAVAILABLE")
    mkfs.unlink()
    # The node knows nothing any more; the daemon and the controller are elsewhere.
    daemon = driver.daemon
    driver.kill()
    driver.daemon = type("Nobody", (), {"kill": lambda self: None})()
    driver.clean_up()
    shutil.rmtree(driver.run_dir, ignore_errors=True)
    driver.daemon = daemon
    driver.start()
    calls = driver.calls
    calls.unpublish(volume, NODE)
    calls.stage(volume, staged, calls.publish(volume, NODE))
    open(f"{staged}/file", "w").close()
    calls.unstage(volume, staged)
    calls.unpublish(volume, NODE)
    done = subprocess.run(["e2fsck", "-fn", f"{driver.pool}/{volume}.img"], capture_output=True, text=True, check=False)
    same("e2fsck", done.returncode, 0)
    # From then on it is a file system like others.
    calls.stage(volume, staged, calls.publish(volume, NODE))
    expect(os.path.exists(f"{staged}/file"), "the file system was made again")
    calls.unstage(volume, staged)
    calls.unpublish(volume, NODE)
    calls.delete(volume)
    ends_well(request, driver)
