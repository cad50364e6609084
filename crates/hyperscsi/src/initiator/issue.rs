//! Sending requests: which ones may be sent now, under which XID, with which protection.

use base::arena::Key;
use base::int_cast::{to_u32, to_usize};
use transport::command::TaskAttribute;
use transport::task_management::TmfFunction;

use super::session::{ExchangeSlots, Phase, Session};
use super::task::{Task, TaskKind, Wire};
use crate::connection::{Connection, Message};
use crate::exchange::xid::{PnSpace, WINDOW, next_xid, xid_ahead};
use crate::frame::Cmd;
use crate::pdu::command::{Command, Manage, Request as Block};
use security::Level;

impl Session {
    /// Sends waiting requests, in order, as far as they may be sent.
    pub(super) fn issue_waiting(&mut self) {
        let mut blocked = self.issue_urgent();
        let mut at = 0;
        while self.phase == Phase::Up
            && blocked != [true; 2]
            && let Some(key) = self.waiting.get(at).copied()
        {
            let Some(task) = self.tasks.get(key) else {
                self.waiting.remove(at);
                continue;
            };
            if task.awaits_identity_check(&self.identity_checks) {
                at += 1;
                continue;
            }
            let level = self.level_of(task);
            let class = PnSpace::of_frame(level > Level::None);
            // A request that cannot be sent holds back those of its packet number space, and no others.
            let held = blocked.get(class.index()).copied().unwrap_or(true);
            let data = to_usize(task.data_in.len());
            let crowded =
                self.expected > 0 && self.expected.saturating_add(data) > self.plan.limits.data_in_bytes_max;
            if crowded {
                return;
            }
            if held || !self.may_issue(key, class) {
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

    /// Sends the urgent requests, in order, as far as they may be sent. One that must leave more slots free
    /// than a later one does not hold that back. Returns in which packet number spaces requests still wait.
    fn issue_urgent(&mut self) -> [bool; 2] {
        let mut blocked = [false; 2];
        let mut at = 0;
        while self.phase == Phase::Up
            && let Some(key) = self.urgent.get(at).copied()
        {
            let Some(task) = self.tasks.get(key) else {
                self.urgent.remove(at);
                continue;
            };
            let level = self.level_of(task);
            let class = PnSpace::of_frame(level > Level::None);
            if task.awaits_identity_check(&self.identity_checks) {
                at += 1;
            } else if self.may_issue(key, class) {
                self.urgent.remove(at);
                self.issue(key, class, level);
            } else {
                if let Some(blocked) = blocked.get_mut(class.index()) {
                    *blocked = true;
                }
                at += 1;
            }
        }
        blocked
    }

    /// Puts a request that was sent back to those that wait, in the order in which they were sent, and ahead
    /// of those that were never sent.
    pub(super) fn requeue(&mut self, key: Key) {
        let Some(task) = self.tasks.get(key) else { return };
        let order = task.order;
        let queue = if task.is_urgent() { &mut self.urgent } else { &mut self.waiting };
        let tasks = &self.tasks;
        let was_before =
            |other: &&Key| tasks.get(**other).is_none_or(|other| (1..order).contains(&other.order));
        let at = queue.iter().take_while(was_before).count();
        queue.insert(at, key);
    }

    /// Returns the protection level that a task needs now.
    pub(super) fn level_of(&self, task: &Task) -> Level {
        if !self.nexus.as_ref().is_some_and(|nexus| nexus.keyed) {
            return Level::None;
        }
        let own = self.level(task.lun());
        match &task.kind {
            TaskKind::Command(_) => own,
            TaskKind::Manage { wanted, referenced, .. } => {
                let wide = matches!(
                    wanted.function,
                    TmfFunction::TARGET_WARM_RESET
                        | TmfFunction::TARGET_COLD_RESET
                        | TmfFunction::I_T_NEXUS_RESET
                );
                let named =
                    wanted.task.and_then(|named| self.tasks.get(named.0)).and_then(|named| named.wire);
                let named =
                    named.filter(|wire| wire.xid == *referenced).map_or(Level::None, |wire| wire.level);
                own.max(named).max(if wide { Level::Integrity } else { Level::None })
            }
        }
    }

    //= hyperscsi#section-13.1
    //# An initiator SHOULD leave slots of each class free for what cannot wait for a command to end
    /// Returns whether a request may be sent now in this packet number space.
    fn may_issue(&mut self, key: Key, class: PnSpace) -> bool {
        let Some(nexus) = self.nexus.as_deref_mut() else { return false };
        if nexus.goodbye_said() {
            return false;
        }
        let issue = nexus.slots_of(class);
        let xid = next_xid(issue.last);
        let kept = self.tasks.get(key).map_or(0, |task| task.leaves_free(issue.reserve));
        if issue.free.len() <= kept || xid_ahead(xid, issue.limit).is_some() {
            return false;
        }
        if xid_ahead(xid, issue.low).is_some_and(|far| far >= WINDOW / 2) {
            issue.low = oldest(&self.tasks, issue);
        }
        // The target distinguishes new from duplicate requests only within this window.
        xid_ahead(xid, issue.low).is_none_or(|far| far < WINDOW)
    }

    fn issue(&mut self, key: Key, class: PnSpace, level: Level) {
        let Some(nexus) = self.nexus.as_deref_mut() else { return };
        let first_burst = nexus.parameters.first_burst;
        let mut head = nexus.transport.as_deref_mut().map(Connection::take_head_buffer).unwrap_or_default();
        let issue = nexus.slots_of(class);
        let Some(tag) = issue.free.pop() else { return };
        let Some(task) = self.tasks.get_mut(key) else { return issue.free.push(tag) };
        let (before, xid) = (issue.last, next_xid(issue.last));
        issue.last = xid;
        if let Some(slot) = issue.slots.get_mut(usize::from(tag)) {
            *slot = Some(key);
        }
        task.wire = Some(Wire { class, tag, xid, level });
        task.order = self.order;
        self.order += 1;
        self.expected = self.expected.saturating_add(to_usize(task.data_in.len()));
        // AFTER is 0 for the first request: no exchange is before it.
        let previous = if before == class.start() { 0 } else { before };
        let message = match &task.kind {
            TaskKind::Command(request) => {
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
            TaskKind::Manage { wanted, referenced, .. } => {
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
        nexus.outgoing.push((key, message));
    }

    /// Frees the slot of an exchange, and withdraws its messages that are under way.
    pub(super) fn release(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        let Some(wire) = task.wire.take() else { return };
        self.expected = self.expected.saturating_sub(to_usize(task.data_in.len()));
        task.request = None;
        let messages = core::mem::take(&mut task.messages);
        let Some(nexus) = self.nexus.as_deref_mut() else { return };
        nexus.withdrawn.extend(messages);
        nexus.outgoing.retain(|(other, _)| *other != key);
        let issue = nexus.slots_of(wire.class);
        if let Some(slot) = issue.slots.get_mut(usize::from(wire.tag)) {
            *slot = None;
        }
        issue.free.push(wire.tag);
        if issue.barrier == wire.xid {
            issue.barrier = 0;
        }
    }
}

/// Returns the XID before the oldest request that was not acknowledged.
fn oldest(tasks: &base::arena::Arena<Task>, issue: &ExchangeSlots) -> u32 {
    let open = issue.slots.iter().copied().flatten().filter_map(|key| tasks.get(key));
    let unacknowledged = open.filter(|task| !task.arrived);
    let behind = unacknowledged.filter_map(|task| xid_ahead(issue.last, task.wire?.xid).or(Some(0)));
    let far = behind.max();
    // One step more than the farthest distance; all within one packet number space.
    far.map_or(issue.last, |far| back(issue.last, far + 1))
}

/// Returns the number `by` before `xid`, without skipping zero.
const fn back(xid: u32, by: u32) -> u32 {
    let protected = xid & crate::exchange::xid::XID_PROTECTED_BIT;
    protected | (xid.wrapping_sub(by) & !crate::exchange::xid::XID_PROTECTED_BIT)
}
