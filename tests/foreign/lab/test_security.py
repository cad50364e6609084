"""`targe lab security` as a user runs it: every protection that is here has its samples, the others a reason, and nothing is left."""

import itertools
import os
import shutil

import pytest

from lab_runs import CHARON, RUN_MAX_S, Lab, daemons, is_running, target_of, wait_for

# A hundred rounds, of which no test waits for more than the first.
LONG = 'rounds = 100\nseconds = 0.1\nwarmup = 0.0\naccess = ["read"]\nblock = ["4K"]\ndepth = [1]\nlink = ["unshaped"]\n'
SHORT = LONG.replace("rounds = 100", "rounds = 1")
EVERYWHERE = ("plain", "tls", "aead-encrypt", "aead-integrity")
TUNNELS = {"ipsec": "IPsec", "ipsec-3des": "IPsec, 3DES"}
QUANTITIES = {"throughput", "processor time", "processor time, user", "processor time, system"}


@pytest.fixture
def lab(tmp_path):
    return Lab("security", LONG, tmp_path)


def rows(result, title):
    found = [section for section in result["sections"] if section["title"] == title]
    return found[0]["tables"][0]["rows"] if found else []


def reasons(result):
    """Why each protection was not measured."""
    return {row[0]["text"]: row[1]["absent"] for row in rows(result, "Not measured")}


def test_measures_every_protection(quick_security):
    result = quick_security.result
    # A busy machine makes the base unsteady, and the report says so in place of the advice.
    assert result["summary"][0].startswith(("To encrypt iSCSI here, use ", "This run gives no headline for "))
    samples = {}
    for metric in result["metrics"]:
        about = dict(metric["circumstances"])
        samples[about["link"], about["access"], about["block"], about["depth"], about["protection"], metric["quantity"]] = metric["samples"]
    absent = reasons(result)
    tunnels = tuple(name for name, title in TUNNELS.items() if title not in absent)
    for link, access, block, depth in itertools.product(("100M", "unshaped"), ("socket", "read", "write"), ("512", "64K"), ("4",)):
        for protection in (*EVERYWHERE, *tunnels):
            for quantity in QUANTITIES:
                values = samples[link, access, block, depth, protection, quantity]
                assert len(values) == 2 and min(values) >= 0, (link, access, block, depth, protection, quantity)
            rate = samples[link, access, block, depth, protection, "throughput"]
            # Nothing is faster than the wire, but for what the bucket holds and how commands are cut off at the ends.
            assert min(rate) > 0 and (link == "unshaped" or max(rate) < 12.5 * 1.25), (access, block, depth, protection, rate)
    assert set(absent) <= set(TUNNELS.values()) and all(absent.values())
    published = rows(result, "Published figures")
    assert {row[1]["text"] for row in published} == {"Kamisaka, Yamaguchi, Oguchi", "this run"}


def test_a_proxy_is_measured_with_iscsi_alone(lab, root):
    plan = 'protection = ["plain", "aead-proxy"]\naccess = ["socket", "read", "write"]\n'
    lab.run(plan=LONG.replace("rounds = 100", "rounds = 2").replace('access = ["read"]\n', plan))
    result = lab.report()
    measured = {(about["access"], about["protection"]) for about in (dict(metric["circumstances"]) for metric in result["metrics"])}
    assert measured == {("socket", "plain"), *itertools.product(("read", "write"), ("plain", "aead-proxy"))}
    # A busy machine makes the base unsteady, and the summary then compares nothing.
    told = " ".join(result["summary"])
    assert "encrypted by a proxy" in told or "This run gives no headline for iSCSI " in told, told
    lab.expect_nothing_left()


def test_ipsec_in_user_space_says_so(lab, root):
    if not (os.path.exists(CHARON) and shutil.which("swanctl")):
        pytest.skip("strongSwan is not installed")
    lab.run(plan=SHORT)
    result = lab.report()
    esp = dict(result["machine"])["IPsec"]
    assert "kernel" in esp and not any(what.startswith("IPsec") for what in reasons(result))
    assert ("strongSwan" in esp) == any("ESP in user space" in caveat for caveat in result["caveats"])
    lab.expect_nothing_left()


def test_what_is_not_installed_is_absent_with_the_reason(lab, root):
    # The same machine without the programs of IPsec: an empty directory stands where they are, and PATH has no ip.
    empty = lab.folder / "empty"
    empty.mkdir()
    script = f'mount --bind {empty} /usr/sbin && PATH={empty} exec "$@"'
    process = lab.start(plan=SHORT, prefix=("unshare", "--mount", "sh", "-c", script, "sh"))
    _, errors = process.communicate(timeout=RUN_MAX_S)
    assert process.returncode == 0, errors
    result = lab.report()
    for name in TUNNELS.values():
        assert "strongSwan is not installed" in reasons(result)[name]
    protections = {dict(metric["circumstances"])["protection"] for metric in result["metrics"]}
    assert protections == set(EVERYWHERE)
    lab.expect_nothing_left()


def test_a_signal_leaves_a_partial_report(lab, root):
    lab.interrupt()
    lab.expect_nothing_left()


def test_nothing_is_left_when_the_experiment_is_killed(lab, root):
    before = daemons()
    run = lab.under_way()
    child = target_of(run.process)
    run.process.kill()
    run.end()
    wait_for("the end of the first child", lambda: not is_running(child))
    wait_for("the end of the daemons", lambda: daemons() <= before)
    wait_for("an empty folder", lambda: not os.listdir(lab.temporary))
    lab.expect_nothing_left()


def test_mistakes_are_refused_before_anything_starts(lab):
    for plan, told in [('protection = ["rot13"]\n', "protection"), ('access = ["erase"]\n', "access"), ('block = ["8M"]\n', "block")]:
        _, errors = lab.run(plan=plan, code=2)
        assert told in errors and "plan.toml" in errors
    assert not lab.out.exists()


def test_without_rights_it_says_what_it_needs(lab):
    if os.geteuid() != 0:
        pytest.skip("only root can give up rights on purpose")
    process = lab.start(prefix=("setpriv", "--bounding-set=-all", "--inh-caps=-all"))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2 and "CAP_NET_ADMIN" in errors and not lab.out.exists()
    lab.expect_nothing_left()
