//! Task management (RFC 7143 §4.2.3, §11.5, §11.6; RFC 7144 §6).
//!
//! At ErrorRecoveryLevel 0 a request is sent for immediate delivery, so that it passes a full command window. At
//! level 1 and up it takes a number where the window allows, because a numbered request that is lost on the way leaves
//! a gap that shows, and can be sent again without being carried out twice.

use base::time::Instant;
use base::transmit::Transmit;

use super::contract::{End, Event, MAX_MANAGES, ManageId, Management, Refusal, Slot, TaskId};
use super::place::Output;
use super::session::{Phase, Session, TAG_MANAGE, TAG_TASK, find, tag};
use super::task::{Standing, Task};
use super::why::Why;
use crate::pdu::tmf_request::{TmfFunction, TmfRequest};
use crate::pdu::tmf_response::{TmfResponse, TmfResult};
use crate::pdu::{Itt, Message};
use crate::serial::{CmdSn, DataSn};
use crate::target::arena::Key;

/// A task management request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Manage {
    pub(super) errand: Errand,
    pub(super) function: TmfFunction,
    pub(super) lun: u64,
    pub(super) task: Option<Key>,
    /// The tag and the number of the task that it names.
    pub(super) referenced: (Itt, CmdSn),
    pub(super) slot: Slot,
    pub(super) cmd_sn: CmdSn,
    pub(super) numbered: bool,
    pub(super) sent: bool,
    pub(super) order: u64,
    pub(super) sent_at: Instant,
    /// Whether it was sent before, so that it may have been carried out.
    pub(super) again: bool,
    /// For a task that moves: the ExpDataSN that was sent first.
    pub(super) exp_data_sn: Option<DataSn>,
    pub(super) tries: u32,
}

/// Whose request it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Errand {
    /// The owner's.
    Owner,
    /// Ours: a task moves to another connection.
    Reassign,
    /// Ours: the number of a command that was refused is to count as received.
    Plug,
}

impl Manage {
    pub(super) const fn new(errand: Errand, function: TmfFunction, slot: Slot) -> Self {
        Self {
            errand,
            function,
            lun: 0,
            task: None,
            referenced: (Itt::NONE, CmdSn(0)),
            slot,
            cmd_sn: CmdSn(0),
            numbered: false,
            sent: false,
            order: 0,
            sent_at: Instant::ORIGIN,
            again: false,
            exp_data_sn: None,
            tries: 0,
        }
    }

    /// Returns whether it ends every task of a kind.
    const fn ends_many(&self) -> bool {
        matches!(
            self.function,
            TmfFunction::ABORT_TASK_SET
                | TmfFunction::CLEAR_TASK_SET
                | TmfFunction::LOGICAL_UNIT_RESET
                | TmfFunction::TARGET_WARM_RESET
                | TmfFunction::TARGET_COLD_RESET
                | TmfFunction::I_T_NEXUS_RESET
        )
    }

    /// Returns whether it ends a task at this logical unit.
    fn affects(&self, task: &Task) -> bool {
        let target_wide = matches!(
            self.function,
            TmfFunction::TARGET_WARM_RESET | TmfFunction::TARGET_COLD_RESET | TmfFunction::I_T_NEXUS_RESET
        );
        self.ends_many() && (target_wide || task.request.lun == self.lun)
    }
}

impl Session {
    /// Asks for a task management function. Tasks that it concerns and that have not left yet end at once, as not
    /// sent; those that the target ends are reported before the answer.
    ///
    /// # Errors
    /// Why it is not taken.
    pub fn manage(&mut self, now: Instant, wanted: Management) -> Result<ManageId, Refusal> {
        let Management { function, lun, task } = wanted;
        if self.phase == Phase::Down {
            return Err(Refusal::Down);
        }
        if self.manages.len() >= MAX_MANAGES {
            return Err(Refusal::Full);
        }
        let newer = function.0 > TmfFunction::TASK_REASSIGN.0;
        if function == TmfFunction::TASK_REASSIGN || (newer && self.parameters.protocol_level < 2) {
            return Err(Refusal::NotPossible);
        }
        let names_task = matches!(function, TmfFunction::ABORT_TASK | TmfFunction::QUERY_TASK);
        let key = task.map(|TaskId(key)| key).filter(|_| names_task);
        let named =
            key.and_then(|key| self.tasks.get(key)).map(|task| (task.standing, task.cmd_sn, task.is_out()));
        if names_task && named.is_none() {
            return Err(Refusal::NoTask);
        }
        if let (TmfFunction::ABORT_TASK, Some(key), Some((_, _, is_out))) = (function, key, named) {
            if let Some(task) = self.tasks.get_mut(key) {
                task.request.replay = false;
            }
            if !is_out {
                return Ok(self.abort_unsent(key));
            }
        }
        let own = match named {
            Some((Standing::Sent(slot), _, _)) => Some(slot),
            _ => None,
        };
        let slot =
            own.or_else(|| self.any_up(None)).filter(|_| self.phase == Phase::Up).ok_or(Refusal::NotUp)?;
        let mut manage = Manage { lun, task: key, ..Manage::new(Errand::Owner, function, slot) };
        if let (Some(key), Some((_, cmd_sn, _))) = (key, named) {
            manage.referenced = (tag(TAG_TASK, key), cmd_sn);
            manage.lun = self.tasks.get(key).map_or(lun, |task| task.request.lun);
        }
        let unsent = self.tasks.iter().filter(|(_, task)| !task.is_out() && manage.affects(task));
        for key in unsent.map(|(key, _)| key).collect::<alloc::vec::Vec<_>>() {
            self.finish(key, End::NotSent);
        }
        let key = self.manages.insert_with(|_| manage);
        self.queue(slot, Output::Manage(key));
        self.dispatch(now);
        Ok(ManageId(key))
    }

    /// Aborts a task that the target never heard of.
    fn abort_unsent(&mut self, key: Key) -> ManageId {
        self.finish(key, End::NotSent);
        let manage = Manage::new(Errand::Owner, TmfFunction::ABORT_TASK, Slot(0));
        let id = self.manages.insert_with(|_| manage);
        self.manages.remove(id);
        self.events.push_back(Event::Managed { id: ManageId(id), result: Some(TmfResult::COMPLETE) });
        ManageId(id)
    }

    pub(super) fn send_manage(&mut self, now: Instant, slot: Slot, key: Key, out: &mut Transmit) {
        let number = self.repairs() && self.window_is_open();
        let (cmd_sn, order) = (self.cmd_sn, self.order);
        let Some(link) = self.link(slot) else { return };
        let (digests, exp_stat_sn) = (link.digests(), link.acknowledged());
        let segment_max = link.parameters.initiator_max_recv;
        let Some(manage) = self.manages.get_mut(key).filter(|manage| manage.slot == slot) else { return };
        let mut exp_data_sn = DataSn(0);
        if let (Errand::Reassign, Some(task)) =
            (manage.errand, manage.task.and_then(|task| self.tasks.get_mut(task)))
        {
            exp_data_sn = match (manage.exp_data_sn, task.anew) {
                // Sent again: data may have come since the target carried it out, and the gaps in that stay known.
                (Some(first), _) => first,
                // Of data that was cut anew the numbers say nothing: it begins where the target knows it acknowledged.
                (None, Some(_)) => DataSn(0),
                (None, None) => task.numbers.rewind(),
            };
            if manage.exp_data_sn.replace(exp_data_sn).is_none() {
                task.segment_max = segment_max;
            }
        }
        let takes_number = manage.errand == Errand::Owner && number && !manage.numbered && !manage.again;
        if !manage.numbered {
            manage.cmd_sn = cmd_sn;
        }
        if !manage.numbered {
            // A request that has its number keeps its place among the commands when it is sent again: it ends those before it.
            manage.order = order;
        }
        manage.numbered |= takes_number;
        (manage.sent, manage.sent_at) = (true, now);
        let request = TmfRequest {
            immediate: !manage.numbered,
            function: manage.function,
            lun: manage.lun,
            itt: tag(TAG_MANAGE, key),
            referenced_task_tag: manage.referenced.0,
            cmd_sn: manage.cmd_sn,
            exp_stat_sn,
            ref_cmd_sn: manage.referenced.1,
            exp_data_sn,
        };
        self.order += 1;
        if takes_number {
            self.cmd_sn = cmd_sn.next();
        }
        digests.header(&request.encode(), out);
        if let Some(link) = self.link_mut(slot) {
            link.tell(exp_stat_sn);
        }
        self.stats.pdus_out += 1;
        self.watch_if_repairing(now, slot);
    }

    pub(super) fn tmf_response(&mut self, now: Instant, slot: Slot, pdu: &TmfResponse) -> Result<(), Why> {
        if !self.take_status(now, slot, pdu.sn)? {
            return Ok(());
        }
        let Some(key) = find(&self.manages, TAG_MANAGE, pdu.itt) else {
            // What was asked twice, or arrived twice, may be answered twice.
            let old = self.ghosts.contains(&pdu.itt) || (self.repairs() && self.was_manage(pdu.itt));
            return if old { Ok(()) } else { Err(Why::UnknownTask) };
        };
        if self.manages.get(key).is_some_and(|manage| manage.slot != slot) {
            return Err(Why::OtherConnection);
        }
        self.managed(now, key, pdu.response);
        Ok(())
    }

    /// Returns whether a tag may once have named a task management request.
    fn was_manage(&self, itt: Itt) -> bool {
        itt.0 >> 30 == TAG_MANAGE
            && usize::try_from(itt.0 & 0xffff).is_ok_and(|index| index < self.manages.slots())
    }

    /// Acts on the answer to a task management request.
    pub(super) fn managed(&mut self, now: Instant, key: Key, result: TmfResult) {
        let Some(manage) = self.manages.remove(key) else { return };
        if manage.again {
            self.remember(tag(TAG_MANAGE, key));
        }
        match (manage.errand, manage.task) {
            (Errand::Reassign, Some(task)) => return self.reassigned(now, &manage, task, result),
            (Errand::Reassign | Errand::Plug, _) => return,
            (Errand::Owner, _) => {}
        }
        if result == TmfResult::COMPLETE {
            self.end_managed(&manage);
        }
        if let (TmfFunction::ABORT_TASK, Some(task)) = (manage.function, manage.task) {
            // It does not exist at the target, and no status of it is missing: it never got there.
            let settled = self.link(manage.slot).is_none_or(|link| link.missing_statuses(None).is_none());
            let gone = result == TmfResult::COMPLETE || (result == TmfResult::NO_TASK && settled);
            if gone && self.tasks.get(task).is_some() {
                self.finish(task, End::Aborted);
            }
        }
        self.events.push_back(Event::Managed { id: ManageId(key), result: Some(result) });
    }

    /// Ends the tasks that a function ended: those sent before it.
    fn end_managed(&mut self, manage: &Manage) {
        let ended = self
            .tasks
            .iter()
            .filter(|(_, task)| task.is_out() && task.order < manage.order && manage.affects(task));
        for key in ended.map(|(key, _)| key).collect::<alloc::vec::Vec<_>>() {
            self.finish(key, End::Aborted);
        }
    }

    /// Takes back the requests that were on a connection that is lost. At level 2 those stay that the target may miss:
    /// their numbers leave gaps, and [`Self::resend_manages`] fills them.
    pub(super) fn lose_manages(&mut self, slot: Option<Slot>) {
        let (recovers, exp_cmd_sn) = (self.recovers() && slot.is_some(), self.exp_cmd_sn);
        let lost = self.manages.iter().filter(|(_, manage)| {
            let misses = recovers && manage.numbered && !manage.cmd_sn.before(exp_cmd_sn);
            slot.is_none_or(|slot| manage.slot == slot) && !misses
        });
        for key in lost.map(|(key, _)| key).collect::<alloc::vec::Vec<_>>() {
            if let Some(manage) = self.manages.remove(key)
                && manage.errand == Errand::Owner
            {
                self.events.push_back(Event::Managed { id: ManageId(key), result: None });
            }
        }
    }

    /// Sends requests again, on another connection, whose numbers the target still waits for.
    pub(super) fn resend_manages(&mut self, from: Slot, to: Slot) {
        let exp_cmd_sn = self.exp_cmd_sn;
        let left = self.manages.iter().filter(|(_, manage)| manage.slot == from && manage.sent);
        let left: alloc::vec::Vec<_> =
            left.map(|(key, manage)| (key, manage.cmd_sn.before(exp_cmd_sn))).collect();
        for (key, arrived) in left {
            if arrived {
                // Its answer was lost with the connection.
                if let Some(manage) = self.manages.remove(key)
                    && manage.errand == Errand::Owner
                {
                    self.events.push_back(Event::Managed { id: ManageId(key), result: None });
                }
            } else if let Some(manage) = self.manages.get_mut(key) {
                manage.slot = to;
                self.queue(to, Output::Manage(key));
            }
        }
    }
}
