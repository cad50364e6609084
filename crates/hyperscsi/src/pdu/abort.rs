//! What an Abort frame carries: an exchange is given up, below SCSI and without its help.

use alloc::vec::Vec;

use super::{Block, Malformed, put_block};

const GIVE_UP: u8 = 1;
const GIVEN_UP: u8 = 2;

/// A step in giving up the exchange that the header names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abort {
    /// Initiator to target: it wants no more of it.
    GiveUp(AbortReason),
    /// Target to initiator: it is over. The answer to the other one, or the target's own doing.
    GivenUp(AbortResult),
}

code8! {
    /// Why an initiator gives an exchange up.
    pub struct AbortReason {
        /// Its owner asked for it.
        ASKED = 0;
        /// It took too long.
        TOO_LATE = 1;
        /// The target broke a rule in it.
        BROKEN = 2;
    }
}

code8! {
    /// What became of an exchange that was given up.
    pub struct AbortResult {
        /// It was never delivered, and never will be: nothing was done.
        NEVER_BEGUN = 0;
        /// It was delivered and is aborted; some of it may have been done.
        ABORTED = 1;
        /// It had ended; its response is on the way or was confirmed.
        HAD_ENDED = 2;
        /// The initiator broke a rule in it.
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

    /// Reads the block that is `payload`.
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
