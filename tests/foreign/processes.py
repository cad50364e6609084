"""Tests that run each in a process of its own, those that mostly wait beside the one that works.

Such a test may bend what its modules do, keep what it likes busy, and hang: its process ends all of it.
"""

import functools
import gc
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback

import pytest

import servers
import withheld

# How many tests that mostly wait run beside the others.
BESIDE = 3
PROCESSES = pytest.StashKey()


def of_session(session):
    if PROCESSES not in session.stash:
        session.stash[PROCESSES] = Processes(session.items)
    return session.stash[PROCESSES]


class Processes:
    def __init__(self, items):
        waiting = [item for item in items if item.get_closest_marker("waits")]
        self.waiting = sorted(waiting, key=lambda item: -item.get_closest_marker("waits").args[0])
        self.started = {}

    def judge(self, item):
        """Runs a test to its end, and raises what it raised."""
        __tracebackhide__ = True
        if item in self.waiting:
            self.waiting.remove(item)
        process = self.started.pop(item, None) or Process(item)
        while not process.is_over():
            self.start_waiting(item.path.parent)
            time.sleep(0.01)
        process.tell()

    def start_waiting(self, folder):
        """Starts tests of a rig that mostly wait, as many as may run beside others."""
        under_way = sum(not process.is_over() for process in self.started.values())
        of_this_rig = [item for item in self.waiting if item.path.parent == folder]
        for item in of_this_rig[:max(0, BESIDE - under_way)]:
            self.waiting.remove(item)
            self.started[item] = Process(item)


class Process:
    """A test that runs in a process of its own."""

    def __init__(self, item):
        self.limit_s = item.get_closest_marker("own_process").kwargs["limit_s"]
        self.said, self.result = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        self.status = None
        self.id = os.fork()
        if self.id == 0:
            self.run(item)
        # What the machine withholds from the test comes on top.
        self.limit = withheld.Limit(self.limit_s, withheld.Waits(functools.partial(withheld.family, self.id)))

    def run(self, item):
        """The test, in its process."""
        try:
            servers.die_with_parent()
            # What pytest has in memory is never looked through for garbage here, which takes its time.
            gc.freeze()
            for descriptor in (1, 2):
                os.dup2(self.said.fileno(), descriptor)
            sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)
            json.dump(outcome_of(item), self.result)
            self.result.flush()
        finally:
            os._exit(0)

    def is_over(self):
        if self.status is not None:
            return True
        ended, status = os.waitpid(self.id, os.WNOHANG)
        if ended:
            self.status = f"its process ended with {os.waitstatus_to_exitcode(status)} and no verdict"
        elif self.limit.over():
            os.kill(self.id, signal.SIGKILL)
            os.waitpid(self.id, 0)
            self.status = f"not over within {self.limit_s} s"
        return self.status is not None

    def tell(self):
        """Prints what the test printed, and raises what it raised."""
        __tracebackhide__ = True
        with self.said, self.result:
            self.said.seek(0)
            self.result.seek(0)
            print(self.said.read(), end="")
            text = self.result.read()
        kind, why = json.loads(text) if text else ("failed", self.status)
        if kind == "skipped":
            pytest.skip(why)
        if kind == "failed":
            pytest.fail(why, pytrace=False)


def outcome_of(item):
    """Calls a test; returns how it ended, and why."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    seed = item.config.getoption("seed")
    arguments = {"seed": 1 if seed is None else seed} | parameters
    random.seed(arguments["seed"])
    try:
        item.obj(**{name: arguments[name] for name in item._fixtureinfo.argnames})
    except pytest.skip.Exception as skip:
        return "skipped", str(skip)
    except BaseException as failure:
        where = traceback.extract_tb(failure.__traceback__)[-1]
        shown = "".join(traceback.format_exception(failure))
        return "failed", f"{type(failure).__name__}: {failure} ({os.path.basename(where.filename)}:{where.lineno})\n\n{shown}"
    return "passed", ""
