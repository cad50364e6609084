"""Judge a target with uiscsi, an initiator in Go that speaks error recovery levels 0 to 2.

The library is in no module registry, so this rig runs by hand: --source names a checkout of github.com/uiscsi/uiscsi.

Faults of the library (seen at 17db92c) that are kept out of its way: its Data-Out PDUs always say LUN 0, where RFC 7143 §11.7.4
wants that of the command, so the disk is LUN 0; it sets F in every command (§11.3.1) and still sends unsolicited Data-Out PDUs
when InitialR2T=No was agreed on, so R2Ts are asked for; it reads past the end of data shorter than the first burst; it sends
SNACKs without the header digest that was agreed on, which no target can read, so that reads of more than one burst, which
from level 1 on ask for an acknowledgement, are left out where digests are on.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest

import servers
from serving import serving
from verdicts import expect

HERE = os.path.dirname(os.path.abspath(__file__))

# Longest one run of the judge may take, seconds.
RUN_MAX_S = 90
MEDIA = (servers.Lun("file", size=64 * servers.MIB), servers.Lun("ram", size=64 * servers.MIB, block=4096))
# The longest read of the judge, in blocks, and MaxBurstLength if nobody says otherwise.
READ_MAX_BLOCKS = 512
BURST_BYTES = 262144
# Ways to move data (RFC 7143 §13), each offered beside the level and the digests.
WAYS = {
    "immediate data": "InitialR2T=Yes,ImmediateData=Yes",
    "solicited data": "InitialR2T=Yes,ImmediateData=No",
    "small bursts": "InitialR2T=Yes,ImmediateData=Yes,FirstBurstLength=4096,MaxBurstLength=16384",
    "several R2Ts": "InitialR2T=Yes,ImmediateData=No,MaxBurstLength=8192,MaxOutstandingR2T=4",
}


def cases(medium):
    for level in (0, 1, 2):
        for digests in (False, True):
            for way, keys in WAYS.items():
                name = f"{medium.medium}, level {level}, digests {'both' if digests else 'none'}, {way}"
                arguments = [f"-erl={level}", f"-keys={keys}"]
                bursts = dict(pair.split("=") for pair in keys.split(","))
                snacks = level > 0 and READ_MAX_BLOCKS * medium.block > int(bursts.get("MaxBurstLength", BURST_BYTES))
                fault = "it sends SNACKs without a header digest" if snacks and digests else None
                yield name, arguments + (["-digests"] if digests else []), fault


def pytest_generate_tests(metafunc):
    rows = [(medium, *case) for medium in MEDIA for case in cases(medium)]
    metafunc.parametrize("server, arguments", [
        pytest.param(medium, arguments, id=name, marks=[pytest.mark.skip(reason=fault)] if fault else [])
        for medium, name, arguments, fault in rows], indirect=["server"], scope="module")


@pytest.fixture(scope="module")
def judge(pytestconfig):
    return build(pytestconfig.getoption("source"))


@pytest.fixture(scope="module")
def server(request, judge, kind, server_name):
    medium = request.param
    out = os.path.join(servers.OUT, "uiscsi", server_name, medium.medium)
    with serving(request, medium.medium, kind(out, servers.Export((medium,), level=2))) as server:
        yield server


def build(source):
    """Builds the judge against the checkout and returns the binary."""
    if source is None:
        pytest.skip("uiscsi is in no registry; name a checkout of github.com/uiscsi/uiscsi with --source")
    if shutil.which("go") is None:
        pytest.skip("no Go toolchain")
    folder = os.path.join(servers.OUT, "uiscsi", "judge")
    shutil.copytree(os.path.join(HERE, "judge"), folder, dirs_exist_ok=True)
    edit = ["go", "mod", "edit", f"-replace=github.com/uiscsi/uiscsi={os.path.abspath(source)}"]
    for command in (edit, ["go", "mod", "tidy"], ["go", "build", "-o", "judge", "."]):
        subprocess.run(command, cwd=folder, check=True, timeout=300, stdout=sys.stderr)
    return os.path.join(folder, "judge")


def test_uiscsi(judge, server, arguments):
    command = [judge, f"-portal=127.0.0.1:{server.port}", f"-iqn={server.iqn}", f"-lun={server.first_lun}", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=RUN_MAX_S)
    expect(result.returncode == 0, result.stderr or f"exit code {result.returncode}")
    told = json.loads(result.stdout)
    expect(told["reconnects"] == 0, f"the initiator had to connect again {told['reconnects']} times")
