//! What a task reports when it ends.

use alloc::boxed::Box;

use scsi::sense::Sense;
use scsi::status::Status;

use crate::contract::{SenseBytes, ThirdPartyError, ThirdPartyReply, ThirdPartyResult, UnitEvent};
use crate::device_server::DeviceServer;
use crate::no_lun;
use crate::task::{Origin, TaskInfo, ThirdPartyTask};
use crate::task_set::AbortReport;

impl DeviceServer {
    /// Reports a task that was aborted.
    pub(super) fn report(&mut self, task: &TaskInfo, answer: AbortReport) {
        match (answer, task.key()) {
            (AbortReport::LunNotSupported, _) => {
                self.send_response(task, Status::CHECK_CONDITION, Some(&no_lun::NOT_SUPPORTED));
            }
            (AbortReport::TaskAborted, _) | (_, None) => self.send_response(task, Status::TASK_ABORTED, None),
            (AbortReport::Aborted, Some(key)) => self.emit(UnitEvent::Aborted { key }),
            (AbortReport::Unreported, Some(_)) => {}
        }
    }

    /// Sends the result of a task to its transport or to the copy manager that requested it.
    pub(super) fn send_response(&mut self, task: &TaskInfo, status: Status, sense: Option<&Sense>) {
        let transferable = task.transferable_for(status);
        self.stats.count_status(status, sense.map(|sense| sense.key));
        match &task.origin {
            Origin::Transport(key) => {
                self.count_time(task);
                let descriptor = self.settings.descriptor_sense;
                let sense = sense.map(|sense| Box::new(SenseBytes::new(sense, descriptor)));
                self.emit(UnitEvent::CommandComplete { key: *key, status, sense, transferable });
            }
            Origin::ThirdParty(peer) => {
                let result = match status {
                    Status::GOOD if task.data_in_len > 0 => self.read_for(peer),
                    Status::GOOD => Ok(ThirdPartyReply::Done),
                    status => Err(ThirdPartyError::Status(status, sense.copied())),
                };
                self.reply_third_party(peer.caller, result);
            }
            Origin::Background => {}
        }
    }

    /// Returns the data that a copy manager read, unless the ROD token by which it read has become invalid.
    fn read_for(&self, peer: &ThirdPartyTask) -> ThirdPartyResult {
        let good = peer.token.as_ref().map_or(Ok(()), |token| self.copy_manager.tokens.check_valid(token));
        let refused = |sense| ThirdPartyError::Status(Status::CHECK_CONDITION, Some(sense));
        good.map(|()| ThirdPartyReply::Data(peer.data_in.take())).map_err(refused)
    }
}
