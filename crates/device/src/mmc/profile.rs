//! The kind of the disc that is loaded (MMC-6: the current profile).

use base::units::Blocks;

use crate::contract::{DeviceKind, DiscProfile};
use crate::device_server::DeviceServer;

/// Every kind of disc that the drive reads, the one with the largest capacity first.
pub(super) const ALL: [DiscProfile; 3] = [DiscProfile::Bd, DiscProfile::Dvd, DiscProfile::Cd];

/// Returns the kind of the disc that is loaded, if one is.
pub(super) fn current(server: &DeviceServer) -> Option<DiscProfile> {
    if !server.spc.removal.is_present() {
        return None;
    }
    Some(match server.info.config.device {
        DeviceKind::Disc { profile: Some(profile) } => profile,
        _ => of_capacity(server.info.capacity()),
    })
}

/// Returns the kind with the smallest capacity that holds this many blocks.
pub(super) fn of_capacity(blocks: Blocks) -> DiscProfile {
    let mut kinds = ALL.iter().rev().copied();
    kinds.find(|kind| blocks.0 <= kind.blocks_max().0).unwrap_or(DiscProfile::Bd)
}

/// Returns the profile number.
pub(super) const fn number(profile: DiscProfile) -> u16 {
    match profile {
        DiscProfile::Cd => 0x0008,
        DiscProfile::Dvd => 0x0010,
        DiscProfile::Bd => 0x0040,
    }
}

/// Returns how many sectors an error correction block has.
pub(super) const fn blocking(profile: DiscProfile) -> u16 {
    match profile {
        DiscProfile::Cd => 1,
        DiscProfile::Dvd => 16,
        DiscProfile::Bd => 32,
    }
}

/// Returns the speed that the drive reports, in 1000 bytes per second: that of a fast drive, 48 times, 16
/// times and 12 times the basic speed. The drive reads as fast as the medium and the network allow.
pub(super) const fn speed_kb(profile: DiscProfile) -> u32 {
    match profile {
        DiscProfile::Cd => 8_467,
        DiscProfile::Dvd => 22_160,
        DiscProfile::Bd => 53_952,
    }
}
