//! Reading objects.

use alloc::vec::Vec;

use base::buffer::DataList;
use base::int_cast::{to_u64, to_usize};

use super::{Cartridge, Halt};
use crate::command::{Guard, Outcome, Position, Record, RecordInfo};
use crate::compression::decompress;
use crate::error::Error;
use crate::layout::{BODY_LEN, ChunkHeader, Crc, HEADER_LEN, ItemHeader, ItemKind};

#[derive(Debug, Default)]
pub(super) struct ReadTask {
    stored: Option<StoredBytes>,
}

/// The stored bytes of an item, as far as they are read.
#[derive(Debug)]
pub(super) struct StoredBytes {
    pub(super) header: ItemHeader,
    done: usize,
    crc: Crc,
    bytes: DataList,
    is_kept: bool,
}

impl StoredBytes {
    pub(super) fn new(header: ItemHeader, is_kept: bool) -> Self {
        Self { header, done: 0, crc: Crc::new(), bytes: DataList::new(), is_kept }
    }

    /// Returns the record, if its data are what the host wrote.
    fn record(self) -> Option<Record> {
        let header = self.header;
        let (metadata_len, len) = (usize::from(header.metadata_len), to_usize(header.len));
        let mut metadata = alloc::vec![0; metadata_len];
        self.bytes.copy_to(0, &mut metadata);
        let mut data =
            if metadata_len == 0 { self.bytes } else { self.bytes.slice(metadata_len, self.bytes.len()) };
        if header.is_compressed {
            let plain = decompress(&data, len)?;
            let mut crc = Crc::new();
            crc.update(&plain);
            if crc.value() != header.crc {
                return None;
            }
            data = plain.into();
        }
        let guard =
            (header.protection != 0).then_some(Guard { method: header.protection, value: header.guard });
        let is_compressed = header.is_compressed;
        Some(Record { data, is_compressed, guard, encryption: header.encryption, metadata })
    }
}

impl Cartridge {
    pub(super) fn step_read(&mut self, task: &mut ReadTask) -> Result<Outcome, Halt> {
        self.settle()?;
        let partition = self.position.partition;
        let damaged = Error::Damaged { object: self.position.object };
        while task.stored.is_none() {
            let part = self.part(partition)?;
            if self.position.object >= part.now.objects {
                let unreadable = part.unreadable.filter(|_| !self.is_end_skipped);
                self.position.at = part.now.end;
                return unreadable.map_or(Ok(Outcome::EndOfData), |failure| Err(Error::Read(failure).into()));
            }
            let header = self.expected_item()?.ok_or(damaged)?;
            match header.kind {
                ItemKind::Pad => self.move_behind(&header),
                ItemKind::Filemark => {
                    self.move_behind(&header);
                    return Ok(Outcome::Filemark);
                }
                ItemKind::Record => {
                    let checked = self.ahead.take().filter(|ahead| ahead.header == header);
                    task.stored = Some(checked.unwrap_or_else(|| StoredBytes::new(header, true)));
                }
            }
        }
        if let Some(stored) = &mut task.stored
            && !self.is_read_intact(partition, stored)?
        {
            return Err(damaged.into());
        }
        let Some(stored) = task.stored.take() else { return Err(Error::Misuse.into()) };
        let header = stored.header;
        let record = stored.record().ok_or(damaged)?;
        self.move_behind(&header);
        self.stored.read += u64::from(header.stored_len);
        if let Some(label) = &mut self.label {
            label.read.add(record.data.len());
        }
        self.read_ahead((partition, (header.end().saturating_sub(1)) / BODY_LEN));
        Ok(Outcome::Record(record))
    }

    /// Checks the record at the position before a command reads it, if a record was read before and this one
    /// is in memory. For an owner that has nothing else to do: [`crate::command::Command::Read`] then takes
    /// less time.
    pub fn check_ahead(&mut self) {
        let is_settled = self.task.is_none() && self.outcome.is_none() && self.io.writing() == 0;
        let Position { partition, at, .. } = self.position;
        if !is_settled || self.ahead.is_some() || !self.cache.has_chunks(partition, at, at) {
            return;
        }
        let Ok(Some(header)) = self.expected_item() else { return };
        let is_in_memory = self.cache.has_chunks(partition, at, header.end().saturating_sub(1));
        if header.kind != ItemKind::Record || !is_in_memory {
            return;
        }
        let mut stored = StoredBytes::new(header, true);
        // The command tells of damage.
        if matches!(self.is_read_intact(partition, &mut stored), Ok(true)) {
            self.ahead = Some(stored);
        }
    }

    pub(super) fn step_peek(&mut self) -> Result<Outcome, Halt> {
        self.settle()?;
        let partition = self.position.partition;
        let damaged = Error::Damaged { object: self.position.object };
        loop {
            if self.position.object >= self.part(partition)?.now.objects {
                return Ok(Outcome::Peeked(None));
            }
            let header = self.expected_item()?.ok_or(damaged)?;
            match header.kind {
                ItemKind::Pad => self.move_behind(&header),
                ItemKind::Filemark => return Ok(Outcome::Peeked(None)),
                ItemKind::Record => {
                    let metadata = self.metadata(partition, &header)?.ok_or(damaged)?;
                    let (is_compressed, encryption) = (header.is_compressed, header.encryption);
                    return Ok(Outcome::Peeked(Some(RecordInfo { is_compressed, encryption, metadata })));
                }
            }
        }
    }

    fn metadata(&mut self, partition: u8, header: &ItemHeader) -> Result<Option<Vec<u8>>, Halt> {
        let len = usize::from(header.metadata_len);
        let mut metadata = Vec::new();
        while metadata.len() < len {
            let at = header.at + HEADER_LEN + to_u64(metadata.len());
            let Some(rest) = self.stream(partition, at)? else { return Ok(None) };
            metadata.extend(rest.iter().take(len - metadata.len()));
        }
        Ok(Some(metadata))
    }

    /// Returns the item at the position, if it is the one that belongs there.
    fn expected_item(&mut self) -> Result<Option<ItemHeader>, Halt> {
        let position = self.position;
        let now = self.part(position.partition)?.now;
        let header = self.item(position.partition, position.at)?;
        Ok(header.filter(|header| {
            header.object == position.object
                && header.filemarks == position.filemarks
                && (position.epoch..=now.epoch).contains(&header.epoch)
                && header.end() <= now.end
        }))
    }

    /// Reads what is stored behind the header of an item. Returns whether it has the right checksum; padding
    /// can hold anything.
    pub(super) fn is_read_intact(&mut self, partition: u8, stored: &mut StoredBytes) -> Result<bool, Halt> {
        if stored.header.kind != ItemKind::Record {
            return Ok(true);
        }
        let len = to_usize(stored.header.stored_len);
        while stored.done < len {
            let at = stored.header.at + HEADER_LEN + to_u64(stored.done);
            if at.is_multiple_of(BODY_LEN) && !self.is_chunk_of(partition, at / BODY_LEN, &stored.header)? {
                return Ok(false);
            }
            let Some(rest) = self.stream(partition, at)? else { return Ok(false) };
            let piece = rest.slice(0, len - stored.done);
            stored.crc.update(&piece);
            stored.done += piece.len();
            if stored.is_kept {
                stored.bytes.push(piece);
            }
        }
        Ok(stored.crc.value() == stored.header.stored_crc)
    }

    /// Returns whether a chunk that begins at or within an item was begun when the item was written. A
    /// damaged header says nothing: then the checksums of the item decide.
    pub(super) fn is_chunk_of(&mut self, partition: u8, chunk: u64, item: &ItemHeader) -> Result<bool, Halt> {
        let (first, object, filemarks) = if item.at >= chunk * BODY_LEN {
            (item.at, item.object, item.filemarks)
        } else {
            (item.end(), item.object_behind(), item.filemarks_behind())
        };
        let epoch = item.epoch;
        Ok(self.header_in_chunk((partition, chunk))?.is_none_or(|found| {
            let expected =
                ChunkHeader { epoch, chunk, first, object, filemarks, durable: found.durable.min(item.at) };
            found == expected
        }))
    }

    fn move_behind(&mut self, item: &ItemHeader) {
        self.position.epoch = item.epoch;
        self.position.at = item.end();
        self.position.object = item.object_behind();
        self.position.filemarks = item.filemarks_behind();
    }
}
