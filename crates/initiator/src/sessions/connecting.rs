//! Connections that are being opened: host names, the addresses of a host one after the other, and TLS.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use base::time::Instant;
use iscsi::initiator::contract::Slot;
use iscsi::login::directory::TargetAddress;
use tls::ClientSettings;

use super::{DriverRequest, SessionId, Sessions};
use crate::session_error;

/// A connection that is being opened.
pub(super) struct ConnectAttempt {
    pub(super) session: SessionId,
    pub(super) slot: Slot,
    /// The addresses to try after the current one.
    next: VecDeque<SocketAddr>,
    current: Option<SocketAddr>,
    /// The host, if the address had to be resolved.
    name: String,
}

/// The server of a connection with TLS.
#[derive(Debug)]
pub(crate) struct TlsServer {
    pub(crate) settings: ClientSettings,
    /// The name in its certificate.
    pub(crate) name: String,
}

impl Sessions {
    /// Records that a connection attempt failed. Returns the request to try the next address, if there is
    /// one.
    pub(crate) fn dial_failed(
        &mut self,
        now: Instant,
        number: u32,
        why: &io::Error,
    ) -> Option<DriverRequest> {
        let attempt = self.attempts.get_mut(&number)?;
        let told = match attempt.current {
            Some(address) => session_error::unreachable(address, why),
            None => session_error::unresolved(&attempt.name, why),
        };
        if let Some(address) = attempt.next.pop_front() {
            attempt.current = Some(address);
            return Some(self.connect(number, address));
        }
        let ConnectAttempt { session, slot, .. } = self.attempts.remove(&number)?;
        if let Some(entry) = self.entry(session) {
            entry.system = Some(told);
            if let Some(session) = entry.session.iscsi() {
                session.connect_failed(now, slot);
            }
        }
        None
    }

    /// Records the addresses of a host name that was resolved.
    pub(crate) fn host_resolved(&mut self, number: u32, found: io::Result<Vec<SocketAddr>>) {
        self.resolved.push_back((number, found));
    }

    pub(super) fn host_found(
        &mut self,
        now: Instant,
        number: u32,
        found: io::Result<Vec<SocketAddr>>,
    ) -> Option<DriverRequest> {
        let found = found.and_then(|found| {
            if found.is_empty() { Err(io::Error::other("it has no address")) } else { Ok(found) }
        });
        match found {
            Ok(found) => {
                let attempt = self.attempts.get_mut(&number)?;
                attempt.next = found.into();
                let first = attempt.next.pop_front()?;
                attempt.current = Some(first);
                Some(self.connect(number, first))
            }
            Err(why) => self.dial_failed(now, number, &why),
        }
    }

    pub(super) fn attempt(&mut self, session: SessionId, slot: Slot, to: TargetAddress) -> DriverRequest {
        let number = self.next_dial;
        self.next_dial = self.next_dial.wrapping_add(1);
        let mut attempt =
            ConnectAttempt { session, slot, next: VecDeque::new(), current: None, name: String::new() };
        let errand = match to {
            TargetAddress::Socket(address) => {
                attempt.current = Some(address);
                self.attempts.insert(number, attempt);
                return self.connect(number, address);
            }
            TargetAddress::Host { name, port } => {
                attempt.name.clone_from(&name);
                DriverRequest::Resolve(number, name, port)
            }
        };
        self.attempts.insert(number, attempt);
        errand
    }

    /// Returns the request for a connection, with TLS if the session's plan has it.
    fn connect(&self, number: u32, address: SocketAddr) -> DriverRequest {
        let attempt = self.attempts.get(&number);
        let plan = attempt.and_then(|attempt| self.entries.get(&attempt.session)?.tls.as_ref());
        let server = plan.map(|plan| {
            let host = attempt.map(|attempt| attempt.name.clone()).filter(|name| !name.is_empty());
            let name = plan.name.clone().or(host).unwrap_or_else(|| address.ip().to_string());
            Box::new(TlsServer { settings: plan.settings.clone(), name })
        });
        DriverRequest::Connect(number, address, server)
    }

    /// Records that a connection attempt failed on another thread.
    pub(crate) fn connect_failed(&mut self, number: u32, why: io::Error) {
        self.failed_connects.push_back((number, why));
    }

    /// Records the system error of a connection attempt that took too long.
    pub(super) fn note_slow(&mut self, id: SessionId, slot: Slot) {
        let late = io::Error::from(io::ErrorKind::TimedOut);
        let told = self.attempts.values().find(|attempt| (attempt.session, attempt.slot) == (id, slot)).map(
            |attempt| {
                attempt.current.map_or_else(
                    || session_error::unresolved(&attempt.name, &late),
                    |at| session_error::unreachable(at, &late),
                )
            },
        );
        if let (Some(told), Some(entry)) = (told, self.entry(id)) {
            entry.system = Some(told);
        }
    }
}
