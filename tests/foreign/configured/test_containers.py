"""A daemon in a container, and its clients in another one: they have no process ID there, as the containers of a Kubernetes pod."""

import json
import os
import subprocess
import time

import pytest

import servers
from verdicts import expect, same

APPEARS_MAX_S = ENDS_MAX_S = 60
pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(300)]


def test_clients_of_another_pid_namespace_are_served(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("a PID namespace needs root")
    config, socket, state = tmp_path / "targe.toml", tmp_path / "admin" / "admin.sock", tmp_path / "state"
    config.write_text(f'admin_socket = "{socket}"\nstate_dir = "{state}"\n[[portal]]\nlisten = "127.0.0.1:0"\n'
                      '[[target]]\nname = "iqn.2026-11.org.targe:one"\n[[target.lun]]\ntype = "null"\nsize = "1M"\n')
    # The end of the process that waits for it ends the daemon.
    command = ["unshare", "--pid", "--fork", "--kill-child", servers.Targe.binary, "serve", "--config", str(config)]
    with open(tmp_path / "log", "wb") as log:
        daemon = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + APPEARS_MAX_S
        while not socket.exists():
            expect(time.monotonic() < deadline and daemon.poll() is None, (tmp_path / "log").read_text())
            time.sleep(0.05)
        status = json.loads(asked(socket, "status", "--json"))
        same("the process ID of the daemon, in its own namespace", status["pid"], 1)
        asked(socket, "target", "add", "iqn.2026-11.org.targe:two", "--lun", "null:1M")
        expect("targe:two" in config.read_text(), "the change is not in the file")
        entries = [json.loads(line) for line in (state / "audit.log").read_text().splitlines()]
        made = [entry for entry in entries if entry.get("uid") == 0]
        expect(made and all(entry["pid"] is None for entry in made), f"{entries}")
    finally:
        daemon.kill()
        daemon.wait(timeout=ENDS_MAX_S)


def asked(socket, *words):
    done = subprocess.run([servers.Targe.binary, *words, "--socket", str(socket)], capture_output=True, text=True, timeout=60)
    expect(done.returncode == 0, f"targe {' '.join(words)}: {done.stderr}")
    return done.stdout
