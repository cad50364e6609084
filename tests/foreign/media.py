"""What a target serves: files, and the folders of cartridges and libraries."""

import random
import shutil
import subprocess

MIB = 1 << 20
# The types of LUNs that have a path.
WITH_PATH = ("file", "block", "disc", "tape", "changer")


def make(server, unit, lun):
    """Makes the medium of a unit: full of zeros, or blank."""
    if lun.medium == "tape":
        kind = ["--worm"] if ("worm", True) in lun.claims else []
        make_cartridge(server.binary, server.medium_path(unit), f"A{unit:05}{'LY' if kind else 'L8'}", lun.size, *kind)
    elif lun.medium == "changer":
        make_library(server.binary, server.medium_path(unit), lun.size)
    else:
        make_file(server.medium_path(unit), lun)


def make_file(path, lun):
    with open(path, "wb") as file:
        # An encrypted disk becomes a LUKS2 image, whose header comes before the data.
        file.truncate(lun.size + (16 * MIB if lun.encrypted else 0))
        if lun.medium == "disc":
            file.write(random.Random(1).randbytes(MIB))
        if not lun.thin:
            zeros = bytes(MIB)
            for _ in range(lun.size // MIB):
                file.write(zeros)


def make_cartridge(binary, folder, barcode, size, *kind):
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([binary, "tape", "create", folder, "--barcode", barcode, "--capacity", str(size), *kind], check=True, capture_output=True)


def make_library(binary, folder, size):
    """Two drives, four slots of which three have a cartridge of this size, and two mail slots."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([binary, "changer", "create", folder, "--drives", "2", "--slots", "4", "--mail-slots", "2", "--cartridges", "3",
                    "--capacity", str(size)], check=True, capture_output=True)
