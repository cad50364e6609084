//! The reactor threads.

use crate::mailbox::{Receiver, RecvTimeoutError, Sender, channel};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use base::ether::EtherPort;
use base::state_machine::PortalId;
use base::units::ByteLen;
use drivers::config::{EngineChoice, EngineKind, SpinMode};
use drivers::ether::PortSocket;
use drivers::message_queue::Handle;
use drivers::reactor::Reactor;
use hyperscsi::target::engine::EngineLimits as FrameLimits;
use iscsi::target::engine::Limits;
use rustix::thread::{CpuSet, sched_setaffinity};
use shard::losses::{SessionLoss, WithheldLun};
use shard::shard::Shard;
use target::units::UnitId;

use super::ServeError;
use super::daemon_event::DaemonEvent;
use super::guess_guard::GuessGuard;
use super::media::loss::WrittenFile;
use super::media_watch::MediaWatch;
use super::reactor_shard::{NewUnit, ReactorBindings, ReactorContext, ReactorShard};
use super::runtime_config::RuntimeConfig;
use super::state_writer::StateWriter;
use crate::config::{Config, Naa, ReactorChoice};

/// How long a reactor may take to answer. A reactor never waits for anything, so one that takes longer hangs.
pub(super) const REACTOR_REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// A reactor on its thread.
#[derive(Debug)]
pub(super) struct ReactorThread {
    pub(super) handle: Handle<ReactorShard>,
    pub(super) thread: JoinHandle<()>,
    pub(super) facts: ReactorInfo,
}

/// The properties of a reactor that do not change.
#[derive(Clone, Debug)]
pub(super) struct ReactorInfo {
    pub(super) engine: EngineKind,
    /// Why io_uring is not used, although it would have been preferred.
    pub(super) fallback: Option<String>,
    pub(super) core: Option<u16>,
}

/// The arguments for starting a reactor.
pub(super) struct ReactorSetup {
    /// The index of the reactor.
    pub(super) index: usize,
    /// The number of reactors.
    pub(super) count: usize,
    pub(super) runtime: RuntimeConfig,
    pub(super) units: Vec<NewUnit>,
    /// Its nexus bindings from before the start.
    pub(super) bindings: ReactorBindings,
    /// The listeners that the reactor itself accepts connections on.
    pub(super) listeners: Vec<(TcpListener, PortalId)>,
    /// The Ethernet interfaces that it serves.
    pub(super) ports: Vec<(EtherPort, PortSocket)>,
    pub(super) state_writer: StateWriter,
    pub(super) media_watch: MediaWatch,
    /// The limit on guesses that all reactors share.
    pub(super) guesses: Arc<GuessGuard>,
    /// Whether it does nothing until it is unparked.
    pub(super) is_parked: bool,
    /// Receives an event when the thread ends, for whatever reason, and when nexus bindings change.
    pub(super) events: Sender<DaemonEvent>,
}

/// Starts a reactor; returns when the reactor serves.
pub(super) fn start(start: ReactorSetup) -> Result<ReactorThread, ServeError> {
    let (ready, started) = channel();
    let (index, occasions) = (start.index, start.events.clone());
    let body = move || {
        let _told = TellsEnd { index, occasions };
        match Prepared::new(start) {
            Ok(mut prepared) => {
                let facts = (prepared.reactor.handle(), prepared.facts.clone());
                if ready.send(Ok(facts)).is_ok()
                    && let Err(error) = prepared.reactor.run(&mut prepared.member)
                {
                    crate::error!("reactor {index}: {}", crate::os_error(&error));
                }
            }
            Err(error) => {
                let _ = ready.send(Err(error));
            }
        }
    };
    let thread = std::thread::Builder::new()
        .name(format!("reactor-{index}"))
        .spawn(body)
        .map_err(ServeError::Thread)?;
    match started.recv() {
        Ok(Ok((handle, facts))) => Ok(ReactorThread { handle, thread, facts }),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(ServeError::Failed(format!("reactor {index} did not start"))),
    }
}

/// Waits until every reactor has dropped its end of a channel, or has ended. Returns what they sent.
pub(super) fn wait_for_end<T: Send + 'static>(reactors: &[ReactorThread], ended: &Receiver<T>) -> Vec<T> {
    let mut sent = Vec::new();
    loop {
        // A reactor never waits for anything, so it drops its end soon.
        match ended.recv_timeout(REACTOR_REPLY_TIMEOUT) {
            Ok(one) => sent.push(one),
            Err(RecvTimeoutError::Disconnected) => return sent,
            Err(RecvTimeoutError::Timeout) if reactors.iter().any(|one| one.thread.is_finished()) => {
                return sent;
            }
            Err(RecvTimeoutError::Timeout) => {
                crate::warning!("a reactor is slow to apply the configuration");
            }
        }
    }
}

/// Waits for the answer of a reactor; `None` if the reactor has ended.
pub(super) fn wait_for<T: Send + 'static>(running: &ReactorThread, receiver: &Receiver<T>) -> Option<T> {
    loop {
        match receiver.recv_timeout(REACTOR_REPLY_TIMEOUT) {
            Ok(answer) => return Some(answer),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) if running.thread.is_finished() => return None,
            Err(RecvTimeoutError::Timeout) => crate::warning!("a reactor is slow to answer"),
        }
    }
}

/// Returns whether no reactor has a session. A reactor that does not answer counts as idle, since waiting for
/// it is of no use.
pub(super) fn all_idle(reactors: &[ReactorThread]) -> bool {
    all_reactors(reactors, ReactorShard::is_idle)
}

/// Returns whether `holds` is true for every reactor that answers.
pub(super) fn all_reactors(reactors: &[ReactorThread], holds: fn(&ReactorShard) -> bool) -> bool {
    reactors.iter().all(|running| {
        let (sender, receiver) = channel();
        let posted = running.handle.post(move |member: &mut ReactorShard, _| {
            let _ = sender.send(holds(member));
        });
        posted.is_err() || receiver.recv_timeout(REACTOR_REPLY_TIMEOUT).unwrap_or(true)
    })
}

/// Makes every reactor forget the discs that it is to put into drives when others are saved, and waits until
/// they have. Returns the drives.
pub(super) fn forget_pending_discs(reactors: &[ReactorThread]) -> Vec<UnitId> {
    let forget = |running: &ReactorThread| {
        let (sender, receiver) = channel();
        let posted = running.handle.post(move |member: &mut ReactorShard, _| {
            let _ = sender.send(member.forget_pending_discs());
        });
        // A reactor that does not answer in time has forgotten nothing yet, so opening the images again is
        // refused.
        posted.ok().and_then(|()| receiver.recv_timeout(REACTOR_REPLY_TIMEOUT).ok()).unwrap_or_default()
    };
    reactors.iter().flat_map(forget).collect()
}

/// Returns the files and devices that hosts can write, of every reactor that answers.
pub(super) fn written_files(reactors: &[ReactorThread]) -> Vec<WrittenFile> {
    let asked = reactors.iter().filter_map(|running| {
        let (sender, receiver) = channel();
        let posted = running.handle.post(move |member: &mut ReactorShard, _| {
            let _ = sender.send(member.written_files());
        });
        posted.ok().map(|()| receiver)
    });
    let asked: Vec<Receiver<Vec<WrittenFile>>> = asked.collect();
    asked.into_iter().filter_map(|files| files.recv_timeout(REACTOR_REPLY_TIMEOUT).ok()).flatten().collect()
}

/// Returns what initiators would lose by another configuration, and the LUNs that it would give to other
/// disks than they have used.
///
/// # Errors
/// A sentence, if a reactor does not answer: it may have such sessions.
pub(super) fn session_losses(
    reactors: &[ReactorThread],
    runtime: &RuntimeConfig,
) -> Result<(Vec<SessionLoss>, Vec<WithheldLun>), String> {
    let asked = reactors.iter().map(|running| {
        let ((sender, receiver), runtime) = (channel(), runtime.clone());
        let posted = running.handle.post(move |member: &mut ReactorShard, now| {
            let _ = sender.send(member.losses(now, &runtime));
        });
        posted.map_or(Ok(Default::default()), |()| answer(&receiver, REACTOR_REPLY_TIMEOUT))
    });
    let (losses, withheld): (Vec<_>, Vec<_>) = asked.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    Ok((losses.concat(), withheld.concat()))
}

/// Waits for the answer of a reactor about its sessions. A reactor that has ended has none.
fn answer<T: Default + Send + 'static>(receiver: &Receiver<T>, within: Duration) -> Result<T, String> {
    match receiver.recv_timeout(within) {
        Ok(answer) => Ok(answer),
        Err(RecvTimeoutError::Disconnected) => Ok(T::default()),
        Err(RecvTimeoutError::Timeout) => Err(format!(
            "a reactor has not answered within {} s, so the sessions that would be affected are not known; \
             nothing was changed",
            within.as_secs()
        )),
    }
}

/// Returns the files and devices of removed units that are not closed yet. Those of a reactor that does not
/// answer are left out: they are still locked, so opening them fails.
pub(super) fn closing_media(reactors: &[ReactorThread]) -> Vec<(Option<PathBuf>, Option<Naa>)> {
    let ask = |running: &ReactorThread| {
        let (sender, receiver) = channel();
        let posted = running.handle.post(move |member: &mut ReactorShard, _| {
            let _ = sender.send(member.closing_media());
        });
        posted.ok().and_then(|()| receiver.recv_timeout(REACTOR_REPLY_TIMEOUT).ok()).unwrap_or_default()
    };
    reactors.iter().flat_map(ask).collect()
}

/// Sends an event when a reactor's thread ends, also by a panic.
struct TellsEnd {
    index: usize,
    occasions: Sender<DaemonEvent>,
}

impl Drop for TellsEnd {
    fn drop(&mut self) {
        let _ = self.occasions.send(DaemonEvent::ReactorEnded(self.index));
    }
}

struct Prepared {
    reactor: Reactor<ReactorShard>,
    member: ReactorShard,
    facts: ReactorInfo,
}

impl Prepared {
    fn new(start: ReactorSetup) -> Result<Self, ServeError> {
        let ReactorSetup {
            index,
            count,
            runtime,
            units,
            bindings,
            listeners,
            ports,
            state_writer,
            media_watch,
            guesses,
            is_parked,
            events,
        } = start;
        let config = Arc::clone(&runtime.config);
        let core = pin(&config, index);
        let mut reactor = Reactor::new(&driver_config(&config, count)).map_err(|error| {
            let source =
                std::error::Error::source(&error).map_or(String::new(), |source| format!(": {source}"));
            ServeError::Failed(format!("{error}{source}"))
        })?;
        let mut shard =
            Shard::new(runtime.shard_config(index), limits(&config, index, count), reactor.pool().clone());
        shard.share_guess_limit(guesses);
        shard.set_slow_limit(config.slow_command);
        shard.limit_frames(frame_limits(&config, count), reactor.pool().clone());
        let place = ReactorContext {
            index,
            files: reactor.files().clone(),
            pool: reactor.pool().clone(),
            state_writer,
            media_watch,
            own: reactor.handle(),
            events,
        };
        let mut member = ReactorShard::new(shard, runtime.clone(), place);
        member.restore_bindings(reactor.now(), bindings);
        for unit in units {
            member.add(reactor.now(), &runtime, unit).map_err(ServeError::Failed)?;
        }
        if is_parked {
            reactor.begin_parked();
        }
        for (listener, portal) in listeners {
            reactor.listen(listener, portal).map_err(ServeError::Thread)?;
        }
        for (port, socket) in ports {
            reactor.open_port(port, socket).map_err(ServeError::Thread)?;
        }
        let facts =
            ReactorInfo { engine: reactor.engine(), fallback: reactor.fallback().map(str::to_owned), core };
        Ok(Self { reactor, member, facts })
    }
}

/// Pins this thread to its core, if cores are configured. Returns the core.
fn pin(config: &Config, index: usize) -> Option<u16> {
    let core = *config.cores.get(index)?;
    let mut set = CpuSet::new();
    set.set(usize::from(core));
    match sched_setaffinity(None, &set) {
        Ok(()) => Some(core),
        Err(errno) => {
            crate::warning!("cannot pin reactor {index} to core {core}: {}", crate::os_error(&errno.into()));
            None
        }
    }
}

/// Returns the number of reactors: that of the configured cores, else that of the cores that the process may
/// use.
pub(super) fn reactor_count(config: &Config) -> usize {
    let all = || std::thread::available_parallelism().map_or(1, usize::from);
    if config.cores.is_empty() { all() } else { config.cores.len() }
}

/// Returns the limits of a driver that can change while the driver runs.
pub(super) fn driver_limits(config: &Config) -> drivers::config::Limits {
    let connections_max = usize::from(config.max_connections);
    drivers::config::Limits {
        connections_max,
        // One peer address can use at most three quarters of the connections, so that others can connect
        // however many sessions it has.
        connections_per_peer_max: (connections_max - connections_max / 4).max(1),
        stall: config.send_timeout,
    }
}

fn driver_config(config: &Config, count: usize) -> drivers::config::Config {
    let limits = driver_limits(config);
    drivers::config::Config {
        engine: match config.reactor {
            ReactorChoice::Auto => EngineChoice::Auto,
            ReactorChoice::Uring => EngineChoice::Uring,
            ReactorChoice::Epoll => EngineChoice::Epoll,
        },
        busy_poll: config.poll,
        spin_mode: if config.look { SpinMode::Adaptive } else { SpinMode::Never },
        connections_max: limits.connections_max,
        connections_per_peer_max: limits.connections_per_peer_max,
        stall: limits.stall,
        unsent_bytes_max: part(config, count) / 4,
        pool_bytes_max: part(config, count) / 4,
        ..drivers::config::Config::default()
    }
}

/// Returns the limits of the iSCSI engine of a reactor, `index` of `count`.
pub(super) fn limits(config: &Config, index: usize, count: usize) -> Limits {
    let number = |value: usize| u16::try_from(value).unwrap_or(u16::MAX);
    Limits {
        connections_max: u32::from(config.max_connections),
        sessions_max: config.max_sessions,
        queue_depth: config.limits.queue_depth,
        data_out_bytes_max: part(config, count) / 2,
        // The remaining quarter is for data that is being written to sockets.
        data_in_bytes_max: part(config, count) / 4,
        control_bytes_max: part(config, count) / 16,
        login_within: config.login_timeout,
        ping_after: config.limits.ping_after,
        pong_within: config.limits.pong_within,
        idle_within: config.limits.idle_within,
        lenient_names: config.lenient_names,
        tsih_first: number(index + 1),
        tsih_step: number(count),
        ..Limits::default()
    }
}

/// Returns the memory in bytes that one protocol has on one reactor: if both protocols are served, each has
/// half.
fn part(config: &Config, count: usize) -> usize {
    let both = config.hyperscsi.is_some() && !config.portals.is_empty();
    reactor_memory(config.memory, count) / if both { 2 } else { 1 }
}

/// Returns the limits of the HyperSCSI engine of one reactor of `count`.
fn frame_limits(config: &Config, count: usize) -> FrameLimits {
    FrameLimits {
        sessions_max: config.max_sessions,
        data_out_bytes_max: part(config, count) / 2,
        data_in_bytes_max: part(config, count) / 2,
        ..FrameLimits::default()
    }
}

/// The default memory of all reactors together, and the least of each, in bytes.
const MEMORY: usize = 256 << 20;
const MEMORY_EACH_MIN: usize = 64 << 20;

/// Returns the memory for data in flight that all reactors have together, in bytes.
pub(super) fn memory(config: &Config, count: usize) -> u64 {
    let all = reactor_memory(config.memory, count).saturating_mul(count);
    u64::try_from(all).unwrap_or(u64::MAX)
}

/// Returns the memory in bytes that one reactor has.
fn reactor_memory(memory: Option<ByteLen>, count: usize) -> usize {
    let count = count.max(1);
    match memory {
        Some(memory) => usize::try_from(memory.0).unwrap_or(usize::MAX) / count,
        None => (MEMORY / count).max(MEMORY_EACH_MIN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reactor_that_does_not_answer_is_not_taken_for_one_without_sessions() {
        let (sender, receiver) = channel::<Vec<u8>>();
        assert!(answer(&receiver, Duration::ZERO).is_err());
        sender.send(vec![7]).unwrap();
        assert_eq!(answer(&receiver, Duration::ZERO), Ok(vec![7]));
        drop(sender);
        assert_eq!(answer(&receiver, Duration::ZERO), Ok(Vec::new()));
    }

    #[test]
    fn memory_is_shared_evenly_and_grows_with_many_reactors_unless_it_is_given() {
        let given = Some(ByteLen(100 << 20));
        for (memory, count, each_mib) in
            [(None, 1, 256), (None, 4, 64), (None, 32, 64), (given, 1, 100), (given, 4, 25)]
        {
            assert_eq!(reactor_memory(memory, count), each_mib << 20, "{memory:?}, {count} reactors");
        }
    }
}
