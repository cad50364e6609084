//! The payload of a Disconnect frame: the end of a session, or the report that a session is unknown.

use alloc::vec::Vec;

use super::{Block, Malformed, put_block};

const GOODBYE: u8 = 1;
const DONE: u8 = 2;
const UNKNOWN: u8 = 3;

/// A step in ending a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disconnect {
    /// The session ends and every exchange in it is lost. The other end answers with [`Disconnect::Done`].
    Goodbye(DisconnectReason),
    /// The session ended. The answer to [`Disconnect::Goodbye`].
    Done,
    /// The sender received a frame for a session that it does not know. This report is not authenticated: its
    /// SID is 0 and there is no key.
    Unknown {
        /// The SID of the frame for the unknown session.
        sid: u32,
    },
}

base::code8! {
    /// Why a session ends.
    pub struct DisconnectReason {
        /// The owner of the session closed it.
        CLOSED = 0;
        /// The same initiator port began another session.
        REPLACED = 1;
        /// The end that sends this shuts down.
        SHUTDOWN = 2;
        /// The other end broke a rule.
        BROKEN = 3;
        /// The other end is not authorized any more.
        NOT_AUTHORIZED = 4;
        /// The keys are used up.
        KEYS_EXHAUSTED = 5;
    }
}

impl Disconnect {
    /// Appends the block to `out`. Nothing follows.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Goodbye(reason) => put_block(out, GOODBYE, reason.0, |_| {}),
            Self::Done => put_block(out, DONE, 0, |_| {}),
            Self::Unknown { sid } => {
                put_block(out, UNKNOWN, 0, |out| out.extend_from_slice(&sid.to_be_bytes()));
            }
        }
    }

    /// Parses `payload`, which is one block.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let mut block = Block::parse(payload)?;
        let says_why = block.kind == GOODBYE;
        if !block.rest.is_empty() || (block.info != 0 && !says_why) {
            return Err(Malformed::Value);
        }
        let disconnect = match block.kind {
            GOODBYE => Self::Goodbye(DisconnectReason(block.info)),
            DONE => Self::Done,
            UNKNOWN => Self::Unknown { sid: block.body.u32()? },
            _ => return Err(Malformed::Kind),
        };
        block.no_more()?;
        Ok(disconnect)
    }
}
