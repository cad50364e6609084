"""A file on a disk with a volatile write cache, which remembers in what order writes and flushes reached it.

It is a file system over FUSE with one file, served by a thread of the rig. Every change that the kernel hands on goes to the end of a
history: a write, a range of zeros, or a sync, which makes all before it durable. So what a loss of power leaves behind at any moment
can be worked out afterwards: all up to the last sync, and of what came later whatever the disk happened to have stored.
"""

import ctypes
import errno
import os
import stat
import struct
import threading

LIBC = ctypes.CDLL(None, use_errno=True)
NAME = "disk"
ROOT_NODE, FILE_NODE = 1, 2
# Opcodes of /usr/include/linux/fuse.h.
LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS, RELEASE = 1, 2, 3, 4, 14, 15, 16, 17, 18
FSYNC, FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, ACCESS, INTERRUPT, DESTROY = 20, 25, 26, 27, 28, 29, 34, 36, 38
BATCH_FORGET, FALLOCATE = 42, 43
UNANSWERED = {FORGET, BATCH_FORGET, INTERRUPT}
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 0x10
MINOR, MAX_WRITE, MAX_PAGES = 31, 128 << 10, 32
# INIT: FUSE_BIG_WRITES, FUSE_MAX_PAGES.
FLAGS = 1 << 5 | 1 << 22
SIZE_IS_SET = 1 << 3
HEADER = struct.Struct("<IIQQIIIHH")
PAGE = 4096
MNT_DETACH = 2


class Refused(Exception):
    """A request that is answered with an error number."""


class Medium:
    """The file system, mounted while this is entered. `history` holds (at, bytes) for a write, (at, length) for zeros and None for
    a sync; `lock` is held while it grows."""

    def __init__(self, folder, size):
        self.folder, self.size = folder, size
        self.path = os.path.join(folder, NAME)
        self.content = bytearray(size)
        self.history, self.lock = [], threading.Lock()
        # A fault of this thread, which must not pass for one of the target.
        self.broken = None

    def __enter__(self):
        os.makedirs(self.folder, exist_ok=True)
        self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self.device},rootmode={stat.S_IFDIR:o},user_id=0,group_id=0,allow_other"
        if LIBC.mount(b"power", self.folder.encode(), b"fuse", 0, options.encode()) != 0:
            number = ctypes.get_errno()
            os.close(self.device)
            raise OSError(number, f"mounting {self.folder}")
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, failed, *_):
        LIBC.umount2(self.folder.encode(), MNT_DETACH)
        self.thread.join(20)
        os.close(self.device)
        if self.broken and not failed:
            raise self.broken

    def moment(self):
        """How much history there is now."""
        with self.lock:
            return len(self.history)

    def serve(self):
        try:
            while request := os.read(self.device, MAX_WRITE + PAGE):
                self.answer(request)
        except OSError as error:
            # ENODEV: it is not mounted any more.
            if error.errno != errno.ENODEV:
                self.broken = error
        except Exception as error:
            self.broken = error

    def answer(self, request):
        _, opcode, unique, node, *_ = HEADER.unpack_from(request)
        if opcode in UNANSWERED:
            return
        number, body = 0, b""
        try:
            body = self.handle(opcode, node, request[HEADER.size:])
        except Refused as refused:
            number = refused.args[0]
        try:
            os.write(self.device, struct.pack("<IiQ", 16 + len(body), -number, unique) + body)
        except FileNotFoundError:
            # Whoever asked was killed meanwhile.
            pass

    def handle(self, opcode, node, body):
        if opcode == INIT:
            return struct.pack("<IIIIHHIIHHII7I", 7, MINOR, 0, FLAGS, 16, 12, MAX_WRITE, 1, MAX_PAGES, 0, 0, *(0,) * 8)[:64]
        if opcode == LOOKUP:
            if body.rstrip(b"\0") != NAME.encode():
                raise Refused(errno.ENOENT)
            return struct.pack("<QQQQII", FILE_NODE, 0, 3600, 3600, 0, 0) + self.attributes(FILE_NODE)
        if opcode == GETATTR:
            return struct.pack("<QII", 3600, 0, 0) + self.attributes(node)
        if opcode == SETATTR:
            valid, _, _, size = struct.unpack_from("<IIQQ", body)
            if valid & SIZE_IS_SET and size != self.size:
                raise Refused(errno.EPERM)
            return struct.pack("<QII", 3600, 0, 0) + self.attributes(node)
        if opcode in (OPEN, OPENDIR):
            return struct.pack("<QII", 0, 0, 0)
        if opcode == STATFS:
            return struct.pack("<5Q4I6I", 1 << 20, 1 << 19, 1 << 19, 10, 5, PAGE, 255, PAGE, 0, *(0,) * 6)
        if opcode in (READDIR, RELEASE, RELEASEDIR, FLUSH, ACCESS, DESTROY):
            return b""
        return self.move(opcode, body)

    def move(self, opcode, body):
        """What reads or changes the file."""
        if opcode == READ:
            _, at, length = struct.unpack_from("<QQI", body)
            return bytes(self.content[at:at + length])
        if opcode == WRITE:
            _, at, length = struct.unpack_from("<QQI", body)
            self.change(at, body[40:40 + length])
            return struct.pack("<II", length, 0)
        if opcode == FALLOCATE:
            _, at, length, mode = struct.unpack_from("<QQQI", body)
            if mode & (PUNCH_HOLE | ZERO_RANGE) and at < self.size:
                self.change(at, min(length, self.size - at))
            return b""
        if opcode == FSYNC:
            with self.lock:
                self.history.append(None)
            return b""
        raise Refused(errno.ENOSYS)

    def change(self, at, what):
        with self.lock:
            self.history.append((at, what))
        apply(self.content, at, what)

    def attributes(self, node):
        mode, size = (stat.S_IFDIR | 0o755, 0) if node == ROOT_NODE else (stat.S_IFREG | 0o666, self.size)
        return struct.pack("<QQQQQQIIIIIIIIII", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, PAGE, 0)


def apply(image, at, what):
    """Does one change of a history to an image."""
    data = bytes(what) if isinstance(what, int) else what
    image[at:at + len(data)] = data
