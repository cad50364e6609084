//! Every text key of RFC 7143 (§12 and §13) and RFC 7144 as one table.
//!
//! The table states for each key the kind of its value, the legal values, the default, which side may send
//! it, and when. `negotiate` and `login` read the table; no other module holds facts about a key.

/// A key that the standards define. Any other key is unknown and is answered with `NotUnderstood`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "each variant is the key of that name; the table says the rest")]
pub enum Key {
    HeaderDigest,
    DataDigest,
    MaxConnections,
    SendTargets,
    TargetName,
    InitiatorName,
    TargetAlias,
    InitiatorAlias,
    TargetAddress,
    TargetPortalGroupTag,
    InitialR2T,
    ImmediateData,
    MaxRecvDataSegmentLength,
    MaxBurstLength,
    FirstBurstLength,
    DefaultTime2Wait,
    DefaultTime2Retain,
    MaxOutstandingR2T,
    DataPduInOrder,
    DataSequenceInOrder,
    ErrorRecoveryLevel,
    SessionType,
    TaskReporting,
    ProtocolLevel,
    NodeArchitecture,
    IfMarker,
    OfMarker,
    IfMarkInt,
    OfMarkInt,
    AuthMethod,
    ChapA,
    ChapI,
    ChapC,
    ChapN,
    ChapR,
}

/// The entry of one key in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpec {
    /// The key.
    pub key: Key,
    /// The name of the key on the wire.
    pub name: &'static str,
    /// The kind of its values, and how two of them become one.
    pub kind: Kind,
    /// The scope of a negotiated value: the session or one connection.
    pub scope: Scope,
    /// When in the life of a session the key may be sent.
    pub usage: Usage,
    /// The login stages in which the key may be sent.
    pub stages: Stages,
    /// Which side may send the key on its own initiative. The other side may still answer it.
    pub senders: Senders,
    /// Whether the key is irrelevant in a discovery session.
    pub irrelevant_in_discovery: bool,
    /// The clause that defines the key.
    pub clause: &'static str,
}

/// The kind of a key's value, with its legal values, its default, and its result function (RFC 7143 §6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A list of names in order of preference; the answer is the first name that the responder supports
    /// (§6.2.1).
    List {
        /// The names that this implementation supports.
        known: &'static [&'static str],
        /// The value that holds if the key is not negotiated.
        default: &'static str,
    },
    /// A number; the result is the smaller or the larger of both sides' values (§6.2.2).
    Number {
        /// The smallest legal value.
        min: u32,
        /// The largest legal value.
        max: u32,
        /// The value that holds if the key is not negotiated.
        default: u32,
        /// The result function.
        result: NumberResult,
    },
    /// `Yes` or `No`; the result is the AND or the OR of both sides' values (§6.2.2).
    Boolean {
        /// The value that holds if the key is not negotiated.
        default: bool,
        /// The result function.
        result: BooleanResult,
    },
    /// A number that a side declares about itself; it is not answered.
    DeclaredNumber {
        /// The smallest legal value.
        min: u32,
        /// The largest legal value.
        max: u32,
        /// The value that holds if the key is not declared, if there is a default.
        default: Option<u32>,
    },
    /// A text that a side declares; it is not answered.
    Declared,
    /// A key with an exchange of its own: authentication, `SendTargets`.
    Special,
    /// A key of RFC 3720 that must be refused, but not with `NotUnderstood` (§13.25).
    Obsolete {
        /// Whether the key is Boolean, so that `No` may be agreed to.
        boolean: bool,
    },
}

/// How the values of both sides become one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberResult {
    /// The smaller one.
    Min,
    /// The larger one.
    Max,
}

/// How the values of both sides become one Boolean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BooleanResult {
    /// `Yes` only if both sides offer `Yes`.
    And,
    /// `Yes` if either side offers `Yes`.
    Or,
}

/// The scope of a negotiated value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole session (SW).
    Session,
    /// One connection (CO).
    Connection,
}

/// When a key may be sent (RFC 7143 §13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// While a connection logs in (IO).
    Initialize,
    /// While the first connection of a session logs in (LO).
    LeadingOnly,
    /// Only after login (FFPO).
    FullFeatureOnly,
    /// At any time (ALL).
    Always,
}

/// The login stages in which a key may be sent (RFC 7143 §13, second paragraph).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stages {
    /// SecurityNegotiation only.
    Security,
    /// LoginOperationalNegotiation only.
    Operational,
    /// Both.
    Either,
    /// Neither: the key is legal only in full feature phase.
    Neither,
}

/// Which side may send a key on its own initiative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Senders {
    /// The initiator.
    Initiator,
    /// The target.
    Target,
    /// Either side.
    Both,
}

/// A side of a negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The side that logs in.
    Initiator,
    /// The side that accepts the login.
    Target,
}

impl Role {
    /// Returns the other side.
    #[must_use]
    pub const fn peer(self) -> Self {
        match self {
            Self::Initiator => Self::Target,
            Self::Target => Self::Initiator,
        }
    }
}

impl Senders {
    /// Returns whether `role` is one of the permitted senders.
    pub const fn include(self, role: Role) -> bool {
        matches!(
            (self, role),
            (Self::Both, _) | (Self::Initiator, Role::Initiator) | (Self::Target, Role::Target)
        )
    }
}

impl Key {
    /// The number of keys.
    pub const COUNT: usize = TABLE.len();

    /// Returns the key of this name. Names are case-sensitive.
    pub fn by_name(name: &[u8]) -> Option<Self> {
        TABLE.iter().find(|spec| spec.name.as_bytes() == name).map(|spec| spec.key)
    }

    /// Returns the entry of the key in the table.
    pub fn spec(self) -> &'static KeySpec {
        // A test checks that the table is in the order of the variants.
        TABLE.get(self as usize).unwrap_or(&TABLE[0])
    }

    /// Returns the name of the key on the wire.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Returns the index of the key in the table.
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// The largest burst or data segment that a key can state: 2^24 - 1 bytes.
pub const MAX_LENGTH_VALUE: u32 = (1 << 24) - 1;
/// The longest data segment that a side may send until the receiver declares another limit (RFC 7143 §13.12).
pub const DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH: u32 = 8192;

const fn min(min: u32, max: u32, default: u32) -> Kind {
    Kind::Number { min, max, default, result: NumberResult::Min }
}

const fn yes_and() -> Kind {
    Kind::Boolean { default: true, result: BooleanResult::And }
}

const fn yes_or() -> Kind {
    Kind::Boolean { default: true, result: BooleanResult::Or }
}

const DIGEST: Kind = Kind::List { known: &["CRC32C", "None"], default: "None" };

/// Describes an operational key that both sides may offer while the first connection logs in and that holds
/// for the session.
const fn leading(key: Key, name: &'static str, kind: Kind, clause: &'static str) -> KeySpec {
    KeySpec {
        key,
        name,
        kind,
        scope: Scope::Session,
        usage: Usage::LeadingOnly,
        stages: Stages::Operational,
        senders: Senders::Both,
        irrelevant_in_discovery: true,
        clause,
    }
}

/// Describes a key as [`leading`] does, but one that is relevant in a discovery session too.
const fn leading_any(key: Key, name: &'static str, kind: Kind, clause: &'static str) -> KeySpec {
    KeySpec { irrelevant_in_discovery: false, ..leading(key, name, kind, clause) }
}

/// Describes a key that every connection negotiates for itself.
const fn connection(key: Key, name: &'static str, kind: Kind, usage: Usage, clause: &'static str) -> KeySpec {
    KeySpec { scope: Scope::Connection, usage, ..leading_any(key, name, kind, clause) }
}

/// Describes a text that names or describes a node and may be sent in either login stage.
const fn declared(
    key: Key,
    name: &'static str,
    usage: Usage,
    senders: Senders,
    clause: &'static str,
) -> KeySpec {
    KeySpec { usage, senders, stages: Stages::Either, ..leading_any(key, name, Kind::Declared, clause) }
}

/// Describes a key of the authentication exchange.
const fn security(key: Key, name: &'static str, clause: &'static str) -> KeySpec {
    KeySpec {
        scope: Scope::Connection,
        usage: Usage::Initialize,
        stages: Stages::Security,
        ..leading_any(key, name, Kind::Special, clause)
    }
}

/// The table, in the order of [`Key`]'s variants.
//= rfc7143#section-11.12.10
//# All keys listed in Section 13, except for the X extension formats, MUST be supported by iSCSI initiators
//# and targets.
//= rfc7143#section-11.13.8
//# All keys listed in Section 13, except for the X extension formats, MUST be supported by iSCSI initiators
//# and targets.
pub static TABLE: [KeySpec; 35] = [
    connection(Key::HeaderDigest, "HeaderDigest", DIGEST, Usage::Initialize, "13.1"),
    connection(Key::DataDigest, "DataDigest", DIGEST, Usage::Initialize, "13.1"),
    leading(Key::MaxConnections, "MaxConnections", min(1, 65535, 1), "13.2"),
    KeySpec {
        usage: Usage::FullFeatureOnly,
        stages: Stages::Neither,
        senders: Senders::Initiator,
        ..leading_any(Key::SendTargets, "SendTargets", Kind::Special, "13.3")
    },
    // The target also sends it, but only inside the answer to SendTargets, which is not a negotiation.
    declared(Key::TargetName, "TargetName", Usage::Initialize, Senders::Initiator, "13.4"),
    declared(Key::InitiatorName, "InitiatorName", Usage::Initialize, Senders::Initiator, "13.5"),
    declared(Key::TargetAlias, "TargetAlias", Usage::Always, Senders::Target, "13.6"),
    declared(Key::InitiatorAlias, "InitiatorAlias", Usage::Always, Senders::Initiator, "13.7"),
    declared(Key::TargetAddress, "TargetAddress", Usage::Always, Senders::Target, "13.8"),
    KeySpec {
        kind: Kind::DeclaredNumber { min: 0, max: 65535, default: None },
        ..declared(
            Key::TargetPortalGroupTag,
            "TargetPortalGroupTag",
            Usage::Initialize,
            Senders::Target,
            "13.9",
        )
    },
    leading(Key::InitialR2T, "InitialR2T", yes_or(), "13.10"),
    leading(Key::ImmediateData, "ImmediateData", yes_and(), "13.11"),
    connection(
        Key::MaxRecvDataSegmentLength,
        "MaxRecvDataSegmentLength",
        Kind::DeclaredNumber {
            min: 512,
            max: MAX_LENGTH_VALUE,
            default: Some(DEFAULT_MAX_RECV_DATA_SEGMENT_LENGTH),
        },
        Usage::Always,
        "13.12",
    ),
    leading(Key::MaxBurstLength, "MaxBurstLength", min(512, MAX_LENGTH_VALUE, 262_144), "13.13"),
    leading(Key::FirstBurstLength, "FirstBurstLength", min(512, MAX_LENGTH_VALUE, 65_536), "13.14"),
    leading_any(
        Key::DefaultTime2Wait,
        "DefaultTime2Wait",
        Kind::Number { min: 0, max: 3600, default: 2, result: NumberResult::Max },
        "13.15",
    ),
    leading_any(Key::DefaultTime2Retain, "DefaultTime2Retain", min(0, 3600, 20), "13.16"),
    leading(Key::MaxOutstandingR2T, "MaxOutstandingR2T", min(1, 65535, 1), "13.17"),
    leading(Key::DataPduInOrder, "DataPDUInOrder", yes_or(), "13.18"),
    leading(Key::DataSequenceInOrder, "DataSequenceInOrder", yes_or(), "13.19"),
    leading_any(Key::ErrorRecoveryLevel, "ErrorRecoveryLevel", min(0, 2, 0), "13.20"),
    declared(Key::SessionType, "SessionType", Usage::LeadingOnly, Senders::Initiator, "13.21"),
    leading(
        Key::TaskReporting,
        "TaskReporting",
        Kind::List { known: &["RFC3720", "ResponseFence", "FastAbort"], default: "RFC3720" },
        "13.23",
    ),
    leading(Key::ProtocolLevel, "iSCSIProtocolLevel", min(0, 31, 1), "13.24"),
    declared(Key::NodeArchitecture, "X#NodeArchitecture", Usage::LeadingOnly, Senders::Both, "13.26"),
    leading_any(Key::IfMarker, "IFMarker", Kind::Obsolete { boolean: true }, "13.25"),
    leading_any(Key::OfMarker, "OFMarker", Kind::Obsolete { boolean: true }, "13.25"),
    leading_any(Key::IfMarkInt, "IFMarkInt", Kind::Obsolete { boolean: false }, "13.25"),
    leading_any(Key::OfMarkInt, "OFMarkInt", Kind::Obsolete { boolean: false }, "13.25"),
    security(Key::AuthMethod, "AuthMethod", "12"),
    security(Key::ChapA, "CHAP_A", "12.1.3"),
    security(Key::ChapI, "CHAP_I", "12.1.3"),
    security(Key::ChapC, "CHAP_C", "12.1.3"),
    security(Key::ChapN, "CHAP_N", "12.1.3"),
    security(Key::ChapR, "CHAP_R", "12.1.3"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use core::fmt::Write as _;

    #[test]
    fn the_table_is_in_the_order_of_the_keys_and_finds_them_by_name() {
        //= rfc7143#section-6.2
        //= type=test
        //# If used as specified, these keys MUST NOT be answered with NotUnderstood.
        for (index, spec) in TABLE.iter().enumerate() {
            assert_eq!(spec.key.index(), index, "{}", spec.name);
            assert_eq!(Key::by_name(spec.name.as_bytes()), Some(spec.key));
            assert_eq!(spec.key.spec(), spec);
        }
        assert_eq!(Key::by_name(b"headerdigest"), None);
        assert_eq!(Key::by_name(b"X-com.example.key"), None);
    }

    #[test]
    fn the_table_is_the_one_that_was_reviewed() {
        //= rfc7143#section-6.2
        //= type=test
        //# An iSCSI implementation MUST comprehend all text keys defined in this document.
        //= rfc7143#section-6.2
        //= type=test
        //# All keys in this document MUST be supported by iSCSI initiators and targets when used
        //# as specified here.
        let mut table = String::new();
        for s in &TABLE {
            let discovery = if s.irrelevant_in_discovery { "-" } else { "D" };
            let kind = match s.kind {
                Kind::List { known, default } => alloc::format!("list {} [{default}]", known.join(",")),
                Kind::Number { min, max, default, result } => {
                    alloc::format!("{result:?} {min}..={max} [{default}]")
                }
                Kind::Boolean { default, result } => alloc::format!("{result:?} [{default}]"),
                Kind::DeclaredNumber { min, max, default } => {
                    alloc::format!("declared {min}..={max} {default:?}")
                }
                Kind::Declared => "declared".into(),
                Kind::Special => "special".into(),
                Kind::Obsolete { boolean } => alloc::format!("obsolete, No {boolean}"),
            };
            writeln!(
                table,
                "{} | {kind} | {:?} | {:?} | {:?} | {:?} | {discovery} | {}",
                s.name, s.scope, s.usage, s.stages, s.senders, s.clause
            )
            .unwrap();
        }
        assert_eq!(table, include_str!("keys/table.snap"), "\n{table}");
    }
}
