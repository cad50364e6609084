//! For how long a reactor sleeps.

use std::time::Duration;

use base::ether::FrameMachine;
use base::state_machine::StreamMachine;
use base::time::Instant;

use super::Reactor;
use super::stop::Stop;
use crate::clock::Sleep;

impl<M: StreamMachine + FrameMachine> Reactor<M> {
    /// Returns how long to sleep, or `None` for no limit, and notes it.
    pub(super) fn timeout(
        &mut self,
        machine: &M,
        now: Instant,
        wait_max: Option<Duration>,
    ) -> Option<Duration> {
        let timeout = self.next_timeout(machine, now, wait_max);
        // Deadlines are not handled while the reactor is parked.
        let counts = |_: &Duration| !self.parking.is_parked();
        self.sleep = timeout.filter(counts).map(|span| Sleep { began: now, until: now.after(span) });
        timeout
    }

    fn next_timeout(&self, machine: &M, now: Instant, wait_max: Option<Duration>) -> Option<Duration> {
        if self.parking.is_parked() {
            return wait_max;
        }
        if self.poll || self.connections.is_hungry() || self.ports.is_hungry() || self.is_stopped() {
            return Some(Duration::ZERO);
        }
        let stop = self.stop.as_ref().and_then(Stop::next_deadline);
        let deadlines = [
            machine.poll_timeout(),
            self.connections.next_deadline(),
            self.dials.next_deadline(),
            self.ports.next_deadline(),
            self.accepts_rest_until,
            stop,
        ];
        let next = deadlines.into_iter().flatten().min().map(|at| at.since(now));
        next.into_iter().chain(wait_max).min()
    }
}
