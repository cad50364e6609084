"""A relay between an initiator and its target that damages one PDU after TCP has checked it, as faulty memory or a faulty adapter does.

It knows the digests that each connection negotiated, and computes none anew after the damage.
"""

import collections
import socket
import threading
from dataclasses import dataclass

import relaying

HEADER, DIGEST = 48, 4
COMMAND, DATA_OUT, LOGIN_RESPONSE, RESPONSE, DATA_IN, REJECT = 0x01, 0x05, 0x23, 0x21, 0x25, 0x3F
FULL_FEATURE_PHASE = 3
# The operation codes of READ and WRITE, with the bytes of the CDB that hold the logical block address and the number of blocks.
READS = {0x28: ((2, 6), (7, 9)), 0x88: ((2, 10), (10, 14))}
WRITES = {0x2A: ((2, 6), (7, 9)), 0x8A: ((2, 10), (10, 14))}
CDB, BUFFER_OFFSET, STATUS_CLASS = 32, slice(40, 44), 36
BLOCK = 512
# The bit of the logical block address that the faults "... LBA" flip.
LBA_BIT = 0x800


def crc32c(data):
    """The digest of these bytes, as it is sent."""
    register = 0xFFFFFFFF
    for byte in data:
        register = CRC_TABLE[(register ^ byte) & 0xFF] ^ register >> 8
    return (register ^ 0xFFFFFFFF).to_bytes(DIGEST, "little")


def crc_entry(register):
    for _ in range(8):
        register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register


CRC_TABLE = [crc_entry(byte) for byte in range(256)]


@dataclass(frozen=True)
class Fault:
    """One bit flips: in the first PDU with the operation code `of` that belongs to a READ, or to a WRITE. In a command it is a bit of
    the logical block address, in others one in the middle of the data."""
    of: int
    commands: dict


FAULTS = {
    "read data": Fault(DATA_IN, READS),
    "write data": Fault(DATA_OUT, WRITES),
    "read LBA": Fault(COMMAND, READS),
    "write LBA": Fault(COMMAND, WRITES),
}


@dataclass(frozen=True)
class Command:
    """A READ or WRITE as the initiator sent it."""
    tag: bytes
    first: int
    count: int


@dataclass(frozen=True)
class Damage:
    """What was damaged. `block` is that of the wrong bit, if it is one of the data. `before` and `after` name the digests of the PDU
    that did not match then."""
    command: Command
    block: int
    before: list
    after: list


class Pdu:
    def __init__(self, header, header_digest, data, data_digest):
        self.header, self.header_digest, self.data, self.data_digest = bytearray(header), header_digest, bytearray(data), data_digest
        self.opcode = header[0] & 0x3F
        self.data_len = int.from_bytes(header[5:8], "big")

    @property
    def bytes(self):
        return bytes(self.header) + self.header_digest + bytes(self.data) + self.data_digest

    @property
    def tag(self):
        return bytes(self.header[16:20])

    def mismatches(self):
        parts = (("header", self.header, self.header_digest), ("data", self.data, self.data_digest))
        return [name for name, part, digest in parts if digest and crc32c(part) != digest]


class Connection:
    """One connection through the relay: the lengths of its digests, and the command whose data is to be damaged."""

    def __init__(self):
        self.keys = {}
        self.header_digest = self.data_digest = 0
        self.awaited = None

    def read(self, stream):
        """The next PDU of one direction, or None at its end."""
        if len(header := stream.read(HEADER)) < HEADER:
            return None
        header += stream.read(4 * header[4])
        header_digest = stream.read(self.header_digest)
        length = int.from_bytes(header[5:8], "big")
        data = stream.read((length + 3) // 4 * 4)
        return Pdu(header, header_digest, data, stream.read(self.data_digest if length else 0))

    def see_login(self, pdu):
        """Learns from Login Responses what was negotiated. The next PDU of either direction is the first with digests."""
        text = bytes(pdu.data[:pdu.data_len]).decode(errors="replace")
        self.keys.update(item.split("=", 1) for item in text.split("\0") if "=" in item)
        flags = pdu.header[1]
        if pdu.header[STATUS_CLASS] == 0 and flags & 0x80 and flags & 0x03 == FULL_FEATURE_PHASE:
            self.header_digest, self.data_digest = (DIGEST * (self.keys.get(name) == "CRC32C") for name in ("HeaderDigest", "DataDigest"))


class DamagingRelay(relaying.Relay):
    """Accepts connections on 127.0.0.1 and carries each to `port`, PDU by PDU. `connections` counts them; `reported` counts what the
    target reports: Reject PDUs, and SCSI responses with a status other than GOOD."""

    def __init__(self, port):
        self.target = ("127.0.0.1", port)
        self.lock = threading.Lock()
        self.connections, self.reported = 0, collections.Counter()
        self.fault = self.blocks = self.damage = None
        super().__init__()

    def arm(self, fault, blocks):
        """Damages one PDU of the first command that `fault` concerns and that begins in these blocks."""
        with self.lock:
            self.fault, self.blocks, self.damage = FAULTS[fault], blocks, None

    def disarm(self):
        """What was damaged since `arm`, or None."""
        with self.lock:
            self.fault = None
            return self.damage

    def serve(self, near):
        far = socket.create_connection(self.target)
        with self.lock:
            self.connections += 1
        relaying.carry_both_ways(near, far, self.carry, Connection())

    def carry(self, source, sink, connection):
        """Carries one direction to its end, then closes both."""
        stream = source.makefile("rb")
        try:
            while pdu := connection.read(stream):
                with self.lock:
                    self.see(pdu, connection)
                sink.sendall(pdu.bytes)
        except OSError:
            pass
        relaying.close(source, sink)

    def see(self, pdu, connection):
        if pdu.opcode == LOGIN_RESPONSE:
            connection.see_login(pdu)
        elif pdu.opcode == REJECT:
            self.reported["Reject"] += 1
        elif pdu.opcode == RESPONSE and pdu.header[3]:
            self.reported[f"status {pdu.header[3]:02x}h"] += 1
        if not self.fault or self.damage:
            return
        if pdu.opcode == COMMAND and connection.awaited is None:
            command = self.concerned(pdu)
            if command and self.fault.of == COMMAND:
                self.flip_address(pdu, command)
            else:
                connection.awaited = command
        elif pdu.opcode == self.fault.of and pdu.data_len and connection.awaited and pdu.tag == connection.awaited.tag:
            self.flip_data(pdu, connection.awaited)

    def concerned(self, pdu):
        """The command, if the fault concerns it."""
        cdb = pdu.header[CDB:HEADER]
        if cdb[0] not in self.fault.commands:
            return None
        first, count = (int.from_bytes(cdb[start:end], "big") for start, end in self.fault.commands[cdb[0]])
        return Command(pdu.tag, first, count) if first in self.blocks else None

    def flip_address(self, pdu, command):
        before = pdu.mismatches()
        (start, end), _ = self.fault.commands[pdu.header[CDB]]
        pdu.header[CDB + start:CDB + end] = (command.first ^ LBA_BIT).to_bytes(end - start, "big")
        self.damage = Damage(command, None, before, pdu.mismatches())

    def flip_data(self, pdu, command):
        before = pdu.mismatches()
        at = pdu.data_len // 2
        pdu.data[at] ^= 0x10
        offset = int.from_bytes(pdu.header[BUFFER_OFFSET], "big") + at
        self.damage = Damage(command, command.first + offset // BLOCK, before, pdu.mismatches())
