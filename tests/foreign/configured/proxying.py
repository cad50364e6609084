"""`targe proxy` as a process."""

import subprocess

import listening
import servers
from verdicts import expect

RUN_MAX_S = 60


class Proxy:
    """`targe proxy` on 127.0.0.1, on the same port after each start."""

    def __init__(self, portal):
        self.portal, self.port, self.process = portal, listening.free_port(), None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()

    def start(self):
        self.process = subprocess.Popen([servers.Targe.binary, "proxy", self.portal, "--listen", f"127.0.0.1:{self.port}"],
                                        stderr=subprocess.PIPE, text=True, preexec_fn=servers.die_with_parent)
        banner = self.process.stderr.readline()
        expect(banner.startswith("listening on"), f"the proxy says {banner}")

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def stop(self):
        """Asks it to end. Returns its exit code and what it said."""
        self.process.terminate()
        _, said = self.process.communicate(timeout=RUN_MAX_S)
        return self.process.returncode, said
