"""What the rig of `targe csi` mounts is seen by nobody else, and ends with the rig."""

import os

import pytest

import namespaces

# Children of this process use no gRPC, and its handlers of forks only wait for its threads.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


@pytest.fixture(scope="session", autouse=True)
def own_mounts():
    if namespaces.is_real_root():
        namespaces.hide_mounts()
