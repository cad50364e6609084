//! READ and VERIFY: lengths, filemarks, the end of data.

use base::buffer::{Bytes, Pool};
use base::int_cast::to_usize;

use super::*;
use crate::contract::UnitEvent;
use crate::unit::LogicalUnit;

/// A tape with a block of 1000 bytes, one of 2000 bytes, a filemark, and one of 10 bytes; rewound.
fn recorded() -> Rig {
    let mut rig = tape();
    rig.write_block(&pattern(1000, 1)).good();
    rig.write_block(&pattern(2000, 2)).good();
    rig.mark(1).good();
    rig.write_block(&pattern(10, 3)).good();
    rig.rewind();
    rig
}

#[test]
fn reads_blocks_of_the_length_that_they_have() {
    let mut rig = recorded();
    assert_eq!(rig.read_block(1000).good(), pattern(1000, 1));
    assert_eq!(rig.position(), (0, 1, 0));
    assert_eq!(rig.read_block(2000).good(), pattern(2000, 2));
    rig.read_block(512).stopped(FILEMARK, MARK, Some(512));
    assert_eq!(rig.position(), (0, 3, 1), "behind the filemark");
    assert_eq!(rig.read_block(10).good(), pattern(10, 3));
    for _ in 0..2 {
        rig.read_block(512).stopped(END_OF_DATA, 0, Some(512));
        assert_eq!(rig.position(), (0, 4, 1));
    }
}

#[test]
fn a_shorter_block_is_delivered_and_reported() {
    let mut rig = recorded();
    let reply = rig.read_block(4096);
    reply.stopped(WRONG_LENGTH, ILI, Some(3096));
    assert_eq!((reply.data.len(), reply.transferable), (1000, 1000), "the residual is exact");
    assert_eq!(rig.position(), (0, 1, 0));
}

#[test]
fn a_longer_block_is_cut_and_reported_with_a_negative_number() {
    let mut rig = recorded();
    let reply = rig.read_block(100);
    reply.stopped(WRONG_LENGTH, ILI, Some((-900_i32).cast_unsigned()));
    assert_eq!((&reply.data, reply.transferable), (&pattern(1000, 1)[..100].to_vec(), 100));
    assert_eq!(rig.position(), (0, 1, 0), "the rest of the block is passed over");
}

#[test]
fn sili_reports_no_length_in_variable_length_mode() {
    let mut rig = recorded();
    let reply = rig.run(A, &cdb_6(op::READ_6, 2, 4096), 4096, &[]);
    assert_eq!(reply.transferable, 1000);
    assert_eq!(reply.good(), pattern(1000, 1));
    assert_eq!(rig.run(A, &cdb_6(op::READ_6, 2, 100), 100, &[]).good(), pattern(2000, 2)[..100]);
    rig.run(A, &cdb_6(op::READ_6, 2, 100), 100, &[]).stopped(FILEMARK, MARK, Some(100));
}

#[test]
fn sili_reports_a_longer_block_if_there_is_a_block_length() {
    let mut rig = recorded();
    rig.set_block_len(512);
    rig.run(A, &cdb_6(op::READ_6, 2, 4096), 4096, &[]).good();
    let reply = rig.run(A, &cdb_6(op::READ_6, 2, 100), 100, &[]);
    reply.stopped(WRONG_LENGTH, ILI, Some((-1900_i32).cast_unsigned()));
    rig.rewind();
    rig.run(A, &cdb_6(op::READ_6, 3, 1), 512, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

/// A tape with five blocks of 512 bytes, a filemark, a block of 100 bytes and one of 512; rewound.
fn fixed() -> Rig {
    let mut rig = tape();
    rig.set_block_len(512);
    rig.run(A, &cdb_6(op::WRITE_6, 1, 5), 0, &pattern(5 * 512, 1)).good();
    rig.mark(1).good();
    rig.write_block(&pattern(100, 2)).good();
    rig.run(A, &cdb_6(op::WRITE_6, 1, 1), 0, &pattern(512, 3)).good();
    rig.rewind();
    rig
}

#[test]
fn fixed_length_blocks_are_counted() {
    let mut rig = fixed();
    assert_eq!(rig.run(A, &cdb_6(op::READ_6, 1, 3), 3 * 512, &[]).good(), pattern(5 * 512, 1)[..3 * 512]);
    let reply = rig.run(A, &cdb_6(op::READ_6, 1, 4), 4 * 512, &[]);
    reply.stopped(FILEMARK, MARK, Some(2));
    assert_eq!((&reply.data, reply.transferable), (&pattern(5 * 512, 1)[3 * 512..].to_vec(), 1024));
    assert_eq!(rig.position(), (0, 6, 1));
    let reply = rig.run(A, &cdb_6(op::READ_6, 1, 4), 4 * 512, &[]);
    reply.stopped(WRONG_LENGTH, ILI, Some(4));
    assert_eq!((reply.data.len(), rig.position()), (0, (0, 7, 1)), "behind the block of the wrong length");
    let reply = rig.run(A, &cdb_6(op::READ_6, 1, 3), 3 * 512, &[]);
    reply.stopped(END_OF_DATA, 0, Some(2));
    assert_eq!(reply.data, pattern(512, 3));
}

#[test]
fn fixed_length_blocks_have_eight_mebibytes_together() {
    let mut rig = tape();
    rig.set_block_len(64 << 10);
    let data = pattern(8 << 20, 1);
    rig.run(A, &cdb_6(op::WRITE_6, 1, 128), 0, &data).good();
    rig.rewind();
    rig.run(A, &cdb_6(op::WRITE_6, 1, 129), 0, &vec![0; 129 << 16]).illegal(Asc::INVALID_FIELD_IN_CDB);
    assert!(rig.run(A, &cdb_6(op::READ_6, 1, 128), data.len(), &[]).good() == data);
    // A READ of more ends where the blocks end.
    rig.rewind();
    for count in [129, 0xff_ffff] {
        let reply = rig.run(A, &cdb_6(op::READ_6, 1, count), 129 << 16, &[]);
        reply.stopped(END_OF_DATA, 0, Some(count - 128));
        assert!(reply.data == data);
        rig.rewind();
    }
    // More than that is not delivered, and the position is where it was.
    rig.space(3, 0).good();
    rig.run(A, &cdb_6(op::WRITE_6, 1, 1), 0, &pattern(64 << 10, 2)).good();
    rig.space(0, -129).good();
    rig.run(A, &cdb_6(op::READ_6, 1, 129), 129 << 16, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    assert_eq!(rig.position(), (0, 0, 0));
    assert!(rig.run(A, &cdb_6(op::READ_6, 1, 128), data.len(), &[]).good() == data);
    // VERIFY delivers nothing.
    rig.rewind();
    rig.run(A, &cdb_6(op::VERIFY_6, 1, 129), 0, &[]).good();
    rig.run(A, &cdb_6(op::VERIFY_6, 1, 0xff_ffff), 0, &[]).stopped(END_OF_DATA, 0, Some(0xff_ffff));
}

#[test]
fn blocks_that_lie_in_two_chunks_are_whole() {
    let mut rig = tape();
    for seed in 0..12 {
        rig.write_block(&pattern(256 << 10, seed)).good();
    }
    rig.rewind();
    for seed in 0..12 {
        assert!(rig.read_block(256 << 10).good() == pattern(256 << 10, seed), "block {seed}");
    }
}

#[test]
fn the_next_block_is_checked_when_no_task_uses_the_drive() {
    let mut rig = tape();
    for seed in 0..3 {
        rig.write_block(&pattern(256 << 10, seed)).good();
    }
    rig.rewind();
    assert_eq!(rig.unit.poll_timeout(), None);
    for seed in 0..3 {
        assert!(rig.read_block(256 << 10).good() == pattern(256 << 10, seed), "block {seed}");
        assert_eq!(rig.unit.poll_timeout(), Some(Instant::ORIGIN));
        rig.unit.handle_timeout(Instant::ORIGIN);
        assert_eq!(rig.unit.poll_timeout(), None, "it is checked once");
    }
    rig.rewind();
    assert_eq!(rig.unit.poll_timeout(), None, "nothing was read");
}

#[test]
fn short_blocks_are_delivered_together() {
    let mut rig = tape();
    rig.set_block_len(3);
    let data = pattern(3 * 10_000, 1);
    rig.run(A, &cdb_6(op::WRITE_6, 1, 10_000), 0, &data).good();
    rig.mark(1).good();
    rig.rewind();
    let key = rig.start(A, &cdb_6(op::READ_6, 1, 10_001), 3 * 10_001, 0);
    let pieces = rig.events.iter().filter(|event| matches!(event, UnitEvent::DataIn { .. })).count();
    assert_eq!(pieces, 1);
    let reply = rig.finish(key, &[]);
    reply.stopped(FILEMARK, MARK, Some(1));
    assert!(reply.data == data);
}

#[test]
fn a_part_of_a_block_holds_no_far_longer_buffer() {
    let mut rig = tape();
    let block = pattern(1 << 20, 1);
    for _ in 0..3 {
        rig.write_block(&block).good();
    }
    rig.mark(1).good();
    rig.rewind();
    for len in [4096, 100_000, 1 << 20] {
        let key = rig.start(A, &cdb_6(op::READ_6, 2, len), to_usize(u64::from(len)), 0);
        let (mut sent, mut held) = (0, 0);
        for event in &rig.events {
            if let UnitEvent::DataIn { data, .. } = event {
                sent += data.len();
                held += data.parts().iter().map(Bytes::block_len).sum::<usize>();
            }
        }
        assert_eq!(sent, to_usize(u64::from(len)));
        assert!(held <= 4 * sent, "{held} bytes are held for {sent}");
        assert!(rig.finish(key, &[]).good() == block[..sent]);
    }
}

#[test]
fn the_buffers_of_chunks_are_used_again() {
    let (mut rig, folder) = with(Kind::USUAL);
    let block = pattern(1 << 20, 1);
    for _ in 0..20 {
        rig.write_block(&block).good();
    }
    // The label then says where the data ends, so that a load reads no chunk.
    rig.run(A, &[0x1b, 0, 0, 0, 0, 0], 0, &[]).good();
    let pool = Pool::new(4 << 20);
    let store = Box::new(folder.after_power_loss());
    let mut rig = Rig::of(LogicalUnit::new(drive(), store, None, pool.clone()).unwrap());
    for number in 0..20 {
        assert!(rig.read_block(1 << 20).good() == block);
        if number == 0 {
            assert_eq!(pool.kept_bytes(), 0, "all are in use");
        }
    }
    assert!(pool.kept_bytes() >= 1 << 20, "the next chunk can be read into one: {}", pool.kept_bytes());
}

#[test]
fn fixed_needs_a_block_length() {
    let mut rig = recorded();
    rig.run(A, &cdb_6(op::READ_6, 0, 100), 0, &[0; 100])
        .illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
    for (opcode, out) in [(op::READ_6, 0), (op::WRITE_6, 512), (op::VERIFY_6, 0)] {
        let reply = rig.run(A, &cdb_6(opcode, 1, 1), 512 - out, &vec![0; out]);
        reply.illegal(Asc::INVALID_FIELD_IN_CDB);
        assert_eq!(reply.sense_bytes[15..18], [0xc8, 0, 1], "FIXED is the wrong bit");
    }
    assert_eq!(rig.position(), (0, 0, 0));
}

#[test]
fn nothing_is_read_with_a_transfer_length_of_zero() {
    let mut rig = recorded();
    for cdb in [cdb_6(op::READ_6, 0, 0), cdb_6(op::READ_6, 2, 0), cdb_6(op::VERIFY_6, 0, 0)] {
        assert_eq!(rig.query(&cdb), [0; 0]);
    }
    assert_eq!(rig.position(), (0, 0, 0));
}

#[test]
fn the_longest_block_has_eight_mebibytes() {
    let mut rig = tape();
    let block = pattern(8 << 20, 5);
    rig.write_block(&block).good();
    rig.rewind();
    assert!(rig.read_block(8 << 20).good() == block);
    rig.rewind();
    rig.write_block(&pattern((8 << 20) + 1, 0)).illegal(Asc::INVALID_FIELD_IN_CDB);
    // READ and VERIFY with a longer length find a block that is shorter.
    for len in [(8 << 20) + 1, 0xff_ffff] {
        let reply = rig.read_block(len);
        reply.stopped(WRONG_LENGTH, ILI, Some(len - (8 << 20)));
        assert!(reply.data == block);
        rig.rewind();
        assert!(rig.run(A, &cdb_6(op::READ_6, 2, len), 0xff_ffff, &[]).good() == block);
        rig.rewind();
        rig.run(A, &cdb_6(op::VERIFY_6, 0, len), 0, &[]).stopped(WRONG_LENGTH, ILI, Some(len - (8 << 20)));
        rig.rewind();
    }
    rig.read_block(1).stopped(WRONG_LENGTH, ILI, Some((1_i32 - (8 << 20)).cast_unsigned()));
}

#[test]
fn an_initiator_that_accepts_less_receives_less() {
    let mut rig = recorded();
    let reply = rig.run(A, &cdb_6(op::READ_6, 0, 1000), 300, &[]);
    assert_eq!(reply.transferable, 1000, "the transport reports an overflow");
    assert_eq!(reply.good(), pattern(1000, 1)[..300]);
}

#[test]
fn the_sixteen_byte_forms_do_the_same() {
    let mut rig = recorded();
    let mut cdb = [0; 16];
    (cdb[0], cdb[13], cdb[14]) = (op::READ_16, 0x03, 0xe8);
    assert_eq!(rig.query(&cdb), pattern(1000, 1));
    cdb[0] = op::VERIFY_16;
    rig.run(A, &cdb, 0, &[]).stopped(WRONG_LENGTH, ILI, Some((-1000_i32).cast_unsigned()));
    (cdb[0], cdb[4]) = (op::READ_16, 1);
    rig.run(A, &cdb, 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn verify_reads_without_delivering() {
    let mut rig = recorded();
    assert_eq!(rig.query(&cdb_6(op::VERIFY_6, 0, 1000)), [0; 0]);
    rig.run(A, &cdb_6(op::VERIFY_6, 0, 1000), 0, &[]).stopped(
        WRONG_LENGTH,
        ILI,
        Some((-1000_i32).cast_unsigned()),
    );
    rig.run(A, &cdb_6(op::VERIFY_6, 0, 9), 0, &[]).stopped(FILEMARK, MARK, Some(9));
    rig.run(A, &cdb_6(op::VERIFY_6, 2, 9), 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn descriptor_sense_has_the_bits_of_a_stream() {
    let mut rig = recorded();
    rig.set_control_bits(2, 4);
    let reply = rig.read_block(100);
    assert_eq!(reply.sense_bytes[..8], [0x72, 0, 0, 0, 0, 0, 0, 16]);
    assert_eq!(reply.sense_bytes[8..20], [0, 10, 0x80, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfc, 0x7c]);
    assert_eq!(reply.sense_bytes[20..], [4, 2, 0, 0x20]);
}
