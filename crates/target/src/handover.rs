//! I_T nexuses and logical units that a live upgrade hands over from one process to the next.
//!
//! The owner of the new target adds its units, lets the transports resume the sessions, which establishes the
//! nexuses, and calls [`Target::restore`]. A unit is named by its NAA identifier, a nexus by its position in
//! the list of nexuses that are handed over.
//!
//! | state | decision |
//! |---|---|
//! | units | move, see [`device::handover`] |
//! | LUN maps, access, slow limit | configuration; a nexus is told if its LUNs have changed |
//! | which disk a nexus has used under a LUN | moves, beyond what the owner has stored |
//! | what limits of initiators have saved up | moves; an initiator without a session finds a full bucket |
//! | open tasks and functions, retiring units, saves, events of libraries | the target is busy |
//! | slow commands that were not reported | are dropped |

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use base::time::Instant;
use device::contract::NexusId;
use device::handover::{RestoreError as UnitRestoreError, UnitBusy, UnitState};
use device::rate_limit::handover::LimiterState;
use device::unit::LogicalUnit;
use serde::{Deserialize, Serialize};

use crate::nexus::NexusEntry;
use crate::target::Target;
use crate::units::UnitId;

/// The state of a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetState {
    /// The nexuses that are handed over. A unit names a nexus by its index here.
    nexuses: Vec<NexusState>,
    /// The units. A nexus names a unit by its index here.
    units: Vec<UnitWithName>,
}

/// What a target keeps for an I_T nexus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NexusState {
    /// What the limit of the initiator has saved up, if the initiator has or had one.
    limit: Option<LimiterState>,
    /// The LUNs that the nexus sees, each with the index of its unit, and whether the nexus has used it.
    luns: Vec<(u16, u32, bool)>,
}

/// A unit with its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UnitWithName {
    /// The NAA identifier, in hexadecimal digits.
    naa: String,
    state: UnitState,
}

impl TargetState {
    /// Returns the NAA identifiers of the units, in hexadecimal digits.
    pub fn units(&self) -> impl Iterator<Item = &str> {
        self.units.iter().map(|unit| unit.naa.as_str())
    }
}

/// What keeps a target from being handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetBusy {
    /// A unit.
    Unit {
        /// Its number.
        unit: UnitId,
        /// What keeps it.
        why: UnitBusy,
    },
    /// Operations of a unit that was removed are under way.
    Removal,
    /// A task management function is under way.
    Tmf,
    /// State waits to be stored.
    Save,
    /// An event waits for the owner of a library.
    Library,
}

impl TargetBusy {
    /// Returns whether the target can become idle by itself. If not, waiting does not help.
    pub const fn can_end(&self) -> bool {
        match self {
            Self::Unit { why, .. } => why.can_end(),
            Self::Removal | Self::Tmf | Self::Save | Self::Library => true,
        }
    }
}

impl fmt::Display for TargetBusy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unit { why, .. } => why.fmt(f),
            Self::Removal => f.write_str("operations of a unit that was removed are under way"),
            Self::Tmf => f.write_str("a task management function is under way"),
            Self::Save => f.write_str("the state of a unit waits to be stored"),
            Self::Library => f.write_str("an event waits for the owner of a library"),
        }
    }
}

impl core::error::Error for TargetBusy {}

/// Why the state of a target cannot be restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreError {
    /// The state names a unit twice.
    UnitTwice(String),
    /// The state names a unit that does not exist.
    NoUnit(String),
    /// The state of a unit cannot be restored.
    Unit {
        /// The NAA identifier of the unit.
        naa: String,
        /// The reason.
        why: UnitRestoreError,
    },
    /// The state has other nexuses than the sessions that were resumed.
    Nexuses,
    /// The state has a LUN of a unit that it does not have.
    Lun,
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnitTwice(naa) => write!(f, "the state names the unit naa.{naa} twice"),
            Self::NoUnit(naa) => write!(f, "there is no unit naa.{naa} in the configuration now"),
            Self::Unit { naa, why } => write!(f, "unit naa.{naa}: {why}"),
            Self::Nexuses => f.write_str("the state has other sessions than were resumed"),
            Self::Lun => f.write_str("the state has a LUN that leads to no unit"),
        }
    }
}

impl core::error::Error for RestoreError {}

impl Target {
    /// Returns what keeps the target from being handed over: a unit that is not idle, or other work. A reason
    /// that cannot end comes first.
    pub fn busy(&self) -> Option<TargetBusy> {
        // Every field is named here, so that a new one is not forgotten.
        let Self {
            units,
            nexuses: _,
            bindings: _,
            idle_limiters: _,
            owners: _,
            pending_tmfs,
            saves,
            slow_limit: _,
            slow: _,
            library_events,
            data_of_commands: _,
        } = self;
        let busy_units =
            units.iter().filter_map(|(unit, lu)| Some(TargetBusy::Unit { unit, why: lu.busy()? }));
        let unit = busy_units.min_by_key(TargetBusy::can_end);
        unit.or_else(|| units.has_retiring().then_some(TargetBusy::Removal))
            .or_else(|| (!pending_tmfs.is_empty()).then_some(TargetBusy::Tmf))
            .or_else(|| (!saves.is_empty()).then_some(TargetBusy::Save))
            .or_else(|| (!library_events.is_empty()).then_some(TargetBusy::Library))
    }

    /// Returns the NAA identifier of a unit, in hexadecimal digits.
    pub fn naa(&self, unit: UnitId) -> Option<String> {
        self.units.get(unit).map(naa_of)
    }

    /// Returns the state of the target. A nexus that is not in `nexuses` counts as lost.
    ///
    /// # Errors
    /// What keeps the target from being handed over.
    pub fn export(&self, now: Instant, nexuses: &[NexusId]) -> Result<TargetState, TargetBusy> {
        if let Some(why) = self.busy() {
            return Err(why);
        }
        let indices: BTreeMap<NexusId, u32> = nexuses.iter().copied().zip(0..).collect();
        let index_of = |id| indices.get(&id).copied();
        let units = self.units.iter().map(|(unit, lu)| {
            let state = lu.export(now, index_of).map_err(|why| TargetBusy::Unit { unit, why })?;
            Ok(UnitWithName { naa: naa_of(lu), state })
        });
        let units = units.collect::<Result<_, _>>()?;
        let indices: BTreeMap<UnitId, u32> = self.units.iter().map(|(unit, _)| unit).zip(0..).collect();
        let nexus = |entry: &NexusEntry| NexusState {
            limit: entry.limiter.as_ref().map(|limiter| limiter.borrow().export(now)),
            luns: entry
                .seen_and_used()
                .filter_map(|(lun, unit, is_used)| Some((lun, *indices.get(&unit)?, is_used)))
                .collect(),
        };
        let nexuses = nexuses.iter().filter_map(|id| self.nexuses.get(*id)).map(nexus).collect();
        Ok(TargetState { nexuses, units })
    }

    /// Restores the state of nexuses and units, after every session was resumed: `nexuses` are those of the
    /// export, in the same order. Units that the state does not name stay as they are.
    ///
    /// # Errors
    /// Why the state cannot be restored. A part of it may be restored then, so that the target is of no more
    /// use.
    pub fn restore(
        &mut self,
        now: Instant,
        state: &TargetState,
        nexuses: &[NexusId],
    ) -> Result<(), RestoreError> {
        if state.nexuses.len() != nexuses.len() {
            return Err(RestoreError::Nexuses);
        }
        let units = self.units_of(state)?;
        for (id, nexus) in nexuses.iter().zip(&state.nexuses) {
            self.restore_nexus(now, *id, nexus, &units)?;
        }
        let nexus_of = |index| nexuses.get(usize::try_from(index).ok()?).copied();
        for (id, UnitWithName { naa, state }) in units.iter().zip(&state.units) {
            let unit = self.units.mark_dirty(*id).ok_or_else(|| RestoreError::NoUnit(naa.clone()))?;
            let restored = unit.restore(now, state, nexus_of);
            restored.map_err(|why| RestoreError::Unit { naa: naa.clone(), why })?;
        }
        for (id, nexus) in nexuses.iter().zip(&state.nexuses) {
            self.report_changed_luns(*id, nexus, &units);
        }
        Ok(())
    }

    /// Restores the limit of a nexus, and which disks it has used. Nexuses of one initiator share a limit, so
    /// that they have the same state of it.
    fn restore_nexus(
        &mut self,
        now: Instant,
        id: NexusId,
        state: &NexusState,
        units: &[UnitId],
    ) -> Result<(), RestoreError> {
        let NexusState { limit, luns } = state;
        let entry = self.nexuses.get(id).ok_or(RestoreError::Nexuses)?;
        if let (Some(limiter), Some(limit)) = (&entry.limiter, limit) {
            limiter.borrow_mut().adopt(now, limit);
        }
        for (lun, unit, is_used) in luns {
            let unit = usize::try_from(*unit).ok().and_then(|at| units.get(at)).ok_or(RestoreError::Lun)?;
            if let Some(disk) = self.units.disk_of(*unit).filter(|_| *is_used) {
                self.bindings.rebind(&entry.name, entry.target_port(), *lun, disk);
            }
        }
        let map = entry.entries();
        self.remap(now, id, map);
        Ok(())
    }

    /// Establishes unit attentions for a nexus whose LUNs have changed between both processes.
    fn report_changed_luns(&mut self, id: NexusId, state: &NexusState, units: &[UnitId]) {
        let Some(entry) = self.nexuses.get(id) else { return };
        let unit = |at: u32| usize::try_from(at).ok().and_then(|at| units.get(at).copied());
        let before = state.luns.iter().map(|(lun, at, _)| (*lun, unit(*at)));
        let after = entry.seen_and_used().map(|(lun, unit, _)| (lun, Some(unit)));
        if before.eq(after) {
            return;
        }
        for unit in entry.units() {
            if let Some(unit) = self.units.mark_dirty(unit) {
                unit.luns_changed(id);
            }
        }
    }

    /// Returns the number of each unit of a state.
    fn units_of(&self, state: &TargetState) -> Result<Vec<UnitId>, RestoreError> {
        let (units, mut seen) = (self.units_by_name(), BTreeSet::new());
        let number = |UnitWithName { naa, .. }: &UnitWithName| match units.get(naa) {
            Some(id) if seen.insert(*id) => Ok(*id),
            Some(_) => Err(RestoreError::UnitTwice(naa.clone())),
            None => Err(RestoreError::NoUnit(naa.clone())),
        };
        state.units.iter().map(number).collect()
    }

    /// Returns the units by their NAA identifiers.
    fn units_by_name(&self) -> BTreeMap<String, UnitId> {
        self.units.iter().map(|(id, unit)| (naa_of(unit), id)).collect()
    }
}

/// Returns the NAA identifier of a unit in hexadecimal digits.
fn naa_of(unit: &LogicalUnit) -> String {
    let digit = |value: u8| char::from_digit(value.into(), 16).unwrap_or('0');
    unit.config().identity.naa.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect()
}
