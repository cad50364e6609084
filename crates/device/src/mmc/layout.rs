//! The sessions and tracks of the disc that is loaded, as the commands that report them need them.
//!
//! A read-only and a rewritable disc have one complete session with one data track. What a disc that is
//! written sequentially has is in its record.

use alloc::vec::Vec;

use super::lead_out;
use crate::device_server::DeviceServer;
use crate::disc_record::{DiscRecord, Track};

/// The state of a session, and of the disc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// An empty session, or a blank disc.
    Empty,
    /// A session that is being written, or a disc to which more can be added.
    Incomplete,
    Complete,
}

/// A track, as READ TRACK INFORMATION reports it.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrackLayout {
    pub(super) session: u16,
    pub(super) start: u32,
    /// The sector behind the last one.
    pub(super) end: u32,
    /// Where the next write must begin, if the track is open and was not written to its end.
    pub(super) next_writable: Option<u32>,
    /// How far it is written; `None` for tracks of discs that are not written sequentially.
    pub(super) written_to: Option<u32>,
    /// Whether it has been reserved, and is not closed.
    pub(super) is_reserved: bool,
}

/// The sessions and tracks of a disc.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) disc: State,
    pub(super) last_session: State,
    /// All of them, at least one.
    pub(super) tracks: Vec<TrackLayout>,
}

impl TrackLayout {
    /// Returns whether nothing was written to it.
    pub(super) fn is_blank(&self) -> bool {
        self.written_to == Some(self.start)
    }
}

impl Layout {
    pub(super) fn of(server: &DeviceServer) -> Self {
        match &server.recorder {
            Some(recorder) if recorder.record.kind.is_sequential() => Self::of_record(&recorder.record),
            Some(recorder) if recorder.record.formatted == 0 => {
                Self::whole(recorder.record.capacity, State::Empty)
            }
            _ => Self::whole(lead_out(server), State::Complete),
        }
    }

    /// One session with one track.
    fn whole(end: u32, state: State) -> Self {
        let track = TrackLayout {
            session: 1,
            start: 0,
            end,
            next_writable: None,
            written_to: None,
            is_reserved: false,
        };
        Self { disc: state, last_session: state, tracks: Vec::from([track]) }
    }

    fn of_record(record: &DiscRecord) -> Self {
        let layout = |track: &Track| {
            let end = record.end_of(track);
            let is_open = !track.is_closed && !record.is_complete;
            TrackLayout {
                session: track.session,
                start: track.start,
                end,
                next_writable: Some(track.next).filter(|next| is_open && *next < end),
                written_to: Some(track.next),
                is_reserved: is_open && track.end.is_some(),
            }
        };
        let session = record.last_session();
        let mut last = record.tracks().iter().filter(|track| track.session == session);
        let last_session = match record.is_complete {
            true => State::Complete,
            false if last.all(|track| track.is_empty() && track.end.is_none()) => State::Empty,
            false => State::Incomplete,
        };
        let disc = match record.is_complete {
            true => State::Complete,
            false if record.is_blank() => State::Empty,
            false => State::Incomplete,
        };
        Self { disc, last_session, tracks: record.tracks().iter().map(layout).collect() }
    }

    /// Returns the number of the last session.
    pub(super) fn sessions(&self) -> u16 {
        self.tracks.last().map_or(1, |track| track.session)
    }

    /// Returns the number of the first track of a session, and the track.
    pub(super) fn first_of(&self, session: u16) -> Option<(u16, TrackLayout)> {
        self.numbered().find(|(_, track)| track.session == session)
    }

    /// Returns the tracks with their numbers, from 1.
    pub(super) fn numbered(&self) -> impl Iterator<Item = (u16, TrackLayout)> {
        (1..=u16::MAX).zip(self.tracks.iter().copied())
    }

    /// Returns the number of the last session that is complete, or 1.
    pub(super) fn last_complete_session(&self) -> u16 {
        let last = self.sessions();
        if self.last_session == State::Complete { last } else { last.saturating_sub(1).max(1) }
    }
}
