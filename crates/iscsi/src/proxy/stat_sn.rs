//! The distance between the StatSNs of the two connections.
//!
//! Responses to the initiator have the StatSN of those of the target, so the distance is zero. It is another
//! one where the proxy itself answered the first pieces of a text, before there was a connection to the
//! target. Then StatSN, ExpStatSN and the numbers in a Status SNACK are changed on their way.

use alloc::vec::Vec;

use crate::pdu::snack::{Snack, SnackKind};
use crate::pdu::{BHS_LEN, Bhs, Opcode, PduHeader as _};
use crate::serial::StatSn;

/// How far the StatSNs of the initiator's connection are ahead of those of the target's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StatSnDistance(u32);

/// Where the PDUs of a target have StatSN, those of an initiator ExpStatSN, and a SNACK BegRun.
const STAT_SN: usize = 24;
const EXP_STAT_SN: usize = 28;
const BEG_RUN: usize = 40;

/// The flag of a Data-In that carries a status (RFC 7143 §11.7).
const STATUS: u8 = 0x01;

impl StatSnDistance {
    pub(super) const fn between(initiator: StatSn, target: StatSn) -> Self {
        Self(initiator.0.wrapping_sub(target.0))
    }

    /// Returns the StatSN of the initiator's connection.
    pub(super) const fn for_initiator(self, target: StatSn) -> StatSn {
        StatSn(target.0.wrapping_add(self.0))
    }

    /// Changes the header of a target's PDU for the initiator.
    pub(super) fn header_for_initiator(self, bhs: Bhs) -> Bhs {
        // A Data-In PDU without status has no StatSN.
        let is_data = bhs.opcode() == Opcode::DATA_IN && bhs.flags() & STATUS == 0;
        if is_data { bhs } else { moved(bhs, STAT_SN, self.0) }
    }

    /// Changes the header of an initiator's PDU for the target.
    pub(super) fn header_for_target(self, bhs: Bhs) -> Bhs {
        request(bhs, self.0.wrapping_neg())
    }

    /// Changes the data of a target's Reject for the initiator: the header that it rejects.
    pub(super) fn rejected_for_initiator(self, data: &[u8]) -> Option<Vec<u8>> {
        let (header, rest) = data.split_first_chunk::<BHS_LEN>().filter(|_| self.0 != 0)?;
        let header = request(Bhs::from_bytes(*header), self.0);
        Some([header.bytes(), rest].concat())
    }
}

/// Adds `distance` to the StatSNs in the header of an initiator's PDU.
fn request(bhs: Bhs, distance: u32) -> Bhs {
    let bhs = moved(bhs, EXP_STAT_SN, distance);
    match Snack::decode(&bhs) {
        // Zeros request all that is not acknowledged.
        Ok(Snack { kind: SnackKind::STATUS, beg_run: 0, run_length: 0, .. }) => bhs,
        Ok(Snack { kind: SnackKind::STATUS, .. }) => moved(bhs, BEG_RUN, distance),
        _ => bhs,
    }
}

/// Adds `distance` to the number at `at`.
fn moved(bhs: Bhs, at: usize, distance: u32) -> Bhs {
    let mut bytes = bhs.to_bytes();
    if let Some(number) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *number = u32::from_be_bytes(*number).wrapping_add(distance).to_be_bytes();
    }
    Bhs::from_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(opcode: Opcode, flags: u8, words: [u32; 6]) -> Bhs {
        let mut bytes = [0; BHS_LEN];
        (bytes[0], bytes[1], bytes[7]) = (opcode.0, flags, 9);
        for (at, word) in words.into_iter().enumerate() {
            bytes[24 + 4 * at..][..4].copy_from_slice(&word.to_be_bytes());
        }
        Bhs::from_bytes(bytes)
    }

    /// Words: StatSN or CmdSN, ExpCmdSN or ExpStatSN, MaxCmdSN, DataSN, BegRun or buffer offset, RunLength.
    #[test]
    fn only_stat_sns_are_changed() {
        let distance = StatSnDistance::between(StatSn(2), StatSn(5));
        assert_eq!(distance.for_initiator(StatSn(5)), StatSn(2));
        let words = [1, 2, 3, 4, 5, 6];
        for (opcode, flags, wanted) in [
            (Opcode::SCSI_RESPONSE, 0x80, [u32::MAX - 1, 2, 3, 4, 5, 6]),
            (Opcode::DATA_IN, 0x80, words),
            (Opcode::DATA_IN, 0x81, [u32::MAX - 1, 2, 3, 4, 5, 6]),
            (Opcode::R2T, 0x80, [u32::MAX - 1, 2, 3, 4, 5, 6]),
        ] {
            let changed = distance.header_for_initiator(header(opcode, flags, words));
            assert_eq!(changed, header(opcode, flags, wanted), "{opcode:?} {flags:02x}");
        }
        for (opcode, flags, words, wanted) in [
            (Opcode::SCSI_COMMAND, 0x80, words, [1, 5, 3, 4, 5, 6]),
            (Opcode::DATA_OUT, 0x80, words, [1, 5, 3, 4, 5, 6]),
            (Opcode::SNACK, 0x80, words, [1, 5, 3, 4, 5, 6]),
            (Opcode::SNACK, 0x81, words, [1, 5, 3, 4, 8, 6]),
            (Opcode::SNACK, 0x81, [1, 2, 3, 4, 0, 6], [1, 5, 3, 4, 3, 6]),
            (Opcode::SNACK, 0x81, [1, 2, 3, 4, 0, 0], [1, 5, 3, 4, 0, 0]),
        ] {
            let (theirs, ours) = (header(opcode, flags, words), header(opcode, flags, wanted));
            assert_eq!(distance.header_for_target(theirs), ours, "{opcode:?} {flags:02x}");
            let rejected = distance.rejected_for_initiator(&[ours.bytes(), &b"rest"[..]].concat());
            assert_eq!(rejected.unwrap(), [theirs.bytes(), &b"rest"[..]].concat());
        }
        assert_eq!(StatSnDistance::default().rejected_for_initiator(&[0; 48]), None);
    }
}
