//! Certificates and keys, from files in PEM form.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig, version};
use security::secret_access::FileAccess;

use crate::error::own_fault;
use crate::{CertifiedNames, TlsError};

/// The longest file of certificates or keys, in bytes: the bundle of a system has some 200 KiB.
const FILE_LEN_MAX: u64 = 4 << 20;

/// Where systems keep the authorities that they trust: Debian and Alpine, Fedora, openSUSE.
const SYSTEM_AUTHORITIES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

/// The certificate and the policy of a portal. Two are equal if they have the same certificates: a key
/// belongs to its certificate.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    pub(crate) config: Arc<ServerConfig>,
    chain: Arc<[CertificateDer<'static>]>,
    client_authorities: Arc<[CertificateDer<'static>]>,
    client_names: Option<Arc<CertifiedNames>>,
}

impl PartialEq for ServerSettings {
    fn eq(&self, other: &Self) -> bool {
        (&self.chain, &self.client_authorities, self.client_names.is_some())
            == (&other.chain, &other.client_authorities, other.client_names.is_some())
    }
}

impl Eq for ServerSettings {}

/// What an initiator trusts, and its own certificate if it has one.
#[derive(Clone, Debug)]
pub struct ClientSettings(pub(crate) Arc<ClientConfig>);

impl ServerSettings {
    /// Reads the certificate chain and the private key of a portal. With `client_authority`, initiators must
    /// have a certificate that one of the authorities in that file signed.
    ///
    /// # Errors
    /// [`TlsError`] names the file and what is wrong with it.
    pub fn read(certificate: &Path, key: &Path, client_authority: Option<&Path>) -> Result<Self, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|why| unusable(certificate, &why))?;
        let accepted = client_authority.map(certificates).transpose()?.unwrap_or_default();
        let builder = match client_authority {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let roots = Arc::new(authorities(path, accepted.clone())?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|why| unusable(path, &why))?)
            }
        };
        let (chain, key) = (certificates(certificate)?, private_key(key)?);
        let mut config = builder
            .with_single_cert(chain.clone(), key)
            .map_err(|why| unusable(certificate, &own_fault(&why)))?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self {
            config: Arc::new(config),
            chain: chain.into(),
            client_authorities: accepted.into(),
            client_names: None,
        })
    }

    /// Makes the portal record the names in the certificates of its connections in `names`. Settings that
    /// replace others must have the same record: connections outlive settings.
    #[must_use]
    pub fn with_client_names(self, names: &Arc<CertifiedNames>) -> Self {
        Self { client_names: Some(Arc::clone(names)), ..self }
    }

    /// Returns the names in the certificates of the connections, if the portal knows them.
    pub const fn client_names(&self) -> Option<&Arc<CertifiedNames>> {
        self.client_names.as_ref()
    }
}

impl ClientSettings {
    /// Reads the authorities that sign the certificates of targets, by default those that the system trusts,
    /// and the certificate chain and private key of this initiator if it has them.
    ///
    /// # Errors
    /// [`TlsError`] names the file and what is wrong with it.
    pub fn read(authority: Option<&Path>, identity: Option<(&Path, &Path)>) -> Result<Self, TlsError> {
        let path = authority.unwrap_or_else(|| system_authorities());
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(|why| unusable(path, &why))?
            .with_root_certificates(authorities(path, certificates(path)?)?);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let (chain, key) = (certificates(certificate)?, private_key(key)?);
                let built = builder.with_client_auth_cert(chain, key);
                built.map_err(|why| unusable(certificate, &own_fault(&why)))?
            }
        };
        config.resumption = Resumption::disabled();
        Ok(Self(Arc::new(config)))
    }
}

fn unusable(path: &Path, why: &impl ToString) -> TlsError {
    TlsError::Unusable { path: path.to_owned(), why: why.to_string() }
}

/// Returns the file with the authorities that the system trusts.
fn system_authorities() -> &'static Path {
    let [first, ..] = SYSTEM_AUTHORITIES;
    let found = SYSTEM_AUTHORITIES.into_iter().find(|path| fs::exists(path).unwrap_or(false));
    Path::new(found.unwrap_or(first))
}

fn authorities(path: &Path, list: Vec<CertificateDer<'static>>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    // Bundles of systems contain certificates of forms that webpki does not accept.
    let (accepted, _) = roots.add_parsable_certificates(list);
    if accepted == 0 { Err(TlsError::NoCertificate(path.to_owned())) } else { Ok(roots) }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = contents(path, |_| Ok(()))?;
    let list: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match list {
        Ok(list) if !list.is_empty() => Ok(list),
        Ok(_) | Err(_) => Err(TlsError::NoCertificate(path.to_owned())),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let text = contents(path, |metadata| {
        let (owner, group) = (metadata.uid(), metadata.gid());
        let access = FileAccess { owner, group, mode: metadata.mode() & 0o777 };
        if access.is_confidential(rustix::process::geteuid().as_raw()) {
            Ok(())
        } else {
            Err(TlsError::KeyReadable(path.to_owned()))
        }
    })?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|_| TlsError::NoKey(path.to_owned()))
}

/// Reads a whole file, after `check` of its metadata.
fn contents(
    path: &Path,
    check: impl FnOnce(&fs::Metadata) -> Result<(), TlsError>,
) -> Result<Vec<u8>, TlsError> {
    let failed = |why: io::Error| TlsError::File { path: path.to_owned(), why };
    // Opening a pipe would wait for its writer.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = File::options().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(failed(io::Error::other("it is not a regular file")));
    }
    check(&metadata)?;
    let mut text = Vec::new();
    file.take(FILE_LEN_MAX).read_to_end(&mut text).map_err(failed)?;
    Ok(text)
}
