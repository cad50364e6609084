//! The certificates of initiators, for the logins through a portal that asks for their names.

use std::net::SocketAddr;
use std::sync::Arc;

use shard::config::{Certificates, CertifyInitiators};
use tls::{CertifiedNames, ServerSettings};

/// The names in the certificates of the connections of a portal.
#[derive(Debug)]
struct KnownCertificates(Arc<CertifiedNames>);

impl CertifyInitiators for KnownCertificates {
    fn certifies(&self, local: SocketAddr, peer: SocketAddr, initiator: &str) -> bool {
        self.0.contain(local, peer, initiator)
    }
}

/// Returns the certificates of the connections of a portal, if they must contain the names of initiators.
pub(super) fn certificates_of(settings: &ServerSettings) -> Option<Certificates> {
    let known = Arc::clone(settings.client_names()?);
    Some(Certificates(Arc::new(KnownCertificates(known))))
}
