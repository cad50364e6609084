//! Commands that are atomic against every other access: COMPARE AND WRITE (SBC-4 §5.3), ORWRITE (§5.10) and WRITE ATOMIC
//! (§5.48).
//!
//! All data is fetched first, so that a slow initiator keeps nobody waiting; only then the range is taken.

use alloc::boxed::Box;

use base::buffer::{Bytes, DataList};
use base::fault_injection::{self, Bug};
use scsi::sense::{Asc, Sense};
use store::api::{OpAction, OpOutput};

use super::address::{Span, length_field};
use super::compare::{first_difference, miscompare};
use super::intake::Intake;
use super::orw_generation::{Fate, Policy};
use super::write::take_blocks;
use super::{limits, part_len};
use crate::fault::Doing;
use crate::range_lock::ByteRange;

use crate::server::Core;
use crate::task::TaskInfo;
use crate::verdict::{Job, JobInput, JobStep, Verdict};

/// COMPARE AND WRITE.
pub(super) fn compare_and_write(core: &mut Core, task: &TaskInfo) -> Verdict {
    let most = u64::from(limits::limits(&core.facts).compare_and_write_max);
    let span = match span_within(core, task, most) {
        Ok(span) => span,
        Err(verdict) => return verdict,
    };
    if span.len == 0 {
        return no_blocks(task);
    }
    // First what is to be there, then what to write.
    let total = span.len * 2;
    task.transferable.set(total);
    if u64::from(task.data_out_len) != total {
        return Verdict::Check(super::wrong_data_out());
    }
    core.stats.writes += 1;
    core.stats.write_bytes += span.len;
    run(task, span, Action::CompareAndWrite, total)
}

/// Answers a COMPARE AND WRITE of no blocks: nothing is compared, and that is GOOD (SBC-4 §5.3).
///
/// Not so for an initiator that has data to send. Its count is 256 blocks or more, cut to the eight bits of the field,
/// and GOOD would tell it that it holds a lock that nobody gave it.
fn no_blocks(task: &TaskInfo) -> Verdict {
    if task.data_out_len == 0 { Verdict::Good } else { Verdict::Check(Sense::invalid_cdb(13, None)) }
}

/// ORWRITE(16): a set operation of generation zero (SBC-4 §4.27.2.2).
pub(super) fn or_write_16(core: &mut Core, task: &TaskInfo) -> Verdict {
    set_bits(core, task, 0)
}

/// ORWRITE(32): sets bits, or clears bits and begins a generation.
pub(super) fn or_write_32(core: &mut Core, task: &TaskInfo) -> Verdict {
    let expected = task.cdb.u32(20);
    match task.cdb.u8(2) & 0x07 {
        0 => set_bits(core, task, expected),
        1 => change_generation(core, task, expected),
        _ => Verdict::Check(Sense::invalid_cdb(2, Some(2))),
    }
}

fn set_bits(core: &mut Core, task: &TaskInfo, expected: u32) -> Verdict {
    let span = match Span::of_transfer(&core.facts, &task.cdb) {
        Ok(span) => span,
        Err(sense) => return Verdict::Check(sense),
    };
    // Judged again when nobody else can change it; whoever comes too late need not send what nobody takes.
    if core.orw_generations.judge(expected) == Fate::Refused {
        return Verdict::Check(GENERATION_DOES_NOT_MATCH);
    }
    match take_blocks(core, task, span) {
        Ok(len) => run(task, span, Action::Or { expected }, u64::try_from(len).unwrap_or(u64::MAX)),
        Err(verdict) => verdict,
    }
}

/// SBC-4 §4.27.3: nothing else is under way on the medium when a generation begins, so that no operation of the one before
/// comes after it.
fn change_generation(core: &mut Core, task: &TaskInfo, expected: u32) -> Verdict {
    let Some(policy) = Policy::from_code(task.cdb.u8(3) & 0x0f) else {
        return Verdict::Check(Sense::invalid_cdb(3, Some(3)));
    };
    let span = match Span::of_transfer(&core.facts, &task.cdb) {
        Ok(span) => span,
        Err(sense) => return Verdict::Check(sense),
    };
    if !core.orw_generations.is_current(expected) {
        return Verdict::Check(GENERATION_DOES_NOT_MATCH);
    }
    let action = Action::Clear { expected, new: task.cdb.u32(24), policy };
    match take_blocks(core, task, span) {
        Ok(len) if u64::try_from(len) != Ok(span.len) => Verdict::Check(super::wrong_data_out()),
        Ok(_) => run(task, span, action, span.len),
        // No bit is to be cleared.
        Err(Verdict::Good) if span.len == 0 => run(task, span, action, 0),
        Err(Verdict::Good) => Verdict::Check(super::wrong_data_out()),
        Err(verdict) => verdict,
    }
}

const GENERATION_DOES_NOT_MATCH: Sense = Sense::illegal(Asc::ORWRITE_GENERATION_DOES_NOT_MATCH);

/// WRITE ATOMIC(16) and (32).
pub(super) fn write_atomic(core: &mut Core, task: &TaskInfo) -> Verdict {
    let limits = limits::limits(&core.facts);
    let span = match span_within(core, task, u64::from(limits.atomic_max)) {
        Ok(span) => span,
        Err(verdict) => return verdict,
    };
    // SBC-4, atomic writes: what is not aligned, or no whole multiple of the granularity, is refused.
    let block = u64::from(core.facts.block_size().bytes());
    let is_off = |value: u64, step: u32| step > 1 && !value.is_multiple_of(block * u64::from(step));
    if is_off(span.at, limits.atomic_alignment) {
        return Verdict::Check(Sense::invalid_cdb(2, None));
    }
    if is_off(span.len, limits.atomic_granularity) {
        return Verdict::Check(Sense::invalid_cdb(length_field(&task.cdb), None));
    }
    match take_blocks(core, task, span) {
        // Part of it is not all of it.
        Ok(len) if u64::try_from(len) != Ok(span.len) => Verdict::Check(super::wrong_data_out()),
        Ok(_) => run(task, span, Action::Put, span.len),
        Err(verdict) => verdict,
    }
}

fn span_within(core: &Core, task: &TaskInfo, blocks_max: u64) -> Result<Span, Verdict> {
    let span = Span::of(&core.facts, &task.cdb).map_err(Verdict::Check)?;
    span.check_length(&task.cdb, blocks_max).map_err(Verdict::Check)?;
    Ok(span)
}

fn run(task: &TaskInfo, span: Span, action: Action, total: u64) -> Verdict {
    let total = usize::try_from(total).unwrap_or(usize::MAX);
    Verdict::Run(Box::new(Exclusive {
        at: span.at,
        len: match action {
            Action::CompareAndWrite => total / 2,
            Action::Or { .. } | Action::Clear { .. } | Action::Put => total,
        },
        action,
        force_unit_access: super::force_unit_access(&task.cdb),
        intake: Intake::new(total),
        done: 0,
    }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    CompareAndWrite,
    /// Bits are set, if the generation is right.
    Or {
        expected: u32,
    },
    /// Bits are cleared, and a generation begins.
    Clear {
        expected: u32,
        new: u32,
        policy: Policy,
    },
    Put,
}

/// Bytes of a store operation's tag.
mod tag {
    pub(super) const READ: u32 = 0;
    pub(super) const WRITE: u32 = 1;
}

struct Exclusive {
    at: u64,
    len: usize,
    action: Action,
    force_unit_access: bool,
    intake: Intake,
    /// How many bytes are through, for ORWRITE, which works part by part.
    done: usize,
}

impl Exclusive {
    fn here(&self) -> u64 {
        self.at.saturating_add(u64::try_from(self.done).unwrap_or(u64::MAX))
    }

    /// How much is read and written at a time: the others must do it whole.
    fn step_len(&self, core: &Core) -> usize {
        match self.action {
            Action::Or { .. } | Action::Clear { .. } => part_len(core).min(self.len - self.done),
            Action::CompareAndWrite | Action::Put => self.len,
        }
    }

    fn read(&self, core: &mut Core, task: &TaskInfo) {
        let len = self.step_len(core);
        core.submit(task, tag::READ, OpAction::Read { at: self.here(), len });
    }

    fn write(&self, core: &mut Core, task: &TaskInfo, data: DataList) {
        let durability = core.durability(self.force_unit_access);
        core.submit(task, tag::WRITE, OpAction::Write { at: self.here(), data, durability });
    }

    /// Writes the second half of what was sent with a COMPARE AND WRITE.
    fn put(&self, core: &mut Core, task: &TaskInfo) {
        let data = self.intake.data().slice(self.len, self.len * 2);
        self.write(core, task, data);
    }

    /// Returns whether this compares without having its range.
    fn compares_unlocked(&self) -> bool {
        self.action == Action::CompareAndWrite && fault_injection::is_injected(Bug::CompareUnlocked)
    }

    fn lock(&self, core: &mut Core, task: &TaskInfo) {
        let range = match self.action {
            Action::Clear { .. } => ByteRange::new(0, core.facts.profile.len),
            _ => ByteRange::new(self.at, u64::try_from(self.len).unwrap_or(u64::MAX)),
        };
        core.lock(task, range);
    }

    /// Judges by the generation that it is now, which nobody changes while we hold our range.
    const fn fate(&self, core: &Core) -> Fate {
        match self.action {
            Action::Or { expected } => core.orw_generations.judge(expected),
            Action::Clear { expected, .. } if !core.orw_generations.is_current(expected) => Fate::Refused,
            _ => Fate::Done,
        }
    }

    /// Everything is written.
    const fn end(&self, core: &mut Core) -> Verdict {
        if let Action::Clear { new, policy, .. } = self.action {
            core.orw_generations.change(new, policy);
        }
        Verdict::Good
    }

    /// Goes on with what the medium holds.
    fn found(&self, core: &mut Core, task: &TaskInfo, held: DataList) -> Option<Verdict> {
        if self.action == Action::CompareAndWrite {
            let expected = self.intake.data().slice(0, self.len);
            let difference = first_difference(&expected, &held);
            core.recycle(held);
            if let Some(at) = difference {
                if fault_injection::is_injected(Bug::MiscompareWrites) {
                    self.put(core, task);
                }
                return Some(Verdict::Check(miscompare(at)));
            }
            if fault_injection::is_injected(Bug::CompareUnlocked) {
                self.lock(core, task);
            } else {
                self.put(core, task);
            }
        } else {
            let sent = self.intake.data().slice(self.done, self.done + held.len());
            let data = merge(core, &held, &sent, matches!(self.action, Action::Clear { .. }));
            core.recycle(held);
            self.write(core, task, data.into());
        }
        None
    }
}

impl Job for Exclusive {
    fn step(&mut self, core: &mut Core, task: &TaskInfo, input: JobInput) -> JobStep {
        match input {
            JobInput::Start if self.len == 0 => self.lock(core, task),
            JobInput::Start => self.intake.ask(core, task),
            JobInput::DataOut { data, .. } => {
                if self.intake.take(core, task, data) {
                    if self.compares_unlocked() {
                        self.read(core, task);
                    } else {
                        self.lock(core, task);
                    }
                }
            }
            JobInput::Locked if self.action == Action::Put => {
                let data = self.intake.take_all();
                self.write(core, task, data);
            }
            JobInput::Locked if self.compares_unlocked() => self.put(core, task),
            JobInput::Locked => match self.fate(core) {
                Fate::Done if self.len == 0 => return JobStep::Done(self.end(core)),
                Fate::Done => self.read(core, task),
                Fate::Discarded => {
                    core.recycle(self.intake.take_all());
                    return JobStep::Done(Verdict::Good);
                }
                Fate::Refused => {
                    core.recycle(self.intake.take_all());
                    return JobStep::Done(Verdict::Check(GENERATION_DOES_NOT_MATCH));
                }
            },
            JobInput::Store { result: Ok(OpOutput::Data(held)), .. } => {
                if let Some(verdict) = self.found(core, task, held) {
                    return JobStep::Done(verdict);
                }
            }
            JobInput::Store { result: Ok(OpOutput::Done(data)), .. } => {
                // The medium need not give back what it has written.
                self.done += self.step_len(core);
                core.recycle(data);
                if self.done >= self.len {
                    core.recycle(self.intake.take_all());
                    return JobStep::Done(self.end(core));
                }
                self.read(core, task);
            }
            JobInput::Store { tag, result: Err(failure) } => {
                let doing = if tag == tag::READ { Doing::Reading } else { Doing::Writing };
                return JobStep::Done(Verdict::Check(core.failed(failure, doing, Some(self.here()))));
            }
            _ => return super::confused(),
        }
        JobStep::Wait
    }
}

/// Returns the bits set in either of two runs of bytes of one length, or in both of them.
fn merge(core: &Core, held: &DataList, sent: &DataList, both: bool) -> Bytes {
    let mut buf = core.pool.take(held.len());
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
