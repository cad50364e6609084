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
        PageRow {
            bits: &[Bit {
                // LBPERE.
                byte: 5,
                mask: 0x80,
                get: |settings| settings.provisioning_reports.on,
                set: Set::To(|settings, on| {
                    settings.provisioning_reports = settings.provisioning_reports.selected(on);
                }),
            }],
            ..mode::READ_WRITE_ERROR_RECOVERY
        },
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
        LOGICAL_BLOCK_PROVISIONING,
    ],
};

/// The logical block provisioning page: one threshold, of the storage that the unit shares with others. The
/// operator's warnings have the same one, so hosts cannot change it.
const LOGICAL_BLOCK_PROVISIONING: PageRow = PageRow {
    code: page::INFORMATIONAL_EXCEPTIONS,
    subpage: page::LOGICAL_BLOCK_PROVISIONING,
    len: 20,
    // ENABLED, a soft threshold that is armed for a decrease. THRESHOLD RESOURCE 01h: what is available.
    fixed: &[(12, 0x80), (13, 0x01)],
    states: &[],
    medium: |medium| {
        let count = medium.threshold_sets.unwrap_or(0).to_be_bytes();
        (16..).zip(count).collect()
    },
    bits: &[],
};
