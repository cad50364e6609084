//! WRITE and WRITE FILEMARKS: positions, durability, the end of the partition, protection.

use super::*;
use crate::contract::Access;

#[test]
fn what_is_written_ends_the_data() {
    let mut rig = tape();
    for salt in 0..5 {
        rig.write_block(&pattern(100, salt)).good();
    }
    rig.mark(2).good();
    assert_eq!(rig.position(), (0, 7, 2));
    rig.rewind();
    rig.space(0, 2).good();
    rig.write_block(&pattern(50, 9)).good();
    assert_eq!(rig.position(), (0, 3, 0));
    rig.read_block(50).stopped(END_OF_DATA, 0, Some(50));
    rig.space(0, -1).good();
    assert_eq!(rig.read_block(50).good(), pattern(50, 9));
}

#[test]
fn many_fixed_length_blocks_arrive_in_pieces() {
    let mut rig = tape();
    rig.set_block_len(1000);
    let data = pattern(5000 * 1000, 4);
    rig.run(A, &cdb_6(op::WRITE_6, 1, 5000), 0, &data).good();
    assert_eq!(rig.position(), (0, 5000, 0));
    rig.rewind();
    assert!(rig.run(A, &cdb_6(op::READ_6, 1, 5000), data.len(), &[]).good() == data);
    assert_eq!((rig.unit.stats().read_bytes, rig.unit.stats().write_bytes), (5_000_000, 5_000_000));
}

#[test]
fn nothing_is_written_with_a_transfer_length_of_zero() {
    let mut rig = tape();
    rig.run(A, &cdb_6(op::WRITE_6, 0, 0), 0, &[]).good();
    rig.mark(0).good();
    assert_eq!(rig.position(), (0, 0, 0));
}

#[test]
fn a_part_of_a_block_is_not_written() {
    let mut rig = tape();
    let reply = rig.run(A, &cdb_6(op::WRITE_6, 0, 1000), 0, &[0; 999]);
    reply.illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
    assert_eq!((reply.transferable, rig.position()), (1000, (0, 0, 0)));
}

#[test]
fn what_filemarks_acknowledged_survives_a_power_loss() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(700, 1)).good();
    rig.mark(1).good();
    rig.write_block(&pattern(800, 2)).good();
    rig.run(A, &cdb_6(op::WRITE_FILEMARKS_6, 1, 1), 0, &[]).good();
    let mut rig = Rig::with(drive(), Box::new(folder.after_power_loss()));
    assert_eq!(rig.read_block(700).good(), pattern(700, 1));
    rig.read_block(700).stopped(FILEMARK, MARK, Some(700));
    rig.read_block(700).stopped(END_OF_DATA, 0, Some(700));
}

#[test]
fn what_was_acknowledged_survives_the_end_of_the_process() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(700, 1)).good();
    let after_one = folder.after_kill();
    rig.run(A, &cdb_6(op::WRITE_FILEMARKS_6, 1, 1), 0, &[]).good();
    rig.write_block(&pattern(300_000, 2)).good();
    rig.set_block_len(512);
    rig.run(A, &cdb_6(op::WRITE_6, 1, 3000), 0, &pattern(3000 * 512, 3)).good();
    let mut rig = Rig::with(drive(), Box::new(after_one));
    assert_eq!(rig.read_block(700).good(), pattern(700, 1));
    rig.read_block(700).stopped(END_OF_DATA, 0, Some(700));
    let mut rig = Rig::with(drive(), Box::new(folder.after_kill()));
    assert_eq!(rig.read_block(700).good(), pattern(700, 1));
    rig.read_block(700).stopped(FILEMARK, MARK, Some(700));
    assert_eq!(rig.read_block(300_000).good(), pattern(300_000, 2));
    for block in pattern(3000 * 512, 3).chunks(512) {
        assert_eq!(rig.read_block(512).good(), block);
    }
    rig.read_block(512).stopped(END_OF_DATA, 0, Some(512));
}

#[test]
fn blocks_before_the_end_of_the_partition_survive_the_end_of_the_process() {
    let (mut rig, folder) = with(Kind { capacity: 32 << 20, ..Kind::USUAL });
    rig.set_block_len(1 << 20);
    let blocks = pattern(7 << 20, 1);
    while rig.run(A, &cdb_6(op::WRITE_6, 1, 7), 0, &blocks).sense != Some(FULL) {}
    let written = rig.position().1;
    assert!(written % 7 > 0, "some blocks of the last command fit");
    let mut rig = Rig::with(drive(), Box::new(folder.after_kill()));
    rig.space(3, 0).good();
    assert_eq!(rig.position().1, written);
}

#[test]
fn a_filemark_count_of_zero_makes_everything_durable() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(700, 1)).good();
    rig.mark(0).good();
    let mut rig = Rig::with(drive(), Box::new(folder.after_power_loss()));
    assert_eq!(rig.read_block(700).good(), pattern(700, 1));
}

#[test]
fn without_buffer_every_write_is_durable_and_no_filemark_immediate() {
    let (mut rig, folder) = with(Kind::USUAL);
    let list = [0, 0, 0x00, 8, 0, 0, 0, 0, 0, 0, 0, 0];
    rig.run(A, &[0x15, 0x10, 0, 0, 12, 0], 0, &list).good();
    rig.write_block(&pattern(700, 1)).good();
    rig.run(A, &cdb_6(op::WRITE_FILEMARKS_6, 1, 1), 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    let mut rig = Rig::with(drive(), Box::new(folder.after_power_loss()));
    assert_eq!(rig.read_block(700).good(), pattern(700, 1));
}

#[test]
fn a_lost_host_leaves_what_it_wrote() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(700, 1)).good();
    rig.unit.nexus_lost(Instant::ORIGIN, A);
    let mut rig = Rig::with(drive(), Box::new(folder.after_power_loss()));
    assert_eq!(rig.read_block(700).good(), pattern(700, 1));
}

#[test]
fn a_host_that_no_longer_sees_the_drive_leaves_what_it_wrote() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(700, 1)).good();
    rig.unit.nexus_withdrawn(Instant::ORIGIN, A);
    let mut rig = Rig::with(drive(), Box::new(folder.after_power_loss()));
    assert_eq!(rig.read_block(700).good(), pattern(700, 1));
}

#[test]
fn the_early_warning_says_that_everything_was_written_until_the_partition_is_full() {
    let (mut rig, _) = with(Kind { capacity: 32 << 20, ..Kind::USUAL });
    let block = pattern(1 << 20, 1);
    let (mut written, mut warned) = (0_u64, 0);
    loop {
        let reply = rig.write_block(&block);
        match reply.sense {
            None => assert_eq!(warned, 0, "once it warned, it warns with every block"),
            Some(WARNING) => {
                reply.stopped(WARNING, EOM, Some(0));
                warned += 1;
            }
            _ => {
                reply.stopped(FULL, EOM, Some(1 << 20));
                break;
            }
        }
        written += 1;
        assert_eq!(rig.position().1, written);
    }
    assert!(warned > 0 && written > 20, "{warned} of {written}");
    assert_eq!(rig.query(&[0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0])[0] & 0x40, 0x40, "EOP");
    rig.mark(1).stopped(WARNING, EOM, Some(0));
    rig.rewind();
    for _ in 0..written {
        assert!(rig.read_block(1 << 20).good() == block);
    }
    rig.read_block(1 << 20).stopped(FILEMARK, MARK, Some(1 << 20));
}

#[test]
fn filemarks_of_which_only_some_fit_are_not_forgotten() {
    let (mut rig, folder) = with(Kind { capacity: 32 << 20, ..Kind::USUAL });
    let block = pattern(1 << 20, 1);
    while rig.write_block(&block).sense != Some(FULL) {}
    rig.mark(0).good();
    let before = rig.position().1;
    rig.mark((1 << 24) - 1).check(FULL.0, FULL.1);
    let after = rig.position().1;
    assert!(after > before);
    assert_eq!(rig.query(&[0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0])[0] & 0x30, 0, "LOCU and BYCU");
    let mut rig = Rig::with(drive(), Box::new(folder.after_power_loss()));
    rig.space(3, 0).good();
    assert_eq!(rig.position().1, after, "what the sense data report as written is durable");
}

#[test]
fn immediate_filemarks_of_which_only_some_fit_are_not_forgotten() {
    let (mut rig, folder) = with(Kind { capacity: 32 << 20, ..Kind::USUAL });
    let block = pattern(1 << 20, 1);
    while rig.write_block(&block).sense != Some(FULL) {}
    rig.run(A, &cdb_6(op::WRITE_FILEMARKS_6, 1, (1 << 24) - 1), 0, &[]).check(FULL.0, FULL.1);
    let after = rig.position().1;
    assert_eq!(rig.query(&[0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0])[0] & 0x30, 0x30, "LOCU and BYCU");
    rig.unit.nexus_lost(Instant::ORIGIN, A);
    let mut rig = Rig::with(drive(), Box::new(folder.after_power_loss()));
    rig.space(3, 0).good();
    assert_eq!(rig.position().1, after);
}

#[test]
fn without_buffer_the_blocks_before_the_end_of_the_partition_are_durable() {
    let (mut rig, folder) = with(Kind { capacity: 32 << 20, ..Kind::USUAL });
    // Not buffered, and blocks of 1 MiB.
    let list = [0, 0, 0x00, 8, 0, 0, 0, 0, 0, 0x10, 0, 0];
    rig.run(A, &[0x15, 0x10, 0, 0, 12, 0], 0, &list).good();
    let (write, data) = (cdb_6(op::WRITE_6, 1, 8), pattern(8 << 20, 1));
    let last = loop {
        let reply = rig.run(A, &write, 0, &data);
        if reply.sense == Some(FULL) {
            break reply;
        }
    };
    let left = last.information().unwrap();
    assert!((1..8).contains(&left), "the last command writes some of its blocks: {left} are left");
    let written = rig.position().1;
    let mut rig = Rig::with(drive(), Box::new(folder.after_power_loss()));
    rig.space(3, 0).good();
    assert_eq!(rig.position().1, written, "what the sense data report as written is durable");
}

#[test]
fn what_is_written_on_worm_stays() {
    let (mut rig, _) = with(Kind { is_worm: true, ..Kind::USUAL });
    rig.write_block(&pattern(100, 1)).good();
    rig.mark(1).good();
    rig.rewind();
    let refusal = (SenseKey::DATA_PROTECT, Asc::WORM_OVERWRITE_ATTEMPTED);
    assert_eq!(rig.write_block(&[0; 10]).sense, Some(refusal));
    assert_eq!(rig.mark(1).sense, Some(refusal));
    assert_eq!(rig.run(A, &[op::ERASE_6, 1, 0, 0, 0, 0], 0, &[]).sense, Some(refusal));
    rig.space(3, 0).good();
    rig.write_block(&pattern(10, 2)).good();
    rig.rewind();
    assert_eq!(rig.read_block(100).good(), pattern(100, 1));
}

#[test]
fn a_protected_unit_refuses_every_change() {
    let (mut rig, folder) = with(Kind::USUAL);
    rig.write_block(&pattern(100, 1)).good();
    rig.mark(1).good();
    let config = UnitConfig { read_only: true, ..drive() };
    let mut rig = Rig::with(config, Box::new(folder.after_power_loss()));
    let refusal = (SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED);
    for cdb in [cdb_6(op::WRITE_FILEMARKS_6, 0, 1), [op::ERASE_6, 0, 0, 0, 0, 0]] {
        assert_eq!(rig.run(A, &cdb, 0, &[]).sense, Some(refusal));
    }
    assert_eq!(rig.write_block(&[0; 10]).sense, Some(refusal));
    assert_eq!(rig.query(&[0x1a, 0, 0, 0, 12, 0])[2] & 0x80, 0x80, "WP");
    assert_eq!(rig.read_block(100).good(), pattern(100, 1));
}

#[test]
fn a_host_that_may_only_read_reads() {
    let mut rig = tape();
    rig.write_block(&pattern(100, 1)).good();
    rig.rewind();
    let nexus = crate::contract::Nexus { access: Access::ReadOnly, ..crate::testing::nexus(A) };
    rig.unit.nexus_changed(Instant::ORIGIN, nexus);
    rig.test_ready(A).check(SenseKey::UNIT_ATTENTION, Asc::MODE_PARAMETERS_CHANGED);
    assert_eq!(rig.read_block(100).good(), pattern(100, 1));
    let refusal = (SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED);
    assert_eq!(rig.write_block(&[0; 10]).sense, Some(refusal));
    assert_eq!(rig.run(A, &[0x1b, 0, 0, 0, 0, 0], 0, &[]).sense, Some(refusal));
}

#[test]
fn compression_is_the_choice_of_the_host() {
    let (mut rig, folder) = with(Kind::USUAL);
    let mut page = rig.query(&[0x1a, 8, 0x0f, 0, 255, 0]);
    assert_eq!(page[4..8], [0x0f, 14, 0x40, 0x80], "DCC, and not DCE");
    (page[0], page[6]) = (0, 0xc0);
    rig.run(A, &[0x15, 0x10, 0, 0, u8::try_from(page.len()).unwrap(), 0], 0, &page).good();
    rig.write_block(&vec![7; 1 << 20]).good();
    rig.mark(1).good();
    let mut rig = Rig::with(drive(), Box::new(folder.after_power_loss()));
    assert_eq!(rig.read_block(1 << 20).good(), vec![7; 1 << 20]);
    let used = rig.query(&[0x4d, 0, 0x57, 0, 0, 0, 0x17, 0, 255, 0]);
    assert_eq!(used[4..12], [0, 0x17, 0x23, 4, 0, 0, 0, 0], "less than a megabyte is used");
}

/// What `mt stsetoptions two-fms` makes Linux do, and Bacula by itself: the data of each session end with two
/// filemarks, and the next session begins between them.
#[test]
fn sessions_with_two_filemarks_follow_each_other_on_worm() {
    let (mut rig, _) = with(Kind { is_worm: true, ..Kind::USUAL });
    for session in 0..3 {
        rig.write_block(&pattern(5000, session)).good();
        rig.mark(2).good();
        rig.space(1, -1).good();
        assert_eq!(rig.position(), (0, 2 * u64::from(session) + 2, u64::from(session) + 1));
    }
    rig.space(1, -1).good();
    rig.write_block(&[0; 10]).check(SenseKey::DATA_PROTECT, Asc::WORM_OVERWRITE_ATTEMPTED);
    rig.rewind();
    for session in 0..3 {
        assert_eq!(rig.read_block(5000).good(), pattern(5000, session));
        rig.read_block(5000).stopped(FILEMARK, MARK, Some(5000));
    }
}
