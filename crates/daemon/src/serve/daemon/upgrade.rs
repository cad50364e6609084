//! Live upgrade: this process serves until another one has taken over, see [`crate::serve::upgrade`].

mod freeze;
mod obstacles;
mod process;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zeroize::Zeroizing;

use super::Daemon;
use crate::admin::api::ErrorKind;
use crate::admin::upgrade_api::{UpgradeRequest, Upgraded};
use crate::config::{Config, plan};
use crate::serve::admin_api::json;
use crate::serve::audit::AuditEntry;
use crate::serve::changes::{failure, on_one_line};
use crate::serve::daemon_event::{DaemonEvent, UpgradeOrder};
use crate::serve::reactor_shard::handover::{ExportedReactor, Obstacle};
use crate::serve::router::Router;
use crate::serve::service_manager;
use crate::serve::upgrade::document::{Document, ReactorState};
use crate::serve::upgrade::messages::{Answer, Commit, Socket, Welcome};
use crate::serve::upgrade::{MESSAGE_MAX, PREPARE_MAX};
use freeze::{Frozen, ask};
use obstacles::unmovable_medium;
use process::Process;

/// How long the daemon may try to find a moment in which no session has anything under way, unless the client
/// says so.
const WAIT: Duration = Duration::from_secs(10);

/// How long the sessions may take to become idle, so that no initiator waits for half a second.
const IDLE_MAX: Duration = Duration::from_millis(400);

/// How long the sessions are served between two attempts.
const REST: Duration = Duration::from_millis(500);

/// How long the other process may take to resume the sessions. The initiators wait meanwhile; they lose
/// nothing if it takes longer than usual.
const RESUME_MAX: Duration = Duration::from_secs(2);

/// How long the answer to the client may take to be sent.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The sessions of all reactors, while nothing is under way.
struct Exported {
    document: Zeroizing<Vec<u8>>,
    sockets: Vec<OwnedFd>,
    sessions: usize,
}

impl Daemon {
    /// Replaces this daemon by another process. Returns whether that process serves now; then this one must
    /// end without touching anything.
    pub(super) fn upgrade(&mut self, order: UpgradeOrder) -> bool {
        let UpgradeOrder { request, peer, reply, answered } = order;
        let result = self.try_upgrade(&request);
        let (outcome, message) = match &result {
            Ok(upgraded) => ("done", told(upgraded)),
            Err(why) => ("refused", why.clone()),
        };
        // Each entry is appended in one call, so those of the other process stay whole.
        let entry = AuditEntry {
            peer: Some(&peer),
            action: "upgrade",
            result: outcome,
            message: &message,
            ..AuditEntry::default()
        };
        self.shared.audit.record(&entry);
        let is_done = result.is_ok();
        if is_done {
            crate::info!("upgrade: {message}");
        } else {
            crate::error!("upgrade: {message}");
        }
        // A client that has gone needs no answer.
        let _ = reply.send(match result {
            Ok(upgraded) => json(&upgraded),
            Err(why) => Err(failure(ErrorKind::Refused, why)),
        });
        if is_done {
            let _ = answered.recv_timeout(ANSWER_MAX);
        }
        is_done
    }

    fn try_upgrade(&mut self, request: &UpgradeRequest) -> Result<Upgraded, String> {
        let shared = Arc::clone(&self.shared);
        let _closed =
            shared.changes.close().ok_or("a client is changing something; try again when it has ended")?;
        let revision = self.check_configuration()?;
        self.check_obstacles()?;
        let binary = request.binary.as_ref().map_or_else(|| self.program.clone(), PathBuf::from);
        let mut process = Process::start(binary)?;
        let hello = process.hello()?;
        let (welcome, sockets) = self.welcome().map_err(|error| crate::os_error(&error))?;
        process.send(&welcome, &sockets)?;
        drop(sockets);
        let prepared = process.answer("prepares to take over", PREPARE_MAX)?;
        if !matches!(&prepared, Answer::Prepared(read) if *read == revision) {
            return Err("the configuration file was changed meanwhile; try again".to_owned());
        }
        let wait = request.wait_s.map_or(WAIT, |seconds| Duration::from_secs(seconds.into()));
        let (began, frozen, exported, attempts) = self.freeze_within(wait)?;
        let connections = exported.sockets.len();
        process.send_bytes(&exported.document, &exported.sockets)?;
        drop(exported.sockets);
        match process.answer("takes over the sessions", RESUME_MAX)? {
            Answer::Ready => {}
            other => return Err(format!("the other process says {other:?} instead of taking over")),
        }
        self.refuse_to_stop()?;
        service_manager::main_process(process.id());
        if let Err(why) = process.send(&Commit, &[]) {
            service_manager::main_process(std::process::id());
            return Err(why);
        }
        frozen.leave();
        let serving = process.answer("serves", MESSAGE_MAX);
        let pid = process.leave();
        if let Err(why) = serving {
            // Only the other process has the sessions now.
            crate::error!("upgrade: {why}");
        }
        Ok(Upgraded {
            version: hello.version,
            pid,
            sessions: count(exported.sessions),
            connections: count(connections),
            pause_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            attempts,
        })
    }

    /// Checks that the other process will read the configuration that runs; returns its revision.
    fn check_configuration(&self) -> Result<Option<String>, String> {
        let loaded = Config::load(&self.flags, &self.environment).map_err(|report| {
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
        let obstacles = ask(&self.reactors, |member, _| member.obstacle())?;
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
        if let Some(http) = &self.http_socket {
            add(Socket::Http, http.try_clone()?.into());
        }
        let files = ask(&self.reactors, |member, _| member.media_files()).map_err(io::Error::other)?;
        for file in files.into_iter().collect::<io::Result<Vec<Vec<File>>>>()?.into_iter().flatten() {
            add(Socket::Medium, file.into());
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

    /// Freezes the sessions until a moment is found in which nothing is under way. Returns when the command
    /// windows stopped, the frozen reactors, what they hold, and the number of attempts.
    fn freeze_within(&mut self, wait: Duration) -> Result<(Instant, Frozen, Exported, u32), String> {
        let deadline = Instant::now() + wait;
        let mut attempts = 1;
        loop {
            let Obstacle { sentence: why, can_end } = match self.freeze() {
                Ok((began, frozen, exported)) => return Ok((began, frozen, exported, attempts)),
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
            attempts += 1;
        }
    }

    fn freeze(&mut self) -> Result<(Instant, Frozen, Exported), Obstacle> {
        let bound = ask(&self.reactors, |member, _| member.binding_changes())?;
        self.store_bindings();
        if self.store_bindings_at.is_some() {
            return Err("the record of which disks hosts have used cannot be stored".into());
        }
        let began = Instant::now();
        let frozen = Frozen::begin(&self.reactors, self.router.as_ref().map(Router::pauser));
        let deadline = began + IDLE_MAX;
        frozen.wait_until_idle(deadline)?;
        let exported = frozen.park(deadline)?;
        if ask(&self.reactors, |member, _| member.binding_changes())? != bound {
            return Err("an initiator logged in meanwhile".into());
        }
        let exported = self.encode(exported, &frozen, deadline)?;
        Ok((began, frozen, exported))
    }

    /// Makes the document of what the reactors hold.
    fn encode(
        &self,
        reactors: Vec<ExportedReactor>,
        frozen: &Frozen,
        deadline: Instant,
    ) -> Result<Exported, String> {
        let portals: Vec<_> = self.runtime.portals.iter().map(|(id, _)| *id).collect();
        let (mut document, mut sockets, mut sessions) = (Document { reactors: Vec::new() }, Vec::new(), 0);
        for (at, ExportedReactor { shard, connections }) in reactors.into_iter().enumerate() {
            sessions += connections.len();
            let conns = connections.iter().flatten().map(|(conn, _)| *conn).collect();
            sockets.extend(frozen.sockets(at, conns, deadline)?);
            let index = |portal| {
                portals.iter().position(|known| *known == portal).ok_or(
                    "a session uses a portal that was removed from the configuration; end it with `targe session drop`",
                )
            };
            let places = connections
                .into_iter()
                .map(|conns| conns.into_iter().map(|(_, portal)| index(portal)).collect())
                .collect::<Result<_, &str>>()?;
            document.reactors.push(ReactorState { shard, connections: places });
        }
        let document = Zeroizing::new(document.encode().map_err(|error| error.to_string())?);
        Ok(Exported { document, sockets, sessions })
    }

    /// Refuses to go on if the daemon is to stop. The main thread handles what it was told afterwards.
    fn refuse_to_stop(&self) -> Result<(), String> {
        let waiting: Vec<DaemonEvent> = self.events.try_iter().collect();
        let stops = |event: &DaemonEvent| {
            matches!(event, DaemonEvent::Stop | DaemonEvent::ReactorEnded(_) | DaemonEvent::ThreadPanicked)
        };
        let is_stopping = waiting.iter().any(stops);
        for event in waiting {
            // The main thread, which is this one, receives until the daemon ends.
            let _ = self.shared.events.send(event);
        }
        if is_stopping { Err("targe is stopping".to_owned()) } else { Ok(()) }
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
