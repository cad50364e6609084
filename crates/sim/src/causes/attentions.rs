//! The unit attentions of one I_T nexus at one unit: those that can be pending, and those that must be told.
//!
//! Each cause can establish a condition from the time when its request is sent. When the cause has come to
//! its end, the condition is pending, or was told, or was never established. The first command sent after
//! that which ends in a way that shows that nothing is pending therefore ends the time of the condition: only
//! commands that are open then can still bring it, because they were executed before. A cause of long ago
//! excuses no unit attention.

use std::collections::BTreeSet;
use std::fmt;

use base::time::Instant;
use scsi::sense::Asc;

use crate::transport::Ticket;

/// Conditions with the same causes. Those of one kind that are pending together can be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// 29h: power on, reset, I_T nexus loss. The strongest replaces the others.
    Reset,
    /// COMMANDS CLEARED BY ANOTHER INITIATOR.
    Cleared,
    /// SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT.
    ClearedByTransport,
    /// RESERVATIONS PREEMPTED, RESERVATIONS RELEASED, REGISTRATIONS PREEMPTED.
    Reservations(u16),
}

impl Kind {
    /// Returns the kind of a unit attention that this world can cause.
    pub(super) fn of(code: u16) -> Option<Self> {
        match Asc(code) {
            Asc::POWER_ON_OCCURRED
            | Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET
            | Asc::BUS_DEVICE_RESET_OCCURRED
            | Asc::I_T_NEXUS_LOSS_OCCURRED => Some(Self::Reset),
            Asc::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR => Some(Self::Cleared),
            Asc::SOME_COMMANDS_CLEARED_BY_ISCSI_PROTOCOL_EVENT => Some(Self::ClearedByTransport),
            Asc::RESERVATIONS_PREEMPTED | Asc::RESERVATIONS_RELEASED | Asc::REGISTRATIONS_PREEMPTED => {
                Some(Self::Reservations(code))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reset => f.write_str("the last reset or new nexus"),
            Self::Cleared => f.write_str("the commands that another initiator cleared"),
            Self::ClearedByTransport => f.write_str("the commands that were cleared with a connection"),
            Self::Reservations(code) => write!(f, "the unit attention {code:04x}h"),
        }
    }
}

/// What can establish a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The I_T nexus is new.
    Nexus,
    /// A connection of the session was lost.
    Connection,
    /// A task management function or a command of some initiator.
    Request(Ticket),
}

/// Whether a cause can still establish its condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// It can.
    No,
    /// It can until this time.
    At(Instant),
    /// It cannot: commands from this one on were sent after it.
    Before(Ticket),
}

#[derive(Debug)]
struct Condition {
    kind: Kind,
    cause: Cause,
    settled: Settled,
    /// How many more times the cause may have been executed, each of which may be told.
    recurs: u64,
    /// Whether the condition was certainly established and must be told.
    is_due: bool,
    /// Whether it may have been told.
    may_be_told: bool,
    /// After a command showed that the condition is not pending: the commands that were open then, and can
    /// still bring it.
    carriers: Option<BTreeSet<Ticket>>,
}

/// The unit attentions of one I_T nexus at one unit.
#[derive(Debug, Default)]
pub(super) struct Attentions {
    conditions: Vec<Condition>,
}

impl Attentions {
    /// Records a cause of a condition.
    pub(super) fn expect(&mut self, kind: Kind, cause: Cause, settled: Settled) {
        let (is_due, may_be_told) = (false, false);
        let condition = Condition { kind, cause, settled, recurs: 0, is_due, may_be_told, carriers: None };
        self.conditions.push(condition);
    }

    /// Records that a cause may have been executed so many more times.
    pub(super) fn may_recur(&mut self, cause: Cause, times: u64) {
        self.conditions.iter_mut().filter(|one| one.cause == cause).for_each(|one| one.recurs = times);
    }

    /// Records that a cause can establish no condition any more, or only until some time.
    pub(super) fn settle(&mut self, cause: Cause, settled: Settled) {
        let open = self.conditions.iter_mut().filter(|one| one.cause == cause);
        open.filter(|one| one.settled == Settled::No).for_each(|one| one.settled = settled);
    }

    /// Records that a command is sent: `next` is its ticket.
    pub(super) fn command_sent(&mut self, now: Instant, next: Ticket) {
        for one in &mut self.conditions {
            if let Settled::At(at) = one.settled
                && at <= now
            {
                one.settled = Settled::Before(next);
            }
        }
    }

    /// Records that a cause has certainly established a condition. Returns whether it must be told.
    pub(super) fn establish(&mut self, kind: Kind, cause: Cause) -> bool {
        let mut established = self.conditions.iter_mut().filter(|one| (one.kind, one.cause) == (kind, cause));
        let Some(one) = established.find(|one| !one.may_be_told) else { return false };
        one.is_due = true;
        true
    }

    /// Records that an answer that nobody heard may have told whatever was pending.
    pub(super) fn may_have_told(&mut self) {
        for one in &mut self.conditions {
            (one.is_due, one.may_be_told) = (false, true);
        }
    }

    /// Records that a command told of a condition. Returns whether it was caused. `may_repeat`: a request is
    /// open that the target may execute several times.
    pub(super) fn told(&mut self, kind: Kind, teller: Ticket, may_repeat: bool) -> bool {
        let can_bring = |one: &Condition| {
            one.kind == kind && one.carriers.as_ref().is_none_or(|carriers| carriers.contains(&teller))
        };
        let candidates = self.conditions.iter().enumerate().filter(|(_, one)| can_bring(one));
        // The one whose time ends first.
        let first = candidates.min_by_key(|(_, one)| match (&one.carriers, one.settled) {
            (Some(_), _) => (0, Ticket(0)),
            (None, Settled::Before(first)) => (1, first),
            (None, Settled::At(_)) => (2, Ticket(0)),
            (None, Settled::No) => (3, Ticket(0)),
        });
        let first = first.map(|(at, _)| at);
        if let Some(at) = first.filter(|_| !may_repeat) {
            match self.conditions[at].recurs.checked_sub(1) {
                Some(left) => self.conditions[at].recurs = left,
                None => drop(self.conditions.remove(at)),
            }
        }
        for one in self.conditions.iter_mut().filter(|one| one.kind == kind) {
            (one.is_due, one.may_be_told) = (false, true);
        }
        first.is_some() || may_repeat
    }

    /// Records that a command ended. `is_absent` says which conditions were not pending when it was executed,
    /// and `open` names the commands that are open now. Returns the conditions that were never told.
    pub(super) fn command_ended(
        &mut self,
        ticket: Ticket,
        is_absent: impl Fn(Kind) -> bool,
        open: &BTreeSet<Ticket>,
    ) -> Vec<Kind> {
        let mut forgotten = Vec::new();
        self.conditions.retain_mut(|one| {
            if let Settled::Before(first) = one.settled
                && first <= ticket
                && one.carriers.is_none()
                && is_absent(one.kind)
            {
                one.carriers = Some(open.clone());
            }
            let Some(carriers) = &mut one.carriers else { return true };
            carriers.remove(&ticket);
            if carriers.is_empty() && one.is_due {
                forgotten.push(one.kind);
            }
            !carriers.is_empty()
        });
        forgotten
    }
}
