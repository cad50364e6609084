//! The types of the admin protocol. Scripts rely on these shapes: a new release only adds fields, and
//! [`VERSION`] is increased when a field changes its meaning or is removed.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The version of the protocol.
pub const VERSION: u32 = 1;

/// The longest line of the protocol in bytes, newline included: a response with 65 535 sessions of some 500
/// bytes each, doubled.
pub const LINE_LEN_MAX: usize = 64 << 20;

/// The longest request in bytes, newline included. A request is one short JSON object.
pub const REQUEST_LEN_MAX: usize = 4096;

/// The shape of a type in JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A built-in type of JSON.
    Plain(&'static str),
    /// Null or this type.
    Nullable(Box<Shape>),
    /// A list of this type.
    List(Box<Shape>),
    /// One of these words, each with its meaning.
    Words(&'static [(&'static str, &'static str)]),
    /// An object of the protocol, by name.
    Object(&'static str),
}

/// A field of an object.
#[derive(Clone, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// What it means.
    pub doc: &'static str,
    /// Its shape.
    pub shape: Shape,
}

/// An object and its fields.
#[derive(Clone, Debug)]
pub struct Object {
    /// What it describes.
    pub doc: &'static str,
    /// Its fields in order.
    pub fields: Vec<Field>,
}

/// A type of the protocol that can describe its own shape.
pub trait Described {
    /// Returns the shape of the type, and adds the objects that it contains to `types`.
    fn describe(types: &mut BTreeMap<&'static str, Object>) -> Shape;
}

macro_rules! plain {
    ($($type:ty: $name:literal),*) => {
        $(impl Described for $type {
            fn describe(_: &mut BTreeMap<&'static str, Object>) -> Shape {
                Shape::Plain($name)
            }
        })*
    };
}

plain!(String: "string", Cow<'_, str>: "string", bool: "boolean", u16: "number", u32: "number", u64: "number");

impl<T: Described> Described for Option<T> {
    fn describe(types: &mut BTreeMap<&'static str, Object>) -> Shape {
        Shape::Nullable(Box::new(T::describe(types)))
    }
}

impl<T: Described> Described for Vec<T> {
    fn describe(types: &mut BTreeMap<&'static str, Object>) -> Shape {
        Shape::List(Box::new(T::describe(types)))
    }
}

/// Declares an object of the protocol; its text in `docs/admin-api.json` comes from its doc comments.
macro_rules! object {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $field_doc:literal])+ $field:ident: $type:ty,)* }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $name {
            $($(#[doc = $field_doc])+ pub $field: $type,)*
        }

        impl Described for $name {
            fn describe(types: &mut BTreeMap<&'static str, Object>) -> Shape {
                if !types.contains_key(stringify!($name)) {
                    let doc = concat!($($doc),+);
                    types.insert(stringify!($name), Object { doc, fields: Vec::new() });
                    let fields = vec![
                        $(Field {
                            name: stringify!($field),
                            doc: concat!($($field_doc),+),
                            shape: <$type>::describe(types),
                        },)*
                    ];
                    types.insert(stringify!($name), Object { doc, fields });
                }
                Shape::Object(stringify!($name))
            }
        }
    };
}

/// Declares an enumeration of words of the protocol.
macro_rules! words {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $word_doc:literal])+ $variant:ident = $word:literal,)* }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            $($(#[doc = $word_doc])+ #[serde(rename = $word)] $variant,)*
        }

        impl Described for $name {
            fn describe(_: &mut BTreeMap<&'static str, Object>) -> Shape {
                Shape::Words(&[$(($word, concat!($($word_doc),+)),)*])
            }
        }
    };
}

words! {
    /// What a client can ask.
    Method {
        /// How the daemon is.
        Status = "status",
        /// Who is logged in.
        Sessions = "sessions",
        /// What is served.
        Luns = "luns",
    }
}

object! {
    /// A question: one line.
    Request {
        /// What is asked.
        method: Method,
    }
}

words! {
    /// Why there is no result.
    ErrorKind {
        /// The line is no request.
        Malformed = "malformed",
        /// The line is too long; the connection is closed.
        TooLong = "too-long",
        /// Too many clients; the connection is closed.
        Busy = "busy",
        /// A reactor did not answer in time, or the daemon ends.
        Unavailable = "unavailable",
    }
}

object! {
    /// What went wrong.
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
    /// What went wrong.
    Error(Failure),
}

object! {
    /// How the daemon is.
    Status {
        /// The version of this protocol.
        api: u32,
        /// The version of targe.
        version: String,
        /// Its process.
        pid: u32,
        /// For how long it has been running, in seconds.
        uptime_s: u64,
        /// The configuration file; null when the flags were all.
        config: Option<String>,
        /// How often the configuration was read again.
        reloads: u64,
        /// The last reload; null before the first.
        reload: Option<Reload>,
        /// Where persistent state is kept.
        state_dir: String,
        /// The most sessions in all.
        max_sessions: u32,
        /// Sessions now.
        sessions: u32,
        /// Logins that succeeded, since the start.
        logins: u64,
        /// Logins that were refused, since the start.
        failed_logins: u64,
        /// Logins that ended the session of another host which uses the same initiator name, since the start.
        rival_logins: u64,
        /// How often files and devices that are served now have failed, in all.
        medium_errors: u64,
        /// How many disks are not ready because their file or device is not what it was.
        not_ready: u32,
        /// Number of internal errors (violated invariants and panics) since the start.
        bugs: u64,
        /// What was lost or damaged on the way, since the start, in sessions at hand and gone.
        repairs: Repairs,
        /// The portals.
        portals: Vec<Portal>,
        /// The names of the Ethernet interfaces that HyperSCSI is served on.
        interfaces: Vec<String>,
        /// The HyperSCSI groups.
        groups: Vec<Group>,
        /// What HyperSCSI did, since the start, in sessions at hand and gone.
        hyperscsi: FrameTotals,
        /// The targets.
        targets: Vec<Target>,
        /// The reactors.
        reactors: Vec<Reactor>,
    }
}

object! {
    /// The last time that the configuration was read again.
    Reload {
        /// How long ago, in seconds.
        ago_s: u64,
        /// Whether it was applied. If not, nothing was changed but what it takes away, which `message` tells
        /// then.
        applied: bool,
        /// What changed, or why nothing did.
        message: String,
    }
}

object! {
    /// A listening address.
    Portal {
        /// The address.
        listen: String,
        /// What SendTargets names instead.
        announce: Option<String>,
        /// The portal group tag.
        tag: u16,
    }
}

object! {
    /// A HyperSCSI group.
    Group {
        /// Its name.
        name: String,
        /// Whether it has a password.
        password: bool,
        /// The least protection of whatever its members do: `none`, `integrity` or `encrypt`.
        protection: String,
        /// The names of the interfaces on which it is served.
        interfaces: Vec<String>,
        /// How many targets are exported to it.
        targets: u32,
        /// Sessions now.
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
        /// How many LUNs it has.
        luns: u32,
        /// Sessions now.
        sessions: u32,
        /// The most sessions.
        max_sessions: u32,
    }
}

object! {
    /// A thread that serves.
    Reactor {
        /// How it drives sockets and files: `io_uring` or `epoll`.
        engine: String,
        /// Why it is not io_uring, although that would have been preferred.
        fallback: Option<String>,
        /// The core it runs on; null when it may wander.
        core: Option<u16>,
        /// Open connections.
        connections: u64,
        /// Connections that a limit turned away.
        refused: u64,
        /// Times it woke up.
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
        /// Ethernet frames lost because they came while there was no room.
        frames_dropped: u64,
    }
}

object! {
    /// Who is logged in.
    Sessions {
        /// The iSCSI sessions, by target, then by initiator.
        sessions: Vec<Session>,
        /// The HyperSCSI sessions, likewise.
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
        /// What distinguishes the initiator's ports, 12 hexadecimal digits.
        isid: String,
        /// The group that it came with.
        group: String,
        /// Whether the initiator proved that it knows the group's password; without that nothing is
        /// protected.
        authenticated: bool,
        /// The least protection of whatever it does, as its group demands now: `none`, `integrity` or
        /// `encrypt`. A LUN can demand more.
        protection: String,
        /// How many tasks are open.
        tasks: u32,
        /// SCSI commands so far.
        commands: u64,
        /// Bytes sent to the initiator as data so far.
        data_in_bytes: u64,
        /// Bytes received from the initiator as data so far.
        data_out_bytes: u64,
        /// LUNs that are another disk now than the one that the initiator opened, and show it none until it
        /// has logged out.
        other_disk_luns: Vec<u16>,
        /// Its paths.
        paths: Vec<Path>,
        /// What was lost, damaged, repeated or late, and passed over or repaired.
        repairs: FrameRepairs,
    }
}

object! {
    /// What HyperSCSI did.
    FrameTotals {
        /// SCSI commands taken. Each was handed to its unit once, but for those that were refused.
        commands: u64,
        /// Task management requests taken.
        management: u64,
        /// Commands refused because they had less protection than their unit demands.
        refused_level: u64,
        /// Commands answered BUSY because memory was short.
        busy: u64,
        /// Frames that are none, or of another version.
        bad_frames: u64,
        /// Frames to sessions that there are not.
        unknown_sessions: u64,
        /// Handshakes that were refused.
        handshakes_refused: u64,
        /// Handshakes that their initiator did not finish; a wrong password is seen there, and is not told.
        handshakes_unfinished: u64,
        /// Handshakes that were put off, since there was no room or too much was guessed lately.
        handshakes_put_off: u64,
        /// What was lost, damaged, repeated or late, and passed over or repaired.
        repairs: FrameRepairs,
    }
}

object! {
    /// What was lost, damaged, repeated or late in HyperSCSI, and passed over or repaired.
    FrameRepairs {
        /// Requests that came again and were not carried out again.
        duplicate_requests: u64,
        /// Frames of commands that are over: passed over.
        late_frames: u64,
        /// Frames whose CRC or tag did not fit.
        damaged_frames: u64,
        /// Frames that had come before: repeated by the network, or by somebody.
        replayed_frames: u64,
        /// Frames passed over for other reasons: from elsewhere, without the protection that they must have,
        /// beyond the credit, or with a payload or an acknowledgement that makes no sense.
        refused_frames: u64,
        /// Frames of ours that were given up as lost: what they carried was sent again.
        frames_lost: u64,
        /// Of those, frames that arrived after all.
        frames_lost_wrongly: u64,
        /// Times that nothing was heard for too long, so that the oldest data was sent again.
        timeouts: u64,
        /// Frames that came while an interface had no room, whosever they were.
        overruns: u64,
    }
}

object! {
    /// A way between an interface of ours and one of the initiator's.
    Path {
        /// The name of our interface.
        interface: String,
        /// The initiator's address.
        peer: String,
        /// Whether it carries data.
        up: bool,
        /// The longest frames it carries, as Ethernet payload in bytes.
        mtu: u64,
        /// What our interface takes.
        interface_mtu: u64,
        /// What the initiator says that its interface takes.
        peer_mtu: u64,
        /// Frames sent on it so far.
        frames_out: u64,
        /// Frames that came on it so far and were taken.
        frames_in: u64,
        /// Frames sent on it that were given up as lost.
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
        /// The initiator's half of the session identifier, 12 hexadecimal digits.
        isid: String,
        /// Our half of the session identifier.
        tsih: u16,
        /// The address that its first connection comes from; null while it has none.
        peer: Option<String>,
        /// How many connections it has.
        connections: u64,
        /// The error recovery level.
        error_recovery_level: u16,
        /// How many tasks are open.
        tasks: u32,
        /// SCSI commands so far.
        commands: u64,
        /// Bytes sent to the initiator as data so far.
        data_in_bytes: u64,
        /// Bytes received from the initiator as data so far.
        data_out_bytes: u64,
        /// Its connections, the first one first.
        members: Vec<Connection>,
        /// How many of its connections were lost and have tasks that wait for another.
        lost_connections: u64,
        /// What was repaired so far.
        repairs: Repairs,
        /// LUNs that are another disk now than the one that the initiator opened, and show it none until it
        /// has logged out.
        other_disk_luns: Vec<u16>,
    }
}

object! {
    /// A connection of a session.
    Connection {
        /// Its number in the session (CID).
        cid: u16,
        /// The address that it comes from.
        peer: String,
        /// Whether headers carry a digest.
        header_digest: bool,
        /// Whether data carries a digest.
        data_digest: bool,
        /// How many answers the initiator has not acknowledged; always 0 at error recovery level 0.
        unacknowledged: u64,
    }
}

object! {
    /// What was lost or damaged on the way and repaired without the initiator's SCSI layer noticing.
    Repairs {
        /// PDUs with a wrong header digest that were passed over.
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

object! {
    /// What is served.
    Luns {
        /// The LUNs, by target, then by number.
        luns: Vec<Lun>,
    }
}

object! {
    /// A LUN of a target. A shared unit appears once for each target that shows it.
    Lun {
        /// The target's name.
        target: String,
        /// The number.
        lun: u16,
        /// The medium, as a LUN spec begins.
        medium: String,
        /// The capacity in bytes.
        bytes: u64,
        /// The length of a logical block in bytes.
        block_bytes: u32,
        /// Whether it is write-protected.
        read_only: bool,
        /// Whether unmapped blocks give their storage back.
        thin: bool,
        /// Whether writes are acknowledged before they are durable.
        write_cache: bool,
        /// Whether what it holds is stored encrypted.
        encrypted: bool,
        /// The unit serial number.
        serial: String,
        /// The world-wide name, in hexadecimal digits.
        naa: String,
        /// Commands so far, through every target that shows the unit.
        commands: u64,
        /// Bytes read so far.
        read_bytes: u64,
        /// Bytes written so far.
        write_bytes: u64,
        /// How often its file or device failed so far: no space, an error of the device, a file that ends too
        /// early.
        medium_errors: u64,
        /// How often its file or device took longer than `io_timeout` so far.
        io_timeouts: u64,
        /// Why it is not ready: its file or device is not what it was. Null when it is ready.
        not_ready: Option<String>,
    }
}
