//! Finding the next item behind a damaged part of a log.

use base::int_cast::to_usize;

use super::{Cartridge, Halt};
use crate::command::Outcome;
use crate::error::Error;
use crate::layout::{BODY_LEN, ChunkHeader, HEADER_LEN, ItemHeader, ItemKind};

/// A search for the next valid item header.
#[derive(Debug)]
pub(super) struct Resync {
    pub(super) partition: u8,
    /// Where to look next.
    at: u64,
    /// Where to stop.
    limit: u64,
    /// The smallest number that the next object can have.
    object: u64,
    /// The epochs that an item can have.
    epochs: (u32, u32),
}

/// The command SKIP DAMAGE.
#[derive(Debug)]
pub(super) struct Skip {
    resync: Resync,
}

/// A search for evidence that a damaged item had been durable: then it was not torn by a crash.
#[derive(Debug)]
pub(super) struct Evidence {
    resync: Resync,
    damaged_at: u64,
    /// The first valid item behind the damage.
    first: Option<ItemHeader>,
    is_sync_seen: bool,
}

/// How far behind a damaged item recovery looks for such evidence: behind more than what is ever under way.
const EVIDENCE_LEN: u64 = 16 * BODY_LEN;

impl Resync {
    pub(super) fn new(partition: u8, at: u64, limit: u64, object: u64, epochs: (u32, u32)) -> Self {
        Self { partition, at, limit, object, epochs }
    }

    fn accepts(&self, header: &ItemHeader) -> bool {
        header.object >= self.object && (self.epochs.0..=self.epochs.1).contains(&header.epoch)
    }
}

impl Evidence {
    pub(super) fn new(partition: u8, damaged_at: u64, object: u64, epoch: u32) -> Self {
        let limit = damaged_at.saturating_add(EVIDENCE_LEN);
        let at = damaged_at + HEADER_LEN;
        let resync = Resync::new(partition, at, limit, object, (epoch, epoch));
        Self { resync, damaged_at, first: None, is_sync_seen: false }
    }
}

impl Cartridge {
    /// Returns the next valid item from where the search is, or nothing up to its limit. The search can go on
    /// behind the item.
    pub(super) fn next_item(&mut self, resync: &mut Resync) -> Result<Option<ItemHeader>, Halt> {
        let seal = self.part(resync.partition)?.seal;
        while resync.at < resync.limit {
            let start = resync.at;
            let chunk_end = (start / BODY_LEN + 1) * BODY_LEN;
            let bytes = match self.stream(resync.partition, start) {
                Ok(bytes) => bytes,
                // What cannot be read is damaged.
                Err(Halt::Fail(Error::Read(_))) => None,
                Err(halt) => return Err(halt),
            };
            let bytes = bytes.as_deref().unwrap_or_default();
            let headers = bytes.chunks_exact(to_usize(HEADER_LEN));
            for (at, header) in
                (start..resync.limit.min(chunk_end)).step_by(to_usize(HEADER_LEN)).zip(headers)
            {
                let Some(header) = ItemHeader::decode(header, &seal, at) else { continue };
                if resync.accepts(&header) {
                    resync.at = at + HEADER_LEN;
                    return Ok(Some(header));
                }
            }
            resync.at = chunk_end;
        }
        Ok(None)
    }

    /// Returns the first valid item behind a damaged one, if the damaged one had been durable: a later item
    /// was written after a flush that came after the damaged one.
    pub(super) fn durable_behind(&mut self, evidence: &mut Evidence) -> Result<Option<ItemHeader>, Halt> {
        let (partition, epoch) = (evidence.resync.partition, evidence.resync.epochs.0);
        let seal = self.part(partition)?.seal;
        while let Some(item) = self.next_item(&mut evidence.resync)? {
            let first = *evidence.first.get_or_insert(item);
            let chunk = item.at / BODY_LEN;
            let header = self.chunk((partition, chunk))?;
            let header = header.and_then(|bytes| ChunkHeader::decode(&bytes, &seal, chunk));
            let is_durable =
                header.is_some_and(|header| header.epoch == epoch && header.durable > evidence.damaged_at);
            if is_durable || evidence.is_sync_seen {
                return Ok(Some(first));
            }
            evidence.is_sync_seen = item.kind == ItemKind::Pad && item.is_sync;
        }
        Ok(None)
    }

    pub(super) fn step_skip(&mut self, skip: &mut Option<Skip>) -> Result<Outcome, Halt> {
        self.settle()?;
        let position = self.position;
        let now = self.part(position.partition)?.now;
        let skip = skip.get_or_insert_with(|| {
            let at = position.at + HEADER_LEN;
            let resync = Resync::new(position.partition, at, now.end, position.object, (0, now.epoch));
            Skip { resync }
        });
        let next = loop {
            // Padding tells a position as well as an object does.
            match self.next_item(&mut skip.resync)? {
                Some(item) if item.end() > now.end || item.object > now.objects => {}
                next => break next,
            }
        };
        let (at, object, filemarks) = match next {
            Some(item) => (item.at, item.object, item.filemarks),
            None => (now.end, now.objects, now.filemarks),
        };
        self.position.at = at;
        self.position.object = object;
        self.position.filemarks = filemarks;
        Ok(Outcome::Skipped { objects: object - position.object.min(object) })
    }
}
