"""What a target serves: files, and the folders of cartridges and libraries."""

import shutil
import subprocess

MIB = 1 << 20
# The types of LUNs that have a path.
WITH_PATH = ("file", "block", "disc", "tape", "changer")


def make(server, unit, lun):
    """Makes the medium of a unit: full of zeros, or blank."""
    if lun.medium == "tape":
        make_cartridge(server.binary, server.medium_path(unit), f"A{unit:05}L8", lun.size)
    elif lun.medium == "changer":
        make_library(server.binary, server.medium_path(unit), lun)
    else:
        make_file(server.medium_path(unit), lun)


def make_file(path, lun):
    with open(path, "wb") as file:
        # An encrypted disk becomes a LUKS2 image, whose header comes before the data.
        file.truncate(lun.size + (16 * MIB if lun.encrypted else 0))
        if not lun.thin:
            zeros = bytes(MIB)
            for _ in range(lun.size // MIB):
                file.write(zeros)


def make_cartridge(binary, folder, barcode, size):
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([binary, "tape", "create", folder, "--barcode", barcode, "--capacity", str(size)], check=True, capture_output=True)


def make_library(binary, folder, lun):
    """Two drives, slots of which some have a cartridge, and two mail slots."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([binary, "changer", "create", folder, "--drives", "2", "--slots", str(lun.slots), "--mail-slots", "2", "--cartridges",
                    str(lun.cartridges), "--capacity", str(lun.size)], check=True, capture_output=True)
