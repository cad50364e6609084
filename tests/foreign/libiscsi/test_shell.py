"""Run libiscsi's own shell tests against our target, from sources that are built already (README.md says how): --source DIR.

What they ask of a target is done by functions.sh here instead of theirs, which drives tgt. Those that only call iscsi-test-cu are left to
test_libiscsi.py.
"""

import os
import re
import shutil
import subprocess

import pytest

import servers

HERE = os.path.dirname(os.path.abspath(__file__))
TEST_MAX_S = 180
# Tests, but not those of the 9000s, which are iscsi-test-cu's.
TESTS = re.compile(r"test_[0-8]\d{3}_\w+\.sh")
# Tests that no target can pass, and why.
WRONG = {"test_2100_timeout": "its library waits for ever for time-outs of commands that were sent and answered; so it does with tgt"}
# A secret of 8 bytes is shorter than RFC 7143 §9.2.1 lets one be.
SHORT = re.compile(r"(_PASSWORD=|%)(libiscsi|outgoing)\b")


@pytest.fixture(scope="module", autouse=True)
def own_network():
    servers.leave_the_network()


def pytest_generate_tests(metafunc):
    source = metafunc.config.getoption("source")
    names = os.listdir(os.path.join(source, "tests")) if source else []
    rows = [name.removesuffix(".sh") for name in sorted(names) if TESTS.fullmatch(name)]
    metafunc.parametrize("name", [pytest.param(name, marks=[pytest.mark.xfail(reason=WRONG[name])] if name in WRONG else []) for name in rows])


@pytest.mark.servers("targe")
def test_shell(pytestconfig, name):
    """Where the test runs there are its programs, and the tools beside."""
    source, test = os.path.abspath(pytestconfig.getoption("source")), f"{name}.sh"
    out = os.path.join(servers.OUT, "libiscsi", "shell", name)
    shutil.rmtree(out, ignore_errors=True)
    folder = os.path.join(out, "tests")
    os.makedirs(folder)
    for tools in ("utils", "test-tool"):
        os.symlink(os.path.join(source, tools), os.path.join(out, tools))
    for name in os.listdir(os.path.join(source, "tests")):
        if name.startswith("prog_") and "." not in name:
            os.symlink(os.path.join(source, "tests", name), os.path.join(folder, name))
    with open(os.path.join(source, "tests", test)) as theirs, open(os.path.join(folder, test), "w") as ours:
        ours.write(SHORT.sub(r"\1\2-long-enough", theirs.read()))
    shutil.copy(os.path.join(HERE, "functions.sh"), folder)
    done = subprocess.run(["timeout", "--kill-after=5", str(TEST_MAX_S), "sh", test], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, errors="replace", env=dict(os.environ, TARGE=servers.Targe.binary), preexec_fn=servers.die_with_parent)
    if done.returncode != 0 or "[OK]" not in done.stdout:
        raise AssertionError(f"exit code {done.returncode}: {(done.stdout + done.stderr)[-700:]}")
