//! From the start to the end: opens everything, starts the reactors, obeys signals, reloads, and stops in order.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use base::ether::EtherPort;
use base::machine::PortalId;
use drivers::ether::{PortConfig, PortSocket, Steering};
use hyperscsi::frame::SID_AT;
use target::config::UnitId;

use super::answers::{Current, Reloaded, Shared};
use super::blueprint::{Blueprint, Numbers};
use super::member::{Fresh, Member};
use super::reactors::{self, Running, Start};
use super::router::{Deliver, Router};
use super::saver::{self, Saves};
use super::spread::{self, Homes};
use super::state::StateDir;
use super::{ServeError, Started, media, portals};
use crate::admin::server::{Reserved, Server};
use crate::config::{Config, Flags, Loaded, Surroundings, Unit, UnitIndex};

/// How long sessions have to log out after they were asked to. RFC 7143 §11.9.1 lets us say so in whole seconds.
const LOGOUT_WITHIN: Duration = Duration::from_secs(3);

/// How long the end waits for sessions to be gone before their connections are closed.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// How often the end looks whether sessions are gone.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// How long a connection may take to accept our last bytes.
const CLOSE_MAX: Duration = Duration::from_millis(500);

/// How long a reactor may take to answer. It never waits for anything, so this long means that it hangs.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Something that the main thread has to see to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Occasion {
    /// The configuration may have changed.
    Reload,
    /// It is time to stop.
    Stop,
    /// A reactor's thread is gone.
    Ended(usize),
}

/// A daemon that serves.
pub(super) struct Daemon {
    flags: Flags,
    around: Surroundings,
    numbers: Numbers,
    blueprint: Blueprint,
    state: StateDir,
    reactors: Vec<Running>,
    /// Accepts for several reactors; a single one does it itself.
    router: Option<Router>,
    shared: Arc<Shared>,
    occasions: Receiver<Occasion>,
    admin: Server,
}

/// An interface that is open.
type Port = (EtherPort, PortSocket);

/// A portal that listens.
type Listening = (TcpListener, PortalId);

impl Daemon {
    /// Opens everything and serves.
    pub(super) fn start(
        flags: Flags,
        around: Surroundings,
        loaded: Loaded,
        occasions: (Sender<Occasion>, Receiver<Occasion>),
    ) -> Result<Self, ServeError> {
        let config = Arc::new(loaded.config);
        let state = StateDir::open(&config.state_dir)?;
        let reserved = Reserved::take(&config.admin_socket)?;
        let mut numbers = Numbers::default();
        let ids = numbers.portals(&config);
        let mut listeners = Vec::new();
        let mut listening = Vec::new();
        for (portal, id) in config.portals.iter().zip(ids) {
            let (listener, address) = portals::open(portal.listen)?;
            listeners.push((listener, id));
            listening.push(address);
        }
        let count = reactors::cores(&config).min(spread::components(&config).len()).max(1);
        let owners = spread::owners(&config, &Homes::default(), count)?;
        numbers.reactors = count;
        numbers.learn(&config).map_err(ServeError::Failed)?;
        let blueprint = numbers.blueprint(config, &listening, &owners);
        let mut units = Vec::new();
        for index in 0..count {
            units.push(open_units(blueprint.units(index), &state)?);
        }
        let ports =
            (0..count).map(|index| open_ports(&blueprint, index, &[])).collect::<Result<Vec<_>, _>>()?;
        let (saves, _) = saver::start(state.clone()).map_err(ServeError::Thread)?;
        let (reactors, router) = start_reactors(&blueprint, (units, ports), listeners, &saves, &occasions.0)?;
        let shared = Arc::new(Shared::new(&flags, &blueprint, &reactors));
        let admin = reserved.serve(Arc::clone(&shared) as Arc<_>)?;
        let occasions = occasions.1;
        Ok(Self { flags, around, numbers, blueprint, state, reactors, router, shared, occasions, admin })
    }

    /// Returns what was started, for whoever tells the user.
    pub(super) fn started(&self) -> Started {
        Started {
            config: (*self.blueprint.config).clone(),
            listening: self.blueprint.portals.iter().map(|(_, address)| *address).collect(),
            engine: self.reactors.first().map_or(String::new(), |one| one.facts.engine.to_string()),
            fallback: self.reactors.first().and_then(|one| one.facts.fallback.clone()),
            reactors: self.reactors.len(),
            admin_socket: self.admin.path().to_path_buf(),
        }
    }

    /// Serves until it is told to stop, or cannot go on.
    pub(super) fn run(mut self) -> Result<(), ServeError> {
        loop {
            // The sender of signals is never gone before this thread.
            match self.occasions.recv() {
                Ok(Occasion::Reload) => self.reload(),
                Ok(Occasion::Stop) | Err(_) => return self.stop(),
                Ok(Occasion::Ended(index)) => {
                    let sentence = format!("reactor {index} ended by itself; this is a bug of targe");
                    crate::error!("{sentence}");
                    // The others are stopped in order, so that their sessions end well.
                    self.stop()?;
                    return Err(ServeError::Failed(sentence));
                }
            }
        }
    }

    /// Reads the configuration again, and applies it or nothing.
    fn reload(&mut self) {
        let numbers = self.numbers.clone();
        let result = self.try_reload();
        if result.is_err() {
            self.numbers = numbers;
        }
        let (applied, message) = match result {
            Ok(message) => {
                crate::info!("reloaded: {message}");
                (true, message)
            }
            Err(message) => {
                for line in message.lines() {
                    crate::error!("reload: {line}");
                }
                crate::error!("reload: nothing was changed");
                (false, message)
            }
        };
        let reload = Some(Reloaded { at: Instant::now(), applied, message });
        let mut current = self.shared.current.lock().unwrap_or_else(PoisonError::into_inner);
        let reloads = current.reloads + 1;
        *current = Current { blueprint: self.blueprint.clone(), reloads, reload };
    }

    fn try_reload(&mut self) -> Result<String, String> {
        let Loaded { config, report } =
            Config::load(&self.flags, &self.around).map_err(|report| report.to_string())?;
        for line in report.warning_lines() {
            crate::warning!("{line}");
        }
        let old = Arc::clone(&self.blueprint.config);
        let changes = Config::diff(&old, &config);
        let owners = spread::owners(&config, &self.blueprint.homes(), self.reactors.len());
        let owners = owners.map_err(|parted| parted.to_string())?;
        refuse_replaced_media(&old, &config)?;
        let (opened, listening) = self.open_portals(&config).map_err(|error| error.to_string())?;
        let log = config.log;
        self.numbers.learn(&config)?;
        let blueprint = self.numbers.blueprint(Arc::new(running(config, &old)), &listening, &owners);
        let open = |index| open_ports(&blueprint, index, &self.blueprint.interfaces);
        let ports: Result<Vec<_>, _> = (0..self.reactors.len()).map(open).collect();
        let ports = ports.map_err(|error| error.to_string())?;
        let mut fresh = Vec::new();
        for index in 0..self.reactors.len() {
            let known: Vec<UnitId> = self.blueprint.units(index).map(|(id, ..)| id).collect();
            let new = blueprint.units(index).filter(|(id, ..)| !known.contains(id));
            fresh.push(open_units(new, &self.state).map_err(|error| error.to_string())?);
        }
        for unit in
            blueprint.config.units.iter().filter(|unit| old.units.iter().any(|was| was.key() == unit.key()))
        {
            media::grow(unit).map_err(|error| error.to_string())?;
        }
        // From here on nothing can fail.
        crate::log::set_level(log);
        self.apply(blueprint, (fresh, ports), opened);
        Ok(changes.to_string())
    }

    /// Opens the portals that are new. Returns them, and the address of every portal.
    fn open_portals(&mut self, config: &Config) -> Result<(Vec<Listening>, Vec<SocketAddr>), ServeError> {
        let known: BTreeMap<PortalId, SocketAddr> = self.blueprint.portals.iter().copied().collect();
        let mut opened = Vec::new();
        let mut listening = Vec::new();
        for (portal, id) in config.portals.iter().zip(self.numbers.portals(config)) {
            match known.get(&id) {
                Some(address) => listening.push(*address),
                None => {
                    let (listener, address) = portals::open(portal.listen)?;
                    opened.push((listener, id));
                    listening.push(address);
                }
            }
        }
        Ok((opened, listening))
    }

    fn apply(
        &mut self,
        blueprint: Blueprint,
        (fresh, ports): (Vec<Vec<Fresh>>, Vec<Vec<Port>>),
        opened: Vec<Listening>,
    ) {
        if blueprint.config.max_connections > self.blueprint.config.max_connections {
            super::make_room(&blueprint.config);
        }
        let shut = self.blueprint.interfaces.iter().filter(|known| !blueprint.interfaces.contains(known));
        let shut: Vec<EtherPort> = shut.map(|(port, _)| *port).collect();
        for (running, (units, ports)) in self.reactors.iter().zip(fresh.into_iter().zip(ports)) {
            for port in &shut {
                let _ = running.handle.close_port(*port);
            }
            for (port, socket) in ports {
                let _ = running.handle.open_port(port, socket);
            }
            let _ = running.handle.limit(reactors::driver_limits(&blueprint.config));
            let blueprint = blueprint.clone();
            // A reactor that is gone is told of by its own occasion.
            let _ = running.handle.post(move |member: &mut Member, now| member.reload(now, blueprint, units));
        }
        let gone = self.blueprint.portals.iter().map(|(id, _)| *id);
        let gone: Vec<PortalId> =
            gone.filter(|id| !blueprint.portals.iter().any(|(kept, _)| kept == id)).collect();
        let first = self.reactors.first().map(|running| running.handle.clone());
        match (&self.router, first) {
            (Some(router), _) => {
                router.owners(blueprint.owners());
                router.timeout(blueprint.config.login_timeout);
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
        self.blueprint = blueprint;
    }

    /// Ends every session in order, makes everything durable, and returns when nothing is left.
    fn stop(self) -> Result<(), ServeError> {
        let Self { blueprint, reactors, router, admin, .. } = self;
        crate::info!("stopping");
        drop(router);
        for running in &reactors {
            let _ = running.handle.post(|member: &mut Member, now| member.drain(now, LOGOUT_WITHIN));
        }
        let deadline = Instant::now() + DRAIN_MAX;
        while !all_idle(&reactors) && Instant::now() < deadline {
            std::thread::sleep(DRAIN_LOOK);
        }
        for running in &reactors {
            let _ = running.handle.stop(CLOSE_MAX);
        }
        let mut failed = Vec::new();
        for (index, running) in reactors.into_iter().enumerate() {
            if running.thread.join().is_err() {
                failed.push(format!("reactor {index} panicked"));
            }
        }
        for unit in &blueprint.config.units {
            if let Err(error) = media::sync(unit) {
                crate::error!("{error}");
                failed.push(error.to_string());
            }
        }
        drop(admin);
        crate::info!("stopped");
        if failed.is_empty() { Ok(()) } else { Err(ServeError::Failed(failed.join("; "))) }
    }
}

/// Returns whether no reactor has a session. One that does not answer has nothing that could be waited for.
fn all_idle(reactors: &[Running]) -> bool {
    reactors.iter().all(|running| {
        let (sender, receiver) = channel();
        let posted = running.handle.post(move |member: &mut Member, _| {
            let _ = sender.send(member.is_idle());
        });
        posted.is_err() || receiver.recv_timeout(ANSWER_MAX).unwrap_or(true)
    })
}

/// Opens the interfaces of a blueprint that are not among those in use, for one reactor.
fn open_ports(
    blueprint: &Blueprint,
    reactor: usize,
    known: &[(EtherPort, String)],
) -> Result<Vec<Port>, ServeError> {
    let fresh = blueprint.interfaces.iter().filter(|interface| !known.contains(interface));
    let open = |(port, name): &(EtherPort, String)| {
        // What the driver keeps away without being asked: frames of other VLANs, and to other stations.
        //= hyperscsi#section-3.1
        //# a receiver MUST NOT take a frame that
        //# was sent in a VLAN in which its port is not. It MUST NOT take a frame that was sent to another station
        let config = PortConfig {
            steering: Some(Steering { at: SID_AT, mine: blueprint.steering(reactor) }),
            receive_bytes: blueprint.receive_bytes(),
            ..PortConfig::new(name, hyperscsi::ETHERTYPE)
        };
        Ok((*port, PortSocket::open(config)?))
    };
    fresh.map(open).collect()
}

/// Opens the media of units, and finds the state that they had.
fn open_units<'u>(
    units: impl Iterator<Item = (UnitId, UnitIndex, &'u Unit)>,
    state: &StateDir,
) -> Result<Vec<Fresh>, ServeError> {
    let open = |(id, index, unit): (UnitId, UnitIndex, &Unit)| {
        let naa = unit.identity.naa;
        let saved = state.load(naa)?.map(|bytes| (bytes, state.file(naa).display().to_string()));
        Ok(Fresh { id, index, medium: media::open(unit, state)?, state: saved })
    };
    units.map(open).collect()
}

/// Starts the reactors; a router before them when there are several.
fn start_reactors(
    blueprint: &Blueprint,
    (units, ports): (Vec<Vec<Fresh>>, Vec<Vec<Port>>),
    listeners: Vec<Listening>,
    saves: &Saves,
    occasions: &Sender<Occasion>,
) -> Result<(Vec<Running>, Option<Router>), ServeError> {
    let count = units.len();
    let (mut own, shared) = if count == 1 { (listeners, Vec::new()) } else { (Vec::new(), listeners) };
    let mut reactors: Vec<Running> = Vec::new();
    for (index, (units, ports)) in units.into_iter().zip(ports).enumerate() {
        reactors.push(reactors::start(Start {
            index,
            count,
            blueprint: blueprint.clone(),
            units,
            listeners: std::mem::take(&mut own),
            ports,
            saves: saves.clone(),
            occasions: occasions.clone(),
        })?);
    }
    if count == 1 {
        return Ok((reactors, None));
    }
    let deliver = reactors.iter().map(|running| -> Deliver {
        let handle = running.handle.clone();
        Box::new(move |arrived| {
            handle.adopt(arrived.stream, arrived.portal, arrived.peer, arrived.bytes).is_ok()
        })
    });
    let router =
        Router::start(deliver.collect(), blueprint.config.login_timeout).map_err(ServeError::Thread)?;
    router.owners(blueprint.owners());
    shared.into_iter().for_each(|(listener, id)| router.listen(listener, id));
    Ok((reactors, Some(router)))
}

/// Refuses a change that would have to close a file and open it again: its disk would be gone in between.
fn refuse_replaced_media(old: &Config, new: &Config) -> Result<(), String> {
    for unit in new.units.iter().filter(|unit| !old.units.iter().any(|was| was.key() == unit.key())) {
        if let Some(path) = unit.medium.path()
            && old.units.iter().any(|was| was.medium.path() == Some(path))
        {
            return Err(format!(
                "{}: the type, block length, provisioning, \"direct\", \"encrypt\" and \"naa\" of {} cannot change while it is \
                 served; restart targe to apply this",
                unit.label,
                path.display()
            ));
        }
    }
    Ok(())
}

/// Returns a new configuration with what only a restart can change as it was, so that it is told of again until then.
fn running(new: Config, old: &Config) -> Config {
    Config {
        state_dir: old.state_dir.clone(),
        admin_socket: old.admin_socket.clone(),
        reactor: old.reactor,
        cores: old.cores.clone(),
        poll: old.poll,
        look: old.look,
        memory: old.memory,
        ..new
    }
}
