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
use crate::serve::upgrade::messages::{Answer, Hello};
use crate::serve::upgrade::{MESSAGE_MAX, VARIABLE};

/// How long the process may take until it says its release.
const HELLO_MAX: Duration = Duration::from_secs(30);

/// How long a process may take to end after its end of the connection was closed.
const END_MAX: Duration = Duration::from_millis(500);

/// What the service manager told this process about its sockets and its watchdog, which does not hold for
/// another process.
const OURS: [&str; 4] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "WATCHDOG_PID"];

/// A process that is ended when this is dropped.
pub(super) struct Process {
    child: Option<Child>,
    channel: Channel,
    binary: PathBuf,
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

    /// Returns its process ID.
    pub(super) fn id(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Waits for its first message, and checks that it reads what this release writes.
    pub(super) fn hello(&mut self) -> Result<Hello, String> {
        let (hello, _) = match self.channel.receive::<Hello>(HELLO_MAX) {
            Ok(hello) => hello,
            Err(error) => return Err(self.failure("says that it can take over", &error)),
        };
        let binary = self.binary.display();
        if hello.magic != MAGIC {
            return Err(format!("{binary} is not targe"));
        }
        if !hello.formats.contains(&FORMAT) {
            return Err(format!(
                "{binary} is targe {}, which does not read the state of sessions that targe {} writes; restart targe to \
                 change to it",
                hello.version,
                env!("CARGO_PKG_VERSION")
            ));
        }
        Ok(hello)
    }

    /// Sends a message.
    pub(super) fn send<T: Serialize>(&mut self, message: &T, descriptors: &[OwnedFd]) -> Result<(), String> {
        let sent = self.channel.send(message, descriptors, MESSAGE_MAX);
        sent.map_err(|error| self.failure("receives a message", &error))
    }

    /// Sends bytes.
    pub(super) fn send_bytes(&mut self, bytes: &[u8], descriptors: &[OwnedFd]) -> Result<(), String> {
        let sent = self.channel.send_bytes(bytes, descriptors, MESSAGE_MAX);
        sent.map_err(|error| self.failure("receives the sessions", &error))
    }

    /// Waits for its next message.
    ///
    /// # Errors
    /// Why it cannot take over.
    pub(super) fn answer(&mut self, step: &str, within: Duration) -> Result<Answer, String> {
        match self.channel.receive::<Answer>(within) {
            Ok((Answer::Failed(why), _)) => {
                Err(format!("{} cannot take over: {}", self.binary.display(), why.trim_end()))
            }
            Ok((answer, _)) => Ok(answer),
            Err(error) => Err(self.failure(step, &error)),
        }
    }

    /// Lets the process go on; returns its process ID.
    pub(super) fn leave(mut self) -> u32 {
        self.child.take().map_or(0, |child| child.id())
    }

    /// Returns a sentence about a process that does not do what is expected next.
    fn failure(&mut self, step: &str, error: &io::Error) -> String {
        let binary = self.binary.display();
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
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
            let _ = child.wait();
        }
    }
}
