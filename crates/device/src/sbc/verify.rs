//! VERIFY (SBC-4 §5.36 to §5.39) and WRITE AND VERIFY (SBC-4 §5.44 to §5.47).

use alloc::boxed::Box;

use base::buffer::DataList;
use scsi::cdb::Cdb;
use scsi::sense::Sense;
use store::api::{Durability, OpAction, OpOutput};

use super::address::Span;
use super::compare::{first_difference, miscompare};
use super::part_len;
use super::write::{check_data_out, data_out_len};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::{Job, JobInput, JobStep, Outcome};
use crate::fault_injection::{self, Bug};
use crate::medium_error::IoKind;
use crate::task::TaskInfo;

/// BYTCHK (SBC-4 §5.36).
mod byte_check {
    /// The medium is read, and nothing is compared.
    pub(super) const NONE: u8 = 0;
    /// Every block is compared with the corresponding block in the Data-Out buffer.
    pub(super) const EACH: u8 = 1;
    /// Every block is compared with the only block in the Data-Out buffer.
    pub(super) const SAME: u8 = 3;
}

/// VERIFY 10, 12, 16 and 32.
pub(crate) fn verify(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let span = match Span::of_transfer(&server.info, &task.cdb) {
        Ok(span) => span,
        Err(sense) => return Outcome::CheckCondition(sense),
    };
    let (len, compare) = match byte_check(&task.cdb) {
        byte_check::NONE => (span.len, Compare::Nothing),
        byte_check::EACH => match data_out_len(server, task, span) {
            Ok(len) => (u64::try_from(len).unwrap_or(u64::MAX), Compare::Each),
            Err(outcome) => return outcome,
        },
        byte_check::SAME => {
            let block = u64::from(server.info.block_size().bytes());
            task.transferable.set(if span.len == 0 { 0 } else { block });
            if span.len > 0 && u64::from(task.data_out_len) != block {
                return Outcome::CheckCondition(super::wrong_data_out());
            }
            (span.len, Compare::Same(DataList::new()))
        }
        _ => return Outcome::CheckCondition(invalid_byte_check(&task.cdb)),
    };
    run(server, span, len, compare, None)
}

/// WRITE AND VERIFY 10, 12, 16 and 32: each part is written, made durable and read back.
pub(crate) fn write_and_verify(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let compare = match byte_check(&task.cdb) {
        byte_check::NONE => Compare::Nothing,
        byte_check::EACH => Compare::Each,
        _ => return Outcome::CheckCondition(invalid_byte_check(&task.cdb)),
    };
    let span = match Span::of_transfer(&server.info, &task.cdb) {
        Ok(span) => span,
        Err(sense) => return Outcome::CheckCondition(sense),
    };
    match check_data_out(server, task, span) {
        Ok(len) => {
            let durability = server.durability(true);
            run(server, span, u64::try_from(len).unwrap_or(u64::MAX), compare, Some(durability))
        }
        Err(outcome) => outcome,
    }
}

fn run(
    server: &mut DeviceServer,
    span: Span,
    len: u64,
    compare: Compare,
    write: Option<Durability>,
) -> Outcome {
    if len == 0 {
        return Outcome::Good;
    }
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    Outcome::Run(Box::new(Verify::new(server, (span.at, len), compare, write)))
}

/// Returns the work of a WRITE AND VERIFY whose outcome is another's to decide. BYTCHK is 00b or 01b.
pub(crate) fn verified_write(
    server: &mut DeviceServer,
    task: &TaskInfo,
    at: u64,
    len: usize,
) -> impl Job + use<> {
    let compare = if byte_check(&task.cdb) == byte_check::NONE { Compare::Nothing } else { Compare::Each };
    let durability = server.durability(true);
    Verify::new(server, (at, len), compare, Some(durability))
}

fn byte_check(cdb: &Cdb) -> u8 {
    (if cdb.len_by_opcode() == Some(32) { cdb.u8(10) } else { cdb.u8(1) }) >> 1 & 3
}

fn invalid_byte_check(cdb: &Cdb) -> Sense {
    Sense::invalid_cdb(if cdb.len_by_opcode() == Some(32) { 10 } else { 1 }, Some(2))
}

enum Compare {
    Nothing,
    Each,
    Same(DataList),
}

/// The tags of store operations.
mod tag {
    pub(super) const READ: u32 = 0;
    pub(super) const WRITE: u32 = 1;
}

struct Verify {
    at: u64,
    len: usize,
    part: usize,
    compare: Compare,
    /// How the data is written before it is verified; `None` if it is not written.
    write: Option<Durability>,
    /// How many bytes are verified so far.
    done: usize,
    /// The present part of the Data-Out buffer.
    sent: Option<DataList>,
}

impl Verify {
    fn new(
        server: &mut DeviceServer,
        (at, len): (u64, usize),
        compare: Compare,
        write: Option<Durability>,
    ) -> Self {
        let bytes = u64::try_from(len).unwrap_or(u64::MAX);
        server.errors.verified_bytes = server.errors.verified_bytes.saturating_add(bytes);
        Self { at, len, part: part_len(server), compare, write, done: 0, sent: None }
    }

    fn here(&self) -> u64 {
        self.at.saturating_add(u64::try_from(self.done).unwrap_or(u64::MAX))
    }

    fn step_len(&self) -> usize {
        self.part.min(self.len - self.done)
    }

    /// Begins the next part.
    fn begin(&self, server: &mut DeviceServer, task: &TaskInfo) {
        let narrow = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        match &self.compare {
            Compare::Same(block) if block.is_empty() => {
                server.fetch_data_out(task, 0, server.info.block_size().bytes());
            }
            Compare::Nothing | Compare::Same(_) if self.write.is_none() => self.read(server, task),
            _ => server.fetch_data_out(task, narrow(self.done), narrow(self.step_len())),
        }
    }

    fn read(&self, server: &mut DeviceServer, task: &TaskInfo) {
        server.submit(task, tag::READ, OpAction::Read { at: self.here(), len: self.step_len() });
    }

    fn arrived(&mut self, server: &mut DeviceServer, task: &TaskInfo, data: DataList) {
        if let Compare::Same(block) = &mut self.compare {
            *block = data;
            return self.read(server, task);
        }
        match self.write {
            Some(durability) => {
                self.sent = Some(data.clone());
                server.submit(task, tag::WRITE, OpAction::Write { at: self.here(), data, durability });
            }
            None => {
                self.sent = Some(data);
                self.read(server, task);
            }
        }
    }

    /// Compares the data that was read from the medium.
    fn found(&mut self, server: &DeviceServer, held: DataList) -> Result<(), Outcome> {
        let block_len = server.info.block_len();
        let difference = match (&self.compare, &self.sent) {
            (Compare::Each, Some(_))
                if self.write.is_some() && fault_injection::is_injected(Bug::VerifyNothing) =>
            {
                None
            }
            (Compare::Each, Some(sent)) => first_difference(sent, &held),
            (Compare::Same(block), _) => (0..held.len()).step_by(block_len).find_map(|start| {
                let at = first_difference(block, &held.slice(start, start + block_len))?;
                Some(start + at)
            }),
            _ => None,
        };
        if let Some(at) = difference {
            return Err(Outcome::CheckCondition(miscompare(self.done + at)));
        }
        self.done += held.len();
        server.recycle(held);
        if let Some(sent) = self.sent.take() {
            server.recycle(sent);
        }
        Ok(())
    }
}

impl Job for Verify {
    fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        match input {
            JobInput::Start => self.begin(server, task),
            JobInput::DataOut { data, .. } => self.arrived(server, task, data),
            JobInput::OpCompleted { result: Ok(OpOutput::Done(_)), .. } => self.read(server, task),
            JobInput::OpCompleted { result: Ok(OpOutput::Data(held)), .. } => {
                if let Err(outcome) = self.found(server, held) {
                    return JobStep::Done(outcome);
                }
                if self.done >= self.len {
                    return JobStep::Done(Outcome::Good);
                }
                self.begin(server, task);
            }
            JobInput::OpCompleted { tag, result: Err(failure) } => {
                let doing = if tag == tag::READ { IoKind::Verifying } else { IoKind::Writing };
                return JobStep::Done(Outcome::CheckCondition(server.medium_failure(
                    failure,
                    doing,
                    Some(self.here()),
                )));
            }
            _ => return JobStep::unexpected_input(),
        }
        JobStep::Wait
    }
}
