"""Judge a target by libiscsi's suite on every configuration and merge the verdicts.

A test passes when it really passes on at least one configuration and neither fails, hangs nor crashes on any. A test
that the tool has wrong stands in exceptions.toml with the clause, and must fail as it says there.
"""

import collections
import concurrent.futures
import json
import os
import re
import time
import tomllib
import zlib

import pytest

import servers
from libiscsi import suite
from libiscsi.configurations import CONFIGURATIONS
from verdicts import expect

FOLDER = os.path.dirname(os.path.abspath(__file__))
BAD = ("FAIL", "HANG", "CRASH", "DOWN")
# The first test waits for all of them.
pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module")
def results(request, kind, server_name):
    """Verdicts by configuration and test, of all tests that were selected. Configurations run side by side."""
    options, exceptions = request.config.option, exceptions_of(request.config)
    out = os.path.join(servers.OUT, "libiscsi", server_name)
    os.makedirs(out, exist_ok=True)
    counter = suite.build_counter(out)
    suites = {}
    for item in request.session.items:
        if item.path == request.path and "test" in item.callspec.params:
            name, _, test = item.callspec.params["test"].rpartition(".")
            suites.setdefault(name, []).append(test)
    chosen = [configuration for configuration in CONFIGURATIONS
              if re.search(options.on, configuration.name) and (options.mended or not configuration.mended)]
    whole = suite.list_suites(options.tool or suite.TOOL)
    began = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = [pool.submit(run_configuration, options, kind, configuration, select(suites, whole, configuration, exceptions), out, counter)
                for configuration in chosen]
        results = {configuration.name: run.result() for configuration, run in zip(chosen, runs)}
    write_reports(out, results, suites, time.monotonic() - began)
    return results


def pytest_generate_tests(metafunc):
    if "where" in metafunc.fixturenames:
        # Sources of 2026 skip others.
        judged = [] if metafunc.config.getoption("newer") else [one for one in CONFIGURATIONS if one.skips is not None]
        chosen = [one for one in judged if re.search(metafunc.config.getoption("on"), one.name)]
        metafunc.parametrize("where", chosen, ids=[one.name for one in chosen])
        return
    exceptions = exceptions_of(metafunc.config)
    rows = []
    for name, tests in suite.list_suites(metafunc.config.getoption("tool") or suite.TOOL).items():
        for test in tests:
            full, marks = f"{name}.{test}", []
            entry = exceptions.get(full, {})
            if "expected" in entry:
                whose = "not reached" if entry.get("ours") else "the tool is wrong"
                marks = [pytest.mark.xfail(raises=AsExpected, reason=f"{whose} ({entry['clause']}): {entry['reason']}")]
            rows.append(pytest.param(full, marks=marks, id=full))
    metafunc.parametrize("test", rows)


class AsExpected(Exception):
    """A test ended as exceptions.toml says that it does on a right target."""


def test_libiscsi(results, pytestconfig, test):
    judge({where: run[test] for where, run in results.items() if test in run}, exceptions_of(pytestconfig).get(test))


def test_skips_by_type(results, where):
    """On a unit of another type than a disk exactly the tests skip themselves that are for disks; the others pass."""
    verdicts = results[where.name]
    expect(verdicts, "no test of those that were selected is for this unit")
    others = {test: verdict for test, verdict in verdicts.items() if verdict.kind != "PASS"}
    odd = {test: others[test].reasons for test in sorted(others.keys() - where.skips)}
    expect(not odd, f"neither pass nor are among the skips that are expected: {odd}")
    missed = sorted(test for test in where.skips & verdicts.keys() if test not in others)
    expect(not missed, f"pass, and are among the skips that are expected: {missed}")


def exceptions_of(config):
    return read_exceptions(config.getoption("newer"), config.getoption("mended"))


def select(suites, whole, configuration, exceptions):
    """The tests of each suite that are for this configuration: {suite: (tests, whether that is all of them)}."""
    selected = {}
    for name, tests in suites.items():
        chosen = [test for test in tests if is_for(f"{name}.{test}", name, configuration, exceptions)]
        if chosen:
            selected[name] = (chosen, len(chosen) == len(whole[name]))
    return selected


def is_for(test, suite_name, configuration, exceptions):
    meant = not configuration.only or suite_name in configuration.only or test in configuration.only
    return meant and re.search(exceptions.get(test, {}).get("only_on", ""), configuration.name)


def run_configuration(options, kind, configuration, suites, out, counter):
    """Verdicts by test name on one configuration."""
    # Short: the path of the admin socket within may have 107 bytes.
    slug = re.sub(r"\W+", "-", configuration.name)
    folder = os.path.join(out, f"{slug[:20]}-{zlib.crc32(slug.encode()):08x}")
    began = time.monotonic()
    verdicts = {}
    with kind(folder, configuration.export) as server:
        urls = [server.url(host=host, query=configuration.query) for host in ("127.0.0.1", "127.0.0.2")]
        runner = suite.Runner(server, urls, folder, counter, options.tool or suite.TOOL)
        for name, (tests, whole) in suites.items():
            verdicts.update(runner.run_suite(name, tests, whole))
    counts = collections.Counter(verdict.kind for verdict in verdicts.values())
    print(f"   {configuration.name}: {dict(counts)} in {time.monotonic() - began:.0f} s", flush=True)
    return verdicts


def read_exceptions(newer, mended):
    with open(os.path.join(FOLDER, "exceptions.toml"), "rb") as file:
        entries = tomllib.load(file)
    return {test: entry for test, entry in entries.items()
            if entry.get("tools") != ("older" if newer else "newer") and not (mended and entry.get("mended"))}


def judge(seen, exception):
    """Raises unless a test really passed where it is right, and failed nowhere."""
    bad = [f"{verdict.kind} on {where}: {'; '.join(verdict.reasons) or 'no reason told'}"
           for where, verdict in seen.items() if verdict.kind in BAD]
    passes = [where for where, verdict in seen.items() if verdict.kind == "PASS"]
    if exception and exception.get("silent"):
        passes += [where for where, verdict in seen.items() if verdict.reasons == [suite.SILENT]]
    if exception and "expected" in exception:
        kinds = {verdict.kind for verdict in seen.values()}
        expected = set(exception["expected"].split())
        told = f"is {', '.join(sorted(kinds))}"
        expect(kinds & expected and kinds <= expected | {"SKIP"}, f"{told}: look at its entry in exceptions.toml")
        raise AsExpected(told)
    expect(not bad, " | ".join(bad))
    reasons = {reason for verdict in seen.values() for reason in verdict.reasons}
    expect(passes, "passes nowhere, skipped: " + "; ".join(sorted(reasons)))


def write_reports(out, results, suites, seconds):
    with open(os.path.join(out, "results.json"), "w") as file:
        configurations = {where: suite.as_json(run) for where, run in results.items()}
        json.dump({"seconds": round(seconds, 1), "configurations": configurations}, file, indent=1)
    names = list(results)
    with open(os.path.join(out, "report.md"), "w") as file:
        file.write(f"| test | {' | '.join(names)} |\n|---|{'---|' * len(names)}\n")
        for test in (f"{name}.{test}" for name, tests in suites.items() for test in tests):
            cells = [results[where][test].kind if test in results[where] else "" for where in names]
            file.write(f"| {test} | {' | '.join(cells)} |\n")
