"""The Debian package: built from the binary that the other rigs judge, installed in a clean root, used as its unit uses it, and removed.

The tests build on each other, in the order of this file.
"""

import json
import os
import re
import stat
import subprocess
import time

import pytest

import listening
import servers
from debian.clean_root import CleanRoot
from debian.service import UNIT, Service
from namespaces import is_real_root
from verdicts import expect, same

CONFIG = "/etc/targe/targe.toml"
NAME = "iqn.2026-01.com.example.san:disk"
URL = f"iscsi://127.0.0.1:3260/{NAME}/0"
# What the unit gives away may not grow unseen: the score of `systemd-analyze security`, of 10.
EXPOSURE_MAX = 2.0
ALIVE = "WATCHDOG=1"
pytestmark = pytest.mark.skipif(not is_real_root(), reason="dpkg installs as root only")


@pytest.fixture(scope="module")
def root():
    root = CleanRoot()
    yield root
    root.close()


@pytest.fixture(scope="module")
def installed(package, root):
    """The root with the package in it."""
    same("dpkg knows targe before", root.run("dpkg-query", "--status", "targe").returncode, 1)
    with open(package, "rb") as source, open(root.path("/tmp/targe.deb"), "wb") as target:
        target.write(source.read())
    root.check("dpkg", "--install", "/tmp/targe.deb")
    return root


def test_lintian_finds_no_error_and_no_warning(package):
    folder = os.path.dirname(package)
    changes = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".changes")]
    done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error", "--show-overrides", *changes], capture_output=True, text=True,
                          timeout=300)
    print(done.stdout)
    found = [line for line in done.stdout.splitlines() if line.startswith(("E:", "W:"))]
    same("lintian ends with", (done.returncode, found, done.stderr), (0, [], ""))
    # An empty report of what was never read would pass as well.
    assert "O: targe: initial-upload-closes-no-bugs" in done.stdout, done.stdout


def test_the_package_brings_a_user_and_a_folder_of_its_own_and_starts_nothing(installed):
    user = installed.check("getent", "passwd", "targe").strip().split(":")
    same("home and shell", user[5:], ["/var/lib/targe", "/usr/sbin/nologin"])
    state = os.stat(installed.path("/var/lib/targe"))
    same("owner and mode of the state directory", (str(state.st_uid), stat.S_IMODE(state.st_mode)), (user[2], 0o700))
    same("targe -V", installed.check("targe", "-V"), subprocess.check_output([servers.Targe.binary, "-V"], text=True))
    same("conffiles", installed.check("dpkg-query", "--show", "--showformat=${Conffiles}", "targe").split()[0], CONFIG)
    done = installed.run("targe", "check", CONFIG)
    same("targe check", (done.returncode, done.stdout + done.stderr), (2, f'{CONFIG}:1:1: the configuration has no "target"\n'))
    for state in ("targe.service", "targe.socket"):
        same(state, installed.run("systemctl", "is-enabled", state).stdout.strip(), "disabled")


def test_systemd_verifies_the_units_and_finds_little_exposed(installed):
    def verify():
        done = installed.run("systemd-analyze", "verify", "--recursive-errors=no", UNIT, UNIT.replace(".service", ".socket"))
        same("systemd-analyze verify", (done.returncode, done.stdout, done.stderr), (0, "", ""))

    verify()
    told = installed.run("systemd-analyze", "security", "--offline=true", "--no-pager", "targe.service").stdout
    score = float(re.search(r"Overall exposure level for targe.service: ([0-9.]+)", told)[1])
    print(told)
    assert score <= EXPOSURE_MAX, f"exposure {score}: {told}"
    folder = installed.path("/etc/systemd/system/targe.service.d")
    os.makedirs(folder)
    installed.check("cp", "/usr/share/doc/targe/examples/hyperscsi.conf", "/etc/systemd/system/targe.service.d/")
    verify()
    installed.check("rm", "-r", "/etc/systemd/system/targe.service.d")


def test_the_service_says_when_it_is_ready_reloads_and_stops(installed):
    uncomment(installed)
    with Service(installed) as service:
        ready = service.next(ALIVE)
        same("the first message", (ready["READY"], ready["STATUS"][:28]), ("1", "Serving: targets 1, disks 1,"))
        for _ in range(3):
            same("the daemon lives", service.next(), {"WATCHDOG": "1"})
        service.reload()
        reloading, ready = service.next(ALIVE), service.next(ALIVE)
        same("a reload begins with", reloading["RELOADING"], "1")
        assert int(reloading["MONOTONIC_USEC"]) > 0, reloading
        same("and ends with", (ready["READY"], ready["STATUS"][:28]), ("1", "Serving: targets 1, disks 1,"))
        with open(installed.path(CONFIG), "a") as file:
            file.write("nonsense = 1\n")
        service.reload()
        same("a reload begins with", service.next(ALIVE)["RELOADING"], "1")
        ready = service.next(ALIVE)
        same("and ends, refused, with", (ready["READY"], ready["STATUS"].split("; ")[1:]), ("1", ["reload refused"]))
        with open(installed.path(CONFIG)) as file:
            text = file.read().replace("nonsense = 1\n", "")
        with open(installed.path(CONFIG), "w") as file:
            file.write(text)
        service.reload()
        same("a reload begins with", service.next(ALIVE)["RELOADING"], "1")
        same("and ends with", service.next(ALIVE)["READY"], "1")
        use_the_disk(installed)
        same("targe status, as root", json.loads(installed.check("targe", "status", "--json"))["reload"]["applied"], True)
        code, printed = service.stop()
        same("the last message", service.next(ALIVE)["STOPPING"], "1")
        same("the daemon ends with", code, 0)
        assert "panicked" not in printed, printed


def test_a_portal_uses_the_socket_that_systemd_passes(installed):
    with Service(installed, *activate("127.0.0.1:3260")) as service:
        # The program that passes the socket waits for a connection before it starts the daemon.
        wait_for_listener(service, 3260)
        use_the_disk(installed)
        same("the first message", service.next(ALIVE)["READY"], "1")
        same("the daemon ends with", service.stop()[0], 0)


def test_a_socket_without_a_portal_is_an_error_that_names_it(installed):
    with Service(installed, *activate("127.0.0.1:3261")) as service:
        wait_for_listener(service, 3261)
        deadline = time.monotonic() + 60
        while service.process.poll() is None and time.monotonic() < deadline:
            installed.run("targe", "discover", "127.0.0.1:3261")
        code, printed = service.end()
    same("the daemon ends with", code, 1)
    sentence = "the service manager passed a socket that listens on 127.0.0.1:3261 (targe.socket), but no portal of the configuration has that address"
    assert sentence in printed, printed


def test_a_purge_leaves_nothing_but_data(installed):
    installed.check("dpkg", "--remove", "targe")
    same("the configuration is kept", os.path.exists(installed.path(CONFIG)), True)
    same("the binary is kept", os.path.exists(installed.path("/usr/bin/targe")), False)
    installed.check("dpkg", "--purge", "targe")
    # What is cached may be forgotten by who made it.
    changed = [path for path in installed.changed() if not path.startswith("/var/cache/")]
    left = [path for path in changed if "targe" in path]
    same("left beside data", [path for path in left if not path.startswith("/var/lib/targe/")], [])
    same("the disk is kept", "/var/lib/targe/disk.img" in left, True)
    removed = [path for path in changed if not path.endswith("/") and is_whiteout(installed.path("/mnt" + path))]
    same("removed of others", removed, [])


def uncomment(root):
    """Edits the configuration as its text says."""
    path = root.path(CONFIG)
    with open(path) as file:
        text = file.read()
    edited = re.sub(r"^#(?=\S)", "", text, flags=re.MULTILINE)
    assert edited != text, text
    with open(path, "w") as file:
        file.write(edited)


def use_the_disk(root):
    """Writes to the disk through the network, and reads it again."""
    root.check("sh", "-c", f"head -c 1048576 /dev/urandom > /tmp/data && targe write --write {URL} < /tmp/data")
    root.check("sh", "-c", f"targe read --length 1M {URL} | cmp - /tmp/data")


def wait_for_listener(service, port):
    """Waits until a program listens on the port, without connecting to it."""
    deadline = time.monotonic() + 60
    while ("127.0.0.1", port) not in listening.listeners(service.process.pid):
        expect(service.process.poll() is None and time.monotonic() < deadline, f"nothing listens on port {port}")
        time.sleep(0.01)


def activate(address):
    """What listens on an address and passes the socket on when there is a connection."""
    passed = ["--setenv=NOTIFY_SOCKET", "--setenv=WATCHDOG_USEC", "--setenv=PATH"]
    return ["systemd-socket-activate", f"--listen={address}", "--fdname=targe.socket", *passed]


def is_whiteout(path):
    """Whether an overlay hides a file of the machine's root."""
    state = os.lstat(path)
    return stat.S_ISCHR(state.st_mode) and state.st_rdev == 0
