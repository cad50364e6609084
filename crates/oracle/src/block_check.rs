//! Classifies a block that was read, by its bytes alone. Whether the block is the expected one is decided by
//! the history.

use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use base::units::Lba;

use crate::block_header::{BlockHeader, SECTOR, Sector, block_size};
use crate::fault_injection::{self, Bug};

/// The classification of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockCheck {
    /// Zeros throughout: the block was never written, or was zeroed.
    Zero,
    /// A whole signed block.
    Signed(BlockHeader),
    /// Intact sectors that do not belong together.
    Torn(Vec<Piece>),
    /// At least one sector that no writer wrote.
    Garbled(Garbled),
}

/// A run of sectors of a torn block that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its position in the block, in sectors.
    pub sectors: Range<usize>,
    /// The index, in the block that it belongs to, of its first sector.
    pub from: usize,
    /// Its header; `None` for zeros.
    pub header: Option<BlockHeader>,
}

/// The facts that can be determined about a garbled block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Garbled {
    /// Its header, if one can still be trusted: that of an intact sector, or that of a damaged sector whose
    /// header fits most of its filler.
    pub header: Option<BlockHeader>,
    /// The number of damaged sectors.
    pub sectors: usize,
    /// The first wrong byte, from the start of the block: exact when `header` is known, else the start of a
    /// sector.
    pub first: usize,
    /// The number of wrong bits, if it can be determined.
    pub bits: Option<u32>,
}

impl BlockCheck {
    /// Classifies the block that was read at an address.
    pub(crate) fn found_at(lba: Lba, block: &[u8]) -> Self {
        match Self::of(block) {
            Self::Signed(block_header) if fault_injection::is_injected(Bug::BelieveAddress) => {
                Self::Signed(BlockHeader { lba, ..block_header })
            }
            reading => reading,
        }
    }

    /// Classifies a block. A block of a length that no signed block can have is garbled.
    pub fn of(block: &[u8]) -> Self {
        let Ok(size) = block_size(block.len()) else {
            return Self::Garbled(Garbled { header: None, sectors: 1, first: 0, bits: None });
        };
        if is_zero(block) {
            return Self::Zero;
        }
        let mut pieces: Vec<Piece> = Vec::new();
        let mut garbled: Option<Garbled> = None;
        let mut sound: Option<BlockHeader> = None;
        for (at, bytes) in block.chunks(SECTOR).enumerate() {
            let sector = Sector::read(bytes).filter(|sector| sector.size == size);
            match sector {
                Some(Sector { block_header, index, sound: true, .. }) => {
                    sound = sound.or(Some(block_header));
                    extend(&mut pieces, at, index.into(), Some(block_header));
                }
                _ if is_zero(bytes) => extend(&mut pieces, at, at, None),
                damaged => blame(&mut garbled, at, bytes, damaged),
            }
        }
        if let Some(mut garbled) = garbled {
            garbled.header = garbled.header.or(sound);
            return Self::Garbled(garbled);
        }
        match pieces.as_slice() {
            [Piece { from: 0, header: Some(block_header), .. }] => Self::Signed(*block_header),
            _ => Self::Torn(pieces),
        }
    }
}

/// Adds an intact sector to the pieces found so far.
fn extend(pieces: &mut Vec<Piece>, at: usize, from: usize, block_header: Option<BlockHeader>) {
    match pieces.last_mut() {
        Some(last)
            if last.header == block_header
                && last.from + last.sectors.len() == from
                && last.sectors.end == at =>
        {
            last.sectors.end += 1;
        }
        _ => pieces.push(Piece { sectors: at..at + 1, from, header: block_header }),
    }
}

/// Adds a damaged sector to the garbled block.
fn blame(garbled: &mut Option<Garbled>, at: usize, bytes: &[u8], damaged: Option<Sector>) {
    // The header is trusted if the sector that it describes is nearly the sector that was read.
    let likely = damaged.and_then(|sector| {
        let whole = sector.restore();
        let bits: u32 = whole.iter().zip(bytes).map(|(a, b)| (a ^ b).count_ones()).sum();
        let first = whole.iter().zip(bytes).position(|(a, b)| a != b).unwrap_or(0);
        (bits < BITS_BELIEVED).then_some((sector.block_header, first, bits))
    });
    let first = at * SECTOR + likely.map_or(0, |(_, first, _)| first);
    let bits = likely.map(|(_, _, bits)| bits);
    match garbled {
        None => {
            *garbled = Some(Garbled {
                header: likely.map(|(block_header, ..)| block_header),
                sectors: 1,
                first,
                bits,
            });
        }
        Some(known) => {
            known.sectors += 1;
            known.header = known.header.or(likely.map(|(block_header, ..)| block_header));
            known.bits = known.bits.zip(bits).map(|(a, b)| a.saturating_add(b));
        }
    }
}

/// The number of wrong bits below which a damaged header is trusted: the filler that the header describes
/// must differ from the one that was read in fewer bits. Random bytes differ in about 1800 of the 3584 bits.
const BITS_BELIEVED: u32 = 512;

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

impl fmt::Display for BlockCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zero => f.write_str("zeros"),
            Self::Signed(block_header) => block_header.fmt(f),
            Self::Torn(pieces) => {
                for (number, piece) in pieces.iter().enumerate() {
                    let comma = if number == 0 { "" } else { "; " };
                    let Range { start, end } = piece.sectors;
                    write!(f, "{comma}sectors {start}..{end}: ")?;
                    match &piece.header {
                        None => f.write_str("zeros")?,
                        Some(block_header) if piece.from == start => block_header.fmt(f)?,
                        Some(block_header) => write!(f, "from sector {} of {block_header}", piece.from)?,
                    }
                }
                Ok(())
            }
            Self::Garbled(Garbled { header: block_header, sectors, first, bits }) => {
                write!(f, "{sectors} damaged sectors, the first wrong byte at {first}")?;
                if let Some(bits) = bits {
                    write!(f, ", {bits} wrong bits")?;
                }
                match block_header {
                    Some(block_header) => write!(f, "; it was {block_header}"),
                    None => f.write_str("; nothing in it says what it was"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_header::{DeviceId, Generation, Sequence, WriterId};
    use crate::pattern::Pattern;
    use alloc::string::ToString;
    use alloc::vec;
    use base::units::Lba;

    fn block_header(sequence: u64) -> BlockHeader {
        BlockHeader {
            device: DeviceId(1),
            lba: Lba(2),
            generation: Generation(sequence),
            writer: WriterId(3),
            sequence: Sequence(sequence),
            time_ns: 0,
            seed: 5,
            pattern: Pattern::Random,
        }
    }

    fn block(sequence: u64) -> Vec<u8> {
        let mut block = vec![0; 4096];
        block_header(sequence).sign(&mut block).unwrap();
        block
    }

    #[test]
    fn whole_blocks_are_told_from_zeros_and_torn_ones() {
        assert_eq!(BlockCheck::of(&[0; 4096]), BlockCheck::Zero);
        assert_eq!(BlockCheck::of(&block(7)), BlockCheck::Signed(block_header(7)));
        let mut torn = block(7);
        torn[1024..].copy_from_slice(&block(8)[1024..]);
        torn[3584..].fill(0);
        let piece = |sectors: Range<usize>, block_header| Piece {
            from: sectors.start,
            sectors,
            header: block_header,
        };
        let pieces =
            vec![piece(0..2, Some(block_header(7))), piece(2..7, Some(block_header(8))), piece(7..8, None)];
        assert_eq!(BlockCheck::of(&torn), BlockCheck::Torn(pieces));
    }

    #[test]
    fn a_shifted_block_is_not_whole() {
        let mut shifted = block(7);
        shifted.rotate_left(SECTOR);
        let BlockCheck::Torn(pieces) = BlockCheck::of(&shifted) else { panic!() };
        assert_eq!((pieces[0].from, pieces[1].from), (1, 0));
    }

    #[test]
    fn damage_is_found_where_it_is_and_the_stamp_still_told() {
        let mut damaged = block(7);
        damaged[600] ^= 0x11;
        let expected = Garbled { header: Some(block_header(7)), sectors: 1, first: 600, bits: Some(2) };
        assert_eq!(BlockCheck::of(&damaged), BlockCheck::Garbled(expected));
        let mut noise = vec![0; 512];
        base::rng::Rng::from_seed(1).fill(&mut noise);
        let nothing = Garbled { header: None, sectors: 1, first: 0, bits: None };
        assert_eq!(BlockCheck::of(&noise), BlockCheck::Garbled(nothing));
        assert!(matches!(BlockCheck::of(&[1; 100]), BlockCheck::Garbled(_)));
    }

    #[test]
    fn every_reading_says_what_it_is_in_words() {
        assert_eq!(
            BlockCheck::of(&block(7)).to_string(),
            "generation 7 of LBA 0x2 on device 0000000000000001, by writer 00000003 as its operation 7 at 0.000000000 s"
        );
        let mut damaged = block(7);
        damaged[600] ^= 1;
        assert!(
            BlockCheck::of(&damaged)
                .to_string()
                .starts_with("1 damaged sectors, the first wrong byte at 600")
        );
    }
}
