"""A crate outside of the workspace, which has nothing but the archives that test_package.py packed, builds the library and its examples,
and reads a disk from `targe serve` with them: with --build only, for it takes minutes.

That stands for cargo's own verification, which unpacks the parts into its home once for each version and builds those again whatever
has changed since.
"""

import os
import shutil
import subprocess
import tarfile

import pytest

import servers
from package.archives import FOLDER, LIBRARY, TARGET, archive, cargo, published
from verdicts import expect

pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(1500)]
# The examples that read without being told anything but a URL.
READERS = ("read_block", "poll_loop")
STRANGER = """[package]
name = "stranger"
version = "0.0.0"
edition = "2024"

[dependencies]
{library} = "{version}"
rustix = {{ version = "1.1", features = ["event"] }}

[workspace]

[patch.crates-io]
"""


def unpack(name, version):
    with tarfile.open(archive(name, version)) as opened:
        opened.extractall(FOLDER, filter="data")
        for path in opened.getnames():
            # All archives have one date of long ago, by which cargo would take what it built before for up to date.
            os.utime(os.path.join(FOLDER, path))


@pytest.fixture(scope="module")
def built():
    """Makes a crate that has nothing but archives, and builds the library's examples as programs of it."""
    packages = published()
    shutil.rmtree(FOLDER, ignore_errors=True)
    stranger = os.path.join(FOLDER, "stranger")
    manifest = STRANGER.format(library=LIBRARY, version=packages[LIBRARY])
    for name, version in packages.items():
        unpack(name, version)
        manifest += f'{name} = {{ path = "../{name}-{version}" }}\n'
    examples = os.path.join(FOLDER, f"{LIBRARY}-{packages[LIBRARY]}", "examples")
    shutil.copytree(examples, os.path.join(stranger, "src", "bin"))
    with open(os.path.join(stranger, "Cargo.toml"), "w") as file:
        file.write(manifest)
    # The versions that the workspace is built with: they are there already.
    shutil.copy(os.path.join(servers.ROOT, "Cargo.lock"), stranger)
    cargo("build", "--offline", "--target-dir", TARGET, cwd=stranger)


def test_a_crate_outside_builds(built):
    for reader in READERS:
        expect(os.access(os.path.join(TARGET, "debug", reader), os.X_OK), f"{reader} was not built")


def test_a_crate_outside_reads_a_disk(built):
    export = servers.Export(luns=(servers.Lun(medium="ram", size=64 << 20),))
    with servers.Targe(os.path.join(FOLDER, "target"), export) as target:
        for reader in READERS:
            program = os.path.join(TARGET, "debug", reader)
            done = subprocess.run([program, target.url()], text=True, timeout=60, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
            expect(done.stdout == "512 bytes, 512 of them zero\n", f"{reader}: {done.stdout}")
