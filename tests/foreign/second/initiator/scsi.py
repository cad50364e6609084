"""The few SCSI commands that are needed here (SPC-5, SBC-4)."""

import struct

LUN_RESET, ABORT_TASK, QUERY_TASK = 5, 1, 9


def lun(number):
    """SAM-5 §4.7, peripheral device addressing; flat space addressing from 256 on."""
    return struct.pack(">Hxxxxxx", number if number < 256 else 0x4000 | number)


def test_unit_ready():
    return bytes(6)


def inquiry(length=96, page=None):
    return struct.pack(">BBBHB", 0x12, page is not None, page or 0, length, 0)


def report_luns(length=4096):
    return struct.pack(">BxBxxxIxx", 0xA0, 0, length)


def read_capacity(length=32):
    return struct.pack(">BBQIxx", 0x9E, 0x10, 0, length)


def read(block, count):
    return struct.pack(">BBQIBB", 0x88, 0, block, count, 0, 0)


def write(block, count):
    return struct.pack(">BBQIBB", 0x8A, 0, block, count, 0, 0)


def parse_luns(data):
    return [bytes(data[at:at + 8]) for at in range(8, 8 + int.from_bytes(data[:4], "big"), 8)]


def parse_capacity(data):
    """Blocks, and bytes of each."""
    last, length = struct.unpack_from(">QI", data)
    return last + 1, length


def sense(response):
    """Sense key, ASC and ASCQ of a RESPONSE with fixed or descriptor sense, or None."""
    data = response.sense
    if len(data) >= 14 and data[0] & 0x7F in (0x70, 0x71):
        return data[2] & 15, data[12], data[13]
    if len(data) >= 4 and data[0] & 0x7F in (0x72, 0x73):
        return data[1] & 15, data[2], data[3]
    return None
