//! The router: passes each new connection to the reactor that owns its target, when there is more than one
//! reactor.
//!
//! One thread accepts connections on every portal, reads until the first login request is complete, and
//! passes the connection to a reactor together with the bytes that it read. The router never answers a peer:
//! a connection that it cannot assign goes to the first reactor, which answers with the error. With a single
//! reactor there is no router; the reactor accepts connections itself.

use crate::mailbox::{Receiver, Sender, channel};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::fairness::{largest_holder, source};
use base::state_machine::PortalId;
use drivers::message_queue::Adoption;
use drivers::waker::Waker;
use iscsi::name::IscsiName;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::login_peek::{self, FIRST_PDU_LEN_MAX, LoginPeek};

/// The most connections whose first request is pending. When there are more, the oldest one of the address
/// that has most of them is closed.
const PENDING_MAX: usize = 1024;

/// How long the router stops accepting when the system has no descriptor or memory left.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Passes a connection to a reactor; returns false when the reactor accepts none any more.
pub(super) type Deliver = Box<dyn Fn(Adoption) -> bool + Send>;

/// The running router. It stops, and closes its listeners, when dropped.
#[derive(Debug)]
pub(super) struct Router {
    orders: Arc<Orders>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Orders {
    waker: Waker,
    queue: Mutex<Vec<RouterCommand>>,
}

#[derive(Debug)]
enum RouterCommand {
    Listen(TcpListener, PortalId),
    Unlisten(PortalId),
    Adopt(Adoption),
    Owners(BTreeMap<IscsiName, usize>),
    Timeout(Duration),
    Pause(bool),
    CountPending(Sender<usize>),
    End,
}

impl Router {
    /// Starts the router for these reactors, without listeners and owners. A connection may take `timeout`
    /// for its first request.
    pub(super) fn start(reactors: Vec<Deliver>, timeout: Duration) -> io::Result<Self> {
        let orders = Arc::new(Orders { waker: Waker::new()?, queue: Mutex::new(Vec::new()) });
        let work = Work {
            orders: Arc::clone(&orders),
            reactors,
            timeout,
            owners: BTreeMap::new(),
            listeners: Vec::new(),
            pending: Vec::new(),
            rest_until: None,
            is_paused: false,
        };
        let thread = std::thread::Builder::new().name("router".to_owned()).spawn(move || work.run())?;
        Ok(Self { orders, thread: Some(thread) })
    }

    /// Accepts connections on `listener` for `portal`.
    pub(super) fn listen(&self, listener: TcpListener, portal: PortalId) {
        self.order(RouterCommand::Listen(listener, portal));
    }

    /// Closes the listeners of `portal`.
    pub(super) fn unlisten(&self, portal: PortalId) {
        self.order(RouterCommand::Unlisten(portal));
    }

    /// Returns what passes connections to the router that other threads accepted.
    pub(super) fn adopter(&self) -> impl Fn(Adoption) + Send + Sync + 'static {
        let orders = Arc::clone(&self.orders);
        move |adoption| orders.add(RouterCommand::Adopt(adoption))
    }

    /// Sets the reactor that owns each target.
    pub(super) fn owners(&self, owners: BTreeMap<IscsiName, usize>) {
        self.order(RouterCommand::Owners(owners));
    }

    /// Sets the time that later connections have for their first request.
    pub(super) fn timeout(&self, timeout: Duration) {
        self.order(RouterCommand::Timeout(timeout));
    }

    /// Returns what pauses the router.
    pub(super) fn pauser(&self) -> Pauser {
        Pauser(Arc::clone(&self.orders))
    }

    fn order(&self, order: RouterCommand) {
        self.orders.add(order);
    }
}

/// Pauses a router.
#[derive(Debug)]
pub(super) struct Pauser(Arc<Orders>);

impl Pauser {
    /// Makes the router stop accepting, or go on. Connections that peers make meanwhile wait in the kernel.
    /// Those that were accepted already are read and passed on.
    pub(super) fn pause(&self, is_paused: bool) {
        self.0.add(RouterCommand::Pause(is_paused));
    }

    /// Asks how many accepted connections the router has not passed on. No answer comes if it has ended.
    pub(super) fn count_pending(&self) -> Receiver<usize> {
        let (answer, pending) = channel();
        self.0.add(RouterCommand::CountPending(answer));
        pending
    }
}

impl Orders {
    fn add(&self, order: RouterCommand) {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push(order);
        self.waker.wake();
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.order(RouterCommand::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Work {
    orders: Arc<Orders>,
    reactors: Vec<Deliver>,
    timeout: Duration,
    owners: BTreeMap<IscsiName, usize>,
    listeners: Vec<(TcpListener, PortalId)>,
    pending: Vec<Pending>,
    rest_until: Option<Instant>,
    is_paused: bool,
}

struct Pending {
    arrived: Adoption,
    deadline: Instant,
}

/// What to do with a connection after its socket was ready.
enum Routing {
    Wait,
    Close,
    Give(usize),
}

impl Work {
    fn run(mut self) {
        loop {
            let now = Instant::now();
            self.pending.retain(|pending| pending.deadline > now);
            if self.rest_until.is_some_and(|until| until <= now) {
                self.rest_until = None;
            }
            let ready = match self.wait(now) {
                Ok(ready) => ready,
                Err(error) => {
                    crate::error!("router: cannot wait for connections: {}", crate::os_error(&error));
                    std::thread::sleep(ACCEPT_REST);
                    continue;
                }
            };
            if !self.handle_commands() {
                return;
            }
            self.read(&ready.pending);
            if ready.listeners && !self.is_paused && self.rest_until.is_none() {
                self.accept();
            }
        }
    }

    fn wait(&self, now: Instant) -> io::Result<Ready> {
        let mut fds = vec![PollFd::new(&self.orders.waker, PollFlags::IN)];
        fds.extend(self.pending.iter().map(|pending| PollFd::new(&pending.arrived.socket, PollFlags::IN)));
        if self.rest_until.is_none() && !self.is_paused {
            fds.extend(self.listeners.iter().map(|(listener, _)| PollFd::new(listener, PollFlags::IN)));
        }
        let deadlines = self.pending.iter().map(|pending| pending.deadline);
        let next = deadlines.chain(self.rest_until).min();
        let timeout = next.and_then(|at| Timespec::try_from(at.saturating_duration_since(now)).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut set = fds.iter().map(|fd| !fd.revents().is_empty()).skip(1);
        let pending = set.by_ref().take(self.pending.len()).collect();
        Ok(Ready { pending, listeners: set.any(|ready| ready) })
    }

    /// Executes the pending commands; returns whether to continue.
    fn handle_commands(&mut self) -> bool {
        self.orders.waker.clear();
        let orders = std::mem::take(&mut *self.orders.queue.lock().unwrap_or_else(PoisonError::into_inner));
        for order in orders {
            match order {
                RouterCommand::Listen(listener, portal) => match listener.set_nonblocking(true) {
                    Ok(()) => self.listeners.push((listener, portal)),
                    Err(error) => crate::error!("portal: {}", crate::os_error(&error)),
                },
                RouterCommand::Unlisten(portal) => self.listeners.retain(|(_, other)| *other != portal),
                RouterCommand::Adopt(arrived) => self.await_request(arrived),
                RouterCommand::Owners(owners) => self.owners = owners,
                RouterCommand::Timeout(timeout) => self.timeout = timeout,
                RouterCommand::Pause(is_paused) => self.is_paused = is_paused,
                RouterCommand::CountPending(answer) => {
                    // Who asked may not wait any more.
                    let _ = answer.send(self.pending.len());
                }
                RouterCommand::End => return false,
            }
        }
        true
    }

    fn read(&mut self, ready: &[bool]) {
        let mut kept = Vec::with_capacity(self.pending.len());
        for (index, mut pending) in std::mem::take(&mut self.pending).into_iter().enumerate() {
            let next = match ready.get(index) {
                Some(true) => self.receive(&mut pending.arrived),
                _ => Routing::Wait,
            };
            match next {
                Routing::Wait => kept.push(pending),
                Routing::Close => {}
                Routing::Give(reactor) => {
                    if let Some(deliver) = self.reactors.get(reactor) {
                        deliver(pending.arrived);
                    }
                }
            }
        }
        self.pending = kept;
    }

    fn receive(&self, arrived: &mut Adoption) -> Routing {
        let mut space = [0; FIRST_PDU_LEN_MAX];
        let room = FIRST_PDU_LEN_MAX.saturating_sub(arrived.bytes.len());
        match rustix::io::read(&arrived.socket, space.get_mut(..room).unwrap_or_default()) {
            Ok(0) => return Routing::Close,
            Ok(len) => arrived.bytes.extend_from_slice(space.get(..len).unwrap_or_default()),
            Err(Errno::AGAIN | Errno::INTR) => return Routing::Wait,
            Err(_) => return Routing::Close,
        }
        match login_peek::read(&arrived.bytes) {
            LoginPeek::Incomplete => Routing::Wait,
            LoginPeek::Target(name) => Routing::Give(self.owners.get(&name).copied().unwrap_or(0)),
            LoginPeek::Other => Routing::Give(0),
        }
    }

    /// Waits for the first request of a connection.
    fn await_request(&mut self, arrived: Adoption) {
        if rustix::io::ioctl_fionbio(&arrived.socket, true).is_err() {
            return;
        }
        if self.pending.len() >= PENDING_MAX {
            let from = |pending: &Pending| source(pending.arrived.peer);
            let most = largest_holder(self.pending.iter().map(|pending| (from(pending), 1)));
            if let Some(oldest) = self.pending.iter().position(|pending| Some(from(pending)) == most) {
                self.pending.remove(oldest);
            }
        }
        self.pending.push(Pending { arrived, deadline: Instant::now() + self.timeout });
    }

    fn accept(&mut self) {
        let mut accepted = Vec::new();
        for (listener, portal) in &self.listeners {
            match listener.accept() {
                Ok((stream, peer)) => {
                    // It fails if the peer has closed the connection already.
                    let Ok(local) = stream.local_addr() else { continue };
                    let (socket, portal) = (stream.into(), *portal);
                    accepted.push(Adoption { socket, portal, local, peer, bytes: Vec::new() });
                }
                Err(error) if is_peers_fault(&error) => {}
                Err(error) => {
                    crate::warning!("cannot accept: {}", crate::os_error(&error));
                    self.rest_until = Some(Instant::now() + ACCEPT_REST);
                }
            }
        }
        accepted.into_iter().for_each(|arrived| self.await_request(arrived));
    }
}

/// The result of `poll`.
struct Ready {
    /// Whether each pending connection is ready.
    pending: Vec<bool>,
    /// Whether any listener is ready.
    listeners: bool,
}

/// Returns whether an accept failed because the peer had closed the connection already, or because no
/// connection was pending.
fn is_peers_fault(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted | ConnectionReset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::os::fd::OwnedFd;

    const PATIENCE: Duration = Duration::from_secs(60);

    struct World {
        router: Router,
        address: SocketAddr,
        reactors: Vec<Receiver<Adoption>>,
    }

    fn world(timeout: Duration) -> World {
        let (senders, reactors): (Vec<_>, Vec<_>) = (0..2).map(|_| channel()).unzip();
        let deliver =
            senders.into_iter().map(|to| -> Deliver { Box::new(move |arrived| to.send(arrived).is_ok()) });
        let router = Router::start(deliver.collect(), timeout).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        router.listen(listener, PortalId(7));
        let owner = |name: &str, reactor| (name.parse().unwrap(), reactor);
        router.owners([owner("iqn.2001-04.com.example:a", 0), owner("iqn.2001-04.com.example:b", 1)].into());
        World { router, address, reactors }
    }

    fn login(target: &str) -> Vec<u8> {
        let text = format!("InitiatorName=iqn.1994-05.com.redhat:x\0TargetName={target}\0");
        let mut header = [0; 48];
        header[0] = 0x43;
        header[7] = u8::try_from(text.len()).unwrap();
        [&header[..], text.as_bytes()].concat()
    }

    #[test]
    fn connections_go_to_the_owner_of_their_target_with_all_that_was_read() {
        let world = world(PATIENCE);
        for (target, reactor) in [
            ("iqn.2001-04.com.example:b", 1),
            ("iqn.2001-04.com.example:a", 0),
            ("iqn.2001-04.com.example:c", 0),
        ] {
            let mut stream = TcpStream::connect(world.address).unwrap();
            let bytes = login(target);
            // The bytes are sent in two pieces, and the name is not in the first one.
            stream.write_all(&bytes[..60]).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            stream.write_all(&bytes[60..]).unwrap();
            let arrived = world.reactors[reactor].recv_timeout(PATIENCE).unwrap();
            assert_eq!((arrived.portal, arrived.bytes), (PortalId(7), bytes));
            assert_eq!((arrived.local, arrived.peer), (world.address, stream.local_addr().unwrap()));
        }
    }

    #[test]
    fn a_connection_that_another_thread_accepted_goes_to_the_owner_of_its_target() {
        let world = world(PATIENCE);
        let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let (local, peer) = (world.address, "192.0.2.9:40000".parse().unwrap());
        let (socket, portal) = (theirs.into(), PortalId(8));
        world.router.adopter()(Adoption { socket, portal, local, peer, bytes: Vec::new() });
        ours.write_all(&login("iqn.2001-04.com.example:b")).unwrap();
        let arrived = world.reactors[1].recv_timeout(PATIENCE).unwrap();
        assert_eq!((arrived.portal, arrived.peer), (portal, peer));
    }

    #[test]
    fn an_address_with_very_many_connections_closes_only_its_own() {
        let world = world(PATIENCE);
        let adopt = world.router.adopter();
        let (mut ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let arrive = |socket: OwnedFd, peer: &str| {
            let (local, peer, portal) = (world.address, peer.parse().unwrap(), PortalId(7));
            adopt(Adoption { socket, portal, local, peer, bytes: Vec::new() });
        };
        arrive(theirs.into(), "192.0.2.9:40000");
        // All of them are one silent connection, which costs a descriptor each.
        let (_silent, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        for port in 0..PENDING_MAX + 20 {
            arrive(theirs.try_clone().unwrap().into(), &format!("192.0.2.10:{}", port + 1));
        }
        while world.router.pauser().count_pending().recv_timeout(PATIENCE).unwrap() < PENDING_MAX {
            std::thread::sleep(Duration::from_millis(1));
        }
        ours.write_all(&login("iqn.2001-04.com.example:b")).unwrap();
        let arrived = world.reactors[1].recv_timeout(PATIENCE).unwrap();
        assert_eq!(arrived.peer, "192.0.2.9:40000".parse().unwrap());
    }

    #[test]
    fn a_paused_router_passes_on_what_it_has_accepted_and_accepts_no_more() {
        let world = world(PATIENCE);
        let pauser = world.router.pauser();
        let pending = || pauser.count_pending().recv_timeout(PATIENCE).unwrap();
        let mut first = TcpStream::connect(world.address).unwrap();
        while pending() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        pauser.pause(true);
        let mut second = TcpStream::connect(world.address).unwrap();
        for stream in [&mut first, &mut second] {
            stream.write_all(&login("iqn.2001-04.com.example:b")).unwrap();
        }
        let arrived = world.reactors[1].recv_timeout(PATIENCE).unwrap();
        assert_eq!(arrived.peer, first.local_addr().unwrap());
        while pending() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(pending(), 0);
        assert!(world.reactors[1].try_recv().is_err(), "a paused router accepts a connection");
        pauser.pause(false);
        let arrived = world.reactors[1].recv_timeout(PATIENCE).unwrap();
        assert_eq!(arrived.peer, second.local_addr().unwrap());
    }

    #[test]
    fn a_silent_peer_loses_its_place_and_delays_nobody() {
        let world = world(Duration::from_secs(2));
        let mut silent = TcpStream::connect(world.address).unwrap();
        let mut busy = TcpStream::connect(world.address).unwrap();
        busy.write_all(&login("iqn.2001-04.com.example:a")).unwrap();
        assert!(world.reactors[0].recv_timeout(PATIENCE).is_ok());
        silent.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(silent.read(&mut [0]).unwrap_or(0), 0);
    }

    #[test]
    fn a_portal_that_is_closed_takes_nobody_and_an_ended_router_neither() {
        let world = world(PATIENCE);
        world.router.unlisten(PortalId(7));
        let refused = (0..6000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            TcpStream::connect(world.address).is_err()
        });
        assert!(refused);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        world.router.listen(listener, PortalId(8));
        drop(world.router);
        assert!(TcpStream::connect(address).is_err());
    }
}
