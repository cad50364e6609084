//! The process that takes over, until it serves.

use crate::mailbox::channel;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use backends::sg::MovedSg;
use base::ether::EtherPort;
use base::state_machine::{ConnId, PortalId};
use drivers::inherited;
use drivers::message_queue::Adoption;
use iscsi::name::IscsiName;
use rustix::net::AddressFamily;
use store::api::DeviceInfo;
use tls::{MovedRelay, MovingRelay};

use super::channel::Channel;
use super::document::{
    CartridgeState, DeviceState, Document, ExportState, FORMAT, MAGIC, MemoryState, ReactorState, RelayState,
};
use super::messages::{Answer, Commit, Hello, Socket, Welcome};
use super::relays::from_document;
use super::{MESSAGE_MAX, PREPARE_MAX, VARIABLE};
use crate::serve::ServeError;
use crate::serve::media::handed_over::{
    HandedOverMedia, MovedCartridge, MovedExport, MovedMemory, SessionMedia,
};
use crate::serve::placement::{Owners, Placement};
use crate::serve::reactor_shard::ReactorShard;
use crate::serve::reactors::{REACTOR_REPLY_TIMEOUT, ReactorThread};
use crate::serve::runtime_config::RuntimeConfig;
use crate::serve::state::StateLock;
use crate::serve::tls_portals::tls_of;

/// How long the process that serves may try to find a moment in which nothing is under way: as long as a
/// client may let it, and as long again for what it does meanwhile.
const DOCUMENT_MAX: Duration = Duration::from_secs(600);

/// What this process gets from the one that serves.
#[derive(Debug)]
pub(in crate::serve) struct Succession {
    channel: Channel,
    /// The release of the process that serves.
    pub(in crate::serve) version: String,
    /// The configured address of each portal, in the order of the process that serves.
    portals: Vec<SocketAddr>,
    /// The listening socket of each portal, by its index there.
    listeners: BTreeMap<usize, TcpListener>,
    /// The index of each of these portals in the configuration of this process.
    places: Vec<Option<usize>>,
    /// The listening sockets of the service manager, with their names.
    pub(in crate::serve) activated: Vec<(TcpListener, String)>,
    /// The listening socket of the admin API, and its lock.
    pub(in crate::serve) admin: Option<[OwnedFd; 2]>,
    /// The lock of the state directory.
    pub(in crate::serve) state_lock: Option<StateLock>,
    pub(in crate::serve) http: Option<TcpListener>,
    /// The media of the LUNs.
    pub(in crate::serve) media: HandedOverMedia,
    reactors: usize,
    owners: Owners,
    pub(in crate::serve) interfaces: Vec<(EtherPort, String)>,
    /// Whether this process has the sessions.
    is_committed: bool,
}

/// The sessions, and the sockets of their connections.
pub(in crate::serve) struct Sessions {
    document: Document,
    sockets: Vec<OwnedFd>,
    /// The connections inside TLS, each with the index of its portal.
    relays: Vec<(usize, MovingRelay)>,
}

impl Succession {
    /// Returns what the process that serves gives to this one; `None` if this process was not started to take
    /// over.
    ///
    /// # Errors
    /// The process that serves does not give it.
    pub(in crate::serve) fn from_process() -> Result<Option<Self>, ServeError> {
        let Some(number) = std::env::var_os(VARIABLE) else { return Ok(None) };
        let number = number.to_str().and_then(|number| number.parse().ok());
        // A process whose ancestor took over has the variable too, and no such descriptor any more.
        let Some(stream) = number.and_then(|number| inherited::take(number).ok()) else { return Ok(None) };
        let channel = Channel::new(UnixStream::from(stream));
        let failed = |error| lost("given its sockets", &error);
        let hello =
            Hello { magic: MAGIC.to_owned(), version: env!("CARGO_PKG_VERSION").to_owned(), format: FORMAT };
        channel.send(&hello, &[], MESSAGE_MAX).map_err(failed)?;
        let (welcome, descriptors) = channel.receive::<Welcome>(PREPARE_MAX).map_err(failed)?;
        Self::new(channel, welcome, descriptors).map(Some).map_err(failed)
    }

    fn new(channel: Channel, welcome: Welcome, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let wrong = || io::Error::from(io::ErrorKind::InvalidData);
        if welcome.sockets.len() != descriptors.len() {
            return Err(wrong());
        }
        let count = welcome.reactors;
        let owner = |(name, reactor): (String, usize)| {
            Some((name.parse::<IscsiName>().ok()?, Some(reactor).filter(|reactor| *reactor < count)?))
        };
        let owners = welcome.owners.into_iter().map(owner).collect::<Option<_>>().ok_or_else(wrong)?;
        let mut new = Self {
            channel,
            version: welcome.version,
            portals: welcome.portals,
            listeners: BTreeMap::new(),
            places: Vec::new(),
            activated: Vec::new(),
            admin: None,
            state_lock: None,
            http: None,
            media: HandedOverMedia::default(),
            reactors: welcome.reactors,
            owners,
            interfaces: welcome.interfaces.into_iter().map(|(port, name)| (EtherPort(port), name)).collect(),
            is_committed: false,
        };
        let (mut admin, mut lock) = (None, None);
        for (socket, descriptor) in welcome.sockets.into_iter().zip(descriptors) {
            match socket {
                Socket::Portal(at) => drop(new.listeners.insert(at, descriptor.into())),
                Socket::Activated(name) => new.activated.push((descriptor.into(), name)),
                Socket::Admin => admin = Some(descriptor),
                Socket::AdminLock => lock = Some(descriptor),
                Socket::StateLock => new.state_lock = Some(StateLock::take_over(descriptor)),
                Socket::Http => new.http = Some(descriptor.into()),
                Socket::Medium => new.media.files.add(descriptor.into())?,
                Socket::Library { changer } => new.media.add_library(changer, descriptor.into()),
                Socket::Disc { drive, disc } => new.media.add_disc(drive, disc, descriptor.into()),
            }
        }
        new.admin = admin.zip(lock).map(|(admin, lock)| [admin, lock]);
        Ok(new)
    }

    /// Returns the number of reactors, and the reactor of each target. Both are those of the process that
    /// serves, which reloads can have given another configuration than it started with.
    pub(in crate::serve) fn placement(&self) -> (usize, Placement) {
        (self.reactors, Placement { targets: self.owners.clone(), ..Placement::default() })
    }

    /// Returns the listening sockets of the portals that are configured with these addresses, by index.
    pub(in crate::serve) fn listeners(&mut self, configured: &[SocketAddr]) -> BTreeMap<usize, TcpListener> {
        let (known, own) = (names(&self.portals), names(configured));
        self.places = known.iter().map(|name| own.iter().position(|other| other == name)).collect();
        let places = std::mem::take(&mut self.listeners).into_iter().filter_map(|(at, listener)| {
            let place = self.places.get(at).copied().flatten()?;
            Some((place, listener))
        });
        places.collect()
    }

    /// Says that everything is open that the configuration of this revision needs, and waits for the
    /// sessions.
    ///
    /// # Errors
    /// The process that serves goes on, or its sessions cannot be read.
    pub(in crate::serve) fn prepared(&mut self, revision: Option<String>) -> Result<Sessions, ServeError> {
        if !self.media.is_empty() {
            let why = "the path of a LUN leads to another file or device than the one that is served";
            return Err(ServeError::Failed(why.to_owned()));
        }
        let failed = |error| lost("given its sessions", &error);
        self.channel.send(&Answer::Prepared(revision), &[], MESSAGE_MAX).map_err(failed)?;
        let (bytes, mut sockets) = self.channel.receive_bytes(DOCUMENT_MAX).map_err(failed)?;
        let mut document = Document::decode(&bytes).map_err(|error| ServeError::Failed(error.to_string()))?;
        let relays = moving_relays(&mut document, &mut sockets).map_err(ServeError::Failed)?;
        Ok(Sessions { document, sockets, relays })
    }

    /// Returns the media that came with the sessions.
    ///
    /// # Errors
    /// They did not come.
    pub(in crate::serve) fn session_media(sessions: &mut Sessions) -> Result<SessionMedia, ServeError> {
        let missing =
            || ServeError::Failed("a cartridge, a connection, a device or memory is missing".to_owned());
        let Sessions { document, sockets, .. } = sessions;
        let (cartridges, exports) =
            (std::mem::take(&mut document.cartridges), std::mem::take(&mut document.exports));
        let (devices, memories) =
            (std::mem::take(&mut document.devices), std::mem::take(&mut document.memories));
        let sockets_of_exports = exports.iter().filter(|export| export.has_socket).count();
        let locks = devices.iter().filter(|device| device.is_locked).count();
        let count = 2 * cartridges.len() + sockets_of_exports + locks + memories.len();
        let first = sockets.len().checked_sub(count).ok_or_else(missing)?;
        let mut descriptors = sockets.split_off(first).into_iter();
        let mut media = SessionMedia::default();
        for CartridgeState { drive, path, read_only } in cartridges {
            let (Some(label), Some(folder)) = (descriptors.next(), descriptors.next()) else {
                return Err(missing());
            };
            let files = [label, folder].map(File::from);
            media.cartridges.insert(drive.clone(), MovedCartridge { drive, path, read_only, files });
        }
        for state in exports {
            let socket = state.has_socket.then(|| descriptors.next().ok_or_else(missing)).transpose()?;
            let info = state.info().map_err(|why| ServeError::Failed(format!("an NBD export: {why}")))?;
            let ExportState { unit, .. } = state;
            media.exports.insert(unit, MovedExport { info, socket });
        }
        for DeviceState { unit, kind, block_len, transfer_max, names, is_locked } in devices {
            let locked = is_locked.then(|| descriptors.next().ok_or_else(missing)).transpose()?;
            let info = DeviceInfo { kind, block_len, transfer_max };
            media.devices.insert(unit, MovedSg { info, names, locked: locked.map(File::from) });
        }
        for MemoryState { unit, len, chunks } in memories {
            let file = descriptors.next().ok_or_else(missing)?.into();
            media.memories.insert(unit, MovedMemory { len, chunks, file });
        }
        Ok(media)
    }

    /// Resumes the sessions in parked reactors, and waits until they are ours. Returns the connections inside
    /// TLS, which wait to go on.
    ///
    /// # Errors
    /// The sessions do not fit, or the process that serves goes on.
    pub(in crate::serve) fn take_over(
        &mut self,
        mut sessions: Sessions,
        reactors: &[ReactorThread],
        runtime: &RuntimeConfig,
    ) -> Result<Vec<(PortalId, MovedRelay)>, ServeError> {
        let portal = |at: usize| {
            let (id, _) = runtime.portals.get(self.places.get(at).copied().flatten()?)?;
            Some((*id, tls_of(runtime, *id).is_some()))
        };
        let relays =
            moved_relays(std::mem::take(&mut sessions.relays), portal).map_err(ServeError::Failed)?;
        resume(sessions, reactors, portal).map_err(ServeError::Failed)?;
        let failed = |error| lost("committed", &error);
        self.channel.send(&Answer::Ready, &[], MESSAGE_MAX).map_err(failed)?;
        // The other process can commit at any time until it closes the connection. If this one ended before,
        // none would have the sessions.
        let Commit = self.channel.receive_without_limit().map_err(failed)?;
        self.is_committed = true;
        Ok(relays)
    }

    /// Says that this process serves.
    pub(in crate::serve) fn serving(&self) {
        // The other process ends in any case.
        let _ = self.channel.send(&Answer::Serving, &[], MESSAGE_MAX);
    }

    /// Tells the process that serves why this one does not take over. Returns the error of this process.
    pub(in crate::serve) fn fail(&self, why: ServeError) -> ServeError {
        if self.is_committed {
            return why;
        }
        let _ = self.channel.send(&Answer::Failed(why.to_string()), &[], MESSAGE_MAX);
        ServeError::NotTakenOver(Box::new(why))
    }
}

/// Returns what distinguishes portals: the address of each, and how many before it have the same. Several
/// portals may ask for any free port.
fn names(portals: &[SocketAddr]) -> Vec<(SocketAddr, usize)> {
    let mut met = BTreeMap::new();
    let name = |listen: &SocketAddr| (*listen, *met.entry(*listen).and_modify(|nth| *nth += 1).or_insert(0));
    portals.iter().map(name).collect()
}

/// Takes the connections inside TLS off a document, and their sockets off the end of the list.
fn moving_relays(
    document: &mut Document,
    sockets: &mut Vec<OwnedFd>,
) -> Result<Vec<(usize, MovingRelay)>, String> {
    let states = std::mem::take(&mut document.relays);
    let missing = || "the socket of a TLS connection is missing".to_owned();
    let first = sockets.len().checked_sub(2 * states.len()).ok_or_else(missing)?;
    let mut ends = sockets.split_off(first).into_iter();
    let relay = |state: RelayState| {
        let (network, local) = ends.next().zip(ends.next()).ok_or_else(missing)?;
        Ok((state.portal, from_document(state, [network, local])))
    };
    states.into_iter().map(relay).collect()
}

/// Prepares connections inside TLS, which do nothing before they begin. `portal_at` is as for [`resume`].
fn moved_relays(
    relays: Vec<(usize, MovingRelay)>,
    portal_at: impl Fn(usize) -> Option<(PortalId, bool)>,
) -> Result<Vec<(PortalId, MovedRelay)>, String> {
    let prepare = |(at, moving)| {
        let portal = portal_at(at).filter(|(_, is_tls)| *is_tls);
        let (portal, _) = portal.ok_or("a TLS connection has an unknown portal")?;
        let moved = MovedRelay::new(moving)
            .map_err(|error| format!("a TLS connection cannot go on: {}", crate::os_error(&error)))?;
        Ok((portal, moved))
    };
    relays.into_iter().map(prepare).collect()
}

/// Resumes the sessions of every reactor. `portal_at` returns the portal that has this index in the process
/// that serves, and whether its connections are inside TLS.
fn resume(
    sessions: Sessions,
    reactors: &[ReactorThread],
    portal_at: impl Fn(usize) -> Option<(PortalId, bool)>,
) -> Result<(), String> {
    let Sessions { document, sockets, .. } = sessions;
    if document.reactors.len() != reactors.len() {
        return Err(format!(
            "{} reactors serve, and this process has {}",
            document.reactors.len(),
            reactors.len()
        ));
    }
    let mut sockets = sockets.into_iter();
    let mut resumed = Vec::new();
    for (running, state) in reactors.iter().zip(document.reactors) {
        let ReactorState { shard, connections, tls_addresses } = state;
        let mut tls_addresses = tls_addresses.into_iter();
        let counts: Vec<usize> = connections.iter().map(Vec::len).collect();
        let adopt = |at: usize| {
            let (portal, is_tls) = portal_at(at).ok_or("a connection has an unknown portal")?;
            let socket = sockets.next().ok_or("the socket of a connection is missing")?;
            let lost = |error| format!("a connection was lost meanwhile: {}", crate::os_error(&error));
            let (local, peer, socket) = if is_tls {
                let missing = "the addresses of a TLS connection are missing";
                let (local, peer) = tls_addresses.next().ok_or(missing)?;
                (local, peer, local_socket(socket).ok_or("a TLS connection has the socket of another one")?)
            } else {
                addresses(socket).map_err(lost)?
            };
            Ok(Adoption { socket, portal, local, peer, bytes: Vec::new() })
        };
        let adoptions = connections.into_iter().flatten().map(adopt).collect::<Result<Vec<_>, String>>()?;
        let (answer, answers) = channel();
        let job = move |member: &mut ReactorShard, now, conns: io::Result<Vec<ConnId>>| {
            let taken = conns.map_err(|error| crate::os_error(&error)).and_then(|conns| {
                let mut conns = conns.into_iter();
                let of_sessions = counts.into_iter().map(|count| conns.by_ref().take(count).collect());
                let of_sessions: Vec<Vec<ConnId>> = of_sessions.collect();
                member.resume(now, &shard, &of_sessions)
            });
            let _ = answer.send(taken);
        };
        running.handle.take_over(adoptions, job).map_err(|_| "a reactor has ended")?;
        resumed.push(answers);
    }
    for answers in resumed {
        answers.recv_timeout(REACTOR_REPLY_TIMEOUT).map_err(|_| "a reactor does not answer")??;
    }
    Ok(())
}

/// Returns the socket, if it is one of a pair of local sockets.
fn local_socket(socket: OwnedFd) -> Option<OwnedFd> {
    let domain = rustix::net::sockopt::socket_domain(&socket).ok()?;
    (domain == AddressFamily::UNIX).then_some(socket)
}

fn addresses(socket: OwnedFd) -> io::Result<(SocketAddr, SocketAddr, OwnedFd)> {
    let stream = TcpStream::from(socket);
    let local = stream.local_addr()?;
    let peer = match stream.peer_addr() {
        // The peer has reset the connection. Its session is told so when it goes on.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => match local {
            SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        },
        other => other?,
    };
    Ok((local, peer, stream.into()))
}

/// Describes that the process that serves did not do what it was to do next.
fn lost(step: &str, error: &io::Error) -> ServeError {
    ServeError::Failed(format!(
        "the process that serves has not {step}, so this one ends: {}",
        crate::os_error(error)
    ))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use nbd::handshake::{CHANGE_LEN_MAX, ExportInfo};

    use super::*;

    fn welcomed(portals: &[SocketAddr], sockets: Vec<Socket>, descriptors: Vec<OwnedFd>) -> Succession {
        let (ours, _) = UnixStream::pair().unwrap();
        let welcome = welcome(portals, sockets);
        Succession::new(Channel::new(ours), welcome, descriptors).unwrap()
    }

    fn welcome(portals: &[SocketAddr], sockets: Vec<Socket>) -> Welcome {
        Welcome {
            version: "0.0.0".to_owned(),
            portals: portals.to_vec(),
            sockets,
            reactors: 2,
            owners: BTreeMap::new(),
            interfaces: Vec::new(),
        }
    }

    #[test]
    fn portals_in_another_order_keep_their_sockets() {
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let listeners = [listen(), listen(), listen()];
        let actual = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
        let [a, any, b]: [SocketAddr; 3] =
            ["192.0.2.1:3260", "192.0.2.1:0", "192.0.2.2:3260"].map(|text| text.parse().unwrap());
        let sockets = (0..3).map(Socket::Portal).collect();
        let mut succession =
            welcomed(&[a, any, b], sockets, listeners.into_iter().map(OwnedFd::from).collect());
        let taken = succession.listeners(&[b, a, any]);
        let taken: Vec<_> = taken.into_iter().map(|(at, one)| (at, one.local_addr().unwrap())).collect();
        let [of_a, of_any, of_b] = actual;
        assert_eq!(taken, [(0, of_b), (1, of_a), (2, of_any)]);
        assert_eq!(succession.places, [Some(1), Some(2), Some(0)], "for the connections");
    }

    #[test]
    fn a_connection_that_was_reset_meanwhile_is_taken() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
        drop(peer);
        assert!(ours.peek(&mut [0]).is_err(), "the reset has arrived");
        let (local, peer, _) = addresses(ours.into()).unwrap();
        assert_eq!((local, peer), (listener.local_addr().unwrap(), "0.0.0.0:0".parse().unwrap()));
    }

    #[test]
    fn portals_of_the_same_address_are_told_apart_by_their_order() {
        let [a, b]: [SocketAddr; 2] = ["192.0.2.1:0", "192.0.2.2:0"].map(|text| text.parse().unwrap());
        let mut succession = welcomed(&[a, b, a], Vec::new(), Vec::new());
        assert!(succession.listeners(&[a, a]).is_empty());
        assert_eq!(succession.places, [Some(0), None, Some(1)]);
    }

    #[test]
    fn the_reactors_are_those_of_the_process_that_serves() {
        let (count, _) = welcomed(&[], Vec::new(), Vec::new()).placement();
        assert_eq!(count, 2);
        let (ours, _) = UnixStream::pair().unwrap();
        let mut welcome = welcome(&[], Vec::new());
        welcome.owners.insert("iqn.2001-04.com.example:a".to_owned(), 2);
        assert!(Succession::new(Channel::new(ours), welcome, Vec::new()).is_err(), "there are 0 and 1");
    }

    #[test]
    fn only_what_has_a_descriptor_gets_one() {
        let info = ExportInfo {
            len: 1 << 20,
            flags: 1,
            block_len: 512,
            preferred_block_len: 4096,
            payload_len_max: 1 << 20,
            change_len_max: CHANGE_LEN_MAX,
            structured: false,
            allocation_id: None,
        };
        let device = |unit: &str, is_locked| DeviceState {
            unit: unit.to_owned(),
            kind: 1,
            block_len: None,
            transfer_max: 1 << 20,
            names: vec![unit.as_bytes().to_vec()],
            is_locked,
        };
        let sessions = |sockets| Sessions {
            document: Document {
                reactors: Vec::new(),
                cartridges: Vec::new(),
                exports: [("block", false), ("server", true)]
                    .map(|(unit, has_socket)| ExportState::new(unit.to_owned(), &info, has_socket))
                    .into(),
                devices: vec![device("process", false), device("node", true)],
                memories: vec![MemoryState { unit: "memory".to_owned(), len: 9, chunks: vec![(0, 1)] }],
                relays: Vec::new(),
            },
            sockets,
            relays: Vec::new(),
        };
        let ((one, other), (third, _)) = (UnixStream::pair().unwrap(), UnixStream::pair().unwrap());
        let descriptors = [one, other, third].map(OwnedFd::from);
        let numbers = descriptors.each_ref().map(AsRawFd::as_raw_fd);
        let mut media = Succession::session_media(&mut sessions(descriptors.into())).unwrap();
        let number = |socket: Option<OwnedFd>| socket.map(|socket| socket.as_raw_fd());
        let exports = ["server", "block"].map(|unit| number(media.exports.remove(unit).unwrap().socket));
        assert_eq!(exports, [Some(numbers[0]), None]);
        let locks = ["node", "process"]
            .map(|unit| number(media.devices.remove(unit).unwrap().locked.map(OwnedFd::from)));
        assert_eq!(locks, [Some(numbers[1]), None]);
        let memory = media.memories.remove("memory").unwrap();
        assert_eq!((memory.len, memory.chunks, memory.file.as_raw_fd()), (9, vec![(0, 1)], numbers[2]));
        assert!(media.is_empty() && Succession::session_media(&mut sessions(Vec::new())).is_err());
    }

    #[test]
    fn tls_connections_take_the_last_sockets_and_keep_their_state() {
        let document = || Document {
            reactors: Vec::new(),
            cartridges: Vec::new(),
            exports: Vec::new(),
            devices: Vec::new(),
            memories: Vec::new(),
            relays: vec![RelayState::for_tests()],
        };
        let (one, other) = UnixStream::pair().unwrap();
        let network = other.try_clone().unwrap();
        let mut sockets: Vec<OwnedFd> = [one, network, other].map(OwnedFd::from).into();
        let numbers: Vec<_> = sockets.iter().map(AsRawFd::as_raw_fd).collect();
        let relays = moving_relays(&mut document(), &mut sockets).unwrap();
        let [(at, moving)] = <[_; 1]>::try_from(relays).unwrap();
        assert_eq!((at, sockets.len()), (1, 1));
        assert_eq!([moving.network.as_raw_fd(), moving.local.as_raw_fd()], numbers[1..]);
        assert!(crate::serve::upgrade::relays::to_document(1, moving.state.clone()) == document().relays[0]);
        assert!(moving_relays(&mut document(), &mut sockets).is_err(), "there is only one socket");
        let refused = |is_tls, relay| moved_relays(vec![(1, relay)], |at| portal_of(is_tls, at)).unwrap_err();
        let copy = |state: &tls::RelayState| MovingRelay {
            state: state.clone(),
            network: moving.network.try_clone().unwrap(),
            local: moving.local.try_clone().unwrap(),
        };
        for unknown in [None, Some(false)] {
            assert_eq!(refused(unknown, copy(&moving.state)), "a TLS connection has an unknown portal");
        }
        let mut damaged = moving.state.clone();
        damaged.records.suite = 7;
        let told = "a TLS connection cannot go on: its state is damaged";
        assert_eq!(refused(Some(true), copy(&damaged)), told);
        let taken = moved_relays(vec![(1, copy(&moving.state))], |at| portal_of(Some(true), at)).unwrap();
        assert_eq!(taken.iter().map(|(portal, _)| *portal).collect::<Vec<_>>(), [PortalId(7)]);
    }

    fn portal_of(is_tls: Option<bool>, at: usize) -> Option<(PortalId, bool)> {
        Some((PortalId(7), is_tls.filter(|_| at == 1)?))
    }

    #[test]
    fn a_failure_tells_whether_the_other_process_serves_on() {
        let why = || ServeError::Failed("no memory".to_owned());
        let mut succession = welcomed(&[], Vec::new(), Vec::new());
        let failed = succession.fail(why());
        assert!(matches!(&failed, ServeError::NotTakenOver(_)), "{failed}");
        assert_eq!(failed.to_string(), "no memory");
        succession.is_committed = true;
        assert!(matches!(succession.fail(why()), ServeError::Failed(_)));
    }
}
