//! The kind of the disc that is loaded (MMC-6: the current profile).

use base::units::Blocks;

use crate::contract::{DeviceKind, DiscProfile};
use crate::device_server::DeviceServer;
use crate::disc_record::WritableKind;

/// A disc in the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disc {
    /// A read-only disc.
    Rom(DiscProfile),
    /// A disc that is written.
    Writable(WritableKind),
}

/// Every kind of disc that the drive has a profile for: the one with the largest capacity first, and those
/// that it writes before those that it only reads.
pub(super) const ALL: [Disc; 7] = [
    Disc::Writable(WritableKind::BdRe),
    Disc::Writable(WritableKind::BdR),
    Disc::Rom(DiscProfile::Bd),
    Disc::Writable(WritableKind::DvdPlusRw),
    Disc::Writable(WritableKind::DvdR),
    Disc::Rom(DiscProfile::Dvd),
    Disc::Rom(DiscProfile::Cd),
];

/// Returns the kind of the disc that is loaded, if one is.
pub(super) fn current(server: &DeviceServer) -> Option<Disc> {
    if !server.spc.removal.is_present() {
        return None;
    }
    Some(match (server.info.writable, server.info.config.device) {
        (Some(kind), _) => Disc::Writable(kind),
        (None, DeviceKind::Disc { profile: Some(profile) }) => Disc::Rom(profile),
        (None, _) => Disc::Rom(of_capacity(server.info.capacity())),
    })
}

/// Returns the kind with the smallest capacity that holds this many blocks.
pub(super) fn of_capacity(blocks: Blocks) -> DiscProfile {
    let kinds = [DiscProfile::Cd, DiscProfile::Dvd];
    kinds.into_iter().find(|kind| blocks.0 <= kind.blocks_max().0).unwrap_or(DiscProfile::Bd)
}

impl Disc {
    /// Returns whether it is a CD, a DVD or a BD.
    pub(super) const fn family(self) -> DiscProfile {
        match self {
            Self::Rom(profile) => profile,
            Self::Writable(WritableKind::DvdPlusRw | WritableKind::DvdR) => DiscProfile::Dvd,
            Self::Writable(WritableKind::BdRe | WritableKind::BdR) => DiscProfile::Bd,
        }
    }

    /// Returns the profile number.
    pub(super) const fn number(self) -> u16 {
        match self {
            Self::Rom(DiscProfile::Cd) => 0x0008,
            Self::Rom(DiscProfile::Dvd) => 0x0010,
            Self::Writable(WritableKind::DvdR) => 0x0011,
            Self::Writable(WritableKind::DvdPlusRw) => 0x001a,
            Self::Rom(DiscProfile::Bd) => 0x0040,
            Self::Writable(WritableKind::BdR) => 0x0041,
            Self::Writable(WritableKind::BdRe) => 0x0043,
        }
    }

    /// Returns how many sectors an error correction block has.
    pub(super) const fn blocking(self) -> u16 {
        match self.family() {
            DiscProfile::Cd => 1,
            DiscProfile::Dvd => 16,
            DiscProfile::Bd => 32,
        }
    }

    /// Returns the speed that the drive reports, in 1000 bytes per second: that of a fast drive, 48 times, 16
    /// times and 12 times the basic speed. The drive reads and writes as fast as the medium and the network
    /// allow.
    pub(super) const fn speed_kb(self) -> u32 {
        match self.family() {
            DiscProfile::Cd => 8_467,
            DiscProfile::Dvd => 22_160,
            DiscProfile::Bd => 53_952,
        }
    }

    /// Returns whether it is written at any address.
    pub(super) const fn is_rewritable(self) -> bool {
        matches!(self, Self::Writable(WritableKind::DvdPlusRw | WritableKind::BdRe))
    }

    /// Returns whether it is written from begin to end.
    pub(super) const fn is_sequential(self) -> bool {
        matches!(self, Self::Writable(WritableKind::DvdR | WritableKind::BdR))
    }
}
