//! Signals become occasions for the main thread.

use std::io;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

use super::daemon::DaemonEvent;

/// Signals this close together are one request: `timeout` and some supervisors signal a process and then its group.
const ONE_REQUEST: Duration = Duration::from_millis(250);

/// The exit code of an end that was not in order.
const EXIT_FAILED: i32 = 1;

/// Takes over the signals of the process. A second one that asks for the end is obeyed at once.
pub(super) fn watch(occasions: Sender<DaemonEvent>) -> io::Result<()> {
    // SIGXFSZ would kill a daemon whose file reached the limit of its process; caught, the write fails with EFBIG.
    let mut signals = Signals::new([SIGHUP, SIGTERM, SIGINT, SIGXFSZ])?;
    let watch = move || {
        let mut stopping: Option<Instant> = None;
        for signal in &mut signals {
            let occasion = match signal {
                SIGHUP => DaemonEvent::Reload,
                SIGTERM | SIGINT => match stopping {
                    None => {
                        stopping = Some(Instant::now());
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
