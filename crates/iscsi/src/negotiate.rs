//! The negotiation of operational keys (RFC 7143 §6.2, §13): the policy of each side, and the values that
//! both agree on.
//!
//! [`negotiator`] runs the login negotiation for either role from the key table; [`key_rules`] decides which
//! keys may be sent at all; [`full_feature`] handles the keys that are legal after login.

pub mod full_feature;
pub mod key_rules;
pub mod negotiator;
pub(crate) mod pdu_codec;

use alloc::vec::Vec;

use security::Level;

use crate::aead::AeadDigest;
use crate::keys::Key;
use crate::recovery::RecoveryLevel;

/// How PDUs are protected against damage in transit (RFC 7143 §13.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Digest {
    /// No digest.
    #[default]
    None,
    /// CRC32C.
    Crc32c,
    /// An AEAD, which protects the PDUs from an attacker too (docs/iscsi-aead.md).
    Aead(AeadDigest),
}

/// Which digests a side offers and accepts, besides AEAD digests.
///
/// The responder must choose the first of the offered digests that it supports (RFC 7143 §6.2.1), so a
/// preference has an effect only in the offers of this side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DigestPolicy {
    /// Offers `CRC32C,None`, accepts both.
    #[default]
    PreferCrc32c,
    /// Offers `None,CRC32C`, accepts both.
    PreferNone,
    /// Offers and accepts only `CRC32C`.
    RequireCrc32c,
    /// Offers and accepts only `None`.
    RequireNone,
}

impl Digest {
    /// Returns the name of the digest in the lists of `HeaderDigest` and `DataDigest`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Crc32c => "CRC32C",
            Self::Aead(digest) => digest.name(),
        }
    }

    /// Returns the AEAD, if it is one.
    pub const fn aead(self) -> Option<AeadDigest> {
        match self {
            Self::Aead(digest) => Some(digest),
            Self::None | Self::Crc32c => None,
        }
    }

    /// Returns the digest with this name; `None` if there is none.
    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::None, Self::Crc32c]
            .into_iter()
            .find(|digest| digest.name() == name)
            .or_else(|| AeadDigest::by_name(name).map(Self::Aead))
    }

    fn by_name(name: &str) -> Self {
        if name == Self::Crc32c.name() {
            return Self::Crc32c;
        }
        AeadDigest::by_name(name).map_or(Self::None, Self::Aead)
    }
}

impl DigestPolicy {
    /// Returns the digests that are offered and accepted, in order of preference.
    pub const fn accepted(self) -> &'static [&'static str] {
        match self {
            Self::PreferCrc32c => &["CRC32C", "None"],
            Self::PreferNone => &["None", "CRC32C"],
            Self::RequireCrc32c => &["CRC32C"],
            Self::RequireNone => &["None"],
        }
    }
}

/// How a session reports the end of tasks that another session aborted (RFC 7143 §13.23).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskReporting {
    /// As RFC 3720 defines it.
    #[default]
    Rfc3720,
    /// With a response fence (RFC 7143 §4.2.2.3.3).
    ResponseFence,
    /// By the fast multi-task abort (RFC 7143 §4.2.3.4).
    FastAbort,
}

impl TaskReporting {
    /// Returns the name of the procedure.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Rfc3720 => "RFC3720",
            Self::ResponseFence => "ResponseFence",
            Self::FastAbort => "FastAbort",
        }
    }

    /// Returns the procedure with this name; `None` if there is none.
    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::Rfc3720, Self::ResponseFence, Self::FastAbort].into_iter().find(|way| way.name() == name)
    }

    fn by_name(name: &str) -> Self {
        match name {
            "ResponseFence" => Self::ResponseFence,
            "FastAbort" => Self::FastAbort,
            _ => Self::Rfc3720,
        }
    }
}

/// The policy of one side for each operational key: its offers as initiator, the values that it agrees to as
/// target.
///
/// A number is the highest value (for keys whose result is the minimum) or the lowest value
/// (`default_time2wait`) that this side accepts. Numbers outside a key's legal range are moved to the nearest
/// end of that range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPolicy {
    /// HeaderDigest.
    pub header_digest: DigestPolicy,
    /// DataDigest.
    pub data_digest: DigestPolicy,
    /// The AEAD digests that this side offers and accepts for both keys, in order of preference, on a
    /// connection with the password login. They come before all others. A side that accepts only `None` for
    /// one of the keys takes none of them, unless it requires a protection.
    pub aead_digests: &'static [AeadDigest],
    /// The least protection of a connection. Above [`Level::None`] this side accepts only AEAD digests of
    /// this level and above, and no login except the password login, without which there are none.
    pub min_protection: Level,
    /// MaxConnections: connections in one session.
    pub max_connections: u16,
    /// InitialR2T: whether this side insists on an R2T before any data that is not immediate (no unsolicited
    /// data).
    pub initial_r2t: bool,
    /// ImmediateData: whether this side permits data in the command PDU.
    pub immediate_data: bool,
    /// MaxRecvDataSegmentLength: the longest data segment that this side receives, in bytes.
    pub max_recv_data_segment_length: u32,
    /// MaxBurstLength, in bytes.
    pub max_burst_length: u32,
    /// FirstBurstLength, in bytes.
    pub first_burst_length: u32,
    /// DefaultTime2Wait, in seconds.
    pub default_time2wait: u16,
    /// DefaultTime2Retain, in seconds.
    pub default_time2retain: u16,
    /// MaxOutstandingR2T, per task.
    pub max_outstanding_r2t: u16,
    /// DataPDUInOrder: whether this side insists that the PDUs of a sequence arrive in order.
    pub data_pdu_in_order: bool,
    /// DataSequenceInOrder: whether this side insists that sequences arrive in order.
    pub data_sequence_in_order: bool,
    /// ErrorRecoveryLevel.
    pub error_recovery_level: u8,
    /// TaskReporting: the names of the procedures that this side supports, best first.
    pub task_reporting: &'static [&'static str],
    /// iSCSIProtocolLevel: 1 is RFC 7143, 2 adds RFC 7144.
    pub protocol_level: u8,
}

impl Default for KeyPolicy {
    /// Returns a policy that prefers integrity, avoids every unnecessary round trip, and offers every feature
    /// of the protocol (DESIGN §4).
    fn default() -> Self {
        Self {
            header_digest: DigestPolicy::PreferCrc32c,
            data_digest: DigestPolicy::PreferCrc32c,
            aead_digests: &AeadDigest::ALL,
            min_protection: Level::None,
            max_connections: 8,
            initial_r2t: false,
            immediate_data: true,
            max_recv_data_segment_length: 256 << 10,
            max_burst_length: 1 << 20,
            first_burst_length: 256 << 10,
            default_time2wait: 2,
            default_time2retain: 20,
            max_outstanding_r2t: 8,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            //= rfc7143#section-7.1.5
            //# When a defined value of ErrorRecoveryLevel is proposed by an originator in a text negotiation,
            //# the originator MUST support the functionality defined for the proposed value and,
            //# additionally, functionality corresponding to any defined value numerically less than the
            //# proposed value.
            error_recovery_level: 2,
            task_reporting: &["RFC3720"],
            protocol_level: 2,
        }
    }
}

/// The policy for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Want {
    Number(u32),
    Flag(bool),
    Names(Vec<&'static str>),
}

impl KeyPolicy {
    /// Returns the policy for `key`; `None` for keys that are no operational parameters. `has_keys` states
    /// whether the connection has keys for an AEAD digest.
    fn want(&self, key: Key, has_keys: bool) -> Option<Want> {
        Some(match key {
            Key::HeaderDigest => Want::Names(self.digests(self.header_digest, has_keys)),
            Key::DataDigest => Want::Names(self.digests(self.data_digest, has_keys)),
            Key::TaskReporting => Want::Names(self.task_reporting.to_vec()),
            Key::InitialR2T => Want::Flag(self.initial_r2t),
            Key::ImmediateData => Want::Flag(self.immediate_data),
            Key::DataPduInOrder => Want::Flag(self.data_pdu_in_order),
            Key::DataSequenceInOrder => Want::Flag(self.data_sequence_in_order),
            Key::MaxConnections => Want::Number(self.max_connections.into()),
            Key::MaxRecvDataSegmentLength => Want::Number(self.max_recv_data_segment_length),
            Key::MaxBurstLength => Want::Number(self.max_burst_length),
            Key::FirstBurstLength => Want::Number(self.first_burst_length),
            Key::DefaultTime2Wait => Want::Number(self.default_time2wait.into()),
            Key::DefaultTime2Retain => Want::Number(self.default_time2retain.into()),
            Key::MaxOutstandingR2T => Want::Number(self.max_outstanding_r2t.into()),
            Key::ErrorRecoveryLevel => Want::Number(self.error_recovery_level.into()),
            Key::ProtocolLevel => Want::Number(self.protocol_level.into()),
            _ => return None,
        })
    }

    /// Returns the digests that this side offers and accepts for one key, in order of preference.
    fn digests(&self, others: DigestPolicy, has_keys: bool) -> Vec<&'static str> {
        let requires_aead = self.min_protection > Level::None;
        let forbids_aead = !has_keys
            || !requires_aead && [self.header_digest, self.data_digest].contains(&DigestPolicy::RequireNone);
        let aead = self.aead_digests.iter().filter(|digest| {
            //= iscsi-aead#section-5
            //# An AEAD digest MUST NOT be offered, and is an unknown value for the acceptor, on a
            //# connection without the login of section 3.
            //= iscsi-aead#section-5
            //# A side that requires a protection offers and accepts no value below it.
            !forbids_aead && digest.level() >= self.min_protection
        });
        let others = others.accepted().iter().filter(|_| !requires_aead);
        aead.map(|digest| digest.name()).chain(others.copied()).collect()
    }
}

/// The parameters that a session and one of its connections agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Negotiated {
    /// The parameters of the whole session.
    pub session: SessionParameters,
    /// The parameters of this connection.
    pub connection: ConnectionParameters,
}

/// The parameters that a session agreed on while its first connection logged in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionParameters {
    /// The most connections that the session can have.
    pub max_connections: u16,
    /// Whether all data except immediate data needs an R2T.
    pub initial_r2t: bool,
    /// Whether a command PDU can carry data.
    pub immediate_data: bool,
    /// The most data in one sequence, in bytes.
    pub max_burst_length: u32,
    /// The most unsolicited data of a command, in bytes; never above `max_burst_length`.
    pub first_burst_length: u32,
    /// The shortest wait before a connection is established again or its tasks are reassigned, in seconds.
    pub default_time2wait: u16,
    /// How long the target keeps tasks after that, in seconds.
    pub default_time2retain: u16,
    /// The most R2Ts of one task that are open at a time.
    pub max_outstanding_r2t: u16,
    /// Whether the PDUs of a sequence are sent in the order of their offsets.
    pub data_pdu_in_order: bool,
    /// Whether sequences are sent in the order of their offsets.
    pub data_sequence_in_order: bool,
    /// The error recovery level.
    pub error_recovery_level: RecoveryLevel,
    /// How the end of aborted tasks is reported.
    pub task_reporting: TaskReporting,
    /// The protocol level: 1 is RFC 7143, 2 adds RFC 7144.
    pub protocol_level: u8,
}

impl Default for SessionParameters {
    /// Returns the values that hold when nothing was negotiated (RFC 7143 §13).
    fn default() -> Self {
        Self {
            max_connections: 1,
            initial_r2t: true,
            immediate_data: true,
            max_burst_length: 262_144,
            first_burst_length: 65_536,
            default_time2wait: 2,
            default_time2retain: 20,
            max_outstanding_r2t: 1,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            error_recovery_level: RecoveryLevel::SessionRecovery,
            task_reporting: TaskReporting::Rfc3720,
            protocol_level: 1,
        }
    }
}

/// The parameters that one connection agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionParameters {
    /// The digest over header segments, from the first PDU of full feature phase on.
    pub header_digest: Digest,
    /// The digest over data segments, from the first PDU of full feature phase on.
    pub data_digest: Digest,
    /// The longest data segment that the initiator receives, in bytes: a limit on what the target sends.
    pub initiator_max_recv: u32,
    /// The longest data segment that the target receives, in bytes: a limit on what the initiator sends.
    pub target_max_recv: u32,
}

impl Default for ConnectionParameters {
    /// Returns the values that hold when nothing was negotiated (RFC 7143 §13).
    fn default() -> Self {
        Self {
            header_digest: Digest::None,
            data_digest: Digest::None,
            initiator_max_recv: crate::keys::DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH,
            target_max_recv: crate::keys::DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH,
        }
    }
}
