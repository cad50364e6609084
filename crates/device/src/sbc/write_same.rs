//! WRITE SAME (SBC-4 §5.52 to §5.54).

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use base::units::Blocks;
use scsi::cdb::Cdb;
use scsi::sense::Sense;

use super::address::{Span, fields, length_field};
use super::bulk_change::{BulkChange, Change};
use super::data_out_collector::DataOutCollector;
use super::limits;
use crate::device_server::outcome::{Job, JobInput, JobStep, Outcome};
use crate::device_server::{DeviceServer, UnitInfo};
use crate::range_lock::ByteRange;
use crate::task::TaskInfo;

/// The flags of the CDB that select the operation.
#[derive(Clone, Copy)]
struct Flags {
    unmap: bool,
    /// Write zeros; the command has no Data-Out buffer.
    no_data: bool,
}

/// WRITE SAME 10, 16 and 32.
pub(super) fn write_same(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    match prepare(&server.info, &task.cdb) {
        Ok((_, span)) if span.len == 0 => Outcome::Good,
        Ok((flags, span)) => begin(server, task, flags, span),
        Err(sense) => Outcome::CheckCondition(sense),
    }
}

fn prepare(facts: &UnitInfo, cdb: &Cdb) -> Result<(Flags, Span), Sense> {
    let at = flags_byte(cdb);
    let byte = cdb.u8(usize::from(at));
    let no_data = byte & 0x01 != 0;
    let flags = Flags { unmap: byte & 0x08 != 0, no_data };
    if flags.unmap && !facts.is_thin() {
        return Err(Sense::invalid_cdb(at, Some(3)));
    }
    let (lba, blocks) = fields(cdb);
    let span = Span::new(facts, lba, blocks)?;
    // SBC-4, Block Limits VPD page: with WSNZ set, a WRITE SAME of no blocks is refused; otherwise it extends
    // to the end of the medium.
    if blocks.0 == 0 && limits::limits(facts).write_same_non_zero {
        return Err(Sense::invalid_cdb(length_field(cdb), None));
    }
    let rest = Blocks(facts.capacity().0.saturating_sub(lba.0));
    let span = if blocks.0 == 0 { Span::new(facts, lba, rest)? } else { span };
    span.check_length(cdb, limits::limits(facts).write_same_max)?;
    Ok((flags, span))
}

fn flags_byte(cdb: &Cdb) -> u16 {
    if cdb.len_by_opcode() == Some(32) { 10 } else { 1 }
}

fn begin(server: &mut DeviceServer, task: &TaskInfo, flags: Flags, span: Span) -> Outcome {
    if flags.no_data {
        count(server, span);
        return spread(server, flags, span, &[]);
    }
    let block = server.info.block_size().bytes();
    task.transferable.set(u64::from(block));
    if task.data_out_len != block {
        return Outcome::CheckCondition(super::wrong_data_out());
    }
    count(server, span);
    Outcome::Run(Box::new(OneBlock { flags, span, data_out: DataOutCollector::new(server.info.block_len()) }))
}

/// Counts a write of the span. One that is refused writes nothing.
const fn count(server: &mut DeviceServer, span: Span) {
    server.stats.writes += 1;
    server.stats.write_bytes += span.len;
}

/// Writes `block` to every block of the span, or zeros if it is empty.
fn spread(server: &DeviceServer, flags: Flags, span: Span, block: &[u8]) -> Outcome {
    let change = if block.iter().all(|byte| *byte == 0) {
        Change::Zero { may_deallocate: flags.unmap }
    } else {
        BulkChange::fill_of(server, block, span.len)
    };
    let ranges = VecDeque::from([ByteRange::new(span.at, span.len)]);
    Outcome::Run(Box::new(BulkChange::new(change, ranges)))
}

/// A job that waits for the block from the initiator.
struct OneBlock {
    flags: Flags,
    span: Span,
    data_out: DataOutCollector,
}

impl Job for OneBlock {
    fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        match input {
            JobInput::Start => {
                self.data_out.ask(server, task);
                JobStep::Wait
            }
            JobInput::DataOut { data, .. } => {
                if !self.data_out.take(server, task, data) {
                    return JobStep::Wait;
                }
                let data = self.data_out.take_all();
                let block = DeviceServer::gather(&data);
                server.recycle(data);
                JobStep::Done(spread(server, self.flags, self.span, &block))
            }
            _ => JobStep::unexpected_input(),
        }
    }
}
