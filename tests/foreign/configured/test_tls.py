"""Portals and initiators with TLS. The other end is OpenSSL (Python's `ssl`) or ours."""

import contextlib
import json
import os
import socket
import ssl
import subprocess
import time

import pytest
import servers
import tls
from verdicts import eventually

NAMES = "DNS:localhost,IP:127.0.0.1,IP:127.0.0.3"
TLS_HOST = "127.0.0.3"
SIZE = 32 * servers.MIB
RUN_MAX_S = 180
# A load goes on until it is told to end.
ENDLESS_S = 86400


class TlsTarge(servers.Targe):
    """With one more portal, which accepts TLS only."""

    identity = client_authority = None
    client_names = False

    def config_lines(self):
        yield from super().config_lines()
        certificate, key = self.identity
        yield from ("[[portal]]", f'listen = "{TLS_HOST}:{self.port}"', f'tls_certificate = "{certificate}"', f'tls_key = "{key}"')
        if self.client_authority:
            yield f'tls_client_authority = "{self.client_authority}"'
        if self.client_names:
            yield "tls_client_names = true"

    def tls_url(self, query):
        return self.url(host=TLS_HOST, query="?" + "&".join(f"{key}={value}" for key, value in query.items()))


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return tls.Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def identity(authority):
    return authority.sign("target", NAMES)


def server_with(tmp_path, identity, client_authority=None):
    server = TlsTarge(tmp_path / "server", servers.Export(luns=(servers.Lun(size=SIZE),)))
    server.identity, server.client_authority = identity, client_authority
    return server


def wait_for(condition, server):
    eventually(condition, server.log_tail, RUN_MAX_S)


def commands(server):
    """The commands of the only session; 0 while there is none."""
    return sum(session["commands"] for session in json.loads(server.admin("sessions"))["sessions"])


def targe(*arguments):
    return subprocess.run([servers.Targe.binary, *arguments], capture_output=True, text=True, timeout=RUN_MAX_S)


def qemu_io(url, *commands):
    arguments = [word for command in commands for word in ("-c", command)]
    return subprocess.run(["qemu-io", "-f", "raw", "-t", "none", *arguments, url], capture_output=True, text=True, timeout=RUN_MAX_S)


@pytest.mark.parametrize("reactor", ["uring", "epoll"])
def test_an_initiator_behind_a_foreign_tls_client_writes_and_reads(tmp_path, authority, identity, reactor):
    server = server_with(tmp_path, identity)
    server.reactor = reactor
    with server, tls.Relay((TLS_HOST, server.port), client=tls.trusting(authority)) as relay:
        url = f"iscsi://127.0.0.1:{relay.port}/{server.iqn}/0"
        done = qemu_io(url, "write -P 0x5a 0 8M", "write -P 0xa5 8M 512", "flush", "read -P 0x5a 0 8M", "read -P 0xa5 8M 512")
        assert done.returncode == 0 and "Pattern verification failed" not in done.stdout, done.stdout + done.stderr
        assert relay.carried and not relay.faults
        with open(server.medium_path(), "rb") as medium:
            assert medium.read(8 << 20) == b"\x5a" * (8 << 20)
            assert medium.read(512) == b"\xa5" * 512


@pytest.mark.parametrize("reactor", ["uring", "epoll"])
def test_our_initiator_verifies_a_disk_over_tls_with_certificates_of_both(tmp_path, authority, identity, reactor):
    initiator = authority.sign("initiator", "DNS:initiator.example", usage="clientAuth")
    server = server_with(tmp_path, identity, client_authority=authority.certificate)
    server.reactor = reactor
    with server:
        query = {"tls_ca": authority.certificate, "tls_certificate": initiator[0], "tls_key": initiator[1], "connections": 1}
        done = targe("verify", server.tls_url(query), "--full", "--write")
        assert done.returncode == 0, done.stdout + done.stderr
        nameless = {"tls_ca": authority.certificate, "timeout": 0, "connect_timeout": 60}
        portal = server.tls_url(nameless).replace(f"/{server.iqn}/{server.first_lun}", "")
        for command in (("info", server.tls_url(nameless)), ("discover", portal), ("bench", server.tls_url(nameless), "--time", "1"),
                        ("attach", server.tls_url(nameless), "--nbd", str(tmp_path / "disk.sock"))):
            refused = targe(*command)
            assert refused.returncode == 1 and "certificate_required" in refused.stderr, (command, refused.stderr)
        # The target logs it after it has told the initiator.
        wait_for(lambda: "presented no certificate" in server.log_of_this_run(), server)


@pytest.mark.parametrize("reactor", ["uring", "epoll"])
def test_a_certificate_can_be_for_some_initiator_names_only(tmp_path, authority, identity, reactor):
    own, other = "iqn.2026-11.com.example:own", "iqn.2026-11.com.example:other"
    named = authority.sign("named", f"URI:{own}", usage="clientAuth")
    nameless = authority.sign("nameless", "DNS:initiator.example", usage="clientAuth")
    server = server_with(tmp_path, identity, client_authority=authority.certificate)
    server.reactor, server.client_names = reactor, True
    with server:

        def info(certificate, initiator):
            certificate, key = certificate
            return targe("info", server.tls_url({"tls_ca": authority.certificate, "tls_certificate": certificate, "tls_key": key,
                                                 "initiator": initiator, "timeout": 0, "connect_timeout": 60}))

        for certificate, initiator, is_admitted in (
            (named, own, True), (named, own.upper().replace("IQN", "iqn"), True), (named, other, False), (nameless, own, False), (named, own, True),
        ):
            done = info(certificate, initiator)
            assert (done.returncode == 0) == is_admitted, done.stdout + done.stderr
        wait_for(lambda: server.log_of_this_run().count("the certificate of the connection does not contain the initiator's name") == 2, server)


@pytest.mark.parametrize("kind", ["tgt", "targe"])
def test_our_initiator_reaches_a_target_behind_a_foreign_tls_server(tmp_path, authority, identity, kind):
    export = servers.Export(luns=(servers.Lun(size=SIZE),))
    with servers.KINDS[kind](tmp_path / "server", export) as server:
        with tls.Relay(("127.0.0.1", server.port), server=tls.presenting(identity)) as relay:
            url = f"iscsi://127.0.0.1:{relay.port}/{server.iqn}/{server.first_lun}?tls_ca={authority.certificate}"
            done = targe("verify", url, "--full", "--write")
            assert done.returncode == 0, done.stdout + done.stderr
            assert relay.carried and not relay.faults


def test_the_proxy_carries_a_foreign_initiator_without_tls(tmp_path, authority, identity):
    initiator = authority.sign("initiator", "DNS:initiator.example", usage="clientAuth")
    with server_with(tmp_path, identity, client_authority=authority.certificate) as server:
        portal = f"iscsi://{TLS_HOST}:{server.port}?tls_ca={authority.certificate}&tls_certificate={initiator[0]}&tls_key={initiator[1]}"
        proxy = subprocess.Popen([servers.Targe.binary, "proxy", portal, "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
        try:
            banner = proxy.stderr.readline()
            port = int(banner.split(" for ")[0].rpartition(":")[2])
            done = qemu_io(f"iscsi://127.0.0.1:{port}/{server.iqn}/0", "write -P 0x5a 0 8M", "flush", "read -P 0x5a 0 8M")
            assert done.returncode == 0 and "Pattern verification failed" not in done.stdout, done.stdout + done.stderr
        finally:
            proxy.terminate()
            _, said = proxy.communicate(timeout=RUN_MAX_S)
        assert proxy.returncode == 0 and not said, said
        with open(server.medium_path(), "rb") as medium:
            assert medium.read(8 << 20) == b"\x5a" * (8 << 20)
        nameless = f"iscsi://{TLS_HOST}:{server.port}?tls_ca={authority.certificate}"
        proxy = subprocess.Popen([servers.Targe.binary, "proxy", nameless, "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
        try:
            port = int(proxy.stderr.readline().split(" for ")[0].rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), timeout=RUN_MAX_S) as end:
                end.sendall(bytes(48))
                with contextlib.suppress(ConnectionResetError):
                    assert end.recv(1) == b""
        finally:
            proxy.terminate()
            _, said = proxy.communicate(timeout=RUN_MAX_S)
        assert "certificate_required" in said, said
    for arguments, wanted in (([portal, "--listen", "0.0.0.0:0"], "not encrypted"), ([f"iscsi://{TLS_HOST}"], "no tls key")):
        refused = targe("proxy", *arguments)
        assert refused.returncode == 2 and wanted in refused.stderr, refused.stderr


def test_what_cannot_be_trusted_is_refused_in_one_sentence(tmp_path, authority, identity):
    stranger = tls.Authority(tmp_path / "stranger", "stranger")
    expired = authority.sign("expired", NAMES, days=-1)
    other = authority.sign("other", "DNS:san.example")
    quick = {"timeout": 0, "connect_timeout": 60}
    trusted = {"tls_ca": authority.certificate, **quick}
    with server_with(tmp_path, identity) as server:
        for query, wanted in (
            ({"tls_ca": stranger.certificate, **quick}, "is not signed by a trusted authority"),
            ({**trusted, "tls_name": "san.example"}, "is for another name than that of the host"),
        ):
            done = targe("info", server.tls_url(query))
            assert done.returncode == 1 and wanted in done.stderr, done.stderr
        deadline = time.monotonic() + RUN_MAX_S
        # A portal logs one failure in a second.
        while "does not speak TLS" not in server.log_of_this_run():
            plain = targe("info", server.url(host=TLS_HOST, query="?timeout=0&connect_timeout=60"))
            assert plain.returncode == 1 and time.monotonic() < deadline, plain.stdout
        # It waits for an answer of a portal that does not speak TLS.
        to_plain = targe("info", server.url(query="?" + "&".join(f"{key}={value}" for key, value in {**trusted, "connect_timeout": 5}.items())))
        assert to_plain.returncode == 1, to_plain.stdout
        old = ssl.create_default_context(cafile=authority.certificate)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError), socket.create_connection((TLS_HOST, server.port), timeout=60) as end:
            old.wrap_socket(end, server_hostname=TLS_HOST)
    for number, (given, wanted) in enumerate(((expired, "has expired"), (other, "is for another name"))):
        with server_with(tmp_path / str(number), given) as server:
            done = targe("info", server.tls_url(trusted))
            assert done.returncode == 1 and wanted in done.stderr, done.stderr


def test_a_renewed_certificate_is_used_after_a_reload_and_sessions_go_on(tmp_path, authority, identity):
    copies = [str(tmp_path / name) for name in ("portal.crt", "portal.key")]

    def install(pair):
        for path, copy in zip(pair, copies):
            with open(path, "rb") as file, open(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as to:
                to.write(file.read())

    def serial(server):
        context = tls.trusting(authority)
        with socket.create_connection((TLS_HOST, server.port), timeout=60) as end:
            with context.wrap_socket(end, server_hostname=TLS_HOST) as wrapped:
                return wrapped.getpeercert()["serialNumber"]

    install(identity)
    with server_with(tmp_path, copies) as server:
        before = serial(server)
        busy = subprocess.Popen([servers.Targe.binary, "bench", server.tls_url({"tls_ca": authority.certificate, "timeout": 0}),
                                 f"--time={ENDLESS_S}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                preexec_fn=servers.die_with_parent)
        # A bench looks at the LUN in one session, with a few commands, and loads it in another.
        wait_for(lambda: commands(server) > 200, server)
        install(authority.sign("renewed", NAMES))
        server.reload()
        wait_for(lambda: serial(server) != before, server)
        carried = commands(server)
        wait_for(lambda: commands(server) > carried or busy.poll() is not None, server)
        busy.terminate()
        out, err = busy.communicate(timeout=RUN_MAX_S)
        # With a timeout of 0 the loss of its session would have ended it.
        assert "a signal ended it" in err, out + err


def test_a_key_that_others_can_read_is_refused(tmp_path, identity):
    server = server_with(tmp_path, identity)
    server.port = 3260
    certificate, key = identity
    loose = tmp_path / "loose.key"
    with open(key, "rb") as file:
        loose.write_bytes(file.read())
    loose.chmod(0o644)
    server.identity = (certificate, loose)
    server.make_media()
    server.write_config()
    done = targe("check", server.config_path())
    assert done.returncode != 0 and "chmod 600" in done.stdout + done.stderr, done.stdout + done.stderr
