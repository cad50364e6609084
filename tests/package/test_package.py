"""Packs `targe-initiator` and the crates it is made of as a registry would take them, and looks into each archive.

Takes a second: cargo packs them and resolves what they depend on. test_outside.py then builds and uses them.
"""

import os
import tarfile

import pytest

from package.archives import LIBRARY, TARGET, archive, cargo, published
from verdicts import expect

pytestmark = pytest.mark.without_targe
# What a registry takes is 10 MiB; what a user downloads for this library is a few hundred KiB.
PACKED_MAX = 512 << 10


@pytest.fixture(scope="module")
def archives():
    """Packs them."""
    packages = published()
    for name, version in packages.items():
        if os.path.exists(archive(name, version)):
            os.remove(archive(name, version))
    names = [word for name in packages for word in ("--package", name)]
    cargo("package", "--locked", "--offline", "--allow-dirty", "--no-verify", "--target-dir", TARGET, *names)


def test_cargo_packs_them(archives):
    expect(LIBRARY in published(), f"{LIBRARY} has publish = false")


@pytest.mark.parametrize("name, version", published().items(), ids=str)
def test_archive_holds_what_is_needed(archives, name, version):
    with tarfile.open(archive(name, version)) as opened:
        files = [path.split("/", 1)[1] for path in opened.getnames()]
    expect("README.md" in files and "src/lib.rs" in files, f"README.md or src/lib.rs is missing: {files}")
    tests = [path for path in files if "tests" in path]
    expect(not tests, f"tests are of no use outside: {tests}")
    size = os.path.getsize(archive(name, version))
    expect(size <= PACKED_MAX, f"{size} bytes, packed, are more than {PACKED_MAX}")
