//! Why the record of a writable disc cannot be used.

use core::fmt;

/// Why the record of a writable disc cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscRecordError {
    /// Neither slot holds a whole record.
    Damaged,
    /// A later version of targe wrote it.
    UnknownVersion,
    /// The image is longer or shorter than its disc.
    Length,
    /// No disc of this kind has this capacity.
    Capacity,
}

/// Why a track or session cannot be reserved or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrackError {
    /// The last track is not empty, or the disc is complete.
    Sequence,
    /// There is no such track.
    NoTrack,
    /// Nothing was written to the track or session.
    Empty,
    /// A reserved track of the session is not completely written.
    Incomplete,
    /// There are as many tracks as there can be.
    TooMany,
    /// The disc has not so many sectors left.
    NoRoom,
}

impl fmt::Display for DiscRecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Damaged => "the record of its tracks at the end of the file is damaged",
            Self::UnknownVersion => "a later version of targe has written the record at the end of the file",
            Self::Length => "the file is longer or shorter than the disc that it is the image of",
            Self::Capacity => "no disc of this kind has this capacity",
        })
    }
}

impl core::error::Error for DiscRecordError {}
