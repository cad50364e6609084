//! The plan of a change: the differences between two configurations in words, for the operator who is about
//! to apply one. It never contains secrets: of a secret it says only that it changed.

mod fields;
mod targets;

use std::fmt;

use super::diff::{Changes, PortalChange, TargetChange};
use super::resolved::{Config, Http, HyperScsiService, Portal};
use fields::{auth_details, field};

/// One difference between the running configuration and a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedChange {
    /// The kind of item that differs.
    pub subject: Subject,
    /// The item's name: the address of a portal, the name of a target, `TARGET/LUN`, or a key of the top
    /// level.
    pub name: String,
    /// What happens to it.
    pub what: What,
    /// What differs in it, one difference per line.
    pub details: Vec<String>,
    /// When the difference takes effect.
    pub effective: WhenEffective,
    /// Whether running sessions can lose the target or a LUN.
    pub disruptive: bool,
}

/// What happens to an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It is new.
    Added,
    /// It goes.
    Removed,
    /// It changes.
    Changed,
    /// Another disk takes its place.
    Replaced,
}

/// The kind of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A portal.
    Portal,
    /// A target.
    Target,
    /// A LUN of a target.
    Lun,
    /// The access to a target: its access list and its authentication.
    Access,
    /// A setting of the daemon as a whole.
    Setting,
}

/// When a difference takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenEffective {
    /// At once, for running sessions too.
    Now,
    /// For sessions that log in from then on.
    NewSessions,
    /// When targe is started again.
    Restart,
}

/// Returns every difference between two configurations.
pub fn plan(old: &Config, new: &Config) -> Vec<PlannedChange> {
    let changes = Config::diff(old, new);
    let mut planned: Vec<PlannedChange> =
        changes.portals.iter().map(|(at, change)| portal(*at, *change, old, new)).collect();
    for (name, change) in &changes.targets {
        let find = |config: &Config| config.targets.iter().position(|target| target.name == *name);
        match (change, find(old), find(new)) {
            (TargetChange::Added, _, Some(at)) => planned.extend(targets::whole(new, at, What::Added)),
            (TargetChange::Removed, Some(at), _) => planned.extend(targets::whole(old, at, What::Removed)),
            (TargetChange::Changed(delta), Some(was), Some(is)) => {
                targets::changed(delta, (old, was), (new, is), &mut planned);
            }
            _ => {}
        }
    }
    planned.extend(settings(&changes, old, new));
    planned
}

fn portal(at: std::net::SocketAddr, change: PortalChange, old: &Config, new: &Config) -> PlannedChange {
    let find = |config: &Config| config.portals.iter().find(|portal| portal.listen == at).cloned();
    let (was, is) = (find(old), find(new));
    let mut details = Vec::new();
    let what = match (change, &was, &is) {
        (PortalChange::Changed, Some(was), Some(is)) => {
            portal_details(was, is, &mut details);
            What::Changed
        }
        (PortalChange::Removed, ..) => {
            details.push("sessions that no other portal with its tag serves end".to_owned());
            What::Removed
        }
        (_, _, Some(is)) => {
            details.push(format!("portal group tag {}", is.tag));
            details.extend(is.tls.is_some().then(|| "TLS only".to_owned()));
            What::Added
        }
        _ => What::Added,
    };
    let other_tag = was.zip(is).is_some_and(|(was, is)| was.tag != is.tag);
    if other_tag {
        details.push("its sessions cannot log in again before their hosts discover the new tag".to_owned());
    }
    let (subject, name) = (Subject::Portal, at.to_string());
    let disruptive = what == What::Removed || other_tag;
    PlannedChange { subject, name, what, details, effective: WhenEffective::Now, disruptive }
}

fn portal_details(was: &Portal, is: &Portal, details: &mut Vec<String>) {
    let name = |portal: &Portal| portal.name.clone().unwrap_or_else(|| "none".to_owned());
    let announced =
        |portal: &Portal| portal.announce.as_ref().map_or("itself".to_owned(), ToString::to_string);
    field(details, "name", &name(was), &name(is));
    field(details, "tag", &was.tag, &is.tag);
    field(details, "announce", &announced(was), &announced(is));
    match (&was.tls, &is.tls) {
        (None, Some(_)) => details.push("TLS is switched on".to_owned()),
        (Some(_), None) => details.push("TLS is switched off".to_owned()),
        (was, is) if was != is => details.push("another TLS certificate or client authority".to_owned()),
        _ => {}
    }
}

fn settings(changes: &Changes, old: &Config, new: &Config) -> Vec<PlannedChange> {
    let live = changes.settings.iter().map(|name| (*name, WhenEffective::Now));
    let fixed = changes.restart.iter().map(|name| (*name, WhenEffective::Restart));
    let setting = |(name, effective): (&'static str, WhenEffective)| {
        let mut details = Vec::new();
        match name {
            "discovery" => auth_details(&old.discovery_auth, &new.discovery_auth, &mut details),
            "hyperscsi" => groups(old.hyperscsi.as_ref(), new.hyperscsi.as_ref(), &mut details),
            "http" => http_details(old.http.as_ref(), new.http.as_ref(), &mut details),
            name => details.push(format!("{} -> {}", value(old, name), value(new, name))),
        }
        let (subject, name) = (Subject::Setting, name.to_owned());
        let disruptive = name == "hyperscsi" && group_changed(old, new);
        PlannedChange { subject, name, what: What::Changed, details, effective, disruptive }
    };
    live.chain(fixed).map(setting).collect()
}

/// Describes how the HTTP server changes. Of its tokens it says only that they changed.
fn http_details(was: Option<&Http>, is: Option<&Http>, details: &mut Vec<String>) {
    let listen = |http: Option<&Http>| {
        http.map_or("none".to_owned(), |http| {
            format!("{}{}", http.listen, if http.tls.is_some() { " (TLS)" } else { "" })
        })
    };
    field(details, "listen", &listen(was), &listen(is));
    let (Some(was), Some(is)) = (was, is) else { return };
    field(details, "hosts", &was.hosts.join(", "), &is.hosts.join(", "));
    if was.tokens != is.tokens {
        details.push("the tokens changed".to_owned());
    }
    if was.tls.is_some() && is.tls.is_some() && was.tls != is.tls {
        details.push("another TLS certificate or client authority".to_owned());
    }
}

/// Returns whether a HyperSCSI group was removed or changed.
fn group_changed(old: &Config, new: &Config) -> bool {
    let groups =
        |config: &Config| config.hyperscsi.as_ref().map(|frames| frames.groups.clone()).unwrap_or_default();
    let now = groups(new);
    groups(old).iter().any(|group| !now.contains(group))
}

/// Returns a setting as text.
fn value(config: &Config, name: &str) -> String {
    let limits = &config.limits;
    match name {
        "log" => config.log.name().to_owned(),
        "log_format" => format!("{:?}", config.log_format).to_lowercase(),
        "slow_command" => config.slow_command.map_or("none".to_owned(), |span| format!("{span:?}")),
        "max_sessions" => config.max_sessions.to_string(),
        "max_connections" => config.max_connections.to_string(),
        "login_timeout" => format!("{:?}", config.login_timeout),
        "queue_depth" => limits.queue_depth.to_string(),
        "nop_interval" => format!("{:?}", limits.ping_after),
        "nop_timeout" => format!("{:?}", limits.pong_within),
        "nop_idle_timeout" => format!("{:?}", limits.idle_within),
        "names" => if config.lenient_names { "lenient" } else { "strict" }.to_owned(),
        "isns" => config.isns.as_ref().map_or("none".to_owned(), |isns| {
            isns.servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        }),
        "send_timeout" => config.send_timeout.map_or("none".to_owned(), |span| format!("{span:?}")),
        "state_dir" => config.state_dir.display().to_string(),
        "admin_socket" => config.admin_socket.display().to_string(),
        "admin_readers" => config.admin_readers.map_or("none".to_owned(), |group| format!("group {group}")),
        "reactor" => format!("{:?}", config.reactor).to_lowercase(),
        "cores" if config.cores.is_empty() => "all".to_owned(),
        "cores" => config.cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        "poll" => config.poll.to_string(),
        "look" => config.look.to_string(),
        "memory" => config.memory.map_or("derived".to_owned(), |size| super::show_size(size.0)),
        _ => "changed".to_owned(),
    }
}

fn groups(was: Option<&HyperScsiService>, is: Option<&HyperScsiService>, details: &mut Vec<String>) {
    let interfaces = |service: Option<&HyperScsiService>| {
        let names = service.map(|service| service.interfaces.join(", "));
        names.filter(|names| !names.is_empty()).unwrap_or_else(|| "none".to_owned())
    };
    field(details, "interfaces", &interfaces(was), &interfaces(is));
    let all =
        |service: Option<&HyperScsiService>| service.map(|known| known.groups.clone()).unwrap_or_default();
    let (before, after) = (all(was), all(is));
    for group in &before {
        match after.iter().find(|other| other.name == group.name) {
            None => details.push(format!("group {:?} removed: its sessions end", &*group.name)),
            Some(now) => {
                let mut parts = Vec::new();
                let level = |group: &super::resolved::Group| group.min_protection.to_string();
                field(&mut parts, "protection", &level(group), &level(now));
                if group.password != now.password {
                    parts.push("its password changed".to_owned());
                }
                if group.interfaces != now.interfaces {
                    parts.push("its interfaces changed".to_owned());
                }
                if !parts.is_empty() {
                    details.push(format!("group {:?}: {}", &*group.name, parts.join(", ")));
                }
            }
        }
    }
    let new = after.iter().filter(|group| !before.iter().any(|other| other.name == group.name));
    details.extend(new.map(|group| format!("group {:?} added", &*group.name)));
}

impl What {
    /// Returns the sign that marks such a change in a list.
    pub const fn sign(self) -> char {
        match self {
            Self::Added => '+',
            Self::Removed => '-',
            Self::Changed | Self::Replaced => '~',
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Changed => "changed",
            Self::Replaced => "replaced",
        })
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Portal => "portal",
            Self::Target => "target",
            Self::Lun => "LUN",
            Self::Access => "access to",
            Self::Setting => "setting",
        })
    }
}
