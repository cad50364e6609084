//! Registers the targets with name servers (iSNS, RFC 4171). Each server has a thread of its own, since a
//! server that hangs must delay nothing else; crate `isns` says what to tell it.

mod event_connections;
mod server_thread;
mod wanted;

use crate::mailbox::{Sender, channel};
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::runtime_config::RuntimeConfig;
use crate::admin::api::NameServer;
use crate::config::Announced;
use server_thread::ServerThread;
use wanted::Wanted;

/// How long a stop waits until the servers have removed the registration.
const LEAVE_MAX: Duration = Duration::from_secs(2);

/// How long a new thread waits for those that leave. A server that hangs takes that long to be given up.
const BEFORE_MAX: Duration = Duration::from_secs(30);

/// The polling interval meanwhile.
const LEAVE_LOOK: Duration = Duration::from_millis(10);

/// What every name server says of the registration, for the admin socket.
#[derive(Clone, Debug, Default)]
pub(super) struct Reports(Arc<Mutex<Vec<NameServer>>>);

impl Reports {
    /// Returns the reports, in the order in which the servers were configured.
    pub(super) fn all(&self) -> Vec<NameServer> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stores the report of a server, in place of the former one.
    fn put(&self, report: NameServer) {
        let mut reports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match reports.iter_mut().find(|known| known.server == report.server) {
            Some(known) => *known = report,
            None => reports.push(report),
        }
    }

    fn remove(&self, server: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|known| known.server != server);
    }
}

/// What the main thread tells the thread of a server.
enum Command {
    /// This is to be registered.
    Register(Arc<Wanted>),
    /// The registration is to be removed, and the thread to end.
    Leave,
}

/// The thread of a server.
struct Running {
    server: Announced,
    commands: Sender<Command>,
    /// A byte written here wakes the thread.
    waker: UnixStream,
    thread: JoinHandle<()>,
    ended: Ended,
}

/// Whether a thread has said its last word to its server.
type Ended = Arc<AtomicBool>;

impl Running {
    /// Starts a thread, which begins when those in `before` have ended: what they remove could be what it
    /// registers.
    fn start(
        server: &Announced,
        wanted: &Arc<Wanted>,
        reports: &Reports,
        before: Vec<Ended>,
    ) -> io::Result<Self> {
        let (waker, wakes) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        wakes.set_nonblocking(true)?;
        let (commands, receiver) = channel();
        let thread = ServerThread::new(server.clone(), Arc::clone(wanted), receiver, wakes, reports.clone());
        let ended = Ended::default();
        let end = Arc::clone(&ended);
        let thread = std::thread::Builder::new().name("name-server".to_owned()).spawn(move || {
            let deadline = Instant::now() + BEFORE_MAX;
            while before.iter().any(|one| !one.load(Ordering::Acquire)) && Instant::now() < deadline {
                std::thread::sleep(LEAVE_LOOK);
            }
            thread.run();
            end.store(true, Ordering::Release);
        })?;
        Ok(Self { server: server.clone(), commands, waker, thread, ended })
    }

    fn tell(&self, command: Command) {
        // A thread that has ended needs no command; a full pipe wakes the thread as well.
        let _ = self.commands.send(command);
        let _ = io::Write::write(&mut &self.waker, &[0]);
    }
}

/// The name servers that run.
#[derive(Default)]
pub(super) struct NameServers {
    running: Vec<Running>,
    leaving: Vec<Running>,
    reports: Reports,
}

impl NameServers {
    /// Returns the reports of all servers, which stay up to date.
    pub(super) fn reports(&self) -> Reports {
        self.reports.clone()
    }

    /// Registers the targets of a configuration with its servers, and removes the registration from those
    /// that are not in it any more.
    pub(super) fn apply(&mut self, runtime: &RuntimeConfig) {
        let servers = runtime.config.isns.as_ref().map_or(&[][..], |isns| &isns.servers);
        self.leaving.retain(|gone| !gone.thread.is_finished());
        for gone in self.running.extract_if(.., |one| !servers.contains(&one.server)) {
            gone.tell(Command::Leave);
            self.leaving.push(gone);
        }
        let Some(wanted) = Wanted::of(runtime).map(Arc::new) else { return };
        for server in servers {
            if let Some(known) = self.running.iter().find(|one| one.server == *server) {
                known.tell(Command::Register(Arc::clone(&wanted)));
                continue;
            }
            let before = self.leaving.iter().map(|gone| Arc::clone(&gone.ended)).collect();
            match Running::start(server, &wanted, &self.reports, before) {
                Ok(started) => self.running.push(started),
                Err(why) => {
                    crate::error!("name server {server}: cannot start its thread: {}", crate::os_error(&why));
                }
            }
        }
    }

    /// Removes the registration from every server, and waits a moment until that is done.
    pub(super) fn stop(&mut self) {
        for one in self.running.drain(..) {
            one.tell(Command::Leave);
            self.leaving.push(one);
        }
        let deadline = Instant::now() + LEAVE_MAX;
        while self.leaving.iter().any(|one| !one.thread.is_finished()) && Instant::now() < deadline {
            std::thread::sleep(LEAVE_LOOK);
        }
    }
}
