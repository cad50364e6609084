//! Attributes of the medium auxiliary memory that follow from the state of the cartridge.

use alloc::vec::Vec;

use super::Cartridge;
use crate::attributes::{Attribute, AttributeFormat, BARCODE, SPACE};
use crate::layout::occupied;

/// The attributes of the device and the medium, in ascending order.
const IDS: [u16; 18] = [
    0x0000, 0x0001, 0x0003, 0x0004, 0x0006, 0x0007, 0x0009, 0x0220, 0x0221, 0x0222, 0x0223, 0x0224, 0x0400,
    0x0401, 0x0405, 0x0406, 0x0407, 0x0408,
];
/// Capacities of partitions, and what was written and read, count 2^20 bytes (SPC-5).
const MIB: u64 = 1 << 20;
const MANUFACTURER: &[u8; 8] = b"TARGE   ";

impl Cartridge {
    /// Returns the identifiers of the attributes of a partition and the medium, in ascending order.
    pub fn attribute_ids(&self, partition: u8) -> Vec<u16> {
        let Some(label) = &self.label else { return Vec::new() };
        let mut ids: Vec<u16> =
            IDS.into_iter().filter(|id| self.medium_value(partition, *id).is_some()).collect();
        ids.extend(label.attributes.ids(partition));
        if !label.barcode.is_empty() && !ids.contains(&BARCODE) {
            ids.push(BARCODE);
        }
        ids.sort_unstable();
        ids
    }

    /// Returns an attribute of a partition or the medium.
    pub fn attribute(&self, partition: u8, id: u16) -> Option<Attribute> {
        let label = self.label.as_ref()?;
        if let Some((format, value)) = self.medium_value(partition, id) {
            return Some(Attribute { id, format, is_read_only: true, value });
        }
        let kept = label.attributes.attribute(partition, id);
        if id == BARCODE && kept.is_none() && !label.barcode.is_empty() {
            let value = padded(label.barcode.as_bytes(), 32);
            return Some(Attribute { id, format: AttributeFormat::Ascii, is_read_only: false, value });
        }
        kept
    }

    fn medium_value(&self, partition: u8, id: u16) -> Option<(AttributeFormat, Vec<u8>)> {
        let label = self.label.as_ref()?;
        let now = self.parts.get(usize::from(partition))?.now;
        let number = |value: u64| (AttributeFormat::Binary, value.to_be_bytes().to_vec());
        let bytes = |value: &[u8]| (AttributeFormat::Binary, value.to_vec());
        let ascii = |value: &[u8], len| (AttributeFormat::Ascii, padded(value, len));
        let medium_type = if label.is_worm { 0x80 } else { 0x00 };
        Some(match id {
            0x0000 => number(now.capacity.saturating_sub(occupied(now.end)) / MIB),
            0x0001 => number(now.capacity / MIB),
            0x0003 => number(label.loads),
            0x0004 => number(u64::try_from(SPACE - label.attributes.used().min(SPACE)).unwrap_or(0)),
            0x0006 => bytes(&[label.profile.density_code()]),
            0x0007 => bytes(&label.formats.to_be_bytes()),
            0x0009 => bytes(&label.volume_change.to_be_bytes()),
            0x0220 => number(label.written.life / MIB),
            0x0221 => number(label.read.life / MIB),
            0x0222 => number(label.written.load / MIB),
            0x0223 => number(label.read.load / MIB),
            0x0224 => number(now.first_encrypted.checked_sub(1)?),
            0x0400 => ascii(MANUFACTURER, 8),
            0x0401 => ascii(&label.serial, 32),
            0x0405 => bytes(&[label.profile.density_code()]),
            0x0406 => ascii(&label.date, 8),
            // The size of the memory itself, in bytes.
            0x0407 => number(u64::try_from(SPACE).unwrap_or(0)),
            0x0408 => bytes(&[medium_type]),
            _ => return None,
        })
    }
}

fn padded(value: &[u8], len: usize) -> Vec<u8> {
    let mut padded = value.to_vec();
    padded.resize(len, b' ');
    padded
}
