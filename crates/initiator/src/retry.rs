//! Decides about a command that did not end with GOOD: it is retried at once, retried later, or reported.
//!
//! A unit attention means that its command was not executed (SAM-5 §5.14), so a retry is always safe. The
//! unit attention itself is reported to the caller as an event. The same holds for BUSY and TASK SET FULL. A
//! command that was or may have been started is retried only if it is repeatable.
//!
//! The same holds for a command that we aborted ourselves, because another initiator's reset ended it without
//! a response or because the command timeout expired: see the module `command_timeout` of
//! [`crate::sessions`].

use std::time::Duration;

use base::time::Instant;
use scsi::sense::{Asc, Sense, SenseKey};
use scsi::status::Status;
use transport::initiator::TaskId;
use transport::initiator::{Outcome, ServiceResponse, TaskResult};

use crate::command::{Command, CommandError, Reply};
use crate::fault_injection::{self, Bug};

/// How often a command is retried at once: more unit attentions than a nexus can have pending (a power on, a
/// changed capacity, mode, inquiry, list of LUNs, reservation), and some retries for aborted commands.
const REPEATS_MAX: u32 = 16;

/// The first wait for a busy unit, doubled each time.
const BUSY_WAIT: Duration = Duration::from_millis(5);
/// The longest wait between two attempts.
const BUSY_WAIT_MAX: Duration = Duration::from_millis(500);
/// How long a unit may be busy in total: longer than a failover between two controllers of an array.
const BUSY_MAX: Duration = Duration::from_secs(60);

/// How many attempts of one command may end with a timeout before the command fails.
const OVERDUE_MAX: u32 = 3;

/// A command that a session executes, or that waits for the session.
#[derive(Debug)]
pub(crate) struct PendingCommand {
    pub(crate) token: u64,
    pub(crate) command: Command,
    /// The task that executes it, while the session has it.
    pub(crate) task: Option<TaskId>,
    /// Whether its caller has aborted it: then it is not retried.
    pub(crate) abort_requested: bool,
    /// The number of the identity check that it belongs to, if it is a command of our own that asks which
    /// device is behind a LUN.
    pub(crate) identity_check: Option<u64>,
    /// Whether it is an attention check of our own, which asks a silent unit for a pending unit attention.
    pub(crate) is_attention_check: bool,
    /// The state of the present attempt.
    pub(crate) attempt: Attempt,
    /// How many attempts ended with a timeout.
    pub(crate) overdue: u32,
    repeats: u32,
    busy_since: Option<Instant>,
    busy_wait: Duration,
}

/// One attempt at a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attempt {
    /// The last progress value of the session, followed by the time when it changed.
    pub(crate) progress: u64,
    pub(crate) since: Instant,
    /// Why we abort it, if we do.
    pub(crate) abort_reason: Option<AbortReason>,
    /// The time since which we want to abort it.
    pub(crate) unwanted: Option<Instant>,
}

/// Why we abort an attempt although its caller has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AbortReason {
    /// A unit attention reported that the commands of the unit were ended.
    Cleared(Asc),
    /// The command timeout expired.
    Silence,
}

/// The decision about a command that ended.
#[derive(Debug)]
pub(crate) enum RetryDecision {
    /// The command is over.
    Finish(Result<Reply, CommandError>),
    /// Retry now.
    RetryNow,
    /// Retry at this time.
    RetryAt(Instant),
}

impl PendingCommand {
    pub(crate) const fn new(token: u64, command: Command) -> Self {
        Self {
            token,
            command,
            task: None,
            abort_requested: false,
            identity_check: None,
            is_attention_check: false,
            attempt: Attempt { progress: 0, since: Instant::ORIGIN, abort_reason: None, unwanted: None },
            overdue: 0,
            repeats: 0,
            busy_since: None,
            busy_wait: BUSY_WAIT,
        }
    }

    /// Creates a command of an identity check. It belongs to no caller, and its token has no meaning.
    pub(crate) fn identity_check(command: Command, check: u64) -> Self {
        Self { identity_check: Some(check), ..Self::new(u64::MAX, command) }
    }

    /// Creates an attention check, which asks a unit for a pending unit attention. It belongs to no caller.
    pub(crate) fn attention_check(command: Command) -> Self {
        Self { is_attention_check: true, ..Self::new(u64::MAX, command) }
    }

    /// Returns whether a caller submitted it.
    pub(crate) const fn is_callers(&self) -> bool {
        self.identity_check.is_none() && !self.is_attention_check
    }

    /// Returns whether it was tried before. Then it is submitted before commands that were not.
    pub(crate) const fn is_again(&self) -> bool {
        self.repeats > 0 || self.busy_since.is_some() || self.overdue > 0
    }

    /// Decides about a task that ended. Also returns the unit attention of its status.
    pub(crate) fn decide(&mut self, now: Instant, outcome: Outcome) -> (RetryDecision, Option<Asc>) {
        #[cfg_attr(not(test), allow(unused_mut, reason = "a planted bug spoils it"))]
        let Outcome { end, mut data_in, .. } = outcome;
        #[cfg(test)]
        fault_injection::spoil(&mut data_in, end.is_good());
        let ended_for = core::mem::take(&mut self.attempt).abort_reason.filter(|_| !self.abort_requested);
        if let (Some(why), TaskResult::Aborted | TaskResult::NotSent | TaskResult::Lost) = (ended_for, &end) {
            return (self.judge_ended(why, end == TaskResult::NotSent), None);
        }
        let error = match end {
            TaskResult::Status(ending)
                if matches!(Status(ending.status), Status::GOOD | Status::CONDITION_MET) =>
            {
                return (RetryDecision::Finish(Ok(Reply { data: data_in, residual: ending.residual })), None);
            }
            TaskResult::Status(ending) => match CommandError::of_ending(&ending) {
                CommandError::Sense(sense) if self.command.absorbs_attentions && is_success(&sense) => {
                    let reply = Reply { data: data_in, residual: ending.residual };
                    return (RetryDecision::Finish(Ok(reply)), None);
                }
                error => error,
            },
            TaskResult::Failed(ServiceResponse(_)) => CommandError::TargetFailure,
            TaskResult::Aborted => return (RetryDecision::Finish(Err(CommandError::Aborted)), None),
            TaskResult::NotSent if self.abort_requested => {
                return (RetryDecision::Finish(Err(CommandError::Aborted)), None);
            }
            TaskResult::Rejected(reason) => CommandError::Rejected(reason),
            TaskResult::NotSent | TaskResult::Lost => CommandError::Lost(None),
        };
        let attention = match &error {
            CommandError::Sense(sense) if sense.key == SenseKey::UNIT_ATTENTION => Some(sense.asc),
            _ => None,
        };
        let care = if self.abort_requested {
            RetryDecision::Finish(Err(error))
        } else {
            self.judge_error(now, error)
        };
        (care, attention)
    }

    /// Decides about a command whose attempt we aborted ourselves.
    fn judge_ended(&mut self, why: AbortReason, never_sent: bool) -> RetryDecision {
        let error = match why {
            AbortReason::Cleared(asc) => CommandError::Cleared(asc),
            AbortReason::Silence => CommandError::Silence,
        };
        let may_run_twice = self.command.repeatable || fault_injection::is_injected(Bug::RepeatAll);
        if (never_sent || may_run_twice) && self.overdue < OVERDUE_MAX {
            self.again(error)
        } else {
            RetryDecision::Finish(Err(error))
        }
    }

    fn judge_error(&mut self, now: Instant, error: CommandError) -> RetryDecision {
        match &error {
            CommandError::Sense(sense) => match (sense.key, sense.asc) {
                // Another unit is now behind this LUN: commands for the old one must not reach it.
                (SenseKey::UNIT_ATTENTION, Asc::DEVICE_IDENTIFIER_CHANGED) => {
                    RetryDecision::Finish(Err(error))
                }
                (SenseKey::UNIT_ATTENTION, _) if self.command.absorbs_attentions => self.again(error),
                // The error is that of an earlier command, and this one was not executed.
                _ if sense.deferred && self.command.absorbs_attentions => self.again(error),
                (SenseKey::ABORTED_COMMAND, _) if self.command.repeatable => self.again(error),
                (SenseKey::NOT_READY, code) if BECOMES_READY.contains(&code) => self.later(now, error),
                _ => RetryDecision::Finish(Err(error)),
            },
            CommandError::Busy => self.later(now, error),
            CommandError::Aborted | CommandError::TargetFailure if self.command.repeatable => {
                self.again(error)
            }
            _ => RetryDecision::Finish(Err(error)),
        }
    }

    fn again(&mut self, error: CommandError) -> RetryDecision {
        self.repeats += 1;
        if self.repeats > REPEATS_MAX { RetryDecision::Finish(Err(error)) } else { RetryDecision::RetryNow }
    }

    fn later(&mut self, now: Instant, error: CommandError) -> RetryDecision {
        let since = *self.busy_since.get_or_insert(now);
        if now.since(since) >= BUSY_MAX {
            return RetryDecision::Finish(Err(error));
        }
        let at = now.after(self.busy_wait);
        self.busy_wait = (self.busy_wait * 2).min(BUSY_WAIT_MAX);
        RetryDecision::RetryAt(at)
    }
}

/// Returns whether the command of this sense data succeeded: the residual count tells whether all of its data
/// was transferred. A filemark, an end of medium or an incorrect length is for the caller.
fn is_success(sense: &Sense) -> bool {
    let is_key = [SenseKey::NO_SENSE, SenseKey::RECOVERED_ERROR].contains(&sense.key);
    is_key && !sense.deferred && sense.stream_bits == 0
}

/// NOT READY states that end by themselves: becoming ready, changing the access state, allocating space.
const BECOMES_READY: [Asc; 3] = [Asc(0x0401), Asc(0x040a), Asc::NOT_READY_SPACE_ALLOCATION_IN_PROGRESS];

#[cfg(test)]
mod tests {
    use super::*;
    use scsi::cdb::Cdb;
    use scsi::lun::Lun;
    use transport::initiator::CommandResponse;

    fn command(repeatable: bool) -> Command {
        let mut command = Command::new(Lun(0), Cdb::from_16([0; 16]));
        command.repeatable = repeatable;
        command
    }

    fn ended(end: TaskResult) -> Outcome {
        Outcome { end, data_in: None, send_order: None }
    }

    fn sense(key: SenseKey, asc: Asc) -> Outcome {
        let mut out = [0; Sense::MAX_LEN];
        let len = Sense::new(key, asc).encode(false, &mut out);
        let ending =
            CommandResponse { status: 2, sense: Some(out[..len].into()), ..CommandResponse::default() };
        ended(TaskResult::Status(ending))
    }

    fn status(status: u8) -> Outcome {
        ended(TaskResult::Status(CommandResponse { status, ..CommandResponse::default() }))
    }

    fn judged(repeatable: bool, outcome: Outcome) -> &'static str {
        match PendingCommand::new(0, command(repeatable)).decide(Instant(7), outcome).0 {
            RetryDecision::Finish(Ok(_)) => "good",
            RetryDecision::Finish(Err(_)) => "error",
            RetryDecision::RetryNow => "again",
            RetryDecision::RetryAt(_) => "later",
        }
    }

    #[test]
    fn what_was_not_carried_out_is_tried_again_and_what_may_have_been_only_if_repeatable() {
        for (outcome, repeatable, else_) in [
            (status as fn(u8) -> Outcome, "good", "good"),
            (|_| status(4), "good", "good"),
            (|_| status(0x08), "later", "later"),
            (|_| status(0x28), "later", "later"),
            (|_| status(0x18), "error", "error"),
            (|_| status(0x40), "again", "error"),
            (|_| status(0x02), "error", "error"),
            (|_| status(0x99), "error", "error"),
            (|_| sense(SenseKey::UNIT_ATTENTION, Asc::POWER_ON_OCCURRED), "again", "again"),
            (|_| sense(SenseKey::UNIT_ATTENTION, Asc::DEVICE_IDENTIFIER_CHANGED), "error", "error"),
            (|_| sense(SenseKey::ABORTED_COMMAND, Asc::PROTOCOL_SERVICE_CRC_ERROR), "again", "error"),
            (|_| sense(SenseKey::NOT_READY, Asc(0x0401)), "later", "later"),
            (|_| sense(SenseKey::NOT_READY, Asc::MEDIUM_NOT_PRESENT), "error", "error"),
            (|_| sense(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR), "error", "error"),
            (|_| sense(SenseKey::NO_SENSE, Asc::NONE), "good", "good"),
            (|_| sense(SenseKey::RECOVERED_ERROR, Asc::NONE), "good", "good"),
            (|_| ended(TaskResult::Failed(ServiceResponse::TARGET_FAILURE)), "again", "error"),
            (|_| ended(TaskResult::Aborted), "error", "error"),
            (|_| ended(TaskResult::Lost), "error", "error"),
        ] {
            assert_eq!((judged(true, outcome(0)), judged(false, outcome(0))), (repeatable, else_));
        }
    }

    #[test]
    fn nothing_is_tried_for_ever() {
        let attention = || sense(SenseKey::UNIT_ATTENTION, Asc::MODE_PARAMETERS_CHANGED);
        let mut pending = PendingCommand::new(0, command(false));
        let mut times = 0;
        while matches!(pending.decide(Instant(0), attention()).0, RetryDecision::RetryNow) {
            times += 1;
        }
        assert_eq!(times, REPEATS_MAX);

        let mut pending = PendingCommand::new(0, command(false));
        let mut now = Instant(0);
        while let RetryDecision::RetryAt(at) = pending.decide(now, status(8)).0 {
            assert!(at > now && at.since(now) <= BUSY_WAIT_MAX);
            now = at;
        }
        assert!(now.since(Instant(0)) >= BUSY_MAX && now.since(Instant(0)) < BUSY_MAX * 2);
    }

    #[test]
    fn what_is_unwanted_is_not_tried_again() {
        for (outcome, aborted) in [
            (status(0x08), false),
            (status(0x40), true),
            (sense(SenseKey::UNIT_ATTENTION, Asc::POWER_ON_OCCURRED), false),
            (ended(TaskResult::NotSent), true),
            (ended(TaskResult::Aborted), true),
        ] {
            let mut pending = PendingCommand::new(0, command(true));
            pending.abort_requested = true;
            let RetryDecision::Finish(Err(error)) = pending.decide(Instant(7), outcome).0 else {
                panic!("tried again")
            };
            assert_eq!(error == CommandError::Aborted, aborted, "{error:?}");
        }
    }

    #[test]
    fn an_attention_is_told_even_if_it_is_absorbed() {
        let outcome = sense(SenseKey::UNIT_ATTENTION, Asc::CAPACITY_DATA_HAS_CHANGED);
        let (care, told) = PendingCommand::new(0, command(true)).decide(Instant(0), outcome);
        assert!(matches!(care, RetryDecision::RetryNow));
        assert_eq!(told, Some(Asc::CAPACITY_DATA_HAS_CHANGED));
    }
}
