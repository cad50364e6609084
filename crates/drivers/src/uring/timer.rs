//! The time-out of waits.
//!
//! For a wait with a time-out of its own the kernel starts a timer and stops it again. Where that timer is
//! the next one to expire on its processor, each of the two is a write to the hardware, which in a virtual
//! machine is a call to the hypervisor: at queue depth 1, with deadlines of less than a tick, that was a
//! fifth of the latency. Most deadlines move to a later time before they are reached. So one timer stays in
//! the ring as long as it expires no later than the deadline. If it expires too early, nothing is due yet and
//! it is started again.

#![allow(unsafe_code, reason = "a promise about memory that the kernel is pointed to")]

use std::collections::VecDeque;
use std::time::Duration;

use base::time::Instant;
use io_uring::types::Timespec;
use io_uring::{opcode, squeue};

use super::ring::{Completion, Ring, Tag};
use crate::files::Errno;

#[derive(Default)]
pub(super) struct Timer {
    /// The time at which the timer in the ring expires.
    goes_off: Option<Instant>,
    /// The time-out, which the kernel reads when it takes the submission.
    span: Box<Timespec>,
    /// The timer was changed since the last wait.
    changed: bool,
    /// The kernel does not start the timer.
    broken: bool,
}

impl Timer {
    /// Makes a wait that begins now end after `timeout`. Returns the time-out that the wait itself must have.
    pub(super) fn set(
        &mut self,
        ring: &mut Ring,
        now: Instant,
        timeout: Option<Duration>,
    ) -> Option<Duration> {
        let span =
            timeout.filter(|span| !span.is_zero() && ring.can_skip_cqes() && !self.changed && !self.broken);
        let Some(span) = span else { return timeout };
        let until = now.after(span);
        if self.goes_off.is_some_and(|at| at <= until) {
            return None;
        }
        *self.span = Timespec::new().sec(span.as_secs()).nsec(span.subsec_nanos());
        let (entry, tag) = match self.goes_off.replace(until) {
            None => (opcode::Timeout::new(&raw const *self.span).build(), Tag::Timer),
            Some(_) => {
                self.changed = true;
                let update = opcode::TimeoutUpdate::new(Tag::Timer.pack(), &raw const *self.span).build();
                (update.flags(squeue::Flags::SKIP_SUCCESS), Tag::TimerChange)
            }
        };
        // SAFETY: the span is boxed and lives as long as the engine; the kernel reads it within the call that
        // submits this.
        unsafe { ring.push(entry, tag) };
        None
    }

    /// Concludes a submitted change: one that succeeded has no completion.
    pub(super) fn conclude(&mut self, ring: &mut Ring, completions: &VecDeque<Completion>) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        match completions.iter().find(|completion| completion.tag == Tag::TimerChange) {
            Some(completion) => self.refused(completion.result),
            None => ring.completed_without_cqe(1),
        }
    }

    /// Handles a change that was not made. If the timer has expired or is about to, its own completion
    /// reports that. Otherwise it expires at its old time, when it is no longer needed, and waits have
    /// time-outs of their own from now on.
    fn refused(&mut self, result: Result<usize, Errno>) {
        self.broken |= !matches!(result, Ok(_) | Err(Errno::NOENT | Errno::ALREADY));
    }

    /// Handles the completion of the timer: it expired, or it could not be started.
    pub(super) fn went_off(&mut self, result: Result<usize, Errno>) {
        self.goes_off = None;
        self.broken |= result != Err(Errno::TIME);
    }

    /// Returns the operation under way that has no completion if it succeeds.
    pub(super) fn silent(&self) -> Option<Tag> {
        self.changed.then_some(Tag::TimerChange)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_timer_cannot_be_changed_waits_have_time_outs_of_their_own() {
        for (result, broken) in
            [(Errno::NOENT, false), (Errno::ALREADY, false), (Errno::INVAL, true), (Errno::FAULT, true)]
        {
            let mut timer = Timer::default();
            timer.refused(Err(result));
            assert_eq!(timer.broken, broken, "{result:?}");
        }
    }
}
