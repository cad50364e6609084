"""Group snapshots of `targe csi`: one point in time, whole or nothing, also if the driver is killed."""

import contextlib
import os
import random
import threading
import time

import pytest

from csi.driver import NODE, WAIT_S
from csi.test_csi import MIB, Refused, again, code_of, driver_of, ends_well, reflinks
from verdicts import expect, same

pytestmark = pytest.mark.servers("targe")
__all__ = ["reflinks"]
ROUNDS, BLOCK = 8, 4096


class Counter(threading.Thread):
    """Writes increasing numbers to two block devices by turns, each when the other has it durably, until it is to stop."""

    def __init__(self, paths):
        super().__init__(daemon=True)
        self.files = [os.open(path, os.O_WRONLY | os.O_SYNC) for path in paths]
        self.number, self.wrong, self.ends = 0, None, threading.Event()

    def run(self):
        try:
            while not self.ends.is_set():
                for file in self.files:
                    os.pwrite(file, (self.number + 1).to_bytes(8) * (BLOCK // 8), MIB)
                self.number += 1
        except Exception as error:
            self.wrong = error
        for file in self.files:
            os.close(file)

    def go_on(self, number):
        deadline = time.monotonic() + WAIT_S
        while self.number <= number:
            expect(self.is_alive(), f"the writer has ended: {self.wrong}")
            expect(time.monotonic() < deadline, "no write ends")
            time.sleep(0.001)


def number_in(driver, snapshot):
    with open(f"{driver.pool}/{snapshot}.img", "rb") as image:
        image.seek(MIB)
        return int.from_bytes(image.read(8))


def fits(driver, members, volumes, least):
    """Whether the snapshots of the two volumes show one point in time."""
    by_volume = {volume: number_in(driver, snapshot) for snapshot, volume in members.items()}
    first, second = (by_volume[volume] for volume in volumes)
    expect(min(first, second) >= least, f"{first} and {second} are in the snapshots, and {least} was written before")
    return first - second in (0, 1)


@contextlib.contextmanager
def counting(driver, folder):
    """Two volumes that a node uses, and a writer that has begun."""
    calls = driver.calls
    volumes = [calls.create(name, 8 * MIB, block=True) for name in ("data", "log")]
    paths = [(str(folder / f"staged-{number}"), str(folder / f"target-{number}")) for number in (0, 1)]
    for volume, (staged, target) in zip(volumes, paths):
        calls.stage(volume, staged, calls.publish(volume, NODE, block=True), block=True)
        calls.node_publish(volume, staged, target, block=True)
    counter = Counter([target for _, target in paths])
    counter.start()
    try:
        counter.go_on(5)
        yield volumes, counter
    finally:
        counter.ends.set()
        counter.join(WAIT_S)
    expect(counter.wrong is None, f"a write failed: {counter.wrong}")
    for volume, (staged, target) in zip(volumes, paths):
        driver.calls.node_unpublish(volume, target)
        driver.calls.unstage(volume, staged)
        driver.calls.unpublish(volume, NODE)
        driver.calls.delete(volume)


def test_a_group_shows_one_point_in_time(request, tmp_path, reflinks):
    pool = reflinks / "groups"
    pool.mkdir()
    driver = driver_of(request, tmp_path, pool=pool)
    calls = driver.calls
    idle = calls.create("idle", 4 * MIB)
    with counting(driver, tmp_path) as (volumes, counter):
        for number in range(ROUNDS):
            least = counter.number
            # Every other group has a volume that no node uses.
            wanted = volumes + [idle] * (number % 2)
            group, members = again(calls.group, f"group {number}", wanted)
            same("the volumes", sorted(members.values()), sorted(wanted))
            expect(fits(driver, members, volumes, least), "the snapshots do not show one point in time")
            same("a repeated call", calls.group(f"group {number}", reversed(wanted)), (group, members))
            same("other volumes", code_of(calls.group, f"group {number}", [idle]), "ALREADY_EXISTS")
            same("the group", calls.known_group(group, members), (group, members))
            same("the list", calls.snapshots(), {one: (volume, group) for one, volume in members.items()})
            one = next(iter(members))
            same("one of them", code_of(calls.delete_snapshot, one), "INVALID_ARGUMENT")
            same("a part of it", code_of(calls.delete_group, group, [one]), "INVALID_ARGUMENT")
            counter.go_on(counter.number)
            if number == 0:
                calls.delete(calls.create("clone", 8 * MIB, block=True, snapshot=one))
            for _ in range(2):
                calls.delete_group(group, members)
            same("a group that is gone", code_of(calls.known_group, group, members), "NOT_FOUND")
        # The judge: snapshots that are made one after the other.
        wrong = 0
        for number in range(ROUNDS):
            members = {}
            for volume in volumes:
                members[again(calls.snapshot, f"{number} {volume}", volume)] = volume
                # Both volumes are written between the two snapshots.
                counter.go_on(counter.number + 1)
            wrong += not fits(driver, members, volumes, 0)
            for snapshot in members:
                calls.delete_snapshot(snapshot)
        expect(wrong, "single snapshots show one point in time")
    calls.delete(idle)
    ends_well(request, driver)


def test_a_driver_that_is_killed_leaves_whole_groups(request, tmp_path, reflinks, seed):
    chance = random.Random(seed)
    pool = reflinks / "killed"
    pool.mkdir()
    driver = driver_of(request, tmp_path, pool=pool)
    idle, interrupted = driver.calls.create("idle", 4 * MIB), 0
    with counting(driver, tmp_path) as (volumes, counter):
        wanted = volumes + [idle]
        for _ in range(2 * ROUNDS):
            killed, least = threading.Event(), counter.number

            def kill(delay=chance.uniform(0, 0.2), killed=killed, process=driver.process):
                time.sleep(delay)
                process.kill()
                killed.set()

            killer = threading.Thread(target=kill, daemon=True)
            killer.start()
            try:
                while not killed.is_set():
                    driver.calls.delete_group(*driver.calls.group("one", wanted))
            except Refused as refused:
                expect(killed.wait(WAIT_S), f"refused before the kill: {refused}")
                interrupted += 1
            killer.join()
            driver.kill()
            driver.start()
            known = driver.calls.snapshots()
            expect(len(known) in (0, 3) and len({group for _, group in known.values()}) <= 1, f"a part of a group is left: {known}")
            # The daemon may still be making copies for the driver that was killed.
            group, members = again(driver.calls.group, "one", wanted)
            same("the snapshots", sorted(driver.calls.snapshots()), sorted(members))
            expect(not known or set(known) == set(members), "a group was made twice")
            expect(fits(driver, members, volumes, least), "the snapshots do not show one point in time")
            driver.calls.delete_group(group, members)
            counter.go_on(counter.number)
    expect(interrupted > 0, "no call was interrupted")
    driver.calls.delete(idle)
    # What the daemon made for a driver that was killed goes with the next copy.
    volume = driver.calls.create("last", 4 * MIB)
    driver.calls.delete(volume)
    ends_well(request, driver)
