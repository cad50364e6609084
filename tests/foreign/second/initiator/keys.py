"""Keys of a session: §7.2 to §7.4."""

import hashlib
import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

LEVELS = ("none", "integrity", "encrypt")
NONE, INTEGRITY, ENCRYPT = range(3)
TO_TARGET, TO_INITIATOR = b"initiator to target", b"target to initiator"
TAG_LEN = 16
FRAMES_MAX, BYTES_MAX = 2**22, 2**36


def extract(salt, secret):
    """RFC 5869 §2.2 with SHA-512."""
    return hmac.new(salt or bytes(64), secret, hashlib.sha512).digest()


def expand(key, info, length):
    """RFC 5869 §2.3 with SHA-512."""
    result, block, number = b"", b"", 0
    while len(result) < length:
        number += 1
        block = hmac.new(key, block + info + bytes([number]), hashlib.sha512).digest()
        result += block
    return result[:length]


class Generation:
    """The keys of one direction and one generation (§7.2)."""

    def __init__(self, secret, number=0):
        self.secret, self.number = secret, number
        self.sealers = [None] + [self.sealer(level) for level in (b"integrity", b"encrypt")]
        self.frames = self.bytes = 0

    @classmethod
    def first(cls, session_key, transcript, direction):
        return cls(expand(extract(transcript, session_key), b"hyperscsi 2 " + direction, 64))

    def sealer(self, level):
        key, iv = self.key_and_iv(level)
        return AESGCM(key), iv[:4], int.from_bytes(iv[4:], "big")

    def key_and_iv(self, level):
        prefix = b"hyperscsi 2 " + level
        return expand(self.secret, prefix + b" key", 32), expand(self.secret, prefix + b" iv", 12)

    def next(self):
        return Generation(expand(self.secret, b"hyperscsi 2 update", 64), self.number + 1)

    @property
    def phase(self):
        return self.number & 1

    def seal(self, level, pn, header, payload):
        """§7.3: what stands behind the header."""
        cipher, fixed, rest = self.sealers[level]
        nonce = fixed + (rest ^ pn).to_bytes(8, "big")
        if level == ENCRYPT:
            return cipher.encrypt(nonce, payload, header)
        return payload + cipher.encrypt(nonce, b"", header + payload)

    def open(self, level, pn, header, sealed):
        """§7.3: the payload, or None if it does not open."""
        cipher, fixed, rest = self.sealers[level]
        nonce = fixed + (rest ^ pn).to_bytes(8, "big")
        try:
            if level == ENCRYPT:
                return cipher.decrypt(nonce, sealed, header)
            payload, tag = sealed[:-TAG_LEN], sealed[-TAG_LEN:]
            cipher.decrypt(nonce, tag, header + payload)
            return payload
        except InvalidTag:
            return None


class Sender:
    """The sealing half, which changes keys by itself (§7.4)."""

    def __init__(self, generation, frames=FRAMES_MAX, octets=BYTES_MAX):
        self.generation, self.frames_max, self.bytes_max = generation, frames, octets
        self.acknowledged_at = None

    def seal(self, level, pn, header, payload):
        self.generation.frames += 1
        self.generation.bytes += len(payload)
        return self.generation.seal(level, pn, header, payload)

    def acknowledged(self, number, now):
        """A frame that was sealed with generation `number` was acknowledged."""
        if number == self.generation.number and self.acknowledged_at is None:
            self.acknowledged_at = now

    @property
    def exhausted(self):
        """Whether it must stop, as it could not change in time."""
        return self.generation.frames >= 2 * FRAMES_MAX or self.generation.bytes >= 2 * BYTES_MAX

    def update(self, now):
        """Changes keys when it is time, and as soon as §7.4 permits it."""
        present = self.generation
        due = present.frames >= self.frames_max or present.bytes >= self.bytes_max
        wait = 0.0 if present.number == 0 else 1.0
        if due and self.acknowledged_at is not None and now >= self.acknowledged_at + wait:
            self.generation, self.acknowledged_at = present.next(), None


class Receiver:
    """The opening half: two generations, never three (§7.4)."""

    def __init__(self, generation):
        self.present, self.before, self.following, self.forget_at = generation, None, None, 0.0

    def open(self, level, phase, pn, header, sealed, now, keep):
        """The payload, or None. `keep` is how long the generation before is kept: three probe timeouts, at most 500 ms."""
        if self.before and now >= self.forget_at:
            self.before = None
        if phase == self.present.phase:
            return self.present.open(level, pn, header, sealed)
        if self.before:
            return self.before.open(level, pn, header, sealed)
        self.following = self.following or self.present.next()
        payload = self.following.open(level, pn, header, sealed)
        if payload is not None:
            self.before, self.present, self.following = self.present, self.following, None
            self.forget_at = now + min(keep, 0.5)
        return payload
