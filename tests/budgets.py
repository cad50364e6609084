"""What each stage of `tests/everything` may take, and how fast this machine is beside the one that the budgets were measured on.

A budget never fails a run. It ends a stage that hangs, at several times what the stage usually takes here, and it names at the end of a run
what has become dearer.
"""

import multiprocessing
import os
import time
import tomllib
from dataclasses import dataclass

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "budgets.toml")
# A stage is taken for hanging after this many times its usual time on this machine, and never sooner than LIMIT_MIN_S.
LIMIT_FACTOR, LIMIT_MIN_S = 5, 900
# What exceeds its processor time by half is named.
EXCESS = 1.5
# The additions of one process of the calibration.
STEPS = 6_000_000


@dataclass
class Machine:
    """How many times longer this machine takes than the reference, by the clock and of processors."""
    clock: float = 1
    processor: float = 1


def work(_=None):
    """A fixed piece of work; returns the seconds of a processor that it took."""
    began, total = time.process_time(), 0
    for step in range(STEPS):
        total += step & 7
    return time.process_time() - began


def calibrate(reference):
    """Measures this machine with what else runs on it: a process for each of two processors, which is what the stages use."""
    began = time.monotonic()
    with multiprocessing.Pool(2) as pool:
        seconds = sum(pool.map(work, range(2)))
    return Machine(max(1, (time.monotonic() - began) / reference["clock_s"]), seconds / reference["processor_s"])


class Budgets:
    """The budgets of a file. `rows` has the seconds of each stage by its name."""

    def __init__(self, path=PATH):
        with open(path, "rb") as file:
            text = tomllib.load(file)
        self.reference, self.rows = text["calibration"], text["stage"]

    def limit_s(self, stage, machine):
        """After how many seconds by the clock a stage hangs."""
        usual = self.rows.get(stage, {}).get("clock_s", 0)
        return max(LIMIT_MIN_S, LIMIT_FACTOR * usual) * machine.clock

    def exceeded(self, took, machine):
        """Lines about stages that took much more of a processor than they may: `took` has the seconds of each."""
        for stage, seconds in took.items():
            row = self.rows.get(stage)
            if row is None:
                yield f"{stage}: tests/budgets.toml has no row for it; it took {seconds:.0f} s of processors"
            elif seconds > EXCESS * row["processor_s"] * machine.processor:
                yield (f"{stage}: {seconds:.0f} s of processors, {seconds / machine.processor:.0f} s on the reference machine; "
                       f"its budget is {row['processor_s']} s")
