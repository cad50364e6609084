"""Drive iscsi-test-cu: one process per suite with a time limit, one verdict per test.

The tool has no time limit of its own (it reconnects, or spins, for ever on some failures) and calls a skipped test
passed. So every run is watched, and `assertions.c` writes down what was really asserted:

    PASS    asserted something, all of it held, and nothing was left out
    SKIP    left something out, or asserted nothing
    FAIL    an assertion did not hold
    HANG    did not end in time
    CRASH   the tool died in it
    DOWN    the target died in it
"""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

FOLDER = os.path.dirname(os.path.abspath(__file__))
TOOL = "iscsi-test-cu"
# A tool that says nothing for so long hangs: none of its tests waits longer than it takes to sanitize a disk.
SILENCE_MAX_S = 60
# And none takes as long as this, even where every UNMAP waits for a busy disk.
SUITE_MAX_S = 600
# Reasons kept per test: enough to see what went wrong.
REASONS_MAX = 8

STARTS = re.compile(r"^  Test: (\S+) \.\.\.(.*)")
LEFT_OUT = re.compile(r"\[SKIPP(?:ED|ING)\]|Skipping RTPG tests")
NO_SESSION = re.compile(r"Not an iSCSI device|Non-iSCSI")
# The only reason of a test that came to its end and asserted nothing.
SILENT = "asserted nothing"
# Some tests check without CUnit's macros, and only fail through them.
CHECKED = "[SUCCESS]"


@dataclass
class Verdict:
    kind: str
    reasons: list
    seconds: float = 0.0


def build_counter(folder):
    """Compile the assertion counter into `folder`; returns the library's path."""
    library = os.path.join(folder, "assertions.so")
    source = os.path.join(FOLDER, "assertions.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, source, "-ldl"], check=True)
    return library


def list_suites(tool=TOOL):
    """Every suite of the two families that together hold each test once: {"SCSI.Read6": ["Simple", …], …}."""
    listing = subprocess.run([tool, "--list"], capture_output=True, text=True, timeout=30).stdout
    suites = {}
    for line in listing.split():
        family, _, rest = line.partition(".")
        suite, _, test = rest.partition(".")
        if family in ("SCSI", "iSCSI") and test:
            suites.setdefault(f"{family}.{suite}", []).append(test)
    return suites


class Runner:
    """Runs suites against one server. `urls` is one URL, or two for the suites in `two_paths`."""

    def __init__(self, server, urls, folder, counter, tool=TOOL, two_paths=("SCSI.MultipathIO",)):
        self.server, self.urls, self.folder = server, urls, folder
        self.counter, self.tool, self.two_paths = counter, tool, two_paths
        os.makedirs(folder, exist_ok=True)

    def run_suite(self, suite, tests, whole=True):
        """Verdicts of `tests` of `suite`, which are `whole` or a selection. What the suite's process never reached is
        run once more, alone; a selection is run alone at once."""
        verdicts = self.run_tool(suite, suite, tests) if whole else {}
        for test in tests:
            if test not in verdicts or self.lost_its_session(verdicts[test]):
                alone = self.run_tool(suite, f"{suite}.{test}", [test])
                verdicts[test] = alone.get(test) or Verdict("CRASH", ["the tool never began this test"])
        return {f"{suite}.{test}": verdicts[test] for test in tests}

    @staticmethod
    def lost_its_session(verdict):
        """After some failures the tool's handle is gone and it takes the rest for tests of another kind of device."""
        return verdict.kind == "SKIP" and any(NO_SESSION.search(reason) for reason in verdict.reasons)

    def run_tool(self, suite, selection, tests):
        log = os.path.join(self.folder, f"{selection}.log")
        noted = os.path.join(self.folder, f"{selection}.assertions")
        if os.path.exists(noted):
            os.remove(noted)
        urls = self.urls if suite in self.two_paths else self.urls[:1]
        # stdbuf: what a killed tool had still in its buffer would be lost.
        command = ["stdbuf", "-oL", self.tool, "-d", "-S", "-v", "-V", "-t", selection, *urls]
        environment = dict(os.environ, LD_PRELOAD=self.counter, ASSERTIONS=noted)
        began = time.monotonic()
        with open(log, "w") as output:
            output.write(f"# {' '.join(command)}\n")
            output.flush()
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                       env=environment, start_new_session=True)
            ended = wait_while_it_talks(process, (log, noted))
        verdicts = read_verdicts(log, noted)
        for test, verdict in verdicts.items():
            if verdict.kind == "OPEN":
                verdict.kind = "CRASH" if ended else "HANG"
                verdict.reasons.append(f"tool {ended}" if ended else f"silent for {SILENCE_MAX_S} s")
        if not self.server.alive():
            self.blame(verdicts, tests)
            self.server.kill()
            self.server.start(fresh=False)
        if verdicts:
            verdicts[next(reversed(verdicts))].seconds = time.monotonic() - began
        return verdicts

    def blame(self, verdicts, tests):
        """The target died: the last test begun did it."""
        last = next(reversed(verdicts), tests[0])
        why = self.server.log_tail(5)
        verdicts[last] = Verdict("DOWN", [why])
        print(f"   target down in {last}; {why}", file=sys.stderr, flush=True)


def wait_while_it_talks(process, files):
    """How a process ended; `None` if it fell silent or went on for ever, and was killed."""
    began = heard = time.monotonic()
    said = 0
    while True:
        try:
            return f"ended with code {process.wait(0.5)}"
        except subprocess.TimeoutExpired:
            pass
        now = time.monotonic()
        length = sum(os.path.getsize(file) for file in files if os.path.exists(file))
        if length != said:
            said, heard = length, now
        if now - heard > SILENCE_MAX_S or now - began > SUITE_MAX_S:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None


def read_verdicts(log, noted):
    """Verdicts by test in the order the tests began; `OPEN` is a test that began and never came to its end."""
    held, broken, remarks = read_assertions(noted)
    verdicts, test, skips, checks, kind = {}, None, [], 0, "OPEN"

    def close():
        if test is None:
            return
        left_out = skips + [text for text in remarks.get(test, []) if re.search("(?i)skip|err|not support|not impl", text)]
        verdict = kind
        if kind == "passed":
            verdict = "SKIP" if left_out or not held.get(test, 0) + checks else "PASS"
        elif kind == "FAILED":
            verdict = "FAIL"
        reasons = broken.get(test, []) if verdict not in ("SKIP", "PASS") else left_out
        if verdict == "SKIP" and not reasons:
            reasons = [SILENT]
        verdicts[test] = Verdict(verdict, list(dict.fromkeys(reasons))[:REASONS_MAX])

    with open(log, errors="replace") as lines:
        for line in lines:
            if began := STARTS.match(line):
                close()
                test, skips, checks, kind = began[1], [], 0, "OPEN"
                line = began[2].strip()
            if test is None:
                continue
            if LEFT_OUT.search(line):
                skips.append(line.strip())
            checks += CHECKED in line
            # The verdict starts a line, or follows the test's name at once.
            if kind == "OPEN" and line.startswith(("passed", "FAILED")):
                kind = line[:6]
    close()
    return verdicts


def read_assertions(noted):
    held, broken, remarks = {}, {}, {}
    if os.path.exists(noted):
        with open(noted, errors="replace") as lines:
            for line in lines:
                event, test, *rest = line.rstrip("\n").split("\t")
                if event == "holds":
                    held[test] = held.get(test, 0) + 1
                elif event == "fails":
                    broken.setdefault(test, []).append(": ".join(rest))
                else:
                    remarks.setdefault(test, []).append(": ".join(rest))
    return held, broken, remarks


def as_json(verdicts):
    return {test: asdict(verdict) for test, verdict in verdicts.items()}
