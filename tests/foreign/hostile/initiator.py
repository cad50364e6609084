"""As much of an initiator as it takes to misbehave, and to see that others are not harmed: PDUs, login, commands."""

import hashlib
import socket
import struct

# Longest an answer may take before the session counts as harmed, seconds. Initiators in the field wait longer.
ANSWER_MAX_S = 10
# After so long without an answer a peer here gives up. How long answers take is judged by what measures them.
PATIENCE_S = 60
BHS_LEN = 48
NO_TAG = 0xFFFFFFFF
# RFC 7143 §11: opcodes.
NOP_OUT, COMMAND, TASK, LOGIN, TEXT, DATA_OUT, LOGOUT = 0, 1, 2, 3, 4, 5, 6
NOP_IN, RESPONSE, LOGIN_RESPONSE, DATA_IN, R2T, ASYNC, REJECT = 0x20, 0x21, 0x23, 0x25, 0x31, 0x32, 0x3F
IMMEDIATE = 0x40


class Dropped(Exception):
    """The target closed the connection."""


class Refused(Exception):
    """The target refused the login."""


def pdu(opcode, flags=0, itt=0, data=b"", lun=0, at20=0, at24=0, at28=0, at32=b"", claimed=None):
    """A PDU; `claimed` puts another data segment length into the header than the data have."""
    length = len(data) if claimed is None else claimed
    header = struct.pack(">BBHI", opcode, flags, 0, length) + struct.pack(">HHIIIII", lun, 0, 0, itt, at20, at24, at28)
    return header + at32.ljust(16, b"\0") + data + b"\0" * (-len(data) % 4)


def login_pdu(text, transit, csg, nsg, isid=1, tsih=0, itt=0, claimed=None):
    data = b"".join(key.encode() + b"\0" for key in text)
    flags = (0x80 if transit else 0) | csg << 2 | (nsg if transit else 0)
    length = len(data) if claimed is None else claimed
    header = struct.pack(">BBBBI", LOGIN | IMMEDIATE, flags, 0, 0, length)
    header += struct.pack(">BHBH", 0x80, 0, 0, isid) + struct.pack(">HIHHII", tsih, itt, 0, 0, 1, 0)
    return header.ljust(BHS_LEN, b"\0") + data + b"\0" * (-len(data) % 4)


def plain_login(iqn, name, isid=1, keys=()):
    """A login in one PDU, without authentication."""
    names = [f"InitiatorName={name}", f"TargetName={iqn}", "SessionType=Normal", "AuthMethod=None"]
    return login_pdu([*names, *keys], True, 1, 3, isid)


def connect(port, source="127.0.0.1"):
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S, (source, 0))


class Session:
    """A session over a socket of its own. Its commands are for one LUN."""

    lun = 0

    def __init__(self, port, iqn, name, isid=1, user=None, keys=(), source="127.0.0.1", over=None):
        self.socket = over or connect(port, source)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.bytes = b""
        self.cmd_sn, self.itt, self.exp_stat_sn = 1, 1, 0
        self.iqn, self.name, self.isid = iqn, name, isid
        self.agreed = {}
        try:
            if user:
                self.prove(user)
                self.login(["InitialR2T=No", *keys], True, 1, 3)
            else:
                names = [f"InitiatorName={name}", f"TargetName={iqn}", "SessionType=Normal"]
                self.login([*names, "InitialR2T=No", *keys], True, 1, 3)
        except BaseException:
            self.socket.close()
            raise

    def prove(self, user):
        """CHAP with MD5 (RFC 7143 §12.1.3)."""
        names = [f"InitiatorName={self.name}", f"TargetName={self.iqn}", "SessionType=Normal", "AuthMethod=CHAP"]
        self.login(names, False, 0, 0)
        challenge = self.login(["CHAP_A=5"], False, 0, 0)
        digits = challenge["CHAP_C"]
        secret = bytes([int(challenge["CHAP_I"])]) + user[1].encode() + bytes.fromhex(digits[2:])
        response = hashlib.md5(secret).hexdigest()
        self.login([f"CHAP_N={user[0]}", f"CHAP_R=0x{response}"], True, 0, 1)

    def login(self, keys, transit, csg, nsg):
        self.socket.sendall(login_pdu(keys, transit, csg, nsg, self.isid))
        header, data = self.receive()
        if header[0] != LOGIN_RESPONSE or header[36]:
            raise Refused(f"opcode {header[0]:#x}, status {header[36]:#04x}{header[37]:02x}")
        self.exp_stat_sn = number(header, 24) + 1
        answers = dict(pair.split("=", 1) for pair in data.decode().split("\0") if "=" in pair)
        self.agreed.update(answers)
        return answers

    def take(self, length):
        while len(self.bytes) < length:
            try:
                more = self.socket.recv(256 << 10)
            except ConnectionError as error:
                raise Dropped(error) from error
            if not more:
                raise Dropped("end of stream")
            self.bytes += more
        taken, self.bytes = self.bytes[:length], self.bytes[length:]
        return taken

    def receive(self):
        """The next PDU: header and data."""
        header = self.take(BHS_LEN)
        length = number(header, 4)
        data = self.take(header[4] * 4 + (length & 0xFFFFFF) + -length % 4)
        return header, data[header[4] * 4:][:length & 0xFFFFFF]

    def request(self, cdb, read=0, write=b"", expected=None):
        """The PDU of a command with all the immediate data it may have, and its tag."""
        first = min(len(write), int(self.agreed.get("FirstBurstLength", 65536)), 8192)
        flags = 0x80 | (0x40 if read else 0) | (0x20 if write or expected else 0) | 1
        length = expected if expected is not None else read or len(write)
        itt, self.itt = self.itt, self.itt + 1
        out = pdu(COMMAND, flags, itt, write[:first], self.lun, length, self.cmd_sn, self.exp_stat_sn, cdb)
        self.cmd_sn += 1
        return out, itt

    def command(self, cdb, read=0, write=b""):
        """Carries a command out; returns its status and its data."""
        out, itt = self.request(cdb, read, write)
        self.socket.sendall(out)
        got = bytearray()
        while True:
            header, data = self.receive()
            opcode = header[0] & 0x3F
            if opcode == DATA_IN:
                got += data
                if header[1] & 1:
                    self.exp_stat_sn = number(header, 24) + 1
                    return header[3], bytes(got)
            elif opcode == RESPONSE:
                if number(header, 16) != itt:
                    raise AssertionError("an answer to another command")
                self.exp_stat_sn = number(header, 24) + 1
                return header[3], bytes(got) or data
            elif opcode == R2T:
                self.give(header, write)
            elif opcode == NOP_IN:
                self.pong(header)
            else:
                raise AssertionError(f"opcode {opcode:#x} comes")

    def give(self, r2t, write):
        start, length = number(r2t, 40), number(r2t, 44)
        segments = range(start, start + length, 8192)
        for sn, at in enumerate(segments):
            piece = write[at:min(at + 8192, start + length)]
            flags = 0x80 if sn == len(segments) - 1 else 0
            tail = struct.pack(">IIII", 0, sn, at, 0)
            self.socket.sendall(pdu(DATA_OUT, flags, number(r2t, 16), piece, 0, number(r2t, 20), 0, self.exp_stat_sn, tail))

    def pong(self, ping):
        if number(ping, 20) != NO_TAG:
            self.socket.sendall(pdu(NOP_OUT | IMMEDIATE, 0x80, NO_TAG, b"", 0, number(ping, 20), self.cmd_sn,
                                    self.exp_stat_sn))

    def ready(self):
        """Clears the unit attentions that a new session finds."""
        for _ in range(8):
            if self.command(bytes(6))[0] == 0:
                return self
        raise AssertionError("the unit does not become ready")

    def close(self):
        self.socket.close()


def number(header, at):
    return int.from_bytes(header[at:at + 4], "big")


def read_10(block, count):
    return struct.pack(">BBIBHB", 0x28, 0, block, 0, count, 0)


def write_10(block, count):
    return struct.pack(">BBIBHB", 0x2A, 0, block, 0, count, 0)
