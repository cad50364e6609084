//! The types of the admin protocol that hold counters, which the metrics of the HTTP server have as well.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::shape::{Described, Field, Object, Shape, object};

object! {
    /// iSCSI logins that failed, by the class of the reason.
    RefusedLogins {
        /// The initiator did not prove who it is.
        authentication: u64,
        /// The initiator may not use the target, or not with the protection of the connection.
        authorization: u64,
        /// There is no such target, or it is not served there.
        not_found: u64,
        /// A limit is reached, or the target stops.
        resources: u64,
        /// The login took too long.
        timeout: u64,
        /// The initiator broke a rule, or a negotiation had no result.
        protocol: u64,
    }
}

object! {
    /// Counters of iSCSI since the start, of present and past sessions.
    IscsiTotals {
        /// Connections accepted.
        connections: u64,
        /// Connections dropped because the initiator broke a rule.
        connections_dropped: u64,
        /// PDUs received.
        pdus_in: u64,
        /// PDUs sent.
        pdus_out: u64,
        /// SCSI commands received.
        commands: u64,
        /// Task management requests received.
        management: u64,
        /// Bytes sent to initiators as data.
        data_in_bytes: u64,
        /// Bytes received from initiators as data.
        data_out_bytes: u64,
        /// Reject PDUs sent.
        rejects: u64,
        /// Requests ignored, such as numbers outside the command window.
        ignored: u64,
        /// Commands answered BUSY because memory was short.
        busy: u64,
        /// Commands that waited for memory for data to the initiator.
        waits_for_data_in: u64,
        /// Commands that waited for memory for data from the initiator.
        waits_for_data_out: u64,
        /// Commands whose data did not come in time.
        data_late: u64,
        /// Silent sessions that were ended so that new ones could begin.
        sessions_evicted: u64,
        /// Logins that reinstated a session.
        sessions_reinstated: u64,
        /// Logins that reinstated a connection.
        connections_reinstated: u64,
        /// Logins that failed.
        refused_logins: RefusedLogins,
    }
}

object! {
    /// TLS handshakes of the portals since the start.
    TlsTotals {
        /// Handshakes that were completed.
        completed: u64,
        /// Handshakes that failed.
        failed: u64,
    }
}

object! {
    /// The memory for data in flight.
    Memory {
        /// Bytes that commands hold now.
        used_bytes: u64,
        /// The most bytes that they may hold.
        limit_bytes: u64,
    }
}

object! {
    /// The commands of one class that ended with a status.
    Operation {
        /// The class: `read`, `write`, `flush`, `unmap` or `other`.
        op: String,
        /// Their number.
        commands: u64,
        /// How long all took together, in microseconds.
        total_us: u64,
        /// How many took at most 50, 100, 250, 500, 1000, 2500, 5000, 10000, 25000, 50000, 100000, 250000,
        /// 500000, 1000000, 2500000, 5000000 and 10000000 microseconds, and longer. Each command is counted
        /// once.
        buckets: Vec<u64>,
    }
}

object! {
    /// The commands that ended with CHECK CONDITION and one sense key.
    SenseKeyCount {
        /// The sense key.
        sense_key: u16,
        /// Their number.
        commands: u64,
    }
}
