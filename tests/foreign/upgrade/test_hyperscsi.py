"""Live upgrades of a daemon that serves HyperSCSI: sessions go on, and handshakes that are under way end before."""

import contextlib
import json
import os
import signal
import tempfile
import threading
import time

import pytest

import ending
import servers
from hyperscsi import network
from hyperscsi.served import asked, await_that, discovered, end_verify, out, protected, start_server, start_verify, told
from upgrade.live import LATE, TRIES, WAIT_S, Late, begun_anew
from verdicts import expect, same

UPGRADES = 6
INITIATORS = 3
# A login that takes longer, seconds, is that of a machine which stood still.
LOGIN_MAX_S = 5
pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(900), pytest.mark.own_process(limit_s=800)]


class Served:
    """A daemon on the host of a target, which other processes replace."""

    def __init__(self, net, folder, level, flags):
        self.net, self.folder = net, folder
        with open(os.path.join(folder, "disk.img"), "wb") as disk:
            disk.truncate(64 * servers.MIB)
        lun = f"--lun=file:{folder}/disk.img,protection={level}"
        self.process = start_server(net.target, folder, "--iface=eth0", "--group=backup", lun, *flags)
        self.url = discovered(net, "backup")[0]["url"]

    def pid(self):
        return asked(self.net.target, self.folder, "status")["pid"]

    def upgrade(self):
        before = self.pid()
        command = (servers.Targe.binary, "upgrade", "--json", "--wait", str(WAIT_S), f"--socket={self.folder}/admin/s")
        for _ in range(TRIES):
            done = self.net.target.run(*command, check=False)
            if not any(late in done.stderr for late in LATE):
                break
        expect(done.returncode == 0, f"an upgrade is refused: {done.stderr}")
        answer = json.loads(done.stdout)
        expect(answer["pid"] == self.pid() != before, f"{answer}, and {before} served before")

    def stop(self):
        faults, pid = ending.bugs(json.dumps(asked(self.net.target, self.folder, "status"))), self.pid()
        os.kill(pid, signal.SIGTERM)
        await_that(lambda: has_ended(pid), "the end of the daemon")
        # It is not a child of this process, which does not learn its exit code.
        ending.expect_sound("targe", faults, 0, told(self.folder))


def has_ended(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


@contextlib.contextmanager
def served(level):
    try:
        network.be_able()
    except network.NoNamespaces as why:
        pytest.skip(str(why))
    with network.Network(9000, wired=False) as net, protected(level) as (flags, query):
        server = Served(net, tempfile.mkdtemp(prefix="upgrade-", dir=out()), level, flags)
        server.url += query
        try:
            yield net, server
            server.stop()
        finally:
            with contextlib.suppress(Exception):
                os.kill(server.pid(), signal.SIGKILL)
            server.process.kill()
            server.process.wait()


@pytest.mark.parametrize("level", ["none", "encrypt"])
def test_sessions_go_on(level):
    with served(level) as (net, server):
        load = start_verify(net, server.url, "--time=3600")
        commands = lambda: sum(lun["commands"] for lun in asked(net.target, server.folder, "luns")["luns"])
        for _ in range(UPGRADES):
            before = commands()
            await_that(lambda: commands() > before + 50, "work after an upgrade")
            server.upgrade()
        report, _ = end_verify(load)
        same("rebuilt sessions", report["session"]["sessions_rebuilt"], 0)


@pytest.mark.parametrize("level", ["none", "encrypt"])
def test_no_login_fails(level):
    begun_anew(no_login_fails, level)


def no_login_fails(level):
    with served(level) as (net, server):
        ends, logins, failed, late = threading.Event(), [0] * INITIATORS, [], []

        def log_in_and_out(number):
            while not ends.is_set():
                began = time.monotonic()
                done = net.initiator.run(servers.Targe.binary, "bench", server.url, "--count", "1", "--json", check=False)
                took = time.monotonic() - began
                if done.returncode != 0:
                    # An initiator looks for its target for two seconds.
                    where = late if took > LOGIN_MAX_S and "no server answered" in done.stderr else failed
                    where.append(f"login {logins[number]} of initiator {number}, after {took:.1f} s: {done.stderr}")
                logins[number] += 1

        threads = [threading.Thread(target=log_in_and_out, args=(number,), daemon=True) for number in range(INITIATORS)]
        try:
            for thread in threads:
                thread.start()
            for _ in range(UPGRADES):
                before = sum(logins)
                await_that(lambda: sum(logins) > before + INITIATORS, "logins after an upgrade")
                server.upgrade()
        finally:
            ends.set()
            for thread in threads:
                thread.join()
        expect(not failed, f"{failed}")
        if late:
            raise Late(f"{late}")
