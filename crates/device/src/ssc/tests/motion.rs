//! SPACE, LOCATE, REWIND, ERASE and READ POSITION.

use super::*;

/// Three files: blocks 0 to 9, mark 10, blocks 11 to 13, marks 14 and 15, block 16; rewound.
fn three_files() -> Rig {
    let mut rig = tape();
    for salt in 0..10 {
        rig.write_block(&pattern(100, salt)).good();
    }
    rig.mark(1).good();
    for salt in 11..14 {
        rig.write_block(&pattern(100, salt)).good();
    }
    rig.mark(2).good();
    rig.write_block(&pattern(100, 16)).good();
    rig.rewind();
    rig
}

const BLOCKS: u8 = 0;
const FILEMARKS: u8 = 1;
const END: u8 = 3;

#[test]
fn spaces_over_blocks_up_to_a_filemark() {
    let mut rig = three_files();
    rig.space(BLOCKS, 7).good();
    assert_eq!(rig.position(), (0, 7, 0));
    rig.space(BLOCKS, -2).good();
    assert_eq!(rig.read_block(100).good(), pattern(100, 5));
    rig.space(BLOCKS, 10).stopped(FILEMARK, MARK, Some(6));
    assert_eq!(rig.position(), (0, 11, 1));
    rig.space(BLOCKS, -3).stopped(FILEMARK, MARK, Some(3));
    assert_eq!(rig.position(), (0, 10, 0), "before the filemark");
    rig.space(BLOCKS, -20).stopped(BEGINNING, EOM, Some(10));
    rig.space(END, 0).good();
    assert_eq!(rig.position(), (0, 17, 3));
    rig.space(BLOCKS, 1).stopped(END_OF_DATA, 0, Some(1));
    rig.space(BLOCKS, 0).good();
}

#[test]
fn spaces_over_filemarks() {
    let mut rig = three_files();
    rig.space(FILEMARKS, 2).good();
    assert_eq!(rig.position(), (0, 15, 2));
    rig.space(FILEMARKS, -1).good();
    assert_eq!(rig.position(), (0, 14, 1), "before the filemark");
    rig.space(FILEMARKS, -2).stopped(BEGINNING, EOM, Some(1));
    rig.space(FILEMARKS, 5).stopped(END_OF_DATA, 0, Some(2));
    assert_eq!(rig.position(), (0, 17, 3));
}

#[test]
fn the_sixteen_byte_form_counts_with_64_bits() {
    let mut rig = three_files();
    let mut cdb = [0; 16];
    cdb[..2].copy_from_slice(&[op::SPACE_16, FILEMARKS]);
    cdb[4..12].copy_from_slice(&3_u64.to_be_bytes());
    rig.run(A, &cdb, 0, &[]).good();
    assert_eq!(rig.position(), (0, 16, 3));
    cdb[4..12].copy_from_slice(&(-1_i64).to_be_bytes());
    rig.run(A, &cdb, 0, &[]).good();
    assert_eq!(rig.position(), (0, 15, 2));
    cdb[4..12].copy_from_slice(&i64::MIN.to_be_bytes());
    rig.run(A, &cdb, 0, &[]).check(BEGINNING.0, BEGINNING.1);
    assert_eq!(rig.position(), (0, 0, 0));
}

#[test]
fn other_codes_of_space_are_refused() {
    let mut rig = three_files();
    for code in [2, 4, 5, 6, 7] {
        rig.space(code, 1).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
    assert_eq!(rig.position(), (0, 0, 0));
}

#[test]
fn locates_objects_files_and_the_end() {
    let mut rig = three_files();
    for (object, filemarks) in [(3, 0), (16, 3), (11, 1), (0, 0), (17, 3)] {
        let [a, b, c, d] = u32::to_be_bytes(object);
        rig.run(A, &[op::LOCATE_10, 4, 0, a, b, c, d, 0, 0, 0], 0, &[]).good();
        assert_eq!(rig.position(), (0, u64::from(object), filemarks));
    }
    let locate = |kind: u8, number: u64| {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1]) = (op::LOCATE_16, kind << 3);
        cdb[4..12].copy_from_slice(&number.to_be_bytes());
        cdb
    };
    rig.run(A, &locate(0, 12), 0, &[]).good();
    assert_eq!(rig.read_block(100).good(), pattern(100, 12));
    rig.run(A, &locate(1, 3), 0, &[]).good();
    assert_eq!(rig.read_block(100).good(), pattern(100, 16));
    rig.run(A, &locate(1, 0), 0, &[]).good();
    assert_eq!(rig.position(), (0, 0, 0));
    rig.run(A, &locate(3, 0), 0, &[]).good();
    assert_eq!(rig.position(), (0, 17, 3));
    rig.run(A, &locate(0, 18), 0, &[]).check(END_OF_DATA.0, END_OF_DATA.1);
    assert_eq!(rig.position(), (0, 17, 3));
    for kind in [2, 4, 5, 6, 7] {
        rig.run(A, &locate(kind, 0), 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
}

#[test]
fn partitions_have_objects_of_their_own() {
    let (mut rig, _) = with(Kind { partitions: &[64 << 20, 64 << 20], capacity: 128 << 20, ..Kind::USUAL });
    rig.write_block(&pattern(100, 1)).good();
    rig.run(A, &[op::LOCATE_10, 2, 0, 0, 0, 0, 0, 0, 1, 0], 0, &[]).good();
    rig.write_block(&pattern(100, 2)).good();
    rig.mark(1).good();
    assert_eq!(rig.position(), (1, 2, 1));
    assert_eq!(rig.query(&[0x1a, 8, 0x11, 0, 255, 0])[4..8], [0x11, 14, 3, 1]);
    rig.rewind();
    assert_eq!(rig.position(), (1, 0, 0), "REWIND stays in the partition");
    assert_eq!(rig.read_block(100).good(), pattern(100, 2));
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (op::LOCATE_16, 0x02);
    rig.run(A, &cdb, 0, &[]).good();
    assert_eq!(rig.read_block(100).good(), pattern(100, 1));
    rig.run(A, &[op::LOCATE_10, 2, 0, 0, 0, 0, 0, 0, 2, 0], 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    // Without CP the number of a partition means nothing.
    rig.run(A, &[op::LOCATE_10, 0, 0, 0, 0, 0, 0, 0, 2, 0], 0, &[]).good();
    assert_eq!(rig.position(), (0, 0, 0));
}

#[test]
fn positions_come_in_three_forms() {
    let mut rig = three_files();
    rig.space(END, 0).good();
    rig.mark(0).good();
    rig.rewind();
    rig.space(FILEMARKS, 1).good();
    rig.space(BLOCKS, 2).good();
    let short = [[0; 4], [0, 0, 0, 13], [0, 0, 0, 13], [0; 4], [0; 4]].concat();
    assert_eq!(rig.query(&[0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0]), short);
    assert_eq!(rig.query(&[0x34, 1, 0, 0, 0, 0, 0, 0, 0, 0]), short, "Linux sends this for mt tell");
    let numbers = |numbers: &[u64]| -> Vec<u8> { numbers.iter().flat_map(|n| n.to_be_bytes()).collect() };
    assert_eq!(rig.query(&[0x34, 6, 0, 0, 0, 0, 0, 0, 0, 0]), numbers(&[0, 13, 1, 0]));
    let extended = [vec![0, 0, 0, 28, 0, 0, 0, 0], numbers(&[13, 13, 0])].concat();
    assert_eq!(rig.query(&[0x34, 8, 0, 0, 0, 0, 0, 0, 32, 0]), extended);
    assert_eq!(rig.query(&[0x34, 8, 0, 0, 0, 0, 0, 0, 8, 0]), extended[..8]);
    rig.run(A, &[0x34, 2, 0, 0, 0, 0, 0, 0, 0, 0], 32, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    rig.rewind();
    assert_eq!(rig.query(&[0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0])[0], 0x80, "BOP");
}

#[test]
fn a_position_says_when_the_buffer_is_not_known() {
    let mut rig = tape();
    rig.write_block(&[1; 100]).good();
    assert_eq!(rig.query(&[0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0])[0], 0x30, "LOCU and BYCU");
    rig.mark(0).good();
    assert_eq!(rig.query(&[0x34, 0, 0, 0, 0, 0, 0, 0, 0, 0])[0], 0);
}

#[test]
fn erasing_ends_the_data() {
    for cdb in [
        &[op::ERASE_6, 0, 0, 0, 0, 0][..],
        &[op::ERASE_6, 1, 0, 0, 0, 0],
        &[0x93, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ] {
        let mut rig = three_files();
        rig.space(BLOCKS, 3).good();
        rig.run(A, cdb, 0, &[]).good();
        rig.read_block(100).stopped(END_OF_DATA, 0, Some(100));
        rig.space(BLOCKS, -1).good();
        assert_eq!(rig.read_block(100).good(), pattern(100, 2));
    }
}

#[test]
fn immediate_movements_are_answered_and_then_done() {
    let mut rig = three_files();
    rig.run(A, &[op::LOCATE_10, 1, 0, 0, 0, 0, 12, 0, 0, 0], 0, &[]).good();
    assert_eq!(rig.position(), (0, 12, 1));
    rig.run(A, &[op::REWIND, 1, 0, 0, 0, 0], 0, &[]).good();
    assert_eq!(rig.position(), (0, 0, 0));
    rig.run(A, &cdb_6(op::VERIFY_6, 4, 100), 0, &[]).good();
    assert_eq!(rig.position(), (0, 1, 0));
    rig.run(A, &[op::ERASE_6, 2, 0, 0, 0, 0], 0, &[]).good();
    rig.read_block(1).stopped(END_OF_DATA, 0, Some(1));
}
