//! Requests on their way out: which may go now, under which number, with which protection.

use base::arena::Key;
use base::time::Instant;

use super::contract::{Refusal, Request, TaskId};
use super::guard::MAX_PROBES;
use super::session::{Issue, Phase, Session};
use super::task::{Task, What, Wire};
use crate::association::{Association, Message};
use crate::exchange::landing::{to_u32, to_usize};
use crate::exchange::numbers::{Class, WINDOW, ahead, next};
use crate::frame::Cmd;
use crate::pdu::command::{Command, Manage, ManageFunction, Request as Block, TaskAttribute};
use crate::seal::Level;

impl Session {
    /// Takes a request. It waits while there is no session.
    ///
    /// # Errors
    /// Why it is not taken.
    pub fn submit(&mut self, now: Instant, request: Request) -> Result<TaskId, Refusal> {
        if self.phase == Phase::Down || self.leaving {
            return Err(Refusal::Down);
        }
        let probes_max = if request.probe { MAX_PROBES } else { 0 };
        if self.open() >= self.plan.limits.tasks_max + probes_max {
            return Err(Refusal::Full);
        }
        // OFF counts in 32 bits.
        if u32::try_from(request.data_out.len()).is_err() {
            return Err(Refusal::TooLong);
        }
        self.stats.tasks += 1;
        let key = self.tasks.insert_with(|_| Task::new(What::Command(request)));
        self.waiting.push_back(key);
        self.drive(now);
        Ok(TaskId(key))
    }

    /// Sends what waits, in order, as far as it may go.
    pub(super) fn issue_waiting(&mut self) {
        let mut blocked = [false; 2];
        let mut at = 0;
        while self.phase == Phase::Up
            && blocked != [true; 2]
            && let Some(key) = self.waiting.get(at).copied()
        {
            let Some(task) = self.tasks.get(key) else {
                self.waiting.remove(at);
                continue;
            };
            if self.is_held(task) {
                at += 1;
                continue;
            }
            let level = self.level_of(task);
            let class = Class::of_frame(level > Level::None);
            // What cannot go holds those of its class back, and no others.
            let held = blocked.get(class.index()).copied().unwrap_or(true);
            let data = to_usize(task.inn.len());
            let crowded =
                self.expected > 0 && self.expected.saturating_add(data) > self.plan.limits.data_in_bytes_max;
            if held || crowded || !self.may_issue(class) {
                if crowded {
                    return;
                }
                if let Some(blocked) = blocked.get_mut(class.index()) {
                    *blocked = true;
                }
                at += 1;
                continue;
            }
            self.waiting.remove(at);
            self.issue(key, class, level);
        }
    }

    /// Returns the protection that a task has to have now.
    pub(super) fn level_of(&self, task: &Task) -> Level {
        if !self.link.as_ref().is_some_and(|link| link.keyed) {
            return Level::None;
        }
        let own = self.level(task.lun());
        match &task.what {
            What::Command(_) => own,
            What::Manage { wanted, referenced, .. } => {
                let wide = matches!(
                    wanted.function,
                    ManageFunction::TARGET_WARM_RESET
                        | ManageFunction::TARGET_COLD_RESET
                        | ManageFunction::I_T_NEXUS_RESET
                );
                let named =
                    wanted.task.and_then(|named| self.tasks.get(named.0)).and_then(|named| named.wire);
                let named =
                    named.filter(|wire| wire.xid == *referenced).map_or(Level::None, |wire| wire.level);
                own.max(named).max(if wide { Level::Integrity } else { Level::None })
            }
        }
    }

    /// Returns whether a request of this class may go now.
    fn may_issue(&mut self, class: Class) -> bool {
        let Some(link) = self.link.as_deref_mut() else { return false };
        if link.goodbye_said() {
            return false;
        }
        let issue = link.issue(class);
        let xid = next(issue.last);
        if issue.free.is_empty() || ahead(xid, issue.limit).is_some() {
            return false;
        }
        if ahead(xid, issue.low).is_some_and(|far| far >= WINDOW / 2) {
            issue.low = oldest(&self.tasks, issue);
        }
        // The target tells requests apart only so far.
        ahead(xid, issue.low).is_none_or(|far| far < WINDOW)
    }

    fn issue(&mut self, key: Key, class: Class, level: Level) {
        let Some(link) = self.link.as_deref_mut() else { return };
        let first_burst = link.parameters.first_burst;
        let mut head = link.transport.as_deref_mut().map(Association::blank).unwrap_or_default();
        let issue = link.issue(class);
        let Some(tag) = issue.free.pop() else { return };
        let Some(task) = self.tasks.get_mut(key) else { return issue.free.push(tag) };
        let (before, xid) = (issue.last, next(issue.last));
        issue.last = xid;
        if let Some(slot) = issue.slots.get_mut(usize::from(tag)) {
            *slot = Some(key);
        }
        task.wire = Some(Wire { class, tag, xid, level });
        task.order = self.order;
        self.order += 1;
        self.expected = self.expected.saturating_add(to_usize(task.inn.len()));
        // Nobody waits for the exchange before the first.
        let previous = if before == class.start() { 0 } else { before };
        let message = match &task.what {
            What::Command(request) => {
                let barrier = request.attribute != TaskAttribute::SIMPLE;
                let after = if barrier { previous } else { issue.barrier };
                if barrier {
                    issue.barrier = xid;
                }
                let data_out_len = to_u32(request.data_out.len());
                let unsolicited_len = data_out_len.min(first_burst);
                let command = Command {
                    lun: request.lun,
                    attribute: request.attribute,
                    priority: request.priority.min(15),
                    after,
                    data_in_len: request.data_in_len,
                    data_out_len,
                    unsolicited_len,
                    cdb: request.cdb.clone(),
                };
                Block::Command(command).encode(&mut head);
                let mut message = Message::block(Cmd::Request, xid, tag, level, head);
                message.body = request.data_out.slice(0, to_usize(unsolicited_len));
                self.stats.data_out_bytes += u64::from(unsolicited_len);
                message
            }
            What::Manage { wanted, referenced, .. } => {
                issue.barrier = xid;
                let manage = Manage {
                    function: wanted.function,
                    lun: wanted.lun,
                    after: previous,
                    referenced: *referenced,
                };
                Block::Manage(manage).encode(&mut head);
                Message::block(Cmd::Request, xid, tag, level, head)
            }
        };
        link.outgoing.push((key, message));
    }

    /// Gives the slot of an exchange back, and takes back what is still under way for it.
    pub(super) fn release(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let Some(wire) = task.wire.take() else { return };
        self.expected = self.expected.saturating_sub(to_usize(task.inn.len()));
        task.request = None;
        let messages = core::mem::take(&mut task.messages);
        let Some(link) = self.link.as_deref_mut() else { return };
        link.withdrawn.extend(messages);
        link.outgoing.retain(|(other, _)| *other != key);
        let issue = link.issue(wire.class);
        if let Some(slot) = issue.slots.get_mut(usize::from(wire.tag)) {
            *slot = None;
        }
        issue.free.push(wire.tag);
        if issue.barrier == wire.xid {
            issue.barrier = 0;
        }
    }
}

/// Returns the number before the oldest request that was not acknowledged.
fn oldest(tasks: &base::arena::Arena<Task>, issue: &Issue) -> u32 {
    let open = issue.slots.iter().copied().flatten().filter_map(|key| tasks.get(key));
    let unacknowledged = open.filter(|task| !task.arrived);
    let behind = unacknowledged.filter_map(|task| ahead(issue.last, task.wire?.xid).or(Some(0)));
    let far = behind.max();
    // A step more than the farthest behind, all of it within one class.
    far.map_or(issue.last, |far| back(issue.last, far + 1))
}

/// Returns the XID `by` before `xid`, as far as distances go.
const fn back(xid: u32, by: u32) -> u32 {
    let protected = xid & crate::exchange::numbers::PROTECTED;
    protected | (xid.wrapping_sub(by) & !crate::exchange::numbers::PROTECTED)
}
