//! What a handshake and a discovery ask of the owner of the configuration.

use alloc::sync::Arc;
use alloc::vec::Vec;

use base::ether::{EtherPort, Mac};

use super::PasswordRecord;
use crate::pdu::discovery::ExportedLun;
use crate::pdu::name::{GroupName, Name};
use crate::pdu::parameters::Parameters;

/// Answers what a handshake and a discovery must know.
pub trait TargetDirectory {
    /// Returns what the server is recognized by, from one of its addresses to the next and from one start to the next.
    fn instance(&self) -> [u8; 16];

    /// Returns how `group` gets to `target` through this port; `None` if not, which nobody is told.
    fn target_access(&self, port: EtherPort, group: &GroupName, target: &Name) -> Option<TargetAccess>;

    /// Returns the first target, in the order of names, that comes behind `after` (or the first of all) and that exports
    /// something to `group` through this port.
    fn export_behind(&self, port: EtherPort, group: &GroupName, after: Option<&Name>) -> Option<Export>;

    /// Returns whether the name is that of a session in being.
    fn sid_taken(&self, sid: u32) -> bool;

    /// Returns whether a session with keys holds the place that one without would take.
    fn is_held(&self, _group: &GroupName, _target: &Name, _initiator: &Name, _isid: &[u8; 6]) -> bool {
        false
    }
}

/// How a group gets to a target.
#[derive(Clone, Debug)]
pub struct TargetAccess {
    /// What an initiator must know.
    pub access: GroupAccess,
    /// What we agree to. Its `frame_max` is the most that is used, whatever the port takes.
    pub parameters: Parameters,
    /// The top byte of the names of the target's sessions, by which their frames find who serves them.
    pub steering: u8,
}

/// What an initiator must know to get in.
#[derive(Clone, Debug)]
pub enum GroupAccess {
    /// The names of the group and the target; nothing is protected from anybody.
    Open,
    /// The password of which this is the record.
    Password(Arc<PasswordRecord>),
}

/// A target in the answer to a discovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its name.
    pub target: Name,
    /// Whether the group has a password.
    pub authenticates: bool,
    /// Its logical units that the group may see, with the least level of each; those beyond
    /// [`LUNS_MAX`](crate::pdu::discovery::LUNS_MAX) are left out of the answer.
    pub luns: Vec<ExportedLun>,
    /// The addresses of the ports that it is served on.
    pub macs: Vec<Mac>,
}
