//! Wakes a thread that sleeps in `poll`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd with a flag in front of it, so that many wake-ups cost one system call.
#[derive(Debug)]
pub(crate) struct Waker {
    signalled: AtomicBool,
    event: OwnedFd,
}

impl Waker {
    pub(crate) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { signalled: AtomicBool::new(false), event })
    }

    /// Makes the descriptor readable until [`Self::reset`].
    pub(crate) fn wake(&self) {
        if !self.signalled.swap(true, Ordering::AcqRel) {
            // The write fails only when the counter is full, and then the sleeping thread is awake already.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Makes the descriptor unreadable, when `poll` reports that it is readable. The caller resets first, and
    /// only then checks what the wake-ups were for.
    pub(crate) fn reset(&self) {
        // The read precedes the swap: a thread that calls `wake` between the two has queued its work before
        // the caller checks for it, and at worst causes one more wake-up. The read fails when there is
        // nothing to read, which does no harm.
        let _ = rustix::io::read(&self.event, &mut [0_u8; 8][..]);
        self.signalled.swap(false, Ordering::AcqRel);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
