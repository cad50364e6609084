"""What a loss of power leaves on the medium, at each moment at which it can come, and whether that keeps every promise."""

import random
import struct

from power.medium import apply
from verdicts import expect
from power.writer import CELL, SECTOR, ZERO

# How many moments are tried beside those of the promises themselves, each with some of what was not synced.
CUTS = 120


def judge(medium, account, seed):
    """Raises if any promise is broken by any cut. Returns how many cuts were tried."""
    broken = [*after_each_promise(medium, account), *anywhere(medium, account, random.Random(seed))]
    if broken:
        raise AssertionError(f"{len(broken)} promises are broken, such as: {broken[0]}")
    expect(account.promises, "nothing was promised")
    return len(account.promises) + CUTS


def after_each_promise(medium, account):
    """The power goes the moment a promise was made, and nothing is left of what was not synced."""
    image, applied, synced = bytearray(medium.size), 0, 0
    for moment, cells, name in sorted(account.promises, key=lambda promise: promise[0]):
        while applied < moment:
            if medium.history[applied] is None:
                replay(image, medium.history[synced:applied])
                synced = applied
            applied += 1
        for cell, version in cells.items():
            if wrong := look(image, account, cell, version, moment):
                yield f"after {name} at {moment} of {len(medium.history)} changes, {wrong}"


def anywhere(medium, account, chance):
    """The power goes at any moment, and some of what was not synced is left, sector by sector."""
    moments = sorted(chance.randrange(1, len(medium.history) + 1) for _ in range(CUTS))
    promises = iter(sorted(account.promises, key=lambda promise: promise[0]))
    promise, required = next(promises, None), [0] * len(account.sent)
    base, synced = bytearray(medium.size), 0
    for moment in moments:
        while promise and promise[0] <= moment:
            for cell, version in promise[1].items():
                required[cell] = max(required[cell], version)
            promise = next(promises, None)
        last = next((at for at in range(moment - 1, synced, -1) if medium.history[at] is None), synced)
        replay(base, medium.history[synced:last])
        synced = last
        image = bytearray(base)
        replay(image, some(medium.history[synced:moment], chance))
        for cell, version in enumerate(required):
            if wrong := look(image, account, cell, version, moment):
                yield f"after a cut at {moment} of {len(medium.history)} changes, {wrong}"


def replay(image, changes):
    for change in changes:
        if change is not None:
            apply(image, *change)


def some(changes, chance):
    """What a disk happened to store: some changes whole, of some a part, and nothing of others."""
    for change in changes:
        fate = chance.randrange(3)
        if change is None or fate == 0:
            continue
        at, what = change
        length = what if isinstance(what, int) else len(what)
        if fate == 1:
            length = chance.randrange(length // SECTOR + 1) * SECTOR
        yield at, length if isinstance(what, int) else what[:length]


def look(image, account, cell, version, moment):
    """What is wrong with a cell that must have this version or one that was sent later, if anything."""
    possible = [each for each in account.sent[cell] if each[0] >= version and each[2] <= moment]
    numbers, zeros = {each[0] for each in possible if not each[1]}, any(each[1] for each in possible)
    for at in range(cell * CELL, (cell + 1) * CELL, SECTOR):
        sector = image[at:at + SECTOR]
        if sector == ZERO:
            if zeros:
                continue
            return f"cell {cell} is zero, version {version} was durable"
        owner, found = struct.unpack_from(">QQ", sector)
        if owner != cell or sector != sector[:16] * (SECTOR // 16):
            return f"cell {cell} holds what nobody wrote there: {bytes(sector[:16]).hex()}"
        if found not in numbers:
            return f"cell {cell} has version {found}, {version} was durable"
    return None
