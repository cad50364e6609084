//! Where a handshake is, and what it knows there.

use alloc::boxed::Box;
use alloc::vec::Vec;

use base::ether::{EtherPort, Mac};

use crate::login::opaque::Secret;
use crate::pdu::negotiate::Cookie;
use crate::pdu::parameters::Parameters;

/// Where a handshake is.
#[derive(Debug)]
pub(super) enum State {
    /// HELLO was said, or will be when a port is up.
    Asking,
    /// START was said to all candidates.
    Starting,
    /// The slow step runs for an ANSWER.
    Stretching(Box<Opening>),
    /// FINISH was said.
    Finishing(Box<Finishing>),
    /// It ended.
    Over,
}

impl State {
    /// Returns whether the last step was said.
    pub(super) const fn is_last(&self, keyed: bool) -> bool {
        match self {
            Self::Finishing(_) => true,
            Self::Starting => !keyed,
            Self::Asking | Self::Stretching(_) | Self::Over => false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) port: EtherPort,
    pub(super) mac: Mac,
    pub(super) cookie: Cookie,
}

/// An ANSWER that is being opened.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) port: EtherPort,
    pub(super) mac: Mac,
    pub(super) sid: u32,
    pub(super) choice: Parameters,
    pub(super) context: [u8; 64],
    pub(super) digest: [u8; 64],
}

/// An ANSWER that opened.
pub(super) struct Finishing {
    pub(super) opening: Opening,
    pub(super) secret: Secret,
    pub(super) finish: Vec<u8>,
}

impl core::fmt::Debug for Finishing {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.opening.fmt(f)
    }
}
