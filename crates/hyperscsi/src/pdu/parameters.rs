//! What the two ends of a session agree on, as items within an item of the handshake.

use alloc::vec::Vec;

use super::{Malformed, exactly, items, put_item};
use crate::aead::Level;
use crate::frame::TAGS;
use crate::send_queue::HEAD_LEN_MAX;
use base::bytes::Reader;

/// What one end offers, or chose. A target chooses within the offer; the fields that say what the sender itself can receive
/// (`frame_max`, `frames_initial`, `ack_delay_max_us`) are not chosen but told, by each for itself.
///
/// An item that is missing has the value of [`Parameters::DEFAULT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The longest Ethernet payload that the sender's port takes.
    pub frame_max: u16,
    /// How many frames the other end may send on the first path in each space before it was told more.
    pub frames_initial: u32,
    /// The longest that the sender waits before it acknowledges, in microseconds.
    pub ack_delay_max_us: u32,
    /// Which levels exchanges may have.
    pub levels: Levels,
    /// How many exchanges can be under way; 1 to [`TAGS`].
    pub exchanges: u16,
    /// How many bytes of a command's data may come unasked.
    pub first_burst: u32,
    /// How many bytes one request for data may ask for; not 0.
    pub burst_max: u32,
    /// How many paths the session may have; at least 1.
    pub paths: u8,
    /// How what is lost is sent again.
    pub repair: Repair,
    /// After how long without a live path the session is lost, in milliseconds.
    pub lost_after_ms: u32,
}

/// Why parameters cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Illegal {
    /// `frame_max`
    #[error("frames of fewer than {min} bytes", min = Parameters::FRAME_MAX_LEAST)]
    FrameMax,
    /// `frames_initial`
    #[error("no frame may come before an acknowledgement")]
    FramesInitial,
    /// `levels`
    #[error("no level of protection that is known here")]
    Levels,
    /// `exchanges`
    #[error("not from 1 to {TAGS} exchanges")]
    Exchanges,
    /// `first_burst`
    #[error("a first burst of more than {max} bytes", max = Parameters::FIRST_BURST_MAX)]
    FirstBurst,
    /// `burst_max`
    #[error("bursts without a byte")]
    BurstMax,
    /// `paths`
    #[error("no path")]
    Paths,
    /// `repair`
    #[error("a way of repair that is not known here")]
    Repair,
    /// `lost_after_ms`
    #[error("lost after no time")]
    LostAfter,
}

/// How what is lost is sent again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Repair {
    /// What was lost, and nothing else.
    #[default]
    Selective = 0,
    /// Everything unacknowledged from the first loss on.
    Window = 1,
}

/// A set of levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels(u8);

impl Levels {
    /// All of them.
    pub const ALL: Self = Self(0b111);
    /// What a session without keys can have.
    pub const OPEN: Self = Self(0b001);
    /// What no frame leaves unprotected.
    pub const SEALED: Self = Self(0b110);

    /// Returns the set of those at or above `least`.
    pub const fn from(least: Level) -> Self {
        Self((0b111 << least as u8) & 0b111)
    }

    /// Returns whether `level` is one of them.
    pub const fn has(self, level: Level) -> bool {
        self.0 & (1 << level as u8) != 0
    }

    /// Returns the lowest of them that is `least` or above; `None` if there is none.
    pub fn lowest_from(self, least: Level) -> Option<Level> {
        [Level::None, Level::Integrity, Level::Encrypt]
            .into_iter()
            .find(|level| *level >= least && self.has(*level))
    }

    /// Returns those that are in both; `None` if that is none.
    pub const fn common(self, other: Self) -> Option<Self> {
        Self::from_bits(self.0 & other.0)
    }

    /// Returns the set as bits: bit 0 for `none`, bit 1 for `integrity`, bit 2 for `encrypt`.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns the set with these bits; `None` for the empty one. Bits that mean nothing today are dropped.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        match bits & 0b111 {
            0 => None,
            known => Some(Self(known)),
        }
    }
}

const _: () = assert!(Parameters::FIRST_BURST_MAX as usize + HEAD_LEN_MAX <= u32::MAX as usize);

const FRAME_MAX: u8 = 1;
const FRAMES_INITIAL: u8 = 2;
const ACK_DELAY_MAX: u8 = 3;
const LEVELS: u8 = 4;
const EXCHANGES: u8 = 5;
const FIRST_BURST: u8 = 6;
const BURST_MAX: u8 = 7;
const PATHS: u8 = 8;
const REPAIR: u8 = 9;
const LOST_AFTER: u8 = 10;

impl Illegal {
    /// Appends an item that is wrong in this way to `out`.
    pub(super) fn encode(self, out: &mut Vec<u8>) {
        let (kind, value): (u8, &[u8]) = match self {
            Self::FrameMax => (FRAME_MAX, &[0; 2]),
            Self::FramesInitial => (FRAMES_INITIAL, &[0; 4]),
            Self::Levels => (LEVELS, &[0]),
            Self::Exchanges => (EXCHANGES, &[0; 2]),
            Self::FirstBurst => (FIRST_BURST, &[0xff; 4]),
            Self::BurstMax => (BURST_MAX, &[0; 4]),
            Self::Paths => (PATHS, &[0]),
            Self::Repair => (REPAIR, &[0xff]),
            Self::LostAfter => (LOST_AFTER, &[0; 4]),
        };
        put_item(out, kind, |out| out.extend_from_slice(value));
    }
}

impl Parameters {
    /// What holds where nothing is said.
    pub const DEFAULT: Self = Self {
        frame_max: 1500,
        frames_initial: 32,
        ack_delay_max_us: 100,
        levels: Levels::ALL,
        exchanges: TAGS,
        first_burst: 64 << 10,
        burst_max: 1 << 20,
        paths: 8,
        repair: Repair::Selective,
        lost_after_ms: 30_000,
    };

    /// The shortest Ethernet payload that a port may take: what every Ethernet carries.
    pub const FRAME_MAX_LEAST: u16 = 1500;

    /// The longest first burst: what stands in front of it and the burst are one message, whose bytes are counted in 32 bits.
    pub const FIRST_BURST_MAX: u32 = u32::MAX - 1024;

    /// Returns whether an end may say this of itself.
    ///
    /// # Errors
    /// What is wrong with it.
    pub const fn check(&self) -> Result<(), Illegal> {
        if self.frame_max < Self::FRAME_MAX_LEAST {
            return Err(Illegal::FrameMax);
        }
        if self.frames_initial == 0 {
            return Err(Illegal::FramesInitial);
        }
        if self.exchanges == 0 || self.exchanges > TAGS {
            return Err(Illegal::Exchanges);
        }
        if self.burst_max == 0 {
            return Err(Illegal::BurstMax);
        }
        if self.paths == 0 {
            return Err(Illegal::Paths);
        }
        if self.lost_after_ms == 0 {
            return Err(Illegal::LostAfter);
        }
        if self.first_burst > Self::FIRST_BURST_MAX {
            return Err(Illegal::FirstBurst);
        }
        Ok(())
    }

    /// Appends the items to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut item = |kind, value: &[u8]| put_item(out, kind, |out| out.extend_from_slice(value));
        item(FRAME_MAX, &self.frame_max.to_be_bytes());
        item(FRAMES_INITIAL, &self.frames_initial.to_be_bytes());
        item(ACK_DELAY_MAX, &self.ack_delay_max_us.to_be_bytes());
        item(LEVELS, &[self.levels.0]);
        item(EXCHANGES, &self.exchanges.to_be_bytes());
        item(FIRST_BURST, &self.first_burst.to_be_bytes());
        item(BURST_MAX, &self.burst_max.to_be_bytes());
        item(PATHS, &[self.paths]);
        item(REPAIR, &[self.repair as u8]);
        item(LOST_AFTER, &self.lost_after_ms.to_be_bytes());
    }

    /// Reads the items that are `bytes`.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        Self::read(bytes)?.map_err(|_| Malformed::Value)
    }

    /// Reads the items that are `bytes`, and tells those that say what cannot be from those that are none.
    pub(super) fn read(bytes: &[u8]) -> Result<Result<Self, Illegal>, Malformed> {
        let (mut parameters, mut legal) = (Self::DEFAULT, Ok(()));
        let mut seen = 0_u16;
        items(Reader::new(bytes), |kind, value| {
            let known = parameters.set(kind, value, &mut legal)?;
            let bit = if known { 1 << kind } else { 0 };
            if seen & bit != 0 {
                return Err(Malformed::Item);
            }
            seen |= bit;
            Ok(known)
        })?;
        Ok(match legal.and_then(|()| parameters.check()) {
            // Any length of a first burst may be said, as the smaller one of both counts.
            Ok(()) | Err(Illegal::FirstBurst) => Ok(parameters),
            Err(why) => Err(why),
        })
    }

    /// Takes an item. Returns whether it is known; a value that cannot even be kept is noted in `legal`.
    fn set(&mut self, kind: u8, value: &[u8], legal: &mut Result<(), Illegal>) -> Result<bool, Malformed> {
        match kind {
            FRAME_MAX => self.frame_max = u16::from_be_bytes(exactly(value)?),
            FRAMES_INITIAL => self.frames_initial = u32::from_be_bytes(exactly(value)?),
            ACK_DELAY_MAX => self.ack_delay_max_us = u32::from_be_bytes(exactly(value)?),
            LEVELS => {
                let [bits] = exactly(value)?;
                match Levels::from_bits(bits) {
                    Some(levels) => self.levels = levels,
                    None => *legal = Err(Illegal::Levels),
                }
            }
            EXCHANGES => self.exchanges = u16::from_be_bytes(exactly(value)?),
            FIRST_BURST => self.first_burst = u32::from_be_bytes(exactly(value)?),
            BURST_MAX => self.burst_max = u32::from_be_bytes(exactly(value)?),
            PATHS => [self.paths] = exactly(value)?,
            REPAIR => match exactly(value)? {
                [0] => self.repair = Repair::Selective,
                [1] => self.repair = Repair::Window,
                _ => *legal = Err(Illegal::Repair),
            },
            LOST_AFTER => self.lost_after_ms = u32::from_be_bytes(exactly(value)?),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Default for Parameters {
    fn default() -> Self {
        Self::DEFAULT
    }
}
