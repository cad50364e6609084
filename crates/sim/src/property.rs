//! The properties that a world checks. Every failure names the property that it breaks. A planted bug must be
//! found by a property that it breaks.

use std::fmt;

use crate::planted_bug::PlantedBug;
use oracle::history::Violation;

/// A property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property {
    /// Acknowledged writes are read back.
    Kept,
    /// A block holds one whole write.
    Whole,
    /// A block is at the address that it was written to.
    Place,
    /// A refused command changes nothing.
    RefusedChangesNothing,
    /// One command writes no block to the medium twice.
    Once,
    /// A comparison reports correctly what the blocks held.
    Compared,
    /// MISCOMPARE reports the first byte that differs.
    MiscompareOffset,
    /// A command that ends with MISCOMPARE has written nothing.
    MiscompareWritesNothing,
    /// COMPARE AND WRITE is one operation.
    Atomic,
    /// ORDERED and HEAD OF QUEUE tasks keep their order.
    TaskOrder,
    /// A command that a reservation stops ends with RESERVATION CONFLICT and changes nothing.
    ReservationStops,
    /// A command that no reservation stops does not end with RESERVATION CONFLICT.
    ReservationAdmits,
    /// PERSISTENT RESERVE IN and OUT report registrations and the reservation as they are.
    ReservationTold,
    /// No write of a preempted I_T nexus reaches the medium after the PREEMPT AND ABORT that preempted it was
    /// answered.
    Fenced,
    /// Every CHECK CONDITION has a cause that the world knows.
    Caused,
    /// An I_T nexus is told of every reset, that it is new, and of changes of reservations that concern it.
    Told,
    /// Every command and every management request ends, once and in time.
    Ends,
    /// A session keeps the promises that it makes to its owner (its initiator).
    Session,
    /// No PDU or frame on the wire breaks a rule of the protocol.
    Wire,
    /// When all initiators have logged out, no task, session or memory is left.
    NothingLeft,
    /// No state machine is in an impossible state, and time advances.
    Sane,
    /// A host that has opened a disk under a LUN finds this disk there, or none, until it has logged out.
    Opened,
    /// A host that opens a LUN finds the disk that the configuration assigns to it.
    Configured,
    /// Every command to a LUN that is removed ends.
    Answered,
    /// Every task management function is answered, whether or not its LUN exists.
    Managed,
    /// A reload disturbs nothing that it does not change.
    Undisturbed,
    /// The target frees the memory that it took for commands.
    MemoryFreed,
    /// The oracle finds each block that a medium corrupted, and names the corruption correctly.
    HarmNamed,
    /// The oracle reports no block that its medium did not corrupt.
    NoFalseAlarm,
    /// A WRITE AND VERIFY that compares data detects that the medium did not keep them.
    Verified,
    /// Cartridges hold the records and filemarks that were written, and positions are where commands moved
    /// them.
    Records,
    /// Each cartridge is in one element, where commands moved it.
    Elements,
    /// Mode parameters are as they were set.
    Modes,
}

impl Property {
    /// Returns the description of the property, which is part of a failure message.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kept => "acknowledged writes are kept",
            Self::Whole => "blocks are whole",
            Self::Place => "blocks stand where they were written to",
            Self::RefusedChangesNothing => "what is refused changes nothing",
            Self::Once => "a command writes a block once",
            Self::Compared => "comparisons tell what the blocks held",
            Self::MiscompareOffset => "MISCOMPARE tells the first byte that differs",
            Self::MiscompareWritesNothing => "MISCOMPARE writes nothing",
            Self::Atomic => "COMPARE AND WRITE is atomic",
            Self::TaskOrder => "tasks keep the order of their attributes",
            Self::ReservationStops => "reservations stop whom they exclude",
            Self::ReservationAdmits => "reservations stop nobody else",
            Self::ReservationTold => "reservations are as they are told",
            Self::Fenced => "the victims of PREEMPT AND ABORT write nothing after its answer",
            Self::Caused => "every error has a cause",
            Self::Told => "resets and changes of reservations are told",
            Self::Ends => "commands end, once and in time",
            Self::Session => "sessions keep their promises",
            Self::Wire => "the wire carries nothing forbidden",
            Self::NothingLeft => "nothing is left",
            Self::Sane => "no state machine is in an impossible state",
            Self::Opened => "a LUN leads an I_T nexus to no other disk than the one that it has opened",
            Self::Configured => "a LUN that is opened leads to the disk that is configured",
            Self::Answered => "every command of a LUN that is taken away ends",
            Self::Managed => "every task management function is answered",
            Self::Undisturbed => "a reload disturbs nothing that it does not change",
            Self::MemoryFreed => "no memory is held when no command is under way",
            Self::HarmNamed => "the oracle names every block that a medium harmed",
            Self::NoFalseAlarm => "the oracle blames no block that no medium harmed",
            Self::Verified => "WRITE AND VERIFY notices what the medium did not keep",
            Self::Records => "cartridges hold what was written, and positions are where they were moved",
            Self::Elements => "each cartridge is in one element, where it was moved",
            Self::Modes => "mode parameters are as they were set",
        }
    }

    /// Returns the properties that a planted bug breaks. The bug counts as found when one of them is broken.
    /// An empty list stands for any property: the consequences of a damaged header cannot be predicted.
    pub const fn broken_by(bug: PlantedBug) -> &'static [Self] {
        match bug {
            PlantedBug::Iscsi(bug) => Self::broken_by_iscsi(bug),
            PlantedBug::HyperScsi(bug) => Self::broken_by_hyperscsi(bug),
            PlantedBug::Unit(bug) => Self::broken_by_unit(bug),
            PlantedBug::Target(target::fault_injection::Bug::RemapReachesOther) => &[Self::Opened],
            PlantedBug::Cartridge(_) => &[Self::Records],
            PlantedBug::Oracle(oracle::fault_injection::Bug::BelieveAddress) => &[Self::HarmNamed],
        }
    }

    const fn broken_by_iscsi(bug: iscsi::fault_injection::Bug) -> &'static [Self] {
        use iscsi::fault_injection::Bug;
        match bug {
            Bug::SkipDataDigest | Bug::LandOverCounted => &[Self::Whole],
            // A record that is written twice moves all behind it.
            Bug::ReplayWrites => &[Self::Once, Self::Records],
            // The target refuses the second execution as a task that exists already, before it writes
            // anything.
            Bug::ExecuteTwice => &[Self::Session, Self::Once],
            Bug::ForgetReassign => &[Self::Ends],
            Bug::KeepMemory => &[Self::MemoryFreed],
            Bug::SkipHeaderDigest | Bug::CountWithoutBuffer => &[],
        }
    }

    const fn broken_by_hyperscsi(bug: hyperscsi::fault_injection::Bug) -> &'static [Self] {
        use hyperscsi::fault_injection::Bug;
        match bug {
            Bug::FramesSkipCrc | Bug::FramesTakeLate => &[Self::Whole],
            Bug::FramesRunTwice => &[Self::Once],
            Bug::FramesForgetReplays
            | Bug::FramesKeepKeys
            | Bug::FramesReuseNumber
            | Bug::FramesMoveBack
            | Bug::FramesIgnoreLimit => &[Self::Wire],
            Bug::FramesAckUnkept
            | Bug::FramesForgetRange
            | Bug::FramesForgetParts
            | Bug::FramesReplayUnready => &[Self::Ends],
            Bug::FramesKeepMemory => &[Self::MemoryFreed],
        }
    }

    const fn broken_by_unit(bug: device::fault_injection::Bug) -> &'static [Self] {
        use device::fault_injection::Bug;
        match bug {
            Bug::AckBeforeWrite | Bug::FlushNothing | Bug::IgnoreFua | Bug::ForgetFence => &[Self::Kept],
            Bug::ReserveAdmitsStranger => &[Self::ReservationStops],
            Bug::PreemptKeepsHolder => &[Self::ReservationTold, Self::ReservationAdmits],
            Bug::PreemptWaitsForNone => &[Self::Fenced],
            Bug::CompareUnlocked => &[Self::Atomic],
            Bug::MiscompareWrites => &[Self::MiscompareWritesNothing],
            Bug::MiscompareElsewhere => &[Self::MiscompareOffset],
            Bug::OrderedStartsEarly | Bug::SimplePassesOrdered => &[Self::TaskOrder],
            Bug::RemovalForgetsCommands => &[Self::Answered],
            Bug::VerifyNothing => &[Self::Verified],
            Bug::OutdatedTurnRuns
            | Bug::FilemarksWrittenOnce
            | Bug::WriteUndrained
            | Bug::UnbufferedUnsynced
            | Bug::FixedLeftWhole => &[Self::Records],
            Bug::ResetKeepsMode => &[Self::Modes],
            Bug::WritesFailUncaused
            | Bug::WritesAbortedUncaused
            | Bug::WritesBusyUncaused
            | Bug::WritesFullUncaused
            | Bug::AttentionsToldAgain
            | Bug::MergedResetsToldTwice => &[Self::Caused],
            Bug::WritesConflictUncaused => &[Self::Caused, Self::ReservationAdmits],
            Bug::ResetsUntold | Bug::PreemptionsUntold | Bug::ReleasesUntold | Bug::ResetsUntoldToAborted => {
                &[Self::Told]
            }
            Bug::ReadLengthUntold => &[Self::Session],
            Bug::MotionAnsweredEarly => &[Self::Elements],
            Bug::ReserveUnsaved | Bug::SettingsUnsaved | Bug::SpareVictims | Bug::SaveTogether => &[],
        }
    }
}

impl From<Violation> for Property {
    fn from(wrong: Violation) -> Self {
        match wrong {
            Violation::Lost | Violation::Stale => Self::Kept,
            Violation::Torn | Violation::Garbled => Self::Whole,
            Violation::Misdirected | Violation::Foreign => Self::Place,
            Violation::Unsubmitted => Self::RefusedChangesNothing,
            Violation::Miscompared => Self::Compared,
            Violation::WrittenDespite => Self::MiscompareWritesNothing,
            Violation::NotAtomic => Self::Atomic,
            Violation::Reordered => Self::TaskOrder,
        }
    }
}

/// A broken property, and how it was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertyViolation {
    /// The property.
    pub property: Property,
    /// How it was broken.
    pub how: String,
}

impl PropertyViolation {
    /// Makes the violation of a property.
    pub const fn new(property: Property, how: String) -> Self {
        Self { property, how }
    }
}

impl fmt::Display for PropertyViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not true that {}: {}", self.property.name(), self.how)
    }
}
