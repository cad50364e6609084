//! Mode pages of a medium changer (SMC-3).

use alloc::vec::Vec;

use scsi::mode::page;

use super::address;
use crate::mode::{self, MediumParameters, ModeLayout, PageRow};

/// In device capabilities: data transfer, import/export and storage elements.
const NOT_TRANSPORT: u8 = 0x0e;

/// The mode parameters: SMC has no block descriptor and no device-specific parameter.
pub(super) const LAYOUT: ModeLayout = ModeLayout {
    is_tape: false,
    device_specific: 0,
    write_protected: 0,
    has_block_descriptor: false,
    pages: &[
        mode::CONTROL,
        mode::CONTROL_EXTENSION,
        mode::POWER_CONDITION,
        mode::INFORMATIONAL_EXCEPTIONS,
        PageRow {
            code: page::ELEMENT_ADDRESS_ASSIGNMENT,
            subpage: 0,
            len: 18,
            fixed: &[],
            states: &[],
            medium: assignment,
            bits: &[],
        },
        // The medium transport element does not rotate media, and is the first of its set.
        PageRow {
            code: page::TRANSPORT_GEOMETRY,
            subpage: 0,
            len: 2,
            fixed: &[],
            states: &[],
            medium: mode::no_medium,
            bits: &[],
        },
        // All but the transport element hold cartridges, and each of these can be moved to, and exchanged
        // with, each other one.
        PageRow {
            code: page::DEVICE_CAPABILITIES,
            subpage: 0,
            len: 18,
            fixed: &[
                (0, NOT_TRANSPORT),
                (3, NOT_TRANSPORT),
                (4, NOT_TRANSPORT),
                (5, NOT_TRANSPORT),
                (11, NOT_TRANSPORT),
                (12, NOT_TRANSPORT),
                (13, NOT_TRANSPORT),
            ],
            states: &[],
            medium: mode::no_medium,
            bits: &[],
        },
    ],
};

/// Returns the bytes of the element address assignment page: the first address and the number of medium
/// transport, storage, import/export and data transfer elements.
fn assignment(medium: &MediumParameters) -> Vec<(usize, u8)> {
    let counts = medium.elements;
    let words = [
        (address::TRANSPORT, 1),
        (address::SLOT, counts.slots),
        (address::MAIL, counts.mail_slots),
        (address::DRIVE, counts.drives),
    ];
    let bytes = words.into_iter().flat_map(|(first, count)| [first.to_be_bytes(), count.to_be_bytes()]);
    (0..).zip(bytes.flatten()).collect()
}
