//! Mode pages of a disk (SBC-4 §6.5).

use scsi::mode::{device_specific, page};

use crate::mode::{self, Bit, ModeLayout, PageRow, Set};

/// The mode parameters of a disk.
pub(super) const LAYOUT: ModeLayout = ModeLayout {
    is_tape: false,
    device_specific: device_specific::DPOFUA,
    write_protected: device_specific::WP,
    has_block_descriptor: true,
    // In the order in which they are returned.
    pages: &[
        mode::READ_WRITE_ERROR_RECOVERY,
        PageRow {
            code: page::DISCONNECT_RECONNECT,
            subpage: 0,
            len: 14,
            fixed: &[],
            states: &[],
            medium: mode::no_medium,
            bits: &[],
        },
        PageRow {
            code: page::CACHING,
            subpage: 0,
            len: 18,
            fixed: &[],
            states: &[],
            medium: mode::no_medium,
            bits: &[Bit {
                byte: 0,
                mask: 0x04,
                get: |settings| settings.write_cache,
                set: Set::To(|settings, on| settings.write_cache = on),
            }],
        },
        mode::CONTROL,
        mode::CONTROL_EXTENSION,
        mode::POWER_CONDITION,
        mode::INFORMATIONAL_EXCEPTIONS,
    ],
};
