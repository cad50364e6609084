//! The events that a connection reports to its owner.

use base::arena::Key;

use super::{MessageId, PathAddress, PathMtuStatus};

/// A message of which every byte was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The message.
    pub message: MessageId,
    /// The owner's key of the message.
    pub owner: Option<Key>,
    /// The length of its body.
    pub body_len: usize,
}

/// An event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// A message was delivered.
    Delivered(Delivery),
    /// A path may be used, for the first time or again.
    PathUp(u8),
    /// A path was silent for too long; it is still probed.
    PathDown(u8),
    /// A path was removed, whether it was used or not.
    PathGone {
        /// The path.
        path: u8,
        /// Both ends of the path.
        address: PathAddress,
        /// Whether it carried data until now.
        carried: bool,
    },
    /// The longest frame of a path changed.
    PathMtu {
        /// The path.
        path: u8,
        /// The longest frame that the path carries now.
        mtu: usize,
    },
    /// The path MTU turned out to be smaller than the port's, or is as large as the port's again.
    PathMtuStatus {
        /// The path.
        path: u8,
        /// The path MTU, and the MTU of both ports.
        status: PathMtuStatus,
    },
    /// The peer allows exchanges up to this one, in the packet number space of unprotected or of protected
    /// frames.
    XidLimit {
        /// Whether the limit is for protected frames.
        sealed: bool,
        /// The largest XID that is allowed.
        limit: u32,
    },
    /// No frame was received on any path for too long. No more events follow.
    Lost,
    /// The peer acknowledged a packet number that it cannot have received. The session should end.
    Misbehaved,
    /// The keys of sent frames were updated.
    KeysChanged,
    /// The keys are used up and could not be updated. The session must end.
    KeysExhausted,
}
