"""iPXE boots a machine from a disk of ours: the firmware's initiator logs in, and the boot sector reads and writes by INT 13h."""

import os
import random
import re
import subprocess
import time

import pytest

import servers
from servers import MIB, Export, Lun
from verdicts import expect

HERE = os.path.dirname(os.path.abspath(__file__))
HOST = "10.0.2.2"
USER, TARGET_USER = ("firmware", "secret-of-firmware"), ("targe", "secret-of-targe")
# Longest from power on to the end of the boot sector: emulated, on a machine that has much else to do.
BOOT_MAX_S = 240
# What the firmware says when iPXE could not boot from the disk.
GIVEN_UP = "No bootable device"
READ_AT, WRITTEN_AT, LENGTH = 64 * 512, 128 * 512, 8 * 512
EXPORTS = [
    ("as it comes", Export(luns=(Lun(size=16 * MIB),))),
    ("CHAP", Export(luns=(Lun(size=16 * MIB),), incoming=USER)),
    ("mutual CHAP", Export(luns=(Lun(size=16 * MIB),), incoming=USER, outgoing=TARGET_USER)),
    ("the third LUN, written through", Export(luns=(Lun("ram"), Lun("ram"), Lun(size=16 * MIB, write_cache=False)))),
]


@pytest.mark.servers(*servers.COMMON)
@pytest.mark.parametrize("name, export", EXPORTS, ids=[name for name, _ in EXPORTS])
def test_boots(kind, server_name, name, export):
    out = os.path.join(servers.OUT, "ipxe", server_name, re.sub(r"\W+", "-", name)[:20])
    unit = len(export.luns) - 1
    server = kind(out, export)
    # What is read says which run it is of, so that nothing old can pass for it.
    words = f"these blocks were read, number {random.randrange(1 << 60):x}"
    content = (words.encode() + b"\r\n").ljust(LENGTH - 8, b"\0") + random.randbytes(8)
    make_media = server.make_media

    def with_boot_sector():
        make_media()
        with open(server.medium_path(unit), "r+b") as medium:
            medium.write(assembled(out))
            medium.seek(READ_AT)
            medium.write(content)

    server.make_media = with_boot_sector
    with server:
        said = power_on(out, script(server, unit))
    expect(words in said, f"the boot sector was not run, or read something else: {' / '.join(said.splitlines()[-8:])}")
    expect("the disk took it back" in said, f"the write failed: {' / '.join(said.splitlines()[-4:])}")
    with open(server.medium_path(unit), "rb") as medium:
        medium.seek(WRITTEN_AT)
        expect(medium.read(LENGTH) == content, "the medium holds something else than was written")


def assembled(out):
    """The boot sector."""
    for command in (["as", "--32", "-o", "boot.o", os.path.join(HERE, "boot.s")],
                    ["ld", "-m", "elf_i386", "-Ttext", "0x7c00", "--oformat", "binary", "-o", "boot.bin", "boot.o"]):
        subprocess.run(command, cwd=out, check=True, timeout=60)
    with open(os.path.join(out, "boot.bin"), "rb") as file:
        sector = file.read()
    expect(len(sector) == 512, f"the boot sector has {len(sector)} bytes")
    return sector


def script(server, unit):
    """What iPXE is told to do."""
    yield "#!ipxe"
    yield "set initiator-iqn iqn.2026-11.org.targe:firmware"
    for account, prefix in ((server.export.incoming, ""), (server.export.outgoing, "reverse-")):
        if account:
            yield f"set {prefix}username {account[0]}"
            yield f"set {prefix}password {account[1]}"
    yield f"sanboot --no-describe iscsi:{HOST}::{server.port}:{server.first_lun + unit:x}:{server.iqn}"


def power_on(out, lines):
    """Runs a machine until its boot sector ends it; what it said on its serial port."""
    with open(os.path.join(out, "boot.ipxe"), "w") as file:
        file.write("\n".join(lines) + "\n")
    console = os.path.join(out, "console.log")
    command = ["qemu-system-x86_64", "-accel", "tcg", "-machine", "pc,graphics=off", "-m", "256", "-nodefaults", "-no-user-config",
               "-no-reboot", "-display", "none", "-serial", f"file:{console}", "-device", "isa-debug-exit,iobase=0xf4,iosize=1",
               "-netdev", f"user,id=net,tftp={out},bootfile=boot.ipxe", "-device", "virtio-net-pci,netdev=net,bootindex=0"]
    open(console, "w").close()
    machine = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=servers.die_with_parent)
    deadline = time.monotonic() + BOOT_MAX_S
    try:
        while True:
            over = machine.poll() is not None
            with open(console, errors="replace") as file:
                said = file.read()
            if over or GIVEN_UP in said or time.monotonic() > deadline:
                return said
            time.sleep(0.1)
    finally:
        machine.kill()
        machine.wait()
