#!/usr/bin/env python3
"""A well-behaved session: writes blocks, reads them back, compares, and says how long the answers took.

For each line on stdin it prints one JSON object about the time since the last one; it ends when stdin does. It runs in
a process of its own, so that what it measures is the target and not the rig.
"""

import json
import random
import select
import sys
import time

from initiator import Dropped, Session, read_10, write_10

BLOCK = 512
# Blocks that it uses, and the longest transfer.
SPAN, LENGTH_MAX = 4096, 64


def main():
    port, iqn, user, secret, seed = sys.argv[1:]
    user = (user, secret) if user else None
    chance = random.Random(int(seed))
    session = Session(int(port), iqn, "iqn.2026-11.org.targe:witness", 7, user).ready()
    # How long it waits is judged by who asks.
    session.socket.settimeout(60)
    written, spans, wrong = {}, [], ""
    print(json.dumps({"ready": True}), flush=True)
    while True:
        if select.select([sys.stdin], [], [], 0)[0]:
            if not sys.stdin.readline():
                return
            spans.sort()
            print(json.dumps({"commands": len(spans), "median_s": spans[len(spans) // 2] if spans else 0,
                              "longest_s": spans[-1] if spans else 0, "wrong": wrong}), flush=True)
            spans = []
        if wrong:
            time.sleep(0.05)
            continue
        try:
            wrong = step(session, chance, written, spans)
        except (Dropped, OSError, AssertionError) as error:
            wrong = f"{type(error).__name__}: {error}"
        time.sleep(0.002)


def step(session, chance, written, spans):
    """One write and one read back of something written before; returns what is wrong."""
    at, length = chance.randrange(SPAN), chance.randrange(1, LENGTH_MAX)
    data = chance.randbytes(length * BLOCK)
    status, sense = timed(spans, session.command, write_10(at, length), 0, data)
    if status:
        return f"a write ends with status {status:#x}, {sense.hex()}"
    for block in range(length):
        written[at + block] = data[block * BLOCK:][:BLOCK]
    at = chance.choice(list(written)) if chance.random() < 0.3 else at
    status, got = timed(spans, session.command, read_10(at, 1), BLOCK)
    if status:
        return f"a read ends with status {status:#x}, {got.hex()}"
    return "" if got == written[at] else f"block {at} is not what was written"


def timed(spans, command, *arguments):
    began = time.monotonic()
    result = command(*arguments)
    spans.append(time.monotonic() - began)
    return result


if __name__ == "__main__":
    main()
