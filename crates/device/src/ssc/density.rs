//! READ BLOCK LIMITS and REPORT DENSITY SUPPORT (SSC-4).

use alloc::vec::Vec;

use cartridge::profile::Profile;

use super::data;
use super::transfer::BLOCK_LEN_MAX;
use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::task::TaskInfo;

/// MEDIA: only what the loaded cartridge can have.
const MEDIA: u8 = 0x01;

/// The width of the tape in tenths of a millimetre.
const WIDTH: u16 = 127;

pub(super) fn read_block_limits(_: &mut DeviceServer, _: &TaskInfo) -> Outcome {
    let [_, max @ ..] = BLOCK_LEN_MAX.to_be_bytes();
    // GRANULARITY 0, and a MINIMUM BLOCK LENGTH LIMIT of one byte.
    let bytes = [&[0][..], &max, &[0, 1]].concat();
    Outcome::ParameterData { bytes, allocation: u64::MAX }
}

/// Reports the density of the cartridge in the drive: a drive has the generation of its cartridge.
pub(super) fn report_density_support(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let label = server.tape.as_ref().and_then(|drive| drive.cartridge().label());
    let is_of_medium = task.cdb.u8(1) & MEDIA != 0;
    if let Some(sense) = server.not_ready().filter(|_| is_of_medium) {
        return Outcome::CheckCondition(sense);
    }
    let densities: Vec<u8> = label
        .map(|label| {
            let protected = server.info.is_read_only() || label.is_write_protected;
            density(label.profile, label.capacity, !protected)
        })
        .unwrap_or_default();
    let len = u16::try_from(densities.len() + 2).unwrap_or(u16::MAX);
    let mut bytes = Vec::from(len.to_be_bytes());
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(&densities);
    data(bytes, u32::from(task.cdb.u16(7)))
}

/// Returns a density support data block descriptor.
fn density(profile: Profile, capacity: u64, is_writable: bool) -> Vec<u8> {
    const WRITABLE: u8 = 0x80;
    const DEFAULT: u8 = 0x20;
    let code = profile.density_code();
    let (tracks, name, description): (u16, &[u8; 8], &[u8; 20]) = match profile {
        Profile::Lto5 => (1280, b"U-516   ", b"Ultrium 5/16T       "),
        Profile::Lto6 => (2176, b"U-616   ", b"Ultrium 6/16T       "),
        Profile::Lto7 => (3584, b"U-732   ", b"Ultrium 7/32T       "),
        Profile::Lto8 => (6656, b"U-832   ", b"Ultrium 8/32T       "),
        Profile::Lto9 => (8960, b"U-932   ", b"Ultrium 9/32T       "),
    };
    let megabytes = u32::try_from(capacity / 1_000_000).unwrap_or(u32::MAX);
    let mut bytes = Vec::from([code, code, DEFAULT | if is_writable { WRITABLE } else { 0 }, 0, 0]);
    // BITS PER MM: there are no bits on a tape.
    bytes.extend_from_slice(&[0; 3]);
    bytes.extend_from_slice(&WIDTH.to_be_bytes());
    bytes.extend_from_slice(&tracks.to_be_bytes());
    bytes.extend_from_slice(&megabytes.to_be_bytes());
    bytes.extend_from_slice(b"LTO-CVE ");
    bytes.extend_from_slice(name);
    bytes.extend_from_slice(description);
    bytes
}
