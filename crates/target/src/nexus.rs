//! I_T nexuses: which session sees which logical unit under which LUN.

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

/// The lowest iSCSIProtocolLevel at which a session has the functions of RFC 7144. HyperSCSI sessions always
/// have them.
const RFC_7144: u8 = 2;

/// Every I_T nexus of a shard. A nexus has the number of its session, which is dense among those of its
/// transport.
#[derive(Debug, Default)]
pub(crate) struct Nexuses {
    iscsi: Vec<Option<NexusEntry>>,
    hyperscsi: Vec<Option<NexusEntry>>,
}

/// How the initiator of an I_T nexus logged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ingress {
    /// Through an iSCSI portal.
    Portal(PortalId),
    /// As a member of a HyperSCSI group, and whether it knew the group's password.
    Group(GroupName, bool),
}

/// An I_T nexus and its LUN map.
#[derive(Debug)]
pub(crate) struct NexusEntry {
    pub(crate) session: SessionRef,
    pub(crate) target: TargetId,
    pub(crate) initiator: IscsiName,
    pub(crate) ingress: Ingress,
    /// The address from which the initiator connected, for display. That connection may have ended since.
    pub(crate) peer: Option<SocketAddr>,
    /// The name under which the nexus' bindings are kept from one session to the next.
    pub(crate) name: NexusName,
    /// The LUN map that the configuration gives the nexus, sorted by LUN.
    map: Vec<Row>,
    initiator_name: Rc<str>,
    target_port: RelativePort,
    newer_functions: bool,
    luns: Rc<[Lun]>,
}

/// One LUN in the map of an I_T nexus.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    entry: LunEntry,
    /// The disk of the unit; `None` if the unit does not exist at present.
    disk: Option<DiskId>,
    binding: LunBinding,
}

/// Which disk an I_T nexus sees under a LUN of its map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LunBinding {
    /// The disk of the map. No command has used it yet.
    Unbound,
    /// The disk of the map, which is the one that the nexus has used under this LUN.
    Bound,
    /// None (a withheld LUN): the nexus has used another disk under this LUN.
    Withheld,
}

/// The result of a LUN look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LunLookup {
    /// The disk that the nexus has used under this LUN.
    Bound(UnitId),
    /// A disk that the nexus uses for the first time with this command.
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

    /// Returns every I_T nexus: those of iSCSI in the order of their numbers, then those of HyperSCSI.
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
    /// Makes the I_T nexus of a new iSCSI session. Returns `None` if the target no longer has the port, or if
    /// the initiator's name and ISID form no valid TransportID. The nexus sees no unit until [`Self::remap`]
    /// is called.
    pub(crate) fn of_iscsi(up: &SessionUp, target: &TargetConfig) -> Option<Self> {
        let (session, port) = (SessionRef::Iscsi(up.session), target.port_at(up.portal)?);
        let entry =
            Self::new(session, target, (up.initiator.clone(), up.isid.0), Ingress::Portal(up.portal), port)?;
        Some(Self { newer_functions: up.parameters.protocol_level >= RFC_7144, ..entry })
    }

    /// Makes the I_T nexus of a new HyperSCSI session. Returns `None` if the target is no longer exported to
    /// its group, or if the initiator's name and ISID form no valid TransportID.
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

    /// Replaces the LUN map by the one of the target's present configuration. Returns whether it changed.
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

    /// Returns the rows of the map that are not withheld.
    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.map.iter().filter(|row| row.binding != LunBinding::Withheld)
    }

    /// Returns the withheld LUNs: those that mean another disk than the one that the nexus has used.
    pub(crate) fn withheld(&self) -> impl Iterator<Item = u16> {
        self.map.iter().filter(|row| row.binding == LunBinding::Withheld).map(|row| row.entry.number)
    }

    /// Returns which disk each LUN leads to.
    pub(crate) fn disks(&self) -> Vec<(u16, Option<DiskId>)> {
        self.rows().map(|row| (row.entry.number, row.disk)).collect()
    }

    fn row_at(&self, lun: Lun) -> Option<&Row> {
        let number = lun.number()?;
        let at = self.map.binary_search_by_key(&number, |row| row.entry.number).ok()?;
        self.map.get(at)
    }

    /// Binds a LUN that was not used before to the disk that it leads to now.
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

    /// Returns the minimum protection level of the unit under `lun`; `None` if the map has no such LUN.
    pub(crate) fn least_at(&self, lun: Lun) -> Option<Level> {
        self.row_at(lun).map(|row| row.entry.min_level)
    }

    /// Returns the unit that `lun` leads to, and whether the nexus has used it; `None` for a LUN that is not
    /// in the map or is withheld.
    pub(crate) fn find(&self, lun: Lun) -> Option<LunLookup> {
        let row = self.row_at(lun)?;
        match row.binding {
            LunBinding::Bound => Some(LunLookup::Bound(row.entry.unit)),
            LunBinding::Unbound => Some(LunLookup::Unbound(row.entry.unit)),
            LunBinding::Withheld => None,
        }
    }

    /// Returns the unit that `lun` leads to.
    pub(crate) fn unit_at(&self, lun: Lun) -> Option<UnitId> {
        self.find(lun).map(|(LunLookup::Bound(unit) | LunLookup::Unbound(unit))| unit)
    }

    /// Returns the description of this nexus for `unit`; `None` if the nexus does not see the unit.
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

    /// Returns the access that this nexus has to `unit`; `None` if it does not see the unit. A unit under
    /// several LUNs gets the widest access that any of them grants.
    pub(crate) fn access_to(&self, unit: UnitId) -> Option<Access> {
        let rows = self.rows().filter(|row| row.entry.unit == unit);
        rows.map(|row| row.entry.access).reduce(wider)
    }

    /// Returns the LUNs that this nexus sees, sorted.
    pub(crate) fn luns(&self) -> &[Lun] {
        &self.luns
    }

    /// Returns the target port of the nexus.
    pub(crate) const fn target_port(&self) -> RelativePort {
        self.target_port
    }

    /// Returns the units that this nexus sees, each once, sorted by number.
    pub(crate) fn units(&self) -> Vec<UnitId> {
        let mut units: Vec<_> = self.rows().map(|row| row.entry.unit).collect();
        units.sort_unstable();
        units.dedup();
        units
    }
}

impl Ingress {
    /// Returns whether initiators that logged in this way see a LUN.
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
