// Numbers, sizes and times as a person reads them: three digits that count, and a unit.

const grouped = new Intl.NumberFormat("en");
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });

/** A count in full: 12,345. */
export const count = value => grouped.format(value);

/** A count with its noun: "1 session", "2 sessions". */
export const plural = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

/** Three digits that count: 1.23, 12.3, 123. */
function digits(value) {
  if (value === 0) return "0";
  return value < 9.995 ? value.toFixed(2) : value < 99.95 ? value.toFixed(1) : value.toFixed(0);
}

function scaled(value, step, units) {
  let at = 0;
  // What would round to the next unit is written in it.
  while (value >= step * 0.9995 && at < units.length - 1) {
    value /= step;
    at += 1;
  }
  return [value, units[at], at];
}

/** A rate of operations: 0, 7.50, 950, 12.3 k. */
export function rate(value) {
  const [number, unit] = scaled(value, 1000, ["", " k", " M"]);
  return digits(number) + unit;
}

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/** A number of bytes: 512 B, 1.50 MiB, 64 GiB. */
export function bytes(value) {
  const [number, unit, at] = scaled(value, 1024, BYTES);
  return `${at === 0 || Number.isInteger(number) ? number.toFixed(0) : digits(number)} ${unit}`;
}

/** A rate of bytes: 0 B/s, 1.50 MiB/s. */
export const byteRate = value => `${bytes(value)}/s`;

/** A time in microseconds: 85.0 µs, 1.20 ms, 3.00 s; a dash for none. */
export function latency(microseconds) {
  if (microseconds === null) return "–";
  const [number, unit] = scaled(microseconds, 1000, ["µs", "ms", "s"]);
  return `${digits(number)} ${unit}`;
}

/**
 * A mean latency. The daemon counts a command that it answers in the wake-up of its reactor that received the
 * command with a latency of zero: where nearly all are such, there is no time to show.
 */
export const meanLatency = microseconds => microseconds !== null && microseconds < 1 ? "immediate" : latency(microseconds);

/** A span in seconds: 12 s, 5 min, 3 h 20 min, 12 d 4 h. */
export function span(seconds) {
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const first = parts.findIndex(([length]) => seconds >= length);
  if (first < 0) return "0 s";
  const [length, unit] = parts[first];
  const whole = `${Math.floor(seconds / length)} ${unit}`;
  if (first > 1) return whole;
  const [next, name] = parts[first + 1];
  const rest = Math.floor((seconds % length) / next);
  return rest ? `${whole} ${rest} ${name}` : whole;
}

/** A moment of today as a time, another one with its day. */
export function moment(date, now = new Date()) {
  return date.toDateString() === now.toDateString() ? clock.format(date) : `${day.format(date)}, ${clock.format(date)}`;
}

/** The part of a qualified name that a person tells names apart by, after the date and the authority. */
export function shortName(name) {
  const at = name.indexOf(":");
  return at > 0 && at < name.length - 1 ? name.slice(at + 1) : name;
}
