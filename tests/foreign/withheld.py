"""How long the machine withheld its processors from a rig and from what the rig judges.

A rule that something comes within a time is about the program, not about the machine. The kernel counts for every thread how long
it could have run and had to wait for a processor (`schedstat`). A `Limit` is extended by what the thread waited that waited the
longest: by nothing on a machine that is idle, and never by more than the time that passes.
"""

import os
import threading
import time


class Late(Exception):
    """Raised where the machine withheld so much that nothing can be judged; its text says what was late. The case is begun anew."""


class Waits:
    """Seconds that processors were withheld from processes, as far as is known: of each span from one reading to the next, the
    longest that one thread waited. `processes` returns their numbers."""

    def __init__(self, processes):
        self.processes, self.seen, self.sum, self.lock = processes, {}, 0.0, threading.Lock()
        self()

    def __call__(self):
        with self.lock:
            now = {}
            for process in self.processes():
                now |= waits_of(process)
            self.sum += max((waited - self.seen.get(thread, 0) for thread, waited in now.items()), default=0) / 1e9 if self.seen else 0
            self.seen |= now
            return self.sum

    def add(self, process):
        """What this process waited until now does not count."""
        with self.lock:
            self.seen |= waits_of(process)


def waits_of(process):
    """Nanoseconds that each thread of a process has waited; nothing where the kernel does not tell, or once the process has ended."""
    found = {}
    try:
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/schedstat") as file:
                found[process, thread] = int(file.read().split()[1])
    except (OSError, IndexError):
        pass
    return found


def family(process):
    """A process and all that it started, as far as they live."""
    found = [process]
    for each in found:
        try:
            for thread in os.listdir(f"/proc/{each}/task"):
                with open(f"/proc/{each}/task/{thread}/children") as file:
                    found += map(int, file.read().split())
        except OSError:
            continue
    return found


# What is judged beside this process itself.
JUDGED = []
total = Waits(lambda: [os.getpid(), *JUDGED])


def count(process):
    """The waits of this process count from now on."""
    total.add(process)
    JUDGED.append(process)


class Limit:
    """A time within which something must happen, from now on."""

    def __init__(self, seconds, waits=total):
        self.waits, self.counted, self.end = waits, waits(), time.monotonic() + seconds

    def left(self):
        """Seconds that are left; below 0 once it is over."""
        if time.monotonic() > self.end:
            waited = self.waits()
            self.end += waited - self.counted
            self.counted = waited
        return self.end - time.monotonic()

    def over(self):
        return self.left() < 0


class Standstill(threading.Thread):
    """Knows, while it is entered, the longest time for which nothing here went on, seconds: `longest`. The kernel does not count for a thread
    what a hypervisor gives to others, nor what a sleeping thread is late."""

    INTERVAL_S = 0.01

    def __init__(self):
        super().__init__(daemon=True)
        self.longest, self.ends = 0.0, threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.join()

    def run(self):
        before, is_over = time.monotonic(), False
        while not is_over:
            is_over = self.ends.wait(self.INTERVAL_S)
            now = time.monotonic()
            self.longest = max(self.longest, now - before - self.INTERVAL_S)
            before = now


def sleep(seconds):
    """Sleeps until others have had that long."""
    limit = Limit(seconds)
    while (left := limit.left()) > 0:
        time.sleep(left)
