//! ErrorRecoveryLevel 1 (RFC 7143 §7.1.5): PDUs that are lost or damaged within a connection are recovered
//! within that connection, without any effect on the SCSI layer.
//!
//! TCP loses nothing, so a PDU is lost in only one way: a digest is wrong. The possible recovery depends on
//! how much of the PDU is still known.
//!
//! * A wrong *header* digest: not even the task is known. The PDU is dropped without a word, if its end can
//!   be found at all ([`crate::framing`]), and its absence shows later: as a gap in the CmdSNs, which the
//!   initiator fills by sending the command again (§7.2.1); as a gap in the DataSNs, or as silence, on which
//!   the target asks again.
//! * A wrong *data* digest: the header is good. The PDU is refused with reason *data digest error* (§7.8),
//!   which for a command ends the matter: it counts as never received. Data of a task is asked for again.
//!
//! The method of the request depends on the direction. The initiator uses SNACK (§11.16): for Data-In and R2T
//! by their numbers in the task, for statuses by their numbers in the connection. The target therefore keeps
//! everything that has such a number until it is acknowledged: statuses by ExpStatSN; Data-In by a SNACK that
//! acknowledges data, which the A bit requests, or with the status of its command. The target uses the
//! *recovery R2T* (§7.8, §7.9): an R2T with the next free R2TSN that requests a range which an earlier R2T
//! requested already. A target never requests a status or a command again. It can only state the numbers that
//! it expects, in any PDU, and sends a NOP-In when it has no other PDU to send.
//!
//! A retry of a command that did arrive is a duplicate and ignored (§4.2.2.1): its CmdSN is below ExpCmdSN.
//! That also holds after the response was sent; an initiator that misses the response requests it with a
//! SNACK.

use super::{InitiatorAction, TargetAction, TargetResponse, TransportSense, erl0};
use crate::initiator::protocol_error::ProtocolError as TargetFault;
use crate::pdu::reject::RejectReason;
use crate::target::protocol_error::ProtocolError;

/// Returns the response of a target to the rule `why` that the initiator broke: as at level 0, but lost data
/// is requested again.
pub const fn target_response(why: ProtocolError) -> TargetResponse {
    match why {
        // §7.8: the header of the Data-Out is good, so its sequence is known.
        ProtocolError::DataOutDigestMismatch => TargetResponse {
            reject: Some(RejectReason::DATA_DIGEST_ERROR),
            action: TargetAction::RequestAgain(TransportSense::CrcError),
        },
        // §7.9: a gap implies a digest error on the missing PDU, and is handled in the same way.
        ProtocolError::DataSnOutOfOrder => {
            TargetResponse { reject: None, action: TargetAction::RequestAgain(TransportSense::CrcError) }
        }
        why => erl0::target_response(why),
    }
}

/// Returns the response of an initiator to the rule `why` that the target broke: as at level 0, but lost PDUs
/// are requested again, and commands that did not arrive are sent again.
pub const fn initiator_response(why: TargetFault) -> InitiatorAction {
    match why {
        // §7.8: the header is good, so the numbers of the discarded PDU are known.
        TargetFault::DataDigestMismatch => InitiatorAction::RequestMissing,
        // §7.9: a gap implies a digest error on the missing PDUs, and a number that was seen before is the
        // answer to a SNACK that was sent too early.
        TargetFault::StatSnOutOfOrder | TargetFault::DataSnOutOfOrder | TargetFault::R2tSnOutOfOrder => {
            InitiatorAction::RequestMissing
        }
        // §7.2.1: the command fills the gap in the CmdSNs that its loss, or its Reject, left.
        TargetFault::CommandLost | TargetFault::CommandDamaged => InitiatorAction::RetryCommand,
        why => erl0::initiator_response(why),
    }
}

/// Determines which of the numbers `first..next`, those sent and not acknowledged, a SNACK with this BegRun
/// and RunLength requests (§11.16.6, §11.16.7). Returns the first of them and their count, or `None` when the
/// SNACK requests numbers outside. A SNACK that requests all existing numbers may match none.
pub fn snack_run(first: u32, next: u32, beg_run: u32, run_length: u32) -> Option<(u32, u32)> {
    let kept = next.wrapping_sub(first);
    if beg_run == 0 && run_length == 0 {
        return Some((first, kept));
    }
    let skipped = beg_run.wrapping_sub(first);
    let left = kept.checked_sub(skipped).filter(|left| *left > 0)?;
    match run_length {
        0 => Some((beg_run, left)),
        len if len <= left => Some((beg_run, len)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOP: u32 = u32::MAX;

    #[test]
    fn a_run_is_served_only_if_all_of_it_was_sent_and_none_acknowledged() {
        for (first, next, beg, len, expected) in [
            // All numbers that are not acknowledged.
            (3, 7, 0, 0, Some((3, 4))),
            (3, 3, 0, 0, Some((3, 0))),
            (TOP - 1, 2, 0, 0, Some((TOP - 1, 4))),
            // All numbers from a given one on.
            (3, 7, 5, 0, Some((5, 2))),
            (3, 7, 3, 0, Some((3, 4))),
            (3, 7, 7, 0, None),
            (3, 7, 2, 0, None),
            // A part of the numbers.
            (3, 7, 5, 2, Some((5, 2))),
            (3, 7, 5, 3, None),
            (3, 7, 5, TOP, None),
            (3, 7, 2, 1, None),
            (3, 7, 0, 1, None),
            (0, 7, 0, 1, Some((0, 1))),
            (0, 0, 0, 1, None),
            // Across the wraparound.
            (TOP - 1, 2, TOP, 2, Some((TOP, 2))),
            (TOP - 1, 2, 0, 2, Some((0, 2))),
            (TOP - 1, 2, 1, 2, None),
            (TOP - 1, 2, TOP - 2, 1, None),
            (1, 1 << 31, (1 << 31) - 1, 1, Some(((1 << 31) - 1, 1))),
        ] {
            assert_eq!(snack_run(first, next, beg, len), expected, "{first}..{next}: {beg} {len}");
        }
    }
}
