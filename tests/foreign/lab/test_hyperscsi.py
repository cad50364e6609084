"""`targe lab hyperscsi` as a user runs it: every protocol has its samples, with loss and beside other traffic, and nothing is left."""

import itertools
import os

import pytest

from lab_runs import Lab

# A hundred rounds, of which no test waits for more than the first.
LONG = """
rounds = 100
seconds = 0.1
warmup = 0.05
link = ["unshaped"]
mtu = [1500]
workload = ["read 64K 4"]
loss = []
traffic = []
copy = []
"""
PROTOCOLS = ("HyperSCSI", "iSCSI", "iSCSI, both digests")
WORKLOADS = ("read 64K 4", "random-write 4K 1", "stripe-read 256K 1")
UNDISTURBED = list(itertools.product(("100M", "unshaped"), ("1500", "9000"), ("none",), WORKLOADS))
DISTURBANCES = ("0 % of frames lost", "3 % of frames lost", "0 % other traffic", "50 % other traffic")


@pytest.fixture
def lab(tmp_path):
    return Lab("hyperscsi", LONG, tmp_path)


def samples(report, quantity):
    """The samples of a quantity, by protocol and path."""
    found = {}
    for metric in report["metrics"]:
        about = dict(metric["circumstances"])
        if metric["quantity"] == quantity:
            found.setdefault(about["protocol"], {})[about["link"], about["MTU"], about["disturbance"], about["workload"]] = metric["samples"]
    return found


def section(report, title):
    return next(section for section in report["sections"] if section["title"] == title)["tables"][0]["rows"]


def expect_below_the_wire(paths):
    """Nothing is faster than the wire, but for what the bucket holds and how commands are cut off at the ends."""
    for path, values in paths.items():
        assert len(values) == 2 and min(values) > 0, (path, values)
        assert path[0] == "unshaped" or max(values) < 12.5 * 1.25, (path, values)


def test_measures_every_protocol_on_every_path(quick_hyperscsi):
    report = quick_hyperscsi.result
    throughput = samples(report, "throughput")
    for protocol in PROTOCOLS:
        paths = throughput[protocol]
        undisturbed = {path: paths.pop(path) for path in UNDISTURBED}
        expect_below_the_wire(undisturbed)
    for protocol in PROTOCOLS[:2]:
        for disturbance in DISTURBANCES:
            assert min(throughput[protocol].pop(("100M", "1500", disturbance, "read 64K 4"))) > 0
    assert not any(throughput[protocol] for protocol in PROTOCOLS)
    quantities = {metric["quantity"] for metric in report["metrics"]}
    assert {"processor time of both ends", "voluntary context switches of both ends", "packets of both ends"} <= quantities
    # Bare frames of a disk are measured where they are the bound.
    bounds = section(report, "Calibration")
    assert [("100" in row[0]["text"], "number" in row[5]) for row in bounds] == [(True, False), (True, False), (False, True), (False, True)]
    assert all("absent" in row[1] for row in section(report, "Not measured"))
    versions = dict(report["machine"])["targe"]
    assert "commit " in versions or "without git" in versions


def test_encryption_and_ata_over_ethernet_are_measured_beside_hyperscsi(quick_hyperscsi):
    report = quick_hyperscsi.result
    throughput, processor = samples(report, "throughput"), samples(report, "processor time of both ends")
    # A stripe has several disks, and the target of ATA over Ethernet has one.
    assert set(throughput["HyperSCSI, encrypted"]) == set(UNDISTURBED)
    assert set(throughput["ATA over Ethernet"]) == {path for path in UNDISTURBED if not path[3].startswith("stripe")}
    expect_below_the_wire(throughput["HyperSCSI, encrypted"])
    expect_below_the_wire(throughput["ATA over Ethernet"])
    # The keys of a login are no cost of data, and so are not told as such.
    assert "HyperSCSI, encrypted" not in processor
    assert all(min(values) > 0 for values in processor["ATA over Ethernet"].values())
    titles = [section["title"] for section in report["sections"]]
    assert "HyperSCSI, encrypted" in titles and "ATA over Ethernet" in titles
    assert not {"ATA over Ethernet", "encryption"} & {row[0]["text"] for row in section(report, "Not measured")}


def test_frames_are_lost_on_a_link_without_a_rate_limit_too(quick_copies):
    for protocol in PROTOCOLS[:2]:
        paths = samples(quick_copies.result, "throughput")[protocol]
        assert min(paths["unshaped", "1500", "0 % of frames lost", "read 64K 4"]) > 0


def test_a_signal_leaves_a_partial_report(lab, root):
    lab.interrupt()
    lab.expect_nothing_left()


def test_without_rights_it_says_what_it_needs(lab):
    if os.geteuid() != 0:
        pytest.skip("only root can give up rights on purpose")
    process = lab.start(prefix=("setpriv", "--bounding-set=-all", "--inh-caps=-all"))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2 and "CAP_NET_RAW" in errors and not lab.out.exists()
    lab.expect_nothing_left()
