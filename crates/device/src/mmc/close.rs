//! RESERVE TRACK, CLOSE TRACK SESSION and SEND OPC INFORMATION (MMC-6).
//!
//! IMMED has no effect: a command ends when what it changed is durable.

use alloc::boxed::Box;

use scsi::sense::{Asc, Sense};

use super::change::{Change, ChangeRecord};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::disc_record::error::TrackError;
use crate::disc_record::{DiscRecord, Track, WritableKind};
use crate::task::TaskInfo;

/// CLOSE FUNCTION.
mod function {
    /// Stops formatting in the background.
    pub(super) const STOP_FORMAT: u8 = 0b000;
    pub(super) const TRACK: u8 = 0b001;
    pub(super) const SESSION: u8 = 0b010;
    /// Completes a DVD-R.
    pub(super) const FINALIZE_DVD: u8 = 0b011;
    /// Completes a BD-R.
    pub(super) const FINALIZE_BD: u8 = 0b110;
}

fn sense_of(error: TrackError) -> Sense {
    match error {
        TrackError::Sequence => Sense::illegal(Asc::COMMAND_SEQUENCE_ERROR),
        TrackError::NoTrack => Sense::invalid_cdb(4, None),
        TrackError::Empty => Sense::illegal(Asc::EMPTY_OR_PARTIALLY_WRITTEN_RESERVED_TRACK),
        TrackError::Incomplete => Sense::illegal(Asc::SESSION_FIXATION_ERROR_INCOMPLETE_TRACK_IN_SESSION),
        TrackError::TooMany => Sense::illegal(Asc::NO_MORE_TRACK_RESERVATIONS_ALLOWED),
        TrackError::NoRoom => Sense::illegal(Asc::LBA_OUT_OF_RANGE),
    }
}

fn change(how: impl FnOnce(&mut DiscRecord) -> Result<(), TrackError> + 'static) -> Change {
    Box::new(move |record| how(record).map_err(sense_of))
}

fn saving(how: impl FnOnce(&mut DiscRecord) -> Result<(), TrackError> + 'static) -> Outcome {
    ChangeRecord::saving(Some(change(how)), |_, _| Outcome::Good)
}

/// CLOSE TRACK SESSION. A rewritable disc has one session, which is always complete: what hosts have written
/// is made durable. On a DVD-R the write parameters page says whether another session follows.
pub(super) fn close_track_session(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    use WritableKind::{BdR, BdRe, DvdPlusRw, DvdR};
    let Some(recorder) = &server.recorder else { return Outcome::bug() };
    let has_next = server.settings.write_parameters.has_next_session();
    match (recorder.record.kind, task.cdb.u8(2)) {
        (DvdPlusRw | BdRe, function::STOP_FORMAT | function::SESSION | function::FINALIZE_DVD) => {
            server.synchronize_then(|_, _| Outcome::Good)
        }
        (DvdR | BdR, function::TRACK) => {
            let number = task.cdb.u16(4);
            saving(move |record| record.close_track(number))
        }
        (DvdR, function::SESSION) => saving(move |record| record.close_session(!has_next)),
        (BdR, function::SESSION) => saving(|record| record.close_session(false)),
        (DvdR, function::FINALIZE_DVD) | (BdR, function::FINALIZE_BD) => {
            saving(|record| record.close_session(true))
        }
        _ => Outcome::CheckCondition(Sense::invalid_cdb(2, Some(2))),
    }
}

/// Returns whether a reserved track of the last session is written, and every other one too.
fn is_written_at_once(record: &DiscRecord) -> bool {
    let (session, blocking) = (record.last_session(), record.kind.blocking());
    let mut reserved = record.tracks().iter().filter(|track| track.session == session && track.end.is_some());
    let is_full = |track: &Track| track.is_full(blocking);
    !record.is_complete && reserved.next().is_some_and(is_full) && reserved.all(is_full)
}

/// Returns what closes a session of a DVD-R that is written at once, if its reserved track is written. It
/// does nothing if another command has closed that session meanwhile.
pub(super) fn of_disc_at_once(server: &DeviceServer) -> Option<Change> {
    let recorder = server.recorder.as_ref()?;
    let parameters = &server.settings.write_parameters;
    let record = &recorder.record;
    let is_at_once = record.kind == WritableKind::DvdR && parameters.is_disc_at_once();
    let completes = !parameters.has_next_session();
    let may_close = is_at_once && is_written_at_once(record) && !recorder.appends.are_under_way();
    let close = move |record: &mut DiscRecord| match is_written_at_once(record) {
        true => record.close_session(completes),
        false => Ok(()),
    };
    may_close.then(|| change(close))
}

pub(super) fn reserve_track(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    match &server.recorder {
        Some(recorder) if recorder.record.kind.is_sequential() => {
            let sectors = task.cdb.u32(5);
            saving(move |record| record.reserve(sectors))
        }
        _ => Outcome::CheckCondition(Sense::illegal(Asc::COMMAND_SEQUENCE_ERROR)),
    }
}

/// SEND OPC INFORMATION: the drive has no laser to calibrate. The values of a host are accepted.
pub(super) fn send_opc_information(_: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    const ENTRY_LEN: u16 = 8;
    match task.cdb.u16(7) {
        0 => Outcome::Good,
        len if len.is_multiple_of(ENTRY_LEN) => {
            let then = |_: &mut DeviceServer, _: &TaskInfo, _: &[u8]| Outcome::Good;
            Outcome::FetchParameterList { len: u32::from(len), then }
        }
        _ => Outcome::CheckCondition(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR)),
    }
}
