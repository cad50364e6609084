//! `targe discover`: the targets of a portal, and their LUNs by logging in to each; or the targets that are
//! exported to a HyperSCSI group on the networks of an interface, as the servers report them.

mod group;

use daemon::config::show_size;
use initiator::discover::{FoundUnit, targets, units};
use initiator::endpoint::{Endpoint, Scheme};
use initiator::{EnvSecrets, block_on};
use iscsi::discovery::Discovered;
use iscsi::name::IscsiName;
use serde_json::{Value, json};

use crate::cli::DiscoverArgs;
use crate::connect;
use crate::tables::Table;
use crate::{Failure, print};

pub(crate) fn run(args: &DiscoverArgs) -> Result<(), Failure> {
    if let Some(name) = &args.group {
        return group::run(name, args);
    }
    let place = place(args)?;
    if place.transport.scheme() == Scheme::HyperScsi {
        return group::show(&place, args);
    }
    let client = connect::client()?;
    let told = connect::at_or_with_md5(&place, |place| block_on(targets(&client, place, &EnvSecrets)));
    let told = told.map_err(|why| connect::failure(&why))?;
    if told.ignored > 0 {
        eprintln!(
            "targe: {} entries of the list are not legal names or addresses and were omitted",
            told.ignored
        );
    }
    let mut found = Vec::new();
    let mut troubles = Vec::new();
    for target in &told.targets {
        match connect::at_or_with_md5(&place, |place| block_on(units(&client, place, target, &EnvSecrets))) {
            Ok(units) => found.push((target, units)),
            Err(why) => {
                troubles.push(connect::error_chain(&why));
                found.push((target, Vec::new()));
            }
        }
    }
    if args.json {
        let all = found.iter().flat_map(|(target, units)| units.iter().map(|unit| as_json(target, unit)));
        print(&format!("{:#}\n", Value::Array(all.collect())));
    } else {
        show(&found);
    }
    if found.is_empty() {
        return Err(Failure::Failed(nothing_listed(&place)));
    }
    if troubles.is_empty() { Ok(()) } else { Err(Failure::Failed(troubles.join("; "))) }
}

/// Returns the endpoint, with the flags applied as if they were part of the URL.
fn place(args: &DiscoverArgs) -> Result<Endpoint, Failure> {
    let misused = |text: String| Failure::Misused(text);
    let portal = args
        .portal
        .as_deref()
        .ok_or_else(|| misused("no portal is given; name HOST[:PORT], or --group and --iface".to_owned()))?;
    let mut place = Endpoint::parse(portal).map_err(|why| misused(why.to_string()))?;
    if let Some(user) = &args.user {
        if user.is_empty() || user.len() > 255 {
            return Err(misused("--user: the name is empty or longer than 255 bytes".to_owned()));
        }
        place.login.user = Some(user.clone());
    }
    if let Some(name) = &args.initiator {
        let name = IscsiName::parse(name.as_bytes()).map_err(|why| misused(format!("--initiator: {why}")))?;
        place.options.initiator = Some(name);
    }
    let options = &mut place.options;
    for (to, from) in [
        (&mut options.password_file, &args.password_file),
        (&mut options.target_user, &args.target_user),
        (&mut options.target_password_file, &args.target_password_file),
    ] {
        if from.is_some() {
            to.clone_from(from);
        }
    }
    Ok(place)
}

/// Returns why a portal may list nothing: a target is listed to the initiators that may log in to it.
fn nothing_listed(place: &Endpoint) -> String {
    let name = place.initiator_name().map_or(String::new(), |name| format!(" for {name}"));
    format!(
        "the portal lists no targets{name}; if the access lists there name another initiator, choose that with \
         --initiator"
    )
}

fn show(found: &[(&Discovered, Vec<FoundUnit>)]) {
    let mut text = String::new();
    for (target, units) in found {
        let portals: Vec<String> = target.addresses.iter().map(|(address, _)| address.to_string()).collect();
        text += &format!("{}  {}\n", target.name.spelling(), portals.join(", "));
        let mut table = Table::bare();
        for unit in units {
            let size = match (unit.capacity, &unit.trouble) {
                (Some(capacity), _) => show_size(capacity.bytes()),
                (None, Some(trouble)) => trouble.clone(),
                (None, None) => format!("type {:02x}h", unit.inquiry.device_type.0),
            };
            let (vendor, product) = (words(&unit.inquiry.vendor), words(&unit.inquiry.product));
            table.row(&["  LUN", &unit.url.lun.to_string(), &size, &vendor, &product, &unit.url.to_string()]);
        }
        text += &table.to_string();
    }
    print(&text);
}

fn as_json(target: &Discovered, unit: &FoundUnit) -> Value {
    let portals: Vec<String> = target.addresses.iter().map(|(address, _)| address.to_string()).collect();
    json!({
        "url": unit.url.to_string(),
        "target": target.name.spelling(),
        "portals": portals,
        "lun": unit.url.lun,
        "bytes": unit.capacity.map(|capacity| capacity.bytes()),
        "block_bytes": unit.capacity.map(|capacity| capacity.block_size.bytes()),
        "vendor": words(&unit.inquiry.vendor),
        "product": words(&unit.inquiry.product),
        "revision": words(&unit.inquiry.revision),
        "device_type": unit.inquiry.device_type.0,
        "error": unit.trouble,
    })
}

/// Decodes a field of INQUIRY data: ASCII padded with spaces.
pub(crate) fn words(field: &[u8]) -> String {
    let text: String = field
        .iter()
        .map(|byte| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '?' })
        .collect();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_without_targets_is_a_failure_that_names_the_initiator() {
        let place = Endpoint::parse("iscsi://192.0.2.7?initiator=iqn.2026-01.com.example:host").unwrap();
        assert_eq!(
            nothing_listed(&place),
            "the portal lists no targets for iqn.2026-01.com.example:host; if the access lists there name another \
             initiator, choose that with --initiator"
        );
    }
}
