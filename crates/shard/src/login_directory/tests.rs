use alloc::vec;
use alloc::vec::Vec;

use device::contract::RelativePort;

use super::*;
use crate::config::{DiscoveryConfig, InitiatorEntry, InitiatorQuota};

const ME: &str = "iqn.2026-11.org.x:me";
const PLAIN: PortalId = PortalId(0);
const TLS: PortalId = PortalId(1);

fn portal(id: PortalId, port: u16, tls: bool) -> Portal {
    let bound = Some(SocketAddr::from(([192, 0, 2, 1], port)));
    Portal { id, group: PortalGroupTag(1), bound, announced: None, tls, certificates: None }
}

fn target(number: u32, name: &str) -> TargetConfig {
    TargetConfig {
        id: TargetId(number),
        name: name.parse().unwrap(),
        alias: None,
        ports: vec![(PLAIN, RelativePort(1)), (TLS, RelativePort(1))],
        luns: Vec::new(),
        initiators: Vec::new(),
        auth: AuthConfig::default(),
        keys: KeyPolicy { min_protection: Level::Encrypt, ..KeyPolicy::default() },
        sessions_max: 1,
        groups: Vec::new(),
        exchanges: 8,
        session_limits: None,
    }
}

/// Three targets, of which the second one admits nobody else.
fn config() -> ShardConfig {
    let closed = InitiatorEntry {
        pattern: "iqn.2026-11.org.x:other".into(),
        luns: None,
        auth: None,
        quota: InitiatorQuota::default(),
    };
    let names = ["iqn.2026-11.org.x:a", "iqn.2026-11.org.x:b", "iqn.2026-11.org.x:c"];
    let mut targets: Vec<TargetConfig> =
        (0..).zip(names).map(|(number, name)| target(number, name)).collect();
    targets[1].initiators = vec![closed];
    ShardConfig {
        portals: vec![portal(PLAIN, 3260, false), portal(TLS, 3261, true)],
        targets,
        discovery: DiscoveryConfig { enabled: true, auth: AuthConfig::default(), keys: KeyPolicy::default() },
        frames: crate::config::HyperScsiConfig::default(),
    }
}

fn via(portal: PortalId) -> ConnectionPath {
    let local = SocketAddr::from(([192, 0, 2, 1], 3260 + u16::try_from(portal.0).unwrap()));
    ConnectionPath { portal, local, peer: SocketAddr::from(([192, 0, 2, 9], 1024)) }
}

fn with<T>(config: &ShardConfig, draining: bool, ask: impl FnOnce(&LoginDirectory<'_>) -> T) -> T {
    ask(&LoginDirectory { config, target: &Target::default(), draining })
}

fn me() -> IscsiName {
    ME.parse().unwrap()
}

#[test]
fn send_targets_lists_each_target_that_admits_the_initiator_once() {
    let config = config();
    let mut names = Vec::new();
    with(&config, false, |directory| {
        while let Some(next) = directory.next_target(&via(PLAIN), &me(), names.last())
            && names.len() < 5
        {
            names.push(next.name);
        }
    });
    let names: Vec<_> = names.iter().map(IscsiName::as_str).collect();
    assert_eq!(names, ["iqn.2026-11.org.x:a", "iqn.2026-11.org.x:c"]);
}

#[test]
fn send_targets_lists_addresses_of_the_kind_of_the_connection() {
    let config = config();
    let addresses = |portal| {
        let entry = with(&config, false, |directory| directory.next_target(&via(portal), &me(), None));
        entry.unwrap().addresses
    };
    for portal in [PLAIN, TLS] {
        assert_eq!(addresses(portal), [(TargetAddress::Socket(via(portal).local), PortalGroupTag(1))]);
    }
}

#[test]
fn a_shard_that_drains_is_unavailable_for_discovery_and_logins() {
    let mut config = config();
    let asked = |config: &ShardConfig, draining| {
        with(config, draining, |directory| {
            let discovery = directory.discovery(&via(PLAIN), &me());
            (discovery, directory.find_target(&via(PLAIN), &me(), &config.targets[0].name))
        })
    };
    let served = asked(&config, false);
    assert!(matches!(served, (DiscoveryAccess::Granted { .. }, TargetLookup::Found(_))), "{served:?}");
    let draining = asked(&config, true);
    assert!(matches!(draining, (DiscoveryAccess::Unavailable, TargetLookup::Unavailable)), "{draining:?}");
    config.discovery.enabled = false;
    let never = asked(&config, true);
    assert!(matches!(never.0, DiscoveryAccess::NotServed), "{never:?}");
}

#[test]
fn a_target_takes_as_many_sessions_as_it_may_have() {
    let mut config = config();
    let mut has_room = |sessions_max| {
        config.targets[0].sessions_max = sessions_max;
        let name = &config.targets[0].name;
        let found = with(&config, false, |directory| directory.find_target(&via(PLAIN), &me(), name));
        matches!(found, TargetLookup::Found(_))
    };
    assert!(!has_room(0) && has_room(1));
}

#[test]
fn tls_replaces_the_protection_that_a_login_needs() {
    let config = config();
    for (portal, needed) in [(PLAIN, Level::Encrypt), (TLS, Level::None)] {
        let name = &config.targets[0].name;
        let found = with(&config, false, |directory| directory.find_target(&via(portal), &me(), name));
        let TargetLookup::Found(access) = found else { panic!("the target is not found") };
        assert_eq!(access.keys.min_protection, needed);
    }
}
