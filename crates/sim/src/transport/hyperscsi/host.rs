//! An initiator, and the promises of its session: a command is given up as lost, or as not sent, only
//! together with its session; it ends as aborted only if an initiator asked for that.

use std::collections::{BTreeMap, BTreeSet};

use base::buffer::Pool;
use base::time::Instant;
use hyperscsi::initiator::contract::SessionPlan;
use hyperscsi::initiator::session::Session;
use transport::initiator::{InitiatorTransport as _, TaskId, TaskResult, TmfId};

use crate::transport::Ticket;

/// An initiator.
pub(super) struct Host {
    pub(super) session: Session,
    pub(super) pool: Pool,
    /// Open tasks, with the length of the data that each expects.
    pub(super) tasks: BTreeMap<TaskId, (Ticket, u32)>,
    pub(super) tickets: BTreeMap<Ticket, TaskId>,
    pub(super) manages: BTreeMap<TmfId, Ticket>,
    /// The commands that the initiator asked to abort.
    pub(super) aborting: BTreeSet<Ticket>,
    pub(super) leaving: bool,
    /// Whether the loss of its session was reported in this round of events.
    pub(super) session_lost: bool,
    /// Whether the target has ended its session and has no other one of it.
    pub(super) ended_by_target: bool,
    /// Whether the target was replaced after that: nobody repeats the message that tells the initiator.
    pub(super) untold: bool,
    /// Commands that ended as lost or not sent in this round; they are violations unless the session was
    /// lost.
    unexplained_losses: Vec<Ticket>,
}

impl Host {
    pub(super) fn new(now: Instant, plan: SessionPlan) -> Self {
        let pool = Pool::new(8 << 20);
        Self {
            session: Session::new(now, plan, pool.clone()),
            pool,
            tasks: BTreeMap::new(),
            tickets: BTreeMap::new(),
            manages: BTreeMap::new(),
            aborting: BTreeSet::new(),
            leaving: false,
            session_lost: false,
            ended_by_target: false,
            untold: false,
            unexplained_losses: Vec::new(),
        }
    }

    /// Records how a task ended. Returns the promise that this breaks, if any.
    pub(super) fn ended(&mut self, ticket: Ticket, end: &TaskResult, aborts: bool) -> Option<String> {
        let asked = self.aborting.remove(&ticket) || aborts;
        match end {
            TaskResult::Lost | TaskResult::NotSent if !asked => self.unexplained_losses.push(ticket),
            TaskResult::Aborted if !asked => {
                return Some(format!("order {} was aborted, and nobody asked for it", ticket.0));
            }
            _ => {}
        }
        None
    }

    /// Ends a round of events. Returns the promises that were broken in it.
    pub(super) fn end_round(&mut self) -> Vec<String> {
        let excused = std::mem::take(&mut self.session_lost) || !self.session.is_up();
        let accused = std::mem::take(&mut self.unexplained_losses);
        if excused {
            return Vec::new();
        }
        let line = |ticket: Ticket| format!("order {} was given up in a session that lives", ticket.0);
        accused.into_iter().map(line).collect()
    }
}
