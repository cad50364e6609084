//! Forwards signals to the main thread as events.

use crate::mailbox::Sender;
use std::io;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

use super::daemon_event::DaemonEvent;
use super::start_watch::StartStopper;

/// Signals within this time count as one request: `timeout` and some supervisors signal a process and then
/// its process group.
const ONE_REQUEST: Duration = Duration::from_millis(250);

/// The exit code after a stop that was not in order.
const EXIT_FAILED: i32 = 1;

/// Handles the signals of the process from now on. A second signal to stop ends the process at once. `start`
/// ends a start that waits for a file which does not answer.
pub(super) fn watch(occasions: Sender<DaemonEvent>, start: StartStopper) -> io::Result<()> {
    // SIGXFSZ would kill a daemon whose file reached the file size limit of its process; with a handler, the
    // write fails with EFBIG.
    let mut signals = Signals::new([SIGHUP, SIGTERM, SIGINT, SIGXFSZ])?;
    let watch = move || {
        let mut stopping: Option<Instant> = None;
        for signal in &mut signals {
            let occasion = match signal {
                SIGHUP => DaemonEvent::Reload(None),
                SIGTERM | SIGINT => match stopping {
                    None => {
                        stopping = Some(Instant::now());
                        start.stop();
                        DaemonEvent::Stop
                    }
                    Some(since) if since.elapsed() < ONE_REQUEST => continue,
                    Some(_) => std::process::exit(EXIT_FAILED),
                },
                _ => continue,
            };
            if occasions.send(occasion).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(watch).map(drop)
}
