"""The lock of the state directory moves in an upgrade."""

import fcntl
import os
import subprocess

import pytest

from servers import MIB, Export, Lun
from upgrade.live import END_MAX_S, Replaced
from upgrade.test_upgrade import pretender
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
