"""Let Wireshark read HyperSCSI frames of every kind, made by our encoder.

Its own dissector must see version, command, tag, fragment and last fragment as they were sent; the post-dissector in
docs/hyperscsi.lua the rest, without an error of its own, and must notice frames that are damaged.
"""

import os
import subprocess

import pytest

import building
import servers
from verdicts import expect

LUA = os.path.join(servers.ROOT, "docs", "hyperscsi.lua")
STOCK = ["tagno", "lastfrag", "fragno", "version", "cmd"]
OURS = ["protected", "flags", "len", "sid", "pn", "xid", "off"]
TOOL_MAX_S = 300
ETHERNET_LEN, HEADER_LEN, RECORD_LEN, FILE_LEN = 14, 28, 16, 24
# An example makes the capture.
pytestmark = [pytest.mark.without_targe, pytest.mark.timeout(1000)]


@pytest.fixture(scope="module")
def out():
    out = os.path.join(servers.OUT, "wireshark", "hyperscsi")
    os.makedirs(out, exist_ok=True)
    return out


@pytest.fixture(scope="module")
def frames(out):
    """A capture, and what was sent in it."""
    capture = os.path.join(out, "frames.pcap")
    command = [building.example("capture", "targe-hyperscsi"), capture]
    said = subprocess.run(command, cwd=servers.ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return capture, [line.split("\t") for line in said.splitlines()]


def test_stock_dissector_reads_every_frame_as_it_was_sent(frames):
    capture, sent = frames
    wrong = tshark(capture, "-Y", "_ws.malformed || _ws.short", lua=False)
    expect(not wrong, f"malformed: {wrong}")
    expect(len(sent) > 60, f"only {len(sent)} frames were sent")
    seen = fields(capture, ["hyperscsi.reserved"] + [f"hyperscsi.{name}" for name in STOCK], lua=False)
    compare([["0", *row[:5]] for row in sent], seen)


def test_post_dissector_shows_what_stands_behind_byte_4(frames):
    capture, sent = frames
    wrong = tshark(capture, "-Y", "_ws.malformed || _ws.lua.error || hyperscsi2.malformed || hyperscsi2.crc.bad")
    expect(not wrong, f"not understood: {wrong}")
    seen = fields(capture, [f"hyperscsi2.{name}" for name in OURS])
    compare([row[5:12] for row in sent], [[str(int(value, 0)) for value in row] for row in seen])
    shown = [line.rsplit("[", 1)[-1] for line in tshark(capture)]
    for row, text in zip(sent, shown, strict=True):
        expect(text.endswith(row[12] + "]"), f"sent {row[12]}, shown {text}")
    # One field of each kind of payload, as the capture's maker set it.
    for filter, least in [("hyperscsi2.group == backup", 4), ("hyperscsi2.command.cdb[0] == 2a", 2),
                          ("hyperscsi2.ready.offset == 65536", 2), ("hyperscsi2.response.sense", 2),
                          ("hyperscsi2.ack.gap == 3 && hyperscsi2.ack.range == 20", 8), ("hyperscsi2.lun.level == 2", 1),
                          ("hyperscsi2.parameter == 9000", 1), ("hyperscsi2.disconnect.sid == 0xcafe", 1),
                          ("hyperscsi2.ke", 3), ("hyperscsi2.part.xid == 1000 && hyperscsi2.part.tag == 10 && hyperscsi2.part.good == 1", 2),
                          ("hyperscsi2.flags.parts == 1 && hyperscsi2.manage.function == 1", 2), ("hyperscsi2.encrypted", 18), ("hyperscsi2.padding", 5)]:
        found = len(tshark(capture, "-Y", filter))
        expect(found >= least, f"{found} frames with {filter}")


def test_post_dissector_notices_damage_and_survives_it(frames, out):
    """Each frame three times: a byte of the payload changed, the length beyond the end, cut within the header."""
    capture, _ = frames
    with open(capture, "rb") as file:
        whole = file.read()
    at, sent = FILE_LEN, []
    while at < len(whole):
        length = int.from_bytes(whole[at + 8:at + 12], "big")
        sent.append(whole[at + RECORD_LEN:at + RECORD_LEN + length])
        at += RECORD_LEN + length
    damaged = []
    for frame in sent:
        changed, long = bytearray(frame), bytearray(frame)
        changed[ETHERNET_LEN + HEADER_LEN] ^= 0xff
        long[ETHERNET_LEN + 6:ETHERNET_LEN + 8] = b"\xff\xff"
        damaged += [bytes(changed), bytes(long), frame[:ETHERNET_LEN + 20]]
    file = os.path.join(out, "damaged.pcap")
    with open(file, "wb") as to:
        to.write(whole[:FILE_LEN])
        for frame in damaged:
            to.write(b"".join(value.to_bytes(4, "big") for value in (0, 0, len(frame), len(frame))) + frame)
    expect(not tshark(file, "-Y", "_ws.lua.error"), "the script failed")
    noticed = len(tshark(file, "-Y", "hyperscsi2.malformed"))
    # A changed byte in a protected frame shows only to who has the keys.
    protected = len(tshark(file, "-Y", "hyperscsi2.protected == 1"))
    expect(noticed >= len(damaged) - protected and noticed >= len(sent) * 2, f"{noticed} of {len(damaged)} noticed")


def compare(sent, seen):
    expect(len(sent) == len(seen), f"{len(sent)} frames sent, {len(seen)} seen")
    for index, (ours, theirs) in enumerate(zip(sent, seen)):
        theirs = ["1" if value == "True" else "0" if value == "False" else value for value in theirs]
        expect([int(value, 0) for value in ours] == [int(value, 0) for value in theirs],
               f"frame {index + 1}: sent {ours}, seen {theirs}")


def fields(capture, names, lua=True):
    lines = tshark(capture, "-T", "fields", *[part for name in names for part in ("-e", name)], lua=lua)
    return [line.split("\t") for line in lines]


def tshark(capture, *arguments, lua=True):
    """Runs tshark; returns what it printed, by line. Anything it says on the side but who it runs as is an error."""
    script = ["-X", f"lua_script:{LUA}"] if lua else []
    done = subprocess.run(["tshark", "-r", capture, *script, *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=TOOL_MAX_S)
    aside = [line for line in done.stderr.splitlines() if line and "could be dangerous" not in line]
    expect(done.returncode == 0 and not aside, f"tshark: exit code {done.returncode}, {aside[:5]}")
    return done.stdout.splitlines()
