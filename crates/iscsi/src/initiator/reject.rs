//! Rejects (RFC 7143 §7.3, §11.17): the target refused a PDU.

use base::time::Instant;
use transport::initiator::TaskResult;
use transport::task_management::{TmfFunction, TmfResult};

use super::connection_slot::{ConnectionSlot, QueuedPdu};
use super::contract::{SessionEnd, Slot};
use super::open_tmf::{Tmf, TmfOrigin};
use super::protocol_error::{ProtocolError, RejectText};
use super::session::{Session, TAG_TASK, TAG_TMF, find, tag};
use super::task::TaskState;
use crate::pdu::reject::{Reject, RejectReason};
use crate::pdu::snack::{Snack, SnackKind};
use crate::pdu::{BHS_LEN, Bhs, Opcode, PduHeader};

impl Session {
    pub(super) fn reject(
        &mut self,
        now: Instant,
        slot: Slot,
        pdu: &Reject,
        data: &[u8],
    ) -> Result<(), ProtocolError> {
        if !self.take_status(now, slot, pdu.sn)? {
            return Ok(());
        }
        self.stats.rejects += 1;
        let bhs = data.first_chunk::<BHS_LEN>().ok_or(ProtocolError::RejectWithoutHeader)?;
        let bhs = Bhs::from_bytes(*bhs);
        match bhs.opcode() {
            Opcode::SCSI_COMMAND => self.command_rejected(slot, &bhs, pdu.reason),
            Opcode::TMF_REQUEST => self.tmf_rejected(now, slot, &bhs, pdu.reason),
            Opcode::TEXT_REQUEST => {
                self.text_refused(slot, bhs.itt());
                Ok(())
            }
            Opcode::NOP_OUT => {
                // The ping is refused, but the target is alive.
                if let Some(connection) = self.connection_mut(slot) {
                    connection.ping.take_if(|(itt, _)| *itt == bhs.itt());
                }
                Ok(())
            }
            Opcode::SNACK => self.snack_rejected(slot, &Snack::decode(&bhs)?),
            // The target requests the data again, or ends the task.
            Opcode::DATA_OUT => Ok(()),
            // The login is complete: its last request arrived twice.
            Opcode::LOGIN_REQUEST if self.level().may_receive_twice() => Ok(()),
            Opcode::LOGOUT_REQUEST if self.session_logout.is_some_and(|(itt, _)| itt == bhs.itt()) => {
                self.end_session(SessionEnd::LoggedOut);
                Ok(())
            }
            _ => Err(ProtocolError::Rejected(RejectText(pdu.reason))),
        }
    }

    fn command_rejected(&mut self, slot: Slot, bhs: &Bhs, reason: RejectReason) -> Result<(), ProtocolError> {
        let Some(key) = find(&self.tasks, TAG_TASK, bhs.itt()) else { return Ok(()) };
        let Some(task) = self.tasks.get(key).filter(|task| task.state == TaskState::Sent(slot)) else {
            return Ok(());
        };
        let (numbered, cmd_sn, lun) = (task.numbered, task.cmd_sn, task.request.lun);
        let resent = task.resent;
        if reason == RejectReason::TASK_IN_PROGRESS {
            // The command arrived twice, and the target rejects only the duplicate: reporting the command as
            // not executed would be wrong. The duplicate of a numbered command is to be silently ignored (RFC
            // 7143 §4.2.2.1).
            return if numbered { Err(ProtocolError::Rejected(RejectText(reason))) } else { Ok(()) };
        }
        let acknowledged = numbered && cmd_sn.before(self.exp_cmd_sn);
        if reason == RejectReason::DATA_DIGEST_ERROR && !acknowledged {
            self.unless_retried(ProtocolError::CommandDamaged)?;
            self.stats.retries += 1;
            self.queue(slot, QueuedPdu::Command(key));
            return Ok(());
        }
        if reason == RejectReason::DATA_DIGEST_ERROR && resent {
            // One copy was rejected, and the number counts because of another: that one has a response of its
            // own.
            return Ok(());
        }
        self.finish(key, TaskResult::Rejected(reason.0));
        if numbered && !acknowledged {
            //= rfc7143#section-7.3
            //# Upon receiving the Reject, the initiator MUST plug the CmdSN gap in order to continue to use the
            //# session.
            // The CmdSN counts as not received; the initiator fills the gap by aborting the command of that
            // number.
            let up = self.connection_slot(slot).is_some_and(ConnectionSlot::is_up).then_some(slot);
            let Some(slot) = up.or_else(|| self.any_up(None)) else { return Ok(()) };
            let tmf = Tmf {
                lun,
                referenced: (tag(TAG_TASK, key), Some(cmd_sn)),
                ..Tmf::new(TmfOrigin::FillCmdSnGap, TmfFunction::ABORT_TASK, slot)
            };
            let key = self.tmfs.insert_with(|_| tmf);
            self.queue(slot, QueuedPdu::Tmf(key));
        }
        Ok(())
    }

    fn tmf_rejected(
        &mut self,
        now: Instant,
        slot: Slot,
        bhs: &Bhs,
        reason: RejectReason,
    ) -> Result<(), ProtocolError> {
        let Some(key) = find(&self.tmfs, TAG_TMF, bhs.itt()) else { return Ok(()) };
        let Some(tmf) = self.tmfs.get(key).filter(|tmf| tmf.slot == slot) else { return Ok(()) };
        if tmf.origin == TmfOrigin::FillCmdSnGap {
            return Err(ProtocolError::Rejected(RejectText(reason)));
        }
        if tmf.origin == TmfOrigin::Owner && tmf.again && reason == RejectReason::TOO_MANY_IMMEDIATE {
            // The target may be executing the first copy: reporting the function as rejected would be wrong.
            // The request is sent again until one copy is answered.
            return Ok(());
        }
        // A task that is being reassigned is tried again later: the target has too many immediate requests
        // now.
        let result = match (tmf.origin, reason) {
            (TmfOrigin::Reassign, RejectReason::TOO_MANY_IMMEDIATE) => TmfResult::STILL_ALLEGIANT,
            _ => TmfResult::REJECTED,
        };
        self.finish_tmf(now, key, result);
        Ok(())
    }

    fn snack_rejected(&mut self, slot: Slot, snack: &Snack) -> Result<(), ProtocolError> {
        if snack.kind == SnackKind::R_DATA {
            return self.r_data_snack_rejected(slot, snack);
        }
        // A PDU that arrived in the meantime need not be recovered, and a SNACK that requests all existing
        // PDUs may match none.
        if snack.run_length == 0 || !self.is_missing(slot, snack) {
            return Ok(());
        }
        match snack.kind {
            SnackKind::STATUS => Err(ProtocolError::NotRepaired),
            SnackKind::DATA_OR_R2T => {
                // The target ends the task with an error; a GOOD status would be wrong.
                let Some(key) = find(&self.tasks, TAG_TASK, snack.itt) else { return Ok(()) };
                let Some(task) = self.tasks.get_mut(key) else { return Ok(()) };
                task.unrepairable = true;
                if task.status.as_ref().is_some_and(|ending| ending.status == 0) {
                    return Err(ProtocolError::NotRepaired);
                }
                self.finish_if_complete(key)
            }
            _ => Ok(()),
        }
    }
}
