"""Runs an experiment of `targe lab` as a user does, and sees what it leaves behind."""

import contextlib
import html.parser
import json
import os
import pty
import re
import signal
import subprocess
import threading
import time

import servers

TARGE = servers.Targe.binary
CHARON = "/usr/sbin/charon-systemd"
FILES = {"report.html", "samples.csv", "result.json", "plan.toml"}
# Longest that a child may take to end after its parent, and an experiment to begin, seconds.
PATIENCE_S = 120
# Longest that an experiment may take until a round is complete, and in all, seconds.
ROUND_WITHIN_S = 400
RUN_MAX_S = 900
# The programs that copies start: all of them have the folder of the copies among their arguments, but one.
LAB_FOLDER = re.compile(r"targe-lab-[0-9a-f]{16}")
COPY_PROGRAM = re.compile(r"targe-lab-[0-9a-f]{16}|rpcbind")
NO_END_TAG = {"meta", "br", "hr", "img", "link", "input"}


class Pages(html.parser.HTMLParser):
    """Sees that every tag is closed, and gathers the text."""

    def __init__(self):
        super().__init__()
        self.open, self.text = [], []

    def handle_starttag(self, tag, attributes):
        if tag not in NO_END_TAG:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in NO_END_TAG:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


class Lab:
    """Runs experiments in a folder; its temporary files are there too."""

    def __init__(self, experiment, plan, folder):
        self.experiment, self.plan = experiment, plan
        self.folder = folder
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.out = folder / "out"
        self.before = traces()

    def start(self, *arguments, plan=None, prefix=(), stderr=subprocess.PIPE):
        (self.folder / "plan.toml").write_text(plan or self.plan)
        command = [*prefix, TARGE, "lab", self.experiment, *arguments, f"--out={self.out}", f"--plan={self.folder / 'plan.toml'}"]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True,
            env=dict(os.environ, TMPDIR=str(self.temporary)), preexec_fn=servers.die_with_parent)

    def under_way(self, *arguments, plan=None, percent=1):
        """Starts an experiment, and waits until so much of it is done."""
        run = UnderWay(lambda terminal: self.start(*arguments, plan=plan, stderr=terminal))
        wait_for(f"{percent} % of the run", lambda: run.percent() >= percent, ROUND_WITHIN_S)
        return run

    def interrupt(self, *arguments, plan=None):
        """Ends an experiment by a signal when the first of its hundred rounds is complete. Returns the report."""
        run = self.under_way(*arguments, plan=plan)
        run.process.send_signal(signal.SIGINT)
        told = run.end()
        assert run.process.returncode == 1 and "ended early" in told, told
        result = self.report()
        assert "stopped in round" in result["ended"]["early"] and any(metric["samples"] for metric in result["metrics"])
        return result

    def run(self, *arguments, plan=None, code=0):
        process = self.start(*arguments, plan=plan)
        out, errors = process.communicate(timeout=RUN_MAX_S)
        assert process.returncode == code, f"exit code {process.returncode}: {errors}"
        return out, errors

    def report(self):
        assert set(os.listdir(self.out)) == FILES
        page = Pages()
        page.feed((self.out / "report.html").read_text())
        assert not page.open
        result = json.loads((self.out / "result.json").read_text())
        assert result["summary"][0] in re.sub(r"\s+", " ", "".join(page.text))
        return result

    def expect_nothing_left(self):
        assert os.listdir(self.temporary) == []
        # What others have on this machine comes and goes meanwhile.
        wait_for("the end of all that is new", lambda: not [new for now, before in zip(traces(), self.before) if (new := now - before)])


class UnderWay:
    """An experiment with a terminal for its messages, which shows its progress there."""

    def __init__(self, start):
        self.ours, theirs = pty.openpty()
        self.process = start(theirs)
        os.close(theirs)
        self.written = b""
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        # EIO is the end: no process has the other side any more.
        with contextlib.suppress(OSError):
            while piece := os.read(self.ours, 1 << 16):
                self.written += piece
        os.close(self.ours)

    def text(self):
        return self.written.decode(errors="replace")

    def progress(self):
        """The last progress line."""
        assert self.process.poll() is None, self.text()
        return self.text().rsplit("\x1b[K", 1)[-1]

    def percent(self):
        """How much is done, as the last progress line tells it."""
        assert self.process.poll() is None, self.text()
        told = re.findall(r"\x1b\[K *(\d+) % ", self.text())
        return int(told[-1]) if told else 0

    def end(self, patience=PATIENCE_S):
        """Waits for the end. Returns what was written to the terminal."""
        self.process.communicate(timeout=patience)
        self.reader.join(PATIENCE_S)
        return self.text()


def traces():
    """What an experiment could leave behind: interfaces, named namespaces, files in memory, and daemons."""
    links = json.loads(subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True).stdout)
    names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    return {link["ifname"] for link in links}, set(names.splitlines()), disks(), daemons()


def disks():
    """The folders in memory in which experiments have disks."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("targe-lab-")}


def daemons():
    """The daemons of strongSwan that run here."""
    return set(subprocess.run(["pgrep", "--full", CHARON], capture_output=True, text=True).stdout.split())


def copy_traces():
    """What copies of files could leave behind besides: loop devices, mounts, and programs of their folders. What other experiments have
    may go meanwhile."""
    listed = subprocess.run(["losetup", "--list", "--noheadings", "--output=NAME,BACK-FILE"], capture_output=True, text=True, check=True).stdout
    found = {line for line in listed.splitlines() if LAB_FOLDER.search(line)}
    with open("/proc/self/mounts") as mounts:
        found.update(line for line in mounts if LAB_FOLDER.search(line))
    listed = subprocess.run(["ps", "-eo", "stat=,pid=,args="], capture_output=True, text=True, check=True).stdout
    # A program that has ended may wait for long to be reaped by the machine's init.
    running = (line.split(None, 1)[1] for line in listed.splitlines() if not line.startswith("Z"))
    return found.union(program for program in running if COPY_PROGRAM.search(program))


def folders_of(process):
    """The folders that an experiment has now: a program that it has started works in each."""
    children = subprocess.run(["pgrep", "--parent", str(process.pid)], capture_output=True, text=True).stdout.split()
    found = set()
    for pid in children:
        with contextlib.suppress(OSError):
            found.update(LAB_FOLDER.findall(os.readlink(f"/proc/{pid}/cwd")))
    return found


def wait_for(what, condition, patience=PATIENCE_S):
    deadline = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} does not happen"
        time.sleep(0.01)
    return found


def is_running(pid):
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def target_of(process):
    """The target that an experiment has started."""
    def children():
        assert process.poll() is None, process.communicate()
        found = subprocess.run(["pgrep", "--parent", str(process.pid)], capture_output=True, text=True).stdout.split()
        return [int(pid) for pid in found]
    return wait_for("a target", children)[0]
