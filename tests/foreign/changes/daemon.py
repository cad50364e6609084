"""A daemon with a configuration file that commands and editors change, and what both say of each other."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import time
import tomllib

import ending
import servers
from verdicts import expect

# Longest a daemon may take to start, and any command, seconds. Nothing that is judged depends on them being short.
START_MAX_S, COMMAND_MAX_S = 60, 120
SIZES = {"M": 1 << 20, "G": 1 << 30}


class Daemon:
    """`targe serve --config`, which is killed and started again."""

    def __init__(self, folder, text):
        self.folder = os.path.abspath(folder)
        os.makedirs(self.folder, exist_ok=True)
        self.path = os.path.join(self.folder, "targe.toml")
        self.socket = os.path.join(self.folder, "admin", "admin.sock")
        self.log_path = os.path.join(self.folder, "server.log")
        self.process = None
        # How long a command takes, on the average of the last ones.
        self.usual_s = 0.1
        self.write(text)

    def start(self):
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [servers.Targe.binary, "serve", "--config", self.path], cwd=self.folder, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, preexec_fn=servers.die_with_parent)
        deadline = time.monotonic() + START_MAX_S
        while True:
            try:
                return self.ask("status")
            except (OSError, AssertionError):
                expect(self.process.poll() is None, f"the daemon ended with {self.process.poll()}: {self.log()[-600:]}")
                expect(time.monotonic() < deadline, "the daemon does not start")
                time.sleep(0.005)

    def kill(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self):
        """Asks it to end; that it does not end as it should is an error."""
        faults = ending.bugs(json.dumps(self.ask("status")))
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(COMMAND_MAX_S)
        self.process = None
        ending.expect_sound("targe", faults, code, self.log())

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return log.read()

    # The file

    def read(self):
        with open(self.path, encoding="utf-8") as file:
            return file.read()

    def write(self, text):
        """As an editor does: another file takes the place of this one."""
        beside = self.path + "~"
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640), "w", encoding="utf-8") as file:
            file.write(text)
        os.rename(beside, self.path)

    # What runs

    def ask(self, method):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(COMMAND_MAX_S)
            connection.connect(self.socket)
            connection.sendall(json.dumps({"method": method}).encode() + b"\n")
            text = b""
            while not text.endswith(b"\n"):
                more = connection.recv(1 << 20)
                expect(more, "the admin socket says nothing")
                text += more
        answer = json.loads(text)
        expect("result" in answer, f"{method}: {answer}")
        return answer["result"]

    def running(self):
        """What runs, in the words of the file, and the revision that it is said to have."""
        status, luns = self.ask("status"), self.ask("luns")["luns"]
        targets = {target["name"]: {"alias": target["alias"], "max_sessions": target["max_sessions"], "luns": {}}
                   for target in status["targets"]}
        for lun in luns:
            medium = lun["medium"].split(":", 1)[0]
            targets[lun["target"]]["luns"][lun["lun"]] = (medium, lun["bytes"], lun["read_only"])
        return targets, sorted(portal["listen"] for portal in status["portals"]), status["revision"]

    def identities(self):
        """Target → what must stay of it when a step names another one: LUN → world-wide name, access list, authentication."""
        found = {target["name"]: {"luns": {}, "acl": target.get("acl"), "auth": target.get("auth")}
                 for target in tomllib.loads(self.read())["target"]}
        for lun in self.ask("luns")["luns"]:
            found[lun["target"]]["luns"][lun["lun"]] = lun["naa"]
        return found

    def command(self, *words, wait=True):
        began = time.monotonic()
        started = subprocess.Popen([servers.Targe.binary, *words, "--socket", self.socket], cwd=self.folder, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=servers.die_with_parent)
        if not wait:
            return started
        said, _ = started.communicate(timeout=COMMAND_MAX_S)
        self.usual_s += (time.monotonic() - began - self.usual_s) / 5
        return started.returncode, said


def revision(text):
    return hashlib.sha256(text.encode()).hexdigest()


def size(value):
    return SIZES[value[-1]] * int(value[:-1])


def meaning(text):
    """What a file says, in the words of `Daemon.running`. Shared LUNs have no number here: the rig writes each down."""
    file = tomllib.loads(text)
    shared = {lun["name"]: lun for lun in file.get("lun", [])}
    targets = {}
    for target in file["target"]:
        luns, fixed = {}, {lun["lun"] for lun in target["lun"] if "lun" in lun}
        for lun in target["lun"]:
            number = lun.get("lun")
            if number is None:
                number = next(free for free in range(1 << 14) if free not in fixed)
                fixed.add(number)
            medium = shared[lun["share"]] if "share" in lun else lun
            # A file that is longer than its size is served whole.
            least = os.path.getsize(medium["path"]) if medium["type"] == "file" else 0
            luns[number] = (medium["type"], max(size(medium["size"]), least), lun.get("ro", False) or medium.get("ro", False))
        targets[target["name"]] = {"alias": target.get("alias"), "max_sessions": target.get("max_sessions", 256), "luns": luns}
    return targets, sorted(portal["listen"] for portal in file["portal"])


def admitted(text):
    """Who may use which target: target → initiators, or None for everyone."""
    return {target["name"]: sorted(name for entry in target["acl"] for name in entry["initiators"]) if "acl" in target else None
            for target in tomllib.loads(text)["target"]}
