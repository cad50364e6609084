//! GET LBA STATUS (SBC-4 §5.6, §5.7).

use alloc::boxed::Box;
use alloc::vec::Vec;

use base::units::{Blocks, Lba};
use store::api::{Extent, ExtentState, OpAction, OpOutput};

use super::address::Span;
use crate::device_server::outcome::{Job, JobInput, JobStep, Outcome};
use crate::device_server::{DeviceServer, UnitInfo};
use crate::medium_error::IoKind;
use crate::task::TaskInfo;

/// How many descriptors one answer has at most: 4 KiB of them. An initiator that needs more sends another
/// command for the block where they end.
const MAX_DESCRIPTORS: usize = 256;

const HEADER_LEN: usize = 8;
const DESCRIPTOR_LEN: usize = 16;

/// GET LBA STATUS(16).
pub(super) fn get_16(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    get(server, Lba(task.cdb.u64(2)), Blocks(0), u64::from(task.cdb.u32(10)))
}

/// GET LBA STATUS(32).
pub(super) fn get_32(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let scanned = Blocks(u64::from(task.cdb.u32(20)));
    get(server, Lba(task.cdb.u64(12)), scanned, u64::from(task.cdb.u32(28)))
}

/// Reports the status of `scanned` blocks from `start`; zero means to the end.
fn get(server: &DeviceServer, start: Lba, scanned: Blocks, allocation: u64) -> Outcome {
    if let Err(sense) = Span::new(&server.info, start, Blocks(1)) {
        return Outcome::CheckCondition(sense);
    }
    let rest = server.info.capacity().0 - start.0;
    let scanned = if scanned.0 == 0 { rest } else { scanned.0.min(rest) };
    let span = match Span::new(&server.info, start, Blocks(scanned)) {
        Ok(span) => span,
        Err(sense) => return Outcome::CheckCondition(sense),
    };
    if !server.info.is_thin() {
        let all = [Run { start: start.0, end: start.0 + scanned, status: MAPPED }];
        return Outcome::ParameterData { bytes: encode(&all, MAX_DESCRIPTORS), allocation };
    }
    let room = usize::try_from(allocation).unwrap_or(usize::MAX).saturating_sub(HEADER_LEN) / DESCRIPTOR_LEN;
    Outcome::Run(Box::new(Look { span, allocation, count: room.clamp(1, MAX_DESCRIPTORS) }))
}

/// PROVISIONING STATUS (SBC-4 §5.6).
const MAPPED: u8 = 0;
const DEALLOCATED: u8 = 1;
const ANCHORED: u8 = 2;

/// Blocks `start..end` of one status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: u64,
    end: u64,
    status: u8,
}

struct Look {
    span: Span,
    allocation: u64,
    count: usize,
}

impl Job for Look {
    fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        let Span { at, len, .. } = self.span;
        match input {
            JobInput::Start => {
                // One more than requested: the last one may end within a block and then does not determine
                // the status of that block.
                server.submit(task, 0, OpAction::MapStatus { at, len, count_max: self.count + 1 });
                JobStep::Wait
            }
            JobInput::OpCompleted { result: Ok(OpOutput::MapStatus(extents)), .. } => {
                let runs = runs(&server.info, self.span, &extents);
                let bytes = encode(&runs, self.count);
                JobStep::Done(Outcome::ParameterData { bytes, allocation: self.allocation })
            }
            JobInput::OpCompleted { result: Err(failure), .. } => JobStep::Done(Outcome::CheckCondition(
                server.medium_failure(failure, IoKind::Reading, Some(at)),
            )),
            _ => JobStep::unexpected_input(),
        }
    }
}

/// Converts extents of bytes to runs of blocks: a block with any storage is mapped. The first run starts at
/// the span's first block.
fn runs(facts: &UnitInfo, span: Span, extents: &[Extent]) -> Vec<Run> {
    let shift = facts.block_size().shift();
    let round = u64::from(facts.block_size().bytes()) - 1;
    let mut runs: Vec<Run> = Vec::new();
    let mut next = span.lba.0;
    for extent in extents {
        let end = extent.at.saturating_add(extent.len).min(span.at.saturating_add(span.len));
        let (end, status) = match extent.state {
            ExtentState::Mapped => (end.saturating_add(round) >> shift, MAPPED),
            ExtentState::Hole => (end >> shift, DEALLOCATED),
            ExtentState::Anchored => (end >> shift, ANCHORED),
        };
        // The rest of a block that this extent only begins belongs to the next extent, which reports the
        // block as mapped. Without a next extent, nothing more is known about the block.
        if end <= next {
            continue;
        }
        let whole_from =
            if status == MAPPED { next } else { (extent.at.saturating_add(round) >> shift).max(next) };
        if whole_from > next {
            push(&mut runs, Run { start: next, end: whole_from.min(end), status: MAPPED });
        }
        if whole_from < end {
            push(&mut runs, Run { start: whole_from, end, status });
        }
        next = end;
    }
    if runs.is_empty() {
        runs.push(Run { start: span.lba.0, end: span.lba.0 + 1, status: MAPPED });
    }
    runs
}

fn push(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(last) if last.status == run.status => last.end = run.end,
        _ => runs.push(run),
    }
}

fn encode(runs: &[Run], count_max: usize) -> Vec<u8> {
    let mut bytes = alloc::vec![0; HEADER_LEN];
    let mut count = 0;
    for run in runs {
        let mut start = run.start;
        // A descriptor can count up to 2^32 - 1 blocks.
        while start < run.end && count < count_max {
            let blocks = u32::try_from(run.end - start).unwrap_or(u32::MAX);
            bytes.extend(start.to_be_bytes());
            bytes.extend(blocks.to_be_bytes());
            bytes.extend([run.status, 0, 0, 0]);
            start += u64::from(blocks);
            count += 1;
        }
    }
    let len = u32::try_from(bytes.len() - 4).unwrap_or(u32::MAX);
    for (to, from) in bytes.iter_mut().zip(len.to_be_bytes()) {
        *to = from;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_longer_than_a_descriptor_can_say_takes_several() {
        let run = Run { start: 5, end: 5 + (1 << 33), status: DEALLOCATED };
        let bytes = encode(&[run], 8);
        assert_eq!(bytes.len(), 8 + 3 * 16);
        assert_eq!(bytes[..8], [0, 0, 0, 52, 0, 0, 0, 0]);
        assert_eq!(bytes[8..24], [0, 0, 0, 0, 0, 0, 0, 5, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0]);
        assert_eq!(bytes[24..32], [0, 0, 0, 1, 0, 0, 0, 4]);
        assert_eq!(encode(&[run], 2).len(), 8 + 2 * 16);
    }
}
