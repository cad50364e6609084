//! The main thread of the daemon: opens everything, starts the reactors, handles signals, reloads, and stops
//! in order.

mod bounded;
mod change;
mod first_media;
mod late;
mod nexus_bindings;
mod reload;
mod silent;
mod sockets;
mod state_directory;
mod units;
mod upgrade;

use crate::mailbox::{Receiver, RecvTimeoutError, Sender, channel};
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use target::units::UnitId;

use base::ether::EtherPort;
use base::state_machine::PortalId;
use drivers::ether::{PortConfig, PortSocket, Steering};
use hyperscsi::frame::SID_AT;
use tls::MovedRelay;

use super::activation::InheritedSockets;
use super::admin_api::Shared;
use super::bindings::{self, BindingStore, ClaimedBindings, RETRY_DELAY, STORE_DELAY};
use super::daemon_event::DaemonEvent;
use super::disk_ids::DiskIds;
use super::guess_guard::{GuessGuard, GuessStore};
use super::late_media::LateMedia;
use super::media::FileRollback;
use super::media::disk::ComparedDisk;
use super::media_watch::MediaWatch;
use super::name_servers::NameServers;
use super::placement::Owners;
use super::reactor_shard::{NewUnit, ReactorShard, Reload};
use super::reactors::{self, ReactorSetup, ReactorThread, all_idle};
use super::router::{Deliver, Router};
use super::runtime_config::{IdAllocator, RuntimeConfig};
use super::service_manager::{self, Watchdog};
use super::start_watch::StartWatch;
use super::state::StateDir;
use super::state_writer::{self, StateThread, StateWriter};
use super::tls_portals::{TlsPortals, tls_of};
use super::upgrade::Succession;
use super::upgrade::successor::Sessions;
use super::{Ended, ServeError, Started, cartridge_losses, core_dumps, http_api, media, panics};
use crate::admin::server::Server;
use crate::answers::ANSWER_MAX;
use crate::config::{Config, Environment, Flags, Http, Loaded, Portal};
use crate::http::server::Server as HttpServer;
use bounded::WorkedOn;
use first_media::{FirstOpening, record_lengths};
use sockets::{Listening, Sockets};
use state_directory::{assign_ports, lock_state};
use units::{load_all_units, receive_media};

/// The time that sessions have to log out after the daemon asked them to. RFC 7143 §11.9.1 specifies whole
/// seconds.
const LOGOUT_WITHIN: Duration = Duration::from_secs(3);

/// How long a stop waits for sessions to end before it closes their connections.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// How long a reload waits until the medium of a removed disk is closed, if the disk is to be served again.
const CLOSE_WAIT: Duration = Duration::from_secs(5);

/// The polling interval while waiting for sessions to end or for media to be closed.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// How long a connection may take to accept the last bytes sent to it.
const CLOSE_MAX: Duration = Duration::from_millis(500);
/// How long the stop waits until the served files are durable, all together, and for the state directory.
const SYNC_MAX: Duration = Duration::from_secs(30);

/// A running daemon.
pub(super) struct Daemon {
    flags: Flags,
    environment: Environment,
    /// The program that runs.
    program: PathBuf,
    ids: IdAllocator,
    runtime: RuntimeConfig,
    state: StateDir,
    disks: DiskIds,
    bindings: BindingStore,
    /// When changed nexus bindings are to be stored.
    store_bindings_at: Option<Instant>,
    /// The limit on guesses of passwords and tokens.
    guesses: GuessStore,
    /// The reactor that served each target last.
    last_owners: Owners,
    reactors: Vec<ReactorThread>,
    /// Accepts connections for several reactors; a single reactor accepts them itself.
    router: Option<Router>,
    tls_portals: TlsPortals,
    /// Another descriptor of the listening socket of each portal, for a process that takes over.
    portal_sockets: BTreeMap<PortalId, TcpListener>,
    shared: Arc<Shared>,
    events: Receiver<DaemonEvent>,
    admin: Server,
    http: Option<HttpServer>,
    /// Another descriptor of the listening socket of the HTTP server.
    http_socket: Option<TcpListener>,
    media_watch: MediaWatch,
    /// The media that threads open or enlarge for a change.
    worked_on: WorkedOn,
    /// The drives whose pending discs are forgotten while a configuration is prepared.
    forgotten_discs: Vec<UnitId>,
    name_servers: NameServers,
    inherited: InheritedSockets,
    watchdog: Option<Watchdog>,
    /// Writes the state directory, and ends when the reactors have ended.
    state_thread: StateThread,
    /// Dropping this ends the thread of the media watch.
    _watch: Sender<()>,
}

/// An open Ethernet interface.
type Port = (EtherPort, PortSocket);

/// A listening portal.
type PortalListener = (TcpListener, PortalId);

/// How the daemon was called.
pub(super) struct Called {
    pub(super) flags: Flags,
    pub(super) environment: Environment,
    /// The program.
    pub(super) program: PathBuf,
}

impl Daemon {
    /// Opens everything and starts to serve, or takes over what another process serves.
    pub(super) fn start(
        Called { flags, environment, program }: Called,
        loaded: Loaded,
        occasions: (Sender<DaemonEvent>, Receiver<DaemonEvent>, &StartWatch),
        succession: &mut Option<Succession>,
    ) -> Result<Self, ServeError> {
        let config = Arc::new(loaded.config);
        core_dumps::prevent(&config);
        let step = occasions.2.step(&config.state_dir);
        let (state, mut sockets) = lock_state(&config, succession.as_mut())?;
        let mut numbers = IdAllocator::default();
        let Listening { clear, tls, addresses, portal_sockets } =
            sockets.listen(&config, numbers.portals(&config))?;
        let (count, owners) = units::place(&config, succession.as_ref())?;
        numbers.restore_interfaces(succession.as_ref().map_or(&[], |succession| &succession.interfaces));
        numbers.reactors = count;
        assign_ports(&mut numbers, &config, &state, succession.is_some())?;
        drop(step);
        let runtime = numbers.runtime_config(config, &addresses, &owners);
        let mut provisional = FileRollback::default();
        let (may_wait, late) = (flags.waits_for_media() && succession.is_none(), LateMedia::default());
        let (silent, events) = (loaded.report.silent(), &occasions.0);
        let first = FirstOpening { state: &state, late: &late, may_wait, silent, events };
        let handed_over = succession.as_mut().map(|succession| &mut succession.media);
        let mut media = first.open((&runtime, count), &mut provisional, handed_over)?;
        let revision = loaded.revision.map(|revision| revision.to_string());
        let mut sessions = succession.as_mut().map(|succession| succession.prepared(revision)).transpose()?;
        receive_media(&runtime, &mut media, &state, sessions.as_mut())?;
        let is_successor = sessions.is_some();
        let step = occasions.2.step(&runtime.config.state_dir);
        // The other process changes the files of the state directory until it has given up its sessions.
        let (mut disks, mut bindings) = (DiskIds::default(), BindingStore::load(&state)?);
        let guesses = GuessStore::load(&state, occasions.0.clone())?;
        let mut claimed = bindings.claim(&runtime, &numbers, &mut disks);
        bindings::sort_by_age(&mut claimed);
        let units = load_all_units(&runtime, media, (&state, &mut disks), is_successor)?;
        drop(step);
        let ports =
            (0..count).map(|index| open_ports(&runtime, index, &[])).collect::<Result<Vec<_>, _>>()?;
        let (state_writer, state_thread) = state_writer::start(state.clone()).map_err(ServeError::Thread)?;
        let media_watch = MediaWatch::default();
        let (reactors, router) = start_reactors(
            &runtime,
            (units, ports, claimed),
            clear,
            (&state_writer, &media_watch, guesses.guard()),
            (&occasions.0, sessions.is_some()),
        )?;
        let watch = media_watch.start().map_err(ServeError::Thread)?;
        let watchdog = Watchdog::start(&reactors).map_err(ServeError::Thread)?;
        let tls_handshakes = Arc::default();
        let mut tls_portals = TlsPortals::new(router.as_ref(), &reactors, Arc::clone(&tls_handshakes));
        let running = (&runtime, loaded.revision);
        let file = flags.config.as_ref().map(|file| environment.absolute(file));
        let mut name_servers = NameServers::default();
        let reports = name_servers.reports();
        let counted = (&*reactors, tls_handshakes);
        let mut shared = Shared::new(file, running, counted, occasions.0.clone(), state.clone(), reports);
        shared.late = late;
        let shared = Arc::new(shared);
        let Sockets { inherited, admin, http: http_socket, .. } = sockets;
        let mut admin = admin.prepare(Arc::clone(&shared) as Arc<_>)?;
        let given_up = succession.as_mut().zip(sessions);
        let relays = take_over_sessions(given_up, (&reactors, router.as_ref()), &runtime)?;
        // From here on nothing may end a process that has taken over: no other one has the sessions.
        provisional.commit();
        admin.begin();
        let opened = tls_portals.open(&runtime, tls).map_err(ServeError::Thread);
        unless_successor(is_successor, "accept TLS connections", opened)?;
        tls_portals.take_over(relays);
        let http =
            http_api::start(runtime.config.http.as_ref(), http_socket.as_ref(), &shared, guesses.guard());
        let http = unless_successor(is_successor, "serve HTTP", http)?.flatten();
        shared.serves_http_on(http.as_ref().map(HttpServer::address));
        record_lengths(&runtime, &shared.late, &state);
        name_servers.apply(&runtime);
        shared.late.start(&runtime, state.clone(), occasions.0).map_err(ServeError::Thread)?;
        Ok(Self {
            flags,
            environment,
            program,
            ids: numbers,
            last_owners: runtime.owners(),
            runtime,
            state,
            disks,
            bindings,
            store_bindings_at: None,
            guesses,
            forgotten_discs: Vec::new(),
            reactors,
            router,
            tls_portals,
            portal_sockets,
            shared,
            events: occasions.1,
            admin,
            http,
            http_socket,
            media_watch,
            worked_on: WorkedOn::default(),
            name_servers,
            inherited,
            watchdog,
            state_thread,
            _watch: watch,
        })
    }

    /// Returns what was started, for display to the user.
    pub(super) fn started(&self) -> Started {
        Started {
            config: (*self.runtime.config).clone(),
            listening: self.runtime.portals.iter().map(|(_, address)| *address).collect(),
            engine: self.reactors.first().map_or(String::new(), |one| one.facts.engine.to_string()),
            fallback: self.reactors.first().and_then(|one| one.facts.fallback.clone()),
            reactors: self.reactors.len(),
            admin_socket: self.admin.path().to_path_buf(),
            http: self.http.as_ref().map(HttpServer::address),
        }
    }

    /// Serves until an event stops the daemon, or the daemon cannot continue.
    pub(super) fn run(mut self) -> Result<Ended, ServeError> {
        // A reload drops files of media here, and a close can wait for a server of files that has gone.
        drivers::files::close_elsewhere();
        if let Some(watchdog) = &self.watchdog {
            watchdog.begin();
        }
        service_manager::ready(&self.status());
        loop {
            let left = |at: Option<Instant>| at.map(|at| at.saturating_duration_since(Instant::now()));
            if left(self.store_bindings_at) == Some(Duration::ZERO) {
                self.store_bindings();
                continue;
            }
            if left(self.guesses.due()) == Some(Duration::ZERO) {
                self.guesses.store(&self.state, ANSWER_MAX);
                continue;
            }
            let due = left(self.store_bindings_at.into_iter().chain(self.guesses.due()).min());
            // The thread that sends signals as events does not end before this thread.
            let event = match due {
                Some(due) => self.events.recv_timeout(due),
                None => self.events.recv().map_err(RecvTimeoutError::from),
            };
            match event {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(DaemonEvent::BindingsChanged) => {
                    self.store_bindings_at.get_or_insert_with(|| Instant::now() + STORE_DELAY);
                }
                Ok(DaemonEvent::GuessesChanged) => self.guesses.changed(),
                Ok(DaemonEvent::Reload(request)) => self.reload(request.as_deref()),
                Ok(DaemonEvent::Change(request)) => self.change(*request),
                Ok(DaemonEvent::Forget(request)) => self.forget_bindings(*request),
                Ok(DaemonEvent::Upgrade(order)) => {
                    if let Some(ended) = self.upgrade(*order) {
                        drop(self.watchdog.take());
                        // Another process owns everything else that dropping this would close or remove.
                        std::mem::forget(self);
                        return ended;
                    }
                }
                Ok(DaemonEvent::Stop) | Err(RecvTimeoutError::Disconnected) => return self.stop(),
                Ok(DaemonEvent::ReactorEnded(index)) => {
                    let sentence = format!("reactor {index} ended unexpectedly; this is a bug in targe");
                    crate::error!("{sentence}");
                    // The other reactors are stopped in order, so that their sessions log out.
                    self.stop()?;
                    return Err(ServeError::Failed(sentence));
                }
                Ok(DaemonEvent::ThreadPanicked) => return self.stop(),
                Ok(DaemonEvent::MediumArrived(arrived)) => self.serve_arrived(*arrived),
                // A reload removed it.
                Ok(DaemonEvent::UnitClosed(_) | DaemonEvent::ExportLost(_)) => {}
            }
        }
    }

    /// Returns what the service manager shows of a daemon that serves.
    fn status(&self) -> String {
        let Config { targets, units, portals, hyperscsi, .. } = &*self.runtime.config;
        let interfaces = hyperscsi.as_ref().map_or(0, |frames| frames.interfaces.len());
        let [targets, units, portals] = [targets.len(), units.len(), portals.len()];
        format!(
            "Serving: targets {targets}, disks {units}, portals {portals}, Ethernet interfaces {interfaces}"
        )
    }

    /// Stores the nexus bindings of all reactors.
    fn store_bindings(&mut self) {
        self.store_bindings_within(ANSWER_MAX);
    }
    fn store_bindings_within(&mut self, within: Duration) {
        let stored = self.bindings.store(&self.reactors, &self.ids, &self.disks, (&self.state, within));
        self.store_bindings_at = (!stored).then(|| Instant::now() + RETRY_DELAY);
    }

    /// Applies a configuration, and returns which units are not served, and why. `compared` has what was
    /// found of the disks that stay; with `None` no disk is measured again.
    fn apply(
        &mut self,
        runtime: RuntimeConfig,
        (fresh, ports): (Vec<Vec<NewUnit>>, Vec<Vec<Port>>),
        opened: Vec<PortalListener>,
        compared: Option<&BTreeMap<UnitId, ComparedDisk>>,
    ) -> Vec<(UnitId, String)> {
        if runtime.config.max_connections > self.runtime.config.max_connections {
            super::raise_file_limit(&runtime.config);
        }
        let shut = self.runtime.interfaces.iter().filter(|known| !runtime.interfaces.contains(known));
        let shut: Vec<EtherPort> = shut.map(|(port, _)| *port).collect();
        let mut claimed = self.claim_bindings(&runtime);
        // A disk that hosts have used may have been replaced by another one of its name.
        self.store_bindings_at.get_or_insert_with(|| Instant::now() + STORE_DELAY);
        let (done, ended) = channel();
        for (index, (running, (units, ports))) in
            self.reactors.iter().zip(fresh.into_iter().zip(ports)).enumerate()
        {
            if let Some(claimed) = claimed.remove(&index) {
                let restore = move |member: &mut ReactorShard, now| member.restore_bindings(now, claimed);
                let _ = running.handle.post(restore);
            }
            for port in &shut {
                let _ = running.handle.close_port(*port);
            }
            for (port, socket) in ports {
                let _ = running.handle.open_port(port, socket);
            }
            let _ = running.handle.limit(reactors::driver_limits(&runtime.config));
            let (runtime, compared) = (runtime.clone(), compared.cloned());
            let reload = Reload { runtime, fresh: units, compared, done: done.clone() };
            // If the reactor has ended, its own event reports that.
            let _ = running.handle.post(move |member: &mut ReactorShard, now| member.reload(now, reload));
        }
        drop(done);
        let failures = reactors::wait_for_end(&self.reactors, &ended);
        let gone = self.runtime.portals.iter().map(|(id, _)| *id);
        let gone: Vec<PortalId> =
            gone.filter(|id| !runtime.portals.iter().any(|(kept, _)| kept == id)).collect();
        for (_, address) in self.runtime.portals.iter().filter(|(id, _)| gone.contains(id)) {
            crate::info!("no longer listening on {address}");
        }
        gone.iter().for_each(|id| self.tls_portals.close(*id));
        self.portal_sockets.retain(|id, _| !gone.contains(id));
        let cloned = opened.iter().filter_map(|(listener, id)| Some((*id, listener.try_clone().ok()?)));
        self.portal_sockets.extend(cloned);
        let (tls, opened): (Vec<_>, Vec<_>) =
            opened.into_iter().partition(|(_, id)| tls_of(&runtime, *id).is_some());
        self.tls_portals.change(&runtime);
        if let Err(why) = self.tls_portals.open(&runtime, tls) {
            crate::error!("cannot start the thread of a TLS portal: {}", crate::os_error(&why));
        }
        if let (Some(server), Some(http)) = (&self.http, &runtime.config.http)
            && Http::has_same_socket(&self.runtime.config.http, &runtime.config.http)
        {
            server.change(http);
        }
        match (&self.router, self.reactors.first().map(|running| running.handle.clone())) {
            (Some(router), _) => {
                router.owners(runtime.owners());
                router.timeout(runtime.config.login_timeout);
                gone.into_iter().for_each(|id| router.unlisten(id));
                opened.into_iter().for_each(|(listener, id)| router.listen(listener, id));
            }
            (None, Some(handle)) => {
                for id in gone {
                    let _ = handle.unlisten(id);
                }
                for (listener, id) in opened {
                    let _ = handle.listen(listener, id);
                }
            }
            (None, None) => {}
        }
        self.last_owners.extend(runtime.owners());
        self.name_servers.apply(&runtime);
        self.runtime = runtime;
        self.shared.late.keep(&self.runtime.config.units, |id| self.runtime.unit(id));
        failures
    }

    /// Ends every session in order, makes everything durable, and returns when all reactors have ended.
    fn stop(mut self) -> Result<Ended, ServeError> {
        crate::info!("stopping");
        service_manager::stopping();
        self.name_servers.stop();
        drop(self.router.take());
        for running in &self.reactors {
            let _ = running.handle.post(|member: &mut ReactorShard, now| member.drain(now, LOGOUT_WITHIN));
        }
        let deadline = Instant::now() + DRAIN_MAX;
        while !all_idle(&self.reactors) && Instant::now() < deadline {
            std::thread::sleep(DRAIN_LOOK);
        }
        self.store_bindings_within(SYNC_MAX);
        self.guesses.store(&self.state, SYNC_MAX);
        let Self { runtime, reactors, admin, http, events, state, state_thread, .. } = self;
        let written = reactors::written_files(&reactors);
        for running in &reactors {
            // A reactor ends when no operation of its media is under way.
            let _ = running.handle.post(|member: &mut ReactorShard, now| member.unload_cartridges(now));
            let _ = running.handle.post(|member: &mut ReactorShard, _| member.close_exports());
            let _ = running.handle.stop(CLOSE_MAX);
        }
        let mut failed = Vec::new();
        for (index, running) in reactors.into_iter().enumerate() {
            if running.thread.join().is_err() {
                failed.push(format!("reactor {index} panicked"));
            }
        }
        if panics::count() > 0 {
            failed.push(format!("{} threads panicked; this is a bug in targe", panics::count()));
        }
        // It has recorded all losses that can be recorded when it ends.
        failed.extend(state_writer::join(state_thread, SYNC_MAX));
        let written =
            written.into_iter().filter_map(|written| Some((runtime.unit(written.id)?.clone(), written)));
        for loss in media::loss::sync_all(written, &state, SYNC_MAX) {
            crate::error!("{loss}");
            failed.push(loss);
        }
        let events: Vec<DaemonEvent> = events.try_iter().collect();
        failed.extend(events.iter().filter_map(DaemonEvent::lost_at_server));
        for loss in cartridge_losses::of(&runtime, events.into_iter()) {
            crate::error!("{loss}");
            failed.push(loss);
        }
        drop((admin, http));
        crate::info!("stopped");
        if failed.is_empty() { Ok(Ended::Stopped) } else { Err(ServeError::Failed(failed.join("; "))) }
    }
}

/// Returns a failure, unless this process has taken over: then it logs the failure, and the daemon serves
/// without what has failed.
fn unless_successor<T>(
    is_successor: bool,
    what: &str,
    result: Result<T, ServeError>,
) -> Result<Option<T>, ServeError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_successor => {
            crate::error!("cannot {what} until targe is restarted: {error}");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Serves the sessions that another process gives up, if one does. Returns the relays of its TLS connections.
fn take_over_sessions(
    given_up: Option<(&mut Succession, Sessions)>,
    (reactors, router): (&[ReactorThread], Option<&Router>),
    runtime: &RuntimeConfig,
) -> Result<Vec<(PortalId, MovedRelay)>, ServeError> {
    let Some((succession, sessions)) = given_up else { return Ok(Vec::new()) };
    let relays = succession.take_over(sessions, reactors, runtime)?;
    go_on(reactors, router);
    succession.serving();
    Ok(relays)
}

/// Lets parked reactors and their router serve.
fn go_on(reactors: &[ReactorThread], router: Option<&Router>) {
    for running in reactors {
        // The end of a reactor is an event of its own.
        let _ = running.handle.post(|member: &mut ReactorShard, now| member.thaw(now));
        let _ = running.handle.unpark();
    }
    if let Some(router) = router {
        router.pauser().pause(false);
    }
}

/// Opens, for one reactor, the interfaces of a runtime configuration that are not in use yet.
fn open_ports(
    runtime: &RuntimeConfig,
    reactor: usize,
    known: &[(EtherPort, String)],
) -> Result<Vec<Port>, ServeError> {
    let fresh = runtime.interfaces.iter().filter(|interface| !known.contains(interface));
    let open = |(port, name): &(EtherPort, String)| {
        // The driver filters these frames without configuration: frames of other VLANs, and frames to other
        // stations.
        //= hyperscsi#section-3.1
        //# a receiver MUST NOT take a frame that
        //# was sent in a VLAN in which its port is not. It MUST NOT take a frame that was sent to another station
        let config = PortConfig {
            steering: Some(Steering { at: SID_AT, mine: runtime.steering(reactor) }),
            receive_bytes: runtime.receive_bytes(),
            ..PortConfig::new(name, hyperscsi::ETHERTYPE)
        };
        Ok((*port, PortSocket::open(config)?))
    };
    fresh.map(open).collect()
}

fn log_listening(address: SocketAddr, portal: &Portal) {
    let tls = if portal.tls.is_some() { ", TLS only" } else { "" };
    crate::info!("listening on {address}, portal group tag {}{tls}", portal.tag);
}

/// Starts the reactors, and a router in front of them when there are several.
fn start_reactors(
    runtime: &RuntimeConfig,
    (units, ports, mut bindings): (Vec<Vec<NewUnit>>, Vec<Vec<Port>>, ClaimedBindings),
    listeners: Vec<PortalListener>,
    (state_writer, media_watch, guesses): (&StateWriter, &MediaWatch, &Arc<GuessGuard>),
    (occasions, is_parked): (&Sender<DaemonEvent>, bool),
) -> Result<(Vec<ReactorThread>, Option<Router>), ServeError> {
    let count = units.len();
    let (mut own, shared) = if count == 1 { (listeners, Vec::new()) } else { (Vec::new(), listeners) };
    let mut reactors: Vec<ReactorThread> = Vec::new();
    for (index, (units, ports)) in units.into_iter().zip(ports).enumerate() {
        reactors.push(reactors::start(ReactorSetup {
            index,
            count,
            runtime: runtime.clone(),
            units,
            bindings: bindings.remove(&index).unwrap_or_default(),
            listeners: std::mem::take(&mut own),
            ports,
            state_writer: state_writer.clone(),
            media_watch: media_watch.clone(),
            guesses: Arc::clone(guesses),
            is_parked,
            events: occasions.clone(),
        })?);
    }
    if count == 1 {
        return Ok((reactors, None));
    }
    let deliver = reactors.iter().map(|running| -> Deliver {
        let handle = running.handle.clone();
        Box::new(move |arrived| handle.adopt(arrived).is_ok())
    });
    let router =
        Router::start(deliver.collect(), runtime.config.login_timeout).map_err(ServeError::Thread)?;
    router.pauser().pause(is_parked);
    router.owners(runtime.owners());
    shared.into_iter().for_each(|(listener, id)| router.listen(listener, id));
    Ok((reactors, Some(router)))
}
