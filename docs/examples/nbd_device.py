"""A disk whose logic is these lines: every block shows how often it was written.

    nbdkit --foreground --unix /tmp/counting.sock python nbd_device.py size=64M
    targe serve --lun 'nbd:nbd+unix:///?socket=/tmp/counting.sock'

The first eight bytes of each block of 512 bytes count its writes, most significant byte first. A host can write the rest.
"""

import nbdkit

API_VERSION = 2
BLOCK = 512

size = 64 << 20
# The blocks that were written, by number: a disk of any size occupies what was written to it.
blocks = {}


def config(key, value):
    """Called for each KEY=VALUE of the command line."""
    global size
    if key != "size":
        raise RuntimeError(f"unknown parameter {key}")
    size = nbdkit.parse_size(value)


def thread_model():
    """One request at a time: nothing below needs a lock."""
    return nbdkit.THREAD_MODEL_SERIALIZE_ALL_REQUESTS


def open(readonly):
    """Called for each connection. What it returns is given to the functions below."""
    return {"readonly": readonly}


def get_size(connection):
    return size


def block_size(connection):
    """Requests are multiples of 512 bytes, best of 4096, and at most 1 MiB."""
    return (BLOCK, 4096, 1 << 20)


def pread(connection, buf, offset, flags):
    """Fills `buf`, which is as long as the request."""
    for at in range(0, len(buf), BLOCK):
        buf[at:at + BLOCK] = blocks.get((offset + at) // BLOCK, bytes(BLOCK))


def pwrite(connection, buf, offset, flags):
    for at in range(0, len(buf), BLOCK):
        number = (offset + at) // BLOCK
        writes = int.from_bytes(blocks.get(number, b"")[:8], "big") + 1
        blocks[number] = writes.to_bytes(8, "big") + bytes(buf[at + 8:at + BLOCK])


def flush(connection, flags):
    """Everything is in memory, and is lost when nbdkit ends."""
