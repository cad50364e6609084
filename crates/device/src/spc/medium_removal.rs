//! START STOP UNIT (SBC-4 §5.31) and PREVENT ALLOW MEDIUM REMOVAL (SBC-4 §5.15).
//!
//! A disk that is stopped writes its caches and is NOT READY for every nexus until it is started (SBC-4 §4.20.4). One with a
//! removable medium starts by itself when it is used, as drives of such media do (MMC-6 §6.43) and as initiators expect of
//! them. Every other power condition is as good as active: there is no spindle here that takes time to start.

use alloc::boxed::Box;

use scsi::cdb::Cdb;
use scsi::sense::{Asc, Sense, SenseKey};

use crate::contract::Access;
use crate::device_server::DeviceServer;
use crate::flush::FlushThen;
use crate::outcome::Outcome;
use crate::pr::conflict::Conflict;
use crate::task::TaskInfo;

/// POWER CONDITION values after which caches have been written (SBC-4 table 97).
const STANDBY: u8 = 0x3;
const FORCE_STANDBY: u8 = 0xb;

/// The bits of byte 4 of START STOP UNIT.
const NO_FLUSH: u8 = 0x04;
const LOEJ: u8 = 0x02;
const START: u8 = 0x01;

/// Only starting goes through reservations of others.
pub(super) fn start_stop_conflict(cdb: &Cdb) -> Conflict {
    if cdb.u8(4) & (0xf0 | START) == START { Conflict::Never } else { Conflict::Writes }
}

/// Whether a START STOP UNIT does no more than start the unit.
pub(super) fn only_starts(cdb: &Cdb) -> bool {
    cdb.u8(4) & (0xf0 | LOEJ | START) == START
}

/// Only allowing goes through reservations of others.
pub(super) fn prevent_allow_conflict(cdb: &Cdb) -> Conflict {
    if only_allows(cdb) { Conflict::Never } else { Conflict::Writes }
}

/// Whether a PREVENT ALLOW MEDIUM REMOVAL allows, which a nexus does for itself alone.
pub(super) fn only_allows(cdb: &Cdb) -> bool {
    cdb.u8(4) & 3 == 0
}

/// Every POWER CONDITION is taken, also those that SBC-4 reserves: all start a stopped unit, there is nothing more to be done
/// for any of them, and initiators walk through all values.
pub(super) fn start_stop(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let flags = task.cdb.u8(4);
    let condition = flags >> 4;
    if condition != 0 {
        server.spc.removal.stop(false);
        return if matches!(condition, STANDBY | FORCE_STANDBY) {
            flushed(server, flags)
        } else {
            Outcome::Good
        };
    }
    match (flags & LOEJ != 0, flags & START != 0) {
        (false, true) => start(server, task),
        (false, false) => stop(server, flags),
        (true, _) if !server.info.config.removable => Outcome::CheckCondition(Sense::invalid_cdb(4, Some(1))),
        (true, start) => match server.spc.removal.check() {
            Err(sense) => Outcome::CheckCondition(sense),
            Ok(()) if start => load(server, task),
            Ok(()) if !server.spc.removal.is_present() => Outcome::Good,
            Ok(()) => Outcome::Run(Box::new(FlushThen { then: eject })),
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

/// Starts the unit. A nexus that may only read does not undo what another has done.
fn start(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let access = server.nexuses.find(task.nexus).map(|state| state.nexus.access);
    if server.spc.removal.is_stopped() && access != Some(Access::ReadWrite) {
        return Outcome::CheckCondition(Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED));
    }
    server.spc.removal.stop(false);
    Outcome::Good
}

/// Stops the unit: no command that comes from now on uses the medium, and what was acknowledged is made durable.
fn stop(server: &mut DeviceServer, flags: u8) -> Outcome {
    if !server.info.config.removable {
        server.spc.removal.stop(true);
    }
    flushed(server, flags)
}

/// Writes the caches, unless that is not wanted, and answers then.
fn flushed(server: &DeviceServer, flags: u8) -> Outcome {
    if flags & NO_FLUSH != 0 || !server.spc.removal.is_present() {
        Outcome::Good
    } else {
        Outcome::Run(Box::new(FlushThen { then: |_, _| Outcome::Good }))
    }
}

/// Removal may have been prevented while caches were written.
fn eject(server: &mut DeviceServer, _: &TaskInfo) -> Outcome {
    match server.spc.removal.check() {
        Ok(()) => {
            server.spc.removal.eject();
            Outcome::Good
        }
        Err(sense) => Outcome::CheckCondition(sense),
    }
}

fn load(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    if server.spc.removal.load() {
        server.nexuses.establish_ua_all(Asc::MEDIUM_MAY_HAVE_CHANGED, Some(task.nexus));
    }
    Outcome::Good
}
