//! The start of writing: what is behind the position is given up, if it may be, and a new epoch begins.

use base::int_cast::to_usize;

use super::pending::Pending;
use super::search::{Goal, Search};
use super::write::Writer;
use super::{Cartridge, Halt};
use crate::error::Error;
use crate::fault_injection::{Bug, is_injected};
use crate::label::Checkpoint;
use crate::layout::{BLOCK_LEN, BODY_LEN, CHUNK_LEN, HEADER_LEN, physical};

/// How far the start of writing is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Append {
    #[default]
    Idle,
    /// The label says that the data end here.
    Label,
    /// The block that the new data begin in is read.
    Prefix,
}

impl Cartridge {
    /// Prepares the log for an item at the position: everything behind is gone then.
    pub(super) fn ready_to_append(&mut self) -> Result<(), Halt> {
        self.expect_intact()?;
        // What is read now must not come into the cache behind what is written next.
        if self.io.is_reading() {
            return Err(Halt::Wait);
        }
        loop {
            match self.append {
                Append::Idle => {
                    self.expect_change_allowed()?;
                    self.trailing = None;
                    if self.is_at_writer() {
                        return Ok(());
                    }
                    self.flush()?;
                    self.truncate()?;
                    self.append = Append::Label;
                }
                Append::Label => {
                    self.save_label()?;
                    self.append = Append::Prefix;
                }
                Append::Prefix => {
                    let writer = self.writer_at_end()?;
                    self.writer = Some(writer);
                    self.append = Append::Idle;
                }
            }
        }
    }

    /// Checks that what is behind the position may be overwritten, if there is anything.
    fn expect_change_allowed(&mut self) -> Result<(), Halt> {
        let position = self.position;
        let part = self.part(position.partition)?;
        let (now, unreadable) = (part.now, part.unreadable);
        let is_worm = self.changeable_label()?.is_worm;
        if position.object >= now.objects {
            // What cannot be read now may be there, and is not given up.
            if let Some(failure) = unreadable {
                return Err(Error::Read(failure).into());
            }
            self.position.at = now.end;
        } else if is_worm && !self.is_among_last_filemarks(&now, unreadable.is_some())? {
            return Err(Error::Worm.into());
        }
        Ok(())
    }

    /// Returns whether only filemarks are behind the position, and one is right before it. LTO drives let
    /// hosts overwrite these on WORM cartridges: programs that end their data with two filemarks write the
    /// next data over the second one. The first filemark behind data is never overwritten.
    fn is_among_last_filemarks(&mut self, now: &Checkpoint, is_end_unknown: bool) -> Result<bool, Halt> {
        let position = self.position;
        let are_filemarks = now.objects - position.object == now.filemarks.saturating_sub(position.filemarks);
        if is_end_unknown || !are_filemarks || position.filemarks == 0 {
            return Ok(false);
        }
        self.settle_as(false)?;
        let end = self.part(position.partition)?.now.end;
        let goal = Goal::BeforeFilemark(position.filemarks);
        let mut search = self.trailing.take().unwrap_or_else(|| Search::new(position.partition, goal, end));
        let found = self.search(&mut search);
        self.trailing = Some(search);
        match found {
            Ok(before) => Ok(before.object + 1 == position.object),
            // What cannot be read is not given up.
            Err(Halt::Fail(Error::Damaged { .. } | Error::DamagedLog)) => Ok(false),
            Err(halt) => Err(halt),
        }
    }

    fn is_at_writer(&self) -> bool {
        let position = self.position;
        let at_writer =
            self.writer.as_ref().is_some_and(|writer| writer.is_at(position.partition, position.at));
        at_writer && self.part(position.partition).is_ok_and(|part| part.now.end == position.at)
    }

    /// Ends the partition at the position, in a new epoch.
    fn truncate(&mut self) -> Result<(), Error> {
        let position = self.position;
        let part = self.part_mut(position.partition)?;
        let before = part.now;
        part.now.end = position.at;
        part.now.objects = position.object;
        part.now.filemarks = position.filemarks;
        if part.now.first_encrypted > position.object {
            part.now.first_encrypted = 0;
        }
        if let Err(error) = self.begin_epoch(position.partition) {
            self.part_mut(position.partition)?.now = before;
            return Err(error);
        }
        self.writer = None;
        self.part_mut(position.partition)?.unreadable = None;
        Ok(())
    }

    /// Begins a new epoch at the end of a partition, for the next write of the label. Everything before that
    /// is durable.
    pub(super) fn begin_epoch(&mut self, partition: u8) -> Result<(), Error> {
        let label = self.label.as_mut().ok_or(Error::NotLoaded)?;
        let next = label.next_epoch;
        label.next_epoch = next.checked_add(1).ok_or(Error::EpochsExhausted)?;
        label.volume_change = label.volume_change.saturating_add(1);
        label.is_unloaded &= is_injected(Bug::UnloadedKept);
        let part = self.part_mut(partition)?;
        part.now.epoch = if is_injected(Bug::EpochKept) { part.now.epoch.max(1) } else { next };
        part.durable = part.now.end;
        self.checkpoint();
        Ok(())
    }

    /// Makes the writer at the end of the partition. What is before that in the block is written again.
    fn writer_at_end(&mut self) -> Result<Writer, Halt> {
        let (partition, at) = (self.position.partition, self.position.at);
        let filed = self.part(partition)?.now;
        let mut buf = self.spare();
        if at.is_multiple_of(BODY_LEN) {
            return Ok(Writer::new(partition, at, physical(at) - HEADER_LEN, Pending::new(buf), filed));
        }
        let end = physical(at);
        let base = end - end % BLOCK_LEN;
        if base < end {
            let chunk = self.chunk((partition, at / BODY_LEN))?.ok_or(Error::DamagedLog)?;
            let prefix = chunk.bytes_from(to_usize(base % CHUNK_LEN)).map_err(Error::Read)?;
            buf.append(&prefix.slice(0, to_usize(end - base)));
        }
        Ok(Writer::new(partition, at, base, Pending::new(buf), filed))
    }
}
