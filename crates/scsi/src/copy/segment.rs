//! Segment descriptors (SPC-4 §6.4.6): the steps of a copy, in order.

use alloc::vec::Vec;

use base::units::Lba;

use super::cscd::{CscdId, id_at};
use super::{CopyError, len16, u8_at, u16_at, u32_at, u64_at};

/// Type code: copy blocks to blocks.
pub const BLOCK_TO_BLOCK: u8 = 0x02;
/// Type code: verify that a unit can be reached.
pub const VERIFY_CSCD: u8 = 0x07;
/// Type code: copy blocks to blocks, with the length in bytes and offsets within the first blocks.
pub const BLOCK_TO_BLOCK_WITH_OFFSETS: u8 = 0x0a;

/// The type codes that this module supports, in the order that VPD page 8Fh requires.
pub const KNOWN: [u8; 3] = [BLOCK_TO_BLOCK, VERIFY_CSCD, BLOCK_TO_BLOCK_WITH_OFFSETS];

/// One step of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The offset of the descriptor in the parameter list, for sense data.
    pub at: usize,
    /// The action of the step.
    pub action: SegmentAction,
}

/// The action of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentAction {
    /// Copies whole blocks (02h).
    Blocks {
        /// Whether `count` counts blocks of the destination (DC), else of the source.
        counts_destination: bool,
        /// Whether residual data is kept for the next segment (CAT).
        keep_residual: bool,
        /// The unit to read.
        source: CscdId,
        /// The unit to write.
        destination: CscdId,
        /// The number of blocks.
        count: u16,
        /// The first block to read.
        source_lba: Lba,
        /// The first block to write.
        destination_lba: Lba,
    },
    /// Copies bytes (0Ah).
    Bytes {
        /// Whether residual data is kept for the next segment (CAT).
        keep_residual: bool,
        /// The unit to read.
        source: CscdId,
        /// The unit to write.
        destination: CscdId,
        /// The number of bytes.
        len: u32,
        /// The first block to read.
        source_lba: Lba,
        /// The first block to write.
        destination_lba: Lba,
        /// The number of bytes to skip in the first block that is read.
        source_offset: u16,
        /// The number of bytes to skip in the first block that is written.
        destination_offset: u16,
    },
    /// Verifies that a unit can be reached (07h).
    Verify {
        /// The unit.
        source: CscdId,
        /// Whether the unit must also be ready.
        test_unit_ready: bool,
    },
}

impl SegmentAction {
    /// Parses the descriptor at byte `at` of the parameter list `list`, whose segment descriptors end at
    /// `end`. Returns the action and the length of the descriptor.
    ///
    /// # Errors
    /// The type is not supported, the descriptor is cut short, or its length is not the length of its type.
    pub fn parse(list: &[u8], at: usize, end: usize) -> Result<(Self, usize), CopyError> {
        let kind = u8_at(list, at);
        let len = match kind {
            BLOCK_TO_BLOCK => 28,
            VERIFY_CSCD => 12,
            BLOCK_TO_BLOCK_WITH_OFFSETS => 32,
            _ => return Err(CopyError::UnsupportedSegmentType { byte: at }),
        };
        let bytes = list
            .get(at..end.min(list.len()))
            .and_then(|rest| rest.get(..len))
            .ok_or(CopyError::LengthError)?;
        if usize::from(u16_at(bytes, 2)) + 4 != len {
            return Err(CopyError::field(at + 2));
        }
        let keep_residual = u8_at(bytes, 1) & 1 != 0;
        let (source, destination) = (id_at(bytes, 4), id_at(bytes, 6));
        let (source_lba, destination_lba) = (Lba(u64_at(bytes, 12)), Lba(u64_at(bytes, 20)));
        let action = match kind {
            BLOCK_TO_BLOCK => Self::Blocks {
                counts_destination: u8_at(bytes, 1) & 2 != 0,
                keep_residual,
                source,
                destination,
                count: u16_at(bytes, 10),
                source_lba,
                destination_lba,
            },
            VERIFY_CSCD => Self::Verify { source, test_unit_ready: u8_at(bytes, 8) & 1 != 0 },
            _ => Self::Bytes {
                keep_residual,
                source,
                destination,
                len: u32_at(bytes, 8),
                source_lba,
                destination_lba,
                source_offset: u16_at(bytes, 28),
                destination_offset: u16_at(bytes, 30),
            },
        };
        Ok((action, len))
    }

    /// Appends the descriptor to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        let mut head = |kind: u8, flags: u8, len: usize, source: CscdId, destination: CscdId| {
            out.extend([kind, flags]);
            out.extend(len16(len));
            out.extend(source.0.to_be_bytes());
            out.extend(destination.0.to_be_bytes());
        };
        match *self {
            Self::Blocks {
                counts_destination,
                keep_residual,
                source,
                destination,
                count,
                source_lba,
                destination_lba,
            } => {
                let flags = u8::from(counts_destination) << 1 | u8::from(keep_residual);
                head(BLOCK_TO_BLOCK, flags, 24, source, destination);
                out.extend([0, 0]);
                out.extend(count.to_be_bytes());
                out.extend(source_lba.0.to_be_bytes());
                out.extend(destination_lba.0.to_be_bytes());
            }
            Self::Bytes {
                keep_residual,
                source,
                destination,
                len,
                source_lba,
                destination_lba,
                source_offset,
                destination_offset,
            } => {
                head(BLOCK_TO_BLOCK_WITH_OFFSETS, u8::from(keep_residual), 28, source, destination);
                out.extend(len.to_be_bytes());
                out.extend(source_lba.0.to_be_bytes());
                out.extend(destination_lba.0.to_be_bytes());
                out.extend(source_offset.to_be_bytes());
                out.extend(destination_offset.to_be_bytes());
            }
            Self::Verify { source, test_unit_ready } => {
                head(VERIFY_CSCD, 0, 8, source, CscdId(0));
                out.extend([u8::from(test_unit_ready), 0, 0, 0]);
            }
        }
    }
}

/// Parses all segment descriptors in `start..start + len` of a list.
pub(super) fn parse_all(
    list: &[u8],
    start: usize,
    len: usize,
    count_max: u16,
) -> Result<Vec<Segment>, CopyError> {
    let mut segments = Vec::new();
    let mut at = start;
    while at < start + len {
        if segments.len() >= usize::from(count_max) {
            return Err(CopyError::TooManySegments { byte: at });
        }
        let (action, step) = SegmentAction::parse(list, at, start + len)?;
        segments.push(Segment { at, action });
        at += step;
    }
    Ok(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn examples() -> [SegmentAction; 3] {
        let (source, destination) = (CscdId(1), CscdId(0xffff));
        [
            SegmentAction::Blocks {
                counts_destination: true,
                keep_residual: false,
                source,
                destination,
                count: 0x1234,
                source_lba: Lba(5),
                destination_lba: Lba(1 << 40),
            },
            SegmentAction::Bytes {
                keep_residual: true,
                source,
                destination,
                len: 0x1234_5678,
                source_lba: Lba(7),
                destination_lba: Lba(8),
                source_offset: 511,
                destination_offset: 3,
            },
            SegmentAction::Verify { source, test_unit_ready: true },
        ]
    }

    #[test]
    fn segments_survive_the_wire() {
        for (action, len) in examples().into_iter().zip([28, 32, 12]) {
            let mut bytes = Vec::new();
            action.append_to(&mut bytes);
            assert_eq!(bytes.len(), len);
            assert_eq!(SegmentAction::parse(&bytes, 0, len), Ok((action, len)));
        }
    }

    #[test]
    fn a_block_segment_stands_as_spc_has_it() {
        let mut bytes = Vec::new();
        examples()[0].append_to(&mut bytes);
        assert_eq!(bytes[..12], [2, 2, 0, 24, 0, 1, 0xff, 0xff, 0, 0, 0x12, 0x34]);
        assert_eq!(bytes[12..], [0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn refuses_wrong_lengths_and_unknown_types() {
        for action in examples() {
            let mut bytes = Vec::new();
            action.append_to(&mut bytes);
            for cut in 1..bytes.len() {
                let refused = SegmentAction::parse(&bytes[..cut], 0, cut);
                assert_eq!(refused, Err(CopyError::LengthError), "{action:?} cut to {cut}");
            }
            bytes[3] += 1;
            assert_eq!(SegmentAction::parse(&bytes, 0, bytes.len()), Err(CopyError::field(2)));
        }
        for kind in (0..=0xff_u8).filter(|kind| !KNOWN.contains(kind)) {
            let refused = SegmentAction::parse(&[kind; 40], 0, 40);
            assert_eq!(refused, Err(CopyError::UnsupportedSegmentType { byte: 0 }), "{kind:#x}");
        }
    }
}
