//! What can be done with the tracks and sessions of a disc that is written sequentially.

use alloc::vec::Vec;

use base::bytes::{Reader, UnexpectedEof};

use super::error::TrackError;
use super::{DiscRecord, SECTOR_LEN, TRACKS_MAX, Track};

/// The end of a track that has no fixed one, in a record.
const OPEN_END: u32 = u32::MAX;

impl Track {
    /// Returns an empty track without a fixed end.
    pub(super) const fn open(start: u32, session: u16) -> Self {
        Self { start, end: None, next: start, session, is_closed: false }
    }

    /// Returns whether it is written to its fixed end, but for a part of an error correction block: a host
    /// reserves as much as it will write, and the drive whole blocks.
    pub fn is_full(&self, blocking: u32) -> bool {
        self.end.is_some_and(|end| self.next.next_multiple_of(blocking) >= end)
    }

    /// Returns whether nothing was written to it.
    pub const fn is_empty(&self) -> bool {
        self.next == self.start
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for word in [self.start, self.end.unwrap_or(OPEN_END), self.next] {
            out.extend_from_slice(&word.to_be_bytes());
        }
        out.extend_from_slice(&self.session.to_be_bytes());
        out.extend_from_slice(&u16::from(self.is_closed).to_be_bytes());
    }

    pub(super) fn take(reader: &mut Reader<'_>) -> Result<Self, UnexpectedEof> {
        let (start, end, next) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let (session, flags) = (reader.u16()?, reader.u16()?);
        let end = Some(end).filter(|end| *end != OPEN_END);
        Ok(Self { start, end, next, session, is_closed: flags & 1 == 1 })
    }
}

impl DiscRecord {
    /// Returns the tracks, the empty one at the end included.
    pub fn tracks(&self) -> &[Track] {
        &self.tracks
    }

    /// Returns the sector behind the last one that can be written.
    pub const fn writable_end(&self) -> u32 {
        if self.formatted > 0 { self.formatted } else { self.capacity }
    }

    /// Returns the sector behind the last one of a track that can be written.
    pub fn end_of(&self, track: &Track) -> u32 {
        track.end.unwrap_or_else(|| self.writable_end())
    }

    /// Returns the sector behind the last one that was written.
    pub fn written_end(&self) -> u32 {
        self.tracks.iter().filter(|track| !track.is_empty()).map(|track| track.next).max().unwrap_or(0)
    }

    /// Returns whether nothing was written or reserved.
    pub fn is_blank(&self) -> bool {
        matches!(self.tracks.as_slice(), [only] if !self.is_complete && only.end.is_none() && only.is_empty())
    }

    /// Returns the number of the last session: the one that is being written, unless the disc is complete.
    pub fn last_session(&self) -> u16 {
        self.tracks.last().map_or(1, |track| track.session)
    }

    /// Returns the open track, by its index, that a write at this sector belongs to.
    pub fn open_track_at(&self, lba: u32) -> Option<usize> {
        self.tracks.iter().position(|track| {
            !self.is_complete && !track.is_closed && (track.start..self.end_of(track)).contains(&lba)
        })
    }

    /// Records that a track was written up to a sector.
    pub fn write_up_to(&mut self, track: usize, end: u32) {
        if let Some(track) = self.tracks.get_mut(track) {
            track.next = end;
        }
    }

    /// Reserves a track of this many sectors where the next one would begin.
    ///
    /// # Errors
    /// [`TrackError`]; nothing has changed then.
    pub fn reserve(&mut self, sectors: u32) -> Result<(), TrackError> {
        let whole = u64::from(sectors).next_multiple_of(u64::from(self.kind.blocking()));
        let writable_end = self.writable_end();
        let has_room = self.tracks.len() < TRACKS_MAX;
        let last = self.tracks.last_mut().filter(|last| !last.is_closed && last.end.is_none());
        let last = last.filter(|last| last.is_empty()).ok_or(TrackError::Sequence)?;
        if !has_room {
            return Err(TrackError::TooMany);
        }
        let end = u32::try_from(u64::from(last.start) + whole).ok().filter(|end| *end <= writable_end);
        let (Some(end), true) = (end, sectors > 0) else { return Err(TrackError::NoRoom) };
        last.end = Some(end);
        let session = last.session;
        self.tracks.push(Track::open(end, session));
        Ok(())
    }

    /// Closes a track, by its number from 1. What is left of an error correction block, or of a reserved
    /// track, is padded. A closed track stays as it is.
    ///
    /// # Errors
    /// [`TrackError`]; nothing has changed then.
    pub fn close_track(&mut self, number: u16) -> Result<(), TrackError> {
        let (blocking, has_room) = (self.kind.blocking(), self.tracks.len() < TRACKS_MAX);
        let index = usize::from(number).checked_sub(1);
        let track = index.and_then(|index| self.tracks.get_mut(index)).ok_or(TrackError::NoTrack)?;
        if track.is_closed {
            return Ok(());
        }
        if track.is_empty() {
            return Err(TrackError::Empty);
        }
        let is_last = track.end.is_none();
        if is_last && !has_room {
            return Err(TrackError::TooMany);
        }
        track.close(blocking);
        let next = Track::open(track.next, track.session);
        if is_last {
            self.tracks.push(next);
        }
        Ok(())
    }

    /// Closes the session, and completes the disc or begins the next session. The open track at the end is
    /// closed, or given up if it is empty.
    ///
    /// # Errors
    /// [`TrackError`]; nothing has changed then.
    pub fn close_session(&mut self, completes: bool) -> Result<(), TrackError> {
        if self.is_complete {
            return Ok(());
        }
        let session = self.last_session();
        let blocking = self.kind.blocking();
        let current = || self.tracks.iter().filter(|track| track.session == session);
        if current().any(|track| track.end.is_some() && !track.is_full(blocking)) {
            return Err(TrackError::Incomplete);
        }
        let is_empty = current().all(Track::is_empty);
        if is_empty && (!completes || session == 1) {
            return Err(TrackError::Empty);
        }
        if !completes && (self.tracks.len() == TRACKS_MAX || session == u16::MAX) {
            return Err(TrackError::TooMany);
        }
        self.tracks.retain(|track| !track.is_empty());
        self.tracks.iter_mut().for_each(|track| track.close(blocking));
        if completes {
            self.is_complete = true;
        } else {
            let end = self.written_end();
            self.tracks.push(Track::open(end, session + 1));
        }
        Ok(())
    }

    /// Returns the offsets and the lengths in bytes of what was padded since `before`, when tracks were
    /// closed.
    pub fn padding_since(&self, before: &Self) -> Vec<(u64, u64)> {
        let bytes = |sectors: u32| u64::from(sectors) * SECTOR_LEN;
        let now = |was: &Track| self.tracks.iter().find(|is| is.start == was.start && is.next > was.next);
        let padded = before.tracks.iter().filter_map(|was| Some((was.next, now(was)?.next)));
        padded.map(|(from, to)| (bytes(from), bytes(to - from))).collect()
    }

    /// Returns whether the tracks are those of a disc of this kind.
    pub(super) fn has_possible_tracks(&self) -> bool {
        if !self.kind.is_sequential() {
            return self.tracks.is_empty() && !self.is_complete;
        }
        let blocking = self.kind.blocking();
        let mut before = Track { end: Some(0), is_closed: true, ..Track::open(0, 1) };
        for track in &self.tracks {
            let is_whole = track.end.is_none_or(|end| end.is_multiple_of(blocking) && end > track.start);
            let follows = before.end == Some(track.start) && track.session >= before.session;
            let is_next_session = track.session <= before.session.saturating_add(1);
            let end = self.end_of(track);
            let fits = (track.start..=end).contains(&track.next) && end <= self.writable_end();
            let is_closed_whole = !track.is_closed || track.end == Some(track.next);
            if !(is_whole && follows && is_next_session && fits && is_closed_whole) {
                return false;
            }
            before = *track;
        }
        before.is_closed == self.is_complete && before.end.is_some() == self.is_complete
    }
}

impl Track {
    /// Closes the track at the end of the error correction block, or where it was reserved to.
    fn close(&mut self, blocking: u32) {
        let end = self.end.unwrap_or_else(|| self.next.next_multiple_of(blocking));
        *self = Self { end: Some(end), next: end, is_closed: true, ..*self };
    }
}
