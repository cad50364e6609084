//! The writes to a disc that are under way, of which most append to tracks.
//!
//! A write is admitted if it begins where the track is written to, writes that are under way included.
//! Writes end in any order; each is acknowledged, and counts as written, when those before it on its track
//! do. If one fails or is aborted, those behind it on its track fail too, since there is a gap before them.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use scsi::sense::{Asc, Sense, SenseKey};

use super::Recorder;
use crate::task::TaskId;

/// The sense data of a command that must wait until the writes under way, or the padding of tracks that are
/// being closed, have ended.
pub(crate) const LONG_WRITE_IN_PROGRESS: Sense =
    Sense::new(SenseKey::NOT_READY, Asc::LOGICAL_UNIT_NOT_READY_LONG_WRITE_IN_PROGRESS);

/// The writes whose tasks have not ended, in the order in which they were admitted.
#[derive(Debug, Default)]
pub(crate) struct Appends {
    list: VecDeque<Append>,
    /// The tasks that write at any address.
    overwrites: Vec<TaskId>,
    /// The task that pads tracks or erases the disc, if one does: no write is admitted.
    refused_for: Option<TaskId>,
}

#[derive(Debug)]
struct Append {
    task: TaskId,
    /// The index of the track.
    track: usize,
    start: u32,
    end: u32,
    state: AppendState,
}

/// How far a write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendState {
    /// Its data is being fetched and written.
    Transferring,
    /// Its data is written, and a write before it is not.
    Written,
    /// It counts as written.
    Done,
    /// A write before it failed.
    Failed,
}

impl Append {
    const fn is_under_way(&self) -> bool {
        matches!(self.state, AppendState::Transferring | AppendState::Written)
    }
}

impl Appends {
    /// Returns whether the end of a track is not known yet, or a write at any address has not ended.
    pub(crate) fn are_under_way(&self) -> bool {
        !self.overwrites.is_empty() || self.list.iter().any(Append::is_under_way)
    }

    /// Records that a task writes at any address.
    pub(crate) fn overwrite(&mut self, task: TaskId) {
        self.overwrites.push(task);
    }

    /// Refuses writes while a task pads tracks or erases the disc.
    pub(crate) const fn refuse_for(&mut self, task: TaskId) {
        self.refused_for = Some(task);
    }

    /// Returns whether a task pads tracks or erases the disc.
    pub(crate) const fn are_refused(&self) -> bool {
        self.refused_for.is_some()
    }

    /// Admits writes again, if a task has padded tracks or erased the disc.
    pub(crate) fn end_refusal(&mut self, task: TaskId) {
        self.refused_for.take_if(|padding| *padding == task);
    }

    /// Returns how far the write of a task is; `None` if the disc it was meant for is gone.
    pub(crate) fn state(&self, task: TaskId) -> Option<AppendState> {
        self.list.iter().find(|append| append.task == task).map(|append| append.state)
    }
}

impl Recorder {
    /// Admits a write of at least one sector.
    ///
    /// # Errors
    /// INVALID ADDRESS FOR WRITE if a write must not begin there, and LOGICAL BLOCK ADDRESS OUT OF RANGE if
    /// the track or the disc ends before it.
    pub(crate) fn admit(&mut self, task: TaskId, start: u32, sectors: u32) -> Result<(), Sense> {
        if self.appends.refused_for.is_some() {
            return Err(LONG_WRITE_IN_PROGRESS);
        }
        let record = &self.record;
        let refused = |asc| Err(Sense::illegal(asc).with_information(u64::from(start)));
        if start >= record.writable_end() {
            return refused(Asc::LBA_OUT_OF_RANGE);
        }
        let index = record.open_track_at(start);
        let Some((index, track)) = index.and_then(|index| Some((index, record.tracks().get(index)?))) else {
            return refused(Asc::INVALID_ADDRESS_FOR_WRITE);
        };
        let last =
            self.appends.list.iter().rev().find(|append| append.track == index && append.is_under_way());
        if start != last.map_or(track.next, |last| last.end) {
            return refused(Asc::INVALID_ADDRESS_FOR_WRITE);
        }
        let end = start.checked_add(sectors).filter(|end| *end <= record.end_of(track));
        let Some(end) = end else { return refused(Asc::LBA_OUT_OF_RANGE) };
        let state = AppendState::Transferring;
        self.appends.list.push_back(Append { task, track: index, start, end, state });
        Ok(())
    }

    /// Records that the data of a write is written. Returns the tasks of the writes that count as written
    /// now.
    pub(crate) fn written(&mut self, task: TaskId) -> Vec<TaskId> {
        let mut done = Vec::new();
        for append in &mut self.appends.list {
            if append.task == task && append.state == AppendState::Transferring {
                append.state = AppendState::Written;
            }
            // Those before it on its track were looked at before.
            let next = self.record.tracks().get(append.track).map(|track| track.next);
            if append.state == AppendState::Written && next == Some(append.start) {
                append.state = AppendState::Done;
                self.record.write_up_to(append.track, append.end);
                done.push(append.task);
            }
        }
        done
    }

    /// Forgets the write of a task that has ended. Returns the tasks of the writes that fail because of that.
    pub(crate) fn forget(&mut self, task: TaskId) -> Vec<TaskId> {
        self.appends.end_refusal(task);
        self.appends.overwrites.retain(|other| *other != task);
        let Some(at) = self.appends.list.iter().position(|append| append.task == task) else {
            return Vec::new();
        };
        let Some(gone) = self.appends.list.remove(at) else { return Vec::new() };
        if !gone.is_under_way() {
            return Vec::new();
        }
        let behind = self.appends.list.iter_mut().skip(at);
        let behind = behind.filter(|append| append.track == gone.track && append.is_under_way());
        behind
            .map(|append| {
                append.state = AppendState::Failed;
                append.task
            })
            .collect()
    }
}
