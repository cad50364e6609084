"""The handshake at the target (§4.9, §6)."""

import hashlib
import hmac
import secrets
import time

from . import blocks
from .discovery import Bucket
from .frames import NEGOTIATED, Drop, outside
from .opaque import Login
from .session import Session

HELLO, COOKIE, START, ANSWER, FINISH, ACCEPT, REFUSE = 1, 2, 3, 4, 5, 6, 7
PARAMETERS_WRONG, BUSY, PASSWORD_NEEDED, NO_PASSWORD, VERSION_WRONG = 2, 3, 5, 6, 7
HELLO_LEAST = 63
COOKIE_LIFE, SECRET_LIFE, HALF_LIFE, FINISHED_LIFE = 10, 60, 10, 30
HALVES, HALVES_OF_ONE, FINISHED, RETRY_MS = 64, 4, 256, 500
KEYS_OF_START = {blocks.GROUP: (1, 64), blocks.TARGET: (5, 223), blocks.INITIATOR: (5, 223), blocks.ISID: 6, blocks.SID: 4,
                 blocks.PARAMETERS: (0, 1024), blocks.KE1: 96, blocks.COOKIE: 40}


class Cookies:
    """§6.2: HMAC-SHA-512 under a secret that changes every 60 s, and is known for as long again."""

    def __init__(self):
        self.secrets, self.since = [secrets.token_bytes(64)], time.monotonic()

    def mac(self, secret, stamp, port, source, handshake, group, target):
        parts = (port.mac, source, handshake, group, target)
        data = stamp + b"".join(len(part).to_bytes(2, "big") + part for part in parts)
        return hmac.new(secret, data, hashlib.sha512).digest()[:32]

    def make(self, *what):
        now = time.monotonic()
        if now - self.since > SECRET_LIFE:
            self.secrets, self.since = [secrets.token_bytes(64), self.secrets[0]], now
        stamp = int(now * 1000).to_bytes(8, "big")
        return stamp + self.mac(self.secrets[0], stamp, *what)

    def good(self, cookie, *what):
        stamp = cookie[:8]
        age = time.monotonic() - int.from_bytes(stamp, "big") / 1000
        known = any(hmac.compare_digest(cookie[8:], self.mac(secret, stamp, *what)) for secret in self.secrets)
        return known and -0.001 <= age <= COOKIE_LIFE


class Half:
    """A handshake between ANSWER and FINISH."""

    def __init__(self, start, answer, login, context, made):
        self.start, self.answer, self.login, self.context, self.made = start, answer, login, context, made
        self.since = time.monotonic()


class Finished:
    """A handshake that made a session: what it was made by, and ACCEPT to be repeated."""

    def __init__(self, start, last, accept, session):
        self.start, self.last, self.accept, self.session = start, last, accept, session
        self.since = time.monotonic()


class Allowance:
    """Key exchanges of one address in one group (§6.5): 4 at once, one more each 500 ms, doubled by failures after the fourth."""

    def __init__(self):
        self.bucket, self.failures, self.failed = Bucket(4, 0.5), 0, 0.0

    def take(self):
        if time.monotonic() - self.failed > 60:
            self.failures = 0
        self.bucket.seconds = min(0.5 * 2 ** max(0, self.failures - 4), 32)
        if not self.bucket.take():
            return False
        self.failures, self.failed = self.failures + 1, time.monotonic()
        return True

    def success(self):
        self.failures = (self.failures - 1) // 2


class Handshakes:
    """All handshakes of a target."""

    def __init__(self, target):
        self.target, self.cookies = target, Cookies()
        self.halves, self.finished, self.allowances = {}, {}, {}
        self.open_sessions, self.exchanges, self.versions = Bucket(64, 0.02), Bucket(64, 0.02), Bucket(8, 0.25)

    def other_version(self, port, source):
        """§6.5, last row of the table."""
        if self.versions.take():
            self.say(port, source, REFUSE, bytes(16), blocks.item(blocks.RETRY_AFTER, bytes(4)), VERSION_WRONG)

    def say(self, port, source, kind, handshake, items, info=0):
        block = blocks.block(kind, info, handshake, items)
        port.send(source, outside(NEGOTIATED, block))
        return block

    def refuse(self, port, source, handshake, why, after=0):
        self.target.counts[f"refuse {why}"] += 1
        self.say(port, source, REFUSE, handshake, blocks.item(blocks.RETRY_AFTER, after.to_bytes(4, "big")), why)

    def expire(self, now):
        self.halves = {key: half for key, half in self.halves.items() if now - half.since < HALF_LIFE}
        self.finished = {key: each for key, each in self.finished.items()
                         if now - each.since < FINISHED_LIFE or each.session.ended is None or now - each.session.ended < FINISHED_LIFE}

    def take(self, port, source, frame):
        block = blocks.Block(frame.payload, {HELLO: 16, START: 16, FINISH: 16})
        if block.info:
            raise Drop("negotiate")
        self.expire(time.monotonic())
        {HELLO: self.hello, START: self.start, FINISH: self.finish}[block.kind](port, source, block, frame)

    def hello(self, port, source, block, frame):
        items = block.items({blocks.GROUP: (1, 64), blocks.TARGET: (5, 223)})
        if len(frame.payload) < HELLO_LEAST or len(items) < 2:
            raise Drop("hello")
        if items[blocks.GROUP] in self.target.groups and items[blocks.TARGET] == self.target.name:
            self.cookie(port, source, block.fixed, items)

    def cookie(self, port, source, handshake, items):
        cookie = self.cookies.make(port, source, handshake, items[blocks.GROUP], items[blocks.TARGET])
        self.say(port, source, COOKIE, handshake, blocks.item(blocks.COOKIE, cookie))

    def start(self, port, source, block, frame):
        items = block.items(KEYS_OF_START)
        if len(items) < 7 + (blocks.KE1 in items) or block.raw_items[-43:-40] != bytes((blocks.COOKIE, 0, 40)):
            raise Drop("start")
        group = self.target.groups.get(items[blocks.GROUP])
        if not group or items[blocks.TARGET] != self.target.name:
            return
        start, key = blocks.zeroed(block.whole, 40), (port.mac, source, bytes(block.fixed))
        if self.repeated(port, source, key, start):
            return
        where = (port, source, block.fixed, items[blocks.GROUP], items[blocks.TARGET])
        if not self.cookies.good(items[blocks.COOKIE], *where):
            return self.cookie(port, source, block.fixed, items)
        offer, keyed = blocks.read_parameters(items[blocks.PARAMETERS]), blocks.KE1 in items
        why = self.objection(group, items, offer, keyed)
        if why:
            return self.refuse(port, source, block.fixed, why)
        made = (group, items, offer, blocks.choose(offer, self.target.offer(port, keyed)))
        if keyed:
            self.start_keyed(port, source, key, start, made)
        elif self.open_sessions.take():
            self.accept(port, source, key, start, start, made)
        else:
            self.refuse(port, source, block.fixed, BUSY, RETRY_MS)

    def repeated(self, port, source, key, start):
        """The same START again: the same ANSWER or ACCEPT; nothing if its session is over and it had no KE1 (§6.4)."""
        done, half = self.finished.get(key), self.halves.get(key)
        if done and done.start == done.last == start:
            if done.session.ended is None and time.monotonic() - done.since < FINISHED_LIFE:
                port.send(source, outside(NEGOTIATED, done.accept))
            return True
        if half and half.start == start:
            port.send(source, outside(NEGOTIATED, half.answer))
            return True
        return False

    def objection(self, group, items, offer, keyed):
        """Why a START cannot be, or 0."""
        if group.record and not keyed:
            return PASSWORD_NEEDED
        if keyed and not group.record:
            return NO_PASSWORD
        if offer is None or not any(items[blocks.SID]) or not offer["levels"] & (7 if keyed else 1):
            return PARAMETERS_WRONG
        return 0

    def start_keyed(self, port, source, key, start, made):
        group, items, _, choice = made
        allowance = self.allowances.setdefault((port.mac, source, group.name), Allowance())
        crowded = len(self.halves) >= HALVES or sum(each[1] == source for each in self.halves) >= HALVES_OF_ONE
        if crowded or not allowance.take() or not self.exchanges.take():
            return self.refuse(port, source, key[2], BUSY, RETRY_MS)
        sid = self.target.new_sid()
        memory, passes, lanes = group.record.cost
        stretch = memory.to_bytes(4, "big") + passes.to_bytes(4, "big") + bytes([lanes])
        item = blocks.item
        fixed = (item(blocks.SID, sid.to_bytes(4, "big")) + item(blocks.PARAMETERS, blocks.write_parameters(choice))
                 + item(blocks.STRETCH, stretch))
        answer = blocks.block(ANSWER, 0, key[2], fixed + item(blocks.KE2, bytes(320)))
        transcript = b"HyperSCSI v2 handshake" + b"\x20" + len(start).to_bytes(4, "big") + start + answer
        context = hashlib.sha512(transcript).digest()
        try:
            login = Login(group.record, items[blocks.KE1], context)
        except ValueError:
            return self.refuse(port, source, key[2], PARAMETERS_WRONG)
        answer = self.say(port, source, ANSWER, key[2], fixed + item(blocks.KE2, login.ke2))
        self.halves[key] = Half(start, answer, login, context, made + (sid,))

    def finish(self, port, source, block, frame):
        items = block.items({blocks.SID: 4, blocks.KE3: 64})
        if len(items) < 2:
            raise Drop("finish")
        key = (port.mac, source, bytes(block.fixed))
        half, done = self.halves.get(key), self.finished.get(key)
        if half and int.from_bytes(items[blocks.SID], "big") == half.made[4] and half.login.fits(items[blocks.KE3]):
            del self.halves[key]
            self.allowances[port.mac, source, half.made[0].name].success()
            self.accept(port, source, key, half.start, block.whole, half.made, half)
        elif done and done.last == block.whole and done.session.ended is None and time.monotonic() - done.since < FINISHED_LIFE:
            port.send(source, outside(NEGOTIATED, done.accept))
        else:
            raise Drop("finish")

    def accept(self, port, source, key, start, last, made, half=None):
        """The last step: the session begins."""
        group, items, offer, choice = made[:4]
        sid = made[4] if half else self.target.new_sid()
        session = Session(self.target, group, sid, items, offer, choice, (port, source),
                          (half.login.session_key, half.context) if half else None)
        item = blocks.item
        told = (item(blocks.SID, sid.to_bytes(4, "big")) + item(blocks.PARAMETERS, blocks.write_parameters(choice))
                + item(blocks.TOKEN, session.token) + item(blocks.INSTANCE, self.target.instance))
        accept = blocks.block(ACCEPT, 0, key[2], told + (item(blocks.PROOF, bytes(32)) if half else b""))
        if half:
            proof = hmac.new(half.login.session_key, b"HyperSCSI v2 accept" + half.context + accept, hashlib.sha512).digest()[:32]
            accept = accept[:-32] + proof
        self.target.begin(session)
        port.send(source, outside(NEGOTIATED, accept))
        while len(self.finished) >= FINISHED:
            del self.finished[next(iter(self.finished))]
        self.finished[key] = Finished(start, last, accept, session)
