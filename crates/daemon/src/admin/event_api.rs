//! The types of the admin protocol that hold the last lines of the log.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::shape::{Described, Field, Object, Shape, object};

object! {
    /// The last lines of the log, at most 256, without those of level `debug`.
    Events {
        /// The lines, the oldest first.
        events: Vec<Event>,
    }
}

object! {
    /// A line of the log.
    Event {
        /// Its number since the start, from 1 on.
        number: u64,
        /// When it was written, in UTC: `2026-11-20T20:26:52.123Z`.
        time: String,
        /// Its level: `error`, `warn` or `info`.
        level: String,
        /// Its message, at most 1000 characters of it.
        message: String,
    }
}
