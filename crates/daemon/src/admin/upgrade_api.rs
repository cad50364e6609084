//! The types of the admin protocol by which the daemon is replaced by another process without ending
//! sessions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::shape::{Described, Field, Object, Shape, object};

/// The longest time in seconds that a client may give the daemon to find a moment in which no session has
/// anything under way.
pub const WAIT_MAX_S: u32 = 300;

object! {
    /// What is to replace the daemon.
    UpgradeRequest {
        /// The absolute path of the program; null for the path of the one that runs, as it is installed now.
        binary: Option<String>,
        /// How many seconds the daemon may try to find a moment in which no session has anything under way,
        /// at most 300; null for 10.
        wait_s: Option<u32>,
    }
}

object! {
    /// The result of `upgrade`. The process that answers ends after this answer.
    Upgraded {
        /// The version of the process that serves now.
        version: String,
        /// Its process ID.
        pid: u32,
        /// How many sessions it has taken over.
        sessions: u32,
        /// How many connections it has taken over.
        connections: u32,
        /// How long the initiators were not served, in milliseconds: from the moment in which their command
        /// windows stopped.
        pause_ms: u64,
        /// How often the daemon tried to find a moment in which no session had anything under way.
        attempts: u32,
    }
}
