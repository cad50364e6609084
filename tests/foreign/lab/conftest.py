"""Experiments that make their own target need root, of the machine or of a namespace of users. The quick run of each is a fixture."""

import os
import pathlib
import subprocess

import pytest

import namespaces
from lab_runs import RUN_MAX_S
from quick_runs import NEED_ROOT, PLANS, QuickRun
from rival_files import ABSENT, MUTE, written

HERE = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(items):
    """The first test of an experiment waits for its quick run, which takes long on a busy machine."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.timeout(2 * RUN_MAX_S))


@pytest.fixture(scope="session")
def root():
    """Goes on as root of a namespace of users where this is not root."""
    if not namespaces.become_root():
        pytest.skip("this is not root, and there is no namespace of users to be had")
    probe = subprocess.run(["unshare", "--net", "--", "ip", "link", "add", "probe", "type", "veth"], capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip(f"no network namespaces with virtual cables here: {probe.stderr.strip()}")


@pytest.fixture(scope="session")
def loop_devices(root):
    if not namespaces.is_real_root() or not os.path.exists("/dev/loop-control"):
        pytest.skip("disks for file systems need root of the machine and loop devices")


def quick_run(name):
    """The fixture `quick_NAME`."""
    @pytest.fixture(scope="session", name=f"quick_{name}")
    def run(request, tmp_path_factory):
        if name in NEED_ROOT:
            request.getfixturevalue("root")
        if name == "copies":
            request.getfixturevalue("loop_devices")
        folder = tmp_path_factory.mktemp(name)
        return QuickRun(name, folder, options(name, folder))
    return run


def options(name, folder):
    """The targets that are compared: of others, one that is absent, and one that serves nothing."""
    if name != "targets":
        return ()
    return written(folder, absent=ABSENT, mute=MUTE), "--rival=tgt", "--rival=istgt", "--rival=absent", "--rival=mute"


quick_digests, quick_risk, quick_targets, quick_hyperscsi, quick_copies, quick_security = map(quick_run, PLANS)
