"""A RAM disk that knows the few SCSI commands an initiator needs (SPC-5, SBC-4), and tells how often it did what."""

import collections
import struct

GOOD, CHECK_CONDITION = 0x00, 0x02
ILLEGAL_REQUEST = 5
INVALID_OPERATION, INVALID_FIELD, OUT_OF_RANGE, NO_SUCH_UNIT, NOT_AUTHORIZED = 0x2000, 0x2400, 0x2100, 0x2500, 0x7471
BLOCK = 512
READS, WRITES = {0x08: 6, 0x28: 10, 0xA8: 12, 0x88: 16}, {0x0A: 6, 0x2A: 10, 0xAA: 12, 0x8A: 16}
SERIAL = b"SECOND-0001"
NAA = bytes.fromhex("6505553000000001") + bytes(8)


class Failure(Exception):
    """CHECK CONDITION with these sense data."""

    def __init__(self, code, key=ILLEGAL_REQUEST):
        super().__init__(f"{key:x}/{code:04x}")
        self.sense = struct.pack(">BBBIB4xH4x", 0x70, 0, key, 0, 10, code)


def extent(cdb):
    """(first block, blocks) of READ and WRITE."""
    length = READS.get(cdb[0]) or WRITES.get(cdb[0])
    if length == 6:
        return int.from_bytes(cdb[1:4], "big") & 0x1FFFFF, cdb[4] or 256
    if length == 10:
        return struct.unpack_from(">xxIxH", cdb)
    return struct.unpack_from(">xxII" if length == 12 else ">xxQI", cdb)


class Disk:
    """One logical unit."""

    def __init__(self, size, least_level=0):
        self.data = bytearray(size)
        self.blocks = size // BLOCK
        self.least_level = least_level
        self.counts = collections.Counter()
        self.written = self.read = 0

    def wants(self, cdb):
        """How many bytes of data a command takes."""
        return extent(cdb)[1] * BLOCK if cdb[0] in WRITES else 0

    def range_of(self, cdb):
        if len(cdb) < (READS.get(cdb[0]) or WRITES.get(cdb[0])):
            raise Failure(INVALID_FIELD)
        first, count = extent(cdb)
        if first + count > self.blocks:
            raise Failure(OUT_OF_RANGE)
        return first * BLOCK, (first + count) * BLOCK

    def check(self, cdb):
        """Raises Failure for a command that will not be carried out, before its data is asked for."""
        if cdb[0] in WRITES:
            self.range_of(cdb)
        elif cdb[0] not in READS and cdb[0] not in self.OTHERS:
            raise Failure(INVALID_OPERATION)

    def execute(self, cdb, data):
        """Carries a command out; the Data-In that it has."""
        self.check(cdb)
        self.counts[cdb[0]] += 1
        if cdb[0] in READS:
            begin, end = self.range_of(cdb)
            self.read += end - begin
            return bytes(memoryview(self.data)[begin:end])
        if cdb[0] in WRITES:
            begin, end = self.range_of(cdb)
            self.data[begin:end] = data
            self.written += end - begin
            return b""
        return self.OTHERS[cdb[0]](self, cdb)

    def nothing(self, cdb):
        return b""

    def inquiry(self, cdb):
        length = int.from_bytes(cdb[3:5], "big")
        if not cdb[1] & 1:
            if cdb[2]:
                raise Failure(INVALID_FIELD)
            head = bytes((0, 0, 7, 0x12, 91, 0, 0, 2)) + b"SECOND  " + b"RAM disk".ljust(16) + b"0001"
            return head.ljust(96, b"\0")[:length]
        page = self.vital(cdb[2])
        return (struct.pack(">BBH", 0, cdb[2], len(page)) + page)[:length]

    def vital(self, page):
        if page == 0x00:
            return bytes((0x00, 0x80, 0x83, 0xB0))
        if page == 0x80:
            return SERIAL
        if page == 0x83:
            return bytes((1, 3, 0, len(NAA))) + NAA
        if page == 0xB0:
            return struct.pack(">BBHIIIIIIQ", 0, 0, 0, 2048, 512, 0, 0, 0, 0, 0).ljust(60, b"\0")
        raise Failure(INVALID_FIELD)

    def report_luns(self, cdb):
        return struct.pack(">II8s", 8, 0, bytes(8))[:int.from_bytes(cdb[6:10], "big")]

    def capacity10(self, cdb):
        return struct.pack(">II", min(self.blocks - 1, 0xFFFFFFFF), BLOCK)

    def service_action_in(self, cdb):
        if cdb[1] & 31 != 0x10:
            raise Failure(INVALID_FIELD)
        return struct.pack(">QI", self.blocks - 1, BLOCK).ljust(32, b"\0")[:int.from_bytes(cdb[10:14], "big")]

    def mode_sense6(self, cdb):
        return bytes((3, 0, 0x10, 0))[:cdb[4]]

    def mode_sense10(self, cdb):
        return struct.pack(">HBB4x", 6, 0, 0x10)[:int.from_bytes(cdb[7:9], "big")]

    def request_sense(self, cdb):
        return struct.pack(">BBBIB10x", 0x70, 0, 0, 0, 10)[:cdb[4]]

    OTHERS = {0x00: nothing, 0x03: request_sense, 0x12: inquiry, 0x1A: mode_sense6, 0x25: capacity10, 0x35: nothing,
              0x5A: mode_sense10, 0x91: nothing, 0x9E: service_action_in, 0xA0: report_luns}


class NoDisk:
    """What answers for a LUN that is none: INQUIRY and REPORT LUNS alone (SPC-5 §6.7)."""

    least_level = 0

    def __init__(self, disk):
        self.disk = disk

    def wants(self, cdb):
        return 0

    def check(self, cdb):
        if cdb[0] not in (0x12, 0xA0):
            raise Failure(NO_SUCH_UNIT)

    def execute(self, cdb, data):
        self.check(cdb)
        if cdb[0] == 0xA0:
            return self.disk.report_luns(cdb)
        if cdb[1] & 1:
            raise Failure(INVALID_FIELD)
        return (b"\x7f" + self.disk.inquiry(b"\x12\0\0\0\xff\0")[1:])[:int.from_bytes(cdb[3:5], "big")]
