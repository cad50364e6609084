//! The state of a logical unit that a live upgrade hands over from one process to the next.
//!
//! The next process makes the unit from the same configuration, the same saved state and the same medium, and
//! establishes the nexuses of the sessions that it resumes. Then [`LogicalUnit::restore`] makes the unit what
//! it was: an initiator notices nothing. It receives no unit attention for the hand-over, and those that were
//! pending are still pending, in their order.
//!
//! A unit is handed over while it is idle. [`LogicalUnit::busy`] tells what keeps it from that.
//!
//! The next process can make its units while the old one still serves them: a new unit does nothing on its
//! medium before its first command or timeout. A tape drive is the exception: it loads its cartridge at once
//! and repairs it. [`LogicalUnit::new_to_restore`] makes one that does not. It never loads the cartridge that
//! it takes over: the position and what is known of the log move.
//!
//! # What becomes of each part of the state
//!
//! | state | decision |
//! |---|---|
//! | tasks, task management functions, dormant and delayed tasks, calls of other units | the unit is busy |
//! | background copies and self-tests, running SANITIZE and FORMAT UNIT | the unit is busy |
//! | operations of the medium, abandoned ones too; saves of state; undelivered events | the unit is busy |
//! | a removal or drain that has not ended, a withheld medium, a motion of a changer | the unit is busy |
//! | a cartridge that is being loaded or given up, or that has unsynchronized records | the unit is busy |
//! | a cartridge that has lost writes | the unit is busy, and waiting does not help |
//! | ACA | never established (NormACA is refused) |
//! | persistent reservations with and without APTPL, generation | moves; replaces what was loaded |
//! | identifying information, saved mode settings, failure of SANITIZE or FORMAT UNIT | moves; is durable too |
//! | whether hosts count on a flush although the write cache is disabled | moves, apart from the setting |
//! | mode settings in force, SPC-2 reservation, timestamp, ORWRITE generations | moves |
//! | unit attentions, media events, TapeAlert flags and settings of each nexus; unit attentions of lost nexuses | moves |
//! | prevention of medium removal, stopped unit, ejected medium, tray | moves |
//! | data and echo buffers, self-test results, results of copies, ROD tokens | moves |
//! | counters, log counters and their last reset, latencies, idle time, uptime | moves |
//! | a failed flush, out of space, reached threshold of the storage, ended drain of the operator | moves |
//! | what limits have saved up | moves; the limits are in the configuration |
//! | the record of a writable disc, also what is not saved of it | moves; the sectors are in the medium |
//! | loaded cartridge: label with its changes, ends of partitions, position; unloaded, empty or unusable drive | moves; the log is in the medium |
//! | deferred errors, lost positions, ALLOW OVERWRITE, counters of a tape drive | moves |
//! | keys and parameters of tape encryption, with their counters | moves; [`UnitState`] holds keys then |
//! | what was read of a cartridge ahead | is read again |
//! | what is known of the device of a pass-through | moves; the device itself is not reset |
//! | roles in the persistent reservation, capabilities of the medium, tables of commands | derived |
//! | library and drives of a changer | its owner passes them in again |
//! | cartridges of a changer that cannot be used | moves |
//! | TST, read-only access, identity | configuration |
//! | secrets from which tokens and nonces are made | made anew from the entropy of [`LogicalUnit::seed`] |
//! | slow commands that were not reported, numbers of tickets and calls | are dropped; no initiator sees them |
//!
//! Where capacity, write cache, write protection or the rules for tasks have changed between both processes,
//! nexuses receive the unit attentions that a changed configuration of a running unit would have established.
//! Other INQUIRY data, which come from another release, are not reported.
//!
//! [`LogicalUnit::restore`]: crate::unit::LogicalUnit::restore
//! [`LogicalUnit::busy`]: crate::unit::LogicalUnit::busy
//! [`LogicalUnit::seed`]: crate::unit::LogicalUnit::seed
//! [`LogicalUnit::new_to_restore`]: crate::unit::LogicalUnit::new_to_restore

pub(crate) mod counters;
#[cfg(test)]
mod tests;

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::copy_manager::operations::handover::OperationState;
use crate::copy_manager::tokens::handover::TokensState;
use crate::data_buffer::DataBuffersState;
use crate::document::hex::HexBytes;
use crate::identifying_info::IdentifyingState;
use crate::medium_removal::RemovalState;
use crate::nexus::handover::NexusesState;
use crate::orw_generation::OrwState;
use crate::passed_device::PassedState;
use crate::pr::handover::ReservationsState;
use crate::rate_limit::handover::LimiterState;
use crate::recorder::RecorderState;
use crate::sanitizer::SanitizeFailureState;
use crate::settings::handover::SettingsState;
use crate::space_threshold::KnownThreshold;
use crate::tape_drive::handover::TapeDriveState;
use counters::{ErrorsState, StatisticsState, StatsState};

pub use crate::document::RestoreError;

/// Everything that a logical unit keeps beyond its saved state and its medium. Times are relative to the
/// export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnitState {
    pub(crate) server: ServerState,
    /// What the limit of the unit has saved up; `None` if neither the unit nor a nexus had a limit.
    pub(crate) limit: Option<LimiterState>,
}

/// The state of the device server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServerState {
    pub(crate) reported: ReportedState,
    pub(crate) nexuses: NexusesState,
    pub(crate) settings: SettingsState,
    /// Whether changes have to be flushed that were acknowledged under a write cache, although the setting
    /// is off. While it is on, the next process assumes that there are some.
    pub(crate) owes_flush: bool,
    pub(crate) spc: SpcSection,
    pub(crate) orw_generations: OrwState,
    pub(crate) copies: Vec<OperationState>,
    pub(crate) tokens: TokensState,
    pub(crate) stats: StatsState,
    pub(crate) errors: ErrorsState,
    pub(crate) idle_ns: u64,
    pub(crate) flush_failed: bool,
    pub(crate) full_at: Option<u64>,
    pub(crate) space_threshold: Option<KnownThreshold>,
    pub(crate) drain: Option<DrainState>,
    pub(crate) recorder: Option<RecorderState>,
    pub(crate) pass_through: Option<PassedState>,
    pub(crate) tape: Option<TapeDriveState>,
    /// The names of the cartridges of a changer that cannot be used.
    pub(crate) unusable_cartridges: Vec<String>,
}

/// What initiators know of the configuration and of the medium, to find out whether it has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReportedState {
    /// PERIPHERAL DEVICE TYPE.
    pub(crate) device_type: u8,
    pub(crate) is_pass_through: bool,
    pub(crate) block_len: u32,
    /// The capacity in blocks.
    pub(crate) capacity: u64,
    pub(crate) write_cache: bool,
    pub(crate) read_only: bool,
    pub(crate) nexus_task_sets: bool,
    pub(crate) task_aborted_status: bool,
}

/// The state of the commands that every device type has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SpcSection {
    pub(crate) reservations: ReservationsState,
    pub(crate) spc2_holder: Option<u32>,
    pub(crate) removal: RemovalState,
    pub(crate) identifying: IdentifyingState,
    pub(crate) data_buffers: DataBuffersState,
    pub(crate) self_tests: Vec<HexBytes>,
    /// The value of the clock in milliseconds, and its origin.
    pub(crate) timestamp: (u64, u8),
    pub(crate) saved_settings: Option<SettingsState>,
    /// The failure of the last SANITIZE or FORMAT UNIT.
    pub(crate) sanitize_failure: Option<SanitizeFailureState>,
    pub(crate) uptime_ns: u64,
    pub(crate) counted_before: StatisticsState,
}

/// A drain of the operator that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DrainState {
    pub(crate) flush_failed: bool,
}

/// What keeps a logical unit from being handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitBusy {
    /// Commands are under way.
    Commands,
    /// A copy or a self-test goes on although its command was answered.
    Background,
    /// A task management function is under way.
    Tmf,
    /// Operations of the medium are under way.
    Medium,
    /// State is being stored.
    Saving,
    /// SANITIZE or FORMAT UNIT is running.
    Sanitizing,
    /// The operator drains the unit, and that has not ended.
    Draining,
    /// The unit is being removed.
    Retiring,
    /// Its medium is withheld until the operator confirms that it is the right one.
    Withheld,
    /// Events wait to be polled.
    Events,
    /// The changer moves a cartridge.
    Motion,
    /// What hosts wrote to a cartridge is not durable yet ([`LogicalUnit::prepare_handover`]).
    ///
    /// [`LogicalUnit::prepare_handover`]: crate::unit::LogicalUnit::prepare_handover
    Unsynchronized,
    /// What hosts wrote to a cartridge is lost, and only this unit reports that to them.
    LostWrites,
}

impl UnitBusy {
    /// Returns whether the unit can become idle by itself. If not, waiting does not help.
    pub const fn can_end(self) -> bool {
        !matches!(self, Self::Withheld | Self::LostWrites)
    }
}

impl fmt::Display for UnitBusy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Commands => "commands are under way",
            Self::Background => "a copy or a self-test goes on in the background",
            Self::Tmf => "a task management function is under way",
            Self::Medium => "operations of the medium are under way",
            Self::Saving => "its state is being stored",
            Self::Sanitizing => "SANITIZE or FORMAT UNIT is running",
            Self::Draining => "the drain of the unit has not ended",
            Self::Retiring => "the unit is being removed",
            Self::Withheld => "its medium is withheld until the operator confirms that it is the right one",
            Self::Events => "events wait to be delivered",
            Self::Motion => "the medium changer moves a cartridge",
            Self::Unsynchronized => "what hosts wrote to the cartridge is not durable yet",
            Self::LostWrites => {
                "writes to the cartridge were lost, and only this process reports that to its hosts"
            }
        })
    }
}

impl core::error::Error for UnitBusy {}
