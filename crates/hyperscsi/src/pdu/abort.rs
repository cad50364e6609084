//! The payload of an Abort frame: one end gives an exchange up. This happens in the transport, below SCSI
//! task management.

use alloc::vec::Vec;

use super::{Block, Malformed, put_block};

const GIVE_UP: u8 = 1;
const GIVEN_UP: u8 = 2;

/// A step in giving up the exchange that the header names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// Initiator to target: the initiator gives the exchange up.
    GiveUp(AbortReason),
    /// Target to initiator: the exchange is over. The answer to [`Abort::GiveUp`], or the target gave the
    /// exchange up by itself.
    GivenUp(AbortResult),
}

base::code8! {
    /// Why an initiator gives an exchange up.
    pub struct AbortReason {
        /// The owner of the exchange asked for it.
        ASKED = 0;
        /// The exchange took too long.
        TOO_LATE = 1;
        /// The target broke a rule in the exchange.
        BROKEN = 2;
    }
}

base::code8! {
    /// What became of an exchange that was given up.
    pub struct AbortResult {
        /// The request was never delivered to the device server, and never will be: nothing was executed.
        NEVER_BEGUN = 0;
        /// The request was delivered and is aborted; part of it may have been executed.
        ABORTED = 1;
        /// The exchange had ended before. Its response is on the way or was acknowledged.
        HAD_ENDED = 2;
        /// The initiator broke a rule in the exchange.
        BROKEN = 3;
    }
}

impl Abort {
    /// Appends the block to `out`. Nothing follows.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::GiveUp(reason) => put_block(out, GIVE_UP, reason.0, |_| {}),
            Self::GivenUp(result) => put_block(out, GIVEN_UP, result.0, |_| {}),
        }
    }

    /// Parses `payload`, which is one block.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let block = Block::parse(payload)?;
        if !block.rest.is_empty() {
            return Err(Malformed::Value);
        }
        let abort = match block.kind {
            GIVE_UP => Self::GiveUp(AbortReason(block.info)),
            GIVEN_UP => Self::GivenUp(AbortResult(block.info)),
            _ => return Err(Malformed::Kind),
        };
        block.no_more()?;
        Ok(abort)
    }
}
