"""Tape libraries that are not there when the daemon starts, and come back otherwise than they were."""

import os
import shutil
import signal
import subprocess
import time

import pytest

import servers
from changes.test_luns import WAIT_S, lun, luns, serving, wait_for
from verdicts import expect

pytestmark = pytest.mark.servers("targe")
EMPTY = "there is no cartridge in the drive"


def make(folder, drives):
    subprocess.run([servers.Targe.binary, "changer", "create", folder, "--drives", str(drives), "--slots", "4",
                    "--mail-slots", "0", "--cartridges", "2", "--capacity", "64M"], check=True, capture_output=True, timeout=WAIT_S)
    # Nobody has written to it for an hour.
    for where, folders, files in os.walk(folder):
        for name in [*folders, *files, "."]:
            os.utime(os.path.join(where, name), (time.time() - 3600,) * 2)


def reasons(daemon):
    return {number: one["not_ready"] for number, one in luns(daemon).items()}


@pytest.mark.parametrize("drives", [1, 3])
def test_a_library_that_comes_back_with_other_drives_is_served_after_a_reload(request, tmp_path, drives):
    library = tmp_path / "library"
    make(library, 2)
    with serving(request, tmp_path, lun("changer", path=str(library), lun=0, drive_lun=1), lun("ram", size="1M", lun=9)) as daemon:
        wait_for(lambda: reasons(daemon) == {0: None, 1: EMPTY, 2: EMPTY, 9: None}, lambda: f"the LUNs: {reasons(daemon)}")
        daemon.stop()
        shutil.rmtree(library)
        daemon.start()
        expect(all(reasons(daemon)[number] not in (None, EMPTY) for number in range(3)), f"the library is not late: {reasons(daemon)}")
        make(tmp_path / "other", drives)
        os.rename(tmp_path / "other", library)
        told = f"has {drives} drives, and 2 were served before; reload the configuration to serve it"
        wait_for(lambda: told in (reasons(daemon)[0] or ""), "the reason")
        reloads = daemon.ask("status")["reloads"]
        daemon.process.send_signal(signal.SIGHUP)
        wait_for(lambda: daemon.ask("status")["reloads"] > reloads, "the reload")
        expected = {0: None, **dict.fromkeys(range(1, 1 + drives), EMPTY), 9: None}
        wait_for(lambda: reasons(daemon) == expected, lambda: f"the library; {daemon.log()[-600:]}")
