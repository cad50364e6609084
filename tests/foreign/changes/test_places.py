"""A configuration file in a place that cannot be written: one sentence, and nothing changes."""

import os
import subprocess

import pytest

import servers
from changes.daemon import Daemon
from serving import add_verdict
from verdicts import expect, same

pytestmark = pytest.mark.servers("targe")
NAME = "iqn.2026-11.org.targe:disk"
TEXT = """state_dir = "{state}"
admin_socket = "{state}/admin/admin.sock"

[[portal]]
listen = "127.0.0.1:{port}"

[[target]]
name = "iqn.2026-11.org.targe:disk"
lun = [{{ type = "null", size = "1M" }}]
"""
# What has this path before the command runs, and in whose eyes.
PLACES = {
    # A command that is root, in a mount namespace of its own.
    "read-only file system": 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"',
    # Root without the right to ignore the mode of a folder, as every other user.
    "read-only folder": 'chmod 0555 "$0" && exec setpriv --bounding-set=-dac_override --inh-caps=-dac_override "$@"',
}
REASONS = {"read-only file system": "read-only file system", "read-only folder": "permission denied"}


@pytest.mark.parametrize("place", PLACES)
def test_nothing_changes(request, tmp_path, place):
    folder, state = tmp_path / "etc", tmp_path / "state"
    daemon = Daemon(folder, TEXT.format(state=state, port=servers.free_port()))
    daemon.socket = str(state / "admin" / "admin.sock")
    request.addfinalizer(daemon.kill)
    request.addfinalizer(lambda: folder.chmod(0o755))
    daemon.start()
    text, status = daemon.read(), daemon.ask("status")
    other = tmp_path / "other.toml"
    other.write_text(text + "max_sessions = 9\n")

    def command(*words):
        where = [] if "--config" in words else ["--socket", daemon.socket]
        entered = ["unshare", "--mount", *["--map-root-user"] * (os.geteuid() != 0)]
        done = subprocess.run([*entered, "sh", "-c", PLACES[place], folder, servers.Targe.binary, *words, *where],
                              capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout, done.stderr

    for words in (["target", "set", NAME, "alias=x"], ["lun", "add", NAME, "ram:1M"], ["apply", str(other)],
                  ["target", "set", NAME, "alias=x", "--config", daemon.path]):
        code, _, said = command(*words)
        expect(code == 1, f"{words} ended with {code}: {said}")
        expect(REASONS[place] in said.lower() and "targe.toml" in said, f"{words} says {said!r}")
        same(f"the lines of {said!r}", len(said.strip().splitlines()), 1)
    # What changes no file is possible.
    code, shown, said = command("target", "set", NAME, "alias=x", "--dry-run")
    expect(code == 0 and "alias: none -> x" in shown, f"the trial ended with {code}: {said}")
    code, _, said = command("apply")
    expect(code == 0, f"apply of the file itself ended with {code}: {said}")
    same("the file", daemon.read(), text)
    same("the names in its folder", sorted(os.listdir(folder)), ["server.log", "targe.toml"])
    same("the generation", daemon.ask("status")["generation"], status["generation"])
    same("the revision", daemon.ask("status")["revision"], status["revision"])
    add_verdict(request, "the daemon ends as it should", daemon.stop)
