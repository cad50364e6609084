//! The types of the admin protocol that maintain single LUNs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::shape::{Described, Field, Object, Shape, object};

object! {
    /// The LUN that `drain-lun` or `snapshot-lun` is about.
    LunSelector {
        /// The target's name.
        target: String,
        /// The LUN.
        lun: u16,
        /// `snapshot-lun`: the absolute path of the new file; null or absent otherwise.
        path: Option<String>,
        /// `drain-lun`: how long to wait for the end of its tasks, in seconds. Null or absent to end the
        /// drain: initiators can use the LUN again.
        wait_s: Option<u32>,
    }
}

object! {
    /// The answer to `drain-lun`.
    Drained {
        /// Whether initiators can no longer use the LUN.
        drained: bool,
        /// How many tasks it still has. With 0, everything that it acknowledged is durable.
        tasks: u64,
    }
}

object! {
    /// The answer to `snapshot-lun`: the file is there, and durable.
    Snapshot {
        /// Its path.
        path: String,
        /// Its length in bytes.
        bytes: u64,
    }
}
