//! WRITE, WRITE AND VERIFY, and SYNCHRONIZE CACHE (MMC-6).
//!
//! A DVD+RW and a BD-RE are written at any address, as a disk is, once they are formatted. A DVD-R and a BD-R
//! are written where a track is written to ([`crate::recorder`]).

use alloc::boxed::Box;

use base::units::{Blocks, Lba};
use scsi::opcode as op;
use scsi::sense::{Asc, Sense, SenseKey};

use super::change::ChangeRecord;
use super::close;
use crate::device_server::DeviceServer;
use crate::device_server::outcome::{Job, JobInput, JobStep, Outcome};
use crate::disc_record::WritableKind;
use crate::recorder::{AppendState, LONG_WRITE_IN_PROGRESS, Recorder};
use crate::sbc::address::{self, Span};
use crate::sbc::{part_len, verify, write as blocks};
use crate::task::{TaskId, TaskInfo};

/// WRITE(10), WRITE(12) and WRITE AND VERIFY(10).
pub(super) fn write(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let is_verified = task.cdb.u8(0) == op::WRITE_AND_VERIFY_10;
    match &mut server.recorder {
        None => Outcome::CheckCondition(Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED)),
        Some(recorder) if recorder.record.kind.is_sequential() => append(server, task, is_verified),
        Some(recorder) if recorder.record.formatted == 0 => {
            Outcome::CheckCondition(Sense::illegal(Asc::MEDIUM_NOT_FORMATTED))
        }
        Some(recorder) if recorder.appends.are_refused() => Outcome::CheckCondition(LONG_WRITE_IN_PROGRESS),
        Some(recorder) => {
            recorder.appends.overwrite(task.id);
            if is_verified { verify::write_and_verify(server, task) } else { blocks::write(server, task) }
        }
    }
}

/// A write to a disc that is written sequentially.
fn append(server: &mut DeviceServer, task: &TaskInfo, is_verified: bool) -> Outcome {
    let span = match span_of(server, task) {
        Ok(span) => span,
        Err(sense) => return Outcome::CheckCondition(sense),
    };
    let len = match blocks::check_data_out(server, task, span) {
        Ok(len) => len,
        Err(outcome) => return outcome,
    };
    let sectors = u32::try_from(len / server.info.block_len()).unwrap_or(u32::MAX);
    let start = u32::try_from(span.lba.0).unwrap_or(u32::MAX);
    let part = part_len(server);
    let Some(recorder) = &mut server.recorder else { return Outcome::bug() };
    match recorder.admit(task.id, start, sectors) {
        Ok(()) if is_verified => {
            let transfer = verify::verified_write(server, task, span.at, len);
            Outcome::Run(Box::new(AppendSectors { transfer, first: span.lba }))
        }
        Ok(()) => {
            let transfer = blocks::long_write(span.at, len, part);
            Outcome::Run(Box::new(AppendSectors { transfer, first: span.lba }))
        }
        Err(sense) => Outcome::CheckCondition(sense),
    }
}

/// Checks what does not depend on what was written before. FUA would need the end of the track to be durable
/// with every write, and is refused.
fn span_of(server: &DeviceServer, task: &TaskInfo) -> Result<Span, Sense> {
    const FUA: u8 = 0x08;
    if task.cdb.u8(1) & FUA != 0 {
        return Err(Sense::invalid_cdb(1, Some(3)));
    }
    let (lba, blocks): (Lba, Blocks) = address::fields(&task.cdb);
    let size = server.info.block_size();
    let (Some(at), Some(len)) = (size.offset_of(lba), size.len_of(blocks)) else {
        return Err(Sense::illegal(Asc::LBA_OUT_OF_RANGE));
    };
    let span = Span { lba, blocks, at: at.0, len: len.0 };
    span.check_length(&task.cdb, u64::from(server.info.config.transfer_blocks_max))?;
    let parameters = &server.settings.write_parameters;
    let recorder = server.recorder.as_ref();
    if recorder.is_some_and(|recorder| recorder.record.kind == WritableKind::DvdR) {
        if !parameters.is_data() {
            return Err(Sense::illegal(Asc::ILLEGAL_MODE_FOR_THIS_TRACK));
        }
        let is_reserved = |recorder: &Recorder| {
            let open = recorder.record.open_track_at(u32::try_from(lba.0).unwrap_or(u32::MAX));
            open.and_then(|at| recorder.record.tracks().get(at)).is_none_or(|track| track.end.is_some())
        };
        if parameters.is_disc_at_once() && !recorder.is_some_and(|recorder| is_reserved(recorder)) {
            return Err(Sense::illegal(Asc::COMMAND_SEQUENCE_ERROR));
        }
    }
    Ok(span)
}

/// A write that ends when those before it on its track have ended.
struct AppendSectors<J> {
    transfer: J,
    first: Lba,
}

impl<J: Job> AppendSectors<J> {
    fn conclude(server: &DeviceServer, task: &TaskInfo) -> JobStep {
        const CHANGED: Sense = Sense::new(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
        let state = server.recorder.as_ref().and_then(|recorder| recorder.appends.state(task.id));
        let sense = match state {
            Some(AppendState::Transferring | AppendState::Written) => return JobStep::Wait,
            Some(AppendState::Done) => return JobStep::Done(Outcome::Good),
            Some(AppendState::Failed) => Sense::illegal(Asc::INVALID_ADDRESS_FOR_WRITE),
            None => CHANGED,
        };
        JobStep::Done(Outcome::CheckCondition(sense))
    }
}

impl<J: Job> Job for AppendSectors<J> {
    fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        if matches!(input, JobInput::Woken) {
            return Self::conclude(server, task);
        }
        match self.transfer.step(server, task, input) {
            JobStep::Done(Outcome::Good) => {
                server.append_written(task.id);
                Self::conclude(server, task)
            }
            // None of its sectors counts as written, whichever failed.
            JobStep::Done(Outcome::CheckCondition(sense))
                if sense.information.is_some() && sense.key != SenseKey::MISCOMPARE =>
            {
                JobStep::Done(Outcome::CheckCondition(sense.with_information(self.first.0)))
            }
            other => other,
        }
    }
}

/// SYNCHRONIZE CACHE(10): the whole cache, whatever the range. IMMED has no effect: the command ends when
/// what hosts have written is durable. It also closes a session that was written at once.
pub(super) fn synchronize_cache(server: &mut DeviceServer, _: &TaskInfo) -> Outcome {
    match close::of_disc_at_once(server) {
        Some(change) => ChangeRecord::saving(Some(change), |_, _| Outcome::Good),
        None => server.synchronize_then(|_, _| Outcome::Good),
    }
}

impl DeviceServer {
    /// Returns whether writes to a disc are under way.
    pub(crate) fn is_appending(&self) -> bool {
        self.recorder.as_ref().is_some_and(|recorder| recorder.appends.are_under_way())
    }

    /// Records that the data of a task's write is written.
    fn append_written(&mut self, task: TaskId) {
        let Some(recorder) = &mut self.recorder else { return };
        for done in recorder.written(task) {
            if done != task {
                self.wake(done);
            }
        }
        self.limit_to_disc();
    }

    /// Forgets the write of a task that has ended.
    pub(crate) fn end_append(&mut self, task: TaskId) {
        let Some(recorder) = &mut self.recorder else { return };
        for failed in recorder.forget(task) {
            self.wake(failed);
        }
    }
}
