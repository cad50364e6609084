//! VERIFY and WRITE AND VERIFY.

use alloc::vec::Vec;

use crate::testing::{A, BLOCKS, Rig, cdb_10, cdb_12, cdb_16, cdb_32, pattern};
use scsi::opcode as op;
use scsi::opcode::variable_length as long;
use scsi::sense::{Asc, SenseKey};

fn verifies(flags: u8, lba: u32, blocks: u16) -> Vec<Vec<u8>> {
    let (wide, many) = (u64::from(lba), u32::from(blocks));
    Vec::from([
        cdb_10(op::VERIFY_10, flags, lba, blocks).to_vec(),
        cdb_12(op::VERIFY_12, flags, lba, many).to_vec(),
        cdb_16(op::VERIFY_16, flags, wide, many).to_vec(),
        cdb_32(long::VERIFY_32, flags, wide, many).to_vec(),
    ])
}

fn writes(flags: u8, lba: u32, blocks: u16) -> Vec<Vec<u8>> {
    let (wide, many) = (u64::from(lba), u32::from(blocks));
    Vec::from([
        cdb_10(op::WRITE_AND_VERIFY_10, flags, lba, blocks).to_vec(),
        cdb_12(op::WRITE_AND_VERIFY_12, flags, lba, many).to_vec(),
        cdb_16(op::WRITE_AND_VERIFY_16, flags, wide, many).to_vec(),
        cdb_32(long::WRITE_AND_VERIFY_32, flags, wide, many).to_vec(),
    ])
}

#[test]
fn every_byte_is_compared_when_asked() {
    let mut rig = Rig::new();
    let data = pattern(4 * 512, 1);
    rig.write(3, &data);
    for cdb in verifies(0x02, 3, 4) {
        rig.run(A, &cdb, 0, &data).good();
        for at in [0, 511, 512, 2047] {
            let mut other = data.clone();
            other[at] ^= 0x58;
            let reply = rig.run(A, &cdb, 0, &other);
            reply.check(SenseKey::MISCOMPARE, Asc::MISCOMPARE_DURING_VERIFY);
            assert_eq!(reply.information(), Some(u32::try_from(at).unwrap()));
        }
    }
}

#[test]
fn nothing_is_compared_and_nothing_fetched_when_not_asked() {
    let mut rig = Rig::new();
    for flags in [0x00, 0x10] {
        for cdb in verifies(flags, 0, 4) {
            let reply = rig.run(A, &cdb, 0, &[0xff; 2048]);
            assert_eq!(reply.transferable, 0);
            reply.good();
        }
    }
}

#[test]
fn one_block_is_compared_with_all_when_asked() {
    let mut rig = Rig::new();
    let block = pattern(512, 7);
    rig.write(0, &block.repeat(5));
    for cdb in verifies(0x06, 0, 5) {
        rig.run(A, &cdb, 0, &block).good();
        rig.run(A, &cdb, 0, &block.repeat(5)).illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
    }
    rig.write(4, &[0; 512]);
    for cdb in verifies(0x06, 0, 5) {
        let reply = rig.run(A, &cdb, 0, &block);
        reply.check(SenseKey::MISCOMPARE, Asc::MISCOMPARE_DURING_VERIFY);
        assert_eq!(reply.information(), Some(4 * 512));
    }
}

#[test]
fn a_long_comparison_crosses_parts() {
    let mut rig = Rig::new();
    let mut data = pattern((1 << 20) + 1024, 3);
    let blocks = u32::try_from(data.len() / 512).unwrap();
    rig.write(1, &data);
    rig.run(A, &cdb_16(op::VERIFY_16, 2, 1, blocks), 0, &data).good();
    data[(1 << 20) + 5] ^= 1;
    let reply = rig.run(A, &cdb_16(op::VERIFY_16, 2, 1, blocks), 0, &data);
    assert_eq!(reply.information(), Some((1 << 20) + 5));
    rig.run(A, &cdb_16(op::WRITE_AND_VERIFY_16, 2, 1, blocks), 0, &data).good();
    assert!(rig.read(1, blocks) == data);
}

#[test]
fn other_ways_to_compare_and_protection_are_refused() {
    let mut rig = Rig::new();
    for cdb in verifies(0x04, 0, 1).iter().chain(&writes(0x04, 0, 1)).chain(&writes(0x06, 0, 1)) {
        rig.run(A, cdb, 0, &[0; 512]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
    for protect in 1..8 {
        for cdb in verifies(protect << 5 | 2, 0, 1).iter().chain(&writes(protect << 5, 0, 1)) {
            rig.run(A, cdb, 0, &[0; 512]).illegal(Asc::INVALID_FIELD_IN_CDB);
        }
    }
}

#[test]
fn what_is_written_and_verified_is_there() {
    let mut rig = Rig::new();
    for (salt, flags) in [(1, 0), (2, 0x02), (3, 0x12)] {
        for cdb in writes(flags, 9, 2) {
            let data = pattern(1024, salt);
            rig.run(A, &cdb, 0, &data).good();
            assert_eq!(rig.read(9, 2), data);
        }
    }
}

#[test]
fn residuals_of_verifying_writes_are_those_of_writes() {
    let mut rig = Rig::new();
    for (blocks, sent, written) in [(1, 0, 0), (1, 10_000, 512), (2, 512, 512), (1, 1024, 512)] {
        rig.write(0, &[b'a'; 1024]);
        for cdb in writes(0x02, 0, blocks) {
            let reply = rig.run(A, &cdb, 0, &alloc::vec![b'b'; sent]);
            assert_eq!(reply.transferable, u64::from(blocks) * 512);
            reply.good();
        }
        let found = rig.read(0, 2);
        assert!(found[..written].iter().all(|b| *b == b'b') && found[written..].iter().all(|b| *b == b'a'));
    }
    let reply = rig.run(A, &writes(0x02, 0, 1)[0], 0, &[0; 200]);
    reply.illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
    assert_eq!(reply.transferable, 512);
}

#[test]
fn ranges_are_those_of_reads() {
    let mut rig = Rig::new();
    let end = u32::try_from(BLOCKS).unwrap();
    for (lba, blocks) in [(end + 1, 0), (end, 1), (end - 1, 2), (u32::MAX, 1)] {
        for cdb in
            verifies(2, lba, blocks).iter().chain(&verifies(0, lba, blocks)).chain(&writes(0, lba, blocks))
        {
            rig.run(A, cdb, 0, &[0; 1024]).illegal(Asc::LBA_OUT_OF_RANGE);
        }
    }
}

#[test]
fn only_what_is_written_counts_as_written() {
    let mut rig = Rig::new();
    rig.write(1, &[7; 512]);
    let counted = |rig: &Rig| (rig.unit.stats().writes, rig.unit.stats().write_bytes);
    assert_eq!(counted(&rig), (1, 512));
    let compare = |rig: &mut Rig, expected: u8| {
        let mut cdb = [0; 16];
        (cdb[0], cdb[9], cdb[13]) = (op::COMPARE_AND_WRITE, 1, 1);
        rig.run(A, &cdb, 0, &[[expected; 512], [7; 512]].concat())
    };
    compare(&mut rig, 9).check(SenseKey::MISCOMPARE, Asc::MISCOMPARE_DURING_VERIFY);
    let verify = cdb_16(op::VERIFY_16, 2, 1, 1);
    rig.run(A, &verify, 0, &[9; 512]).check(SenseKey::MISCOMPARE, Asc::MISCOMPARE_DURING_VERIFY);
    rig.run(A, &verify, 0, &[7; 512]).good();
    let same = cdb_16(op::WRITE_SAME_16, 0, 1, 4);
    rig.run(A, &same, 0, &[7; 1024]).illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
    assert_eq!(counted(&rig), (1, 512));
    compare(&mut rig, 7).good();
    assert_eq!(counted(&rig), (2, 1024));
    rig.run(A, &same, 0, &[7; 512]).good();
    assert_eq!(counted(&rig), (3, 3072));
}
