"""One line per verdict, and the exit code they add up to."""

import contextlib
import threading
import time
import traceback


class Skip(Exception):
    """Raised by a case that cannot be judged here; its text is the reason."""


class Verdicts:
    def __init__(self, rig):
        self.rig = rig
        self.counts = {"PASS": 0, "FAIL": 0, "SKIP": 0}
        # Cases may run side by side.
        self.lock = threading.Lock()

    def add(self, kind, name, why=""):
        why = " ".join(str(why).split())
        with self.lock:
            self.counts[kind] += 1
            print(f"{kind} {self.rig} {name}" + (f": {why}" if why else ""), flush=True)

    def judge(self, name, case, *arguments):
        """Runs one case: its exception is the failure. Returns whether it did not fail."""
        began = time.monotonic()
        try:
            case(*arguments)
        except Skip as skip:
            self.add("SKIP", name, skip)
        except Exception as failure:
            where = traceback.extract_tb(failure.__traceback__)[-1]
            self.add("FAIL", name, f"{type(failure).__name__} {failure} ({where.filename.rsplit('/', 1)[-1]}:{where.lineno})")
            return False
        else:
            self.add("PASS", f"{name} ({time.monotonic() - began:.1f} s)")
        return True

    @contextlib.contextmanager
    def serving(self, name, server):
        """A server for the cases within. How it ends is a verdict of its own."""
        with contextlib.ExitStack() as stack:
            server.start()
            stack.callback(server.kill)
            yield server
            self.judge(f"{name}: the target ends as it should", server.stop)

    def exit_code(self):
        print(f"{self.rig}: {self.counts['PASS']} passed, {self.counts['FAIL']} failed, {self.counts['SKIP']} skipped")
        return 1 if self.counts["FAIL"] else 0


def expect(holds, what):
    """An assertion with words."""
    __tracebackhide__ = True
    if not holds:
        raise AssertionError(what)
