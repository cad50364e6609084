"""`targe lab targets` as a user runs it: targets that others wrote, one that is absent, one that dies, and bad rival files."""

import os

import pytest

import servers
from lab_runs import RUN_MAX_S, TARGE, Lab, disks, wait_for
from quick_runs import PLANS, WORKLOADS
from rival_files import ABSENT, MORTAL, REFUSES_DIGESTS, written

QUICK = PLANS["targets"]
# With digests, and sessions that do nothing.
WHOLE = ('rounds = 2\nseconds = 0.1\nwarmup = 0.02\nconformance = []\nidle_sessions = [1, 5]\n' + WORKLOADS
         + WORKLOADS.replace("depth =", 'digests = "both"\ndepth ='))
# A hundred rounds, of which no test waits for more than the first.
LONG = "rounds = 100\nseconds = 0.1\nwarmup = 0.02\nconformance = []\n" + WORKLOADS
# Five rounds and the one that counts: a target dies behind the first.
FIVE = LONG.replace("rounds = 100", "rounds = 5")
ONE_ROUND_PERCENT = 16


@pytest.fixture
def lab(tmp_path):
    return Lab("targets", WHOLE, tmp_path)


@pytest.fixture
def rivals(tmp_path):
    """Adds rival files; what it returns is the option that names them."""
    return lambda **texts: written(tmp_path, **texts)


def rates(result):
    """The samples of the rate of commands, by target."""
    found = {}
    for metric in result["metrics"]:
        if metric["quantity"] == "commands":
            found.setdefault(dict(metric["circumstances"])["target"], []).append(metric["samples"])
    return found


def states(result):
    """What the table of the targets says of each."""
    section = next(section for section in result["sections"] if section["title"] == "Targets")
    return {row[0]["text"]: row[-1] for row in section["tables"][0]["rows"]}


def children_of(process):
    """The processes that an experiment has started for its targets: each has the name of a target in its environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environment:
                if f"example:tgt-{process.pid}".encode() in environment.read():
                    found.append(int(pid))
        except OSError:
            continue
    return found


def test_compares_targets_of_others_and_lists_what_is_absent(quick_targets):
    result = quick_targets.result
    assert "targe, tgt and istgt" in result["summary"][0], result["summary"]
    found = rates(result)
    assert set(found) == {"targe", "tgt", "istgt", "bare echo"}
    for target in ("targe", "tgt", "istgt"):
        assert [len(samples) for samples in found[target]] == [2, 2] and min(map(min, found[target])) > 0
    told = states(result)
    assert told["Absent"] == {"absent": "absent: the program no-such-target is not there"}
    assert "this is no target" in told["Mute"]["absent"]
    assert any("Absent (the program no-such-target is not there)" in text for text in result["summary"])
    quantities = {metric["quantity"] for metric in result["metrics"]}
    assert {"latency, 99th percentile", "processor time of the target for each command", "resident memory of the target",
            "voluntary context switches of the target for each command"} <= quantities
    calls = next(section for section in result["sections"] if section["title"].startswith("System calls"))["tables"][0]
    for cell in (cell for row in calls["rows"] for cell in row[1:]):
        # In a namespace of users the kernel refuses to count, and the report says so.
        assert cell.get("number", 1) > 0 and ("number" in cell or cell["absent"].startswith("not measured: "))
    # What was negotiated with targets of others, and not what the plan asked for.
    sessions = section(result, "What was negotiated")["tables"][0]["rows"]
    assert {row[0]["text"]: (row[1]["text"], row[2]["text"]) for row in sessions} == {
        f"{target}, digests: none": ("None", "None") for target in ("targe", "tgt", "istgt")}
    verdicts = next(section for section in result["sections"] if section["title"] == "Conformance")["tables"][0]["rows"]
    assert [row[1]["number"] + row[2]["number"] for row in verdicts] == [1, 1, 1]


def section(result, title):
    return next(section for section in result["sections"] if section["title"] == title)


def test_digests_and_idle_sessions_are_measured_for_each_target(lab, rivals, root):
    out, _ = lab.run(rivals(header=REFUSES_DIGESTS), "--rival=tgt", "--rival=header")
    result = lab.report()
    assert result["ended"] == "complete"
    found = rates(result)
    for target in ("targe", "tgt", "bare echo"):
        assert [len(samples) for samples in found[target]] == [2] * 4
    # What a target refuses is not measured, and the rest of it is.
    assert [len(samples) for samples in found["header"]] == [2] * 2
    costs, = section(result, "Cost of digests")["tables"]
    assert len(costs["rows"]) == 2
    for row in costs["rows"]:
        assert all("estimate" in cell for cell in row[1:5]), row
        assert all(cell["absent"].startswith("not measured: ") for cell in row[5:7]), row
    # A busy machine makes the base unsteady, and the summary then tells no cost.
    assert "Both digests take this much of the rate of commands: targe " in out or "since the machine was not steady: " in out
    sessions, ends = section(result, "Idle sessions")["tables"]
    assert [row[:2] for row in sessions["rows"][:2]] == [[{"text": "targe"}, {"number": 1.0}], [{"text": "targe"}, {"number": 5.0}]]
    assert len(sessions["rows"]) == 6 and all(cell["number"] > 0 for row in sessions["rows"][:4] for cell in row[2:4])
    assert all("number" in cell for row in ends["rows"][:2] for cell in row[1:])
    assert "number" in sessions["rows"][4][2] and sessions["rows"][5][2]["absent"].startswith("not measured: session 3: ")
    assert (lab.out / "plan.toml").read_text() == result["plan"]
    lab.expect_nothing_left()


def test_the_rivals_of_bench_run(lab, root, tmp_path, monkeypatch):
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "targe-other-build").symlink_to(TARGE)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    lab.run(f"--rivals={servers.ROOT}/bench/rivals", "--rival=ram", "--rival=other-build", plan=QUICK)
    result = lab.report()
    assert {"targe", "ram", "other-build"} <= set(rates(result)) and set(states(result)) == {"targe", "targe, RAM disk", "targe, other build"}
    lab.expect_nothing_left()


def test_a_target_that_dies_is_reported_and_the_others_go_on(lab, rivals, root, tmp_path, monkeypatch):
    ends = tmp_path / "ends"
    monkeypatch.setenv("MORTAL_ENDS", str(ends))
    run = lab.under_way(rivals(mortal=MORTAL), "--rival=mortal", plan=FIVE, percent=ONE_ROUND_PERCENT)
    ends.touch()
    told = run.end(RUN_MAX_S)
    assert run.process.returncode == 0, told
    result = lab.report()
    assert result["ended"] == "complete"
    told = next(text for text in result["summary"] if text.startswith("Mortal is not compared to the end: "))
    assert "it failed in round" in told and "exit status: 3" in told and "the disk is on fire" in told
    assert states(result)["targe"] == {"text": "measured"}
    found = rates(result)
    assert [len(samples) for samples in found["targe"]] == [5, 5]
    assert all(0 < len(samples) < 5 for samples in found["mortal"])
    lab.expect_nothing_left()


def test_a_signal_leaves_a_partial_report(lab, root):
    assert rates(lab.interrupt("--rival=tgt", plan=LONG))["tgt"]
    lab.expect_nothing_left()


def test_nothing_is_left_when_the_experiment_is_killed(lab, root):
    before = disks()
    run = lab.under_way("--rival=tgt", plan=LONG)
    assert children_of(run.process) and disks() - before
    run.process.kill()
    run.end()
    wait_for("the end of the targets", lambda: not children_of(run.process))
    wait_for("the end of their disks", lambda: disks() <= before)
    lab.expect_nothing_left()


def test_bad_rival_files_are_refused_before_anything_starts(lab, rivals):
    for text, told in [("title = 1\n", "title"), (ABSENT + "speed = 1\n", "speed"), (ABSENT.replace("serve", "# serve"), "serve: expected"),
                       ("not toml", "bad.toml")]:
        _, errors = lab.run(rivals(bad=text), code=2)
        assert "bad.toml" in errors and told in errors
    rivals(bad=ABSENT)
    _, errors = lab.run("--rival=nobody", code=2)
    assert "nobody" in errors and "istgt" in errors
    _, errors = lab.run(plan="rounds = 0\n", code=2)
    assert "plan.toml" in errors and "rounds" in errors
    assert not lab.out.exists()
    lab.expect_nothing_left()
