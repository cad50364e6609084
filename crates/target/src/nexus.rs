//! I_T nexuses: which session sees which unit under which number.

use alloc::rc::Rc;
use alloc::vec::Vec;

use base::machine::PortalId;
use device::contract::{Access, Nexus, NexusId, RelativePort};
use iscsi::login::directory::TargetId;
use iscsi::name::IscsiName;
use iscsi::target::contract::{SessionId, SessionUp};
use scsi::lun::Lun;
use scsi::transport_id::TransportId;

use crate::config::{LunEntry, TargetConfig, UnitId};

/// Every nexus of a shard. A nexus has the number of its session, which is dense and unique among those in being.
#[derive(Debug, Default)]
pub(crate) struct Nexuses {
    slots: Vec<Option<Entry>>,
}

/// A nexus and what it sees.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) session: SessionId,
    pub(crate) target: TargetId,
    pub(crate) initiator: IscsiName,
    pub(crate) portal: PortalId,
    /// What it sees, sorted by number.
    pub(crate) map: Vec<LunEntry>,
    initiator_port: Rc<[u8]>,
    initiator_name: Rc<str>,
    target_port: RelativePort,
    luns: Rc<[Lun]>,
}

impl Nexuses {
    /// Returns the nexus of a session.
    pub(crate) const fn id_of(session: SessionId) -> NexusId {
        NexusId(session.index())
    }

    pub(crate) fn get(&self, id: NexusId) -> Option<&Entry> {
        self.slots.get(usize::try_from(id.0).ok()?)?.as_ref()
    }

    pub(crate) fn insert(&mut self, entry: Entry) -> NexusId {
        let id = Self::id_of(entry.session);
        let at = usize::try_from(id.0).unwrap_or(usize::MAX);
        while self.slots.len() <= at {
            self.slots.push(None);
        }
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = Some(entry);
        }
        id
    }

    pub(crate) fn remove(&mut self, id: NexusId) -> Option<Entry> {
        self.slots.get_mut(usize::try_from(id.0).ok()?)?.take()
    }

    /// Returns every nexus, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (NexusId, &Entry)> {
        (0..).map(NexusId).zip(&self.slots).filter_map(|(id, slot)| slot.as_ref().map(|entry| (id, entry)))
    }

    pub(crate) fn get_mut(&mut self, id: NexusId) -> Option<&mut Entry> {
        self.slots.get_mut(usize::try_from(id.0).ok()?)?.as_mut()
    }
}

impl Entry {
    /// Makes the nexus of a new session; `None` when the target or its port is no more, or the names make no
    /// TransportID.
    pub(crate) fn new(up: &SessionUp, target: &TargetConfig) -> Option<Self> {
        let target_port = target.port_at(up.portal)?;
        let initiator_port = TransportId::iscsi_port(up.initiator.as_str(), up.isid.0)?.encode().into();
        let mut entry = Self {
            session: up.session,
            target: up.target,
            initiator: up.initiator.clone(),
            portal: up.portal,
            map: Vec::new(),
            initiator_port,
            initiator_name: up.initiator.as_str().into(),
            target_port,
            luns: Rc::new([]),
        };
        entry.remap(target);
        Some(entry)
    }

    /// Takes over what the target's configuration says now. Returns whether anything changed.
    pub(crate) fn remap(&mut self, target: &TargetConfig) -> bool {
        let mut map = target.luns_of(self.initiator.as_str()).to_vec();
        map.sort_by_key(|entry| entry.number);
        let changed = map != self.map;
        self.luns = map.iter().filter_map(|entry| Lun::from_number(entry.number)).collect();
        self.map = map;
        changed
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

fn wider(a: Access, b: Access) -> Access {
    if a == Access::ReadWrite { a } else { b }
}
