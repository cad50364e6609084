//! CLOSE TRACK SESSION (MMC-6).

use alloc::boxed::Box;

use scsi::sense::Sense;

use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::flush::FlushThen;
use crate::task::TaskInfo;

/// CLOSE FUNCTION.
mod function {
    /// Stops formatting in the background.
    pub(super) const STOP_FORMAT: u8 = 0b000;
    pub(super) const SESSION: u8 = 0b010;
    pub(super) const FINALIZE: u8 = 0b011;
}

/// CLOSE TRACK SESSION. IMMED has no effect. A rewritable disc has one session, which is always complete: what
/// hosts have written is made durable.
pub(super) fn close_track_session(_: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    match task.cdb.u8(2) {
        function::STOP_FORMAT | function::SESSION | function::FINALIZE => {
            Outcome::Run(Box::new(FlushThen { then: |_, _| Outcome::Good }))
        }
        _ => Outcome::CheckCondition(Sense::invalid_cdb(2, Some(2))),
    }
}
