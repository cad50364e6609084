//! Wakes a thread that sleeps until a descriptor is readable: a reactor, or a thread in `poll`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd with a flag in front of it, so that many wake-ups cost one system call.
#[derive(Debug)]
pub struct Waker {
    signalled: AtomicBool,
    event: OwnedFd,
}

impl Waker {
    /// Creates the descriptor.
    ///
    /// # Errors
    /// The process or the system has too many open descriptors.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { signalled: AtomicBool::new(false), event })
    }

    /// Wakes the thread. It sees everything that was queued before this call.
    pub fn wake(&self) {
        if !self.signalled.swap(true, Ordering::AcqRel) {
            // It fails only when the counter is full, and then the thread is awake already.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Waits until another thread calls [`Self::wake`].
    pub fn wait(&self) {
        let mut fds = [rustix::event::PollFd::new(self, rustix::event::PollFlags::IN)];
        // A wait that fails ends early, and the caller looks again.
        let _ = rustix::event::poll(&mut fds, None);
    }

    /// Makes the descriptor unreadable until the next wake-up, for an engine that polls level-triggered.
    pub(crate) fn reset(&self) {
        // It fails when there is nothing to read, which is the desired state.
        let _ = rustix::io::read(&self.event, &mut [0_u8; 8][..]);
    }

    /// Makes the descriptor unreadable until the next wake-up. The woken thread calls this first, and only
    /// then checks what the wake-ups were for.
    pub fn clear(&self) {
        // The read comes first: a thread that calls `wake` between the two has queued its work before the
        // woken thread checks for it, and at worst wakes it once more.
        self.reset();
        self.take();
    }

    /// Returns whether another thread called [`Self::wake`] since the last call.
    pub(crate) fn take(&self) -> bool {
        self.signalled.load(Ordering::Relaxed) && self.signalled.swap(false, Ordering::AcqRel)
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl AsRawFd for Waker {
    fn as_raw_fd(&self) -> RawFd {
        self.event.as_raw_fd()
    }
}
