//! Which initiator names the certificates of the connections of a portal contain.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// The names in the certificates of the present connections of a portal: the URIs of their subject
/// alternative names (RFC 5280 §4.2.1.6). The name of an initiator of the type iqn has the form of one.
#[derive(Debug, Default)]
pub struct CertifiedNames(Mutex<BTreeMap<Ends, Weak<[String]>>>);

/// Our address of a connection, and that of the peer.
type Ends = (SocketAddr, SocketAddr);

impl CertifiedNames {
    /// Returns whether the certificate of the connection between these two addresses contains a name. Without
    /// such a connection it does not.
    pub fn contain(&self, local: SocketAddr, peer: SocketAddr, name: &str) -> bool {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let names = names.get(&(local, peer)).and_then(Weak::upgrade);
        names.is_some_and(|names| names.iter().any(|known| known.eq_ignore_ascii_case(name)))
    }

    /// Records the names of a new connection. They are known for as long as the caller keeps what is
    /// returned.
    pub(crate) fn record(
        &self,
        local: SocketAddr,
        peer: SocketAddr,
        certificate: Option<&CertificateDer<'_>>,
    ) -> Arc<[String]> {
        let certificate = certificate.and_then(|der| EndEntityCert::try_from(der).ok());
        let uris = certificate.iter().flat_map(|certificate| certificate.valid_uri_names());
        let names: Arc<[String]> = uris.map(str::to_owned).collect();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A portal has a bounded number of connections, so this list is bounded, too.
        all.retain(|_, names| names.strong_count() > 0);
        all.insert((local, peer), Arc::downgrade(&names));
        names
    }
}
