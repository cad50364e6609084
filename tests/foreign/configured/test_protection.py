"""LUNs that require protection: a target with a portal with TLS and one without. Initiators are libiscsi's tools, QEMU (TLS by OpenSSL
beside them) and ours. And `targe passwd` on a terminal."""

import json
import os
import pty
import re
import resource
import select
import signal
import stat
import subprocess
import time

import pytest
import servers
import tls
from verdicts import eventually

TLS_HOST = "127.0.0.3"
SIZE = 32 * servers.MIB
RUN_MAX_S = 180
ENCRYPT = (("protection", "encrypt"),)
# A load goes on until it is told to end.
ENDLESS_S = 86400


class TwoPortals(servers.Targe):
    """LUN 0 requires nothing, LUN 1 encryption. The portal "secure" accepts TLS only."""

    identity = None
    acl = ()

    def config_lines(self):
        yield from super().config_lines()
        yield from self.acl
        certificate, key = self.identity
        yield from ("[[portal]]", 'name = "secure"', f'listen = "{TLS_HOST}:{self.port}"', f'tls_certificate = "{certificate}"',
                    f'tls_key = "{key}"')


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return tls.Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def identity(authority):
    return authority.sign("target", f"DNS:localhost,IP:127.0.0.1,IP:{TLS_HOST}")


def server_with(tmp_path, identity, luns=(servers.Lun(size=SIZE), servers.Lun(size=SIZE, claims=ENCRYPT))):
    server = TwoPortals(tmp_path / "server", servers.Export(luns=luns))
    server.identity = identity
    return server


def run(*command, given=None):
    return subprocess.run(command, capture_output=True, text=True, timeout=RUN_MAX_S, input=given)


def targe(*arguments, given=None):
    return run(servers.Targe.binary, *arguments, given=given)


def luns_of(portal):
    done = targe("discover", portal, "--json")
    assert done.returncode == 0, done.stderr
    return [int(found["url"].partition("?")[0].rpartition("/")[2]) for found in json.loads(done.stdout)]


def wait_for(server, text):
    eventually(lambda: text in server.log_of_this_run(), lambda: f"{text!r} is in the log: {server.log_tail()}")


@pytest.mark.parametrize("reactor", ["uring", "epoll"])
def test_a_lun_that_must_be_encrypted_is_there_over_tls_only(tmp_path, authority, identity, reactor):
    server = server_with(tmp_path, identity)
    server.reactor = reactor
    secure = f"?tls_ca={authority.certificate}"
    with server, tls.Relay((TLS_HOST, server.port), client=tls.trusting(authority)) as relay:
        assert luns_of(f"iscsi://127.0.0.1:{server.port}") == [0]
        assert luns_of(f"iscsi://{TLS_HOST}:{server.port}{secure}") == [0, 1]
        listed = run("iscsi-ls", "-s", f"iscsi://127.0.0.1:{server.port}").stdout
        assert re.findall(r"Lun:(\d+)", listed) == ["0"] * listed.count("Target:"), listed
        plain, covered = (f"iscsi://127.0.0.1:{port}/{server.iqn}/1" for port in (server.port, relay.port))
        inquiry = run("iscsi-inq", plain)
        assert "VIRTUAL DISK" not in inquiry.stdout.upper(), inquiry.stdout
        written = run("qemu-io", "-f", "raw", "-t", "none", "-c", "write -P 0x5a 0 1M", "-c", "flush", "-c", "read -P 0x5a 0 1M", covered)
        assert written.returncode == 0 and "Pattern verification failed" not in written.stdout, written.stdout + written.stderr
        for command in (("read -P 0x5a 0 512",), ("write -P 0xa5 0 512",)):
            refused = run("qemu-io", "-f", "raw", "-t", "none", "-c", *command, plain)
            assert refused.returncode != 0, refused.stdout
        for verb in ("info", "read"):
            refused = targe(verb, f"{plain}?timeout=0")
            assert refused.returncode == 1 and "has no LUN 1" in refused.stderr, refused.stderr
        verified = targe("verify", f"iscsi://{TLS_HOST}:{server.port}/{server.iqn}/1{secure}", "--count", "200", "--write")
        assert verified.returncode == 0, verified.stdout + verified.stderr


def test_sessions_show_their_level_and_a_reload_hides_luns_of_them(tmp_path, authority, identity):
    server = server_with(tmp_path, identity)
    with server:
        secure = f"iscsi://{TLS_HOST}:{server.port}/{server.iqn}/1?tls_ca={authority.certificate}"
        loads = [subprocess.Popen([servers.Targe.binary, "bench", url, f"--time={ENDLESS_S}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, preexec_fn=servers.die_with_parent)
                 for url in (f"{server.url()}?timeout=0", secure)]
        try:
            deadline = time.monotonic() + RUN_MAX_S
            # A bench looks at the LUN in one session, with a few commands, and loads it in another.
            while len(sessions := [one for one in json.loads(server.admin("sessions"))["sessions"] if one["commands"] > 200]) < 2:
                assert time.monotonic() < deadline, [load.poll() for load in loads]
                time.sleep(0.05)
            shown = sorted((one["protection"], one["protection_by"], one["hidden_luns"]) for one in sessions)
            assert shown == [("encrypt", 'TLS 1.3 on portal "secure"', 0), ("none", None, 1)]
            text = targe("sessions", "--socket", os.path.join(server.folder, "admin", "admin.sock")).stdout
            assert 'encrypt: TLS 1.3 on portal "secure"' in text and "1 LUN hidden: it requires more protection" in text, text
            assert json.loads(server.admin("status"))["targets"][0]["restricted_sessions"] == 1
            server.export = servers.Export(luns=(servers.Lun(size=SIZE, claims=ENCRYPT),) * 2)
            server.reload()
            wait_for(server, 'requires more protection than "none"')
            wait_for(server, '2 LUNs require more protection than "none", so that it does not see them')
            out, err = loads[0].communicate(timeout=RUN_MAX_S)
            assert loads[0].returncode == 1, out + err
            assert loads[1].poll() is None, "the session over TLS goes on"
        finally:
            for load in loads:
                load.send_signal(signal.SIGTERM)
                load.communicate(timeout=RUN_MAX_S)
        assert luns_of(f"iscsi://127.0.0.1:{server.port}") == []


def test_an_entry_of_the_access_list_has_its_own_level(tmp_path, authority, identity):
    server = server_with(tmp_path, identity)
    weak, strong = "iqn.2026-11.example.targe:weak", "iqn.2026-11.example.targe:strong"
    server.acl = ("[[target.acl]]", f'initiators = ["{weak}"]', "luns = [0, { lun = 1, protection = 'none' }]",
                  "[[target.acl]]", f'initiators = ["{strong}"]', "protection = 'encrypt'")
    with server:
        checked = targe("check", server.config_path())
        assert 'LUN 1 requires "encrypt", but these initiators can access it with "none"' in checked.stdout, checked.stdout
        for name, there in ((weak, True), (strong, False)):
            for lun in (0, 1):
                done = targe("info", f"{server.url(lun)}?initiator={name}&timeout=0")
                assert (done.returncode == 0) == there, done.stdout + done.stderr
        for name in (weak, strong):
            done = targe("info", f"iscsi://{TLS_HOST}:{server.port}/{server.iqn}/1?initiator={name}&tls_ca={authority.certificate}")
            assert done.returncode == 0, done.stderr


def test_a_daemon_with_secrets_leaves_no_core_dump(tmp_path, identity):
    _, most = usual = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))
    try:
        server = server_with(tmp_path, identity)
        server.start()
        server.process.send_signal(signal.SIGABRT)
        _, status = os.waitpid(server.process.pid, 0)
        server.process = None
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, usual)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGABRT and not os.WCOREDUMP(status)


def passwd_on_a_terminal(file, answers, interrupt=False):
    """Answers the questions of `targe passwd` on a terminal. Returns the exit code, what was displayed, and whether the terminal
    displays what is typed afterwards."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(servers.Targe.binary, [servers.Targe.binary, "passwd", file, "--user", "alice", "--memory", "8K", "--passes", "1"])
    displayed, answers, deadline = b"", list(answers), time.monotonic() + RUN_MAX_S
    while True:
        assert time.monotonic() < deadline, displayed
        if not select.select([terminal], [], [], 0.1)[0]:
            continue
        try:
            piece = os.read(terminal, 4096)
        except OSError:
            break
        if not piece:
            break
        displayed += piece
        if displayed.endswith(b": ") and answers:
            os.write(terminal, b"\x03" if interrupt else answers.pop(0) + b"\n")
            answers = [] if interrupt else answers
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    return code, displayed.decode()


def test_passwd_asks_twice_on_a_terminal_and_displays_nothing(tmp_path):
    file = str(tmp_path / "users")
    code, displayed = passwd_on_a_terminal(file, [b"correct horse", b"correct horse"])
    assert code == 0 and "horse" not in displayed and 'Password of user "alice": ' in displayed, displayed
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    with open(file) as records:
        before = records.read()
    assert before.startswith("targe passwords 1\n") and "horse" not in before
    code, displayed = passwd_on_a_terminal(file, [b"correct horse", b"correct mouse"])
    assert code == 2 and "the two passwords differ" in displayed, displayed
    code, displayed = passwd_on_a_terminal(file, [b"ignored"], interrupt=True)
    assert code == -signal.SIGINT, (code, displayed)
    with open(file) as records:
        assert records.read() == before
    assert targe("passwd", file, "--user", "alice", "--memory", "8K", "--passes", "1", given="another\n").returncode == 0
