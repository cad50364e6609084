"""NBD servers and vhost-user devices that others wrote, and a target that serves their exports."""

import json
import os
import signal
import subprocess

import servers
from listening import free_port, listeners
from verdicts import eventually

# After so long a server hangs that did not open its socket, or a condition that did not come true, seconds.
WAIT_MAX_S = 120


def wait_for(what, condition):
    """Waits until a condition is true, and returns what it returned."""
    return eventually(condition, what, WAIT_MAX_S)


class NbdServer:
    """A process that listens on a Unix socket, or on a port of 127.0.0.1."""

    def __init__(self, folder, *command, port=None):
        self.folder, self.command, self.port, self.process = str(folder), command, port, None
        self.socket = os.path.join(self.folder, "nbd.sock")

    def uri(self, export=""):
        return f"nbd://localhost:{self.port}/{export}" if self.port else f"nbd+unix:///{export}?socket={self.socket}"

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.end(signal.SIGKILL)

    def start(self):
        if os.path.exists(self.socket):
            os.remove(self.socket)
        with open(os.path.join(self.folder, "nbd.log"), "ab") as log:
            command = [word.replace("SOCKET", self.socket) for word in self.command]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
                                            preexec_fn=servers.die_with_parent)
        wait_for(f"the start of {self.command[0]}", self.listens)

    def listens(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.command[0]} ended: {self.log()[-500:]}")
        # Connecting would be a connection that some servers end after.
        if self.port:
            return ("127.0.0.1", self.port) in listeners(self.process.pid)
        with open("/proc/net/unix") as table:
            return any(line.split()[-1] == self.socket and line.split()[3] == "00010000" for line in table)

    def send(self, number):
        self.process.send_signal(number)

    def end(self, number=signal.SIGTERM):
        if self.process is not None:
            aborted = self.process.poll() == -signal.SIGABRT
            self.process.send_signal(number)
            self.process.wait(WAIT_MAX_S)
            self.process = None
            if aborted:
                raise RuntimeError(f"{self.command[0]} aborted: {self.log()[-500:]}")

    def log(self):
        with open(os.path.join(self.folder, "nbd.log"), errors="replace") as log:
            return log.read()

    def restart(self):
        """The process is killed, and started again."""
        self.end(signal.SIGKILL)
        self.start()


def nbdkit(folder, *words):
    return NbdServer(folder, "nbdkit", "--foreground", "--unix", "SOCKET", *words)


def nbdkit_by_tcp(folder, *words):
    port = free_port()
    return NbdServer(folder, "nbdkit", "--foreground", "--ipaddr=127.0.0.1", f"--port={port}", *words, port=port)


def qemu_nbd(folder, image, form):
    return NbdServer(folder, "qemu-nbd", "--persistent", "--shared=4", f"--format={form}", "--socket=SOCKET", "--discard=unmap", image)


def qemu_storage_daemon(folder, image, form, writable=True):
    """A block device over vhost-user."""
    export = f"type=vhost-user-blk,id=disk,node-name=disk,addr.type=unix,addr.path=SOCKET,writable={'on' if writable else 'off'}"
    return NbdServer(folder, "qemu-storage-daemon", f"--blockdev=file,node-name=file,discard=unmap,filename={image}",
                     f"--blockdev={form},node-name=disk,discard=unmap,file=file", f"--export={export}")


# What a device that commands are passed to says itself.
NOT_PASSED = ("bs = ", "physical_bs = ", "removable = ", "write_cache = ", "provisioning = ")


class Targe(servers.Targe):
    """Serves exports: a `Lun` of medium "nbd" has its `uri` among its claims, one of "vhost-user-blk" its `path`."""

    # Whether it starts only if every medium is there.
    strict = False

    def command(self):
        return super().command() + ["--strict"] * self.strict

    def config_lines(self):
        is_export = is_passed = False
        for line in super().config_lines():
            is_export = is_export and not line.startswith("[[") or line in ('type = "nbd"', 'type = "vhost-user-blk"', 'type = "vhost-user-scsi"')
            is_passed = is_passed and not line.startswith("[[") or line == 'type = "vhost-user-scsi"'
            if not (is_export and line.startswith("size = ") or is_passed and line.startswith(NOT_PASSED)):
                yield line

    def log_says(self, words):
        """Waits for a line of the log."""
        wait_for(f"{words!r} in the log", lambda: words in self.log_of_this_run())

    def expect_away(self, number=0):
        """The daemon says that the server or process of a unit does not answer, at the latest a little after a host was told so."""
        wait_for("the reason why the unit is not ready", lambda: "does not answer" in (self.unit(number)["not_ready"] or ""))

    def unit(self, number=0):
        """What the daemon tells of a unit."""
        return json.loads(self.admin("luns"))["luns"][number]


def device(server, medium="vhost-user-blk", **more):
    """A LUN that is a device over vhost-user."""
    return export(None, medium=medium, path=server.socket, **more)


def export(uri, medium="nbd", **more):
    """A LUN that is an export."""
    if uri:
        more = {"uri": uri, **more}
    lun = {key: more.pop(key) for key in ("thin", "readonly", "write_cache", "block") if key in more}
    return servers.Lun(medium=medium, claims=tuple(more.items()), **lun)

