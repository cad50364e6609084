// A chart of reads and writes over the last minutes, as SVG, with its values as text.

import { make, setAttribute, setText } from "./dom.js";
import { MOMENTS } from "./rates.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 150, LEFT = 62, RIGHT = 8, TOP = 8, BOTTOM = 22;

function shape(name, attributes = {}) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

/** The next number above that is easy to read on an axis whose units are powers of `base`. */
function roundUp(value, base) {
  let unit = 1;
  while (base > 1 && value / unit >= base) unit *= base;
  const power = 10 ** Math.floor(Math.log10(value / unit));
  const lead = value / unit / power;
  return (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 4 ? 4 : lead <= 6 ? 6 : 10) * power * unit;
}

export class Chart {
  /**
   * `value` takes a number out of what was counted, `format` writes it, `axis` writes it beside the axis, `least`
   * is the least end of the axis.
   */
  constructor(parent, { title, value, format, axis = format, least, base }) {
    Object.assign(this, { title, value, format, axis, least, base, past: [], end: least, span: "" });
    this.now = { read: make("b", {}, "–"), write: make("b", {}, "–") };
    const legend = make("div", { class: "now" },
      make("span", {}, make("i", { class: "key read" }), "read ", this.now.read),
      make("span", {}, make("i", { class: "key write" }), "write ", this.now.write));
    this.svg = shape("svg", { role: "img" });
    parent.append(make("figure", { class: "card chart" }, make("figcaption", {}, make("h3", {}, title), legend), this.svg));
    this.lines = [0, 0.5, 1].map(() => this.svg.appendChild(shape("line", { class: "grid" })));
    this.labels = [0, 0.5, 1].map(() => this.svg.appendChild(shape("text", { "text-anchor": "end" })));
    this.ends = ["start", "end"].map(anchor => this.svg.appendChild(shape("text", { "text-anchor": anchor })));
    this.below = this.svg.appendChild(shape("path", { class: "below" }));
    this.paths = { read: this.svg.appendChild(shape("path", { class: "read" })), write: this.svg.appendChild(shape("path", { class: "write" })) };
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  /** Shows the past, whose moments are so many seconds apart. */
  show(past, seconds) {
    this.past = past.map(one => one && { read: this.value(one.read), write: this.value(one.write) });
    this.ago = `${Math.round(MOMENTS * seconds / 60)} min ago`;
    const highest = Math.max(0, ...this.past.flatMap(one => one ? [one.read ?? 0, one.write ?? 0] : []));
    const wanted = Math.max(this.least, highest > 0 ? roundUp(highest, this.base) : 0);
    // The axis grows at once, and shrinks only when most of it is empty.
    if (wanted > this.end || wanted * 3 <= this.end) this.end = wanted;
    const told = [];
    for (const name of ["read", "write"]) {
      const values = this.past.map(one => one?.[name] ?? null).filter(value => value !== null);
      const now = this.past.at(-1)?.[name] ?? null;
      setText(this.now[name], now === null ? "–" : this.format(now));
      told.push(`${name} ${now === null ? "unknown" : this.format(now)}` + (values.length ? `, at most ${this.format(Math.max(...values))}` : ""));
    }
    setAttribute(this.svg, "aria-label", `${this.title} since ${this.ago}. Now: ${told.join("; ")}.`);
    this.draw();
  }

  draw() {
    const width = this.svg.clientWidth;
    if (!width) return;
    const right = width - RIGHT, bottom = HEIGHT - BOTTOM;
    const x = at => LEFT + (right - LEFT) * at / (MOMENTS - 1);
    const y = value => bottom - (bottom - TOP) * Math.min(value / this.end, 1);
    setAttribute(this.svg, "viewBox", `0 0 ${width} ${HEIGHT}`);
    [0, 0.5, 1].forEach((part, at) => {
      const height = y(part * this.end);
      for (const [name, value] of [["x1", LEFT], ["x2", right], ["y1", height], ["y2", height]]) setAttribute(this.lines[at], name, String(value));
      setAttribute(this.labels[at], "x", String(LEFT - 8));
      setAttribute(this.labels[at], "y", String(height + 4));
      setText(this.labels[at], this.axis(part * this.end));
    });
    this.ends.forEach((label, at) => {
      setAttribute(label, "x", String([LEFT, right][at]));
      setAttribute(label, "y", String(HEIGHT - 5));
      setText(label, [this.ago ?? "", "now"][at]);
    });
    for (const name of ["read", "write"]) setAttribute(this.paths[name], "d", this.path(name, x, y));
    setAttribute(this.below, "d", this.path("read", x, y, bottom));
  }

  /** The path of the values that are known; down to `floor` and back, if it is given. */
  path(name, x, y, floor) {
    const first = MOMENTS - this.past.length;
    const parts = [];
    let run = [];
    const close = () => {
      if (run.length === 1) run.push([run[0][0] + 0.1, run[0][1]]);
      if (run.length) {
        const line = "M" + run.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join("L");
        parts.push(floor === undefined ? line : `${line}L${run.at(-1)[0].toFixed(1)},${floor}L${run[0][0].toFixed(1)},${floor}Z`);
      }
      run = [];
    };
    this.past.forEach((one, at) => {
      const value = one?.[name] ?? null;
      if (value === null) close();
      else run.push([x(first + at), y(value)]);
    });
    close();
    return parts.join("");
  }
}
