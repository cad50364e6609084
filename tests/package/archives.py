"""The archives of the library and of the crates that it is made of, as a registry would take them."""

import json
import os
import subprocess

import servers
from verdicts import expect

LIBRARY = "targe-initiator"
FOLDER = os.path.join(servers.OUT, "package")
TARGET = os.path.join(servers.ROOT, "target", "package-check")


def cargo(*arguments, cwd=servers.ROOT):
    """Runs cargo; what it says from its first error on is the reason if it fails."""
    done = subprocess.run(["cargo", *arguments], cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    expect(done.returncode == 0, f"cargo {arguments[0]}: {done.stderr[max(done.stderr.find(chr(10) + 'error'), 0):]}")
    return done.stdout


def published():
    """Names and versions of what may go to a registry."""
    packages = json.loads(cargo("metadata", "--format-version=1", "--no-deps", "--locked", "--offline"))["packages"]
    return {package["name"]: package["version"] for package in packages if package["publish"] != []}


def archive(name, version):
    return os.path.join(TARGET, "package", f"{name}-{version}.crate")
