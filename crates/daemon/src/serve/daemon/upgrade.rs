//! Live upgrade: this process serves until another one has taken over, see [`crate::serve::upgrade`].

mod freeze;
mod memory_copy;
mod obstacles;
mod process;
mod program;

use crate::mailbox::Sender;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backends::sg::MovedSg;
use base::state_machine::PortalId;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use store::api::DeviceInfo;
use tls::MovingRelay;
use zeroize::Zeroizing;

use super::Daemon;
use super::silent::NO_ANSWER;
use crate::admin::api::{ErrorKind, Failure};
use crate::admin::change::Peer;
use crate::admin::upgrade_api::{UpgradeRequest, Upgraded};
use crate::answers;
use crate::config::{Config, plan};
use crate::serve::admin_api::json;
use crate::serve::audit::AuditEntry;
use crate::serve::bindings::STORE_DELAY;
use crate::serve::changes::{failure, on_one_line};
use crate::serve::daemon_event::{DaemonEvent, UpgradeOrder};
use crate::serve::media::handed_over::{MovedCartridge, MovedMedium};
use crate::serve::media::handed_over::{MovingExport, MovingMedium, MovingMemory, Obstacle};
use crate::serve::reactor_shard::handover::ExportedReactor;
use crate::serve::router::Router;
use crate::serve::service_manager;
use crate::serve::tls_portals::tls_of;
use crate::serve::upgrade::PREPARE_MAX;
use crate::serve::upgrade::document::{
    CartridgeState, DeviceState, Document, ExportState, MemoryState, ReactorState,
};
use crate::serve::upgrade::messages::{Answer, Socket, Welcome};
use crate::serve::upgrade::relays;
use crate::serve::{Ended, ServeError, raise_file_limit_for_upgrade};
use freeze::{Acceptors, Frozen, Unaccepting, ask};
use memory_copy::MemoryCopy;
use obstacles::unmovable_medium;
use process::{Outcome, Process};

/// How long the daemon may try to find a moment in which no session has anything under way, unless the client
/// says so.
const WAIT: Duration = Duration::from_secs(10);

/// How long the sessions are served between two attempts.
const REST: Duration = Duration::from_millis(500);

/// How long memory may be copied while no initiator can log in.
const LAST_COPY_MAX: Duration = Duration::from_millis(200);

/// How many processes may be given the sessions and be late with them, one after the other.
const LATE_MAX: u32 = 3;

/// How long the answer to the client may take to be sent.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The sessions of all reactors, while nothing is under way.
struct Exported {
    document: Zeroizing<Vec<u8>>,
    /// The connections, then the files of cartridges, the connections to NBD servers, the locks of devices,
    /// the files of memory, and both sockets of each relay.
    sockets: Vec<OwnedFd>,
    sessions: usize,
    connections: usize,
}

/// Why an upgrade did not succeed.
enum Setback {
    /// This process serves the sessions.
    Kept(String),
    /// This process has given the sessions away, and the other one does not say that it serves them. Whether
    /// it has ended.
    Lost(String, bool),
}

impl From<String> for Setback {
    fn from(why: String) -> Self {
        Self::Kept(why)
    }
}

impl From<&str> for Setback {
    fn from(why: &str) -> Self {
        why.to_owned().into()
    }
}

impl Daemon {
    /// Replaces this daemon by another process. Returns how this one ended, if it did; then it must not touch
    /// anything that it served.
    pub(super) fn upgrade(&mut self, order: UpgradeOrder) -> Option<Result<Ended, ServeError>> {
        let UpgradeOrder { request, peer, reply, answered } = order;
        let shared = Arc::clone(&self.shared);
        let result = match shared.changes.close() {
            None => Err("a client is changing something; try again when it has ended".into()),
            Some(closed) => {
                let result = self.try_upgrade(&request, &peer);
                if !matches!(result, Err(Setback::Kept(_))) {
                    // Clients that this process still has change nothing any more.
                    std::mem::forget(closed);
                }
                result
            }
        };
        let (outcome, message, ended) = match &result {
            Ok(upgraded) => ("done", told(upgraded), Some(Ok(Ended::HandedOver))),
            Err(Setback::Kept(why)) => ("refused", why.clone(), None),
            Err(Setback::Lost(why, true)) => {
                ("lost", why.clone(), Some(Err(ServeError::Failed(why.clone()))))
            }
            Err(Setback::Lost(why, false)) => ("lost", why.clone(), Some(Ok(Ended::HandedOver))),
        };
        let entry = AuditEntry {
            peer: Some(&peer),
            action: "upgrade",
            result: outcome,
            message: &message,
            ..AuditEntry::default()
        };
        if ended.is_some() {
            shared.audit.record_last(&entry);
        } else {
            shared.audit.record(&entry);
        }
        if result.is_ok() {
            crate::info!("upgrade: {message}");
        } else {
            crate::error!("upgrade: {message}");
        }
        let successor = result.as_ref().ok().map(|upgraded| upgraded.pid);
        // A client that has gone needs no answer.
        let _ = reply.send(match result {
            Ok(upgraded) => json(&upgraded),
            Err(Setback::Kept(why) | Setback::Lost(why, _)) => Err(failure(ErrorKind::Refused, why)),
        });
        if ended.is_some() {
            self.forward_events(successor);
            let _ = answered.recv_timeout(ANSWER_MAX);
            self.forward_events(successor);
        }
        ended
    }

    fn try_upgrade(&mut self, request: &UpgradeRequest, peer: &Peer) -> Result<Upgraded, Setback> {
        program::check_process_id(std::process::id())?;
        let binary = request.binary.as_ref().map_or_else(|| self.program.clone(), PathBuf::from);
        let binary = program::resolve(&binary, peer)?;
        let revision = self.check_configuration()?;
        self.check_obstacles()?;
        // Each connection has two descriptors while it moves.
        raise_file_limit_for_upgrade(&self.runtime.config);
        let wait = request.wait_s.map_or(WAIT, |seconds| Duration::from_secs(seconds.into()));
        let mut memory = MemoryCopy::begin(&self.reactors)?;
        let (mut until, mut attempts, mut late) = (None, 0, 0);
        loop {
            let (mut process, version) = self.start_successor(binary.clone(), revision.as_deref())?;
            memory.catch_up(None, &mut || self.attend()).map_err(|obstacle| obstacle.sentence)?;
            let until = *until.get_or_insert_with(|| Instant::now() + wait);
            let (frozen, exported) = self.freeze_until(until, &mut attempts, &mut memory)?;
            if let Err(refusal) = process.give(&exported.document, &exported.sockets, frozen.deadline()) {
                drop(frozen);
                let is_late = refusal.is_late();
                let why = process.explain(refusal);
                late += 1;
                if is_late && late < LATE_MAX && Instant::now() < until {
                    crate::debug!("upgrade: attempt {attempts}: {why}");
                    continue;
                }
                return Err(why.into());
            }
            let (sessions, connections) = (exported.sessions, exported.connections);
            drop(exported);
            let began = frozen.began();
            let pid = self.commit_upgrade(&mut process, frozen)?;
            memory.leave();
            return Ok(Upgraded {
                version,
                pid,
                sessions: count(sessions),
                connections: count(connections),
                pause_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
                attempts,
            });
        }
    }

    /// Starts the other process, and waits until it has opened everything. Returns its release, too.
    fn start_successor(
        &mut self,
        binary: PathBuf,
        revision: Option<&str>,
    ) -> Result<(Process, String), String> {
        let mut process = Process::start(binary)?;
        let version = process.hello(&mut || self.attend())?;
        let cannot_pass =
            |error: io::Error| format!("cannot pass sockets and files on: {}", crate::os_error(&error));
        let (welcome, sockets) = self.welcome().map_err(cannot_pass)?;
        process.send(&welcome, &sockets)?;
        drop(sockets);
        let prepared = process.answer("prepares to take over", PREPARE_MAX, &mut || self.attend())?;
        if !matches!(&prepared, Answer::Prepared(read) if read.as_deref() == revision) {
            return Err("the configuration file was changed meanwhile; try again".to_owned());
        }
        Ok((process, version))
    }

    /// Lets the other process serve the sessions that it has resumed; returns its process ID. From then on
    /// this one does nothing with them.
    fn commit_upgrade(&mut self, process: &mut Process, frozen: Frozen) -> Result<u32, Setback> {
        if self.is_stopping() {
            return Err("targe is stopping".into());
        }
        // Later clients are those of the other process.
        self.admin.pause(true);
        let lost = match process.commit() {
            Outcome::Served => None,
            Outcome::Kept(refusal) => {
                self.admin.pause(false);
                drop(frozen);
                return Err(process.explain(refusal).into());
            }
            Outcome::Lost(refusal) => Some(refusal),
        };
        frozen.leave();
        // Its clients end with the thread.
        drop(self.http.take());
        let lost = lost.map(|refusal| (process.explain(refusal), process.has_ended()));
        let pid = process.release();
        if !matches!(lost, Some((_, true))) {
            // Until here the service manager heeds this process, which could have gone on to serve.
            service_manager::main_process(pid, &self.status());
        }
        match lost {
            None => Ok(pid),
            Some((why, has_ended)) => {
                let why = format!("{why}; this process has given it the sessions, and ends");
                Err(Setback::Lost(why, has_ended))
            }
        }
    }

    /// Checks that the other process will read the configuration that runs; returns its revision.
    fn check_configuration(&self) -> Result<Option<String>, String> {
        let flags = self.flags.clone();
        let read = self.read_config(move |environment| Config::load(&flags, &environment));
        let (loaded, _) = read.ok_or(NO_ANSWER)?;
        let loaded = loaded.map_err(|report| {
            format!("the configuration has mistakes, so another process cannot take over:\n{report}")
        })?;
        let changes = plan(&self.runtime.config, &loaded.config);
        if let Some(first) = changes.first() {
            let more = changes.len() - 1;
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            return Err(format!(
                "the configuration file is not what runs: apply or undo what differs ({}{more}), or restart targe",
                on_one_line(first)
            ));
        }
        Ok(loaded.revision.map(|revision| revision.to_string()))
    }

    /// Checks for what no wait can end.
    fn check_obstacles(&self) -> Result<(), String> {
        if let Some(why) = unmovable_medium(&self.runtime.config) {
            return Err(why);
        }
        if let Some(why) = self.shared.late.obstacle() {
            return Err(why);
        }
        // Commands wait for a server that is away, so that no moment would be found.
        let obstacles = ask(&self.reactors, |member, _| {
            let lasting = member.obstacle().filter(|obstacle| !obstacle.can_end);
            lasting.map(|obstacle| obstacle.sentence).or_else(|| member.away())
        })?;
        obstacles.into_iter().flatten().next().map_or(Ok(()), Err)
    }

    /// Returns what the other process needs to prepare.
    fn welcome(&self) -> io::Result<(Welcome, Vec<OwnedFd>)> {
        let (mut sockets, mut descriptors) = (Vec::new(), Vec::new());
        let mut add = |socket, descriptor| {
            sockets.push(socket);
            descriptors.push(descriptor);
        };
        for (at, (id, _)) in self.runtime.portals.iter().enumerate() {
            if let Some(listener) = self.portal_sockets.get(id) {
                add(Socket::Portal(at), listener.try_clone()?.into());
            }
        }
        for (listener, name) in self.inherited.sockets() {
            add(Socket::Activated(name.to_owned()), listener.try_clone()?.into());
        }
        let [admin, lock] = self.admin.descriptors()?;
        add(Socket::Admin, admin);
        add(Socket::AdminLock, lock);
        if let Some(lock) = self.state.lock() {
            add(Socket::StateLock, lock.descriptor()?);
        }
        if let Some(http) = &self.http_socket {
            add(Socket::Http, http.try_clone()?.into());
        }
        let files = ask(&self.reactors, |member, _| member.media_files()).map_err(io::Error::other)?;
        let files = files.into_iter().collect::<io::Result<Vec<Vec<(MovedMedium, File)>>>>()?;
        for (medium, file) in files.into_iter().flatten() {
            add(medium.into(), file.into());
        }
        let owners = self.runtime.owners().into_iter();
        let interfaces = self.runtime.interfaces.iter();
        let welcome = Welcome {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            portals: self.runtime.config.portals.iter().map(|portal| portal.listen).collect(),
            sockets,
            reactors: self.reactors.len(),
            owners: owners.map(|(name, reactor)| (name.to_string(), reactor)).collect(),
            interfaces: interfaces.map(|(port, name)| (port.0, name.clone())).collect(),
        };
        Ok((welcome, descriptors))
    }

    /// Freezes the sessions until a moment is found in which nothing is under way, and counts the attempts.
    fn freeze_until(
        &mut self,
        deadline: Instant,
        attempts: &mut u32,
        memory: &mut MemoryCopy,
    ) -> Result<(Frozen, Exported), String> {
        loop {
            // Later, while initiators cannot log in, little is left to be copied.
            let caught_up = memory.catch_up(Some(deadline), &mut || self.attend());
            caught_up.map_err(|obstacle| obstacle.sentence)?;
            self.attend()?;
            *attempts += 1;
            let Obstacle { sentence: why, can_end } = match self.freeze(memory) {
                Ok(frozen) => return Ok(frozen),
                Err(why) => why,
            };
            if !can_end {
                return Err(format!("{why}; nothing was changed"));
            }
            if Instant::now() + REST >= deadline {
                return Err(format!(
                    "no moment was found in which the sessions had nothing under way: {why}; nothing was changed"
                ));
            }
            crate::debug!("upgrade: attempt {attempts}: {why}");
            std::thread::sleep(REST);
        }
    }

    fn freeze(&mut self, memory: &mut MemoryCopy) -> Result<(Frozen, Exported), Obstacle> {
        let cannot_pause = |error: io::Error| Obstacle {
            sentence: format!("cannot pause the TLS portals: {}", crate::os_error(&error)),
            can_end: false,
        };
        let tls = self.tls_portals.pausers().map_err(cannot_pause)?;
        let acceptors = Acceptors { router: self.router.as_ref().map(Router::pauser), tls };
        let unaccepting = Unaccepting::begin(&self.reactors, acceptors);
        unaccepting.wait_for_logins()?;
        let bound = ask(&self.reactors, |member, _| member.binding_changes())?;
        self.store_bindings();
        if self.store_bindings_at.is_some() {
            return Err("the record of which disks hosts have used cannot be stored".into());
        }
        self.guesses.store(&self.state, answers::ANSWER_MAX);
        memory.catch_up(Some(Instant::now() + LAST_COPY_MAX), &mut || self.attend())?;
        let mut frozen = Frozen::begin(unaccepting);
        frozen.wait_until_idle()?;
        let exported = frozen.park()?;
        if frozen.ask(|member, _| member.binding_changes())? != bound {
            return Err("an initiator logged in meanwhile".into());
        }
        let relays = frozen.pause_relays(&self.tls_portals)?;
        let exported = self.encode((exported, relays), &frozen)?;
        Ok((frozen, exported))
    }

    /// Makes the document of what the reactors hold.
    fn encode(
        &self,
        (reactors, relays): (Vec<ExportedReactor>, Vec<(PortalId, MovingRelay)>),
        frozen: &Frozen,
    ) -> Result<Exported, Obstacle> {
        let lasting = |sentence: String| Obstacle { sentence, can_end: false };
        let portals: Vec<_> = self.runtime.portals.iter().map(|(id, _)| *id).collect();
        let mut document = Document {
            reactors: Vec::new(),
            cartridges: Vec::new(),
            exports: Vec::new(),
            devices: Vec::new(),
            memories: Vec::new(),
            relays: Vec::new(),
        };
        let (mut sockets, mut files, mut servers) = <(Vec<_>, Vec<_>, Vec<_>)>::default();
        let (mut locks, mut memory_files) = <(Vec<_>, Vec<_>)>::default();
        let mut sessions = 0;
        for (at, exported) in reactors.into_iter().enumerate() {
            let ExportedReactor { shard, connections, media } = exported;
            sessions += connections.len();
            let arrived = || connections.iter().flatten();
            let conns = arrived().map(|(conn, _)| *conn).collect();
            let is_tls = |portal| tls_of(&self.runtime, portal).is_some();
            let tls_addresses = arrived()
                .filter(|(_, arrival)| is_tls(arrival.portal))
                .map(|(_, arrival)| (arrival.local, arrival.peer))
                .collect();
            sockets.extend(frozen.sockets(at, conns)?);
            let index = |portal| {
                portals.iter().position(|known| *known == portal).ok_or(
                    "a session uses a portal that was removed from the configuration; end it with `targe session drop`",
                )
            };
            let places = connections
                .into_iter()
                .map(|conns| conns.into_iter().map(|(_, arrival)| index(arrival.portal)).collect())
                .collect::<Result<_, &str>>()
                .map_err(|why| lasting(why.to_owned()))?;
            document.reactors.push(ReactorState { shard, connections: places, tls_addresses });
            let mut conns = Vec::new();
            for medium in media {
                match medium {
                    MovingMedium::Cartridge(MovedCartridge {
                        drive,
                        path,
                        read_only,
                        files: of_cartridge,
                    }) => {
                        document.cartridges.push(CartridgeState { drive, path, read_only });
                        files.extend(of_cartridge.map(OwnedFd::from));
                    }
                    MovingMedium::Export(MovingExport { unit, info, conn }) => {
                        document.exports.push(ExportState::new(unit, &info, conn.is_some()));
                        conns.extend(conn);
                    }
                    MovingMedium::Device(unit, MovedSg { info, names, locked: lock }) => {
                        let DeviceInfo { kind, block_len, transfer_max } = info;
                        let is_locked = lock.is_some();
                        let state = DeviceState { unit, kind, block_len, transfer_max, names, is_locked };
                        document.devices.push(state);
                        locks.extend(lock.map(OwnedFd::from));
                    }
                    MovingMedium::Memory(unit, MovingMemory { len, chunks, file, rest }) => {
                        rest.copy().map_err(|error| memory_copy::failed(&error))?;
                        document.memories.push(MemoryState { unit, len, chunks });
                        memory_files.push(OwnedFd::from(file));
                    }
                }
            }
            servers.extend(frozen.sockets(at, conns)?);
        }
        let mut ends = Vec::new();
        // Without a session they end with this process.
        if document.reactors.iter().any(|reactor| !reactor.tls_addresses.is_empty()) {
            for (portal, MovingRelay { state, network, local }) in relays {
                // The sessions of a portal that was removed keep the upgrade from getting here.
                let Some(at) = portals.iter().position(|known| *known == portal) else { continue };
                document.relays.push(relays::to_document(at, state));
                ends.extend([network, local]);
            }
        }
        let document = document.encode().map_err(|error| lasting(error.to_string()))?;
        let document = Zeroizing::new(document);
        let connections = sockets.len();
        sockets.extend(files);
        sockets.extend(servers);
        sockets.extend(locks);
        sockets.extend(memory_files);
        sockets.extend(ends);
        Ok(Exported { document, sockets, sessions, connections })
    }

    /// Does what cannot wait for the end of an upgrade.
    ///
    /// # Errors
    /// The daemon is to stop.
    fn attend(&mut self) -> Result<(), String> {
        if self.is_stopping() {
            return Err("targe is stopping".to_owned());
        }
        if self.store_bindings_at.is_some_and(|at| at <= Instant::now()) {
            self.store_bindings();
        }
        Ok(())
    }

    /// Returns whether the daemon is to stop. The main thread handles what it was told afterwards.
    fn is_stopping(&mut self) -> bool {
        let waiting: Vec<DaemonEvent> = self.events.try_iter().collect();
        let mut is_stopping = false;
        for event in waiting {
            match event {
                DaemonEvent::BindingsChanged => {
                    self.store_bindings_at.get_or_insert_with(|| Instant::now() + STORE_DELAY);
                    continue;
                }
                DaemonEvent::Stop | DaemonEvent::ReactorEnded(_) | DaemonEvent::ThreadPanicked => {
                    is_stopping = true;
                }
                _ => {}
            }
            // The main thread, which is this one, receives until the daemon ends.
            let _ = self.shared.events.send(event);
        }
        is_stopping
    }

    /// Passes on the signals that came too late for this process, and refuses what clients asked of it.
    fn forward_events(&self, successor: Option<u32>) {
        let mut is_answered = false;
        let mut refuse = |reply: &Sender<Result<Value, Failure>>| {
            let why = "another process has taken over meanwhile; try again";
            // A client that has gone needs no answer.
            is_answered |= reply.send(Err(failure(ErrorKind::Unavailable, why))).is_ok();
        };
        for event in self.events.try_iter() {
            match event {
                DaemonEvent::Stop => signal(successor, Signal::TERM),
                DaemonEvent::Reload(None) => signal(successor, Signal::HUP),
                DaemonEvent::Reload(Some(request)) => refuse(&request.reply),
                DaemonEvent::Change(request) => refuse(&request.reply),
                DaemonEvent::Forget(request) => refuse(&request.reply),
                DaemonEvent::Upgrade(order) => refuse(&order.reply),
                _ => {}
            }
        }
        if is_answered {
            self.admin.wait_for_responses(ANSWER_MAX);
        }
    }
}

fn signal(process: Option<u32>, signal: Signal) {
    let process = process.and_then(|process| Pid::from_raw(i32::try_from(process).ok()?));
    if let Some(process) = process {
        // It fails if the process has ended.
        let _ = kill_process(process, signal);
    }
}

fn told(upgraded: &Upgraded) -> String {
    let Upgraded { version, pid, sessions, connections, pause_ms, attempts } = upgraded;
    format!(
        "targe {version} (process {pid}) has taken over {sessions} sessions with {connections} connections; the \
         initiators waited for {pause_ms} ms, in attempt {attempts}"
    )
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
