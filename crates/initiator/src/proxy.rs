//! Carries iSCSI connections in the clear on this host to a portal, over connections with an AEAD digest
//! (`docs/iscsi-aead.md`): for initiators that know no such digest.
//!
//! Each connection has a thread, which moves bytes between two sockets and [`ProxyConnection`]. The slow step
//! of the password login runs on that thread, one at a time: it takes 64 MiB and more, and after an outage
//! all connections log in at once. Bounds: [`tls::CONNECTIONS_MAX`] connections, [`LOGIN_TIMEOUT`] for a
//! login, and for each direction of a connection [`iscsi::proxy::UNSENT_MEMORY_MAX`] and 256 KiB of received
//! bytes.
//!
//! If an initiator gives up a connection, none of its commands may be carried out later. When the initiator
//! resets its connection, or closes it while bytes for the target are held here, the proxy resets the
//! connection to the target, and gives up everything that the target has not received. If an initiator closes
//! its connection while nothing is held here, the system still sends the bytes that it accepted, as it would
//! without a proxy.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base::buffer::Pool;
use iscsi::login::MAX_LOGIN_TIME;
use iscsi::login::directory::TargetAddress;
use iscsi::login::initiator::AuthPlan;
use iscsi::proxy::{ProxyConnection, ProxyError, ProxyEvent, ProxyPlan, Side};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use security::Level;
use smallvec::SmallVec;
use tls::{Acceptor, Share};

use crate::hyperscsi_discovery::entropy;
use crate::login::PlanError;
use crate::url::{AuthMethod, Endpoint, Protection, Secrets, Transport};

/// How long the login of a connection may take.
pub const LOGIN_TIMEOUT: Duration = Duration::from_secs(MAX_LOGIN_TIME.as_secs());

/// How long the last bytes to one side may take after the other side closed.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(10);

/// A silent portal is probed after this long, so often, at this interval.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_COUNT: u32 = 4;
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);

/// A portal that acknowledges nothing of what was sent for this long is lost, in milliseconds.
const UNACKNOWLEDGED_MAX_MS: u32 = 30_000;

/// How many bytes of one side are received at a time.
const CHUNK_LEN: usize = 256 << 10;

/// How many bytes of unused buffers a connection keeps.
const KEPT_BYTES: usize = 512 << 10;

/// How many pieces are sent at a time.
const PIECES_MAX: usize = 64;

/// Where a proxy carries connections, and how it logs in there.
#[derive(Clone, Debug)]
pub struct AeadUpstream {
    /// The host name or address of the portal. It is resolved for each connection.
    pub host: String,
    /// The port of the portal.
    pub port: u16,
    /// The login. Its type is part of [`crate::unstable`].
    pub plan: ProxyPlan,
    /// How long the TCP connection to one address may take.
    pub patience: Duration,
}

/// A proxy. Dropping it closes the listening socket; its connections stay.
#[derive(Debug)]
pub struct AeadProxy {
    _acceptor: Acceptor,
}

/// A connection that ended in another way than by the initiator or the target closing it.
#[derive(Debug)]
pub struct ProxyFailure {
    /// The address of the initiator.
    pub peer: SocketAddr,
    /// The reason.
    pub why: FailureReason,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FailureReason {
    /// A socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The portal cannot be reached.
    #[error("the portal cannot be reached: {0}")]
    Unreachable(io::Error),
    /// The address of a redirection cannot be reached.
    #[error("{address}, where the target moved, cannot be reached: {why}")]
    RedirectionUnreachable {
        /// The address.
        address: String,
        /// The reason.
        why: io::Error,
    },
    /// The login took too long.
    #[error("the login took too long")]
    TooSlow,
    /// A login failed, or a PDU was not right. The type of the reason is part of [`crate::unstable`].
    #[error(transparent)]
    Protocol(#[from] ProxyError),
}

impl AeadUpstream {
    /// Plans a proxy for the portal of a URL with `auth=opaque`. The protection is *encrypt* unless the URL
    /// says `protection=integrity`. Returns `None` if the URL asks for no password login, or for no
    /// protection.
    ///
    /// # Errors
    /// [`PlanError`]: the password is missing or cannot be read, or the URL is not one of iSCSI.
    pub fn plan(
        endpoint: &Endpoint,
        secrets: &dyn Secrets,
        patience: Duration,
    ) -> Result<Option<Self>, PlanError> {
        let options = &endpoint.options;
        let Transport::Iscsi(portal) = &endpoint.transport else { return Err(PlanError::NotIscsi) };
        if options.auth != AuthMethod::Opaque || options.protection == Some(Protection::None) {
            return Ok(None);
        }
        let AuthPlan::Opaque { user, password } = endpoint.login.auth(options, secrets)? else {
            return Ok(None);
        };
        let min_protection = match options.protection {
            Some(Protection::Integrity) => Level::Integrity,
            _ => Level::Encrypt,
        };
        let plan = ProxyPlan { user, password, aead_digests: options.keys.aead_digests, min_protection };
        let (host, port) = parts(portal);
        Ok(Some(Self { host, port, plan, patience }))
    }

    /// Connects to the portal, or to the address of a redirection.
    fn connect(&self, redirected: Option<&TargetAddress>) -> io::Result<TcpStream> {
        let (host, port) = redirected.map_or_else(|| (self.host.clone(), self.port), parts);
        let mut last = io::Error::other(format!("{host} has no address"));
        for address in (host.as_str(), port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, self.patience) {
                Ok(stream) => return Ok(stream),
                Err(why) => last = why,
            }
        }
        Err(last)
    }
}

fn parts(address: &TargetAddress) -> (String, u16) {
    match address {
        TargetAddress::Socket(address) => (address.ip().to_string(), address.port()),
        TargetAddress::Host { name, port } => (name.clone(), *port),
    }
}

impl AeadProxy {
    /// Accepts connections on `listener`. `failed` learns of those that failed; threads of the proxy call it,
    /// several at a time.
    ///
    /// # Errors
    /// The system has no descriptor or no memory left for the thread.
    pub fn start(
        listener: TcpListener,
        upstream: AeadUpstream,
        failed: impl Fn(ProxyFailure) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let serve = move |near: io::Result<TcpStream>, peer| {
            let carried = near.map_err(FailureReason::from).and_then(|near| carry(near, &upstream));
            if let Err(why) = carried {
                failed(ProxyFailure { peer, why });
            }
        };
        // All initiators have addresses of this host.
        Ok(Self { _acceptor: Acceptor::start(listener, Share::ALL, Arc::new(serve))? })
    }
}

/// Carries a connection until its end.
fn carry(near: TcpStream, upstream: &AeadUpstream) -> Result<(), FailureReason> {
    Relay::new(near, upstream)?.run()
}

/// Two sockets and the protocol between them.
struct Relay<'a> {
    upstream: &'a AeadUpstream,
    proxy: ProxyConnection,
    pool: Pool,
    near: TcpStream,
    far: Option<TcpStream>,
    from_near: Chunk,
    from_far: Chunk,
    /// Whether the initiator has ended its connection.
    is_near_gone: bool,
    /// How the connection ends, once that is known: what waits is sent first.
    end: Option<Result<(), FailureReason>>,
    /// When the login must be complete, or the end have come.
    deadline: Instant,
}

/// Bytes of one side: received when it is empty, and handled from its start.
struct Chunk {
    space: Box<[u8]>,
    start: usize,
    end: usize,
}

impl<'a> Relay<'a> {
    fn new(near: TcpStream, upstream: &'a AeadUpstream) -> io::Result<Self> {
        near.set_nodelay(true)?;
        near.set_nonblocking(true)?;
        let pool = Pool::new(KEPT_BYTES);
        Ok(Self {
            upstream,
            proxy: ProxyConnection::new(upstream.plan.clone(), near.local_addr()?, pool.clone()),
            pool,
            near,
            far: None,
            from_near: Chunk::new(),
            from_far: Chunk::new(),
            is_near_gone: false,
            end: None,
            deadline: Instant::now() + LOGIN_TIMEOUT,
        })
    }

    fn run(mut self) -> Result<(), FailureReason> {
        while !self.advance()? {
            if !self.can_handle(Side::Local) && !self.can_handle(Side::Remote) {
                self.wait()?;
            }
        }
        self.close();
        self.end.take().unwrap_or(Ok(()))
    }

    /// Handles what was received, and sends what waits, as far as is possible without waiting. Returns
    /// whether the end has come.
    fn advance(&mut self) -> Result<bool, FailureReason> {
        self.handle_received(Side::Local);
        self.handle_received(Side::Remote);
        self.process_events()?;
        self.send(Side::Local)?;
        self.send(Side::Remote)?;
        let is_late = Instant::now() >= self.deadline;
        if self.end.is_some() {
            if is_late || self.is_near_gone && self.has_unsent(Side::Remote) {
                self.reset_far();
            }
            if is_late || !(self.has_unsent(Side::Local) || self.has_unsent(Side::Remote)) {
                return Ok(true);
            }
        } else if is_late && !self.proxy.is_logged_in() {
            return Err(FailureReason::TooSlow);
        }
        Ok(false)
    }

    /// Returns whether bytes that were received can be handled.
    fn can_handle(&self, side: Side) -> bool {
        let chunk = match side {
            Side::Local => &self.from_near,
            Side::Remote => &self.from_far,
        };
        self.end.is_none() && !chunk.is_empty() && self.proxy.can_receive(side)
    }

    /// Returns whether bytes should be received: those before were handled.
    fn can_receive(&self, side: Side) -> bool {
        let chunk = match side {
            Side::Local => &self.from_near,
            Side::Remote => &self.from_far,
        };
        self.end.is_none() && chunk.is_empty() && self.proxy.can_receive(side)
    }

    /// Handles bytes that were received, as far as the other side has sent those before.
    fn handle_received(&mut self, side: Side) {
        if self.can_handle(side) {
            let chunk = match side {
                Side::Local => &mut self.from_near,
                Side::Remote => &mut self.from_far,
            };
            chunk.handle(|bytes| self.proxy.handle_bytes(side, bytes));
        }
    }

    /// Does what the protocol asks for.
    fn process_events(&mut self) -> Result<(), FailureReason> {
        while let Some(event) = self.proxy.poll_event() {
            match event {
                ProxyEvent::Connect(to) => self.connect(to.as_ref())?,
                ProxyEvent::Stretch(job) => {
                    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
                    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
                    let result = job.run();
                    drop(turn);
                    self.proxy.stretched(result);
                }
                // The reason why a portal cannot be reached is known better.
                ProxyEvent::Close(why) => self.end_with(Err(why.into())),
            }
        }
        Ok(())
    }

    fn connect(&mut self, redirected: Option<&TargetAddress>) -> Result<(), FailureReason> {
        self.far = None;
        self.from_far.clear();
        let connected = self.upstream.connect(redirected).and_then(|far| {
            far.set_nodelay(true)?;
            far.set_nonblocking(true)?;
            // The keepalive of the initiator ends at this host.
            sockopt::set_socket_keepalive(&far, true)?;
            sockopt::set_tcp_keepidle(&far, KEEPALIVE_IDLE)?;
            sockopt::set_tcp_keepintvl(&far, KEEPALIVE_INTERVAL)?;
            sockopt::set_tcp_keepcnt(&far, KEEPALIVE_COUNT)?;
            sockopt::set_tcp_user_timeout(&far, UNACKNOWLEDGED_MAX_MS)?;
            Ok((far.peer_addr()?, far))
        });
        match connected {
            Ok((peer, far)) => {
                self.far = Some(far);
                self.proxy.connected(peer, entropy()?);
            }
            Err(why) => {
                self.end_with(Err(match redirected {
                    None => FailureReason::Unreachable(why),
                    Some(address) => {
                        FailureReason::RedirectionUnreachable { address: address.to_string(), why }
                    }
                }));
                self.proxy.connect_failed();
            }
        }
        Ok(())
    }

    /// Ends the connection when what waits is sent. The first end counts.
    fn end_with(&mut self, end: Result<(), FailureReason>) {
        if self.end.is_none() {
            self.end = Some(end);
            self.deadline = Instant::now() + CLOSING_TIMEOUT;
        }
    }

    fn has_unsent(&mut self, side: Side) -> bool {
        let is_open = side == Side::Local || self.far.is_some();
        is_open && !self.proxy.transmit(side).is_empty()
    }

    /// Sends what waits for one side, as far as is possible without waiting.
    fn send(&mut self, side: Side) -> Result<(), FailureReason> {
        let socket = match side {
            Side::Local => Some(&mut self.near),
            Side::Remote => self.far.as_mut(),
        };
        let Some(socket) = socket else { return Ok(()) };
        let transmit = self.proxy.transmit(side);
        while !transmit.is_empty() {
            let sent = {
                let pieces: SmallVec<[IoSlice<'_>; PIECES_MAX]> =
                    transmit.pieces().take(PIECES_MAX).map(IoSlice::new).collect();
                socket.write_vectored(&pieces)
            };
            match sent {
                Ok(len) => transmit.sent(len, &self.pool),
                Err(why) if why.kind() == ErrorKind::WouldBlock => break,
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                // The other end has closed the connection. Nobody receives what is left.
                Err(why) if is_disconnection(&why) => {
                    transmit.clear(&self.pool);
                    self.handle_loss(side);
                    return Ok(());
                }
                Err(why) => return Err(why.into()),
            }
        }
        transmit.compact();
        Ok(())
    }

    /// Receives from one side what has arrived.
    fn receive(&mut self, side: Side) -> Result<(), FailureReason> {
        if !self.can_receive(side) {
            return Ok(());
        }
        let (socket, chunk) = match side {
            Side::Local => (Some(&mut self.near), &mut self.from_near),
            Side::Remote => (self.far.as_mut(), &mut self.from_far),
        };
        let Some(socket) = socket else { return Ok(()) };
        match chunk.receive(socket) {
            Ok(0) => self.handle_end(side),
            Ok(_) => {}
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(why) if is_disconnection(&why) => self.handle_loss(side),
            Err(why) => return Err(why.into()),
        }
        Ok(())
    }

    /// Handles a connection that was reset. An initiator that resets its connection wants nothing of it any
    /// more.
    fn handle_loss(&mut self, side: Side) {
        if side == Side::Local {
            self.reset_far();
        }
        self.handle_end(side);
    }

    /// Makes the connection to the target end by a reset, and gives up what it has not received.
    fn reset_far(&mut self) {
        if let Some(far) = &self.far {
            // It fails if the connection has ended before.
            let _ = sockopt::set_socket_linger(far, Some(Duration::ZERO));
        }
        self.far = None;
        self.proxy.transmit(Side::Remote).clear(&self.pool);
    }

    /// Handles the end of one side's connection. An initiator that is logging in learns of it by a response.
    fn handle_end(&mut self, side: Side) {
        self.is_near_gone |= side == Side::Local;
        if side == Side::Remote && !self.proxy.is_logged_in() {
            return self.proxy.disconnected();
        }
        self.end_with(Ok(()));
    }

    /// Sleeps until a socket is ready or the deadline has come, and receives what has arrived. It notices an
    /// initiator that resets or closes its connection also while nothing can be received of it.
    fn wait(&mut self) -> Result<(), FailureReason> {
        let (near, far) = self.poll()?;
        let is_closing = near.contains(PollFlags::RDHUP) && !self.can_receive(Side::Local);
        if !self.is_near_gone && (is_closing || near.intersects(PollFlags::ERR | PollFlags::HUP)) {
            self.handle_loss(Side::Local);
        }
        if !near.is_empty() {
            self.receive(Side::Local)?;
        }
        if !far.is_empty() {
            self.receive(Side::Remote)?;
        }
        Ok(())
    }

    /// Sleeps until a socket is ready or the deadline has come. Returns what each is ready for.
    fn poll(&mut self) -> Result<(PollFlags, PollFlags), FailureReason> {
        let (mut ours, mut theirs) = (PollFlags::empty(), PollFlags::empty());
        ours.set(PollFlags::IN, self.can_receive(Side::Local));
        ours.set(PollFlags::OUT, self.has_unsent(Side::Local));
        ours.set(PollFlags::RDHUP, !self.is_near_gone);
        theirs.set(PollFlags::IN, self.can_receive(Side::Remote));
        theirs.set(PollFlags::OUT, self.has_unsent(Side::Remote));
        // A socket that nothing is wanted of would end the sleep by its hang-up.
        let mut fds = SmallVec::<[PollFd<'_>; 2]>::new();
        let near_at = (!ours.is_empty()).then(|| {
            fds.push(PollFd::new(&self.near, ours));
            fds.len() - 1
        });
        let far_at = self.far.as_ref().filter(|_| !theirs.is_empty()).map(|far| {
            fds.push(PollFd::new(far, theirs));
            fds.len() - 1
        });
        let has_deadline = self.end.is_some() || !self.proxy.is_logged_in();
        let left = self.deadline.saturating_duration_since(Instant::now());
        let timeout = Some(left).filter(|_| has_deadline).and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(why) => return Err(io::Error::from(why).into()),
        }
        let seen =
            |at: Option<usize>| at.and_then(|at| fds.get(at)).map_or(PollFlags::empty(), PollFd::revents);
        Ok((seen(near_at), seen(far_at)))
    }

    /// Closes both connections in order, so that what was sent is received.
    fn close(&self) {
        for socket in [Some(&self.near), self.far.as_ref()].into_iter().flatten() {
            // It fails if the other end has closed before.
            let _ = socket.shutdown(Shutdown::Write);
        }
    }
}

impl Chunk {
    fn new() -> Self {
        Self { space: vec![0; CHUNK_LEN].into_boxed_slice(), start: 0, end: 0 }
    }

    const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    const fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// Fills an empty chunk. Returns how many bytes were received: 0 at the end of the connection.
    fn receive(&mut self, socket: &mut TcpStream) -> io::Result<usize> {
        let len = socket.read(&mut self.space)?;
        (self.start, self.end) = (0, len);
        Ok(len)
    }

    /// Passes the bytes to `handler`, which moves its slice past those that it has handled.
    fn handle(&mut self, handler: impl FnOnce(&mut &[u8])) {
        let mut bytes = self.space.get(self.start..self.end).unwrap_or_default();
        handler(&mut bytes);
        self.start = self.end - bytes.len();
    }
}

fn is_disconnection(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, TimedOut};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | TimedOut)
}

#[cfg(test)]
mod tests;
