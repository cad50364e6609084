"""Keys, sealing and opening, and new keys (§7.2 to §7.4)."""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from .frames import ENCRYPT, ENCRYPTED, INTEGRITY, PHASE, Drop
from .opaque import expand, extract

LABELS = {INTEGRITY: b"integrity", ENCRYPT: b"encrypt"}
TO_TARGET, TO_INITIATOR = b"initiator to target", b"target to initiator"
# A sender changes keys after so many frames or bytes (§7.4).
FRAMES_LIMIT, BYTES_LIMIT = 1 << 22, 1 << 36
# Least time between two changes, and longest that a receiver keeps keys that are past, seconds.
CHANGE_PAUSE, KEEP_AT_MOST = 1.0, 0.5


class Generation:
    """The keys of one direction and generation."""

    def __init__(self, secret, number=0):
        self.secret, self.number = secret, number
        self.ciphers = {level: AESGCM(expand(secret, b"hyperscsi 2 " + name + b" key", 32)) for level, name in LABELS.items()}
        self.ivs = {level: expand(secret, b"hyperscsi 2 " + name + b" iv", 12) for level, name in LABELS.items()}

    def next(self):
        return Generation(expand(self.secret, b"hyperscsi 2 update", 64), self.number + 1)

    def nonce(self, level, pn):
        iv = self.ivs[level]
        return iv[:4] + (int.from_bytes(iv[4:], "big") ^ pn).to_bytes(8, "big")

    def seal(self, level, pn, header, payload):
        """What stands behind the header (§7.3)."""
        if level == ENCRYPT:
            return self.ciphers[level].encrypt(self.nonce(level, pn), payload, header)
        return payload + self.ciphers[level].encrypt(self.nonce(level, pn), b"", header + payload)

    def open(self, frame):
        level = frame.level()
        sealed, aad = (frame.payload, frame.header) if level == ENCRYPT else (b"", frame.header + frame.payload)
        try:
            plain = self.ciphers[level].decrypt(self.nonce(level, frame.pn), sealed + frame.trailer, aad)
        except InvalidTag:
            return None
        return plain if level == ENCRYPT else frame.payload


def first_secret(session_key, transcript, direction):
    return expand(extract(transcript, session_key), b"hyperscsi 2 " + direction, 64)


class Sealer:
    """The keys that one end seals with."""

    def __init__(self, secret, frames_limit=FRAMES_LIMIT):
        self.now = Generation(secret)
        self.frames_limit = frames_limit
        self.frames = self.bytes = self.changes = 0
        self.acknowledged = None

    def phase(self):
        return PHASE if self.now.number & 1 else 0

    def seal(self, level, pn, header, payload):
        self.frames += 1
        self.bytes += len(payload)
        return self.now.seal(level, pn, header, payload)

    def heard(self, generation, now):
        """A frame that was sealed with a generation was acknowledged."""
        if generation == self.now.number and self.acknowledged is None:
            self.acknowledged = now

    def change(self, now):
        """§7.4: not before an acknowledgement, nor, but for the first keys, within a second of it."""
        if self.frames < self.frames_limit and self.bytes < BYTES_LIMIT or self.acknowledged is None:
            return
        if self.now.number and now - self.acknowledged < CHANGE_PAUSE:
            return
        self.now = self.now.next()
        self.frames = self.bytes = 0
        self.acknowledged = None
        self.changes += 1

    def spent(self):
        return self.frames >= 2 * max(self.frames_limit, FRAMES_LIMIT) or self.bytes >= 2 * BYTES_LIMIT


class Opener:
    """The keys that one end opens with; at most two generations, and the one to come."""

    def __init__(self, secret):
        self.now, self.past, self.coming = Generation(secret), None, None
        self.past_until = 0.0

    def open(self, frame, now, keep):
        """The plain payload; `keep` is three probe timeouts."""
        if self.past and now >= self.past_until:
            self.past = None
        if bool(frame.flags & PHASE) == bool(self.now.number & 1):
            plain = self.now.open(frame)
        elif self.past:
            plain = self.past.open(frame)
        else:
            self.coming = self.coming or self.now.next()
            plain = self.coming.open(frame)
            if plain is not None:
                self.past, self.now, self.coming = self.now, self.coming, None
                self.past_until = now + min(keep, KEEP_AT_MOST)
        if plain is None:
            raise Drop("tag")
        return plain
