//! READ DISC STRUCTURE (MMC-6): the physical format of DVDs and BDs.

use alloc::vec::Vec;

use scsi::sense::Sense;

use super::profile::{self, Disc};
use super::{data_or, lead_out, wrong_kind_of_disc};
use crate::contract::DiscProfile;
use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::disc_record::WritableKind;
use crate::task::TaskInfo;

/// FORMAT CODE.
mod format {
    pub(super) const PHYSICAL: u8 = 0x00;
    pub(super) const COPYRIGHT: u8 = 0x01;
    pub(super) const MANUFACTURER: u8 = 0x04;
    pub(super) const LIST: u8 = 0xff;
}

/// How many bytes of physical format or manufacturing information a DVD has.
const DVD_STRUCTURE_LEN: usize = 2048;

/// How many bytes of disc information a BD has.
const BD_STRUCTURE_LEN: usize = 4096;

/// How many sectors fit on one layer of a DVD-ROM, and of a BD-ROM.
const DVD_LAYER_BLOCKS: u32 = 2_298_496;
const BD_LAYER_BLOCKS: u32 = 12_219_392;

/// The physical address of the first sector of a DVD's data area.
const DVD_FIRST_SECTOR: u32 = 0x03_0000;

pub(super) fn read_disc_structure(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let cdb = &task.cdb;
    let (media_type, layer, code) = (cdb.u8(1) & 0xf, cdb.u8(6), cdb.u8(7));
    let blocks = match &server.recorder {
        Some(recorder) => recorder.record.capacity,
        None => lead_out(server),
    };
    let disc = profile::current(server);
    let structure = match (disc.map(|disc| (disc, disc.family())), media_type) {
        (Some((disc, DiscProfile::Dvd)), 0) => dvd(disc, code, layer, blocks),
        (Some((disc, DiscProfile::Bd)), 1) => bd(disc, code, layer, blocks),
        (_, 0 | 1) => Err(wrong_kind_of_disc()),
        _ => Err(Sense::invalid_cdb(1, Some(3))),
    };
    data_or(structure.map(|body| with_header(&body)), u32::from(cdb.u16(8)))
}

/// Puts the header before a structure: its length counts itself as two bytes less, and two reserved bytes.
fn with_header(body: &[u8]) -> Vec<u8> {
    let len = u16::try_from(body.len().saturating_add(2)).unwrap_or(u16::MAX);
    let [high, low] = len.to_be_bytes();
    let mut bytes = Vec::from([high, low, 0, 0]);
    bytes.extend_from_slice(body);
    bytes
}

/// Returns a list of structures that can be read (RDS), each with its length, header included.
fn list(structures: &[(u8, usize)]) -> Vec<u8> {
    const READABLE: u8 = 0x40;
    let entry = |(code, len): &(u8, usize)| {
        let [high, low] = u16::try_from(len.saturating_add(4)).unwrap_or(u16::MAX).to_be_bytes();
        [*code, READABLE, high, low]
    };
    structures.iter().flat_map(entry).collect()
}

fn dvd(disc: Disc, code: u8, layer: u8, blocks: u32) -> Result<Vec<u8>, Sense> {
    let layers = if blocks > DVD_LAYER_BLOCKS { 2 } else { 1 };
    match code {
        format::PHYSICAL if layer >= layers => Err(Sense::invalid_cdb(6, None)),
        format::PHYSICAL => Ok(dvd_physical(disc, blocks)),
        // No protection system, no region is excluded.
        format::COPYRIGHT => Ok(Vec::from([0; 4])),
        format::MANUFACTURER => Ok(Vec::from([0; DVD_STRUCTURE_LEN])),
        format::LIST => Ok(list(&[
            (format::PHYSICAL, DVD_STRUCTURE_LEN),
            (format::COPYRIGHT, 4),
            (format::MANUFACTURER, DVD_STRUCTURE_LEN),
        ])),
        _ => Err(Sense::invalid_cdb(7, None)),
    }
}

/// Returns the physical format information of a DVD of 120 mm. With two layers, the second is read from
/// the outside in (opposite track path): its addresses are the complements of those on the first.
fn dvd_physical(disc: Disc, blocks: u32) -> Vec<u8> {
    const ROM_PART_1: u8 = 0x01;
    const PLUS_RW_PART_1: u8 = 0x91;
    const R_PART_5: u8 = 0x25;
    const SIZE_120MM_10_MBPS: u8 = 0x02;
    const EMBOSSED: u8 = 0x01;
    const REWRITABLE: u8 = 0x04;
    const RECORDABLE: u8 = 0x02;
    const TWO_LAYERS_OPPOSITE: u8 = 0x30;
    const ADDRESS_MASK: u32 = 0xff_ffff;
    let last_of = |first: u32, count: u32| first.saturating_add(count.saturating_sub(1));
    let (layers, last, last_of_layer_0) = if blocks > DVD_LAYER_BLOCKS {
        // Both layers end at the border of an error correction block.
        let on_first = blocks.div_ceil(2).next_multiple_of(16);
        let turn = last_of(DVD_FIRST_SECTOR, on_first);
        (TWO_LAYERS_OPPOSITE, last_of(!turn & ADDRESS_MASK, blocks - on_first), turn)
    } else {
        (0, last_of(DVD_FIRST_SECTOR, blocks), 0)
    };
    let (book, area) = match disc {
        Disc::Rom(_) => (ROM_PART_1, EMBOSSED),
        Disc::Writable(WritableKind::DvdR) => (R_PART_5, RECORDABLE),
        Disc::Writable(_) => (PLUS_RW_PART_1, REWRITABLE),
    };
    let mut bytes = Vec::from([book, SIZE_120MM_10_MBPS, layers | area, 0]);
    for address in [DVD_FIRST_SECTOR, last, last_of_layer_0] {
        bytes.extend_from_slice(&address.to_be_bytes());
    }
    bytes.resize(DVD_STRUCTURE_LEN, 0);
    bytes
}

fn bd(disc: Disc, code: u8, layer: u8, blocks: u32) -> Result<Vec<u8>, Sense> {
    let layers = u8::try_from(blocks.div_ceil(BD_LAYER_BLOCKS).clamp(1, 4)).unwrap_or(1);
    match code {
        format::PHYSICAL if layer >= layers => Err(Sense::invalid_cdb(6, None)),
        format::PHYSICAL => {
            // A unit of disc information: its format, its length in use, and the kind and layers of the disc.
            let (name, area) = match disc {
                Disc::Writable(WritableKind::BdRe) => (b'W', 0x04),
                Disc::Writable(WritableKind::BdR) => (b'R', 0x02),
                _ => (b'O', 0x01),
            };
            let mut bytes =
                Vec::from([b'D', b'I', 1, 0, 0, 0, 32, 0, b'B', b'D', name, 0x01, layers << 4 | area]);
            bytes.resize(BD_STRUCTURE_LEN, 0);
            Ok(bytes)
        }
        format::LIST => Ok(list(&[(format::PHYSICAL, BD_STRUCTURE_LEN)])),
        _ => Err(Sense::invalid_cdb(7, None)),
    }
}
