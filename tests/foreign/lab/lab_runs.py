"""Runs an experiment of `targe lab` as a user does, and sees what it leaves behind."""

import html.parser
import json
import os
import re
import subprocess
import time

import servers

TARGE = servers.Targe.binary
FILES = {"report.html", "samples.csv", "result.json", "plan.toml"}
# Longest that a child may take to end after its parent, and an experiment to begin, seconds.
PATIENCE_S = 20
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

    def start(self, *arguments, plan=None):
        (self.folder / "plan.toml").write_text(plan or self.plan)
        command = [TARGE, "lab", self.experiment, *arguments, f"--out={self.out}", f"--plan={self.folder / 'plan.toml'}"]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=dict(os.environ, TMPDIR=str(self.temporary)), preexec_fn=servers.die_with_parent)

    def run(self, *arguments, plan=None, code=0):
        process = self.start(*arguments, plan=plan)
        out, errors = process.communicate(timeout=120)
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
        assert traces() == self.before


def traces():
    """What an experiment could leave behind: interfaces and named namespaces."""
    links = json.loads(subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True).stdout)
    names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    return sorted(link["ifname"] for link in links), names


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
