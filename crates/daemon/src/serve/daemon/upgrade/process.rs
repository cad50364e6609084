//! The process that is to take over, as the one that serves sees it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::io::{FdFlags, fcntl_setfd};
use serde::Serialize;

use crate::serve::upgrade::channel::Channel;
use crate::serve::upgrade::document::{FORMAT, MAGIC};
use crate::serve::upgrade::messages::{Answer, Commit, Hello};
use crate::serve::upgrade::{MESSAGE_MAX, VARIABLE};

/// How long the process may take until it says its release.
const HELLO_MAX: Duration = Duration::from_secs(30);

/// How long a process may take to end after its end of the connection was closed.
const END_MAX: Duration = Duration::from_millis(500);

/// How often the main thread checks for what else it is told while it waits for the process.
const ATTEND_INTERVAL: Duration = Duration::from_millis(100);

/// How long a process that has the sessions may take to receive that they are its own.
const COMMIT_MAX: Duration = Duration::from_millis(500);

/// What the service manager told this process about its sockets and its watchdog, which does not hold for
/// another process.
const OURS: [&str; 4] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID"];

/// What the main thread does while it waits; an error ends the wait.
pub(super) type Attend<'a> = dyn FnMut() -> Result<(), String> + 'a;

/// A process that is ended when this is dropped.
pub(super) struct Process {
    child: Option<Child>,
    channel: Channel,
    binary: PathBuf,
}

/// Why the process does not take over.
pub(super) enum Refusal {
    /// It says so.
    Said(String),
    /// It does not do what it was to do next.
    Failed(&'static str, io::Error),
}

impl Refusal {
    /// Returns whether the process has not done something in time.
    pub(super) fn is_late(&self) -> bool {
        matches!(self, Self::Failed(_, error) if is_late(error))
    }
}

/// What became of the sessions when they were given to the process.
pub(super) enum Outcome {
    /// It serves them.
    Served,
    /// It never got them, and never will.
    Kept(Refusal),
    /// It got them, and does not say that it serves them.
    Lost(Refusal),
}

impl Process {
    /// Starts the program with the arguments and the environment of this process.
    pub(super) fn start(binary: PathBuf) -> Result<Self, String> {
        let failed =
            |error: io::Error| format!("cannot start {}: {}", binary.display(), crate::os_error(&error));
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        // The child inherits it by its number. No other thread of the daemon starts a program.
        fcntl_setfd(&theirs, FdFlags::empty()).map_err(|errno| failed(errno.into()))?;
        let mut command = Command::new(&binary);
        command.args(std::env::args_os().skip(1)).env(VARIABLE, theirs.as_raw_fd().to_string());
        for name in OURS {
            command.env_remove(name);
        }
        let child = command.spawn().map_err(failed)?;
        Ok(Self { child: Some(child), channel: Channel::new(ours), binary })
    }

    /// Waits for its first message, and checks that it reads the format that this process writes. Returns its
    /// release.
    pub(super) fn hello(&mut self, attend: &mut Attend<'_>) -> Result<String, String> {
        let step = "says that it can take over";
        self.wait(step, HELLO_MAX, attend)?;
        let (hello, _) = match self.channel.receive::<Hello>(MESSAGE_MAX) {
            Ok(hello) => hello,
            Err(error) => return Err(self.failure(step, &error)),
        };
        let binary = self.binary.display();
        if hello.magic != MAGIC {
            return Err(format!("{binary} is not targe"));
        }
        if hello.format != FORMAT {
            return Err(format!(
                "{binary} is targe {}, which does not read the state of sessions that targe {} writes; restart targe to \
                 change to it",
                hello.version,
                env!("CARGO_PKG_VERSION")
            ));
        }
        Ok(hello.version)
    }

    /// Sends a message.
    pub(super) fn send<T: Serialize>(&mut self, message: &T, descriptors: &[OwnedFd]) -> Result<(), String> {
        let sent = self.channel.send(message, descriptors, MESSAGE_MAX);
        sent.map_err(|error| self.failure("receives a message", &error))
    }

    /// Waits for its next message.
    ///
    /// # Errors
    /// Why it cannot take over.
    pub(super) fn answer(
        &mut self,
        step: &'static str,
        within: Duration,
        attend: &mut Attend<'_>,
    ) -> Result<Answer, String> {
        self.wait(step, within, attend)?;
        self.receive(step, Instant::now() + MESSAGE_MAX).map_err(|refusal| self.explain(refusal))
    }

    /// Waits until the process has said something, or has ended.
    fn wait(&mut self, step: &str, within: Duration, attend: &mut Attend<'_>) -> Result<(), String> {
        let deadline = Instant::now() + within;
        loop {
            attend()?;
            let left = deadline.saturating_duration_since(Instant::now());
            match self.channel.is_readable(left.min(ATTEND_INTERVAL)) {
                Ok(true) => return Ok(()),
                Ok(false) if left.is_zero() => {
                    return Err(self.failure(step, &io::ErrorKind::TimedOut.into()));
                }
                Ok(false) => {}
                Err(error) => return Err(self.failure(step, &error)),
            }
        }
    }

    fn receive(&self, step: &'static str, deadline: Instant) -> Result<Answer, Refusal> {
        match self.channel.receive::<Answer>(deadline.saturating_duration_since(Instant::now())) {
            Ok((Answer::Failed(why), _)) => Err(Refusal::Said(why)),
            Ok((answer, _)) => Ok(answer),
            Err(error) => Err(Refusal::Failed(step, error)),
        }
    }

    /// Gives it the sessions, and waits until it has resumed them.
    ///
    /// # Errors
    /// The other process did not take this step before `deadline`. [`Self::explain`] makes a sentence of it.
    pub(super) fn give(
        &self,
        document: &[u8],
        sockets: &[OwnedFd],
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let within = deadline.saturating_duration_since(Instant::now());
        let sent = self.channel.send_bytes(document, sockets, within);
        sent.map_err(|error| Refusal::Failed("receives the sessions", error))?;
        match self.receive("takes over the sessions", deadline)? {
            Answer::Ready => Ok(()),
            other => Err(Refusal::Said(format!("it says {other:?} instead of taking over the sessions"))),
        }
    }

    /// Tells it that the sessions are its own, and waits until it serves them.
    pub(super) fn commit(&mut self) -> Outcome {
        let step = "serves the sessions";
        if let Err(error) = self.channel.send(&Commit, &[], COMMIT_MAX) {
            // It ends without the whole message.
            return Outcome::Kept(Refusal::Failed(step, error));
        }
        let is_silent = matches!(self.channel.is_readable(COMMIT_MAX), Ok(false));
        let is_killed = is_silent && self.has_not_received();
        if is_killed {
            // It must not receive the message later.
            let _ = self.child.as_mut().map(Child::kill);
        }
        match self.receive(step, Instant::now() + MESSAGE_MAX) {
            Ok(Answer::Serving) if !is_killed => Outcome::Served,
            // It received the message right before it was killed.
            Ok(Answer::Serving) => Outcome::Lost(Refusal::Failed(step, io::ErrorKind::TimedOut.into())),
            Ok(other) => {
                Outcome::Lost(Refusal::Said(format!("it says {other:?} instead of serving the sessions")))
            }
            // A process says this only if it has not received the message, and ends.
            Err(said @ Refusal::Said(_)) => Outcome::Kept(said),
            // The kernel resets the connection if the process ended before it received everything.
            Err(Refusal::Failed(step, error)) if error.kind() == io::ErrorKind::ConnectionReset => {
                let error = if is_silent { io::ErrorKind::TimedOut.into() } else { error };
                Outcome::Kept(Refusal::Failed(step, error))
            }
            // A process that waits for a device ends late, but a killed one receives nothing more.
            Err(late) if is_killed && self.has_not_received() => Outcome::Kept(late),
            Err(lost) => Outcome::Lost(lost),
        }
    }

    /// Returns whether the process has not received the last message.
    fn has_not_received(&self) -> bool {
        self.channel.has_unreceived().unwrap_or(false)
    }

    /// Returns whether the process has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        self.child.as_mut().and_then(end_of).is_some()
    }

    /// Returns a sentence about a process that does not take over. It waits a moment for the end of the
    /// process.
    pub(super) fn explain(&mut self, refusal: Refusal) -> String {
        match refusal {
            Refusal::Said(why) => format!("{} cannot take over: {}", self.binary.display(), why.trim_end()),
            Refusal::Failed(step, error) => self.failure(step, &error),
        }
    }

    /// Lets the process go on when this is dropped; returns its process ID.
    pub(super) fn release(&mut self) -> u32 {
        self.child.take().map_or(0, |child| child.id())
    }

    /// Returns a sentence about a process that does not do what is expected next.
    fn failure(&mut self, step: &str, error: &io::Error) -> String {
        let binary = self.binary.display();
        match error.kind() {
            _ if is_late(error) => {
                format!("{binary} does not answer in time: it was to be the process that {step}")
            }
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                let status = self.child.as_mut().and_then(end_of);
                let status = status.map_or(String::new(), |status| format!(" ({status})"));
                format!(
                    "{binary} ended{status} before it was the process that {step}; its messages are in the log"
                )
            }
            _ => format!("{binary}: {}", crate::os_error(error)),
        }
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

/// Waits a moment for the end of a process.
fn end_of(child: &mut Child) -> Option<std::process::ExitStatus> {
    let deadline = Instant::now() + END_MAX;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            ended => return ended.ok().flatten(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It fails for a process that has ended already.
            let _ = child.kill();
            // A process that waits for a device can take long to end.
            let reap = move || drop(child.wait());
            let reaper = std::thread::Builder::new().name("reaper".to_owned()).spawn(reap);
            if let Err(error) = reaper {
                crate::debug!("upgrade: cannot wait for the other process: {}", crate::os_error(&error));
            }
        }
    }
}
