"""What a stage said: its verdicts, and whether each skip is one that somebody has given a reason for.

A stage is judged in one of three ways. `LINES`: it prints one line per verdict (`PASS name`, `FAIL name: why`, `SKIP name: why`).
`TESTS`: it is `cargo test ... -- --show-output`, whose summaries, ignored tests and tests that return early are counted; a test
that cannot be run here prints `skipped: why` or `SKIP name: why`, and that is a skip although libtest calls it a pass.
`EXIT_CODE`: its exit code is its only verdict.
"""

import re
import tomllib
from dataclasses import dataclass, field

LINES, TESTS, EXIT_CODE = "lines", "tests", "exit code"

CARGO_SUMMARY = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")
CARGO_IGNORED = re.compile(r"^test (.+?) \.\.\. ignored")
CARGO_BINARY = re.compile(r"^\s+(?:Running|Doc-tests) (.+?)(?: \(.*\))?$")
CARGO_OUTPUT = re.compile(r"^---- (.+) stdout ----$")
CARGO_SKIPPED = re.compile(r"^(?:skipped: |SKIP )(.*)")


@dataclass
class Tally:
    """How many verdicts of each kind there were. `skips` has the text of each skip."""
    passed: int = 0
    failed: int = 0
    skips: list = field(default_factory=list)

    def verdicts(self):
        return self.passed + self.failed + len(self.skips)

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skips += other.skips


class Lines:
    """Reads a stage that prints a line per verdict."""

    def __init__(self, tally):
        self.tally = tally

    def read(self, line):
        """Counts the verdict that a line holds, if any. Returns whether the line is worth showing."""
        kind, _, text = line.rstrip("\n").partition(" ")
        if kind == "PASS":
            self.tally.passed += 1
        elif kind == "FAIL":
            self.tally.failed += 1
        elif kind == "SKIP":
            self.tally.skips.append(text)
        return True


class Tests:
    """Reads `cargo test`. What tests that passed have printed is looked at for skips, and not shown."""

    def __init__(self, tally):
        self.tally = tally
        self.binary = "a test"
        # Whose output this is, and whether it is that of tests that passed.
        self.test = None
        self.among_passed = False
        # Tests of this binary that were named as ignored, and those that skipped.
        self.ignored = 0
        self.skipped = set()

    def read(self, line):
        line = line.rstrip("\n")
        if summary := CARGO_SUMMARY.match(line):
            self.sum_up(*map(int, summary.groups()))
        elif line in ("successes:", "failures:"):
            self.among_passed, self.test = line == "successes:", None
            return not self.among_passed
        elif output := CARGO_OUTPUT.match(line):
            self.test = output[1]
        elif skipped := CARGO_SKIPPED.match(line):
            self.skip(skipped[1])
            return True
        elif not self.among_passed:
            self.look_for_names(line)
        return not self.among_passed

    def sum_up(self, passed, failed, ignored):
        self.tally.passed += passed - len(self.skipped)
        self.tally.failed += failed
        self.tally.skips += [f"{self.binary}: an ignored test without a name"] * (ignored - self.ignored)
        self.among_passed, self.test, self.ignored = False, None, 0
        self.skipped.clear()

    def skip(self, why):
        self.tally.skips.append(f"{self.test or self.binary}: {why}")
        if self.among_passed and self.test:
            self.skipped.add(self.test)

    def look_for_names(self, line):
        if binary := CARGO_BINARY.match(line):
            self.binary = binary[1]
        elif ignored := CARGO_IGNORED.match(line):
            self.ignored += 1
            self.tally.skips.append(f"{ignored[1]}: ignored")


class Nothing:
    """Reads a stage whose exit code is its verdict."""

    def __init__(self, tally):
        self.tally = tally

    def read(self, line):
        return True


READERS = {LINES: Lines, TESTS: Tests, EXIT_CODE: Nothing}


def conclude(judged, tally, code):
    """Counts how a stage ended. Returns what is to be told of it, if anything."""
    if code != 0 and tally.failed == 0:
        tally.failed += 1
        return f"exit code {code}"
    if code == 0 and judged == EXIT_CODE:
        tally.passed += 1
    elif tally.verdicts() == 0:
        tally.failed += 1
        return "it ended well and has judged nothing"
    return None


def in_ci(environment):
    """Whether a skip without a reason is a failure: where CI runs, which says so by the variable CI, with 1 or true as it likes."""
    return environment.get("CI", "").lower() not in ("", "0", "false")


class Excuses:
    """The skips that somebody has given a reason for: `skips.toml`."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.entries = tomllib.load(file).get("skip", [])
        self.used = set()
        for entry in self.entries:
            if set(entry) != {"stage", "name", "reason"} or not all(entry.values()):
                raise ValueError(f"{path}: an entry has a stage, a name and a reason: {entry}")

    def unlisted(self, stage, skips):
        """Those skips of a stage that no entry names."""
        return [skip for skip in skips if not self.excuses(stage, skip)]

    def excuses(self, stage, skip):
        fitting = [number for number, entry in enumerate(self.entries) if entry["stage"] == stage and re.search(entry["name"], skip)]
        self.used.update(fitting)
        return bool(fitting)

    def stale(self, stages):
        """Entries for stages that ran which name nothing that was skipped."""
        return [entry for number, entry in enumerate(self.entries) if number not in self.used and entry["stage"] in stages]
