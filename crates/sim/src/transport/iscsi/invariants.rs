//! The promises of a session to its owner, checked from the owner's side.
//!
//! The oracle judges blocks and knows nothing of recovery: a session that gives every command up as lost
//! damages no block. This module checks the effects of the error recovery level.
//!
//! * At any level: a command is given up as lost only together with its session, or once the target need not
//!   keep it any more after a lost connection (Time2Retain). It ends as aborted, or as not sent, only if an
//!   initiator asked for that. It is rejected only because its target lacks resources.
//! * At level 1 and above: no status reports that the transport lost data, and damage in the network is never
//!   taken for a target that breaks a rule.

use std::collections::BTreeMap;

use base::time::{Duration, Instant};
use iscsi::initiator::contract::{ConnectionDown, SessionOrigin};
use iscsi::initiator::protocol_error::ProtocolError;
use iscsi::negotiate::SessionParameters;
use iscsi::pdu::reject::RejectReason;
use iscsi::recovery::{TransportSense, is_damage};
use transport::initiator::TaskResult;

use super::task_faults::blames_transport;
use crate::transport::Ticket;

/// The promises of the session of one host, and what is known about its open commands.
#[derive(Debug)]
pub(super) struct SessionInvariants {
    /// The negotiated ErrorRecoveryLevel; `None` before the first login.
    level: Option<u8>,
    /// How long the target keeps tasks without a connection.
    retention: Duration,
    /// When connections of the session were lost.
    losses: Vec<Instant>,
    /// Open commands: when each was submitted, and which outcomes are allowed.
    open: BTreeMap<Ticket, (Instant, AllowedOutcomes)>,
    /// Until when a damaged login may have effects: no level repairs a login.
    login_faults_until: Instant,
    /// Outcomes that are allowed only if the session turns out to be lost.
    suspected_violations: Vec<String>,
}

/// The outcomes that are allowed for a command, besides its own status.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AllowedOutcomes {
    /// The command is immediate: the initiator cannot know whether it was received.
    pub(super) immediate: bool,
    /// Its owner asked for its abort, or other initiators may abort it.
    pub(super) aborted: bool,
    /// While the command was open, its owner requested a function that takes its number for received: a reset
    /// of the target, or the abort of the command.
    pub(super) taken_for_received: bool,
    /// Memory is short: the target may give up a task whose data stands still while other tasks wait for the
    /// memory.
    pub(super) stalled: bool,
}

impl Default for SessionInvariants {
    fn default() -> Self {
        Self {
            level: None,
            retention: Duration::ZERO,
            losses: Vec::new(),
            login_faults_until: Instant::ORIGIN,
            open: BTreeMap::new(),
            suspected_violations: Vec::new(),
        }
    }
}

impl SessionInvariants {
    /// Records that a command was submitted.
    pub(super) fn submitted(&mut self, now: Instant, ticket: Ticket, mercy: AllowedOutcomes) {
        self.open.insert(ticket, (now, mercy));
    }

    /// Returns when an open command was submitted.
    pub(super) fn submitted_at(&self, ticket: Ticket) -> Option<Instant> {
        self.open.get(&ticket).map(|(since, _)| *since)
    }

    /// Records that the owner asks for the abort of a command.
    pub(super) fn aborts(&mut self, ticket: Ticket) {
        if let Some((_, mercy)) = self.open.get_mut(&ticket) {
            (mercy.aborted, mercy.taken_for_received) = (true, true);
        }
    }

    /// Records that the owner requests a reset of the target.
    pub(super) fn resets_target(&mut self) {
        self.open.values_mut().for_each(|(_, mercy)| mercy.taken_for_received = true);
    }

    /// Records that the session is up.
    pub(super) fn up(&mut self, parameters: &SessionParameters, since: SessionOrigin) {
        self.level = Some(parameters.error_recovery_level.number());
        self.retention = Duration::from_secs(parameters.default_time2retain.into());
        if since != SessionOrigin::Continued {
            self.suspected_violations.clear();
            self.losses.clear();
        }
    }

    /// Records that a PDU of a login was damaged.
    pub(super) fn login_damaged(&mut self, now: Instant) {
        self.login_faults_until = now.after(LOGIN_WITHIN);
    }

    /// Checks why a connection was lost.
    pub(super) fn lost(&mut self, now: Instant, why: ConnectionDown) -> Option<String> {
        self.losses.push(now);
        let level = self.level.filter(|level| *level >= 1)?;
        match why {
            // The network damages more than one data segment in 64.
            ConnectionDown::ProtocolError(ProtocolError::PdusModified) => None,
            ConnectionDown::ProtocolError(why) if !is_damage(why) && now >= self.login_faults_until => {
                Some(format!("a target is said to break a rule: {why}, level {level}"))
            }
            _ => None,
        }
    }

    /// Records that the session has ended.
    pub(super) fn down(&mut self) {
        self.suspected_violations.clear();
    }

    /// Checks how a command ended.
    pub(super) fn ended(&mut self, now: Instant, ticket: Ticket, end: &TaskResult) -> Option<String> {
        let (since, mercy) = self.open.remove(&ticket).unwrap_or((now, AllowedOutcomes::default()));
        let level = self.level.unwrap_or(0);
        let what = match end {
            TaskResult::Status(ending) => {
                let lost = ending.sense.as_deref().and_then(blames_transport).filter(|_| level >= 1)?;
                if mercy.stalled && lost == TransportSense::InitiatorResponseTimeout {
                    return None;
                }
                format!("says that {lost:?}")
            }
            TaskResult::Aborted | TaskResult::NotSent if mercy.aborted => return None,
            TaskResult::Rejected(TOO_MANY_IMMEDIATE) if mercy.immediate => return None,
            // Such a function takes the numbers that it concerns for received (RFC 7143 §4.2.3.3, §11.5.1). A
            // command that was rejected just before, because its immediate data was damaged, then has no
            // other end.
            TaskResult::Rejected(DATA_DIGEST_ERROR) if mercy.taken_for_received => return None,
            TaskResult::Rejected(LONG_OPERATION_REJECT) => return None,
            TaskResult::Lost if mercy.aborted || mercy.immediate || self.retention_is_over(now, since) => {
                return None;
            }
            TaskResult::Lost | TaskResult::NotSent => {
                self.suspected_violations.push(format!("order {} ended as {end:?}, level {level}", ticket.0));
                return None;
            }
            TaskResult::Aborted | TaskResult::Rejected(_) | TaskResult::Failed(_) => {
                format!("ended as {end:?}")
            }
        };
        Some(format!("order {} {what}, level {level}", ticket.0))
    }

    /// Returns whether the target need not keep a command any more that was open when a connection was lost.
    fn retention_is_over(&self, now: Instant, since: Instant) -> bool {
        self.retention == Duration::ZERO
            || self.losses.iter().any(|lost| *lost >= since && now.since(*lost) >= self.retention)
    }

    /// Returns the suspected violations. The session is up, so they are real.
    pub(super) fn session_alive(&mut self) -> Vec<String> {
        let wrong = self.suspected_violations.drain(..);
        wrong.map(|what| format!("{what}, although its session lives")).collect()
    }
}

const TOO_MANY_IMMEDIATE: u8 = RejectReason::TOO_MANY_IMMEDIATE.0;
const DATA_DIGEST_ERROR: u8 = RejectReason::DATA_DIGEST_ERROR.0;
const LONG_OPERATION_REJECT: u8 = RejectReason::LONG_OPERATION_REJECT.0;

/// The time within which both ends know whether a login succeeded.
const LOGIN_WITHIN: Duration = Duration::from_secs(30);
