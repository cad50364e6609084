use crate::testing::{A, B, BLOCKS, Rig, cdb_10, cdb_16, pattern};
use scsi::opcode as op;
use scsi::sense::Asc;

#[test]
fn what_one_nexus_writes_the_other_reads() {
    let mut rig = Rig::new();
    let data = pattern(8 * 512, 1);
    rig.run(A, &cdb_10(op::WRITE_10, 0, 5, 8), 0, &data).good();
    assert_eq!(rig.run(B, &cdb_16(op::READ_16, 0, 5, 8), 4096, &[]).good(), data);
}

#[test]
fn a_transfer_of_many_parts_arrives_whole_and_in_order() {
    let mut rig = Rig::new();
    let len = usize::try_from(BLOCKS).unwrap() * 512 - 1024;
    let data = pattern(len, 2);
    let blocks = u32::try_from(len / 512).unwrap();
    rig.run(A, &cdb_16(op::WRITE_16, 0, 1, blocks), 0, &data).good();
    assert_eq!(rig.run(A, &cdb_16(op::READ_16, 0, 1, blocks), len, &[]).good(), data);
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
    ] {
        let reply = rig.run(A, &cdb_16(op::READ_16, 0, lba, blocks), 1024, &[]);
        if fits {
            reply.good();
        } else {
            reply.illegal(Asc::LBA_OUT_OF_RANGE);
        }
    }
}
