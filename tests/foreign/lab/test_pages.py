"""The reports of the experiments as a reader sees them: in a browser, light and dark, on a wide screen and on a phone."""

import os
import pathlib

import pytest

from browser import CHECK, Browser
from quick_runs import PLANS

WIDTHS = (1280, 380)
SCHEMES = ("light", "dark")
# The pictures stay for a look at them.
PICTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "out", "pages")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(scope="module", params=PLANS)
def report(request):
    """The report of a quick run."""
    return request.param, request.getfixturevalue(f"quick_{request.param}").lab.out / "report.html"


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
