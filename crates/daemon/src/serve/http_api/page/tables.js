// Tables whose rows stay in place while their values change.

import { make, setAttribute, setChildren, setText } from "./dom.js";
import { count } from "./format.js";

/** The most rows that are shown. More would be slow, and nobody reads them. */
const ROWS_MAX = 100;

/**
 * A table. A column has a `title`, `cell` that returns a text, or a text, a smaller one and a class, and maybe
 * `number` or `wide`. The first column names the row.
 */
export class Table {
  constructor(parent, { title, columns, empty }) {
    Object.assign(this, { columns, empty });
    // The roles stay when the style sheet makes cards of the rows.
    const heads = columns.map(column => make("th", { scope: "col", role: "columnheader", class: column.number ? "number" : "" }, column.title));
    this.body = make("tbody", { role: "rowgroup" });
    this.table = make("table", { role: "table" }, make("caption", {}, title), make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...heads)), this.body);
    this.note = make("p", { class: "note" });
    this.frame = make("div", { class: "table" }, this.table, this.note);
    parent.append(this.frame);
  }

  /** Shows items; `found` is how many of all are among them. */
  show(items, keyOf, all = items.length) {
    const shown = items.slice(0, ROWS_MAX);
    setChildren(this.body, shown, keyOf, () => this.row(), (row, item) => this.fill(row, item));
    this.table.hidden = shown.length === 0;
    let note = "";
    if (all === 0) note = this.empty;
    else if (items.length === 0) note = `None of ${count(all)} matches.`;
    else if (items.length > shown.length) note = `${count(shown.length)} of ${count(items.length)} are shown. Find names to see others.`;
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
