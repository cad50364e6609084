//! Handles panics of threads: a panic is counted and logged, and stops the daemon in order, because no other
//! thread takes over the work of the thread that panicked.

use crate::mailbox::Sender;
use std::panic::PanicHookInfo;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use super::daemon_event::DaemonEvent;

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Returns how many threads of this process panicked.
pub(super) fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// Replaces the panic hook of the process.
pub(super) fn install_hook(occasions: Sender<DaemonEvent>) {
    // The hook is called by any thread, and by several at the same time.
    let occasions = Mutex::new(occasions);
    std::panic::set_hook(Box::new(move |info| panicked(info, &occasions)));
}

fn panicked(info: &PanicHookInfo<'_>, occasions: &Mutex<Sender<DaemonEvent>>) {
    COUNT.fetch_add(1, Ordering::Relaxed);
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    let place = info.location().map_or(String::new(), |at| format!(" at {at}"));
    let payload = info.payload();
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let message = text.unwrap_or("no message");
    crate::error!("thread {name} panicked{place}: {message}; this is a bug in targe");
    // If the main thread itself panics, no thread receives the event, and the process ends with the main
    // thread.
    let _ = occasions.lock().unwrap_or_else(PoisonError::into_inner).send(DaemonEvent::ThreadPanicked);
}

#[cfg(test)]
mod tests {
    use crate::mailbox::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_panic_of_any_thread_is_counted_and_told() {
        let (sender, receiver) = channel();
        let before = count();
        install_hook(sender);
        let ended =
            std::thread::Builder::new().name("any".to_owned()).spawn(|| panic!("on purpose")).unwrap();
        assert!(ended.join().is_err());
        let told = receiver.recv_timeout(Duration::from_secs(60));
        drop(std::panic::take_hook());
        assert!(matches!(told, Ok(DaemonEvent::ThreadPanicked)));
        assert!(count() > before);
    }
}
