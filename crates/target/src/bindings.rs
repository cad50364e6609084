//! Nexus bindings: which disk each I_T nexus has used under each LUN.
//!
//! An initiator can keep a LUN open over lost connections and new sessions. Its host does not check again
//! whether the LUN still leads to the disk that it mounted. Therefore a LUN that an I_T nexus has used leads
//! this nexus to the same disk or to none.
//!
//! Only the initiator can end that, with a logout that nobody but itself caused. An initiator port can have a
//! session with each target port. If one of them is lost, the initiator continues it there later. So the LUNs
//! may lead to other disks only after the latest session of each target port ended with such a logout. The
//! owner of the target can store the bindings and restore them after a restart.
//!
//! A target port that the target no longer has (its portal was removed, or the tag of its portal group was
//! changed) cannot be logged out of, so the bindings do not wait for it. They become a *former record* then,
//! which no longer concerns the target ports through which the initiator has logged out. It still holds for
//! all other ones, because the initiator may continue a lost session when the portal is back. What it has
//! used since then counts for such a session, too, if a target port of that is gone as well: the portal may
//! have got another tag, or its former one again. The same holds if the initiator has continued a session
//! with the former record through a target port that is gone now, or if the portal of a session has got
//! another tag: the initiator may continue the session through a target port through which it had logged out.
//! The former record has the LUNs of both then, and a LUN under which they differ leads to no disk. The
//! logout from such a session ends the doubt.

mod bound;
mod lost;

use alloc::boxed::Box;
use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use base::time::{Duration, Instant};
use device::contract::RelativePort;
use scsi::lun::Lun;

use crate::nexus::{NexusEntry, NexusName, TargetNumber};
use crate::units::DiskId;
use bound::{Bound, Loss, RecordKind};
use lost::LostRecords;

/// The bindings of one I_T nexus, as the owner of a target stores them over a restart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NexusBindings {
    /// The target.
    pub target: TargetNumber,
    /// The initiator port as a TransportID (SPC-5 §7.6.4).
    pub initiator_port: Box<[u8]>,
    /// The realm of the initiator's name, if it has one.
    pub realm: Option<Box<str>>,
    /// The target ports whose latest session has not ended with the initiator's own logout. Empty if they are
    /// not known: one such logout is enough then.
    pub target_ports: Vec<RelativePort>,
    /// The target ports that a former record does not concern, because the initiator has logged out through
    /// them; `None` if the record is no former one.
    pub released_ports: Option<Vec<RelativePort>>,
    /// The target ports through which the initiator has continued a session with a former record.
    pub rejoined_ports: Vec<RelativePort>,
    /// The target ports to which portals have moved through which the initiator may have a session, of a
    /// former record.
    pub moved_ports: Vec<RelativePort>,
    /// Whether it is not known which LUNs the I_T nexus has used. Every LUN that is not in `luns` leads it to
    /// no disk then.
    pub is_sealed: bool,
    /// The disk that the I_T nexus has used under each LUN.
    pub luns: Vec<(u16, DiskId)>,
    /// How long ago it lost its last session; `None` if it has one, or if that is not known.
    pub lost_for: Option<Duration>,
}

impl NexusBindings {
    /// Returns the I_T nexus that they belong to.
    fn name(&self) -> NexusName {
        let Self { target, initiator_port, realm, .. } = self;
        let realm = realm.as_deref().map(Into::into);
        NexusName { target: *target, initiator_port: (**initiator_port).into(), realm }
    }

    /// Returns whether the record concerns sessions with a target port.
    pub fn concerns(&self, port: RelativePort) -> bool {
        self.released_ports.as_ref().is_none_or(|released| !released.contains(&port))
    }
}

/// The result of [`crate::target::Target::forget_bindings`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// How many records were removed.
    pub records: usize,
    /// How many records stay because their initiator port has a session.
    pub in_use: usize,
}

/// The bindings of all I_T nexuses.
#[derive(Debug, Default)]
pub(crate) struct Bindings {
    /// Whether an I_T nexus without a record is sealed, because records were lost.
    seals_unknown: bool,
    /// How often a binding was made or forgotten.
    changes: u64,
    /// How often an I_T nexus lost its last session, or began one again.
    session_changes: u64,
    /// The ports of each target at present.
    target_ports: BTreeMap<TargetNumber, BTreeSet<RelativePort>>,
    nexuses: BTreeMap<NexusName, Bound>,
    /// The former records.
    former: BTreeMap<NexusName, Bound>,
    /// Whether the sessions that begin are those that another process hands over.
    is_resuming: bool,
    lost: LostRecords,
    /// How many records were forgotten because there were too many without a session.
    evictions: u64,
}

impl Bindings {
    /// Replaces the ports of all targets. Claims of other ports end nothing and prevent nothing.
    pub(crate) fn set_target_ports(&mut self, ports: BTreeMap<TargetNumber, BTreeSet<RelativePort>>) {
        self.target_ports = ports;
    }

    /// Records that a portal of a target belongs to another target port than before. An initiator that had a
    /// session through it may continue it through the new one.
    pub(crate) fn portal_moved(&mut self, target: TargetNumber, from: RelativePort, to: RelativePort) {
        for (name, former) in self.former.iter_mut().filter(|(name, _)| name.target == target) {
            let present = self.nexuses.get(name);
            let is_used = former.ports.contains_key(&from)
                || former.moved.contains(&from)
                || present.is_some_and(|bound| bound.ports.contains_key(&from));
            self.changes += u64::from(is_used && former.moved.insert(to));
        }
    }

    /// Sets whether the sessions that begin are those that another process hands over. Each goes on as it
    /// was, so none of them is in doubt.
    pub(crate) const fn set_resuming(&mut self, is_resuming: bool) {
        self.is_resuming = is_resuming;
    }

    /// Returns whether a target has a port.
    fn has_port(&self, target: TargetNumber, port: RelativePort) -> bool {
        self.target_ports.get(&target).is_none_or(|ports| ports.contains(&port))
    }

    /// Records that a session of an I_T nexus with a target port begins. It takes the place of an earlier one
    /// with the same port.
    pub(crate) fn session_begins(&mut self, name: &NexusName, port: RelativePort) {
        self.unite_if_unclear(name, port);
        let is_sealed = self.seals_unknown;
        let bound = self.nexuses.entry(name.clone());
        let bound = bound.or_insert_with(|| Bound { is_sealed, ..Bound::default() });
        let is_new = !bound.ports.contains_key(&port);
        *bound.ports.entry(port).or_default() += 1;
        bound.released.remove(&port);
        self.changes += u64::from(is_new && bound.has_bindings());
        if let Some(loss) = bound.lost_at.take() {
            self.lost.remove(loss.key);
            self.session_changes += 1;
        }
        if let Some(former) = self.former.get_mut(name).filter(|former| former.concerns(port)) {
            self.changes += u64::from(former.rejoined.insert(port));
            *former.ports.entry(port).or_default() += 1;
            if let Some(loss) = former.lost_at.take() {
                self.lost.remove(loss.key);
            }
        }
    }

    /// Adds what an I_T nexus has used since its former record to this record, if nothing shows which of both
    /// its next session with a target port continues. That is so in three cases:
    /// - The former record concerns this port, this is the first session with it, and the initiator cannot
    ///   continue all sessions of the present record where it lost them.
    /// - The former record does not concern this port, and the initiator cannot continue all sessions of the
    ///   former record where it lost them.
    /// - A portal through which it had a session has moved to this port.
    fn unite_if_unclear(&mut self, name: &NexusName, port: RelativePort) {
        if self.is_resuming {
            return;
        }
        let is_gone = |claimed: &RelativePort| !self.has_port(name.target, *claimed);
        let Some(former) = self.former.get(name) else { return };
        let present = self.nexuses.get(name);
        let has_moved = former.moved.contains(&port);
        let is_unclear = if has_moved {
            true
        } else if former.concerns(port) {
            present.is_some_and(|bound| !bound.ports.contains_key(&port) && bound.ports.keys().any(is_gone))
        } else {
            former.rejoined.iter().filter(|rejoined| former.ports.contains_key(rejoined)).any(is_gone)
        };
        let Some(former) = self.former.get_mut(name).filter(|_| is_unclear) else { return };
        if let Some(present) = present {
            former.agree_on_luns(&present.luns, present.is_sealed);
        }
        former.moved.remove(&port);
        // The session may be continued through any other port later. Only sessions that live are known to be
        // later ones.
        former.released.retain(|released| {
            let is_live = |bound: &Bound| bound.ports.get(released).is_some_and(|sessions| *sessions > 0);
            *released != port && present.is_some_and(is_live)
        });
        self.changes += 1;
    }

    /// Records that a session of an I_T nexus with a target port has ended. `deliberately` is whether its
    /// initiator has logged out by its own decision and so no longer uses the LUNs through this port.
    pub(crate) fn session_ended(
        &mut self,
        now: Instant,
        name: &NexusName,
        port: RelativePort,
        deliberately: bool,
    ) {
        let Some(bound) = self.nexuses.get_mut(name) else { return };
        let mut is_released = false;
        if let Some(sessions) = bound.ports.get_mut(&port) {
            *sessions = sessions.saturating_sub(1);
            is_released = *sessions == 0 && deliberately;
            // A nexus without bindings has used no LUN through this port.
            if is_released || *sessions == 0 && !bound.has_bindings() {
                bound.ports.remove(&port);
                self.changes += u64::from(bound.has_bindings());
            }
        }
        if is_released {
            bound.released.insert(port);
        }
        let (has_session, is_claimed) = (bound.has_session(), !bound.ports.is_empty());
        self.session_ended_of_former(now, name, port, is_released);
        if has_session {
            return;
        }
        if !is_claimed {
            self.nexuses.remove(name);
        } else if is_released && self.claims(name).next().is_none() {
            self.retire(now, name);
        } else {
            self.lose(now, name);
        }
    }

    /// Returns the target ports that the target has, and whose latest session has not ended with the
    /// initiator's own logout.
    fn claims(&self, name: &NexusName) -> impl Iterator<Item = RelativePort> {
        let ports = self.nexuses.get(name).into_iter().flat_map(|bound| bound.ports.keys().copied());
        ports.filter(|port| self.has_port(name.target, *port))
    }

    /// Returns the target ports through which an initiator has to log out before a LUN can lead it to another
    /// disk than before, if it has a session with a target port.
    pub(crate) fn claims_on(&self, name: &NexusName, port: RelativePort, number: u16) -> Vec<RelativePort> {
        let former = self.former.get(name).filter(|former| former.concerns(port));
        match former.and_then(|former| former.disk_of(number)) {
            Some(_) => alloc::vec![port],
            None => self.claims(name).collect(),
        }
    }

    /// Records in the former record of an I_T nexus that a session with a target port has ended.
    fn session_ended_of_former(
        &mut self,
        now: Instant,
        name: &NexusName,
        port: RelativePort,
        is_released: bool,
    ) {
        let ports = self.target_ports.get(&name.target);
        let Some(former) = self.former.get_mut(name).filter(|former| former.concerns(port)) else { return };
        if let Some(sessions) = former.ports.get_mut(&port) {
            *sessions = sessions.saturating_sub(1);
        }
        if is_released {
            former.ports.remove(&port);
            former.released.insert(port);
            // A port that is gone needs no logout of its own.
            former.rejoined.retain(|port| ports.is_none_or(|ports| ports.contains(port)));
            former.rejoined.remove(&port);
            former.moved.remove(&port);
            self.changes += 1;
        }
        if former.ports.is_empty() {
            self.remove_former(name);
        } else if !former.has_session() && former.lost_at.is_none() {
            self.add_lost(now, name, RecordKind::Former, Some(Duration::ZERO));
        }
    }

    /// Makes the record of an I_T nexus a former one.
    fn retire(&mut self, now: Instant, name: &NexusName) {
        let Some(mut bound) = self.nexuses.remove(name) else { return };
        if let Some(older) = self.remove_former(name) {
            bound.join(older);
        }
        self.former.insert(name.clone(), bound);
        self.add_lost(now, name, RecordKind::Former, Some(Duration::ZERO));
        self.changes += 1;
    }

    fn remove_present(&mut self, name: &NexusName) -> Option<Bound> {
        let bound = self.nexuses.remove(name)?;
        self.is_no_longer_lost(&bound);
        Some(bound)
    }

    fn remove_former(&mut self, name: &NexusName) -> Option<Bound> {
        let former = self.former.remove(name)?;
        self.is_no_longer_lost(&former);
        Some(former)
    }

    /// Takes a record that was just removed out of those without a session.
    fn is_no_longer_lost(&mut self, removed: &Bound) {
        if let Some(loss) = removed.lost_at {
            self.lost.remove(loss.key);
        }
    }

    /// Remembers an I_T nexus that has no session.
    fn lose(&mut self, now: Instant, name: &NexusName) {
        self.session_changes += 1;
        self.add_lost(now, name, RecordKind::Present, Some(Duration::ZERO));
    }

    /// Adds a record to those without a session, and forgets some beyond the limits. `before` is
    /// how long the nexus had no session before; `None` if it had one until now, or if that is not known.
    fn add_lost(&mut self, now: Instant, name: &NexusName, kind: RecordKind, before: Option<Duration>) {
        let records = match kind {
            RecordKind::Present => &mut self.nexuses,
            RecordKind::Former => &mut self.former,
        };
        let Some(bound) = records.get_mut(name) else { return };
        let key = self.lost.add((name.clone(), kind), bound.luns.len(), before.is_none());
        bound.lost_at = Some(Loss { key, since: now, before: before.unwrap_or_default() });
        while let Some((oldest, kind)) = self.lost.pop_excess() {
            match kind {
                RecordKind::Present => self.nexuses.remove(&oldest),
                RecordKind::Former => self.former.remove(&oldest),
            };
            self.changes += 1;
            self.evictions += 1;
        }
    }

    /// Removes the records of wanted I_T nexuses that have no session.
    pub(crate) fn forget(&mut self, is_wanted: impl Fn(&NexusBindings) -> bool) -> Forgotten {
        let records = self.all(Instant::ORIGIN).filter(|record| is_wanted(record));
        let names: BTreeSet<NexusName> = records.map(|record| record.name()).collect();
        let mut forgotten = Forgotten::default();
        for name in names {
            if self.nexuses.get(&name).is_some_and(Bound::has_session) {
                forgotten.in_use += 1;
                continue;
            }
            forgotten.records += usize::from(self.remove_present(&name).is_some());
            forgotten.records += usize::from(self.remove_former(&name).is_some());
            self.changes += 1;
        }
        forgotten
    }

    /// Removes all records of a target, also those of I_T nexuses with a session, and returns them in the
    /// order of [`Self::all`].
    pub(crate) fn take(&mut self, now: Instant, target: TargetNumber) -> Vec<NexusBindings> {
        let taken: Vec<NexusBindings> = self.all(now).filter(|record| record.target == target).collect();
        for name in taken.iter().map(NexusBindings::name) {
            self.remove_present(&name);
            self.remove_former(&name);
            self.changes += 1;
        }
        taken
    }

    /// Returns how often a binding was made or forgotten.
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns how many records were forgotten because there were too many without a session.
    pub(crate) const fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Returns how often an I_T nexus lost its last session, or began one again.
    pub(crate) const fn session_changes(&self) -> u64 {
        self.session_changes
    }

    /// Returns all bindings: first the records without a session, in the order in which they lost it, then
    /// the others.
    pub(crate) fn all(&self, now: Instant) -> impl Iterator<Item = NexusBindings> {
        let live = self.nexuses.iter().filter(|(_, bound)| bound.lost_at.is_none() && bound.has_bindings());
        let live = live.map(move |(name, bound)| bound.describe(now, name, RecordKind::Present));
        let former = self.former.iter().filter(|(_, bound)| bound.lost_at.is_none());
        let former = former.map(move |(name, bound)| bound.describe(now, name, RecordKind::Former));
        self.lost(now).chain(live).chain(former)
    }

    /// Returns the records without a session, in the order in which they lost it.
    pub(crate) fn lost(&self, now: Instant) -> impl Iterator<Item = NexusBindings> {
        self.lost.records.values().chain(self.lost.awaited.values()).filter_map(move |(name, kind)| {
            let records = match kind {
                RecordKind::Present => &self.nexuses,
                RecordKind::Former => &self.former,
            };
            records.get(name).map(|bound| bound.describe(now, name, *kind))
        })
    }

    /// Restores the bindings of an I_T nexus that has no session. Bindings of a nexus with a session stay as
    /// they are. If two records of one nexus name different disks under a LUN, the LUN leads to none: nothing
    /// shows which of them the host has open.
    pub(crate) fn restore(&mut self, now: Instant, saved: NexusBindings) {
        let name = saved.name();
        let NexusBindings {
            target_ports,
            released_ports,
            rejoined_ports,
            moved_ports,
            is_sealed,
            luns,
            lost_for,
            ..
        } = saved;
        let (records, kind) = match &released_ports {
            None => (&self.nexuses, RecordKind::Present),
            Some(_) => (&self.former, RecordKind::Former),
        };
        let luns = luns.into_iter().collect();
        let ports = target_ports.into_iter().map(|port| (port, 0)).collect();
        let released = released_ports.into_iter().flatten().collect();
        let (rejoined, moved) = (rejoined_ports.into_iter().collect(), moved_ports.into_iter().collect());
        let mut bound = Bound { luns, is_sealed, ports, released, rejoined, moved, lost_at: None };
        if !bound.has_bindings() || records.get(&name).is_some_and(Bound::has_session) {
            return;
        }
        let known = match kind {
            RecordKind::Present => self.remove_present(&name),
            RecordKind::Former => self.remove_former(&name),
        };
        if let Some(known) = known {
            bound.agree_with(known);
        }
        let records = match kind {
            RecordKind::Present => &mut self.nexuses,
            RecordKind::Former => &mut self.former,
        };
        records.insert(name.clone(), bound);
        self.add_lost(now, &name, kind, lost_for);
    }

    /// Seals the I_T nexuses that have no record when their next session begins, because records were lost.
    pub(crate) const fn seal_unknown(&mut self) {
        self.seals_unknown = true;
    }

    /// Returns whether it is not known which LUNs an I_T nexus has used.
    pub(crate) fn is_sealed(&self, name: &NexusName) -> bool {
        self.nexuses.get(name).is_some_and(|bound| bound.is_sealed)
    }

    /// Records that an I_T nexus uses a disk under a LUN. An existing binding stays.
    pub(crate) fn bind(&mut self, name: &NexusName, number: u16, disk: DiskId) {
        if let Some(bound) = self.nexuses.get_mut(name)
            && let Entry::Vacant(free) = bound.luns.entry(number)
        {
            free.insert(disk);
            self.changes += 1;
        }
    }

    /// Records that an I_T nexus whose session another process hands over uses a disk under a LUN. If its
    /// former record has a disk there, the LUN belongs to that record alone.
    pub(crate) fn rebind(&mut self, name: &NexusName, port: RelativePort, number: u16, disk: DiskId) {
        let former = self.former.get(name).filter(|former| former.concerns(port));
        if former.is_none_or(|former| former.disk_of(number).is_none()) {
            self.bind(name, number, disk);
        }
    }

    /// Binds a LUN that an I_T nexus uses for the first time.
    pub(crate) fn record(&mut self, nexus: &mut NexusEntry, lun: Lun) {
        if let Some((number, disk)) = nexus.bind_lun(lun) {
            self.bind(&nexus.name, number, disk);
        }
    }

    /// Returns the disk that an I_T nexus has used under a LUN, if it has a session with a target port;
    /// [`DiskId::UNKNOWN`] if it may be any.
    pub(crate) fn disk_of(&self, name: &NexusName, port: RelativePort, number: u16) -> Option<DiskId> {
        let former = self.former.get(name).filter(|former| former.concerns(port));
        let present = || self.nexuses.get(name).and_then(|bound| bound.disk_of(number));
        former.and_then(|former| former.disk_of(number)).or_else(present)
    }
}

#[cfg(test)]
mod tests;
