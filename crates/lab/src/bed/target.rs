//! The target of a bed: `targe serve` as a child process.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::namespace::{Namespace, system};
use super::{TARGET_ADDRESS, processor_time};
use crate::experiment::LabError;

/// The name of the target.
const NAME: &str = "iqn.2026-01.com.example:lab";

/// The port of the portal.
const PORT: u16 = 3260;

/// How long the target may take to end after its standard input was closed.
const END_WITHIN: Duration = Duration::from_secs(5);

/// How often the end is checked for.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The last lines of the target's messages that are kept for an error.
const LINES_KEPT: usize = 8;

/// A running target. Dropping it ends the process and removes its directory.
#[derive(Debug)]
pub struct Target {
    child: Child,
    /// Kept open so that the child never prints to a closed pipe.
    _banner: BufReader<ChildStdout>,
    messages: Arc<Mutex<VecDeque<String>>>,
    directory: PathBuf,
}

impl Target {
    pub(super) fn start(
        host: &Namespace,
        program: &Path,
        luns: &[String],
        options: &[&str],
    ) -> Result<Self, LabError> {
        let directory = state_directory().map_err(|why| system("create a directory", why))?;
        // The target removes the directory itself; this is for one that does not start.
        let mut command = command(program, luns, &directory);
        command.args(options);
        let spawned = host.run(|| command.spawn())?;
        let started = spawned
            .map_err(|why| system(&format!("start {}", program.display()), why))
            .and_then(|child| Self::wait_until_ready(child, &directory));
        if started.is_err() {
            let _ = std::fs::remove_dir_all(&directory);
        }
        started
    }

    fn wait_until_ready(mut child: Child, directory: &Path) -> Result<Self, LabError> {
        let messages = Arc::new(Mutex::new(VecDeque::new()));
        let collector = child.stderr.take().map(|stderr| collect(stderr, Arc::clone(&messages)));
        let Some(stdout) = child.stdout.take() else { return Err(LabError::Target("no stdout".to_owned())) };
        let mut banner = BufReader::new(stdout);
        let mut line = String::new();
        while !line.contains(READY) {
            line.clear();
            if !banner.read_line(&mut line).is_ok_and(|len| len > 0) {
                let _ = child.kill();
                let _ = child.wait();
                collector.map(std::thread::JoinHandle::join);
                let said = last_messages(&messages);
                return Err(LabError::Target(format!("the target does not start: {said}")));
            }
        }
        Ok(Self { child, _banner: banner, messages, directory: directory.to_owned() })
    }

    /// Returns the URL of a LUN.
    pub fn url(&self, lun: u16) -> String {
        format!("iscsi://{TARGET_ADDRESS}:{PORT}/{NAME}/{lun}")
    }

    /// Returns the process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Returns the processor time that the target has used.
    ///
    /// # Errors
    /// As [`processor_time()`].
    pub fn processor_time(&self) -> io::Result<Duration> {
        processor_time(self.process())
    }

    /// Returns why the target is not running any more, with its last messages; `None` while it is running.
    pub fn end(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(format!("the target ended: {status}; {}", last_messages(&self.messages)))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let deadline = Instant::now() + END_WITHIN;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(POLL_INTERVAL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The line of the banner after which the target serves.
const READY: &str = "State is kept";

fn command(program: &Path, luns: &[String], directory: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(["serve", "--ephemeral", "--target", NAME]);
    command.arg(format!("--listen={TARGET_ADDRESS}:{PORT}"));
    command.args(luns.iter().map(|lun| format!("--lun={lun}")));
    command.arg("--state-dir").arg(directory);
    command.arg("--socket").arg(directory.join("admin"));
    // Ctrl-C at a terminal ends the experiment, which ends the target.
    command.process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Creates a directory with an unpredictable name that only this user can enter.
fn state_directory() -> io::Result<PathBuf> {
    let mut random = [0; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    let name = format!("targe-lab-{:016x}", u64::from_ne_bytes(random));
    let directory = std::env::temp_dir().join(name);
    std::fs::DirBuilder::new().mode(0o700).create(&directory)?;
    Ok(directory)
}

/// Reads messages until the process ends, and keeps the last ones.
fn collect(
    stderr: impl Read + Send + 'static,
    kept: Arc<Mutex<VecDeque<String>>>,
) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.push_back(line);
            if kept.len() > LINES_KEPT {
                kept.pop_front();
            }
        }
    })
}

fn last_messages(messages: &Mutex<VecDeque<String>>) -> String {
    let kept = messages.lock().unwrap_or_else(PoisonError::into_inner);
    let lines: Vec<&str> = kept.iter().map(String::as_str).collect();
    if lines.is_empty() { "it printed no message".to_owned() } else { lines.join("; ") }
}
