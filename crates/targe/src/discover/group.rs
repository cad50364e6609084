//! Discovers the targets that are exported to a HyperSCSI group.

use std::time::Duration;

use hyperscsi::pdu::name::{GROUP_MAX as GROUP_LEN_MAX, GroupName};
use initiator::discover::{FoundTarget, HyperScsiDiscovery, Wait, search};
use initiator::endpoint::Endpoint;
use initiator::{Error, PlanError};
use serde_json::{Value, json};

use crate::cli::DiscoverArgs;
use crate::tables::Table;
use crate::{Failure, connect, print};

/// Discovers a group that the flags name.
pub(super) fn run(group: &str, args: &DiscoverArgs) -> Result<(), Failure> {
    let misused = |why: &dyn std::error::Error| Failure::Misused(why.to_string());
    let (first, others) = args.iface.split_first().ok_or_else(|| misused(&PlanError::NotAGroup))?;
    let others = if others.is_empty() { String::new() } else { format!("?paths={}", others.join(",")) };
    let group = GroupName::new(group).ok_or_else(|| {
        Failure::Misused(format!("--group {group:?}: the name of a group has 1 to {GROUP_LEN_MAX} bytes, none of them a control character"))
    })?;
    // A group name may contain characters that have a meaning in a URL.
    let mut place =
        Endpoint::parse(&format!("hyperscsi://group@{first}{others}")).map_err(|why| misused(&why))?;
    place.login.user = Some(group.to_string());
    show(&place, args)
}

/// Discovers the group of an endpoint, and shows the targets that were found.
pub(super) fn show(place: &Endpoint, args: &DiscoverArgs) -> Result<(), Failure> {
    let wait = args.wait.map_or(Wait::WhileNew, |seconds| Wait::For(Duration::from_secs(seconds)));
    // The text output shows each target as soon as it is found; JSON is one document at the end.
    let mut tell = |neighbour: &FoundTarget| {
        if !args.json {
            print(&as_text(neighbour));
        }
    };
    let found = search(place, wait, &mut tell).map_err(|why| match why {
        Error::Plan(_) => Failure::Misused(why.to_string()),
        other => Failure::Failed(connect::error_chain(&other)),
    })?;
    warn(&found);
    if args.json {
        let all = found.targets.iter().flat_map(|neighbour| as_json(neighbour, &found));
        print(&format!("{:#}\n", Value::Array(all.collect())));
    }
    if found.targets.is_empty() {
        let version = if found.other_version { " in this version of HyperSCSI" } else { "" };
        let what = "no server exports a target to this group here";
        return Err(Failure::Failed(format!("{what}{version}")));
    }
    if found.disputed.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = found.disputed.iter().map(|name| &**name).collect();
    Err(Failure::Failed(format!(
        "two servers with one identity: more than one server announces {} as its own",
        names.join(", ")
    )))
}

fn warn(found: &HyperScsiDiscovery) {
    for interface in &found.interfaces_down {
        eprintln!("targe: interface {interface} is not up, or its MTU is less than 1500");
    }
    if found.left_out > 0 {
        eprintln!("targe: {} answers were omitted, since there were too many", found.left_out);
    }
}

fn as_text(neighbour: &FoundTarget) -> String {
    let FoundTarget { found, interface, units } = neighbour;
    let password = if found.authenticates { "password needed" } else { "no password" };
    let mut text = format!(
        "{}  {} on {interface}, server {}, frames up to {}, {password}\n",
        found.target,
        found.mac,
        hex(&found.instance),
        found.frame_max
    );
    let mut table = Table::bare();
    for (url, level) in units {
        table.row(&["  LUN", &url.lun.to_string(), &format!("protection {level}"), &url.to_string()]);
    }
    text += &table.to_string();
    if found.more {
        text += "  and more, which do not fit into an answer\n";
    }
    text
}

fn as_json<'a>(
    neighbour: &'a FoundTarget,
    whole: &'a HyperScsiDiscovery,
) -> impl Iterator<Item = Value> + use<'a> {
    let FoundTarget { found, interface, units } = neighbour;
    units.iter().map(move |(url, level)| {
        json!({
            "url": url.to_string(),
            "target": &*found.target,
            "lun": url.lun,
            "interface": interface,
            "mac": found.mac.to_string(),
            "server": hex(&found.instance),
            "password": found.authenticates,
            "protection": level.to_string(),
            "frame_max": found.frame_max,
            "disputed": whole.disputed.contains(&found.target),
        })
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
