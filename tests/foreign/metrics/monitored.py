"""A daemon with an HTTP server, which the tests of metrics, of the API and of the page watch."""

import contextlib
import http.client
import json
import os
import subprocess

import ending
import servers
from listening import free_port
from verdicts import eventually, expect

TARGE = servers.Targe.binary
# Longest anything may take that must happen, seconds. Nothing that is judged depends on it being short.
PATIENCE_S = 90
MIB = 1 << 20
IQN = "iqn.2026-01.com.example:metrics"
# What each bench counts, of both together.
COUNT = 4000
TOKEN = "0123456789abcdef-token"


class Daemon:
    """`targe serve --http`, with a RAM disk, and a file of 16 MiB."""

    def __init__(self, folder, extra="", flags=(), top=""):
        self.folder = str(folder)
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        os.chmod(self.folder, 0o700)
        self.port, self.http = free_port(), free_port()
        self.disk = os.path.join(self.folder, "disk.img")
        self.extra, self.flags, self.top = extra, flags, top
        self.process = None

    def config(self):
        path = os.path.join(self.folder, "targe.toml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f'''state_dir = "{self.folder}/state"
admin_socket = "{self.folder}/admin.sock"
{self.top}
[[portal]]
listen = "127.0.0.1:{self.port}"
[[target]]
name = "{IQN}"
max_sessions = 64
[[target.lun]]
type = "ram"
size = "64M"
[[target.lun]]
type = "file"
path = "{self.disk}"
size = "16M"
[http]
listen = "127.0.0.1:{self.http}"
{self.extra}''')
        return path

    def __enter__(self):
        self.log = open(os.path.join(self.folder, "server.log"), "wb")
        self.process = subprocess.Popen([TARGE, "serve", "--config", self.config(), *self.flags], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=self.log, preexec_fn=servers.die_with_parent)
        wait("the daemon serves", lambda: self.process.poll() is not None or os.path.exists(f"{self.folder}/admin.sock") and self.ask("status"))
        expect(self.process.poll() is None, f"the daemon ended: {self.said()[-500:]}")
        return self

    def __exit__(self, *_):
        faults = ending.bugs(json.dumps(self.ask("status")))
        self.process.terminate()
        code = self.process.wait(PATIENCE_S)
        self.log.close()
        ending.expect_sound("targe", faults, code, self.said())

    def said(self):
        with open(os.path.join(self.folder, "server.log"), encoding="utf-8", errors="replace") as log:
            return log.read()

    def ask(self, what):
        done = subprocess.run([TARGE, what, "--json", "--socket", f"{self.folder}/admin.sock"], capture_output=True, text=True, timeout=PATIENCE_S)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def url(self, lun):
        return f"iscsi://127.0.0.1:{self.port}/{IQN}/{lun}"

    def get(self, path, **fields):
        """The status, the body and the content type of a request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in fields.items()})
            response = connection.getresponse()
            return response.status, response.read().decode(), response.headers["Content-Type"]

    def bench(self, lun, *options):
        done = subprocess.run([TARGE, "bench", self.url(lun), "--count", str(COUNT), "--json", *options],
                              capture_output=True, text=True, timeout=PATIENCE_S)
        expect(done.returncode == 0, f"targe bench: {done.stderr[-300:]}")
        return json.loads(done.stdout)


def wait(what, happened):
    return eventually(happened, what, PATIENCE_S)


def resident(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS:")) * 1024
