"""Writes to a unit from several sessions at once, and keeps account of what was acknowledged, of what as durable, and when.

The unit is cut into cells of 4 KiB; each session has cells of its own. A change gives each of its cells a new version, which every
sector of the cell carries, or makes it zero. A moment is a place in the history of the medium.
"""

import random
import struct
import threading

SECTOR, CELL = 512, 4096
CELLS_MAX = 6
ZERO = bytes(SECTOR)


class Account:
    """What each cell was told to be, and since when which of it must be found whatever happens."""

    def __init__(self, medium, write_through):
        self.medium, self.write_through = medium, write_through
        self.lock = threading.Lock()
        self.versions = 0
        # For each cell its changes, as (version, whether it makes zeros, the moment when it was sent).
        self.sent = [[(0, True, 0)] for _ in range(medium.size // CELL)]
        # For each cell the version that is acknowledged, and the one that is known to be durable.
        self.acknowledged = [0] * len(self.sent)
        self.durable = [0] * len(self.sent)
        # (moment, {cell: version}, the command that promised it)
        self.promises = []

    def send(self, cells, zeros):
        with self.lock:
            self.versions += 1
            for cell in cells:
                self.sent[cell].append((self.versions, zeros, self.medium.moment()))
            return self.versions

    def done(self, cells, version, name, durable):
        with self.lock:
            for cell in cells:
                self.acknowledged[cell] = version
            if durable or self.write_through:
                self.promise(dict.fromkeys(cells, version), name)

    def before_flush(self):
        with self.lock:
            return {cell: version for cell, version in enumerate(self.acknowledged) if version > self.durable[cell]}

    def promise(self, cells, name):
        for cell, version in cells.items():
            self.durable[cell] = max(self.durable[cell], version)
        self.promises.append((self.medium.moment(), cells, name))

    def flushed(self, cells, name):
        with self.lock:
            self.promise(cells, name)


class Writer:
    """One session at work in its own cells."""

    def __init__(self, session, account, cells, seed, ways, block):
        self.session, self.account, self.cells, self.ways, self.block = session, account, cells, ways, block
        self.chance = random.Random(seed)
        self.failure = None

    def run(self, steps):
        try:
            for _ in range(steps):
                way = self.chance.choice(self.ways)
                count = self.chance.randrange(1, CELLS_MAX + 1)
                first = self.chance.randrange(self.cells.start, self.cells.stop - count + 1)
                getattr(self, way)(range(first, first + count))
        except Exception as failure:
            self.failure = failure

    def change(self, name, cells, cdb, zeros=False, durable=False, parameters=b""):
        version = self.account.send(cells, zeros)
        data = parameters if zeros else b"".join(sectors(cell, version) for cell in cells)
        self.command(name, cdb, data)
        self.account.done(cells, version, name, durable)

    def command(self, name, cdb, data=b""):
        status, sense = self.session.command(cdb, 0, data)
        if status:
            raise AssertionError(f"{name} ends with status {status:02x}h, {sense.hex()}")

    def write(self, cells):
        self.change("WRITE(10)", cells, struct.pack(">BBIBHB", 0x2A, 0, *self.blocks(cells), 0))

    def write_fua(self, cells):
        self.change("WRITE(10) with FUA", cells, struct.pack(">BBIBHB", 0x2A, 8, *self.blocks(cells), 0), durable=True)

    def write_16_fua(self, cells):
        lba, count = self.extent(cells)
        self.change("WRITE(16) with FUA", cells, struct.pack(">BBQIBB", 0x8A, 8, lba, count, 0, 0), durable=True)

    def write_same_zeros(self, cells):
        lba, count = self.extent(cells)
        self.change("WRITE SAME(16) with NDOB", cells, struct.pack(">BBQIBB", 0x93, 1, lba, count, 0, 0), zeros=True)

    def write_same_unmap(self, cells):
        lba, count = self.extent(cells)
        self.change("WRITE SAME(16) with UNMAP", cells, struct.pack(">BBQIBB", 0x93, 8, lba, count, 0, 0), zeros=True, parameters=bytes(self.block))

    def unmap(self, cells):
        lba, count = self.extent(cells)
        parameters = struct.pack(">HHIQII", 22, 16, 0, lba, count, 0)
        self.change("UNMAP", cells, struct.pack(">BBIBHB", 0x42, 0, 0, 0, len(parameters), 0), zeros=True, parameters=parameters)

    def flush(self, _):
        cells = self.account.before_flush()
        self.command("SYNCHRONIZE CACHE(10)", struct.pack(">BBIBHB", 0x35, 0, 0, 0, 0, 0))
        self.account.flushed(cells, "SYNCHRONIZE CACHE(10)")

    def flush_16(self, cells):
        """Of these cells alone; more than they may be durable then."""
        waiting = self.account.before_flush()
        lba, count = self.extent(cells)
        self.command("SYNCHRONIZE CACHE(16)", struct.pack(">BBQIBB", 0x91, 0, lba, count, 0, 0))
        self.account.flushed({cell: waiting[cell] for cell in cells if cell in waiting}, "SYNCHRONIZE CACHE(16)")

    def extent(self, cells):
        """First block and count."""
        return cells.start * CELL // self.block, len(cells) * CELL // self.block

    def blocks(self, cells):
        """The same as the fields of a CDB of ten bytes: with the group number between them."""
        lba, count = self.extent(cells)
        return lba, 0, count


def sectors(cell, version):
    return struct.pack(">QQ", cell, version) * (CELL // 16)
