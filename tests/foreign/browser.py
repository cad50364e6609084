"""A headless Chromium that opens a page and tells what it sees. It is driven over a pipe by the DevTools protocol, with no package but Debian's chromium."""

import base64
import json
import os
import queue
import shutil
import subprocess
import threading

import servers

PROGRAM = "chromium"
# Nothing of these may reach out to the network: the browser opens files and servers of this host only.
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
           "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe"]
# Longest that the browser may take for one answer, seconds.
ANSWER_S = 120

# What a page must be like, seen from within. Colours are those that the browser computed from the style sheet.
CHECK = """
(() => {
  const found = [];
  const say = (what, element) => found.push(what + ': ' + element.outerHTML.replace(/\\s+/g, ' ').slice(0, 120));
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth)
    found.push(`the page is ${root.scrollWidth} px wide, the window ${root.clientWidth} px`);
  const colour = text => {
    const numbers = text.match(/[\\d.]+/g).map(Number);
    return numbers.length < 4 ? [...numbers, 1] : numbers;
  };
  const over = (front, back) => front.slice(0, 3).map((value, at) => value * front[3] + back[at] * (1 - front[3]));
  const background = element => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(colour(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((back, layer) => over(layer, back), matchMedia('(prefers-color-scheme: dark)').matches ? [0, 0, 0] : [255, 255, 255]);
  };
  const light = rgb => {
    const [r, g, b] = rgb.map(value => { value /= 255; return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((a, b) => b - a); return (x + 0.05) / (y + 0.05); };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let checked = 0, least = 21;
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || element.closest('title, desc, style, defs')) continue;
    const style = getComputedStyle(element), back = background(element);
    const ink = over(colour(element.closest('svg') ? style.fill : style.color), back);
    const ratio = contrast(ink, back);
    checked += 1;
    least = Math.min(least, ratio);
    if (ratio < 4.5) say(`contrast ${ratio.toFixed(2)}`, element);
  }
  const figures = document.querySelectorAll('figure');
  for (const figure of figures) {
    const svg = figure.querySelector('.scroll > svg');
    if (!figure.querySelector('figcaption')?.textContent.trim()) say('a figure without a title', figure);
    if (!svg) { say('a figure without a plot', figure); continue; }
    const named = ['aria-labelledby', 'aria-describedby'].map(name => document.getElementById(svg.getAttribute(name))?.textContent.trim());
    if (svg.getAttribute('role') !== 'img' || named.some(text => !text)) say('a plot without a text alternative', figure);
    const labels = [...svg.querySelectorAll('.label')].map(label => label.textContent);
    if (labels.length < 2) say('a plot without two axis labels', figure);
    // The vertical axis has a unit, and so has the horizontal one, unless it has names.
    else if (!labels[0].endsWith(')') || (svg.querySelector('.line') && !labels[1].endsWith(')'))) say('an axis without a unit', figure);
    if (!figure.querySelector('details table')) say('a plot without its values', figure);
    for (const text of svg.querySelectorAll('text')) {
      const box = text.getBoundingClientRect(), whole = svg.getBoundingClientRect();
      if (box.left < whole.left - 2 || box.top < whole.top - 2 || box.right > whole.right + 2 || box.bottom > whole.bottom + 2)
        say('a text outside its plot', text);
    }
  }
  return {found, figures: figures.length, texts: checked, least};
})()
"""


def is_here():
    return shutil.which(PROGRAM) is not None


class Browser:
    """One browser with one page."""

    def __init__(self, folder):
        self.folder = folder
        self.number, self.events, self.messages = 0, [], queue.Queue()
        # The browser reads commands from descriptor 3 and writes answers to descriptor 4.
        from_us, self.to_browser = os.pipe()
        self.from_browser, to_us = os.pipe()

        def wire():
            servers.die_with_parent()
            reads, writes = os.dup(from_us), os.dup(to_us)
            os.dup2(reads, 3)
            os.dup2(writes, 4)

        self.log = open(folder / "chromium.log", "w")
        self.process = subprocess.Popen([PROGRAM, *OPTIONS, f"--user-data-dir={folder / 'profile'}", "about:blank"], stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=self.log, preexec_fn=wire, close_fds=False)
        os.close(from_us)
        os.close(to_us)
        threading.Thread(target=self.read, daemon=True).start()
        target = self.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        self.session = self.ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.to_browser)
        try:
            self.process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.from_browser)
        self.log.close()

    def read(self):
        rest = b""
        while piece := os.read(self.from_browser, 1 << 20):
            *whole, rest = (rest + piece).split(b"\0")
            for text in whole:
                self.messages.put(json.loads(text))
        self.messages.put(None)

    def ask(self, method, parameters=None):
        """Sends a command, and waits for its answer. Events before it are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters or {}}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to_browser, data):]
        while True:
            answer = self.next(method)
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def next(self, what):
        try:
            message = self.messages.get(timeout=ANSWER_S)
        except queue.Empty:
            message = None
        assert message is not None, f"the browser does not answer {what}: {(self.folder / 'chromium.log').read_text()[-2000:]}"
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, page, width, height, scheme):
        """Opens a file, or a URL, in a window of this size, in the light or the dark scheme."""
        url = page if isinstance(page, str) else page.as_uri()
        # Every request but those to where the page is from is a complaint.
        self.site = "file:" if url.startswith("file:") else "/".join(url.split("/")[:3]) + "/"
        self.events.clear()
        self.ask("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
        self.ask("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        self.ask("Page.navigate", {"url": url})
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.next("the load of the page")

    def evaluate(self, script):
        answer = self.ask("Runtime.evaluate", {"expression": script, "returnByValue": True})
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def complaints(self):
        """What the console says, and every request to elsewhere than where the page is from."""
        told = []
        for event in self.events:
            if event["method"] == "Log.entryAdded":
                told.append(event["params"]["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled":
                told.append(str(event["params"]["args"]))
            elif event["method"] == "Runtime.exceptionThrown":
                told.append(str(event["params"]["exceptionDetails"]))
            elif event["method"] == "Network.requestWillBeSent" and not event["params"]["request"]["url"].startswith(self.site):
                told.append(f"a request for {event['params']['request']['url']}")
        return told

    def picture(self, path, whole=True):
        """Writes what the page looks like to a PNG file."""
        data = self.ask("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole})["data"]
        path.write_bytes(base64.b64decode(data))
