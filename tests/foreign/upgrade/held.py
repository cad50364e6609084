"""Initiators of raw PDUs that stay logged in during upgrades, and answer what asks them for an answer."""

import select
import threading

from hostile.initiator import ASYNC, NOP_IN, Session, number
from verdicts import expect

GOOD, CHECK, CONFLICT = 0x00, 0x02, 0x18
# After so long without a command window, an initiator has been forgotten, seconds.
WINDOW_MAX_S = 60
PR_IN, PR_OUT = 0x5E, 0x5F
READ_KEYS, READ_RESERVATION = 0, 1
REGISTER, RESERVE, PREEMPT = 0, 1, 4
WRITE_EXCLUSIVE = 1


class Held(Session):
    """A session that never logs in again, and sends only what the command window admits."""

    def __init__(self, port, iqn, name, over=None):
        self.max_cmd_sn = 0
        super().__init__(port, iqn, name, over=over)

    def receive(self):
        header, data = super().receive()
        self.max_cmd_sn = number(header, 32)
        expect(header[0] & 0x3F != ASYNC, f"{self.name} receives an asynchronous message")
        return header, data

    def command(self, cdb, read=0, write=b""):
        while (self.max_cmd_sn - self.cmd_sn) & 0xFFFFFFFF >= 1 << 31:
            expect(self.answer(WINDOW_MAX_S), f"{self.name} has no command window any more")
        return super().command(cdb, read, write)

    def answer(self, timeout_s):
        """Receives one PDU that answers no command, if one comes within this time."""
        if not self.bytes and not select.select([self.socket], [], [], timeout_s)[0]:
            return False
        header, _ = self.receive()
        expect(header[0] & 0x3F == NOP_IN, f"{self.name} receives {header.hex()}")
        self.pong(header)
        return True

    def sense(self):
        """The sense key and the additional sense code that TEST UNIT READY returns; `None` when it is ready."""
        status, data = self.command(bytes(6))
        if status == GOOD:
            return None
        expect(status == CHECK, f"{self.name}: status {status:#x}")
        sense = data[2:]
        return sense[2] & 0x0F, sense[12] << 8 | sense[13]

    def reserve(self, action, kind=0, key=0, new_key=0):
        cdb = bytes([PR_OUT, action, kind, 0, 0, 0, 0, 0, 24, 0])
        status, _ = self.command(cdb, write=key.to_bytes(8, "big") + new_key.to_bytes(8, "big") + bytes(8))
        expect(status == GOOD, f"{self.name}: PERSISTENT RESERVE OUT {action}: status {status:#x}")

    def reservations(self):
        """The generation with the registered keys, and the reservation."""
        answers = [self.command(bytes([PR_IN, what, 0, 0, 0, 0, 0, 1, 0, 0]), read=256) for what in (READ_KEYS, READ_RESERVATION)]
        expect(all(status == GOOD for status, _ in answers), f"{self.name}: {answers}")
        return [data for _, data in answers]


class Answering(threading.Thread):
    """Lets idle initiators answer, as long as it runs."""

    def __init__(self, initiators):
        super().__init__(daemon=True)
        self.initiators, self.ends, self.failed = initiators, threading.Event(), None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.join()
        expect(self.failed is None, f"{self.failed}")

    def run(self):
        try:
            while not self.ends.is_set():
                for initiator in self.initiators:
                    initiator.answer(0.002)
        except Exception as error:
            self.failed = f"{initiator.name}: {error!r}"
