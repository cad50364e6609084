"""Hosts and cables are those of the HyperSCSI rig, and need root as those do."""

import os
import sys

import pytest

from hyperscsi import network

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "hyperscsi"))


@pytest.fixture(scope="session", autouse=True)
def able():
    try:
        network.be_able()
    except network.NoNamespaces as why:
        pytest.skip(str(why))
