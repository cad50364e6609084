//! A signal that ends a command while its session is up: the target is told first. One that is reached over HyperSCSI has no
//! connection that breaks, and would hold the session, with what it reserved, until it finds that nobody is there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use initiator::client::Session;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::Failure;

/// How long what is under way may take to end, so that the session can be logged out; and then a goodbye that waits for
/// nothing, to leave.
const LOGOUT_MAX: Duration = Duration::from_millis(800);
const CLOSE_MAX: Duration = Duration::from_millis(200);

/// Whether a signal has come, so that what the command comes to is nobody's business any more.
static ENDING: AtomicBool = AtomicBool::new(false);

/// A session that is logged out when a signal ends the process. The signal then does what it does to every program.
#[derive(Debug)]
pub(crate) struct Guard {
    session: Arc<Mutex<Option<Session>>>,
}

impl Guard {
    /// Looks after a session until this is dropped.
    pub(crate) fn new(session: &Session) -> Result<Self, Failure> {
        let ignored = ignored_signals();
        let wanted = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
        let failed = |error: std::io::Error| Failure::Failed(format!("cannot take over signals: {error}"));
        let mut signals = Signals::new(wanted).map_err(failed)?;
        let held = Arc::new(Mutex::new(Some(session.clone())));
        let session = Arc::clone(&held);
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                let Some(signal) = signals.forever().next() else { return };
                ENDING.store(true, Ordering::SeqCst);
                if let Some(session) = take(&held) {
                    say_goodbye(&session);
                }
                // Should it not end the process, the code that a shell gives to such an end does.
                let _ = emulate_default_handler(signal);
                std::process::exit(128 + signal);
            })
            .map_err(failed)?;
        Ok(Self { session })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        take(&self.session);
    }
}

fn take(held: &Mutex<Option<Session>>) -> Option<Session> {
    held.lock().unwrap_or_else(PoisonError::into_inner).take()
}

fn say_goodbye(session: &Session) {
    let gone = session.log_out();
    let (tell, told) = channel();
    // Whoever waits for an answer may wait longer than we do.
    let waiter = std::thread::Builder::new().spawn(move || {
        let _ = gone.wait();
        let _ = tell.send(());
    });
    if waiter.is_ok() && told.recv_timeout(LOGOUT_MAX).is_err() {
        // A command that is never answered would keep it for ever.
        session.close();
        let _ = told.recv_timeout(CLOSE_MAX);
    }
}

/// Returns the signals that whoever started us wants to be ignored (`nohup`, a shell's background), as a mask.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Lets the end that a signal asked for come, if one did: a command that lost its session to it has nothing to tell.
pub(crate) fn give_way() {
    while ENDING.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// Returns a flag that SIGINT and SIGTERM set. A second signal ends the process at once.
pub(crate) fn flag() -> Result<Arc<AtomicBool>, Failure> {
    let ends = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered = signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&ends))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&ends)));
        registered.map_err(|error| Failure::Failed(format!("cannot take over signals: {error}")))?;
    }
    Ok(ends)
}
