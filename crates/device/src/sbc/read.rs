//! READ (SBC-4 §5.16 to §5.19).

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use base::buffer::DataList;
use base::int_cast::to_u64;
use scsi::sense::Sense;
use store::api::{Failure, OpAction, OpOutput};

use super::address::Span;
use super::{PARTS_UNDER_WAY, part_len};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::one_operation::Read;
use crate::device_server::outcome::{Job, JobInput, JobStep, Outcome};
use crate::flush::FlushThen;
use crate::medium_error::IoKind;
use crate::task::TaskInfo;

/// READ 6, 10, 12, 16 and 32. With FUA, the data read is durable (SBC-4 §4.15.5).
pub(crate) fn read(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    if super::force_unit_access(&task.cdb) && server.has_to_flush() {
        return match Span::of_transfer(&server.info, &task.cdb) {
            Ok(_) => Outcome::Run(Box::new(FlushThen { then: deliver_blocks })),
            Err(sense) => Outcome::CheckCondition(sense),
        };
    }
    deliver_blocks(server, task)
}

/// Reads the blocks that the CDB addresses, and delivers them.
fn deliver_blocks(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    match Span::of_transfer(&server.info, &task.cdb) {
        Ok(span) => deliver_span(server, task, span),
        Err(sense) => Outcome::CheckCondition(sense),
    }
}

/// Reads as much of a span as the initiator accepts, and delivers it.
#[inline]
pub(crate) fn deliver_span(server: &mut DeviceServer, task: &TaskInfo, span: Span) -> Outcome {
    // An initiator that sends data instead accepts none, and receives none.
    task.transferable.set(if task.data_out_len > 0 { 0 } else { span.len });
    let wanted = span.len.min(u64::from(task.data_in_len));
    server.stats.reads += 1;
    server.stats.read_bytes += wanted;
    let part = part_len(server);
    match usize::try_from(wanted).unwrap_or(usize::MAX) {
        0 => Outcome::Good,
        wanted if wanted <= part => Outcome::Read(Read { at: span.at, wanted }),
        wanted => Outcome::Run(Box::new(LongRead { at: span.at, wanted, part, ..LongRead::default() })),
    }
}

/// A read of several operations: some are in progress at a time, and their data is delivered in order.
#[derive(Debug, Default)]
struct LongRead {
    at: u64,
    wanted: usize,
    part: usize,
    /// How many bytes were requested from the medium.
    asked: usize,
    /// How many bytes were delivered.
    delivered: usize,
    /// The parts in progress, in order, with the results of those that are complete.
    parts: VecDeque<Option<Result<DataList, Failure>>>,
    /// The tag of the first of these parts.
    first: u32,
}

impl LongRead {
    fn ask(&mut self, server: &mut DeviceServer, task: &TaskInfo) {
        while self.parts.len() < PARTS_UNDER_WAY && self.asked < self.wanted {
            let len = self.part.min((self.wanted - self.asked).next_multiple_of(server.info.block_len()));
            let tag = self.first.wrapping_add(u32::try_from(self.parts.len()).unwrap_or(0));
            let at = self.at.saturating_add(u64::try_from(self.asked).unwrap_or(u64::MAX));
            server.submit(task, tag, OpAction::Read { at, len });
            self.asked += len;
            self.parts.push_back(None);
        }
    }

    /// Delivers the parts up to the first that is not complete.
    ///
    /// # Errors
    /// The failure of a part, once everything before it was delivered: the sense data names the first block
    /// that cannot be read.
    fn deliver_ready(&mut self, server: &mut DeviceServer, task: &TaskInfo) -> Result<(), Failure> {
        while let Some(Some(_)) = self.parts.front() {
            let Some(Some(result)) = self.parts.pop_front() else { break };
            self.first = self.first.wrapping_add(1);
            let data = result?;
            let room = self.wanted - self.delivered;
            let data = if data.len() > room { data.slice(0, room) } else { data };
            let offset = u32::try_from(self.delivered).unwrap_or(u32::MAX);
            self.delivered += data.len();
            server.send_data_in(task, offset, data);
        }
        Ok(())
    }
}

impl Job for LongRead {
    fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        match input {
            JobInput::Start => {}
            JobInput::OpCompleted { tag, result } => {
                let at = usize::try_from(tag.wrapping_sub(self.first)).unwrap_or(usize::MAX);
                let Some(part) = self.parts.get_mut(at) else { return JobStep::unexpected_input() };
                *part = match result {
                    Ok(OpOutput::Data(data)) => Some(Ok(data)),
                    Ok(_) => return JobStep::unexpected_input(),
                    Err(failure) => Some(Err(failure)),
                };
                if let Err(failure) = self.deliver_ready(server, task) {
                    return failed(server, failure, self.at.saturating_add(to_u64(self.delivered)));
                }
            }
            _ => return JobStep::unexpected_input(),
        }
        if self.parts.iter().flatten().all(Result::is_ok) {
            self.ask(server, task);
        }
        if self.parts.is_empty() { JobStep::Done(Outcome::Good) } else { JobStep::Wait }
    }
}

fn failed(server: &mut DeviceServer, failure: Failure, at: u64) -> JobStep {
    let sense: Sense = server.medium_failure(failure, IoKind::Reading, Some(at));
    JobStep::Done(Outcome::CheckCondition(sense))
}
