//! `targe proxy`: iSCSI in the clear on this host, encryption to the target by TLS or by an AEAD digest, for
//! initiators that have neither.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use initiator::driver::TlsPlan;
use initiator::endpoint::{AuthMethod, Endpoint, TargetAddress, Transport};
use initiator::proxy::{AeadProxy, AeadUpstream, ProxyFailure};
use initiator::{EnvSecrets, Secrets};
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use tls::{Proxy, Refused, Upstream};

use crate::{Failure, signals};

#[derive(Debug, Args)]
pub(crate) struct ProxyArgs {
    #[arg(
        value_name = "PORTAL",
        help = "The portal: iscsi://HOST[:PORT]?tls_ca=FILE with the tls keys of a URL, or \
                iscsi://USER@HOST[:PORT]?auth=opaque with the user's password as in a URL"
    )]
    portal: String,
    /// Accept initiators on this address, which must be one of the loopback interface; port 0 selects a free
    /// port, which is printed on stderr
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:3260")]
    listen: SocketAddr,
}

/// How long connecting to one address of the portal may take: less than initiators wait for a login.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often the end is checked for.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The descriptors of the process beside two for each connection.
const OTHER_DESCRIPTORS: u64 = 64;

pub(crate) fn run(args: &ProxyArgs) -> Result<(), Failure> {
    prepare_process();
    let upstream = upstream(&args.portal, &EnvSecrets)?;
    if !args.listen.ip().is_loopback() {
        return Err(Failure::Misused(format!(
            "--listen {}: what arrives there is not encrypted, so it must be an address of this host alone, such as 127.0.0.1",
            args.listen
        )));
    }
    let failed = |why: std::io::Error| Failure::Failed(format!("cannot listen on {}: {why}", args.listen));
    let listener = TcpListener::bind(args.listen).map_err(failed)?;
    let local = listener.local_addr().map_err(failed)?;
    let ends = signals::flag()?;
    let portal = upstream.portal();
    let _proxy = upstream.start(listener).map_err(failed)?;
    eprintln!("listening on {local} for {portal}");
    while !ends.load(Ordering::Relaxed) {
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Keeps the password, the keys and the data of initiators out of core dumps, and raises the limit of
/// descriptors as far as the system permits.
fn prepare_process() {
    if let Err(why) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        warn(&format!("core dumps cannot be switched off ({why}): one would contain secrets"));
    }
    let wanted =
        u64::try_from(2 * tls::CONNECTIONS_MAX).unwrap_or(u64::MAX).saturating_add(OTHER_DESCRIPTORS);
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum.map_or(wanted, |most| most.min(wanted));
    if limit.current.is_some_and(|now| now < current) {
        // With fewer descriptors, fewer connections have room.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit });
    }
}

/// Writes a line to stderr. A reader that has gone must not end the proxy.
fn warn(line: &str) {
    let _ = writeln!(std::io::stderr(), "targe: {line}");
}

/// How connections are carried.
#[derive(Debug)]
enum Carrier {
    Tls(Upstream),
    Aead(AeadUpstream),
}

/// A proxy that runs until it is dropped.
enum Running {
    Tls { _proxy: Proxy },
    Aead { _proxy: AeadProxy },
}

impl Carrier {
    fn portal(&self) -> String {
        let (host, port) = match self {
            Self::Tls(upstream) => (&upstream.host, upstream.port),
            Self::Aead(upstream) => (&upstream.host, upstream.port),
        };
        format!("{host}:{port}")
    }

    fn start(self, listener: TcpListener) -> std::io::Result<Running> {
        let report = |peer: SocketAddr, why: &dyn std::fmt::Display| {
            warn(&format!("the connection from {peer} ended: {why}"));
        };
        Ok(match self {
            Self::Tls(upstream) => {
                let told = move |refused: Refused| report(refused.peer, &refused.why);
                Running::Tls { _proxy: Proxy::start(listener, upstream, told)? }
            }
            Self::Aead(upstream) => {
                let told = move |failure: ProxyFailure| report(failure.peer, &failure.why);
                Running::Aead { _proxy: AeadProxy::start(listener, upstream, told)? }
            }
        })
    }
}

fn upstream(portal: &str, secrets: &dyn Secrets) -> Result<Carrier, Failure> {
    let misused = |why: String| Failure::Misused(why);
    let endpoint = Endpoint::parse(portal).map_err(|why| misused(why.to_string()))?;
    let Transport::Iscsi(address) = &endpoint.transport else {
        return Err(misused("the portal must be one of iSCSI: iscsi://HOST[:PORT]?tls_ca=FILE".to_owned()));
    };
    let uses_password = endpoint.options.auth == AuthMethod::Opaque;
    let Some(options) = &endpoint.options.tls else {
        let aead =
            AeadUpstream::plan(&endpoint, secrets, PATIENCE).map_err(|why| misused(why.to_string()))?;
        return aead.map(Carrier::Aead).ok_or_else(|| {
            misused(if uses_password {
                "with protection=none nothing would be encrypted; leave it out, or write protection=encrypt"
                    .to_owned()
            } else {
                "the portal has no tls key and no auth=opaque, so nothing would be encrypted; write \
                 iscsi://HOST[:PORT]?tls=yes or ?tls_ca=FILE, or iscsi://USER@HOST[:PORT]?auth=opaque"
                    .to_owned()
            })
        });
    };
    if uses_password {
        return Err(misused(
            "the portal has tls keys and auth=opaque; over TLS the initiator itself logs in, so leave out one of them"
                .to_owned(),
        ));
    }
    let plan = TlsPlan::read(options).map_err(|why| misused(why.to_string()))?;
    let (host, port) = match address {
        TargetAddress::Socket(address) => (address.ip().to_string(), address.port()),
        TargetAddress::Host { name, port } => (name.clone(), *port),
    };
    let name = plan.name.unwrap_or_else(|| host.clone());
    Ok(Carrier::Tls(Upstream { host, port, name, settings: plan.settings, patience: PATIENCE }))
}

#[cfg(test)]
mod tests {
    use security::Level;

    use super::*;

    /// No files, and this password in the environment.
    struct Password(&'static str);

    impl Secrets for Password {
        fn file(&self, _: &str) -> std::io::Result<Vec<u8>> {
            Err(std::io::ErrorKind::NotFound.into())
        }

        fn variable(&self, name: &str) -> Option<Vec<u8>> {
            (name == "TARGE_PASSWORD" && !self.0.is_empty()).then(|| self.0.as_bytes().to_vec())
        }
    }

    #[test]
    fn a_portal_without_encryption_is_refused() {
        for (portal, wanted) in [
            ("iscsi://192.0.2.1", "no tls key and no auth=opaque"),
            ("hyperscsi://a@eth0?tls=yes", ""),
            ("iscsi://192.0.2.1?tls_ca=/none", "cannot read /none"),
            ("iscsi://192.0.2.1/iqn.2001-04.com.example:a/0?tls=yes", "write only HOST[:PORT]"),
            ("iscsi://alice@192.0.2.1?auth=opaque", "user \"alice\" has no password"),
            (
                "iscsi://alice@192.0.2.1?auth=opaque&password_file=/none",
                "cannot read the password file /none",
            ),
            ("iscsi://192.0.2.1?auth=opaque", "needs a user"),
            ("iscsi://alice@192.0.2.1?auth=opaque&tls=yes", "leave out one of them"),
        ] {
            let Err(Failure::Misused(why)) = upstream(portal, &Password("")) else {
                panic!("{portal} was accepted")
            };
            assert!(why.contains(wanted), "{portal}: {why}");
        }
        let Err(Failure::Misused(why)) =
            upstream("iscsi://alice@192.0.2.1?auth=opaque&protection=none", &Password("secret"))
        else {
            panic!()
        };
        assert!(why.contains("protection=none"), "{why}");
    }

    #[test]
    fn a_password_login_has_encryption_unless_the_portal_says_integrity() {
        for (query, wanted) in [
            ("", Level::Encrypt),
            ("&protection=encrypt", Level::Encrypt),
            ("&protection=integrity", Level::Integrity),
        ] {
            let portal = format!("iscsi://alice@192.0.2.1:3261?auth=opaque{query}");
            let Ok(Carrier::Aead(upstream)) = upstream(&portal, &Password("secret")) else {
                panic!("{portal}")
            };
            assert_eq!(upstream.plan.min_protection, wanted);
            assert_eq!((upstream.host.as_str(), upstream.port), ("192.0.2.1", 3261));
        }
    }
}
