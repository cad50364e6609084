//! What the target is configured to be.

use base::machine::PortalId;
use device::contract::{Access, RelativePort};
use iscsi::login::directory::{AuthPolicy, TargetId};
use iscsi::name::PortalGroupTag;
use target::config::{DiscoveryConfig, FramesConfig, LunEntry, Portal, ShardConfig, TargetConfig, UnitId};

use super::address;
use crate::house;
use crate::scenario::{IscsiPlan, Scenario};

/// Makes the configuration of a shard with one target that everybody may use.
pub(super) fn config(scenario: &Scenario, plan: &IscsiPlan) -> ShardConfig {
    let open = AuthPolicy { allows_none: true, ..AuthPolicy::default() };
    let luns =
        (0..scenario.units).map(|number| LunEntry::new(number, UnitId(number.into()), Access::ReadWrite));
    let portals: Vec<Portal> = (0..plan.portals)
        .map(|number| Portal {
            id: PortalId(number.into()),
            group: PortalGroupTag(1),
            bound: Some(address(number)),
            announced: None,
        })
        .collect();
    ShardConfig {
        targets: vec![TargetConfig {
            id: TargetId(0),
            name: house::TARGET.parse().unwrap(),
            alias: None,
            ports: portals.iter().map(|portal| (portal.id, RelativePort(1))).collect(),
            luns: luns.collect(),
            initiators: vec![],
            auth: open.clone(),
            users: vec![],
            keys: plan.target_keys.clone(),
            sessions_max: 64,
            groups: vec![],
            exchanges: 128,
            session_limits: None,
        }],
        portals,
        discovery: DiscoveryConfig {
            enabled: true,
            auth: open,
            users: vec![],
            keys: plan.target_keys.clone(),
        },
        frames: FramesConfig::default(),
    }
}
