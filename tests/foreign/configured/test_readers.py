"""The group of `admin_readers`: its members see the state of the daemon, and change nothing."""

import json
import os
import shutil
import subprocess
import tempfile

import pytest
import servers
from verdicts import eventually

IQN = "iqn.2026-01.com.example:readers"
GROUP = 54321
RUN_MAX_S = 90


@pytest.fixture
def folder():
    # Another user must reach the socket, which is not so below the directory of pytest.
    path = tempfile.mkdtemp(prefix="targe-readers-")
    os.chmod(path, 0o711)
    yield path
    shutil.rmtree(path)


def ask(socket, *words, groups=None):
    """Runs a command, as root or as nobody with these groups."""
    prefix = [] if groups is None else ["setpriv", "--reuid=65534", "--regid=65534", f"--groups={groups}", "--inh-caps=-all"]
    done = subprocess.run([*prefix, servers.Targe.binary, *words, "--socket", socket], capture_output=True, text=True, timeout=RUN_MAX_S)
    return done.returncode, done.stdout, done.stderr


def test_members_of_the_group_see_the_state_and_change_nothing(folder):
    socket = f"{folder}/run/admin.sock"
    config = f"{folder}/targe.toml"
    with open(config, "w", encoding="utf-8") as file:
        file.write(f'''state_dir = "{folder}/state"
admin_socket = "{socket}"
admin_readers = "{GROUP}"
[[portal]]
listen = "127.0.0.1:0"
[[target]]
name = "{IQN}"
[[target.lun]]
type = "ram"
size = "1M"
''')
    with open(f"{folder}/log", "wb") as log:
        daemon = subprocess.Popen([servers.Targe.binary, "serve", "--config", config], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                                  preexec_fn=servers.die_with_parent)
    try:
        eventually(lambda: ask(socket, "status", "--json")[0] == 0, "the daemon serves", RUN_MAX_S)
        for command in ("status", "sessions", "luns"):
            code, shown, said = ask(socket, command, "--json", groups=GROUP)
            assert code == 0, said
            json.loads(shown)
        for command in (("lun", "drain", IQN, "0"), ("target", "remove", IQN), ("apply",)):
            code, _, said = ask(socket, *command, groups=GROUP)
            assert code == 1 and ("may only read" in said or "ermission denied" in said), (command, said)
        code, _, said = ask(socket, "lun", "drain", IQN, "0", groups=GROUP)
        assert "may only read the daemon's state" in said, said
        code, _, said = ask(socket, "status", groups=7)
        assert code == 1 and "permission denied" in said and "run the command with sudo" in said, said
        code, shown, said = ask(socket, "luns", "--json")
        assert code == 0 and not json.loads(shown)["luns"][0]["not_ready"], said
    finally:
        daemon.terminate()
        assert daemon.wait(RUN_MAX_S) == 0
