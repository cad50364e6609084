"""Copies of files by `targe lab hyperscsi`: every carrier has samples of both directions, and nothing is left, however the run ends."""

import os
import signal
import threading
import time

import pytest

from lab_runs import LAB_FOLDER, RUN_MAX_S, Lab, UnderWay, copy_traces, folders_of, wait_for
from quick_runs import PLANS

CARRIERS = {"local disk", "HyperSCSI", "iSCSI", "NFS"}
# Copies that are under way for long enough to be ended by a signal.
LONG = PLANS["copies"].replace("rounds = 2", "rounds = 5").replace('"2 1M", "30 4K"', '"8 4M"').replace("[0.0]", "[]")
# Longest until then, seconds: what comes before are the measurements without files.
COPIES_WITHIN_S = 400
LOOP_DEVICES = "/sys/block"
# How often they are looked at, seconds: a program that attaches one and another that changes it have more than that between them.
INTERVAL_S = 0.001


@pytest.fixture
def lab(tmp_path, loop_devices):
    """The experiment. How it ends is nothing but its report."""
    left = copy_traces()
    lab = Lab("hyperscsi", LONG, tmp_path)
    yield lab
    wait_for("the end of what the experiment made", lambda: copy_traces() <= left)
    wait_for("the end of its files", lambda: not os.listdir(lab.temporary))
    lab.expect_nothing_left()


def test_every_carrier_copies_both_ways(quick_copies):
    report = quick_copies.result
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
    run = copying(lab)
    run.process.send_signal(signal.SIGINT)
    told = run.end()
    assert run.process.returncode == 1 and "ended early" in told, told
    assert "of the copies" in lab.report()["ended"]["early"]


def test_a_killed_experiment_leaves_no_disk(lab):
    run = copying(lab)
    run.process.kill()
    # What a killed process leaves in its folder for temporary files is the target's, which ends by itself.
    run.end()


class LoopDevices(threading.Thread):
    """Looks at the loop devices of an experiment again and again: each must be one that the kernel detaches by itself, at any moment."""

    def __init__(self, process):
        super().__init__(daemon=True)
        self.process = process
        # The folders of this experiment, and of others.
        self.own, self.others = set(), set()
        self.seen, self.kept, self.ends = set(), set(), threading.Event()

    def run(self):
        while not self.ends.is_set():
            for name, detaches in self.devices():
                self.seen.add(name)
                if not detaches:
                    self.kept.add(name)
            time.sleep(INTERVAL_S)

    def devices(self):
        """The loop devices over files of the experiment, and whether the kernel detaches each when it is closed."""
        for name in os.listdir(LOOP_DEVICES):
            folder = f"{LOOP_DEVICES}/{name}/loop"
            try:
                with open(f"{folder}/autoclear") as flag, open(f"{folder}/backing_file") as backing:
                    behind, detaches = backing.read(), flag.read()
            except OSError:
                continue
            if (found := LAB_FOLDER.search(behind)) and self.is_own(found[0]):
                yield name, detaches == "1\n"

    def is_own(self, folder):
        if folder not in self.own | self.others:
            # The program that a folder belongs to runs before there is a loop device.
            (self.own if folder in folders_of(self.process) else self.others).add(folder)
        return folder in self.own


def test_no_moment_leaves_a_loop_device_behind(lab):
    """Killed at the moment at which its first disk appears, and until then watched."""
    process = lab.start()
    watch = LoopDevices(process)
    watch.start()
    wait_for("a disk", lambda: watch.seen or process.poll() is not None, COPIES_WITHIN_S)
    process.kill()
    process.communicate(timeout=RUN_MAX_S)
    wait_for("the end of its disks", lambda: not list(watch.devices()))
    watch.ends.set()
    watch.join()
    assert watch.seen and not watch.kept


def copying(lab):
    """An experiment whose copies are under way, as its progress line tells: every carrier has its disk."""
    run = UnderWay(lambda terminal: lab.start(stderr=terminal))
    wait_for("a copy", lambda: ", files " in run.progress(), COPIES_WITHIN_S)
    return run
