"""`targe lab digests` as a user runs it: the whole report, what it leaves behind, and what it refuses."""

import csv
import itertools
import os
import signal
import subprocess

import pytest

import servers
from lab_runs import Lab, is_running, target_of, wait_for

TARGE = servers.Targe.binary
# For a path that is as it is.
PLAN = """
rounds = 2
seconds = 0.1
warmup = 0.02
depth = [1, 8]
block = ["4K"]
mix = [50]
load = [100, 60]
"""
SETTINGS = ("none", "header", "data", "both")
# The duration of a measurement of the quick run, its blocks, and how far a number of random times may lie from its mean.
SECONDS = 0.1
BLOCKS = {"4K": 4096, "64K": 65536}
SIGMAS = 4
# A hundred rounds, of which no test waits for more than the first.
LONG = 'rounds = 100\nseconds = 0.1\nwarmup = 0.0\nmtu = [1500]\ndepth = [8]\nblock = ["4K"]\nload = [100]\nlink = ["unshaped"]\n'


@pytest.fixture
def lab(tmp_path):
    return Lab("digests", PLAN, tmp_path)


def test_measures_every_cell(quick_digests):
    result, lab = quick_digests.result, quick_digests.lab
    throughput = {tuple(value for _, value in metric["circumstances"]): metric["samples"] for metric in result["metrics"]
                  if metric["quantity"] == "throughput"}
    for link, mtu, depth, block, digests in itertools.product(("1G", "unshaped"), ("1500", "9000"), ("1", "8"), BLOCKS, SETTINGS):
        samples = throughput[link, mtu, depth, block, "50 % reads", "100 %", digests]
        assert len(samples) == 2 and min(samples) > 0
    offered = {tuple(value for _, value in metric["circumstances"]): metric["samples"] for metric in result["metrics"]
               if metric["quantity"] == "offered load"}
    # A lower load has the greatest depth, and offers the same to each setting: 60 % of what none reached, give or take its random times.
    assert set(offered) == {cell for cell in throughput if cell[5] == "60 %" and cell[2] == "8"}
    assert len(offered) == 2 * 2 * 2 * len(SETTINGS)
    shares = []
    for (link, mtu, depth, block, mix, load, _), samples in offered.items():
        same = offered[link, mtu, depth, block, mix, load, "none"]
        full = throughput[link, mtu, depth, block, mix, "100 %", "none"]
        for mine, others, whole in zip(samples, same, full):
            # Commands come at random times: the fewer of them are due, the farther can their number be from what it must be.
            due = 0.6 * whole * 1e6 * SECONDS / BLOCKS[block]
            noise = SIGMAS / due ** 0.5
            assert abs(mine / others - 1) < 0.2 + noise, (link, mtu, block, mine, others)
            assert abs(mine / whole - 0.6) < 0.2 + 0.6 * noise, (link, mtu, block, mine, whole)
            shares.append(mine / whole)
    # All cells together have so many commands that chance does not hide another load.
    assert abs(sum(shares) / len(shares) - 0.6) < 0.1, shares
    lower = next(section for section in result["sections"] if section["title"] == "Lower loads")
    assert len(lower["tables"]) == 2 * 4 and all(len(table["rows"]) == 2 for table in lower["tables"])
    quantities = {metric["quantity"] for metric in result["metrics"]}
    assert {"processor time of the target", "processor time of the initiator", "latency, median", "latency, 99th percentile"} <= quantities
    shaped = [row for section in result["sections"] if section["title"] == "Calibration" for row in section["tables"][0]["rows"]
              if "number" in row[-1]]
    assert len(shaped) == 2
    # How busy this machine is decides how exact the shaper is (test_calibration); beyond 1 % the report has to say so.
    worst = max(abs(row[-1]["number"]) for row in shaped)
    assert (worst < 1) == (not any("deviates" in caveat for caveat in result["caveats"]))
    with open(lab.out / "samples.csv", newline="") as file:
        assert sum(1 for _ in csv.DictReader(file)) == sum(len(metric["samples"]) for metric in result["metrics"])


def test_a_signal_leaves_a_partial_report(lab, root):
    lab.interrupt(plan=LONG)
    lab.expect_nothing_left()


def test_a_target_that_dies_leaves_a_report_that_says_so(lab, root):
    run = lab.under_way(plan=LONG)
    os.kill(target_of(run.process), signal.SIGKILL)
    told = run.end()
    assert run.process.returncode == 1 and "the target ended: signal: 9" in told, told
    result = lab.report()
    assert "the target ended" in result["ended"]["early"] and result["metrics"]
    lab.expect_nothing_left()


def test_nothing_is_left_when_the_experiment_is_killed(lab, root):
    run = lab.under_way(plan=LONG)
    target = target_of(run.process)
    assert is_running(target) and os.listdir(lab.temporary)
    run.process.kill()
    run.end()
    wait_for("the target's end", lambda: not is_running(target))
    wait_for("an empty folder", lambda: not os.listdir(lab.temporary))
    lab.expect_nothing_left()


def test_without_rights_it_says_both_ways_out(lab):
    if os.geteuid() != 0:
        pytest.skip("only root can give up rights on purpose")
    # An ordinary user must be able to run the binary and to write the plan's folder.
    probe = subprocess.run(["setpriv", "--bounding-set=-all", "--inh-caps=-all", TARGE, "lab", "digests", f"--out={lab.out}"],
                           capture_output=True, text=True, timeout=60)
    assert probe.returncode == 2 and "root" in probe.stderr and "iscsi://" in probe.stderr
    assert not lab.out.exists()
    lab.expect_nothing_left()


def test_a_path_named_by_a_url_is_only_read(lab, tmp_path):
    with servers.Targe(tmp_path / "target", servers.Export()) as target:
        before = target.medium_digest()
        lab.run(target.url())
        assert target.medium_digest() == before
    result = lab.report()
    assert result["ended"] == "complete" and any("Only reads" in caveat for caveat in result["caveats"])
    mixes = {dict(metric["circumstances"])["mix"] for metric in result["metrics"]}
    links = {dict(metric["circumstances"])["link"] for metric in result["metrics"]}
    assert (mixes, links) == ({"reads"}, {"as it is"})
    # A busy machine makes the base unsteady, at full load or at lower loads. The report then says so in place of the advice for that load.
    advice = [sentence for sentence in result["summary"] if sentence.startswith(("On this path: ", "This run gives no headline for this path, "))]
    assert len(advice) == 1 and ("Both digests cost " in advice[0] or "the machine was not steady" in advice[0]), result["summary"]
    negotiated, = [section for section in result["sections"] if section["title"] == "What was negotiated"]
    assert {row[0]["text"]: (row[1]["text"], row[2]["text"]) for row in negotiated["tables"][0]["rows"]} == {
        "digests: none": ("None", "None"), "digests: header": ("CRC32C", "None"), "digests: data": ("None", "CRC32C"),
        "digests: both": ("CRC32C", "CRC32C")}


def test_settings_that_a_target_refuses_are_not_offered(lab, tmp_path):
    with servers.Targe(tmp_path / "target", servers.Export(digests="required")) as target:
        lab.run(target.url())
    result = lab.report()
    assert any("does not offer none" in sentence for sentence in result["summary"]), result["summary"]
    assert {dict(metric["circumstances"])["digests"] for metric in result["metrics"]} == {"both"}
    refused = next(section for section in result["sections"] if section["title"] == "Not offered")
    assert [row[0]["text"] for row in refused["tables"][0]["rows"]] == ["none", "header", "data"]


def test_a_disk_with_a_partition_table_is_written_only_by_force(lab, tmp_path):
    with servers.Targe(tmp_path / "target", servers.Export()) as target:
        with open(target.medium_path(), "r+b") as medium:
            medium.seek(510)
            medium.write(b"\x55\xaa")
        before = target.medium_digest()
        _, errors = lab.run(target.url(), "--write", code=2)
        assert "partition table" in errors and "--force" in errors
        assert target.medium_digest() == before and not lab.out.exists()
        lab.run(target.url(), "--write", "--force")
        assert target.medium_digest() != before
    assert {dict(metric["circumstances"])["mix"] for metric in lab.report()["metrics"]} == {"50 % reads"}


def test_mistakes_are_refused_before_anything_starts(lab):
    for plan, told in [("round = 3\n", "round"), ("link = [\"fast\"]\n", "link"), ("seconds = 0\n", "seconds")]:
        _, errors = lab.run(plan=plan, code=2)
        assert told in errors and "plan.toml" in errors
    _, errors = lab.run("http://127.0.0.1/", code=2)
    assert "iscsi://" in errors
    _, errors = lab.run("iscsi://127.0.0.1:9/iqn.2026-11.org.targe:none/0", code=1)
    assert "127.0.0.1:9" in errors
    assert not lab.out.exists()
