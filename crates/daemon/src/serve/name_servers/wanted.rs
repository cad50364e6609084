//! What a configuration registers with name servers.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use isns::registration::{Portal, Registration, Target};

use crate::config::Announced;
use crate::serve::runtime_config::RuntimeConfig;

/// The addresses of announced names, each for IPv4 or not.
pub(super) type Names = BTreeMap<(String, bool), Portal>;

/// The targets and portals of a configuration, before it is known which address reaches a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    entity: String,
    pub(super) event_port: u16,
    portals: Vec<PortalAddress>,
    targets: Vec<WantedTarget>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PortalAddress {
    listening: SocketAddr,
    announce: Option<Announced>,
    tag: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct WantedTarget {
    name: String,
    alias: Option<String>,
    /// The portals that serve it, as indices.
    portals: Vec<usize>,
}

impl Wanted {
    /// Returns what is to be registered; `None` if there are no name servers.
    pub(super) fn of(runtime: &RuntimeConfig) -> Option<Self> {
        let config = &runtime.config;
        let isns = config.isns.as_ref()?;
        let first = config.targets.first().map_or(String::new(), |target| target.name.to_string());
        // What is registered says nothing of TLS, and an initiator without it could not log in.
        let open: Vec<usize> = (0..config.portals.len())
            .filter(|at| config.portals.get(*at).is_some_and(|one| one.tls.is_none()))
            .collect();
        let portal = |at: &usize| {
            let (portal, (_, listening)) = (config.portals.get(*at)?, runtime.portals.get(*at)?);
            Some(PortalAddress { listening: *listening, announce: portal.announce.clone(), tag: portal.tag })
        };
        let target = |target: &crate::config::Target| WantedTarget {
            name: target.name.to_string(),
            alias: target.alias.clone(),
            portals: target.portals.iter().filter_map(|at| open.iter().position(|one| one == at)).collect(),
        };
        Some(Self {
            entity: isns.entity.clone().unwrap_or(first),
            event_port: isns.event_port.unwrap_or(0),
            portals: open.iter().filter_map(portal).collect(),
            // A target that no portal serves is reached by HyperSCSI only.
            targets: config.targets.iter().map(target).filter(|one| !one.portals.is_empty()).collect(),
        })
    }

    /// Returns a value without targets.
    #[cfg(test)]
    pub(super) fn nothing(event_port: u16) -> Self {
        Self { entity: String::new(), event_port, portals: Vec::new(), targets: Vec::new() }
    }

    /// Makes the registration for a server that is reached from the address `own`. It stands for portals that
    /// listen on every address. `None` if no target can be reached.
    pub(super) fn registration(&self, own: IpAddr, names: &mut Names) -> Option<Registration> {
        let addresses: Vec<Option<Portal>> =
            self.portals.iter().map(|portal| portal.address(own, names)).collect();
        let mut portals: Vec<Portal> = addresses.iter().flatten().copied().collect();
        portals.sort_unstable();
        portals.dedup();
        let target = |target: &WantedTarget| {
            let tag = |portal: &Portal| {
                let mut served = target.portals.iter();
                let at =
                    served.find(|at| addresses.get(**at).is_some_and(|one| one.as_ref() == Some(portal)))?;
                self.portals.get(*at).map(|portal| portal.tag)
            };
            let tags: Vec<Option<u16>> = portals.iter().map(tag).collect();
            let reachable = tags.iter().any(Option::is_some);
            reachable.then(|| Target { name: target.name.clone(), alias: target.alias.clone(), tags })
        };
        let targets: Vec<Target> = self.targets.iter().filter_map(target).collect();
        (!targets.is_empty()).then(|| Registration { entity: self.entity.clone(), portals, targets })
    }
}

impl PortalAddress {
    /// Returns the address that initiators are told; `None` if there is none.
    fn address(&self, own: IpAddr, names: &mut Names) -> Option<Portal> {
        if let Some(announce) = &self.announce {
            let name = (announce.to_string(), self.listening.is_ipv4());
            let mut found = (host(announce), announce.port).to_socket_addrs().into_iter().flatten();
            if let Some(first) = found.find(|address| address.is_ipv4() == self.listening.is_ipv4()) {
                names.insert(name.clone(), Portal { address: first.ip(), port: first.port() });
            }
            // While the name cannot be resolved, the former address stays registered.
            return names.get(&name).copied();
        }
        let listening = self.listening.ip().to_canonical();
        let address = match listening {
            IpAddr::V4(any) if any.is_unspecified() => Some(own).filter(IpAddr::is_ipv4)?,
            IpAddr::V6(any) if any.is_unspecified() => own,
            bound => bound,
        };
        Some(Portal { address, port: self.listening.port() })
    }
}

/// Returns the host of an announced address as the system's resolver takes it.
pub(super) fn host(address: &Announced) -> &str {
    address.host.trim_start_matches('[').trim_end_matches(']')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a portal listens, what it is announced as, and its tag.
    type Written<'t> = (&'t str, Option<(&'t str, u16)>, u16);
    /// The portals that are registered, and the tag of each target at each of them.
    type Registered = (Vec<String>, Vec<Vec<Option<u16>>>);

    fn wanted(portals: &[Written<'_>], targets: &[&[usize]]) -> Wanted {
        let portal = |(listening, announce, tag): &Written<'_>| PortalAddress {
            listening: listening.parse().unwrap(),
            announce: announce.map(|(host, port)| Announced { host: host.to_owned(), port }),
            tag: *tag,
        };
        let target = |(at, portals): (usize, &&[usize])| WantedTarget {
            name: format!("iqn.2026-01.com.example:{at}"),
            alias: None,
            portals: portals.to_vec(),
        };
        Wanted {
            entity: "entity".to_owned(),
            event_port: 0,
            portals: portals.iter().map(portal).collect(),
            targets: targets.iter().enumerate().map(target).collect(),
        }
    }

    fn registered(wanted: &Wanted, own: &str) -> Option<Registered> {
        let registration = wanted.registration(own.parse().unwrap(), &mut Names::new())?;
        let portal = |one: &Portal| SocketAddr::new(one.address, one.port).to_string();
        let portals = registration.portals.iter().map(portal).collect();
        Some((portals, registration.targets.into_iter().map(|target| target.tags).collect()))
    }

    #[test]
    fn the_address_that_reaches_the_server_stands_for_every_address() {
        let every = wanted(&[("0.0.0.0:3260", None, 1), ("192.0.2.9:3261", None, 2)], &[&[0, 1], &[1]]);
        let (portals, tags) = registered(&every, "192.0.2.7").unwrap();
        assert_eq!(portals, ["192.0.2.7:3260", "192.0.2.9:3261"]);
        assert_eq!(tags, [vec![Some(1), Some(2)], vec![None, Some(2)]]);
        let (portals, tags) = registered(&every, "2001:db8::7").unwrap();
        assert_eq!((portals, tags), (vec!["192.0.2.9:3261".to_owned()], vec![vec![Some(2)]; 2]));
        let six = wanted(&[("[::]:3260", None, 1)], &[&[0]]);
        assert_eq!(registered(&six, "2001:db8::7").unwrap().0, ["[2001:db8::7]:3260"]);
        assert_eq!(registered(&six, "192.0.2.7").unwrap().0, ["192.0.2.7:3260"]);
    }

    #[test]
    fn an_announced_address_takes_the_place_of_the_portals() {
        let behind = wanted(&[("10.0.0.1:3260", Some(("198.51.100.1", 99)), 1)], &[&[0]]);
        assert_eq!(registered(&behind, "10.0.0.1").unwrap().0, ["198.51.100.1:99"]);
        let six = wanted(&[("[::1]:3260", Some(("[2001:db8::1]", 99)), 1)], &[&[0]]);
        assert_eq!(registered(&six, "::1").unwrap().0, ["[2001:db8::1]:99"]);
    }

    #[test]
    fn two_portals_behind_one_address_are_registered_once() {
        let twice = wanted(
            &[
                ("10.0.0.1:3260", Some(("198.51.100.1", 99)), 3),
                ("10.0.0.1:3261", Some(("198.51.100.1", 99)), 4),
            ],
            &[&[1]],
        );
        assert_eq!(
            registered(&twice, "10.0.0.1"),
            Some((vec!["198.51.100.1:99".to_owned()], vec![vec![Some(4)]]))
        );
    }

    #[test]
    fn nothing_is_registered_if_no_target_can_be_reached() {
        assert_eq!(registered(&wanted(&[("0.0.0.0:3260", None, 1)], &[&[0]]), "2001:db8::7"), None);
    }
}
