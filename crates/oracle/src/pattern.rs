//! Fills a signed block behind its headers. Each pattern provokes a different kind of hardware or software
//! fault.

use base::rng::Rng;
use base::units::Lba;

/// A filler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pattern {
    /// The seed, repeated: the same in every block, so that two blocks differ only in their headers.
    Fixed,
    /// One set bit that walks: provokes faults of stuck and coupled lines.
    WalkingOne,
    /// One clear bit that walks: provokes the same faults.
    WalkingZero,
    /// Long runs of zeros and ones: provokes faults of compression, line codes and clock recovery.
    LongRuns,
    /// Random, and balanced so that every sector has the same Internet checksum: provokes faults that TCP
    /// does not detect.
    ChecksumNeutral,
    /// Random.
    #[default]
    Random,
    /// Every eight bytes hold their own offset: the content of shifted or repeated data shows where it came
    /// from.
    Counting,
}

impl Pattern {
    /// Every pattern, by code.
    pub const ALL: [Self; 7] = [
        Self::Fixed,
        Self::WalkingOne,
        Self::WalkingZero,
        Self::LongRuns,
        Self::ChecksumNeutral,
        Self::Random,
        Self::Counting,
    ];

    /// Returns the code of the pattern in headers.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the pattern with this code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Returns the name by which users choose the pattern.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::WalkingOne => "walking-one",
            Self::WalkingZero => "walking-zero",
            Self::LongRuns => "long-runs",
            Self::ChecksumNeutral => "checksum-neutral",
            Self::Random => "random",
            Self::Counting => "counting",
        }
    }

    /// Returns the pattern with this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pattern| pattern.name() == name)
    }

    /// Fills the part of one sector behind the header. The same arguments give the same bytes.
    pub(crate) fn fill(self, seed: u32, lba: Lba, index: u8, out: &mut [u8]) {
        let rng = || {
            Rng::from_seed(
                u64::from(seed) ^ lba.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(index) << 56),
            )
        };
        match self {
            Self::Fixed => repeat(out, |_| seed),
            Self::WalkingOne => repeat(out, |at| 1_u32.rotate_left(seed.wrapping_add(at) % 32)),
            Self::WalkingZero => repeat(out, |at| !1_u32.rotate_left(seed.wrapping_add(at) % 32)),
            Self::LongRuns => long_runs(&mut rng(), out),
            Self::ChecksumNeutral | Self::Random => rng().fill(out),
            Self::Counting => counting(lba, index, out),
        }
    }
}

fn repeat(out: &mut [u8], word: impl Fn(u32) -> u32) {
    for (at, part) in (0..).zip(out.chunks_mut(4)) {
        for (to, from) in part.iter_mut().zip(word(at).to_be_bytes()) {
            *to = from;
        }
    }
}

fn long_runs(rng: &mut Rng, out: &mut [u8]) {
    let mut rest = out;
    let mut byte = if rng.chance(1, 2) { 0xff } else { 0 };
    while !rest.is_empty() {
        let len = usize::try_from(rng.below(200)).unwrap_or(0).saturating_add(8);
        let (run, after) = rest.split_at_mut(len.min(rest.len()));
        run.fill(byte);
        byte = !byte;
        rest = after;
    }
}

fn counting(lba: Lba, index: u8, out: &mut [u8]) {
    let base = lba.0.wrapping_mul(65536).wrapping_add(u64::from(index) * 512 + 64);
    for (at, part) in (0_u64..).zip(out.chunks_mut(8)) {
        for (to, from) in part.iter_mut().zip(base.wrapping_add(at * 8).to_be_bytes()) {
            *to = from;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_find_their_pattern() {
        for (code, pattern) in (0..).zip(Pattern::ALL) {
            assert_eq!((pattern.code(), Pattern::from_code(code)), (code, Some(pattern)));
            assert_eq!(Pattern::by_name(pattern.name()), Some(pattern));
        }
        assert_eq!((Pattern::from_code(7), Pattern::by_name("zigzag")), (None, None));
    }

    #[test]
    fn patterns_are_what_they_are_called() {
        let of = |pattern: Pattern| {
            let mut out = [0xa5; 448];
            pattern.fill(3, Lba(9), 1, &mut out);
            out
        };
        let ones = |bytes: &[u8]| bytes.iter().map(|byte| byte.count_ones()).sum::<u32>();
        assert_eq!(ones(&of(Pattern::WalkingOne)), 112);
        assert_eq!(ones(&of(Pattern::WalkingZero)), 448 * 8 - 112);
        assert!(of(Pattern::LongRuns).iter().all(|byte| [0, 0xff].contains(byte)));
        assert!((1500..2100).contains(&ones(&of(Pattern::Random))));
        assert_eq!(of(Pattern::Counting)[440..448], (9_u64 * 65536 + 512 + 64 + 440).to_be_bytes());
        assert_ne!(of(Pattern::LongRuns)[..], of(Pattern::Random)[..]);
    }
}
