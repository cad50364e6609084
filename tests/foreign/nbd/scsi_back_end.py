"""A back end of vhost-user-scsi: a disk of a file, with an in-flight region as the standard of vhost-user describes it.

Run as a program: scsi_back_end.py SOCKET FILE [WHAT]. While there is a file FILE.hold, commands are taken and not executed. WHAT is
"forgetful" for a process without a region, "plain" for one without a configuration that counts no bytes and writes no sense data if there are
none, or names a way to break the protocol.
"""

import mmap
import os
import select
import socket
import struct
import sys

from back_end import (CONFIG, GET_CONFIG, GET_FEATURES, GET_PROTOCOL_FEATURES, NEED_REPLY, PROTOCOL_FEATURES, REPLY, REPLY_ACK, SET_MEM_TABLE,
                      SET_VRING_ADDR, SET_VRING_CALL, SET_VRING_KICK, VERSION, VERSION_1, Queue, receive)

SET_VRING_BASE, SET_VRING_ENABLE, GET_INFLIGHT_FD, SET_INFLIGHT_FD = 10, 18, 31, 32
INFLIGHT, QUEUES, SIZE, BLOCK = 1 << 12, 3, 128, 512
RESPONSE_OF_SENSE = {"illegal": (5, 0x20), "range": (5, 0x21)}


class Region:
    """The in-flight region of the command queue: whether each chain is under way, and in which order it came."""

    def __init__(self, descriptor):
        self.memory = mmap.mmap(descriptor, 64 + 16 * SIZE)

    def taken(self, head, counter):
        struct.pack_into("<Q", self.memory, 64 + 16 * head + 8, counter)
        self.memory[64 + 16 * head] = 1

    def begin_end(self, head):
        struct.pack_into("<H", self.memory, 4, head)

    def ended(self, head, used):
        self.memory[64 + 16 * head] = 0
        struct.pack_into("<H", self.memory, 6, used)

    def recover(self, used):
        """The chains that are under way, in their order. The last one may have ended without that being noted."""
        last, known = struct.unpack_from("<HH", self.memory, 4)
        if known != used:
            self.ended(last, used)
        heads = [head for head in range(SIZE) if self.memory[64 + 16 * head]]
        return sorted(heads, key=lambda head: struct.unpack_from("<Q", self.memory, 64 + 16 * head + 8))


class Disk:
    def __init__(self, path):
        self.path, self.file = path, os.open(path, os.O_RDWR)
        self.blocks = os.stat(path).st_size // BLOCK

    def execute(self, command, data):
        """Returns the data to send, or the name of an error."""
        code = command[0]
        if code in (0x00, 0x1b, 0x1e, 0x35, 0x91, 0x2f, 0x8f):
            if code in (0x35, 0x91):
                os.fsync(self.file)
            return b""
        if code == 0x12:
            return self.inquiry(command)
        if code == 0x25:
            return struct.pack(">II", self.blocks - 1, BLOCK)
        if code == 0x9e and command[1] & 0x1f == 0x10:
            return struct.pack(">QI", self.blocks - 1, BLOCK) + bytes(20)
        if code in (0x1a, 0x5a):
            return b"\x03\x00\x00\x00" if code == 0x1a else b"\x00\x06" + bytes(6)
        if code in (0x28, 0x2a, 0x88, 0x8a):
            at, count = struct.unpack(">I", command[2:6])[0], struct.unpack(">H", command[7:9])[0]
            if code >= 0x88:
                at, count = struct.unpack(">QI", command[2:14])
            if at + count > self.blocks:
                return "range"
            if code in (0x28, 0x88):
                return os.pread(self.file, count * BLOCK, at * BLOCK)
            os.pwrite(self.file, data, at * BLOCK)
            with open(self.path + ".writes", "a") as log:
                log.write(f"{at}\n")
            return b""
        return "illegal"

    def inquiry(self, command):
        if command[1] & 1:
            identity = b"\x02\x01\x00\x10TARGE   " + b"back end"
            pages = {0x00: b"\x00\x80\x83", 0x80: b"1", 0x83: identity}
            if command[2] not in pages:
                return "illegal"
            page = pages[command[2]]
            return bytes([0, command[2]]) + struct.pack(">H", len(page)) + page
        return bytes([0, 0, 6, 2, 31, 0, 0, 2]) + b"RIG     Back end        1   "


class BackEnd:
    def __init__(self, disk, what):
        self.disk, self.what, self.counter = disk, what, 0
        self.memory, self.base, self.region = None, 0, None
        self.queues, self.kicks, self.calls, self.held = {}, {}, {}, []

    def handle(self, client):
        descriptors = []
        request, flags, length = struct.unpack("<III", receive(client, 12, descriptors))
        body = receive(client, length, descriptors)

        def reply(content, aside=()):
            data = struct.pack("<III", request, VERSION | REPLY, len(content)) + content
            socket.send_fds(client, [data], list(aside))

        if request == GET_FEATURES:
            return reply(struct.pack("<Q", PROTOCOL_FEATURES | VERSION_1))
        if request == GET_PROTOCOL_FEATURES:
            missing = {"forgetful": INFLIGHT, "plain": CONFIG}.get(self.what, 0)
            return reply(struct.pack("<Q", (REPLY_ACK | CONFIG | INFLIGHT) & ~missing))
        if request == GET_CONFIG:
            offset, size, form = struct.unpack_from("<III", body)
            content = struct.pack("<IIIIIIIHHI", 1, 126, 512, 128, 16, 96, 32, 0, 0, 16383)
            return reply(struct.pack("<III", offset, size, form) + content[:size])
        if request == GET_INFLIGHT_FD:
            descriptor = os.memfd_create("inflight")
            os.ftruncate(descriptor, 64 + 16 * SIZE)
            return reply(struct.pack("<QQHHI", 64 + 16 * SIZE, 0, QUEUES, SIZE, 0), [descriptor])
        number = struct.unpack_from("<I", body)[0] & 0xff if len(body) >= 4 else 0
        if request == SET_MEM_TABLE:
            _, _, _, size, self.base, _ = struct.unpack_from("<IIQQQQ", body)
            self.memory = mmap.mmap(descriptors[0], size)
        elif request == SET_INFLIGHT_FD:
            self.region = Region(descriptors[0])
        elif request == SET_VRING_ADDR:
            _, _, names, used, available = struct.unpack_from("<IIQQQ", body)
            self.queues[number] = Queue(self.memory, self.base, names, used, available)
        elif request == SET_VRING_BASE:
            queue = self.queues[number]
            queue.taken = queue.given = struct.unpack_from("<II", body)[1]
        elif request == SET_VRING_KICK:
            self.kicks[number] = descriptors[0]
        elif request == SET_VRING_CALL:
            self.calls[number] = descriptors[0]
        if flags & NEED_REPLY:
            reply(struct.pack("<Q", 0))
        if request == SET_VRING_ENABLE and number == QUEUES - 1:
            self.start(client)
        return None

    def start(self, client):
        queue = self.queues[QUEUES - 1]
        if self.region:
            resumed = self.region.recover(queue.given & 0xffff)
            queue.taken += len(resumed)
            self.counter = len(resumed)
            if resumed:
                print(f"goes on with {len(resumed)} commands", flush=True)
            self.held = [(head, queue.chain(head)) for head in resumed]
        kick = self.kicks[QUEUES - 1]
        while True:
            readable, _, _ = select.select([client, kick], [], [], 0.05 if self.held else None)
            if client in readable and not client.recv(4096):
                raise EOFError
            if kick in readable:
                os.read(kick, 8)
            for head, parts in queue.chains():
                self.counter += 1
                if self.region:
                    self.region.taken(head, self.counter)
                self.held.append((head, parts))
            if os.path.exists(self.disk.path + ".hold"):
                print(f"holds {len(self.held)} commands", flush=True)
            else:
                held, self.held = self.held, []
                for head, parts in held:
                    self.end(queue, head, parts)
                os.write(self.calls[QUEUES - 1], struct.pack("<Q", 1))

    def end(self, queue, head, parts):
        memory, (at, length, _) = self.memory, parts[0]
        command = bytes(memory[at + 19:at + length])
        lun, outs = bytes(memory[at:at + 8]), [part for part in parts[1:] if not part[2]]
        (place, _, _), ins = [part for part in parts[1:] if part[2]][0], [part for part in parts[1:] if part[2]][1:]
        result = self.disk.execute(command, b"".join(bytes(memory[at:at + size]) for at, size, _ in outs))
        sense, status, response = b"", 0, 0 if lun == b"\x01\x00\x40\x00\x00\x00\x00\x00" else 3
        size = sum(part[1] for part in parts[1:]) - 108
        if isinstance(result, str):
            key, code = RESPONSE_OF_SENSE[result]
            sense, status, result = bytes([0x70, 0, key, 0, 0, 0, 0, 10, 0, 0, 0, 0, code, 0, 0, 0, 0, 0]), 2, b""
        sent = result[:ins[0][1]] if ins else b""
        if sent:
            memory[ins[0][0]:ins[0][0] + len(sent)] = sent
        residual = size - len(sent) if ins else 0
        if self.what == "residual":
            residual = 0x7fffffff
        content = struct.pack("<IIHBB", len(sense), residual, 0, status, response) + sense
        if self.what == "plain" and not sense:
            memory[place + 4:place + 12] = content[4:12]
        else:
            memory[place:place + 108] = content.ljust(108, b"\0")
        if self.region:
            self.region.begin_end(head)
        queue.give(9999 if self.what == "number" else head, 0 if self.what == "plain" else 108 + len(sent))
        if self.region:
            self.region.ended(head, queue.given & 0xffff)


def main():
    path, file = sys.argv[1:3]
    what = (sys.argv[3:] or [""])[0]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    disk = Disk(file)
    while True:
        client, _ = listener.accept()
        print("is connected to", flush=True)
        back_end = BackEnd(disk, what)
        try:
            while True:
                back_end.handle(client)
        except (EOFError, ConnectionError):
            client.close()


if __name__ == "__main__":
    main()
