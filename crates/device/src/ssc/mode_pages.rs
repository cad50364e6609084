//! Mode pages of a tape drive (SSC-4), and what they report of the cartridge.

use alloc::vec::Vec;

use scsi::mode::{device_specific, page};

use crate::device_server::DeviceServer;
use crate::medium_partition;
use crate::mode::{self, Bit, MediumParameters, ModeLayout, PageRow, Set, TapeParameters};

/// COMPRESSION ALGORITHM 01h: the default of the drive.
const ALGORITHM: u8 = 0x01;
/// PARTITION UNITS: sizes are in 10^9 bytes.
const PARTITION_UNITS: u8 = 9;
/// PSUM 11b: sizes are in PARTITION UNITS.
const SIZES_IN_UNITS: u8 = 0x18;
/// POFM: FORMAT MEDIUM divides the cartridge, and not MODE SELECT.
const ON_FORMAT: u8 = 0x04;
/// MEDIUM FORMAT RECOGNITION: format and partitions are recognised.
const RECOGNISED: u8 = 0x03;

/// A bit of PEWS, which has bytes 2 and 3 of its page's body.
macro_rules! early_warning_bit {
    ($bit:literal) => {
        Bit {
            byte: 3 - $bit / 8,
            mask: 1 << ($bit % 8),
            get: |settings| settings.stream.early_warning_mb >> $bit & 1 == 1,
            set: Set::To(|settings, on| {
                let others = settings.stream.early_warning_mb & !(1 << $bit);
                settings.stream.early_warning_mb = others | u16::from(on) << $bit;
            }),
        }
    };
}

/// The mode parameters.
pub(super) const LAYOUT: ModeLayout = ModeLayout {
    is_tape: true,
    device_specific: 0,
    write_protected: device_specific::WP,
    has_block_descriptor: true,
    pages: &[
        mode::READ_WRITE_ERROR_RECOVERY,
        mode::CONTROL,
        mode::CONTROL_EXTENSION,
        // Logical block protection: the method, its length, LBP_W and LBP_R.
        PageRow {
            code: page::CONTROL,
            subpage: page::CONTROL_DATA_PROTECTION,
            len: 28,
            fixed: &[],
            states: &[],
            medium: mode::no_medium,
            bits: &[
                Bit {
                    byte: 0,
                    mask: 0x01,
                    get: |settings| settings.nexus.protection.reed_solomon,
                    set: Set::To(|settings, on| settings.nexus.protection.reed_solomon = on),
                },
                Bit {
                    byte: 0,
                    mask: 0x02,
                    get: |settings| settings.nexus.protection.crc32c,
                    set: Set::To(|settings, on| settings.nexus.protection.crc32c = on),
                },
                Bit {
                    byte: 1,
                    mask: 0x04,
                    get: |settings| settings.nexus.protection.has_length,
                    set: Set::To(|settings, on| settings.nexus.protection.has_length = on),
                },
                Bit {
                    byte: 2,
                    mask: 0x80,
                    get: |settings| settings.nexus.protection.on_write,
                    set: Set::To(|settings, on| settings.nexus.protection.on_write = on),
                },
                Bit {
                    byte: 2,
                    mask: 0x40,
                    get: |settings| settings.nexus.protection.on_read,
                    set: Set::To(|settings, on| settings.nexus.protection.on_read = on),
                },
            ],
        },
        // DCC and DDE: the drive can compress, and it reads what is compressed.
        PageRow {
            code: page::DATA_COMPRESSION,
            subpage: 0,
            len: 14,
            fixed: &[(0, 0x40), (1, 0x80), (5, ALGORITHM), (9, ALGORITHM)],
            states: &[],
            medium: mode::no_medium,
            bits: &[Bit {
                byte: 0,
                mask: 0x80,
                get: |settings| settings.stream.is_compressing,
                set: Set::To(|settings, on| settings.stream.is_compressing = on),
            }],
        },
        // LOIS: positions are those of objects. EEG and SEW: the drive reports the early warning, and ends
        // the command that reaches it when everything is written. SDCA changes with DCE.
        PageRow {
            code: page::DEVICE_CONFIGURATION,
            subpage: 0,
            len: 14,
            fixed: &[(6, 0x40), (8, 0x18)],
            states: &[],
            medium: |medium| Vec::from([(1, medium.tape.partition)]),
            bits: &[Bit {
                byte: 12,
                mask: 0x01,
                get: |settings| settings.stream.is_compressing,
                set: Set::Never,
            }],
        },
        // WRITE MODE, and PEWS.
        PageRow {
            code: page::DEVICE_CONFIGURATION,
            subpage: page::DEVICE_CONFIGURATION_EXTENSION,
            len: 28,
            fixed: &[],
            states: &[],
            medium: mode::no_medium,
            bits: &[
                Bit {
                    byte: 1,
                    mask: 0x10,
                    get: |settings| settings.stream.is_append_only,
                    set: Set::To(|settings, on| settings.stream.is_append_only = on),
                },
                early_warning_bit!(15),
                early_warning_bit!(14),
                early_warning_bit!(13),
                early_warning_bit!(12),
                early_warning_bit!(11),
                early_warning_bit!(10),
                early_warning_bit!(9),
                early_warning_bit!(8),
                early_warning_bit!(7),
                early_warning_bit!(6),
                early_warning_bit!(5),
                early_warning_bit!(4),
                early_warning_bit!(3),
                early_warning_bit!(2),
                early_warning_bit!(1),
                early_warning_bit!(0),
            ],
        },
        PageRow {
            code: page::MEDIUM_PARTITION,
            subpage: 0,
            len: medium_partition::BODY_LEN,
            fixed: &[(2, ON_FORMAT), (3, RECOGNISED)],
            states: &[],
            medium: partitions,
            bits: &[],
        },
        mode::POWER_CONDITION,
        mode::INFORMATIONAL_EXCEPTIONS,
        // Programs read here whether the cartridge is WORM (WORMM). Such a cartridge overwrites no label, and
        // of the filemarks at the end of data all but the first of the partition: WORM MODE FILEMARKS
        // RESTRICTIONS 02h, which LTO drives report with every cartridge.
        PageRow {
            code: page::MEDIUM_CONFIGURATION,
            subpage: 0,
            len: 30,
            fixed: &[(3, 0x02)],
            states: &[],
            medium: |medium| Vec::from([(0, u8::from(medium.tape.is_worm))]),
            bits: &[],
        },
    ],
};

/// Returns the bytes of the medium partition page: what a host has set for FORMAT MEDIUM, or else the
/// additional partitions that there are, and the size of each.
fn partitions(medium: &MediumParameters) -> Vec<(usize, u8)> {
    let most = (0, medium.tape.partitions_max.saturating_sub(1));
    if let Some(page) = medium.tape.partitioning {
        return [most].into_iter().chain(page.bytes()).collect();
    }
    let sizes = medium.tape.partitions;
    let count = sizes.iter().filter(|size| **size > 0).count();
    let additional = u8::try_from(count.saturating_sub(1)).unwrap_or(0);
    let bytes = sizes.iter().flat_map(|size| size.to_be_bytes());
    let fixed = [most, (1, additional), (2, SIZES_IN_UNITS), (4, PARTITION_UNITS)];
    fixed.into_iter().chain((6..).zip(bytes)).collect()
}

/// Returns what the mode parameters report of the cartridge.
pub(super) fn tape_parameters(server: &DeviceServer) -> TapeParameters {
    let Some(drive) = &server.tape else { return TapeParameters::EMPTY };
    let Some(label) = drive.cartridge().label() else { return TapeParameters::EMPTY };
    let mut partitions = [0; 4];
    for (size, part) in partitions.iter_mut().zip(&label.partitions) {
        *size = u16::try_from(part.capacity / 1_000_000_000).unwrap_or(u16::MAX).max(1);
    }
    TapeParameters {
        is_worm: label.is_worm,
        medium_type: label.profile.medium_type(label.is_worm),
        density: label.profile.density_code(),
        partition: drive.cartridge().position().partition,
        partitions,
        partitions_max: if label.is_worm {
            1
        } else {
            u8::try_from(label.profile.partitions_max()).unwrap_or(1)
        },
        capacity: label.capacity,
        partitioning: server.settings.stream.partitioning,
        is_loaded: drive.is_loaded(),
        is_at_beginning: drive.cartridge().position().object == 0,
    }
}
