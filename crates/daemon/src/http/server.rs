//! The HTTP server's thread: connections and their limits.
//!
//! One thread runs a single-threaded runtime, so that no request takes a processor from the reactors but one.
//! What has to wait for a reactor waits on another thread. A client that connects is served even if others
//! hold all connections without asking anything: the one that has asked nothing for longest is closed. A
//! request that is rejected is none, and where tokens are configured, one without a token does not keep its
//! connection.

use std::cmp::Reverse;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue,
    REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tls::{Accepted, Portal, Refused, ServerSettings};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use super::access::{Access, Purpose, Rejection};
use crate::config::Http;
use crate::os_error;

/// The most connections at a time. A monitoring system needs one or two, and a page a handful.
pub const CONNECTIONS_MAX: usize = 64;

/// How long a request's head may take to arrive, and how long a connection may be idle between requests.
const HEAD_MAX: Duration = Duration::from_secs(5);

/// The longest head of a request in bytes: hyper needs at least 8 KiB.
const HEAD_LEN_MAX: usize = 16 << 10;

/// The most fields of a request: a browser sends about twenty.
const FIELDS_MAX: usize = 64;

/// How long a connection lives. The request that it is serving then is finished within [`FINISH_MAX`].
const LIFE_MAX: Duration = Duration::from_secs(120);

/// How long a response may take to be sent when the life of its connection has ended.
const FINISH_MAX: Duration = Duration::from_secs(30);

/// How long the answer to a wrong token waits. With [`CONNECTIONS_MAX`] it bounds the guesses.
const WRONG_TOKEN_DELAY: Duration = Duration::from_secs(1);

/// The most threads that wait for reactors: one for each path that is read, and for a few changes.
const BLOCKING_MAX: usize = 8;

/// How long nothing is accepted when the system has no descriptor or memory left.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// A running server. It stops when dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    access: Arc<Mutex<Access>>,
    portal: Option<Portal>,
    connections: Arc<Connections>,
    /// Dropping it ends the thread.
    stop: Option<oneshot::Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

/// What a server serves.
#[derive(Clone)]
pub struct Routes {
    /// The routes.
    pub router: Router,
    /// Says what requests for a path do.
    pub purpose: fn(&str) -> Purpose,
}

/// Where connections come from.
enum Source {
    Clear(TcpListener),
    Tls(mpsc::UnboundedReceiver<Accepted>),
}

impl Server {
    /// Serves `routes` on a listening socket; with `tls`, to TLS connections only.
    ///
    /// # Errors
    /// The system has no descriptor or no memory left for the thread.
    pub fn start(
        listener: TcpListener,
        access: Access,
        tls: Option<ServerSettings>,
        routes: Routes,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let access = Arc::new(Mutex::new(access));
        let (source, portal) = match tls {
            None => {
                listener.set_nonblocking(true)?;
                (Source::Clear(listener), None)
            }
            Some(settings) => {
                let (sender, receiver) = mpsc::unbounded_channel();
                let deliver = move |arrived: Result<Accepted, Refused>| match arrived {
                    Ok(accepted) => drop(sender.send(accepted)),
                    Err(refused) => {
                        crate::debug!("HTTP: no connection with {}: {}", refused.peer, refused.why);
                    }
                };
                let portal = Portal::start(listener, settings, Arc::new(deliver))?;
                (Source::Tls(receiver), Some(portal))
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(BLOCKING_MAX)
            .build()?;
        let (stop, stopped) = oneshot::channel::<Infallible>();
        let connections = Arc::<Connections>::default();
        let work = Work { routes, access: Arc::clone(&access), connections: Arc::clone(&connections) };
        let body = move || {
            runtime.spawn(work.accept_all(source));
            // The sender is dropped and never sends.
            let _ = runtime.block_on(stopped);
            // A change that waits for a reactor ends when the reactor does.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("http".to_owned()).spawn(body)?;
        Ok(Self { address, access, portal, connections, stop: Some(stop), thread: Some(thread) })
    }

    /// Returns the address that the server listens on.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Uses other rules for the requests that follow, and other TLS settings for the connections that follow.
    /// Connections with other settings than these are closed.
    pub fn change(&self, http: &Http) {
        // No request is checked meanwhile: the rules may rely on what the handshake demands, or the handshake
        // demand less than before because the rules demand a token.
        let mut access = self.access.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(portal), Some(settings)) = (&self.portal, &http.tls) {
            self.connections.close_before(portal.change(settings.clone()));
        }
        access.change(http);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

#[derive(Clone)]
struct Work {
    routes: Routes,
    access: Arc<Mutex<Access>>,
    connections: Arc<Connections>,
}

impl Work {
    async fn accept_all(self, source: Source) {
        match source {
            Source::Clear(listener) => match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => self.accept_clear(listener).await,
                Err(error) => crate::error!("HTTP: cannot accept connections: {}", os_error(&error)),
            },
            Source::Tls(mut accepted) => {
                while let Some(Accepted { socket, peer, generation, .. }) = accepted.recv().await {
                    let nonblocking = socket.set_nonblocking(true);
                    if let Ok(socket) = nonblocking.and_then(|()| tokio::net::UnixStream::from_std(socket)) {
                        self.begin(socket, peer.ip(), generation);
                        tokio::task::yield_now().await;
                    }
                }
            }
        }
    }

    async fn accept_clear(self, listener: tokio::net::TcpListener) {
        loop {
            match listener.accept().await {
                Ok((socket, peer)) => {
                    self.begin(socket, peer.ip(), 0);
                    // What has arrived on the connection is read before the next one can displace it.
                    tokio::task::yield_now().await;
                }
                // The client has closed the connection already.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    crate::warning!("HTTP: cannot accept a connection: {}", os_error(&error));
                    tokio::time::sleep(ACCEPT_REST).await;
                }
            }
        }
    }

    /// Serves a connection in a task of its own. If there are too many, one that asks nothing is closed: an
    /// older one, else this one. `generation` is that of its TLS settings.
    fn begin(
        &self,
        socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: IpAddr,
        generation: u64,
    ) {
        if !self.connections.make_room() {
            return;
        }
        let number = self.connections.next_number();
        let guard = ConnectionGuard { number, connections: Arc::clone(&self.connections) };
        let work = self.clone();
        let task = tokio::spawn(async move {
            work.serve(socket, number, peer).await;
            drop(guard);
        });
        self.connections.add(number, generation, peer, task.abort_handle());
    }

    async fn serve(
        self,
        socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        number: u64,
        peer: IpAddr,
    ) {
        let routes = TowerToHyperService::new(self.routes.router);
        let (access, connections, purpose) = (self.access, self.connections, self.routes.purpose);
        let service = service_fn(move |mut request: Request<Incoming>| {
            let (routes, access, connections) =
                (routes.clone(), Arc::clone(&access), Arc::clone(&connections));
            async move {
                let rules = || access.lock().unwrap_or_else(PoisonError::into_inner);
                let delay = rules().delay(&request, peer, Instant::now());
                if let Some(delay) = delay {
                    tokio::time::sleep(delay).await;
                }
                let purpose = purpose(request.uri().path());
                let checked = {
                    let mut rules = rules();
                    let checked = rules.check(&request, purpose, peer, Instant::now());
                    checked.map(|caller| (rules.keeps_connection(&caller), caller))
                };
                let response = match checked {
                    Ok((keeps_connection, caller)) => {
                        // A connection that was closed since its request arrived ends where it waits next.
                        let Some(asking) = connections.ask(number, keeps_connection) else {
                            return std::future::pending().await;
                        };
                        request.extensions_mut().insert(caller);
                        let mut response = match routes.call(request).await {
                            Ok(response) => response,
                            Err(never) => match never {},
                        };
                        drop(asking);
                        if connections.is_outdated(number) {
                            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                        }
                        response
                    }
                    Err(rejection) => rejected(rejection).await,
                };
                Ok::<_, Infallible>(with_policy(response))
            }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX);
        builder.max_buf_size(HEAD_LEN_MAX).max_headers(FIELDS_MAX).half_close(true);
        let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(socket), service));
        // A connection that fails has failed for its client too, which is told by its close.
        if tokio::time::timeout(LIFE_MAX, connection.as_mut()).await.is_err() {
            connection.as_mut().graceful_shutdown();
            let _ = tokio::time::timeout(FINISH_MAX, connection).await;
        }
    }
}

/// Returns the response to a request that is rejected.
async fn rejected(rejection: Rejection) -> Response<Body> {
    if rejection == Rejection::TokenWrong {
        tokio::time::sleep(WRONG_TOKEN_DELAY).await;
    }
    let mut response = Response::new(Body::from(rejection.sentence()));
    *response.status_mut() = rejection.status();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    match rejection {
        Rejection::TokenMissing | Rejection::TokenWrong => {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        Rejection::Method(methods) => {
            headers.insert(ALLOW, HeaderValue::from_static(methods));
        }
        _ => {}
    }
    response
}

/// What a browser may load for a page of this server: its own style sheet, modules and data, and nothing from
/// elsewhere. No script or style may stand in the page itself.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Adds what a browser must know of every response.
fn with_policy(mut response: Response<Body>) -> Response<Body> {
    let headers = response.headers_mut();
    for (name, value) in [
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (REFERRER_POLICY, "no-referrer"),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// The open connections, in the order of their numbers.
#[derive(Debug, Default)]
struct Connections(Mutex<ConnectionList>);

#[derive(Debug, Default)]
struct ConnectionList {
    next: u64,
    /// How many requests that keep their connections were accepted.
    requests: u64,
    /// The generation of the TLS settings.
    generation: u64,
    open: Vec<Connection>,
}

#[derive(Debug)]
struct Connection {
    number: u64,
    /// The generation of its TLS settings.
    generation: u64,
    /// The address of the client, or its network of 64 bits.
    host: IpAddr,
    /// Whether a request of it is being answered.
    is_asking: bool,
    /// The number of its last request that was accepted and keeps it; 0 if there was none.
    last_request: u64,
    task: AbortHandle,
}

impl Connections {
    fn list(&self) -> MutexGuard<'_, ConnectionList> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next_number(&self) -> u64 {
        let mut list = self.list();
        list.next += 1;
        list.next
    }

    /// Closes the connection that has asked nothing for longest, if there are too many: one that never asked
    /// anything that keeps it, of the host that has most of these, or the one that receives its response for
    /// longest. Returns whether there is room for another one.
    fn make_room(&self) -> bool {
        let mut list = self.list();
        if list.open.len() < CONNECTIONS_MAX {
            return true;
        }
        let idle = list.open.iter().enumerate().filter(|(_, connection)| !connection.is_asking);
        let is_new = |connection: &Connection| !connection.is_asking && connection.last_request == 0;
        let new_of = |host| list.open.iter().filter(|other| is_new(other) && other.host == host).count();
        let order = |connection: &Connection| match connection.last_request {
            0 => (0, Reverse(new_of(connection.host))),
            asked => (asked, Reverse(0)),
        };
        let Some((at, _)) = idle.min_by_key(|(_, connection)| order(connection)) else { return false };
        list.open.remove(at).task.abort();
        true
    }

    /// Adds a connection, or closes it if the TLS settings have changed since its handshake.
    fn add(&self, number: u64, generation: u64, peer: IpAddr, task: AbortHandle) {
        let mut list = self.list();
        if generation < list.generation {
            task.abort();
        } else {
            let host = host_of(peer);
            list.open.push(Connection { number, generation, host, is_asking: false, last_request: 0, task });
        }
    }

    /// Closes the connections of an older generation; one whose request is being answered, after that.
    fn close_before(&self, generation: u64) {
        let mut list = self.list();
        list.generation = generation;
        list.open.retain(|connection| {
            let stays = connection.generation == generation || connection.is_asking;
            if !stays {
                connection.task.abort();
            }
            stays
        });
    }

    /// Returns whether a connection is to be closed because the TLS settings have changed.
    fn is_outdated(&self, number: u64) -> bool {
        let mut list = self.list();
        let generation = list.generation;
        list.find(number).is_none_or(|connection| connection.generation != generation)
    }

    /// Records that a connection has sent a request that is accepted, and is being answered until the result
    /// is dropped. Returns `None` for a connection that is closed. A request that does not keep its
    /// connection is not recorded as its last one.
    fn ask(self: &Arc<Self>, number: u64, keeps_connection: bool) -> Option<Asking> {
        let mut list = self.list();
        list.requests += u64::from(keeps_connection);
        let request = list.requests;
        let connection = list.find(number)?;
        connection.is_asking = true;
        if keeps_connection {
            connection.last_request = request;
        }
        drop(list);
        Some(Asking { number, connections: Arc::clone(self) })
    }
}

impl ConnectionList {
    fn find(&mut self, number: u64) -> Option<&mut Connection> {
        self.open.iter_mut().find(|connection| connection.number == number)
    }
}

/// Returns what counts as one client: an IPv6 client has all addresses of its network of 64 bits.
fn host_of(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        v4 => v4,
    }
}

/// Removes a connection from the list when its task ends, for whatever reason.
struct ConnectionGuard {
    number: u64,
    connections: Arc<Connections>,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.connections.list().open.retain(|connection| connection.number != self.number);
    }
}

/// Marks a connection as one whose request is being answered, until it is dropped.
struct Asking {
    number: u64,
    connections: Arc<Connections>,
}

impl Drop for Asking {
    fn drop(&mut self) {
        if let Some(connection) = self.connections.list().find(self.number) {
            connection.is_asking = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_that_has_asked_nothing_for_longest_makes_room() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let connections = Arc::new(Connections::default());
        let add = || {
            let number = connections.next_number();
            let task = runtime.spawn(std::future::pending::<()>()).abort_handle();
            connections.add(number, 0, [192, 0, 2, 1].into(), task);
            number
        };
        let numbers: Vec<u64> = (0..CONNECTIONS_MAX).map(|_| add()).collect();
        // The first two have asked, the second one before the first, and the last one is being answered. All
        // others have never asked.
        drop(connections.ask(numbers[1], true));
        drop(connections.ask(numbers[0], true));
        // What anybody may ask does not keep a connection.
        drop(connections.ask(numbers[2], false));
        let asking = connections.ask(numbers[CONNECTIONS_MAX - 1], true);
        let never = &numbers[2..CONNECTIONS_MAX - 1];
        for gone in never.iter().chain([&numbers[1], &numbers[0]]) {
            assert!(connections.make_room());
            assert!(connections.list().find(*gone).is_none(), "{gone}");
            let newcomer = add();
            std::mem::forget(connections.ask(newcomer, true));
        }
        assert!(!connections.make_room(), "all are being answered");
        drop(asking);
        assert!(connections.make_room());
        assert!(connections.list().find(numbers[CONNECTIONS_MAX - 1]).is_none());
    }

    #[test]
    fn many_new_connections_of_one_host_displace_none_of_another() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let connections = Arc::new(Connections::default());
        let add = |peer: &str| {
            let number = connections.next_number();
            let task = runtime.spawn(std::future::pending::<()>()).abort_handle();
            assert!(connections.make_room());
            connections.add(number, 0, peer.parse().unwrap(), task);
            number
        };
        let (first, second) = (add("192.0.2.1"), add("2001:db8:1::1"));
        for at in 0..4 * CONNECTIONS_MAX {
            add(&format!("2001:db8::{at:x}"));
        }
        assert!(connections.list().find(first).is_some() && connections.list().find(second).is_some());
        assert_eq!(connections.list().open.len(), CONNECTIONS_MAX);
    }
}
