"""What a target serves: files, and the folders of cartridges."""

import shutil
import subprocess

MIB = 1 << 20
# The types of LUNs that have a path.
WITH_PATH = ("file", "block", "disc", "tape")


def make(server, unit, lun):
    """Makes the medium of a unit: full of zeros, or blank."""
    if lun.medium == "tape":
        make_cartridge(server.binary, server.medium_path(unit), f"A{unit:05}L8", lun.size)
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
