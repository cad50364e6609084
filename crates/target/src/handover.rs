//! I_T nexuses and logical units that a live upgrade hands over from one process to the next.
//!
//! The owner of the new target adds its units, lets the transports resume the sessions, which establishes the
//! nexuses, and calls [`Target::restore_nexuses`], and then [`Target::restore_units`]. A unit is
//! named by its NAA identifier, a nexus by its position in the list of nexuses that are handed over.
//!
//! | state | decision |
//! |---|---|
//! | units | move, see [`device::handover`] |
//! | LUN maps, access, slow limit | configuration |
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

use crate::target::Target;
use crate::units::UnitId;

/// What a target keeps for an I_T nexus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NexusState {
    /// What the limit of the initiator has saved up, if the initiator has or had one.
    limit: Option<LimiterState>,
    /// The NAA identifier of the unit that the nexus has used under each LUN, in hexadecimal digits.
    used_luns: Vec<(u16, String)>,
}

/// A unit with its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedUnit {
    /// The NAA identifier, in hexadecimal digits.
    naa: String,
    state: UnitState,
}

impl NamedUnit {
    /// Returns the NAA identifier of the unit, in hexadecimal digits.
    pub fn naa(&self) -> &str {
        &self.naa
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
    /// The state names a nexus that was not resumed.
    NoNexus,
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnitTwice(naa) => write!(f, "the state names the unit naa.{naa} twice"),
            Self::NoUnit(naa) => write!(f, "there is no unit naa.{naa} in the configuration now"),
            Self::Unit { naa, why } => write!(f, "unit naa.{naa}: {why}"),
            Self::NoNexus => f.write_str("the state names a session that was not resumed"),
        }
    }
}

impl core::error::Error for RestoreError {}

impl Target {
    /// Returns what keeps the target from being handed over: the first unit that is not idle, or other work.
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
        let unit = units.iter().find_map(|(unit, lu)| Some(TargetBusy::Unit { unit, why: lu.busy()? }));
        unit.or_else(|| units.has_retiring().then_some(TargetBusy::Removal))
            .or_else(|| (!pending_tmfs.is_empty()).then_some(TargetBusy::Tmf))
            .or_else(|| (!saves.is_empty()).then_some(TargetBusy::Save))
            .or_else(|| (!library_events.is_empty()).then_some(TargetBusy::Library))
    }

    /// Returns the NAA identifier of a unit, in hexadecimal digits.
    pub fn naa(&self, unit: UnitId) -> Option<String> {
        self.units.get(unit).map(naa_of)
    }

    /// Returns what the target keeps for an I_T nexus; `None` if there is no such nexus.
    pub fn export_nexus(&self, now: Instant, id: NexusId) -> Option<NexusState> {
        let entry = self.nexuses.get(id)?;
        let used = |(lun, unit): (u16, UnitId)| Some((lun, naa_of(self.units.get(unit)?)));
        Some(NexusState {
            limit: entry.limiter.as_ref().map(|limiter| limiter.borrow().export(now)),
            used_luns: entry.used().filter_map(used).collect(),
        })
    }

    /// Restores what the target keeps for I_T nexuses whose sessions were resumed. Nexuses of one initiator
    /// share a limit, so that they have the same state of it.
    ///
    /// # Errors
    /// [`RestoreError::NoNexus`].
    pub fn restore_nexuses<'a>(
        &mut self,
        now: Instant,
        states: impl IntoIterator<Item = (NexusId, &'a NexusState)>,
    ) -> Result<(), RestoreError> {
        let units = self.units_by_name();
        for (id, NexusState { limit, used_luns }) in states {
            let entry = self.nexuses.get(id).ok_or(RestoreError::NoNexus)?;
            if let (Some(limiter), Some(limit)) = (&entry.limiter, limit) {
                limiter.borrow_mut().adopt(now, limit);
            }
            for (lun, naa) in used_luns {
                if let Some(disk) = units.get(naa).and_then(|unit| self.units.disk_of(*unit)) {
                    self.bindings.bind(&entry.name, *lun, disk);
                }
            }
            let map = entry.entries();
            self.remap(now, id, map);
        }
        Ok(())
    }

    /// Returns the state of every unit. A nexus is named by its position in `nexuses`; others count as lost.
    ///
    /// # Errors
    /// What keeps the target from being handed over.
    pub fn export_units(&self, now: Instant, nexuses: &[NexusId]) -> Result<Vec<NamedUnit>, TargetBusy> {
        if let Some(why) = self.busy() {
            return Err(why);
        }
        let indices: BTreeMap<NexusId, u32> = nexuses.iter().copied().zip(0..).collect();
        let index_of = |id| indices.get(&id).copied();
        let export = |(unit, lu): (UnitId, &LogicalUnit)| {
            let state = lu.export(now, index_of).map_err(|why| TargetBusy::Unit { unit, why })?;
            Ok(NamedUnit { naa: naa_of(lu), state })
        };
        self.units.iter().map(export).collect()
    }

    /// Restores the state of units, after every session was resumed. A nexus is named by its position in
    /// `nexuses`. Units without a state stay as they are.
    ///
    /// # Errors
    /// The first state that cannot be restored. The states before it are restored, so that the target is of
    /// no more use then.
    pub fn restore_units(
        &mut self,
        now: Instant,
        states: &[NamedUnit],
        nexuses: &[NexusId],
    ) -> Result<(), RestoreError> {
        let nexus_of = |index| nexuses.get(usize::try_from(index).ok()?).copied();
        let (units, mut seen) = (self.units_by_name(), BTreeSet::new());
        for NamedUnit { naa, state } in states {
            if !seen.insert(naa) {
                return Err(RestoreError::UnitTwice(naa.clone()));
            }
            let unit = units.get(naa).and_then(|id| self.units.mark_dirty(*id));
            let unit = unit.ok_or_else(|| RestoreError::NoUnit(naa.clone()))?;
            let restored = unit.restore(now, state, nexus_of);
            restored.map_err(|why| RestoreError::Unit { naa: naa.clone(), why })?;
        }
        Ok(())
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
