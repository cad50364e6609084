//! Recovery R2Ts, which ask again for lost Data-Out (RFC 7143 §7.8, §7.9), from ErrorRecoveryLevel 1 on.
//!
//! A loss shows in three ways: a wrong data digest, a gap in the DataSNs, or silence, when the PDU with the F
//! bit was lost. In the first two cases the target waits for the end of the sequence, since its R2T counts as
//! open until then (§13.17). Then a recovery R2T asks for the missing data: it has the next R2TSN and a tag
//! of its own, and asks for the first part that is missing. Where PDUs arrive in order, it asks again for
//! everything behind a gap; where they may arrive in any order, only for the gap.
//!
//! Lost unsolicited data is asked for in the same way. With DataSequenceInOrder=Yes no R2T may ask for later
//! data meanwhile (§13.19), so no other R2T is sent before the lost data is complete, and only one R2T of a
//! task is open at a time.

use base::state_machine::ConnId;
use base::time::Instant;

use super::arena::Key;
use super::data_out_sequence::RecoveryStep;
use super::engine::Engine;
use super::output::Output;
use super::protocol_error::ProtocolError;
use super::timer::Timer;
use crate::pdu::data_out::DataOut;
use crate::pdu::{Bhs, PduHeader, Ttt};
use crate::recovery::{self, RecoveryLevel, TargetAction, TransportSense};

impl Engine {
    /// Records that the data of a Data-Out is lost, so that a recovery R2T asks for it at the end of its
    /// sequence. The task fails if no sequence expects the data.
    pub(super) fn mark_sequence_broken(&mut self, key: Key, bhs: &Bhs, condition: TransportSense) {
        let Ok(pdu) = DataOut::decode(bhs) else { return self.fail(key, condition) };
        let Some(task) = self.tasks.get_mut(key) else { return };
        if let Some(sequence) = task.data_out.select(pdu.ttt) {
            sequence.record_loss(pdu.data_sn);
        } else if !task.data_out.is_over(pdu.ttt) {
            // Otherwise a recovery R2T has replaced the sequence already.
            self.fail(key, condition);
        }
    }

    /// Asks again for the missing part of a sequence.
    pub(super) fn request_recovery_r2t(&mut self, key: Key, ttt: Ttt) {
        let fresh = self.new_ttt();
        let Some(task) = self.tasks.get_mut(key) else { return };
        let (conn, session) = (task.allegiance.connection(), task.session);
        let Some(state) = self.sessions.get(session) else { return self.impossible(None) };
        let in_order = state.parameters.data_pdu_in_order;
        let Some(sequence) = task.data_out.select(ttt) else { return };
        let unsolicited = sequence.is_unsolicited();
        let step =
            if task.result.is_some() { RecoveryStep::GiveUp } else { sequence.recover(fresh, in_order) };
        let superseded = match step {
            RecoveryStep::GiveUp => {
                task.data_out.drop_sequence(ttt, &self.pool);
                self.fail(key, TransportSense::CrcError);
                return self.queue_response(key);
            }
            RecoveryStep::Complete(superseded) => {
                task.data_out.record_superseded(superseded);
                return if unsolicited {
                    self.complete_unsolicited(key)
                } else {
                    self.complete_solicited(key, ttt)
                };
            }
            RecoveryStep::SendR2t(superseded) => superseded,
        };
        task.data_out.record_superseded(superseded);
        task.data_out.record_tag(fresh);
        self.stats.recovery_r2ts += 1;
        // The reassignment of a detached task queues its R2Ts.
        if let Some(conn) = conn {
            self.count_repair(conn, |repairs| repairs.recovery_r2ts += 1);
            self.queue(conn, Output::R2t(key, fresh));
        }
    }

    /// Polls a connection that may owe data: asks again for sequences that were silent since the last poll,
    /// and drops the connection once it has received no data for too long.
    pub(super) fn repair_late_data(&mut self, now: Instant, conn: ConnId) {
        let (within, after) = (self.limits.data_within, self.limits.repair_after);
        let Some(session) = self.conn(conn).and_then(|connection| connection.session) else { return };
        let Some(connection) = self.conn_mut(conn) else { return };
        let before = connection.data_out_bytes_at_poll.replace(connection.data_out_bytes);
        let idle = before == Some(connection.data_out_bytes);
        connection.data_idle_polls = if idle { connection.data_idle_polls + 1 } else { 0 };
        let waited = after.as_nanos().saturating_mul(connection.data_idle_polls.into());
        let Some(state) = self.sessions.get(session) else { return };
        let owing: alloc::vec::Vec<Key> = state
            .tasks(&self.tasks)
            .filter(|(_, task)| task.is_on(conn) && task.data_out.is_expecting())
            .map(|(key, _)| key)
            .collect();
        if owing.is_empty() {
            if let Some(connection) = self.conn_mut(conn) {
                (connection.data_out_bytes_at_poll, connection.data_idle_polls) = (None, 0);
            }
            return self.watch_deprioritized(now, conn);
        }
        if waited >= within.as_nanos() {
            return self.handle_omission(conn, ProtocolError::DataTooSlow);
        }
        let mut late: smallvec::SmallVec<[(Key, Ttt); 4]> = smallvec::SmallVec::new();
        for key in owing {
            let Some(task) = self.tasks.get_mut(key) else { continue };
            for sequence in task.data_out.sequences_mut().filter(|sequence| sequence.is_announced()) {
                if sequence.poll(idle) {
                    late.push((key, sequence.ttt()));
                }
            }
        }
        for (key, ttt) in late {
            self.request_recovery_r2t(key, ttt);
        }
        if let Some(connection) = self.conn_mut(conn) {
            connection.deadlines.clear(Timer::Data);
        }
        self.watch_data(now, conn);
    }
}

/// Returns whether a gap in the DataSNs of a sequence is a loss that a recovery R2T repairs.
pub(super) const fn is_gap_repaired(level: RecoveryLevel) -> bool {
    let response = recovery::target_response(level, ProtocolError::DataSnOutOfOrder);
    matches!(response.action, TargetAction::RequestAgain(_))
}
