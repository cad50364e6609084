//! START STOP UNIT (SBC-4 §5.31) and PREVENT ALLOW MEDIUM REMOVAL (SBC-4 §5.15).
//!
//! A disk that is stopped writes its caches and is NOT READY for every nexus until it is started
//! (SBC-4 §4.20.4). A disk with a removable medium starts by itself when it is used, as drives of such media
//! do (MMC-6) and as initiators expect of them. Every other power condition is equivalent to active: the unit
//! has no spindle that takes time to start.

use scsi::cdb::Cdb;
use scsi::sense::{Asc, Sense, SenseKey};

use crate::contract::Access;
use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::medium_removal::MediaEvent;
use crate::pr::conflict::Conflict;
use crate::recorder::LONG_WRITE_IN_PROGRESS;
use crate::task::TaskInfo;

/// POWER CONDITION values after which caches have been written (SBC-4 §5.31).
const STANDBY: u8 = 0x3;
const FORCE_STANDBY: u8 = 0xb;

/// The bits of byte 4 of START STOP UNIT.
const NO_FLUSH: u8 = 0x04;
const LOEJ: u8 = 0x02;
const START: u8 = 0x01;

/// Returns the conflict class of a START STOP UNIT: only starting passes reservations of other nexuses.
pub(super) fn start_stop_conflict(cdb: &Cdb) -> Conflict {
    if cdb.u8(4) & (0xf0 | START) == START { Conflict::Never } else { Conflict::Writes }
}

/// Returns whether a START STOP UNIT does no more than start the unit.
pub(super) fn only_starts(cdb: &Cdb) -> bool {
    cdb.u8(4) & (0xf0 | LOEJ | START) == START
}

/// Returns the conflict class of a PREVENT ALLOW MEDIUM REMOVAL: only allowing passes reservations of other
/// nexuses.
pub(super) fn prevent_allow_conflict(cdb: &Cdb) -> Conflict {
    if only_allows(cdb) { Conflict::Never } else { Conflict::Writes }
}

/// Returns whether a PREVENT ALLOW MEDIUM REMOVAL allows removal, which affects only the prevention of its
/// own nexus.
pub(super) fn only_allows(cdb: &Cdb) -> bool {
    cdb.u8(4) & 3 == 0
}

/// Executes START STOP UNIT. Every POWER CONDITION is accepted, also those that SBC-4 reserves: each starts a
/// stopped unit and requires nothing more, and initiators try all values.
pub(super) fn start_stop(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let flags = task.cdb.u8(4);
    let condition = flags >> 4;
    if condition != 0 {
        server.spc.removal.stop(false);
        return if matches!(condition, STANDBY | FORCE_STANDBY) {
            flushed(server, flags)
        } else {
            started(server)
        };
    }
    match (flags & LOEJ != 0, flags & START != 0) {
        (false, true) => start(server, task),
        (false, false) => stop(server, flags),
        (true, _) if !server.info.config.removable => Outcome::CheckCondition(Sense::invalid_cdb(4, Some(1))),
        (true, start) => match server.spc.removal.check() {
            Err(sense) => Outcome::CheckCondition(sense),
            Ok(()) if start => load(server, task),
            Ok(()) if !server.spc.removal.is_present() => eject(server, task),
            Ok(()) if server.is_appending() => Outcome::CheckCondition(LONG_WRITE_IN_PROGRESS),
            Ok(()) => server.synchronize_then(eject),
        },
    }
}

pub(super) fn prevent_allow(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    match task.cdb.u8(4) & 3 {
        prevent @ (0 | 1) => {
            server.spc.removal.prevent(task.nexus, prevent == 1);
            Outcome::Good
        }
        _ => Outcome::CheckCondition(Sense::invalid_cdb(4, Some(1))),
    }
}

/// Starts the unit. A nexus with read-only access cannot start a unit that another nexus has stopped.
fn start(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let access = server.nexuses.find(task.nexus).map(|state| state.nexus.access);
    if server.spc.removal.is_stopped() && access != Some(Access::ReadWrite) {
        return Outcome::CheckCondition(Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED));
    }
    server.spc.removal.stop(false);
    started(server)
}

/// Returns the outcome of starting the unit. A medium that is withheld or away is not ready by that; a
/// removable one that was ejected is loaded by another command.
fn started(server: &DeviceServer) -> Outcome {
    server.medium_trouble().map_or(Outcome::Good, Outcome::CheckCondition)
}

/// Stops the unit: no later command uses the medium, and every acknowledged write is made durable.
fn stop(server: &mut DeviceServer, flags: u8) -> Outcome {
    if !server.info.config.removable {
        server.spc.removal.stop(true);
    }
    flushed(server, flags)
}

/// Flushes the medium, unless NO_FLUSH is set or the medium is ejected, and then answers.
fn flushed(server: &DeviceServer, flags: u8) -> Outcome {
    if flags & NO_FLUSH != 0 || !server.spc.removal.is_present() {
        Outcome::Good
    } else {
        server.synchronize_then(|_, _| Outcome::Good)
    }
}

/// Ejects the medium, unless a nexus has prevented removal while caches were written.
fn eject(server: &mut DeviceServer, _: &TaskInfo) -> Outcome {
    match server.spc.removal.check() {
        Ok(()) if server.is_appending() => Outcome::CheckCondition(LONG_WRITE_IN_PROGRESS),
        Ok(()) => {
            if server.spc.removal.is_present() {
                server.nexuses.record_media_event(MediaEvent::MediaRemoval);
            }
            server.spc.removal.eject();
            Outcome::Good
        }
        Err(sense) => Outcome::CheckCondition(sense),
    }
}

fn load(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    if server.spc.removal.load(server.info.has_medium()) {
        server.nexuses.record_media_event(MediaEvent::NewMedia);
        server.nexuses.establish_ua_all(Asc::MEDIUM_MAY_HAVE_CHANGED, Some(task.nexus));
    }
    Outcome::Good
}
