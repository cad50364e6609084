//! What sessions would lose by another configuration, for an operator who is about to apply it. An initiator
//! port that lost its session counts as well: its host may have the LUNs open, and logs in again by itself.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use base::time::{Duration, Instant};
use device::contract::NexusId;
use scsi::transport_id::TransportId as InitiatorPort;
use security::Level;
use target::bindings::NexusBindings;
use target::nexus::{MapEntry, NexusEntry};
use target::transport_id::nexus_of;
use target::units::{DiskId, UnitId};

use crate::bindings::ports_of;
use crate::config::{Admission, LunEntry, ShardConfig};
use crate::shard::{HYPERSCSI, ISCSI, Shard};

/// A session that another configuration would end or take LUNs from, or an initiator port without a session
/// that would not find its LUNs again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionLoss {
    /// The target's name.
    pub target: String,
    /// The initiator's name.
    pub initiator: String,
    /// The initiator's part of the session identifier (ISID).
    pub isid: [u8; 6],
    /// How long ago the initiator port lost its last session; `None` if it has one.
    pub lost_for: Option<Duration>,
    /// Whether the session would end.
    pub ends: bool,
    /// The LUNs that it sees now, or would see if it logged in now, and would no longer see.
    pub luns: Vec<u16>,
    /// The protection that its next login would need, if that is more than the session has.
    pub login_needs: Option<Level>,
    /// Whether its portal would get another portal group tag, so that its initiator would find another target
    /// port there.
    pub other_tag: bool,
}

/// A LUN that another configuration would give to a disk, and that would be withheld from an initiator port
/// which has used another disk there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithheldLun {
    /// The target's name.
    pub target: String,
    /// The initiator's name.
    pub initiator: String,
    /// The initiator's part of the session identifier (ISID).
    pub isid: [u8; 6],
    /// The LUN.
    pub lun: u16,
    /// The unit to which the configuration gives the LUN. It may be one that the shard does not have yet.
    pub unit: UnitId,
    /// The disk that the port has used.
    pub used: DiskId,
}

impl Shard {
    /// Returns the sessions that [`Self::apply`] of another configuration would end or take LUNs from, and
    /// those whose initiators could not log in again with the protection that they have. Initiator ports
    /// without a session come after them.
    pub fn losses(&self, now: Instant, mut config: ShardConfig) -> Vec<SessionLoss> {
        config.sort();
        let iscsi = self.transports.iscsi.sessions();
        let iscsi = iscsi.map(|view| (nexus_of(ISCSI, view.session), view.isid.0));
        let frames = self.transports.hyperscsi.sessions();
        let frames = frames.map(|view| (nexus_of(HYPERSCSI, view.session), view.isid));
        let live = iscsi.chain(frames).filter_map(|(id, isid)| self.loss_of(&config, id, isid));
        let lost = self.target.lost_nexuses(now);
        live.chain(lost.filter_map(|nexus| self.loss_without_session(&config, &nexus))).collect()
    }

    /// Returns the LUNs that another configuration would give to a disk, and that would be withheld from an
    /// initiator port although they do not lead it to its disk now. The shard cannot compare a disk that it
    /// does not have yet.
    pub fn withheld_by(&self, now: Instant, mut config: ShardConfig) -> Vec<WithheldLun> {
        config.sort();
        let of_nexus = |nexus: NexusBindings| {
            let found = self.withheld_from(&config, &nexus);
            found.unwrap_or_default()
        };
        self.target.bindings(now).flat_map(of_nexus).collect()
    }

    fn withheld_from(&self, config: &ShardConfig, nexus: &NexusBindings) -> Option<Vec<WithheldLun>> {
        let InitiatorPort::IscsiPort { name, isid } =
            InitiatorPort::from_bytes(&nexus.initiator_port).ok()?
        else {
            return None;
        };
        let target = config.target_of(nexus.target)?.name.as_str();
        let map = map_of_port(config, nexus, &name)?;
        let map_now = map_of_port(&self.config, nexus, &name).unwrap_or_default();
        let leads_to = |entry: &MapEntry, disk: DiskId| self.target.disk_of(entry.unit) == Some(disk);
        let withheld = nexus.luns.iter().filter_map(|(number, disk)| {
            let entry = map.get(number)?;
            let is_lost_now = map_now.get(number).is_none_or(|row| !leads_to(row, *disk));
            (is_lost_now && !leads_to(entry, *disk)).then(|| WithheldLun {
                target: target.into(),
                initiator: name.clone(),
                isid,
                lun: *number,
                unit: entry.unit,
                used: *disk,
            })
        });
        Some(withheld.collect())
    }

    /// Returns what an initiator port without a session would lose.
    fn loss_without_session(&self, config: &ShardConfig, nexus: &NexusBindings) -> Option<SessionLoss> {
        let InitiatorPort::IscsiPort { name, isid } =
            InitiatorPort::from_bytes(&nexus.initiator_port).ok()?
        else {
            return None;
        };
        let map_now = map_of_port(&self.config, nexus, &name)?;
        let map = map_of_port(config, nexus, &name).unwrap_or_default();
        let stays = |seen: &MapEntry| map.get(&seen.number).is_some_and(|new| new.unit == seen.unit);
        let seen = nexus.luns.iter().filter_map(|(number, disk)| {
            map_now.get(number).filter(|row| self.target.disk_of(row.unit) == Some(*disk))
        });
        let luns: Vec<u16> = seen.filter(|seen| !stays(seen)).map(|seen| seen.number).collect();
        let target = self.config.target_of(nexus.target)?.name.as_str().into();
        (!luns.is_empty()).then_some(SessionLoss {
            target,
            initiator: name,
            isid,
            lost_for: nexus.lost_for,
            ends: false,
            luns,
            login_needs: None,
            other_tag: false,
        })
    }

    fn loss_of(&self, config: &ShardConfig, id: NexusId, isid: [u8; 6]) -> Option<SessionLoss> {
        let entry = self.target.nexus(id)?;
        let (map, level) = (self.map_of(config, entry).map(by_number), entry.level());
        let stays = |seen: &MapEntry| {
            let new = map.as_ref().and_then(|map| map.get(&seen.number));
            new.is_some_and(|new| new.unit == seen.unit && new.min_level <= level)
        };
        let luns: Vec<u16> = entry.seen().filter(|seen| !stays(seen)).map(|seen| seen.number).collect();
        let required = |config: &ShardConfig| {
            let target = config.target_of(entry.target()).filter(|_| entry.session().0 == ISCSI)?;
            Some(target.keys.min_protection).filter(|required| *required > level)
        };
        // A session that is below the present requirement is cut off already.
        let login_needs = required(config).filter(|_| required(&self.config).is_none());
        let ends = map.is_none();
        let other_tag = !ends && self.has_moved(config, entry) && !self.has_moved(&self.config, entry);
        let is_loss = ends || !luns.is_empty() || login_needs.is_some() || other_tag;
        is_loss.then(|| SessionLoss {
            target: self
                .config
                .target_of(entry.target())
                .map_or_else(String::new, |target| target.name.as_str().into()),
            initiator: entry.initiator().into(),
            isid,
            lost_for: None,
            ends,
            luns,
            login_needs,
            other_tag,
        })
    }

    /// Returns whether the portal of an iSCSI session belongs to another target port in a configuration than
    /// the session.
    fn has_moved(&self, config: &ShardConfig, entry: &NexusEntry) -> bool {
        let (ISCSI, session) = entry.session() else { return false };
        let portal = self.iscsi_ingresses.get(session).map(|ingress| ingress.portal);
        let target = config.target_of(entry.target());
        let port = target.zip(portal).and_then(|(target, portal)| target.port_at(portal));
        port.is_some_and(|port| port != entry.target_port())
    }
}

/// A LUN map by LUN. A plan compares maps of thousands of LUNs for thousands of initiator ports.
type MapByNumber = BTreeMap<u16, MapEntry>;

fn by_number(rows: impl IntoIterator<Item = MapEntry>) -> MapByNumber {
    rows.into_iter().map(|row| (row.number, row)).collect()
}

/// Returns the LUN map that a configuration gives an initiator port when it logs in; `None` if it could not,
/// or if the record does not concern any of the ports through which it could.
fn map_of_port(config: &ShardConfig, nexus: &NexusBindings, initiator: &str) -> Option<MapByNumber> {
    let target = config.target_of(nexus.target)?;
    if matches!(target.admit(initiator), Admission::Refused)
        || !ports_of(target).into_iter().any(|port| nexus.concerns(port))
    {
        return None;
    }
    let rows = target.luns_of(initiator).iter();
    match nexus.realm.as_deref() {
        None => (!target.ports.is_empty()).then(|| by_number(rows.map(LunEntry::map_entry))),
        Some(group) => {
            let (group, _) = target.groups.iter().find(|(known, _)| &**known == group)?;
            Some(by_number(rows.filter(|row| row.is_seen_by(group)).map(LunEntry::map_entry)))
        }
    }
}
