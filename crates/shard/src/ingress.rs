//! How initiators logged in: the begin and the end of sessions, and the LUN maps that follow from the
//! configuration.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use base::int_cast::to_usize;
use base::state_machine::PortalId;
use base::time::Instant;
use device::contract::NexusId;
use hyperscsi::pdu::name::GroupName;
use hyperscsi::pdu::parameters::Levels;
use hyperscsi::target::contract::{self as hyperscsi_target, HyperScsi};
use iscsi::target::contract::{self as iscsi_target, Iscsi};
use scsi::transport_id::TransportId as InitiatorPort;
use security::Level;
use target::nexus::{MapEntry, NexusEntry, NexusInfo, TargetNumber};
use target::route::SessionEvent;
use transport::target::{SessionId, TargetTransport as _};

use crate::admin::ShardEvent;
use crate::config::{LunEntry, ShardConfig, TargetConfig};
use crate::shard::{HYPERSCSI, ISCSI, Shard};

/// The lowest iSCSIProtocolLevel at which a session has the functions of RFC 7144. HyperSCSI sessions always
/// have them.
const RFC_7144: u8 = 2;

/// How the initiator of an iSCSI session logged in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Portal {
    pub(crate) portal: PortalId,
    /// The address from which the initiator connected, for display. That connection may have ended since.
    pub(crate) peer: Option<SocketAddr>,
}

/// How the initiator of a HyperSCSI session logged in.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) group: GroupName,
    /// Whether it knew the group's password.
    pub(crate) authenticated: bool,
    /// The levels that both ends agreed on.
    pub(crate) agreed: Levels,
    /// The least protection of each LUN in its map, sorted by LUN.
    pub(crate) levels: Vec<(u16, Level)>,
}

/// How the initiator of each session of one transport logged in, by the number of the session.
#[derive(Debug)]
pub(crate) struct Ingresses<T>(Vec<Option<T>>);

impl<T> Default for Ingresses<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Ingresses<T> {
    pub(crate) fn get(&self, session: SessionId) -> Option<&T> {
        self.0.get(to_usize(session.index()))?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, session: SessionId) -> Option<&mut T> {
        self.0.get_mut(to_usize(session.index()))?.as_mut()
    }

    fn insert(&mut self, session: SessionId, ingress: T) {
        let at = to_usize(session.index());
        while self.0.len() <= at {
            self.0.push(None);
        }
        if let Some(slot) = self.0.get_mut(at) {
            *slot = Some(ingress);
        }
    }

    fn remove(&mut self, session: SessionId) -> Option<T> {
        self.0.get_mut(to_usize(session.index()))?.take()
    }
}

/// Returns the rows of a target's LUN map for an initiator as a member of a group. The I_T nexus compares the
/// protection that they require with that of its session.
pub(crate) fn rows_of_group<'a>(
    target: &'a TargetConfig,
    initiator: &str,
    group: &'a GroupName,
) -> impl Iterator<Item = &'a LunEntry> {
    target.luns_of(initiator).iter().filter(move |row| row.is_seen_by(group))
}

/// Returns the least protection of each LUN of a map.
pub(crate) fn levels<'a>(rows: impl Iterator<Item = &'a LunEntry>) -> Vec<(u16, Level)> {
    let mut levels: Vec<_> = rows.map(|row| (row.number, row.min_level)).collect();
    levels.sort_by_key(|(number, _)| *number);
    levels
}

/// Returns the highest level of a session: that of the commands which its initiator protects most.
pub(crate) fn highest(levels: Levels) -> Level {
    let all = [Level::Encrypt, Level::Integrity];
    all.into_iter().find(|level| levels.has(*level)).unwrap_or_default()
}

impl LunEntry {
    /// Returns whether initiators of a group see the LUN.
    pub(crate) fn is_seen_by(&self, group: &GroupName) -> bool {
        self.groups.as_ref().is_none_or(|groups| groups.contains(group))
    }

    pub(crate) const fn map_entry(&self) -> MapEntry {
        MapEntry { number: self.number, unit: self.unit, access: self.access, min_level: self.min_level }
    }
}

impl ShardConfig {
    /// Returns the target of an I_T nexus.
    pub(crate) fn target_of(&self, target: TargetNumber) -> Option<&TargetConfig> {
        self.targets.iter().find(|known| known.id.0 == target.0)
    }
}

impl Shard {
    /// Handles the begin or the end of an iSCSI session.
    pub(crate) fn handle_iscsi_session(&mut self, now: Instant, event: SessionEvent<Iscsi>) {
        match event {
            SessionEvent::Up(up) => self.iscsi_session_up(now, &up),
            SessionEvent::Down { session, why } => {
                // The engine knows which logouts the target caused. While the target shuts down, an initiator
                // can log out because another of its sessions was requested to.
                let deliberate = why == iscsi_target::SessionEnd::LoggedOut && !self.draining;
                let peer = self.iscsi_ingresses.remove(session).and_then(|ingress| ingress.peer);
                if let Some(ended) = self.target.session_down(now, ISCSI, session, deliberate) {
                    let target =
                        self.config.target_of(ended.target).map(|target| target.name.as_str().into());
                    let initiator = (*ended.initiator).into();
                    self.push_event(ShardEvent::SessionDown { initiator, target, peer, why });
                }
            }
            SessionEvent::Notice(never) => match never {},
        }
    }

    fn iscsi_session_up(&mut self, now: Instant, up: &iscsi_target::SessionUp) {
        let target = self.config.target(up.target).filter(|_| !self.draining);
        let found = target.and_then(|target| {
            let info = NexusInfo {
                target: TargetNumber(target.id.0),
                initiator: up.initiator.as_str().into(),
                initiator_port: InitiatorPort::iscsi_port(up.initiator.as_str(), up.isid.0)?.encode().into(),
                realm: None,
                user: up.user.as_deref().map(Rc::from),
                target_port: target.port_at(up.portal)?,
                rfc_7144_functions: up.parameters.protocol_level >= RFC_7144,
                level: up.protection.level(),
            };
            Some((target, info))
        });
        let Some((target, info)) = found else {
            // The configuration changed during the login, the name and the ISID form no valid TransportID, or
            // the target shuts down.
            return self.transports.iscsi.close_session(now, up.session);
        };
        let peer = self.transports.iscsi.peer(up.session);
        self.iscsi_ingresses.insert(up.session, Portal { portal: up.portal, peer });
        let rows = target.luns_of(up.initiator.as_str()).iter().map(LunEntry::map_entry);
        let limit = target.quota_of(up.initiator.as_str()).limit;
        let id = self.target.session_up(now, ISCSI, up.session, info, rows);
        self.target.limit_initiator(now, id, limit);
        self.push_event(ShardEvent::SessionUp {
            initiator: up.initiator.as_str().into(),
            target: up.target_name.as_str().into(),
            peer,
            user: up.user.clone(),
            portal: up.portal,
            protection: up.protection,
            hidden_luns: self.hidden_luns(id),
        });
        self.report_withheld(id, &[]);
    }

    /// Handles an event of a HyperSCSI session as a whole.
    pub(crate) fn handle_hyperscsi_session(&mut self, now: Instant, event: SessionEvent<HyperScsi>) {
        match event {
            SessionEvent::Up(up) => self.hyperscsi_session_up(now, &up),
            SessionEvent::Down { session, why } => {
                let deliberate = why == hyperscsi_target::SessionEnd::LoggedOut && !self.draining;
                self.hyperscsi_ingresses.remove(session);
                if let Some(ended) = self.target.session_down(now, HYPERSCSI, session, deliberate) {
                    let target =
                        self.config.target_of(ended.target).map(|target| target.name.as_str().into());
                    let initiator = (*ended.initiator).into();
                    self.push_event(ShardEvent::HyperScsiSessionDown { initiator, target, why });
                }
            }
            SessionEvent::Notice(hyperscsi_target::PathNotice { session, port, peer, change }) => {
                let nexus = target::transport_id::nexus_of(HYPERSCSI, session);
                if let Some(initiator) = self.target.nexus(nexus).map(|entry| entry.initiator().into()) {
                    self.push_event(ShardEvent::Path { initiator, port, peer, change });
                }
            }
        }
    }

    fn hyperscsi_session_up(&mut self, now: Instant, up: &hyperscsi_target::SessionUp) {
        if self.draining {
            return self.transports.hyperscsi.shut_session(now, up.session);
        }
        let found = self.config.frame_nexus(&up.group, &up.target, &up.initiator, up.isid);
        // A session that was replaced has ended already. Another one may have taken the room since START.
        let found = found.filter(|(target, info)| {
            up.replaces_session || target.has_room(info, self.target.sessions_beside(info))
        });
        let Some((target, info)) = found else {
            return self.transports.hyperscsi.close_session(now, up.session);
        };
        let info = NexusInfo { level: highest(up.parameters.levels), ..info };
        let limit = target.quota_of(&info.initiator).limit;
        let rows = || rows_of_group(target, &info.initiator, &up.group);
        let (levels, map) = (levels(rows()), rows().map(LunEntry::map_entry).collect::<Vec<_>>());
        let ingress = Group {
            group: up.group.clone(),
            authenticated: up.authenticated,
            agreed: up.parameters.levels,
            levels,
        };
        self.hyperscsi_ingresses.insert(up.session, ingress);
        let id = self.target.session_up(now, HYPERSCSI, up.session, info, map);
        self.target.limit_initiator(now, id, limit);
        self.push_event(ShardEvent::HyperScsiSessionUp {
            initiator: (*up.initiator).into(),
            target: (*up.target).into(),
            group: (*up.group).into(),
            peer: up.peer,
            port: up.port,
            authenticated: up.authenticated,
            hidden_luns: self.hidden_luns(id),
        });
        self.report_withheld(id, &[]);
    }

    /// Returns how many LUNs an I_T nexus does not see because they require more protection.
    pub(crate) fn hidden_luns(&self, id: NexusId) -> usize {
        self.target.nexus(id).map_or(0, NexusEntry::hidden)
    }

    /// Reports the LUNs that are withheld from an I_T nexus to the operator, except those in `known`, which
    /// were reported before.
    pub(crate) fn report_withheld(&mut self, id: NexusId, known: &[u16]) {
        let Some(entry) = self.target.nexus(id) else { return };
        let target = self.config.target_of(entry.target());
        if self.target.is_sealed(id) {
            let target = target.map(|target| target.name.as_str().into());
            let report = ShardEvent::AllLunsWithheld { initiator: entry.initiator().into(), target };
            return self.push_event(report);
        }
        let reports: Vec<_> = entry
            .withheld()
            .filter(|lun| !known.contains(lun))
            .map(|lun| ShardEvent::LunWithheld {
                initiator: entry.initiator().into(),
                target: target.map(|target| target.name.as_str().into()),
                lun,
                claims: self.claims_on(id, lun),
            })
            .collect();
        reports.into_iter().for_each(|report| self.push_event(report));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_level_counts() {
        let of_bits = |bits| highest(Levels::from_bits(bits).unwrap());
        assert_eq!(of_bits(0b001), Level::None);
        assert_eq!(of_bits(0b011), Level::Integrity);
        assert_eq!(of_bits(0b110), Level::Encrypt);
        assert_eq!(highest(Levels::ALL), Level::Encrypt);
    }
}
