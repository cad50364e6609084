"""Our initiator with a target whose name has capitals. Debian's tgt compares the bytes of names."""

import json
import os
import subprocess

import pytest

import servers
from servers import MIB, Export, Lun
from verdicts import expect

pytestmark = pytest.mark.servers("targe")
COMMAND_MAX_S = 60


def targe(*arguments):
    done = subprocess.run([servers.Targe.binary, *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_MAX_S)
    expect(done.returncode == 0, f"targe {' '.join(arguments)} exits {done.returncode}: {done.stderr.decode(errors='replace')}")
    return done.stdout


def test_a_target_is_entered_by_the_name_that_it_is_found_under():
    server = servers.Tgt(os.path.join(servers.OUT, "initiator", "capitals"), Export(luns=(Lun(size=4 * MIB),)))
    server.iqn = "iqn.2026-11.org.targe:Rig-ONE"
    with server:
        found = json.loads(targe("discover", f"127.0.0.1:{server.port}", "--json"))
        disk = next((unit["url"] for unit in found if unit["lun"] == server.first_lun), "")
        expect(f"/{server.iqn}/" in disk, f"discovery finds {found}")
        expect(len(targe("read", disk, "--length", "4096")) == 4096, "a block is not read whole")
