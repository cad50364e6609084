//! How a command fails.

use core::fmt;

use store::api::Failure;

/// Why a command failed. The position is where it was before the command, unless a variant says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The command needs a loaded cartridge.
    NotLoaded,
    /// The cartridge is loaded already.
    AlreadyLoaded,
    /// The owner gave a command while another one was under way, or a command that cannot be: a bug of the
    /// owner.
    Misuse,
    /// Both copies of the label are damaged, or the file is no label.
    NoLabel,
    /// The label has a version of the format that this release does not know.
    UnknownVersion(u32),
    /// The checksum of the label is right, and its content is not possible.
    ImpossibleLabel,
    /// The cartridge is write protected.
    WriteProtected,
    /// The cartridge is WORM, and the command would change what is written.
    Worm,
    /// The partition does not exist.
    NoPartition,
    /// The record is empty, or longer than [`crate::layout::RECORD_LEN_MAX`], or its metadata is too long.
    RecordLen,
    /// The partition has no space for the object. Nothing of it was written.
    EndOfPartition,
    /// The object cannot be read: its checksum is wrong, or it is missing. The position is before it.
    Damaged {
        /// The number of the object.
        object: u64,
    },
    /// A search met a damaged part of the log that it cannot pass. The position is as before.
    DamagedLog,
    /// The storage of the cartridge is full. What does not fit is given up: the partition ends behind the
    /// last object that is in the files, and so does the position, if it was behind that. The label says so.
    /// Everything else goes on.
    StorageFull,
    /// A record could not be written, or what was written could not be flushed. The cartridge accepts no more
    /// writes until it is loaded again, and then ends before the first object that was lost.
    WriteLost {
        /// Why.
        failure: Failure,
        /// Whether a flush failed: then records can be lost that were in the files.
        is_flush: bool,
    },
    /// A file could not be read.
    Read(Failure),
    /// The label could not be written.
    LabelWrite(Failure),
    /// The partition sizes are not possible.
    PartitionSizes,
    /// The attribute is read-only, too long, or does not fit.
    Attribute(crate::attributes::AttributeError),
    /// All epochs are used: the tape was overwritten 2^32 times.
    EpochsExhausted,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLoaded => f.write_str("no cartridge is loaded"),
            Self::AlreadyLoaded => f.write_str("the cartridge is loaded already"),
            Self::Misuse => f.write_str("the command cannot be given now"),
            Self::NoLabel => f.write_str("both copies of the label are damaged, or this is no cartridge"),
            Self::UnknownVersion(version) => {
                write!(f, "the cartridge has the unknown format version {version}")
            }
            Self::ImpossibleLabel => f.write_str("the label contradicts itself"),
            Self::WriteProtected => f.write_str("the cartridge is write protected"),
            Self::Worm => f.write_str("the cartridge is WORM, and what is written on it cannot be changed"),
            Self::NoPartition => f.write_str("the cartridge has no such partition"),
            Self::RecordLen => f.write_str("the record has no possible length: it must have 1 byte to 8 MiB"),
            Self::EndOfPartition => f.write_str("the partition is full"),
            Self::Damaged { object } => write!(f, "object {object} is damaged"),
            Self::DamagedLog => f.write_str("the log is damaged"),
            Self::StorageFull => f.write_str("the file system of the cartridge is full"),
            Self::WriteLost { failure, .. } => write!(f, "a write failed: {}", failure.fault),
            Self::Read(failure) => write!(f, "a read failed: {}", failure.fault),
            Self::LabelWrite(failure) => write!(f, "the label cannot be written: {}", failure.fault),
            Self::PartitionSizes => f.write_str("the partitions have no possible sizes"),
            Self::Attribute(why) => write!(f, "{why}"),
            Self::EpochsExhausted => f.write_str("the tape was overwritten too often"),
        }
    }
}

impl core::error::Error for Error {}
