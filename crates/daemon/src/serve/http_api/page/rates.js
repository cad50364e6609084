// Rates and latencies, from what the daemon has counted at two moments.

/** How many moments a chart shows. */
export const MOMENTS = 150;

/** The upper limits of the latency buckets in microseconds; the last bucket has none. */
const LIMITS = [50, 100, 250, 500, 1e3, 2500, 5e3, 1e4, 25e3, 5e4, 1e5, 25e4, 5e5, 1e6, 25e5, 5e6, 1e7];

/** The most LUNs whose past is kept. */
const PASTS_MAX = 256;

const NONE = { commands: 0, total: 0, bytes: 0, buckets: [] };

export const keyOf = lun => `${lun.target}/${lun.lun}`;

/** What a LUN has counted, of reads and of writes. */
function counted(lun) {
  const of = (op, bytes) => {
    const found = lun.operations.find(one => one.op === op);
    return found ? { commands: found.commands, total: found.total_us, bytes, buckets: found.buckets } : { ...NONE, bytes };
  };
  return { read: of("read", lun.read_bytes), write: of("write", lun.write_bytes), all: lun.commands };
}

function between(before, after, seconds) {
  const commands = after.commands - before.commands;
  const buckets = after.buckets.map((value, at) => value - (before.buckets[at] ?? 0));
  return { ops: commands / seconds, bytes: (after.bytes - before.bytes) / seconds, commands, total: after.total - before.total, buckets };
}

function sum(a, b) {
  const buckets = (a.buckets.length ? a.buckets : b.buckets).map((_, at) => (a.buckets[at] ?? 0) + (b.buckets[at] ?? 0));
  return { ops: a.ops + b.ops, bytes: a.bytes + b.bytes, commands: a.commands + b.commands, total: a.total + b.total, buckets };
}

/** The mean latency in microseconds; null without commands. */
export const mean = part => part.commands > 0 ? part.total / part.commands : null;

/** The limit in microseconds below which 99 % of the commands ended; null without commands, Infinity above the last limit. */
export function p99(part) {
  const all = part.buckets.reduce((a, b) => a + b, 0);
  if (all <= 0) return null;
  let seen = 0;
  const at = part.buckets.findIndex(value => (seen += value) >= all * 0.99);
  return LIMITS[at] ?? Infinity;
}

const IDLE = { ops: 0, bytes: 0, commands: 0, total: 0, buckets: [] };

/** Keeps what was counted last, and the rates of the last minutes. */
export class Rates {
  constructor() {
    this.last = null;
    this.total = null;
    this.of = new Map();
    this.sessions = new Map();
    this.pasts = new Map([["", []]]);
  }

  /** Takes what the daemon told at a moment in seconds. `start` tells one run of the daemon from another. */
  take(now, start, luns, sessions) {
    const seen = new Map(luns.map(lun => [keyOf(lun), counted(lun)]));
    const traffic = new Map(sessions.map(one => [one.key, one]));
    const last = this.last?.start === start && now > this.last.now ? this.last : null;
    this.of = new Map();
    this.sessions = new Map();
    this.total = null;
    if (last) {
      const seconds = now - last.now;
      const units = new Set();
      let total = { read: IDLE, write: IDLE };
      for (const lun of luns) {
        const after = seen.get(keyOf(lun)), before = last.seen.get(keyOf(lun));
        // A LUN that was added, or replaced by another disk, counts from zero.
        if (!before || after.all < before.all) continue;
        const rates = { read: between(before.read, after.read, seconds), write: between(before.write, after.write, seconds) };
        this.of.set(keyOf(lun), rates);
        // A unit that several targets export has one set of counters.
        if (units.has(lun.naa)) continue;
        units.add(lun.naa);
        total = { read: sum(total.read, rates.read), write: sum(total.write, rates.write) };
      }
      this.total = total;
      for (const [key, after] of traffic) {
        const before = last.traffic.get(key);
        if (before && after.commands >= before.commands) {
          this.sessions.set(key, { read: (after.read - before.read) / seconds, write: (after.write - before.write) / seconds });
        }
      }
    }
    this.last = { now, start, seen, traffic };
    this.remember(luns);
  }

  /** Records that nothing is known of this moment. */
  skip() {
    for (const past of this.pasts.values()) push(past, null);
  }

  remember(luns) {
    const keys = new Set(luns.slice(0, PASTS_MAX).map(keyOf));
    for (const key of this.pasts.keys()) if (key !== "" && !keys.has(key)) this.pasts.delete(key);
    for (const key of keys) if (!this.pasts.has(key)) this.pasts.set(key, []);
    for (const [key, past] of this.pasts) push(past, (key === "" ? this.total : this.of.get(key)) ?? null);
  }

  /** The past of a LUN, or of all. */
  past(key) {
    return this.pasts.get(key) ?? [];
  }
}

function push(past, value) {
  past.push(value);
  if (past.length > MOMENTS) past.shift();
}
