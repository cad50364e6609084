"""The test build: the workspace compiled once, with the features that plant bugs, for the unit tests, the simulation and some rigs.

Cargo compiles a crate again whenever the set of packages or features differs, so everything that uses the test build calls one of these commands.
A planted bug is there only where a test asks for it: see `base::fault_injection`.
"""

import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER = os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR", "target"), "debug")
# The alias `test-build` of .cargo/config.toml has the same list; the harness compares the two.
FEATURES = ",".join(f"{name}/planted" for name in ("targe", "targe-cartridge", "targe-device", "targe-shard", "targe-sim"))
# `tests/everything` sets it for the stages that follow the test build.
BUILT = "TARGE_TEST_BUILD"
CARGO = os.environ.get("CARGO", "cargo")
# What the names of tests that plant bugs in their own process begin with.
PLANTED = "planted_bugs_are_found"


def tests(*arguments):
    """The command of cargo that makes the test build, and runs its tests unless told otherwise."""
    return [CARGO, "test", "--workspace", "--locked", "--features", FEATURES, *arguments]


def clippy(*arguments):
    """The command that lints what `tests` compiles. Warnings are errors."""
    return [CARGO, "clippy", "--locked", *arguments, "--features", FEATURES, "--", "-D", "warnings"]


def binary(name):
    """A program of the test build."""
    return os.path.join(FOLDER, name)


def example(name, package):
    """An example of a package: that of the test build where `tests/everything` has made it, else one that is built now."""
    if BUILT not in os.environ:
        subprocess.run([CARGO, "build", "--locked", "--quiet", "--package", package, "--example", name], cwd=ROOT, check=True)
    return os.path.join(FOLDER, "examples", name)


def planted():
    """A targe that can break its promises: that of the test build where `tests/everything` has made it, else one that is built now."""
    if BUILT not in os.environ:
        subprocess.run([CARGO, "build", "--locked", "--quiet", "--package", "targe", "--features", "planted"], cwd=ROOT, check=True)
    return binary("targe")
