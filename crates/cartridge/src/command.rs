//! Commands, and what they lead to.

use alloc::vec::Vec;

use base::buffer::DataList;

/// A command. One is under way at a time.
#[derive(Clone, Debug)]
pub enum Command {
    /// Reads the label and finds the end of each partition. The position is then the start of partition 0.
    Load {
        /// Whether anything may be written, the count of loads included.
        is_writable: bool,
    },
    /// Makes everything durable and writes the label. The cartridge is then not loaded.
    Unload,
    /// Reads the object at the position, and moves behind it.
    Read,
    /// Tells what the object at the position is, without reading its data. The position stays.
    Peek,
    /// Writes a record at the position. Everything behind the position is gone then.
    Write(Record),
    /// Writes filemarks at the position, like records. With a count of 0 it only synchronises.
    WriteFilemarks {
        /// How many.
        count: u32,
        /// Whether the command ends before they are durable.
        is_immediate: bool,
    },
    /// Writes everything that was written before to the files: it survives the end of the process, but
    /// perhaps no loss of power.
    Drain,
    /// Makes everything durable that was written before.
    Synchronize,
    /// Moves to a place in a partition.
    Locate {
        /// The partition.
        partition: u8,
        /// The place.
        destination: Destination,
    },
    /// Moves over objects: forward by a positive count, backward by a negative one.
    Space {
        /// Over what.
        unit: SpaceUnit,
        /// How many.
        count: i64,
    },
    /// Removes everything from the position to the end of the partition, durably, and frees its storage.
    Erase,
    /// Divides the cartridge into blank partitions of these capacities in bytes (empty: one with everything).
    /// The position is then the start of partition 0.
    Format {
        /// The capacities.
        partitions: Vec<u64>,
    },
    /// Writes the label, with attributes and the write protect switch as they are now.
    SaveLabel,
    /// Moves behind damaged objects at the position, to the next one with a valid header or to the end of
    /// data.
    SkipDamage,
}

/// A record, with what is stored beside its data.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The data: 1 byte to [`crate::layout::RECORD_LEN_MAX`], encrypted by the device server if at all.
    pub data: DataList,
    /// Whether to try to compress the data; on the way back, whether they are stored compressed.
    pub is_compressed: bool,
    /// The logical block protection that the host sent with it.
    pub guard: Option<Guard>,
    /// The index of the algorithm that encrypted the data, as the device server numbers them, or 0.
    pub encryption: u8,
    /// What the device server keeps with the record, such as nonce and key-associated data: at most
    /// [`crate::layout::METADATA_LEN_MAX`] bytes.
    pub metadata: Vec<u8>,
}

/// What is stored beside the data of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordInfo {
    /// Whether the cartridge has compressed the data.
    pub is_compressed: bool,
    /// As [`Record::encryption`].
    pub encryption: u8,
    /// As [`Record::metadata`]. Only a read of the whole record tells whether they are intact.
    pub metadata: Vec<u8>,
}

/// The logical block protection of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The method: 1 Reed-Solomon, 2 CRC32C; not 0.
    pub method: u8,
    /// The value.
    pub value: u32,
}

/// A place in a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Before the object with this number.
    Object(u64),
    /// Behind this many filemarks.
    Filemark(u64),
    /// Behind the last object.
    EndOfData,
}

/// What SPACE counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceUnit {
    /// Records. A filemark ends the movement.
    Records,
    /// Filemarks.
    Filemarks,
    /// Moves to the end of data, whatever the count.
    EndOfData,
}

/// The place between two objects where the next command begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct Position {
    /// The partition.
    pub partition: u8,
    /// How many objects are before it.
    pub object: u64,
    /// How many filemarks are before it.
    pub filemarks: u64,
    /// Where in the stream of the log it is.
    pub(crate) at: u64,
    /// The smallest epoch that what is behind it can have: epochs never fall along the stream.
    pub(crate) epoch: u32,
}

impl Position {
    /// The start of partition 0.
    pub const START: Self = Self { partition: 0, object: 0, filemarks: 0, at: 0, epoch: 0 };

    /// Returns how many bytes the objects before the position are stored in, with their headers.
    pub const fn stored_len(&self) -> u64 {
        self.at
    }
}

impl PartialEq for Position {
    /// Compares the places: what is known of the epoch behind a place depends on the way to it.
    fn eq(&self, other: &Self) -> bool {
        let place = |of: &Self| (of.partition, of.object, of.filemarks, of.at);
        place(self) == place(other)
    }
}

impl Eq for Position {}

/// What a command led to.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The command is done.
    Done,
    /// The cartridge is loaded.
    Loaded(LoadReport),
    /// The object is this record.
    Record(Record),
    /// The object at the position is a record, or is none.
    Peeked(Option<RecordInfo>),
    /// The object is a filemark; the position is behind it.
    Filemark,
    /// There is no object.
    EndOfData,
    /// The object is written.
    Written(Space),
    /// The position has moved.
    Moved {
        /// Why it moved less than the command said.
        stop: Option<Stop>,
        /// By how many objects less, as SENSE data tell it.
        left: u64,
    },
    /// The position is behind damaged objects.
    Skipped {
        /// How many objects cannot be read.
        objects: u64,
    },
}

/// Why a movement ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A filemark. The position is behind it in the direction of the movement.
    Filemark,
    /// The end of data.
    EndOfData,
    /// The start of the partition.
    Start,
}

/// How much of a partition is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// The bytes of storage behind the position, up to the end of the partition.
    pub remaining: u64,
    /// Whether the position is behind the early warning.
    pub is_early_warning: bool,
    /// How many bytes of storage are behind the early warning.
    pub early_warning_len: u64,
}

/// How many bytes records took in the logs, metadata included and headers not, since the cartridge was
/// created as an object. Nothing saves that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredCounts {
    /// Bytes of records that were written.
    pub written: u64,
    /// Bytes of records that were read.
    pub read: u64,
}

/// What loading found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Whether both copies of the label were right.
    pub label_copies: LabelCopies,
    /// What was found in each partition.
    pub partitions: Vec<Recovery>,
}

/// What loading found of the two copies of the label. The next write of the label makes both right.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LabelCopies {
    /// Both were right.
    #[default]
    Whole,
    /// One was older: a crash came between the writes of the two.
    OneOlder,
    /// One was damaged.
    OneDamaged,
}

/// What loading found in a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// How many objects were found behind the last checkpoint: the cartridge was not unloaded.
    pub recovered: u64,
    /// How many objects behind the last checkpoint are damaged though they had been durable, or cannot be
    /// read.
    pub damaged: u64,
    /// Whether the log behind the last object that was found cannot be read. Reading there fails like the
    /// log, until [`Command::SkipDamage`] gives up what is there, and nothing is written there.
    pub is_end_unreadable: bool,
}
