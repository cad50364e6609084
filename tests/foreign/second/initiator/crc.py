"""CRC32C (§3.3), two bytes at a step."""

import sys
from array import array


def table():
    """What 16 bits do to the register: reflected Castagnoli polynomial."""
    entries = array("L", bytes(array("L").itemsize << 16))
    for value in range(256):
        register = value
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
        entries[value] = register
    short = list(entries[:256])
    for value in range(65536):
        register = short[value & 255] ^ value >> 8
        entries[value] = short[register & 255] ^ register >> 8
    return short, list(entries)


SHORT, LONG = table()


def crc32c(data):
    register, whole = 0xFFFFFFFF, len(data) & ~1
    words = array("H", data[:whole])
    if sys.byteorder == "big":
        words.byteswap()
    for word in words:
        register = LONG[(register ^ word) & 0xFFFF] ^ register >> 16
    if len(data) > whole:
        register = SHORT[(register ^ data[-1]) & 255] ^ register >> 8
    return register ^ 0xFFFFFFFF
