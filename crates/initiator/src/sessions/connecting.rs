//! Connections that are being opened, host names that are being resolved, and TLS. The session chooses among
//! the addresses of a host.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use base::time::Instant;
use iscsi::initiator::contract::Slot;
use tls::ClientSettings;

use super::{DriverRequest, SessionId, Sessions};
use crate::session_error;

/// A connection that is being opened, or a host name that is being resolved for one.
pub(super) struct ConnectAttempt {
    pub(super) session: SessionId,
    pub(super) slot: Slot,
    to: Destination,
}

enum Destination {
    Name(String),
    Address(SocketAddr),
}

/// The server of a connection with TLS.
#[derive(Debug)]
pub(crate) struct TlsServer {
    pub(crate) settings: ClientSettings,
    /// The name in its certificate.
    pub(crate) name: String,
    /// Where the connection records that the server refused it after the handshake.
    pub(crate) refusal: Refusal,
}

/// Why the server of the last connection with TLS ended it, if it did so by an alert. The thread of the
/// connection records it before the session sees the connection close.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusal(Arc<Mutex<Option<String>>>);

impl Refusal {
    pub(crate) fn record(&self, why: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    pub(super) fn text(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Sessions {
    /// Records that a connection attempt failed.
    pub(crate) fn dial_failed(&mut self, now: Instant, number: u32, why: &io::Error) {
        let Some(attempt) = self.attempts.remove(&number) else { return };
        let told = attempt.error(why);
        if let Some(entry) = self.entry(attempt.session) {
            entry.system = Some(told);
            if let Some(session) = entry.session.iscsi() {
                session.connect_failed(now, attempt.slot);
            }
        }
    }

    /// Records the addresses of a host name that was resolved.
    pub(crate) fn host_resolved(&mut self, number: u32, found: io::Result<Vec<SocketAddr>>) {
        self.resolved.push_back((number, found));
    }

    pub(super) fn host_found(&mut self, now: Instant, number: u32, found: io::Result<Vec<SocketAddr>>) {
        let found = found.and_then(|found| {
            if found.is_empty() { Err(io::Error::other("it has no address")) } else { Ok(found) }
        });
        match found {
            Ok(found) => {
                let Some(ConnectAttempt { session, slot, .. }) = self.attempts.remove(&number) else {
                    return;
                };
                if let Some(session) = self.entry(session).and_then(|entry| entry.session.iscsi()) {
                    session.host_resolved(now, slot, found);
                }
            }
            Err(why) => self.dial_failed(now, number, &why),
        }
    }

    /// Returns the request to resolve a host name for a session.
    pub(super) fn resolve(
        &mut self,
        session: SessionId,
        slot: Slot,
        name: String,
        port: u16,
    ) -> DriverRequest {
        let number = self.begin(ConnectAttempt { session, slot, to: Destination::Name(name.clone()) });
        DriverRequest::Resolve(number, name, port)
    }

    /// Returns the request for a connection, with TLS if the session's plan has it.
    pub(super) fn connect(
        &mut self,
        session: SessionId,
        slot: Slot,
        to: SocketAddr,
        host: Option<String>,
    ) -> DriverRequest {
        let entry = self.entries.get(&session);
        let server = entry.and_then(|entry| Some((entry.tls.as_ref()?, entry))).map(|(plan, entry)| {
            let name = plan.name.clone().or(host).unwrap_or_else(|| to.ip().to_string());
            // What ended an earlier connection is not why this one ends.
            entry.refusal.forget();
            let refusal = entry.refusal.clone();
            Box::new(TlsServer { settings: plan.settings.clone(), name, refusal })
        });
        let number = self.begin(ConnectAttempt { session, slot, to: Destination::Address(to) });
        DriverRequest::Connect(number, to, server)
    }

    /// Records an attempt under a new number.
    fn begin(&mut self, attempt: ConnectAttempt) -> u32 {
        let number = self.next_dial;
        self.next_dial = self.next_dial.wrapping_add(1);
        self.attempts.insert(number, attempt);
        number
    }

    /// Records that a connection attempt failed on another thread.
    pub(crate) fn connect_failed(&mut self, number: u32, why: io::Error) {
        self.failed_connects.push_back((number, why));
    }

    /// Records the system error of a connection attempt that took too long.
    pub(super) fn note_slow(&mut self, id: SessionId, slot: Slot) {
        let late = io::Error::from(io::ErrorKind::TimedOut);
        let slow = self.attempts.values().find(|attempt| (attempt.session, attempt.slot) == (id, slot));
        let told = slow.map(|attempt| attempt.error(&late));
        if let (Some(told), Some(entry)) = (told, self.entry(id)) {
            entry.system = Some(told);
        }
    }
}

impl ConnectAttempt {
    /// Returns the text of an error.
    fn error(&self, why: &io::Error) -> String {
        match &self.to {
            Destination::Name(name) => session_error::unresolved(name, why),
            Destination::Address(address) => session_error::unreachable(*address, why),
        }
    }
}
