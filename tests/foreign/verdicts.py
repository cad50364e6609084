"""How a rig says what it wants, and waits for what comes by itself."""

import time

# How long a rig waits for what must happen, seconds. What is judged is that it happens: on a machine that has nothing else to do
# it takes a small part of this.
PATIENCE_S = 60


def expect(holds, what):
    """An assertion with words."""
    __tracebackhide__ = True
    if not holds:
        raise AssertionError(what)


def same(what, found, wanted):
    """What was found has to be what was wanted."""
    __tracebackhide__ = True
    expect(found == wanted, f"{what}: {found!r}, and not {wanted!r}")


def eventually(condition, what, seconds=PATIENCE_S):
    """Waits until a condition is true, and returns what it returned. `what` says what is waited for, or is a function that says it at the end:
    a log, a counter or a file shows a thing a while after the answer of the program that did it."""
    __tracebackhide__ = True
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"within {seconds:.0f} s it is not so: {what() if callable(what) else what}")
        time.sleep(0.01)
    return found
