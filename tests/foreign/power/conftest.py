"""The medium is mounted where nobody else sees it; without root, as root of a namespace of users."""

import pytest

import namespaces


@pytest.fixture(scope="session", autouse=True)
def own_mounts():
    if not namespaces.become_root():
        pytest.skip("neither root nor a user namespace")
    namespaces.hide_mounts()
