//! ErrorRecoveryLevel 2 (RFC 7143 §7.1.5): a connection can be lost, and the tasks on it are not.
//!
//! A task belongs to the connection that its command came on (§4.2.5.1). When that connection is gone, the task goes
//! on but has nobody to speak to: it is *adrift*. The initiator takes it up again in two steps. First the old connection
//! is laid to rest, by a logout *for recovery* on another connection, or by a login with the same CID, which says the
//! same without words (§6.3.4). Then TASK REASSIGN, once for each task, moves it to the connection that the
//! request comes on (§7.2.2): what the initiator has not acknowledged is sent again there, what it still owes is asked
//! for with recovery R2Ts, and a status is given although one may have been given before. Its number on the old
//! connection means nothing on the new one.
//!
//! Tasks wait for Time2Wait and Time2Retain, counted from the loss, and anew from a logout for recovery. What is not
//! claimed by then is aborted. A session without connections lives as long, and any login with its TSIH continues it.

use crate::pdu::tmf_response::TmfResult;
use crate::serial::DataSn;

/// What a target knows of the task that a TASK REASSIGN names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allegiance {
    /// There is no such task: its command never came, or its status is acknowledged.
    Unknown,
    /// A connection that works.
    Connected,
    /// A connection that is gone.
    Detached {
        /// Whether it was logged out for recovery.
        released: bool,
    },
}

/// Returns what a target answers to a TASK REASSIGN.
pub const fn reassign(level: u8, allegiance: Allegiance) -> TmfResult {
    match allegiance {
        //= rfc7143#section-7.2.2
        //# When a target does not support allegiance reassignment, it MUST respond
        //# with a task management response code of "Task allegiance reassignment
        //# not supported".
        _ if level < 2 => TmfResult::NO_REASSIGNMENT,
        Allegiance::Unknown => TmfResult::NO_TASK,
        //= rfc7143#section-7.2.2
        //# If allegiance reassignment is supported by the
        //# target but the task is still allegiant to a different connection, or
        //# a successful recovery Logout of the previously allegiant connection
        //# was not performed, the target MUST respond with a task management
        //# response code of "Task still allegiant".
        Allegiance::Connected | Allegiance::Detached { released: false } => TmfResult::STILL_ALLEGIANT,
        Allegiance::Detached { released: true } => TmfResult::COMPLETE,
    }
}

/// Returns which Data-In PDUs a TASK REASSIGN acknowledges with its ExpDataSN: all before the returned one. Those from
/// `acked` on are not acknowledged yet, and `next` is the first that was not sent (§11.5.6).
pub fn acknowledges(acked: DataSn, next: DataSn, exp_data_sn: DataSn) -> DataSn {
    // Zero says that nothing changed, and what lies outside is to be ignored.
    let is_new = acked.distance_to(exp_data_sn) <= acked.distance_to(next);
    if exp_data_sn != DataSn(0) && is_new { exp_data_sn } else { acked }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_task_adrift_from_a_connection_laid_to_rest_is_reassigned() {
        use Allegiance::{Connected, Detached, Unknown};
        for (level, allegiance, expected) in [
            (0, Detached { released: true }, TmfResult::NO_REASSIGNMENT),
            (1, Unknown, TmfResult::NO_REASSIGNMENT),
            (2, Unknown, TmfResult::NO_TASK),
            (2, Connected, TmfResult::STILL_ALLEGIANT),
            (2, Detached { released: false }, TmfResult::STILL_ALLEGIANT),
            (2, Detached { released: true }, TmfResult::COMPLETE),
        ] {
            assert_eq!(reassign(level, allegiance), expected, "{level} {allegiance:?}");
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
