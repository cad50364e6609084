//! Operations under way, by the token that the file queue knows them by.

use base::buffer::DataList;
use drivers::files::Errno;
use store::api::{Failure, OpId};

use crate::open::Kind;
use crate::overlap::Ticket;

#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: OpId,
    pub(super) work: Work,
}

/// The purpose of a file operation that is under way.
#[derive(Debug)]
pub(super) enum Work {
    Read {
        at: u64,
        len: usize,
    },
    Write {
        at: u64,
        /// Whether the write must be durable when it is acknowledged.
        stable: bool,
        /// That of a write that may take the report of another write's failure.
        ticket: Option<Ticket>,
        /// The data from the submitter, if a copy of it is written.
        original: Option<DataList>,
        /// The data again, if a write that lacks space must be repeated.
        again: Option<DataList>,
        /// The error of the first attempt, if this is the second.
        first_errno: Option<Errno>,
    },
    /// A flush, or the sync that makes another change durable.
    Sync(Ticket),
    /// The sync that tells whether a stable write failed with the report of another one's failure.
    Verify {
        ticket: Option<Ticket>,
        /// The failure of the write.
        failure: Failure,
    },
    Deallocate {
        stable: bool,
    },
    /// The range that remains to be zeroed.
    Zero {
        at: u64,
        len: u64,
        way: ZeroWay,
        stable: bool,
        /// That of zeros that are written where such a write may take the report of another one's failure.
        ticket: Option<Ticket>,
    },
    Extents,
    Clone,
}

impl Work {
    /// Returns whether the operation may change how much storage the file takes.
    pub(super) const fn changes_storage(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Deallocate { .. } | Self::Zero { .. })
    }
}

/// How to make a range read as zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ZeroWay {
    Punch,
    ZeroRange,
    ZeroOut,
    Write,
}

impl ZeroWay {
    /// Returns the method to try next where the system does not support this one.
    pub(super) fn next(self, kind: Kind) -> Option<Self> {
        match (self, kind) {
            (Self::Punch, Kind::File) => Some(Self::ZeroRange),
            (Self::Punch, Kind::Block) => Some(Self::ZeroOut),
            (Self::ZeroRange | Self::ZeroOut, _) => Some(Self::Write),
            (Self::Write, _) => None,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Jobs {
    places: Vec<Option<Job>>,
    free: Vec<usize>,
}

impl Jobs {
    pub(super) fn insert(&mut self, job: Job) -> u64 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        if let Some(place) = self.places.get_mut(at) {
            *place = Some(job);
        }
        super::wide(at)
    }

    pub(super) fn remove(&mut self, token: u64) -> Option<Job> {
        let at = usize::try_from(token).ok()?;
        let job = self.places.get_mut(at)?.take()?;
        self.free.push(at);
        Some(job)
    }
}
