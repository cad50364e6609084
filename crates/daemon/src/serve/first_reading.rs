//! Reads the configuration of a daemon that starts.
//!
//! A secret, a certificate or the folder of an unknown tape library can lie on a file system that is slow or
//! hangs. Without it the daemon cannot serve as its operator wants, and its hosts must not be refused for it:
//! the start waits, and no portal listens meanwhile.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::daemon_event::DaemonEvent;
use super::start_watch::StartWatch;
use super::{ServeError, service_manager};
use crate::config::{Config, Environment, Flags, InvalidConfig, Loaded};
use crate::mailbox::{Receiver, RecvTimeoutError, Sender, channel};

/// How often a start that waits looks for signals, and how often it reports to the service manager.
const LOOK: Duration = Duration::from_millis(200);
const REPORT: Duration = Duration::from_secs(10);

/// How a configuration is read.
pub(super) struct FirstReading<'s> {
    pub(super) flags: &'s Flags,
    pub(super) environment: &'s Environment,
    /// Whether the daemon may wait for storage.
    pub(super) may_wait: bool,
    pub(super) events: &'s Receiver<DaemonEvent>,
    pub(super) watch: &'s StartWatch,
}

impl FirstReading<'_> {
    /// Reads the configuration, and waits for what it needs. That media are not there is a warning if LUNs
    /// may wait for them.
    ///
    /// # Errors
    /// The configuration has mistakes, storage is not there and the daemon may not wait for it, or a signal
    /// has ended the start.
    pub(super) fn load(&self) -> Result<Loaded, ServeError> {
        loop {
            let unusable = match self.read_on_thread()? {
                Ok(loaded) => return Ok(loaded),
                Err(unusable) => *unusable,
            };
            let awaited = unusable.report.awaited();
            let is_of_storage = unusable.report.has_only_absent_storage();
            match unusable {
                InvalidConfig { report, config: Some(config), revision }
                    if self.may_wait && report.has_only_absent_media() =>
                {
                    return Ok(Loaded { config, report: report.with_media_warnings(), revision });
                }
                InvalidConfig { .. } if self.may_wait && is_of_storage => self.wait_for(awaited)?,
                InvalidConfig { report, .. } if is_of_storage && self.is_strict_or(&awaited) => {
                    return Err(ServeError::Storage(report));
                }
                InvalidConfig { report, .. } => return Err(ServeError::Config(report)),
            }
        }
    }

    /// Reads the configuration on a thread of its own. Linux gives a signal to the main thread before all
    /// others, and a thread that waits for a file system takes none.
    fn read_on_thread(&self) -> Result<Result<Loaded, Box<InvalidConfig>>, ServeError> {
        let Self { flags, environment, watch, .. } = *self;
        let read = || Config::read_watched(flags, environment, |file: &Path| watch.reading(file));
        std::thread::scope(|threads| {
            let thread = std::thread::Builder::new().name("configuration".to_owned());
            let reading = thread.spawn_scoped(threads, read).map_err(ServeError::Thread)?;
            Ok(reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    }

    /// Returns whether missing media are no mistakes of a command line.
    fn is_strict_or(&self, awaited: &BTreeSet<PathBuf>) -> bool {
        self.flags.strict || !awaited.is_empty()
    }

    /// Waits until these paths answer.
    fn wait_for(&self, paths: BTreeSet<PathBuf>) -> Result<(), ServeError> {
        let (done, answers) = channel();
        let mut silent = paths.len();
        let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        let status = format!("Waiting for {}", names.join(", "));
        for path in paths {
            crate::error!("{} does not answer; the start waits until it does", path.display());
            let done: Sender<()> = done.clone();
            let look = move || {
                look_at(&path);
                let _ = done.send(());
            };
            std::thread::Builder::new().name("storage".to_owned()).spawn(look).map_err(ServeError::Thread)?;
        }
        let mut report_at = Instant::now();
        while silent > 0 {
            if Instant::now() >= report_at {
                service_manager::waiting(&status, 3 * REPORT);
                report_at = Instant::now() + REPORT;
            }
            match answers.recv_timeout(LOOK) {
                Ok(()) => silent -= 1,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            if self.events.try_iter().any(|event| matches!(event, DaemonEvent::Stop)) {
                crate::info!("stopped");
                return Err(ServeError::Stopped);
            }
        }
        Ok(())
    }
}

/// Reads from a file, or from the description of the tape library in a folder. This takes as long as the file
/// system needs to answer.
fn look_at(path: &Path) {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    for path in [path.to_owned(), path.join("library")] {
        // Reading it again says what is wrong with it.
        if let Ok(mut file) = OpenOptions::new().read(true).custom_flags(flags).open(path) {
            let _ = file.read(&mut [0]);
        }
    }
}
