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
            // It fails only when the counter is full, and then the sleeper is awake already.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Makes the descriptor unreadable, when `poll` says it is readable. Call it before looking at what the wake-ups
    /// were for.
    pub(crate) fn reset(&self) {
        // Read first: whoever wakes between the two lines is seen by the caller's look, and at worst wakes once more.
        // It fails when there is nothing to read, which is what we want.
        let _ = rustix::io::read(&self.event, &mut [0_u8; 8][..]);
        self.signalled.swap(false, Ordering::AcqRel);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
