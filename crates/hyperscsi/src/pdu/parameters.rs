//! The parameters that the two ends of a session agree on, encoded as items within an item of the handshake.

use alloc::vec::Vec;

use super::{Malformed, exactly, items, put_item};
use crate::frame::TAGS;
use crate::send_queue::HEAD_LEN_MAX;
use base::bytes::Reader;
use security::Level;

/// The parameters that one end offers or chose. A target chooses within the offer. The fields that describe
/// what the sender itself can receive (`frame_max`, `frames_initial`, `ack_delay_max_us`) are not chosen:
/// each end states its own.
///
/// An item that is missing has the value of [`Parameters::DEFAULT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The longest Ethernet payload that the sender's port takes, in bytes.
    pub frame_max: u16,
    /// How many frames the other end may send on the first path, in each space, before the first
    /// acknowledgement grants more.
    pub frames_initial: u32,
    /// The longest that the sender delays an acknowledgement, in microseconds.
    pub ack_delay_max_us: u32,
    /// Which protection levels exchanges may have.
    pub levels: Levels,
    /// How many exchanges can be under way; 1 to [`TAGS`].
    pub exchanges: u16,
    /// How many bytes of unsolicited data a command may have.
    pub first_burst: u32,
    /// How many bytes one Transfer Ready may ask for; not 0.
    pub burst_max: u32,
    /// How many paths the session may have; at least 1.
    pub paths: u8,
    /// How lost frames are repaired.
    pub repair: Repair,
    /// After how long without a live path the session is lost, in milliseconds.
    pub lost_after_ms: u32,
}

/// Why parameters are illegal. Each value names the field at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Illegal {
    /// `frame_max`
    #[error("the maximum frame length is less than {min} bytes", min = Parameters::FRAME_MAX_LEAST)]
    FrameMax,
    /// `frames_initial`
    #[error("the number of frames before the first acknowledgement is zero")]
    FramesInitial,
    /// `levels`
    #[error("no protection level is known")]
    Levels,
    /// `exchanges`
    #[error("the number of exchanges is not from 1 to {TAGS}")]
    Exchanges,
    /// `first_burst`
    #[error("the first burst is longer than {max} bytes", max = Parameters::FIRST_BURST_MAX)]
    FirstBurst,
    /// `burst_max`
    #[error("the maximum burst length is zero")]
    BurstMax,
    /// `paths`
    #[error("the number of paths is zero")]
    Paths,
    /// `repair`
    #[error("the recovery method is unknown")]
    Repair,
    /// `lost_after_ms`
    #[error("the time until a path counts as lost is zero")]
    LostAfter,
}

/// How lost frames are repaired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Repair {
    /// Only what was lost is sent again.
    #[default]
    Selective = 0,
    /// Everything unacknowledged from the first loss on is sent again.
    Window = 1,
}

/// A set of protection levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels(u8);

impl Levels {
    /// All levels.
    pub const ALL: Self = Self(0b111);
    /// The levels that a session without keys can have.
    pub const OPEN: Self = Self(0b001);
    /// The levels at which every frame is protected.
    pub const SEALED: Self = Self(0b110);

    /// Returns the set of levels at or above `least`.
    pub const fn from(least: Level) -> Self {
        Self((0b111 << least as u8) & 0b111)
    }

    /// Returns whether `level` is in the set.
    pub const fn has(self, level: Level) -> bool {
        self.0 & (1 << level as u8) != 0
    }

    /// Returns the lowest level of the set that is `least` or above; `None` if there is none.
    pub fn lowest_from(self, least: Level) -> Option<Level> {
        [Level::None, Level::Integrity, Level::Encrypt]
            .into_iter()
            .find(|level| *level >= least && self.has(*level))
    }

    /// Returns the intersection of both sets; `None` if it is empty.
    pub const fn common(self, other: Self) -> Option<Self> {
        Self::from_bits(self.0 & other.0)
    }

    /// Returns the set as bits: bit 0 for `none`, bit 1 for `integrity`, bit 2 for `encrypt`.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns the set with these bits; `None` for the empty set. Undefined bits are dropped.
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
    /// Appends an item with this error to `out`.
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
    /// The values of items that are missing.
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

    /// The shortest maximum that a port may have, in bytes: every Ethernet carries such a payload.
    pub const FRAME_MAX_LEAST: u16 = 1500;

    /// The longest first burst, in bytes. The block in front of the burst and the burst are one message,
    /// whose bytes are counted in 32 bits.
    pub const FIRST_BURST_MAX: u32 = u32::MAX - 1024;

    /// Returns whether an end may state these parameters of itself.
    ///
    /// # Errors
    /// [`Illegal`] names the field at fault.
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

    /// Parses `bytes`, which are items.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        Self::read(bytes)?.map_err(|_| Malformed::Value)
    }

    /// Parses `bytes`, which are items. Distinguishes well-formed items with illegal values from malformed
    /// ones.
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
            // A first burst of any length may be stated, since the smaller one of both ends holds.
            Ok(()) | Err(Illegal::FirstBurst) => Ok(parameters),
            Err(why) => Err(why),
        })
    }

    /// Stores an item. Returns whether the item is known. A value that cannot even be represented is recorded
    /// in `legal`.
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
