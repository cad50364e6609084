//! What an association tells its owner.

use base::arena::Key;

use super::{MessageId, PathAddress, PathMtuStatus};

/// A message of which all was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The message.
    pub message: MessageId,
    /// Whose it was.
    pub owner: Option<Key>,
    /// The length of its body.
    pub body_len: usize,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// A message was delivered.
    Delivered(Delivery),
    /// A path may be used, for the first time or again.
    PathUp(u8),
    /// A path was silent for too long; it is still probed.
    PathDown(u8),
    /// A path is gone, whether it was used or not.
    PathGone {
        /// The path.
        path: u8,
        /// Between whom it was.
        address: PathAddress,
        /// Whether it carried data until now.
        carried: bool,
    },
    /// The longest frame of a path changed.
    PathMtu {
        /// The path.
        path: u8,
        /// What it carries now.
        mtu: usize,
    },
    /// What a path carries turned out to be less than our port takes, or to be all of that again.
    PathMtuStatus {
        /// The path.
        path: u8,
        /// What it carries, and who limits that.
        status: PathMtuStatus,
    },
    /// The peer allows exchanges up to this one, in the space of unprotected or of protected frames.
    XidLimit {
        /// Which space.
        sealed: bool,
        /// The largest exchange.
        limit: u32,
    },
    /// No path showed a sign of life for too long. Nothing more will happen.
    Lost,
    /// The peer acknowledges what it cannot have received. The session should end.
    Misbehaved,
    /// What we send has new keys.
    KeysChanged,
    /// The keys are used up and could not be changed. The session must end.
    KeysExhausted,
}
