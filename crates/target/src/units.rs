//! The logical units of a target, by number.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use base::time::Instant;
use device::contract::UnitEvent;
use device::slow_command::SlowCommand;
use device::unit::LogicalUnit;

/// The number that the owner of the target gives to a logical unit. An unchanged unit keeps its number across
/// a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitId(pub u32);

impl UnitId {
    /// Returns whether this is the number of a retiring unit.
    pub(crate) const fn is_retiring(self) -> bool {
        self.0 >= MAX_UNITS
    }
}

/// Identifies a disk across reloads: units with equal identifiers hold the same data for an initiator, others
/// do not. A disk that is removed and added again has the same identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskId(pub u64);

impl DiskId {
    /// Stands for a disk that is not known. No unit has it.
    pub const UNKNOWN: Self = Self(u64::MAX);

    /// Returns the identifier of a disk that is always the same one under its unit number.
    pub const fn of_unit(unit: UnitId) -> Self {
        Self(1 << 63 | unit.0 as u64)
    }
}

/// The logical units of a target, by number, and the dirty ones: those that may have events.
#[derive(Default)]
pub(crate) struct Units {
    slots: Vec<Option<Slot>>,
    /// Retiring units: removed, with operations still under way. Their numbers start at [`MAX_UNITS`], so
    /// that another unit can take the former number of each.
    retiring: Vec<Option<Slot>>,
    /// The number of each unit by its incarnation. A late completion names its unit by the incarnation, which
    /// no other unit has.
    incarnations: BTreeMap<u32, UnitId>,
    incarnation_next: u32,
    dirty: VecDeque<UnitId>,
    /// The deadlines of units, earliest first. Only the deadline of a dirty unit can change.
    deadlines: BTreeSet<(Instant, UnitId)>,
}

struct Slot {
    unit: Box<LogicalUnit>,
    disk: DiskId,
    incarnation: u32,
    /// The number with which the unit was added. The unit's medium has the same number.
    given: UnitId,
    /// The unit's entry in `deadlines`.
    deadline: Option<Instant>,
}

/// The number of unit numbers: as many units as there are LUNs, twice, because the units of two
/// configurations have numbers while a reload replaces one by the other. Unit numbers are below it.
pub const MAX_UNITS: u32 = 2 * 16384;

impl Units {
    /// Returns a unit for a call that may change its state, and marks the unit dirty, so that its events are
    /// polled afterwards.
    pub(crate) fn mark_dirty(&mut self, id: UnitId) -> Option<&mut LogicalUnit> {
        let retired = id.0.checked_sub(MAX_UNITS);
        let slots = if retired.is_some() { &mut self.retiring } else { &mut self.slots };
        let slot = slots.get_mut(usize::try_from(retired.unwrap_or(id.0)).ok()?)?.as_mut()?;
        if self.dirty.back() != Some(&id) {
            self.dirty.push_back(id);
        }
        Some(&mut slot.unit)
    }

    fn slot(&self, id: UnitId) -> Option<&Slot> {
        let retired = id.0.checked_sub(MAX_UNITS);
        let slots = if retired.is_some() { &self.retiring } else { &self.slots };
        slots.get(usize::try_from(retired.unwrap_or(id.0)).ok()?)?.as_ref()
    }

    fn slot_mut(&mut self, id: UnitId) -> Option<&mut Slot> {
        let retired = id.0.checked_sub(MAX_UNITS);
        let slots = if retired.is_some() { &mut self.retiring } else { &mut self.slots };
        slots.get_mut(usize::try_from(retired.unwrap_or(id.0)).ok()?)?.as_mut()
    }

    /// Returns every unit that is not retiring.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut LogicalUnit> {
        self.slots.iter_mut().flatten().map(|slot| &mut *slot.unit)
    }

    /// Returns a slow command of a unit to report.
    pub(crate) fn take_slow_command(&mut self, id: UnitId) -> Option<SlowCommand> {
        self.slot_mut(id)?.unit.take_slow_command()
    }

    /// Returns the next event of a dirty unit.
    pub(crate) fn poll(&mut self, id: UnitId) -> Option<UnitEvent> {
        self.slot_mut(id)?.unit.poll()
    }

    /// Records the deadline of a dirty unit.
    pub(crate) fn note_deadline(&mut self, id: UnitId) {
        let Some(slot) = self.slot_mut(id) else { return };
        let wanted = slot.unit.poll_timeout();
        if wanted == slot.deadline {
            return;
        }
        if let Some(old) = core::mem::replace(&mut slot.deadline, wanted) {
            self.deadlines.remove(&(old, id));
        }
        self.deadlines.extend(wanted.map(|at| (at, id)));
    }

    /// Returns the earliest deadline.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Returns the units whose deadline has passed.
    pub(crate) fn due(&self, now: Instant) -> Vec<UnitId> {
        self.deadlines.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| *id).collect()
    }

    pub(crate) fn get(&self, id: UnitId) -> Option<&LogicalUnit> {
        Some(&self.slot(id)?.unit)
    }

    /// Returns the identifier of a unit's disk.
    pub(crate) fn disk_of(&self, id: UnitId) -> Option<DiskId> {
        Some(self.slot(id)?.disk)
    }

    /// Returns the incarnation of a unit: a number that no other unit has or will have.
    pub(crate) fn incarnation(&self, id: UnitId) -> Option<u32> {
        Some(self.slot(id)?.incarnation)
    }

    /// Returns the number of the unit with this incarnation.
    pub(crate) fn find(&self, incarnation: u32) -> Option<UnitId> {
        self.incarnations.get(&incarnation).copied()
    }

    /// Returns the number with which a unit was added, whether it is retiring or not.
    pub(crate) fn given(&self, id: UnitId) -> UnitId {
        self.slot(id).map_or(id, |slot| slot.given)
    }

    /// Returns the retiring units that were added with this number, which their media have.
    pub(crate) fn retiring_from(&self, given: UnitId) -> impl Iterator<Item = UnitId> {
        let slots = (MAX_UNITS..).map(UnitId).zip(&self.retiring);
        slots.filter(move |(_, slot)| slot.as_ref().is_some_and(|slot| slot.given == given)).map(|(id, _)| id)
    }

    /// Returns whether there are retiring units.
    pub(crate) const fn has_retiring(&self) -> bool {
        !self.retiring.is_empty()
    }

    /// Removes a unit from its number, which is then free. Returns the unit's number while it is retiring.
    pub(crate) fn retire(&mut self, id: UnitId) -> Option<UnitId> {
        let slot = self.slots.get_mut(usize::try_from(id.0).ok()?)?.take()?;
        if let Some(deadline) = slot.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        let at = self.retiring.iter().position(Option::is_none).unwrap_or_else(|| {
            self.retiring.push(None);
            self.retiring.len() - 1
        });
        let new = UnitId(MAX_UNITS.saturating_add(u32::try_from(at).unwrap_or(u32::MAX)));
        self.incarnations.insert(slot.incarnation, new);
        *self.retiring.get_mut(at)? = Some(Slot { deadline: None, ..slot });
        self.note_deadline(new);
        Some(new)
    }

    /// Removes a retiring unit that has nothing under way any more. Returns it with the number with which it
    /// was added.
    pub(crate) fn take_retired(&mut self) -> Option<(UnitId, Box<LogicalUnit>)> {
        let is_over = |slot: &Option<Slot>| slot.as_ref().is_some_and(|slot| slot.unit.is_retired());
        let at = self.retiring.iter().position(is_over)?;
        let slot = self.retiring.get_mut(at)?.take()?;
        if let Some(deadline) = slot.deadline {
            let id = UnitId(MAX_UNITS.saturating_add(u32::try_from(at).unwrap_or(u32::MAX)));
            self.deadlines.remove(&(deadline, id));
        }
        self.incarnations.remove(&slot.incarnation);
        while self.retiring.pop_if(|slot| slot.is_none()).is_some() {}
        Some((slot.given, slot.unit))
    }

    /// Adds a unit. Returns false if the number is too high or not free.
    pub(crate) fn put(&mut self, id: UnitId, unit: Box<LogicalUnit>, disk: DiskId) -> bool {
        let Some(at) = usize::try_from(id.0).ok().filter(|_| id.0 < MAX_UNITS) else { return false };
        while self.slots.len() <= at {
            self.slots.push(None);
        }
        let incarnation = self.incarnation_next;
        match self.slots.get_mut(at) {
            Some(slot @ None) => *slot = Some(Slot { unit, disk, incarnation, given: id, deadline: None }),
            _ => return false,
        }
        self.incarnation_next = incarnation.wrapping_add(1);
        self.incarnations.insert(incarnation, id);
        self.note_deadline(id);
        true
    }

    /// Returns the next dirty unit whose events were not polled yet.
    pub(crate) fn next_dirty(&mut self) -> Option<UnitId> {
        self.dirty.pop_front()
    }

    /// Returns every unit except the retiring ones, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (UnitId, &LogicalUnit)> {
        (0..)
            .map(UnitId)
            .zip(&self.slots)
            .filter_map(|(id, slot)| slot.as_ref().map(|slot| (id, &*slot.unit)))
    }
}
