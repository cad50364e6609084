//! READ FORMAT CAPACITIES and FORMAT UNIT (MMC-6).
//!
//! Formatting erases the whole disc; a blank BD-R can be formatted once, which reserves spare areas. A sector
//! that was never written reads as zeros, so formatting in the background (de-icing) has nothing to do: a
//! DVD+RW is completely formatted when FORMAT UNIT ends. IMMED has no effect: the command ends when the disc
//! is formatted.

use alloc::boxed::Box;
use alloc::vec::Vec;

use scsi::sense::{Asc, Sense};

use super::change::{CANNOT_FORMAT, ChangeRecord};
use super::data;
use super::profile::{self, Disc};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::disc_record::{DiscRecord, WritableKind};
use crate::task::TaskInfo;

/// FORMAT TYPE.
mod kind {
    /// A full format, with the usual spare areas.
    pub(super) const FULL: u8 = 0x00;
    /// DVD+RW basic format.
    pub(super) const DVD_PLUS_RW: u8 = 0x26;
    /// BD-RE with spare areas.
    pub(super) const BD_RE_SPARES: u8 = 0x30;
    /// BD-R with spare areas. Its subtypes ask for pseudo-overwrite, or not: growisofs asks for it also where
    /// feature 0038h says that the drive has none, and such a disc is formatted without it.
    pub(super) const BD_R_SPARES: u8 = 0x32;
    /// BD-RE without spare areas.
    pub(super) const BD_RE_NO_SPARES: u8 = 0x31;
}

/// DESCRIPTOR TYPE of the current or maximum capacity.
mod current {
    pub(super) const UNFORMATTED: u8 = 1;
    pub(super) const FORMATTED: u8 = 2;
    pub(super) const NO_DISC: u8 = 3;
}

/// The length of the parameter list: its header and one format descriptor.
const LIST_LEN: u32 = 12;

/// A BD without its spare areas of the usual size: 768 MiB of a whole disc, and 1/32 of a smaller one.
fn without_spares(record: &DiscRecord) -> u32 {
    const USUAL: u32 = 393_216;
    let blocking = record.kind.blocking();
    let spares = (record.capacity / 32).next_multiple_of(blocking).min(USUAL);
    // A disc that consists of one block has no spare area.
    if spares < record.capacity { record.capacity - spares } else { record.capacity }
}

/// Returns the formats of a disc: the number of sectors, and FORMAT TYPE.
fn formats(record: &DiscRecord) -> Vec<(u32, u8)> {
    match record.kind {
        WritableKind::DvdPlusRw => {
            Vec::from([(record.capacity, kind::FULL), (record.capacity, kind::DVD_PLUS_RW)])
        }
        WritableKind::DvdR => Vec::new(),
        // Sequential recording without pseudo-overwrite, with spare areas.
        WritableKind::BdR => {
            Vec::from([(without_spares(record), kind::FULL), (without_spares(record), kind::BD_R_SPARES)])
        }
        WritableKind::BdRe => Vec::from([
            (without_spares(record), kind::FULL),
            (without_spares(record), kind::BD_RE_SPARES),
            (record.capacity, kind::BD_RE_NO_SPARES),
        ]),
    }
}

pub(super) fn read_format_capacities(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    const SECTOR: [u8; 3] = [0, 0x08, 0];
    let descriptor = |sectors: u32, byte: u8, rest: [u8; 3]| {
        let [a, b, c, d] = sectors.to_be_bytes();
        let [e, f, g] = rest;
        [a, b, c, d, byte, e, f, g]
    };
    let mut list = Vec::new();
    match (profile::current(server), &server.recorder) {
        (None, _) => {
            let largest = DiscRecord::blank(WritableKind::BdRe, WritableKind::BdRe.usual_capacity());
            let sectors = largest.map_or(0, |record| record.capacity);
            list.extend_from_slice(&descriptor(sectors, current::NO_DISC, SECTOR));
        }
        (Some(Disc::Writable(_)), Some(recorder)) => {
            let record = &recorder.record;
            let (sectors, is) = match record.formatted {
                0 if record.kind.is_sequential() && !record.is_blank() => {
                    (record.readable(), current::FORMATTED)
                }
                0 => (record.capacity, current::UNFORMATTED),
                formatted => (formatted, current::FORMATTED),
            };
            list.extend_from_slice(&descriptor(sectors, is, SECTOR));
            for (sectors, kind) in formats(record) {
                list.extend_from_slice(&descriptor(sectors, kind << 2, [0; 3]));
            }
        }
        (Some(_), _) => {
            list.extend_from_slice(&descriptor(super::lead_out(server), current::FORMATTED, SECTOR));
        }
    }
    let mut bytes = Vec::from([0, 0, 0, u8::try_from(list.len()).unwrap_or(u8::MAX)]);
    bytes.extend_from_slice(&list);
    data(bytes, u32::from(task.cdb.u16(7)))
}

pub(super) fn format_unit(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    const FORMAT_DATA: u8 = 0x10;
    const FORMAT_CODE: u8 = 0x01;
    if !server.recorder.as_ref().is_some_and(|recorder| recorder.record.is_formattable()) {
        return Outcome::CheckCondition(CANNOT_FORMAT);
    }
    let flags = task.cdb.u8(1);
    if flags & FORMAT_DATA == 0 {
        return Outcome::CheckCondition(Sense::invalid_cdb(1, Some(4)));
    }
    if flags & 0x07 != FORMAT_CODE {
        return Outcome::CheckCondition(Sense::invalid_cdb(1, Some(2)));
    }
    Outcome::FetchParameterList { len: LIST_LEN, then: format }
}

fn format(server: &mut DeviceServer, _: &TaskInfo, list: &[u8]) -> Outcome {
    let Some(recorder) = &server.recorder else { return Outcome::bug() };
    match requested(&recorder.record, list) {
        Ok(Some(sectors)) => ChangeRecord::erasing(Box::new(move |record| {
            record.formatted = sectors;
            Ok(())
        })),
        Ok(None) => Outcome::Good,
        Err(sense) => Outcome::CheckCondition(sense),
    }
}

/// Checks a parameter list, and returns for how many sectors the disc is to be formatted; `None` if it is
/// formatted and only its background format is to be restarted.
fn requested(record: &DiscRecord, list: &[u8]) -> Result<Option<u32>, Sense> {
    // FOV, DCRT and IMMED have no effect.
    const ACCEPTED: u8 = 0x80 | 0x20 | 0x02;
    const RESTART: u8 = 0x01;
    const ALL_SECTORS: u32 = u32::MAX;
    let &[_, flags, len_high, len_low, a, b, c, d, format, _, _, last] = list else {
        return Err(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR));
    };
    if flags & !ACCEPTED != 0 {
        return Err(Sense::invalid_parameter(1, None));
    }
    if (len_high, len_low) != (0, 8) {
        return Err(Sense::invalid_parameter(2, None));
    }
    // The subtype of a format of a BD-RE requests a certification, which would find no defect.
    let (sectors, format) = (u32::from_be_bytes([a, b, c, d]), format >> 2);
    let formats = formats(record);
    let mut of_type = formats.iter().filter(|(_, kind)| *kind == format).peekable();
    if of_type.peek().is_none() {
        return Err(Sense::invalid_parameter(8, None));
    }
    if format == kind::DVD_PLUS_RW && last & RESTART != 0 && record.formatted > 0 {
        return Ok(None);
    }
    let found = of_type.find(|(offered, _)| [*offered, ALL_SECTORS].contains(&sectors));
    found.map(|(sectors, _)| Some(*sectors)).ok_or_else(|| Sense::invalid_parameter(4, None))
}
