"""The package that the rigs of this folder install."""

import os
import subprocess

import pytest

import servers

FOLDER = os.path.join(servers.OUT, "deb")


@pytest.fixture(scope="session")
def package():
    """The file of the package, made from the binary that the other rigs judge."""
    command = [os.path.join(servers.ROOT, "packaging", "make-deb"), "--binary", servers.Targe.binary, "--out", FOLDER]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=300).stdout.strip()
