//! The submission queue and the completion queue, and the tags that match each completion with its operation.
#![allow(unsafe_code, reason = "what stands in the submission queue points to memory")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use io_uring::types::{CancelBuilder, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};

use super::no_cqe_send::{self, ProbeResult};
use super::provided::{GROUP, ProvidedBuffers};
use crate::files::Errno;

/// Entries of the submission queue. A drain that starts more operations submits in between.
const SUBMISSIONS: u32 = 512;

/// Entries of the completion queue: a receive and a send of each of 2,000 connections. The kernel keeps
/// completions that do not fit and delivers them in the next turn.
const COMPLETIONS: u32 = 4096;

/// `IORING_ENTER_GETEVENTS` of linux/io_uring.h: runs the deferred work that produces completions.
const ENTER_GETEVENTS: u32 = 1;

/// The owner of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    Receive(u32),
    Send(u32),
    File(u32),
    Listener(u32),
    Dial(u32),
    Watch(u32),
    Frame(u32),
    FrameSent(u32),
    Timer,
    TimerChange,
    Waker,
    Cancel,
}

/// The end of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    pub(super) tag: Tag,
    pub(super) result: Result<usize, Errno>,
    /// The provided buffer that the operation filled.
    pub(super) buffer: Option<u16>,
    /// The socket has more data to receive.
    pub(super) more_in_socket: bool,
}

pub(super) struct Ring {
    ring: IoUring,
    /// Always present, except while `drop` runs.
    buffers: Option<ProvidedBuffers>,
    /// Entries that did not fit into the submission queue.
    waiting: VecDeque<squeue::Entry>,
    in_flight: usize,
    enters: usize,
    sends_silently: bool,
}

impl Ring {
    /// Creates a ring, and finds out whether it supports sends without a completion on success.
    pub(super) fn new() -> Result<Self, String> {
        let mut ring = Self::open()?;
        if ring.ring.params().is_feature_skip_cqe_on_success() {
            match no_cqe_send::try_out(&mut ring) {
                ProbeResult::Works => ring.sends_silently = true,
                ProbeResult::Differs => {}
                ProbeResult::Unclear => ring = Self::open()?,
            }
        }
        Ok(ring)
    }

    fn open() -> Result<Self, String> {
        let ring = build().map_err(|why| format!("io_uring_setup: {why}"))?;
        let features = ring.params();
        if !(features.is_feature_ext_arg() && features.is_feature_nodrop() && features.is_feature_fast_poll())
        {
            return Err("the kernel is older than 5.11".to_owned());
        }
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe).map_err(|why| format!("io_uring_register: {why}"))?;
        let needed = [
            opcode::Recv::CODE,
            opcode::RecvMsg::CODE,
            opcode::Send::CODE,
            opcode::SendMsg::CODE,
            opcode::PollAdd::CODE,
            opcode::AsyncCancel::CODE,
            opcode::Read::CODE,
            opcode::Readv::CODE,
            opcode::Write::CODE,
            opcode::Writev::CODE,
            opcode::Timeout::CODE,
            opcode::TimeoutUpdate::CODE,
        ];
        if let Some(missing) = needed.into_iter().find(|code| !probe.is_supported(*code)) {
            return Err(format!("the kernel lacks operation {missing}"));
        }
        let buffers = ProvidedBuffers::register(&ring)
            .map_err(|why| format!("the kernel has no buffer rings: {why}"))?;
        Ok(Self {
            ring,
            buffers: Some(buffers),
            waiting: VecDeque::new(),
            in_flight: 0,
            enters: 0,
            sends_silently: false,
        })
    }

    /// Makes `bell` readable whenever an operation completes. The descriptor of the ring itself would not do:
    /// completions that are produced only on request do not make it readable.
    pub(super) fn ring_bell(&self, bell: &OwnedFd) -> io::Result<()> {
        self.ring.submitter().register_eventfd(bell.as_raw_fd())
    }

    /// Lets the kernel use up to `count` workers for operations on files that it cannot begin without
    /// waiting. Their default number is small, and operations on a disk that hangs would take all of them.
    pub(super) fn allow_workers(&self, count: usize) {
        let mut limits = [u32::try_from(count).unwrap_or(u32::MAX), 0];
        // It fails only before Linux 5.15, which has no buffer rings either.
        let _ = self.ring.submitter().register_iowq_max_workers(&mut limits);
    }

    /// Returns the number of the ring's descriptor.
    #[cfg(test)]
    pub(super) fn number(&self) -> std::os::fd::RawFd {
        self.ring.as_raw_fd()
    }

    pub(super) fn buffers(&mut self) -> Option<&mut ProvidedBuffers> {
        self.buffers.as_mut()
    }

    /// Puts an operation into the submission queue.
    ///
    /// # Safety
    /// The memory that `entry` points to does not move, and is neither written (nor read, if the kernel
    /// writes it) nor freed, until the completion with this tag was taken. Descriptors in `entry` are open
    /// until [`Self::submit_and_wait`] returns.
    pub(super) unsafe fn push(&mut self, entry: squeue::Entry, tag: Tag) {
        let entry = entry.user_data(tag.pack());
        self.in_flight += 1;
        if self.waiting.is_empty() && self.try_push(&entry) {
            return;
        }
        self.waiting.push_back(entry);
        // The next wait repeats a submission that fails here, and reports the error.
        let _ = self.submit_waiting();
    }

    /// Cancels the operation with this tag.
    pub(super) fn cancel(&mut self, tag: Tag) {
        let entry = opcode::AsyncCancel2::new(CancelBuilder::user_data(tag.pack())).build();
        // SAFETY: a cancellation by user data points to no memory and names no descriptor.
        unsafe { self.push(entry, Tag::Cancel) };
    }

    /// Submits everything and waits until an operation completed, or for `timeout`. Returns whether the
    /// kernel has taken everything.
    pub(super) fn submit_and_wait(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        self.submit_waiting()?;
        self.enters += 1;
        let entered = match timeout {
            Some(Duration::ZERO) => self.gather(),
            Some(span) => {
                let span = Timespec::new().sec(span.as_secs()).nsec(span.subsec_nanos());
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&span))
            }
            None => self.ring.submitter().submit_and_wait(1),
        };
        tolerate(entered)?;
        Ok(self.waiting.is_empty() && self.ring.submission().is_empty())
    }

    /// Submits everything and makes the kernel produce the completions of operations that have ended by then.
    /// A wait with a zero time-out would do the same, but would start a timer that expires at once; in a
    /// virtual machine that takes longer than the rest of the call.
    fn gather(&mut self) -> io::Result<usize> {
        let count = u32::try_from(self.ring.submission().len()).unwrap_or(u32::MAX);
        // SAFETY: the flag takes no argument, and requests nothing but what a wait does too; the callers of
        // `push` guarantee what the entries need.
        unsafe { self.ring.submitter().enter::<()>(count, 0, ENTER_GETEVENTS, None) }
    }

    /// Returns whether there are entries to submit.
    pub(super) fn has_unsubmitted(&self) -> bool {
        // SAFETY: only this thread uses the queue, and no other view of it exists now.
        !self.waiting.is_empty() || !unsafe { self.ring.submission_shared() }.is_empty()
    }

    /// Returns whether operations have completed, or will as soon as the kernel is asked.
    pub(super) fn has_completions(&self) -> bool {
        // SAFETY: only this thread uses the queues, and no other view of them exists now.
        let (submission, completion) =
            unsafe { (self.ring.submission_shared(), self.ring.completion_shared()) };
        submission.taskrun() || submission.cq_overflow() || !completion.is_empty()
    }

    /// Takes all completions.
    pub(super) fn completed(&mut self, into: &mut VecDeque<Completion>) -> io::Result<()> {
        loop {
            let overflown = self.ring.submission().cq_overflow();
            for entry in self.ring.completion() {
                self.in_flight = self.in_flight.saturating_sub(1);
                into.extend(Completion::from_entry(&entry));
            }
            if !overflown {
                return Ok(());
            }
            // The kernel holds back completions that did not fit into the queue.
            self.enters += 1;
            tolerate(self.ring.submitter().submit())?;
        }
    }

    /// Records that `count` operations have ended without a completion.
    pub(super) fn completed_without_cqe(&mut self, count: usize) {
        self.in_flight = self.in_flight.saturating_sub(count);
    }

    /// Returns whether sends can skip the completion on success, see [`super::no_cqe_send`].
    pub(super) fn can_skip_cqes(&self) -> bool {
        self.sends_silently
    }

    /// Returns how many system calls were made since the last call.
    pub(super) fn take_enters(&mut self) -> usize {
        std::mem::take(&mut self.enters)
    }

    /// Cancels all operations and waits until the kernel no longer uses their memory. The operations in
    /// `silent` have a completion only if they fail. Returns whether all have ended; if not, memory that
    /// operations point to must never be freed.
    pub(super) fn let_go(&mut self, silent: &[Tag], patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let everything = opcode::AsyncCancel2::new(CancelBuilder::any().all()).build();
        // SAFETY: the cancellation points to no memory and names no descriptor.
        unsafe { self.push(everything, Tag::Cancel) };
        let mut unsaid = silent.len();
        let mut ended = VecDeque::new();
        while Instant::now() < deadline {
            let submitted = self.submit_and_wait(Some(Duration::from_millis(100)));
            if !matches!(submitted, Ok(true)) || self.completed(&mut ended).is_err() {
                break;
            }
            unsaid -=
                ended.drain(..).filter(|completion| silent.contains(&completion.tag)).count().min(unsaid);
            if self.in_flight == unsaid {
                return true;
            }
        }
        std::mem::forget(self.buffers.take());
        false
    }

    fn try_push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: the caller of `push` guarantees what the entry needs.
        unsafe { self.ring.submission().push(entry) }.is_ok()
    }

    /// Moves waiting entries into the submission queue, and submits when it is full.
    fn submit_waiting(&mut self) -> io::Result<()> {
        while let Some(entry) = self.waiting.pop_front() {
            if self.try_push(&entry) {
                continue;
            }
            self.waiting.push_front(entry);
            self.enters += 1;
            tolerate(self.ring.submitter().submit())?;
            if self.ring.submission().is_full() {
                // Completions must be taken first.
                break;
            }
        }
        Ok(())
    }
}

impl Completion {
    /// Creates the substitute for the completion that a send of `len` bytes skipped.
    pub(super) fn of_silent(tag: Tag, len: usize) -> Self {
        Self { tag, result: Ok(len), buffer: None, more_in_socket: false }
    }

    /// Creates the completion of an operation that was cancelled before the kernel had it.
    pub(super) fn of_cancelled(tag: Tag) -> Self {
        Self { tag, result: Err(Errno::CANCELED), buffer: None, more_in_socket: false }
    }

    fn from_entry(entry: &cqueue::Entry) -> Option<Self> {
        let result = entry.result();
        Some(Self {
            tag: Tag::unpack(entry.user_data())?,
            result: usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result)),
            buffer: cqueue::buffer_select(entry.flags()),
            more_in_socket: cqueue::sock_nonempty(entry.flags()),
        })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // It fails if the kernel never had the buffers. Closing the ring ends their use in any case.
        let _ = self.ring.submitter().unregister_buf_ring(GROUP);
    }
}

impl Tag {
    pub(super) fn pack(self) -> u64 {
        let (kind, number) = match self {
            Self::Receive(number) => (0, number),
            Self::Send(number) => (1, number),
            Self::File(number) => (2, number),
            Self::Listener(number) => (3, number),
            Self::Waker => (4, 0),
            Self::Cancel => (5, 0),
            Self::Dial(number) => (6, number),
            Self::Watch(number) => (7, number),
            Self::Frame(number) => (8, number),
            Self::FrameSent(number) => (9, number),
            Self::Timer => (10, 0),
            Self::TimerChange => (11, 0),
        };
        kind << 32 | u64::from(number)
    }

    fn unpack(packed: u64) -> Option<Self> {
        let number = u32::try_from(packed & u64::from(u32::MAX)).ok()?;
        match packed >> 32 {
            0 => Some(Self::Receive(number)),
            1 => Some(Self::Send(number)),
            2 => Some(Self::File(number)),
            3 => Some(Self::Listener(number)),
            4 => Some(Self::Waker),
            5 => Some(Self::Cancel),
            6 => Some(Self::Dial(number)),
            7 => Some(Self::Watch(number)),
            8 => Some(Self::Frame(number)),
            9 => Some(Self::FrameSent(number)),
            10 => Some(Self::Timer),
            11 => Some(Self::TimerChange),
            _ => None,
        }
    }
}

/// Creates the ring with the best modes that the kernel supports: completions are produced only on request
/// (6.1), or at least without interrupting this thread (5.19).
fn build() -> io::Result<IoUring> {
    let mut best = IoUring::builder();
    best.setup_cqsize(COMPLETIONS)
        .setup_submit_all()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag();
    let mut good = IoUring::builder();
    good.setup_cqsize(COMPLETIONS).setup_submit_all().setup_coop_taskrun().setup_taskrun_flag();
    let mut plain = IoUring::builder();
    plain.setup_cqsize(COMPLETIONS);
    best.build(SUBMISSIONS).or_else(|_| good.build(SUBMISSIONS)).or_else(|_| plain.build(SUBMISSIONS))
}

/// Treats results as success that are no errors: the time-out expired, a signal arrived, or completions must
/// be taken first.
fn tolerate(result: io::Result<usize>) -> io::Result<()> {
    match result {
        Ok(_) => Ok(()),
        Err(why) => match Errno::from_io_error(&why) {
            Some(Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN) => Ok(()),
            _ => Err(why),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_survives_the_kernel() {
        let tags = [
            Tag::Receive(0),
            Tag::Send(u32::MAX),
            Tag::File(7),
            Tag::Listener(1),
            Tag::Dial(2),
            Tag::Watch(u32::MAX),
            Tag::Frame(3),
            Tag::FrameSent(4),
            Tag::Timer,
            Tag::TimerChange,
            Tag::Waker,
            Tag::Cancel,
        ];
        for tag in tags {
            assert_eq!(Tag::unpack(tag.pack()), Some(tag));
        }
        assert_eq!(Tag::unpack(u64::MAX), None);
    }
}
