//! The questions that handshakes and discovery ask of the configuration's owner.

use alloc::sync::Arc;
use alloc::vec::Vec;

use base::ether::{EtherPort, Mac};

use crate::pdu::discovery::ExportedLun;
use crate::pdu::name::{GroupName, Name};
use crate::pdu::parameters::Parameters;
use security::opaque::PasswordRecord;

/// Answers the questions of handshakes and discovery.
pub trait TargetDirectory {
    /// Returns the instance: the identity of the server, the same at all of its addresses and after every
    /// restart.
    fn instance(&self) -> [u8; 16];

    /// Returns how `group` may access `target` through this port; `None` if it may not, which the initiator
    /// is not told.
    fn target_access(&self, port: EtherPort, group: &GroupName, target: &Name) -> Option<TargetAccess>;

    /// Returns the first target, in the order of names, that comes after `after` (or the first of all) and
    /// that exports something to `group` through this port.
    fn export_behind(&self, port: EtherPort, group: &GroupName, after: Option<&Name>) -> Option<Export>;

    /// Returns whether `target` accepts another session of this initiator port. If it does not, the initiator
    /// hears nothing, and asks again.
    fn has_room(&self, _group: &GroupName, _target: &Name, _initiator: &Name, _isid: &[u8; 6]) -> bool {
        true
    }

    /// Returns whether an existing session has this SID.
    fn sid_taken(&self, sid: u32) -> bool;

    /// Returns whether a session with keys exists for the same initiator port and target, which a session
    /// without keys must not replace.
    fn is_held(&self, _group: &GroupName, _target: &Name, _initiator: &Name, _isid: &[u8; 6]) -> bool {
        false
    }
}

/// How a group may access a target.
#[derive(Clone, Debug)]
pub struct TargetAccess {
    /// How an initiator of the group authenticates.
    pub access: GroupAccess,
    /// The parameters that the target agrees to. Their `frame_max` bounds the frames, whatever the port
    /// takes.
    pub parameters: Parameters,
    /// The top byte of the SIDs of the target's sessions, by which received frames are routed to the reactor
    /// that serves them.
    pub steering: u8,
}

/// How an initiator of a group authenticates.
#[derive(Clone, Debug)]
pub enum GroupAccess {
    /// Without a password: the names of group and target suffice, and nothing is protected.
    Open,
    /// With the password of which this is the record.
    Password(Arc<PasswordRecord>),
}

/// A target as an answer to discovery describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The name of the target.
    pub target: Name,
    /// Whether the group has a password.
    pub authenticates: bool,
    /// The logical units that the group may access, with the least protection level of each. Those beyond
    /// [`LUNS_MAX`](crate::pdu::discovery::LUNS_MAX) are left out of the answer.
    pub luns: Vec<ExportedLun>,
    /// The addresses of the ports on which the target is served.
    pub macs: Vec<Mac>,
}
