//! The thread of one name server: it connects when the client has something to say, and answers the server's
//! inquiries and notifications in between.

use crate::mailbox::{Receiver, TryRecvError};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant as SystemInstant};

use base::time::Instant;
use isns::client::{Client, ClientError, State};
use isns::message::Message;
use isns::registration::Portal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::event_connections::EventConnections;
use super::wanted::{Names, Wanted, host};
use super::{Command, Reports};
use crate::admin::api::NameServer;
use crate::config::Announced;

/// How long a server may take to accept a connection, and then for each response.
const RESPONSE_MAX: Duration = Duration::from_secs(5);

/// How long to wait before another attempt to open a port that a process has: the one that this process
/// replaces in an upgrade has it for a moment.
const BIND_PAUSE: Duration = Duration::from_secs(1);

/// How long to wait after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

pub(super) struct ServerThread {
    server: Announced,
    /// `None` when the registration is to be removed.
    wanted: Option<Arc<Wanted>>,
    commands: Receiver<Command>,
    wakes: UnixStream,
    reports: Reports,
    client: Client,
    started: SystemInstant,
    /// Where the server reaches us.
    listener: Option<TcpListener>,
    /// When to try again to open a port that a process has, and which.
    rebind: Option<(SystemInstant, SocketAddr)>,
    /// The addresses of announced names, as they were resolved last.
    names: Names,
    events: EventConnections,
    /// The failure that was logged last; `None` after a success.
    logged: Option<String>,
    /// How many registrations were logged.
    registrations: u64,
}

impl ServerThread {
    pub(super) fn new(
        server: Announced,
        wanted: Arc<Wanted>,
        commands: Receiver<Command>,
        wakes: UnixStream,
        reports: Reports,
    ) -> Self {
        let client = Client::new(Instant::ORIGIN);
        Self {
            server,
            wanted: Some(wanted),
            commands,
            wakes,
            reports,
            client,
            started: SystemInstant::now(),
            listener: None,
            rebind: None,
            names: Names::new(),
            events: EventConnections::default(),
            logged: None,
            registrations: 0,
        }
    }

    fn now(&self) -> Instant {
        Instant::ORIGIN.after(self.started.elapsed())
    }

    /// Serves until the registration is removed, or could not be.
    pub(super) fn run(mut self) {
        self.report();
        loop {
            let is_leaving = self.wanted.is_none();
            match self.commands.try_recv() {
                Ok(Command::Register(wanted)) if !is_leaving => {
                    self.wanted = Some(wanted);
                    self.client.hurry(self.now());
                    continue;
                }
                Ok(Command::Leave) => {
                    self.wanted = None;
                    self.client.hurry(self.now());
                    continue;
                }
                Ok(Command::Register(_)) | Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => break,
            }
            if self.rebind.is_some_and(|(at, _)| at <= SystemInstant::now()) {
                self.bind_again();
            }
            let Some(due) = self.client.next_burst_at() else { break };
            if due <= self.now() {
                let result = self.talk();
                if let Err(why) = result {
                    self.client.fail(self.now(), why);
                }
                self.report();
                // The server forgets the registration after its period.
                if is_leaving {
                    break;
                }
                continue;
            }
            self.wait(due);
        }
        self.reports.remove(&self.server.to_string());
    }

    /// Runs a burst.
    fn talk(&mut self) -> Result<(), ClientError> {
        let io = |why: io::Error| ClientError::Connection(crate::os_error(&why));
        if self.wanted.is_none() && self.client.registered().is_none() {
            self.client.begin(None);
            self.client.next_request(self.now());
            return Ok(());
        }
        let mut socket = self.connect().map_err(io)?;
        let own = socket.local_addr().map_err(io)?.ip().to_canonical();
        let registration =
            self.wanted.clone().and_then(|wanted| Some((wanted.registration(own, &mut self.names)?, wanted)));
        let is_unreachable = registration.is_none() && self.wanted.is_some();
        let wanted =
            registration.map(|(registration, wanted)| (registration, self.listen(own, wanted.event_port)));
        self.client.begin(wanted);
        let mut received = Vec::new();
        while let Some(request) = self.client.next_request(self.now()) {
            socket.write_all(&request).map_err(io)?;
            let response = receive(&mut socket, &mut received)?;
            self.client.handle_response(&response)?;
        }
        if is_unreachable {
            // This burst has removed the former registration.
            let why = format!(
                "no target has a portal without TLS that {own}, which reaches the server, stands for"
            );
            return Err(ClientError::Connection(why));
        }
        Ok(())
    }

    fn connect(&mut self) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in (host(&self.server), self.server.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, RESPONSE_MAX) {
                Ok(socket) => {
                    socket.set_write_timeout(Some(RESPONSE_MAX))?;
                    return Ok(socket);
                }
                Err(why) => last = why,
            }
        }
        Err(last)
    }

    /// Opens the port for inquiries and notifications, unless it is open. Without one, the server does not
    /// inquire.
    fn listen(&mut self, own: IpAddr, port: u16) -> Option<Portal> {
        let is_right = |address: SocketAddr| address.ip() == own && (port == 0 || address.port() == port);
        let open =
            self.listener.as_ref().and_then(|listener| listener.local_addr().ok()).filter(|at| is_right(*at));
        let address = if let Some(open) = open {
            open
        } else {
            (self.listener, self.rebind) = (None, None);
            match bound(SocketAddr::new(own, port)) {
                Ok((address, listener)) => {
                    self.listener = Some(listener);
                    address
                }
                Err(why) => {
                    if why.kind() == io::ErrorKind::AddrInUse {
                        self.rebind = Some((SystemInstant::now() + BIND_PAUSE, SocketAddr::new(own, port)));
                    }
                    crate::warning!(
                        "name server {}: cannot listen on {} for its inquiries: {}",
                        self.server,
                        SocketAddr::new(own, port),
                        crate::os_error(&why)
                    );
                    return None;
                }
            }
        };
        Some(Portal { address: address.ip(), port: address.port() })
    }

    /// Tries again to open a port that a process had. The server learns of it in a burst.
    fn bind_again(&mut self) {
        let Some((_, wanted)) = self.rebind.take() else { return };
        match bound(wanted) {
            Ok((_, listener)) => {
                self.listener = Some(listener);
                self.client.hurry(self.now());
            }
            Err(why) if why.kind() == io::ErrorKind::AddrInUse => {
                self.rebind = Some((SystemInstant::now() + BIND_PAUSE, wanted));
            }
            // The next burst reports it.
            Err(_) => {}
        }
    }

    /// Waits for a command or until a burst is due, and serves the server meanwhile.
    fn wait(&mut self, due: Instant) {
        let mut span = due.since(self.now());
        for deadline in self.events.next_deadline().into_iter().chain(self.rebind.map(|(at, _)| at)) {
            span = span.min(deadline.saturating_duration_since(SystemInstant::now()));
        }
        let timeout = Timespec {
            tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(span.subsec_nanos()),
        };
        let mut watched = vec![PollFd::new(&self.wakes, PollFlags::IN)];
        watched.extend(self.events.sockets().map(|(socket, awaited)| PollFd::new(socket, awaited)));
        watched.extend(self.listener.iter().map(|one| PollFd::from_borrowed_fd(one.as_fd(), PollFlags::IN)));
        // An interrupted wait begins anew.
        let _ = poll(&mut watched, Some(&timeout));
        let mut ready = watched.iter().map(|one| !one.revents().is_empty());
        if ready.next() == Some(true) {
            while (&self.wakes).read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
        }
        let of_events: Vec<bool> = ready.by_ref().take(self.events.sockets().len()).collect();
        let is_connecting = ready.next() == Some(true);
        drop(watched);
        if self.events.serve(SystemInstant::now(), &of_events, self.client.registered()) {
            crate::debug!("name server {}: a notification of a change arrived", self.server);
            self.client.handle_change();
        }
        if is_connecting {
            self.accept();
        }
    }

    fn accept(&mut self) {
        let (socket, peer) = match self.listener.as_ref().map(TcpListener::accept) {
            Some(Ok(accepted)) => accepted,
            Some(Err(why)) if why.kind() != io::ErrorKind::WouldBlock => {
                // Such as no free descriptor: the connection waits, and so does this thread.
                std::thread::sleep(ACCEPT_PAUSE);
                return;
            }
            Some(Err(_)) | None => return,
        };
        if let Err(why) = self.events.admit(socket, peer.ip().to_canonical()) {
            let why = crate::os_error(&why);
            crate::debug!("name server {}: the connection of {peer} for inquiries: {why}", self.server);
        }
    }

    /// Tells the admin socket and the log how the burst ended.
    fn report(&mut self) {
        let server = &self.server;
        let (state, error) = match self.client.state() {
            State::Starting => ("starting", None),
            State::Registered => ("registered", None),
            State::Failed(why) => ("failed", Some(why.to_string())),
        };
        if let Some(why) = error.as_ref().filter(|why| self.logged.as_ref() != Some(*why)) {
            crate::warning!("name server {server}: {why}; targe tries again");
        }
        self.logged.clone_from(&error);
        if self.client.registrations() > self.registrations
            && let Some(registered) = self.client.registered()
        {
            let (targets, portals) = (registered.targets.len(), registered.portals.len());
            let entity = &registered.entity;
            crate::info!(
                "name server {server}: registered as {entity}: targets {targets}, portals {portals}"
            );
        }
        self.registrations = self.client.registrations();
        self.reports.put(NameServer { server: server.to_string(), state: state.to_owned(), error });
    }
}

/// Opens a port.
fn bound(address: SocketAddr) -> io::Result<(SocketAddr, TcpListener)> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok((listener.local_addr()?, listener))
}

/// Receives the response to a request.
fn receive(socket: &mut TcpStream, received: &mut Vec<u8>) -> Result<Message, ClientError> {
    let io = |why: io::Error| match why.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            ClientError::Connection("the server does not answer".to_owned())
        }
        _ => ClientError::Connection(crate::os_error(&why)),
    };
    let deadline = SystemInstant::now() + RESPONSE_MAX;
    loop {
        if let Some(response) = Message::take(received)? {
            return Ok(response);
        }
        let left = deadline.saturating_duration_since(SystemInstant::now());
        // A timeout of zero would wait forever.
        socket.set_read_timeout(Some(left.max(Duration::from_millis(1)))).map_err(io)?;
        let mut chunk = [0; 4096];
        let count = socket.read(&mut chunk).map_err(io)?;
        let new = chunk.get(..count).filter(|new| !new.is_empty());
        let new =
            new.ok_or_else(|| ClientError::Connection("the server closed the connection".to_owned()))?;
        received.extend_from_slice(new);
        if left.is_zero() {
            return Err(ClientError::Connection("the server does not answer".to_owned()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::mailbox::channel;

    #[test]
    fn a_port_that_a_process_had_is_registered_soon_after_that_process_closed_it() {
        let holder = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = holder.local_addr().unwrap();
        let server = Announced { host: "127.0.0.1".to_owned(), port: 3205 };
        let wanted = Arc::new(Wanted::nothing(address.port()));
        let (_commands, receiver) = channel();
        let wakes = UnixStream::pair().unwrap().1;
        let mut thread = ServerThread::new(server, wanted, receiver, wakes, Reports::default());
        assert!(thread.listen(address.ip(), address.port()).is_none());
        // The next burst is due in some time.
        thread.client.fail(thread.now(), ClientError::Connection("test".to_owned()));
        thread.bind_again();
        assert!(thread.rebind.is_some_and(|(at, wanted)| at > SystemInstant::now() && wanted == address));
        assert!(thread.client.next_burst_at().unwrap() > thread.now());
        drop(holder);
        thread.bind_again();
        assert!(thread.client.next_burst_at().unwrap() <= thread.now());
        assert!(thread.listen(address.ip(), address.port()).is_some());
        assert!(thread.rebind.is_none());
    }
}
