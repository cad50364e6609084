"""What a stage of `tests/everything` found: its verdicts, and whether each skip is one that somebody has given a reason for.

A stage is judged in one of four ways. `RIG`: it is pytest, which writes a JUnit file. `LINES`: it prints one line per verdict
(`PASS name`, `FAIL name: why`, `SKIP name: why`). `TESTS`: it is `cargo test ... -- --show-output`, whose summaries, ignored tests and
tests that return early are counted; a test that cannot be run here prints `skipped: why` or `SKIP name: why`, and that is a skip although
libtest calls it a pass. `EXIT_CODE`: its exit code is its only verdict.
"""

import os
import re
import tomllib
import xml.etree.ElementTree
from dataclasses import dataclass, field

RIG, LINES, TESTS, EXIT_CODE = "rig", "lines", "tests", "exit code"

CARGO_SUMMARY = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")
CARGO_ENDED = re.compile(r"^test (.+?)(?: - should panic)? \.\.\. (ignored|FAILED)")
CARGO_BINARY = re.compile(r"^\s+(?:Running|Doc-tests) (.+?)(?: \(.*\))?$")
CARGO_OUTPUT = re.compile(r"^---- (.+) stdout ----$")
CARGO_SKIPPED = re.compile(r"^(?:skipped: |SKIP )(.*)")
# Lines of its output that say why a command failed.
ERROR = re.compile(r"^(error|Error|ERROR|Diff in|.*panicked at|warning: unused)")
# Longest reason that is kept of one failure, characters, and lines of the output of a test that are part of it.
REASON_MAX, REASON_LINES = 1500, 6


@dataclass
class Tally:
    """The verdicts. `failures` and `skips` have a text each: a name and why. `expected` counts failures that a list names."""
    passed: int = 0
    failures: list = field(default_factory=list)
    skips: list = field(default_factory=list)
    expected: int = 0

    def verdicts(self):
        return self.passed + self.expected + len(self.failures) + len(self.skips)

    def add(self, other):
        self.passed += other.passed
        self.failures += other.failures
        self.skips += other.skips
        self.expected += other.expected


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
            self.tally.failures.append(text)
        elif kind == "SKIP":
            self.tally.skips.append(text)
        return True

    def why(self):
        return ""


class Tests:
    """Reads `cargo test`. What tests that passed have printed is looked at for skips, and not shown."""

    def __init__(self, tally):
        self.tally = tally
        self.binary = "a test"
        # Whose output this is, and whether it is that of tests that passed.
        self.test = None
        self.among_passed = False
        # Tests of this binary that were named as ignored, those that skipped, and what those that failed printed.
        self.ignored = 0
        self.skipped = set()
        self.failed = {}
        self.errors = []

    def read(self, line):
        line = line.rstrip("\n")
        if ERROR.match(line):
            self.errors.append(line)
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
        elif self.test in self.failed and line and not self.among_passed:
            self.failed[self.test].append(line.strip())
        elif not self.among_passed:
            self.look_for_names(line)
        return not self.among_passed

    def sum_up(self, passed, failed, ignored):
        self.tally.passed += passed - len(self.skipped)
        told = [f"{self.binary}, {name}: {' '.join(said[:REASON_LINES])}"[:REASON_MAX] for name, said in self.failed.items()]
        self.tally.failures += told + [f"{self.binary}: a failed test without a name"] * (failed - len(told))
        self.tally.skips += [f"{self.binary}: an ignored test without a name"] * (ignored - self.ignored)
        self.among_passed, self.test, self.ignored = False, None, 0
        self.skipped.clear()
        self.failed.clear()

    def skip(self, why):
        self.tally.skips.append(f"{self.test or self.binary}: {why}")
        if self.among_passed and self.test:
            self.skipped.add(self.test)

    def look_for_names(self, line):
        if binary := CARGO_BINARY.match(line):
            self.binary = binary[1]
        elif (ended := CARGO_ENDED.match(line)) and ended[2] == "ignored":
            self.ignored += 1
            self.tally.skips.append(f"{ended[1]}: ignored")
        elif ended:
            self.failed[ended[1]] = []

    def why(self):
        return " ".join(self.errors[:REASON_LINES])


class Nothing:
    """Reads a stage whose verdicts do not stand in its output. Errors that it prints are kept."""

    def __init__(self, tally):
        self.tally = tally
        self.errors = []

    def read(self, line):
        if ERROR.match(line):
            self.errors.append(line.strip())
        return True

    def why(self):
        return " ".join(self.errors[:REASON_LINES])


READERS = {RIG: Nothing, LINES: Lines, TESTS: Tests, EXIT_CODE: Nothing}


def read_junit(path, tally):
    """Counts the verdicts of a JUnit file of pytest's, if there is one."""
    if not os.path.exists(path):
        return
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
        wrong = [each for each in case if each.tag in ("failure", "error")]
        skipped = case.find("skipped")
        if wrong:
            tally.failures += [f"{name}: {one_line(each.get('message', ''))}" for each in wrong]
        elif skipped is None:
            tally.passed += 1
        elif skipped.get("type") == "pytest.xfail":
            tally.expected += 1
        else:
            tally.skips.append(f"{name}: {skipped.get('message', '')}")


def one_line(reason):
    """The reason of a failure without its traceback, in one line that is not too long."""
    return " ".join(reason.split("\n\nTraceback (most recent")[0].split())[:REASON_MAX]


def conclude(judged, tally, code, why=""):
    """Counts how a stage ended. Returns what is to be told of it, if anything."""
    told = None
    if code != 0 and not tally.failures:
        told = f"exit code {code}" + (f": {why}"[:REASON_MAX] if why else "")
    elif code == 0 and judged == EXIT_CODE:
        tally.passed += 1
    elif tally.verdicts() == 0:
        told = "it ended well and has judged nothing"
    if told:
        tally.failures.append(told)
    return told


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
        """Those skips of a stage that no entry names. `None`: of any stage."""
        return [skip for skip in skips if not self.excuses(stage, skip)]

    def excuses(self, stage, skip):
        fitting = [number for number, entry in enumerate(self.entries)
                   if stage in (None, entry["stage"]) and re.search(entry["name"], skip)]
        self.used.update(fitting)
        return bool(fitting)

    def stale(self, stages):
        """Entries for stages that ran which name nothing that was skipped."""
        return [entry for number, entry in enumerate(self.entries) if number not in self.used and entry["stage"] in stages]
