"""The second implementation of docs/iscsi-aead.md, sections 4 and 6: transcript, confirmations, key schedule and records. It judges the
vectors that the document prints, which the tests of crates/iscsi compute."""

import hashlib
import hmac
import os
import re

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA512
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

DOCUMENT = os.path.join(os.path.dirname(__file__), "..", "..", "docs", "iscsi-aead.md")
CONFIRMATION = re.compile(rb"X-org\.targe\.confirm=0x([0-9a-f]{64})\0\Z")
DIRECTIONS = ("initiator to target", "target to initiator")
CIPHERS = {"aes-256-gcm": AESGCM, "chacha20-poly1305": ChaCha20Poly1305}
# Stage and next stage of each exchange of the login.
STAGES = ((0, None), (0, None), (0, 1), (1, 3))


def read_vectors():
    """Returns the (name, bytes) of section 10, in their order."""
    with open(DOCUMENT, encoding="utf-8") as file:
        block = file.read().split("## 10. ")[1].split("```")[1]
    found = re.findall(r"^(\S.*) =\n((?:  [0-9a-f]+\n)*)", block, re.M)
    return [(name, bytes.fromhex("".join(lines.split()))) for name, lines in found]


VECTORS = read_vectors()
BY_NAME = dict(VECTORS)


def extract(salt, key):
    return hmac.digest(salt, key, "sha512")


def expand(prk, label, length=64):
    return HKDFExpand(SHA512(), length, b"iscsi aead 1 " + label.encode()).derive(prk)


def login_pdus():
    """Yields (side, header, text) of each Login PDU."""
    exchange = 0
    for name, text in VECTORS:
        if name not in ("Login Request, text", "Login Response, text"):
            continue
        request = name.startswith("Login Request")
        stage, following = STAGES[exchange]
        flags = stage << 2 | (0 if following is None else 0x80 | following)
        header = bytes([0x43 if request else 0x23, flags, 0, 0, 0]) + len(text).to_bytes(3, "big")
        header += bytes.fromhex("800000000001" "0000" "01020304") + bytes([0, 5 if request else 0, 0, 0]) + (1 if request else 0).to_bytes(4, "big")
        yield ("initiator" if request else "target"), header, text
        exchange += not request


def transcript(pdus, tail=b""):
    hashed = b"iscsi aead 1 login" + b"".join(header + text for _, header, text in pdus) + tail
    return hashlib.sha512(hashed).digest()


def login_key():
    return extract(BY_NAME["context"], BY_NAME["OPAQUE's session key"])


def test_the_context_is_the_transcript_up_to_the_first_message_of_opaque():
    assert transcript(list(login_pdus())[:3]) == BY_NAME["context"]


def test_both_confirmations_match():
    pdus, confirmed = list(login_pdus()), []
    for index, (side, header, text) in enumerate(pdus):
        found = CONFIRMATION.search(text)
        if found:
            covered = transcript([*pdus[:index], (side, header, text[:found.start()])])
            value = hmac.digest(expand(login_key(), "confirm " + side), covered, "sha512")[:32]
            assert value.hex().encode() == found[1], side
            assert len(text) - found.start() == 87
            confirmed.append(side)
    assert confirmed == ["initiator", "target"]


def secrets():
    """Returns the secret of each direction and generation."""
    final = transcript(login_pdus(), BY_NAME["TSIH of the last Login Response"])
    assert final == BY_NAME["transcript of the whole login"]
    connection_key = extract(final, expand(login_key(), "main"))
    found = {}
    for direction in DIRECTIONS:
        secret = expand(connection_key, direction)
        for generation in range(2):
            found[direction, generation] = secret
            secret = expand(secret, "update")
    return found


def test_the_key_schedule_matches():
    for (direction, generation), secret in secrets().items():
        assert secret == BY_NAME[f"{direction}, secret {generation}"]
        assert expand(secret, "key", 32) == BY_NAME[f"{direction}, key {generation}"]
        assert expand(secret, "iv", 12) == BY_NAME[f"{direction}, iv {generation}"]


def records(pdu):
    """Yields (record number, readable length, segment, tag) of a PDU's bytes, in plain text lengths."""
    number, whole = pdu
    header_len = 48 + 4 * whole[4]
    data_len = -(-int.from_bytes(whole[5:8], "big") // 4) * 4
    yield 2 * number, 8, whole[:header_len], whole[header_len:header_len + 16]
    data = whole[header_len + 16:]
    assert len(data) == data_len + 16
    yield 2 * number + 1, 0, data[:-16], data[-16:]


def opened(digest, secret, record):
    number, readable, segment, tag = record
    iv = expand(secret, "iv", 12)
    nonce = iv[:4] + (int.from_bytes(iv[4:], "big") ^ number).to_bytes(8, "big")
    cipher = CIPHERS[digest.removesuffix(".integrity")](expand(secret, "key", 32))
    if digest.endswith(".integrity"):
        assert cipher.decrypt(nonce, tag, segment) == b""
        return segment
    return segment[:readable] + cipher.decrypt(nonce, segment[readable:] + tag, segment[:readable])


def pdus_of_the_target():
    for name, whole in VECTORS:
        found = re.fullmatch(r"Y-org\.targe\.(\S+), PDU (\d) of the target", name)
        if found:
            yield found[1], int(found[2]), whole


def test_every_record_opens_to_the_segment_that_was_sealed():
    plain = [BY_NAME["header segment of each PDU"], BY_NAME["data segment of each PDU, with its padding"]]
    keys, judged = secrets(), 0
    for digest, number, whole in pdus_of_the_target():
        # A generation of the vectors ends after two PDUs.
        secret = keys["target to initiator", number // 2]
        assert [opened(digest, secret, record) for record in records((number, whole))] == plain
        readable = plain[1] in whole
        assert readable == digest.endswith(".integrity")
        judged += 1
    assert judged == 12


def test_no_damaged_record_opens():
    keys = secrets()
    for digest, number, whole in pdus_of_the_target():
        secret = keys["target to initiator", number // 2]
        for record_number, readable, segment, tag in records((number, whole)):
            for at in range(len(segment)):
                damaged = bytearray(segment)
                damaged[at] ^= 1
                with pytest.raises(InvalidTag):
                    opened(digest, secret, (record_number, readable, bytes(damaged), tag))
            with pytest.raises(InvalidTag):
                opened(digest, secret, (record_number + 2, readable, segment, tag))
            with pytest.raises(InvalidTag):
                opened(digest, keys["initiator to target", number // 2], (record_number, readable, segment, tag))
