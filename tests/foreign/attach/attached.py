"""`targe attach` as a context: a disk of a server (or several, striped), at an NBD socket or as a file."""

import os
import shutil
import signal
import subprocess
import zlib

import ending
import servers

# Longest a disk may take to appear, seconds: it is there once its address is printed.
START_MAX_S = 60
STOP_MAX_S = 60


def fresh_folder(request, server_name):
    """The folder of a test, without what an earlier run has left there: mounts, and keys of disks that are gone. Its name is short, as the path
    of the admin socket within may have 107 bytes."""
    folder = os.path.join(servers.OUT, "attach", server_name, f"{zlib.crc32(request.node.name.encode()):08x}")
    with open("/proc/self/mountinfo") as mounts:
        points = [line.split()[4] for line in mounts]
    for point in reversed(points):
        if point.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", point], check=True, timeout=60)
    shutil.rmtree(folder, ignore_errors=True)
    return folder


class Attached:
    def __init__(self, server, way, units=(0,), query="", arguments=(), name="attach"):
        self.urls = [server.url(unit, query=query) for unit in units]
        self.folder = server.folder
        # A server may be reached from somewhere else only.
        self.inside = getattr(server, "inside", lambda command: command)
        self.way = way
        self.place = os.path.join(server.folder, "socket" if way == "nbd" else "mnt")
        self.arguments = list(arguments)
        self.log_path = os.path.join(server.folder, f"{name}.log")
        self.process = None
        self.address = None
        self.log_begins = len(self.said()) if os.path.exists(self.log_path) else 0

    def command(self):
        command = [servers.Targe.binary, "attach", *self.urls, f"--{self.way}", self.place, *self.arguments]
        return self.inside(command)

    def __enter__(self):
        # Behind a name that exists may be the mount of one that died.
        if self.way == "fuse" and os.path.basename(self.place) not in os.listdir(self.folder):
            os.mkdir(self.place)
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                                            text=True, preexec_fn=servers.die_with_parent)
        self.address = self.process.stdout.readline().strip()
        if not self.address:
            code = self.process.wait(START_MAX_S)
            raise RuntimeError(f"attach ends with {code}: {self.said()[-300:]}")
        return self

    def __exit__(self, failed, *_):
        code = 0 if self.process is None else self.terminate()
        if not failed:
            ending.expect_sound("targe attach", [], code, self.said()[self.log_begins:])

    def terminate(self):
        """Ends it, by force if it must be; returns the exit code."""
        for _ in range(2):
            self.process.send_signal(signal.SIGTERM)
            try:
                return self.end()
            except subprocess.TimeoutExpired:
                continue
        self.process.kill()
        return self.end()

    def ask_to_end(self):
        self.process.send_signal(signal.SIGTERM)

    def end(self):
        """Waits for the end; returns the exit code."""
        code = self.process.wait(STOP_MAX_S)
        self.process.stdout.close()
        self.process = None
        return code

    def detach(self):
        self.ask_to_end()
        return self.end()

    def said(self):
        with open(self.log_path, errors="replace") as log:
            return log.read()


def refused(command):
    """Runs an attach that must not work; returns its exit code and what it said."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=180)
    return done.returncode, done.stdout + done.stderr
