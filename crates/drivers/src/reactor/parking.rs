//! Parking: the reactor stops to use its sockets and to drive its state machine, so that another process can
//! go on with the connections, or this one.
//!
//! A reactor that parks accepts no connection and starts no receive. It cancels the receives that are under
//! way, passes on what they still received, and sends what the state machine has to send. A connection that
//! is closing ends soon, whether its peer reads the last data or not. The reactor is parked when no
//! operation is under way. From then on it only handles messages: the state machine gets no event, no time
//! and no frame until the reactor is unparked. Frames that arrive meanwhile are lost.

use std::io;

use base::ether::FrameMachine;
use base::state_machine::{ConnId, StreamMachine};
use base::time::Instant;

use super::Reactor;
use crate::candidate::Candidate;
use crate::message_queue::{Adoption, Job, TakeOverJob};
use crate::stats::Stats;

/// The most connections that wait for the end of parking. Others are closed; their peers connect again.
const WAITING_MAX: usize = 1024;

/// How far parking is.
pub(super) enum Parking<M> {
    Off,
    /// Operations are under way. The jobs run when they have ended.
    UnderWay(Vec<Job<M>>),
    Parked,
}

impl<M> Parking<M> {
    pub(super) fn is_off(&self) -> bool {
        matches!(self, Self::Off)
    }

    pub(super) fn is_parked(&self) -> bool {
        matches!(self, Self::Parked)
    }
}

impl<M: StreamMachine + FrameMachine> Reactor<M> {
    /// Makes the reactor begin parked. To be called before it runs.
    pub fn begin_parked(&mut self) {
        self.pause_accepts();
        self.connections.park(&mut *self.engine, self.clock.now());
        self.parking = Parking::Parked;
    }

    /// Begins to park, and runs `job` when the reactor is parked. A job whose parking is ended before is
    /// dropped.
    pub(super) fn park(&mut self, machine: &mut M, now: Instant, job: Job<M>) {
        match &mut self.parking {
            Parking::Parked => job(machine, now),
            Parking::UnderWay(jobs) => jobs.push(job),
            Parking::Off => {
                self.pause_accepts();
                self.connections.park(&mut *self.engine, now);
                self.parking = Parking::UnderWay(vec![job]);
            }
        }
    }

    /// Runs the jobs that wait for the reactor to be parked, if it is.
    pub(super) fn conclude_parking(&mut self, machine: &mut M, now: Instant) {
        let Parking::UnderWay(jobs) = &mut self.parking else { return };
        if !self.connections.is_at_rest(&mut *self.engine) || !self.files.is_idle() {
            return;
        }
        let jobs = std::mem::take(jobs);
        self.parking = Parking::Parked;
        for job in jobs {
            job(machine, now);
        }
    }

    /// Keeps a connection until parking ends. The state machine must not change meanwhile.
    pub(super) fn adopt_later(&mut self, adoption: Adoption) {
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push(adoption);
        } else {
            Stats::bump(&mut self.engine.stats().refused, 1);
        }
    }

    /// Ends parking, and admits the connections that waited for that.
    pub(super) fn unpark_and_adopt(&mut self, machine: &mut M, now: Instant) {
        self.unpark();
        for adoption in std::mem::take(&mut self.waiting) {
            self.adopt(machine, now, adoption);
        }
    }

    /// Ends parking.
    pub(super) fn unpark(&mut self) {
        if self.parking.is_off() {
            return;
        }
        self.parking = Parking::Off;
        self.connections.unpark();
        self.resume_accepts();
    }

    /// Admits connections that another process has given up, and gives their numbers to `job`. The job runs
    /// before anything is received.
    pub(super) fn take_over(
        &mut self,
        machine: &mut M,
        now: Instant,
        list: Vec<Adoption>,
        job: TakeOverJob<M>,
    ) {
        // The state machine knows the Ethernet ports before it resumes what uses them.
        self.ports.refresh_interfaces(&mut *self.engine, machine, now);
        let admit = |Adoption { socket, portal, local, peer, .. }| {
            let candidate = Candidate { socket, local: Some(local), peer, portal, is_taken_over: true };
            let admitted = self.connections.admit(&mut *self.engine, machine, now, candidate);
            admitted.ok_or_else(|| io::Error::other(format!("the connection of {peer} cannot be used")))
        };
        let conns = list.into_iter().map(admit).collect::<io::Result<Vec<ConnId>>>();
        job(machine, now, conns);
    }

    /// Stops accepting connections, or accepts them again, see
    /// [`Handle::accept`](crate::message_queue::Handle::accept).
    pub(super) fn set_accepts(&mut self, accepts: bool) {
        self.accepts = accepts;
        if accepts {
            self.resume_accepts();
        } else {
            self.pause_accepts();
        }
    }

    /// Returns whether connections are accepted, except for a rest after a failure.
    pub(super) fn may_accept(&self) -> bool {
        self.accepts && self.parking.is_off()
    }

    fn pause_accepts(&mut self) {
        for (number, place) in (0..).zip(&self.listeners) {
            if place.is_some() {
                self.engine.pause_accepts(number);
            }
        }
    }

    /// Accepts connections again, unless the reactor parks or was told to accept none.
    pub(super) fn resume_accepts(&mut self) {
        if !self.may_accept() {
            return;
        }
        for (number, place) in (0..).zip(&self.listeners) {
            if place.is_some() {
                self.engine.resume_accepts(number);
            }
        }
    }
}
