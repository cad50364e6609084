//! The counters of a reactor.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one reactor since its start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The same counters where other threads can read them.
        #[derive(Debug, Default)]
        pub(crate) struct Published {
            $($name: AtomicU64,)*
        }

        impl Published {
            pub(crate) fn store(&self, stats: &Stats) {
                $(self.$name.store(stats.$name, Ordering::Relaxed);)*
            }

            pub(crate) fn load(&self) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

stats! {
    /// How many times the reactor woke up.
    wakeups,
    /// System calls that wait or submit: `io_uring_enter` or `epoll_wait`.
    enters,
    /// Receives that returned data or the end of the stream.
    receives,
    /// Sends that the kernel completed.
    sends,
    /// Bytes received.
    bytes_in,
    /// Bytes sent.
    bytes_out,
    /// Connections accepted by listeners, or adopted.
    accepts,
    /// Connections refused because of a limit.
    refused,
    /// Accepts that failed because no descriptor or memory was left.
    accept_failures,
    /// File operations that the calling thread did itself.
    file_inline,
    /// File operations that io_uring did.
    file_ring,
    /// File operations that the thread pool did.
    file_threads,
    /// Frames received.
    frames_in,
    /// Frames sent.
    frames_out,
    /// Frames that were lost because the receive buffer of the port was full.
    frames_dropped,
    /// Frames that were not sent because they were longer than the interface allows.
    frames_too_long,
    /// Frames that were not sent for another reason.
    frames_unsent,
    /// How many times a port paused sending because the link or the receiver was full.
    frame_rests,
    /// Connections open now.
    connections,
}

impl Stats {
    pub(crate) fn bump(counter: &mut u64, by: usize) {
        *counter = counter.wrapping_add(u64::try_from(by).unwrap_or(u64::MAX));
    }
}
