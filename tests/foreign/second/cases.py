"""Named cases: how they are kept. Each runs in a process of its own (processes.py).

A case may bend what the second implementation does, keeps what it likes busy, and may hang: a process ends all of it.
"""

import collections
import os

import servers
import withheld

# Longest a case may take, seconds; what the machine withheld from it comes on top.
CASE_MAX_S = 180
# How often a case is begun for which the machine was too late.
TRIES = 5
# A case that fails while nothing went on for so long, seconds, is begun anew: times are judged here that are shorter.
STANDSTILL_S = 0.3
CASES = []
Case = collections.namedtuple("Case", "name function options waits")


def add(judged, function, variant, options, waits):
    """Keeps a case under its name: what is judged, and what the function is called, in words."""
    name = f"{judged}: {function.__name__.replace('_', ' ')}" + (f", {variant}" if variant else "")
    CASES.append(Case(name, function, options, waits))


def tell(case, seed):
    for left in reversed(range(TRIES)):
        with withheld.Standstill() as standstill:
            try:
                told = case.function(seed, **case.options)
                break
            except withheld.Late as late:
                if not left:
                    raise
                why = str(late)
            except Exception as failure:
                if not left or standstill.longest < STANDSTILL_S:
                    raise
                why = f"nothing went on for {standstill.longest:.2f} s, and {failure!r}"
        print(f"  {case.name}: begun anew: {why}", flush=True)
    if told:
        print(f"  {case.name}: {told}", flush=True)


def out():
    path = os.path.join(servers.OUT, "second")
    os.makedirs(path, exist_ok=True)
    return path
