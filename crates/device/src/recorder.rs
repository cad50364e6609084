//! A writable disc in a drive: its record, and the writes that append to it.

mod sequence;

use crate::disc_record::{DiscRecord, SECTOR_LEN, TRAILER_LEN};
use crate::range_lock::ByteRange;
pub(crate) use sequence::AppendState;
use sequence::Appends;
pub(crate) use sequence::LONG_WRITE_IN_PROGRESS;

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

    /// Records that this record is durable: the last one that was begun to be saved.
    pub(crate) fn record_saved(&mut self, saved: DiscRecord) {
        self.record.record_written();
        self.saved = saved;
    }

    /// Returns whether the durable record does not describe everything that was acknowledged.
    pub(crate) fn has_unsaved(&self) -> bool {
        !self.record.has_contents_of(&self.saved)
    }
}
