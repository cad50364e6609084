//! Commands that are atomic against every other access: COMPARE AND WRITE (SBC-4 §5.3), ORWRITE (SBC-4 §5.10)
//! and WRITE ATOMIC (SBC-4 §5.48).
//!
//! All data is fetched before the range is locked, so that a slow initiator delays no other task.

use alloc::boxed::Box;

use base::buffer::{Bytes, DataList};
use scsi::sense::{Asc, Sense};
use store::api::{OpAction, OpOutput};

use super::address::{Span, address_field, length_field};
use super::compare::{first_difference, miscompare};
use super::data_out_collector::DataOutCollector;
use super::write::{count_write, data_out_len};
use super::{limits, part_len};
use crate::fault_injection::{self, Bug};
use crate::medium_error::IoKind;
use crate::orw_generation::{Disposition, Policy};
use crate::range_lock::ByteRange;

use crate::device_server::DeviceServer;
use crate::device_server::outcome::{Job, JobInput, JobStep, Outcome};
use crate::task::TaskInfo;

/// COMPARE AND WRITE.
pub(super) fn compare_and_write(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let most = u64::from(limits::limits(&server.info).compare_and_write_max);
    let span = match span_within(server, task, most) {
        Ok(span) => span,
        Err(outcome) => return outcome,
    };
    if span.len == 0 {
        return no_blocks(task);
    }
    // The Data-Out buffer holds the expected data first, then the data to write.
    let total = span.len * 2;
    task.transferable.set(total);
    if u64::from(task.data_out_len) != total {
        return Outcome::CheckCondition(super::wrong_data_out());
    }
    run(task, span, Action::CompareAndWrite, total)
}

/// Answers a COMPARE AND WRITE of no blocks: nothing is compared, and the status is GOOD (SBC-4 §5.3).
///
/// An initiator that has data to send receives an error instead. Its count is 256 blocks or more, cut to the
/// eight bits of the field; GOOD would make it believe that it holds a lock that it does not have.
fn no_blocks(task: &TaskInfo) -> Outcome {
    if task.data_out_len == 0 {
        Outcome::Good
    } else {
        Outcome::CheckCondition(Sense::invalid_cdb(length_field(&task.cdb), None))
    }
}

/// ORWRITE(16): a set operation of generation zero (SBC-4 §4.27.2.2).
pub(super) fn or_write_16(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    set_bits(server, task, 0)
}

/// ORWRITE(32): sets bits, or clears bits and begins a generation.
pub(super) fn or_write_32(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let expected = task.cdb.u32(20);
    match task.cdb.u8(2) & 0x07 {
        0 => set_bits(server, task, expected),
        1 => change_generation(server, task, expected),
        _ => Outcome::CheckCondition(Sense::invalid_cdb(2, Some(2))),
    }
}

fn set_bits(server: &mut DeviceServer, task: &TaskInfo, expected: u32) -> Outcome {
    let span = match Span::of_transfer(&server.info, &task.cdb) {
        Ok(span) => span,
        Err(sense) => return Outcome::CheckCondition(sense),
    };
    // The generation is checked again under the range lock, when no other task can change it. This early
    // check spares an outdated request the transfer of data that would be refused.
    if server.orw_generations.disposition_of(expected) == Disposition::Refused {
        return Outcome::CheckCondition(GENERATION_DOES_NOT_MATCH);
    }
    match data_out_len(server, task, span) {
        Ok(0) => Outcome::Good,
        Ok(len) => run(task, span, Action::Or { expected }, u64::try_from(len).unwrap_or(u64::MAX)),
        Err(outcome) => outcome,
    }
}

/// Begins a generation. No other operation is in progress on the medium at that time (SBC-4 §4.27.3), so that
/// no operation of the previous generation takes effect later.
fn change_generation(server: &mut DeviceServer, task: &TaskInfo, expected: u32) -> Outcome {
    let Some(policy) = Policy::from_code(task.cdb.u8(3) & 0x0f) else {
        return Outcome::CheckCondition(Sense::invalid_cdb(3, Some(3)));
    };
    let span = match Span::of_transfer(&server.info, &task.cdb) {
        Ok(span) => span,
        Err(sense) => return Outcome::CheckCondition(sense),
    };
    if !server.orw_generations.is_current(expected) {
        return Outcome::CheckCondition(GENERATION_DOES_NOT_MATCH);
    }
    let action = Action::Clear { expected, new: task.cdb.u32(24), policy };
    match data_out_len(server, task, span) {
        Ok(len) if u64::try_from(len) != Ok(span.len) => Outcome::CheckCondition(super::wrong_data_out()),
        // A command that addresses no blocks clears no bit.
        Ok(_) => run(task, span, action, span.len),
        Err(outcome) => outcome,
    }
}

const GENERATION_DOES_NOT_MATCH: Sense = Sense::illegal(Asc::ORWRITE_GENERATION_DOES_NOT_MATCH);

/// WRITE ATOMIC(16) and (32).
pub(super) fn write_atomic(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let limits = limits::limits(&server.info);
    let span = match span_within(server, task, u64::from(limits.atomic_max)) {
        Ok(span) => span,
        Err(outcome) => return outcome,
    };
    // SBC-4, atomic writes: a write that is not aligned, or not a whole multiple of the granularity, is
    // refused.
    let block = u64::from(server.info.block_size().bytes());
    let is_off = |value: u64, step: u32| step > 1 && !value.is_multiple_of(block * u64::from(step));
    if is_off(span.at, limits.atomic_alignment) {
        return Outcome::CheckCondition(Sense::invalid_cdb(address_field(&task.cdb), None));
    }
    if is_off(span.len, limits.atomic_granularity) {
        return Outcome::CheckCondition(Sense::invalid_cdb(length_field(&task.cdb), None));
    }
    match data_out_len(server, task, span) {
        Ok(0) => Outcome::Good,
        // A WRITE ATOMIC of which the initiator sends only a part cannot be executed as a whole.
        Ok(len) if u64::try_from(len) != Ok(span.len) => Outcome::CheckCondition(super::wrong_data_out()),
        Ok(_) => run(task, span, Action::Put, span.len),
        Err(outcome) => outcome,
    }
}

fn span_within(server: &DeviceServer, task: &TaskInfo, blocks_max: u64) -> Result<Span, Outcome> {
    let span = Span::of(&server.info, &task.cdb).map_err(Outcome::CheckCondition)?;
    span.check_length(&task.cdb, blocks_max).map_err(Outcome::CheckCondition)?;
    Ok(span)
}

fn run(task: &TaskInfo, span: Span, action: Action, total: u64) -> Outcome {
    let total = usize::try_from(total).unwrap_or(usize::MAX);
    Outcome::Run(Box::new(AtomicJob {
        at: span.at,
        len: match action {
            Action::CompareAndWrite => total / 2,
            Action::Or { .. } | Action::Clear { .. } | Action::Put => total,
        },
        action,
        force_unit_access: super::force_unit_access(&task.cdb),
        data_out: DataOutCollector::new(total),
        done: 0,
    }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    CompareAndWrite,
    /// Sets bits, if the generation is right.
    Or {
        expected: u32,
    },
    /// Clears bits and begins a generation.
    Clear {
        expected: u32,
        new: u32,
        policy: Policy,
    },
    Put,
}

/// The tags of store operations.
mod tag {
    pub(super) const READ: u32 = 0;
    pub(super) const WRITE: u32 = 1;
}

struct AtomicJob {
    at: u64,
    len: usize,
    action: Action,
    force_unit_access: bool,
    data_out: DataOutCollector,
    /// How many bytes are complete, for ORWRITE, which works part by part.
    done: usize,
}

impl AtomicJob {
    fn here(&self) -> u64 {
        self.at.saturating_add(u64::try_from(self.done).unwrap_or(u64::MAX))
    }

    /// Returns how many bytes are read and written at a time. The other commands need the whole range at
    /// once.
    fn step_len(&self, server: &DeviceServer) -> usize {
        match self.action {
            Action::Or { .. } | Action::Clear { .. } => part_len(server).min(self.len - self.done),
            Action::CompareAndWrite | Action::Put => self.len,
        }
    }

    fn read(&self, server: &mut DeviceServer, task: &TaskInfo) {
        let len = self.step_len(server);
        server.submit(task, tag::READ, OpAction::Read { at: self.here(), len });
    }

    fn write(&self, server: &mut DeviceServer, task: &TaskInfo, data: DataList) {
        let durability = server.durability(self.force_unit_access);
        server.submit(task, tag::WRITE, OpAction::Write { at: self.here(), data, durability });
    }

    /// Writes the second half of the data of a COMPARE AND WRITE.
    fn put(&self, server: &mut DeviceServer, task: &TaskInfo) {
        let data = self.data_out.data().slice(self.len, self.len * 2);
        self.write(server, task, data);
    }

    /// Returns whether the fault `CompareUnlocked` is injected: the comparison runs without its range lock.
    fn compares_unlocked(&self) -> bool {
        self.action == Action::CompareAndWrite && fault_injection::is_injected(Bug::CompareUnlocked)
    }

    fn lock(&self, server: &mut DeviceServer, task: &TaskInfo) {
        let range = match self.action {
            Action::Clear { .. } => ByteRange::new(0, server.info.capabilities.len),
            _ => ByteRange::new(self.at, u64::try_from(self.len).unwrap_or(u64::MAX)),
        };
        server.lock(task, range);
    }

    /// Returns the disposition under the present generation, which no other task changes while this one holds
    /// its range.
    const fn disposition(&self, server: &DeviceServer) -> Disposition {
        match self.action {
            Action::Or { expected } => server.orw_generations.disposition_of(expected),
            Action::Clear { expected, .. } if !server.orw_generations.is_current(expected) => {
                Disposition::Refused
            }
            _ => Disposition::Done,
        }
    }

    /// Ends the command after everything is written. Only now is it counted as a write: a miscompare or
    /// another generation lets nothing be written.
    fn end(&self, server: &mut DeviceServer) -> Outcome {
        count_write(server, self.len);
        if let Action::Clear { new, policy, .. } = self.action {
            server.orw_generations.change(new, policy);
        }
        Outcome::Good
    }

    /// Continues with the data that was read from the medium.
    fn process_read(&self, server: &mut DeviceServer, task: &TaskInfo, held: DataList) -> Option<Outcome> {
        if self.action == Action::CompareAndWrite {
            let expected = self.data_out.data().slice(0, self.len);
            let difference = first_difference(&expected, &held);
            server.recycle(held);
            if let Some(at) = difference {
                if fault_injection::is_injected(Bug::MiscompareWrites) {
                    self.put(server, task);
                }
                return Some(Outcome::CheckCondition(miscompare(at)));
            }
            if fault_injection::is_injected(Bug::CompareUnlocked) {
                self.lock(server, task);
            } else {
                self.put(server, task);
            }
        } else {
            let sent = self.data_out.data().slice(self.done, self.done + held.len());
            let data = merge(server, &held, &sent, matches!(self.action, Action::Clear { .. }));
            server.recycle(held);
            self.write(server, task, data.into());
        }
        None
    }
}

impl Job for AtomicJob {
    fn step(&mut self, server: &mut DeviceServer, task: &TaskInfo, input: JobInput) -> JobStep {
        match input {
            JobInput::Start if self.len == 0 => self.lock(server, task),
            JobInput::Start => self.data_out.ask(server, task),
            JobInput::DataOut { data, .. } => {
                if self.data_out.take(server, task, data) {
                    if self.compares_unlocked() {
                        self.read(server, task);
                    } else {
                        self.lock(server, task);
                    }
                }
            }
            JobInput::Locked if self.action == Action::Put => {
                let data = self.data_out.take_all();
                self.write(server, task, data);
            }
            JobInput::Locked if self.compares_unlocked() => self.put(server, task),
            JobInput::Locked => match self.disposition(server) {
                Disposition::Done if self.len == 0 => return JobStep::Done(self.end(server)),
                Disposition::Done => self.read(server, task),
                Disposition::Discarded => {
                    server.recycle(self.data_out.take_all());
                    return JobStep::Done(Outcome::Good);
                }
                Disposition::Refused => {
                    server.recycle(self.data_out.take_all());
                    return JobStep::Done(Outcome::CheckCondition(GENERATION_DOES_NOT_MATCH));
                }
            },
            JobInput::OpCompleted { result: Ok(OpOutput::Data(held)), .. } => {
                if let Some(outcome) = self.process_read(server, task, held) {
                    return JobStep::Done(outcome);
                }
            }
            JobInput::OpCompleted { result: Ok(OpOutput::Done(data)), .. } => {
                // A medium need not return the data that it has written.
                self.done += self.step_len(server);
                server.recycle(data);
                if self.done >= self.len {
                    server.recycle(self.data_out.take_all());
                    return JobStep::Done(self.end(server));
                }
                self.read(server, task);
            }
            JobInput::OpCompleted { tag, result: Err(failure) } => {
                let doing = if tag == tag::READ { IoKind::Reading } else { IoKind::Writing };
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

/// Returns the bitwise OR of two runs of bytes of one length, or their AND if `both` is set.
fn merge(server: &DeviceServer, held: &DataList, sent: &DataList, both: bool) -> Bytes {
    let mut buf = server.pool.take(held.len());
    held.parts().iter().for_each(|part| {
        buf.append(part);
    });
    let mut rest = buf.filled_mut();
    for part in sent.parts() {
        let (head, tail) = rest.split_at_mut(part.len().min(rest.len()));
        let pairs = head.iter_mut().zip(&**part);
        pairs.for_each(|(to, from)| *to = if both { *to & from } else { *to | from });
        rest = tail;
    }
    buf.freeze()
}
