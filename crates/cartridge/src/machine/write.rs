//! Writing: items are collected and written out when a chunk is full, or when the log must be
//! in its files.

use alloc::collections::VecDeque;

use base::buffer::{Buf, Bytes, DataList};
use base::int_cast::{to_u32, to_u64, to_usize};
use store::api::{Durability, OpAction, OpId};

use super::pending::Pending;
use super::{Cartridge, Halt, WRITING_MAX, segment_of};
use crate::command::{Outcome, Record};
use crate::compression::compress;
use crate::error::Error;
use crate::fault_injection::{Bug, is_injected};
use crate::io::{FileId, Purpose};
use crate::label::Checkpoint;
use crate::layout::{
    BLOCK_LEN, BODY_LEN, CHUNK_LEN, ChunkHeader, Crc, HEADER_LEN, ItemHeader, ItemKind, METADATA_LEN_MAX,
    RECORD_LEN_MAX, occupied,
};

/// How many segments are flushed at the same time.
const FLUSHED_AT_ONCE: usize = 64;
/// How many written segments are remembered before they are flushed.
const DIRTY_MAX: usize = 1024;

/// The end of the log that is being written.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) partition: u8,
    /// Where in the log the pending bytes begin: at a multiple of [`BLOCK_LEN`].
    base: u64,
    pending: Pending,
    /// Where in the stream the next byte goes.
    at: u64,
    /// The partition, as far as its objects are in the files.
    pub(super) filed: Checkpoint,
    /// The writes that were begun and are behind that, oldest first.
    filing: VecDeque<Filing>,
}

/// A write of the log. There are few, because [`WRITING_MAX`] bounds them.
#[derive(Debug)]
struct Filing {
    id: OpId,
    /// The partition without the object that was being collected when the write began.
    now: Checkpoint,
    is_done: bool,
}

/// An item that is being collected.
#[derive(Debug)]
struct Emission {
    header: ItemHeader,
    stored: DataList,
    /// How many bytes of header, stored bytes and alignment are collected.
    done: u64,
}

#[derive(Debug)]
pub(super) struct WriteTask {
    record: Record,
    /// The data as they are stored, and their checksums: once they are known.
    prepared: Option<Prepared>,
    emission: Option<Emission>,
}

#[derive(Clone, Debug)]
struct Prepared {
    stored: DataList,
    is_compressed: bool,
    crc: u32,
    stored_crc: u32,
}

#[derive(Debug)]
pub(super) struct FilemarksTask {
    left: u32,
    is_immediate: bool,
    emission: Option<Emission>,
}

impl WriteTask {
    pub(super) fn new(record: Record) -> Result<Self, Error> {
        let is_possible = (1..=RECORD_LEN_MAX).contains(&record.data.len())
            && record.metadata.len() <= METADATA_LEN_MAX
            && record.guard.is_none_or(|guard| guard.method != 0);
        if is_possible { Ok(Self { record, prepared: None, emission: None }) } else { Err(Error::RecordLen) }
    }

    /// Compresses the record and computes its checksums, once.
    fn prepare(&mut self) -> Prepared {
        if let Some(prepared) = &self.prepared {
            return prepared.clone();
        }
        let record = &self.record;
        let crc = crc_of(&record.data);
        let compressed = if record.is_compressed { compress(&record.data) } else { None };
        let is_compressed = compressed.is_some();
        let data = compressed.map_or_else(|| record.data.clone(), DataList::from);
        let mut stored = DataList::new();
        if !record.metadata.is_empty() {
            stored.push(Bytes::copied_from(&record.metadata));
        }
        data.into_parts().for_each(|part| stored.push(part));
        let is_plain = !is_compressed && record.metadata.is_empty();
        let stored_crc = if is_plain { crc } else { crc_of(&stored) };
        let prepared = Prepared { stored, is_compressed, crc, stored_crc };
        self.prepared = Some(prepared.clone());
        prepared
    }
}

impl FilemarksTask {
    pub(super) fn new(count: u32, is_immediate: bool) -> Self {
        Self { left: count, is_immediate, emission: None }
    }
}

impl Writer {
    /// Makes the writer at the end of a partition, whose log has everything before `pending`.
    pub(super) fn new(partition: u8, at: u64, base: u64, pending: Pending, filed: Checkpoint) -> Self {
        Self { partition, base, pending, at, filed, filing: VecDeque::new() }
    }

    /// Returns whether the next byte goes to this place.
    pub(super) fn is_at(&self, partition: u8, at: u64) -> bool {
        self.partition == partition && self.at == at
    }

    /// Appends bytes of an item, up to the end of the chunk. Returns how many.
    fn push(&mut self, bytes: &DataList, start: usize) -> usize {
        let room = to_usize(BODY_LEN - self.at % BODY_LEN);
        let pieces = bytes.slice(start, start + room);
        let taken = pieces.len();
        pieces.into_parts().for_each(|piece| self.pending.push(piece));
        self.at += to_u64(taken);
        taken
    }

    fn push_zeros(&mut self, len: u64) -> u64 {
        let room = BODY_LEN - self.at % BODY_LEN;
        let taken = to_u64(self.pending.append_zeros(to_usize(len.min(room))));
        self.at += taken;
        taken
    }

    /// Returns whether anything is not in the file.
    pub(super) fn is_unfiled(&self) -> bool {
        self.pending.is_unfiled()
    }

    /// Returns whether the next byte begins a chunk, whose header is not in the buffer yet.
    fn needs_chunk_header(&self) -> bool {
        self.at.is_multiple_of(BODY_LEN) && self.pending.is_empty()
    }
}

impl Cartridge {
    pub(super) fn step_write(&mut self, task: &mut WriteTask) -> Result<Outcome, Halt> {
        if task.emission.is_none() {
            self.ready_to_append()?;
            let prepared = task.prepare();
            let mut header = self.header_at_end(self.position.partition, ItemKind::Record)?;
            let record = &task.record;
            header.is_compressed = prepared.is_compressed;
            header.protection = record.guard.map_or(0, |guard| guard.method);
            header.guard = record.guard.map_or(0, |guard| guard.value);
            header.encryption = record.encryption;
            header.metadata_len = u16::try_from(record.metadata.len()).map_err(|_| Error::RecordLen)?;
            header.len = to_u32(record.data.len());
            header.stored_len = to_u32(prepared.stored.len());
            header.crc = prepared.crc;
            header.stored_crc = prepared.stored_crc;
            self.expect_space(&header)?;
            task.emission = Some(Emission { header, stored: prepared.stored, done: 0 });
        }
        if let Some(emission) = &mut task.emission {
            self.emit(emission)?;
            self.stored.written += u64::from(emission.header.stored_len);
        }
        if let Some(label) = &mut self.label {
            label.written.add(task.record.data.len());
        }
        self.space().map(Outcome::Written).ok_or_else(|| Error::NotLoaded.into())
    }

    pub(super) fn step_filemarks(&mut self, task: &mut FilemarksTask) -> Result<Outcome, Halt> {
        while task.left > 0 {
            if task.emission.is_none() {
                self.ready_to_append()?;
                let header = self.header_at_end(self.position.partition, ItemKind::Filemark)?;
                self.expect_space(&header)?;
                task.emission = Some(Emission { header, stored: DataList::new(), done: 0 });
            }
            if let Some(emission) = &mut task.emission {
                self.emit(emission)?;
            }
            task.emission = None;
            task.left -= 1;
        }
        if !task.is_immediate {
            if is_injected(Bug::FilemarkUnflushed) {
                self.settle()?;
            } else {
                self.synchronize()?;
            }
        }
        self.space().map(Outcome::Written).ok_or_else(|| Error::NotLoaded.into())
    }

    /// Makes everything durable, and moves the checkpoint if it is far behind.
    pub(super) fn synchronize(&mut self) -> Result<(), Halt> {
        self.flush()?;
        if self.is_checkpoint_due() {
            self.checkpoint();
        }
        self.save_label()
    }

    /// Writes everything to the files, for a movement or a read. After a loss that was told, nothing is
    /// written, and everything that is there can be read.
    pub(super) fn settle(&mut self) -> Result<(), Halt> {
        if self.is_loss_told && self.lost.is_some() {
            return if self.io.writing() > 0 { Err(Halt::Wait) } else { Ok(()) };
        }
        self.settle_as(false)
    }

    /// Writes everything to the files, without padding.
    pub(super) fn drain(&mut self) -> Result<(), Halt> {
        self.expect_intact()?;
        if self.writer.as_ref().is_some_and(|writer| writer.pending.is_unfiled()) {
            self.write_out()?;
        }
        // No other write of the block at the end may be under way with this one.
        if self.io.writing() > 0 {
            return Err(Halt::Wait);
        }
        self.expect_intact()?;
        self.all_is_filed();
        Ok(())
    }

    /// Records that everything is in the files.
    fn all_is_filed(&mut self) {
        if let Some(writer) = &mut self.writer
            && let Some(part) = self.parts.get(usize::from(writer.partition))
        {
            writer.filed = part.now;
            writer.filing.clear();
        }
    }

    /// Handles the end of a write of the log that has succeeded.
    pub(super) fn log_written(&mut self, id: OpId) {
        let Some(writer) = &mut self.writer else { return };
        if let Some(filing) = writer.filing.iter_mut().find(|filing| filing.id == id) {
            filing.is_done = true;
        }
        while let Some(first) = writer.filing.front().filter(|first| first.is_done) {
            writer.filed = first.now;
            writer.filing.pop_front();
        }
    }

    /// Writes everything to the files, and flushes them.
    pub(super) fn flush(&mut self) -> Result<(), Halt> {
        self.settle_as(true)?;
        self.flush_segments()?;
        for part in &mut self.parts {
            part.durable = part.now.end;
        }
        Ok(())
    }

    /// Flushes the segments that were written, some at a time.
    pub(super) fn flush_segments(&mut self) -> Result<(), Halt> {
        loop {
            if self.io.is_pending(Purpose::LogFlush) {
                return Err(Halt::Wait);
            }
            self.expect_intact()?;
            if !self.submit_flushes() {
                return Ok(());
            }
        }
    }

    /// Begins to flush some of the segments that were written. Returns whether there are any.
    pub(super) fn submit_flushes(&mut self) -> bool {
        let is_any = !self.dirty.is_empty();
        for _ in 0..FLUSHED_AT_ONCE {
            let Some((partition, segment)) = self.dirty.pop_first() else { break };
            self.io.submit(Purpose::LogFlush, FileId::Log { partition, segment }, OpAction::Flush);
        }
        is_any
    }

    pub(super) fn settle_as(&mut self, is_sync: bool) -> Result<(), Halt> {
        if self.lost.is_none() && self.writer.as_ref().is_some_and(|writer| !writer.pending.is_empty()) {
            self.pad(is_sync)?;
        }
        if self.io.writing() > 0 {
            return Err(Halt::Wait);
        }
        self.expect_intact()?;
        self.all_is_filed();
        Ok(())
    }

    pub(super) fn expect_intact(&self) -> Result<(), Error> {
        self.lost.map_or(Ok(()), Err)
    }

    fn expect_space(&self, header: &ItemHeader) -> Result<(), Error> {
        let capacity = self.part(self.position.partition)?.now.capacity;
        if occupied(header.end()) > capacity { Err(Error::EndOfPartition) } else { Ok(()) }
    }

    fn header_at_end(&self, partition: u8, kind: ItemKind) -> Result<ItemHeader, Error> {
        let part = self.part(partition)?;
        Ok(ItemHeader {
            kind,
            is_compressed: false,
            is_sync: false,
            protection: 0,
            encryption: 0,
            epoch: part.now.epoch,
            metadata_len: 0,
            at: part.now.end,
            object: part.now.objects,
            filemarks: part.now.filemarks,
            len: 0,
            stored_len: 0,
            crc: 0,
            stored_crc: 0,
            guard: 0,
        })
    }

    /// Collects an item, and writes out the chunks that become full.
    fn emit(&mut self, emission: &mut Emission) -> Result<(), Halt> {
        let header = emission.header;
        let seal = self.part(self.position.partition)?.seal;
        let behind_data = HEADER_LEN + u64::from(header.stored_len);
        let len = header.end() - header.at;
        while emission.done < len {
            self.begin_chunk(&header, emission.done == 0)?;
            let writer = self.writer.as_mut().ok_or(Error::Misuse)?;
            emission.done += if emission.done == 0 {
                // Items begin at multiples of the length of a header, so a chunk holds all of it.
                let taken = to_u64(writer.pending.append(&header.encode(&seal)));
                writer.at += taken;
                taken
            } else if emission.done < behind_data {
                to_u64(writer.push(&emission.stored, to_usize(emission.done - HEADER_LEN)))
            } else {
                writer.push_zeros(len - emission.done)
            };
            if writer.at.is_multiple_of(BODY_LEN) {
                self.write_out()?;
            }
        }
        let is_encrypted = header.encryption != 0;
        let part = self.part_mut(self.position.partition)?;
        part.now.end = header.end();
        part.now.objects = header.object_behind();
        part.now.filemarks = header.filemarks_behind();
        if is_encrypted && part.now.first_encrypted == 0 {
            part.now.first_encrypted = header.object + 1;
        }
        self.position.epoch = header.epoch;
        self.position.at = header.end();
        self.position.object = header.object_behind();
        self.position.filemarks = header.filemarks_behind();
        Ok(())
    }

    /// Begins a chunk, if the next byte of the item is the first one of its body.
    fn begin_chunk(&mut self, item: &ItemHeader, is_start: bool) -> Result<(), Halt> {
        let writer = self.writer.as_ref().ok_or(Error::Misuse)?;
        if !writer.needs_chunk_header() {
            return Ok(());
        }
        self.expect_intact()?;
        if self.dirty.len() >= DIRTY_MAX || self.is_checkpoint_due() || self.label_write.is_under_way() {
            // The host does not synchronise. Its next load must not have to read everything.
            match self.synchronize() {
                // The next checkpoint writes it again. Until then the log tells what is in it.
                Err(Halt::Fail(Error::LabelWrite(_))) => self.label_write.give_up(),
                synchronized => synchronized?,
            }
        }
        if self.io.writing() >= WRITING_MAX {
            return Err(Halt::Wait);
        }
        let writer = self.writer.as_ref().ok_or(Error::Misuse)?;
        let part = self.part(writer.partition)?;
        let (first, object, filemarks) = if is_start {
            (item.at, item.object, item.filemarks)
        } else {
            (item.end(), item.object_behind(), item.filemarks_behind())
        };
        let chunk = writer.at / BODY_LEN;
        let header =
            ChunkHeader { epoch: item.epoch, chunk, first, object, filemarks, durable: part.durable };
        let bytes = header.encode(&part.seal);
        if let Some(writer) = &mut self.writer {
            writer.pending.append(&bytes);
        }
        Ok(())
    }

    /// Fills the block that the log ends in, and writes the buffer out. The padding belongs to no object.
    fn pad(&mut self, is_sync: bool) -> Result<(), Error> {
        let writer = self.writer.as_ref().ok_or(Error::Misuse)?;
        let partition = writer.partition;
        let len = to_u64(writer.pending.len());
        let left = len.next_multiple_of(BLOCK_LEN) - len;
        if left > 0 {
            let part = self.part(partition)?;
            let mut header = self.header_at_end(partition, ItemKind::Pad)?;
            header.is_sync = is_sync;
            header.stored_len = to_u32(left - HEADER_LEN);
            let bytes = header.encode(&part.seal);
            let is_at_end = self.position.at == part.now.end && self.position.partition == partition;
            if let Some(writer) = &mut self.writer {
                writer.pending.append(&bytes);
                writer.at += HEADER_LEN;
                writer.push_zeros(left - HEADER_LEN);
            }
            self.part_mut(partition)?.now.end = header.end();
            if is_at_end {
                self.position.at = header.end();
                self.position.epoch = header.epoch;
            }
        }
        self.write_out()
    }

    /// Writes what is pending to its file. The part of a block at its end is written with zeros behind it,
    /// and stays pending: the block is written again with what follows.
    fn write_out(&mut self) -> Result<(), Error> {
        let segment_len = self.label.as_ref().ok_or(Error::NotLoaded)?.segment_len;
        let next = Pending::new(self.spare());
        let writer = self.writer.as_mut().ok_or(Error::Misuse)?;
        let mut pending = core::mem::replace(&mut writer.pending, next);
        let (base, len) = (writer.base, pending.len());
        let rest = len % to_usize(BLOCK_LEN);
        if rest > 0 {
            pending.append_zeros(to_usize(BLOCK_LEN) - rest);
        }
        let data = pending.into_data();
        writer.pending.append_filed(&data.slice(len - rest, len));
        writer.base += to_u64(len - rest);
        let partition = writer.partition;
        let (segment, at) = segment_of(base, segment_len);
        let segment = u32::try_from(segment).map_err(|_| Error::Misuse)?;
        let purpose = Purpose::LogWrite { len: data.len() };
        let action = OpAction::Write { at, data, durability: Durability::Cached };
        let id = self.io.submit(purpose, FileId::Log { partition, segment }, action);
        let now = self.part(partition)?.now;
        if let Some(writer) = &mut self.writer {
            writer.filing.push_back(Filing { id, now, is_done: false });
        }
        self.dirty.insert((partition, segment));
        self.cache.forget((partition, base / CHUNK_LEN));
        Ok(())
    }

    pub(super) fn spare(&mut self) -> Buf {
        let mut buf = self.spares.pop().unwrap_or_else(|| Buf::with_capacity(to_usize(CHUNK_LEN)));
        buf.truncate(0);
        buf
    }
}

fn crc_of(data: &DataList) -> u32 {
    let mut crc = Crc::new();
    data.parts().iter().for_each(|part| crc.update(part));
    crc.value()
}
