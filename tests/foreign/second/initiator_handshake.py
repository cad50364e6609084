"""Our initiator in handshakes in which the second target does what the document forbids, or what is rare."""

import contextlib
import struct
import time
from unittest import mock

import withheld
from initiator_host import OPEN_AND_KEYED, case, last_words
from target import blocks, frames
from target.handshake import ACCEPT, ANSWER, Handshakes
from verdicts import expect


@contextlib.contextmanager
def steps_changed(change):
    """Blocks of Negotiated frames pass through `change(kind, block)`, None to send nothing."""
    real = frames.outside

    def changed(command, block):
        if command == frames.NEGOTIATED:
            block = change(block[0], block)
        return real(command, block)
    with mock.patch("target.handshake.outside", changed):
        yield


def with_item(block, kind, value, behind=20):
    """An item put in front of the others."""
    block = block[:behind] + blocks.item(kind, value) + block[behind:]
    return block[:2] + len(block).to_bytes(2, "big") + block[4:]


@case(waits=True)
def passes_over_unknown_items_without_bit_7(rig):
    """§4.1: an item with bit 7 drops the payload, another is passed over."""
    with steps_changed(lambda kind, block: with_item(block, 0x7E, b"later") if kind == ACCEPT else block):
        rig.ask("info", rig.url())
    with steps_changed(lambda kind, block: with_item(block, 0xFE, b"later") if kind == ACCEPT else block):
        result = rig.ask("info", rig.url("connect_timeout=3"), good=False)
    expect(result.returncode, "took an ACCEPT with an unknown item of bit 7")
    return last_words(result)


@case(waits=True)
def takes_no_choice_outside_its_offer(rig):
    """§4.10: the initiator MUST NOT take it."""
    told = []
    for kind, value in ((7, (1 << 30).to_bytes(4, "big")), (8, b"\xff"), (10, (2**31).to_bytes(4, "big")), (4, b"\4")):
        def change(step, block):
            if step != ACCEPT:
                return block
            at = block.index(bytes((kind, 0, len(value))), 30) + 3
            return block[:at] + value + block[at + len(value):]
        with steps_changed(change):
            result = rig.ask("info", rig.url("connect_timeout=2"), good=False)
        if not result.returncode:
            told.append(kind)
    expect(not told, f"took parameters {told} outside its offer")


@case(("", {"keyed": True}), waits=True)
def takes_no_accept_without_its_proof(rig):
    """§6.3."""
    def without(kind, block):
        if kind != ACCEPT:
            return block
        return block[:2] + (len(block) - 35).to_bytes(2, "big") + block[4:-35]
    for change in (without, lambda kind, block: block[:-1] + bytes([block[-1] ^ 1]) if kind == ACCEPT else block):
        with steps_changed(change):
            result = rig.ask("info", rig.url("connect_timeout=3"), good=False)
        expect(result.returncode, "took an ACCEPT without the right PROOF")
    return last_words(result)


@case(("", {"keyed": True}), waits=True)
def stretches_no_password_at_any_price(rig):
    """§6.3: more than 262144 KiB, than five times the usual work, than 16 lanes."""
    for cost in ((262145, 1, 1), (65536, 16, 1), (65536, 3, 17)):
        def change(kind, block):
            if kind == ANSWER:
                at = block.index(b"\x8e\0\x09") + 3
                block = block[:at] + struct.pack(">IIB", *cost) + block[at + 9:]
            return block
        with steps_changed(change):
            limit = withheld.Limit(10)
            result = rig.ask("info", rig.url("connect_timeout=3"), good=False)
        expect(result.returncode and not limit.over(), f"{cost}")
        rig.target.handshakes.allowances.clear()
        rig.target.handshakes.halves.clear()
    return last_words(result)


@case(("", {"keyed": True}), waits=True)
def waits_for_a_busy_target(rig):
    """§6.1: REFUSE 3 makes an initiator wait, and nothing else."""
    refused = []

    def allowance(self):
        refused.append(time.monotonic())
        return len(refused) > 3
    with mock.patch("target.handshake.Allowance.take", allowance), mock.patch("target.handshake.Allowance.success", lambda self: None):
        rig.ask("info", rig.url())
    pauses = [after - before for before, after in zip(refused, refused[1:])]
    expect(len(refused) == 4, f"{len(refused)} STARTs")
    return "pauses of " + ", ".join(f"{pause:.2f}" for pause in pauses) + " s where 0.5 s was asked for"


@case(*OPEN_AND_KEYED, waits=True)
def gets_another_cookie(rig):
    """§6.2, §6.4, §16: a START gets another COOKIE; with KE1 the initiator takes it, without it begins anew a second later."""
    starts, real = [], Handshakes.start

    def start(self, port, source, block, frame):
        starts.append((time.monotonic(), bytes(block.fixed), bytes(block.raw_items[-40:]), withheld.total()))
        real(self, port, source, block, frame)

    def good(self, *_):
        # With KE1 after half a second; without, not before the initiator has begun anew.
        return starts[-1][0] - starts[0][0] > 0.5 if rig.keyed else starts[-1][1] != starts[0][1]
    with mock.patch.object(Handshakes, "start", start), mock.patch("target.handshake.Cookies.good", good):
        rig.ask("info", rig.url())
    cookies, begun = {}, {}
    for at, handshake, cookie, waited in starts:
        cookies.setdefault(handshake, set()).add(cookie)
        begun.setdefault(handshake, (at, waited))
    most = max(len(each) for each in cookies.values())
    expect(rig.keyed or most == 1, f"{most} cookies in one START without KE1")
    expect(len(cookies) == (1 if rig.keyed else 2), f"{len(cookies)} handshakes")
    if not rig.keyed:
        (first, before), (second, after) = begun.values()
        took, late = second - first, after - before
        # The START that would come again 1.5 s after the first does not.
        expect(0.95 < took < 1.5 + late, f"begun anew after {took:.2f} s, {late:.2f} s of it without a processor")
    return f"{len(starts)} STARTs of {len(cookies)} handshakes in {starts[-1][0] - starts[0][0]:.2f} s, {most} cookies in one"
