"""A targe that is replaced by another process again and again while initiators use it."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import threading
import time

import ending
import servers
from verdicts import expect

PR_SET_CHILD_SUBREAPER = 36
# After so long one upgrade hangs, seconds, and one verification of the disk.
UPGRADE_MAX_S, VERIFY_MAX_S = 240, 400
END_MAX_S = 120
# How long an upgrade may try to find a moment in which the sessions have nothing under way, seconds, and how often one is repeated that came
# to nothing because a process of a busy machine was late. Nothing was changed then.
WAIT_S, TRIES = 60, 4
LATE = ("does not answer in time", "no moment was found", "a reactor does not answer")
# What a process says that has given the sessions away and does not know that they are served. It ends.
GIVEN_AWAY = "this process has given it the sessions, and ends"
SECOND = f"{servers.IQN}-second"
BUCKETS_MS = (5, 10, 20, 50, 100, 200, 500)


class Replaced(servers.Targe):
    """Its main process is another one after each upgrade. This process inherits them, so that it sees how each ends."""

    def __init__(self, folder, export):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        super().__init__(folder, export)
        self.replaced, self.pid = [], None
        # Whether there is a second target, on a reactor of its own.
        self.has_second = False

    def config_lines(self):
        if self.has_second:
            yield 'cores = "{},{}"'.format(*sorted(os.sched_getaffinity(0))[:2])
        yield from super().config_lines()
        if self.has_second:
            path = os.path.join(self.folder, "second.img")
            yield from ("[[target]]", f'name = "{SECOND}"', "[[target.lun]]", "lun = 0", 'type = "file"', f'path = "{path}"')

    def start(self, fresh=True):
        if self.has_second and fresh:
            with open(os.path.join(self.folder, "second.img"), "wb") as medium:
                medium.truncate(1 << 20)
        super().start(fresh)
        self.pid = self.process.pid

    @property
    def socket(self):
        return os.path.join(self.folder, "admin", "admin.sock")

    def upgrade(self, *flags, wanted=GIVEN_AWAY):
        """Runs `targe upgrade`; returns its answer, or its complaint. One that was only too slow is run again, unless `wanted` is in its complaint."""
        for _ in range(TRIES):
            answer, why = self.upgrade_once(*flags)
            if answer or wanted in why or GIVEN_AWAY in why or not any(late in why for late in LATE):
                break
            print(f"   an upgrade is repeated: {why}", flush=True)
        return answer, why

    def upgrade_once(self, *flags):
        """Runs `targe upgrade` once; returns its answer, or its complaint."""
        wait = () if "--wait" in flags else ("--wait", str(WAIT_S))
        command = [self.binary, "upgrade", "--json", "--socket", self.socket, *wait, *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=UPGRADE_MAX_S)
        if done.returncode != 0:
            return None, done.stderr.strip()
        answer = json.loads(done.stdout)
        self.replaced.append(self.pid)
        self.pid = answer["pid"]
        return answer, ""

    def reload(self):
        """Applies the export as it is described now to the process that serves, and waits for that."""
        self.write_config()
        answer = Client(self.socket).ask({"method": "reload"})
        expect("result" in answer, f"a reload is answered with {answer}")

    def expect_replaced_ended(self):
        """Every process that was replaced has ended, and without complaint."""
        while self.replaced:
            pid = self.replaced.pop()
            if pid == self.process.pid:
                code = self.process.wait(timeout=END_MAX_S)
            else:
                code = wait_for(pid)
            expect(code == 0, f"a process that was replaced ended with {code}: {self.log_tail()}")

    def is_alive(self):
        return os.path.exists(f"/proc/{self.pid}/exe")

    def stop(self):
        self.expect_replaced_ended()
        if self.pid == self.process.pid:
            return super().stop()
        faults = ending.bugs(self.admin("status"))
        os.kill(self.pid, signal.SIGTERM)
        code = wait_for(self.pid)
        self.pid = self.process.pid
        # The first process has ended long ago, and its exit code was judged.
        self.process = None
        ending.expect_sound("targe", faults, code, self.log_of_this_run())
        return code

    def kill(self):
        if self.process and self.pid != self.process.pid:
            try:
                os.kill(self.pid, signal.SIGKILL)
                wait_for(self.pid)
            except (ProcessLookupError, ChildProcessError):
                pass
            self.pid = self.process.pid
        super().kill()


def wait_for(pid):
    """The exit code of a process that this one has inherited."""
    deadline = time.monotonic() + END_MAX_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    raise AssertionError(f"process {pid} does not end")


class Late(Exception):
    """The machine was too slow for a case, of which nothing can be said; its text says what was late."""


def begun_anew(case, *arguments):
    """Runs a case in which something must come within a time. Where the machine was too slow it is begun anew: what is late each time is late
    for another reason."""
    for left in reversed(range(TRIES)):
        try:
            return case(*arguments)
        except Late as late:
            expect(left, f"{late}, {TRIES} times")
            print(f"   begun anew: {late}", flush=True)
    return None


class Client:
    """A connection to an admin socket."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(END_MAX_S)
        self.socket.connect(path)
        self.lines = self.socket.makefile("rb")

    def send(self, request):
        self.socket.sendall(json.dumps(request).encode() + b"\n")

    def receive(self):
        return json.loads(self.lines.readline())

    def ask(self, request):
        self.send(request)
        return self.receive()

    def is_answered(self):
        """Whether anything has come, other than the end of the connection."""
        self.socket.setblocking(False)
        try:
            return self.socket.recv(1) != b""
        except (BlockingIOError, ConnectionError):
            return False


class Load(threading.Thread):
    """`targe verify --full` over and over: every block is written, read back and judged."""

    def __init__(self, server, lun, query, seed, iqn=None, host="127.0.0.1"):
        # What a test that has failed leaves does not keep the others waiting.
        super().__init__(daemon=True)
        self.command = [server.binary, "verify", f"iscsi://{host}:{server.port}/{iqn or server.iqn}/{lun}?{query}", "--full", "--write",
                        "--json", f"--seed={seed}", "--bs=64K"]
        self.ends, self.reports, self.failed = threading.Event(), [], None

    def run(self):
        while self.failed is None and (not self.reports or not self.ends.is_set()):
            try:
                done = subprocess.run(self.command, capture_output=True, text=True, timeout=VERIFY_MAX_S)
                self.reports.append(json.loads(done.stdout))
            except subprocess.TimeoutExpired as error:
                self.failed = f"{error}"
            except ValueError:
                # One that a signal has ended says nothing.
                self.failed = f"no report, but it ended with {done.returncode}: {done.stderr.strip()}"
            except Exception as error:
                self.failed = f"{error!r}"

    def judge(self):
        """No error, no wrong block, and no session that had to log in again."""
        self.ends.set()
        self.join()
        expect(self.failed is None and self.reports, f"{self.command[2]}: {self.failed}")
        for report in self.reports:
            session = report["session"]
            expect(sum(report["wrong"].values()) == 0, f"wrong blocks: {report['findings'][:3]}")
            expect(report["complete"] and report["errors"] == 0, f"{report['errors']} errors: {report['error_texts'][:3]}")
            for what in ("connections_lost", "sessions_rebuilt"):
                expect(session[what] == 0, f"{what} is {session[what]} in {self.command[2]}")


def histogram(pauses):
    """How many pauses were at most so long."""
    lines = [f"   pauses of {len(pauses)} upgrades: median {sorted(pauses)[len(pauses) // 2]} ms, longest {max(pauses)} ms"]
    low = 0
    for high in (*BUCKETS_MS, None):
        count = sum(low <= pause and (high is None or pause < high) for pause in pauses)
        if count:
            lines.append(f"   {low:4} to {high or '':3} ms: {count:4} {'#' * min(count, 60)}")
        low = high
    return "\n".join(lines)
