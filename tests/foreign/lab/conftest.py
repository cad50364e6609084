"""Experiments that make their own target need root, of the machine or of a namespace of users."""

import subprocess

import pytest

import namespaces


@pytest.fixture(scope="session")
def root():
    """Goes on as root of a namespace of users where this is not root."""
    if not namespaces.become_root():
        pytest.skip("this is not root, and there is no namespace of users to be had")
    probe = subprocess.run(["unshare", "--net", "--", "ip", "link", "add", "probe", "type", "veth"], capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip(f"no network namespaces with virtual cables here: {probe.stderr.strip()}")
