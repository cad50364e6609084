//! The drive's side of a writable disc: its record, and the saving of it.

use alloc::boxed::Box;

use base::buffer::DataList;
use scsi::sense::Sense;
use store::api::{Durability, OpAction, OpOutput};

use crate::device_server::DeviceServer;
use crate::device_server::outcome::{Job, JobInput, JobStep, Outcome};
use crate::disc_record::{DiscRecord, SECTOR_LEN, TRAILER_LEN};
use crate::medium_error::IoKind;
use crate::range_lock::ByteRange;
use crate::task::TaskInfo;

/// A writable disc in the drive.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// The record as it is now. What a command changed in it is durable when that command is acknowledged.
    pub(crate) record: DiscRecord,
}

impl Recorder {
    pub(crate) const fn new(record: DiscRecord) -> Self {
        Self { record }
    }

    /// Returns the part of the image that holds the record.
    pub(crate) fn trailer(&self) -> ByteRange {
        let at = u64::from(self.record.capacity) * SECTOR_LEN;
        ByteRange::new(at, u64::try_from(TRAILER_LEN).unwrap_or(u64::MAX))
    }
}

/// Changes the record of the disc, and makes it durable before the command is acknowledged. What hosts have
/// written is made durable first, so that no record describes data that could still be lost.
pub(crate) struct ChangeRecord {
    /// Changes the record when no other command changes it.
    change: Option<Change>,
    step: Step,
}

/// Changes the record.
pub(crate) type Change = Box<dyn FnOnce(&mut DiscRecord) -> Result<(), Sense>>;

/// The operation that is under way.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The whole disc is erased.
    Erasing,
    /// What hosts have written is made durable.
    Flushing,
    /// The record is written.
    Writing,
}

impl ChangeRecord {
    /// Returns the work of a command that formats the disc: everything on it is erased.
    pub(crate) fn erasing(change: Change) -> Outcome {
        Outcome::Run(Box::new(Self { change: Some(change), step: Step::Erasing }))
    }

    fn lock(&self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        let Some(recorder) = &server.recorder else { return JobStep::unexpected_input() };
        let trailer = recorder.trailer();
        let range = match self.step {
            Step::Erasing => ByteRange::new(0, trailer.end),
            _ => trailer,
        };
        server.lock(task, range);
        JobStep::Wait
    }

    /// Begins when no other command changes the record.
    fn begin(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        let Some(recorder) = &mut server.recorder else { return JobStep::unexpected_input() };
        if matches!(self.step, Step::Erasing) {
            let action = OpAction::WriteZeroes {
                at: 0,
                len: recorder.trailer().start,
                may_deallocate: true,
                durability: Durability::Cached,
            };
            server.submit(task, 0, action);
            return JobStep::Wait;
        }
        self.apply(server, task)
    }

    /// Changes the record in memory, and makes durable what it describes.
    fn apply(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        if let (Some(recorder), Some(change)) = (&mut server.recorder, self.change.take())
            && let Err(sense) = change(&mut recorder.record)
        {
            return JobStep::Done(Outcome::CheckCondition(sense));
        }
        self.step = Step::Flushing;
        server.submit(task, 0, OpAction::Flush);
        JobStep::Wait
    }

    fn write(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        let Some(recorder) = &mut server.recorder else { return JobStep::unexpected_input() };
        let (at, bytes) = recorder.record.next_record();
        let data = DataList::from(server.buffer_of(&bytes));
        self.step = Step::Writing;
        server.submit(task, 0, OpAction::Write { at, data, durability: Durability::Stable });
        JobStep::Wait
    }
}

impl Job for ChangeRecord {
    fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        match input {
            JobInput::Start => self.lock(server, task),
            JobInput::Locked => self.begin(server, task),
            JobInput::OpCompleted { result, .. } => match (self.step, result) {
                (Step::Erasing, Ok(_)) => self.apply(server, task),
                (Step::Flushing, result) => match server.flushed(result) {
                    Ok(()) => self.write(server, task),
                    Err(sense) => JobStep::Done(Outcome::CheckCondition(sense)),
                },
                (Step::Writing, Ok(output)) => {
                    if let OpOutput::Done(data) = output {
                        server.recycle(data);
                    }
                    if let Some(recorder) = &mut server.recorder {
                        recorder.record.record_written();
                    }
                    server.apply_disc_length(Some(task.nexus));
                    JobStep::Done(Outcome::Good)
                }
                (Step::Erasing | Step::Writing, Err(failure)) => {
                    let sense = server.medium_failure(failure, IoKind::Writing, None);
                    JobStep::Done(Outcome::CheckCondition(sense))
                }
            },
            _ => JobStep::unexpected_input(),
        }
    }
}
