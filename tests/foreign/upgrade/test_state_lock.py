"""The lock of the state directory moves in an upgrade, also from and to a release that does not know it."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import time

import pytest

from servers import MIB, Export, Lun
from upgrade.live import END_MAX_S, TRIES, Replaced
from upgrade.test_upgrade import pretender
from upgrade.uncommitted import receive, send
from verdicts import expect, same

IN_USE = "another targe is running: it uses the state directory"
pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(900)]


def lock(folder):
    """Locks the state directory as a daemon does; `None` if another process has locked it."""
    file = open(os.path.join(folder, "state", "lock"), "ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file
    except BlockingIOError:
        return file.close()


def expect_locked(server, folder, when):
    expect(lock(folder) is None, f"{when}: the state directory is not locked")
    command = [server.binary, "serve", "--listen", "127.0.0.4:0", "--lun", "ram:1M", "--state-dir", os.path.join(folder, "state"), "--socket",
               os.path.join(folder, "other", "admin.sock")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=END_MAX_S)
    same(f"{when}: another daemon", (done.returncode, done.stderr), (1, f"targe: {IN_USE} {folder}/state\n"))


def test_the_state_directory_stays_locked(tmp_path):
    server = Replaced(str(tmp_path), Export((Lun("file", size=MIB),)))
    server.start()
    try:
        for when in ("after the start", "after an upgrade", "after another upgrade"):
            expect_locked(server, tmp_path, when)
            answer, why = server.upgrade("--binary", pretender(server, tmp_path, "takes the lock of the state directory"))
            expect(answer is None and "it has the lock of the state directory" in why, f"{answer or why}")
            # It would say if it got a lock that it does not know.
            answer, why = server.upgrade("--binary", pretender(server, tmp_path, "cannot resume the sessions"))
            expect(answer is None and "the TSIH is zero" in why, f"{answer or why}")
            expect_locked(server, tmp_path, f"{when}, and two that failed")
            answer, why = server.upgrade()
            expect(answer, f"an upgrade is refused: {why}")
            server.expect_replaced_ended()
        expect(server.stop() == 0, "the daemon does not end in order")
        expect(lock(tmp_path), "the state directory is locked by nobody")
    finally:
        server.kill()


class Older:
    """A release that serves and does not know the lock, up to where its sessions would move."""

    def __init__(self, server, folder):
        server.port = server.port or 0
        server.write_config()
        admin, self.portals = socket.socket(socket.AF_UNIX), [socket.create_server(("127.0.0.5", 0)) for _ in server.portals()]
        os.makedirs(folder / "admin", 0o700, exist_ok=True)
        admin_lock = open(folder / "admin" / "admin.lock", "wb")
        self.files = [*self.portals, admin, admin_lock]
        self.ours, theirs = socket.socketpair()
        environment = os.environ | {"TARGE_UPGRADE_FD": str(theirs.fileno())}
        self.process = subprocess.Popen(server.command(), cwd=folder, env=environment, pass_fds=[theirs.fileno()])
        theirs.close()
        receive(self.ours)
        configured = [f"{host}:{port}" for host, port in sorted(server.portals())]
        sockets = [*({"Portal": at} for at in range(len(configured))), "Admin", "AdminLock"]
        welcome = {"version": "0.0.1", "portals": configured, "sockets": sockets, "reactors": 1, "owners": {server.iqn: 0}, "interfaces": []}
        send(self.ours, json.dumps(welcome).encode(), [os.dup(file.fileno()) for file in self.files])

    def answer(self):
        return json.loads(receive(self.ours)[0])

    def end(self):
        """The process that was to take over ends as well."""
        self.ours.close()
        return self.process.wait(timeout=END_MAX_S)


def test_a_process_that_takes_over_from_an_older_release_locks_the_directory(tmp_path):
    server = Replaced(str(tmp_path), Export((Lun("file", size=MIB),)))
    server.start()
    # It leaves the media and a state directory.
    expect(server.stop() == 0, "the daemon does not end in order")
    older = Older(server, tmp_path)
    try:
        expect("Prepared" in (answer := older.answer()), f"{answer}")
        expect(lock(tmp_path) is None, "the process that takes over has not locked the state directory")
        expect(older.end() != 0, "a process that does not get the sessions ends without complaint")
        held = lock(tmp_path)
        expect(held, "a process that has ended has locked the state directory")
        held.close()
        # One that was late in the attempt before may need a moment to end. The process waits for the lock for two seconds only.
        for _ in range(TRIES):
            held = lock(tmp_path)
            older = Older(server, tmp_path)
            time.sleep(0.3)
            held.close()
            if "Prepared" in (answer := older.answer()):
                break
            older.end()
        expect("Prepared" in answer, f"{answer}")
        older.end()
        held = lock(tmp_path)
        older = Older(server, tmp_path)
        answer = older.answer()
        expect(answer.get("Failed", "").startswith(IN_USE), f"{answer}")
        held.close()
        older.end()
    finally:
        older.process.send_signal(signal.SIGKILL)
        server.kill()
