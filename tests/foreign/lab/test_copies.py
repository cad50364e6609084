"""Copies of files by `targe lab hyperscsi`: every carrier has samples of both directions, and nothing is left, however the run ends."""

import glob
import os
import re
import signal
import subprocess

import pytest

import namespaces
from lab_runs import Lab, wait_for

PLAN = """
rounds = 2
seconds = 0.05
warmup = 0.0
link = ["unshaped"]
mtu = [1500]
workload = ["read 64K 4"]
loss = []
traffic = []
copy = ["2 1M", "30 4K"]
copy_link = ["1G"]
"""
# The programs that copies start: all of them have the folder of the copies among their arguments, but one.
PROGRAM = re.compile(r"targe-lab-[0-9a-f]{16}|rpcbind")
CARRIERS = {"local disk", "HyperSCSI", "iSCSI", "NFS"}
# Copies that are under way for long enough to be ended by a signal.
LONG = PLAN.replace("rounds = 2", "rounds = 8").replace('"2 1M", "30 4K"', '"8 4M"')
# Longest until then, seconds: what comes before are the measurements without files.
COPIES_WITHIN_S = 90


@pytest.fixture
def lab(tmp_path, root):
    """The experiment. How it ends is nothing but its report."""
    if not namespaces.is_real_root() or not os.path.exists("/dev/loop-control"):
        pytest.skip("disks for file systems need root of the machine and loop devices")
    left = traces()
    lab = Lab("hyperscsi", PLAN, tmp_path)
    yield lab
    wait_for("the end of what the experiment made", lambda: traces() == left)
    lab.expect_nothing_left()


def traces():
    """What copies could leave behind: loop devices, mounts, files in memory, and programs."""
    loops = subprocess.run(["losetup", "--list", "--noheadings", "--output=NAME"], capture_output=True, text=True, check=True).stdout
    with open("/proc/self/mounts") as mounts:
        mounted = mounts.read()
    listed = subprocess.run(["ps", "-eo", "stat=,pid=,args="], capture_output=True, text=True, check=True).stdout
    # A program that has ended may wait for long to be reaped by the machine's init.
    programs = [line for line in listed.splitlines() if PROGRAM.search(line) and not line.startswith("Z")]
    return sorted(loops.split()), mounted, sorted(glob.glob("/dev/shm/targe-lab-*")), programs


def test_every_carrier_copies_both_ways(lab):
    lab.run()
    report = lab.report()
    copies = {}
    for metric in report["metrics"]:
        about = dict(metric["circumstances"])
        if "files" in about:
            copies.setdefault((metric["quantity"], about["files"]), {})[about["protocol"], about["direction"]] = metric["samples"]
    absent = next(section for section in report["sections"] if section["title"] == "Not measured")["tables"][0]["rows"]
    assert not [row for row in absent if "copies" in row[0]["text"]], absent
    both = ("to the disk", "from the disk")
    for files, carriers in (("2 1M", CARRIERS), ("30 4K", CARRIERS - {"NFS"})):
        throughput = copies["throughput of a copy", files]
        assert set(throughput) == {(carrier, way) for carrier in carriers for way in both}
        for (carrier, way), samples in throughput.items():
            assert len(samples) == 2 and min(samples) > 0
            # Nothing is faster than the wire, but for what the bucket holds.
            assert carrier == "local disk" or max(samples) < 125 * 1.25, (files, carrier, way, samples)
        assert set(copies["system calls of a copy", files]) == set(throughput)
        assert {carrier for carrier, _ in copies["packets of a copy", files]} == carriers - {"local disk"}
        # A frame carries less than 1500 bytes, so that a GB takes more than so many packets there and back.
        for (carrier, way), samples in copies["packets of a copy", files].items():
            assert min(samples) > 1e9 / 1500, (files, carrier, way, samples)


def test_a_signal_during_the_copies_leaves_a_partial_report(lab):
    process = lab.start(plan=LONG)
    wait_for_copies(process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "ended early" in errors
    assert "of the copies" in lab.report()["ended"]["early"]


def test_a_killed_experiment_leaves_no_disk(lab):
    process = lab.start(plan=LONG)
    wait_for_copies(process)
    process.kill()
    process.communicate(timeout=60)
    # What a killed process leaves in its folder for temporary files is the target's, which ends by itself.
    wait_for("the end of the target", lambda: os.listdir(lab.temporary) == [])


def wait_for_copies(process):
    """Waits until every carrier has its disk, and copies are under way."""
    def has_disks():
        assert process.poll() is None, process.communicate()
        loops = subprocess.run(["losetup", "--list", "--noheadings", "--output=BACK-FILE"], capture_output=True, text=True).stdout
        return sum("targe-lab-" in line or line.strip() == "/disk" for line in loops.splitlines()) >= 4
    wait_for("a disk of every carrier", has_disks, COPIES_WITHIN_S)
