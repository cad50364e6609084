//! Unloading, erasing and formatting.

use alloc::vec::Vec;

use store::api::{Fault, OpAction};

use super::label_write::LabelWrite;
use super::{Cartridge, Halt, Partition, segment_of};
use crate::command::{Outcome, Position};
use crate::error::Error;
use crate::fault_injection::{Bug, is_injected};
use crate::io::{FileId, Purpose};
use crate::label::{Checkpoint, partitions};
use crate::layout::{CHUNK_LEN, Seal, occupied};

/// The command ERASE.
#[derive(Debug, Default)]
pub(super) struct Erase {
    /// Where the data ended before.
    old_end: Option<u64>,
    /// What is left to free, once the label says where the data end now.
    left: Option<Vec<LogRange>>,
}

/// The command FORMAT MEDIUM.
#[derive(Debug)]
pub(super) struct Format {
    sizes: Vec<u64>,
    /// What is left to free of the old logs, which the label gives up first.
    left: Option<Vec<LogRange>>,
}

/// A part of a log whose storage is to be freed.
#[derive(Debug)]
pub(super) struct LogRange {
    partition: u8,
    /// Where in the log it begins: a multiple of [`CHUNK_LEN`].
    at: u64,
    end: u64,
}

/// How many segments are freed at the same time.
const FREED_AT_ONCE: usize = 64;

impl LogRange {
    /// Makes the range between two places, apart from the chunk that the first one is in.
    fn new(partition: u8, from: u64, to: u64) -> Option<Self> {
        let (at, end) = (from.next_multiple_of(CHUNK_LEN), to.next_multiple_of(CHUNK_LEN));
        (at < end).then_some(Self { partition, at, end })
    }
}

impl Format {
    pub(super) fn new(sizes: Vec<u64>) -> Self {
        Self { sizes, left: None }
    }
}

impl Cartridge {
    /// Ends the use of the cartridge. After a lost write, the label stays as it is, and the next load finds
    /// the end of what was written. `given_up` is the error of what did not fit into the files.
    pub(super) fn step_unload(&mut self, given_up: Option<Error>) -> Result<Outcome, Halt> {
        let saved = match self.save_everything() {
            Err(Halt::Wait) => return Err(Halt::Wait),
            // The log is durable, and the next load finds its end as after a crash.
            Err(Halt::Fail(Error::LabelWrite(failure))) if failure.fault == Fault::NoSpace => {
                self.label_write.give_up();
                Ok(())
            }
            saved => saved.and_then(|()| given_up.map_or(Ok(()), |error| Err(error.into()))),
        };
        if !self.io.is_idle() {
            return Err(Halt::Wait);
        }
        self.label = None;
        self.label_write = LabelWrite::default();
        self.parts.clear();
        self.cache.clear();
        self.writer = None;
        self.dirty.clear();
        self.lost = None;
        self.is_loss_told = false;
        self.is_writable = false;
        self.position = Position::default();
        self.damaged_headers.clear();
        saved.map(|()| Outcome::Done)
    }

    fn save_everything(&mut self) -> Result<(), Halt> {
        if !self.is_writable {
            return Ok(());
        }
        if is_injected(Bug::CheckpointBeforeData) {
            self.settle()?;
        } else {
            self.flush()?;
        }
        let is_behind = |part: &Partition| part.checkpoint != part.now.end;
        if self.parts.iter().any(is_behind) {
            self.checkpoint();
        }
        let is_end_known = self.parts.iter().all(|part| part.unreadable.is_none());
        if let Some(label) = self.label.as_mut().filter(|label| is_end_known && !label.is_unloaded) {
            label.is_unloaded = true;
            self.label_write.mark_changed();
        }
        self.save_label()?;
        if is_injected(Bug::CheckpointBeforeData) { self.flush() } else { Ok(()) }
    }

    pub(super) fn step_erase(&mut self, erase: &mut Erase) -> Result<Outcome, Halt> {
        let partition = self.position.partition;
        let is_worm = self.label.as_ref().is_some_and(|label| label.is_worm);
        if erase.left.is_none() && is_worm && self.position.object < self.part(partition)?.now.objects {
            // Not even filemarks.
            return Err(Error::Worm.into());
        }
        let old_end = match erase.old_end {
            Some(old_end) => old_end,
            None => *erase.old_end.insert(self.part(partition)?.now.end),
        };
        let left = match &mut erase.left {
            Some(left) => left,
            None => {
                let end = if is_injected(Bug::FreeBeforeLabel) {
                    self.position.at
                } else {
                    self.ready_to_append()?;
                    self.part(partition)?.now.end
                };
                let range = LogRange::new(partition, occupied(end), occupied(old_end));
                erase.left.insert(range.into_iter().collect())
            }
        };
        self.free(left)?;
        if is_injected(Bug::FreeBeforeLabel) {
            self.ready_to_append()?;
        }
        Ok(Outcome::Done)
    }

    pub(super) fn step_format(&mut self, format: &mut Format) -> Result<Outcome, Halt> {
        if format.left.is_none() {
            self.flush()?;
            if self.io.is_reading() {
                return Err(Halt::Wait);
            }
            let is_written = self.parts.iter().any(|part| part.now.objects > 0);
            let label = self.changeable_label()?;
            if label.is_worm && is_written {
                return Err(Error::Worm.into());
            }
            let mut blank = partitions(label.profile, label.is_worm, label.capacity, &format.sizes)?;
            let epoch = label.next_epoch;
            label.next_epoch = epoch.checked_add(1).ok_or(Error::EpochsExhausted)?;
            label.formats = label.formats.saturating_add(1);
            label.volume_change = label.volume_change.saturating_add(1);
            label.attributes.remove_coherency();
            blank.iter_mut().for_each(|part| part.epoch = epoch);
            let secret = label.secret;
            let old = (0..).zip(&self.parts);
            let left = old.filter_map(|(number, part)| LogRange::new(number, 0, occupied(part.now.end)));
            format.left = Some(left.collect());
            self.writer = None;
            self.cache.clear();
            self.position = Position::default();
            self.set_partitions(&secret, &blank);
            self.checkpoint();
        }
        self.save_label()?;
        self.free(format.left.get_or_insert_default()).map(|()| Outcome::Done)
    }

    pub(super) fn set_partitions(&mut self, secret: &[u8; 16], partitions: &[Checkpoint]) {
        let part = |(number, now): (u8, &Checkpoint)| Partition {
            now: *now,
            seal: Seal::new(secret, number),
            durable: now.end,
            checkpoint: now.end,
            unreadable: None,
        };
        self.parts = (0..).zip(partitions).map(part).collect();
    }

    /// Frees storage, some segments at a time.
    fn free(&mut self, left: &mut Vec<LogRange>) -> Result<(), Halt> {
        let segment_len = self.label.as_ref().ok_or(Error::NotLoaded)?.segment_len;
        loop {
            if self.io.is_pending(Purpose::Deallocate) {
                return Err(Halt::Wait);
            }
            if left.is_empty() {
                return Ok(());
            }
            for _ in 0..FREED_AT_ONCE {
                let Some(range) = left.last_mut() else { break };
                let (segment, offset) = segment_of(range.at, segment_len);
                let segment = u32::try_from(segment).map_err(|_| Error::Misuse)?;
                let file = FileId::Log { partition: range.partition, segment };
                let len = segment_len - offset;
                self.io.submit(Purpose::Deallocate, file, OpAction::Deallocate { at: offset, len });
                range.at += len;
                if range.at >= range.end {
                    left.pop();
                }
            }
        }
    }
}
