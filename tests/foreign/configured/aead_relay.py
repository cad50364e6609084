"""A relay that keeps what an iSCSI connection sends, and may change it: the attacker on the wire of docs/iscsi-aead.md §2."""

import socket
import threading

import relaying
from verdicts import eventually, expect

BHS_LEN, TAG_LEN = 48, 16
# The opcodes of Login Request, with its immediate bit, and of Login Response.
LOGIN = (0x43, 0x23)
OPCODES = {"command": 0x01, "data_out": 0x05, "data_in": 0x25}


class Pdu:
    """One PDU of a connection whose digests are AEADs: its header record and, if it has data, its data record."""

    def __init__(self, header, data):
        self.header, self.data = header, data
        self.opcode = header[0] & 0x3f
        self.is_login = header[0] in LOGIN

    @property
    def bytes(self):
        return self.header + self.data


class AttackedRelay(relaying.Relay):
    """Accepts connections on 127.0.0.1 and carries each to `upstream`, PDU by PDU. `change` gets each PDU and its number in its
    direction, and returns the bytes to send in its place."""

    def __init__(self, upstream, change=lambda pdu, _: pdu.bytes):
        self.upstream, self.change = upstream, change
        self.pdus, self.rests, self.lock = [], [], threading.Lock()
        self.directions = 0
        super().__init__()

    def serve(self, near):
        self.directions += 2
        relaying.carry_both_ways(near, socket.create_connection(self.upstream), self.carry)

    def carry(self, source, sink):
        """Carries one direction to its end. What is left then is no whole PDU."""
        stream, number = source.makefile("rb"), 0
        rest = b""
        try:
            while len(header := stream.read(BHS_LEN)) == BHS_LEN:
                tag = 0 if header[0] in LOGIN else TAG_LEN
                header += stream.read(4 * header[4] + tag)
                data_len = int.from_bytes(header[5:8], "big")
                data = stream.read(-(-data_len // 4) * 4 + tag) if data_len else b""
                pdu = Pdu(header, data)
                with self.lock:
                    self.pdus.append(pdu)
                sink.sendall(self.change(pdu, number))
                number += 1
            rest = header
        except OSError:
            pass
        with self.lock:
            self.rests.append(rest)
        relaying.close(source, sink)

    def judge_ends(self):
        """The lengths in the headers lead from PDU to PDU to the end of each direction, which comes here a little after that of the program."""
        eventually(lambda: 0 < self.directions == len(self.rests), "every connection ends")
        expect(not any(self.rests), f"a connection ends in a PDU: {self.rests}")

    def captured(self):
        """Everything after the logins, in the order of its arrival here."""
        with self.lock:
            return b"".join(pdu.bytes for pdu in self.pdus if not pdu.is_login)
