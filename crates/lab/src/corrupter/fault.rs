//! One fault in one PDU: which PDU, which part of it, and what happens to it.

use std::ops::Range;

use base::rng::Rng;
use iscsi::digest::{Crc32c, DIGEST_LEN};
use netem::stream::{PduLayout, StreamDirection};
use serde::{Deserialize, Serialize};

/// The kind of PDU that a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PduClass {
    /// SCSI Command, from initiator to target.
    Command,
    /// SCSI Data-Out, from initiator to target.
    DataOut,
    /// SCSI Data-In, from target to initiator.
    DataIn,
    /// SCSI Response, from target to initiator.
    Response,
}

impl PduClass {
    /// Returns the opcode of these PDUs.
    pub const fn opcode(self) -> u8 {
        match self {
            Self::Command => 0x01,
            Self::DataOut => 0x05,
            Self::Response => 0x21,
            Self::DataIn => 0x25,
        }
    }

    /// Returns the direction in which these PDUs travel.
    pub const fn direction(self) -> StreamDirection {
        match self {
            Self::Command | Self::DataOut => StreamDirection::Forward,
            Self::DataIn | Self::Response => StreamDirection::Backward,
        }
    }

    /// Returns the name of RFC 7143.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Command => "SCSI Command",
            Self::DataOut => "SCSI Data-Out",
            Self::DataIn => "SCSI Data-In",
            Self::Response => "SCSI Response",
        }
    }
}

/// The part of a PDU that a fault damages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// The data segment, padding included.
    Data,
    /// The LOGICAL BLOCK ADDRESS field of the CDB of a READ or WRITE.
    Lba,
    /// The Buffer Offset field of Data-In or Data-Out.
    BufferOffset,
    /// Any bit of the basic header segment, with the exceptions of [`Confinement`].
    Header,
}

/// What happens to the part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Damage {
    /// One bit flips.
    FlipBit,
    /// Two to five different bits flip.
    FlipBits,
    /// Two different 16-bit words swap places. The TCP checksum stays the same.
    SwapWords,
    /// One 16-bit word grows by one and another one shrinks by one. The TCP checksum stays the same.
    PairedWords,
    /// The end of the part, a random length in multiples of 4 bytes, is lost, and zeros take its place, as in
    /// a buffer of which a transfer filled only the beginning. The length of the PDU stays the same.
    Truncate,
    /// The PDU arrives twice, undamaged.
    Duplicate,
}

/// The blocks that damaged commands may address, so that an experiment destroys nothing but what it wrote.
///
/// A damaged command that names other blocks is damaged in another way instead, unless it reaches beyond the
/// end of the medium, where the target has to refuse it. The LUN and the operation code of the CDB are never
/// damaged, since they would lead to another unit or to a command such as FORMAT UNIT. No PDU becomes a SCSI
/// Command, a Task Management Request, a Login Request or a Logout Request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// The logical block addresses.
    pub blocks: Range<u64>,
    /// The number of blocks of the medium.
    pub capacity: u64,
}

/// A fault to be injected once.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The kind of PDU.
    pub class: PduClass,
    /// The part of it. A duplicate has no part; this then decides only which PDUs are eligible.
    pub place: Place,
    /// What happens to the part.
    pub damage: Damage,
    /// How many PDUs with that part pass before the one that is hit.
    pub skip: u32,
    /// The seed of the choices: which bit, which words.
    pub seed: u64,
    /// The blocks that a damaged command may address.
    pub confinement: Confinement,
    /// Whether the digests are computed again after the damage, as a gateway does that ends them: they then
    /// protect the damaged PDU, and no receiver can detect the fault.
    pub reseal: bool,
}

/// What was done to a PDU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Injection {
    /// The kind of PDU.
    pub class: PduClass,
    /// The offset of the first damaged byte in the PDU; 0 for a duplicate.
    pub offset: usize,
    /// The bytes from the first damaged one to the last one, before; empty for a duplicate.
    pub before: Vec<u8>,
    /// The same bytes, after.
    pub after: Vec<u8>,
    /// The blocks that the damaged command names instead of those that it should: only for a SCSI Command
    /// whose address or length changed, and only within the medium.
    pub misdirected: Option<Range<u64>>,
}

impl Injection {
    /// Returns how many bits changed.
    pub fn bits(&self) -> u32 {
        self.before.iter().zip(&self.after).map(|(before, after)| (before ^ after).count_ones()).sum()
    }
}

impl Fault {
    /// Returns whether the fault can hit this PDU.
    pub fn concerns(&self, way: StreamDirection, pdu: &[u8], layout: &PduLayout) -> bool {
        let opcode = pdu.first().map(|byte| byte & 0x3f);
        way == self.class.direction()
            && !layout.is_login
            && opcode == Some(self.class.opcode())
            && !self.part(pdu, layout).is_empty()
    }

    /// Damages a PDU. Returns the bytes to send instead of it and what was done; `None` if this PDU cannot be
    /// damaged in this way, for example because all words of its data are the same.
    pub fn inject(&self, pdu: &[u8], layout: &PduLayout) -> Option<(Vec<u8>, Injection)> {
        if self.damage == Damage::Duplicate {
            let nothing =
                Injection { class: self.class, offset: 0, before: vec![], after: vec![], misdirected: None };
            return Some(([pdu, pdu].concat(), nothing));
        }
        let part = self.part(pdu, layout);
        let mut rng = Rng::from_seed(self.seed);
        for _ in 0..ATTEMPTS_MAX {
            let mut damaged = pdu.to_vec();
            damage(self.damage, &mut rng, damaged.get_mut(part.clone())?);
            if damaged == pdu || !self.is_confined(pdu, &damaged) {
                continue;
            }
            let injection = self.describe(pdu, &damaged)?;
            // A bit that flips twice is none.
            if self.damage == Damage::FlipBits && injection.bits() < 2 {
                continue;
            }
            if self.reseal {
                reseal(&mut damaged, layout);
            }
            return Some((damaged, injection));
        }
        None
    }

    /// Returns where the damaged part lies; empty if the PDU does not have it.
    fn part(&self, pdu: &[u8], layout: &PduLayout) -> Range<usize> {
        match self.place {
            Place::Data => layout.data.clone(),
            Place::Header => 0..BHS_LEN,
            Place::BufferOffset => match self.class {
                PduClass::DataOut | PduClass::DataIn => BUFFER_OFFSET,
                PduClass::Command | PduClass::Response => 0..0,
            },
            Place::Lba => match (self.class, pdu.get(CDB_AT).copied()) {
                (PduClass::Command, Some(READ_16 | WRITE_16)) => CDB_AT + 2..CDB_AT + 10,
                (PduClass::Command, Some(READ_10 | WRITE_10)) => CDB_AT + 2..CDB_AT + 6,
                _ => 0..0,
            },
        }
    }

    fn is_confined(&self, before: &[u8], after: &[u8]) -> bool {
        let opcode = |pdu: &[u8]| pdu.first().map(|byte| byte & 0x3f);
        if opcode(before) != opcode(after) && opcode(after).is_some_and(|code| FORBIDDEN.contains(&code)) {
            return false;
        }
        if self.class.direction() == StreamDirection::Backward {
            return true;
        }
        let same = |part: Range<usize>| before.get(part.clone()) == after.get(part);
        if !same(LUN) || (self.class == PduClass::Command && !same(CDB_AT..CDB_AT + 1)) {
            return false;
        }
        match (self.class, addressed(after)) {
            (PduClass::Command, Some(blocks)) => {
                let within = &self.confinement.blocks;
                blocks.end > self.confinement.capacity
                    || (blocks.start >= within.start && blocks.end <= within.end)
            }
            _ => true,
        }
    }

    fn describe(&self, before: &[u8], after: &[u8]) -> Option<Injection> {
        let differs = |(at, (one, other)): (usize, (&u8, &u8))| (one != other).then_some(at);
        let mut places = before.iter().zip(after).enumerate().filter_map(differs);
        let first = places.next()?;
        let last = places.next_back().unwrap_or(first);
        let misdirected = match self.class {
            PduClass::Command => addressed(after)
                .filter(|blocks| addressed(before).as_ref() != Some(blocks))
                .filter(|blocks| blocks.end <= self.confinement.capacity),
            _ => None,
        };
        Some(Injection {
            class: self.class,
            offset: first,
            before: before.get(first..=last)?.to_vec(),
            after: after.get(first..=last)?.to_vec(),
            misdirected,
        })
    }
}

/// How often the random choices are repeated until the damage is allowed. Most flips in a header are.
const ATTEMPTS_MAX: u32 = 256;

const BHS_LEN: usize = 48;
const LUN: Range<usize> = 8..16;
const CDB_AT: usize = 32;
const BUFFER_OFFSET: Range<usize> = 40..44;
const READ_10: u8 = 0x28;
const WRITE_10: u8 = 0x2a;
const READ_16: u8 = 0x88;
const WRITE_16: u8 = 0x8a;

/// The opcodes that no damage may produce: SCSI Command, Task Management Request, Login Request and Logout
/// Request.
const FORBIDDEN: [u8; 4] = [0x01, 0x02, 0x03, 0x06];

/// Returns the blocks that a SCSI Command with a READ or a WRITE names.
pub(crate) fn addressed(pdu: &[u8]) -> Option<Range<u64>> {
    let cdb = pdu.get(CDB_AT..)?.first_chunk::<16>()?;
    let [code, _, a, b, c, d, e, f, g, h, i, j, k, l, ..] = *cdb;
    let (first, count) = match code {
        READ_16 | WRITE_16 => {
            (u64::from_be_bytes([a, b, c, d, e, f, g, h]), u32::from_be_bytes([i, j, k, l]).into())
        }
        READ_10 | WRITE_10 => (u32::from_be_bytes([a, b, c, d]).into(), u16::from_be_bytes([f, g]).into()),
        _ => return None,
    };
    Some(first..first.saturating_add(count))
}

fn damage(damage: Damage, rng: &mut Rng, part: &mut [u8]) {
    match damage {
        Damage::FlipBit => flip(rng, part),
        Damage::FlipBits => {
            for _ in 0..2 + rng.below(4) {
                flip(rng, part);
            }
        }
        Damage::SwapWords => swap_words(rng, part),
        Damage::PairedWords => pair_words(rng, part),
        Damage::Truncate => {
            let words = u64::try_from(part.len() / 4).unwrap_or(0);
            let kept = usize::try_from(rng.below(words)).unwrap_or(0) * 4;
            part.iter_mut().skip(kept).for_each(|byte| *byte = 0);
        }
        Damage::Duplicate => {}
    }
}

fn flip(rng: &mut Rng, part: &mut [u8]) {
    let at = below(rng, part.len());
    if let Some(byte) = part.get_mut(at) {
        *byte ^= 1 << rng.below(8);
    }
}

/// Swaps two words, or none if both are the same word.
fn swap_words(rng: &mut Rng, part: &mut [u8]) {
    let (words, _) = part.as_chunks_mut::<2>();
    let (one, other) = (below(rng, words.len()), below(rng, words.len()));
    if one < words.len() && other < words.len() {
        words.swap(one, other);
    }
}

/// Adds one to a word and subtracts one from another, unless one of them would overflow.
fn pair_words(rng: &mut Rng, part: &mut [u8]) {
    let (words, _) = part.as_chunks_mut::<2>();
    let (up, down) = (below(rng, words.len()), below(rng, words.len()));
    let value = |at: usize| words.get(at).map(|word| u16::from_be_bytes(*word));
    let (grown, shrunk) =
        (value(up).and_then(|v| v.checked_add(1)), value(down).and_then(|v| v.checked_sub(1)));
    if let (Some(grown), Some(shrunk)) = (grown, shrunk)
        && up != down
        && let Ok([one, other]) = words.get_disjoint_mut([up, down])
    {
        (*one, *other) = (grown.to_be_bytes(), shrunk.to_be_bytes());
    }
}

fn below(rng: &mut Rng, bound: usize) -> usize {
    usize::try_from(rng.below(u64::try_from(bound).unwrap_or(u64::MAX))).unwrap_or(0)
}

/// Computes the digests of a PDU again, if they are CRC32C.
fn reseal(pdu: &mut [u8], layout: &PduLayout) {
    let parts = [(&layout.header, &layout.header_digest), (&layout.data, &layout.data_digest)];
    for (covered, digest) in parts {
        let value = pdu.get(covered.clone()).map(Crc32c::of);
        let place = pdu.get_mut(digest.clone()).filter(|place| place.len() == DIGEST_LEN);
        if let (Some(value), Some(place)) = (value, place) {
            place.copy_from_slice(&value);
        }
    }
}
