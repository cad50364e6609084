"""A file system whose server stops to answer: all requests, or those of some kinds. It holds files in memory.

It is served over FUSE by a thread of the rig. The kernel keeps nothing of what the server has answered, so that each look at a file asks it.
"""

import errno
import os
import select
import stat
import struct
import threading

from power import medium
from power.medium import FALLOCATE, FSYNC, GETATTR, LOOKUP, OPEN, PAGE, READ, ROOT_NODE, SETATTR, SIZE_IS_SET, WRITE, Medium, Refused

UNLINK, CREATE = 10, 35
KEEP_SIZE = 1
__all__ = ["CREATE", "FALLOCATE", "FSYNC", "OPEN", "HangingFiles"]


class HangingFiles(Medium):
    """The file system. `files` holds the bytes of each file by its name. It must be left while everything is answered."""

    def __init__(self, folder, files):
        super().__init__(folder, 0)
        self.files = {name: bytearray(content) for name, content in files.items()}
        self.names = {}
        # What is not answered: kinds of requests, or everything, which is not even read then.
        self.held, self.waiting = set(), []
        self.answers = threading.Event()
        self.answers.set()
        # How often each file was enlarged.
        self.growths = 0

    def hang(self, *kinds):
        """Answers no requests of these kinds from now on; of no kind, if none is given."""
        with self.lock:
            self.held = set(kinds)
            if not kinds:
                self.answers.clear()

    def release(self):
        """Answers everything again, also what came meanwhile."""
        self.held = set()
        self.answers.set()
        with self.lock:
            waiting, self.waiting = self.waiting, []
        for request in waiting:
            super().answer(request)

    def __enter__(self):
        super().__enter__()
        os.set_blocking(self.device, False)
        return self

    def __exit__(self, *failed):
        self.release()
        super().__exit__(*failed)

    def serve(self):
        try:
            while True:
                self.answers.wait()
                # A process that waits for a request which was read cannot be killed, so none is read that is not answered.
                select.select([self.device], [], [], 0.1)
                with self.lock:
                    request = self.read() if self.answers.is_set() else None
                if request:
                    self.answer(request)
        except OSError as error:
            if error.errno not in (errno.ENODEV, errno.EBADF):
                self.broken = error
        except Exception as error:
            self.broken = error

    def read(self):
        try:
            return os.read(self.device, medium.MAX_WRITE + PAGE)
        except BlockingIOError:
            return None

    def answer(self, request):
        opcode = medium.HEADER.unpack_from(request)[1]
        with self.lock:
            if opcode in self.held:
                self.waiting.append(request)
                return
        super().answer(request)

    def node(self, name):
        if name not in self.files:
            raise Refused(errno.ENOENT)
        return self.names.setdefault(name, len(self.names) + 2)

    def content_of(self, node):
        name = next((name for name, number in self.names.items() if number == node), None)
        if name not in self.files:
            raise Refused(errno.ESTALE)
        return self.files[name]

    def resize(self, node, size):
        content = self.content_of(node)
        self.growths += size > len(content)
        content[size:] = b""
        content.extend(bytes(size - len(content)))

    def handle(self, opcode, node, body):
        if opcode == LOOKUP:
            found = self.node(body.rstrip(b"\0").decode())
            return struct.pack("<QQQQII", found, 0, 0, 0, 0, 0) + self.attributes(found)
        if opcode == CREATE:
            name = body[16:].rstrip(b"\0").decode()
            self.files[name] = bytearray()
            made = self.node(name)
            return struct.pack("<QQQQII", made, 0, 0, 0, 0, 0) + self.attributes(made) + struct.pack("<QII", 0, 0, 0)
        if opcode == UNLINK:
            del self.files[body.rstrip(b"\0").decode()]
            return b""
        if opcode == GETATTR:
            return struct.pack("<QII", 0, 0, 0) + self.attributes(node)
        if opcode == SETATTR:
            valid, _, _, size = struct.unpack_from("<IIQQ", body)
            if valid & SIZE_IS_SET:
                self.resize(node, size)
            return struct.pack("<QII", 0, 0, 0) + self.attributes(node)
        if opcode == READ:
            _, at, length = struct.unpack_from("<QQI", body)
            return bytes(self.content_of(node)[at:at + length])
        if opcode == WRITE:
            _, at, length = struct.unpack_from("<QQI", body)
            content = self.content_of(node)
            content.extend(bytes(max(0, at + length - len(content))))
            content[at:at + length] = body[40:40 + length]
            return struct.pack("<II", length, 0)
        if opcode == FALLOCATE:
            _, at, length, mode = struct.unpack_from("<QQQI", body)
            if mode & medium.PUNCH_HOLE or mode & medium.ZERO_RANGE:
                raise Refused(errno.EOPNOTSUPP)
            if not mode & KEEP_SIZE and at + length > len(self.content_of(node)):
                self.resize(node, at + length)
            return b""
        if opcode == FSYNC:
            return b""
        return super().handle(opcode, node, body)

    def attributes(self, node):
        mode, size = (stat.S_IFDIR | 0o755, 0) if node == ROOT_NODE else (stat.S_IFREG | 0o600, len(self.content_of(node)))
        return struct.pack("<QQQQQQIIIIIIIIII", node, size, -(-size // 512), 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, PAGE, 0)
