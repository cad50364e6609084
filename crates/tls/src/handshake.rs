//! Handshakes, by rustls. After a handshake the relay protects the records itself, with the secrets that
//! rustls agreed on.

use std::fmt;
use std::io;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Connection, Error, KeyLog, ServerConfig, ServerConnection};
use zeroize::Zeroizing;

use crate::chunk::{Chunk, Taken};
use crate::keys::{ALERT, APPLICATION_DATA, CHANGE_CIPHER_SPEC, Direction, HANDSHAKE, Suite};
use crate::record::{RecordLayer, Role, first_record};
use crate::relay::{Relay, wait};
use crate::{HANDSHAKE_TIMEOUT, TlsError};

/// The names under which rustls tells the secrets of application data, in both directions.
const CLIENT_SECRET: &str = "CLIENT_TRAFFIC_SECRET_0";
const SERVER_SECRET: &str = "SERVER_TRAFFIC_SECRET_0";

/// The secrets of one connection.
#[derive(Default)]
struct Secrets(Mutex<[Option<Zeroizing<Vec<u8>>>; 2]>);

impl KeyLog for Secrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        let [client, server] = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let secret = Some(Zeroizing::new(secret.to_vec()));
        match label {
            CLIENT_SECRET => *client = secret,
            SERVER_SECRET => *server = secret,
            _ => {}
        }
    }

    fn will_log(&self, label: &str) -> bool {
        matches!(label, CLIENT_SECRET | SERVER_SECRET)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(…)")
    }
}

/// A connection whose TCP handshake is complete, and whose TLS handshake is not.
pub(crate) struct Handshake {
    tls: Connection,
    role: Role,
    secrets: Arc<Secrets>,
    network: TcpStream,
    /// Received records that TLS has not processed.
    records: Chunk,
    network_ended: bool,
    has_received: bool,
}

impl Handshake {
    /// Prepares the handshake of a portal.
    pub(crate) fn of_server(config: &ServerConfig, network: TcpStream) -> Result<Self, TlsError> {
        let secrets = Arc::<Secrets>::default();
        let mut config = config.clone();
        config.key_log = Arc::clone(&secrets) as Arc<dyn KeyLog>;
        config.enable_secret_extraction = true;
        let tls = ServerConnection::new(Arc::new(config)).map_err(TlsError::Handshake)?;
        Self::new(tls.into(), Role::Server, secrets, network)
    }

    /// Prepares the handshake of an initiator with the portal of this name.
    pub(crate) fn of_client(
        config: &ClientConfig,
        name: ServerName<'static>,
        network: TcpStream,
    ) -> Result<Self, TlsError> {
        let secrets = Arc::<Secrets>::default();
        let mut config = config.clone();
        config.key_log = Arc::clone(&secrets) as Arc<dyn KeyLog>;
        config.enable_secret_extraction = true;
        let tls = ClientConnection::new(Arc::new(config), name).map_err(TlsError::Handshake)?;
        Self::new(tls.into(), Role::Client, secrets, network)
    }

    fn new(tls: Connection, role: Role, secrets: Arc<Secrets>, network: TcpStream) -> Result<Self, TlsError> {
        network.set_nonblocking(true)?;
        network.set_nodelay(true)?;
        Ok(Self {
            tls,
            role,
            secrets,
            network,
            records: Chunk::new(),
            network_ended: false,
            has_received: false,
        })
    }

    /// Completes the handshake.
    ///
    /// # Errors
    /// [`TlsError`]. The other end has received an alert, if there is one for the error.
    pub(crate) fn complete(self) -> Result<Relay, TlsError> {
        self.complete_and(|_| ()).map(|(relay, ())| relay)
    }

    /// Completes the handshake, and passes the certificate of the other end to `look`, if it has sent one.
    ///
    /// # Errors
    /// As [`Self::complete`].
    pub(crate) fn complete_and<T>(
        mut self,
        look: impl FnOnce(Option<&CertificateDer<'_>>) -> T,
    ) -> Result<(Relay, T), TlsError> {
        if let Err(why) = self.negotiate() {
            let is_silent = self.role == Role::Server && !self.has_received;
            return Err(if is_silent { TlsError::Silent } else { why });
        }
        let seen = look(self.tls.peer_certificates().and_then(<[_]>::first));
        Ok((self.relay()?, seen))
    }

    fn negotiate(&mut self) -> Result<(), TlsError> {
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        // The last flight of a server is only sent after its handshake is complete.
        while self.tls.is_handshaking() || self.tls.wants_write() {
            self.send_records()?;
            let mut is_incomplete = true;
            if self.tls.is_handshaking() && self.tls.wants_read() {
                is_incomplete = !self.process_record()?;
                if is_incomplete {
                    self.receive_records()?;
                    if self.network_ended && !self.process_record()? {
                        return Err(TlsError::Closed);
                    }
                }
            }
            let left = deadline.checked_duration_since(Instant::now()).ok_or(TlsError::Timeout)?;
            if is_incomplete && !self.has_record() {
                self.wait_for_network(left)?;
            }
        }
        Ok(())
    }

    /// Returns whether a whole record has been received, or one that rustls refuses by its header.
    fn has_record(&self) -> bool {
        !matches!(first_record(self.records.bytes()), Ok(None)) || self.is_refused()
    }

    /// Returns whether the header of the first record is none of TLS.
    fn is_refused(&self) -> bool {
        let has_no_type =
            |kind: &u8| !matches!(*kind, CHANGE_CIPHER_SPEC | ALERT | HANDSHAKE | APPLICATION_DATA);
        self.records.bytes().first().is_some_and(has_no_type)
    }

    /// Passes the first record to rustls, which then has no byte of the records that follow. Returns false if
    /// there is no whole record.
    fn process_record(&mut self) -> Result<bool, TlsError> {
        let len = match first_record(self.records.bytes()) {
            Ok(Some(len)) => len,
            Ok(None) if !self.is_refused() => return Ok(false),
            // Rustls has an error for it.
            _ => self.records.bytes().len(),
        };
        let mut record = self.records.first_mut(len) as &[u8];
        let processed = loop {
            match self.tls.read_tls(&mut record) {
                Ok(0) => break Err(Error::PeerSentOversizedRecord),
                Ok(_) => {}
                Err(why) => return Err(why.into()),
            }
            match self.tls.process_new_packets() {
                Ok(_) if !record.is_empty() => {}
                done => break done,
            }
        };
        if let Err(why) = processed {
            // The alert says more than a closed connection. If it cannot be sent, nothing is lost.
            let _ = self.send_records();
            return Err(TlsError::Handshake(why));
        }
        self.records.consumed(len);
        Ok(true)
    }

    /// Waits until handshake messages can be received or sent.
    fn wait_for_network(&self, left: std::time::Duration) -> io::Result<()> {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, self.tls.is_handshaking() && self.tls.wants_read());
        events.set(PollFlags::OUT, self.tls.wants_write());
        if events.is_empty() {
            return Ok(());
        }
        wait(&mut [PollFd::new(&self.network, events)], Some(left))
    }

    fn receive_records(&mut self) -> io::Result<()> {
        if !self.network_ended {
            self.network_ended = matches!(self.records.read_from(&mut self.network)?, Taken::End);
            self.has_received |= !self.records.bytes().is_empty();
        }
        Ok(())
    }

    fn send_records(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.network) {
                Ok(_) => {}
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => break,
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    /// Takes the secrets of a complete handshake.
    fn relay(self) -> Result<Relay, TlsError> {
        let Self { tls, role, secrets, network, records, network_ended, has_received: _ } = self;
        let layer = record_layer(tls, role, &secrets).map_err(TlsError::Handshake)?;
        Ok(Relay::new(layer, network, records, network_ended))
    }
}

/// Returns the record layer that goes on where rustls ends.
fn record_layer(tls: Connection, role: Role, secrets: &Secrets) -> Result<RecordLayer, Error> {
    let wrong = |what: &str| Error::General(format!("{what}; this is a bug in targe"));
    let suite = tls.negotiated_cipher_suite().map(|suite| u16::from(suite.suite()));
    let suite = suite.and_then(Suite::by_code).ok_or_else(|| wrong("the cipher suite is unknown"))?;
    let extracted = tls.dangerous_extract_secrets()?;
    let [client, server] = std::mem::take(&mut *secrets.0.lock().unwrap_or_else(PoisonError::into_inner));
    let (send, receive) = match role {
        Role::Client => (client, server),
        Role::Server => (server, client),
    };
    let direction = |secret: Option<Zeroizing<Vec<u8>>>, (sequence, keys)| {
        let direction = secret.and_then(|secret| Direction::new(suite, secret, sequence));
        direction.filter(|direction| direction.has_keys_of(&keys))
    };
    let send = direction(send, extracted.tx).ok_or_else(|| wrong("the keys to send with differ"))?;
    let receive = direction(receive, extracted.rx).ok_or_else(|| wrong("the keys to receive with differ"))?;
    Ok(RecordLayer::new(role, send, receive))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the record layer of one end whose handshake was done in memory.
    pub(crate) fn record_layer_of(tls: Connection, role: Role, secrets: &TestSecrets) -> RecordLayer {
        record_layer(tls, role, &secrets.0).unwrap()
    }

    /// Takes the secrets of a handshake in memory.
    #[derive(Clone, Default)]
    pub(crate) struct TestSecrets(Arc<Secrets>);

    impl TestSecrets {
        pub(crate) fn key_log(&self) -> Arc<dyn KeyLog> {
            Arc::clone(&self.0) as Arc<dyn KeyLog>
        }
    }
}
