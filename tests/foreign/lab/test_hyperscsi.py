"""`targe lab hyperscsi` as a user runs it: every protocol has its samples, with loss and beside other traffic, and nothing is left."""

import json
import os
import signal
import subprocess
import time

import pytest

import servers

TARGE = servers.Targe.binary
PLAN = """
rounds = 2
seconds = 0.1
warmup = 0.05
link = ["100M", "unshaped"]
mtu = [1500, 9000]
workload = ["read 64K 4", "random-write 4K 1", "stripe-read 256K 1"]
loss = [0.0, 3.0]
traffic = [0, 50]
disturbed_workload = ["read 64K 4"]
copy = []
"""
PROTOCOLS = ("HyperSCSI", "iSCSI", "iSCSI, both digests")
# Longer than any run may take, seconds.
RUN_MAX_S = 120


def traces():
    """What an experiment could leave behind: interfaces and named namespaces."""
    links = json.loads(subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True).stdout)
    names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    return sorted(link["ifname"] for link in links), names


@pytest.fixture
def start(tmp_path):
    """Starts the experiment with a plan; its temporary files are its own."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    before = traces()

    def begin(plan, *prefix):
        (tmp_path / "plan.toml").write_text(plan)
        command = [*prefix, TARGE, "lab", "hyperscsi", f"--plan={tmp_path / 'plan.toml'}", f"--out={tmp_path / 'out'}"]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=dict(os.environ, TMPDIR=str(temporary)), preexec_fn=servers.die_with_parent)

    yield begin
    assert os.listdir(temporary) == [] and traces() == before


def result(tmp_path):
    return json.loads((tmp_path / "out" / "result.json").read_text())


def test_measures_every_protocol_on_every_path(start, tmp_path, root):
    process = start(PLAN)
    out, errors = process.communicate(timeout=RUN_MAX_S)
    assert process.returncode == 0, errors
    report = result(tmp_path)
    assert report["ended"] == "complete" and out.startswith(report["summary"][0])
    throughput = {}
    for metric in report["metrics"]:
        if metric["quantity"] == "throughput":
            about = dict(metric["circumstances"])
            throughput[about["link"], about["MTU"], about["disturbance"], about["workload"], about["protocol"]] = metric["samples"]
    for link in ("100M", "unshaped"):
        for mtu in ("1500", "9000"):
            for workload in ("read 64K 4", "random-write 4K 1", "stripe-read 256K 1"):
                for protocol in PROTOCOLS:
                    samples = throughput.pop((link, mtu, "none", workload, protocol))
                    assert len(samples) == 2 and min(samples) > 0
                    # Nothing is faster than the wire, but for what the bucket holds and how commands are cut off at the ends.
                    assert link == "unshaped" or max(samples) < 12.5 * 1.25, (mtu, workload, protocol, samples)
    for disturbance in ("0 % of frames lost", "3 % of frames lost", "0 % other traffic", "50 % other traffic"):
        for protocol in PROTOCOLS[:2]:
            assert min(throughput.pop(("100M", "1500", disturbance, "read 64K 4", protocol))) > 0
    assert not throughput
    quantities = {metric["quantity"] for metric in report["metrics"]}
    assert {"processor time of both ends", "voluntary context switches of both ends", "packets of both ends"} <= quantities
    bounds = next(section for section in report["sections"] if section["title"] == "Calibration")["tables"][0]["rows"]
    assert len(bounds) == 4
    absent = next(section for section in report["sections"] if section["title"] == "Not measured")["tables"][0]["rows"]
    assert all("absent" in row[1] for row in absent)
    versions = dict(report["machine"])["targe"]
    assert "commit " in versions or "without git" in versions


def test_encryption_and_ata_over_ethernet_are_measured_beside_hyperscsi(start, tmp_path, root):
    plan = PLAN.replace("loss = [0.0, 3.0]", "loss = [0.0]").replace("traffic = [0, 50]", 'traffic = []\ndisturbed_link = "unshaped"')
    plan = plan.replace("mtu = [1500, 9000]", "mtu = [9000]")
    process = start(plan + "encrypt = true\naoe = true\n")
    _, errors = process.communicate(timeout=RUN_MAX_S)
    assert process.returncode == 0, errors
    report = result(tmp_path)
    samples = {}
    for metric in report["metrics"]:
        about = dict(metric["circumstances"])
        samples.setdefault((about["protocol"], metric["quantity"]), []).append((about, metric["samples"]))
    encrypted, aoe = samples["HyperSCSI, encrypted", "throughput"], samples["ATA over Ethernet", "throughput"]
    # A stripe has several disks, and the target of ATA over Ethernet has one.
    assert len(encrypted) == 2 * 3 and len(aoe) == 2 * 2
    for about, values in encrypted + aoe:
        assert len(values) == 2 and min(values) > 0
        assert about["link"] == "unshaped" or max(values) < 12.5 * 1.25, (about, values)
    # The keys of a login are no cost of data, and so are not told as such.
    assert ("HyperSCSI, encrypted", "processor time of both ends") not in samples
    assert all(min(values) > 0 for _, values in samples["ATA over Ethernet", "processor time of both ends"])
    lost, = {about["link"] for about, _ in samples["iSCSI", "throughput"] if about["disturbance"] != "none"}
    assert lost == "unshaped"
    titles = [section["title"] for section in report["sections"]]
    assert "HyperSCSI, encrypted" in titles and "ATA over Ethernet" in titles
    absent = next(section for section in report["sections"] if section["title"] == "Not measured")["tables"][0]["rows"]
    assert not {"ATA over Ethernet", "encryption"} & {row[0]["text"] for row in absent}


def test_a_signal_leaves_a_partial_report(start, tmp_path, root):
    plan = PLAN.replace("rounds = 2", "rounds = 1000").replace("[0.0, 3.0]", "[]").replace("[0, 50]", "[]")
    process = start(plan.replace('["100M", "unshaped"]', '["unshaped"]'))
    # The calibrations of the link, 2 s, come before the first measurement.
    time.sleep(8)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "ended early" in errors
    assert "stopped in round" in result(tmp_path)["ended"]["early"] and result(tmp_path)["metrics"]


def test_without_rights_it_says_what_it_needs(start, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can give up rights on purpose")
    process = start(PLAN, "setpriv", "--bounding-set=-all", "--inh-caps=-all")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2 and "CAP_NET_RAW" in errors and not (tmp_path / "out").exists()
