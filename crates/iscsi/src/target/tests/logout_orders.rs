//! Every order of logouts, losses and half-closes of the two connections of a session, at every
//! ErrorRecoveryLevel.

use alloc::vec::Vec;

use base::state_machine::{ConnId, DisconnectReason};
use base::time::Duration;
use transport::target::{Finish, TargetTransport, TaskRef};

use super::mcs;
use super::world::World;
use crate::pdu::logout_request::{LogoutReason, LogoutRequest};
use crate::pdu::logout_response::LogoutResponse;
use crate::pdu::{Itt, Opcode, PduHeader};
use crate::serial::{CmdSn, StatSn};
use crate::target::contract::Event;

/// Something that happens to a session. The numbers are those of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A request to close the connection with this CID is received on a connection.
    CloseConnection(usize, u16),
    /// A request to close the session is received.
    CloseSession(usize),
    /// A request to remove the connection with this CID for recovery is received on a connection.
    RemoveForRecovery(usize, u16),
    /// The initiator sends no more on the connection.
    HalfClose(usize),
    /// The connection is lost.
    Lose(usize),
}

const STEPS: [Step; 12] = [
    Step::CloseConnection(0, 0),
    Step::CloseConnection(0, 1),
    Step::CloseConnection(1, 0),
    Step::CloseConnection(1, 1),
    Step::CloseSession(0),
    Step::CloseSession(1),
    Step::HalfClose(0),
    Step::HalfClose(1),
    Step::Lose(0),
    Step::Lose(1),
    Step::RemoveForRecovery(0, 1),
    Step::RemoveForRecovery(1, 1),
];

struct Run {
    world: World,
    conns: Vec<ConnId>,
    tasks: Vec<Option<TaskRef>>,
    is_lost: [bool; 2],
    /// The connection and the tag of each Logout Request.
    requests: Vec<(ConnId, Itt)>,
}

impl Run {
    fn new(level: u8, has_tasks: bool) -> Self {
        let (mut world, conns, _) = mcs::session(level, 2);
        let tasks = match has_tasks {
            true => mcs::issue_on_each(&mut world, &conns).into_iter().map(Some).collect(),
            false => [None; 2].into(),
        };
        Self { world, conns, tasks, is_lost: [false; 2], requests: Vec::new() }
    }

    fn is_open(&self, at: usize) -> bool {
        !self.is_lost[at] && self.world.ended(self.conns[at]).is_none()
    }

    /// Returns false if the step cannot happen in this state.
    fn take(&mut self, step: Step) -> bool {
        match step {
            Step::CloseConnection(on, cid) => self.log_out(on, LogoutReason::CloseConnection, cid),
            Step::CloseSession(on) => self.log_out(on, LogoutReason::CloseSession, 0),
            Step::RemoveForRecovery(on, cid) => self.log_out(on, LogoutReason::RemoveForRecovery, cid),
            Step::HalfClose(at) => {
                let is_open = self.is_open(at);
                if is_open && !self.world.engine.received_eof(self.world.now, self.conns[at]) {
                    self.lose(at);
                }
                is_open
            }
            Step::Lose(at) => {
                let is_open = self.is_open(at);
                if is_open {
                    self.lose(at);
                }
                is_open
            }
        }
    }

    fn lose(&mut self, at: usize) {
        let conn = self.conns[at];
        self.world.engine.disconnected(self.world.now, conn, DisconnectReason::Failed);
        self.is_lost[at] = true;
    }

    fn log_out(&mut self, on: usize, reason: LogoutReason, cid: u16) -> bool {
        if !self.is_open(on) {
            return false;
        }
        let conn = self.conns[on];
        let (itt, cmd_sn): (Itt, CmdSn) = self.world.numbers(conn);
        let request = LogoutRequest { immediate: true, reason, itt, cid, cmd_sn, exp_stat_sn: StatSn(0) };
        let bytes = self.world.frame(conn, request.encode(), &[], &[]);
        self.world.engine.received(self.world.now, conn, &bytes, &self.world.names);
        self.requests.push((conn, itt));
        true
    }

    fn drain(&mut self) {
        self.world.drain();
        self.world.events.retain(|event| match event {
            Event::TaskGone { task } => {
                for of in &mut self.tasks {
                    of.take_if(|of| *of == *task);
                }
                false
            }
            Event::SessionDown { .. } => true,
            _ => false,
        });
    }

    fn check(mut self, order: &[Step], level: u8) {
        self.drain();
        let left = |run: &Self| (0..2).filter(|at| run.is_open(*at)).count();
        for view in self.world.engine.sessions() {
            assert_eq!(view.connections, left(&self), "level {level}: {order:?}");
            assert!(view.connections > 0 || level == 2, "level {level}: {order:?}");
        }
        for task in core::mem::take(&mut self.tasks).into_iter().flatten() {
            self.world.engine.finish(task, Finish::good(0));
        }
        self.drain();
        let mut answered = Vec::new();
        for conn in self.conns.clone() {
            while let Some(got) = self.world.receive(conn) {
                if got.bhs.opcode() == Opcode::LOGOUT_RESPONSE {
                    answered.push((conn, got.read::<LogoutResponse>().itt));
                }
            }
        }
        // Requests on a connection that stays open were read and are answered.
        let stays = |conn: ConnId| (0..2).any(|at| self.conns[at] == conn && self.is_open(at));
        for request in self.requests.iter().filter(|(conn, _)| stays(*conn)) {
            assert!(answered.contains(request), "level {level}: {order:?}: {request:?}");
        }
        let has_session = self.world.engine.sessions().next().is_some();
        assert_eq!(has_session, self.world.events.is_empty(), "level {level}: {order:?}");
        if left(&self) == 0 {
            // Longer than tasks are retained for reassignment.
            self.world.pass(Duration::from_secs(60));
            self.drain();
            assert_eq!(self.world.engine.sessions().count(), 0, "level {level}: {order:?}");
            assert_eq!(self.world.events.len(), 1, "level {level}: {order:?}");
        }
        assert_eq!(self.world.engine.stats().bugs, 0, "level {level}: {order:?}");
    }
}

/// Runs an order. The driver handles what the engine asks for after each step in `drains`: the steps before
/// were received in one segment.
fn run(level: u8, has_tasks: bool, order: &[Step], drains: &[bool]) {
    let mut run = Run::new(level, has_tasks);
    for (step, drains) in order.iter().zip(drains) {
        if !run.take(*step) {
            return;
        }
        if *drains {
            run.drain();
        }
    }
    run.check(order, level);
}

#[test]
fn no_order_of_logouts_and_losses_leaves_a_session_without_a_connection() {
    // Below level 2, a removal for recovery is refused.
    for (level, steps) in [(0, &STEPS[..10]), (2, &STEPS[..])] {
        for first in steps {
            for second in steps {
                for drains in [false, true] {
                    run(level, false, &[*first, *second], &[drains, true]);
                    for third in steps {
                        run(level, true, &[*first, *second, *third], &[drains, drains, true]);
                    }
                }
            }
        }
    }
}

#[test]
fn half_a_close_is_a_logout_only_of_the_last_connection_and_below_level_2() {
    for (level, count, is_logout) in
        [(0, 1, true), (1, 1, true), (0, 2, false), (1, 2, false), (2, 1, false), (2, 2, false)]
    {
        let (mut world, conns, _) = mcs::session(level, count);
        let half_closed = world.engine.received_eof(world.now, conns[0]);
        assert_eq!(half_closed, is_logout, "level {level}, {count} connections");
        world.drain();
        assert_eq!(world.engine.sessions().count(), usize::from(!is_logout));
    }
}
