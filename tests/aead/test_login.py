"""The second implementation of docs/iscsi-aead.md, section 3: it makes the login of the vectors again, and logs in to a target of ours
with a password, from which it derives keys that open the target's records."""

import hashlib
import hmac
import os
import re
import socket
import subprocess
import time

import pytest

pytest.importorskip("argon2", reason="python3-argon2 is missing")

import opaque
import servers
from second.initiator import ristretto
from test_vectors import BY_NAME, CIPHERS, VECTORS, expand, extract

TARGE = servers.Targe.binary
IQN, HOST = "iqn.2001-04.com.example:aead", "iqn.2026-11.org.example:second"
USER, PASSWORD = b"alice", b"correct horse"
DIGESTS = [f"Y-org.targe.{cipher}{mode}" for mode in ("", ".integrity") for cipher in CIPHERS]
SIZE, BLOCK = 1 << 20, 512
LIMIT_S = 60


def binary_in(text, key):
    return bytes.fromhex(re.search(rb"(?:\A|\0)" + re.escape(key) + rb"=0x([0-9a-fA-F]+)\0", text)[1].decode())


def test_the_generator_and_its_multiples_are_those_of_rfc_9496():
    """RFC 9496, appendix A.1."""
    encode, multiply, generator = ristretto.encode, ristretto.multiply, ristretto.GENERATOR
    assert encode(ristretto.IDENTITY) == bytes(32)
    assert encode(multiply(2, generator)).hex() == "6a493210f7499cd17fecb510ae0cea23a110e8d5b901f8acadd3095c73a3b919"
    assert encode(multiply(16, generator)) == encode(multiply(4, multiply(4, generator)))
    assert encode(ristretto.add(multiply(ristretto.ORDER - 1, generator), generator)) == bytes(32)
    for wrong in (b"\xff" * 32, (ristretto.P).to_bytes(32, "little"), (1).to_bytes(32, "little")):
        with pytest.raises(ValueError):
            ristretto.decode(wrong)


def test_the_login_of_the_vectors_is_made_again_from_its_password():
    texts = [text for name, text in VECTORS if name.startswith("Login Re")]
    ke1 = binary_in(texts[2], b"X-org.targe.ke1")
    scalar = [int.from_bytes(BY_NAME[name], "little") for name in
              ("the initiator's blind, as a scalar", "the initiator's ephemeral private key")]
    client = opaque.Client(USER, BY_NAME["password"], scalar[0], ke1[32:64], scalar[1])
    assert client.ke1 == ke1
    cost = tuple(int(number) for number in re.search(rb"X-org\.targe\.stretch=([0-9,]+)\0", texts[3])[1].split(b","))
    ke3, session_key = client.finish(binary_in(texts[3], b"X-org.targe.ke2"), cost, BY_NAME["context"])
    assert ke3 == binary_in(texts[4], b"X-org.targe.ke3")
    assert session_key == BY_NAME["OPAQUE's session key"]


class Refusal(Exception):
    """A Login Response with another status than 0."""


class Records:
    """One direction of a connection after the login (section 6), in its first generation."""

    def __init__(self, digest, secret):
        self.cipher, self.iv = CIPHERS[digest.split(".")[2].removesuffix(".integrity")](expand(secret, "key", 32)), expand(secret, "iv", 12)
        self.encrypts, self.pdus = not digest.endswith(".integrity"), 0

    def nonce(self, number):
        return self.iv[:4] + (int.from_bytes(self.iv[4:], "big") ^ number).to_bytes(8, "big")

    def seal(self, number, readable, segment):
        if self.encrypts:
            return segment[:readable] + self.cipher.encrypt(self.nonce(number), segment[readable:], segment[:readable])
        return segment + self.cipher.encrypt(self.nonce(number), b"", segment)

    def open(self, number, readable, sealed):
        if self.encrypts:
            return sealed[:readable] + self.cipher.decrypt(self.nonce(number), sealed[readable:], sealed[:readable])
        assert self.cipher.decrypt(self.nonce(number), sealed[-16:], sealed[:-16]) == b""
        return sealed[:-16]


class Connection:
    def __init__(self, port, digest):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
        self.stream, self.digest = self.socket.makefile("rb"), digest
        self.hashed = b"iscsi aead 1 login"
        self.tsih, self.cmd_sn, self.stat_sn = 0, 1, 0

    def exchange(self, stage, following, pairs, login_key=None):
        """One Login Request and its response. Returns the response's text; with `login_key`, both have confirmations."""
        text = b"".join(key + b"=" + value + b"\0" for key, value in pairs)
        flags = stage << 2 | (0 if following is None else 0x80 | following)
        length = len(text) + (87 if login_key else 0)
        header = bytes([0x43, flags, 0, 0, 0]) + length.to_bytes(3, "big") + bytes.fromhex("800000000001" "0000" "01020304" "00000000")
        header += self.cmd_sn.to_bytes(4, "big")
        if login_key:
            value = self.confirmation(login_key, "initiator", header + text)
            text += b"X-org.targe.confirm=0x" + value.hex().encode() + b"\0"
        self.hashed += header + text
        self.socket.sendall(header + bytes(20) + text + bytes(-len(text) % 4))
        answer = self.stream.read(48)
        assert answer[0] == 0x23, answer.hex()
        text = self.stream.read(-(-int.from_bytes(answer[5:8], "big") // 4) * 4)[:int.from_bytes(answer[5:8], "big")]
        if answer[36:38] != b"\0\0":
            raise Refusal(answer[36:38].hex())
        assert answer[1] == flags, "the target moves to the stage that the initiator asked for"
        self.tsih, self.stat_sn = int.from_bytes(answer[14:16], "big"), int.from_bytes(answer[24:28], "big") + 1
        # The TSIH, the reserved bytes and the StatSN count as zeros.
        counted = answer[:14] + bytes(2) + answer[16:20] + bytes(8)
        if login_key:
            value = self.confirmation(login_key, "target", counted + text[:-87])
            assert text[-87:] == b"X-org.targe.confirm=0x" + value.hex().encode() + b"\0"
        self.hashed += counted + text
        return text

    def confirmation(self, login_key, side, pdu):
        return hmac.digest(expand(login_key, "confirm " + side), hashlib.sha512(self.hashed + pdu).digest(), "sha512")[:32]

    def log_in(self, user=USER, password=PASSWORD):
        method = b"Z-org.targe.opaque"
        text = self.exchange(0, None, [(b"InitiatorName", HOST.encode()), (b"SessionType", b"Normal"), (b"TargetName", IQN.encode()),
                                       (b"AuthMethod", method)])
        assert b"AuthMethod=" + method + b"\0" in text
        client = opaque.Client(user, password)
        # The context ends with the request that carries the first message: the target's answer is not part of it.
        first = [(b"X-org.targe.user", user), (b"X-org.targe.ke1", b"0x" + client.ke1.hex().encode())]
        before = self.hashed
        text = self.exchange(0, None, first)
        request = self.hashed[len(before):len(self.hashed) - 28 - len(text)]
        context = hashlib.sha512(before + request).digest()
        cost = tuple(int(number) for number in re.search(rb"X-org\.targe\.stretch=([0-9,]+)\0", text)[1].split(b","))
        assert cost[0] <= 262144 and cost[0] * cost[1] <= 983040 and cost[2] <= 16
        ke3, session_key = client.finish(binary_in(text, b"X-org.targe.ke2"), cost, context)
        self.exchange(0, 1, [(b"X-org.targe.ke3", b"0x" + ke3.hex().encode())])
        login_key = extract(context, session_key)
        offer = f"{self.digest},CRC32C,None".encode()
        text = self.exchange(1, 3, [(b"HeaderDigest", offer), (b"DataDigest", offer), (b"InitialR2T", b"Yes")], login_key)
        for key in (b"HeaderDigest", b"DataDigest"):
            assert key + b"=" + self.digest.encode() + b"\0" in text
        final = hashlib.sha512(self.hashed + self.tsih.to_bytes(2, "big")).digest()
        connection_key = extract(final, expand(login_key, "main"))
        self.out, self.back = (Records(self.digest, expand(connection_key, direction)) for direction in
                               ("initiator to target", "target to initiator"))

    def send(self, header, data=b""):
        number, padded = 2 * self.out.pdus, data + bytes(-len(data) % 4)
        header = header[:5] + len(data).to_bytes(3, "big") + header[8:]
        self.socket.sendall(self.out.seal(number, 8, header) + (self.out.seal(number + 1, 0, padded) if data else b""))
        self.out.pdus += 1

    def receive(self):
        """Returns (header, data) of the next PDU."""
        sealed = self.stream.read(48)
        sealed += self.stream.read(4 * sealed[4] + 16)
        header = self.back.open(2 * self.back.pdus, 8, sealed)
        length = int.from_bytes(header[5:8], "big")
        data = self.back.open(2 * self.back.pdus + 1, 0, self.stream.read(-(-length // 4) * 4 + 16)) if length else b""
        self.back.pdus += 1
        return header, data[:length]

    def execute(self, cdb, flags, expected=0, data=b""):
        """Returns (status, data) of a command; data for the target goes along with it."""
        header = bytes([0x01, 0x80 | flags]) + bytes(6) + bytes(8) + self.cmd_sn.to_bytes(4, "big") + (expected or len(data)).to_bytes(4, "big")
        header += self.cmd_sn.to_bytes(4, "big") + self.stat_sn.to_bytes(4, "big") + cdb.ljust(16, b"\0")
        self.cmd_sn += 1
        self.send(header, data)
        received = b""
        while True:
            header, data = self.receive()
            if header[0] == 0x25:
                received += data
                if header[1] & 1:
                    self.stat_sn += 1
                    return header[3], received
            elif header[0] == 0x21:
                self.stat_sn += 1
                return header[3], received
            else:
                raise AssertionError(f"unexpected PDU {header.hex()}")


@pytest.fixture(name="port", scope="module")
def fixture_port(tmp_path_factory):
    folder = tmp_path_factory.mktemp("target")
    port = servers.free_port()
    users, config = folder / "users", folder / "targe.toml"
    subprocess.run([TARGE, "passwd", users, "--user", USER.decode(), "--memory", "1M", "--passes", "2", "--lanes", "2"], check=True,
                   input=PASSWORD + b"\n", capture_output=True, timeout=LIMIT_S)
    (folder / "disk").write_bytes(bytes(SIZE))
    config.write_text(f'''state_dir = "{folder}/state"
admin_socket = "{folder}/admin/socket"
[[portal]]
listen = "127.0.0.1:{port}"
[[target]]
name = "{IQN}"
[target.auth]
password_file = "{users}"
[target.session]
protection = "integrity"
[[target.lun]]
type = "file"
path = "{folder}/disk"
''')
    (folder / "state").mkdir(mode=0o700)
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen([TARGE, "serve", "--config", config], stdout=log, stderr=log, preexec_fn=servers.die_with_parent)
    try:
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        assert process.wait(LIMIT_S) == 0, (folder / "log").read_text()


@pytest.mark.parametrize("digest", DIGESTS)
def test_a_session_writes_and_reads_a_block(port, digest):
    connection = Connection(port, digest)
    connection.log_in()
    # A new I_T nexus reports a unit attention first.
    for _ in range(5):
        status, _ = connection.execute(bytes(6), 0)
        if status == 0:
            break
    at, block = 1 + DIGESTS.index(digest), os.urandom(BLOCK)
    address = at.to_bytes(4, "big")
    assert connection.execute(b"\x2a\0" + address + b"\0\0\x01", 0x20, data=block) == (0, b"")
    assert connection.execute(b"\x28\0" + address + b"\0\0\x01", 0x40, BLOCK) == (0, block)
    assert connection.execute(b"\x28\0" + bytes(4) + b"\0\0\x01", 0x40, BLOCK) == (0, bytes(BLOCK))


@pytest.mark.parametrize(("user", "password"), [(USER, b"incorrect horse"), (b"mallory", PASSWORD)])
def test_a_wrong_password_or_user_opens_no_envelope(port, user, password):
    with pytest.raises(opaque.Refused):
        Connection(port, DIGESTS[0]).log_in(user, password)


def test_a_login_without_the_method_or_with_a_changed_proof_is_refused(port):
    names = [(b"InitiatorName", HOST.encode()), (b"SessionType", b"Normal"), (b"TargetName", IQN.encode())]
    with pytest.raises(Refusal, match="0201"):
        Connection(port, DIGESTS[0]).exchange(0, None, [*names, (b"AuthMethod", b"None")])
    connection, client = Connection(port, DIGESTS[0]), opaque.Client(USER, PASSWORD)
    connection.exchange(0, None, [*names, (b"AuthMethod", b"Z-org.targe.opaque")])
    connection.exchange(0, None, [(b"X-org.targe.user", USER), (b"X-org.targe.ke1", b"0x" + client.ke1.hex().encode())])
    with pytest.raises(Refusal, match="0201"):
        connection.exchange(0, 1, [(b"X-org.targe.ke3", b"0x" + bytes(64).hex().encode())])
