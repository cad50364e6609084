// The status page: asks the daemon every two seconds, and shows what it tells.

import { Refused, TokenNeeded, get, hasToken, setToken } from "./api.js";
import { Chart } from "./chart.js";
import { byId, make, setAttribute, setChildren, setText } from "./dom.js";
import { byteRate, bytes, count, latency, meanLatency, moment, plural, rate, shortName, span } from "./format.js";
import { Rates, keyOf, mean, p99 } from "./rates.js";
import { Table, matching } from "./tables.js";

const PERIOD_S = 2;
const EVENTS_MAX = 50;
const REASONS_MAX = 20;

const rates = new Rates();
let told = null;
let toldAt = null;
let timer = 0;
let run = 0;
let round = 0;

const charts = [
  new Chart(byId("charts"), { title: "Operations per second", value: part => part.ops, format: rate, least: 10, base: 1 }),
  new Chart(byId("charts"), { title: "Throughput", value: part => part.bytes, format: byteRate, least: 1024, base: 1024 }),
  new Chart(byId("charts"), { title: "Mean latency", value: mean, format: meanLatency, axis: latency, least: 100, base: 1 }),
];

const ratesOf = lun => rates.of.get(keyOf(lun));
const both = (lun, format, of) => ratesOf(lun) ? [format(of(ratesOf(lun).read)), format(of(ratesOf(lun).write))] : ["–", "–"];

/** The limit of the 99th percentile of reads or of writes. */
function slowest(lun, name) {
  const limit = ratesOf(lun) ? p99(ratesOf(lun)[name]) : null;
  if (limit === null) return "";
  return limit === Infinity ? "p99 > 10 s" : `p99 ≤ ${latency(limit).replace(/\.0+ |(\.\d*[1-9])0+ /, "$1 ")}`;
}

function state(lun) {
  if (lun.not_ready) return ["Not ready", lun.not_ready, "bad"];
  if (lun.lost_writes) return ["Lost writes", `${lun.lost_writes}${hasBlocks(lun) ? "; every flush fails until targe lun accept-loss" : ""}`, "bad"];
  if (lun.medium_failure) return ["Failed", `${lun.medium_failure}; shown until that succeeds or targe lun accept-loss`, "bad"];
  if (lun.medium_errors || lun.io_timeouts) return ["Ready", `${plural(lun.medium_errors + lun.io_timeouts, "medium error")}`, "warn"];
  return ["Ready", lun.waiting_commands ? `${plural(lun.waiting_commands, "command")} delayed by a limit` : "", "good"];
}

/** Whether a LUN is a disk or a drive for discs: tape drives, changers and passed devices have no capacity. */
function hasBlocks(lun) {
  return !/^(tape|changer|sg|vhost-user-scsi):/.test(lun.medium);
}

function properties(lun) {
  const words = [lun.read_only && "read-only", lun.thin && "thin", lun.encrypted && "encrypted"];
  const space = lun.space && `${bytes(lun.space.allocated_bytes)} allocated, ${bytes(lun.space.free_bytes)} free`;
  return [hasBlocks(lun) && bytes(lun.bytes), space, ...words].filter(Boolean).join(", ");
}

/** The operations per second of a LUN, and its running commands; null while they are not known. */
function loadOf(lun) {
  const found = ratesOf(lun);
  return found ? found.read.ops + found.write.ops + lun.tasks : null;
}

/** The bytes per second of a session, and its running commands; null while they are not known. */
function trafficOf(one) {
  const traffic = rates.sessions.get(one.key);
  return traffic ? traffic.read + traffic.write + one.tasks : null;
}

const luns = new Table(byId("luns-table"), {
  title: "LUNs", empty: "No LUN is served.", changed: showTables,
  order: { load: loadOf, grave: lun => state(lun)[2] !== "good", idle: "idle LUNs" },
  columns: [
    { title: "LUN", cell: lun => [`${shortName(lun.target)}/${lun.lun}`, lun.target] },
    { title: "Medium", wide: true, cell: lun => [lun.medium, properties(lun)] },
    { title: "State", wide: true, cell: state },
    { title: "Read/s", number: true, cell: lun => [both(lun, rate, part => part.ops)[0], both(lun, byteRate, part => part.bytes)[0]] },
    { title: "Write/s", number: true, cell: lun => [both(lun, rate, part => part.ops)[1], both(lun, byteRate, part => part.bytes)[1]] },
    { title: "Read latency", number: true, cell: lun => [both(lun, meanLatency, mean)[0], slowest(lun, "read")] },
    { title: "Write latency", number: true, cell: lun => [both(lun, meanLatency, mean)[1], slowest(lun, "write")] },
    { title: "Commands", number: true, cell: lun => [count(lun.commands), lun.tasks ? `${count(lun.tasks)} running` : ""] },
  ],
});

const sessions = new Table(byId("sessions-table"), {
  title: "Sessions", empty: "No initiator is logged in.", changed: showTables,
  order: { load: trafficOf, grave: () => false, idle: "idle sessions" },
  columns: [
    { title: "Initiator", cell: one => [one.initiator, one.where] },
    { title: "Target", wide: true, cell: one => [one.target ? shortName(one.target) : "discovery", one.target ?? ""] },
    { title: "Protection", cell: one => [one.protection, one.protection_by ?? ""] },
    { title: "Read/s", number: true, cell: one => rates.sessions.has(one.key) ? byteRate(rates.sessions.get(one.key).read) : "–" },
    { title: "Write/s", number: true, cell: one => rates.sessions.has(one.key) ? byteRate(rates.sessions.get(one.key).write) : "–" },
    { title: "Commands", number: true, cell: one => [count(one.commands), one.tasks ? `${count(one.tasks)} running` : ""] },
  ],
});

const reservations = new Table(byId("reservations-table"), {
  title: "Reservations", empty: "No LUN is reserved, and no initiator is registered.",
  columns: [
    { title: "LUN", cell: lun => [`${shortName(lun.target)}/${lun.lun}`, lun.target] },
    { title: "Reservation", cell: lun => reservation(lun.reservation) },
    { title: "Held by", wide: true, cell: lun => lun.reservation.holders.join(", ") || "nobody" },
    { title: "Registrations", number: true, cell: lun => count(lun.reservation.registrations) },
    { title: "After a restart", cell: lun => lun.reservation.persists ? "kept" : "gone" },
  ],
});

function reservation(one) {
  if (one.lost) return ["Lost", "its saved state could not be read; nearly every command is refused", "bad"];
  return one.kind === null ? "registrations only" : one.kind;
}

const targets = new Table(byId("targets-table"), {
  title: "Targets", empty: "No target is configured.", changed: showTables,
  order: { load: target => target.sessions, grave: () => false, idle: "targets without a session" },
  columns: [
    { title: "Target", cell: target => [target.name, target.alias ?? ""] },
    { title: "LUNs", number: true, cell: target => count(target.luns) },
    { title: "Sessions", number: true, cell: target => [`${count(target.sessions)} of ${count(target.max_sessions)}`,
      target.restricted_sessions ? `${count(target.restricted_sessions)} do not see every LUN` : ""] },
  ],
});

const portals = new Table(byId("portals-table"), {
  title: "Portals", empty: "No portal is configured.",
  columns: [
    { title: "Portal", cell: portal => [portal.listen, portal.announce ? `announced as ${portal.announce}` : ""] },
    { title: "Portal group", number: true, cell: portal => String(portal.tag) },
    { title: "TLS", cell: portal => portal.tls ? "required" : "no" },
  ],
});

/** The sessions of both transports. */
function allSessions({ sessions, hyperscsi }) {
  const common = one => ({ ...one, read: one.data_in_bytes, write: one.data_out_bytes });
  const iscsi = sessions.map(one => ({ ...common(one), key: `${one.target}/${one.initiator}/${one.isid}/${one.tsih}`,
    where: [one.peer ?? "no connection", one.connections > 1 ? `${one.connections} connections` : "",
      one.lost_connections ? `${plural(one.lost_connections, "lost connection")}` : ""].filter(Boolean).join(", ") }));
  const frames = hyperscsi.map(one => ({ ...common(one), key: `${one.target}/${one.initiator}/${one.isid}/hyperscsi`,
    where: `HyperSCSI, ${one.paths.filter(path => path.up).length} of ${plural(one.paths.length, "path")} up` }));
  return [...iscsi, ...frames];
}

function showVerdict({ problems, warnings }, luns) {
  const reasons = [...problems, ...warnings];
  // What is listed is counted.
  const failing = luns.filter(lun => lun.medium_errors || lun.io_timeouts);
  for (const lun of failing) reasons.push(`LUN ${lun.lun} of ${lun.target}: ${plural(lun.medium_errors + lun.io_timeouts, "medium error")} since it is served`);
  const kind = problems.length ? "bad" : reasons.length ? "warn" : "good";
  const others = reasons.length - problems.length;
  const sentence = {
    bad: `Degraded: ${[plural(problems.length, "problem"), others ? plural(others, "warning") : ""].filter(Boolean).join(", ")}.`,
    warn: "Everything that is configured is served, and something needs a look.",
    good: "Everything that is configured is served.",
  }[kind];
  setAttribute(byId("verdict"), "class", `card verdict is-${kind}`);
  setText(byId("verdict-text"), sentence);
  if (reasons.length > REASONS_MAX) reasons.splice(REASONS_MAX - 1, Infinity, `and ${plural(reasons.length - REASONS_MAX + 1, "more reason")}`);
  setChildren(byId("reasons"), reasons, reason => reason, reason => make("li", {}, reason), () => {});
  document.title = kind === "bad" ? `⚠ targe, ${location.host}` : `targe, ${location.host}`;
}

function showFacts(status, luns) {
  const ready = luns.filter(lun => !lun.not_ready).length;
  const facts = [
    ["Sessions", count(status.sessions), `of ${count(status.max_sessions)}`],
    ["LUNs ready", count(ready), `of ${count(luns.length)}`],
    ["Data in flight", bytes(status.memory.used_bytes), `of ${bytes(status.memory.limit_bytes)}`],
    ["Logins", count(status.logins), status.failed_logins ? `${count(status.failed_logins)} refused` : ""],
    ["Up for", span(status.uptime_s), ""],
  ];
  setChildren(byId("facts"), facts, fact => fact[0], ([name]) => make("div", {}, make("dt", {}, name), make("dd", {}, make("span"), " ", make("small"))),
    (box, [, value, more]) => {
      setText(box.querySelector("span"), value);
      setText(box.querySelector("small"), more);
    });
}

function showChoice(luns) {
  const choices = [{ key: "", text: "all LUNs" }, ...luns.slice(0, 256).map(lun => ({ key: keyOf(lun), text: `${shortName(lun.target)}/${lun.lun}` }))];
  setChildren(byId("chart-lun"), choices, choice => choice.key, choice => make("option", { value: choice.key }, choice.text), () => {});
}

function showEvents({ events }) {
  const grave = byId("events-grave").checked;
  const chosen = events.filter(event => !grave || event.level !== "info").reverse().slice(0, EVENTS_MAX);
  const entry = event => make("li", {}, make("time", { datetime: event.time }), make("span", { class: { error: "bad", warn: "warn" }[event.level] ?? "quiet" }, event.level),
    make("span", { class: "message" }, event.message));
  setChildren(byId("events-list"), chosen, event => event.number, entry, (item, event) => setText(item.querySelector("time"), moment(new Date(event.time))));
  setText(byId("events-empty"), chosen.length ? "" : grave ? "No warning and no error since the start." : "Nothing has happened since the start.");
  byId("events-empty").hidden = chosen.length > 0;
}

function showTables() {
  const { status, luns: list, sessions: open } = told;
  luns.show(matching(list, byId("luns-filter").value, lun => [lun.target, `${shortName(lun.target)}/${lun.lun}`, lun.medium, lun.serial, lun.naa]), keyOf, list.length);
  sessions.show(matching(open, byId("sessions-filter").value, one => [one.initiator, one.target ?? "discovery", one.where]), one => one.key, open.length);
  reservations.show(list.filter(lun => lun.reservation), keyOf);
  targets.show(status.targets, target => target.name);
  portals.show(status.portals, portal => portal.listen);
}

function showCharts() {
  charts.forEach(chart => chart.show(rates.past(byId("chart-lun").value), PERIOD_S));
}

function show() {
  const { status, luns, events } = told;
  setText(byId("where"), location.host);
  setText(byId("program"), `targe ${status.version}, process ${status.pid}, ${status.config ?? "configured by flags"}`);
  showVerdict(status, luns);
  showFacts(status, luns);
  showChoice(luns);
  showCharts();
  showTables();
  showEvents(events);
}

/** Says that the values are not those of now. */
function showLost(sentence) {
  setText(byId("connection"), "Not connected");
  byId("lost").hidden = told !== null;
  if (told === null) {
    setText(byId("lost"), sentence);
    return;
  }
  rates.skip();
  showCharts();
  setAttribute(byId("verdict"), "class", "card verdict is-bad");
  setText(byId("verdict-text"), sentence);
  byId("reasons").replaceChildren();
  document.title = `⚠ targe, ${location.host}`;
}

function showLogin(wrong) {
  round += 1;
  clearTimeout(timer);
  byId("content").hidden = byId("sections").hidden = true;
  byId("sign-out").hidden = byId("reads").hidden = true;
  byId("login").hidden = false;
  byId("lost").hidden = true;
  setText(byId("login-error"), wrong ? "The daemon does not accept this token." : "");
  setText(byId("connection"), "");
  byId("token").focus();
}

async function ask(mine) {
  const asked = performance.now() / 1000;
  const [status, { luns }, open, events] = await Promise.all(["status", "luns", "sessions", "events"].map(get));
  if (mine !== round) return;
  const sessions = allSessions(open);
  // A daemon that was started again counts from zero.
  if (told && (status.pid !== told.status.pid || status.uptime_s < told.status.uptime_s)) run += 1;
  rates.take(asked, run, luns, sessions);
  told = { status, luns, sessions, events };
  toldAt = new Date();
  byId("login").hidden = byId("lost").hidden = true;
  byId("content").hidden = byId("sections").hidden = false;
  byId("sign-out").hidden = !hasToken();
  // A browser that follows a link sends no token.
  byId("reads").hidden = hasToken();
  show();
  setText(byId("connection"), "Live");
}

/** What to say when the daemon does not tell. */
function reason(error) {
  const since = toldAt ? ` The values are those of ${moment(toldAt)}.` : "";
  if (error instanceof Refused) return `The daemon answers: ${error.message}.${since}`;
  return `The daemon does not answer. Trying again every ${PERIOD_S} seconds.${since}`;
}

async function refresh() {
  const mine = round;
  const begun = performance.now();
  try {
    await ask(mine);
  } catch (error) {
    if (mine !== round) return;
    if (error instanceof TokenNeeded) {
      const wrong = hasToken();
      setToken(null);
      showLogin(wrong);
      return;
    }
    showLost(reason(error));
  }
  if (mine !== round) return;
  // A daemon with very many LUNs is asked less often.
  const took = performance.now() - begun;
  timer = setTimeout(refresh, Math.max(PERIOD_S * 1000 - took, took * 2, 0));
}

byId("login-form").addEventListener("submit", event => {
  event.preventDefault();
  setToken(byId("token").value.trim());
  byId("token").value = "";
  setText(byId("login-error"), "");
  clearTimeout(timer);
  round += 1;
  refresh();
});
byId("sign-out").addEventListener("click", () => {
  setToken(null);
  told = null;
  showLogin(false);
});
byId("chart-lun").addEventListener("change", showCharts);
for (const id of ["luns-filter", "sessions-filter"]) byId(id).addEventListener("input", showTables);
byId("events-grave").addEventListener("change", () => showEvents(told.events));
refresh();
