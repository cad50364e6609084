//! READ and WRITE of every length, READ CAPACITY, the cache.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use crate::testing::{A, B, BLOCKS, Rig, cdb_10, cdb_12, cdb_16, cdb_32, config, pattern};
use base::units::BlockSize;
use scsi::opcode as op;
use scsi::opcode::variable_length as long;
use scsi::sense::{Asc, SenseKey};
use scsi::status::Status;
use store::ram::Ram;

fn cdb_6(opcode: u8, lba: u16, blocks: u8) -> [u8; 6] {
    let [high, low] = lba.to_be_bytes();
    [opcode, 0, high, low, blocks, 0]
}

/// Returns every form of READ for `blocks` at `lba`.
fn reads(flags: u8, lba: u32, blocks: u16) -> Vec<Vec<u8>> {
    let (wide, many) = (u64::from(lba), u32::from(blocks));
    vec![
        cdb_10(op::READ_10, flags, lba, blocks).to_vec(),
        cdb_12(op::READ_12, flags, lba, many).to_vec(),
        cdb_16(op::READ_16, flags, wide, many).to_vec(),
        cdb_32(long::READ_32, flags, wide, many).to_vec(),
    ]
}

/// Returns every form of WRITE for `blocks` at `lba`.
fn writes(flags: u8, lba: u32, blocks: u16) -> Vec<Vec<u8>> {
    let (wide, many) = (u64::from(lba), u32::from(blocks));
    vec![
        cdb_10(op::WRITE_10, flags, lba, blocks).to_vec(),
        cdb_12(op::WRITE_12, flags, lba, many).to_vec(),
        cdb_16(op::WRITE_16, flags, wide, many).to_vec(),
        cdb_32(long::WRITE_32, flags, wide, many).to_vec(),
    ]
}

#[test]
fn what_one_nexus_writes_in_any_form_the_other_reads_in_any_form() {
    let mut rig = Rig::new();
    let mut forms = writes(0, 7, 3);
    forms.push(cdb_6(op::WRITE_6, 7, 3).to_vec());
    for (salt, write) in (0..).zip(&forms) {
        let data = pattern(3 * 512, salt);
        rig.run(A, write, 0, &data).good();
        for read in reads(0, 7, 3).iter().chain([&cdb_6(op::READ_6, 7, 3).to_vec()]) {
            assert_eq!(rig.run(B, read, 3 * 512, &[]).good(), data, "{write:02x?} {read:02x?}");
        }
    }
}

#[test]
fn six_bytes_with_a_length_of_zero_mean_256_blocks() {
    let mut rig = Rig::new();
    let data = pattern(256 * 512, 9);
    rig.run(A, &cdb_6(op::WRITE_6, 10, 0), 0, &data).good();
    assert_eq!(rig.run(A, &cdb_6(op::READ_6, 10, 0), data.len(), &[]).good(), data);
    let lba = u16::try_from(BLOCKS).unwrap() - 255;
    rig.run(A, &cdb_6(op::READ_6, lba, 0), data.len(), &[]).illegal(Asc::LBA_OUT_OF_RANGE);
}

#[test]
fn caching_bits_are_taken_and_protection_bits_are_not() {
    let mut rig = Rig::new();
    let data = pattern(512, 1);
    for flags in [0x08, 0x10, 0x18, 0x02, 0x0a, 0x1a] {
        for write in writes(flags, 0, 1) {
            rig.run(A, &write, 0, &data).good();
        }
        for read in reads(flags, 0, 1) {
            assert_eq!(rig.run(A, &read, 512, &[]).good(), data);
        }
    }
    for protect in 1..8 {
        for cdb in writes(protect << 5, 0, 1) {
            rig.run(A, &cdb, 0, &data).illegal(Asc::INVALID_FIELD_IN_CDB);
        }
        for cdb in reads(protect << 5, 0, 1) {
            rig.run(A, &cdb, 512, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
        }
    }
}

#[test]
fn a_wrong_bit_is_pointed_at() {
    let mut rig = Rig::new();
    let reply = rig.run(A, &cdb_10(op::READ_10, 0x20, 0, 1), 512, &[]);
    // SKSV, C/D, BPV and bit 5 of byte 1.
    assert_eq!(reply.sense_bytes[15..18], [0xcd, 0, 1]);
    let mut cdb = cdb_10(op::READ_10, 0, 0, 1);
    cdb[9] = 0x04;
    let reply = rig.run(A, &cdb, 512, &[]);
    reply.illegal(Asc::INVALID_FIELD_IN_CDB);
    assert_eq!(reply.sense_bytes[15..18], [0xca, 0, 9], "NACA is refused");
    let mut cdb = cdb_32(long::READ_32, 0, 0, 1);
    cdb[11] = 0x40;
    assert_eq!(rig.run(A, &cdb, 512, &[]).sense_bytes[15..18], [0xce, 0, 11]);
    cdb[11] = 0;
    cdb[7] = 0x10;
    rig.run(A, &cdb, 512, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn addresses_beyond_the_medium_are_out_of_range() {
    let mut rig = Rig::new();
    for (lba, blocks, fits) in [
        (BLOCKS - 1, 1, true),
        (BLOCKS, 0, true),
        (BLOCKS - 1, 2, false),
        (BLOCKS, 1, false),
        (BLOCKS + 1, 0, false),
        (u64::MAX, 0, false),
        (u64::MAX, 1, false),
        (1 << 63, 1, false),
        (0, u32::MAX, false),
    ] {
        for code in
            [op::READ_16, op::WRITE_16, op::WRITE_SAME_16, op::ORWRITE_16, op::VERIFY_16, op::PRE_FETCH_16]
        {
            let reading = matches!(code, op::READ_16 | op::VERIFY_16 | op::PRE_FETCH_16);
            let (room, out) = if reading { (512, vec![]) } else { (0, vec![0; 512]) };
            let reply = rig.run(A, &cdb_16(code, 0, lba, blocks), room, &out);
            if fits {
                reply.good();
            } else {
                reply.illegal(Asc::LBA_OUT_OF_RANGE);
            }
        }
    }
}

#[test]
fn a_transfer_longer_than_the_unit_takes_is_refused_and_the_longest_is_not() {
    let mut rig = Rig::with(
        crate::contract::UnitConfig { transfer_blocks_max: 16, ..config() },
        Box::new(Ram::new(BLOCKS * 512)),
    );
    let data = pattern(16 * 512, 3);
    rig.write(0, &data);
    assert_eq!(rig.read(0, 16), data);
    for cdb in reads(0, 0, 17) {
        rig.run(A, &cdb, 17 * 512, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
    for cdb in writes(0, 0, 17) {
        rig.run(A, &cdb, 0, &[0; 17 * 512]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
}

#[test]
fn a_transfer_of_many_parts_arrives_whole_and_in_order() {
    for (config, fua) in [(config(), 0), (config(), 8)] {
        let mut rig = Rig::with(config, Box::new(Ram::new(20 << 20)));
        let len = (7 << 20) + 512;
        let blocks = u32::try_from(len / 512).unwrap();
        let data = pattern(len, 2);
        rig.run(A, &cdb_16(op::WRITE_16, fua, 1, blocks), 0, &data).good();
        assert!(rig.run(A, &cdb_16(op::READ_16, fua, 1, blocks), len, &[]).good() == data);
        // The initiator accepts fewer bytes: they are complete and in order up to that length.
        let room = (3 << 20) + 100;
        let reply = rig.run(A, &cdb_16(op::READ_16, 0, 1, blocks), room, &[]);
        assert_eq!(reply.transferable, u64::try_from(len).unwrap());
        assert!(reply.good() == data[..room]);
    }
}

#[test]
fn residuals_follow_what_would_have_been_transferred() {
    let mut rig = Rig::new();
    let data = pattern(1024, 4);
    rig.write(0, &data);
    for (blocks, room, delivered) in
        [(1, 0, 0), (1, 10_000, 512), (1, 200, 200), (2, 512, 512), (2, 700, 700)]
    {
        let reply = rig.run(A, &cdb_10(op::READ_10, 0, 0, blocks), room, &[]);
        assert_eq!(reply.transferable, u64::from(blocks) * 512);
        assert_eq!(reply.good(), data[..delivered]);
    }
    for (blocks, sent, written) in [(1, 0, 0), (1, 1024, 512), (2, 512, 512), (1, 10_000, 512)] {
        rig.write(0, &[b'a'; 1024]);
        let reply = rig.run(A, &cdb_10(op::WRITE_10, 0, 0, blocks), 0, &vec![b'b'; sent]);
        assert_eq!(reply.transferable, u64::from(blocks) * 512);
        reply.good();
        let found = rig.read(0, 2);
        assert!(found[..written].iter().all(|b| *b == b'b') && found[written..].iter().all(|b| *b == b'a'));
    }
}

#[test]
fn part_of_a_block_is_not_written() {
    let mut rig = Rig::new();
    rig.write(0, &[b'a'; 512]);
    for cdb in writes(0, 0, 1) {
        let reply = rig.run(A, &cdb, 0, &[b'b'; 200]);
        reply.illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
        assert_eq!(reply.transferable, 512);
    }
    assert_eq!(rig.read(0, 1), [b'a'; 512]);
}

#[test]
fn a_read_whose_initiator_sends_moves_nothing_and_a_write_whose_initiator_receives_is_refused() {
    let mut rig = Rig::new();
    let reply = rig.run(A, &cdb_10(op::READ_10, 0, 0, 1), 0, &[0; 512]);
    assert_eq!((reply.status, reply.transferable, reply.data.len()), (Status::GOOD, 0, 0));
    let refused = Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT;
    rig.run(A, &cdb_10(op::WRITE_10, 0, 0, 1), 512, &[]).illegal(refused);
    rig.run(A, &cdb_10(op::READ_10, 0, 0, 1), 512, &[0; 512]).illegal(refused);
}

#[test]
fn a_transfer_of_no_blocks_is_good() {
    let mut rig = Rig::new();
    for cdb in reads(0, 5, 0).iter().chain(&writes(0, 5, 0)) {
        let reply = rig.run(A, cdb, 0, &[]);
        assert_eq!((reply.status, reply.transferable), (Status::GOOD, 0));
    }
}

#[test]
fn capacity_is_told_in_both_forms() {
    let mut rig = Rig::new();
    let last = u32::try_from(BLOCKS).unwrap() - 1;
    let mut expected = last.to_be_bytes().to_vec();
    expected.extend(512u32.to_be_bytes());
    assert_eq!(rig.run(A, &[op::READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8, &[]).good(), expected);
    let mut long = vec![0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0];
    let data = rig.run(A, &long, 32, &[]).good();
    assert_eq!(data[..8], (BLOCKS - 1).to_be_bytes());
    assert_eq!(data[8..16], [0, 0, 2, 0, 0, 3, 0xc0, 0]);
    for allocation in 0..16 {
        long[13] = allocation;
        let reply = rig.run(A, &long, 100, &[]);
        assert_eq!(reply.transferable, u64::from(allocation));
        assert_eq!(reply.good(), data[..usize::from(allocation)]);
    }
    rig.run(A, &[op::READ_CAPACITY_10, 0, 0, 0, 0, 1, 0, 0, 0, 0], 8, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    rig.run(A, &[0x9e, 0x11, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0], 32, &[])
        .illegal(Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn a_unit_too_large_for_ten_bytes_says_so() {
    let mut rig = Rig::with(config(), Box::new(Ram::new(3 << 40)));
    let data = rig.run(A, &[op::READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8, &[]).good();
    assert_eq!(data[..4], [0xff; 4]);
    let far = (3 << 40) / 512 - 1;
    rig.write(far, &[7; 512]);
    assert_eq!(rig.read(far, 1), [7; 512]);
}

#[test]
fn blocks_of_4096_bytes_work_like_those_of_512() {
    let config =
        crate::contract::UnitConfig { block_size: BlockSize::B4096, physical_exponent: 0, ..config() };
    // The medium ends within a block, which is therefore not usable.
    let mut rig = Rig::with(config, Box::new(Ram::new(100 * 4096 + 512)));
    let data = pattern(2 * 4096, 8);
    rig.write(98, &data);
    assert_eq!(rig.read(98, 2), data);
    rig.run(A, &cdb_10(op::READ_10, 0, 99, 2), 8192, &[]).illegal(Asc::LBA_OUT_OF_RANGE);
}

#[test]
fn synchronizing_takes_any_range_on_the_medium() {
    let mut rig = Rig::new();
    let end = u32::try_from(BLOCKS).unwrap();
    for (lba, blocks, fits) in
        [(0, 0, true), (5, 7, true), (end, 0, true), (end, 1, false), (end + 1, 0, false)]
    {
        for flags in [0, 2, 4, 6] {
            let short = rig.run(A, &cdb_10(op::SYNCHRONIZE_CACHE_10, flags, lba, blocks), 0, &[]);
            let long =
                rig.run(A, &cdb_16(op::SYNCHRONIZE_CACHE_16, flags, lba.into(), blocks.into()), 0, &[]);
            for reply in [short, long] {
                if fits {
                    reply.good();
                } else {
                    reply.illegal(Asc::LBA_OUT_OF_RANGE);
                }
            }
        }
    }
}

#[test]
fn prefetching_promises_nothing() {
    let mut rig = Rig::new();
    for immediate in [0, 2] {
        rig.run(A, &cdb_10(op::PRE_FETCH_10, immediate, 0, 1), 0, &[]).good();
        rig.run(A, &cdb_16(op::PRE_FETCH_16, immediate, 0, 0), 0, &[]).good();
    }
    let mut grouped = cdb_10(op::PRE_FETCH_10, 0, 0, 1);
    grouped[6] = 3;
    rig.run(A, &grouped, 0, &[]).good();
}

#[test]
fn there_are_no_defects() {
    let mut rig = Rig::new();
    let ten = [op::READ_DEFECT_DATA_10, 0, 0x1d, 0, 0, 0, 0, 0, 32, 0];
    assert_eq!(rig.run(A, &ten, 32, &[]).good(), [0, 0x1d, 0, 0]);
    let twelve = [op::READ_DEFECT_DATA_12, 0x08, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0];
    assert_eq!(rig.run(A, &twelve, 32, &[]).good(), [0, 8, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_read_only_nexus_and_a_read_only_unit_meet_write_protection() {
    let mut config = config();
    config.read_only = true;
    let mut closed = Rig::with(config, Box::new(Ram::new(BLOCKS * 512)));
    let mut open = Rig::new();
    let mut limited = crate::testing::nexus(B);
    limited.access = crate::contract::Access::ReadOnly;
    open.unit.nexus_changed(base::time::Instant::ORIGIN, limited);
    open.run(B, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::MODE_PARAMETERS_CHANGED);
    for rig in [&mut closed, &mut open] {
        for cdb in writes(0, 0, 1) {
            rig.run(B, &cdb, 0, &[0; 512]).check(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED);
        }
        rig.read(0, 1);
    }
    open.write(0, &[1; 512]);
}

#[test]
fn unknown_commands_are_told_apart_from_unknown_service_actions() {
    let mut rig = Rig::new();
    for code in [op::REASSIGN_BLOCKS, 0xff, 0xc0, 0x7e] {
        rig.run(A, &[code, 0, 0, 0, 0, 0], 0, &[]).illegal(Asc::INVALID_COMMAND_OPERATION_CODE);
    }
    let unknown = cdb_32(0x7777, 0, 0, 1);
    let reply = rig.run(A, &unknown, 0, &[]);
    reply.illegal(Asc::INVALID_FIELD_IN_CDB);
    assert_eq!(reply.sense_bytes[15..18], [0xc0, 0, 8]);
}
