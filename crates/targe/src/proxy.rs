//! `targe proxy`: iSCSI in the clear on this host, TLS to the target, for initiators that have no TLS.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use initiator::driver::TlsPlan;
use initiator::endpoint::{Endpoint, TargetAddress, Transport};
use tls::{Proxy, Refused, Upstream};

use crate::{Failure, signals};

#[derive(Debug, Args)]
pub(crate) struct ProxyArgs {
    #[arg(
        value_name = "PORTAL",
        help = "The portal: iscsi://HOST[:PORT]?tls_ca=FILE, with the tls keys of a URL"
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

pub(crate) fn run(args: &ProxyArgs) -> Result<(), Failure> {
    let upstream = upstream(&args.portal)?;
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
    let portal = format!("{}:{}", upstream.host, upstream.port);
    let told =
        |refused: Refused| eprintln!("targe: the connection from {} ended: {}", refused.peer, refused.why);
    let _proxy = Proxy::start(listener, upstream, told).map_err(failed)?;
    eprintln!("listening on {local} for {portal}");
    while !ends.load(Ordering::Relaxed) {
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn upstream(portal: &str) -> Result<Upstream, Failure> {
    let misused = |why: String| Failure::Misused(why);
    let endpoint = Endpoint::parse(portal).map_err(|why| misused(why.to_string()))?;
    let Transport::Iscsi(address) = endpoint.transport else {
        return Err(misused("the portal must be one of iSCSI: iscsi://HOST[:PORT]?tls_ca=FILE".to_owned()));
    };
    let Some(options) = &endpoint.options.tls else {
        return Err(misused(
            "the portal has no tls key, so nothing would be encrypted; write iscsi://HOST[:PORT]?tls=yes or ?tls_ca=FILE"
                .to_owned(),
        ));
    };
    let plan = TlsPlan::read(options).map_err(|why| misused(why.to_string()))?;
    let (host, port) = match address {
        TargetAddress::Socket(address) => (address.ip().to_string(), address.port()),
        TargetAddress::Host { name, port } => (name, port),
    };
    let name = plan.name.unwrap_or_else(|| host.clone());
    Ok(Upstream { host, port, name, settings: plan.settings, patience: PATIENCE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_portal_without_tls_is_refused() {
        for (portal, wanted) in [
            ("iscsi://192.0.2.1", "no tls key"),
            ("hyperscsi://a@eth0?tls=yes", ""),
            ("iscsi://192.0.2.1?tls_ca=/none", "cannot read /none"),
            ("iscsi://192.0.2.1/iqn.2001-04.com.example:a/0?tls=yes", "write only HOST[:PORT]"),
        ] {
            let Err(Failure::Misused(why)) = upstream(portal) else { panic!("{portal} was accepted") };
            assert!(why.contains(wanted), "{portal}: {why}");
        }
    }
}
