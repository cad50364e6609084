"""Named cases: how they are kept, and run each in a process of its own.

A case may bend what the second implementation does, keeps what it likes busy, and may hang: a process ends all of it.
"""

import collections
import contextlib
import functools
import io
import os
import random
import re
import signal
import time

import servers
import withheld

# Cases that wait most of their time run beside the one that works.
BESIDE = 3
# Longest a case may take, seconds; what the machine withheld from it comes on top.
CASE_MAX_S = 60
# How often a case is begun for which the machine was too late.
TRIES = 5
KINDS = ("PASS", "FAIL", "SKIP")
CASES = []
Case = collections.namedtuple("Case", "name function options waits")


def add(judged, function, variant, options, waits):
    """Keeps a case under its name: what is judged, and what the function is called, in words."""
    name = f"{judged}: {function.__name__.replace('_', ' ')}" + (f", {variant}" if variant else "")
    CASES.append(Case(name, function, options, waits))


def run_all(verdicts, seed, only):
    """Runs the cases whose names match, those that wait beside the others."""
    chosen = [case for case in CASES if re.search(only, case.name)]
    todo = {waits: collections.deque(case for case in chosen if case.waits == waits) for waits in (False, True)}
    running = {}
    while running or any(todo.values()):
        for waits, most in ((False, 1), (True, BESIDE)):
            while todo[waits] and sum(case.waits == waits for case, _ in running.values()) < most:
                case = todo[waits].popleft()
                process = start(verdicts, case, seed)
                running[process] = case, withheld.Limit(CASE_MAX_S, withheld.Waits(functools.partial(withheld.family, process)))
        time.sleep(0.01)
        for process, (case, limit) in list(running.items()):
            if over(verdicts, process, case, limit):
                del running[process]


def start(verdicts, case, seed):
    verdicts.before = dict(verdicts.counts)
    process = os.fork()
    if process:
        return process
    try:
        servers.die_with_parent()
        random.seed(seed)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            verdicts.judge(f"{case.name}, seed {seed}", tell, case, seed)
        # In one piece, as others say something too.
        os.write(1, said.getvalue().encode())
        # This process has a copy of the counts; its exit code tells which one it raised.
        os._exit(next(index for index, kind in enumerate(KINDS) if verdicts.counts[kind] > verdicts.before[kind]))
    finally:
        os._exit(len(KINDS))


def tell(case, seed):
    for left in reversed(range(TRIES)):
        try:
            told = case.function(seed, **case.options)
            break
        except withheld.Late as late:
            if not left:
                raise
            print(f"  {case.name}: begun anew: {late}", flush=True)
    if told:
        print(f"  {case.name}: {told}", flush=True)


def over(verdicts, process, case, limit):
    """Whether a case is over; its verdict is counted."""
    ended, status = os.waitpid(process, os.WNOHANG)
    if not ended and not limit.over():
        return False
    if not ended:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        verdicts.add("FAIL", case.name, f"not over within {CASE_MAX_S} s")
    elif (code := os.waitstatus_to_exitcode(status)) in range(len(KINDS)):
        verdicts.counts[KINDS[code]] += 1
    else:
        verdicts.add("FAIL", case.name, f"its process ended with {code}")
    return True


def out():
    path = os.path.join(servers.OUT, "second")
    os.makedirs(path, exist_ok=True)
    return path
