//! The drive's side of a writable disc: its record, the writes that append to it, and the saving of it.

mod change;
mod sequence;

use alloc::boxed::Box;

use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::disc_record::{DiscRecord, SECTOR_LEN, TRAILER_LEN};
use crate::flush::FlushThen;
use crate::range_lock::ByteRange;
use crate::task::TaskInfo;
pub(crate) use change::{Change, ChangeRecord};
pub(crate) use sequence::AppendState;
use sequence::Appends;

/// A writable disc in the drive.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// The record as it is now. What a command changed in it is durable when that command is acknowledged.
    pub(crate) record: DiscRecord,
    /// The newest record that is durable.
    saved: DiscRecord,
    /// The writes that append to tracks.
    pub(crate) appends: Appends,
}

impl Recorder {
    pub(crate) fn new(record: DiscRecord) -> Self {
        Self { saved: record.clone(), record, appends: Appends::default() }
    }

    /// Returns the part of the image that holds the record.
    pub(crate) fn trailer(&self) -> ByteRange {
        let at = u64::from(self.record.capacity) * SECTOR_LEN;
        ByteRange::new(at, u64::try_from(TRAILER_LEN).unwrap_or(u64::MAX))
    }

    /// Returns whether the durable record does not describe everything that was acknowledged.
    pub(crate) fn has_unsaved(&self) -> bool {
        !self.record.has_contents_of(&self.saved)
    }
}

impl DeviceServer {
    /// Makes durable what hosts have written, and then continues. On a disc that is written sequentially that
    /// includes how far its tracks are written.
    pub(crate) fn synchronize_then(&self, then: fn(&mut Self, &TaskInfo) -> Outcome) -> Outcome {
        match &self.recorder {
            Some(recorder) if recorder.record.kind.is_sequential() => ChangeRecord::saving(None, then),
            _ => Outcome::Run(Box::new(FlushThen { then })),
        }
    }

    /// Returns whether the operator must not take the disc out, since it would lose what was acknowledged.
    pub(crate) fn has_unsaved_disc(&self) -> bool {
        self.recorder.as_ref().is_some_and(|recorder| recorder.has_unsaved())
    }
}
