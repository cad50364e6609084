//! The acknowledgement: which packet numbers were received on one path in one packet number space, and how
//! far the sender may go. An acknowledgement is the payload of an Ack frame. In any other frame with the flag
//! ACKS it stands in front of the rest of the payload.

use alloc::vec::Vec;

use base::bytes::Reader;

use super::{Block, Malformed, put_block};

/// How many ranges below the first one an acknowledgement names. A receiver with more gaps names the newest
/// ranges. Older ones are named again when the newer gaps have closed, or their frames are sent again.
pub const RANGES_MAX: usize = 32;

/// The length of the block without further ranges and without items.
pub const ACK_LEN: usize = 36;
/// The length of one further range.
pub const RANGE_LEN: usize = 8;

/// The bits of a packet number that count frames; the bits above them name the path.
pub const PN_COUNT_MASK: u64 = (1 << 56) - 1;

const ABOUT_OPEN: u8 = 1;
const ABOUT_SEALED: u8 = 2;

/// An acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack<'a> {
    /// Whether the acknowledgement is about the packet number space of protected frames.
    pub sealed: bool,
    /// The largest packet number received, with its path in the top byte; a count of 0 means that none was
    /// received.
    pub largest: u64,
    /// How long ago the frame with that number was received, in microseconds.
    pub delay_us: u32,
    /// How many packet numbers up to `largest`, and including it, were received without a gap; 0 if none was.
    pub first: u32,
    /// The largest packet number that may be used on this path in this space.
    pub pn_limit: u64,
    /// The largest exchange (XID) that may be begun, as a target grants it; 0 from an initiator.
    pub xid_limit: u32,
    /// How many frames this path's receiver lost because its receive ring was full, as far as it knows. The
    /// count only rises, and wraps.
    pub overruns: u32,
    /// The further ranges, in descending order.
    pub ranges: Ranges<'a>,
}

/// A range of packet numbers that were received, below another range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// How many numbers between the range above and this one were not received; at least 1.
    pub gap: u32,
    /// How many numbers were received; at least 1.
    pub len: u32,
}

/// The further ranges of an [`Ack`], in descending order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ranges<'a>(&'a [u8]);

impl Iterator for Ranges<'_> {
    type Item = Range;

    fn next(&mut self) -> Option<Range> {
        let mut reader = Reader::new(self.0);
        let (gap, len) = (reader.u32().ok()?, reader.u32().ok()?);
        self.0 = reader.rest();
        Some(Range { gap, len })
    }
}

impl<'a> Ack<'a> {
    /// Appends the block to `out`, with `ranges` in place of its own ranges; those beyond [`RANGES_MAX`] are
    /// left out.
    pub fn encode(&self, ranges: impl Iterator<Item = Range>, out: &mut Vec<u8>) {
        let kind = if self.sealed { ABOUT_SEALED } else { ABOUT_OPEN };
        let start = out.len();
        put_block(out, kind, 0, |out| {
            out.extend_from_slice(&self.largest.to_be_bytes());
            out.extend_from_slice(&self.delay_us.to_be_bytes());
            out.extend_from_slice(&self.first.to_be_bytes());
            out.extend_from_slice(&self.pn_limit.to_be_bytes());
            out.extend_from_slice(&self.xid_limit.to_be_bytes());
            out.extend_from_slice(&self.overruns.to_be_bytes());
            for range in ranges.take(RANGES_MAX) {
                out.extend_from_slice(&range.gap.to_be_bytes());
                out.extend_from_slice(&range.len.to_be_bytes());
            }
        });
        let count = (out.len() - start).saturating_sub(ACK_LEN) / RANGE_LEN;
        if let Some(info) = out.get_mut(start + 1) {
            *info = u8::try_from(count).unwrap_or_default();
        }
    }

    /// Parses the block at the front of `payload`. Returns the block and the bytes behind it.
    ///
    /// # Errors
    /// [`Malformed`]; also when the ranges reach below the first packet number, or the limit belongs to
    /// another path.
    pub fn parse(payload: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        let mut block = Block::parse(payload)?;
        let sealed = match block.kind {
            ABOUT_OPEN => false,
            ABOUT_SEALED => true,
            _ => return Err(Malformed::Kind),
        };
        let count = usize::from(block.info);
        if count > RANGES_MAX {
            return Err(Malformed::Value);
        }
        let body = &mut block.body;
        let ack = Self {
            sealed,
            largest: body.u64()?,
            delay_us: body.u32()?,
            first: body.u32()?,
            pn_limit: body.u64()?,
            xid_limit: body.u32()?,
            overruns: body.u32()?,
            ranges: Ranges(body.take(count * RANGE_LEN)?),
        };
        ack.check()?;
        block.no_more()?;
        Ok((ack, block.rest))
    }

    fn check(&self) -> Result<(), Malformed> {
        let largest = self.largest & PN_COUNT_MASK;
        let none = largest == 0 && self.first == 0 && self.ranges.0.is_empty();
        if self.largest & !PN_COUNT_MASK != self.pn_limit & !PN_COUNT_MASK || (!none && self.first == 0) {
            return Err(Malformed::Value);
        }
        // The check counts down through all ranges to the number of packet numbers below them. The first
        // packet number is 1.
        let below = largest.checked_sub(u64::from(self.first));
        self.ranges
            .filter(|range| range.gap != 0 && range.len != 0)
            .try_fold((below, 0_usize), |(below, count), range| {
                let below = below?.checked_sub(u64::from(range.gap) + u64::from(range.len));
                below.map(|below| (Some(below), count + 1))
            })
            .filter(|(below, count)| below.is_some() && *count == self.ranges.0.len() / RANGE_LEN)
            .map(|_| ())
            .ok_or(Malformed::Value)
    }
}
