//! The parts of the documents in which one process hands its units over to the next.

pub(crate) mod hex;
pub(crate) mod sense;

use alloc::vec::Vec;
use core::fmt;

use crate::contract::NexusId;

/// Returns the index of a nexus in a document; `None` for a nexus that is not handed over.
pub(crate) type IndexOf<'a> = &'a dyn Fn(NexusId) -> Option<u32>;

/// Returns the nexus with an index in a document; `None` for one that was not resumed.
pub(crate) type NexusOf<'a> = &'a dyn Fn(u32) -> Option<NexusId>;

/// Why the state of a logical unit cannot be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreError {
    /// The unit has begun to serve.
    InUse,
    /// The state is that of another type of device.
    DeviceType,
    /// The state is that of a unit with another logical block length.
    BlockLength,
    /// A nexus is named twice.
    NexusTwice,
    /// An initiator port is no TransportID.
    InitiatorPort,
    /// There are more of these than a unit keeps.
    TooMany(&'static str),
    /// A registration is there twice, or has no key.
    Registration,
    /// The type of the reservation does not exist.
    ReservationType,
    /// The holder of the reservation is not registered.
    ReservationWithoutRegistration,
    /// The mode settings are none that MODE SELECT accepts.
    Settings,
    /// The identifying information is none that SET IDENTIFYING INFORMATION accepts.
    IdentifyingInformation,
    /// A data buffer has a wrong length.
    DataBuffer,
    /// The results of self-tests are none that a unit keeps.
    SelfTests,
    /// The origin of the timestamp does not exist.
    Timestamp,
    /// A ROD token is none that a unit creates.
    Token,
    /// The record of a writable disc does not belong to the disc in the drive.
    DiscRecord,
    /// The cartridge in the drive is not that of the state, or the state is none that a cartridge has.
    Cartridge,
    /// The parameters of tape encryption are none that a drive has.
    Encryption,
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InUse => "the unit has begun to serve",
            Self::DeviceType => "the unit is another type of device now",
            Self::BlockLength => "the unit has another logical block length now",
            Self::NexusTwice => "the state names a nexus twice",
            Self::InitiatorPort => "the state names an initiator port that is none",
            Self::TooMany(what) => return write!(f, "the state has too many {what}"),
            Self::Registration => "the state has a registration twice or without a key",
            Self::ReservationType => "the state has a reservation of an unknown type",
            Self::ReservationWithoutRegistration => {
                "the state has a reservation whose holder is not registered"
            }
            Self::Settings => "the state has impossible mode settings",
            Self::IdentifyingInformation => "the state has impossible identifying information",
            Self::DataBuffer => "the state has a data buffer of a wrong length",
            Self::SelfTests => "the state has impossible self-test results",
            Self::Timestamp => "the state has a timestamp of an unknown origin",
            Self::Token => "the state has an impossible ROD token",
            Self::DiscRecord => "the state has the record of another disc than the one in the drive",
            Self::Cartridge => "the state is not that of the cartridge in the drive",
            Self::Encryption => "the state has impossible parameters of tape encryption",
        })
    }
}

impl core::error::Error for RestoreError {}

/// Returns whether no index is there twice.
pub(crate) fn indices_are_unique(indices: impl Iterator<Item = u32>) -> bool {
    let mut indices: Vec<u32> = indices.collect();
    indices.sort_unstable();
    indices.is_sorted_by(|a, b| a < b)
}

/// Returns the counter of a document, far enough from its end that counting on does not overflow.
pub(crate) const fn bounded(count: u64) -> u64 {
    const MAX: u64 = 1 << 56;
    if count < MAX { count } else { MAX }
}
