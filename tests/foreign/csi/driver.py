"""A daemon, and a driver of CSI beside it, which are killed and started again."""

import contextlib
import os
import signal
import socket
import subprocess
import time

import ending
import servers
from changes.daemon import Daemon
from csi.calls import Calls
from verdicts import eventually, expect

# Longest a driver may take to start or to end, seconds.
WAIT_S = 120
NODE = "iqn.2026-11.org.targe:node"
# A configuration needs a target.
HEAD = """state_dir = "state"
admin_socket = "admin/admin.sock"

[[portal]]
listen = "127.0.0.1:{port}"

[[target]]
name = "iqn.2026-11.org.targe:none"   # not the driver's

[[target.lun]]
type = "null"
size = "1M"
"""


class Driver:
    """`targe csi` with both services; the node attaches by FUSE and loop devices."""

    def __init__(self, folder, pool=None, node=True, environment=None, options=()):
        self.folder = os.path.abspath(folder)
        os.makedirs(self.folder, exist_ok=True)
        self.pool = str(pool) if pool else os.path.join(self.folder, "pool")
        os.makedirs(self.pool, exist_ok=True)
        self.run_dir = os.path.join(self.folder, "run")
        self.socket = os.path.join(self.folder, "csi.sock")
        self.port = servers.free_port()
        self.daemon = Daemon(os.path.join(self.folder, "etc"), HEAD.format(port=self.port))
        self.node, self.environment, self.options = node, environment, options
        self.process, self.calls = None, None
        self.log_path = os.path.join(self.folder, "csi.log")
        # Loop devices that others have left.
        self.others = unreachable_loop_devices()

    def command(self):
        words = [servers.Targe.binary, "csi", "--endpoint", f"unix://{self.socket}", "--controller", "--pool", self.pool,
                 "--portal", f"127.0.0.1:{self.port}", "--socket", self.daemon.socket, *self.options]
        if self.node:
            words += ["--node", "--initiator", NODE, "--attach", "loop", "--run-dir", self.run_dir]
        return words

    def start(self):
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(self.command(), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=subprocess.STDOUT, env=self.environment)
        deadline = time.monotonic() + WAIT_S
        while not self.listens():
            expect(self.process.poll() is None, f"the driver ended with {self.process.poll()}: {self.log()[-600:]}")
            expect(time.monotonic() < deadline, "the driver does not start")
            time.sleep(0.01)
        self.calls = Calls(self.socket)

    def listens(self):
        with socket.socket(socket.AF_UNIX) as trial:
            return trial.connect_ex(self.socket) == 0

    def kill(self):
        if self.calls:
            self.calls.close()
        if self.process:
            self.process.kill()
            self.process.wait()
        self.process = self.calls = None

    def stop(self):
        """Asks it to end; that it does not end as it should is an error."""
        self.calls.close()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(WAIT_S)
        self.process = self.calls = None
        ending.expect_sound("targe csi", [], code, self.log())

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            return log.read()

    def clean_up(self):
        """Removes what a failed test leaves on this host."""
        self.kill()
        self.daemon.kill()
        for process in attached(self.run_dir):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        # Another rig that runs at the same time unmounts a file system under its loop device for a moment.
        with contextlib.suppress(AssertionError):
            eventually(lambda: not unreachable_loop_devices() - self.others, "no loop device is left", 20)
        loops = self.loop_devices()
        with open("/proc/self/mountinfo") as mounts:
            points = [line.split()[4] for line in mounts]
        for point in reversed(points):
            if point.startswith(f"{self.folder}/"):
                subprocess.run(["umount", "--lazy", point], check=False)
        for name in loops:
            subprocess.run(["losetup", "--detach", f"/dev/{name}"], check=False)

    def leftovers(self):
        """What the driver should have removed."""
        files = [os.path.join(folder, name) for folder, _, names in os.walk(self.pool) for name in names if name != "lock"]
        # The spare files of the pool stay, and are empty.
        spare = os.path.join(self.pool, ".csi", "spare", "")
        files = [path for path in files if not (path.startswith(spare) and os.path.getsize(path) == 0)]
        return files + attached(self.run_dir) + self.loop_devices()

    def expect_nothing_left(self):
        """The kernel lets go of a loop device when nothing uses it any more, and other rigs have some that look like ours for a moment."""
        eventually(lambda: not self.leftovers(), lambda: f"nothing is left: {self.leftovers()}")

    def expect_no_loop_device(self):
        eventually(lambda: not self.loop_devices(), lambda: f"no loop device is left: {self.loop_devices()}")

    def loop_devices(self):
        """Loop devices of its volumes, also those that were left when FUSE was unmounted."""
        known = [name for name, path in loop_devices() if path.startswith(f"{self.run_dir}/")]
        return known + sorted(unreachable_loop_devices() - self.others)


def attached(run_dir):
    """The processes that attach volumes of a node."""
    found = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{number}/cmdline", "rb") as words:
            if b"\0attach\0" in (said := words.read()) and f"password_file={run_dir}/".encode() in said:
                found.append(int(number))
    return found


def loop_devices():
    """The loop devices of this host, and the files behind them."""
    for name in os.listdir("/sys/block"):
        with contextlib.suppress(OSError), open(f"/sys/block/{name}/loop/backing_file") as file:
            yield name, file.read().strip()


def unreachable_loop_devices():
    """Those over the file of a FUSE file system that is not mounted any more."""
    return {name for name, path in loop_devices() if path == "/disk"}
