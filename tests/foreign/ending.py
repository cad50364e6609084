"""How a daemon of ours ended: what every rig asks of it, whatever else it judges.

Before it is told to end it counts no bug of its own (`targe status --json`, `bugs`); then it ends by itself with exit code 0, and its
log has no panic.
"""

import json

# What a panic of any thread leaves in the log.
PANIC = "panicked at"


def bugs(status):
    """What is wrong with the answer of `targe status --json`, if anything."""
    count = json.loads(status).get("bugs")
    return [] if count == 0 else [f"it counts {count} bugs of its own"]


def panics(log):
    """What is wrong with a log, if anything."""
    said = [line.strip() for line in log.splitlines() if PANIC in line]
    return [f"{len(said)} panics: {said[0]}"] if said else []


def expect_sound(name, faults, code, log):
    """Raises unless a daemon that was told to end did so as it should. `faults` are those that were found before."""
    faults = faults + panics(log) + ([f"it ended with {code}"] if code != 0 else [])
    if faults:
        raise AssertionError(f"{name}: {'; '.join(faults)}; its log ends: {' / '.join(log.splitlines()[-6:])}")
