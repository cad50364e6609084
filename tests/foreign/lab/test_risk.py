"""`targe lab risk` against targets that others wrote: the matrix must be right for them too."""

import json
import subprocess

import pytest
import servers

# Small enough for each target to be done in about ten seconds, and no fault that makes a target wait for bytes that never come.
FAULTS = ["read-data-bit", "read-data-swap", "read-lba-bit", "write-data-bit", "write-data-pair", "write-lba-bit"]
PLAN = {"digests": ["none", "both"], "erl": [0], "faults": FAULTS, "trials": 60, "controls": 12, "lengths": [4096], "range": 4 << 20,
        "sessions": 6, "timeout_ms": 20000}


def outcome(report, digests, quantity):
    """The count of one outcome with these digests."""
    for metric in report["metrics"]:
        if ["digests", digests] in metric["circumstances"] and metric["quantity"] == quantity:
            return metric["samples"][0]
    raise KeyError(f"{digests}, {quantity}: not in the report")


def negotiated(report):
    """The digests that the sessions of each cell agreed on, as the report says."""
    (section,) = (section for section in report["sections"] if section["title"] == "What was negotiated")
    agreed = {}
    for table in section["tables"]:
        titles = [column["title"] for column in table["columns"]]
        for row in table["rows"]:
            cells = dict(zip(titles, (cell["text"] for cell in row)))
            agreed.setdefault(cells["session"], set()).update(cells[name] for name in ("HeaderDigest", "DataDigest"))
    return agreed


@pytest.mark.parametrize("kind", ["targe", "tgt"])
def test_silent_damage_is_found_without_digests_and_none_with_both(tmp_path, kind, seed):
    plan = tmp_path / "plan.toml"
    plan.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in (PLAN | {"seed": seed}).items()))
    export = servers.Export(luns=(servers.Lun(size=16 * servers.MIB),))
    with servers.KINDS[kind](tmp_path / "server", export) as server:
        command = [servers.Targe.binary, "lab", "risk", server.url(), "--write", "--plan", str(plan), "--out", str(tmp_path / "out")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, f"seed {seed}: {done.stderr}; {server.log_tail()}"
    report = json.loads((tmp_path / "out" / "result.json").read_text())
    agreed = negotiated(report)
    assert agreed == {"digests none, ErrorRecoveryLevel 0": {"None"}, "digests both, ErrorRecoveryLevel 0": {"CRC32C"}}, agreed
    for digests in ("none", "both"):
        counts = {quantity: outcome(report, digests, quantity) for quantity in (
            "injected", "detected and recovered", "detected and reported", "silent and harmless", "silent and wrong",
            "connections dropped", "false alarms", "timed out", "unexplained blocks")}
        told = f"{kind}, digests {digests}, seed {seed}: {counts}"
        injected, recovered, reported, harmless, wrong, dropped, alarms, late, unexplained = counts.values()
        assert injected == recovered + reported + harmless + wrong, told
        assert alarms == unexplained == 0, told
        if digests == "none":
            # A session whose command timed out is closed.
            assert wrong > injected / 2 and dropped <= late, told
        else:
            assert wrong == harmless == 0, told
            if kind != "targe":
                # tgt drops the connection on every digest error. targe answers wrong data of a write with a Reject and closes nothing itself.
                assert dropped == injected, told


def test_a_disk_with_a_file_system_is_refused(tmp_path):
    export = servers.Export(luns=(servers.Lun(size=16 * servers.MIB),))
    with servers.Targe(tmp_path / "server", export) as server:
        with open(server.medium_path(), "r+b") as medium:
            medium.write(b"XFSB")
        command = [servers.Targe.binary, "lab", "risk", server.url(), "--write", "--out", str(tmp_path / "out")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "XFS" in done.stderr and "--force" in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()
