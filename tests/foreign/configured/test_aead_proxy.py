"""`targe proxy` with a password login: initiators of others use a target that permits nothing without an AEAD digest."""

import json
import re
import socket
import struct
import subprocess

import pytest
import listening
import servers
from aead_relay import OPCODES, AttackedRelay
from passwords import RUN_MAX_S, USER, WithPasswords, secret_file
from proxying import Proxy, Redirector, pdu, read_pdu
from verdicts import eventually

SIZE = 32 * servers.MIB
PATTERN = b"\x5a" * 64
# A load goes on until it is told to end.
ENDLESS_S = 86400


def server_with(tmp_path, level=2):
    lun = servers.Lun(size=SIZE, claims=(("protection", "encrypt"),))
    server = WithPasswords(tmp_path / "server", servers.Export(luns=(lun,), level=level))
    server.requires, server.discovers = "encrypt", True
    server.make_record()
    return server


@pytest.fixture
def password(tmp_path):
    return secret_file(tmp_path / "password")


def portal(port, password, more="&protection=encrypt"):
    return f"iscsi://{USER}@127.0.0.1:{port}?auth=opaque&password_file={password}{more}"


def run(*command, given=None):
    return subprocess.run(command, capture_output=True, text=True, timeout=RUN_MAX_S, input=given)


def targe(*arguments):
    return run(servers.Targe.binary, *arguments)


def start(*arguments):
    return subprocess.Popen([servers.Targe.binary, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            preexec_fn=servers.die_with_parent)


def qemu(url, *commands):
    done = run("qemu-io", "-f", "raw", "-t", "none", *(word for command in commands for word in ("-c", command)), url)
    return done, done.returncode == 0 and "Pattern verification failed" not in done.stdout


def wait_for_session(server):
    return eventually(lambda: json.loads(server.admin("sessions"))["sessions"], "there is a session")


def wait_for_commands(server, load, more=20):
    """Waits until the LUN has executed so many more."""
    executed = lambda: json.loads(server.admin("luns"))["luns"][0]["commands"]
    before = executed()
    eventually(lambda: executed() >= before + more or load.poll() is not None, f"{more} more commands", RUN_MAX_S)
    assert load.poll() is None, load.poll()


@pytest.mark.parametrize("reactor", ["uring", "epoll"])
def test_qemu_writes_and_reads_and_nothing_of_it_is_on_the_wire(tmp_path, password, reactor):
    server = server_with(tmp_path)
    server.reactor = reactor
    with server, AttackedRelay(("127.0.0.1", server.port)) as relay, Proxy(portal(relay.port, password)) as proxy:
        url = f"iscsi://127.0.0.1:{proxy.port}/{server.iqn}/0"
        done, well = qemu(url, "write -P 0x5a 0 8M", "write -P 0xa5 1M 3k", "flush", "read -P 0x5a 0 1M", "read -P 0xa5 1M 3k",
                          "read -P 0x5a 2M 6M")
        assert well, done.stdout + done.stderr
        captured = relay.captured()
        assert len(captured) > 14 * servers.MIB and PATTERN not in captured
        # The records that the proxy makes have no more than 64 KiB, whatever the initiator would send.
        longest = max(len(pdu.data) for pdu in relay.pdus if pdu.opcode == OPCODES["data_out"])
        assert 32 << 10 < longest <= (64 << 10) + 16
        with open(server.medium_path(0), "rb") as medium:
            assert medium.read(64) == PATTERN
        code, said = proxy.stop()
        assert code == 0 and not said, said
        relay.judge_ends()


def test_libiscsi_discovers_through_the_proxy_and_comes_back_to_it(tmp_path, password):
    server = server_with(tmp_path)
    with server, Proxy(portal(server.port, password)) as proxy:
        listed = run("iscsi-ls", "-s", f"iscsi://127.0.0.1:{proxy.port}")
        assert re.search(rf"Target:{re.escape(server.iqn)} Portal:127\.0\.0\.1:{proxy.port},", listed.stdout), listed.stdout + listed.stderr
        assert re.findall(r"Lun:(\d+)", listed.stdout) == ["0"], listed.stdout
        inquiry = run("iscsi-inq", f"iscsi://127.0.0.1:{proxy.port}/{server.iqn}/0")
        assert inquiry.returncode == 0 and "Vendor" in inquiry.stdout, inquiry.stdout + inquiry.stderr
        assert proxy.stop() == (0, "")


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_whole_disk_with_digests_at_every_level_and_with_several_connections(tmp_path, password, level):
    server = server_with(tmp_path)
    with server, Proxy(portal(server.port, password)) as proxy:
        url = f"iscsi://127.0.0.1:{proxy.port}/{server.iqn}/0?erl={level}&connections=4&header_digest=crc32c&data_digest=crc32c"
        load = start("bench", url, f"--time={ENDLESS_S}")
        try:
            session = wait_for_session(server)[0]
            assert session["protection"] == "encrypt" and "Y-org.targe." in session["protection_by"], session
        finally:
            load.terminate()
            load.communicate(timeout=RUN_MAX_S)
        verified = targe("verify", url, "--full", "--write")
        assert verified.returncode == 0, verified.stdout + verified.stderr
        assert proxy.stop() == (0, "")


@pytest.mark.parametrize("why", ["password", "user", "nobody"])
def test_a_login_that_fails_is_one_sentence(tmp_path, password, why):
    server = server_with(tmp_path)
    wrong = secret_file(tmp_path / "wrong", "incorrect horse")
    with server:
        url, wanted = {
            "password": (portal(server.port, wrong), "unknown user or wrong password"),
            "user": (portal(server.port, password).replace(USER, "mallory"), "unknown user or wrong password"),
            "nobody": (portal(listening.free_port(), password), "the portal cannot be reached"),
        }[why]
        with Proxy(url) as proxy:
            refused = run("iscsi-inq", f"iscsi://127.0.0.1:{proxy.port}/{server.iqn}/0")
            assert refused.returncode != 0 and "Vendor" not in refused.stdout, refused.stdout
            ours = targe("info", f"iscsi://127.0.0.1:{proxy.port}/{server.iqn}/0?timeout=0")
            assert ours.returncode == 1 and len(ours.stderr.splitlines()) == 1, ours.stderr
            assert ("authentication failed" if why != "nobody" else "not operational") in ours.stderr, ours.stderr
            code, said = proxy.stop()
            assert code == 0 and said and all(wanted in line for line in said.splitlines()), said
            assert "horse" not in said


@pytest.mark.parametrize("status", [0x0101, 0x0102])
def test_a_redirection_is_followed_and_the_initiator_stays_at_the_proxy(tmp_path, password, status):
    server = server_with(tmp_path)
    with server, AttackedRelay(("127.0.0.1", server.port)) as relay, Redirector(f"127.0.0.1:{relay.port},1", status) as moved, \
            Proxy(portal(moved.port, password)) as proxy:
        url = f"iscsi://127.0.0.1:{proxy.port}/{server.iqn}/0"
        done, well = qemu(url, "write -P 0x5a 0 1M", "read -P 0x5a 0 1M")
        assert well, done.stdout + done.stderr
        listed = run("iscsi-ls", f"iscsi://127.0.0.1:{proxy.port}")
        assert re.findall(r"Portal:127\.0\.0\.1:(\d+),", listed.stdout) == [str(proxy.port)], listed.stdout + listed.stderr
        assert moved.asked >= 2 and len(relay.captured()) > 2 * servers.MIB and PATTERN not in relay.captured()
        assert proxy.stop() == (0, "")


@pytest.mark.parametrize("why", ["circle", "nobody"])
def test_a_redirection_that_leads_nowhere_is_one_sentence(tmp_path, password, why):
    nowhere = f"127.0.0.1:{servers.free_port()}"
    with Redirector(nowhere) as moved:
        if why == "circle":
            moved.address = f"127.0.0.1:{moved.port}"
        wanted = {"circle": "each address of the target leads to another one",
                  "nobody": f"{nowhere}, where the target moved, cannot be reached"}[why]
        with Proxy(portal(moved.port, password)) as proxy:
            refused = targe("info", f"iscsi://127.0.0.1:{proxy.port}/iqn.2001-04.com.example:a/0?timeout=0")
            assert refused.returncode == 1 and len(refused.stderr.splitlines()) == 1, refused.stderr
            assert "not operational" in refused.stderr and "moved" not in refused.stderr, refused.stderr
            code, said = proxy.stop()
            assert code == 0 and said and all(wanted in line for line in said.splitlines()), said


@pytest.mark.parametrize("size", [3, 64])
def test_a_first_text_in_pieces_is_taken_and_the_numbers_go_on(tmp_path, password, size):
    """An initiator that sends its first Login text in pieces, by the C bit (RFC 7143 §6.2), and checks every StatSN."""
    server = server_with(tmp_path)
    with server, Proxy(portal(server.port, password)) as proxy, socket.create_connection(("127.0.0.1", proxy.port), RUN_MAX_S) as near:
        stream, expected = near.makefile("rb"), 0

        def exchange(header, data=b""):
            nonlocal expected
            near.sendall(pdu(header, data))
            answer, text = read_pdu(stream)
            assert struct.unpack(">I", answer[24:28]) == (expected,), f"StatSN of {answer.hex()}"
            expected += 1
            return answer, text

        def login(flags, data):
            return exchange(struct.pack(">BBxxI6sHIHxxII16x", 0x43, flags, 0, b"\x80\0\0\0\0\1", 0, 1, 0, 7, 0), data)

        def request(opcode, flags, tag, command_sn):
            return struct.pack(">BB14xIIII16x", opcode, flags, tag, 0xffffffff, command_sn, expected)

        text = f"InitiatorName=iqn.2001-04.com.example:pieces\0TargetName={server.iqn}\0AuthMethod=None\0".encode()
        pieces = [text[at:at + size] for at in range(0, len(text), size)]
        for piece in pieces[:-1]:
            answer, said = login(0x40, piece)
            assert answer[36] == 0 and not said and not answer[1] & 0xc0, answer.hex()
        answer, said = login(0x81, pieces[-1])
        assert answer[36] == 0 and b"AuthMethod=None" in said, (answer.hex(), said)
        answer, _ = login(0x87, b"HeaderDigest=None\0DataDigest=None\0")
        assert answer[36] == 0 and answer[1] == 0x87, answer.hex()
        for number in range(3):
            answer, said = exchange(request(0x00, 0x80, 10 + number, 7 + number), b"ping")
            assert answer[0] == 0x20 and said == b"ping", answer.hex()
        answer, _ = exchange(request(0x06, 0x80, 20, 10))
        assert answer[0] == 0x26 and answer[2] == 0, answer.hex()
        assert proxy.stop() == (0, "")


def test_a_load_goes_on_when_the_proxy_is_killed_and_started_again(tmp_path, password):
    server = server_with(tmp_path)
    with server, Proxy(portal(server.port, password)) as proxy:
        url = f"iscsi://127.0.0.1:{proxy.port}/{server.iqn}/0?erl=2&timeout=60"
        load = start("verify", url, f"--time={ENDLESS_S}", "--write", "--json", "--depth", "2")
        try:
            wait_for_commands(server, load)
            for _ in range(2):
                proxy.kill()
                proxy.start()
                wait_for_commands(server, load)
        finally:
            load.terminate()
            said, aside = load.communicate(timeout=RUN_MAX_S)
        # It ends in the middle, by the signal, and has seen nothing wrong so far.
        report = json.loads(said)
        assert load.returncode == 1 and report["writes"] > 0, (said, aside)
        assert report["errors"] == sum(report["wrong"].values()) == 0, (said, aside)
        assert report["session"]["connections_lost"] >= 2, report["session"]


@pytest.mark.parametrize("name", ["data_in", "data_out"])
def test_damage_on_the_wire_reaches_no_application(tmp_path, password, name):
    """What the target receives damaged, it requests again. What the proxy receives damaged closes the connection, and the initiator
    recovers."""
    seen, damaged = [], []

    def change(pdu, _):
        if pdu.opcode != OPCODES[name] or len(pdu.data) < 4096:
            return pdu.bytes
        seen.append(pdu)
        if len(seen) % 40 or len(damaged) == 3:
            return pdu.bytes
        damaged.append(pdu)
        return pdu.header + bytes([pdu.data[0] ^ 0x10]) + pdu.data[1:]

    server = server_with(tmp_path)
    with server, AttackedRelay(("127.0.0.1", server.port), change) as relay, Proxy(portal(relay.port, password)) as proxy:
        url = f"iscsi://127.0.0.1:{proxy.port}/{server.iqn}/0?erl=1&timeout=60"
        verified = targe("verify", url, "--full", "--write")
        assert verified.returncode == 0, verified.stdout + verified.stderr
        assert len(damaged) == 3
        code, said = proxy.stop()
        closed = said.count("a data segment of the target was damaged or modified on its way")
        assert (code, closed) == (0, 3 if name == "data_in" else 0), said
