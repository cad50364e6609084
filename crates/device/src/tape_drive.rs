//! The state of a tape drive: the cartridge in it, the operations on the files of the cartridge, and the
//! turns of commands. `ssc::drive` works with it.

mod alerts;
mod deferred;
pub(crate) mod encrypted_record;
pub(crate) mod encryption;
pub(crate) mod encryption_key;
pub(crate) mod handover;
mod turn_queue;

use alloc::collections::{BTreeMap, BTreeSet};

use cartridge::Cartridge;
use cartridge::command::Outcome;
use cartridge::error::Error;
use scsi::sense::{Asc, Sense, SenseKey, SenseKeySpecific};
use store::api::OpId;

use crate::contract::NexusId;
use crate::task::TaskId;

pub(crate) use alerts::{Alert, TapeAlerts};
pub(crate) use deferred::DeferredErrors;
use encryption::TapeEncryption;
pub(crate) use turn_queue::TurnQueue;

/// A tape drive.
#[derive(Debug)]
pub(crate) struct TapeDrive {
    pub(crate) cartridge: Cartridge,
    pub(crate) state: DriveState,
    /// The command that the cartridge carries out now.
    pub(crate) running: Option<Running>,
    /// The task that uses the drive.
    pub(crate) turn: Option<TaskId>,
    /// Whether a cartridge was loaded while that task waited for its turn or its data, so that it must not
    /// use this one.
    pub(crate) is_turn_outdated: bool,
    /// Whether the command of that task has ended by itself, and was not aborted.
    pub(crate) is_turn_over: bool,
    /// Whether a command was aborted that may have left blocks in memory.
    pub(crate) is_write_aborted: bool,
    /// The nexuses that know of writes that were lost.
    pub(crate) loss_heard: BTreeSet<NexusId>,
    /// The tasks that wait for their turn.
    pub(crate) waiting: TurnQueue,
    /// The outcome that the task that uses the drive has not taken yet.
    pub(crate) outcome: Option<Result<Outcome, Error>>,
    /// The tasks whose command was answered before it ran (IMMED), with its nexus.
    pub(crate) immediate: BTreeMap<TaskId, NexusId>,
    /// The errors of such commands.
    pub(crate) deferred: DeferredErrors,
    /// The nexuses that do not know the position.
    pub(crate) lost_positions: BTreeSet<NexusId>,
    /// The tasks that move to a position which such a nexus will know, if they end with GOOD.
    pub(crate) repositioning: BTreeMap<TaskId, NexusId>,
    /// The operations under way, by tag.
    pub(crate) operations: BTreeMap<u32, OpId>,
    pub(crate) tag_next: u32,
    /// Whether a record was read, so that the next one is worth checking while no task uses the drive.
    pub(crate) is_reading: bool,
    /// Whether records were acknowledged that may not be durable.
    pub(crate) is_unsynced: bool,
    /// Whether they were lost when the unit was removed.
    pub(crate) is_close_failed: bool,
    /// Whether to make them durable when no task uses the drive.
    pub(crate) sync_wanted: bool,
    /// Whether the cartridge is given up when no task uses the drive.
    pub(crate) is_ejecting: bool,
    /// Why it cannot be given up.
    pub(crate) eject_failure: Option<Sense>,
    /// Whether the cartridge was put in and no host has been told.
    pub(crate) is_new: bool,
    /// How often a cartridge was unloaded.
    pub(crate) demounts: u32,
    pub(crate) counts: TransferCounts,
    pub(crate) encryption: TapeEncryption,
    /// What may be overwritten in append-only mode.
    pub(crate) overwrite: Overwrite,
}

/// What ALLOW OVERWRITE has allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Overwrite {
    #[default]
    Disabled,
    /// What is behind this position, where the drive is.
    AtPosition { partition: u8, object: u64 },
    /// Everything, by FORMAT MEDIUM.
    Format,
}

/// Bytes of blocks since the unit was created, or since the log counters were reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TransferCounts {
    /// What hosts wrote.
    pub(crate) written: u64,
    /// What that was on the medium: compressed, or with what encryption adds.
    pub(crate) written_to_medium: u64,
    /// What was read from the medium for READ.
    pub(crate) read_from_medium: u64,
    /// What hosts read.
    pub(crate) read: u64,
}

/// Whether the cartridge can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriveState {
    Loading,
    Loaded,
    Unloaded,
    /// There is no cartridge.
    Empty,
    /// The cartridge cannot be loaded.
    Unusable(Sense),
}

/// A command of the cartridge, as far as the drive must know it when it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Running {
    /// It is loaded, by this host or when the unit was created.
    Load(Option<NexusId>),
    Unload,
    /// It is unloaded because it is given up.
    Eject,
    Write,
    Synchronize,
    Other,
}

impl TapeDrive {
    pub(crate) fn new() -> Self {
        Self {
            cartridge: Cartridge::new(),
            state: DriveState::Unloaded,
            running: None,
            turn: None,
            is_turn_outdated: false,
            is_turn_over: false,
            is_write_aborted: false,
            loss_heard: BTreeSet::new(),
            waiting: TurnQueue::default(),
            outcome: None,
            immediate: BTreeMap::new(),
            deferred: DeferredErrors::default(),
            lost_positions: BTreeSet::new(),
            repositioning: BTreeMap::new(),
            operations: BTreeMap::new(),
            tag_next: 0,
            is_reading: false,
            is_unsynced: false,
            is_close_failed: false,
            sync_wanted: false,
            is_ejecting: false,
            eject_failure: None,
            is_new: false,
            demounts: 0,
            counts: TransferCounts::default(),
            encryption: TapeEncryption::new(),
            overwrite: Overwrite::Disabled,
        }
    }

    /// Returns the cartridge.
    pub(crate) const fn cartridge(&self) -> &Cartridge {
        &self.cartridge
    }

    /// Returns the cartridge for changes that need no file.
    pub(crate) const fn cartridge_mut(&mut self) -> &mut Cartridge {
        &mut self.cartridge
    }

    /// Returns whether a cartridge is loaded.
    pub(crate) fn is_loaded(&self) -> bool {
        self.state == DriveState::Loaded
    }

    /// Returns whether records were acknowledged that may not be durable.
    pub(crate) const fn is_unsynced(&self) -> bool {
        self.is_unsynced
    }

    /// Returns whether records that were acknowledged are lost, and no host was told.
    pub(crate) const fn has_untold_loss(&self) -> bool {
        self.is_close_failed || self.deferred.is_unload_untold()
    }

    /// Records the end of a task. If its command was answered before it ran, its host is told later how it
    /// failed. What makes a cartridge not ready is told to every command anyway.
    pub(crate) fn immediate_ended(&mut self, task: TaskId, failure: Option<Sense>) {
        if let (Some(nexus), Some(sense)) = (self.immediate.remove(&task), failure)
            && self.not_ready().is_none()
        {
            self.deferred.record(nexus, sense);
        }
    }

    /// Records that a command that was answered does not run.
    pub(crate) fn immediate_aborted(&mut self, nexus: NexusId) {
        self.deferred.record(nexus, deferred::ABORTED);
    }

    /// Records that a nexus knows the position, also if a movement of its that has not ended fails.
    pub(crate) fn position_is_known(&mut self, nexus: NexusId) {
        self.lost_positions.remove(&nexus);
        self.repositioning.retain(|_, host| *host != nexus);
    }

    /// Returns whether the cartridge refuses to be written.
    pub(crate) fn is_write_protected(&self) -> bool {
        self.cartridge.label().is_some_and(|label| label.is_write_protected)
    }

    pub(crate) fn not_ready(&self) -> Option<Sense> {
        match self.state {
            DriveState::Loaded => None,
            DriveState::Loading => Some(match self.load_progress() {
                Some(progress) => {
                    Sense { specific: Some(SenseKeySpecific::Progress(progress)), ..BECOMING_READY }
                }
                None => BECOMING_READY,
            }),
            DriveState::Unloaded | DriveState::Empty => Some(NOT_PRESENT),
            DriveState::Unusable(sense) => Some(sense),
        }
    }

    /// Returns how much of the cartridge's capacity is checked, in 65,536ths, if a cartridge is being loaded
    /// that was not unloaded.
    fn load_progress(&self) -> Option<u16> {
        let (checked, total) = self.cartridge.load_progress().filter(|(_, total)| *total > 0)?;
        let progress = u128::from(checked) * 65_536 / u128::from(total);
        Some(u16::try_from(progress).unwrap_or(u16::MAX))
    }

    pub(crate) const fn is_free(&self) -> bool {
        self.turn.is_none() && self.running.is_none()
    }
}

/// The sense data of a command that needs the cartridge while it is loaded, or is not there.
const BECOMING_READY: Sense = Sense::new(SenseKey::NOT_READY, Asc::NOT_READY_BECOMING_READY);
pub(crate) const NOT_PRESENT: Sense = Sense::new(SenseKey::NOT_READY, Asc::MEDIUM_NOT_PRESENT);
