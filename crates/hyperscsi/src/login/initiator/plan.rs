//! The plan of a login: which session an initiator wants.

use base::ether::{EtherPort, Mac};
use base::time::Duration;

use super::HandshakeError;
use crate::pdu::name::{GroupName, Name};
use crate::pdu::parameters::{Levels, Parameters};
use security::Level;
use security::opaque::Password;

/// The session that an initiator wants.
#[derive(Clone, Debug)]
pub struct LoginPlan {
    /// The group.
    pub group: GroupName,
    /// The password of the group, if it has one. With a password, no session without keys is accepted.
    pub password: Option<Password>,
    /// The target.
    pub target: Name,
    /// The name of this initiator.
    pub initiator: Name,
    /// The ISID, which distinguishes the ports of this initiator.
    pub isid: [u8; 6],
    /// Our SID for the session; not 0.
    pub sid: u32,
    /// The least protection level of exchanges.
    pub protection: Level,
    /// The parameters to offer. Only levels at or above `protection` are offered. `frame_max` bounds the
    /// frames, whatever the port takes.
    pub offer: Parameters,
    /// The address of the target, if it is known; otherwise all ports are searched.
    pub target_address: Option<(EtherPort, Mac)>,
    /// How long to try before the login fails.
    pub time_limit: Duration,
}

impl LoginPlan {
    /// Gives the session another SID. The first byte stays: drivers may use it to route the session's frames.
    pub(super) fn rename(&mut self, [a, b, c]: [u8; 3]) {
        let [first, ..] = self.sid.to_be_bytes();
        self.sid = u32::from_be_bytes([first, a, b, c]).max(1);
    }

    /// Checks whether the plan is possible.
    pub(super) fn check(&self) -> Result<(), HandshakeError> {
        if self.password.is_none() && self.protection > Level::None {
            return Err(HandshakeError::ProtectionNeedsPassword(self.protection));
        }
        self.offer.check().map_err(HandshakeError::BadOffer)
    }

    /// Returns the parameters that are offered on a port with this MTU.
    pub(super) fn offer_over(&self, mtu: usize) -> Parameters {
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        Parameters {
            frame_max: mtu.min(self.offer.frame_max),
            levels: Levels::from(self.protection),
            ..self.offer
        }
    }
}
