//! The configuration of the target.

use base::state_machine::PortalId;
use device::contract::RelativePort;
use iscsi::login::directory::{AuthPolicy, TargetId};
use iscsi::name::PortalGroupTag;
use shard::config::{DiscoveryConfig, HyperScsiConfig, Portal, ShardConfig, TargetConfig};

use super::address;
use crate::scenario::IscsiPlan;
use crate::transport::disks::Disks;
use crate::units;

/// Makes the configuration of a shard with one target.
pub(super) fn config(disks: &Disks, plan: &IscsiPlan) -> ShardConfig {
    let open = AuthPolicy { allows_none: true, ..AuthPolicy::default() };
    let portals: Vec<Portal> = (0..plan.portals)
        .map(|number| Portal {
            id: PortalId(number.into()),
            group: PortalGroupTag(1),
            bound: Some(address(number)),
            announced: None,
            tls: false,
            certificates: None,
        })
        .collect();
    let mut config = ShardConfig {
        targets: vec![TargetConfig {
            id: TargetId(0),
            name: units::TARGET.parse().unwrap(),
            alias: None,
            ports: portals.iter().map(|portal| (portal.id, RelativePort(1))).collect(),
            luns: vec![],
            initiators: vec![],
            auth: open.clone().into(),
            keys: plan.target_keys.clone(),
            sessions_max: 64,
            groups: vec![],
            exchanges: 128,
            session_limits: None,
        }],
        portals,
        discovery: DiscoveryConfig { enabled: true, auth: open.into(), keys: plan.target_keys.clone() },
        frames: HyperScsiConfig::default(),
    };
    disks.configure(&mut config, |_, row| row);
    config
}
