"""The daemon as its unit starts it, and this process in the part of systemd."""

import os
import shlex
import signal
import socket
import subprocess
import time

import servers

LIMIT_S = 300
UNIT = "/lib/systemd/system/targe.service"
NOTIFY = "/run/notify"
# What the unit takes from the daemon, in the words of setpriv.
UNPRIVILEGED = ["setpriv", "--reuid=targe", "--regid=targe", "--clear-groups", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]


def exec_start(root):
    """The command of the unit."""
    with open(root.path(UNIT)) as file:
        lines = [line.removeprefix("ExecStart=") for line in file if line.startswith("ExecStart=")]
    assert len(lines) == 1, lines
    return shlex.split(lines[0])


class Service:
    """A process that runs as the unit says, with messages to a socket of this process. `before` is what the command is handed to."""

    def __init__(self, root, *before, watchdog_usec=200_000):
        self.messages = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.messages.settimeout(0.5)
        path = root.path(NOTIFY)
        if os.path.exists(path):
            os.remove(path)
        self.messages.bind(path)
        os.chmod(path, 0o666)
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "NOTIFY_SOCKET": NOTIFY, "WATCHDOG_USEC": str(watchdog_usec)}
        self.process = subprocess.Popen(root.command(*UNPRIVILEGED, *before, *exec_start(root)), env=environment, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=servers.die_with_parent)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.process.stdout.close()
        self.messages.close()

    def kill(self):
        """Ends it at once, if it has not ended. Returns what it printed that nobody has read."""
        self.process.kill()
        self.process.wait()
        return "" if self.process.stdout.closed else self.process.stdout.read()

    def next(self, *unwanted):
        """The next message that has none of these lines, as a dictionary."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                lines = self.messages.recv(65536).decode().splitlines()
            except TimeoutError:
                if self.process.poll() is None and time.monotonic() < deadline:
                    continue
                raise AssertionError(f"no message; exit code {self.process.poll()}; {self.kill()}") from None
            if not set(unwanted) & set(lines):
                return dict(line.split("=", 1) for line in lines)

    def reload(self):
        self.process.send_signal(signal.SIGHUP)

    def stop(self):
        """Asks it to end, and returns its exit code and what it printed."""
        self.process.send_signal(signal.SIGTERM)
        return self.end()

    def end(self):
        printed = self.process.communicate(timeout=LIMIT_S)[0]
        return self.process.returncode, printed
