//! The payload of an Ask frame: a probe, or a question or announcement about a path, which elicits an
//! acknowledgement. The bytes behind the block are padding, which makes the frame as long as its sender wants
//! it.

use alloc::vec::Vec;

use super::{Block, Malformed, exactly, once, put_block, put_item};

/// The length of the secret token that adds a path to a session without keys, in bytes.
pub const TOKEN_LEN: usize = 16;

const PING: u8 = 1;
const MTU: u8 = 2;
const PATH: u8 = 3;
const LEAVE: u8 = 4;
const RECEIVES: u8 = 5;

const TOKEN_ITEM: u8 = 0x81;

/// What an Ask frame asks or announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// A ping: it asks for an acknowledgement only.
    Ping,
    /// A path MTU probe: whether a frame of this length passes. An acknowledgement means yes. The length is
    /// that of the Ethernet payload, and the frame itself has it.
    Mtu(u16),
    /// Path validation: a step in trying the path on which this frame travels.
    Path(PathValidation),
    /// The sender does not use this path any more.
    Leave {
        /// The path, as the top byte of packet numbers names it.
        path: u8,
    },
    /// The sender's port on this path takes Ethernet payloads of up to this many bytes from now on.
    Receives(u16),
}

/// A step of path validation. The initiator begins with a challenge. The target answers with its echo and a
/// challenge of its own, which the initiator echoes. Each end uses the path as soon as its challenge was
/// echoed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathValidation {
    /// The challenge that the other end is to echo; 0 for none.
    pub challenge: u64,
    /// The echo of the other end's challenge; 0 if there was none.
    pub echo: u64,
    /// The longest Ethernet payload that the sender's port takes, in bytes.
    pub frame_max: u16,
    /// The session's token. A session without keys demands it with the first challenge.
    pub token: Option<[u8; TOKEN_LEN]>,
}

impl Ask {
    /// Appends the block to `out`; zeros may follow.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Ping => put_block(out, PING, 0, |_| {}),
            Self::Mtu(len) => put_block(out, MTU, 0, |out| out.extend_from_slice(&len.to_be_bytes())),
            Self::Path(path) => put_block(out, PATH, 0, |out| path.encode(out)),
            Self::Leave { path } => put_block(out, LEAVE, *path, |_| {}),
            Self::Receives(len) => {
                put_block(out, RECEIVES, 0, |out| out.extend_from_slice(&len.to_be_bytes()));
            }
        }
    }

    /// Parses the block at the front of `payload`. The bytes behind it are padding.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let mut block = Block::parse(payload)?;
        if block.info != 0 && block.kind != LEAVE {
            return Err(Malformed::Value);
        }
        let ask = match block.kind {
            PING => Self::Ping,
            MTU => Self::Mtu(block.body.u16()?),
            PATH => return PathValidation::read(block).map(Self::Path),
            LEAVE => Self::Leave { path: block.info },
            RECEIVES => Self::Receives(block.body.u16()?),
            _ => return Err(Malformed::Kind),
        };
        block.no_more()?;
        Ok(ask)
    }
}

impl PathValidation {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.challenge.to_be_bytes());
        out.extend_from_slice(&self.echo.to_be_bytes());
        out.extend_from_slice(&self.frame_max.to_be_bytes());
        out.extend_from_slice(&[0, 0]);
        if let Some(token) = &self.token {
            put_item(out, TOKEN_ITEM, |out| out.extend_from_slice(token));
        }
    }

    fn read(mut block: Block<'_>) -> Result<Self, Malformed> {
        let body = &mut block.body;
        let (challenge, echo, frame_max) = (body.u64()?, body.u64()?, body.u16()?);
        if body.u16()? != 0 || (challenge == 0 && echo == 0) {
            return Err(Malformed::Value);
        }
        let mut token = None;
        block.items(|kind, value| match kind {
            TOKEN_ITEM => once(&mut token, exactly(value)?),
            _ => Ok(false),
        })?;
        Ok(Self { challenge, echo, frame_max, token })
    }
}
