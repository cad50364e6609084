//! `targe status`, `sessions` and `luns`: queries to the running daemon.

use daemon::admin::api::{
    FrameRepairs, FrameSession, Group, Method, Path, Repairs, Session, Sessions, Status,
};
use daemon::admin::client::{ClientError, request};
use daemon::admin::lun_api::Limit;
use daemon::config::{Environment, show_size};
use serde_json::Value;

use crate::cli::AdminArgs;
use crate::daemon_socket::parse;
use crate::tables::{Table, show_uptime};
use crate::{Failure, print};

mod luns;

pub(crate) fn status(args: &AdminArgs) -> Result<(), Failure> {
    let Some(answer) = request_or_print(args, Method::Status)? else { return Ok(()) };
    let status: Status = parse(answer)?;
    print(&show_status(&status));
    Ok(())
}

pub(crate) fn sessions(args: &AdminArgs) -> Result<(), Failure> {
    let Some(answer) = request_or_print(args, Method::Sessions)? else { return Ok(()) };
    let Sessions { sessions, hyperscsi } = parse(answer)?;
    if !sessions.is_empty() || hyperscsi.is_empty() {
        print(&connected_sessions(&sessions).to_string());
    }
    if !hyperscsi.is_empty() {
        let gap = if sessions.is_empty() { "" } else { "\n" };
        print(&format!("{gap}HyperSCSI\n{}", frame_sessions(&hyperscsi)));
    }
    let discovery = "(discovery)";
    let limits = sessions.iter().map(|session| {
        let line = limit_line(session.limit.as_ref(), session.delayed_commands, session.delayed_ms);
        (&session.initiator, session.target.as_deref().unwrap_or(discovery), line)
    });
    let limits = limits.chain(hyperscsi.iter().map(|session| {
        let line = limit_line(session.limit.as_ref(), session.delayed_commands, session.delayed_ms);
        (&session.initiator, session.target.as_str(), line)
    }));
    // Sessions of one initiator share its limit.
    let lines: std::collections::BTreeSet<String> = limits
        .filter_map(|(initiator, target, line)| Some(format!("{initiator} at {target}: {}\n", line?)))
        .collect();
    if !lines.is_empty() {
        print(&lines.into_iter().collect::<String>());
    }
    Ok(())
}

fn connected_sessions(sessions: &[Session]) -> Table {
    let mut table = Table::new(&[
        "TARGET",
        "INITIATOR",
        "FROM",
        "ISID",
        "CONNECTIONS",
        "ERL",
        "PROTECTION",
        "TASKS",
        "COMMANDS",
        "SENT",
        "RECEIVED",
        "REPAIRED",
    ]);
    for session in sessions {
        table.row(&[
            &target(
                session.target.as_deref().unwrap_or("(discovery)"),
                &session.other_disk_luns,
                session.hidden_luns,
            ),
            &session.initiator,
            &from(session),
            &session.isid,
            &connections(session),
            &session.error_recovery_level.to_string(),
            &protection(&session.protection, session.protection_by.as_deref()),
            &session.tasks.to_string(),
            &session.commands.to_string(),
            &session.data_in_bytes.to_string(),
            &session.data_out_bytes.to_string(),
            &repaired(&session.repairs),
        ]);
    }
    table
}

fn frame_sessions(sessions: &[FrameSession]) -> Table {
    let mut table = Table::new(&[
        "TARGET",
        "INITIATOR",
        "PATHS",
        "ISID",
        "GROUP",
        "PASSWORD",
        "PROTECTION",
        "TASKS",
        "COMMANDS",
        "SENT",
        "RECEIVED",
        "REPAIRED",
    ]);
    for session in sessions {
        let path = |path: &Path| {
            let down = if path.up { "" } else { " (down)" };
            // An MTU below that of the interface is worth showing.
            let narrow = match path.mtu < path.interface_mtu {
                true => format!(" (MTU {} of {})", path.mtu, path.interface_mtu),
                false => String::new(),
            };
            format!("{}%{}{down}{narrow}", path.peer, path.interface)
        };
        table.row(&[
            &target(&session.target, &session.other_disk_luns, session.hidden_luns),
            &session.initiator,
            &session.paths.iter().map(path).collect::<Vec<_>>().join(" "),
            &session.isid,
            &session.group,
            yes_or_no(session.authenticated),
            &session.protection,
            &session.tasks.to_string(),
            &session.commands.to_string(),
            &session.data_in_bytes.to_string(),
            &session.data_out_bytes.to_string(),
            &frames_repaired(&session.repairs),
        ]);
    }
    table
}

/// Returns the name of a target, with the LUNs that are withheld from the initiator because they were another
/// disk when it opened them, and the number of those that it does not see for lack of protection.
fn target(name: &str, other_disks: &[u16], hidden: u32) -> String {
    let mut notes = Vec::new();
    if !other_disks.is_empty() {
        let luns: Vec<String> = other_disks.iter().map(u16::to_string).collect();
        notes.push(format!("LUN {}: not the disk that it opened", luns.join(", ")));
    }
    match hidden {
        0 => {}
        1 => notes.push("1 LUN hidden: it requires more protection".to_owned()),
        some => notes.push(format!("{some} LUNs hidden: they require more protection")),
    }
    if notes.is_empty() { name.to_owned() } else { format!("{name} ({})", notes.join("; ")) }
}

/// Returns the level of a session, and what gives it.
fn protection(level: &str, by: Option<&str>) -> String {
    by.map_or_else(|| level.to_owned(), |by| format!("{level}: {by}"))
}

/// Returns a short description of the repairs in a HyperSCSI session.
fn frames_repaired(repairs: &FrameRepairs) -> String {
    in_words(&[
        (repairs.frames_lost, "lost"),
        (repairs.damaged_frames, "damaged"),
        (repairs.replayed_frames, "duplicate"),
        (repairs.duplicate_requests, "repeated requests"),
        (repairs.late_frames, "late"),
        (repairs.refused_frames, "refused"),
        (repairs.overruns, "lost at the port"),
    ])
}

/// Returns the addresses that a session's connections come from.
fn from(session: &Session) -> String {
    let peers: Vec<&str> = session.members.iter().map(|member| &*member.peer).collect();
    if peers.is_empty() { "-".to_owned() } else { peers.join(" ") }
}

/// Returns how many connections a session has, and how many it lost and may replace.
fn connections(session: &Session) -> String {
    match session.lost_connections {
        0 => session.connections.to_string(),
        lost => format!("{} ({lost} lost)", session.connections),
    }
}

/// Returns a short description of the repairs in an iSCSI session.
fn repaired(repairs: &Repairs) -> String {
    in_words(&[
        (repairs.header_digest_errors + repairs.data_digest_errors, "damaged"),
        (repairs.snacks, "sent again"),
        (repairs.recovery_r2ts, "asked again"),
        (repairs.reassigns, "moved"),
    ])
}

/// Lists the counts that are not zero.
fn in_words(counts: &[(u64, &str)]) -> String {
    let words: Vec<String> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

pub(crate) fn luns(args: &AdminArgs) -> Result<(), Failure> {
    let Some(answer) = request_or_print(args, Method::Luns)? else { return Ok(()) };
    print(&luns::show(&parse(answer)?));
    Ok(())
}

/// Describes a limit and what it has delayed; `None` if there is nothing to tell.
fn limit_line(limit: Option<&Limit>, delayed: u64, delayed_ms: u64) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(Limit { iops, bandwidth, burst_ms }) = limit {
        let rates = [
            iops.map(|iops| format!("{iops} operations per second")),
            bandwidth.map(|bytes| format!("{} per second", show_size(bytes))),
        ];
        let rates: Vec<String> = rates.into_iter().flatten().collect();
        parts.push(format!("limited to {}, burst {burst_ms} ms", rates.join(" and ")));
    }
    if delayed > 0 {
        let seconds = std::time::Duration::from_millis(delayed_ms).as_secs_f64();
        parts.push(format!("{delayed} commands delayed by {seconds:.1} s in total"));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Queries the daemon. Prints the answer if JSON is wanted; otherwise returns it.
fn request_or_print(args: &AdminArgs, method: Method) -> Result<Option<Value>, Failure> {
    let answer = match &args.socket {
        Some(path) => request(path, method).map_err(|error| Failure::Failed(error.to_string()))?,
        None => request_any_socket(method)?,
    };
    if args.json {
        print(&format!("{answer:#}\n"));
        return Ok(None);
    }
    Ok(Some(answer))
}

/// Queries the daemon on any of its possible sockets. Prints which socket answered, unless it is the socket
/// that a daemon started from here would use.
fn request_any_socket(method: Method) -> Result<Value, Failure> {
    let around = Environment::from_process().map_err(|error| Failure::Failed(error.to_string()))?;
    let sockets = around.sockets();
    let (mut answers, mut refused) = (Vec::new(), None);
    for socket in &sockets {
        match request(socket, method) {
            Ok(answer) => answers.push((socket, answer)),
            Err(ClientError::Absent { .. }) => {}
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    let mut answers = answers.into_iter();
    let Some((socket, answer)) = answers.next() else {
        let names: Vec<String> = sockets.iter().map(|socket| socket.display().to_string()).collect();
        return Err(Failure::Failed(match refused {
            Some(error) => error.to_string(),
            None => format!(
                "no targe is running at the usual places (no process listens on {}); name its socket with --socket",
                names.join(", ")
            ),
        }));
    };
    if *socket != around.default_socket() {
        eprintln!("targe: the daemon on {} answers", socket.display());
    }
    for (other, _) in answers {
        eprintln!("targe: another daemon listens on {}; select it with --socket", other.display());
    }
    Ok(answer)
}

fn show_status(status: &Status) -> String {
    let mut head = Table::bare();
    let uptime = show_uptime(status.uptime_s);
    head.row(&["targe", &format!("{}, process {}, up {uptime}", status.version, status.pid)]);
    head.row(&["configuration", status.config.as_deref().unwrap_or("flags")]);
    if let Some(reload) = &status.reload {
        let verdict = if reload.applied { "applied" } else { "refused" };
        let ago = show_uptime(reload.ago_s);
        let first = reload.message.lines().next().unwrap_or_default();
        head.row(&["last reload", &format!("{verdict} {ago} ago: {first}")]);
    }
    head.row(&["state", &status.state_dir]);
    head.row(&["sessions", &format!("{} of {}", status.sessions, status.max_sessions)]);
    head.row(&["logins", &format!("{}, and {} refused", status.logins, status.failed_logins)]);
    if status.rival_logins > 0 {
        let text =
            format!("{} logins ended the session of another host with the same name", status.rival_logins);
        head.row(&["name clash", &text]);
    }
    head.row(&["repaired", &repaired(&status.repairs)]);
    if status.medium_errors > 0 || status.not_ready > 0 {
        let text = format!("{} failures, {} disks not ready", status.medium_errors, status.not_ready);
        head.row(&["media", &text]);
    }
    if status.bugs > 0 {
        head.row(&["bugs", &format!("{}; this is a bug in targe", status.bugs)]);
    }
    for reactor in &status.reactors {
        let core = reactor.core.map_or(String::new(), |core| format!(" on core {core}"));
        let (into, out) = (reactor.bytes_in, reactor.bytes_out);
        let text = format!(
            "{}{core}, {} connections, {into} bytes in, {out} out",
            reactor.engine, reactor.connections
        );
        let frames = match (reactor.frames_in, reactor.frames_out) {
            (0, 0) => String::new(),
            (into, out) => {
                format!(
                    ", {into} frames in, {out} out, {} lost because the receive buffer was full",
                    reactor.frames_dropped
                )
            }
        };
        let text = format!("{text}{frames}");
        head.row(&["reactor", &text]);
    }
    let mut tables = Vec::new();
    if !status.interfaces.is_empty() {
        let done = &status.hyperscsi;
        let handshakes = in_words(&[
            (done.handshakes_refused, "refused"),
            (done.handshakes_unfinished, "unfinished"),
            (done.handshakes_put_off, "deferred"),
        ]);
        head.row(&["HyperSCSI", &format!("on {}", status.interfaces.join(", "))]);
        head.row(&["  handshakes", &handshakes]);
        let commands = in_words(&[
            (done.commands, "taken"),
            (done.refused_level, "refused for lack of protection"),
            (done.busy, "BUSY"),
        ]);
        head.row(&["  commands", &commands]);
        head.row(&["  frames", &frames_repaired(&done.repairs)]);
    }
    if !status.portals.is_empty() {
        let mut portals = Table::new(&["PORTAL", "TAG", "TLS", "ANNOUNCED AS"]);
        for portal in &status.portals {
            let announce = portal.announce.as_deref().unwrap_or("itself");
            let tls = if portal.tls { "only" } else { "no" };
            portals.row(&[&portal.listen, &portal.tag.to_string(), tls, announce]);
        }
        tables.push(portals);
    }
    if !status.name_servers.is_empty() {
        let mut servers = Table::new(&["NAME SERVER", "STATE", "WHY"]);
        for server in &status.name_servers {
            servers.row(&[&server.server, &server.state, server.error.as_deref().unwrap_or("-")]);
        }
        tables.push(servers);
    }
    if !status.groups.is_empty() {
        tables.push(show_groups(&status.groups));
    }
    let mut targets = Table::new(&["TARGET", "LUNS", "SESSIONS", "ALIAS"]);
    for target in &status.targets {
        let restricted = match target.restricted_sessions {
            0 => String::new(),
            some => format!(" ({some} without LUNs that require more protection)"),
        };
        let sessions = format!("{} of {}{restricted}", target.sessions, target.max_sessions);
        targets.row(&[
            &target.name,
            &target.luns.to_string(),
            &sessions,
            target.alias.as_deref().unwrap_or(""),
        ]);
    }
    tables.push(targets);
    tables.iter().fold(head.to_string(), |text, table| format!("{text}\n{table}"))
}

fn show_groups(groups: &[Group]) -> Table {
    let mut table = Table::new(&["GROUP", "PASSWORD", "PROTECTION", "INTERFACES", "TARGETS", "SESSIONS"]);
    for group in groups {
        table.row(&[
            &group.name,
            yes_or_no(group.password),
            &group.protection,
            &group.interfaces.join(", "),
            &group.targets.to_string(),
            &group.sessions.to_string(),
        ]);
    }
    table
}

const fn yes_or_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_shown_in_two_units() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (61, "1m 1s"), (7260, "2h 1m"), (200_000, "2d 7h")] {
            assert_eq!(show_uptime(seconds), text);
        }
    }
}
