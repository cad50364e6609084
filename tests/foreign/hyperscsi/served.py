"""Servers and initiators of HyperSCSI on the hosts of a rig: started, asked, and awaited."""

import contextlib
import json
import os
import tempfile
import time

import ending
import servers
from hyperscsi import network
from verdicts import expect


@contextlib.contextmanager
def serving(host, *flags, folder=None):
    """`targe serve` on a host; yields its folder, where its log and admin socket are."""
    folder = folder or tempfile.mkdtemp(prefix="hyperscsi-", dir=out())
    process = start_server(host, folder, *flags)
    try:
        yield folder
        end_server(host, folder, process)
    finally:
        process.kill()
        process.wait()


def start_server(host, folder, *flags):
    before = told(folder).count("State is kept")
    with open(os.path.join(folder, "server.log"), "ab") as log:
        # A configuration says where; else the flags do.
        where = () if any(flag.startswith("--config") for flag in flags) else (f"--state-dir={folder}/state", f"--socket={folder}/admin/s")
        process = host.start(servers.Targe.binary, "serve", *where, *flags, stdout=log, stderr=log)
    await_that(lambda: told(folder).count("State is kept") > before or process.poll() is not None, "the start")
    expect(process.poll() is None, f"targe ended: {told(folder)[-600:]}")
    return process


def end_server(host, folder, process):
    """Tells a server to end, which it must as it should."""
    faults = ["it ended before it was asked"] if process.poll() is not None else ending.bugs(json.dumps(asked(host, folder, "status")))
    process.terminate()
    ending.expect_sound("targe", faults, process.wait(timeout=servers.STOP_MAX_S), told(folder))


@contextlib.contextmanager
def protected(level):
    """Flags of a server and the query of a URL with which a group is reached at a level."""
    if level == "none":
        yield (), ""
        return
    with tempfile.NamedTemporaryFile("w", prefix="password-", dir=out()) as password:
        password.write("a password of some length\n")
        password.flush()
        yield (f"--group-password-file={password.name}",), f"?protection={level}&password_file={password.name}"


def verify(net, url, *flags, process=None):
    """Runs `targe verify`, or awaits one that runs; returns its report, which must be a good one."""
    process = process or start_verify(net, url, *flags)
    try:
        said, aside = process.communicate(timeout=servers.STOP_MAX_S + 100)
    except BaseException:
        process.kill()
        raise
    expect(process.returncode == 0, f"verify: exit code {process.returncode}: {aside[-800:]} {said[-1200:]}")
    report = json.loads(said)
    expect(report["sound"] and report["complete"], f"{said}")
    return report


def end_verify(process):
    """Ends a verify by SIGTERM in the middle. Returns its report, by which it has seen nothing wrong so far, and what it said beside."""
    process.terminate()
    said, aside = process.communicate(timeout=servers.STOP_MAX_S + 100)
    expect(process.returncode == 1, f"verify: exit code {process.returncode}: {aside[-800:]} {said[-1200:]}")
    report = json.loads(said)
    expect(report["writes"] > 0 and report["errors"] == sum(report["wrong"].values()) == 0, f"{said[-1200:]}")
    return report, aside


def start_verify(net, url, *flags):
    return net.initiator.start(servers.Targe.binary, "verify", "--write", "--json", "--seed=1", *flags, url)


def discovered(net, group):
    """What a group offers. A discovery ends after some silence, within which a target of a busy machine may not have answered: it is
    repeated until there is an answer."""
    deadline = time.monotonic() + network.PATIENCE_S
    while True:
        result = net.initiator.run(servers.Targe.binary, "discover", f"--group={group}", "--iface=eth0", "--json", check=False)
        if result.returncode == 0 and (found := json.loads(result.stdout)):
            return found
        expect(time.monotonic() < deadline, f"nothing is discovered: exit code {result.returncode}: {result.stderr[-600:]}")


def await_that(condition, what):
    deadline = time.monotonic() + network.PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"never: {what}")
        time.sleep(0.02)


def told(folder):
    with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, "server.log"), errors="replace") as log:
        return log.read()
    return ""


def out():
    path = os.path.join(servers.OUT, "hyperscsi")
    os.makedirs(path, exist_ok=True)
    return path


def asked(host, folder, what):
    """What the daemon on a host tells: `targe status`, `sessions` or `luns`."""
    return json.loads(host.run(servers.Targe.binary, what, "--json", f"--socket={folder}/admin/s").stdout)


def paths_of(host, folder):
    """The paths of the only session, by the target's interface; none while there is no session."""
    sessions = asked(host, folder, "sessions")["hyperscsi"]
    expect(len(sessions) <= 1, f"{len(sessions)} sessions: {sessions}")
    return {path["interface"]: path for session in sessions for path in session["paths"]}


class Accounts:
    """What a server has done, so that what it did meanwhile can be told."""

    def __init__(self, host, folder):
        self.host, self.folder = host, folder
        self.before = self.read()

    def read(self):
        status, luns = asked(self.host, self.folder, "status")["hyperscsi"], asked(self.host, self.folder, "luns")["luns"]
        return {**status["repairs"], **{key: value for key, value in status.items() if isinstance(value, int)},
                "executed": sum(lun["commands"] for lun in luns), "written": sum(lun["write_bytes"] for lun in luns)}

    def since(self):
        return {key: value - self.before[key] for key, value in self.read().items()}


def expect_each_once(account, *reports):
    """The units carried out what the initiators sent: every command once."""
    sent = sum(report["session"]["commands"] for report in reports)
    expect(account["commands"] == sent, f"{sent} commands were sent, {account['commands']} taken: {account}")
    expect(account["executed"] == sent, f"{sent} commands were sent, the units carried out {account['executed']}: {account}")


class Served:
    """A server that rigs of any protocol can use: one LUN in a file, on a host at the far end of cables."""

    def __init__(self, net, *flags, size="128M", query=""):
        self.net, self.query = net, query
        self.folder = tempfile.mkdtemp(prefix="hyperscsi-", dir=out())
        self.flags = ("--iface=eth0", "--group=backup", f"--lun=file:{self.folder}/disk,size={size}", *flags)
        self.process = None

    def __enter__(self):
        self.start()
        self.place = discovered(self.net, "backup")[0]["url"]
        return self

    def __exit__(self, failed, *_):
        try:
            if self.process and not failed:
                end_server(self.net.target, self.folder, self.process)
        finally:
            self.kill()
            os.remove(f"{self.folder}/disk")

    def start(self, fresh=False):
        self.process = start_server(self.net.target, self.folder, *self.flags)

    def kill(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def url(self, unit=0, query=""):
        return self.place + (query or self.query)

    def inside(self, command):
        """How a command is run where the initiators are."""
        return self.net.initiator.inside(*command)
