//! I_T nexuses: which session sees which logical unit under which LUN.

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;

use device::contract::{Access, Nexus, NexusId, RelativePort};
use device::rate_limit::{LimitStats, Limiter, RateLimit};
use scsi::lun::Lun;
use scsi::transport_id::PROTOCOL_ISCSI;
use security::Level;
use transport::target::SessionId;

use crate::fault_injection::{self, Bug};
use crate::transport_id::{SessionRef, TRANSPORTS_MAX, TransportId, nexus_of, nexus_slot};
use crate::units::{DiskId, UnitId};

/// The number of a target node. One `Target` can hold several that share logical units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetNumber(pub u32);

/// What a transport knows of the I_T nexus of a new session.
#[derive(Clone, Debug)]
pub struct NexusInfo {
    /// The target that the initiator logged in to.
    pub target: TargetNumber,
    /// The name of the initiator device.
    pub initiator: Rc<str>,
    /// The initiator port as a TransportID (SPC-5 §7.6.4).
    pub initiator_port: Rc<[u8]>,
    /// The realm within which the initiator's name is unique, such as a HyperSCSI group: initiators of one
    /// name in two realms are two initiators. `None` for names that are unique everywhere.
    pub realm: Option<Rc<str>>,
    /// The user as whom the initiator has authenticated, if it had to. An initiator chooses its name, so the
    /// limit of a session with a user is that of the user.
    pub user: Option<Rc<str>>,
    /// The target port that the session reaches.
    pub target_port: RelativePort,
    /// Whether the transport carries QUERY TASK, QUERY TASK SET, QUERY ASYNCHRONOUS EVENT and I_T NEXUS RESET
    /// for this session (RFC 7144).
    pub rfc_7144_functions: bool,
    /// The protection of the session. The nexus sees no unit that requires more.
    pub level: Level,
}

/// An I_T nexus: an initiator port and a target. Portal groups make no difference: a host that reconnects
/// through another portal is the same host and still has the LUN open.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NexusName {
    pub(crate) target: TargetNumber,
    /// The TransportID: the initiator's name and its ISID.
    pub(crate) initiator_port: Rc<[u8]>,
    /// The realm of the session: any initiator of a realm can claim any name within it.
    pub(crate) realm: Option<Rc<str>>,
}

/// What the initiator ports of one initiator have in common: the realm, and the TransportID up to the ISID.
pub(crate) type InitiatorOfNexus = (Option<Rc<str>>, Box<[u8]>);

impl NexusName {
    /// Returns the initiator.
    pub(crate) fn initiator(&self) -> InitiatorOfNexus {
        let port: &[u8] = &self.initiator_port;
        // An iSCSI name has no comma. The TransportID of another protocol has no ISID.
        let is_iscsi = port.first().is_some_and(|format| format & 0x0f == PROTOCOL_ISCSI);
        let name = if is_iscsi { port.split(|byte| *byte == b',').next() } else { None };
        (self.realm.clone(), name.unwrap_or(port).into())
    }
}

/// One row of the LUN map of an I_T nexus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// The LUN, 0 to 16383.
    pub number: u16,
    /// The unit.
    pub unit: UnitId,
    /// The access to the unit.
    pub access: Access,
    /// The least protection of a session that sees the unit under this LUN, and of a command for it.
    pub min_level: Level,
}

/// Every I_T nexus. A nexus has the number of its session, which is dense among those of its transport.
#[derive(Debug, Default)]
pub(crate) struct Nexuses {
    slots: [Vec<Option<NexusEntry>>; TRANSPORTS_MAX],
}

/// An I_T nexus and its LUN map.
#[derive(Debug)]
pub struct NexusEntry {
    pub(crate) session: SessionRef,
    info: NexusInfo,
    /// The name under which the nexus' bindings are kept from one session to the next.
    pub(crate) name: NexusName,
    /// The LUN map that the configuration gives the nexus, sorted by LUN. Rows that require more protection
    /// than the session has are as if they were not there: [`Self::rows`] and [`Self::row_at`] decide that
    /// for every path to a unit.
    map: Vec<Row>,
    luns: Rc<[Lun]>,
    /// The limit of the initiator, if it has or had one. All nexuses of the initiator at the target share it.
    pub(crate) limiter: Option<Rc<RefCell<Limiter>>>,
}

/// One LUN in the map of an I_T nexus.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    entry: MapEntry,
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
        let (transport, at) = nexus_slot(id);
        self.slots.get(transport.number())?.get(at)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: NexusId) -> Option<&mut NexusEntry> {
        self.slot(id)?.as_mut()
    }

    pub(crate) fn insert(&mut self, entry: NexusEntry) -> NexusId {
        let id = nexus_of(entry.session.transport, entry.session.session);
        let (transport, at) = nexus_slot(id);
        if let Some(slots) = self.slots.get_mut(transport.number()) {
            while slots.len() <= at {
                slots.push(None);
            }
        }
        if let Some(slot) = self.slot(id) {
            *slot = Some(entry);
        }
        id
    }

    pub(crate) fn remove(&mut self, id: NexusId) -> Option<NexusEntry> {
        self.slot(id)?.take()
    }

    /// Returns every I_T nexus, in the order of transports and of the numbers there.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (NexusId, &NexusEntry)> {
        self.slots.iter().flatten().flatten().map(|entry| (entry.id(), entry))
    }

    fn slot(&mut self, id: NexusId) -> Option<&mut Option<NexusEntry>> {
        let (transport, at) = nexus_slot(id);
        self.slots.get_mut(transport.number())?.get_mut(at)
    }
}

impl NexusEntry {
    /// Makes the I_T nexus of a new session. The nexus sees no unit until [`Self::remap`] is called.
    pub(crate) fn new(session: SessionRef, info: NexusInfo) -> Self {
        let name = NexusName {
            target: info.target,
            initiator_port: Rc::clone(&info.initiator_port),
            realm: info.realm.clone(),
        };
        Self { session, name, map: Vec::new(), luns: Rc::new([]), info, limiter: None }
    }

    /// Returns the number of the nexus.
    pub fn id(&self) -> NexusId {
        nexus_of(self.session.transport, self.session.session)
    }

    /// Returns the transport and the session of the nexus.
    pub const fn session(&self) -> (TransportId, SessionId) {
        (self.session.transport, self.session.session)
    }

    /// Returns the target that the initiator logged in to.
    pub const fn target(&self) -> TargetNumber {
        self.info.target
    }

    /// Returns the name of the initiator device.
    pub fn initiator(&self) -> &str {
        &self.info.initiator
    }

    /// Returns whether this nexus is one of the initiator of another one, and at the same target.
    pub(crate) fn is_of(&self, other: &NexusInfo) -> bool {
        let own = &self.info;
        (own.target, &own.realm, &own.initiator) == (other.target, &other.realm, &other.initiator)
    }

    /// Returns whether this nexus and another one share a limit: they are of one user, or of one initiator if
    /// neither has a user, and at the same target.
    pub(crate) fn shares_limit_with(&self, other: &NexusInfo) -> bool {
        let own = &self.info;
        let of_one = match (&own.user, &other.user) {
            (None, None) => own.initiator == other.initiator,
            (own, other) => own == other,
        };
        of_one && (own.target, &own.realm) == (other.target, &other.realm)
    }

    /// Returns what the transport knows of the nexus.
    pub(crate) const fn info(&self) -> &NexusInfo {
        &self.info
    }

    /// Returns the limit of the initiator and what it has done so far, if the initiator has or had one.
    pub fn limit(&self) -> Option<(RateLimit, LimitStats)> {
        let limiter = self.limiter.as_ref()?.borrow();
        Some((limiter.limit(), limiter.stats()))
    }

    /// Returns the target port of the nexus.
    pub const fn target_port(&self) -> RelativePort {
        self.info.target_port
    }

    /// Replaces the LUN map. `bound` returns the disk that a nexus has used under a LUN, if it has a session
    /// with a target port. Returns whether the map changed.
    pub(crate) fn remap(
        &mut self,
        entries: impl IntoIterator<Item = MapEntry>,
        bound: impl Fn(&NexusName, RelativePort, u16) -> Option<DiskId>,
        disk_of: impl Fn(UnitId) -> Option<DiskId>,
    ) -> bool {
        let row = |entry: MapEntry| {
            let disk = disk_of(entry.unit);
            let binding = match (bound(&self.name, self.info.target_port, entry.number), disk) {
                (Some(opened), Some(disk))
                    if opened == disk || fault_injection::is_injected(Bug::RemapReachesOther) =>
                {
                    LunBinding::Bound
                }
                (Some(_), Some(_)) => LunBinding::Withheld,
                (_, None) | (None, _) => LunBinding::Unbound,
            };
            Row { entry, disk, binding }
        };
        let mut map: Vec<Row> = entries.into_iter().map(row).collect();
        map.sort_by_key(|row| row.entry.number);
        let changed = map != self.map;
        self.map = map;
        let luns: Vec<Lun> = self.rows().filter_map(|row| Lun::from_number(row.entry.number)).collect();
        self.luns = luns.into();
        changed
    }

    /// Returns the LUN map as it was given.
    pub(crate) fn entries(&self) -> Vec<MapEntry> {
        self.map.iter().map(|row| row.entry).collect()
    }

    /// Returns the rows of the map that the protection of the session permits.
    fn permitted(&self) -> impl Iterator<Item = &Row> {
        self.map.iter().filter(|row| row.entry.min_level <= self.info.level)
    }

    /// Returns the rows of the map that the nexus sees: those that are permitted and not withheld.
    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.permitted().filter(|row| row.binding != LunBinding::Withheld)
    }

    /// Returns the rows of the map that the nexus sees.
    pub fn seen(&self) -> impl Iterator<Item = MapEntry> {
        self.rows().map(|row| row.entry)
    }

    /// Returns the first LUN under which the nexus sees a unit.
    pub fn lun_of(&self, unit: UnitId) -> Option<u16> {
        self.rows().find(|row| row.entry.unit == unit).map(|row| row.entry.number)
    }

    /// Returns the withheld LUNs: those that mean another disk than the one that the nexus has used.
    pub fn withheld(&self) -> impl Iterator<Item = u16> {
        self.permitted().filter(|row| row.binding == LunBinding::Withheld).map(|row| row.entry.number)
    }

    /// Returns the LUNs that the nexus sees, with their units, and whether it has used each.
    pub(crate) fn seen_and_used(&self) -> impl Iterator<Item = (u16, UnitId, bool)> {
        self.rows().map(|row| (row.entry.number, row.entry.unit, row.binding == LunBinding::Bound))
    }

    /// Returns the protection of the session.
    pub const fn level(&self) -> Level {
        self.info.level
    }

    /// Returns how many LUNs of the map require more protection than the session has.
    pub fn hidden(&self) -> usize {
        self.map.len() - self.permitted().count()
    }

    /// Returns whether the nexus sees a unit that requires more protection than `level`.
    pub(crate) fn sees_above(&self, level: Level) -> bool {
        self.rows().any(|row| row.entry.min_level > level)
    }

    /// Returns which disk each LUN leads to.
    pub(crate) fn disks(&self) -> Vec<(u16, Option<DiskId>)> {
        self.rows().map(|row| (row.entry.number, row.disk)).collect()
    }

    /// Returns the permitted row of a LUN for a request of this level.
    fn row_at(&self, lun: Lun, level: Level) -> Option<&Row> {
        let number = lun.number()?;
        let at = self.map.binary_search_by_key(&number, |row| row.entry.number).ok()?;
        self.map.get(at).filter(|row| row.entry.min_level <= level.min(self.info.level))
    }

    /// Binds a LUN that was not used before to the disk that it leads to now. Returns the new binding, which
    /// the caller records.
    pub(crate) fn bind_lun(&mut self, lun: Lun) -> Option<(u16, DiskId)> {
        let number = lun.number()?;
        let at = self.map.binary_search_by_key(&number, |row| row.entry.number).ok()?;
        let level = self.info.level;
        let row = self.map.get_mut(at).filter(|row| row.entry.min_level <= level)?;
        if row.binding != LunBinding::Unbound {
            return None;
        }
        let disk = row.disk?;
        row.binding = LunBinding::Bound;
        Some((number, disk))
    }

    /// Returns the unit that `lun` leads a request of this level to, and whether the nexus has used it;
    /// `None` for a LUN that is not in the map, requires more protection or is withheld.
    pub(crate) fn find(&self, lun: Lun, level: Level) -> Option<LunLookup> {
        let row = self.row_at(lun, level)?;
        match row.binding {
            LunBinding::Bound => Some(LunLookup::Bound(row.entry.unit)),
            LunBinding::Unbound => Some(LunLookup::Unbound(row.entry.unit)),
            LunBinding::Withheld => None,
        }
    }

    /// Returns whether `lun` is in the map, for a request of this level, and has no unit yet.
    pub(crate) fn awaits_unit(&self, lun: Lun, level: Level) -> bool {
        self.row_at(lun, level).is_some_and(|row| row.disk.is_none())
    }

    /// Returns the unit that `lun` leads a request of this level to.
    pub(crate) fn unit_at(&self, lun: Lun, level: Level) -> Option<UnitId> {
        self.find(lun, level).map(|(LunLookup::Bound(unit) | LunLookup::Unbound(unit))| unit)
    }

    /// Returns the description of this nexus for `unit`; `None` if the nexus does not see the unit.
    pub(crate) fn seen_by(&self, id: NexusId, unit: UnitId) -> Option<Nexus> {
        let access = self.access_to(unit)?;
        Some(Nexus {
            id,
            initiator_port: Rc::clone(&self.info.initiator_port),
            initiator_name: Rc::clone(&self.info.initiator),
            target_port: self.info.target_port,
            access,
            rfc_7144_functions: self.info.rfc_7144_functions,
            luns: Rc::clone(&self.luns),
            limiter: self.limiter.clone(),
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

    /// Returns the units that this nexus sees, each once, sorted by number.
    pub(crate) fn units(&self) -> Vec<UnitId> {
        self.units_within(Level::Encrypt)
    }

    /// Returns the units that a request of this level can reach, each once, sorted by number.
    pub(crate) fn units_within(&self, level: Level) -> Vec<UnitId> {
        let rows = self.rows().filter(|row| row.entry.min_level <= level);
        let mut units: Vec<_> = rows.map(|row| row.entry.unit).collect();
        units.sort_unstable();
        units.dedup();
        units
    }
}

fn wider(a: Access, b: Access) -> Access {
    if a == Access::ReadWrite { a } else { b }
}
