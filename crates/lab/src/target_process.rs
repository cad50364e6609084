//! A target as a child process, on a host of a [bed](crate::bed) or on this one.
//!
//! The process, what it started and its directory end with the value, and also when this process is killed:
//! the kernel then closes the standard input of the child, which ends at that. `targe serve --ephemeral` does
//! so by itself ([`ServedTarget`]); other programs run under a [`supervisor`], a shell.

mod directory;
mod messages;
mod served;
pub mod supervisor;
#[cfg(test)]
mod tests;
mod usage;

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::bed::Namespace;
use crate::experiment::LabError;

pub use directory::PrivateDirectory;
pub use served::{ServedTarget, encrypted_group};
pub(crate) use usage::{SplitTime, split_time};
pub use usage::{ThreadSwitches, processor_time, voluntary_switches};

use messages::Messages;

/// How long a target may take to end after its standard input was closed.
const END_WITHIN: Duration = Duration::from_secs(10);

/// How often the end is checked for.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A running child and its directory. Dropping it ends the child and removes the directory.
#[derive(Debug)]
pub struct TargetProcess {
    child: Child,
    /// Kept open so that the child never prints to a closed pipe.
    stdout: BufReader<ChildStdout>,
    messages: Messages,
    /// The program under a supervisor; without one, the child itself.
    program: Option<u32>,
    directory: PrivateDirectory,
}

impl TargetProcess {
    /// Starts a command on a host of a bed, or on this one. It must end when its standard input closes. Its
    /// messages are read from its standard error.
    ///
    /// # Errors
    /// [`LabError::System`]
    pub fn start(
        host: Option<&Namespace>,
        mut command: Command,
        directory: PrivateDirectory,
    ) -> Result<Self, LabError> {
        let what = format!("start {}", command.get_program().display());
        // Ctrl-C at a terminal ends the experiment, which ends the target. The group is also what is
        // measured and what is killed.
        command.process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let spawned = match host {
            Some(host) => host.run(|| command.spawn())?,
            None => command.spawn(),
        };
        let system = |why| LabError::System { what: what.clone(), why };
        let mut child = spawned.map_err(system)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let pipes = stdout.zip(stderr).ok_or_else(|| system(io::ErrorKind::BrokenPipe.into()));
        let (stdout, stderr) = pipes?;
        let messages = Messages::collect(stderr);
        Ok(Self { child, stdout: BufReader::new(stdout), messages, program: None, directory })
    }

    /// Reads lines from the standard output until `found` returns something.
    ///
    /// # Errors
    /// [`LabError::Target`] with the last messages if the output ends before.
    pub fn read_until<T>(&mut self, mut found: impl FnMut(&str) -> Option<T>) -> Result<T, LabError> {
        let mut line = String::new();
        loop {
            line.clear();
            if !self.stdout.read_line(&mut line).is_ok_and(|len| len > 0) {
                drop(self.child.stdin.take());
                let _ = self.wait();
                return Err(LabError::Target(format!("the target does not start: {}", self.messages())));
            }
            if let Some(value) = found(&line) {
                return Ok(value);
            }
        }
    }

    /// Returns the process: under a supervisor the program that it started, if it started one.
    pub fn process(&self) -> u32 {
        self.program.unwrap_or_else(|| self.child.id())
    }

    /// Returns the directory of the target.
    pub const fn directory(&self) -> &PrivateDirectory {
        &self.directory
    }

    /// Returns the last messages of the target, in one line. If the target has ended, they are complete.
    pub fn messages(&self) -> String {
        self.messages.last()
    }

    /// Returns the last messages that have been read so far, in one line.
    pub fn messages_now(&self) -> String {
        self.messages.so_far()
    }

    /// Returns why the target is not running any more, with its last messages; `None` while it is running.
    pub fn end(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        let how = match status.code() {
            // A shell reports the signal that ended its child so.
            Some(code) if self.program.is_some() && code > SHELL_SIGNAL => {
                format!("signal: {}", code - SHELL_SIGNAL)
            }
            _ => status.to_string(),
        };
        Some(format!("the target ended: {how}; {}", self.messages()))
    }

    /// Returns the processes of the target.
    pub fn processes(&self) -> Vec<u32> {
        usage::processes_of_group(self.child.id(), self.program)
    }

    /// Returns the processor time of all processes of the target together. Threads that have ended count,
    /// processes that have ended do not.
    ///
    /// # Errors
    /// As [`processor_time`], if there is no process.
    pub fn processor_time(&self) -> io::Result<Duration> {
        let processes = self.processes();
        if processes.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        // A process may end between the listing and the reading.
        Ok(processes.into_iter().filter_map(|process| processor_time(process).ok()).sum())
    }

    /// Returns the resident memory of all processes of the target together, in bytes.
    pub fn resident(&self) -> u64 {
        self.processes().into_iter().filter_map(usage::resident).sum()
    }

    /// Stops all processes of the target, or lets them continue. A supervisor is never stopped.
    pub fn pause(&self, paused: bool) {
        let signal = if paused { Signal::STOP } else { Signal::CONT };
        for process in self.processes() {
            // It may have ended.
            let _ = pid(process).map(|pid| kill_process(pid, signal));
        }
    }

    /// Waits until the child ends by itself, and kills its group if it does not, or if something is left of
    /// it.
    fn wait(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + END_WITHIN;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(POLL_INTERVAL);
        }
        let _ = pid(self.child.id()).map(|pid| kill_process_group(pid, Signal::KILL));
        self.child.wait().map(drop)
    }
}

impl Drop for TargetProcess {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.wait();
    }
}

/// The exit code of a shell whose child was ended by a signal is the signal's number and this.
const SHELL_SIGNAL: i32 = 128;

fn pid(process: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(process).ok()?)
}
