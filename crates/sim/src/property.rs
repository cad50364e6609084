//! The properties that a world judges. Whatever goes wrong breaks one of them, and says which: a bug that is planted must be
//! found by the property that it breaks.

use std::fmt;

use base::fault_injection::Bug;
use oracle::history::Violation;

/// A property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property {
    /// What was acknowledged is read back.
    Kept,
    /// A block is one write whole.
    Whole,
    /// A block stands where it was written to.
    Place,
    /// What was refused changes nothing.
    RefusedChangesNothing,
    /// No block is written to the medium twice by one command.
    Once,
    /// A comparison tells what the blocks held.
    Compared,
    /// MISCOMPARE tells the first byte that differs.
    MiscompareOffset,
    /// What ends with MISCOMPARE has written nothing.
    MiscompareWritesNothing,
    /// COMPARE AND WRITE is one operation.
    Atomic,
    /// ORDERED and HEAD OF QUEUE tasks keep their order.
    TaskOrder,
    /// A command that a reservation stops ends with RESERVATION CONFLICT and takes no effect.
    ReservationStops,
    /// A command that no reservation stops does not end with RESERVATION CONFLICT.
    ReservationAdmits,
    /// PERSISTENT RESERVE IN and OUT tell of registrations and reservation as they are.
    ReservationTold,
    /// No write of a nexus lands after the answer to the PREEMPT AND ABORT that preempted it.
    Fenced,
    /// Every command and every management request ends, once and in time.
    Ends,
    /// A session keeps what it owes to its owner.
    Session,
    /// The wire carries nothing that the protocol forbids.
    Wire,
    /// Nothing is left when everybody has left.
    NothingLeft,
    /// No state machine is in a state that cannot be, and time passes.
    Sane,
    /// A host that has opened a disk under a LUN finds this disk there, or none, until it has logged out.
    Opened,
    /// A host that opens a LUN finds the disk that the configuration puts there.
    Configured,
    /// Every command to a LUN that is taken away ends.
    Answered,
    /// Every task management function is answered, whether or not its LUN exists.
    Managed,
    /// A reload disturbs nothing that it does not change.
    Undisturbed,
    /// The target frees the memory that it took for commands.
    MemoryFreed,
    /// The oracle finds each block that a medium harmed, and names the harm correctly.
    HarmNamed,
    /// The oracle blames no block that its medium did not harm.
    NoFalseAlarm,
    /// WRITE AND VERIFY that compares notices what the medium did not keep.
    Verified,
}

impl Property {
    /// Returns it in words.
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
        }
    }

    /// Returns the properties that a planted bug breaks: it counts as found when one of them is broken. None stands for any: what
    /// a damaged header does is anybody's guess.
    pub const fn broken_by(bug: Bug) -> &'static [Self] {
        match bug {
            Bug::SkipDataDigest | Bug::LandOverCounted | Bug::FramesSkipCrc | Bug::FramesTakeLate => {
                &[Self::Whole]
            }
            Bug::FramesRunTwice | Bug::ReplayWrites => &[Self::Once],
            // The second execution is refused as a task that exists already, before it writes anything.
            Bug::ExecuteTwice => &[Self::Session, Self::Once],
            Bug::AckBeforeWrite | Bug::FlushNothing | Bug::IgnoreFua | Bug::ForgetFence => &[Self::Kept],
            Bug::FramesForgetReplays
            | Bug::FramesKeepKeys
            | Bug::FramesReuseNumber
            | Bug::FramesIgnoreLimit => &[Self::Wire],
            Bug::ForgetReassign | Bug::FramesAckUnkept | Bug::FramesForgetRange | Bug::FramesForgetParts => {
                &[Self::Ends]
            }
            Bug::ReserveAdmitsStranger => &[Self::ReservationStops],
            Bug::PreemptKeepsHolder => &[Self::ReservationTold, Self::ReservationAdmits],
            Bug::PreemptWaitsForNone => &[Self::Fenced],
            Bug::CompareUnlocked => &[Self::Atomic],
            Bug::MiscompareWrites => &[Self::MiscompareWritesNothing],
            Bug::MiscompareElsewhere => &[Self::MiscompareOffset],
            Bug::OrderedStartsEarly | Bug::SimplePassesOrdered => &[Self::TaskOrder],
            Bug::RemovalForgetsCommands => &[Self::Answered],
            Bug::RemapReachesOther => &[Self::Opened],
            Bug::KeepMemory | Bug::FramesKeepMemory => &[Self::MemoryFreed],
            Bug::VerifyNothing => &[Self::Verified],
            Bug::BelieveAddress => &[Self::HarmNamed],
            _ => &[],
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

/// A property that is broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertyViolation {
    /// Which.
    pub property: Property,
    /// How.
    pub how: String,
}

impl PropertyViolation {
    /// Says that a property is broken.
    pub const fn new(property: Property, how: String) -> Self {
        Self { property, how }
    }
}

impl fmt::Display for PropertyViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not true that {}: {}", self.property.name(), self.how)
    }
}
