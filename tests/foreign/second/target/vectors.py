"""Judges keys, frames and blocks by Appendix A of docs/hyperscsi.md, and the group and OPRF by RFC 9496 and RFC 9497."""

import re

from . import blocks, frames, opaque, ristretto
from .seal import TO_INITIATOR, TO_TARGET, Generation, first_secret

LEVELS = {"none": 0, "integrity": 1, "encrypt": 2}


def read_vectors(text):
    """NAME = hex, on lines that end with an equals sign and those behind them."""
    return {name.strip(): bytes.fromhex(digits) for name, digits in re.findall(r"^(\S.*?) =\n((?:  [0-9a-f]+\n)+)", text, re.M)}


def judged(document):
    """(name, whether it is right) of each vector of the document's text."""
    vectors = read_vectors(document.split("### A.3")[0])
    yield from check_keys(vectors)
    yield from check_blocks(vectors)
    yield from check_group()


def check_keys(vectors):
    for name, direction in (("initiator to target", TO_TARGET), ("target to initiator", TO_INITIATOR)):
        generation = Generation(first_secret(vectors["session key"], vectors["transcript"], direction))
        for number in (0, 1):
            yield f"{name} secret {number}", generation.secret == vectors[f"{name}, secret {number}"]
            for level in ("integrity", "encrypt"):
                yield f"{name} {level} iv {number}", generation.ivs[LEVELS[level]] == vectors[f"{name}, {level} iv {number}"]
            if direction == TO_INITIATOR:
                yield from check_frames(vectors, generation)
            generation = generation.next()


def check_frames(vectors, generation):
    for level, number in LEVELS.items():
        name = f"frame of the target, level {level}, generation {generation.number}"
        frame = frames.parse(vectors[name])
        if number:
            plain = generation.open(frame)
            again = frame.header + generation.seal(number, frame.pn, frame.header, plain or b"")
        else:
            plain = frame.payload
            again = frame.header + plain + frames.crc32c(frame.header + plain)
        yield name, plain == vectors["payload of each frame"] and again == vectors[name]


def check_blocks(vectors):
    start = next(value for name, value in vectors.items() if name.startswith("START"))
    items = blocks.Block(start, {3: 16}).items({kind: (0, 400) for kind in range(0x81, 0x90)})
    offer = blocks.read_parameters(items[blocks.PARAMETERS])
    yield "parameters of START", blocks.write_parameters(offer) == items[blocks.PARAMETERS] and offer["frame_max"] == 9000
    parts = next(value for name, value in vectors.items() if name.startswith("PARTS"))
    head = frames.header(frames.place(0, 1, 0), frames.REPLY, frames.PARTS, len(parts), 1)
    split = frames.split(frames.parse(head + parts + bytes(4)), parts)
    yield "PARTS", frames.join(split) == parts and [part.tag for part in split] == [0, 5, 7]


def check_group():
    double = ristretto.encode(ristretto.multiply(2, ristretto.GENERATOR))
    yield "RFC 9496 2·B", double.hex() == "6a493210f7499cd17fecb510ae0cea23a110e8d5b901f8acadd3095c73a3b919"
    secret, _ = opaque.derive_key_pair(b"\xa3" * 32, b"test key")
    yield "RFC 9497 skSm", secret.to_bytes(32, "little").hex() == "5ebcea5ee37023ccb9fc2d2019f9d7737be85591ae8652ffa9ef0f4d37063b0e"
    blind = opaque.scalar(bytes.fromhex("64d37aed22a27f5191de1c1d69fadb899d8862b58eb4220029e036ec4c1f6706"))
    blinded = ristretto.encode(ristretto.multiply(blind, opaque.oprf_input(b"\0")))
    yield "RFC 9497 BlindedElement", blinded.hex() == "609a0ae68c15a3cf6903766461307e5c8bb2f95e7e6550e1ffa2dc99e412803c"
    output = opaque.oprf_finalize(b"\0", ristretto.multiply(secret, opaque.oprf_input(b"\0")))
    yield "RFC 9497 Output", output.hex().startswith("527759c3d9366f277d8c6020418d96bb393ba2afb20ff90df23fb7708264e2f3")
