"""A host with LUNs open: raw PDUs, many commands under way, every block signed with the disk that it is meant for."""

import select
import struct
import zlib

from hostile import initiator
from hostile.initiator import (ASYNC, COMMAND, DATA_IN, DATA_OUT, LOGOUT, IMMEDIATE, NOP_IN, R2T, REJECT, RESPONSE, Dropped, Refused, Session,
                               number, pdu)

BLOCK = 512
# A place is so many blocks; two commands of a host are never at work in one place at the same time.
PLACE = 64
PLACES = 16
MAGIC = b"RELOADED"
HEADER = struct.Struct(">8sIIQQ")
GOOD, CHECK = 0, 2
NO_LUN = (5, 0x2500)
KINDS = ("read", "write")


def label(disk):
    """The first block of a disk says which one it is."""
    return f"this is disk {disk}".encode().ljust(BLOCK, b".")


def sign(disk, host, seq, lba):
    head = HEADER.pack(MAGIC, disk, host, seq, lba)
    head += struct.pack(">I", zlib.crc32(head))
    return head + head[:16] * ((BLOCK - len(head)) // 16) + bytes((BLOCK - len(head)) % 16)


def signature(block):
    """(disk, host, seq, lba) of a block; None of one that was never written. Raises where it is damaged."""
    if not any(block):
        return None
    magic, disk, host, seq, lba = HEADER.unpack_from(block)
    if magic != MAGIC or block != sign(disk, host, seq, lba):
        raise ValueError("a damaged block")
    return disk, host, seq, lba


class Command:
    def __init__(self, kind, lun, lba=0, blocks=0, seq=0, data=b"", disk=None):
        self.kind, self.lun, self.lba, self.blocks, self.seq, self.data, self.disk = kind, lun, lba, blocks, seq, data, disk
        self.got = bytearray()
        self.status, self.sense = None, (0, 0)
        # What is wrong with what a read brought, judged when it ends: later writes change what it may bring.
        self.faults = []

    def __str__(self):
        return f"{self.kind} of LUN {self.lun} at {self.lba}"


class Record:
    """The disks that an initiator port has opened, and through which portal groups it may still use them: `groups` are those without a logout
    of its own, `released` those with one. Where two records differ, `is_sealed` bars every LUN that is not in `luns`. `rejoined` are groups
    through which it has continued a session with a former record."""

    def __init__(self):
        self.luns, self.groups, self.released, self.rejoined, self.is_sealed = {}, set(), set(), set(), False

    def leads_to(self, lun, disk):
        return self.luns.get(lun, None if self.is_sealed else disk) == disk

    def unite(self, other):
        """Adds the LUNs of another record: one under which they differ leads nowhere, and neither does one that a sealed record lacks."""
        was_sealed = self.is_sealed
        if other.is_sealed:
            self.luns = {lun: disk for lun, disk in self.luns.items() if lun in other.luns}
        for lun, disk in other.luns.items():
            if lun not in self.luns:
                if not was_sealed:
                    self.luns[lun] = disk
            elif self.luns[lun] != disk:
                del self.luns[lun]
                self.is_sealed = True
        self.is_sealed |= other.is_sealed


class Host:
    """One initiator port. It remembers over all of its sessions which disk it opened under which LUN.

    `former` is what it may have open where it was logged in, but never logged out, before its last logout: the target must not lead it
    elsewhere through a portal group that it has not logged out of since.
    """

    def __init__(self, number, name, depth):
        self.number, self.name, self.depth = number, name, depth
        self.session = None
        self.present, self.former = Record(), None
        self.group = None
        self.under_way = {}
        self.ended = []
        self.seq = 0
        self.window = None
        self.max_cmd_sn = 0
        # By disk and block: what was acknowledged last, and what may stand there instead.
        self.acked, self.maybe = {}, {}

    def concerned(self):
        """The former record, if it holds for sessions through this portal group."""
        return self.former if self.former and self.group not in self.former.released else None

    @property
    def bound(self):
        """The disk that this host has open under each LUN."""
        former = self.concerned()
        return (former.luns if former else {}) | self.present.luns

    def open(self, lun, disk):
        """Records that this host uses a disk. A LUN of the former record belongs to that one alone."""
        if lun not in self.bound:
            self.present.luns[lun] = disk

    def may_reach(self, lun, disk):
        """Whether the target leads this host to a disk under a LUN."""
        former = self.concerned()
        return self.present.leads_to(lun, disk) and (former is None or former.leads_to(lun, disk))

    # Sessions

    def begin(self, group):
        """A session through a portal group, the only one that the target has. What it continues is not clear where the host was logged in
        through others, before and after its last logout, or where it has continued a session through another one with the former record."""
        self.group = group
        former = self.concerned()
        if former:
            is_unclear = group not in self.present.groups and self.present.groups
        else:
            is_unclear = self.former and self.former.rejoined - {group}
        if is_unclear:
            former = self.former
            former.unite(self.present)
            former.released = set()
        for record in filter(None, (self.present, former)):
            record.groups.add(group)
        if former:
            former.rejoined.add(group)
        self.present.released.discard(group)

    def finish(self):
        """The host's own logout."""
        group = self.group
        if former := self.concerned():
            former.groups.discard(group)
            former.released.add(group)
            former.rejoined = set()
            if not former.groups:
                self.former = None
        present, self.present = self.present, Record()
        present.groups.discard(group)
        present.released.add(group)
        if present.groups and present.luns:
            if self.former:
                present.unite(self.former)
                present.luns = {} if present.is_sealed else present.luns
                present.groups |= self.former.groups
                present.released &= self.former.released
                present.rejoined |= self.former.rejoined
            self.former = present

    def log_in(self, port, iqn, user, group=1):
        self.begin(group)
        keys = ["MaxBurstLength=16384", "FirstBurstLength=16384", "MaxRecvDataSegmentLength=65536"]
        self.session = Session(port, iqn, self.name, isid=7, user=user, keys=keys)
        self.session.socket.settimeout(120)
        self.max_cmd_sn = self.session.cmd_sn
        self.under_way = {}

    def log_out(self):
        self.end_session()
        self.finish()

    def obey(self):
        """Waits until the target requests a logout, and logs out. The host keeps its disks open, as open-iscsi does."""
        while True:
            header, _ = self.session.receive()
            if header[0] & 0x3F == ASYNC:
                self.session.exp_stat_sn = number(header, 24) + 1
                break
        self.end_session()

    def end_session(self):
        session = self.session
        session.socket.sendall(pdu(LOGOUT | IMMEDIATE, 0x80, session.itt, at24=session.cmd_sn, at28=session.exp_stat_sn))
        while True:
            header, _ = session.receive()
            if header[0] & 0x3F == 0x26:
                break
        self.forget_session()

    def forget_session(self):
        """The session is gone; what became of its writes is not known."""
        for command in self.under_way.values():
            self.doubt(command)
        self.under_way = {}
        if self.session:
            self.session.close()
            if not self.present.luns:
                self.present.groups.discard(self.group)
        self.session = None

    # Commands

    def start(self, command, cdb, read=0):
        session = self.session
        itt, session.itt = session.itt, session.itt + 1
        flags = 0x80 | (0x40 if read else 0) | (0x20 if command.data else 0) | 1
        immediate = command.data[:8192]
        length = read or len(command.data)
        out = pdu(COMMAND, flags, itt, immediate, command.lun, length, session.cmd_sn, session.exp_stat_sn, cdb)
        session.cmd_sn += 1
        self.under_way[itt] = command
        session.socket.sendall(out)
        return command

    def read_or_write(self, chance, lun):
        disk = self.bound[lun]
        busy = {(command.disk, command.lba // PLACE) for command in self.under_way.values()}
        place = 1 + self.number * PLACES + chance.randrange(PLACES)
        if (disk, place) in busy:
            return
        blocks = chance.choice((1, 8, PLACE))
        lba = place * PLACE
        if chance.random() < 0.5:
            command = Command("read", lun, lba, blocks, disk=disk)
            self.start(command, struct.pack(">BBIBHB", 0x28, 0, lba, 0, blocks, 0), blocks * BLOCK)
            return
        self.seq += 1
        data = b"".join(sign(disk, self.number, self.seq, at) for at in range(lba, lba + blocks))
        self.start(Command("write", lun, lba, blocks, self.seq, data, disk), struct.pack(">BBIBHB", 0x2A, 0, lba, 0, blocks, 0))

    def has_room(self):
        ahead = (self.max_cmd_sn - self.session.cmd_sn) & 0xFFFFFFFF
        return len(self.under_way) < self.depth and ahead < 1 << 31

    def doubt(self, command):
        if command.kind == "write":
            for lba in range(command.lba, command.lba + command.blocks):
                self.maybe.setdefault((command.disk, lba), set()).add(command.seq)

    # What comes

    def pump(self, timeout):
        """Takes what has come."""
        session = self.session
        if session.bytes or select.select([session.socket], [], [], timeout)[0]:
            self.take_one()
            while len(session.bytes) >= initiator.BHS_LEN or select.select([session.socket], [], [], 0)[0]:
                self.take_one()

    def take_one(self):
        session = self.session
        header, data = session.receive()
        opcode = header[0] & 0x3F
        if opcode in (DATA_IN, RESPONSE, NOP_IN, R2T):
            self.max_cmd_sn = number(header, 32)
        if opcode == NOP_IN:
            session.pong(header)
        elif opcode == R2T:
            self.give(header)
        elif opcode == DATA_IN:
            command = self.under_way[number(header, 16)]
            if len(command.got) != number(header, 40):
                raise AssertionError(f"{command}: data out of order")
            command.got += data
            if header[1] & 1:
                session.exp_stat_sn = number(header, 24) + 1
                self.end(number(header, 16), header[3], b"")
        elif opcode == RESPONSE:
            session.exp_stat_sn = number(header, 24) + 1
            self.end(number(header, 16), header[3], data)
        elif opcode == ASYNC:
            session.exp_stat_sn = number(header, 24) + 1
        elif opcode == REJECT:
            raise AssertionError(f"a Reject, reason {header[2]:#x}")
        else:
            raise AssertionError(f"opcode {opcode:#x} comes")

    def give(self, r2t):
        """Sends what an R2T asks for, whatever has become of the command meanwhile."""
        session, itt = self.session, number(r2t, 16)
        command = self.under_way[itt]
        at, length = number(r2t, 40), number(r2t, 44)
        tail = struct.pack(">IIII", 0, 0, at, 0)
        session.socket.sendall(pdu(DATA_OUT, 0x80, itt, command.data[at:at + length], command.lun, number(r2t, 20), 0,
                                   session.exp_stat_sn, tail))

    def end(self, itt, status, data):
        if itt not in self.under_way:
            raise AssertionError("an answer to a command that is not under way")
        command = self.under_way.pop(itt)
        command.status = status
        sense = data[2:]
        if len(sense) >= 14:
            command.sense = (sense[2] & 0xF, int.from_bytes(sense[12:14], "big"))
        if command.kind in KINDS:
            self.ended.append(command)
        if command.kind == "read" and status == GOOD:
            self.judge_read(command)
        if command.kind == "write":
            if status == GOOD:
                for lba in range(command.lba, command.lba + command.blocks):
                    self.acked[command.disk, lba] = command.seq
                    self.maybe.pop((command.disk, lba), None)
            else:
                self.doubt(command)

    def judge_read(self, command):
        got = bytes(command.got)
        if len(got) != command.blocks * BLOCK:
            command.faults.append(f"{command} brings {len(got)} bytes")
        found = (self.faults_of(command.disk, command.lba + at // BLOCK, got[at:at + BLOCK]) for at in range(0, len(got), BLOCK))
        command.faults += [fault for fault in found if fault]

    def faults_of(self, disk, lba, block):
        """What is wrong with a block that this host finds where only it writes."""
        try:
            found = signature(block)
        except ValueError as damage:
            return f"disk {disk} block {lba}: {damage}"
        acked = self.acked.get((disk, lba))
        if found is None:
            return f"disk {disk} block {lba}: an acknowledged write is lost" if acked else None
        of, host, seq, at = found
        if of != disk:
            return f"disk {disk} block {lba} holds a block meant for disk {of}"
        if (host, at) != (self.number, lba):
            return f"disk {disk} block {lba} holds a block of host {host} meant for {at}"
        if seq != acked and seq not in self.maybe.get((disk, lba), ()):
            return f"disk {disk} block {lba} holds write {seq}; {acked} was acknowledged"
        return None

    # One command at a time, while nothing else is under way

    def ask(self, lun, cdb, read=0):
        command = self.start(Command("ask", lun), cdb, read)
        while self.under_way:
            self.take_one()
        return command

    def settle(self, lun):
        """TEST UNIT READY until no unit attention is left. Returns the last answer and the attentions."""
        attentions = []
        for _ in range(12):
            command = self.ask(lun, bytes(6))
            if command.sense[0] != 6:
                return command, attentions
            attentions.append(command.sense[1])
        raise AssertionError(f"LUN {lun} has no end of unit attentions")

    def read_label(self, lun):
        return bytes(self.ask(lun, struct.pack(">BBIBHB", 0x28, 0, 0, 0, 1, 0), BLOCK).got)

    def report_luns(self):
        got = bytes(self.ask(0, struct.pack(">BBBBBBIBB", 0xA0, 0, 0, 0, 0, 0, 512, 0, 0), 512).got)
        return [got[at + 1] for at in range(8, 8 + int.from_bytes(got[:4], "big"), 8)]

    def open_window(self):
        """How many commands the target would take now, when none is under way."""
        return (self.max_cmd_sn - self.session.cmd_sn + 1) & 0xFFFFFFFF


__all__ = ["BLOCK", "CHECK", "GOOD", "NO_LUN", "Dropped", "Host", "Refused", "label", "signature"]
