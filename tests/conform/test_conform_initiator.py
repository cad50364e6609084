"""Judges an initiator by `targe conform initiator`: ours, or QEMU's driver over libiscsi with --initiator qemu."""

import os

import pytest

import building
import listening
import servers
from conform import tool

HERE = os.path.dirname(os.path.abspath(__file__))
# Longest all cases together may take, seconds. The first waits for a build, too.
SUITE_MAX_S = 2000
pytestmark = [pytest.mark.servers("targe"), pytest.mark.timeout(2000)]
QEMU_IO = ("read 0 64k", "aio_write -P 3 0 128k", "aio_write -P 4 128k 64k", "aio_flush", "read 0 4k", "write -P 5 4k 8k",
           "read 0 16k")
# What reads and writes, what discovers, and what the report is on.
INITIATORS = {
    "targe": ("{drive} {targe} {manage} {{url}} {{id}}", "{targe} discover {{portal}}", "targe"),
    "qemu": ("exec qemu-io -f raw " + " ".join(f"-c '{step}'" for step in QEMU_IO) + " {{url}}",
             "iscsi-ls iscsi://{{portal}}", "QEMU's driver and libiscsi (Debian 12)"),
}


def pytest_generate_tests(metafunc):
    metafunc.parametrize("case", tool.cases(metafunc.config, "initiator"))


@pytest.fixture(scope="module")
def judged(request, pytestconfig):
    """The tool while it judges an initiator by the cases that are selected."""
    name, judge, manage = (pytestconfig.getoption(option) for option in ("initiator", "judge", "manage"))
    if name == "targe" and not manage:
        manage = building.example("manage", "targe-initiator")
    cases = [item.callspec.params["case"] for item in request.session.items if item.path == request.path]
    use, discover, subject = INITIATORS[name]
    tools = {"drive": os.path.join(HERE, "drive"), "targe": servers.Targe.binary, "manage": manage}
    command = [judge, "conform", "initiator", "--listen", f"127.0.0.1:{listening.free_port()}",
               "--exec", use.format(**tools), "--discover", discover.format(**tools), "--only", ",".join(cases),
               # An initiator may leave a silent target alone for half of this before it pings: ours for 15 s, and longer on a machine that
               # stands still meanwhile.
               "--limit", "180", "--patience", "12000"]
    if reports := pytestconfig.getoption("reports"):
        os.makedirs(reports, exist_ok=True)
        command += ["--report", os.path.join(reports, f"initiator-{name}.md"), "--subject", subject]
    out = os.path.join(servers.OUT, "conform")
    os.makedirs(out, exist_ok=True)
    with tool.Tool(command, os.path.join(out, f"initiator-{name}.log"), SUITE_MAX_S) as judged:
        yield judged


def test_conforms(judged, case):
    judged.expect_passed(case)
