//! Portals that accept TLS connections only. The threads of crate `tls` accept their connections; this
//! passes each to the router or, where there is only one reactor, to that one.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::state_machine::PortalId;
use drivers::message_queue::Adoption;
use tls::{Accepted, MovedRelay, PausedRelays, Portal, PortalPauser, Refused, ServerSettings, TlsError};

use super::reactors::ReactorThread;
use super::router::Router;
use super::runtime_config::RuntimeConfig;
use super::tls_handshakes::HandshakeCounters;

/// How often a portal may log that a handshake failed: anyone who reaches it can cause that.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Passes on a connection.
type Adopter = Arc<dyn Fn(Adoption) + Send + Sync>;

/// The portals that are open.
pub(super) struct TlsPortals {
    open: BTreeMap<PortalId, Portal>,
    adopter: Adopter,
    handshakes: Arc<HandshakeCounters>,
}

impl TlsPortals {
    pub(super) fn new(
        router: Option<&Router>,
        reactors: &[ReactorThread],
        handshakes: Arc<HandshakeCounters>,
    ) -> Self {
        let adopter: Adopter = match (router, reactors.first()) {
            (Some(router), _) => Arc::new(router.adopter()),
            (None, Some(only)) => {
                let handle = only.handle.clone();
                // A reactor that has ended closes the connection.
                Arc::new(move |adoption| {
                    let _ = handle.adopt(adoption);
                })
            }
            (None, None) => Arc::new(drop),
        };
        Self { open: BTreeMap::new(), adopter, handshakes }
    }

    /// Accepts TLS connections on these listeners.
    pub(super) fn open(
        &mut self,
        runtime: &RuntimeConfig,
        listeners: Vec<(TcpListener, PortalId)>,
    ) -> io::Result<()> {
        for (listener, id) in listeners {
            if let Some(settings) = tls_of(runtime, id) {
                self.start(listener, id, settings.clone())?;
            }
        }
        Ok(())
    }

    fn start(&mut self, listener: TcpListener, portal: PortalId, settings: ServerSettings) -> io::Result<()> {
        let address = listener.local_addr()?;
        let (adopter, failures) = (Arc::clone(&self.adopter), Mutex::new(Failures::default()));
        let handshakes = Arc::clone(&self.handshakes);
        let deliver = move |arrived: Result<Accepted, Refused>| match arrived {
            Ok(Accepted { socket, local, peer, .. }) => {
                handshakes.count_completed();
                adopter(Adoption { socket: socket.into(), portal, local, peer, bytes: Vec::new() });
            }
            Err(refused) => {
                handshakes.count_failed();
                let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(line) = failures.line(Instant::now(), address, &refused) {
                    crate::warning!("{line}");
                }
            }
        };
        self.open.insert(portal, Portal::start(listener, settings, Arc::new(deliver))?);
        Ok(())
    }

    /// Uses the settings of a configuration for the later connections of every portal.
    pub(super) fn change(&self, runtime: &RuntimeConfig) {
        for (id, open) in &self.open {
            if let Some(settings) = tls_of(runtime, *id) {
                open.change(settings.clone());
            }
        }
    }

    /// Returns what makes each portal pause.
    pub(super) fn pausers(&self) -> io::Result<Vec<PortalPauser>> {
        self.open.values().map(Portal::pauser).collect()
    }

    /// Makes the relays of every portal pause.
    pub(super) fn pause_relays(&self) -> impl Iterator<Item = (PortalId, PausedRelays)> {
        self.open.iter().map(|(id, portal)| (*id, portal.pause_relays()))
    }

    /// Goes on with connections that another process gave up.
    pub(super) fn take_over(&self, relays: Vec<(PortalId, MovedRelay)>) {
        for (id, relay) in relays {
            match self.open.get(&id) {
                Some(portal) => portal.take_over(relay),
                None => relay.begin(),
            }
        }
    }

    /// Closes the listening socket of `portal`, if it is one of these. Its connections stay.
    pub(super) fn close(&mut self, portal: PortalId) {
        self.open.remove(&portal);
    }
}

/// Returns the TLS settings of a portal, if it accepts TLS connections only.
pub(super) fn tls_of(runtime: &RuntimeConfig, id: PortalId) -> Option<&ServerSettings> {
    let mut portals = runtime.config.portals.iter().zip(&runtime.portals);
    portals.find(|(_, (other, _))| *other == id)?.0.tls.as_ref()
}

/// The handshakes of a portal that failed.
#[derive(Default)]
struct Failures {
    logged: Option<Instant>,
    unlogged: u64,
}

impl Failures {
    /// Returns the line to log, unless one was logged a moment ago. A connection without a byte is none:
    /// whether a port listens is often examined like that.
    fn line(&mut self, now: Instant, portal: SocketAddr, refused: &Refused) -> Option<String> {
        if matches!(refused.why, TlsError::Silent) {
            return None;
        }
        if self.logged.is_some_and(|at| now.duration_since(at) < LOG_INTERVAL) {
            self.unlogged += 1;
            return None;
        }
        self.logged = Some(now);
        let more = match std::mem::take(&mut self.unlogged) {
            0 => String::new(),
            count => format!(" ({count} more failed since the last such message)"),
        };
        Some(format!("portal {portal}: no connection with {}: {}{more}", refused.peer, refused.why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_logged_at_most_once_a_second() {
        let (mut failures, start) = (Failures::default(), Instant::now());
        let portal = "192.0.2.1:3260".parse().unwrap();
        let refused = || Refused { peer: "192.0.2.9:40000".parse().unwrap(), why: TlsError::Timeout };
        let mut line = |millis| failures.line(start + Duration::from_millis(millis), portal, &refused());
        let first =
            "portal 192.0.2.1:3260: no connection with 192.0.2.9:40000: the TLS handshake took too long";
        assert_eq!(line(0).as_deref(), Some(first));
        assert_eq!((line(1), line(999)), (None, None));
        let later = format!("{first} (2 more failed since the last such message)");
        assert_eq!(line(1000), Some(later));
        assert_eq!(line(2000).as_deref(), Some(first));
    }

    #[test]
    fn a_connection_without_a_byte_is_not_logged() {
        let refused = Refused { peer: "192.0.2.9:40000".parse().unwrap(), why: TlsError::Silent };
        let portal = "192.0.2.1:3260".parse().unwrap();
        assert_eq!(Failures::default().line(Instant::now(), portal, &refused), None);
    }
}
