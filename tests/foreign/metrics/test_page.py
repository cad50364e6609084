"""The status page of a daemon under load in headless Chromium, as an administrator sees it: light and dark, wide and on a phone. What it shows is
what the API told it, it complains of nothing, and it can be used without a mouse and without eyes.
"""

import base64
import itertools
import json
import math
import os
import pathlib
import subprocess

import pytest

import browser as browser_module
import servers
from browser import CHECK, Browser
from hostile.initiator import Session
from monitored import IQN, PATIENCE_S, TARGE, TOKEN, Daemon, wait
from verdicts import expect

WIDTHS = (1280, 380)
SCHEMES = ("light", "dark")
# The pictures stay for a look at them.
PICTURES = pathlib.Path(servers.ROOT) / "out" / "pages"
ADMIN = "fedcba9876543210-admin"
# The upper limits of the buckets of latencies, which docs/admin-api.json tells.
LIMITS_US = [50, 100, 250, 500, 1e3, 2500, 5e3, 1e4, 25e3, 5e4, 1e5, 25e4, 5e5, 1e6, 25e5, 5e6, 1e7, math.inf]

# What makes a page usable with a screen reader and a keyboard; the contrast is judged by CHECK.
ACCESSIBLE = """
(() => {
  const found = [];
  const say = (what, element) => found.push(what + ': ' + element.outerHTML.replace(/\\s+/g, ' ').slice(0, 120));
  const seen = element => element.checkVisibility();
  const all = selector => [...document.querySelectorAll(selector)].filter(seen);
  const texts = ids => (ids ?? '').split(' ').map(id => document.getElementById(id)?.textContent ?? '').join(' ').trim();
  const label = element => element.getAttribute('aria-label') || texts(element.getAttribute('aria-labelledby'));
  const name = element => label(element) || [...(element.labels ?? [])].map(label => label.textContent).join(' ').trim() || element.textContent.trim();
  if (!document.documentElement.lang) found.push('the page has no language');
  if (!document.title) found.push('the page has no title');
  for (const landmark of ['header', 'main', 'footer']) if (all(landmark).length !== 1) found.push(`${all(landmark).length} times ${landmark}`);
  for (const element of all('nav, section, [role=region]')) if (!label(element)) say('a region without a name', element);
  let level = 0;
  for (const heading of all('h1, h2, h3, h4')) {
    const now = Number(heading.tagName[1]);
    if (now > level + 1) say(`a heading of level ${now} after one of level ${level}`, heading);
    level = now;
  }
  if (all('h1').length !== 1) found.push('not one heading of level 1');
  for (const control of all('input, select, button, a[href]')) {
    if (!name(control)) say('a control without a name', control);
    const box = control.getBoundingClientRect();
    if (box.height < 22 && control.type !== 'checkbox' && !control.closest('.skip')) say(`a control of ${box.height} px`, control);
    if (control.tabIndex < 0) say('a control that the keyboard does not reach', control);
  }
  for (const image of all('img')) if (image.getAttribute('alt') === null) say('an image without an alternative', image);
  for (const image of all('svg')) if (image.getAttribute('role') !== 'img' || !name(image)) say('a chart without an alternative', image);
  for (const table of document.querySelectorAll('table')) {
    if (!table.caption?.textContent.trim()) say('a table without a caption', table);
    for (const head of table.querySelectorAll('th')) if (!head.scope) say('a header without a scope', head);
    for (const row of table.tBodies[0].rows) if (row.cells[0].tagName !== 'TH') say('a row without a header', row);
  }
  const ids = [...document.querySelectorAll('[id]')].map(element => element.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) found.push(`two elements are ${id}`);
  for (const link of all('a[href^="#"]')) if (!document.getElementById(link.hash.slice(1))) say('a link that leads nowhere', link);
  // What is announced must not change with every look at the daemon.
  for (const live of document.querySelectorAll('[aria-live], [role=status], [role=alert]'))
    if (live.querySelector('table, svg, time')) say('values are announced', live);
  for (const element of document.querySelectorAll('[style], style, script:not([src])')) say('the policy forbids it', element);
  return found;
})()
"""

# The texts of a table's body, as lists of cells of lists of lines.
TABLE = """[...document.querySelectorAll('#{id} tbody tr')].map(row => [...row.cells].map(cell => [...cell.children].map(line => line.textContent)))"""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    with Daemon(tmp_path_factory.mktemp("page")) as running:
        yield running


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


def text_of(browser, name):
    return browser.evaluate(f"document.getElementById('{name}').textContent")


def table(browser, name):
    return browser.evaluate(TABLE.replace("{id}", name))


def opened(browser, url, width=1280, scheme="light"):
    browser.open(url, width, 900, scheme)
    wait("the page shows the daemon", lambda: text_of(browser, "connection") == "Live")


def answers(browser, path):
    """What the page was told in answer to requests for a path, the oldest first. Reading the value lets the browser's events in."""
    browser.evaluate("0")
    asked = {event["params"]["requestId"] for event in browser.events if event["method"] == "Network.responseReceived"
             and event["params"]["response"]["url"].endswith(path)}
    done = [event["params"]["requestId"] for event in browser.events if event["method"] == "Network.loadingFinished"]
    bodies = []
    for request in [one for one in done if one in asked]:
        body = browser.ask("Network.getResponseBody", {"requestId": request})
        bodies.append(json.loads(base64.b64decode(body["body"]) if body["base64Encoded"] else body["body"]))
    return bodies


def every_refusal_is_noted(browser):
    """Whether no request of the page is open, and the console has noted each that was refused for its token."""
    browser.evaluate("0")
    of = lambda *methods: [event["params"] for event in browser.events if event["method"] in methods]
    asked = {request["requestId"] for request in of("Network.requestWillBeSent")}
    ended = {request["requestId"] for request in of("Network.loadingFinished", "Network.loadingFailed")}
    refused = [answer for answer in of("Network.responseReceived") if answer["response"]["status"] == 401]
    return asked <= ended and sum("401" in one for one in browser.complaints()) == len(refused)


def judge(browser, picture, width, scheme):
    expect(browser.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == (scheme == "dark"), "another scheme")
    faults = browser.evaluate(ACCESSIBLE) + [fault for fault in browser.evaluate(CHECK)["found"] if "figure" not in fault and "plot" not in fault]
    PICTURES.mkdir(parents=True, exist_ok=True)
    browser.picture(PICTURES / f"{picture}-{scheme}-{width}.png")
    expect(not faults, f"{picture}, {scheme}, {width} px: {faults}")
    expect(not browser.complaints(), f"{picture}: {browser.complaints()}")


def load(daemon, lun, *options):
    return subprocess.Popen([TARGE, "bench", daemon.url(lun), "--time=86400", "--write", *options], stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=servers.die_with_parent)


def test_the_page_shows_a_daemon_under_load(daemon, browser):
    loads = [load(daemon, 0, "--rw", "mixed:70", "--random"), load(daemon, 1, "--bs", "64K", "--rw", "write")]
    try:
        opened(browser, f"http://127.0.0.1:{daemon.http}/")
        wait("the chart has some moments", lambda: browser.evaluate("document.querySelector('path.read').getAttribute('d').split('L').length") > 2)
        wait("both sessions are shown", lambda: len(table(browser, "sessions-table")) == 2)
        for width in WIDTHS:
            for scheme in SCHEMES:
                browser.ask("Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False})
                browser.ask("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
                judge(browser, "status", width, scheme)
        judge_values(browser)
    finally:
        for one in loads:
            one.terminate()
            one.wait(PATIENCE_S)
    # Without load, every value is that of the admin socket as well.
    wait("no session is left", lambda: table(browser, "sessions-table") == [])
    expect(text_of(browser, "sessions-table").endswith("No initiator is logged in."), "no sentence for no session")
    told = {f"metrics/{lun['lun']}": f"{lun['commands']:,}" for lun in daemon.ask("luns")["luns"]}
    wait("the commands are those of the socket", lambda: {row[0][0]: row[7][0] for row in table(browser, "luns-table")} == told)


def judge_values(browser):
    """The page shows what the last answers say, and rates that follow from the last two."""
    def agree():
        # One look at the page; then no later answer may have come before the answers are read.
        shown = browser.evaluate(f"({{ luns: {TABLE.replace('{id}', 'luns-table')}, sessions: {TABLE.replace('{id}', 'sessions-table')} }})")
        bodies, open_sessions = answers(browser, "/luns"), answers(browser, "/sessions")
        if len(bodies) < 2 or not open_sessions:
            return None
        before, after = bodies[-2:]
        expected = [f"{lun['commands']:,}" for lun in after["luns"]]
        if [row[7][0] for row in shown["luns"]] != expected:
            return None
        return before["luns"], after["luns"], shown, open_sessions[-1]["sessions"]

    before, after, shown, sessions = wait("the page shows what the last answer says", agree)
    for was, now, row in zip(before, after, shown["luns"]):
        for op, column in (("read", 5), ("write", 6)):
            was_op, now_op = (next(one for one in lun["operations"] if one["op"] == op) for lun in (was, now))
            commands = now_op["commands"] - was_op["commands"]
            expected = None if commands == 0 else (now_op["total_us"] - was_op["total_us"]) / commands
            expect(close(row[column][0], expected), f"{op} latency: the page says {row[column][0]}, the API {expected} µs")
            limit = p99(was_op, now_op)
            expect(percentile_of(row[column][1]) == limit, f"{op}: the page says {row[column][1]}, the API {limit} µs")
        # The rates have the ratio of what was counted, however long it took.
        moved = [now[name] - was[name] for name in ("read_bytes", "write_bytes")]
        rates = [bytes_of(row[column][1]) for column in (3, 4)]
        if moved[1] and rates[1]:
            expect(abs(moved[0] / moved[1] - rates[0] / rates[1]) <= 0.02 * max(1, moved[0] / moved[1]), f"moved {moved}, and the page says {rates}")
    expect(any(bytes_of(row[4][1]) > 0 for row in shown["luns"]), "nothing is written under load")
    expect([row[0][0] for row in shown["sessions"]] == [one["initiator"] for one in sessions], f"sessions: {shown['sessions']}")


def close(text, microseconds):
    """Whether a text with three digits stands for this time."""
    if microseconds is None:
        return text == "–"
    # Commands that the reactor answers in the wake-up that received them count with a latency of zero.
    if microseconds < 1:
        return text == "immediate"
    number, _, unit = text.partition(" ")
    if not unit:
        return False
    value = float(number) * {"µs": 1, "ms": 1e3, "s": 1e6}[unit]
    return abs(value - microseconds) <= max(0.006 * microseconds, 0.006)


def p99(was, now):
    """The limit of the bucket that the 99th percentile is in, in microseconds; None without commands."""
    moved = [after - before for before, after in zip(was["buckets"], now["buckets"])]
    seen = itertools.accumulate(moved)
    return next(limit for limit, below in zip(LIMITS_US, seen) if below >= 0.99 * sum(moved)) if sum(moved) else None


def percentile_of(text):
    """The limit that the page shows, in microseconds; None for none."""
    if text in ("", "p99 > 10 s"):
        return math.inf if text else None
    number, unit = text.removeprefix("p99 ≤ ").split(" ")
    return round(float(number) * {"µs": 1, "ms": 1e3, "s": 1e6}[unit])


def bytes_of(text):
    number, unit = text.removesuffix("/s").split(" ")
    return float(number) * {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]


def test_the_page_says_what_is_degraded(daemon, browser):
    opened(browser, f"http://127.0.0.1:{daemon.http}/", 380)
    wait("all is well", lambda: text_of(browser, "verdict-text") == "Everything that is configured is served.")
    kept = daemon.disk + ".kept"
    os.rename(daemon.disk, kept)
    try:
        wait("the page says that it is degraded", lambda: text_of(browser, "verdict-text") == "Degraded: 1 problem.")
        wait("the page has the reason", lambda: f"LUN 1 of {IQN}: " in text_of(browser, "reasons"))
        wait("the table says so", lambda: [row[2][0] for row in table(browser, "luns-table")] == ["Ready", "Not ready"])
        wait("the log says so as well", lambda: "disk.img" in text_of(browser, "events-list"))
        judge(browser, "degraded", 380, "light")
        # What is listed is counted: a reload that is refused is no problem, but a warning.
        with open(os.path.join(daemon.folder, "targe.toml"), "a", encoding="utf-8") as file:
            file.write("nonsense\n")
        daemon.process.send_signal(1)
        wait("the page counts the warning", lambda: text_of(browser, "verdict-text") == "Degraded: 1 problem, 1 warning.")
        expect(browser.evaluate("document.getElementById('reasons').children.length") == 2, "the page counts what it does not list")
    finally:
        daemon.config()
        os.rename(kept, daemon.disk)
    daemon.process.send_signal(1)
    wait("all is well again", lambda: text_of(browser, "verdict-text") == "Everything that is configured is served.")


def test_many_luns_are_sorted_by_load_and_idle_ones_are_folded(tmp_path, browser):
    name = "iqn.2026-01.com.example:many"
    luns = f'[[target]]\nname = "{name}"\n' + '[[target.lun]]\ntype = "ram"\nsize = "1M"\n' * 40
    with Daemon(tmp_path / "many", luns) as daemon:
        busy = subprocess.Popen([TARGE, "bench", daemon.url(33).replace(IQN, name), "--time=86400", "--random"], stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=servers.die_with_parent)
        fold = "document.querySelector('#luns-table .fold')"
        names = lambda: [row[0][0] for row in table(browser, "luns-table")]
        try:
            wait("the LUN has load", lambda: any(lun["commands"] > 100 for lun in daemon.ask("luns")["luns"]))
            opened(browser, f"http://127.0.0.1:{daemon.http}/")
            wait("idle LUNs are folded", lambda: names() == ["many/33"])
            expect(browser.evaluate(f"[{fold}.textContent, {fold}.getAttribute('aria-expanded')]") == ["Show 41 idle LUNs", "false"], "the fold")
            judge(browser, "many", 1280, "light")
            browser.evaluate(f"{fold}.click()")
            wait("all are shown, and the one with load first", lambda: names()[0] == "many/33" and len(names()) == 42)
            expect(browser.evaluate(f"[{fold}.textContent, {fold}.getAttribute('aria-expanded')]") == ["Hide 41 idle LUNs", "true"], "the fold")
            browser.evaluate(f"{fold}.click()")
            browser.evaluate("(field => { field.value = 'many/7'; field.dispatchEvent(new Event('input')); })(document.getElementById('luns-filter'))")
            wait("an idle LUN is found", lambda: names() == ["many/7"])
        finally:
            busy.terminate()
            busy.wait(PATIENCE_S)


def test_the_page_says_who_has_reserved_what(daemon, browser):
    opened(browser, f"http://127.0.0.1:{daemon.http}/")
    wait("nothing is reserved", lambda: text_of(browser, "reservations-table").endswith("No LUN is reserved, and no initiator is registered."))
    name = "iqn.2026-01.com.example:holder"
    holder = Session(daemon.port, IQN, name)
    try:
        holder.ready()
        key = (0x11).to_bytes(8, "big")
        for action, kind, lists in ((0, 0, bytes(8) + key), (1, 5, key + bytes(8))):
            answer = holder.command(bytes([0x5F, action, kind, 0, 0, 0, 0, 0, 24, 0]), write=lists + bytes(8))
            expect(answer[0] == 0, f"PERSISTENT RESERVE OUT: {answer}")
        row = wait("the page shows the reservation", lambda: table(browser, "reservations-table"))[0]
        expect([cell[0] for cell in row] == ["metrics/0", "write exclusive, registrants only", name, "1", "gone"], str(row))
    finally:
        holder.close()


def test_the_page_says_that_the_daemon_is_gone_and_comes_back_with_it(tmp_path, browser):
    with Daemon(tmp_path / "gone") as daemon:
        opened(browser, f"http://127.0.0.1:{daemon.http}/")
        daemon.process.terminate()
        daemon.process.wait(PATIENCE_S)
        wait("the page says that the daemon is gone", lambda: text_of(browser, "verdict-text").startswith("The daemon does not answer."))
        wait("the page says that it is not connected", lambda: text_of(browser, "connection") == "Not connected")
        browser.picture(PICTURES / "gone-light-1280.png")
        again = subprocess.Popen(daemon.process.args, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=daemon.log,
                                 preexec_fn=servers.die_with_parent)
        daemon.process = again
        wait("the page shows it again", lambda: text_of(browser, "connection") == "Live")
        wait("all is well", lambda: text_of(browser, "verdict-text") == "Everything that is configured is served.")


def test_a_token_is_asked_for_and_kept_in_the_tab_only(tmp_path, browser):
    token = tmp_path / "tokens"
    token.write_text(f"prometheus read {TOKEN}\nanna admin {ADMIN}\n")
    token.chmod(0o600)
    with Daemon(tmp_path / "token", f'token_file = "{token}"\n') as daemon:
        browser.open(f"http://127.0.0.1:{daemon.http}/", 380, 900, "dark")
        wait("the page asks for a token", lambda: browser.evaluate("document.getElementById('login').checkVisibility()"))
        wait("the field has the focus", lambda: browser.evaluate("document.activeElement.id") == "token")

        def sign_in(text):
            browser.ask("Input.insertText", {"text": text})
            for kind in ("keyDown", "keyUp"):
                browser.ask("Input.dispatchKeyEvent", {"type": kind, "key": "Enter", "code": "Enter", "text": "\r", "windowsVirtualKeyCode": 13})

        # The browser notes each answer with 401 in its console; that is all that it may note.
        sign_in("not-the-token-at-all")
        wait("the page says that the token is wrong", lambda: text_of(browser, "login-error") == "The daemon does not accept this token.")
        wait("the refusals are noted", lambda: every_refusal_is_noted(browser))
        complaints = [one for one in browser.complaints() if "401" not in one]
        expect(not complaints, str(complaints))
        browser.events.clear()
        judge(browser, "login", 380, "dark")
        wait("the field has the focus", lambda: browser.evaluate("document.activeElement.id") == "token")
        sign_in(TOKEN)
        wait("the page shows the daemon", lambda: text_of(browser, "connection") == "Live")
        kept = browser.evaluate("[Object.values(sessionStorage), Object.values(localStorage), document.cookie, location.href]")
        expect(kept == [[TOKEN], [], "", f"http://127.0.0.1:{daemon.http}/"], f"the browser keeps {kept}")
        expect(not browser.complaints(), str(browser.complaints()))
        browser.evaluate("document.getElementById('sign-out').click()")
        expect(browser.evaluate("[sessionStorage.length, document.getElementById('content').checkVisibility()]") == [0, False], "it is not signed out")


def test_a_bad_page_is_found_out(tmp_path, browser):
    """The check itself: a page with the faults that it looks for."""
    page = tmp_path / "bad.html"
    page.write_text("""<!DOCTYPE html><html><body><h1>a</h1><h3>b</h3><nav><a href="#no">to</a></nav><input><button></button><img src="data:,">
        <svg></svg><table><tbody><tr><td>1</td></tr></tbody></table><p id="x"></p><p id="x" style="color: red"></p>
        <div role="status"><svg role="img" aria-label="a"></svg></div>""")
    browser.open(page, 380, 900, "light")
    found = " ".join(browser.evaluate(ACCESSIBLE))
    for fault in ("no language", "no title", "0 times main", "region without a name", "level 3 after one of level 1", "control without a name", "a control of",
                  "image without", "chart without", "without a caption", "row without a header", "two elements are x", "leads nowhere", "values are announced",
                  "the policy forbids"):
        expect(fault in found, f"{fault} is not among {found}")


@pytest.fixture(autouse=True, scope="module")
def tools():
    expect(browser_module.is_here(), "there is no chromium: run `make packages`")
