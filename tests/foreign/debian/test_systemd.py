"""The unit under a real systemd: started, upgraded under load, watched, started again, activated by its socket, and stopped by a removal.

The tests build on each other, in the order of this file.
"""

import json
import os
import re
import subprocess

import pytest

import servers
from debian.booted_root import BootedRoot
from namespaces import is_real_root
from verdicts import expect, same

CONFIG = "/etc/targe/targe.toml"
DISK = "iscsi://127.0.0.1:3260/iqn.2026-01.com.example.san:disk/0"
UNIT, SOCKET = "targe.service", "targe.socket"
# Longest a load may take, seconds.
LOAD_MAX_S = 600
# How often an upgrade may be too slow, and what it says then.
UPGRADES_MAX = 10
LATE = ("does not answer in time", "no moment was found", "a reactor does not answer")
pytestmark = pytest.mark.skipif(not is_real_root(), reason="systemd runs as root only")


@pytest.fixture(scope="module")
def booted(package):
    """A root with the package, whose unit has a shorter watchdog, and a configuration."""
    root = BootedRoot()
    try:
        with open(package, "rb") as source, open(root.path("/var/cache/targe.deb"), "wb") as target:
            target.write(source.read())
        root.check("dpkg", "--install", "/var/cache/targe.deb")
        same("the unit after the installation", root.unit(UNIT, "ActiveState"), "inactive")
        with open(root.path(CONFIG)) as file:
            text = file.read()
        with open(root.path(CONFIG), "w") as file:
            file.write(re.sub(r"^#(?=\S)", "", text, flags=re.MULTILINE))
        os.makedirs(root.path(f"/etc/systemd/system/{UNIT}.d"))
        with open(root.path(f"/etc/systemd/system/{UNIT}.d/watchdog.conf"), "w") as file:
            file.write("[Service]\nWatchdogSec=25s\n")
        root.check("systemctl", "daemon-reload")
        yield root
    finally:
        root.close()


class Load:
    """`targe verify` inside the root until it has written and read its whole range."""

    def __init__(self, root, query="", over=DISK):
        # An earlier load has counted already. A signal that comes before this one has logged in would end it.
        before = commands(root)
        self.process = subprocess.Popen(root.command("/usr/bin/targe", "verify", over + query, "--full", "--range=512M", "--write", "--json"),
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        preexec_fn=servers.die_with_parent)
        root.wait("the load begins", lambda: commands(root) > before + 50)

    def end(self):
        """Its report, in which nothing is wrong."""
        said, aside = self.process.communicate(timeout=LOAD_MAX_S)
        report = json.loads(said or "{}")
        expect(self.process.returncode == 0 and report["complete"], f"{aside}{said[:600]}")
        return report


def commands(root):
    """The commands that the daemon has done."""
    return sum(lun["commands"] for lun in json.loads(root.check("targe", "luns", "--json"))["luns"])


def main_pid(root):
    """The main process of the unit; 0 when there is none."""
    return int(root.unit(UNIT, "MainPID"))


def kill(root, signal):
    """Sends a signal to the main process of the unit, which runs: `kill` would take 0 for the whole process group of the rig."""
    pid = main_pid(root)
    expect(pid > 0, f"the unit has no main process: {root.journal()}")
    root.check("kill", f"-{signal}", str(pid))


def upgrade(root):
    """Runs `targe upgrade`. One that does not find its moment in time on a busy machine has changed nothing, and is run again."""
    for _ in range(UPGRADES_MAX):
        done = root.run("targe", "upgrade", "--wait", "60")
        if not any(late in done.stderr for late in LATE):
            break
    expect(done.returncode == 0, f"targe upgrade ended with {done.returncode}: {done.stdout}{done.stderr}")


def restarts(root):
    return int(root.unit(UNIT, "NRestarts"))


def expect_alive(root):
    """The process that serves is the one that systemd watches, and it goes on telling systemd that it lives."""
    same("the process that serves", json.loads(root.check("targe", "status", "--json"))["pid"], main_pid(root))
    told = root.unit(UNIT, "WatchdogTimestampMonotonic")
    root.wait("the daemon tells that it lives", lambda: root.unit(UNIT, "WatchdogTimestampMonotonic") != told)
    same("the unit", root.unit(UNIT, "ActiveState"), "active")


def stop(root):
    """Stops the unit; the daemon ends in order."""
    root.check("systemctl", "stop", UNIT)
    same("the unit", [root.unit(UNIT, what) for what in ("ActiveState", "Result", "ExecMainStatus")], ["inactive", "success", "0"])


def test_the_unit_starts_and_reloads(booted):
    booted.check("systemctl", "start", UNIT)
    same("the status", booted.unit(UNIT, "StatusText")[:28], "Serving: targets 1, disks 1,")
    same("the user", booted.unit(UNIT, "User"), "targe")
    expect_alive(booted)
    with open(booted.path(CONFIG), "a") as file:
        file.write("nonsense = 1\n")
    booted.run("systemctl", "reload", UNIT)
    booted.wait("the status tells a refused reload", lambda: booted.unit(UNIT, "StatusText").endswith("reload refused"))
    with open(booted.path(CONFIG)) as file:
        text = file.read().replace("nonsense = 1\n", "")
    with open(booted.path(CONFIG), "w") as file:
        file.write(text)
    booted.check("systemctl", "reload", UNIT)
    booted.wait("the status tells no refused reload", lambda: "refused" not in booted.unit(UNIT, "StatusText"))


def test_an_upgraded_package_takes_over_under_load(booted):
    load, before = Load(booted), main_pid(booted)
    said = booted.check("dpkg", "--install", "/var/cache/targe.deb")
    expect("it took over 1 sessions" in said, said)
    after = main_pid(booted)
    expect(after not in (0, before), f"the main process is {after}, and was {before}")
    report = load.end()
    for what in ("connections_lost", "sessions_rebuilt"):
        same(what, report["session"][what], 0)
    same("restarts", restarts(booted), 0)
    expect_alive(booted)
    stop(booted)
    booted.check("systemctl", "start", UNIT)


def test_a_daemon_that_hangs_or_is_killed_is_started_again(booted):
    for signal in ("STOP", "KILL"):
        load, before, count = Load(booted, "?timeout=120"), main_pid(booted), restarts(booted)
        kill(booted, signal)
        booted.wait(f"SIG{signal} leads to a restart", lambda: restarts(booted) == count + 1 and main_pid(booted) not in (0, before))
        load.end()
        expect_alive(booted)


def test_a_configuration_with_mistakes_stops_the_restarts(booted):
    with open(booted.path(CONFIG)) as file:
        text = file.read()
    with open(booted.path(CONFIG), "w") as file:
        file.write(text + "nonsense = 1\n")
    kill(booted, "KILL")
    booted.wait("the unit fails", lambda: booted.unit(UNIT, "ActiveState") == "failed")
    same("the exit code", booted.unit(UNIT, "ExecMainStatus"), "2")
    with open(booted.path(CONFIG), "w") as file:
        file.write(text)
    booted.check("systemctl", "reset-failed", UNIT)


def test_the_drop_in_gives_hyperscsi_what_it_takes(booted):
    booted.check("ip", "link", "add", "san0", "type", "veth", "peer", "name", "host0")
    for name in ("san0", "host0"):
        booted.check("ip", "link", "set", name, "up")
    with open(booted.path(CONFIG)) as file:
        text = file.read()
    with open(booted.path(CONFIG), "w") as file:
        file.write(re.sub(r"^(\[\[target\]\])$", '[hyperscsi]\ninterfaces = ["san0"]\n[[hyperscsi.group]]\nname = "backup"\n\n\\1\ngroups = ["backup"]',
                          text, flags=re.MULTILINE))
    folder = f"/etc/systemd/system/{UNIT}.d"
    booted.check("cp", "/usr/share/doc/targe/examples/hyperscsi.conf", folder)
    booted.check("systemctl", "daemon-reload")
    booted.check("systemctl", "start", UNIT)
    # A discovery ends after some silence, within which a busy target may not have answered.
    discover = ("targe", "discover", "--group=backup", "--iface=host0", "--json")
    booted.wait("the group is found", lambda: booted.run(*discover).returncode == 0)
    found = json.loads(booted.check(*discover))
    load, before = Load(booted, over=found[0]["url"]), main_pid(booted)
    upgrade(booted)
    expect(main_pid(booted) not in (0, before), f"the main process is {main_pid(booted)}, and was {before}")
    load.end()
    expect_alive(booted)
    stop(booted)
    with open(booted.path(CONFIG), "w") as file:
        file.write(text)
    os.remove(booted.path(f"{folder}/hyperscsi.conf"))
    booted.check("systemctl", "daemon-reload")


def test_the_socket_starts_the_unit_and_survives_an_upgrade(booted):
    booted.check("systemctl", "start", SOCKET)
    same("the unit before a connection", booted.unit(UNIT, "ActiveState"), "inactive")
    booted.check("targe", "discover", "127.0.0.1:3260")
    upgrade(booted)
    expect_alive(booted)
    booted.check("targe", "discover", "127.0.0.1:3260")
    # While the unit is stopped the socket holds the port, and a connection starts it.
    stop(booted)
    booted.check("targe", "discover", "127.0.0.1:3260")
    expect_alive(booted)


def test_a_removal_stops_the_unit_and_its_socket(booted):
    booted.check("dpkg", "--remove", "targe")
    for unit in (SOCKET, UNIT):
        same(unit, booted.unit(unit, "ActiveState"), "inactive")
    same("processes", booted.run("pgrep", "--exact", "targe").stdout, "")
