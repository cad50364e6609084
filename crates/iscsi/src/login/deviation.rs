//! Departures from the standard in a login that harm nobody. They are taken, and told once (docs/abuse.md lists them).

use crate::keys::{Key, Kind};
use crate::name::IscsiName;
use crate::text::Pair;

/// Something that an initiator did otherwise than RFC 7143 has it, and what was made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Deviation {
    /// A key of the first stage in the second, where it says no more than that no proof will come.
    #[error("AuthMethod=None in the operational stage (RFC 7143 §12): answered None")]
    AuthMethodInOperationalStage,
    /// A marker key with another value than `No`.
    #[error("{}, which RFC 7143 §13.25 made obsolete: answered Reject", .0.name())]
    MarkersWanted(Key),
    /// A name that the first text said already.
    #[error("{} said again in a later text of the login (RFC 7143 §6.3), as before: passed over", .0.name())]
    NameRepeated(Key),
    /// MaxConnections where there is one connection only.
    #[error(
        "MaxConnections in a discovery session, where RFC 7143 §13.2 makes it irrelevant: answered with a number"
    )]
    ConnectionsInDiscovery,
    /// An underscore in the initiator's name.
    #[error("an underscore in InitiatorName (RFC 7143 §4.2.7.2): taken as it is")]
    UnderscoreInName,
    /// An initiator's name of another form.
    #[error("an InitiatorName that is not of the form of RFC 7143 §4.2.7: taken, since names = \"lenient\"")]
    LenientName,
}

impl Deviation {
    /// Looks for what is not as it should be in an initiator's name that was taken.
    pub(super) fn of_name(name: &IscsiName) -> Option<Self> {
        if IscsiName::parse(name.as_str().as_bytes()).is_err() {
            return Some(Self::LenientName);
        }
        name.as_str().contains('_').then_some(Self::UnderscoreInName)
    }

    /// Looks for it in an operational key.
    pub(super) fn of_key(key: Key, pair: &Pair<'_>, is_discovery: bool) -> Option<Self> {
        if key == Key::MaxConnections && is_discovery {
            return Some(Self::ConnectionsInDiscovery);
        }
        let is_marker = matches!(key.spec().kind, Kind::Obsolete { .. });
        (is_marker && pair.value != b"No").then_some(Self::MarkersWanted(key))
    }
}
