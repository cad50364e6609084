"""AEAD digests and the password login between our initiator and our target, through a relay that reads and changes what they send."""

import json
import math
import os
import re
import subprocess
from collections import Counter

import pytest
import servers
from aead_relay import OPCODES, AttackedRelay
from passwords import RUN_MAX_S, WithPasswords, secret_file
from verdicts import eventually

# Far into a sparse disk: an address whose bytes nothing else on the wire has by chance.
LBA = 0x0a0b0c0d
SIZE = (LBA << 9) + (1 << 30)
WRITTEN = 4 * servers.MIB
TEXT = b"the salaries of everybody in the company. "


def server_with(tmp_path, least="encrypt", requires=None, size=SIZE):
    lun = servers.Lun(size=size, claims=(("protection", least),))
    server = WithPasswords(tmp_path / "server", servers.Export(luns=(lun,), level=2))
    server.requires = requires
    server.make_record()
    return server


@pytest.fixture
def password(tmp_path):
    return secret_file(tmp_path / "password")


def targe(*arguments, given=b""):
    return subprocess.run([servers.Targe.binary, *arguments], capture_output=True, timeout=RUN_MAX_S, input=given)


def url_of(server, port, password, user="alice", **keys):
    query = "".join(f"&{key}={value}" for key, value in keys.items())
    return f"iscsi://{user}@127.0.0.1:{port}/{server.iqn}/0?auth=opaque&password_file={password}{query}"


def image():
    return (TEXT * (WRITTEN // len(TEXT) + 1))[:WRITTEN]


def write_and_read(url):
    wrote = targe("write", url, "--write", "--offset", str(LBA << 9), given=image())
    assert wrote.returncode == 0, wrote.stderr
    read = targe("read", url, "--offset", str(LBA << 9), "--length", str(WRITTEN))
    assert read.returncode == 0, read.stderr
    assert read.stdout == image()


def entropy(data):
    """Bits per byte."""
    return -sum(count / len(data) * math.log2(count / len(data)) for count in Counter(data).values())


# READ and WRITE, of 16 and of 10 bytes, with the first address.
CDB = re.compile(rb"[\x88\x8a]\x00" + LBA.to_bytes(8, "big") + rb"|[\x28\x2a]\x00" + LBA.to_bytes(4, "big"))


@pytest.mark.parametrize("reactor", ["uring", "epoll"])
def test_a_capture_of_an_encrypted_session_has_no_data_no_cdb_and_no_address(tmp_path, password, reactor):
    server = server_with(tmp_path)
    server.reactor = reactor
    with server, AttackedRelay(("127.0.0.1", server.port)) as relay:
        write_and_read(url_of(server, relay.port, password, protection="encrypt"))
        captured = relay.captured()
        assert len(captured) > 2 * WRITTEN
        assert TEXT not in captured and TEXT[:16] not in captured
        assert not CDB.search(captured) and LBA.to_bytes(4, "big") not in captured
        relay.judge_ends()
        for name in ("data_in", "data_out"):
            data = b"".join(pdu.data for pdu in relay.pdus if pdu.opcode == OPCODES[name])
            assert len(data) >= WRITTEN // 2 and entropy(data) > 7.999, name
        commands = b"".join(pdu.header[8:] for pdu in relay.pdus if pdu.opcode == OPCODES["command"])
        assert entropy(commands) > 7.0, "and the headers of commands are as random"


def test_the_same_search_finds_everything_where_a_session_only_authenticates(tmp_path, password):
    server = server_with(tmp_path, least="integrity")
    with server, AttackedRelay(("127.0.0.1", server.port)) as relay:
        write_and_read(url_of(server, relay.port, password, protection="integrity"))
        captured = relay.captured()
        assert TEXT in captured and CDB.search(captured)


def damaging(name, every):
    """Flips a bit in one of so many data records."""
    counts = Counter()

    def change(pdu, _):
        if pdu.opcode != OPCODES[name] or len(pdu.data) < 64 or pdu.is_login:
            return pdu.bytes
        counts[name] += 1
        if counts[name] % every:
            return pdu.bytes
        counts["damaged"] += 1
        at = len(pdu.data) // 2
        return pdu.header + pdu.data[:at] + bytes([pdu.data[at] ^ 0x10]) + pdu.data[at + 1:]

    return counts, change


@pytest.mark.parametrize("name", ["data_in", "data_out"])
@pytest.mark.parametrize("level", [1, 2])
def test_damaged_data_is_repaired_and_the_application_notices_nothing(tmp_path, password, name, level):
    server = server_with(tmp_path, size=32 * servers.MIB)
    counts, change = damaging(name, 70)
    with server, AttackedRelay(("127.0.0.1", server.port), change) as relay:
        verified = targe("verify", url_of(server, relay.port, password, protection="encrypt", erl=level), "--full", "--write")
        assert verified.returncode == 0, verified.stdout + verified.stderr
        assert counts["damaged"] > 3, counts


def test_damage_without_end_ends_the_session_and_is_logged_as_tampering(tmp_path, password):
    server = server_with(tmp_path, size=32 * servers.MIB)
    counts, change = damaging("data_out", 1)
    with server, AttackedRelay(("127.0.0.1", server.port), change) as relay:
        url = url_of(server, relay.port, password, protection="encrypt", erl=1, timeout=5)
        wrote = targe("write", url, "--write", given=os.urandom(16 * servers.MIB))
        assert wrote.returncode == 1, wrote.stderr
        assert counts["damaged"] >= 16, counts
        eventually(lambda: "somebody modifies PDUs" in server.log_of_this_run(), server.log_tail)
        with open(server.medium_path(0), "rb") as medium:
            assert not any(medium.read(16 * servers.MIB)), "nothing of the damaged data is on the medium"


def stripping(pdu, _):
    """Takes the AEAD digests out of the offer, and leaves the lengths as they are."""
    if not pdu.is_login:
        return pdu.bytes
    return pdu.header + re.sub(rb"Y-org\.targe\.[a-z0-9.-]+", lambda found: b"Y-" + b"x" * (len(found[0]) - 2), pdu.data)


def test_an_attacker_who_strips_the_offer_ends_the_login(tmp_path, password):
    server = server_with(tmp_path, least="none")
    with server, AttackedRelay(("127.0.0.1", server.port), stripping) as relay:
        refused = targe("info", url_of(server, relay.port, password, timeout=0))
        assert refused.returncode == 1, refused.stderr
        eventually(lambda: b"changed" in refused.stderr.lower() + server.log_of_this_run().lower().encode(), f"an end says what was changed: {refused.stderr}")
    with server:
        assert targe("info", url_of(server, server.port, password, timeout=0)).returncode == 0


def test_an_initiator_that_lacks_the_password_or_the_protection_sees_nothing(tmp_path, password):
    server = server_with(tmp_path, requires="encrypt")
    wrong = secret_file(tmp_path / "wrong", "incorrect horse")
    with server:
        for url in (url_of(server, server.port, wrong, timeout=0), url_of(server, server.port, password, user="mallory", timeout=0)):
            refused = targe("info", url)
            assert refused.returncode == 1 and len(refused.stderr.splitlines()) == 1, refused.stderr
            assert b"password" in refused.stderr and b"horse" not in refused.stderr, refused.stderr
        foreign = subprocess.run(["iscsi-inq", f"iscsi://127.0.0.1:{server.port}/{server.iqn}/0"], capture_output=True, timeout=RUN_MAX_S)
        assert b"Vendor" not in foreign.stdout, foreign.stdout
        assert "horse" not in server.log_of_this_run()


def test_sessions_tell_the_digest_that_protects_them(tmp_path, password):
    server = server_with(tmp_path)
    with server:
        load = subprocess.Popen([servers.Targe.binary, "bench", url_of(server, server.port, password, protection="encrypt"), "--time=86400"],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            sessions = eventually(lambda: json.loads(server.admin("sessions"))["sessions"], lambda: f"there is a session: {load.poll()}")
            assert sessions[0]["protection"] == "encrypt" and "Y-org.targe." in sessions[0]["protection_by"], sessions[0]
        finally:
            load.terminate()
            load.communicate(timeout=RUN_MAX_S)
