//! Requests of the owner: accepted, queued while the command window is full, distributed over connections,
//! and reported once they end (RFC 7143 §4.2.2.1).

use base::time::Instant;
use transport::command::TaskAttribute;
use transport::initiator::{Outcome, TaskId, TaskResult};

use super::connection_slot::QueuedPdu;
use super::contract::{Event, Slot};
use super::protocol_error::ProtocolError;
use super::session::{MAX_STALE_TAGS, Phase, Session, TAG_TASK, tag};
use super::task::{Task, TaskState};
use crate::pdu::{Itt, TargetSn};
use crate::target::arena::Key;

impl Session {
    /// Assigns waiting tasks to connections as far as the command window allows, and performs the actions
    /// that wait for tasks to end.
    pub(super) fn process_pending(&mut self, now: Instant) {
        if self.phase == Phase::Up {
            self.assign_waiting();
            self.send_pending_text(now);
        }
        self.drain_connections(now);
        if self.logout_requested {
            self.log_out_if_done(now);
        }
    }

    /// Assigns waiting tasks to connections as far as the command window and their order allow.
    pub(super) fn assign_waiting(&mut self) {
        // The number of tasks at the front that wait for more than the command window.
        let mut held = 0;
        while let Some(key) = self.waiting.get(held).copied() {
            let Some(task) = self.tasks.get(key) else {
                self.waiting.remove(held);
                continue;
            };
            if self.identity_checks.holds_back(&task.request) {
                held += 1;
                continue;
            }
            let counts = !task.request.immediate && !task.numbered;
            if counts && !(self.window_is_open() && self.may_be_next(task)) {
                break;
            }
            let Some(slot) = self.least_loaded(None) else { break };
            self.waiting.remove(held);
            self.assign(slot, key);
        }
    }

    /// Returns whether a task may be assigned to a connection although other assigned tasks have no CmdSN
    /// yet. Tasks get their CmdSNs when they are sent, and the connections send in no particular order. An
    /// ORDERED or HEAD OF QUEUE task therefore waits until all earlier tasks have a CmdSN, and later tasks
    /// wait until it has its own (SAM-5 §8: the order is that of submission).
    fn may_be_next(&self, task: &Task) -> bool {
        self.unnumbered == 0 || !(self.ordering || keeps_place(task))
    }

    /// Puts a task into the send queue of a connection.
    pub(super) fn assign(&mut self, slot: Slot, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let (weight, counts) = (task.weight(), !task.request.immediate && !task.numbered);
        let keeps_place = keeps_place(task);
        task.state = TaskState::Assigned(slot);
        if counts {
            self.unnumbered += 1;
            self.ordering = keeps_place;
        }
        if let Some(connection) = self.connection_mut(slot) {
            connection.tasks += 1;
            connection.weight += weight;
        }
        self.queue(slot, QueuedPdu::Command(key));
    }

    /// Removes a task from its connection.
    pub(super) fn unassign(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let (weight, slot) = (task.weight(), task.slot());
        let held = core::mem::take(&mut task.ack_withheld).then_some(task.stat_sn);
        if matches!(task.state, TaskState::Assigned(_)) && !task.request.immediate && !task.numbered {
            self.unnumbered = self.unnumbered.saturating_sub(1);
        }
        if let Some(connection) = slot.and_then(|slot| self.connection_mut(slot)) {
            connection.tasks = connection.tasks.saturating_sub(1);
            connection.weight = connection.weight.saturating_sub(weight);
            connection.withheld_statuses.retain(|sn| Some(*sn) != held);
        }
    }

    /// Returns whether the command window permits another CmdSN.
    pub(super) fn window_is_open(&self) -> bool {
        //= rfc7143#section-4.2.2.1
        // The initiator must not send a non-immediate command with a CmdSN beyond MaxCmdSN.
        //= rfc7143#section-4.2.2.1
        //# iSCSI initiators and targets MUST support the command numbering scheme.
        self.cmd_sn.plus(self.unnumbered).within(self.exp_cmd_sn, self.max_cmd_sn)
    }

    /// Records the command window that a PDU announces.
    pub(super) fn note_window(&mut self, sn: TargetSn) {
        let (exp, max) = (sn.exp_cmd_sn, sn.max_cmd_sn);
        //= rfc7143#section-4.2.2.1
        // A MaxCmdSN before ExpCmdSN - 1 makes both invalid; values older than the known ones are ignored.
        if max.before(exp.minus(1)) {
            return;
        }
        // A command that was not sent cannot have arrived.
        if exp.after(self.exp_cmd_sn) && !exp.after(self.cmd_sn) {
            self.exp_cmd_sn = exp;
        }
        if max.after(self.max_cmd_sn) {
            self.max_cmd_sn = max;
        }
    }

    /// Queues a PDU to send.
    pub(super) fn queue(&mut self, slot: Slot, output: QueuedPdu) {
        let Some(connection) = self.connection_mut(slot) else { return };
        connection.out.push_back(output);
        self.request_transmit(slot);
    }

    /// Requests that the driver sends on a connection.
    pub(super) fn request_transmit(&mut self, slot: Slot) {
        let Some(connection) = self.connection_mut(slot) else { return };
        if !connection.transmit_requested {
            connection.transmit_requested = true;
            let conn = connection.conn;
            self.actions.push_back(base::state_machine::Action::Transmit(conn));
        }
    }

    /// Ends a task whose status was received, if all its data was received too.
    pub(super) fn finish_if_complete(&mut self, key: Key) -> Result<(), ProtocolError> {
        let Some(task) = self.tasks.get_mut(key) else { return Ok(()) };
        let whole = task.data_sns.missing.is_empty();
        let Some(ending) = task.status.take_if(|ending| whole || (task.unrepairable && ending.status != 0))
        else {
            //= rfc7143#section-11.7.2
            //# An initiator also MUST NOT acknowledge the status for the task before those holes are filled.
            self.withhold_ack(key);
            return Ok(());
        };
        task.check_end(&ending)?;
        self.finish(key, TaskResult::Status(ending));
        Ok(())
    }

    /// Withholds the acknowledgement of a task's status if data of the task is missing.
    fn withhold_ack(&mut self, key: Key) {
        if self.tasks.get(key).is_some_and(|task| task.status.is_some()) {
            self.withhold_status_ack(key);
        }
    }

    /// Withholds the acknowledgement of the status that was received for a task.
    pub(super) fn withhold_status_ack(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key).filter(|task| !task.ack_withheld) else { return };
        task.ack_withheld = true;
        let (slot, stat_sn) = (task.slot(), task.stat_sn);
        if let Some(connection) = slot.and_then(|slot| self.connection_mut(slot)) {
            connection.withheld_statuses.push(stat_sn);
        }
    }

    /// Remembers a tag for which late PDUs may still arrive.
    pub(super) fn remember(&mut self, itt: Itt) {
        if self.stale_tags.len() >= MAX_STALE_TAGS {
            self.stale_tags.pop_front();
        }
        self.stale_tags.push_back(itt);
    }

    /// Ends a task and reports it.
    pub(super) fn finish(&mut self, key: Key, end: TaskResult) {
        self.unassign(key);
        // The task is large: it ends where it lies, without a copy.
        let Some(task) = self.tasks.get_mut(key) else { return self.bug() };
        // A task that waits to be executed again may have been executed before.
        let end = if end == TaskResult::NotSent && task.replays > 0 { TaskResult::Lost } else { end };
        let send_order = task.send_order();
        let is_stale = send_order.is_some() && !matches!(end, TaskResult::Status(_) | TaskResult::Failed(_));
        let data_in = match &end {
            TaskResult::Status(_) => task.data_in.finish(),
            _ => None,
        };
        task.data_in.clear(&self.pool);
        for part in core::mem::take(&mut task.request.data_out).into_parts() {
            self.pool.recycle(part);
        }
        self.tasks.discard(key);
        if is_stale {
            self.remember(tag(TAG_TASK, key));
        }
        self.stats.done += 1;
        let outcome = Outcome { end, data_in, send_order };
        self.events.push_back(Event::Done { task: TaskId(key), outcome });
    }
}

/// Returns whether a task must keep its order among earlier and later tasks.
fn keeps_place(task: &Task) -> bool {
    matches!(task.request.attribute, TaskAttribute::ORDERED | TaskAttribute::HEAD_OF_QUEUE)
}
