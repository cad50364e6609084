//! When to wake up if nothing happens.
//!
//! A wait that brings a time-out of its own has the kernel start a timer and stop it again, and where that timer is the next to
//! go off of all that its processor has, each of the two is a write to the hardware, which in a virtual machine is a call to the
//! hypervisor: at depth 1, with deadlines of less than a tick, that was a fifth of the latency. Deadlines mostly move on
//! before they are reached. So one timer stands in the ring, and stays there while it goes off no later than it has to; if that
//! is too early, nothing is due yet and it is started anew.

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
    /// When the timer in the ring goes off.
    goes_off: Option<Instant>,
    /// What the kernel reads when it takes the submission.
    span: Box<Timespec>,
    /// The timer was changed since the last wait.
    changed: bool,
    /// The kernel does not start it.
    broken: bool,
}

impl Timer {
    /// Sees to it that a wait that begins now ends after `timeout`. Returns the time-out that the wait itself has to have.
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
        // SAFETY: the span is boxed and lives as long as the engine; the kernel reads it within the call that submits this.
        unsafe { ring.push(entry, tag) };
        None
    }

    /// Concludes a change that was submitted: of one that succeeded the kernel says nothing.
    pub(super) fn conclude(&mut self, ring: &mut Ring, completions: &VecDeque<Completion>) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        match completions.iter().find(|completion| completion.tag == Tag::TimerChange) {
            Some(completion) => self.refused(completion.result),
            None => ring.completed_without_cqe(1),
        }
    }

    /// Takes note that a change was not made. If the timer has gone off or is about to, that is told by itself; else it goes off
    /// when nobody wants it any more, and waits have time-outs of their own from now on.
    fn refused(&mut self, result: Result<usize, Errno>) {
        self.broken |= !matches!(result, Ok(_) | Err(Errno::NOENT | Errno::ALREADY));
    }

    /// Takes note that the timer went off, or that there is none.
    pub(super) fn went_off(&mut self, result: Result<usize, Errno>) {
        self.goes_off = None;
        self.broken |= result != Err(Errno::TIME);
    }

    /// Returns the operation that is under way of which the kernel says nothing if it succeeds.
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
