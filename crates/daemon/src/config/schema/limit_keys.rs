//! The keys that limit what a LUN executes, or what an initiator may use.

use super::Absent::{Told, Value};
use super::Kind::{Count, Size, Span};
use super::table::{Key, key};

/// The least rates keep the longest command, of 8 MiB, within 8 seconds. Initiators abort later.
pub(super) const IOPS: Key = key(
    "limit_iops",
    Count { min: 10, max: 4_000_000_000 },
    Told("no limit"),
    "The most operations per second: of all initiators together for a LUN, of each initiator over all LUNs of the \
     target for an access list entry. Initiators that authenticate as one user count as one. More commands wait. See [Limits](serve.md#limits).",
);

pub(super) const BANDWIDTH: Key = key(
    "limit_bandwidth",
    Size { min: 1 << 20, max: 1 << 50 },
    Told("no limit"),
    "The most bytes per second, likewise, such as `100M`. Reads and writes count together.",
);

pub(super) const BURST: Key = key(
    "limit_burst",
    Span { min_ms: 10, max_ms: 3_600_000 },
    Value("100ms"),
    "For how long a rate that is not used is saved up: after a pause, so much more is executed at once.",
);

pub(super) const SESSIONS: Key = key(
    "max_sessions",
    Count { min: 1, max: 65_535 },
    Told("the target's `max_sessions`"),
    "The most sessions of each of these initiators with the target; of each user, where initiators log in as one.",
);
