//! The states of a handshake, with the data that belongs to each.

use alloc::boxed::Box;
use alloc::vec::Vec;

use base::ether::{EtherPort, Mac};

use crate::pdu::negotiate::Cookie;
use crate::pdu::parameters::Parameters;
use security::opaque::SessionKey;

/// The state of a handshake.
#[derive(Debug)]
pub(super) enum State {
    /// HELLO was sent, or will be when a port is up.
    Asking,
    /// START was sent to the candidates.
    Starting,
    /// The slow step, stretching the password, runs for an ANSWER.
    Stretching(Box<Opening>),
    /// FINISH was sent.
    Finishing(Box<Finishing>),
    /// The handshake ended.
    Over,
}

impl State {
    /// Returns whether the last step was sent.
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

/// An ANSWER that is being decrypted.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) port: EtherPort,
    pub(super) mac: Mac,
    pub(super) sid: u32,
    pub(super) choice: Parameters,
    pub(super) context: [u8; 64],
    pub(super) digest: [u8; 64],
}

/// An ANSWER that was decrypted.
pub(super) struct Finishing {
    pub(super) opening: Opening,
    pub(super) secret: SessionKey,
    pub(super) finish: Vec<u8>,
}

impl core::fmt::Debug for Finishing {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.opening.fmt(f)
    }
}
