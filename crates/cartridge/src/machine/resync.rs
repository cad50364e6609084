//! Finding the next item behind a damaged part of a log.

use base::int_cast::{to_u64, to_usize};
use store::api::Failure;

use super::{Cartridge, Halt, before, end_of};
use crate::command::Outcome;
use crate::error::Error;
use crate::label::Checkpoint;
use crate::layout::{BLOCK_LEN, BODY_LEN, HEADER_LEN, ItemHeader, ItemKind, physical};

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

/// A search for evidence that a damaged item had been durable: then it was not torn by a crash. An item that
/// cannot be read is no torn one either.
#[derive(Debug)]
pub(super) struct Evidence {
    resync: Resync,
    damaged_at: u64,
    /// How the read of the item failed.
    pub(super) unreadable: Option<Failure>,
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
    /// Starts behind the end `now` of what was found. `object` is the smallest number of a later object.
    pub(super) fn new(partition: u8, now: &Checkpoint, object: u64, unreadable: Option<Failure>) -> Self {
        let limit = now.end.saturating_add(EVIDENCE_LEN);
        let at = now.end + HEADER_LEN;
        let resync = Resync::new(partition, at, limit, object, (now.epoch, now.epoch));
        Self { resync, damaged_at: now.end, unreadable, first: None, is_sync_seen: false }
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
            let (bytes, end) = match self.stream(resync.partition, start) {
                Ok(Some(bytes)) => {
                    let end = start + to_u64(bytes.len());
                    (Some(bytes), end)
                }
                Ok(None) => (None, chunk_end),
                // What cannot be read is damaged.
                Err(Halt::Fail(Error::Read(_))) => {
                    (None, (start + BLOCK_LEN - physical(start) % BLOCK_LEN).min(chunk_end))
                }
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
            resync.at = end;
        }
        Ok(None)
    }

    /// Returns the first valid item behind a damaged one, if the damaged one is not torn: it cannot be read,
    /// or had been durable, since a later item was written after a flush that came after the damaged one.
    pub(super) fn written_behind(&mut self, evidence: &mut Evidence) -> Result<Option<ItemHeader>, Halt> {
        let (partition, epoch) = (evidence.resync.partition, evidence.resync.epochs.0);
        while let Some(item) = self.next_item(&mut evidence.resync)? {
            let first = *evidence.first.get_or_insert(item);
            let chunk = item.at / BODY_LEN;
            let header = self.header_in_chunk((partition, chunk))?;
            let is_durable =
                header.is_some_and(|header| header.epoch == epoch && header.durable > evidence.damaged_at);
            if is_durable || evidence.is_sync_seen || evidence.unreadable.is_some() {
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
            let epochs = (position.epoch, now.epoch);
            let resync = Resync::new(position.partition, at, now.end, position.object, epochs);
            Skip { resync }
        });
        let next = loop {
            // Padding tells a position as well as an object does.
            match self.next_item(&mut skip.resync)? {
                Some(item)
                    if item.end() > now.end
                        || item.object > now.objects
                        || item.filemarks < position.filemarks => {}
                next => break next,
            }
        };
        self.is_end_skipped = position.object >= now.objects;
        self.position = match next {
            Some(item) => before(position.partition, &item),
            None => end_of(position.partition, &now),
        };
        let objects = self.position.object.saturating_sub(position.object);
        Ok(Outcome::Skipped { objects })
    }
}
