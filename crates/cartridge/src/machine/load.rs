//! Loading: choosing a copy of the label, and finding the end of each partition.

use alloc::boxed::Box;
use core::cmp::Ordering;

use base::buffer::Bytes;
use base::int_cast::to_usize;
use store::api::{Failure, Fault, OpAction};

use super::read::StoredBytes;
use super::resync::Evidence;
use super::{Cartridge, Halt, Task, segment_of};
use crate::command::{LabelCopies, LoadReport, Outcome, Position, Recovery};
use crate::error::Error;
use crate::fault_injection::{Bug, is_injected};
use crate::io::{FileId, Purpose};
use crate::label::{COPY_LEN, Label};
use crate::layout::{ItemHeader, ItemKind, occupied};

#[derive(Debug)]
pub(super) struct Load {
    is_writable: bool,
    stage: Stage,
    report: LoadReport,
}

#[derive(Debug)]
enum Stage {
    Start,
    Label,
    Scan { partition: u8, scan: Option<Box<Scan>> },
}

/// The search for the end of a partition, from its checkpoint on.
#[derive(Debug, Default)]
struct Scan {
    stored: Option<StoredBytes>,
    evidence: Option<Evidence>,
    recovery: Recovery,
    /// Whether what was found is being kept in the label.
    is_saving: bool,
    /// Whether the label cannot be written, so that nothing is kept.
    is_label_full: bool,
}

impl Load {
    pub(super) fn new(is_writable: bool) -> Self {
        Self { is_writable, stage: Stage::Start, report: LoadReport::default() }
    }
}

impl Cartridge {
    pub(super) fn step_load(&mut self, load: &mut Load) -> Result<Outcome, Halt> {
        let loaded = self.advance_load(load);
        if let Err(Halt::Fail(_)) = loaded {
            self.label = None;
            self.parts.clear();
            self.cache.clear();
            // Nothing was acknowledged yet: what recovery could not make durable is there to be found again.
            self.lost = None;
            self.dirty.clear();
        }
        loaded
    }

    fn advance_load(&mut self, load: &mut Load) -> Result<Outcome, Halt> {
        loop {
            match &mut load.stage {
                Stage::Start => {
                    self.label_write.copies = [None, None];
                    for copy in [0, 1] {
                        let at = u64::from(copy) * COPY_LEN;
                        let action = OpAction::Read { at, len: to_usize(COPY_LEN) };
                        self.io.submit(Purpose::LabelRead { copy }, FileId::Label, action);
                    }
                    load.stage = Stage::Label;
                }
                Stage::Label => {
                    let [Some(first), Some(second)] = &mut self.label_write.copies else {
                        return Err(Halt::Wait);
                    };
                    let (label, newest, copies) = chosen(label_of(first), label_of(second))?;
                    self.label_write.copies = [None, None];
                    self.label_write.set_newest(newest);
                    load.report.label_copies = copies;
                    self.take_label(label, load.is_writable);
                    load.stage = Stage::Scan { partition: 0, scan: None };
                }
                Stage::Scan { partition, scan } => {
                    if usize::from(*partition) >= self.parts.len() {
                        self.position = Position::default();
                        return Ok(Outcome::Loaded(core::mem::take(&mut load.report)));
                    }
                    let scan = scan.get_or_insert_default();
                    self.scan(*partition, scan)?;
                    load.report.partitions.push(scan.recovery);
                    load.stage = Stage::Scan { partition: *partition + 1, scan: None };
                }
            }
        }
    }

    fn take_label(&mut self, mut label: Label, is_writable: bool) {
        self.is_writable = is_writable;
        self.lost = None;
        self.is_loss_told = false;
        self.set_partitions(&label.secret, &label.partitions);
        if is_writable {
            label.loads = label.loads.saturating_add(1);
            label.written.load = 0;
            label.read.load = 0;
            self.label_write.mark_changed();
        }
        self.label = Some(label);
    }

    /// Moves the end of a partition behind every item that was written after the checkpoint.
    fn scan(&mut self, partition: u8, scan: &mut Scan) -> Result<(), Halt> {
        loop {
            self.keep_recovered(partition, scan)?;
            let now = self.part(partition)?.now;
            // Nothing is written in epoch 0, nor behind the end after an orderly unload.
            if now.epoch == 0 || self.label.as_ref().is_some_and(|label| label.is_unloaded) {
                return Ok(());
            }
            if let Some(evidence) = &mut scan.evidence {
                let Some(item) = self.written_behind(evidence)? else {
                    let unreadable = evidence.unreadable;
                    scan.recovery.is_end_unreadable = unreadable.is_some();
                    self.part_mut(partition)?.unreadable = unreadable;
                    break;
                };
                scan.evidence = None;
                scan.recovery.damaged += item.object - now.objects;
                let now = &mut self.part_mut(partition)?.now;
                now.end = item.at;
                now.objects = item.object;
                now.filemarks = item.filemarks;
                continue;
            }
            let stored = match &mut scan.stored {
                Some(stored) => stored,
                None => match readable(self.item(partition, now.end))? {
                    Ok(Some(item)) if is_next(&item, &now) => {
                        scan.stored.insert(StoredBytes::new(item, false))
                    }
                    found => {
                        scan.evidence = Some(Evidence::new(partition, &now, now.objects, found.err()));
                        continue;
                    }
                },
            };
            let is_intact = if is_injected(Bug::TornItemAccepted) {
                Ok(true)
            } else {
                readable(self.is_read_intact(partition, stored))?
            };
            let item = stored.header;
            scan.stored = None;
            if is_intact != Ok(true) {
                scan.evidence = Some(Evidence::new(partition, &now, item.object_behind(), is_intact.err()));
                continue;
            }
            self.accept(partition, &item)?;
            scan.recovery.recovered += u64::from(item.kind != ItemKind::Pad);
        }
        self.mark_recovered_dirty(partition)
    }

    /// Keeps what was found in the label from time to time, so that a load that is interrupted goes on from
    /// there the next time.
    fn keep_recovered(&mut self, partition: u8, scan: &mut Scan) -> Result<(), Halt> {
        if !scan.is_saving {
            // What looks like a torn item is decided first.
            if scan.is_label_full || scan.evidence.is_some() || !self.is_checkpoint_due() {
                return Ok(());
            }
            self.mark_recovered_dirty(partition)?;
            scan.is_saving = true;
        }
        self.flush_segments()?;
        let part = self.part_mut(partition)?;
        part.durable = part.now.end;
        if self.is_checkpoint_due() {
            self.checkpoint();
        }
        match self.save_label() {
            Err(Halt::Wait) => return Err(Halt::Wait),
            Err(Halt::Fail(_)) => {
                self.label_write.give_up();
                scan.is_label_full = true;
            }
            Ok(()) => {}
        }
        scan.is_saving = false;
        Ok(())
    }

    /// Returns how much of the cartridge a load has checked that goes on, and how much there could be.
    pub fn load_progress(&self) -> Option<(u64, u64)> {
        let Some(Task::Load(Load { stage: Stage::Scan { partition, .. }, .. })) = &self.task else {
            return None;
        };
        let current = usize::from(*partition);
        let checked = self.parts.iter().enumerate().map(|(number, part)| match number.cmp(&current) {
            Ordering::Less => part.now.capacity,
            Ordering::Equal => occupied(part.now.end).min(part.now.capacity),
            Ordering::Greater => 0,
        });
        Some((checked.sum(), self.parts.iter().map(|part| part.now.capacity).sum()))
    }

    fn accept(&mut self, partition: u8, item: &ItemHeader) -> Result<(), Error> {
        let now = &mut self.part_mut(partition)?.now;
        now.end = item.end();
        now.objects = item.object_behind();
        now.filemarks = item.filemarks_behind();
        if item.encryption != 0 && now.first_encrypted == 0 {
            now.first_encrypted = item.object + 1;
        }
        Ok(())
    }

    /// Marks what was found as not flushed: the process may have ended before the flush.
    fn mark_recovered_dirty(&mut self, partition: u8) -> Result<(), Halt> {
        let part = self.part(partition)?;
        let (from, to) = (occupied(part.checkpoint), occupied(part.now.end));
        let segment_len = self.label.as_ref().ok_or(Error::NotLoaded)?.segment_len;
        if from < to && self.is_writable {
            let (first, last) = (segment_of(from, segment_len).0, segment_of(to - 1, segment_len).0);
            let number = |segment: u64| u32::try_from(segment).unwrap_or(u32::MAX);
            self.dirty.extend((number(first)..=number(last)).map(|segment| (partition, segment)));
        }
        Ok(())
    }
}

/// Tells what a disk cannot read from other reasons to halt, such as a disk that is gone.
fn readable<T>(result: Result<T, Halt>) -> Result<Result<T, Failure>, Halt> {
    match result {
        Ok(found) => Ok(Ok(found)),
        Err(Halt::Fail(Error::Read(failure))) if failure.fault == Fault::Medium => Ok(Err(failure)),
        Err(halt) => Err(halt),
    }
}

fn is_next(item: &ItemHeader, now: &crate::label::Checkpoint) -> bool {
    item.epoch == now.epoch && item.object == now.objects && item.filemarks == now.filemarks
}

fn label_of(copy: &mut Result<Option<Bytes>, Failure>) -> Result<Label, Error> {
    match copy {
        Ok(Some(bytes)) => Label::decode(bytes),
        Ok(None) => Err(Error::NoLabel),
        Err(failure) => Err(Error::Read(*failure)),
    }
}

/// Returns the newer label, which copy it is, and what is wrong with the other one.
fn chosen(
    first: Result<Label, Error>,
    second: Result<Label, Error>,
) -> Result<(Label, u8, LabelCopies), Error> {
    match (first, second) {
        (Ok(first), Ok(second)) if second.sequence > first.sequence => Ok((second, 1, LabelCopies::OneOlder)),
        (Ok(first), Ok(second)) if second.sequence < first.sequence => Ok((first, 0, LabelCopies::OneOlder)),
        (Ok(first), Ok(_)) => Ok((first, 0, LabelCopies::Whole)),
        // A version that this release does not know may be the newer one.
        (Err(error @ Error::UnknownVersion(_)), _) | (_, Err(error @ Error::UnknownVersion(_))) => Err(error),
        (Ok(first), Err(_)) => Ok((first, 0, LabelCopies::OneDamaged)),
        (Err(_), Ok(second)) => Ok((second, 1, LabelCopies::OneDamaged)),
        (Err(Error::NoLabel), Err(second)) => Err(second),
        (Err(first), Err(_)) => Err(first),
    }
}
