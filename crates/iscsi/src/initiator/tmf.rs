//! Task management (RFC 7143 §4.2.3, §11.5, §11.6; RFC 7144 §6).
//!
//! At ErrorRecoveryLevel 0 a request is sent for immediate delivery, so that it can pass a full command
//! window. At level 1 and up it uses a CmdSN where the window allows, because the loss of a numbered request
//! leaves a visible gap, and the request can be sent again without being executed twice.

use base::time::Instant;
use base::transmit::Transmit;
use transport::initiator::{TaskResult, TmfId};
use transport::task_management::{TmfFunction, TmfResult};

use super::connection_slot::QueuedPdu;
use super::contract::{Event, Slot};
use super::open_tmf::{Tmf, TmfOrigin};
use super::protocol_error::ProtocolError;
use super::session::{Session, TAG_TMF, find, tag};
use super::task::{Task, TaskState};
use crate::negotiate::TaskReporting;
use crate::pdu::tmf_request::TmfRequest;
use crate::pdu::tmf_response::TmfResponse;
use crate::pdu::{Itt, PduHeader};
use crate::serial::DataSn;
use crate::target::arena::Key;

impl Session {
    /// Aborts a task that was never sent to the target.
    pub(super) fn abort_unsent(&mut self, key: Key) -> TmfId {
        self.finish(key, TaskResult::NotSent);
        let tmf = Tmf::new(TmfOrigin::Owner, TmfFunction::ABORT_TASK, Slot(0));
        let id = self.tmfs.insert_with(|_| tmf);
        self.tmfs.remove(id);
        self.events.push_back(Event::TmfDone { id: TmfId(id), result: Some(TmfResult::COMPLETE) });
        TmfId(id)
    }

    pub(super) fn send_tmf(&mut self, now: Instant, slot: Slot, key: Key, out: &mut Transmit) {
        let number = self.level().retries_commands() && self.window_is_open();
        let (cmd_sn, order) = (self.cmd_sn, self.order);
        let Some(connection) = self.connection(slot) else { return };
        let exp_stat_sn = connection.acknowledged();
        let segment_max = connection.parameters.initiator_max_recv;
        let Some(tmf) = self.tmfs.get_mut(key).filter(|tmf| tmf.slot == slot) else { return };
        let mut exp_data_sn = DataSn(0);
        if let (TmfOrigin::Reassign, Some(task)) =
            (tmf.origin, tmf.task.and_then(|task| self.tasks.get_mut(task)))
        {
            exp_data_sn = match tmf.exp_data_sn {
                // Sent again: data may have arrived since the target executed the first request, and the gaps
                // in that data stay known.
                Some(first) => first,
                //= rfc7143#section-7.2.2
                //# Initiators MUST NOT subsequently request data retransmission through Data SNACK for PDUs
                //# numbered less than the ExpDataSN (i.e., prior to the acknowledged sequence number).
                None => task.rewind(),
            };
            if tmf.exp_data_sn.replace(exp_data_sn).is_none() {
                task.segment_max = segment_max;
                //= rfc7143#section-11.5.6
                //# The value of ExpDataSN MUST be 0 or higher than the DataSN of the last acknowledged Data-In
                //# PDU, but not larger than DataSN + 1 of the last Data-IN PDU sent by the target.
            }
            //= rfc7143#section-11.5.1
            //# TASK REASSIGN MUST be issued as an immediate command.
        }
        let takes_number = tmf.origin == TmfOrigin::Owner && number && !tmf.numbered && !tmf.again;
        if !tmf.numbered {
            tmf.cmd_sn = cmd_sn;
        }
        if !tmf.numbered {
            // A request that has its number keeps its place among the commands when it is sent again: it ends
            // those before it.
            tmf.order = order;
        }
        tmf.numbered |= takes_number;
        (tmf.sent, tmf.sent_at) = (true, now);
        //= rfc7143#section-11.5.1
        //# If an ABORT TASK is issued for a task created by an immediate command, then the RefCmdSN MUST be
        //# that of the task management request itself (i.e., the CmdSN and RefCmdSN are equal); otherwise,
        //# the RefCmdSN MUST be set to the CmdSN of the task to be aborted (lower than the CmdSN).
        //= rfc7143#section-11.5.5
        //# If an ABORT TASK is issued for a task created by an immediate command, then the RefCmdSN MUST be
        //# that of the task management request itself (i.e., the CmdSN and RefCmdSN are equal).
        let ref_cmd_sn = tmf.referenced.1.unwrap_or(tmf.cmd_sn);
        let request = TmfRequest {
            immediate: !tmf.numbered,
            function: tmf.function,
            lun: tmf.lun,
            itt: tag(TAG_TMF, key),
            referenced_task_tag: tmf.referenced.0,
            cmd_sn: tmf.cmd_sn,
            exp_stat_sn,
            ref_cmd_sn,
            exp_data_sn,
        };
        self.order += 1;
        if takes_number {
            self.cmd_sn = cmd_sn.next();
        }
        if let Some(connection) = self.connection_mut(slot) {
            connection.writer.header(&request.encode(), out);
            connection.record_ack(exp_stat_sn);
        }
        self.stats.pdus_out += 1;
        self.watch_request(now, slot);
    }

    /// Returns whether no data of a task may be sent, because a function that ends it was sent on this
    /// connection. Its R2Ts stay known: if the target refuses the function, they are answered after all.
    pub(super) fn is_data_out_stopped(&self, slot: Slot, task: &Task) -> bool {
        //= rfc7143#section-4.2.3.4
        //# a) MUST NOT send any more Data-Out PDUs for affected tasks on the issuing connection of
        //# the issuing iSCSI session once the TMF is sent to the target.
        self.parameters.task_reporting == TaskReporting::FastAbort
            && self
                .tmfs
                .iter()
                .any(|(_, tmf)| tmf.sent && tmf.slot == slot && task.order < tmf.order && tmf.affects(task))
    }

    /// Sends the data of tasks that a function was to end, and that the target did not end.
    fn resume_data_out(&mut self, tmf: &Tmf) {
        let mut kept: alloc::vec::Vec<_> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.state == TaskState::Sent(tmf.slot) && tmf.affects(task))
            .map(|(key, task)| (task.order, key))
            .collect();
        kept.sort_unstable();
        for (_, key) in kept {
            let Some(task) = self.tasks.get(key) else { continue };
            let r2ts: smallvec::SmallVec<[u32; 4]> =
                task.data_out.bursts.iter().map(|burst| burst.r2t_sn).collect();
            if task.data_out.unsolicited.is_some() {
                self.queue(tmf.slot, QueuedPdu::Unsolicited(key));
            }
            for r2t_sn in r2ts {
                self.queue(tmf.slot, QueuedPdu::SolicitedData(key, r2t_sn));
            }
        }
    }

    pub(super) fn tmf_response(
        &mut self,
        now: Instant,
        slot: Slot,
        pdu: &TmfResponse,
    ) -> Result<(), ProtocolError> {
        if !self.take_status(now, slot, pdu.sn)? {
            return Ok(());
        }
        let Some(key) = find(&self.tmfs, TAG_TMF, pdu.itt) else {
            // A request that was sent twice, or arrived twice, may be answered twice.
            let old = self.stale_tags.contains(&pdu.itt)
                || (self.level().may_receive_twice() && self.was_manage(pdu.itt));
            return if old { Ok(()) } else { Err(ProtocolError::UnknownTask) };
        };
        if self.tmfs.get(key).is_some_and(|tmf| tmf.slot != slot) {
            return Err(ProtocolError::OtherConnection);
        }
        self.finish_tmf(now, key, pdu.response);
        Ok(())
    }

    /// Returns whether a tag may once have named a task management request.
    fn was_manage(&self, itt: Itt) -> bool {
        itt.0 >> 30 == TAG_TMF && usize::try_from(itt.0 & 0xffff).is_ok_and(|index| index < self.tmfs.slots())
    }

    /// Handles the response to a task management request.
    pub(super) fn finish_tmf(&mut self, now: Instant, key: Key, result: TmfResult) {
        let Some(tmf) = self.tmfs.remove(key) else { return };
        if tmf.again {
            self.remember(tag(TAG_TMF, key));
        }
        match (tmf.origin, tmf.task) {
            (TmfOrigin::Reassign, Some(task)) => return self.reassigned(now, &tmf, task, result),
            (TmfOrigin::Reassign | TmfOrigin::FillCmdSnGap, _) => return,
            (TmfOrigin::Owner, _) => {}
        }
        if result == TmfResult::COMPLETE {
            //= rfc7143#section-4.2.3.3
            //# The initiator MUST thus conclude all affected tasks as part of this step in either
            //# case and MUST discard any TMF Response received after the affected tasks are
            //# concluded.
            //= rfc7143#section-4.2.3.4
            //# d) MUST treat the TMF Response as terminating all affected tasks for which responses
            //# have not been received
            self.abort_affected_tasks(&tmf);
        } else if self.parameters.task_reporting == TaskReporting::FastAbort {
            self.resume_data_out(&tmf);
        }
        if let (TmfFunction::ABORT_TASK, Some(task)) = (tmf.function, tmf.task) {
            // The task does not exist at the target, and no status of it is missing: its command never
            // arrived.
            let settled = self
                .connection(tmf.slot)
                .is_none_or(|connection| connection.missing_statuses(None).is_none());
            let gone = result == TmfResult::COMPLETE || (result == TmfResult::NO_TASK && settled);
            if gone && self.tasks.get(task).is_some() {
                self.finish(task, TaskResult::Aborted);
            }
        }
        self.events.push_back(Event::TmfDone { id: TmfId(key), result: Some(result) });
    }

    /// Ends the tasks that a function ended: those sent before it.
    fn abort_affected_tasks(&mut self, tmf: &Tmf) {
        let ended = self
            .tasks
            .iter()
            .filter(|(_, task)| task.was_sent() && task.order < tmf.order && tmf.affects(task));
        for key in ended.map(|(key, _)| key).collect::<alloc::vec::Vec<_>>() {
            //= rfc7143#section-11.5.1
            //# According to [SAM2], for all the tasks covered by the task management response (i.e., with a
            //# CmdSN lower than the task management command CmdSN), except for the task management response
            //# to a TASK REASSIGN, additional responses MUST NOT be delivered to the SCSI layer after the
            //# task management response.
            self.finish(key, TaskResult::Aborted);
        }
    }

    /// Removes the requests of a lost connection. At level 2 those stay that the target may have missed:
    /// their CmdSNs leave gaps, and [`Self::resend_tmfs`] fills them.
    pub(super) fn drop_tmfs(&mut self, slot: Option<Slot>) {
        let (recovers, exp_cmd_sn) = (self.level().reassigns_tasks() && slot.is_some(), self.exp_cmd_sn);
        let lost = self.tmfs.iter().filter(|(_, tmf)| {
            let misses = recovers && tmf.numbered && !tmf.cmd_sn.before(exp_cmd_sn);
            slot.is_none_or(|slot| tmf.slot == slot) && !misses
        });
        for key in lost.map(|(key, _)| key).collect::<alloc::vec::Vec<_>>() {
            if let Some(tmf) = self.tmfs.remove(key)
                && tmf.origin == TmfOrigin::Owner
            {
                self.events.push_back(Event::TmfDone { id: TmfId(key), result: None });
            }
        }
    }

    /// Sends requests again, on another connection, whose CmdSNs the target still expects.
    pub(super) fn resend_tmfs(&mut self, from: Slot, to: Slot) {
        let exp_cmd_sn = self.exp_cmd_sn;
        let left = self.tmfs.iter().filter(|(_, tmf)| tmf.slot == from && tmf.sent);
        let left: alloc::vec::Vec<_> = left.map(|(key, tmf)| (key, tmf.cmd_sn.before(exp_cmd_sn))).collect();
        for (key, arrived) in left {
            if arrived {
                // The response was lost with the connection.
                if let Some(tmf) = self.tmfs.remove(key)
                    && tmf.origin == TmfOrigin::Owner
                {
                    self.events.push_back(Event::TmfDone { id: TmfId(key), result: None });
                }
            } else if let Some(tmf) = self.tmfs.get_mut(key) {
                tmf.slot = to;
                self.queue(to, QueuedPdu::Tmf(key));
            }
        }
    }
}
