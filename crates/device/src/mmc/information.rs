//! What is on the disc (MMC-6): READ TOC/PMA/ATIP, READ DISC INFORMATION and READ TRACK INFORMATION. Every
//! disc has one complete session with one data track.

use alloc::vec::Vec;

use scsi::sense::{Asc, Sense};

use super::profile::{self, Disc};
use super::{data_or, lead_out, wrong_kind_of_disc};
use crate::contract::DiscProfile;
use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::task::TaskInfo;

/// ADR 1 (the Q sub-channel has positions), CONTROL 4 (a data track).
const ADR_CONTROL: u8 = 0x14;

/// The number that stands for the lead-out.
const LEAD_OUT: u8 = 0xaa;

/// The frames of two seconds, which are before logical block 0.
const PREGAP: u32 = 150;

/// FORMAT of READ TOC/PMA/ATIP.
mod format {
    pub(super) const TOC: u8 = 0;
    pub(super) const SESSION: u8 = 1;
    pub(super) const FULL_TOC: u8 = 2;
    pub(super) const PMA: u8 = 3;
    pub(super) const ATIP: u8 = 4;
    pub(super) const CD_TEXT: u8 = 5;
}

/// Returns an address in minutes, seconds and frames. An address that does not fit, which only DVDs and BDs
/// have, becomes the highest one.
pub(super) fn msf(lba: u32) -> [u8; 3] {
    let frames = lba.saturating_add(PREGAP);
    let (minutes, seconds, frame) = (frames / (60 * 75), frames / 75 % 60, frames % 75);
    match u8::try_from(minutes) {
        Ok(minutes) => [minutes, u8::try_from(seconds).unwrap_or(0), u8::try_from(frame).unwrap_or(0)],
        Err(_) => [u8::MAX, 59, 74],
    }
}

/// Returns the logical block at an address in minutes, seconds and frames; `None` before block 0.
pub(super) fn lba_of_msf([minutes, seconds, frames]: [u8; 3]) -> Option<u32> {
    ((u32::from(minutes) * 60 + u32::from(seconds)) * 75 + u32::from(frames)).checked_sub(PREGAP)
}

/// READ TOC/PMA/ATIP. Where FORMAT is zero, bits 7 and 6 of the CONTROL byte select the format, as in the
/// earlier form of this command (SFF-8020i) that Linux sends.
pub(super) fn read_toc(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let cdb = &task.cdb;
    let (in_msf, asked, track) = (cdb.u8(1) & 2 != 0, cdb.u8(2) & 0xf, cdb.u8(6));
    let format = if asked == 0 { cdb.u8(9) >> 6 } else { asked };
    data_or(toc(server, format, in_msf, track), u32::from(cdb.u16(7)))
}

fn toc(server: &DeviceServer, format: u8, in_msf: bool, track: u8) -> Result<Vec<u8>, Sense> {
    let is_cd = profile::current(server) == Some(Disc::Rom(DiscProfile::Cd));
    let end = lead_out(server);
    if end == 0 {
        // A blank disc.
        return Err(wrong_kind_of_disc());
    }
    let address = |lba: u32| {
        if in_msf {
            let [minutes, seconds, frames] = msf(lba);
            [0, minutes, seconds, frames]
        } else {
            lba.to_be_bytes()
        }
    };
    let descriptor = |track: u8, lba: u32| {
        let [a, b, c, d] = address(lba);
        [0, ADR_CONTROL, track, 0, a, b, c, d]
    };
    let body = match format {
        format::TOC => match track {
            0 | 1 => [descriptor(1, 0), descriptor(LEAD_OUT, end)].concat(),
            LEAD_OUT => descriptor(LEAD_OUT, end).to_vec(),
            _ => return Err(Sense::invalid_cdb(6, None)),
        },
        format::SESSION => descriptor(1, 0).to_vec(),
        // The table of contents of a CD as it is in its lead-in, which other discs do not have.
        format::FULL_TOC if is_cd && track > 1 => return Err(Sense::invalid_cdb(6, None)),
        format::FULL_TOC if is_cd => {
            let point = |point: u8, [minutes, seconds, frames]: [u8; 3]| {
                [1, ADR_CONTROL, 0, point, 0, 0, 0, 0, minutes, seconds, frames]
            };
            // A0h: the first track, and the disc type, CD-ROM; A1h: the last track; A2h: the lead-out.
            [point(0xa0, [1, 0, 0]), point(0xa1, [1, 0, 0]), point(0xa2, msf(end)), point(1, msf(0))].concat()
        }
        // No CD-TEXT.
        format::CD_TEXT if is_cd => Vec::new(),
        // Only recordable CDs have a program memory area, and an absolute time in pregroove.
        format::FULL_TOC | format::PMA | format::ATIP | format::CD_TEXT => {
            return Err(Sense::invalid_cdb(2, Some(3)));
        }
        _ => return Err(Sense::invalid_cdb(2, Some(3))),
    };
    let len = u16::try_from(body.len().saturating_add(2)).unwrap_or(u16::MAX);
    let mut bytes = Vec::from(len.to_be_bytes());
    // The first and the last track, or session.
    bytes.extend_from_slice(if format == format::CD_TEXT { &[0, 0] } else { &[1, 1] });
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// READ DISC INFORMATION: only the standard information; the others are about recording.
pub(super) fn read_disc_information(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    if task.cdb.u8(1) & 7 != 0 {
        return Outcome::CheckCondition(Sense::invalid_cdb(1, Some(2)));
    }
    const ERASABLE: u8 = 0x10;
    // The last session is complete, and the disc is complete.
    const COMPLETE: u8 = 0x0e;
    // The disc may be used for every purpose (URU).
    const UNRESTRICTED: u8 = 0x20;
    // BG FORMAT STATUS.
    const FORMATTED: u8 = 0x03;
    let (status, format) = match &server.recorder {
        None => (COMPLETE, 0),
        Some(recorder) if recorder.record.formatted == 0 => (ERASABLE, 0),
        Some(_) => (ERASABLE | COMPLETE, FORMATTED),
    };
    let mut bytes = Vec::from([0, 32, status, 1, 1, 1, 1, UNRESTRICTED | format, 0, 0, 0, 0, 0, 0, 0, 0]);
    // Nothing can be added, so there is no next lead-in and no last possible lead-out.
    bytes.extend_from_slice(&[0xff; 8]);
    bytes.resize(34, 0);
    data_or(Ok(bytes), u32::from(task.cdb.u16(7)))
}

/// ADDRESS/NUMBER TYPE of READ TRACK INFORMATION.
mod by {
    pub(super) const LBA: u8 = 0b00;
    pub(super) const TRACK: u8 = 0b01;
    pub(super) const SESSION: u8 = 0b10;
}

pub(super) fn read_track_information(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let (by, number, end) = (task.cdb.u8(1) & 3, task.cdb.u32(2), lead_out(server));
    let found = match by {
        by::LBA if number < end => Ok(()),
        by::LBA => Err(Sense::illegal(Asc::LBA_OUT_OF_RANGE)),
        by::TRACK | by::SESSION if number == 1 => Ok(()),
        by::TRACK | by::SESSION => Err(Sense::invalid_cdb(2, None)),
        _ => Err(Sense::invalid_cdb(1, Some(1))),
    };
    data_or(found.map(|()| track_information(end)), u32::from(task.cdb.u16(7)))
}

/// Returns the information about track 1 of session 1: a data track of mode 1.
fn track_information(end: u32) -> Vec<u8> {
    const TRACK_MODE: u8 = 0x04;
    const DATA_MODE: u8 = 0x01;
    let mut bytes = Vec::from([0, 34, 1, 1, 0, TRACK_MODE, DATA_MODE, 0]);
    // The track begins at 0. There is no next writable address, no free block, and no packet.
    bytes.resize(24, 0);
    bytes.extend_from_slice(&end.to_be_bytes());
    bytes.resize(36, 0);
    bytes
}
