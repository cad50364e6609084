//! I_T nexuses: which session sees which unit under which number.

use alloc::rc::Rc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use base::fault_injection::{self, Bug};
use base::state_machine::PortalId;
use device::contract::{Access, Nexus, NexusId, RelativePort};
use hyperscsi::aead::Level;
use hyperscsi::pdu::name::GroupName;
use hyperscsi::target::contract as hyperscsi_target;
use iscsi::login::directory::TargetId;
use iscsi::name::IscsiName;
use iscsi::target::contract::SessionUp;
use scsi::lun::Lun;
use scsi::transport_id::TransportId;

use crate::bindings::{Bindings, NexusName};
use crate::config::{DiskId, LunEntry, TargetConfig, UnitId};
use crate::transport::{SessionRef, nexus_slot};

/// The iSCSIProtocolLevel from which on a session has the functions of RFC 7144. HyperSCSI has them always.
const RFC_7144: u8 = 2;

/// Every nexus of a shard. A nexus has the number of its session, which is dense among those of its transport.
#[derive(Debug, Default)]
pub(crate) struct Nexuses {
    iscsi: Vec<Option<NexusEntry>>,
    hyperscsi: Vec<Option<NexusEntry>>,
}

/// Which way in a nexus took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ingress {
    /// Through a portal.
    Portal(PortalId),
    /// As a member of a group, whose password it knew or not.
    Group(GroupName, bool),
}

/// A nexus and what it sees.
#[derive(Debug)]
pub(crate) struct NexusEntry {
    pub(crate) session: SessionRef,
    pub(crate) target: TargetId,
    pub(crate) initiator: IscsiName,
    pub(crate) ingress: Ingress,
    /// Where it came from, for people: connections of the session may have gone since.
    pub(crate) peer: Option<SocketAddr>,
    /// What is known of it from one session to the next.
    pub(crate) name: NexusName,
    /// What the configuration shows it, sorted by number.
    map: Vec<Row>,
    initiator_name: Rc<str>,
    target_port: RelativePort,
    newer_functions: bool,
    luns: Rc<[Lun]>,
}

/// One LUN of a nexus.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    entry: LunEntry,
    /// The disk that stands there; `None` while there is no such unit.
    disk: Option<DiskId>,
    binding: LunBinding,
}

/// What a nexus sees of what the configuration shows it under a LUN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LunBinding {
    /// The disk. No command has reached it yet.
    Unbound,
    /// The disk that it has opened under this LUN.
    Bound,
    /// Nothing: it has opened another disk under this LUN.
    Withheld,
}

/// What a LUN leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LunLookup {
    /// The disk that the nexus has opened.
    Bound(UnitId),
    /// A disk that it opens with this command.
    Unbound(UnitId),
}

impl Nexuses {
    pub(crate) fn get(&self, id: NexusId) -> Option<&NexusEntry> {
        let (frames, at) = nexus_slot(id);
        let slots = if frames { &self.hyperscsi } else { &self.iscsi };
        slots.get(at)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: NexusId) -> Option<&mut NexusEntry> {
        self.slot(id)?.as_mut()
    }

    pub(crate) fn insert(&mut self, entry: NexusEntry) -> NexusId {
        let id = entry.session.nexus();
        let (frames, at) = nexus_slot(id);
        let slots = if frames { &mut self.hyperscsi } else { &mut self.iscsi };
        while slots.len() <= at {
            slots.push(None);
        }
        if let Some(slot) = slots.get_mut(at) {
            *slot = Some(entry);
        }
        id
    }

    pub(crate) fn remove(&mut self, id: NexusId) -> Option<NexusEntry> {
        self.slot(id)?.take()
    }

    /// Returns every nexus, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (NexusId, &NexusEntry)> {
        let entries = self.iscsi.iter().chain(&self.hyperscsi).flatten();
        entries.map(|entry| (entry.session.nexus(), entry))
    }

    fn slot(&mut self, id: NexusId) -> Option<&mut Option<NexusEntry>> {
        let (frames, at) = nexus_slot(id);
        let slots = if frames { &mut self.hyperscsi } else { &mut self.iscsi };
        slots.get_mut(at)
    }
}

impl NexusEntry {
    /// Makes the nexus of a new iSCSI session; `None` when the target or its port is no more, or the names make no
    /// TransportID.
    /// It sees nothing until [`Self::remap`].
    pub(crate) fn of_iscsi(up: &SessionUp, target: &TargetConfig) -> Option<Self> {
        let (session, port) = (SessionRef::Iscsi(up.session), target.port_at(up.portal)?);
        let entry =
            Self::new(session, target, (up.initiator.clone(), up.isid.0), Ingress::Portal(up.portal), port)?;
        Some(Self { newer_functions: up.parameters.protocol_level >= RFC_7144, ..entry })
    }

    /// Makes the nexus of a new HyperSCSI session; `None` when the target is no more there for its group.
    pub(crate) fn of_hyperscsi(up: &hyperscsi_target::SessionUp, target: &TargetConfig) -> Option<Self> {
        let port = target.port_of(&up.group)?;
        let initiator = up.initiator.parse().ok()?;
        let way = Ingress::Group(up.group.clone(), up.authenticated);
        Self::new(SessionRef::HyperScsi(up.session), target, (initiator, up.isid), way, port)
    }

    fn new(
        session: SessionRef,
        target: &TargetConfig,
        (initiator, isid): (IscsiName, [u8; 6]),
        way: Ingress,
        target_port: RelativePort,
    ) -> Option<Self> {
        let initiator_port = TransportId::iscsi_port(initiator.as_str(), isid)?.encode().into();
        let group = match &way {
            Ingress::Portal(_) => None,
            Ingress::Group(group, _) => Some(group.clone()),
        };
        Some(Self {
            session,
            target: target.id,
            name: NexusName { target: target.id, initiator_port, group },
            map: Vec::new(),
            initiator_name: initiator.as_str().into(),
            initiator,
            ingress: way,
            peer: None,
            target_port,
            newer_functions: true,
            luns: Rc::new([]),
        })
    }

    /// Takes over what the target's configuration says now. Returns whether anything changed.
    pub(crate) fn remap(
        &mut self,
        target: &TargetConfig,
        bindings: &Bindings,
        disk_of: impl Fn(UnitId) -> Option<DiskId>,
    ) -> bool {
        let rows = target.luns_of(self.initiator.as_str()).iter().filter(|row| self.ingress.shows(row));
        let row = |entry: &LunEntry| {
            let disk = disk_of(entry.unit);
            let sight = match (bindings.disk_of(&self.name, entry.number), disk) {
                (Some(opened), Some(disk))
                    if opened == disk || fault_injection::is_injected(Bug::RemapReachesOther) =>
                {
                    LunBinding::Bound
                }
                (Some(_), Some(_)) => LunBinding::Withheld,
                (_, None) | (None, _) => LunBinding::Unbound,
            };
            Row { entry: entry.clone(), disk, binding: sight }
        };
        let mut map: Vec<Row> = rows.map(row).collect();
        map.sort_by_key(|row| row.entry.number);
        let changed = map != self.map;
        self.map = map;
        self.luns = self.rows().filter_map(|row| Lun::from_number(row.entry.number)).collect();
        changed
    }

    /// Returns the rows that are more than words to it.
    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.map.iter().filter(|row| row.binding != LunBinding::Withheld)
    }

    /// Returns the LUNs that mean another disk now than the one that it has opened.
    pub(crate) fn withheld(&self) -> impl Iterator<Item = u16> {
        self.map.iter().filter(|row| row.binding == LunBinding::Withheld).map(|row| row.entry.number)
    }

    /// Returns which disk stands under each LUN.
    pub(crate) fn disks(&self) -> Vec<(u16, Option<DiskId>)> {
        self.rows().map(|row| (row.entry.number, row.disk)).collect()
    }

    fn row_at(&self, lun: Lun) -> Option<&Row> {
        let number = lun.number()?;
        let at = self.map.binary_search_by_key(&number, |row| row.entry.number).ok()?;
        self.map.get(at)
    }

    /// Opens a LUN that was not: the disk that stands there now is what it means from now on.
    pub(crate) fn bind_lun(&mut self, lun: Lun, bindings: &mut Bindings) {
        let Some(number) = lun.number() else { return };
        let Ok(at) = self.map.binary_search_by_key(&number, |row| row.entry.number) else { return };
        if let Some(row) = self.map.get_mut(at)
            && row.binding == LunBinding::Unbound
            && let Some(disk) = row.disk
        {
            bindings.bind(&self.name, number, disk);
            row.binding = LunBinding::Bound;
        }
    }

    /// Returns the least protection that the unit under `lun` wants; `None` when there is none.
    pub(crate) fn least_at(&self, lun: Lun) -> Option<Level> {
        self.row_at(lun).map(|row| row.entry.min_level)
    }

    /// Returns what `lun` leads to.
    pub(crate) fn find(&self, lun: Lun) -> Option<LunLookup> {
        let row = self.row_at(lun)?;
        match row.binding {
            LunBinding::Bound => Some(LunLookup::Bound(row.entry.unit)),
            LunBinding::Unbound => Some(LunLookup::Unbound(row.entry.unit)),
            LunBinding::Withheld => None,
        }
    }

    /// Returns the unit under `lun`.
    pub(crate) fn unit_at(&self, lun: Lun) -> Option<UnitId> {
        self.find(lun).map(|(LunLookup::Bound(unit) | LunLookup::Unbound(unit))| unit)
    }

    /// Returns how this nexus appears to `unit`; `None` when it does not see it.
    pub(crate) fn seen_by(&self, id: NexusId, unit: UnitId) -> Option<Nexus> {
        let access = self.access_to(unit)?;
        Some(Nexus {
            id,
            initiator_port: Rc::clone(&self.name.initiator_port),
            initiator_name: Rc::clone(&self.initiator_name),
            target_port: self.target_port,
            access,
            rfc_7144_functions: self.newer_functions,
            luns: Rc::clone(&self.luns),
        })
    }

    /// Returns what this nexus may do with `unit`; `None` when it does not see it. A unit under several numbers gets the
    /// widest access that any of them grants.
    pub(crate) fn access_to(&self, unit: UnitId) -> Option<Access> {
        let rows = self.rows().filter(|row| row.entry.unit == unit);
        rows.map(|row| row.entry.access).reduce(wider)
    }

    /// Returns the LUNs that this nexus sees, sorted.
    pub(crate) fn luns(&self) -> &[Lun] {
        &self.luns
    }

    /// Returns the port of the target that it came in through.
    pub(crate) const fn target_port(&self) -> RelativePort {
        self.target_port
    }

    /// Returns the units that this nexus sees, each once, in the order of their numbers.
    pub(crate) fn units(&self) -> Vec<UnitId> {
        let mut units: Vec<_> = self.rows().map(|row| row.entry.unit).collect();
        units.sort_unstable();
        units.dedup();
        units
    }
}

impl Ingress {
    /// Returns whether those who took this way see what stands under a LUN.
    pub(crate) fn shows(&self, row: &LunEntry) -> bool {
        match self {
            Self::Portal(_) => row.min_level == Level::None,
            Self::Group(group, _) => row.groups.as_ref().is_none_or(|groups| groups.contains(group)),
        }
    }
}

fn wider(a: Access, b: Access) -> Access {
    if a == Access::ReadWrite { a } else { b }
}
