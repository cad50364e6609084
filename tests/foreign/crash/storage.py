"""File systems that the rig makes and mounts, and a daemon whose disk lies on one."""

import contextlib
import json
import os
import signal
import subprocess
import time

import servers
from listening import free_port, listeners, listens
from verdicts import expect

IQN = "iqn.2026-11.org.targe:lossy"
# Longest any command may take, seconds.
COMMAND_MAX_S = 120


def tool(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMMAND_MAX_S).stdout.strip()


def unmount(folder):
    """Unmounts a file system. The kernel keeps it busy until the last write of a killed daemon has failed and its loop device has let go."""
    deadline = time.monotonic() + COMMAND_MAX_S
    while True:
        done = subprocess.run(["umount", folder], capture_output=True, text=True, timeout=COMMAND_MAX_S)
        if done.returncode == 0:
            return
        expect("busy" in done.stderr and time.monotonic() < deadline, f"umount {folder}: {done.stderr}")
        time.sleep(0.1)


@contextlib.contextmanager
def loop_device(file):
    """A loop device over a file."""
    device = tool("losetup", "-f", "--show", file)
    try:
        yield device
    finally:
        tool("losetup", "-d", device)


@contextlib.contextmanager
def mounted(source, folder, *options):
    """A file system mounted on a folder, which is made."""
    os.mkdir(folder)
    tool("mount", *options, source, folder)
    try:
        yield folder
    finally:
        unmount(folder)


class Daemon:
    """A daemon with one target, whose LUNs are lines of TOML."""

    def __init__(self, folder, luns, keys=""):
        self.folder, self.keys, self.process = folder, keys, None
        self.socket, self.port = os.path.join(folder, "admin.sock"), free_port()
        self.url = f"iscsi://127.0.0.1:{self.port}/{IQN}/0"
        self.write_config(luns)

    def write_config(self, luns):
        with open(os.path.join(self.folder, "targe.toml"), "w") as file:
            file.write(f'state_dir = "state"\nadmin_socket = "{self.socket}"\nportal = [{{ listen = "127.0.0.1:{self.port}" }}]\n{self.keys}\n'
                       f'[[target]]\nname = "{IQN}"\nlun = [{", ".join(luns)}]\n')

    def start(self):
        with open(os.path.join(self.folder, "log"), "ab") as log:
            command = [servers.Targe.binary, "serve", "--config", os.path.join(self.folder, "targe.toml")]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=servers.die_with_parent)
        deadline = time.monotonic() + COMMAND_MAX_S
        while not listens("127.0.0.1", self.port):
            expect(self.process.poll() is None and time.monotonic() < deadline, "the daemon does not start")
            time.sleep(0.05)

    def end(self, how=signal.SIGTERM):
        if self.process:
            self.process.send_signal(how)
            self.process.wait(timeout=COMMAND_MAX_S)
            self.process = None
            # The kernel closes what io_uring of a killed process held a moment after its end: a client would still connect to that.
            deadline = time.monotonic() + COMMAND_MAX_S
            while ("127.0.0.1", self.port) in listeners("self") and time.monotonic() < deadline:
                time.sleep(0.01)

    def targe(self, *words, data=None):
        done = subprocess.run([servers.Targe.binary, *words], input=data, capture_output=True, timeout=COMMAND_MAX_S)
        return done.returncode, (done.stdout + done.stderr).decode(errors="replace").strip()

    def write(self, offset, data):
        """Writes and flushes."""
        return self.targe("write", self.url, "--write", "--offset", str(offset), data=data)

    def lost_writes(self):
        code, said = self.targe("luns", "--json", f"--socket={self.socket}")
        expect(code == 0, said)
        return json.loads(said)["luns"][0]["lost_writes"]
