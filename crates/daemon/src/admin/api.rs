//! The types of the admin protocol. Scripts rely on these shapes: a new release only adds fields, and
//! [`VERSION`] is increased when a field changes its meaning or is removed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::change_api::{Change, LibraryRequest, SessionSelector};
use super::counters_api::{IscsiTotals, Memory, TlsTotals};
use super::lun_api::{Limit, LunList, LunSelector, ReservationSelector};
use super::shape::{Described, Field, Object, Shape, object, words};
use super::trace_api::TraceRequest;
use super::upgrade_api::UpgradeRequest;

/// The version of the protocol.
pub const VERSION: u32 = 1;

/// The longest line of the protocol in bytes, newline included: a response with 65 535 sessions or LUNs of
/// some 1500 bytes each, and half as much again.
pub const LINE_LEN_MAX: usize = 144 << 20;

/// The longest request in bytes, newline included: the text of the longest configuration file, in which JSON
/// doubles quotes, backslashes and newlines, and room for the rest.
pub const REQUEST_LEN_MAX: usize = 2 * (8 << 20) + (64 << 10);

words! {
    /// The requests of a client.
    Method {
        /// The state of the daemon.
        Status = "status",
        /// The sessions.
        Sessions = "sessions",
        /// The LUNs that are served.
        Luns = "luns",
        /// The LUNs that hosts may still have open, also without a session and without a disk.
        BoundLuns = "bound-luns",
        /// What the meaning of the configuration takes from the state directory, for clients that edit the
        /// file.
        StateFacts = "state-facts",
        /// What a change of the configuration would do. Needs `change`.
        Plan = "plan",
        /// Prepares a change of the configuration, so that nothing can fail when it is committed. Needs
        /// `change`.
        Prepare = "prepare",
        /// Applies the prepared change. The client has replaced the configuration file before.
        Commit = "commit",
        /// Drops the prepared change.
        Abandon = "abandon",
        /// Ends sessions. Needs `sessions`.
        DropSessions = "drop-sessions",
        /// Forgets which disks the ports of an initiator have used under their LUNs, so that the LUNs can
        /// lead them to other disks. Only for hosts that do not have these disks open any more, and cannot
        /// log out. A port that has a session keeps its record. Needs `sessions`.
        ForgetPorts = "forget-ports",
        /// Lets a LUN end its tasks and take no new ones, or ends that. Needs `lun`.
        DrainLun = "drain-lun",
        /// Accepts that writes which a LUN acknowledged are lost: its flushes succeed again, if its medium
        /// can be flushed now. What is lost stays lost: check the file systems and databases on it first.
        /// Needs `lun`.
        AcceptLoss = "accept-loss",
        /// The reservations and registrations of a LUN. Needs `lun`.
        Reservations = "reservations",
        /// Removes reservations and registrations of a LUN, for hosts that cannot do so any more. Needs
        /// `reservations`.
        ClearReservations = "clear-reservations",
        /// Makes a file that has the contents of the file of a LUN. Needs `lun`.
        SnapshotLun = "snapshot-lun",
        /// Makes files that have the contents which the files of LUNs have at one point in time, or none: no
        /// file has a write that was sent after the acknowledgement of a write which another one lacks. The
        /// LUNs wait for each other for at most 5 seconds. Needs `luns`.
        SnapshotLuns = "snapshot-luns",
        /// Makes the change of an operator in a tape library. Needs `library`.
        Library = "library",
        /// The last lines of the log.
        Events = "events",
        /// Reads the configuration file again, as SIGHUP does.
        Reload = "reload",
        /// Records sessions in a capture, which follows the answer: pieces, each with its length in four
        /// bytes (big-endian) before it; a piece of length zero; a line with a `TraceEnd`. Needs `trace`.
        Trace = "trace",
        /// Replaces the daemon by another process, which takes over the sessions. Needs `upgrade`.
        Upgrade = "upgrade",
    }
}

object! {
    /// A request: one line.
    Request {
        /// The request.
        method: Method,
        /// The configuration that `plan` and `prepare` are about; null or absent otherwise.
        change: Option<Change>,
        /// The sessions that `drop-sessions` is about, or the initiator ports that `forget-ports` is about;
        /// null or absent otherwise.
        sessions: Option<SessionSelector>,
        /// The LUN that `drain-lun`, `snapshot-lun`, `accept-loss` or `reservations` is about; null or absent
        /// otherwise.
        lun: Option<LunSelector>,
        /// What `clear-reservations` removes; null or absent otherwise.
        reservations: Option<ReservationSelector>,
        /// The LUNs that `snapshot-luns` is about; null or absent otherwise.
        luns: Option<LunList>,
        /// The change that `library` makes; null or absent otherwise.
        library: Option<LibraryRequest>,
        /// What `trace` records; null or absent otherwise.
        trace: Option<TraceRequest>,
        /// What `upgrade` replaces the daemon with; null or absent otherwise.
        upgrade: Option<UpgradeRequest>,
    }
}

impl Request {
    /// Returns a request without arguments.
    pub const fn new(method: Method) -> Self {
        Self {
            method,
            change: None,
            sessions: None,
            lun: None,
            reservations: None,
            luns: None,
            library: None,
            trace: None,
            upgrade: None,
        }
    }
}

words! {
    /// Why a request failed.
    ErrorKind {
        /// The line is not a request.
        Malformed = "malformed",
        /// The line is too long; the connection is closed.
        TooLong = "too-long",
        /// Too many clients; the connection is closed.
        Busy = "busy",
        /// A reactor did not answer in time, or the daemon is stopping.
        Unavailable = "unavailable",
        /// The configuration has mistakes.
        Invalid = "invalid",
        /// The request was not granted; `message` says what was changed all the same.
        Refused = "refused",
        /// The configuration file or the running configuration has changed meanwhile; nothing was changed.
        Conflict = "conflict",
    }
}

object! {
    /// An error.
    Failure {
        /// For programs.
        kind: ErrorKind,
        /// For display.
        message: String,
    }
}

/// A response: one line, which has one of the two fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Response<T> {
    /// The object that belongs to the method.
    Result(T),
    /// An error.
    Error(Failure),
}

object! {
    /// The state of the daemon.
    Status {
        /// The version of this protocol.
        api: u32,
        /// The version of targe.
        version: String,
        /// Its process ID.
        pid: u32,
        /// Its uptime, in seconds.
        uptime_s: u64,
        /// The configuration file; null if the daemon was configured by flags alone.
        config: Option<String>,
        /// The revision (SHA-256) of the configuration file that runs; null if the daemon was configured by
        /// flags alone, or if only the access restrictions of a reload were applied.
        revision: Option<String>,
        /// The generation of the running configuration. It increases with every change.
        generation: u64,
        /// How often the configuration was reloaded.
        reloads: u64,
        /// The last reload; null before the first.
        reload: Option<Reload>,
        /// The state directory.
        state_dir: String,
        /// The maximum number of sessions.
        max_sessions: u32,
        /// The present number of sessions.
        sessions: u32,
        /// Successful logins since the start.
        logins: u64,
        /// Rejected logins since the start.
        failed_logins: u64,
        /// Logins since the start that ended the session of another host with the same initiator name.
        rival_logins: u64,
        /// How often the files and devices that are served now have failed.
        medium_errors: u64,
        /// How many disks are not ready because their file or device has changed, or their server does not
        /// answer.
        not_ready: u32,
        /// Number of internal errors (violated invariants and panics) since the start.
        bugs: u64,
        /// What was lost or damaged on the network since the start, in present and past sessions.
        repairs: Repairs,
        /// The portals.
        portals: Vec<Portal>,
        /// The name servers (iSNS) and whether the targets are registered there.
        name_servers: Vec<NameServer>,
        /// The names of the Ethernet interfaces that HyperSCSI is served on.
        interfaces: Vec<String>,
        /// The HyperSCSI groups.
        groups: Vec<Group>,
        /// Counters of HyperSCSI since the start, of present and past sessions.
        hyperscsi: FrameTotals,
        /// The targets.
        targets: Vec<Target>,
        /// The reactors.
        reactors: Vec<Reactor>,
        /// Counters of iSCSI since the start.
        iscsi: IscsiTotals,
        /// TLS handshakes since the start.
        tls_handshakes: TlsTotals,
        /// The memory for data in flight.
        memory: Memory,
        /// Lines of the log that were counted instead of written.
        log_lines_dropped: u64,
        /// The address of the HTTP server; null if there is none.
        http: Option<String>,
        /// Why not all that is configured is served; empty if it is.
        problems: Vec<String>,
        /// What an operator should look at although everything is served.
        warnings: Vec<String>,
    }
}

object! {
    /// The last reload of the configuration.
    Reload {
        /// The time since then, in seconds.
        ago_s: u64,
        /// Whether it was applied. If not, only its access restrictions were applied, if it has any;
        /// `message` then lists them.
        applied: bool,
        /// What changed, or why it was not applied.
        message: String,
    }
}

object! {
    /// A listening address.
    Portal {
        /// The address.
        listen: String,
        /// The address that SendTargets reports instead.
        announce: Option<String>,
        /// The portal group tag.
        tag: u16,
        /// Whether it accepts TLS connections only.
        tls: bool,
    }
}

object! {
    /// A name server (iSNS).
    NameServer {
        /// Its host and port.
        server: String,
        /// `starting` before the first answer, `registered`, or `failed`.
        state: String,
        /// Why the last attempt failed; null if it did not.
        error: Option<String>,
    }
}

object! {
    /// A HyperSCSI group.
    Group {
        /// Its name.
        name: String,
        /// Whether it has a password.
        password: bool,
        /// The least protection of the commands of its members: `none`, `integrity` or `encrypt`.
        protection: String,
        /// The names of the interfaces on which it is served.
        interfaces: Vec<String>,
        /// How many targets are exported to it.
        targets: u32,
        /// The present number of sessions.
        sessions: u32,
    }
}

object! {
    /// A target.
    Target {
        /// Its name.
        name: String,
        /// Its alias.
        alias: Option<String>,
        /// The number of its LUNs.
        luns: u32,
        /// The present number of sessions.
        sessions: u32,
        /// The maximum number of sessions.
        max_sessions: u32,
        /// The number of sessions that do not see some LUNs because these require more protection.
        restricted_sessions: u32,
    }
}

object! {
    /// A reactor thread.
    Reactor {
        /// Its I/O interface: `io_uring` or `epoll`.
        engine: String,
        /// Why it is not io_uring, although io_uring was preferred.
        fallback: Option<String>,
        /// The core that it is pinned to; null if it is not pinned.
        core: Option<u16>,
        /// Open connections.
        connections: u64,
        /// Connections refused because of a limit.
        refused: u64,
        /// How often it woke up.
        wakeups: u64,
        /// System calls that wait or submit.
        enters: u64,
        /// Bytes received.
        bytes_in: u64,
        /// Bytes sent.
        bytes_out: u64,
        /// Ethernet frames received.
        frames_in: u64,
        /// Ethernet frames sent.
        frames_out: u64,
        /// Ethernet frames lost because the receive buffer was full.
        frames_dropped: u64,
        /// Ethernet frames that were not sent.
        frames_unsent: u64,
        /// Connections not accepted because no descriptor or memory was left.
        accept_failures: u64,
        /// Receives of connections.
        receives: u64,
        /// Sends of connections.
        sends: u64,
        /// File operations that it did itself.
        file_inline: u64,
        /// File operations that io_uring did.
        file_ring: u64,
        /// File operations that the thread pool did.
        file_threads: u64,
    }
}

object! {
    /// The sessions.
    Sessions {
        /// The iSCSI sessions, sorted by target, then by initiator.
        sessions: Vec<Session>,
        /// The HyperSCSI sessions, in the same order.
        hyperscsi: Vec<FrameSession>,
    }
}

object! {
    /// A HyperSCSI session.
    FrameSession {
        /// The target's name.
        target: String,
        /// The initiator's name.
        initiator: String,
        /// The identifier of the initiator port, 12 hexadecimal digits.
        isid: String,
        /// The group of the session.
        group: String,
        /// Whether the initiator authenticated with the group's password; otherwise nothing is protected.
        authenticated: bool,
        /// The least protection of its commands that its group requires now: `none`, `integrity` or
        /// `encrypt`. A LUN can require more.
        protection: String,
        /// The number of outstanding tasks.
        tasks: u32,
        /// SCSI commands so far.
        commands: u64,
        /// Bytes sent to the initiator as data so far.
        data_in_bytes: u64,
        /// Bytes received from the initiator as data so far.
        data_out_bytes: u64,
        /// LUNs that are not the disk that the initiator opened. They are withheld from it until it has
        /// logged out.
        other_disk_luns: Vec<u16>,
        /// What protects it: the password of its group; null for none.
        protection_by: Option<String>,
        /// How many LUNs the initiator does not see because they require more protection than the session
        /// can have.
        hidden_luns: u32,
        /// The limit of the initiator, over all its sessions of this group with the target; null if it has
        /// none.
        limit: Option<Limit>,
        /// Commands of the initiator that a limit has delayed so far, in all its sessions of this group with
        /// the target. Counted only for initiators that have or had a limit.
        delayed_commands: u64,
        /// How long these commands waited in total, in milliseconds.
        delayed_ms: u64,
        /// Its paths.
        paths: Vec<Path>,
        /// What was lost, damaged, repeated or late, and was ignored or repaired.
        repairs: FrameRepairs,
    }
}

object! {
    /// Counters of HyperSCSI.
    FrameTotals {
        /// SCSI commands received. Each was passed to its unit once, except those that were refused.
        commands: u64,
        /// Task management requests received.
        management: u64,
        /// Commands refused because they had less protection than their unit requires.
        refused_level: u64,
        /// Commands answered BUSY because memory was short.
        busy: u64,
        /// Frames that are malformed, or of another version.
        bad_frames: u64,
        /// Frames to sessions that do not exist.
        unknown_sessions: u64,
        /// Handshakes that were rejected.
        handshakes_refused: u64,
        /// Handshakes that their initiator did not finish, which includes those with a wrong password.
        handshakes_unfinished: u64,
        /// Handshakes that were deferred because memory was short or the limit on password guesses was
        /// reached.
        handshakes_put_off: u64,
        /// What was lost, damaged, repeated or late, and was ignored or repaired.
        repairs: FrameRepairs,
    }
}

object! {
    /// What was lost, damaged, repeated or late in HyperSCSI, and was ignored or repaired.
    FrameRepairs {
        /// Repeated requests, which were not executed again.
        duplicate_requests: u64,
        /// Frames of commands that have ended, which were ignored.
        late_frames: u64,
        /// Frames with a wrong CRC or authentication tag.
        damaged_frames: u64,
        /// Duplicate or replayed frames.
        replayed_frames: u64,
        /// Frames ignored for other reasons: from another address, without the required protection, beyond
        /// the credit, or with an invalid payload or acknowledgement.
        refused_frames: u64,
        /// Sent frames that were declared lost. Their content was sent again.
        frames_lost: u64,
        /// Of those, frames that had arrived.
        frames_lost_wrongly: u64,
        /// Probe timeouts, after which the oldest data was sent again.
        timeouts: u64,
        /// Frames lost because the receive buffer of an interface was full, whatever their session.
        overruns: u64,
    }
}

object! {
    /// A path between an interface of this host and one of the initiator.
    Path {
        /// The name of this host's interface.
        interface: String,
        /// The initiator's address.
        peer: String,
        /// Whether it carries data.
        up: bool,
        /// The longest frames it carries, as Ethernet payload in bytes.
        mtu: u64,
        /// The MTU of this host's interface.
        interface_mtu: u64,
        /// The MTU of the initiator's interface, as the initiator reports it.
        peer_mtu: u64,
        /// Frames sent on it so far.
        frames_out: u64,
        /// Frames received on it and accepted so far.
        frames_in: u64,
        /// Frames sent on it that were declared lost.
        frames_lost: u64,
        /// The smoothed round trip, in microseconds.
        round_trip_us: u64,
    }
}

object! {
    /// A session.
    Session {
        /// The target's name; null for a discovery session.
        target: Option<String>,
        /// The initiator's name.
        initiator: String,
        /// The ISID, 12 hexadecimal digits.
        isid: String,
        /// The TSIH.
        tsih: u16,
        /// The initiator's address of its first connection; null while it has none.
        peer: Option<String>,
        /// The number of its connections.
        connections: u64,
        /// The ErrorRecoveryLevel.
        error_recovery_level: u16,
        /// The number of outstanding tasks.
        tasks: u32,
        /// SCSI commands so far.
        commands: u64,
        /// Bytes sent to the initiator as data so far.
        data_in_bytes: u64,
        /// Bytes received from the initiator as data so far.
        data_out_bytes: u64,
        /// Its connections, the first one first.
        members: Vec<Connection>,
        /// The number of lost connections with tasks that wait for reassignment.
        lost_connections: u64,
        /// What was repaired so far.
        repairs: Repairs,
        /// LUNs that are not the disk that the initiator opened. They are withheld from it until it has
        /// logged out.
        other_disk_luns: Vec<u16>,
        /// The level of its protection: `none`, `integrity` or `encrypt`.
        protection: String,
        /// What protects it: TLS and the portal of its first connection, or the name of a digest; null for
        /// nothing.
        protection_by: Option<String>,
        /// How many LUNs the initiator does not see because they require more protection.
        hidden_luns: u32,
        /// The limit of the initiator, over all its iSCSI sessions with the target; null if it has none.
        limit: Option<Limit>,
        /// Commands of the initiator that a limit has delayed so far, in all its iSCSI sessions with the
        /// target. Counted only for initiators that have or had a limit.
        delayed_commands: u64,
        /// How long these commands waited in total, in milliseconds.
        delayed_ms: u64,
    }
}

object! {
    /// A connection of a session.
    Connection {
        /// Its number in the session (CID).
        cid: u16,
        /// The initiator's address.
        peer: String,
        /// Whether headers carry a digest.
        header_digest: bool,
        /// Whether data carries a digest.
        data_digest: bool,
        /// The number of responses that the initiator has not acknowledged; always 0 at ErrorRecoveryLevel 0.
        unacknowledged: u64,
    }
}

object! {
    /// What was lost or damaged on the network and repaired below the initiator's SCSI layer.
    Repairs {
        /// PDUs ignored because of a wrong header digest.
        header_digest_errors: u64,
        /// PDUs with a wrong data digest.
        data_digest_errors: u64,
        /// Requests of the initiator to send something again (SNACK).
        snacks: u64,
        /// Requests to the initiator to send data again (recovery R2T).
        recovery_r2ts: u64,
        /// Tasks that moved from a lost connection to another.
        reassigns: u64,
    }
}
