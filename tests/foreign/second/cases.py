"""Named cases: how they are kept. Each runs in a process of its own (processes.py).

A case may bend what the second implementation does, keeps what it likes busy, and may hang: a process ends all of it.
"""

import collections
import os

import servers
import withheld

# Longest a case may take, seconds; what the machine withheld from it comes on top.
CASE_MAX_S = 60
# How often a case is begun for which the machine was too late.
TRIES = 5
CASES = []
Case = collections.namedtuple("Case", "name function options waits")


def add(judged, function, variant, options, waits):
    """Keeps a case under its name: what is judged, and what the function is called, in words."""
    name = f"{judged}: {function.__name__.replace('_', ' ')}" + (f", {variant}" if variant else "")
    CASES.append(Case(name, function, options, waits))


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


def out():
    path = os.path.join(servers.OUT, "second")
    os.makedirs(path, exist_ok=True)
    return path
