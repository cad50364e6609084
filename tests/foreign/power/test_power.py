"""What was acknowledged as durable is on the medium whatever moment the power goes at (losing.py says how that is shown)."""

import pytest

from power.losing import ALL, BLOCK_ALL, DEALLOCATED, SESSIONS, SIZE, loses_power
from servers import Lun

pytestmark = pytest.mark.servers("targe")
both_engines = pytest.mark.parametrize("reactor", ["uring", "epoll"])


@both_engines
@pytest.mark.parametrize("lun, ways, sessions", [
    pytest.param(Lun(size=SIZE), ALL, SESSIONS, id="file, flushed, forced or zeroed"),
    pytest.param(Lun(size=SIZE), DEALLOCATED, 1, id="file, deallocated and flushed, one session"),
    pytest.param(Lun(size=SIZE, write_cache=False), ALL, SESSIONS, id="file without cache, every write"),
    pytest.param(Lun(size=SIZE, block=4096, claims=(("direct", True),)), ALL, SESSIONS, id="file past the page cache, flushed or forced"),
    pytest.param(Lun("block", size=SIZE), BLOCK_ALL, SESSIONS, id="block device, flushed or forced")])
def test_keeps_what_was_promised(seed, reactor, lun, ways, sessions):
    loses_power(seed, reactor, lun, ways, sessions)


def test_keeps_every_write_of_a_block_device_without_cache(seed):
    loses_power(seed, "auto", Lun("block", size=SIZE, write_cache=False), BLOCK_ALL)
