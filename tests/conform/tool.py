"""`targe conform` as pytest sees it: one test for each of its cases, judged while the tool runs."""

import os
import re
import subprocess

import pytest

import servers

VERDICT = re.compile(r"^(PASS|FAIL|SKIP) (\S+): (.*)")
LIST_MAX_S = 60


def cases(config, what, *patterns):
    """The cases of `targe conform target` or `initiator`, or those that the patterns name, in order."""
    judge = config.getoption("judge")
    if not os.access(judge, os.X_OK):
        raise pytest.UsageError(f"there is no {judge} to judge with: run `make build`, or name one with TARGE=PATH or --judge PATH")
    listed = subprocess.run([judge, "conform", what, "--list", *patterns], capture_output=True, text=True, timeout=LIST_MAX_S, check=True)
    return [line.split()[0] for line in listed.stdout.splitlines()[1:]]


class Tool:
    """Runs cases; `expect_passed` waits for the verdict on one of them. What the tool says is kept in a log."""

    def __init__(self, command, log, limit_s, environment=None):
        self.said, self.failed = {}, {}
        self.command, self.log_path, self.limit_s = command, log, limit_s
        self.environment = os.environ | (environment or {})

    def __enter__(self):
        self.log = open(self.log_path, "w")
        self.process = subprocess.Popen(["timeout", str(self.limit_s), *self.command], env=self.environment, text=True, errors="replace",
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        preexec_fn=servers.die_with_parent)
        return self

    def __exit__(self, failed, *_):
        with self.log:
            if failed:
                self.process.kill()
            while self.read():
                pass
            code = self.process.wait()
            self.process.stdout.close()
        failures = [case for case, (verdict, _) in self.said.items() if verdict == "FAIL"]
        if not failed and code != (1 if failures else 0):
            raise AssertionError(f"the tool ended with {code} after {len(self.said)} cases; its log is {self.log_path}")

    def read(self):
        line = self.process.stdout.readline()
        self.log.write(line)
        if verdict := VERDICT.match(line):
            self.said[verdict[2]] = verdict[1], verdict[3]
        return line

    def expect_passed(self, case):
        while case not in self.said and self.read():
            pass
        verdict, why = self.said.get(case, ("FAIL", f"the tool did not judge it; its log is {self.log_path}"))
        if verdict == "SKIP":
            pytest.skip(why)
        assert verdict == "PASS", why
