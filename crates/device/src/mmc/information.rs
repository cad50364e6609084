//! What is on the disc (MMC-6): READ TOC/PMA/ATIP, READ DISC INFORMATION and READ TRACK INFORMATION.

use alloc::vec::Vec;

use scsi::sense::{Asc, Sense};

use super::layout::{Layout, State, TrackLayout};
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
    let layout = Layout::of(server);
    let recorded = || layout.numbered().filter(|(_, track)| !track.is_blank());
    let byte = |number: u16| u8::try_from(number).unwrap_or(u8::MAX);
    let last_track = recorded().last().map_or(1, |(number, _)| byte(number));
    let body = match format {
        format::TOC if track == LEAD_OUT => descriptor(LEAD_OUT, end).to_vec(),
        format::TOC if track > last_track => return Err(Sense::invalid_cdb(6, None)),
        format::TOC => {
            let asked = recorded().filter(|(number, _)| byte(*number) >= track);
            let tracks = asked.map(|(number, at)| descriptor(byte(number), at.start));
            tracks.chain([descriptor(LEAD_OUT, end)]).flatten().collect()
        }
        format::SESSION => match layout.first_of(layout.last_complete_session()) {
            Some((number, at)) => descriptor(byte(number), at.start).to_vec(),
            None => return Err(wrong_kind_of_disc()),
        },
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
    bytes.extend_from_slice(&match format {
        format::CD_TEXT => [0, 0],
        format::SESSION => [1, byte(layout.last_complete_session())],
        _ => [1, last_track],
    });
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

/// READ DISC INFORMATION: only the standard information; the others are about recording.
pub(super) fn read_disc_information(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    if task.cdb.u8(1) & 7 != 0 {
        return Outcome::CheckCondition(Sense::invalid_cdb(1, Some(2)));
    }
    const ERASABLE: u8 = 0x10;
    // The disc may be used for every purpose (URU).
    const UNRESTRICTED: u8 = 0x20;
    // BG FORMAT STATUS.
    const FORMATTED: u8 = 0x03;
    let layout = Layout::of(server);
    let disc = match layout.disc {
        State::Empty => 0b00,
        State::Incomplete => 0b01,
        State::Complete => 0b10,
    };
    let session = match layout.last_session {
        State::Empty => 0b00,
        State::Incomplete => 0b01,
        State::Complete => 0b11,
    };
    let is_rewritable = profile::current(server).is_some_and(Disc::is_rewritable);
    let erasable = if is_rewritable { ERASABLE } else { 0 };
    let format = if is_rewritable && layout.disc == State::Complete { FORMATTED } else { 0 };
    let [sessions_high, sessions] = layout.sessions().to_be_bytes();
    let first = layout.first_of(layout.sessions()).map_or(1, |(number, _)| number);
    let last = layout.numbered().last().map_or(1, |(number, _)| number);
    let ([first_high, first], [last_high, last]) = (first.to_be_bytes(), last.to_be_bytes());
    let status = erasable | session << 2 | disc;
    let mut bytes = Vec::from([0, 32, status, 1, sessions, first, last, UNRESTRICTED | format]);
    bytes.extend_from_slice(&[0, sessions_high, first_high, last_high, 0, 0, 0, 0]);
    // DVDs and BDs tell by READ TRACK INFORMATION where they are written next, not by a lead-in and lead-out.
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

/// The number that stands for the track that is written next.
const NEXT_TRACK: u32 = 0xff;

pub(super) fn read_track_information(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let (by, number) = (task.cdb.u8(1) & 3, task.cdb.u32(2));
    let layout = Layout::of(server);
    let not_found = Sense::invalid_cdb(2, None);
    let is_open_end = layout.disc != State::Complete && server.info.writable.is_some();
    let found = match by {
        by::LBA => {
            let at = |track: &TrackLayout| (track.start..track.end).contains(&number);
            layout.numbered().find(|(_, track)| at(track)).ok_or(Sense::illegal(Asc::LBA_OUT_OF_RANGE))
        }
        by::TRACK if number == NEXT_TRACK && is_open_end => layout.numbered().last().ok_or(not_found),
        by::TRACK => layout.numbered().find(|(track, _)| u32::from(*track) == number).ok_or(not_found),
        by::SESSION => {
            let session = u16::try_from(number).ok();
            session.and_then(|session| layout.first_of(session)).ok_or(not_found)
        }
        _ => Err(Sense::invalid_cdb(1, Some(1))),
    };
    let blocking = match profile::current(server) {
        Some(disc) if disc.is_sequential() => u32::from(disc.blocking()),
        _ => 0,
    };
    let information = found.map(|(number, track)| track_information(number, track, blocking));
    data_or(information, u32::from(task.cdb.u16(7)))
}

/// Returns the information about a data track of mode 1.
fn track_information(number: u16, track: TrackLayout, blocking: u32) -> Vec<u8> {
    /// Uninterrupted data, or data that was written incrementally.
    const TRACK_MODE: u8 = 0x04;
    const TRACK_MODE_INCREMENTAL: u8 = 0x05;
    const DATA_MODE: u8 = 0x01;
    const RESERVED: u8 = 0x80;
    const BLANK: u8 = 0x40;
    const PACKET: u8 = 0x20;
    const LAST_RECORDED_VALID: u8 = 0x02;
    const NEXT_WRITABLE_VALID: u8 = 0x01;
    let ([number_high, number], [session_high, session]) =
        (number.to_be_bytes(), track.session.to_be_bytes());
    let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
    let is_sequential = track.written_to.is_some();
    let mode = if is_sequential { TRACK_MODE_INCREMENTAL } else { TRACK_MODE };
    let state =
        flag(track.is_reserved, RESERVED) | flag(track.is_blank(), BLANK) | flag(is_sequential, PACKET);
    let last_recorded = track.written_to.filter(|_| !track.is_blank()).map(|end| end.saturating_sub(1));
    let valid = flag(last_recorded.is_some(), LAST_RECORDED_VALID)
        | flag(track.next_writable.is_some(), NEXT_WRITABLE_VALID);
    let next = track.next_writable.unwrap_or(0);
    let free = track.next_writable.map_or(0, |next| track.end.saturating_sub(next));
    let size = track.end.saturating_sub(track.start);
    let mut bytes = Vec::from([0, 34, number, session, 0, mode, state | DATA_MODE, valid]);
    for word in [track.start, next, free, blocking, size, last_recorded.unwrap_or(0)] {
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    bytes.extend_from_slice(&[number_high, session_high, 0, 0]);
    bytes
}
