//! I_T nexuses: which session sees which unit under which number.

use alloc::rc::Rc;
use alloc::vec::Vec;

use base::machine::PortalId;
use device::contract::{Access, Nexus, NexusId, RelativePort};
use hyperscsi::pdu::name::GroupName;
use hyperscsi::seal::Level;
use hyperscsi::target::contract as frames;
use iscsi::login::directory::TargetId;
use iscsi::name::IscsiName;
use iscsi::target::contract::SessionUp;
use scsi::lun::Lun;
use scsi::transport_id::TransportId;

use crate::config::{LunEntry, TargetConfig, UnitId};
use crate::transport::{Session, place};

/// Every nexus of a shard. A nexus has the number of its session, which is dense among those of its transport.
#[derive(Debug, Default)]
pub(crate) struct Nexuses {
    iscsi: Vec<Option<Entry>>,
    hyperscsi: Vec<Option<Entry>>,
}

/// Which way in a nexus took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through a portal.
    Portal(PortalId),
    /// As a member of a group, whose password it knew or not.
    Group(GroupName, bool),
}

/// A nexus and what it sees.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) session: Session,
    pub(crate) target: TargetId,
    pub(crate) initiator: IscsiName,
    pub(crate) way: Way,
    /// What it sees, sorted by number.
    pub(crate) map: Vec<LunEntry>,
    initiator_port: Rc<[u8]>,
    initiator_name: Rc<str>,
    target_port: RelativePort,
    luns: Rc<[Lun]>,
}

impl Nexuses {
    pub(crate) fn get(&self, id: NexusId) -> Option<&Entry> {
        let (frames, at) = place(id);
        let slots = if frames { &self.hyperscsi } else { &self.iscsi };
        slots.get(at)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: NexusId) -> Option<&mut Entry> {
        self.slot(id)?.as_mut()
    }

    pub(crate) fn insert(&mut self, entry: Entry) -> NexusId {
        let id = entry.session.nexus();
        let (frames, at) = place(id);
        let slots = if frames { &mut self.hyperscsi } else { &mut self.iscsi };
        while slots.len() <= at {
            slots.push(None);
        }
        if let Some(slot) = slots.get_mut(at) {
            *slot = Some(entry);
        }
        id
    }

    pub(crate) fn remove(&mut self, id: NexusId) -> Option<Entry> {
        self.slot(id)?.take()
    }

    /// Returns every nexus, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (NexusId, &Entry)> {
        let entries = self.iscsi.iter().chain(&self.hyperscsi).flatten();
        entries.map(|entry| (entry.session.nexus(), entry))
    }

    fn slot(&mut self, id: NexusId) -> Option<&mut Option<Entry>> {
        let (frames, at) = place(id);
        let slots = if frames { &mut self.hyperscsi } else { &mut self.iscsi };
        slots.get_mut(at)
    }
}

impl Entry {
    /// Makes the nexus of a new iSCSI session; `None` when the target or its port is no more, or the names make no
    /// TransportID.
    pub(crate) fn of_iscsi(up: &SessionUp, target: &TargetConfig) -> Option<Self> {
        let (session, port) = (Session::Iscsi(up.session), target.port_at(up.portal)?);
        Self::new(session, target, (up.initiator.clone(), up.isid.0), Way::Portal(up.portal), port)
    }

    /// Makes the nexus of a new HyperSCSI session; `None` when the target is no more there for its group.
    pub(crate) fn of_hyperscsi(up: &frames::SessionUp, target: &TargetConfig) -> Option<Self> {
        let port = target.port_of(&up.group)?;
        let initiator = up.initiator.parse().ok()?;
        let way = Way::Group(up.group.clone(), up.authenticated);
        Self::new(Session::HyperScsi(up.session), target, (initiator, up.isid), way, port)
    }

    fn new(
        session: Session,
        target: &TargetConfig,
        (initiator, isid): (IscsiName, [u8; 6]),
        way: Way,
        target_port: RelativePort,
    ) -> Option<Self> {
        let initiator_port = TransportId::iscsi_port(initiator.as_str(), isid)?.encode().into();
        let mut entry = Self {
            session,
            target: target.id,
            map: Vec::new(),
            initiator_port,
            initiator_name: initiator.as_str().into(),
            initiator,
            way,
            target_port,
            luns: Rc::new([]),
        };
        entry.remap(target);
        Some(entry)
    }

    /// Takes over what the target's configuration says now. Returns whether anything changed.
    pub(crate) fn remap(&mut self, target: &TargetConfig) -> bool {
        let rows = target.luns_of(self.initiator.as_str()).iter();
        let mut map: Vec<LunEntry> = rows.filter(|row| self.way.shows(row)).cloned().collect();
        map.sort_by_key(|entry| entry.number);
        let changed = map != self.map;
        self.luns = map.iter().filter_map(|entry| Lun::from_number(entry.number)).collect();
        self.map = map;
        changed
    }

    /// Returns the least protection that the unit under `lun` wants; `None` when there is none.
    pub(crate) fn least_at(&self, lun: Lun) -> Option<Level> {
        let number = lun.number()?;
        let at = self.map.binary_search_by_key(&number, |entry| entry.number).ok()?;
        self.map.get(at).map(|entry| entry.least)
    }

    /// Returns the unit under `lun`.
    pub(crate) fn unit_at(&self, lun: Lun) -> Option<UnitId> {
        let number = lun.number()?;
        let at = self.map.binary_search_by_key(&number, |entry| entry.number).ok()?;
        self.map.get(at).map(|entry| entry.unit)
    }

    /// Returns how this nexus appears to `unit`; `None` when it does not see it.
    pub(crate) fn seen_by(&self, id: NexusId, unit: UnitId) -> Option<Nexus> {
        let rows = self.map.iter().filter(|entry| entry.unit == unit);
        // A unit under several numbers gets the widest access that any of them grants.
        let access = rows.map(|entry| entry.access).reduce(wider)?;
        Some(Nexus {
            id,
            initiator_port: Rc::clone(&self.initiator_port),
            initiator_name: Rc::clone(&self.initiator_name),
            target_port: self.target_port,
            access,
            luns: Rc::clone(&self.luns),
        })
    }

    /// Returns the LUNs that this nexus sees, sorted.
    pub(crate) fn luns(&self) -> &[Lun] {
        &self.luns
    }

    /// Returns the units that this nexus sees, each once, in the order of their numbers.
    pub(crate) fn units(&self) -> Vec<UnitId> {
        let mut units: Vec<_> = self.map.iter().map(|entry| entry.unit).collect();
        units.sort_unstable();
        units.dedup();
        units
    }
}

impl Way {
    /// Returns whether those who took this way see what stands under a LUN.
    pub(crate) fn shows(&self, row: &LunEntry) -> bool {
        match self {
            Self::Portal(_) => row.least == Level::None,
            Self::Group(group, _) => row.groups.as_ref().is_none_or(|groups| groups.contains(group)),
        }
    }
}

fn wider(a: Access, b: Access) -> Access {
    if a == Access::ReadWrite { a } else { b }
}
