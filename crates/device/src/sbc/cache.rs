//! SYNCHRONIZE CACHE (SBC-4 §5.33, §5.34) and PRE-FETCH (SBC-4 §5.13, §5.14).

use alloc::boxed::Box;

use super::address::Span;
use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::flush::FlushThen;
use crate::task::TaskInfo;

/// SYNCHRONIZE CACHE 10 and 16. The whole cache is written, whatever the range. IMMED has no effect: an
/// answer before the blocks are durable could not be withdrawn if the flush then failed.
pub(super) fn synchronize(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    match Span::of(&server.info, &task.cdb) {
        Err(sense) => Outcome::CheckCondition(sense),
        Ok(_) if server.has_to_flush() => Outcome::Run(Box::new(FlushThen { then: |_, _| Outcome::Good })),
        Ok(_) => Outcome::Good,
    }
}

/// PRE-FETCH 10 and 16. The unit has no cache to fetch into, so the answer is GOOD and never CONDITION MET,
/// which would assert that all of the blocks fitted.
pub(super) fn pre_fetch(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    match Span::of(&server.info, &task.cdb) {
        Err(sense) => Outcome::CheckCondition(sense),
        Ok(_) => Outcome::Good,
    }
}
