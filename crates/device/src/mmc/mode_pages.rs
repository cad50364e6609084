//! Mode pages of a drive for discs (MMC-6).

use scsi::mode::page;

use crate::mode::{self, ModeLayout, PageRow, State};
use crate::write_parameters::WriteParameters;

/// The mode parameters: MMC has no block descriptor and no device-specific parameter.
pub(super) const LAYOUT: ModeLayout = ModeLayout {
    is_tape: false,
    device_specific: 0,
    write_protected: 0,
    has_block_descriptor: false,
    pages: &[
        mode::READ_WRITE_ERROR_RECOVERY,
        // Its values are a setting of its own.
        PageRow {
            code: page::WRITE_PARAMETERS,
            subpage: 0,
            len: WriteParameters::LEN,
            fixed: &[],
            states: &[],
            medium: mode::no_medium,
            bits: &[],
        },
        mode::CONTROL,
        mode::CONTROL_EXTENSION,
        mode::POWER_CONDITION,
        mode::INFORMATIONAL_EXCEPTIONS,
        // GROUP 1 and GROUP 2 MINIMUM TIMEOUT: 30 and 60 seconds.
        PageRow {
            code: page::TIMEOUT_AND_PROTECT,
            subpage: 0,
            len: 8,
            fixed: &[(5, 30), (7, 60)],
            states: &[],
            medium: mode::no_medium,
            bits: &[],
        },
        // The drive reads DVD-ROM and DVD-R, and writes DVD-R, in several sessions and without underrun. It
        // has a tray, ejects, and locks; it plays no audio, writes no CD, and reads CDs at 48 times the basic
        // speed (8467 = 2113h). Its current write speed is 16 times that of a DVD (22160 = 5690h). The page
        // has no bits for DVD+RW and BD. wodim uses only drives whose page says that they write CDs: this one
        // has no profile of a CD that can be written, and does not say so.
        PageRow {
            code: page::CAPABILITIES_AND_MECHANICAL_STATUS,
            subpage: 0,
            len: 30,
            fixed: &[
                (0, 0x18),
                (1, 0x10),
                (2, 0xc0),
                (4, 0x29),
                (6, 0x21),
                (7, 0x13),
                (12, 0x21),
                (13, 0x13),
                (26, 0x56),
                (27, 0x90),
            ],
            states: &[State { byte: 4, mask: 0x02, get: |medium| medium.locked }],
            medium: mode::no_medium,
            bits: &[],
        },
    ],
};
