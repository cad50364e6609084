"""Judges encoders, keys and handshake by Appendix A of docs/hyperscsi.md, and the group and OPRF by RFC 9496 and RFC 9497."""

import re

from . import blocks, discovery, frame, handshake, keys, opaque, ristretto, scsi

GROUP, DISK, HOST = b"backup", b"iqn.2026-01.org.example:disk", b"iqn.2026-01.org.example:host"
OPRF_SECRET = "5ebcea5ee37023ccb9fc2d2019f9d7737be85591ae8652ffa9ef0f4d37063b0e"
OPRF_BLIND = "64d37aed22a27f5191de1c1d69fadb899d8862b58eb4220029e036ec4c1f6706"
OPRF_BLINDED = "609a0ae68c15a3cf6903766461307e5c8bb2f95e7e6550e1ffa2dc99e412803c"
OPRF_EVALUATED = "7ec6578ae5120958eb2db1745758ff379e77cb64fe77b0b2d8cc917ea0869c7e"
OPRF_OUTPUT = ("527759c3d9366f277d8c6020418d96bb393ba2afb20ff90df23fb7708264e2f3"
               "ab9135e3bd69955851de4b1f9fe8a0973396719b7912ba9ee8aa7d0b5e24bcf6")


def titled(text):
    """Title and bytes of each vector."""
    pairs = re.findall(r"^(\S.*?) =\n((?:  [0-9a-f]+\n)+)", text, re.MULTILINE)
    return {title: bytes.fromhex(re.sub(r"\s", "", digits)) for title, digits in pairs}


def judged(document):
    """(name, whether it is right) of each vector of the document's text."""
    parts, steps = document.split("## Appendix A")[1].split("### A.3")
    vectors = titled(parts)
    short = {title.split(":")[0]: data for title, data in vectors.items() if not title.startswith("ANSWER")}
    short |= {title[:11]: data for title, data in vectors.items() if title.startswith("ANSWER: LUN")}
    yield from ((title, made == short[title]) for title, made in [*keys_and_frames(short), *payloads(short)])
    yield from heard(short)
    yield from steps_of_a_handshake(titled(steps))
    yield from groups()


def keys_and_frames(vectors):
    """A.1."""
    names = {keys.TO_TARGET: "initiator to target", keys.TO_INITIATOR: "target to initiator"}
    for direction, name in names.items():
        generation = keys.Generation.first(vectors["session key"], vectors["transcript"], direction)
        for number in range(2):
            yield f"{name}, secret {number}", generation.secret
            for level in ("integrity", "encrypt"):
                key, iv = generation.key_and_iv(level.encode())
                yield from ((f"{name}, {level} key {number}", key), (f"{name}, {level} iv {number}", iv))
            if direction == keys.TO_INITIATOR:
                for level, title in enumerate(keys.LEVELS):
                    pn = 1 << 56 | (1 + level + 16 * number)
                    made = frame.Frame(frame.REPLY, frame.ELICITS | frame.DATA, 0x01020304, pn, 9 | (level > 0) << 31, 0, 5, True, 0, level,
                                       vectors["payload of each frame"])
                    yield f"frame of the target, level {title}, generation {number}", made.pack(keys.Sender(generation))
            generation = generation.next()


def payloads(vectors):
    """A.2: what an initiator says."""
    yield "COMMAND", blocks.command(scsi.lun(1), bytes.fromhex("2a000000000900000800"), 0, 4096, 4096, 7, 1, 3)
    yield "MANAGE", blocks.manage(1, scsi.lun(5), 11, 9)
    yield "GIVE UP", blocks.block(blocks.GIVE_UP, 1)
    yield "PING", blocks.block(blocks.PING)
    yield "LEAVE", blocks.block(blocks.LEAVE, 3)
    yield "DONE", blocks.block(blocks.DONE)
    yield "ACK", blocks.ack(2, 3 << 56 | 100, 25, [(91, 100), (84, 88), (1, 82)], 3 << 56 | 4196, 0x80000200, 1)
    yield "QUESTION", frame_payload(discovery.question(GROUP, b"\x11" * 16))
    whole = vectors["PARTS"]
    further = [blocks.Part(5, 1, 0, frame.DATA | frame.GOOD, 6, 4096, whole[36:44]), blocks.Part(7, 1, 0, 0, 8, 0, whole[44:])]
    yield "PARTS", blocks.parts(whole[32:36], further)
    names = type("Names", (), {"group": GROUP, "target": DISK, "initiator": HOST, "isid": bytes.fromhex("800000000001")})
    trying = handshake.Try(names, handshake.DEFAULTS._replace(frame_max=9000), None, 0x01020304)
    trying.handshake = b"\x33" * 16
    yield "HELLO, padded", trying.hello()
    trying.take_cookie(b"\x44" * 40, bytes(6))
    yield "START", trying.start
    trying.there = 0x05060708
    yield "FINISH", trying.block(blocks.FINISH, (handshake.SID, b"\5\6\7\x08"), (handshake.KE3, b"\x66" * 64))


def frame_payload(data):
    return data[frame.HEADER_LEN:-frame.CRC_LEN]


def heard(vectors):
    """A.2: what a target says, read and told again in words."""
    ack = blocks.parse_ack(2, 2, vectors["ACK"][4:])
    yield "ranges of ACK", ack.ranges == [(91, 100), (84, 88), (1, 82)] and ack.delay == 25
    yield "TRANSFER READY", blocks.parse_transfer_ready(vectors["TRANSFER READY"][4:]) == (2, 65536, 131072)
    response = blocks.parse_response(vectors["RESPONSE"][1], vectors["RESPONSE"][4:])
    yield "RESPONSE", (response.status, response.data_in_len, scsi.sense(response)) == (2, 512, (5, 0x20, 0))
    answer = discovery.outside(frame.DISCOVERY, vectors["ANSWER: LUN"])
    told = discovery.parse_answer(answer, b"\2\0\0\0\0\1", GROUP, b"\x11" * 16)
    yield "ANSWER", told.password and told.luns == {scsi.lun(0): 2, scsi.lun(1): 0} and told.frame_max == 9000 and told.target == DISK
    accept = blocks.items(vectors["ACCEPT"][20:], range(0x81, 0x90))
    chosen = handshake.parse_parameters(accept[handshake.PARAMETERS])
    yield "ACCEPT", chosen == handshake.DEFAULTS and accept[handshake.TOKEN] == b"\x77" * 16


def steps_of_a_handshake(vectors):
    """A.3, with the secrets that it has."""
    names = type("Names", (), {"group": GROUP, "target": DISK, "initiator": HOST, "isid": bytes.fromhex("800000000001")})
    answer, accept = (blocks.items(vectors[step][20:], range(0x81, 0x90)) for step in ("ANSWER", "ACCEPT"))
    offer = handshake.parse_parameters(blocks.items(vectors["START"][20:], range(0x81, 0x90))[handshake.PARAMETERS])
    trying = handshake.Try(names, offer, vectors["password"], 0x01020304)
    trying.handshake, client = vectors["START"][4:20], trying.client
    client.blind = int.from_bytes(vectors["the initiator's blind, as a scalar"], "little")
    client.secret = int.from_bytes(vectors["the initiator's ephemeral private key"], "little")
    share = ristretto.encode(ristretto.multiply(client.secret, ristretto.GENERATOR))
    nonce_at = vectors["START"].index(share) - 32
    client.ke1 = opaque.oprf_blind(client.password, client.blind) + vectors["START"][nonce_at:nonce_at + 32] + share
    trying.take_cookie(b"\x44" * 40, None)
    yield "START of a handshake", trying.start == vectors["START"]
    trying.open_answer(vectors["ANSWER"], answer)
    yield "context", trying.context == vectors["context"]
    yield "FINISH of a handshake", trying.finish == vectors["FINISH"]
    yield "OPAQUE's session key", trying.session_key == vectors["OPAQUE's session key"]
    yield "PROOF", trying.proof(vectors["ACCEPT"]) == accept[handshake.PROOF]


def groups():
    """RFC 9496 A.1 (twice the generator) and RFC 9497 A.1.1.1."""
    number = lambda digits: int.from_bytes(bytes.fromhex(digits), "little")
    yield "2 B", ristretto.encode(ristretto.multiply(2, ristretto.GENERATOR)).hex()[:16] == "6a493210f7499cd1"
    secret, _ = opaque.derive_key_pair(b"\xa3" * 32, b"test key")
    yield "DeriveKeyPair", secret == number(OPRF_SECRET)
    yield "Blind", opaque.oprf_blind(b"\0", number(OPRF_BLIND)).hex() == OPRF_BLINDED
    evaluated = ristretto.encode(ristretto.multiply(secret, ristretto.decode(bytes.fromhex(OPRF_BLINDED))))
    yield "BlindEvaluate", evaluated.hex() == OPRF_EVALUATED
    yield "Finalize", opaque.oprf_finalize(b"\0", number(OPRF_BLIND), evaluated).hex() == OPRF_OUTPUT
