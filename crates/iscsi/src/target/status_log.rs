//! Statuses that are retained until they are acknowledged (RFC 7143 §4.2.2.2), from ErrorRecoveryLevel 1 on.
//!
//! Every response takes a number of its connection, its StatSN, and the ExpStatSN in every request of the
//! initiator acknowledges the responses before it. Until then the response is retained here: control PDUs as
//! they are, the response to a SCSI command as a reference to its task, which retains its result and its
//! data. An answered task has left the command window. The initiator may use its tag again, which shows that
//! it received the response.
//!
//! At level 0 nothing is retained. ExpStatSN is recorded all the same, for the response fence of task
//! management.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use super::arena::Key;
use super::output::{Body, Control, MAX_CONTROL_BYTES};
use crate::pdu::Ttt;
use crate::serial::StatSn;

/// The statuses of a connection that were sent and are not acknowledged.
#[derive(Debug)]
pub(crate) struct StatusLog {
    first: StatSn,
    list: VecDeque<LoggedStatus>,
    /// How many bytes of data its control PDUs carry.
    bytes: usize,
    /// Runs (first number, count) that are to be sent again.
    resend_runs: VecDeque<(StatSn, u32)>,
}

/// A status that can be sent again.
#[derive(Debug)]
pub(crate) enum LoggedStatus {
    /// The response to a SCSI command. The task no longer exists if its tag was used again.
    Task(Key),
    /// A control PDU.
    Control(Box<(Control, Body)>),
    /// Nothing: the last Login Response, without which no initiator can continue.
    Nothing,
}

/// A ping that asks the initiator to acknowledge statuses, and that is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckPing {
    pub(super) ttt: Ttt,
    /// The number of the next status when the ping was queued.
    pub(super) stat_sn: StatSn,
}

/// How many control PDUs a connection retains in addition to the responses to two full windows of commands.
pub(super) const SPARE: usize = 64;

/// How many runs of statuses wait to be sent again. Beyond that, one run of all retained statuses replaces
/// them.
const MAX_RESEND_RUNS: usize = 8;

impl StatusLog {
    pub(crate) const fn new(first: StatSn) -> Self {
        Self { first, list: VecDeque::new(), bytes: 0, resend_runs: VecDeque::new() }
    }

    /// Returns the first retained number.
    pub(crate) const fn first(&self) -> StatSn {
        self.first
    }

    pub(crate) fn get(&self, sn: StatSn) -> Option<&LoggedStatus> {
        self.list.get(usize::try_from(self.first.distance_to(sn)).ok()?)
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns whether the log is full, with `max` as its bound.
    pub(crate) fn is_full(&self, max: usize) -> bool {
        self.list.len() >= max || self.bytes >= MAX_CONTROL_BYTES
    }

    /// Returns whether so much is retained that the initiator should acknowledge some of it.
    pub(crate) fn is_half_full(&self, max: usize) -> bool {
        self.list.len() >= max / 2 || self.bytes > MAX_CONTROL_BYTES / 2
    }

    /// Retains the status with the next number.
    pub(crate) fn push(&mut self, kept: LoggedStatus) {
        self.bytes += kept.bytes();
        self.list.push_back(kept);
    }

    /// Removes and returns a retained status before `exp`.
    pub(crate) fn pop_before(&mut self, exp: StatSn) -> Option<LoggedStatus> {
        if self.first == exp {
            return None;
        }
        let kept = self.list.pop_front()?;
        self.bytes -= kept.bytes();
        self.first = self.first.next();
        if self.list.is_empty() && self.list.capacity() > SPARE {
            self.list = VecDeque::new();
        }
        Some(kept)
    }

    /// Records that a run is to be sent again. Returns whether it is the only one.
    pub(crate) fn request_resend(&mut self, from: StatSn, count: u32) -> bool {
        let is_first = self.resend_runs.is_empty();
        if self.resend_runs.len() >= MAX_RESEND_RUNS {
            let all = u32::try_from(self.list.len()).unwrap_or(u32::MAX);
            self.resend_runs.clear();
            self.resend_runs.push_back((self.first, all));
        } else {
            self.resend_runs.push_back((from, count));
        }
        is_first
    }

    /// Returns whether runs are to be sent again.
    pub(crate) fn has_resends(&self) -> bool {
        !self.resend_runs.is_empty()
    }

    /// Takes the next status that is to be sent again. Those that were acknowledged meanwhile are not.
    pub(crate) fn take_resend(&mut self) -> Option<StatSn> {
        loop {
            let (mut from, mut count) = self.resend_runs.pop_front()?;
            if from.before(self.first) {
                count = count.saturating_sub(from.distance_to(self.first));
                from = self.first;
            }
            if count > 1 {
                self.resend_runs.push_front((from.next(), count - 1));
            }
            if count > 0 {
                return Some(from);
            }
        }
    }
}

impl LoggedStatus {
    fn bytes(&self) -> usize {
        match self {
            Self::Control(control) => control.1.bytes().len(),
            Self::Task(_) | Self::Nothing => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;
    use alloc::vec::Vec;

    use super::*;
    use crate::pdu::nop_in::NopIn;
    use crate::pdu::{Itt, TargetSn};

    #[test]
    fn what_is_acknowledged_is_forgotten_across_the_wrap() {
        let mut unacked = StatusLog::new(StatSn(u32::MAX));
        for _ in 0..3 {
            unacked.push(LoggedStatus::Nothing);
        }
        assert!(unacked.get(StatSn(u32::MAX)).is_some() && unacked.get(StatSn(1)).is_some());
        assert!(unacked.get(StatSn(2)).is_none() && unacked.get(StatSn(u32::MAX - 1)).is_none());
        let mut gone = 0;
        while unacked.pop_before(StatSn(1)).is_some() {
            gone += 1;
        }
        assert_eq!((gone, unacked.first(), unacked.len()), (2, StatSn(1), 1));
    }

    #[test]
    fn many_runs_become_one() {
        let mut unacked = StatusLog::new(StatSn(0));
        (0..20).for_each(|_| unacked.push(LoggedStatus::Nothing));
        for at in 0..100 {
            unacked.request_resend(StatSn(at % 20), 1);
        }
        assert!(unacked.resend_runs.len() <= MAX_RESEND_RUNS);
    }

    #[test]
    fn what_was_acknowledged_meanwhile_is_not_sent_again_and_the_rest_is_once() {
        let mut unacked = StatusLog::new(StatSn(u32::MAX - 1));
        (0..6).for_each(|_| unacked.push(LoggedStatus::Nothing));
        unacked.request_resend(StatSn(u32::MAX - 1), 4);
        unacked.request_resend(StatSn(u32::MAX), 1);
        while unacked.pop_before(StatSn(0)).is_some() {}
        let again: Vec<_> = core::iter::from_fn(|| unacked.take_resend()).collect();
        assert_eq!(again, [StatSn(0), StatSn(1)]);
        assert!(!unacked.has_resends());
    }

    #[test]
    fn a_log_is_full_of_statuses_or_of_their_data() {
        let control = |len: usize| {
            let pong = NopIn { lun: 0, itt: Itt(1), ttt: Ttt::NONE, sn: TargetSn::default() };
            LoggedStatus::Control(Box::new((Control::NopIn(pong), Body::Text(vec![0; len]))))
        };
        let mut unacked = StatusLog::new(StatSn(0));
        unacked.push(control(MAX_CONTROL_BYTES / 2));
        assert!(!unacked.is_half_full(8) && !unacked.is_full(8));
        unacked.push(control(1));
        assert!(unacked.is_half_full(8) && !unacked.is_full(8));
        unacked.push(control(MAX_CONTROL_BYTES / 2 - 1));
        assert!(unacked.is_full(8));
        while unacked.pop_before(StatSn(2)).is_some() {}
        assert!(!unacked.is_half_full(8) && unacked.is_half_full(2) && unacked.is_full(1));
    }
}
