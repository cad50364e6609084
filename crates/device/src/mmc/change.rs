//! Changes the record of a disc, and makes it durable before the command that changes it is acknowledged.

use alloc::boxed::Box;
use alloc::vec::Vec;

use base::buffer::DataList;
use scsi::sense::{Asc, Sense};
use store::api::{Durability, OpAction, OpOutput};

use crate::device_server::DeviceServer;
use crate::device_server::outcome::{Job, JobInput, JobStep, Outcome};
use crate::disc_record::DiscRecord;
use crate::flush::FlushThen;
use crate::medium_error::IoKind;
use crate::range_lock::ByteRange;
use crate::recorder::LONG_WRITE_IN_PROGRESS;
use crate::task::TaskInfo;

/// Makes durable what hosts have written, and then the record that describes it. No record describes data
/// that could still be lost.
pub(crate) struct ChangeRecord {
    /// Changes the record, when no other command does.
    change: Option<Change>,
    /// Whether the whole disc is erased before.
    erases: bool,
    /// The record that is being saved, where to, and its bytes.
    saving: Option<(DiscRecord, u64, Vec<u8>)>,
    /// The changed record, while tracks that it closes are being padded. No write is admitted meanwhile.
    padded: Option<DiscRecord>,
    step: Step,
    /// Decides the outcome.
    then: fn(&mut DeviceServer, &TaskInfo) -> Outcome,
}

/// Changes the record.
pub(crate) type Change = Box<dyn FnOnce(&mut DiscRecord) -> Result<(), Sense>>;

/// The operation that is under way.
#[derive(Clone, Copy, Debug)]
enum Step {
    Erasing,
    Padding {
        /// How many tracks are still being padded.
        left: usize,
    },
    Flushing,
    Writing,
}

/// The sense data of a FORMAT UNIT for a disc that cannot be formatted, or not any more.
pub(super) const CANNOT_FORMAT: Sense = Sense::illegal(Asc::CANNOT_FORMAT_MEDIUM_INCOMPATIBLE_MEDIUM);

impl ChangeRecord {
    /// Returns the work of a command that makes the record durable, perhaps after it changed it.
    pub(crate) fn saving(
        change: Option<Change>,
        then: fn(&mut DeviceServer, &TaskInfo) -> Outcome,
    ) -> Outcome {
        Outcome::Run(Box::new(Self {
            change,
            erases: false,
            saving: None,
            padded: None,
            step: Step::Flushing,
            then,
        }))
    }

    /// Returns the work of a command that formats the disc: everything on it is erased.
    pub(crate) fn erasing(change: Change) -> Outcome {
        let (change, then) = (Some(change), |_: &mut DeviceServer, _: &TaskInfo| Outcome::Good);
        Outcome::Run(Box::new(Self {
            change,
            erases: true,
            saving: None,
            padded: None,
            step: Step::Erasing,
            then,
        }))
    }

    fn lock(&self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        let Some(recorder) = &server.recorder else { return JobStep::unexpected_input() };
        let trailer = recorder.trailer();
        server.lock(task, if self.erases { ByteRange::new(0, trailer.end) } else { trailer });
        JobStep::Wait
    }

    /// Begins when no other command changes the record.
    fn begin(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        if !self.erases {
            return self.apply(server, task);
        }
        let Some(recorder) = &mut server.recorder else { return JobStep::unexpected_input() };
        // The disc may have been written since the command arrived.
        if recorder.appends.are_under_way() {
            return JobStep::Done(Outcome::CheckCondition(LONG_WRITE_IN_PROGRESS));
        }
        if !recorder.record.is_formattable() {
            return JobStep::Done(Outcome::CheckCondition(CANNOT_FORMAT));
        }
        recorder.appends.refuse_for(task.id);
        let len = recorder.trailer().start;
        let durability = Durability::Cached;
        server.submit(task, 0, OpAction::WriteZeroes { at: 0, len, may_deallocate: true, durability });
        JobStep::Wait
    }

    /// Changes the record in memory. If that closes tracks which must be padded, the change takes effect when
    /// they are: if that fails, nothing has changed.
    fn apply(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        let Some(recorder) = &mut server.recorder else { return JobStep::unexpected_input() };
        let mut padding = Vec::new();
        if let Some(change) = self.change.take() {
            if recorder.appends.are_under_way() {
                return JobStep::Done(Outcome::CheckCondition(LONG_WRITE_IN_PROGRESS));
            }
            let mut changed = recorder.record.clone();
            if let Err(sense) = change(&mut changed) {
                return JobStep::Done(Outcome::CheckCondition(sense));
            }
            padding = changed.padding_since(&recorder.record);
            if padding.is_empty() {
                recorder.record = changed;
            } else {
                recorder.appends.refuse_for(task.id);
                self.padded = Some(changed);
            }
        }
        if padding.is_empty() {
            return self.flush(server, task);
        }
        self.step = Step::Padding { left: padding.len() };
        // A write that a loss of power took back may have left something there.
        for (at, len) in padding {
            let durability = Durability::Cached;
            server.submit(task, 0, OpAction::WriteZeroes { at, len, may_deallocate: true, durability });
        }
        JobStep::Wait
    }

    /// Makes durable what the record describes. What is written from now on is not in the record that is
    /// saved.
    fn flush(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        let Some(recorder) = &mut server.recorder else { return JobStep::unexpected_input() };
        if let Some(padded) = self.padded.take() {
            recorder.record = padded;
        }
        recorder.appends.end_refusal(task.id);
        if recorder.has_unsaved() {
            let (at, bytes) = recorder.record.next_record();
            self.saving = Some((recorder.record.clone(), at, bytes));
        }
        self.step = Step::Flushing;
        server.submit(task, 0, OpAction::Flush);
        JobStep::Wait
    }

    fn write(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        let Some((_, at, bytes)) = &self.saving else { return self.end(server, task) };
        let (at, data) = (*at, DataList::from(server.buffer_of(bytes)));
        self.step = Step::Writing;
        server.submit(task, 0, OpAction::Write { at, data, durability: Durability::Stable });
        JobStep::Wait
    }

    fn written(&mut self, server: &mut DeviceServer, task: &TaskInfo, output: OpOutput) -> JobStep {
        if let OpOutput::Done(data) = output {
            server.recycle(data);
        }
        if let (Some(recorder), Some((saved, ..))) = (&mut server.recorder, self.saving.take()) {
            recorder.record_saved(saved);
        }
        self.end(server, task)
    }

    fn end(&self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        if self.erases {
            server.disc_formatted(task.nexus);
        } else {
            server.limit_to_disc();
        }
        JobStep::Done((self.then)(server, task))
    }
}

impl Job for ChangeRecord {
    fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        let failed = |sense| JobStep::Done(Outcome::CheckCondition(sense));
        match input {
            JobInput::Start => self.lock(server, task),
            JobInput::Locked => self.begin(server, task),
            JobInput::OpCompleted { result, .. } => match (self.step, result) {
                (Step::Erasing, Ok(_)) => self.apply(server, task),
                (Step::Padding { left }, Ok(_)) if left > 1 => {
                    self.step = Step::Padding { left: left - 1 };
                    JobStep::Wait
                }
                (Step::Padding { .. }, Ok(_)) => self.flush(server, task),
                (Step::Flushing, result) => match server.flushed(result) {
                    Ok(()) => self.write(server, task),
                    Err(sense) => failed(sense),
                },
                (Step::Writing, Ok(output)) => self.written(server, task, output),
                (Step::Erasing | Step::Padding { .. } | Step::Writing, Err(failure)) => {
                    failed(server.medium_failure(failure, IoKind::Writing, None))
                }
            },
            _ => JobStep::unexpected_input(),
        }
    }
}

impl DeviceServer {
    /// Makes durable what hosts have written, and then continues. On a disc that is written sequentially that
    /// includes how far its tracks are written.
    pub(crate) fn synchronize_then(&self, then: fn(&mut Self, &TaskInfo) -> Outcome) -> Outcome {
        match &self.recorder {
            Some(recorder) if recorder.record.kind.is_sequential() => ChangeRecord::saving(None, then),
            _ => Outcome::Run(Box::new(FlushThen { then })),
        }
    }

    /// Begins to save the record of a writable disc that does not describe everything that was acknowledged
    /// yet. Returns whether there is such a disc.
    pub(crate) fn save_disc(&mut self) -> bool {
        if !self.recorder.as_ref().is_some_and(|disc| disc.has_unsaved()) {
            return false;
        }
        if let Outcome::Run(job) = ChangeRecord::saving(None, |_, _| Outcome::Good) {
            self.spawn_own(job);
        }
        true
    }
}
