//! A writable disc in a drive: its record, and the writes that append to it.

mod sequence;

use serde::{Deserialize, Serialize};

use crate::disc_record::{DiscRecord, SECTOR_LEN, TRAILER_LEN};
use crate::handover::RestoreError;
use crate::handover::hex::HexBytes;
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

    /// Returns the record, and the one that is durable, in a document that one process hands over to the
    /// next. No write is under way.
    pub(crate) fn export(&self) -> RecorderState {
        let Self { record, saved, appends: _ } = self;
        let (record, slot) = record.export();
        RecorderState { record: HexBytes(record), saved: HexBytes(saved.export().0), slot }
    }

    /// Returns the record of a document for the disc of this drive, whose image has `image_len` bytes.
    ///
    /// # Errors
    /// [`RestoreError::DiscRecord`] if it is no record, or that of another disc.
    pub(crate) fn restored(&self, state: &RecorderState, image_len: u64) -> Result<Self, RestoreError> {
        let RecorderState { record, saved, slot } = state;
        let of = |bytes: &HexBytes| DiscRecord::restore(&bytes.0, *slot, image_len);
        let (Some(record), Some(saved)) = (of(record), of(saved)) else {
            return Err(RestoreError::DiscRecord);
        };
        let is_same =
            |other: &DiscRecord| (other.kind, other.capacity) == (self.record.kind, self.record.capacity);
        if !is_same(&record) || !is_same(&saved) {
            return Err(RestoreError::DiscRecord);
        }
        Ok(Self { record, saved, appends: Appends::default() })
    }
}

/// The record of a writable disc in such a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecorderState {
    record: HexBytes,
    /// The newest record that is durable.
    saved: HexBytes,
    /// The slot of the image that holds it.
    slot: u8,
}
