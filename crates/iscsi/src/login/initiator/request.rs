//! The requests that the initiator's half of a login sends.

use alloc::vec::Vec;

use crate::login::{LoginRequest, Stage, VERSION};
use crate::name::{Cid, Isid, Tsih};

/// A Login Request that owns its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedLoginRequest {
    /// T.
    pub transit: bool,
    /// C.
    pub cont: bool,
    /// The current stage.
    pub csg: Stage,
    /// The next stage.
    pub nsg: Stage,
    /// The initiator's half of the session identifier.
    pub isid: Isid,
    /// The target's half.
    pub tsih: Tsih,
    /// The task tag.
    pub itt: u32,
    /// The number of the connection.
    pub cid: Cid,
    /// The CmdSN.
    pub cmd_sn: u32,
    /// The text.
    pub data: Vec<u8>,
}

impl OwnedLoginRequest {
    /// Returns the same request in the form that the target's half takes; the connection knows `exp_stat_sn`.
    pub fn as_request(&self, exp_stat_sn: u32) -> LoginRequest<'_> {
        LoginRequest {
            transit: self.transit,
            cont: self.cont,
            csg: self.csg,
            nsg: self.nsg,
            version_max: VERSION,
            version_min: VERSION,
            isid: self.isid.0,
            tsih: self.tsih.0,
            itt: self.itt,
            cid: self.cid.0,
            cmd_sn: self.cmd_sn,
            exp_stat_sn,
            data: &self.data,
        }
    }
}
