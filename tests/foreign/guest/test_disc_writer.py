"""growisofs writes discs of ours in a guest, over the kernel's own initiator.

What it wrote is read back by the kernel, and by xorriso from the image itself, which is a plain one. The daemon is killed in the
middle of a burn, and what was burned before is there. `tests/foreign/discs` has more programs and discs.
"""

import pytest

from guest.disc_writer import growisofs, writing
from verdicts import expect

pytestmark = pytest.mark.timeout(2000)


@pytest.fixture(scope="module")
def writer(request, kind, server_name):
    if server_name != "targe":
        pytest.skip("the drives of others are others' business")
    with writing(request, kind, "writer", {"dvd+rw": "dvd+rw", "dvd-r": "dvd-r"}) as writer:
        yield writer


def test_growisofs_writes_a_dvd_plus_rw(writer):
    with writer.initiator.logged_in():
        device = writer.drive("dvd+rw")
        writer.burn(device, growisofs(device, "-Z", "ONE", "/tmp/first"))
        writer.burn(device, growisofs(device, "-M", "TWO", "/tmp/second"))
        writer.expect_files(device, "first", "second")
        writer.expect_plain_image("dvd+rw", "first", "second")


def test_growisofs_goes_on_with_a_dvd_r_after_the_daemon_was_killed_in_a_burn(writer):
    with writer.initiator.logged_in():
        guest, device = writer.guest, writer.drive("dvd-r")
        writer.burn(device, growisofs(device, "-Z", "ONE", "/tmp/first"))
        guest.run("mkdir -p /tmp/large && seq 1000000 1999999 > /tmp/large/large.txt")
        guest.tell(f"{growisofs(device, '-M', 'LARGE', '/tmp/large')} > /tmp/large.log 2>&1")
        writer.wait_until_written("dvd-r")
        writer.kill_and_restart()
        # How it exits says nothing: it closes the session when it has failed.
        guest.answer("growisofs", 300, check=False)
        told = guest.run("cat /tmp/large.log")
        expect(":-[" in told or ":-(" in told, f"growisofs does not tell that its drive was gone: {told}")
        writer.reload(device)
        writer.expect_files(device, "first")
        writer.burn(device, growisofs(device, "-M", "TWO", "/tmp/second"))
        writer.expect_files(device, "first", "second")
        sessions = [track["session"] for track in writer.listing("dvd-r")["tracks"]]
        expect(sessions == [1, 2], f"the disc has the sessions {sessions}")
