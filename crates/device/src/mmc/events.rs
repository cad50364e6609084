//! The state of the drive (MMC-6): GET EVENT STATUS NOTIFICATION and MECHANISM STATUS.

use alloc::vec::Vec;

use scsi::sense::Sense;

use super::data;
use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::medium_removal::MediaEvent;
use crate::task::TaskInfo;

/// Notification classes, which are also the numbers of their bits.
mod class {
    pub(super) const OPERATIONAL_CHANGE: u8 = 1;
    pub(super) const POWER_MANAGEMENT: u8 = 2;
    pub(super) const MEDIA: u8 = 4;
    pub(super) const DEVICE_BUSY: u8 = 6;
}

/// The classes that are supported, ascending: those with a higher priority first.
const SUPPORTED: [u8; 4] =
    [class::OPERATIONAL_CHANGE, class::POWER_MANAGEMENT, class::MEDIA, class::DEVICE_BUSY];

/// No event available (NEA): none of the requested classes is supported.
const NO_EVENT_AVAILABLE: u8 = 0x80;

/// The length of the header; an event is taken only if more than this fits.
const HEADER_LEN: u16 = 4;

/// Door or tray open, and media present.
const DOOR_OPEN: u8 = 0x01;
const MEDIA_PRESENT: u8 = 0x02;

/// Answers a poll of events. Each nexus receives each media event once. Only media events ever occur: the
/// features change only with the medium, the unit is always active, and no command keeps it busy for long.
pub(super) fn get_event_status(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let (requested, allocation) = (task.cdb.u8(4), task.cdb.u16(7));
    if task.cdb.u8(1) & 1 == 0 {
        // Asynchronous notification is not supported.
        return Outcome::CheckCondition(Sense::invalid_cdb(1, Some(0)));
    }
    let supported = SUPPORTED.iter().fold(0, |bits, class| bits | 1 << class);
    let is_requested = |class: u8| requested >> class & 1 == 1;
    let pending = server.nexuses.find(task.nexus).map_or(MediaEvent::NoChange, |state| state.media_event);
    let has_event = pending != MediaEvent::NoChange && is_requested(class::MEDIA);
    let first = SUPPORTED.into_iter().find(|class| is_requested(*class));
    let Some(class) = has_event.then_some(class::MEDIA).or(first) else {
        return data(Vec::from([0, 2, NO_EVENT_AVAILABLE, supported]), u32::from(allocation));
    };
    let event = match class {
        class::POWER_MANAGEMENT => [0, 1, 0, 0],
        class::MEDIA => [pending.code(), media_status(server), 0, 0],
        _ => [0; 4],
    };
    if class == class::MEDIA
        && allocation > HEADER_LEN
        && let Some(state) = server.nexuses.find_mut(task.nexus)
    {
        state.media_event = MediaEvent::NoChange;
    }
    let mut bytes = Vec::from([0, 6, class, supported]);
    bytes.extend_from_slice(&event);
    data(bytes, u32::from(allocation))
}

const fn media_status(server: &DeviceServer) -> u8 {
    let removal = &server.spc.removal;
    if removal.is_present() {
        MEDIA_PRESENT
    } else if removal.is_ejected() {
        DOOR_OPEN
    } else {
        0
    }
}

/// MECHANISM STATUS: no fault, idle, one slot, and no table of slots, since the drive is not a changer.
pub(super) fn mechanism_status(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    const DOOR: u8 = 0x10;
    let door = if server.spc.removal.is_ejected() { DOOR } else { 0 };
    data(Vec::from([0, door, 0, 0, 0, 1, 0, 0]), u32::from(task.cdb.u16(8)))
}
