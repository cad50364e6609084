"""The hosts and cables of this rig are namespaces, which root may make: of the machine, or of a namespace of users."""

import pytest

from hyperscsi import network


@pytest.fixture(scope="session", autouse=True)
def able():
    try:
        network.be_able()
    except network.NoNamespaces as why:
        pytest.skip(str(why))
