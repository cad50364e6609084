//! ErrorRecoveryLevel 2 (RFC 7143 §7.1.5): the tasks of a lost connection survive.
//!
//! A task has allegiance to the connection that its command was received on (§4.2.5.1). When that connection
//! is lost, the task continues without a connection: it is a *detached task*. The initiator recovers it in
//! two steps. First it ends the old connection, by a logout *for recovery* on another connection, or by a
//! login with the same CID, which implies that logout (§6.3.4). Then one TASK REASSIGN for each task moves
//! the task to the connection that the request is received on (§7.2.2). On that connection the target sends
//! again everything that the initiator has not acknowledged, requests the missing Data-Out with recovery
//! R2Ts, and sends a status although it may have sent one before. The StatSN of the old connection means
//! nothing on the new one.
//!
//! Detached tasks wait for Time2Wait and Time2Retain, counted from the loss of the connection, and again from
//! a logout for recovery. Tasks that are not reassigned by then are aborted. A session without connections is
//! kept for the same time, and any login with its TSIH continues it.
//!
//! Level 2 has no table of broken rules of its own: a rule that costs the connection at level 1 costs it here
//! too. The difference is what the loss of a connection costs ([`RecoveryLevel::reassigns_tasks`]).

use transport::task_management::TmfResult;

use super::RecoveryLevel;
use crate::serial::DataSn;

/// The task that a TASK REASSIGN names in its Referenced Task Tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferencedTask {
    /// The task does not exist: its command was never received, or its status is acknowledged.
    Unknown,
    /// The task has allegiance to a connection that works.
    Connected,
    /// The task is detached: its connection is lost.
    Detached {
        /// Whether the lost connection was logged out for recovery.
        released: bool,
    },
}

/// Returns the target's response to a TASK REASSIGN.
pub const fn reassign(level: RecoveryLevel, task: ReferencedTask) -> TmfResult {
    match task {
        //= rfc7143#section-7.2.2
        //# When a target does not support allegiance reassignment, it MUST respond
        //# with a task management response code of "Task allegiance reassignment
        //# not supported".
        _ if !level.reassigns_tasks() => TmfResult::NO_REASSIGNMENT,
        ReferencedTask::Unknown => TmfResult::NO_TASK,
        //= rfc7143#section-7.2.2
        //# If allegiance reassignment is supported by the
        //# target but the task is still allegiant to a different connection, or
        //# a successful recovery Logout of the previously allegiant connection
        //# was not performed, the target MUST respond with a task management
        //# response code of "Task still allegiant".
        ReferencedTask::Connected | ReferencedTask::Detached { released: false } => {
            TmfResult::STILL_ALLEGIANT
        }
        ReferencedTask::Detached { released: true } => TmfResult::COMPLETE,
    }
}

/// Returns which Data-In PDUs a TASK REASSIGN acknowledges with its ExpDataSN: all before the returned
/// number. PDUs from `acked` on are not acknowledged yet, and `next` is the first that was not sent
/// (§11.5.6).
pub fn acknowledges(acked: DataSn, next: DataSn, exp_data_sn: DataSn) -> DataSn {
    //= rfc7143#section-11.5.6
    //# Any other value MUST be ignored by the target.
    // Zero means that nothing changed, and a number out of range is ignored.
    let is_new = acked.distance_to(exp_data_sn) <= acked.distance_to(next);
    if exp_data_sn != DataSn(0) && is_new { exp_data_sn } else { acked }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_detached_task_of_a_logged_out_connection_is_reassigned() {
        use ReferencedTask::{Connected, Detached, Unknown};
        for (level, task, expected) in [
            (0, Detached { released: true }, TmfResult::NO_REASSIGNMENT),
            (1, Unknown, TmfResult::NO_REASSIGNMENT),
            (2, Unknown, TmfResult::NO_TASK),
            (2, Connected, TmfResult::STILL_ALLEGIANT),
            (2, Detached { released: false }, TmfResult::STILL_ALLEGIANT),
            (2, Detached { released: true }, TmfResult::COMPLETE),
        ] {
            let level = RecoveryLevel::new(level);
            assert_eq!(reassign(level, task), expected, "{level:?} {task:?}");
        }
    }

    #[test]
    fn an_acknowledgement_that_cannot_be_is_ignored() {
        const TOP: u32 = u32::MAX;
        for (acked, next, exp, expected) in [
            (2, 8, 0, 2),
            (2, 8, 5, 5),
            (2, 8, 8, 8),
            (2, 8, 9, 2),
            (2, 8, 1, 2),
            (0, 0, 1, 0),
            (TOP - 1, 3, TOP, TOP),
            (TOP - 1, 3, 2, 2),
            (TOP - 1, 3, 4, TOP - 1),
        ] {
            let got = acknowledges(DataSn(acked), DataSn(next), DataSn(exp));
            assert_eq!(got, DataSn(expected), "{acked} {next} {exp}");
        }
    }
}
