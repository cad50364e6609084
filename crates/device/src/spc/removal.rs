//! START STOP UNIT (SBC-4 §5.31) and PREVENT ALLOW MEDIUM REMOVAL (SBC-4 §5.15).
//!
//! There is no spindle here that takes time to start, so a stopped unit starts by itself when it is used, and every power
//! condition is as good as active. What stopping means for data is kept: caches are written.

use alloc::boxed::Box;

use scsi::cdb::Cdb;
use scsi::sense::{Asc, Sense};

use crate::flush::FlushThen;
use crate::pr::conflict::Conflict;
use crate::server::Core;
use crate::task::TaskInfo;
use crate::verdict::Verdict;

/// POWER CONDITION values after which caches have been written (SBC-4 table 97).
const STANDBY: u8 = 0x3;
const FORCE_STANDBY: u8 = 0xb;

/// The bits of byte 4 of START STOP UNIT.
const NO_FLUSH: u8 = 0x04;
const LOEJ: u8 = 0x02;
const START: u8 = 0x01;

/// Only starting goes through reservations of others.
pub(super) fn start_stop_conflict(cdb: &Cdb) -> Conflict {
    if cdb.u8(4) & (0xf0 | START) == START { Conflict::Never } else { Conflict::Changes }
}

/// Only allowing goes through reservations of others.
pub(super) fn prevent_allow_conflict(cdb: &Cdb) -> Conflict {
    if cdb.u8(4) & 3 == 0 { Conflict::Never } else { Conflict::Changes }
}

/// Every POWER CONDITION is taken, also those that SBC-4 reserves: there is nothing to be done for any of them, and
/// initiators walk through all values.
pub(super) fn start_stop(core: &mut Core, task: &TaskInfo) -> Verdict {
    let flags = task.cdb.u8(4);
    let condition = flags >> 4;
    if condition != 0 {
        return if matches!(condition, STANDBY | FORCE_STANDBY) {
            stopped(core, flags)
        } else {
            Verdict::Good
        };
    }
    match (flags & LOEJ != 0, flags & START != 0) {
        (false, true) => Verdict::Good,
        (false, false) => stopped(core, flags),
        (true, _) if !core.facts.config.removable => Verdict::Check(Sense::invalid_cdb(4, Some(1))),
        (true, start) => match core.spc.removal.check() {
            Err(sense) => Verdict::Check(sense),
            Ok(()) if start => load(core, task),
            Ok(()) if !core.spc.removal.is_present() => Verdict::Good,
            Ok(()) => Verdict::Run(Box::new(FlushThen { then: eject })),
        },
    }
}

pub(super) fn prevent_allow(core: &mut Core, task: &TaskInfo) -> Verdict {
    match task.cdb.u8(4) & 3 {
        prevent @ (0 | 1) => {
            core.spc.removal.prevent(task.nexus, prevent == 1);
            Verdict::Good
        }
        _ => Verdict::Check(Sense::invalid_cdb(4, Some(1))),
    }
}

fn stopped(core: &Core, flags: u8) -> Verdict {
    if flags & NO_FLUSH != 0 || !core.spc.removal.is_present() {
        Verdict::Good
    } else {
        Verdict::Run(Box::new(FlushThen { then: |_, _| Verdict::Good }))
    }
}

/// Removal may have been prevented while caches were written.
fn eject(core: &mut Core, _: &TaskInfo) -> Verdict {
    match core.spc.removal.check() {
        Ok(()) => {
            core.spc.removal.eject();
            Verdict::Good
        }
        Err(sense) => Verdict::Check(sense),
    }
}

fn load(core: &mut Core, task: &TaskInfo) -> Verdict {
    if core.spc.removal.load() {
        core.nexuses.attend_all(Asc::MEDIUM_MAY_HAVE_CHANGED, Some(task.nexus));
    }
    Verdict::Good
}
