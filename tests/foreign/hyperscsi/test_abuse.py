"""Stations that mean harm: frames that are none, frames of others, old frames, and guesses of passwords."""

import os
import random
import struct
import tempfile
import threading
import time

import pytest

from hyperscsi import network
from hyperscsi import raw
import servers
from hyperscsi.served import Accounts, asked, await_that, discovered, expect_each_once, out, protected, serving, start_verify, told, verify
from verdicts import expect

# Each has hosts and cables of its own.
pytestmark = [pytest.mark.servers("targe"), pytest.mark.own_process(limit_s=500)]
# How many frames of a session are kept to be sent again.
KEPT = 1000


def test_answers_only_frames(seed):
    """A question is answered when it is one, and to the port that it was sent to."""
    mtu = 65535
    with network.Network(mtu, wired=False) as net, serving(net.target, "--iface=eth0", "--group=backup", "--lun=ram:16M") as folder:
        # Else the interface itself would drop what is sent to others.
        net.target.run("ip", "link", "set", "eth0", "promisc", "on")
        ours, theirs = net.initiator.mac(), net.target.mac()
        before = asked(net.target, folder, "status")["hyperscsi"]["bad_frames"]

        def heard(change=lambda question: question, to=raw.BROADCAST, source=ours, vlan=None):
            """Whether a question is answered that was changed like this."""
            frames, nonce = net.initiator.frames(), os.urandom(16)
            # Whoever asks a second time is heard: so silence is known to be one without waiting for it.
            control = os.urandom(16)
            frames.settimeout(network.PATIENCE_S)
            frames.send(raw.ethernet(to, source, change(raw.question("backup", nonce)), vlan))
            frames.send(raw.ethernet(raw.BROADCAST, ours, raw.question("backup", control)))
            got = False
            while True:
                answer = frames.recv(65535)[14 + raw.HEADER_LEN:]
                got |= answer[4:20] == nonce
                if answer[4:20] == control:
                    frames.close()
                    return got

        source = random.Random(seed)
        expect(heard() and heard(to=theirs), "a question is not answered")
        expect(heard(lambda question: question + source.randbytes(900)), "a padded question is not answered")
        expect(heard(lambda question: question + source.randbytes(mtu - len(question))), "a question in the longest frame is not answered")
        expect(heard(vlan=0), "a question with a priority is not answered")
        expect(not heard(vlan=5), "a question out of another VLAN is answered")
        expect(not heard(to=raw.station(1)), "a question to another station is answered")
        expect(not heard(source=b"\x01" + ours[1:]), "a question that says to be from a group of stations is answered")
        whole = len(raw.question("backup", bytes(16)))
        for length in sorted(source.sample(range(whole), 12)) + [whole - 1]:
            expect(not heard(lambda question: question[:length]), f"the first {length} of {whole} bytes are answered")
        for bit in source.sample(range(whole * 8), 24):
            flipped = lambda question: bytes(byte ^ (1 << bit % 8 if at == bit // 8 else 0) for at, byte in enumerate(question))
            expect(not heard(flipped), f"a question with bit {bit} flipped is answered")
        for name, changed in (("version", {"version": 0x10}), ("reserved bit", {"res": 1}), ("flag", {"flags": 1}), ("parts", {"flags": 2}), ("longer", {"length": 65535}),
                              ("shorter", {"length": 3}), ("session", {"sid": 7}), ("command", {"cmd": 0x7F})):
            def otherwise(question):
                payload = question[raw.HEADER_LEN:-4]
                return raw.frame(**{"cmd": raw.DISCOVERY, "payload": payload, **changed})
            expect(not heard(otherwise), f"a question with another {name} is answered")
        status = asked(net.target, folder, "status")["hyperscsi"]
        expect(status["bad_frames"] > before + 5, f"{status['bad_frames']} frames were counted as none")


class Disturber:
    """A station between the ends of a session: it hears what they say, and says it again, differently and to the wrong ones."""

    WAYS = ("again", "flipped", "cut", "padded", "oversized", "other VLAN", "other station", "other source", "other session", "other length")

    def __init__(self, host, seed, keyed):
        self.dice = random.Random(seed)
        # In a session without keys whoever hears it can speak in it: there a forged command is one.
        self.ways = (*self.WAYS, "forged") if keyed else self.WAYS
        # What comes in on one side goes out on the other: as the wire between has it, and once more.
        self.sides = [(host.frames("a0"), host.frames("b0")), (host.frames("b0"), host.frames("a0"))]
        self.kept = [[], []]
        self.sent = dict.fromkeys(self.ways, 0)
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(side,)) for side in (0, 1)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.end()
        for side in self.sides:
            for frames in side:
                frames.close()

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def run(self, side):
        ears, mouth = self.sides[side]
        ears.settimeout(0.1)
        kept = self.kept[side]
        while not self.stop.is_set():
            try:
                heard = ears.recv(65550)
            except TimeoutError:
                continue
            if len(kept) < KEPT:
                kept.append(heard)
            else:
                kept[self.dice.randrange(KEPT)] = heard
            if self.dice.random() < 0.2:
                self.say(mouth, self.dice.choice(kept), self.dice.choice(self.ways))

    def say(self, mouth, heard, way):
        dice, payload = self.dice, heard[14:]
        to, source = heard[:6], heard[6:12]
        vlan = None
        if way == "flipped":
            at = dice.randrange(len(payload))
            payload = payload[:at] + bytes((payload[at] ^ 1 << dice.randrange(8),)) + payload[at + 1:]
        elif way == "cut":
            payload = payload[:dice.randrange(len(payload))]
        elif way == "padded":
            payload += dice.randbytes(min(dice.randrange(1, 400), 9000 - len(payload)) if len(payload) < 8999 else 0)
        elif way == "oversized":
            # Longer than any that is sent here, and it says to be longer still.
            payload = payload[:6] + dice.randbytes(2) + (payload[8:] + dice.randbytes(9000))[:9000 - 8]
        elif way == "forged":
            sid, pn = struct.unpack_from(">IQ", payload, 8)
            payload = raw.write_of_one_block(sid, pn + dice.randrange(64), dice.randrange(1, 1 << 16), dice.randrange(1 << 16))
        elif way == "other VLAN":
            vlan = 7
            payload = payload[:9000 - 4]
        elif way == "other station":
            to = raw.station(7)
        elif way == "other source":
            source = raw.station(8)
        elif way == "other session":
            payload = payload[:8] + dice.randbytes(4) + payload[12:]
        elif way == "other length":
            payload = payload[:6] + dice.randbytes(2) + payload[8:]
        try:
            mouth.send(raw.ethernet(to, source, payload, vlan))
            self.sent[way] += 1
        except OSError:
            # The other side takes no more just now, which is no concern of who disturbs.
            pass

    def say_all_again(self):
        """Sends what was kept once more, each side to whom it was for."""
        count = 0
        for (_, mouth), kept in zip(self.sides, self.kept):
            for number, heard in enumerate(kept):
                try:
                    mouth.send(heard)
                    count += 1
                except OSError:
                    time.sleep(0.001)
                if number % 200 == 0:
                    time.sleep(0.002)
        return count


@pytest.mark.waits(8)
@pytest.mark.parametrize("level", ["none", "encrypt"])
def test_old_garbled_and_misdirected_frames_do_nothing(seed, level):
    """Old, garbled and misdirected frames into a living session, and all of it again once it is over."""
    with network.Network(9000) as net, net.wire("--rate=150M", f"--seed={seed}"), protected(level) as (flags, query):
        with serving(net.target, "--iface=eth0", "--group=backup", f"--lun=ram:32M,protection={level}", *flags) as folder:
            url = discovered(net, "backup")[0]["url"] + query
            accounts = Accounts(net.target, folder)
            with Disturber(net.between, seed, keyed=level != "none") as disturber:
                report = verify(net, url, process=start_verify(net, url, "--full"))
                disturber.end()
                account = accounts.since()
                expect(report["session"]["sessions_rebuilt"] == 0, f"the session did not live through it: {report['session']}")
                expect_each_once(account, report)
                expect(all(count > 10 for count in disturber.sent.values()), f"too little was disturbed: {disturber.sent}")
                # Half of them went the other way. What was garbled is mostly known by its number already.
                noticed = account["replayed_frames"] + account["damaged_frames"]
                expect(noticed > disturber.sent["again"] / 4 and account["unknown_sessions"] > 0, f"{account} after {disturber.sent}")
                # The session is over: whatever was said in it means nothing any more. For a second its name is still known.
                count = disturber.say_all_again()
                heard = lambda: sum(accounts.since()[kind] - account[kind] for kind in ("unknown_sessions", "replayed_frames"))
                await_that(lambda: heard() > count / 4, "old frames being heard")
                after = accounts.since()
                expect((after["executed"], after["written"]) == (account["executed"], account["written"]), f"old frames had an effect: {after}")
            if "forged" in disturber.sent:
                expect(account["refused_frames"] >= disturber.sent["forged"] / 4, f"{account} after {disturber.sent}")
            print(f"  {level}: {sum(disturber.sent.values())} frames disturbed, {account['replayed_frames']} replayed, "
                  f"{account['damaged_frames']} damaged, {account['refused_frames']} refused, {count} old ones", flush=True)
            verify(net, url, "--full", "--range=1M")


@pytest.mark.parametrize("level", ["none", "encrypt"])
def test_flipped_bits_only_delay(seed, level):
    """A man in the middle flips bits of one frame in fifty: nothing but delay."""
    with network.Network(9000) as net, net.wire("--corrupt=2%", f"--seed={seed}") as wire, protected(level) as (flags, query):
        with serving(net.target, "--iface=eth0", "--group=backup", f"--lun=ram:16M,protection={level}", *flags) as folder:
            url = discovered(net, "backup")[0]["url"] + query
            accounts = Accounts(net.target, folder)
            report = verify(net, url, "--full")
            account = accounts.since()
            expect_each_once(account, report)
            expect(report["session"]["sessions_rebuilt"] == 0, f"{report['session']}")
            corrupted = wire.end()["a_to_b"]["corrupted"]
            # Some hit a bit that says to whom the frame is, or what it is.
            noticed = account["damaged_frames"] + account["refused_frames"] + account["bad_frames"] + account["unknown_sessions"]
            expect(0.7 * corrupted < noticed + 10 and noticed <= 2 * corrupted, f"{corrupted} frames were damaged, {noticed} noticed: {account}")


@pytest.mark.waits(7)
def test_passwords_are_told_apart_from_nothing(seed):
    """Whatever is wrong, one message; and where the group or the target is unknown, silence."""
    with network.Network(wired=False) as net, protected("encrypt") as (flags, query):
        with serving(net.target, "--iface=eth0", "--group=backup", "--lun=ram:16M", *flags) as folder:
            url = discovered(net, "backup")[0]["url"]
            name = url.split("/")[3]

            def refused(url):
                began = time.monotonic()
                result = net.initiator.run(servers.Targe.binary, "info", url, check=False)
                expect(result.returncode == 1 and not result.stdout, f"{url}: exit code {result.returncode}: {result.stdout}")
                place = url.split("?")[0].rsplit("/", 1)[0]
                return result.stderr.replace(place.split("://")[1].split("/")[0], "PLACE").replace(name, "NAME"), time.monotonic() - began

            with tempfile.NamedTemporaryFile("w", dir=out()) as wrong:
                wrong.write("a password of some lengths\n")
                wrong.flush()
                bad = f"?password_file={wrong.name}"
                first, _ = refused(url + bad)
                expect("wrong password" in first and len(first.splitlines()) == 1, first)
                # Nothing is told of who is known: a name that never was here hears the same.
                second, _ = refused(url + bad + "&initiator=iqn.2026-11.com.example:stranger")
                expect(first == second, f"{first} {second}")
            await_that(lambda: told(folder).count("is refused: ") == 2, "the target's word on it")
            heard = told(folder)
            for place in (url.replace("backup", "nobody"), url.replace(name, "iqn.2026-11.com.example:none")):
                text, took = refused(place + query + "&connect_timeout=2")
                expect("no server answered that exports this target to this group" in text and took >= 2, f"after {took} s: {text}")
            expect(told(folder) == heard, "the target says something about a group or target that is not")


def test_guesses_are_rationed(seed):
    """Sixteen guesses at once, then one each half second and ever rarer, from wherever they come."""
    with network.Network(wired=False) as net, protected("encrypt") as (flags, query):
        with serving(net.target, "--iface=eth0", "--group=backup", "--lun=ram:16M", *flags) as folder:
            url = discovered(net, "backup")[0]["url"]
            name, theirs = url.split("/")[3], net.target.mac()
            frames = net.initiator.frames()
            frames.settimeout(network.PATIENCE_S)
            began, answers, put_off = time.monotonic(), 0, 0
            guesses = 60
            for number in range(guesses):
                source, handshake = raw.station(number), os.urandom(16)
                frames.send(raw.ethernet(theirs, source, raw.hello(handshake, "backup", name)))
                cookie = raw.items_of(awaited(frames, source, (2,)))[raw.COOKIE]
                frames.send(raw.ethernet(theirs, source, raw.start(handshake, "backup", name, cookie)))
                answer = awaited(frames, source, (4, 7))
                answers += answer[0] == 4
                put_off += answer[:2] == b"\x07\x03"
            took = time.monotonic() - began
            frames.close()
            expect(answers + put_off == guesses, f"{answers} answers and {put_off} delays to {guesses} guesses")
            expect(8 <= answers <= 16 + took / 0.5 + 1, f"{answers} of {guesses} guesses were answered within {took:.1f} s")
            status = asked(net.target, folder, "status")["hyperscsi"]
            expect(status["handshakes_put_off"] >= put_off, f"{status}")
            print(f"  {answers} of {guesses} guesses answered within {took:.1f} s, {put_off} put off", flush=True)


def awaited(frames, station, kinds):
    """The block of the next handshake frame to a station."""
    while True:
        heard = frames.recv(65535)
        payload = heard[14 + raw.HEADER_LEN:]
        if heard[:6] == station and heard[14 + 4] == raw.NEGOTIATED and payload[0] in kinds:
            length, = struct.unpack_from(">H", payload, 2)
            return payload[:length]
