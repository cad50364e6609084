//! Finding a position: a binary search over the headers of chunks, then over the headers of items.

use super::resync::Resync;
use super::{Cartridge, Halt, before};
use crate::command::Position;
use crate::error::Error;
use crate::layout::{BODY_LEN, ChunkHeader, HEADER_LEN, ItemHeader, ItemKind};

/// What a search looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// The position before this object.
    Object(u64),
    /// The position behind this many filemarks, at least one.
    BehindFilemark(u64),
    /// The position before the filemark that is the last of this many.
    BeforeFilemark(u64),
}

impl Goal {
    /// Returns whether the goal is behind the start of a chunk.
    fn is_behind(self, header: &ChunkHeader) -> bool {
        match self {
            Self::Object(object) => header.object <= object,
            Self::BehindFilemark(count) | Self::BeforeFilemark(count) => header.filemarks < count,
        }
    }
}

#[derive(Debug)]
pub(super) struct Search {
    partition: u8,
    goal: Goal,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The goal is in a chunk from `low` to before `high`; the position says where the first item of `low`
    /// is.
    Chunks { low: u64, start: Position, high: u64, probe: Option<Probe> },
    /// The goal is at or behind the position.
    Items { at: Position, resync: Option<Resync> },
}

/// Where to look for a valid header near a damaged one: first before it, then behind it.
#[derive(Clone, Copy, Debug)]
struct Probe {
    middle: u64,
    chunk: u64,
    is_backward: bool,
}

impl Search {
    /// Starts a search in a partition whose data end at `end` in the stream. The goal exists.
    pub(super) fn new(partition: u8, goal: Goal, end: u64) -> Self {
        let start = Position { partition, ..Position::default() };
        let high = end.div_ceil(BODY_LEN).max(1);
        Self { partition, goal, stage: Stage::Chunks { low: 0, start, high, probe: None } }
    }
}

impl Cartridge {
    pub(super) fn search(&mut self, search: &mut Search) -> Result<Position, Halt> {
        let (partition, goal) = (search.partition, search.goal);
        while let Stage::Chunks { low, start, high, probe } = &mut search.stage {
            if *high - *low <= 1 {
                search.stage = Stage::Items { at: *start, resync: None };
                break;
            }
            let middle = *low + (*high - *low) / 2;
            let mut next = probe.unwrap_or(Probe { middle, chunk: middle, is_backward: true });
            let header = self.valid_chunk_header(partition, next.chunk, *start)?;
            *probe = None;
            match header {
                Some(header) if goal.is_behind(&header) => {
                    let ChunkHeader { first: at, object, filemarks, epoch, .. } = header;
                    *low = next.chunk;
                    *start = Position { partition, object, filemarks, at, epoch };
                }
                // All headers between `low` and this one are damaged, if the search went forward.
                Some(_) if !next.is_backward => *high = *low + 1,
                Some(_) => *high = next.chunk,
                None => {
                    if next.is_backward && next.chunk - 1 > *low {
                        next.chunk -= 1;
                    } else {
                        next.chunk = if next.is_backward { next.middle + 1 } else { next.chunk + 1 };
                        next.is_backward = false;
                    }
                    if next.chunk < *high {
                        *probe = Some(next);
                    } else {
                        *high = *low + 1;
                    }
                }
            }
        }
        match &mut search.stage {
            Stage::Items { at, resync } => self.search_items(goal, at, resync),
            Stage::Chunks { .. } => Err(Error::Misuse.into()),
        }
    }

    fn search_items(
        &mut self,
        goal: Goal,
        at: &mut Position,
        resync: &mut Option<Resync>,
    ) -> Result<Position, Halt> {
        let now = self.part(at.partition)?.now;
        loop {
            if goal == Goal::Object(at.object) {
                return Ok(*at);
            }
            let item = match self.item_at(*at)? {
                Some(item) => item,
                None => self.item_behind_damage(at, resync)?.ok_or(Error::DamagedLog)?,
            };
            *resync = None;
            // An object between the damage and this item is lost.
            let before = before(at.partition, &item);
            let behind = Position {
                object: item.object_behind(),
                filemarks: item.filemarks_behind(),
                at: item.end(),
                ..before
            };
            match goal {
                Goal::Object(object) if item.object > object => return Err(Error::Damaged { object }.into()),
                Goal::Object(object) if item.object == object => return Ok(before),
                Goal::Object(_) => {}
                Goal::BehindFilemark(count) | Goal::BeforeFilemark(count) => {
                    if item.filemarks >= count {
                        return Err(Error::DamagedLog.into());
                    }
                    if item.kind == ItemKind::Filemark && item.filemarks + 1 == count {
                        let is_before = matches!(goal, Goal::BeforeFilemark(_));
                        return Ok(if is_before { before } else { behind });
                    }
                }
            }
            *at = behind;
            if at.at >= now.end && goal != Goal::Object(at.object) {
                return Err(Error::DamagedLog.into());
            }
        }
    }

    /// Returns the item that is at a position, if it is the one that belongs there.
    fn item_at(&mut self, at: Position) -> Result<Option<ItemHeader>, Halt> {
        let now = self.part(at.partition)?.now;
        let item = match self.item(at.partition, at.at) {
            Err(Halt::Fail(Error::Read(_))) => None,
            item => item?,
        };
        Ok(item.filter(|item| {
            let is_next = item.object == at.object && item.filemarks == at.filemarks;
            is_next && (at.epoch..=now.epoch).contains(&item.epoch) && item.end() <= now.end
        }))
    }

    fn item_behind_damage(
        &mut self,
        at: &Position,
        resync: &mut Option<Resync>,
    ) -> Result<Option<ItemHeader>, Halt> {
        let now = self.part(at.partition)?.now;
        let resync = resync.get_or_insert_with(|| {
            Resync::new(at.partition, at.at + HEADER_LEN, now.end, at.object, (at.epoch, now.epoch))
        });
        loop {
            match self.next_item(resync)? {
                Some(item) if item.end() > now.end || item.filemarks < at.filemarks => {}
                item => return Ok(item),
            }
        }
    }

    /// Returns the header of a chunk, if it is one that belongs behind `low`, where the first item of an
    /// earlier chunk is. A header that was left from an earlier epoch, since a write was lost, tells wrong
    /// numbers: it shows beside the header of the chunk before it.
    fn valid_chunk_header(
        &mut self,
        partition: u8,
        chunk: u64,
        low: Position,
    ) -> Result<Option<ChunkHeader>, Halt> {
        let now = self.part(partition)?.now;
        let header = self.readable_chunk_header(partition, chunk)?.filter(|header| {
            (low.epoch..=now.epoch).contains(&header.epoch)
                && (low.at..=now.end).contains(&header.first)
                && (low.object..=now.objects).contains(&header.object)
                && (low.filemarks..=now.filemarks).contains(&header.filemarks)
        });
        let Some(found) = header else { return Ok(None) };
        if found.epoch == now.epoch || chunk == 0 {
            return Ok(header);
        }
        let before = self.readable_chunk_header(partition, chunk - 1)?;
        let is_behind = before.is_none_or(|before| {
            before.epoch <= found.epoch && before.first <= found.first && before.object <= found.object
        });
        Ok(header.filter(|_| is_behind))
    }

    fn readable_chunk_header(&mut self, partition: u8, chunk: u64) -> Result<Option<ChunkHeader>, Halt> {
        match self.chunk_header((partition, chunk)) {
            Err(Halt::Fail(Error::Read(_))) => Ok(None),
            header => header,
        }
    }
}
