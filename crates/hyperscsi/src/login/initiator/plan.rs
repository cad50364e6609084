//! What a handshake is for.

use base::ether::{EtherPort, Mac};
use base::time::Duration;

use super::HandshakeError;
use crate::aead::Level;
use crate::login::Password;
use crate::pdu::name::{GroupName, Name};
use crate::pdu::parameters::{Levels, Parameters};

/// What an initiator wants.
#[derive(Clone, Debug)]
pub struct LoginPlan {
    /// The group.
    pub group: GroupName,
    /// Its password, if it has one. With a password no session without keys is taken.
    pub password: Option<Password>,
    /// The target.
    pub target: Name,
    /// Who we are.
    pub initiator: Name,
    /// What distinguishes our ports.
    pub isid: [u8; 6],
    /// What we call the session; not 0.
    pub sid: u32,
    /// The least level that exchanges are to have.
    pub protection: Level,
    /// What we offer; its levels are those from `protection` on, and its `frame_max` the most that is used, whatever the
    /// port takes.
    pub offer: Parameters,
    /// Where to look for the target, if that is known; else everywhere.
    pub target_address: Option<(EtherPort, Mac)>,
    /// How long to try.
    pub patience: Duration,
}

impl LoginPlan {
    /// Gives the session another name. It begins with the same byte: something may tell its frames from others' by that.
    pub(super) fn rename(&mut self, [a, b, c]: [u8; 3]) {
        let [first, ..] = self.sid.to_be_bytes();
        self.sid = u32::from_be_bytes([first, a, b, c]).max(1);
    }

    /// Checks whether it can be.
    pub(super) fn check(&self) -> Result<(), HandshakeError> {
        if self.password.is_none() && self.protection > Level::None {
            return Err(HandshakeError::ProtectionNeedsPassword(self.protection));
        }
        self.offer.check().map_err(HandshakeError::BadOffer)
    }

    /// Returns what is offered on a port whose frames have this length.
    pub(super) fn offer_over(&self, mtu: usize) -> Parameters {
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        Parameters {
            frame_max: mtu.min(self.offer.frame_max),
            levels: Levels::from(self.protection),
            ..self.offer
        }
    }
}
