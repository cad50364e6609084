//! WRITE, and SYNCHRONIZE CACHE (MMC-6).
//!
//! A DVD+RW and a BD-RE are written at any address, as a disk is, once they are formatted.

use alloc::boxed::Box;

use scsi::sense::{Asc, Sense, SenseKey};

use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::flush::FlushThen;
use crate::sbc::write as blocks;
use crate::task::TaskInfo;

/// WRITE(10) and WRITE(12).
pub(super) fn write(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    match check_formatted(server) {
        Ok(()) => blocks::write(server, task),
        Err(sense) => Outcome::CheckCondition(sense),
    }
}

fn check_formatted(server: &DeviceServer) -> Result<(), Sense> {
    match &server.recorder {
        Some(recorder) if recorder.record.formatted > 0 => Ok(()),
        Some(_) => Err(Sense::illegal(Asc::MEDIUM_NOT_FORMATTED)),
        None => Err(Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED)),
    }
}

/// SYNCHRONIZE CACHE(10): the whole cache, whatever the range. IMMED has no effect: the command ends when what
/// hosts have written is durable.
pub(super) fn synchronize_cache(_: &mut DeviceServer, _: &TaskInfo) -> Outcome {
    Outcome::Run(Box::new(FlushThen { then: |_, _| Outcome::Good }))
}
