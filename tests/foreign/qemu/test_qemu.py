"""Let QEMU's own iSCSI driver use disks of ours: convert images in and out, write patterns and read them back."""

import json
import os
import random
import re

import pytest

import servers
from qemu.driver import disk, img, io
from servers import MIB, Export, Lun
from serving import serving
from verdicts import expect

SIZE = 64 * MIB
USER = ("qemu", "secret-of-qemu")
# Which disks; every test runs on each.
DISKS = [
    ("thin file", Export(luns=(Lun("file", size=SIZE), Lun("file", size=SIZE)))),
    ("full file with 4 KiB blocks", Export(luns=(Lun("file", size=SIZE, thin=False, block=4096),) * 2)),
    ("memory, header digest", Export(luns=(Lun("ram", size=SIZE),) * 2, digests="header")),
    ("memory, CHAP", Export(luns=(Lun("ram", size=SIZE),) * 2, incoming=USER)),
]


@pytest.fixture(scope="module", params=DISKS, ids=[name for name, _ in DISKS])
def server(request, kind, server_name):
    name, export = request.param
    out = os.path.join(servers.OUT, "qemu", server_name, re.sub(r"\W+", "-", name))
    with serving(request, name, kind(out, export)) as server:
        yield server


def test_converts_an_image_in_and_out(server):
    source = os.path.join(server.folder, "source.raw")
    copy = os.path.join(server.folder, "copy.qcow2")
    make_image(source)
    img(server, "convert", "-n", "-f", "raw", "--target-image-opts", source, disk(server))
    img(server, "compare", "--image-opts", f"driver=raw,file.driver=file,file.filename={source}", disk(server))
    img(server, "convert", "--image-opts", "-O", "qcow2", disk(server), copy)
    img(server, "compare", source, copy)


def test_copies_from_one_disk_to_another(server):
    make_image(os.path.join(server.folder, "source.raw"))
    img(server, "convert", "-n", "-f", "raw", "--target-image-opts", os.path.join(server.folder, "source.raw"), disk(server, 0))
    img(server, "convert", "-n", "--image-opts", "--target-image-opts", disk(server, 0), disk(server, 1))
    img(server, "compare", "--image-opts", disk(server, 0), disk(server, 1))


def test_keeps_patterns_over_logins_offsets_and_depth(server):
    io(server, "write -P 0x11 0 1M", "write -P 0x22 1M 3M", "write -P 0x33 -f 4k 4k", "flush")
    # A new login sees what the last one wrote.
    io(server, "read -P 0x11 0 4k", "read -P 0x33 4k 4k", "read -P 0x11 8k 1016k", "read -P 0x22 1M 3M")
    # Odd offsets: the driver reads, patches and writes whole blocks.
    io(server, "write -P 0x44 1000 77", "read -P 0x11 0 1000", "read -P 0x44 1000 77", "read -P 0x11 1077 3019")
    io(server, *[f"aio_write -P {n + 1} {8 + n}M 1M" for n in range(16)], "aio_flush",
       *[f"aio_read -P {n + 1} {8 + n}M 1M" for n in range(16)], "aio_flush")


def test_zeroes_and_discards_what_it_is_told_and_nothing_else(server):
    io(server, "write -P 0x55 0 8M", "write -z 1M 1M", "write -z -u 2M 1M", "flush")
    io(server, "read -P 0x55 0 1M", "read -P 0 1M 2M", "read -P 0x55 3M 5M")
    io(server, "discard 4M 2M", "read -P 0x55 3M 1M", "read -P 0x55 6M 2M")


def test_maps_what_is_written_and_what_is_a_hole(server):
    io(server, "discard 0 64M", "write -P 0x66 16M 1M", "flush")
    extents = json.loads(img(server, "map", "--output=json", "--image-opts", disk(server)))
    data = [(extent["start"], extent["length"]) for extent in extents if extent["data"]]
    expected = [(16 * MIB, MIB)] if server.export.luns[0].thin else [(0, SIZE)]
    expect(data == expected, f"the written extents read {data}")


def make_image(path):
    """Random pieces between holes and zeros, the same on every run."""
    source = random.Random(7)
    with open(path, "wb") as file:
        file.truncate(SIZE)
        for _ in range(40):
            file.seek(source.randrange(SIZE // 4096 - 256) * 4096)
            file.write(source.randbytes(source.randrange(1, 256) * 4096))
