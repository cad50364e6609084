"""A node whose access was taken away without a call to it, as a cluster does with a node that does not answer, and which gets the
volume again after another node has used it."""

import contextlib
import hashlib
import os
import subprocess

from csi.driver import NODE, WAIT_S
from csi.test_csi import MIB, code_of, driver_of, ends_well, need_loop, pytestmark, tool
from verdicts import expect, same

__all__ = ["pytestmark"]


@contextlib.contextmanager
def used_by_another_node(driver, volume):
    """The file system of a volume that no node has at present, mounted elsewhere."""
    folder = os.path.join(driver.folder, "another-node")
    os.makedirs(folder, exist_ok=True)
    tool("mount", "-o", "loop", image_of(driver, volume), folder)
    try:
        yield folder
    finally:
        tool("umount", folder)


def image_of(driver, volume):
    return os.path.join(driver.pool, f"{volume}.img")


def write(path, text):
    with open(path, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read(path, length=None):
    with open(path, "rb") as file:
        return file.read(length).decode()


def end(driver, volume, staged, target):
    driver.calls.node_unpublish(volume, target)
    driver.calls.unstage(volume, staged)
    driver.calls.unpublish(volume, NODE)
    driver.calls.delete(volume)


def test_a_node_that_was_fenced_reads_what_another_node_wrote(request, tmp_path):
    need_loop()
    driver = driver_of(request, tmp_path)
    calls = driver.calls
    staged, target = str(tmp_path / "staged"), str(tmp_path / "target")
    volume = calls.create("moves", 48 * MIB)
    calls.stage(volume, staged, calls.publish(volume, NODE))
    calls.node_publish(volume, staged, target)
    write(f"{target}/file", "of this node")
    same("cached", read(f"{target}/file"), "of this node")
    calls.unpublish(volume, NODE)
    with used_by_another_node(driver, volume) as elsewhere:
        same("what the other node finds", read(f"{elsewhere}/file"), "of this node")
        write(f"{elsewhere}/file", "of the other node")
    # Neither the old mounts nor the old device serve the new publication.
    calls.stage(volume, staged, calls.publish(volume, NODE))
    calls.node_publish(volume, staged, target)
    same("what the node reads", read(f"{target}/file"), "of the other node")
    end(driver, volume, staged, target)
    ends_well(request, driver)


def test_a_block_device_of_a_fenced_node_is_replaced_where_it_is_published(request, tmp_path):
    need_loop()
    driver = driver_of(request, tmp_path)
    calls = driver.calls
    staged, target = str(tmp_path / "staged"), str(tmp_path / "target")
    volume = calls.create("raw", 8 * MIB, block=True)
    calls.stage(volume, staged, calls.publish(volume, NODE, block=True), block=True)
    calls.node_publish(volume, staged, target, block=True)
    with open(target, "r+b") as device:
        device.write(b"old " * 1024)
        device.flush()
        os.fsync(device.fileno())
    calls.unpublish(volume, NODE)
    with open(image_of(driver, volume), "r+b") as image:
        same("what was written", image.read(4), b"old ")
        image.seek(0)
        image.write(b"new " * 1024)
    calls.stage(volume, staged, calls.publish(volume, NODE, block=True), block=True)
    calls.node_publish(volume, staged, target, block=True)
    same("what the node reads", read(target, 4096), "new " * 1024)
    end(driver, volume, staged, target)
    ends_well(request, driver)


def test_a_node_that_was_fenced_while_it_made_a_file_system_makes_no_other(request, tmp_path):
    need_loop()
    programs = tmp_path / "programs"
    programs.mkdir()
    failing = programs / "mkfs.ext4"
    failing.write_text("#!/bin/sh\necho planted >&2\nexit 1\n")
    failing.chmod(0o755)
    driver = driver_of(request, tmp_path / "driver", environment={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"})
    calls = driver.calls
    staged, target = str(tmp_path / "staged"), str(tmp_path / "target")
    volume = calls.create("unfinished", 48 * MIB)
    same("no file system", code_of(calls.stage, volume, staged, calls.publish(volume, NODE)), "INTERNAL")
    failing.unlink()
    calls.unpublish(volume, NODE)
    subprocess.run(["mkfs.ext4", "-q", image_of(driver, volume)], check=True, timeout=WAIT_S)
    with used_by_another_node(driver, volume) as elsewhere:
        write(f"{elsewhere}/file", "of the other node")
    calls.stage(volume, staged, calls.publish(volume, NODE))
    calls.node_publish(volume, staged, target)
    same("what the node reads", read(f"{target}/file"), "of the other node")
    end(driver, volume, staged, target)
    ends_well(request, driver)


def test_a_volume_that_a_node_may_only_read_has_its_journal_replayed_before_it_reads(request, tmp_path):
    need_loop()
    driver = driver_of(request, tmp_path)
    calls = driver.calls
    staged, target = str(tmp_path / "staged"), str(tmp_path / "target")
    volume = calls.create("crashed", 48 * MIB)
    calls.stage(volume, staged, calls.publish(volume, NODE))
    calls.node_publish(volume, staged, target)
    write(f"{target}/file", "before the crash")
    # The journal is left to be replayed: nothing was unmounted.
    calls.unpublish(volume, NODE)
    said = tool("dumpe2fs", "-h", image_of(driver, volume))
    expect("needs_recovery" in said, said)
    # The controller does that, and the node changes nothing.
    published = calls.publish(volume, NODE, read_only=True)
    said = tool("dumpe2fs", "-h", image_of(driver, volume))
    expect("needs_recovery" not in said, said)
    before = digest(image_of(driver, volume))
    calls.stage(volume, staged, published)
    calls.node_publish(volume, staged, target)
    os.listdir(target)
    end_of_image = digest(image_of(driver, volume))
    same("the image", end_of_image, before)
    end(driver, volume, staged, target)
    ends_well(request, driver)


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
