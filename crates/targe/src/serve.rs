//! `targe serve`: turns the flags into a configuration, and prints commands to paste for initiators.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use daemon::config::{Environment, Flags, HyperScsiService, Medium, Target, UnitIndex, show_size};
use daemon::serve::{Ended, ServeError, Started, serve};

use crate::Failure;
use crate::cli::ServeArgs;
use crate::shell::quoted;
use crate::ways_in::WayIn;

/// The most targets that are listed at the start; `targe status` lists all.
const TARGETS_SHOWN_MAX: usize = 8;

pub(crate) fn run(args: ServeArgs) -> Result<(), Failure> {
    let flags = Flags {
        config: args.config,
        listen: args.listen,
        interfaces: args.iface,
        groups: args.group,
        group_password: args.group_password_file,
        target: args.target,
        luns: args.lun,
        reactor: args.reactor,
        poll: args.poll,
        cores: args.cores,
        state_dir: args.state_dir,
        socket: args.socket,
        log: args.log,
        log_format: args.log_format,
        http: args.http,
        http_token: args.http_token_file,
        strict: args.strict,
    };
    let around = Environment::from_process().map_err(|error| Failure::Failed(error.to_string()))?;
    let temporary = flags.state_dir.clone().filter(|_| args.ephemeral);
    if args.ephemeral {
        end_with_stdin()?;
    }
    // The directories of the sockets are looked at when the state directory has answered.
    let of_banner = around.clone();
    let served = serve(flags, around, |started| show(&banner(started, &of_banner.sockets())));
    if let Some(directory) = temporary.filter(|_| !is_in_use(&served)) {
        // The program that made it may have removed it already.
        let _ = std::fs::remove_dir_all(directory);
    }
    served.map(drop).map_err(|error| match error {
        ServeError::Config(report) => Failure::Misconfigured(report.to_string()),
        ServeError::Storage(report) => Failure::Failed(report.to_string()),
        other => Failure::Failed(other.to_string()),
    })
}

/// Returns whether another process can use the state directory: one that has taken over, one that this
/// process was to take over from, or a daemon that ran before.
const fn is_in_use(served: &Result<Ended, ServeError>) -> bool {
    use ServeError::{Admin, NotTakenOver, StateInUse};
    matches!(served, Ok(Ended::HandedOver) | Err(NotTakenOver(_) | StateInUse { .. } | Admin(_)))
}

/// Ends this process in order when stdin closes. The kernel closes the other end of a pipe when the program
/// that started this one ends, also if it was killed.
fn end_with_stdin() -> Result<(), Failure> {
    let thread = std::thread::Builder::new().name("stdin".to_owned()).spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = signal_hook::low_level::raise(signal_hook::consts::SIGTERM);
    });
    thread.map(drop).map_err(|error| Failure::Failed(format!("cannot watch stdin: {error}")))
}

/// Prints the banner. A daemon whose stdout is closed or full serves all the same.
fn show(banner: &str) {
    let mut out = std::io::stdout().lock();
    if let Err(error) =
        std::io::Write::write_all(&mut out, banner.as_bytes()).and_then(|()| std::io::Write::flush(&mut out))
    {
        eprintln!("targe: cannot write to stdout: {error}");
    }
}

/// Returns the banner: the targets that are served, and how to use them. `sockets` are those at which the
/// other commands look for a daemon.
fn banner(started: &Started, sockets: &[PathBuf]) -> String {
    let mut text = String::new();
    let interfaces = started.config.hyperscsi.iter().flat_map(|frames| &frames.interfaces);
    let listening: Vec<String> =
        started.listening.iter().map(ToString::to_string).chain(interfaces.cloned()).collect();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "targe {} listens on {} ({})",
        env!("CARGO_PKG_VERSION"),
        listening.join(", "),
        started.engine
    );
    for target in started.config.targets.iter().take(TARGETS_SHOWN_MAX) {
        let _ = writeln!(text, "\n  {}", target.name);
        for lun in &target.luns {
            let Some(unit) = started.config.units.get(lun.unit.0) else { continue };
            let size = match &unit.medium {
                Medium::File { size: Some(size), .. } => format!(", {}", show_size(size.0)),
                _ => String::new(),
            };
            let access = if lun.read_only { ", read-only" } else { "" };
            let _ = writeln!(text, "    LUN {}: {}{size}{access}", lun.lun, unit.medium);
        }
    }
    let more = started.config.targets.len().saturating_sub(TARGETS_SHOWN_MAX);
    if more > 0 {
        let _ = writeln!(text, "\n  and {more} more targets");
    }
    if let Some(frames) = &started.config.hyperscsi {
        let groups: Vec<String> = frames.groups.iter().map(|group| format!("{:?}", &*group.name)).collect();
        let _ = writeln!(text, "\nHyperSCSI on {} for {}", frames.interfaces.join(", "), groups.join(", "));
        let _ = write!(text, "{}", ways_over_ether(&started.config.targets, frames));
    }
    if let Some((target, portal)) = first_way_in(started) {
        let medium = |unit: UnitIndex| started.config.units.get(unit.0).map(|unit| &unit.medium);
        let tls = target
            .portals
            .first()
            .and_then(|at| started.config.portals.get(*at))
            .is_some_and(|portal| portal.tls.is_some());
        let way = WayIn { targe: &own_name(), target, portal: &portal, tls, medium: &medium };
        let _ = write!(text, "{}", way.lines());
    }
    if let Some(address) = started.http {
        let scheme = if started.config.http.as_ref().is_some_and(|http| http.tls.is_some()) {
            "https"
        } else {
            "http"
        };
        let _ =
            writeln!(text, "\nStatus page: {scheme}://{address}/ (metrics: {scheme}://{address}/metrics)");
    }
    let _ = writeln!(text, "\nState is kept in {}. Ctrl-C stops.", started.config.state_dir.display());
    let socket = &started.config.admin_socket;
    if !sockets.contains(socket) {
        let _ = writeln!(
            text,
            "Ask this daemon with: targe status --socket {}",
            quoted(&socket.display().to_string())
        );
    }
    text
}

/// Returns the first target, and the address at which this host reaches it or at which its portal is
/// announced.
fn first_way_in(started: &Started) -> Option<(&Target, String)> {
    let target = started.config.targets.first()?;
    let index = *target.portals.first()?;
    if let Some(announced) = &started.config.portals.get(index)?.announce {
        return Some((target, announced.to_string()));
    }
    let listening = *started.listening.get(index)?;
    let here = match listening.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::from(std::net::Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    Some((target, SocketAddr::new(here, listening.port()).to_string()))
}

/// Returns the commands that discover the first group with a target, and that use that target. The interface
/// is that of another host, where it may have another name.
fn ways_over_ether(targets: &[Target], frames: &HyperScsiService) -> String {
    let exported = |(at, group)| {
        let target = targets.iter().find(|target| target.groups.has(at))?;
        Some((group, target, target.luns.iter().find(|lun| lun.groups.has(at))?))
    };
    let Some((group, target, lun)) = frames.groups.iter().enumerate().find_map(exported) else {
        return String::new();
    };
    let served = group.interfaces.as_ref().map_or(Some(&0), |places| places.first());
    let Some(interface) = served.and_then(|at| frames.interfaces.get(*at)) else { return String::new() };
    let (name, lun, group_name) = (&target.name, lun.lun, &*group.name);
    let query = if group.password.is_some() { "?password_file=FILE" } else { "" };
    format!(
        "  targe discover --group {} --iface {interface}\n  targe bench {} --random\n",
        quoted(group_name),
        quoted(&format!("hyperscsi://{group_name}@{interface}/{name}/{lun}{query}"))
    )
}

/// Returns the name by which this program was called, which works again from the same directory.
fn own_name() -> String {
    let first = std::env::args().next().filter(|name| !name.is_empty());
    quoted(&first.unwrap_or_else(|| "targe".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_of_another_process_is_not_removed() {
        let why = || ServeError::Failed("no memory".to_owned());
        assert!(is_in_use(&Ok(Ended::HandedOver)));
        assert!(is_in_use(&Err(ServeError::NotTakenOver(Box::new(why())))));
        assert!(is_in_use(&Err(ServeError::StateInUse { path: "state".into() })));
        assert!(!is_in_use(&Ok(Ended::Stopped)));
        assert!(!is_in_use(&Err(why())), "also in a process that has taken over");
    }
}
