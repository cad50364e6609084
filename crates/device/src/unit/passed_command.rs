//! The end of a command that was passed to a device.

use alloc::boxed::Box;

use scsi::status::Status;

use super::LogicalUnit;
use crate::contract::{SenseBytes, UnitEvent};
use crate::device_server::outcome::Outcome;
use crate::task::TaskId;

impl LogicalUnit {
    /// Ends a task with what a device answered.
    pub(super) fn finish_passed(
        &mut self,
        id: TaskId,
        status: Status,
        sense: Option<SenseBytes>,
    ) -> Option<Outcome> {
        let task = self.tasks.find_mut(id)?;
        self.server.task_ended(id);
        self.server.stats.count_status(status, sense.as_ref().and_then(SenseBytes::key));
        self.server.count_time(&task.info);
        let transferable = task.info.transferable.get();
        if let Some(key) = task.info.key() {
            let sense = sense.map(Box::new);
            self.server.emit(UnitEvent::CommandComplete { key, status, sense, transferable });
        }
        self.tasks.remove(id);
        None
    }
}
