//! ErrorRecoveryLevel 1 (RFC 7143 §7.1.5): what is lost or damaged within a connection is repaired within it, and the
//! SCSI layer notices nothing.
//!
//! TCP loses nothing, so a PDU is lost in one way only: a digest is wrong. What can be done about it depends on how
//! much of the PDU is still known.
//!
//! * A wrong *header* digest: not even the task is known. The PDU is dropped without a word, if its end can be found
//!   at all ([`crate::framing`]), and its absence shows later: as a gap in the CmdSNs, which the initiator fills by
//!   sending the command again (§7.2.1); as a gap in the DataSNs, or as silence, on which the target asks again.
//! * A wrong *data* digest: the header is good. The PDU is refused with reason *data digest error* (§7.8), which for a
//!   command ends the matter: it counts as never received. Data of a task is asked for again.
//!
//! Who asks again depends on the direction. The initiator has SNACK (§11.16): for Data-In and R2T by their numbers in
//! the task, for statuses by their numbers in the connection. So the target keeps everything that has such a number
//! until it is acknowledged: statuses by ExpStatSN, Data-In by a SNACK that acknowledges data, which the A bit asks
//! for, or with the status of its command. The target has the *recovery R2T* (§7.8, §7.9): one with the next
//! free R2TSN that asks for a range which an earlier one asked for already. A target never asks for a status or a
//! command; it can only show what it expects, in any PDU, and sends a NOP-In when nothing else is to be sent.
//!
//! A retry of a command that did arrive is a duplicate and passed over (§4.2.2.1): its number is behind ExpCmdSN.
//! That holds after the answer left too; who misses the answer asks for it with a SNACK.

use super::{ErrorResponse, RecoveryAction, TransportSense, erl0};
use crate::pdu::reject::RejectReason;
use crate::target::protocol_error::ProtocolError;

/// Returns what a target does about `protocol_error`: as at level 0, but lost data is asked for again.
pub const fn error_response(why: ProtocolError) -> ErrorResponse {
    match why {
        //= rfc7143#section-7.8
        //# When a target receives any iSCSI PDU with a payload digest error, it
        //# MUST answer with a Reject PDU with a reason code of Data-Digest-Error
        //# and discard the PDU.
        ProtocolError::DataDigestMismatch => ErrorResponse {
            reject: Some(RejectReason::DATA_DIGEST_ERROR),
            action: RecoveryAction::RequestAgain(TransportSense::CrcError),
        },
        // §7.9: a gap implies a digest error on what is missing, and that is addressed likewise.
        ProtocolError::DataSnOutOfOrder => {
            ErrorResponse { reject: None, action: RecoveryAction::RequestAgain(TransportSense::CrcError) }
        }
        why => erl0::error_response(why),
    }
}

/// Finds out which of the numbers `first..next`, those sent and not acknowledged, a SNACK asks for with this BegRun
/// and RunLength (§11.16.6, §11.16.7): returns the first of them and how many they are, or `None` when it asks for
/// numbers outside. A run that asks for all there are may be empty.
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
            // Everything that is not acknowledged.
            (3, 7, 0, 0, Some((3, 4))),
            (3, 3, 0, 0, Some((3, 0))),
            (TOP - 1, 2, 0, 0, Some((TOP - 1, 4))),
            // From somewhere on.
            (3, 7, 5, 0, Some((5, 2))),
            (3, 7, 3, 0, Some((3, 4))),
            (3, 7, 7, 0, None),
            (3, 7, 2, 0, None),
            // A piece.
            (3, 7, 5, 2, Some((5, 2))),
            (3, 7, 5, 3, None),
            (3, 7, 5, TOP, None),
            (3, 7, 2, 1, None),
            (3, 7, 0, 1, None),
            (0, 7, 0, 1, Some((0, 1))),
            (0, 0, 0, 1, None),
            // Across the wrap.
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
