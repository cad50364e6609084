"""Between an initiator and its target: hands every byte on and counts the commands that it sees, by eyes of its own. It reads
sessions without digests only."""

import collections
import socket
import threading

import relaying

HEADER = 48
COMMAND = 0x01
SYNCHRONIZE_CACHE, WRITE, WRITE_SAME, UNMAP = (0x35, 0x91), (0x2A, 0x8A), (0x41, 0x93), (0x42,)
NAMES = {opcode: name for opcodes, name in ((SYNCHRONIZE_CACHE, "flush"), (WRITE, "write"), (WRITE_SAME, "write same"),
                                            (UNMAP, "unmap")) for opcode in opcodes}
FUA = 0x08


class Relay(relaying.Relay):
    def __init__(self, port):
        self.target = ("127.0.0.1", port)
        self.seen = collections.Counter()
        super().__init__()

    def serve(self, near):
        target = socket.create_connection(self.target)
        reader = self.read()
        next(reader)
        threading.Thread(target=self.hand_on, args=(near, target, reader), daemon=True).start()
        self.hand_on(target, near)

    @staticmethod
    def hand_on(source, sink, reader=None):
        try:
            while data := source.recv(1 << 16):
                # Seen before it is there: who was told that it is done finds it counted.
                if reader:
                    reader.send(data)
                sink.sendall(data)
        except OSError:
            pass
        relaying.close(source, sink)

    def read(self):
        """Takes what the initiator sends, piece by piece, and counts its commands."""
        kept = b""
        while True:
            while len(kept) < HEADER:
                kept += yield
            header = kept[:HEADER]
            data = int.from_bytes(header[5:8], "big")
            whole = HEADER + 4 * header[4] + (data + 3) // 4 * 4
            while len(kept) < whole:
                kept += yield
            kept = kept[whole:]
            if header[0] & 0x3F == COMMAND:
                self.count(header[32:48])

    def count(self, cdb):
        name = NAMES.get(cdb[0])
        if name == "write" and cdb[1] & FUA:
            name = "durable write"
        if name:
            self.seen[name] += 1
