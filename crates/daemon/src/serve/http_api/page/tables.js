// Tables whose rows stay in place while their values change.

import { make, setAttribute, setChildren, setText } from "./dom.js";
import { count } from "./format.js";

/** The most rows that are shown. More would be slow, and nobody reads them. */
const ROWS_MAX = 100;

/** Tables with more items than this sort them by load, and fold idle ones. */
const UNSORTED_MAX = 12;

/** How long an item without load is still shown, in seconds: loads come in bursts. */
const QUIET_S = 60;

/**
 * A table. A column has a `title`, `cell` that returns a text, or a text, a smaller one and a class, and maybe
 * `number` or `wide`. The first column names the row. A table of many items has the `order` of its rows:
 * `load` returns a number, or `null` while it is not known, `grave` whether an item is shown first and never
 * folded, and `idle` is the noun of the folded ones. `changed` is called when they are folded or unfolded.
 */
export class Table {
  constructor(parent, { title, columns, empty, order = null, changed = () => {} }) {
    Object.assign(this, { columns, empty, order, isOpen: false, busy: new Map() });
    // The roles stay when the style sheet makes cards of the rows.
    const heads = columns.map(column => make("th", { scope: "col", role: "columnheader", class: column.number ? "number" : "" }, column.title));
    this.body = make("tbody", { role: "rowgroup" });
    this.table = make("table", { role: "table" }, make("caption", {}, title), make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...heads)), this.body);
    this.note = make("p", { class: "note" });
    this.fold = make("button", { type: "button", class: "fold", "aria-expanded": "false" });
    this.fold.hidden = true;
    this.fold.addEventListener("click", () => {
      this.isOpen = !this.isOpen;
      changed();
    });
    this.frame = make("div", { class: "table" }, this.table, this.note, this.fold);
    parent.append(this.frame);
  }

  /**
   * Sorts many items by their load, and leaves out idle ones unless the table is unfolded. Loads of one order
   * of magnitude count as equal, so that rows do not change places with every look.
   */
  arranged(items, keyOf, isSearch) {
    const now = performance.now() / 1000;
    const loads = new Map(items.map(item => [keyOf(item), this.order.load(item)]));
    for (const [key, load] of loads) if (load > 0) this.busy.set(key, now);
    for (const [key, at] of this.busy) if (now - at > QUIET_S) this.busy.delete(key);
    const size = item => this.order.grave(item) ? Infinity : Math.ceil(Math.log2(1 + (loads.get(keyOf(item)) ?? 0)));
    const sorted = items.map(item => [size(item), item]).sort(([a], [b]) => a === b ? 0 : b - a).map(([, item]) => item);
    const isIdle = item => !this.order.grave(item) && loads.get(keyOf(item)) !== null && !this.busy.has(keyOf(item));
    const idle = isSearch ? 0 : items.filter(isIdle).length;
    setText(this.fold, `${this.isOpen ? "Hide" : "Show"} ${count(idle)} ${this.order.idle}`);
    setAttribute(this.fold, "aria-expanded", String(this.isOpen));
    this.fold.hidden = idle === 0;
    return idle === 0 || this.isOpen ? sorted : sorted.filter(item => !isIdle(item));
  }

  /** Shows the items that were found among `all`. */
  show(items, keyOf, all = items.length) {
    const isLong = this.order !== null && all > UNSORTED_MAX;
    if (!isLong) this.fold.hidden = true;
    const rows = isLong ? this.arranged(items, keyOf, items.length < all) : items;
    const shown = rows.slice(0, ROWS_MAX);
    setChildren(this.body, shown, keyOf, () => this.row(), (row, item) => this.fill(row, item));
    this.table.hidden = shown.length === 0;
    let note = "";
    if (all === 0) note = this.empty;
    else if (items.length === 0) note = `None of ${count(all)} matches.`;
    else if (rows.length > shown.length) note = `${count(shown.length)} of ${count(rows.length)} are shown. Find names to see others.`;
    setText(this.note, note);
    this.note.hidden = note === "";
  }

  row() {
    const cells = this.columns.map((column, at) => {
      const attributes = at === 0 ? { scope: "row", role: "rowheader" } : { role: "cell", "data-label": column.title };
      attributes.class = [column.number ? "number" : "", column.wide ? "wide" : ""].join(" ").trim();
      return make(at === 0 ? "th" : "td", attributes, make("span"), make("small"));
    });
    return make("tr", { role: "row" }, ...cells);
  }

  fill(row, item) {
    this.columns.forEach((column, at) => {
      const told = column.cell(item);
      const [text, small, kind] = Array.isArray(told) ? told : [told];
      const [main, lower] = row.children[at].children;
      setText(main, text);
      setAttribute(main, "class", kind ?? "");
      setText(lower, small ?? "");
      lower.hidden = !small;
    });
  }
}

/** The items whose texts contain every word of the filter. */
export function matching(items, filter, textsOf) {
  const words = filter.toLowerCase().split(/\s+/).filter(word => word !== "");
  return items.filter(item => {
    const text = textsOf(item).join(" ").toLowerCase();
    return words.every(word => text.includes(word));
  });
}
