//! A SCSI task as the transport sees it: the data received and sent, the data still expected, and the result.

use alloc::boxed::Box;
use core::mem;

use base::state_machine::ConnId;
use smallvec::SmallVec;
use transport::status;

use super::allegiance::{Allegiance, LossId};
use super::arena::Key;
use super::data_in::DataIn;
use super::data_out_sequence::Sequence;
use super::data_out_transfer::DataOutTransfer;
use crate::pdu::Itt;
use crate::recovery::TransportSense;
use crate::serial::{R2tSn, StatSn};

/// A task.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) session: Key,
    pub(crate) allegiance: Allegiance,
    pub(crate) itt: Itt,
    pub(crate) lun: u64,
    pub(crate) immediate: bool,
    /// Whether the command window counts it.
    pub(crate) in_window: bool,
    pub(crate) holder: Holder,
    pub(crate) data_in_len: u32,
    pub(crate) data_out_len: u32,
    pub(crate) data_out: DataOutTransfer,
    pub(crate) data_in: DataIn,
    /// The result, once the task has ended. Then nothing more is fetched, and data that is still received is
    /// discarded.
    pub(crate) result: Option<TaskResult>,
    /// Whether a function that ends all tasks of its logical unit was passed to the layer above after it.
    /// Once the function is complete, its response does not wait for more data.
    pub(crate) ending: bool,
    /// Whether its response needs a response fence, whatever its result.
    pub(crate) needs_fence: bool,
    /// Whether its sent Data-In and status are retained until they are acknowledged.
    pub(crate) retains_sent: bool,
    /// The status number under which its response was sent. The response is retained until it is
    /// acknowledged.
    pub(crate) sent_status: Option<SentStatus>,
    /// The tag of the last SNACK that asked for resegmented data, or 0 (RFC 7143 §11.4.4).
    pub(crate) snack_tag: u32,
    /// Runs of its Data-In and R2T PDUs (first number, count) that are to be sent again.
    pub(crate) resend_runs: SmallVec<[(u32, u32); 1]>,
    /// Whether it is in its connection's send queue.
    pub(crate) in_send_queue: bool,
    /// The next task in the same bucket of its session's tag table.
    pub(crate) next: Option<Key>,
}

/// The owner of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The session: the turn of the command has not come.
    Session,
    /// The layer above.
    DeviceServer,
    /// None: the task ended, and its response is on its way.
    Nobody,
}

/// The status of a task that was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentStatus {
    pub(crate) stat_sn: StatSn,
    /// Whether it was sent in the last Data-In (phase collapse).
    pub(crate) phase_collapsed: bool,
}

/// How many runs of a task wait to be sent again. Beyond that, one run of all unacknowledged PDUs replaces
/// them.
pub(crate) const MAX_RESEND_RUNS: usize = 8;

impl Task {
    /// Returns whether it is allegiant to this connection.
    pub(crate) fn is_on(&self, conn: ConnId) -> bool {
        self.allegiance.connection() == Some(conn)
    }

    /// Returns whether its connection is lost, and it is not reassigned yet.
    pub(crate) const fn is_detached(&self) -> bool {
        self.allegiance.loss().is_some()
    }

    /// Records that its connection is lost.
    pub(crate) fn detach(&mut self, loss: LossId) {
        self.allegiance.detach(loss);
        self.in_send_queue = false;
        self.resend_runs.clear();
        self.data_out.sequences_mut().for_each(Sequence::connection_lost);
    }

    /// Marks it as queued. Returns the connection to whose send queue it must be added, or `None` if it is in
    /// that queue already or has no connection.
    pub(crate) const fn enter_send_queue(&mut self) -> Option<ConnId> {
        match self.allegiance.connection() {
            Some(conn) if !mem::replace(&mut self.in_send_queue, true) => Some(conn),
            Some(_) | None => None,
        }
    }

    /// Returns whether its Data-In and R2T PDUs are numbered in one sequence (§4.2.2.4).
    pub(crate) const fn is_bidirectional(&self) -> bool {
        self.data_in_len > 0 && self.data_out_len > 0
    }

    /// Returns the number of its next R2T and advances it.
    pub(crate) fn use_r2t_sn(&mut self) -> R2tSn {
        let sn = self.data_out.use_r2t_sn();
        if self.is_bidirectional() {
            return R2tSn(self.data_in.use_sn().0);
        }
        sn
    }

    /// Returns how many Data-In PDUs were sent for it.
    pub(crate) const fn data_ins_sent(&self) -> u32 {
        let r2ts = if self.is_bidirectional() { self.data_out.r2ts_sent() } else { 0 };
        self.data_in.next_sn().0.wrapping_sub(r2ts)
    }

    /// Returns the numbers of its Data-In and R2T PDUs: the first that is not acknowledged, and the next to
    /// send.
    pub(crate) fn unacked_sn_range(&self) -> (u32, u32) {
        if self.data_in_len > 0 {
            (self.data_in.acked_sn().0, self.data_in.next_sn().0)
        } else {
            (0, self.data_out.r2ts_sent())
        }
    }

    /// Records that a run of those PDUs is to be sent again.
    pub(crate) fn request_resend(&mut self, from: u32, count: u32) {
        if self.resend_runs.len() >= MAX_RESEND_RUNS {
            let (first, next) = self.unacked_sn_range();
            self.resend_runs.clear();
            self.resend_runs.push((first, next.wrapping_sub(first)));
        } else if count > 0 {
            self.resend_runs.push((from, count));
        }
    }
}

/// The result of a task.
#[derive(Debug)]
pub(crate) struct TaskResult {
    pub(crate) status: u8,
    pub(crate) sense: Option<Box<[u8]>>,
    /// How many bytes the layer above had or took. `None` if the transport ended the task: the initiator
    /// has the data that was sent to it, and none of its own data counts as taken.
    pub(crate) transferable: Option<u64>,
    /// Whether it reports a unit attention condition.
    pub(crate) is_unit_attention: bool,
}

impl TaskResult {
    /// Returns whether it reports a condition that is reported once: a unit attention, or a deferred error.
    pub(crate) fn reports_once(&self) -> bool {
        const DEFERRED: [u8; 2] = [0x71, 0x73];
        let code = self.sense.as_ref().and_then(|sense| sense.first()).map(|code| code & 0x7f);
        self.is_unit_attention || code.is_some_and(|code| DEFERRED.contains(&code))
    }

    /// Returns the result of a task that fails with a condition of the transport.
    pub(crate) fn condition(condition: TransportSense) -> Self {
        Self {
            status: status::CHECK_CONDITION,
            sense: Some(Box::new(condition.sense())),
            transferable: None,
            is_unit_attention: false,
        }
    }

    /// Returns BUSY, the result of a task for which there is no memory. The initiator tries again.
    pub(crate) const fn busy() -> Self {
        Self { status: status::BUSY, sense: None, transferable: None, is_unit_attention: false }
    }

    /// Returns whether the status can be sent in the last Data-In (phase collapse).
    pub(crate) const fn is_good(&self) -> bool {
        self.status == status::GOOD && self.sense.is_none()
    }
}
