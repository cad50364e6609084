"""A second reader of cartridges, written from docs/cartridge.md alone, and tape images made and read by a few lines of their own."""

import struct

CHUNK, BODY = 1 << 20, (1 << 20) - 64
RECORD, FILEMARK, PADDING = 1, 2, 3


def crc32c(data, table=[]):  # pylint: disable=dangerous-default-value
    if not table:
        for byte in range(256):
            for _ in range(8):
                byte = byte >> 1 ^ 0x82F63B78 * (byte & 1)
            table.append(byte)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def label(folder):
    """Returns the seal, the segment length and the partitions of the valid copy with the larger sequence number."""
    both = (folder / "label").read_bytes()
    valid = []
    for copy in (both[:65536], both[65536:131072]):
        version, length, crc = struct.unpack_from(">III", copy, 8)
        if copy[:8] == b"TgCartrg" and version == 1 and crc32c(copy[8:16] + copy[20:length]) == crc:
            valid.append(copy)
    copy = max(valid, key=lambda copy: copy[20:28])
    at = 147 + copy[146]
    partitions = [struct.unpack_from(">QQQQQI", copy, at + 1 + 44 * number) for number in range(copy[at])]
    return copy[28:44], struct.unpack_from(">Q", copy, 88)[0], partitions


def forget_unload(folder):
    """Makes both copies of the label say what they said when partition 0 was first written: its data begin at 0, and more may follow."""
    both = bytearray((folder / "label").read_bytes())
    for at in (0, 65536):
        both[at + 79] &= ~4
        partition = at + 148 + both[at + 146]
        both[partition + 8:partition + 40] = bytes(32)
        length = struct.unpack_from(">I", both, at + 12)[0]
        struct.pack_into(">I", both, at + 16, crc32c(both[at + 8:at + 16] + both[at + 20:at + length]))
    (folder / "label").write_bytes(both)


def objects(folder, partition=0):
    """Returns the data of each record, and b"" for each filemark, up to the checkpoint. Every checksum is checked."""
    seal, segment_len, partitions = label(folder)
    _, end, count, marks, _, _ = partitions[partition]
    log = b"".join(file.read_bytes().ljust(segment_len if number + 1 < len(files) else 0, b"\0")
                   for files in [sorted(folder.glob(f"p{partition}-*.log"))] for number, file in enumerate(files))
    log = log.ljust(-(-len(log) // CHUNK) * CHUNK, b"\0")
    headers = [log[at:at + 64] for at in range(0, len(log), CHUNK)]
    for number, header in enumerate(headers):
        if number * BODY < end:
            assert header[:8] == b"TgChunk1" and struct.unpack_from(">Q", header, 16)[0] == number
            assert crc32c(seal + bytes([partition]) + header[:60]) == struct.unpack(">I", header[60:])[0]
    begun = [struct.unpack_from(">I", header, 8) + struct.unpack_from(">QQQQ", header, 24) for header in headers]
    stream = b"".join(log[at + 64:at + CHUNK] for at in range(0, len(log), CHUNK))
    found, filemarks, at, epoch = [], 0, 0, 0
    while at < end:
        header = stream[at:at + 64]
        assert header[:4] == b"TgIt" and crc32c(seal + bytes([partition]) + header[:60]) == struct.unpack(">I", header[60:])[0]
        kind, flags, metadata = header[4], header[5], struct.unpack_from(">H", header, 12)[0]
        here, number, before, length, stored, crc, stored_crc = struct.unpack_from(">QQQIIII", header, 16)
        assert (here, number, before) == (at, len(found), filemarks)
        # Epochs never fall, and a chunk that begins at or within an item was begun when the item was written.
        earlier, epoch = epoch, struct.unpack_from(">I", header, 8)[0]
        behind = -(-(at + 64 + stored) // 64) * 64
        assert epoch >= earlier
        for chunk in range(-(-at // BODY), -(-behind // BODY)):
            first = (behind, number + (kind != PADDING), before + (kind == FILEMARK)) if chunk * BODY > at else (at, number, before)
            assert begun[chunk][:4] == (epoch, *first) and begun[chunk][4] <= at
        data = stream[at + 64:at + 64 + stored]
        if kind == RECORD:
            assert crc32c(data) == stored_crc
            assert flags == 0 and len(data) - metadata == length and crc32c(data[metadata:]) == crc
            found.append(data[metadata:])
        elif kind == FILEMARK:
            found.append(b"")
            filemarks += 1
        else:
            assert kind == PADDING
        at = behind
    assert (at, len(found), filemarks) == (end, count, marks)
    return found


def image(found, form):
    """Returns a tape image of records and filemarks."""
    out = []
    for data in found:
        if form == "tpc":
            out.append(struct.pack("<H", len(data)) + data + b"\0" * (len(data) % 2))
        elif not data:
            out.append(bytes(4))
        else:
            length = struct.pack("<I", len(data))
            out.append(length + data + (b"\0" * (len(data) % 2) if form == "simh" else b"") + length)
    return b"".join(out)


def content(data):
    """Returns what a SIMH image holds."""
    found, at = [], 0
    while at < len(data):
        length = struct.unpack_from("<I", data, at)[0]
        at += 4
        if length == 0xFFFFFFFF:
            break
        found.append(data[at:at + length])
        if length:
            at += length + length % 2
            assert struct.unpack_from("<I", data, at)[0] == length
            at += 4
    return found
