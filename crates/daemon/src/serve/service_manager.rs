//! Tells the service manager the state of the daemon (`sd_notify(3)`). Nothing is sent unless a service
//! manager asks for it.

use crate::mailbox::{Receiver, RecvTimeoutError, Sender, channel};
use std::io;
use std::sync::Once;
use std::time::{Duration, Instant};

use sd_notify::NotifyState;

use super::reactor_shard::ReactorShard;
use super::reactors::ReactorThread;

/// The daemon serves, for the first time or again after a reload.
pub(super) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The start waits for storage, and takes this much longer at least.
pub(super) fn waiting(status: &str, more: Duration) {
    let more = u32::try_from(more.as_micros()).unwrap_or(u32::MAX);
    tell(&[NotifyState::ExtendTimeoutUsec(more), NotifyState::Status(status)]);
}

/// The daemon reads its configuration again.
pub(super) fn reloading() {
    // Without the time, systemd 253 and later would fail the reload.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now, NotifyState::Status("Reloading the configuration")]),
        Err(error) => warn(&error),
    }
}

/// The daemon ends its sessions.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("Logging sessions out")]);
}

/// Another process is the main process of the service from now on, and serves. What it said of that itself
/// before was ignored.
pub(super) fn main_process(pid: u32, status: &str) {
    tell(&[NotifyState::MainPid(pid), NotifyState::Status(status)]);
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn(&error);
    }
}

/// Logs the first failure: others follow from the same cause.
fn warn(error: &io::Error) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        crate::warning!("cannot send messages to the service manager: {}", crate::os_error(error));
    });
}

/// Makes a reactor answer: it drops the sender once it has processed what was posted before.
type Ask = Box<dyn Fn(Sender<()>) + Send>;

/// A thread that tells the service manager that the daemon is alive, as long as every reactor answers. It
/// ends when this is dropped.
#[derive(Debug)]
pub(super) struct Watchdog {
    /// The first message makes the thread begin.
    end: Sender<()>,
}

impl Watchdog {
    /// Starts the thread, if the service manager expects signs of life. It tells nothing yet.
    pub(super) fn start(reactors: &[ReactorThread]) -> io::Result<Option<Self>> {
        let Some(within) = sd_notify::watchdog_enabled().filter(|within| !within.is_zero()) else {
            return Ok(None);
        };
        let asks = reactors.iter().map(|running| -> Ask {
            let handle = running.handle.clone();
            Box::new(move |answer| {
                // A reactor that has ended drops the answer. Its end is an event of its own.
                let _ = handle.post(move |_: &mut ReactorShard, _| drop(answer));
            })
        });
        let asks: Vec<Ask> = asks.collect();
        let (end, ends) = channel();
        let watch = move || {
            if ends.recv().is_ok() {
                watch(&asks, within / 4, &ends, || tell(&[NotifyState::Watchdog]));
            }
        };
        std::thread::Builder::new().name("watchdog".to_owned()).spawn(watch)?;
        Ok(Some(Self { end }))
    }

    /// Tells the service manager from now on.
    pub(super) fn begin(&self) {
        // The thread receives until this is dropped.
        let _ = self.end.send(());
    }
}

/// Calls `alive` once each interval in which every reactor has answered. A reactor that hangs delays it until
/// that reactor answers.
fn watch(asks: &[Ask], interval: Duration, ends: &Receiver<()>, mut alive: impl FnMut()) {
    loop {
        let next = Instant::now() + interval;
        let (answer, answered) = channel::<()>();
        asks.iter().for_each(|ask| ask(answer.clone()));
        drop(answer);
        // The channel is closed once all reactors have dropped their senders.
        while answered.recv().is_ok() {}
        alive();
        if ends.recv_timeout(next.saturating_duration_since(Instant::now())) != Err(RecvTimeoutError::Timeout)
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reactor_that_hangs_silences_the_watchdog_until_it_answers() {
        let (asked, questions) = channel();
        let (end, ends) = channel();
        let (alive, signs) = channel();
        let asks: Vec<Ask> = vec![Box::new(drop), Box::new(move |answer| drop(asked.send(answer)))];
        let thread = std::thread::spawn(move || {
            watch(&asks, Duration::from_millis(1), &ends, || alive.send(()).unwrap());
        });
        for _ in 0..3 {
            // The reactor was asked, and has not answered.
            let question = questions.recv().unwrap();
            assert!(signs.try_recv().is_err());
            drop(question);
            signs.recv().unwrap();
        }
        drop(end);
        // It may have asked once more.
        drop(questions);
        thread.join().unwrap();
    }
}
