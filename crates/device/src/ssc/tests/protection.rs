//! Logical block protection, and the forms of VERIFY.

use super::*;

const REED_SOLOMON: u8 = 1;
const CRC32C: u8 = 2;
const FAILED: (SenseKey, Asc) = (SenseKey::HARDWARE_ERROR, Asc::LOGICAL_BLOCK_GUARD_CHECK_FAILED);

/// "123456789" and its guard by each method.
const BLOCKS: [(u8, &[u8]); 2] =
    [(REED_SOLOMON, b"123456789\x4b\x4f\x67\x3a"), (CRC32C, b"123456789\x83\x92\x06\xe3")];

fn list(method: u8, len: u8, flags: u8) -> Vec<u8> {
    let mut list = vec![0, 0, 0, 0x10, 0, 0, 0, 0, 0x4a, 0xf0, 0, 28, method, len, flags];
    list.resize(8 + 32, 0);
    list
}

impl Rig {
    fn select_protection(&mut self, list: &[u8]) -> Reply {
        self.run(A, &[0x55, 0x10, 0, 0, 0, 0, 0, 0, 40, 0], 0, list)
    }

    /// Sets the method, with LBP_W and LBP_R.
    #[track_caller]
    fn protect(&mut self, method: u8, flags: u8) {
        self.select_protection(&list(method, if method == 0 { 0 } else { 4 }, flags)).good();
    }
}

#[test]
fn the_page_and_what_it_refuses() {
    let (mut rig, _) = with(Kind::USUAL);
    let vital = rig.query(&[0x12, 1, 0xb5, 0, 255, 0]);
    assert_eq!(vital, [1, 0xb5, 0, 12, 0, 0, 0, 0, 3, 1, 4, 0xc0, 3, 2, 4, 0xc0]);
    let page = |rig: &mut Rig, values: u8| rig.query(&[0x5a, 8, values | 0x0a, 0xf0, 0, 0, 0, 0, 255, 0]);
    assert_eq!(page(&mut rig, 0)[8..15], [0x4a, 0xf0, 0, 28, 0, 0, 0]);
    assert_eq!(page(&mut rig, 0x40)[8..15], [0x4a, 0xf0, 0, 28, 3, 4, 0xc0]);
    let wrong = [
        list(3, 4, 0xc0),
        list(4, 4, 0xc0),
        list(2, 0, 0xc0),
        list(2, 8, 0xc0),
        list(1, 5, 0),
        list(2, 4, 0xe0),
    ];
    for list in wrong {
        rig.select_protection(&list).illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    }
    rig.protect(CRC32C, 0xc0);
    assert_eq!(page(&mut rig, 0)[8..15], [0x4a, 0xf0, 0, 28, 2, 4, 0xc0]);
    rig.protect(0, 0);
    rig.unit.reset(Instant::ORIGIN, crate::unit::Reset::LogicalUnit);
    rig.test_ready(A);
    assert_eq!(page(&mut rig, 0)[12..15], [0; 3]);
}

#[test]
fn guards_are_checked_and_come_back() {
    for (method, block) in BLOCKS {
        let (mut rig, _) = with(Kind::USUAL);
        rig.protect(method, 0xc0);
        rig.write_block(block).good();
        for at in 0..block.len() {
            let mut wrong = block.to_vec();
            wrong[at] ^= 0x40;
            rig.write_block(&wrong).stopped(FAILED, 0, Some(13));
        }
        for len in 1..=4 {
            rig.write_block(&block[..len]).illegal(Asc::INVALID_FIELD_IN_CDB);
        }
        assert_eq!(rig.position().1, 1, "nothing else was written");
        rig.rewind();
        assert_eq!(rig.read_block(13).good(), block);
        // The lengths are those with the guard.
        rig.rewind();
        let long = rig.read_block(20);
        long.stopped(WRONG_LENGTH, ILI, Some(7));
        assert_eq!(long.data, block);
        // Without LBP_R, and by the other method.
        rig.protect(method, 0x80);
        rig.rewind();
        assert_eq!(rig.read_block(9).good(), b"123456789");
        for (other, block) in BLOCKS {
            rig.protect(other, 0x40);
            rig.rewind();
            assert_eq!(rig.read_block(13).good(), block);
        }
        rig.write_block(b"12345").good();
        rig.protect(0, 0);
        rig.rewind();
        assert_eq!(rig.read_block(9).good(), b"123456789");
        assert_eq!(rig.read_block(5).good(), b"12345");
    }
}

#[test]
fn fixed_length_blocks_have_guards_each() {
    let (mut rig, _) = with(Kind::USUAL);
    rig.set_block_len(13);
    rig.protect(CRC32C, 0xc0);
    let block = BLOCKS[1].1;
    let mut blocks = block.repeat(3);
    rig.run(A, &cdb_6(op::WRITE_6, 1, 3), 0, &blocks).good();
    rig.rewind();
    assert_eq!(rig.run(A, &cdb_6(op::READ_6, 1, 3), 39, &[]).good(), blocks);
    // The second of three is wrong: the first one is written.
    blocks[20] ^= 1;
    rig.run(A, &cdb_6(op::WRITE_6, 1, 3), 0, &blocks).stopped(FAILED, 0, Some(2));
    assert_eq!(rig.position().1, 4);
    rig.set_block_len(4);
    rig.run(A, &cdb_6(op::WRITE_6, 1, 1), 0, &block[..4]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn encrypted_and_compressed_blocks_have_guards_too() {
    let (mut rig, _) = with(Kind::USUAL);
    rig.unit.seed(&[5; 32]);
    let text = [0; 32];
    let guarded = [&text[..], &[0xaa, 0x36, 0x91, 0x8a]].concat();
    rig.protect(CRC32C, 0xc0);
    let mut key = vec![0, 0x10, 0, 48, 0x40, 0, 2, 3, 1];
    key.resize(20, 0);
    key[19] = 32;
    key.extend([0x11; 32]);
    rig.run(A, &[0xb5, 0x20, 0, 0x10, 0, 0, 0, 0, 0, 52, 0, 0], 0, &key).good();
    rig.write_block(&guarded).good();
    let mut wrong = guarded.clone();
    wrong[7] = 1;
    rig.write_block(&wrong).stopped(FAILED, 0, Some(36));
    rig.rewind();
    assert_eq!(rig.read_block(36).good(), guarded);
    rig.run(A, &cdb_6(op::SPACE_6, 0, 0xff_ffff), 0, &[]).good();
    // VLBPM checks the guard that is stored, and this block has none.
    rig.run(A, &cdb_6(op::VERIFY_6, 0x10, 36), 0, &[]).good();
}

#[test]
fn verify_goes_up_to_a_filemark_or_the_end_of_data() {
    const VTE: u8 = 0x20;
    const VLBPM: u8 = 0x10;
    const VBF: u8 = 0x08;
    let (mut rig, folder) = with(Kind::USUAL);
    rig.protect(CRC32C, 0x80);
    for _ in 0..3 {
        rig.write_block(BLOCKS[1].1).good();
        rig.mark(1).good();
    }
    rig.rewind();
    let verify = |rig: &mut Rig, flags, len| rig.run(A, &cdb_6(op::VERIFY_6, flags, len), 0, &[]);
    verify(&mut rig, VBF | VLBPM, 2).good();
    assert_eq!(rig.position().1, 4, "behind the second filemark");
    verify(&mut rig, VBF, 0).good();
    verify(&mut rig, VBF, 5).stopped(END_OF_DATA, 0, Some(4));
    rig.rewind();
    verify(&mut rig, VTE | VLBPM, 0).good();
    assert_eq!(rig.position().1, 6);
    rig.rewind();
    verify(&mut rig, VTE | VBF, 1).illegal(Asc::INVALID_FIELD_IN_CDB);
    verify(&mut rig, VTE | 1, 1).illegal(Asc::INVALID_FIELD_IN_CDB);
    rig.set_block_len(8);
    verify(&mut rig, VTE | 1, 1).stopped(WRONG_LENGTH, ILI, None);
    rig.set_block_len(9);
    verify(&mut rig, VBF | 1, 1).good();
    verify(&mut rig, VLBPM | 1, 1).good();
    // The first block is damaged on the disk.
    rig.run(A, &[0x1b, 0, 0, 0, 0, 0], 0, &[]).good();
    folder.damage(64 + 64 + 3);
    rig.run(A, &[0x1b, 0, 0, 0, 1, 0], 0, &[]).good();
    let damaged = (SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR);
    verify(&mut rig, VBF, 2).stopped(damaged, 0, Some(2));
    assert_eq!(rig.position().1, 1, "behind the damaged block");
    verify(&mut rig, VTE, 0).good();
}

#[test]
fn verify_counts_guards_as_read_does() {
    const VTE: u8 = 0x20;
    const VBF: u8 = 0x08;
    const FIXED: u8 = 0x01;
    let (mut rig, _) = with(Kind::USUAL);
    rig.set_block_len(13);
    rig.protect(CRC32C, 0xc0);
    rig.run(A, &cdb_6(op::WRITE_6, FIXED, 3), 0, &BLOCKS[1].1.repeat(3)).good();
    rig.mark(1).good();
    let mut verify = |protection, flags, count| {
        rig.protect(CRC32C, protection);
        rig.rewind();
        rig.run(A, &cdb_6(op::VERIFY_6, flags, count), 0, &[])
    };
    verify(0xc0, FIXED, 3).good();
    verify(0xc0, FIXED | VBF, 1).good();
    verify(0xc0, FIXED | VTE, 0).good();
    verify(0xc0, 0, 13).good();
    verify(0xc0, 0, 9).stopped(WRONG_LENGTH, ILI, Some(4u32.wrapping_neg()));
    verify(0x80, FIXED, 3).stopped(WRONG_LENGTH, ILI, Some(3));
    verify(0x80, FIXED | VBF, 1).stopped(WRONG_LENGTH, ILI, Some(1));
    verify(0x80, 0, 9).good();
}

#[test]
fn the_block_limits_include_the_guard() {
    const MAX: u32 = 8 << 20;
    let (mut rig, _) = with(Kind::USUAL);
    let limits = rig.query(&[0x05, 0, 0, 0, 0, 0]);
    rig.protect(CRC32C, 0xc0);
    assert_eq!(rig.query(&[0x05, 0, 0, 0, 0, 0]), limits);
    assert_eq!(limits, [0, 0x80, 0, 0, 0, 1]);
    let mut block = vec![0; MAX as usize - 4];
    let mut crc = cartridge::layout::Crc::new();
    crc.update(&block);
    block.extend(crc.value().to_le_bytes());
    rig.write_block(&block).good();
    rig.rewind();
    assert_eq!(rig.read_block(MAX).good(), block);
    // A block of this length without a guard is longer than the limit with one.
    rig.protect(0, 0);
    rig.write_block(&block).good();
    rig.protect(CRC32C, 0xc0);
    rig.space(0, -1).good();
    rig.read_block(MAX).stopped(WRONG_LENGTH, ILI, Some(4u32.wrapping_neg()));
    rig.space(0, -1).good();
    assert_eq!(rig.read_block(MAX + 4).good()[..block.len()], block);
    rig.protect(0, 0);
    rig.space(0, -1).good();
    assert_eq!(rig.read_block(MAX).good(), block);
}
