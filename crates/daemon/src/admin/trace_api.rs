//! The types of the admin protocol by which a client traces sessions.
//!
//! After the answer to `trace` the connection carries the capture, from the daemon to the client, in pieces:
//! four bytes that tell the length of a piece (big-endian), then its bytes. A piece of length zero ends the
//! capture; a line with [`TraceEnd`] follows it. A client ends its trace when it shuts down its side of the
//! connection.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::change_api::SessionSelector;
use super::shape::{Described, Field, Object, Shape, object};

object! {
    /// What a client wants to trace.
    TraceRequest {
        /// The sessions.
        sessions: SessionSelector,
        /// Whether the trace may show, without protection, what a protected session carries.
        plain: bool,
        /// Whether the trace waits for logins and goes on when no session is left.
        follow: bool,
        /// How many bytes of each data segment are recorded at most; null for all.
        snap: Option<u32>,
        /// After how many PDUs and frames the trace ends; null for no limit.
        count: Option<u64>,
        /// After how many seconds the trace ends; null for no limit.
        seconds: Option<u64>,
        /// The memory that the daemon may use for what the client has not read yet, in MiB, from 1 to 1024;
        /// null for 16.
        buffer_mib: Option<u32>,
    }
}

object! {
    /// The answer to `trace`. The capture follows it.
    TraceStarted {
        /// How many sessions are traced.
        sessions: u32,
    }
}

object! {
    /// The line that follows the capture.
    TraceEnd {
        /// How many PDUs and frames the capture contains.
        recorded: u64,
        /// How many it does not contain because the client read too slowly.
        dropped: u64,
        /// Why the trace ended.
        reason: String,
    }
}
