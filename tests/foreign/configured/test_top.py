"""`targe top`: rates beside those that `targe bench` counts, and the screen on a terminal of the rig's own. It judges targe alone."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import pytest
import servers

WAIT_S = 60
# A load goes on until it is told to end.
ENDLESS_S = 86400


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with servers.Targe(tmp_path_factory.mktemp("top"), servers.Export(luns=(servers.Lun("ram", 4 * servers.MIB),) * 2)) as target:
        yield target


def command(server, *arguments):
    return [servers.Targe.binary, "top", "--socket", os.path.join(server.folder, "admin", "admin.sock"), *arguments]


def test_rates_are_those_of_the_load(server):
    """What the samples add up to is what the daemon counted in all."""
    before = {one["lun"]: one for one in json.loads(server.admin("luns"))["luns"]}
    top = subprocess.Popen(command(server, "--json", "--interval", "0.5"), stdout=subprocess.PIPE, text=True)
    try:
        # Its first sample is taken before the load begins.
        lines = [json.loads(top.stdout.readline())]
        load = subprocess.Popen([servers.Targe.binary, "bench", f"iscsi://127.0.0.1:{server.port}/{server.iqn}/1", f"--time={ENDLESS_S}"],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=servers.die_with_parent)
        try:
            # A session has rates once two samples have it.
            while not rates_of_sessions(lines):
                add_line(top, load, lines)
        finally:
            load.terminate()
            _, said = load.communicate(timeout=WAIT_S)
        assert "a signal ended it" in said, said
        after = {one["lun"]: one for one in json.loads(server.admin("luns"))["luns"]}
        # The load has ended, and samples follow until one of them has its last command.
        while counted(lines, 1, "commands") < after[1]["commands"] - before[1]["commands"]:
            add_line(top, load, lines)
    finally:
        top.terminate()
        top.wait(WAIT_S)
    for lun in (0, 1):
        for name in ("commands", "read_bytes", "write_bytes"):
            assert counted(lines, lun, name) == after[lun][name] - before[lun][name], (lun, name)
    assert after[1]["read_bytes"] > before[1]["read_bytes"] and after[0]["read_bytes"] == before[0]["read_bytes"]
    assert all(session["target"] == server.iqn for session in rates_of_sessions(lines)), lines


def rates_of_sessions(lines):
    return [session for line in lines for session in line["sessions"] if session["rate"] and session["rate"]["commands"] > 0]


def counted(lines, lun, name):
    """What the samples of a LUN add up to."""
    return round(sum(line["luns"][lun]["rate"][name] * line["seconds"] for line in lines))


def add_line(top, load, lines):
    assert select.select([top.stdout], [], [], WAIT_S)[0], (load.poll(), lines[-1])
    lines.append(json.loads(top.stdout.readline()))
    assert len(lines) < 2 * WAIT_S, (load.poll(), lines[-1])


def test_without_a_terminal_it_prints_text(server):
    done = subprocess.run(command(server, "--count", "2", "--interval", "0.1"), capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("IOPS  READ MB/s  WRITE MB/s  READ µs  WRITE µs  ERRORS  LUN") == 2 and f"{server.iqn}/1" in done.stdout, done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("arguments", [("--interval", "0"), ("--interval", "1e99"), ("--count", "0"), ("--plain", "--json")])
def test_bad_usage_is_told(server, arguments):
    done = subprocess.run(command(server, *arguments), capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 2 and done.stderr.startswith("error: "), done.stderr


def test_without_a_daemon_it_says_so(tmp_path):
    done = subprocess.run([servers.Targe.binary, "top", "--socket", str(tmp_path / "none")], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 1 and "no targe is running" in done.stderr, done.stderr


class Terminal:
    """A terminal with a program on it."""

    def __init__(self, rows, columns, arguments):
        self.pid, self.end = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.execv(arguments[0], arguments)
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
        self.output = ""

    def wait_for(self, pattern):
        """Waits until the output since the last call has this."""
        deadline = time.monotonic() + WAIT_S
        while not re.search(pattern, self.output):
            assert time.monotonic() < deadline, (pattern, self.output)
            if select.select([self.end], [], [], 0.1)[0]:
                self.output += os.read(self.end, 65536).decode(errors="replace")
        self.output = ""

    def read_rest(self):
        """Reads what the program displayed before its end."""
        with contextlib.suppress(OSError):
            while select.select([self.end], [], [], 0)[0] and (piece := os.read(self.end, 65536)):
                self.output += piece.decode(errors="replace")

    def press(self, keys):
        os.write(self.end, keys.encode())

    def modes(self):
        return termios.tcgetattr(self.end)[3]

    def ended(self):
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                if select.select([self.end], [], [], 0.1)[0]:
                    self.output += os.read(self.end, 65536).decode(errors="replace")
            except OSError:
                pass
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.read_rest()
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, self.output


def test_the_screen_shows_what_keys_ask_for_and_is_given_back(server):
    terminal = Terminal(24, 100, command(server, "--interval", "0.2"))
    terminal.wait_for(r"\x1b\[\?1049h")
    terminal.wait_for(rf"{re.escape(server.iqn)}/1")
    assert not terminal.modes() & termios.ICANON
    terminal.press("s")
    terminal.wait_for("LUNs by IOPS")
    terminal.press("\t")
    terminal.wait_for("sessions by IOPS")
    terminal.press("q")
    assert terminal.ended() == 0
    assert "\x1b[?1049l" in terminal.output and "\x1b[?25h" in terminal.output, terminal.output
    os.close(terminal.end)


def test_a_signal_gives_the_terminal_back(server):
    terminal = Terminal(24, 100, command(server, "--interval", "0.2"))
    terminal.wait_for(rf"{re.escape(server.iqn)}/1")
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.ended() == -signal.SIGTERM
    assert "\x1b[?1049l" in terminal.output and terminal.modes() & termios.ICANON
    os.close(terminal.end)


def test_a_daemon_that_restarts_is_shown_and_found_again(tmp_path):
    server = servers.Targe(tmp_path / "server", servers.Export(luns=(servers.Lun("ram", servers.MIB),)))
    with server:
        terminal = Terminal(24, 200, command(server, "--interval", "0.2"))
        terminal.wait_for(rf"{re.escape(server.iqn)}/0")
        server.stop()
        terminal.wait_for("no targe is running")
        server.start(fresh=False)
        terminal.wait_for(r"up \d")
        terminal.press("\x03")
        assert terminal.ended() == 0
        os.close(terminal.end)
