//! Mutants of tape drives: `ssc-*`.

use crate::mutant::{Mutant, Nth, by, change};
use iscsi::pdu::Opcode;

use crate::pdu::{INQUIRY, Pdu, READ_16, RESIDUAL, STATUS, TEST_UNIT_READY, UNDERFLOW};

use super::pages;

/// Operation codes.
const REWIND: u8 = 0x01;
const BLOCK_LIMITS: u8 = 0x05;
const READ_6: u8 = 0x08;
const WRITE_6: u8 = 0x0a;
const FILEMARKS: u8 = 0x10;
const SPACE: u8 = 0x11;
const VERIFY: u8 = 0x13;
const MODE_SELECT: u8 = 0x15;
const ERASE: u8 = 0x19;
const MODE_SENSE: u8 = 0x1a;
const LOAD_UNLOAD: u8 = 0x1b;
const PREVENT: u8 = 0x1e;
const LOCATE: u8 = 0x2b;
const READ_POSITION: u8 = 0x34;
const DENSITY: u8 = 0x44;
const FILEMARKS_16: u8 = 0x80;
const READ_ATTRIBUTE: u8 = 0x8c;
const WRITE_ATTRIBUTE: u8 = 0x8d;
const SPACE_16: u8 = 0x91;
const LOCATE_16: u8 = 0x92;

/// Bits of byte 2 of sense data.
const FILEMARK: u8 = 0x80;
const EOM: u8 = 0x40;
const ILI: u8 = 0x20;
/// SILI in byte 1 of READ.
const SILI: u8 = 0x02;

/// The reason of a case whose sense data has another bit.
const BITS: &str = "expected FILEMARK, EOM and ILI as";

/// What the report says if a case left the cartridge out of the drive.
const LOADED_AGAIN: &str = "the case left the drive without its medium, which was loaded again";

pub(super) const MUTANTS: &[Mutant] = &[
    change("ssc-inquiry", "RMB is 0", |pdu| pdu.on_data(INQUIRY, |data| data[1] &= 0x7f)),
    change("ssc-block-limits", "the shortest block has 2 bytes, the longest 1", |pdu| {
        pdu.on_data(BLOCK_LIMITS, |data| data[1..6].copy_from_slice(&[0, 0, 1, 0, 2]));
    }),
    change("ssc-write-read", "the block is not block 0", |pdu| pdu.on_data(READ_6, |data| data[0] ^= 1)),
    change("ssc-short-block", "expected INFORMATION 900", |pdu| pdu.count_wrongly(READ_6)),
    change("ssc-short-block", BITS, |pdu| pdu.on_sense(READ_6, |sense| sense[2] &= !ILI)),
    change("ssc-short-block", "the block does not come with the report", |pdu| {
        pdu.on_data(READ_6, |data| data[0] ^= 1);
    }),
    change("ssc-long-block", "expected INFORMATION -500", |pdu| pdu.count_wrongly(READ_6)),
    change("ssc-sili-short", "READ(6) with SILI of 900 bytes too many", |pdu| {
        pdu.on_cdb(READ_6, |cdb| cdb[1] &= !SILI);
    }),
    change("ssc-sili-long", "READ(6) with SILI of 500 bytes too few", |pdu| {
        pdu.on_cdb(READ_6, |cdb| cdb[1] &= !SILI);
    }),
    change("ssc-sili-long-mode", "READ(6) with SILI of 500 bytes too few: expected sense 0/0000", |pdu| {
        pdu.accept(READ_6);
    }),
    change("ssc-sili-fixed", "READ(6) with FIXED and SILI: expected sense 5/2400", |pdu| {
        pdu.on_cdb(READ_6, |cdb| cdb[1] &= !SILI);
    }),
    change("ssc-fixed-no-length", "READ(6) with FIXED: expected sense 5/2400", |pdu| {
        pdu.on_cdb(READ_6, |cdb| cdb[1] = 0);
    }),
    change("ssc-fixed-no-length", "WRITE(6) with FIXED: expected sense 5/2400", |pdu| pdu.accept(WRITE_6)),
    change("ssc-fixed", "the blocks are not those that were written", |pdu| {
        pdu.on_data(READ_6, |data| data[0] ^= 1);
    }),
    change("ssc-fixed-wrong-length", "expected INFORMATION 2", |pdu| pdu.count_wrongly(READ_6)),
    change("ssc-fixed-filemark", "expected INFORMATION 3", |pdu| pdu.count_wrongly(READ_6)),
    change("ssc-fixed-end", "expected INFORMATION 3", |pdu| pdu.count_wrongly(READ_6)),
    change("ssc-filemark", BITS, |pdu| pdu.on_sense(READ_6, |sense| sense[2] &= !FILEMARK)),
    change("ssc-end-of-data", "READ(6) at the end of data: expected sense 8/0005", |pdu| {
        pdu.on_sense(READ_6, |sense| sense[2] &= 0xf0);
    }),
    change("ssc-read-nothing", "READ(6) after READ(6) of 0 bytes", |pdu| {
        pdu.on_cdb(READ_6, |cdb| {
            if cdb[2..5] == [0; 3] {
                cdb[..6].copy_from_slice(&[SPACE, 0, 0, 0, 1, 0])
            }
        });
    }),
    change("ssc-write-nothing", "READ(6) after WRITE(6) of 0 bytes", |pdu| {
        pdu.on_cdb(WRITE_6, |cdb| {
            if cdb[2..5] == [0; 3] {
                cdb[..6].copy_from_slice(&[SPACE, 0, 0, 0, 1, 0])
            }
        });
    }),
    change("ssc-overwrite", "READ(6) at the end of data: expected BLANK CHECK", |pdu| pdu.accept(READ_6)),
    change("ssc-long-write", "WRITE(6) of a longer block: expected sense 5/2400", |pdu| pdu.accept(WRITE_6)),
    change("ssc-read-write-16", "the block is not that which was written", |pdu| {
        pdu.on_data(READ_16, |data| data[0] ^= 1);
    }),
    change("ssc-filemarks", "SPACE(6) of -3 filemarks", |pdu| {
        pdu.on_cdb(FILEMARKS, |cdb| cdb[4] = cdb[4].min(2));
    }),
    change("ssc-filemarks-none", "SPACE(6) of -1 block", |pdu| pdu.on_cdb(FILEMARKS, |cdb| cdb[4] = 1)),
    change("ssc-filemarks-16", "SPACE(6) of 2 filemarks", |pdu| pdu.on_cdb(FILEMARKS_16, |cdb| cdb[14] = 1)),
    change("ssc-verify", "READ(6) behind the block: the block is not block 1", |pdu| pdu.forget(VERIFY)),
    change("ssc-verify-length", "expected INFORMATION 900", |pdu| pdu.count_wrongly(VERIFY)),
    change("ssc-verify-filemark", BITS, |pdu| pdu.on_sense(VERIFY, |sense| sense[2] &= !FILEMARK)),
    // Position.
    by("ssc-rewind", "READ(6) after REWIND", |wire, pdu| Nth(REWIND, 2).forget(wire, pdu)),
    change("ssc-rewind-immediate", "READ(6) after REWIND with IMMED", |pdu| {
        pdu.on_cdb(REWIND, |cdb| {
            if cdb[1] & 1 != 0 {
                cdb.fill(0)
            }
        });
    }),
    change("ssc-position-beginning", "behind two blocks BOP is set", |pdu| {
        pdu.on_data(READ_POSITION, |data| data[0] |= 0x80);
    }),
    change("ssc-position-beginning", "at the beginning BOP is not set", |pdu| {
        pdu.on_data(READ_POSITION, |data| data[0] &= 0x7f);
    }),
    change("ssc-position-short", "expected first object 5", |pdu| {
        pdu.on_data(READ_POSITION, |data| data[7] ^= 1);
    }),
    change("ssc-position-long", "expected 2 filemarks", |pdu| {
        pdu.on_data(READ_POSITION, |data| data[23] ^= 1);
    }),
    change("ssc-position-long", "expected object 5", |pdu| pdu.on_data(READ_POSITION, |data| data[15] ^= 1)),
    change("ssc-position-extended", "expected first object 5", |pdu| {
        pdu.on_data(READ_POSITION, |data| data[15] ^= 1);
    }),
    change("ssc-position-form", "READ POSITION, SERVICE ACTION 1Fh: expected sense 5/2400", |pdu| {
        pdu.accept(READ_POSITION);
    }),
    change("ssc-space-blocks", "READ(6) after SPACE(6) of -4 blocks: the block is not block 1", |pdu| {
        pdu.on_cdb(SPACE, |cdb| cdb[4] = cdb[4].wrapping_add(1));
    }),
    change("ssc-space-blocks-mark", "expected INFORMATION 3", |pdu| pdu.count_wrongly(SPACE)),
    change("ssc-space-back-mark", "expected FILEMARK and INFORMATION 2", |pdu| pdu.count_wrongly(SPACE)),
    change("ssc-space-blocks-end", "expected INFORMATION 6", |pdu| pdu.count_wrongly(SPACE)),
    change("ssc-space-marks", "READ(6) behind the second filemark: the block is not block 5", |pdu| {
        pdu.on_cdb(SPACE, |cdb| {
            if cdb[4] == 2 {
                cdb[4] = 1
            }
        });
    }),
    change("ssc-space-marks-end", "expected INFORMATION 3", |pdu| pdu.count_wrongly(SPACE)),
    change("ssc-space-beginning", "expected EOM and INFORMATION 6", |pdu| {
        pdu.on_sense(SPACE, |sense| sense[2] &= !EOM);
    }),
    change("ssc-space-end", "SPACE(6) of -2 blocks", |pdu| {
        pdu.on_cdb(SPACE, |cdb| {
            if cdb[1] == 3 {
                cdb.fill(0)
            }
        });
    }),
    change("ssc-space-nothing", "READ(6) after SPACE(6) of nothing", |pdu| {
        pdu.on_cdb(SPACE, |cdb| {
            if cdb[1] == 0 && cdb[4] == 0 {
                cdb[4] = 1
            }
        });
    }),
    change("ssc-space-code", "SPACE(6), CODE 7: expected sense 5/2400", |pdu| pdu.accept(SPACE)),
    change("ssc-space-16", "READ(6) after SPACE(16) of -2 blocks: the block is not block 1", |pdu| {
        pdu.on_cdb(SPACE_16, |cdb| cdb[11] = cdb[11].wrapping_add(1));
    }),
    change("ssc-locate", "READ(6) after LOCATE(10) of object 1", |pdu| pdu.forget(LOCATE)),
    change("ssc-locate-end", "LOCATE(10) behind the end of data: expected sense 8/0005", |pdu| {
        pdu.on_sense(LOCATE, |sense| sense[2] = 3);
    }),
    change("ssc-locate-partition", "LOCATE(10) in partition 200: expected sense 5/2400", |pdu| {
        pdu.accept(LOCATE);
    }),
    change("ssc-locate-16", "READ(6) after LOCATE(16) of object 3", |pdu| pdu.forget(LOCATE_16)),
    change("ssc-locate-16-file", "READ(6) after LOCATE(16) of file 1", |pdu| pdu.forget(LOCATE_16)),
    change("ssc-locate-16-end", "READ(6) at the end of data: expected BLANK CHECK", |pdu| {
        pdu.forget(LOCATE_16);
    }),
    change("ssc-erase", "READ(6) at the end of data: expected BLANK CHECK", |pdu| pdu.forget(ERASE)),
    // Pages.
    change("ssc-mode-header", "BUFFERED MODE 7 is reserved", |pdu| {
        pdu.on_data(MODE_SENSE, |data| data[2] |= 0x70);
    }),
    change("ssc-mode-pages", "among all pages is", pages::differs_among_all),
    change("ssc-mode-sense", "MODE SENSE(6) returns other mode parameters", |pdu| {
        pdu.on_data(MODE_SENSE, |data| {
            if let Some(last) = data.last_mut() {
                *last ^= 1
            }
        });
    }),
    change("ssc-mode-compression", "DCE is set, and DCC is not", |pdu| {
        pdu.on_data(MODE_SENSE, |data| data[14] = 0x80);
    }),
    change("ssc-mode-configuration", "ACTIVE PARTITION is 1", |pdu| {
        pdu.on_data(MODE_SENSE, |data| data[15] = 1);
    }),
    change("ssc-mode-partition", "255 additional partitions are defined", |pdu| {
        pdu.on_data(MODE_SENSE, |data| data[15] = 255);
    }),
    change("ssc-mode-block-length", "MODE SELECT set block length 1024, MODE SENSE tells 512", |pdu| {
        pdu.on_data(MODE_SENSE, |data| data[9..12].copy_from_slice(&[0, 2, 0]));
    }),
    by("ssc-mode-block-length", "MODE SELECT(6) of block length 0: expected GOOD", |wire, pdu| {
        Nth(MODE_SELECT, 2).refuse(wire, pdu);
    }),
    change("ssc-mode-block-limit", "MODE SELECT(6) of block length FFFFFFh, where", |pdu| {
        pdu.accept(MODE_SELECT);
    }),
    change("ssc-mode-density", "MODE SELECT(6) of density", |pdu| pdu.accept(MODE_SELECT)),
    change("ssc-mode-buffered", "BUFFERED MODE 0 is set, MODE SENSE tells 1", |pdu| {
        pdu.on_data(MODE_SENSE, |data| data[2] = data[2] & 0x8f | 0x10);
    }),
    change(
        "ssc-mode-attention",
        "TEST UNIT READY of another host after MODE SELECT(6): expected sense",
        |pdu| {
            pdu.accept(TEST_UNIT_READY);
        },
    ),
    change("ssc-density", "which is none of ff", |pdu| pdu.on_data(DENSITY, |data| data[4] = 0xff)),
    by("ssc-density-medium", "of the cartridge is none of", |wire, mut pdu| {
        let is_of_medium = wire.command_of(&pdu).is_some_and(|command| command.header[33] & 1 != 0);
        if is_of_medium {
            pdu.on_data(DENSITY, |data| data[4] = 1);
        }
        wire.pass(pdu);
    }),
    change("ssc-operation-codes", "alone, SUPPORT is 1", pages::is_unsupported_alone),
    change("ssc-log-pages", "the log pages do not ascend", pages::lists_pages_in_disorder),
    change("ssc-log-alert", "expected parameters 1 to 64", |pdu| {
        pdu.on_data(pages::LOG_SENSE, |data| {
            if data[0] & 0x3f == 0x2e {
                data[5] = 2
            }
        });
    }),
    by("ssc-memory-list", "the values are of", |wire, mut pdu| {
        let is_list = wire.command_of(&pdu).is_some_and(|command| command.header[33] == 1);
        if !is_list {
            pdu.on_data(READ_ATTRIBUTE, |data| data[5] ^= 1);
        }
        wire.pass(pdu);
    }),
    change("ssc-memory-capacity", "MiB of", |pdu| pdu.on_data(READ_ATTRIBUTE, |data| data[9] = 0x7f)),
    change("ssc-memory-first", "came [0000, 0001", |pdu| {
        pdu.on_cdb(READ_ATTRIBUTE, |cdb| cdb[8..10].fill(0));
    }),
    change("ssc-memory-write", "the value that was written does not come back", |pdu| {
        pdu.on_data(READ_ATTRIBUTE, |data| {
            if data[4..6] == [8, 1] {
                data[9] ^= 1
            }
        });
    }),
    by("ssc-memory-write", "WRITE ATTRIBUTE of no value: expected GOOD", |wire, pdu| {
        Nth(WRITE_ATTRIBUTE, 2).refuse(wire, pdu);
    }),
    change("ssc-memory-read-only", "WRITE ATTRIBUTE of the maximum capacity: expected sense 5/2600", |pdu| {
        pdu.accept(WRITE_ATTRIBUTE);
    }),
    // Cartridges.
    change("ssc-unload", "TEST UNIT READY: expected NOT READY", |pdu| {
        pdu.on_cdb(LOAD_UNLOAD, |cdb| {
            if cdb[4] & 1 == 0 {
                cdb.fill(0)
            }
        });
    }),
    change("ssc-load", "READ(6) after a load", |pdu| pdu.forget(LOAD_UNLOAD)),
    change(
        "ssc-load-attention",
        "TEST UNIT READY of another host after a load: expected sense 6/2800",
        |pdu| {
            pdu.accept(TEST_UNIT_READY);
        },
    ),
    by("ssc-unload", LOADED_AGAIN, |wire, pdu| Nth(LOAD_UNLOAD, 2).refuse(wire, pdu)),
    by("ssc-load", LOADED_AGAIN, |wire, pdu| Nth(LOAD_UNLOAD, 2).refuse(wire, pdu)),
    by("ssc-prevent", "PREVENT ALLOW MEDIUM REMOVAL, allow: expected GOOD", |wire, pdu| {
        Nth(PREVENT, 2).refuse(wire, pdu);
    }),
    by("ssc-prevent", LOADED_AGAIN, |wire, mut pdu| {
        pdu.forget(PREVENT);
        Nth(PREVENT, 2).refuse(wire, pdu);
    }),
    change("ssc-prevent", "LOAD UNLOAD without LOAD: expected sense 5/5302", |pdu| pdu.forget(PREVENT)),
    change("ssc-early-warning", "expected EOM alone", |pdu| pdu.on_sense(WRITE_6, |sense| sense[2] &= !EOM)),
    change("ssc-early-warning", "although everything was written", |pdu| pdu.count_wrongly(WRITE_6)),
    change(
        "ssc-early-warning-mark",
        "WRITE FILEMARKS(6) behind the early warning: expected sense 0/0002",
        |pdu| {
            pdu.accept(FILEMARKS);
        },
    ),
    change("ssc-end-of-partition", "expected INFORMATION", |pdu| {
        pdu.on_sense(WRITE_6, |sense| {
            if sense[2] & 0xf == 0xd {
                sense[6] ^= 1
            }
        });
    }),
    change("ssc-write-protect", "WRITE(6): expected sense 7/2700", |pdu| pdu.accept(WRITE_6)),
    change("ssc-write-protect", "WRITE FILEMARKS(6): expected sense 7/2700", |pdu| pdu.accept(FILEMARKS)),
    change("ssc-worm-append", "READ(6) of the block appended: the block is not", |pdu| {
        pdu.on_data(READ_6, |data| data[0] ^= 1);
    }),
    change("ssc-worm-overwrite", "WRITE(6) over a block: expected sense 7/300c", |pdu| {
        pdu.accept(WRITE_6);
    }),
    // The other rules of cases that judge several.
    by("ssc-short-block", "expected a residual underflow of 900", |wire, mut pdu| {
        miscount_residual(&mut pdu, READ_6);
        wire.pass(pdu);
    }),
    by("ssc-short-block", "READ(6) behind the block: the block is not block 1", |wire, pdu| {
        Nth(READ_6, 2).spoil(wire, pdu);
    }),
    change("ssc-long-block", "the first 100 bytes of the block do not come", |pdu| {
        pdu.on_data(READ_6, |data| data[0] ^= 1);
    }),
    by("ssc-long-block", "READ(6) behind the block: the block is not block 1", |wire, pdu| {
        Nth(READ_6, 2).spoil(wire, pdu);
    }),
    change("ssc-sili-short", "the block is not that which was written", |pdu| {
        pdu.on_data(READ_6, |data| data[0] ^= 1);
    }),
    by("ssc-sili-short", "expected a residual underflow of 900", |wire, mut pdu| {
        miscount_residual(&mut pdu, READ_6);
        wire.pass(pdu);
    }),
    change("ssc-sili-long", "these are not its first 100 bytes", |pdu| {
        pdu.on_data(READ_6, |data| data[0] ^= 1);
    }),
    change("ssc-sili-long-mode", BITS, |pdu| pdu.on_sense(READ_6, |sense| sense[2] &= !ILI)),
    by("ssc-sili-fixed", "READ(6) after the refusal: the block is not block 0", |wire, pdu| {
        Nth(READ_6, 2).spoil(wire, pdu);
    }),
    by("ssc-fixed", "READ(6) without FIXED of a block that was written with it", |wire, pdu| {
        Nth(READ_6, 2).spoil(wire, pdu);
    }),
    change("ssc-fixed-wrong-length", "the first two blocks do not come with the report", |pdu| {
        pdu.on_data(READ_6, |data| data[0] ^= 1);
    }),
    change("ssc-fixed-filemark", "the two blocks do not come with the report", |pdu| {
        pdu.on_data(READ_6, |data| data[0] ^= 1);
    }),
    by("ssc-fixed-filemark", "READ(6) behind the filemark: the block is not block 3", |wire, pdu| {
        Nth(READ_6, 2).spoil(wire, pdu);
    }),
    by("ssc-fixed-end", "READ(6) at the end of data: expected BLANK CHECK", |wire, pdu| {
        Nth(READ_6, 2).accept(wire, pdu);
    }),
    by("ssc-filemark", "READ(6) behind the filemark: the block is not block 2", |wire, pdu| {
        Nth(READ_6, 3).spoil(wire, pdu);
    }),
    by("ssc-end-of-data", "expected INFORMATION 600", |wire, mut pdu| {
        pdu.count_wrongly(READ_6);
        wire.pass(pdu);
    }),
    change("ssc-filemarks-none", "READ(6) at the end of data: expected BLANK CHECK", |pdu| {
        pdu.accept(READ_6);
    }),
    by("ssc-filemarks-16", "READ(6) at the end of data: expected BLANK CHECK", |wire, mut pdu| {
        pdu.accept(READ_6);
        wire.pass(pdu);
    }),
    change("ssc-read-write-16", "READ(6) at the end of data: expected BLANK CHECK", |pdu| pdu.accept(READ_6)),
    change("ssc-verify-length", "READ(6) behind the block: the block is not block 1", |pdu| {
        pdu.on_data(READ_6, |data| data[0] ^= 1);
    }),
    change("ssc-verify-filemark", "READ(6) behind the filemark: the block is not block 1", |pdu| {
        pdu.on_data(READ_6, |data| data[0] ^= 1);
    }),
    // Position, the second rule of a case.
    change("ssc-position-short", "expected partition 0, came 1", |pdu| {
        pdu.on_data(READ_POSITION, |data| data[1] = 1);
    }),
    change("ssc-position-extended", "expected ADDITIONAL LENGTH 1Ch", |pdu| {
        pdu.on_data(READ_POSITION, |data| data[3] ^= 1);
    }),
    change("ssc-position-extended", "an allocation length of 16 returns", |pdu| {
        pdu.on_cdb(READ_POSITION, |cdb| cdb[8] = 32);
    }),
    change("ssc-space-blocks", "READ(6) after SPACE(6) of 2 blocks: the block is not block 4", |pdu| {
        pdu.on_cdb(SPACE, |cdb| {
            if cdb[4] == 2 {
                cdb[4] = 1
            }
        });
    }),
    change("ssc-space-blocks-mark", "READ(6) behind the filemark: the block is not block 3", |pdu| {
        pdu.on_data(READ_6, |data| data[0] ^= 1);
    }),
    change("ssc-space-back-mark", "READ(6) before the filemark: expected sense 0/0001", |pdu| {
        pdu.accept(READ_6);
    }),
    change("ssc-space-blocks-end", "READ(6) at the end of data: expected BLANK CHECK", |pdu| {
        pdu.accept(READ_6);
    }),
    change("ssc-space-marks", "READ(6) before the filemark: expected sense 0/0001", |pdu| {
        pdu.on_cdb(SPACE, |cdb| {
            if cdb[4] == 0xff {
                cdb.fill(0)
            }
        });
    }),
    change("ssc-space-marks-end", "READ(6) at the end of data: expected BLANK CHECK", |pdu| {
        pdu.accept(READ_6);
    }),
    change("ssc-space-beginning", "READ(6) at the beginning: the block is not block 0", |pdu| {
        pdu.on_data(READ_6, |data| data[0] ^= 1);
    }),
    by("ssc-space-end", "READ(6) of the block appended: the block is not block 3", |wire, pdu| {
        Nth(READ_6, 2).spoil(wire, pdu);
    }),
    change("ssc-space-code", "READ(6) after the refusal: the block is not block 1", |pdu| {
        pdu.on_data(READ_6, |data| data[0] ^= 1);
    }),
    change("ssc-locate", "READ(6) after LOCATE(10) of object 4: the block is not block 4", |pdu| {
        pdu.on_cdb(LOCATE, |cdb| {
            if cdb[6] == 4 {
                cdb[6] = 3
            }
        });
    }),
    change("ssc-locate-end", "READ(6) at the end of data: expected BLANK CHECK", |pdu| pdu.accept(READ_6)),
    change("ssc-locate-partition", "READ(6) at the end of data: expected BLANK CHECK", |pdu| {
        pdu.accept(READ_6);
    }),
    change("ssc-erase", "READ(6) before the position of ERASE(6): the block is not block 0", |pdu| {
        pdu.on_data(READ_6, |data| data[0] ^= 1);
    }),
    // Pages, the second rule of a case.
    change("ssc-mode-header", "with DBD a block descriptor comes", |pdu| {
        pdu.on_cdb(MODE_SENSE, |cdb| cdb[1] = 0);
    }),
    by("ssc-mode-header", "with DBD other pages come", |wire, pdu| {
        Nth(MODE_SENSE, 2).on_data(wire, pdu, |data| data[8] ^= 1);
    }),
    by("ssc-mode-block-length", "MODE SELECT set block length 0, MODE SENSE tells 1024", |wire, pdu| {
        Nth(MODE_SELECT, 2).forget(wire, pdu);
    }),
    by("ssc-memory-list", "the identifiers do not ascend", |wire, mut pdu| {
        let is_list = wire.command_of(&pdu).is_some_and(|command| command.header[33] == 1);
        if is_list {
            pdu.on_data(READ_ATTRIBUTE, |data| data[4] = 0xff);
        }
        wire.pass(pdu);
    }),
    by("ssc-memory-write", "an attribute of length 0 is not removed", |wire, pdu| {
        Nth(WRITE_ATTRIBUTE, 2).forget(wire, pdu);
    }),
    change("ssc-memory-capacity", "the capacities have", |pdu| {
        // The first eight bytes become two attributes of four. Nobody looks for the second.
        pdu.on_data(READ_ATTRIBUTE, |data| {
            data[8] = 3;
            data[12..17].copy_from_slice(&[0xff, 0, 0, 0, 0]);
        });
    }),
    // Cartridges, the second rule of a case.
    change("ssc-unload", "READ(6): expected NOT READY", |pdu| pdu.accept(READ_6)),
    change("ssc-unload", "INQUIRY of an empty drive: expected GOOD", |pdu| pdu.refuse(INQUIRY)),
    change("ssc-early-warning", "the block told of was not written", |pdu| {
        pdu.on_data(READ_6, |data| data[0] ^= 1);
    }),
    change("ssc-end-of-partition", BITS, |pdu| {
        pdu.on_sense(WRITE_6, |sense| {
            if sense[2] & 0xf == 0xd {
                sense[2] &= !EOM
            }
        });
    }),
    change("ssc-write-protect", "ERASE(6): expected sense 7/2700", |pdu| pdu.accept(ERASE)),
    change("ssc-worm-overwrite", "ERASE(6): expected DATA PROTECT", |pdu| pdu.accept(ERASE)),
    change("ssc-worm-overwrite", "READ(6) of the block that was kept: the block is not", |pdu| {
        pdu.on_data(READ_6, |data| data[0] ^= 1);
    }),
];

/// Adds 1 to the residual underflow of a command with this operation code.
fn miscount_residual(pdu: &mut Pdu, operation: u8) {
    let has_status = pdu.of(Opcode::SCSI_RESPONSE, operation)
        || pdu.of(Opcode::DATA_IN, operation) && pdu.flags() & STATUS != 0;
    if has_status && pdu.flags() & UNDERFLOW != 0 {
        pdu.add(RESIDUAL, 1);
    }
}
