"""What all rigs share: their options, which target is judged, skips in CI, and a summary that tells why each failed test failed."""

import contextlib
import os
import random
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "foreign")]

import namespaces
import processes
import servers
from counting import Excuses, in_ci, one_line

EXCUSES = os.path.join(HERE, "skips.toml")


def pytest_addoption(parser):
    rigs = parser.getgroup("rigs", "rigs of targe")
    rigs.addoption("--server", action="append", choices=list(servers.KINDS),
                   help="judge this target instead of targe, to try the rig itself; `initiator` takes several")
    rigs.addoption("--seed", type=int, help="what is random follows from it (default: 1; reload: a fresh one)")
    rigs.addoption("--reactor", choices=["auto", "uring", "epoll"], action="append", help="hostile, reload: how the target waits")
    rigs.addoption("--rounds", type=int, default=150, help="reload: how many")
    rigs.addoption("--sequences", type=int, default=60, help="changes: how many")
    rigs.addoption("--upgrades", type=int, default=18, help="upgrade: how many succeed")
    rigs.addoption("--failures", type=int, default=36, help="upgrade: how many fail")
    rigs.addoption("--first", type=int, default=0, help="changes: the number of the first sequence")
    rigs.addoption("--size", type=int, default=32, help="recovery: size of the disk, MiB")
    rigs.addoption("--build", action="store_true", help="package: build from the archives and use them, too: minutes")
    rigs.addoption("--on", default="", help="libiscsi: a regular expression, run on these configurations only")
    rigs.addoption("--tool", help="libiscsi: another iscsi-test-cu")
    rigs.addoption("--newer", action="store_true", help="libiscsi: the tool is built from sources of 2026")
    rigs.addoption("--mended", action="store_true", help="libiscsi: the tool is mended, too (see mend)")
    rigs.addoption("--jobs", type=int, default=2, help="libiscsi: configurations at a time")
    rigs.addoption("--source", help="uiscsi, libiscsi's shell tests: a checkout of their sources")
    rigs.addoption("--initiator", choices=["targe", "qemu"], default="targe", help="conform: which initiator is judged")
    rigs.addoption("--reports", help="conform: write a report for each suite into this folder")
    rigs.addoption("--judge", default=servers.Targe.binary, help="conform: the targe that judges")
    rigs.addoption("--manage", help="conform: the example of that name of the initiator library, built already")
    rigs.addoption("--seconds", type=int, default=8, help="fuzz: how long for each target")
    rigs.addoption("--input", help="fuzz: run this one input and nothing else")


def pytest_configure(config):
    if str(config.inipath) != os.path.join(HERE, "pytest.ini"):
        raise pytest.UsageError("name what to run: `pytest tests/foreign/attach`, or `pytest tests` for every rig")
    see_nothing_of_the_machine()
    config.fresh_seed = config.getoption("seed")
    if config.fresh_seed is None:
        config.fresh_seed = random.SystemRandom().randrange(1 << 32)


def pytest_sessionstart():
    """What a rig mounts is its own. A namespace that another rig makes meanwhile would have copies of its mounts, which keep loop devices and
    servers of FUSE busy when this rig has unmounted them."""
    if namespaces.is_real_root():
        # Some containers forbid it.
        with contextlib.suppress(OSError):
            namespaces.hide_mounts()


def see_nothing_of_the_machine():
    """Keeps what a user or a package of targe has on this machine out of the rigs: its state, its sockets, and daemons that run."""
    home = os.path.join(servers.OUT, "home")
    os.environ.update(XDG_STATE_HOME=os.path.join(home, "state"), TARGE_ROOT=home)
    os.environ.pop("XDG_RUNTIME_DIR", None)


def seeds(config):
    return f"--seed {1 if config.getoption('seed') is None else config.getoption('seed')} (reload: --seed {config.fresh_seed})"


def pytest_report_header(config):
    return f"seeds: {seeds(config)}; targe: {servers.Targe.binary}"


@pytest.fixture(scope="session")
def seed(pytestconfig):
    given = pytestconfig.getoption("seed")
    return 1 if given is None else given


@pytest.fixture(scope="session")
def fresh_seed(pytestconfig):
    """A seed that is another one each time unless it is given."""
    return pytestconfig.fresh_seed


@pytest.fixture(scope="session")
def server_name(pytestconfig):
    """The name of the target that is judged."""
    return (pytestconfig.getoption("server") or ["targe"])[0]


@pytest.fixture(scope="session")
def kind(server_name):
    """Its class."""
    return servers.KINDS[server_name]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Tells at once, of what is left after every selection, what cannot be judged. Tests that mostly wait come last: most of them have
    been begun beside others by then."""
    items.sort(key=lambda item: item.get_closest_marker("waits") is not None)
    wanted = set(config.getoption("server") or ["targe"])
    for item in items:
        marker = item.get_closest_marker("servers")
        if marker and not wanted <= set(marker.args):
            raise pytest.UsageError(f"{item.nodeid} judges {' and '.join(marker.args)} only, not {' and '.join(wanted)}")
    if config.getoption("collectonly") or os.access(servers.Targe.binary, os.X_OK):
        return
    if any(not item.get_closest_marker("without_targe") for item in items):
        raise pytest.UsageError(f"there is no {servers.Targe.binary}: run `make build`, or name a release binary with TARGE=PATH")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if pyfuncitem.get_closest_marker("own_process"):
        processes.of_session(pyfuncitem.session).judge(pyfuncitem)
        return True
    return None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    outcome = yield
    refuse_unlisted_skip(outcome.get_result())


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report():
    outcome = yield
    refuse_unlisted_skip(outcome.get_result())


def refuse_unlisted_skip(report):
    """Where CI runs, a skip without an entry in skips.toml is a failure."""
    if not report.skipped or hasattr(report, "wasxfail") or not in_ci(os.environ):
        return
    skip = f"{report.nodeid}: {report.longrepr[2].removeprefix('Skipped: ')}"
    if Excuses(EXCUSES).unlisted(None, [skip]):
        report.outcome, report.longrepr = "failed", f"tests/skips.toml has no entry for the skip of {skip}"


def pytest_terminal_summary(terminalreporter):
    failed = [report for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, [])]
    for report in failed:
        terminalreporter.write_line(f"FAIL {report.nodeid}: {reason_of(report)}")
    if failed:
        terminalreporter.write_line(f"seeds: {seeds(terminalreporter.config)}")


def reason_of(report):
    crash = getattr(report.longrepr, "reprcrash", None)
    text = f"{crash.message} ({os.path.basename(crash.path)}:{crash.lineno})" if crash else str(report.longrepr)
    when = f"at {report.when}: " if getattr(report, "when", "call") not in ("call", "collect") else ""
    return when + one_line(text)
