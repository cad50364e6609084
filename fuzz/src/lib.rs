//! The ground that the fuzz targets share: a site with a few targets and one user, and a reader that cuts the
//! input into operations.

mod discs;
pub mod exports;
pub mod hyper;
mod libraries;
pub mod lists;
pub mod unit;
pub mod whole;

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use base::bytes::Reader;
use base::state_machine::{AcceptInfo, PortalId};
use iscsi::chap::{Algorithms, Credentials, Secret};
use iscsi::login::directory::{
    AuthPolicy, ConnectionPath, Directory, DiscoveryAccess, Realm, SendTargetsEntry, SessionInfo,
    SessionQuery, TargetAccess, TargetAddress, TargetId, TargetLookup,
};
use iscsi::name::{IscsiName, PortalGroupTag, Tsih};
use iscsi::negotiate::{DigestPolicy, KeyPolicy, SessionParameters};
use security::opaque::{Password, PasswordRecord, StretchCost};

/// The target that seeds name.
pub const TARGET: &str = "iqn.2026-11.com.example:disk";

/// Who is served what.
pub struct Site {
    /// Whether CHAP or the password login is required.
    pub guarded: bool,
    /// Whether every key has a limit below its default.
    pub strict: bool,
}

impl Site {
    /// Makes the site that the first byte of an input asks for.
    pub fn from_byte(byte: u8) -> Self {
        Self { guarded: byte & 1 != 0, strict: byte & 2 != 0 }
    }

    fn auth(&self) -> AuthPolicy {
        let chap = if self.guarded { Algorithms::ALL } else { Algorithms::NONE };
        AuthPolicy { allows_none: !self.guarded, chap, own: Some(itself()), opaque: self.guarded }
    }

    fn keys(&self) -> KeyPolicy {
        if !self.strict {
            return KeyPolicy::default();
        }
        KeyPolicy {
            header_digest: DigestPolicy::RequireCrc32c,
            immediate_data: false,
            max_burst_length: 4096,
            default_time2wait: 9,
            ..KeyPolicy::default()
        }
    }
}

/// The user, by a secret that no input holds.
pub fn user() -> Credentials {
    Credentials { name: "user".into(), secret: Secret::new(b"no input holds this secret").unwrap() }
}

/// The target, by a secret that no input holds.
pub fn itself() -> Credentials {
    Credentials { name: "target".into(), secret: Secret::new(b"nor does any hold this one").unwrap() }
}

/// The record of every user's password, which no input holds.
pub static RECORD: LazyLock<Arc<PasswordRecord>> = LazyLock::new(|| {
    let password = Password::new(b"no input holds this password").unwrap();
    let cost = StretchCost { memory_kib: 8, passes: 1, lanes: 1 };
    Arc::new(PasswordRecord::make(&password, "user", cost, [5; 32]).unwrap())
});

/// A connection that arrives.
pub fn arrival() -> AcceptInfo {
    let address = SocketAddr::from(([127, 0, 0, 1], 3260));
    AcceptInfo { portal: PortalId(0), local: address, peer: address, entropy: [7; 32] }
}

impl Directory for Site {
    fn certifies(&self, _: &ConnectionPath, _: &IscsiName) -> bool {
        true
    }

    fn find_target(&self, _: &ConnectionPath, _: &IscsiName, name: &IscsiName) -> TargetLookup {
        match name.as_str() {
            TARGET => TargetLookup::Found(TargetAccess {
                target: TargetId(1),
                portal_group: PortalGroupTag(1),
                alias: Some("disk".into()),
                auth: self.auth(),
                keys: self.keys(),
                sessions_max: None,
            }),
            "iqn.2026-11.com.example:moved" => TargetLookup::Moved {
                to: TargetAddress::Host { name: "san.example.com".into(), port: 3260 },
                permanently: true,
            },
            _ => TargetLookup::NotFound,
        }
    }

    fn discovery(&self, _: &ConnectionPath, _: &IscsiName) -> DiscoveryAccess {
        DiscoveryAccess::Granted { auth: self.auth(), keys: self.keys() }
    }

    fn chap_secret(&self, _: Realm, _: &IscsiName, name: &str) -> Option<Secret> {
        (name == user().name).then(|| user().secret)
    }

    fn password_record(&self, _: Realm, _: &IscsiName, _: &str) -> Option<Arc<PasswordRecord>> {
        Some(RECORD.clone())
    }

    fn find_session(&self, query: &SessionQuery<'_>) -> Option<SessionInfo> {
        (query.tsih == Tsih(1)).then(|| SessionInfo {
            tsih: Tsih(1),
            portal_group: PortalGroupTag(1),
            parameters: SessionParameters { max_connections: 2, ..SessionParameters::default() },
            connections: 1,
            has_cid: query.cid.0 == 1,
            password_login: None,
        })
    }

    fn next_target(
        &self,
        _: &ConnectionPath,
        _: &IscsiName,
        after: Option<&IscsiName>,
    ) -> Option<SendTargetsEntry> {
        let names = ["iqn.2026-11.com.example:a", TARGET, "iqn.2026-11.com.example:z"];
        let name = names.iter().find(|name| after.is_none_or(|after| after.as_str() < **name))?;
        let address = TargetAddress::Socket(SocketAddr::from(([10, 0, 0, 1], 3260)));
        Some(SendTargetsEntry {
            name: name.parse().unwrap(),
            addresses: vec![(address, PortalGroupTag(1)); 3],
        })
    }
}

/// Cuts an input into operations: a byte that says which, and bytes to do it with, their number before them
/// (two bytes). What is cut short is taken as it is.
pub struct Operations<'a>(Reader<'a>);

impl<'a> Operations<'a> {
    /// Starts at the front of `input`.
    pub fn of(input: &'a [u8]) -> Self {
        Self(Reader::new(input))
    }
}

impl<'a> Iterator for Operations<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let which = self.0.u8().ok()?;
        let len = usize::from(self.0.u16().ok()?).min(self.0.remaining());
        Some((which, self.0.take(len).ok()?))
    }
}
