"""A back end of vhost-user that says and writes what it is told to: a block device, or something that only begins like one.

Run as a program: back_end.py SOCKET WHAT.
"""

import array
import mmap
import os
import socket
import struct
import sys

GET_FEATURES, SET_FEATURES, SET_MEM_TABLE, SET_VRING_ADDR, GET_PROTOCOL_FEATURES, GET_CONFIG = 1, 2, 5, 9, 15, 24
SET_VRING_KICK, SET_VRING_CALL = 12, 13
VERSION, REPLY, NEED_REPLY = 1, 4, 8
PROTOCOL_FEATURES, VERSION_1, FLUSH = 1 << 30, 1 << 32, 1 << 9
CONFIG, REPLY_ACK = 1 << 9, 1 << 3
SECTORS = 16384
WRITE_REQUEST, FLUSH_REQUEST = 1, 4


class Queue:
    """The device's half of the queue, in the memory of the front end."""

    def __init__(self, memory, base, descriptors, used, available):
        self.memory, self.base = memory, base
        self.descriptors, self.used, self.available = (address - base for address in (descriptors, used, available))
        self.taken = self.given = 0
        self.is_written = False

    def get(self, form, at):
        return struct.unpack_from("<" + form, self.memory, at)

    def put(self, form, at, *values):
        struct.pack_into("<" + form, self.memory, at, *values)

    # The other side reads and writes an index at any time, and `struct` would access its bytes one by one.
    def index(self, ring):
        return int.from_bytes(self.memory[ring + 2:ring + 4], "little")

    def set_index(self, ring, value):
        self.memory[ring + 2:ring + 4] = (value & 0xffff).to_bytes(2, "little")

    def chain(self, number):
        """The parts of a chain: the offset and the length of each, and whether it is to be written."""
        parts = []
        while True:
            address, length, flags, following = self.get("QIHH", self.descriptors + 16 * number)
            parts.append((address - self.base, length, bool(flags & 2)))
            if not flags & 1:
                return parts
            number = following

    def chains(self):
        """The requests that are available: the head, and the parts."""
        while self.index(self.available) != self.taken & 0xffff:
            head, = self.get("H", self.available + 4 + 2 * (self.taken % 128))
            self.taken += 1
            yield head, self.chain(head)

    def give(self, head, length):
        self.put("II", self.used + 4 + 8 * (self.given % 128), head, length)
        self.given += 1
        self.set_index(self.used, self.given)

    def serve(self, what):
        """Ends the requests that are available: as a disk of zeros does, or in the way that `what` names."""
        for head, parts in self.chains():
            kind, = self.get("I", parts[0][0])
            length = 1
            if kind == 0:
                at, size, _ = parts[1]
                self.memory[at:at + size] = bytes(size)
                length += size
            self.is_written |= kind == WRITE_REQUEST
            # What nobody has written needs no flush: targe flushes the device when it begins to serve it.
            is_flush_failed = what == "unflushable" and kind == FLUSH_REQUEST and self.is_written
            status = 77 if what == "status" else int(is_flush_failed)
            self.put("B", parts[-1][0], status)
            if what == "index":
                self.set_index(self.used, self.given + 9999)
            elif what == "number":
                self.give(0xfffffff0, length)
            elif what == "stranger":
                self.give(3 * 41, length)
            elif what == "long":
                self.give(head, 0xffffffff)
            elif what == "short" and kind == 0:
                self.give(head, 1)
            else:
                self.give(head, length)


def config():
    return struct.pack("<QIIHBBI", SECTORS, 0, 0, 0, 0, 0, 512) + bytes(36)


def receive(client, length, descriptors):
    data = b""
    while len(data) < length:
        part, aside, _, _ = client.recvmsg(length - len(data), socket.CMSG_SPACE(8 * 4))
        for _, kind, content in aside:
            if kind == socket.SCM_RIGHTS:
                descriptors.extend(array.array("i", content[:len(content) // 4 * 4]))
        if not part:
            raise EOFError
        data += part
    return data


def serve(client, what):
    memory, base, queue, kick, call = None, 0, None, None, None
    while True:
        descriptors = []
        request, flags, length = struct.unpack("<III", receive(client, 12, descriptors))
        body = receive(client, length, descriptors)

        def reply(content, number=request):
            client.sendall(struct.pack("<III", number, VERSION | REPLY, len(content)) + content)

        if what == "nonsense":
            client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            continue
        if what == "death" and request == SET_MEM_TABLE:
            os._exit(1)
        if request == GET_FEATURES:
            reply(struct.pack("<Q", PROTOCOL_FEATURES | FLUSH | (0 if what == "old" else VERSION_1)))
        elif request == GET_PROTOCOL_FEATURES:
            reply(struct.pack("<Q", REPLY_ACK | (0 if what == "unconfigured" else CONFIG)))
        elif request == GET_CONFIG:
            offset, size, form = struct.unpack_from("<III", body)
            content = {"huge": b"\xff" * size}.get(what, config()[:size])
            reply(struct.pack("<III", offset, size, form) + content)
        else:
            if request == SET_MEM_TABLE:
                _, _, _, size, base, _ = struct.unpack_from("<IIQQQQ", body)
                memory = mmap.mmap(descriptors[0], size)
                if what == "cut":
                    try:
                        os.ftruncate(descriptors[0], 0)
                    except OSError:
                        print("the memory cannot be cut", flush=True)
            elif request == SET_VRING_ADDR:
                _, _, names, used, available = struct.unpack_from("<IIQQQ", body)
                queue = Queue(memory, base, names, used, available)
            elif request == SET_VRING_KICK:
                kick = descriptors[0]
            elif request == SET_VRING_CALL:
                call = descriptors[0]
            if flags & NEED_REPLY:
                reply(struct.pack("<Q", 0))
        if request == 18:  # VHOST_USER_SET_VRING_ENABLE, the last one
            run(client, queue, kick, call, what)


def run(client, queue, kick, call, what):
    import select
    if what == "message":
        client.sendall(b"hello")
    while True:
        readable, _, _ = select.select([client, kick], [], [])
        if client in readable and not client.recv(4096):
            raise EOFError
        if kick in readable:
            os.read(kick, 8)
            queue.serve(what)
            os.write(call, struct.pack("<Q", 1))


def main():
    path, what = sys.argv[1:]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    while True:
        client, _ = listener.accept()
        try:
            serve(client, what)
        except (EOFError, ConnectionError):
            client.close()


if __name__ == "__main__":
    main()
