//! WRITE (SBC-4 §5.40 to §5.43).

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use base::buffer::DataList;
use base::int_cast::to_u64;
use scsi::sense::{Asc, Sense};
use store::api::{Durability, Failure, OpAction, OpOutput};

use super::address::Span;
use super::{PARTS_UNDER_WAY, part_len};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::one_operation::Write;
use crate::device_server::outcome::{Job, JobInput, JobStep, Outcome};
use crate::medium_error::IoKind;
use crate::task::TaskInfo;

/// WRITE 6, 10, 12, 16 and 32.
pub(crate) fn write(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let force_unit_access = super::force_unit_access(&task.cdb);
    let span = match Span::of_transfer(&server.info, &task.cdb) {
        Ok(span) => span,
        Err(sense) => return Outcome::CheckCondition(sense),
    };
    let len = match check_data_out(server, task, span) {
        Ok(len) => len,
        Err(outcome) => return outcome,
    };
    let part = part_len(server);
    if len <= part {
        Outcome::Write(Write { at: span.at, len, force_unit_access })
    } else {
        Outcome::Run(Box::new(LongWrite { at: span.at, len, part, force_unit_access, ..LongWrite::new() }))
    }
}

/// Returns how many bytes of a span the initiator sends for a write, see [`data_out_len`], and counts the
/// write.
///
/// # Errors
/// The outcome of a command that writes nothing.
pub(crate) fn check_data_out(
    server: &mut DeviceServer,
    task: &TaskInfo,
    span: Span,
) -> Result<usize, Outcome> {
    let len = data_out_len(server, task, span)?;
    count_write(server, len);
    if len == 0 { Err(Outcome::Good) } else { Ok(len) }
}

/// Counts a command that writes this many bytes.
pub(super) fn count_write(server: &mut DeviceServer, len: usize) {
    server.stats.writes += 1;
    server.stats.write_bytes += to_u64(len);
}

/// Returns how many bytes of a span the initiator sends: a whole number of blocks.
///
/// # Errors
/// The outcome when the initiator sends part of a block (FCP-4 requires that sense; RFC 7143 does not specify
/// one), or asks for data.
pub(super) fn data_out_len(server: &DeviceServer, task: &TaskInfo, span: Span) -> Result<usize, Outcome> {
    if task.data_in_len > 0 {
        return Err(Outcome::CheckCondition(super::wrong_data_out()));
    }
    task.transferable.set(span.len);
    let sent = span.len.min(u64::from(task.data_out_len));
    let len = usize::try_from(sent).unwrap_or(usize::MAX);
    if len % server.info.block_len() != 0 {
        let sense = Sense::illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
        return Err(Outcome::CheckCondition(sense));
    }
    Ok(len)
}

/// Returns the work of a write whose outcome is another's to decide.
pub(crate) fn long_write(at: u64, len: usize, part: usize) -> impl Job {
    LongWrite { at, len, part, ..LongWrite::new() }
}

/// A write of several parts: each is written when it is received, while the next ones are being fetched.
#[derive(Debug)]
struct LongWrite {
    at: u64,
    len: usize,
    part: usize,
    force_unit_access: bool,
    /// How many bytes were requested from the initiator.
    asked: usize,
    /// The parts that are being fetched or written, in order, by their offsets. All before the first one are
    /// written.
    under_way: VecDeque<u32>,
    flushing: bool,
}

impl LongWrite {
    const fn new() -> Self {
        Self {
            at: 0,
            len: 0,
            part: 0,
            force_unit_access: false,
            asked: 0,
            under_way: VecDeque::new(),
            flushing: false,
        }
    }

    fn ask(&mut self, server: &mut DeviceServer, task: &TaskInfo) {
        while self.under_way.len() < PARTS_UNDER_WAY && self.asked < self.len {
            let len = self.part.min(self.len - self.asked);
            let narrow = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
            server.fetch_data_out(task, narrow(self.asked), narrow(len));
            self.under_way.push_back(narrow(self.asked));
            self.asked += len;
        }
    }

    /// Writes a part that was received. Its tag is its offset, so that a failure can be located. One flush at
    /// the end is equivalent to a durable write of every part.
    fn put(&self, server: &mut DeviceServer, task: &TaskInfo, offset: u32, data: DataList) {
        let at = self.at.saturating_add(u64::from(offset));
        server.submit(task, offset, OpAction::Write { at, data, durability: Durability::Cached });
    }

    fn written(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> JobStep {
        self.ask(server, task);
        if !self.under_way.is_empty() {
            return JobStep::Wait;
        }
        if server.durability(self.force_unit_access) == Durability::Cached {
            return JobStep::Done(Outcome::Good);
        }
        self.flushing = true;
        server.submit(task, 0, OpAction::Flush);
        JobStep::Wait
    }
}

impl Job for LongWrite {
    fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        match input {
            JobInput::Start => {
                self.ask(server, task);
                JobStep::Wait
            }
            JobInput::DataOut { offset, data } => {
                self.put(server, task, offset, data);
                JobStep::Wait
            }
            JobInput::OpCompleted { result, .. } if self.flushing => JobStep::Done(
                server.flushed_since(result).map_or_else(Outcome::CheckCondition, |()| Outcome::Good),
            ),
            JobInput::OpCompleted { tag, result: Ok(OpOutput::Done(data)) } => {
                self.under_way.retain(|offset| *offset != tag);
                server.recycle(data);
                self.written(server, task)
            }
            JobInput::OpCompleted { result: Err(failure), .. } => {
                // Parts before this one may fail as well. With FUA, no part is durable.
                let is_cached = server.durability(self.force_unit_access) == Durability::Cached;
                let first = self.under_way.front().copied().filter(|_| is_cached);
                failed(server, failure, self.at.saturating_add(u64::from(first.unwrap_or(0))))
            }
            _ => JobStep::unexpected_input(),
        }
    }
}

fn failed(server: &mut DeviceServer, failure: Failure, at: u64) -> JobStep {
    JobStep::Done(Outcome::CheckCondition(server.medium_failure(failure, IoKind::Writing, Some(at))))
}
