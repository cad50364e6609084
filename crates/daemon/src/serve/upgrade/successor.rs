//! The process that takes over, until it serves.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::time::Duration;

use backends::open::handed_over::HandedOverFiles;
use base::ether::EtherPort;
use base::state_machine::ConnId;
use drivers::inherited;
use drivers::message_queue::Adoption;
use iscsi::name::IscsiName;
use zeroize::Zeroizing;

use super::channel::Channel;
use super::document::{Document, FORMATS, MAGIC, ReactorState};
use super::messages::{Answer, Commit, Hello, Socket, Welcome};
use super::{MESSAGE_MAX, PREPARE_MAX, VARIABLE};
use crate::serve::ServeError;
use crate::serve::placement::{Owners, Placement};
use crate::serve::reactor_shard::ReactorShard;
use crate::serve::reactors::{REACTOR_REPLY_TIMEOUT, ReactorThread};
use crate::serve::runtime_config::RuntimeConfig;

/// How long the process that serves may try to find a moment in which nothing is under way: as long as a
/// client may let it, and as long again for what it does meanwhile.
const DOCUMENT_MAX: Duration = Duration::from_secs(600);

/// What this process gets from the one that serves.
#[derive(Debug)]
pub(in crate::serve) struct Succession {
    channel: Channel,
    /// The release of the process that serves.
    pub(in crate::serve) version: String,
    /// The listening socket of each portal, by its index in the configuration.
    pub(in crate::serve) portals: BTreeMap<usize, TcpListener>,
    /// The listening sockets of the service manager, with their names.
    pub(in crate::serve) activated: Vec<(TcpListener, String)>,
    /// The listening socket of the admin API, and its lock.
    pub(in crate::serve) admin: Option<[OwnedFd; 2]>,
    pub(in crate::serve) http: Option<TcpListener>,
    /// The files and devices of the LUNs.
    pub(in crate::serve) media: HandedOverFiles,
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
        let hello = Hello {
            magic: MAGIC.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            formats: FORMATS.to_vec(),
        };
        channel.send(&hello, &[], MESSAGE_MAX).map_err(failed)?;
        let (welcome, descriptors) = channel.receive::<Welcome>(PREPARE_MAX).map_err(failed)?;
        Self::new(channel, welcome, descriptors).map(Some).map_err(failed)
    }

    fn new(channel: Channel, welcome: Welcome, descriptors: Vec<OwnedFd>) -> io::Result<Self> {
        let wrong = || io::Error::from(io::ErrorKind::InvalidData);
        if welcome.sockets.len() != descriptors.len() {
            return Err(wrong());
        }
        let owner = |(name, reactor): (String, usize)| Some((name.parse::<IscsiName>().ok()?, reactor));
        let owners = welcome.owners.into_iter().map(owner).collect::<Option<_>>().ok_or_else(wrong)?;
        let mut new = Self {
            channel,
            version: welcome.version,
            portals: BTreeMap::new(),
            activated: Vec::new(),
            admin: None,
            http: None,
            media: HandedOverFiles::default(),
            reactors: welcome.reactors,
            owners,
            interfaces: welcome.interfaces.into_iter().map(|(port, name)| (EtherPort(port), name)).collect(),
            is_committed: false,
        };
        let (mut admin, mut lock) = (None, None);
        for (socket, descriptor) in welcome.sockets.into_iter().zip(descriptors) {
            match socket {
                Socket::Portal(at) => drop(new.portals.insert(at, descriptor.into())),
                Socket::Activated(name) => new.activated.push((descriptor.into(), name)),
                Socket::Admin => admin = Some(descriptor),
                Socket::AdminLock => lock = Some(descriptor),
                Socket::Http => new.http = Some(descriptor.into()),
                Socket::Medium => new.media.add(descriptor.into())?,
            }
        }
        new.admin = admin.zip(lock).map(|(admin, lock)| [admin, lock]);
        Ok(new)
    }

    /// Returns the reactor of each target, if this process has as many reactors as the one that serves.
    pub(in crate::serve) fn placement(&self, count: usize) -> Result<Placement, ServeError> {
        if self.reactors == count {
            return Ok(Placement { targets: self.owners.clone(), ..Placement::default() });
        }
        let why = format!("the process that serves has {} reactors, and this one has {count}", self.reactors);
        Err(ServeError::Failed(why))
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
        let (bytes, sockets) = self.channel.receive_bytes(DOCUMENT_MAX).map_err(failed)?;
        let bytes = Zeroizing::new(bytes);
        let document = Document::decode(&bytes).map_err(|error| ServeError::Failed(error.to_string()))?;
        Ok(Sessions { document, sockets })
    }

    /// Resumes the sessions in parked reactors, and waits until they are ours.
    ///
    /// # Errors
    /// The sessions do not fit, or the process that serves goes on.
    pub(in crate::serve) fn take_over(
        &mut self,
        sessions: Sessions,
        reactors: &[ReactorThread],
        runtime: &RuntimeConfig,
    ) -> Result<(), ServeError> {
        resume(sessions, reactors, runtime).map_err(ServeError::Failed)?;
        let failed = |error| lost("committed", &error);
        self.channel.send(&Answer::Ready, &[], MESSAGE_MAX).map_err(failed)?;
        let _: (Commit, _) = self.channel.receive(MESSAGE_MAX).map_err(failed)?;
        self.is_committed = true;
        Ok(())
    }

    /// Says that this process serves.
    pub(in crate::serve) fn serving(&self) {
        // The other process ends in any case.
        let _ = self.channel.send(&Answer::Serving, &[], MESSAGE_MAX);
    }

    /// Tells the process that serves why this one does not take over.
    pub(in crate::serve) fn fail(&self, why: &ServeError) {
        if !self.is_committed {
            let _ = self.channel.send(&Answer::Failed(why.to_string()), &[], MESSAGE_MAX);
        }
    }
}

/// Resumes the sessions of every reactor.
fn resume(sessions: Sessions, reactors: &[ReactorThread], runtime: &RuntimeConfig) -> Result<(), String> {
    let Sessions { document, sockets } = sessions;
    if document.reactors.len() != reactors.len() {
        return Err(format!(
            "{} reactors serve, and this process has {}",
            document.reactors.len(),
            reactors.len()
        ));
    }
    let mut sockets = sockets.into_iter();
    let mut resumed = Vec::new();
    for (running, ReactorState { shard, connections }) in reactors.iter().zip(document.reactors) {
        let counts: Vec<usize> = connections.iter().map(Vec::len).collect();
        let adopt = |at: usize| {
            let (portal, _) = runtime.portals.get(at).ok_or("a connection has an unknown portal")?;
            let socket = sockets.next().ok_or("the socket of a connection is missing")?;
            let (local, peer, socket) = addresses(socket)
                .map_err(|error| format!("a connection was lost meanwhile: {}", crate::os_error(&error)))?;
            Ok(Adoption { socket, portal: *portal, local, peer, bytes: Vec::new() })
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

fn addresses(socket: OwnedFd) -> io::Result<(SocketAddr, SocketAddr, OwnedFd)> {
    let stream = TcpStream::from(socket);
    Ok((stream.local_addr()?, stream.peer_addr()?, stream.into()))
}

/// Describes that the process that serves did not do what it was to do next.
fn lost(step: &str, error: &io::Error) -> ServeError {
    ServeError::Failed(format!(
        "the process that serves has not {step}, so this one ends: {}",
        crate::os_error(error)
    ))
}
