//! Answers the queries of HyperSCSI handshakes, discoveries and commands from the configuration.

use alloc::collections::BTreeMap;
use alloc::rc::Rc;

use base::ether::{EtherPort, PortState};
use hyperscsi::login::directory::{Export, GroupAccess, TargetAccess, TargetDirectory as LoginDirectory};
use hyperscsi::pdu::discovery::ExportedLun;
use hyperscsi::pdu::name::{GroupName, Name};
use hyperscsi::pdu::parameters::{Levels, Parameters};
use hyperscsi::target::contract::SessionDirectory;
use scsi::lun::Lun;
use scsi::transport_id::TransportId as InitiatorPort;
use security::Level;
use target::nexus::{NexusInfo, TargetNumber};
use target::target::{SessionsBeside, Target};
use transport::target::SessionId;

use crate::config::{GroupConfig, ShardConfig, TargetConfig};
use crate::ingress::{Group, Ingresses, highest};

/// The directory of a running shard: its configuration, its present sessions and the ports that are up.
pub(crate) struct GroupDirectory<'a> {
    pub(crate) config: &'a ShardConfig,
    pub(crate) target: &'a Target,
    pub(crate) ingresses: &'a Ingresses<Group>,
    pub(crate) ports: &'a BTreeMap<EtherPort, PortState>,
    pub(crate) draining: bool,
}

impl ShardConfig {
    fn group(&self, name: &GroupName) -> Option<&GroupConfig> {
        self.frames.groups.iter().find(|group| group.name == *name)
    }

    /// Returns a target, and the nexus that a session with it has.
    pub(crate) fn frame_nexus(
        &self,
        group: &GroupName,
        target: &Name,
        initiator: &Name,
        isid: [u8; 6],
    ) -> Option<(&TargetConfig, NexusInfo)> {
        let target = self.target_called(target)?;
        // Initiator names of HyperSCSI are iSCSI names.
        let initiator: iscsi::name::IscsiName = initiator.parse().ok()?;
        let info = NexusInfo {
            target: TargetNumber(target.id.0),
            initiator: initiator.as_str().into(),
            initiator_port: InitiatorPort::iscsi_port(initiator.as_str(), isid)?.encode().into(),
            // Any initiator that knows a group's password can claim any name within the group.
            realm: Some(Rc::from(&**group)),
            user: None,
            target_port: target.port_of(group)?,
            rfc_7144_functions: true,
            level: Level::None,
        };
        Some((target, info))
    }

    /// Returns whether a session of the group may continue. `authenticated` is whether its initiator knew the
    /// group's password.
    pub(crate) fn admits(&self, group: &GroupName, authenticated: bool) -> bool {
        let demands = |group: &GroupConfig| matches!(group.access, GroupAccess::Password(_));
        self.group(group).is_some_and(|group| authenticated || !demands(group))
    }
}

impl TargetConfig {
    /// Returns whether the target accepts a session of an initiator port. A limit that is lower than the
    /// present number of sessions is no reason to refuse one that replaces another.
    pub(crate) fn has_room(&self, info: &NexusInfo, beside: SessionsBeside) -> bool {
        let most = self.quota_of(&info.initiator).sessions_max;
        beside.replaceable || (beside.all < self.sessions_max && most.is_none_or(|most| beside.own < most))
    }
}

impl GroupConfig {
    fn is_heard_on(&self, port: EtherPort) -> bool {
        self.ports.as_ref().is_none_or(|ports| ports.contains(&port))
    }
}

impl GroupDirectory<'_> {
    /// Returns a group that may be served through a port at present.
    fn group(&self, port: EtherPort, name: &GroupName) -> Option<&GroupConfig> {
        self.config.group(name).filter(|group| !self.draining && group.is_heard_on(port))
    }

    /// Returns whether the target may accept another session. One existing session is not counted, because
    /// the new session may replace it; which one is not known yet.
    fn may_have_room(&self, target: &TargetConfig) -> bool {
        let sessions = self.target.nexuses().filter(|(_, entry)| entry.target().0 == target.id.0).count();
        u32::try_from(sessions).is_ok_and(|count| count <= target.sessions_max) && target.sessions_max > 0
    }
}

impl LoginDirectory for GroupDirectory<'_> {
    fn instance(&self) -> [u8; 16] {
        self.config.frames.instance
    }

    fn target_access(&self, port: EtherPort, group: &GroupName, target: &Name) -> Option<TargetAccess> {
        let known = self.group(port, group)?;
        let target = self.config.target_called(target)?;
        if target.port_of(group).is_none() || !self.may_have_room(target) {
            return None;
        }
        let levels = match known.access {
            GroupAccess::Open => Levels::OPEN,
            GroupAccess::Password(_) => Levels::from(known.min_level),
        };
        Some(TargetAccess {
            access: known.access.clone(),
            parameters: Parameters {
                frame_max: u16::MAX,
                levels,
                exchanges: target.exchanges,
                ..Parameters::DEFAULT
            },
            steering: self.config.frames.steering,
        })
    }

    fn export_behind(&self, port: EtherPort, group: &GroupName, after: Option<&Name>) -> Option<Export> {
        let known = self.group(port, group)?;
        let targets = &self.config.targets;
        let start =
            after.map_or(0, |after| targets.partition_point(|target| target.name.as_str() <= &**after));
        targets.get(start..)?.iter().find_map(|target| {
            // Targets of other shards accept no sessions here: their `sessions_max` is zero.
            if target.port_of(group).is_none() || target.sessions_max == 0 {
                return None;
            }
            // Members of a group without a password cannot protect anything.
            let most = match known.access {
                GroupAccess::Open => Level::None,
                GroupAccess::Password(_) => Level::Encrypt,
            };
            let mut luns: alloc::vec::Vec<ExportedLun> = target
                .luns
                .iter()
                .filter(|row| row.is_seen_by(group) && row.min_level <= most)
                .filter_map(|row| {
                    let Lun(lun) = Lun::from_number(row.number)?;
                    Some(ExportedLun { lun, level: row.min_level.max(known.min_level) })
                })
                .collect();
            luns.sort_by_key(|exported| exported.lun);
            if luns.is_empty() {
                return None;
            }
            Some(Export {
                target: Name::new(target.name.as_str())?,
                authenticates: matches!(known.access, GroupAccess::Password(_)),
                luns,
                macs: self
                    .ports
                    .iter()
                    .filter(|(port, _)| known.is_heard_on(**port))
                    .map(|(_, state)| state.mac)
                    .collect(),
            })
        })
    }

    fn has_room(&self, group: &GroupName, target: &Name, initiator: &Name, isid: &[u8; 6]) -> bool {
        let nexus = self.config.frame_nexus(group, target, initiator, *isid);
        nexus.is_some_and(|(target, info)| target.has_room(&info, self.target.sessions_beside(&info)))
    }

    fn sid_taken(&self, _sid: u32) -> bool {
        // Sessions are in the engine, which checks its own sessions before it calls this. Sessions of other
        // shards have another first byte.
        false
    }
}

impl SessionDirectory for GroupDirectory<'_> {
    fn least_level(&self, session: SessionId, lun: u64) -> Level {
        let Some(ingress) = self.ingresses.get(session) else { return Level::Encrypt };
        let Some(known) = self.config.group(&ingress.group) else { return Level::Encrypt };
        let at = Lun(lun).number().and_then(|number| {
            let at = ingress.levels.binary_search_by_key(&number, |(number, _)| *number).ok()?;
            ingress.levels.get(at)
        });
        // A unit that no command of the session may reach answers as if it did not exist.
        let within = at.filter(|(_, least)| *least <= highest(ingress.agreed));
        within.map_or(known.min_level, |(_, least)| (*least).max(known.min_level))
    }
}
