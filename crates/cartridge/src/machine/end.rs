//! Unloading, erasing and formatting.

use alloc::vec::Vec;

use store::api::OpAction;

use super::label_write::LabelWrite;
use super::{Cartridge, Halt, Partition, segment_of};
use crate::command::{Outcome, Position};
use crate::error::Error;
use crate::io::{FileId, Purpose};
use crate::label::{Checkpoint, partitions};
use crate::layout::{CHUNK_LEN, Seal, occupied};

/// The command ERASE.
#[derive(Debug, Default)]
pub(super) struct Erase {
    /// Where the data ended before.
    old_end: Option<u64>,
    is_freeing: bool,
}

/// The command FORMAT MEDIUM.
#[derive(Debug)]
pub(super) struct Format {
    sizes: Vec<u64>,
    /// What the partitions were, once the label says what they are now.
    old: Option<Vec<Checkpoint>>,
    is_freeing: bool,
}

impl Format {
    pub(super) fn new(sizes: Vec<u64>) -> Self {
        Self { sizes, old: None, is_freeing: false }
    }
}

impl Cartridge {
    /// Ends the use of the cartridge. After a lost write, the label stays as it is, and the next load finds
    /// the end of what was written.
    pub(super) fn step_unload(&mut self) -> Result<Outcome, Halt> {
        let saved = self.save_everything();
        if let Err(Halt::Wait) = saved {
            return Err(Halt::Wait);
        }
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
        self.is_writable = false;
        self.position = Position::default();
        self.damaged_headers.clear();
        saved.map(|()| Outcome::Done)
    }

    fn save_everything(&mut self) -> Result<(), Halt> {
        if !self.is_writable {
            return Ok(());
        }
        self.flush()?;
        let is_behind = |part: &Partition| part.checkpoint != part.now.end;
        if self.parts.iter().any(is_behind) {
            self.checkpoint();
        }
        self.save_label()
    }

    pub(super) fn step_erase(&mut self, erase: &mut Erase) -> Result<Outcome, Halt> {
        let partition = self.position.partition;
        let old_end = match erase.old_end {
            Some(old_end) => old_end,
            None => *erase.old_end.insert(self.part(partition)?.now.end),
        };
        if !erase.is_freeing {
            self.ready_to_append()?;
            let end = self.part(partition)?.now.end;
            self.free(partition, occupied(end), occupied(old_end))?;
            erase.is_freeing = true;
        }
        if self.io.is_pending(Purpose::Deallocate) {
            return Err(Halt::Wait);
        }
        Ok(Outcome::Done)
    }

    pub(super) fn step_format(&mut self, format: &mut Format) -> Result<Outcome, Halt> {
        if format.old.is_none() {
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
            format.old = Some(self.parts.iter().map(|part| part.now).collect());
            self.writer = None;
            self.cache.clear();
            self.position = Position::default();
            self.set_partitions(&secret, &blank);
            self.checkpoint();
        }
        self.save_label()?;
        if !format.is_freeing {
            format.is_freeing = true;
            for (partition, old) in (0..).zip(format.old.iter().flatten()) {
                self.free(partition, 0, occupied(old.end))?;
            }
        }
        if self.io.is_pending(Purpose::Deallocate) {
            return Err(Halt::Wait);
        }
        Ok(Outcome::Done)
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

    /// Frees the storage of a log between two places, apart from the chunk that the first one is in.
    fn free(&mut self, partition: u8, from: u64, to: u64) -> Result<(), Error> {
        let segment_len = self.label.as_ref().ok_or(Error::NotLoaded)?.segment_len;
        let mut at = from.next_multiple_of(CHUNK_LEN);
        let end = to.next_multiple_of(CHUNK_LEN);
        while at < end {
            let (segment, offset) = segment_of(at, segment_len);
            let len = segment_len - offset;
            let segment = u32::try_from(segment).map_err(|_| Error::Misuse)?;
            let action = OpAction::Deallocate { at: offset, len };
            self.io.submit(Purpose::Deallocate, FileId::Log { partition, segment }, action);
            at += len;
        }
        Ok(())
    }
}
