"""A targe that breaks its promises on purpose is found out by what the medium holds after the power went."""

import os
import shutil

import pytest

import building
import servers
from power.losing import DEALLOCATED, FLUSHED, FORCED, SIZE, Powered, loses_power
from servers import Lun
from verdicts import expect

BUILD_MAX_S = 5000
pytestmark = [pytest.mark.servers("targe"), pytest.mark.without_targe, pytest.mark.timeout(BUILD_MAX_S + 300)]
# Bugs of `base::fault_injection`, and what the writers do by which each shows.
PLANTED = [("FilesDropDsync", FORCED), ("FilesSkipFdatasync", FLUSHED), ("FilesForgetUnsynced", DEALLOCATED)]


@pytest.fixture(scope="module")
def planted():
    """Lets the rig serve with a targe that can break its promises."""
    built = building.planted()
    # Another build does not replace this copy; and a program that looks for a targe where a build leaves it finds none that breaks
    # promises: the next build puts its own there, without compiling anything again.
    kept = os.path.join(servers.OUT, "power", "targe-planted")
    os.makedirs(os.path.dirname(kept), exist_ok=True)
    shutil.copy(built, kept)
    os.remove(built)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Powered, "binary", kept)
        yield


@pytest.mark.parametrize("reactor", ["uring", "epoll"])
@pytest.mark.parametrize("bug, ways", PLANTED, ids=[bug for bug, _ in PLANTED])
def test_is_found(planted, seed, reactor, bug, ways):
    try:
        loses_power(seed, reactor, Lun(size=SIZE), ways, 1, bug)
    except AssertionError as told:
        expect("promises are broken" in str(told) or "nothing was ever flushed" in str(told), f"it is found by something else: {told}")
        print(f"   {bug}: {told}", flush=True)
    else:
        raise AssertionError("nobody noticed")
