//! Harmless deviations from the standard in a login. The target tolerates them, and reports each once
//! (docs/abuse.md lists them).

use crate::keys::{Key, Kind};
use crate::name::IscsiName;
use crate::text::Pair;

/// A deviation of an initiator from RFC 7143, and the target's reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Deviation {
    /// AuthMethod, a key of the security stage, in the operational stage, where it only states that the
    /// initiator will not authenticate itself.
    #[error("the initiator sent AuthMethod=None in the operational stage (RFC 7143 §12): answered None")]
    AuthMethodInOperationalStage,
    /// A marker key with a value other than `No`.
    #[error("the initiator sent {}, which RFC 7143 §13.25 made obsolete: answered Reject", .0.name())]
    MarkersWanted(Key),
    /// A name that the first text already contained.
    #[error(
        "the initiator sent {} again with the same value later in the login (RFC 7143 §6.3): ignored",
        .0.name()
    )]
    NameRepeated(Key),
    /// MaxConnections in a session that has only one connection.
    #[error(
        "the initiator sent MaxConnections in a discovery session, where RFC 7143 §13.2 makes it irrelevant: \
         answered with a number"
    )]
    ConnectionsInDiscovery,
    /// An underscore in the initiator's name.
    #[error("the initiator's name contains an underscore (RFC 7143 §4.2.7.2): accepted")]
    UnderscoreInName,
    /// An initiator's name that does not have a standard form.
    #[error(
        "the initiator's name does not have a format of RFC 7143 §4.2.7: accepted, because names = \"lenient\""
    )]
    LenientName,
}

impl Deviation {
    /// Returns the deviation in an initiator's name that was accepted, if any.
    pub(super) fn of_name(name: &IscsiName) -> Option<Self> {
        if IscsiName::parse(name.as_str().as_bytes()).is_err() {
            return Some(Self::LenientName);
        }
        name.as_str().contains('_').then_some(Self::UnderscoreInName)
    }

    /// Returns the deviation in an operational key, if any.
    pub(super) fn of_key(key: Key, pair: &Pair<'_>, is_discovery: bool) -> Option<Self> {
        if key == Key::MaxConnections && is_discovery {
            return Some(Self::ConnectionsInDiscovery);
        }
        let is_marker = matches!(key.spec().kind, Kind::Obsolete { .. });
        (is_marker && pair.value != b"No").then_some(Self::MarkersWanted(key))
    }
}
