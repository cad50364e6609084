//! Runs the daemon: opens what a configuration describes, starts the reactors, reloads, and stops in order.

mod activation;
mod admin_api;
mod audit;
mod bindings;
mod cartridge_losses;
mod change_lock;
mod changes;
mod client_certificates;
mod core_dumps;
mod daemon;
mod daemon_event;
mod damaged_ports;
mod device_identity;
mod disk_ids;
mod file_systems;
mod first_reading;
mod guess_guard;
#[cfg(test)]
mod hostile_names;
mod http_api;
mod late_media;
mod library_change;
mod login_peek;
mod lun_maintenance;
mod media;
mod media_key;
mod media_watch;
mod metrics;
mod mount;
mod name_servers;
mod panics;
mod placement;
mod portals;
mod program;
mod reactor_shard;
mod reactors;
mod recorder;
mod router;
mod runtime_config;
mod sanitize_record;
mod served_size;
mod service_manager;
mod session_drop;
mod shard_log;
mod signals;
mod start_watch;
pub mod state;
mod state_identity;
mod state_writer;
mod target_ports;
mod tls_handshakes;
mod tls_portals;
mod trace;
mod upgrade;
mod write_trace;

use crate::mailbox::channel;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::admin::server::AdminSocketError;
use crate::config::{Config, ConfigReport, Environment, Flags};
pub use bindings::stored_luns;
use first_reading::FirstReading;
use start_watch::StartWatch;

/// Why the daemon does not start, or why it ended out of order.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The configuration has mistakes.
    #[error("{0}")]
    Config(ConfigReport),
    /// The configuration names storage that is not there or does not answer. It can have no mistakes.
    #[error("{0}")]
    Storage(ConfigReport),
    /// A signal has ended the start.
    #[error("stopped")]
    Stopped,
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] state::StateError),
    /// Another daemon uses the state directory.
    #[error("another targe is running: it uses the state directory {}", path.display())]
    StateInUse {
        /// The directory.
        path: PathBuf,
    },
    /// The admin socket cannot be opened.
    #[error(transparent)]
    Admin(#[from] AdminSocketError),
    /// The sockets that the service manager passed cannot be used.
    #[error(transparent)]
    Activation(#[from] activation::ActivationError),
    /// A portal cannot be opened.
    #[error(transparent)]
    Portal(#[from] portals::PortalError),
    /// An interface cannot be opened.
    #[error("{}", told(.0))]
    Interface(#[from] drivers::ether::PortError),
    /// A medium cannot be opened.
    #[error(transparent)]
    Medium(#[from] media::MediaError),
    /// The medium of a unit is not the one that was served before, or may be another one: its operator must
    /// decide.
    #[error("{0}")]
    NotServed(String),
    /// Targets that share a unit run on different reactors.
    #[error(transparent)]
    Placement(#[from] placement::PlacementConflict),
    /// The system refused a thread or another resource.
    #[error("cannot start: {}", crate::os_error(.0))]
    Thread(io::Error),
    /// Any other reason.
    #[error("{0}")]
    Failed(String),
    /// This process was to take over what another one serves. It has not, and the other one uses the state
    /// directory.
    #[error("{0}")]
    NotTakenOver(Box<ServeError>),
}

impl ServeError {
    /// Returns whether a single medium fails or is not what it should be, so that everything else can be
    /// served.
    fn is_of_medium(&self) -> bool {
        match self {
            Self::Medium(why) => why.is_fault(),
            Self::NotServed(_) => true,
            _ => false,
        }
    }
}

/// Formats an error with the system's message.
fn told(error: &drivers::ether::PortError) -> String {
    match error {
        drivers::ether::PortError::Io(_, source) => format!("{error}: {}", crate::os_error(source)),
        other => other.to_string(),
    }
}

/// What the daemon started, for display to the user.
#[derive(Clone, Debug)]
pub struct Started {
    /// The configuration that is served.
    pub config: Config,
    /// The actual address of each portal of the configuration.
    pub listening: Vec<SocketAddr>,
    /// Whether the reactors use io_uring or epoll.
    pub engine: String,
    /// Why io_uring is not used, although it would have been preferred.
    pub fallback: Option<String>,
    /// The number of reactors.
    pub reactors: usize,
    /// The path of the admin socket.
    pub admin_socket: PathBuf,
    /// The actual address of the HTTP server, if there is one.
    pub http: Option<SocketAddr>,
}

/// How a daemon ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It has stopped.
    Stopped,
    /// Another process has taken over its sessions. This process must end without touching what it served.
    HandedOver,
}

/// Serves the configuration that the flags describe, until a signal stops the daemon or another process takes
/// over. `started` is called once, when everything is open, but not in a process that takes over.
///
/// # Errors
/// [`ServeError`]
pub fn serve(
    flags: Flags,
    environment: Environment,
    started: impl FnOnce(&Started),
) -> Result<Ended, ServeError> {
    // Without this thread each thread writes its lines itself, and waits for the reader of the log.
    let _last_lines = crate::log::writer::start().map_err(ServeError::Thread)?;
    let program = program::path().map_err(ServeError::Thread)?;
    let mut succession =
        upgrade::Succession::from_process().map_err(|error| ServeError::NotTakenOver(Box::new(error)))?;
    let daemon = match (start((flags, environment, program), &mut succession), &succession) {
        (Ok(daemon), _) => daemon,
        (Err(ServeError::Stopped), _) => return Ok(Ended::Stopped),
        (Err(error), Some(succession)) => return Err(succession.fail(error)),
        (Err(error), None) => return Err(error),
    };
    match succession {
        Some(predecessor) => crate::info!("took over the sessions of targe {}", predecessor.version),
        None => started(&daemon.started()),
    }
    daemon.run()
}

/// Starts a daemon, or takes over another one.
fn start(
    (flags, environment, program): (Flags, Environment, PathBuf),
    succession: &mut Option<upgrade::Succession>,
) -> Result<daemon::Daemon, ServeError> {
    let (sender, receiver) = channel();
    let may_wait = flags.waits_for_media() && succession.is_none();
    let watch = StartWatch::start(may_wait).map_err(ServeError::Thread)?;
    signals::watch(sender.clone(), watch.stopper()).map_err(ServeError::Thread)?;
    panics::install_hook(sender.clone());
    if flags.is_default_disk() {
        create_state_dir(&flags, &environment, &watch)?;
    }
    let reading =
        FirstReading { flags: &flags, environment: &environment, may_wait, events: &receiver, watch: &watch };
    let mut loaded = reading.load()?;
    let step = watch.step(&loaded.config.state_dir);
    let has_changed = state_identity::ensure(&loaded.config.state_dir, &environment.host)?;
    drop(step);
    if has_changed {
        loaded = reading.load()?;
    }
    crate::log::set_level(loaded.config.log);
    crate::log::set_format(loaded.config.log_format);
    for line in loaded.report.warning_lines() {
        crate::warning!("{line}");
    }
    raise_file_limit(&loaded.config);
    let called = daemon::Called { flags, environment, program };
    daemon::Daemon::start(called, loaded, (sender, receiver, &watch), succession)
}

/// The number of descriptors allowed for everything besides connections, portals and media: rings, queues,
/// the admin socket and its clients, logs.
const OTHER_FILES: u64 = 128;

/// Raises the limit on open files to what the configuration can need, as far as the system allows. Shells and
/// service managers start programs with a limit of 1024.
fn raise_file_limit(config: &Config) {
    let want = files_wanted(config);
    let got = raise_file_limit_to(want);
    if got < want {
        crate::warning!(
            "the limit of {got} open files is less than the {want} that max_connections can need"
        );
    }
}

/// Raises the limit on open files, as far as the system allows, to what the configuration can need while each
/// file and connection has a second descriptor that is passed to another process.
fn raise_file_limit_for_upgrade(config: &Config) {
    raise_file_limit_to(files_wanted(config).saturating_mul(2));
}

/// Returns how many open files the configuration can need.
fn files_wanted(config: &Config) -> u64 {
    let wide = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let reactors = wide(reactors::reactor_count(config).min(config.targets.len()).max(1));
    let connections = u64::from(config.max_connections) * reactors;
    let tls_portals = config.portals.iter().filter(|portal| portal.tls.is_some()).count();
    connections
        // A connection inside TLS has two more, those of its relay.
        + 2 * connections.min(wide(tls_portals * tls::CONNECTIONS_MAX))
        // A file or device that is written has two, the image of a writable disc three.
        + wide(config.portals.len() + 3 * config.units.len())
        + wide(config.hyperscsi.as_ref().map_or(0, |frames| frames.interfaces.len() + 1)) * reactors
        + OTHER_FILES
}

/// Raises the limit on open files, and returns the limit.
fn raise_file_limit_to(want: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let have = limit.current.unwrap_or(u64::MAX);
    if have >= want {
        return have;
    }
    let raised = limit.maximum.map_or(want, |maximum| want.min(maximum)).max(have);
    let set = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: limit.maximum });
    if set.is_ok() { raised } else { have }
}

/// Creates the state directory, before a configuration that puts a disk in it is checked.
fn create_state_dir(flags: &Flags, environment: &Environment, watch: &StartWatch) -> Result<(), ServeError> {
    let path = flags
        .state_dir
        .as_ref()
        .map_or_else(|| environment.state_dir.clone(), |path| environment.absolute(path));
    let _step = watch.step(&path);
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
    made.map_err(|error| {
        ServeError::Failed(format!(
            "cannot create the state directory {}: {}",
            path.display(),
            crate::os_error(&error)
        ))
    })
}
