"""The reports of the experiments as a reader sees them: in a browser, light and dark, on a wide screen and on a phone."""

import os
import pathlib
import subprocess

import pytest

import servers
from browser import CHECK, Browser

# Enough for every table and figure of a report, and no more: the figures themselves do not matter here.
WORKLOADS = '[[workload]]\naccess = "random"\nmix = "read"\nblock = "4K"\ndepth = 1\n[[workload]]\naccess = "sequential"\nmix = "read"\n' \
    'block = "1M"\ndepth = 4\n'
PLANS = {
    "digests": 'rounds = 2\nseconds = 0.1\nwarmup = 0.02\nmtu = [1500]\ndepth = [1, 8]\nblock = ["4K", "64K"]\nlink = ["1G", "unshaped"]\n',
    "risk": 'erl = [0, 1, 2]\ntrials = 26\ncontrols = 4\nlengths = [4096]\nrange = 2097152\nsessions = 4\n',
    "targets": f'rounds = 2\nseconds = 0.1\nwarmup = 0.02\nconformance = ["login-version"]\n{WORKLOADS}',
    "hyperscsi": 'rounds = 2\nseconds = 0.1\nwarmup = 0.05\nlink = ["100M", "unshaped"]\nmtu = [1500]\n'
                 'workload = ["read 64K 4", "random-write 4K 1"]\nloss = [0.0, 3.0]\ntraffic = [0, 50]\ndisturbed_workload = ["read 64K 4"]\n'
                 'copy = ["2 1M"]\n',
}
# The experiments that make network namespaces need root.
NEED_ROOT = {"digests", "targets", "hyperscsi"}
WIDTHS = (1280, 380)
SCHEMES = ("light", "dark")
# Longest that a run may take, seconds.
RUN_MAX_S = 180
# The pictures stay for a look at them.
PICTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "out", "pages")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(scope="module", params=PLANS)
def report(request, tmp_path_factory):
    """The report of a small run."""
    experiment, folder = request.param, tmp_path_factory.mktemp(request.param)
    if experiment in NEED_ROOT:
        request.getfixturevalue("root")
    (folder / "plan.toml").write_text(PLANS[experiment])
    command = [servers.Targe.binary, "lab", experiment, f"--plan={folder / 'plan.toml'}", f"--out={folder / 'out'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_MAX_S)
    assert done.returncode == 0, done.stderr
    return experiment, folder / "out" / "report.html"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_report_is_legible(browser, report, scheme, width):
    experiment, page = report
    browser.open(page, width, 900, scheme)
    # Everything is judged, what a reader has to unfold included.
    browser.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
    seen = browser.evaluate(CHECK)
    os.makedirs(PICTURES, exist_ok=True)
    browser.evaluate("document.querySelectorAll('details').forEach(part => part.open = false)")
    browser.picture(pathlib.Path(PICTURES) / f"{experiment}-{scheme}-{width}.png")
    assert browser.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == (scheme == "dark")
    assert seen["found"] == []
    assert seen["figures"] >= 1 and seen["texts"] > 100 and seen["least"] >= 4.5
    assert browser.complaints() == []


def test_a_bad_page_is_found_out(browser, tmp_path):
    """The check itself: a page with every fault that it looks for."""
    page = tmp_path / "bad.html"
    page.write_text("""<!DOCTYPE html><html lang="en"><title>bad</title><body style="background: #fff">
        <p style="color: #999">pale</p><p style="width: 2000px">wide</p>
        <figure><div class="scroll"><svg viewBox="0 0 100 100"><text x="500" y="10">outside</text></svg></div></figure>
        <figure><div class="scroll"><svg viewBox="0 0 100 100"><text class="label">rate</text><text class="label">bytes</text></svg></div></figure>
        <img src="http://127.0.0.1:9/none.png"><script>console.error("wrong")</script>""")
    browser.open(page, 380, 900, "light")
    found = " ".join(browser.evaluate(CHECK)["found"])
    for fault in ("contrast 2.", "px wide", "without a title", "without a text alternative", "without two axis labels", "an axis without a unit", "without its values",
                  "outside its plot"):
        assert fault in found, (fault, found)
    complaints = " ".join(browser.complaints())
    assert "wrong" in complaints and "127.0.0.1:9" in complaints
