"""tgt's tape drives, medium changers and disc drives: what media.py makes for ours."""

import contextlib
import os
import subprocess
from dataclasses import dataclass

import media

# What it calls them.
TYPES = {"disc": "cd", "tape": "tape", "changer": "changer"}
# Element types.
TRANSPORT, SLOTS, MAIL_SLOTS, DRIVES = 1, 2, 3, 4


@dataclass(frozen=True)
class Library:
    """First address and number of the elements of each type, and the cartridges in the first slots."""
    elements: dict
    barcodes: tuple


LIBRARY = Library({TRANSPORT: (1, 1), SLOTS: (1000, 4), MAIL_SLOTS: (10, 2), DRIVES: (500, 2)}, ("A00001L8", "A00002L8", "A00003L8"))


def make_medium(server, unit, lun):
    path = server.medium_path(unit)
    if lun.medium == "tape":
        make_cartridge(path, f"A{unit:05}L8", lun.size)
    elif lun.medium == "changer":
        with open(path, "wb") as file:
            file.truncate(1024)
        os.makedirs(home(server, unit), exist_ok=True)
        for barcode in LIBRARY.barcodes:
            make_cartridge(os.path.join(home(server, unit), barcode), barcode, lun.size)
    else:
        media.make(server, unit, lun)


def make_cartridge(path, barcode, size):
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)
    subprocess.run(["tgtimg", "--op", "new", "--device-type", "tape", "--barcode", barcode, "--size", str(size // media.MIB),
                    "--type", "data", "--file", path], check=True, timeout=120, capture_output=True)


def home(server, unit):
    """The folder of a library's cartridges."""
    return server.medium_path(unit) + ".media"


def serve(server, which, unit, lun):
    """Makes a logical unit; `which` names it to tgtadm."""
    server.admin("--op", "new", *which, "-b", server.medium_path(unit), "--device-type", TYPES[lun.medium])
    server.admin("--op", "update", *which, "--params", f"removable=1,readonly={int(lun.readonly)}")
    if lun.medium == "changer":
        fill_library(server, which, unit)


def fill_library(server, which, unit):
    """Gives a changer its elements and cartridges. Its drives are the units behind the last one."""
    update = ("--op", "update", *which, "--params")
    server.admin(*update, f"media_home={home(server, unit)}")
    for kind, (address, count) in LIBRARY.elements.items():
        server.admin(*update, f"element_type={kind},start_address={address},quantity={count}")
    first = server.first_lun + len(server.export.luns)
    address, drives = LIBRARY.elements[DRIVES]
    for number in range(drives):
        drive = ("--mode", "logicalunit", "--tid", "1", "--lun", str(first + number))
        server.admin("--op", "new", *drive, "-b", os.path.join(home(server, unit), LIBRARY.barcodes[number]), "--device-type", "tape")
        server.admin("--op", "update", *drive, "--params", "online=0")
        server.admin(*update, f"element_type={DRIVES},address={address + number},tid=1,lun={first + number}")
    address, _ = LIBRARY.elements[SLOTS]
    for number, barcode in enumerate(LIBRARY.barcodes):
        server.admin(*update, f"element_type={SLOTS},address={address + number},barcode={barcode},sides=1")
