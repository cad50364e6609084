//! COMPARE AND WRITE, ORWRITE and WRITE ATOMIC, alone and concurrent with other commands.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use crate::contract::{InquiryOverrides, Tmf, TmfOutcome, UnitConfig, UnitEvent};
use crate::testing::{A, B, BLOCKS, Gate, Rig, Slow, cdb_16, cdb_32, config, pattern};
use scsi::opcode as op;
use scsi::opcode::variable_length as long;
use scsi::sense::{Asc, SenseKey};
use scsi::status::Status;

fn compare_and_write(lba: u64, blocks: u8) -> [u8; 16] {
    cdb_16(op::COMPARE_AND_WRITE, 0, lba, blocks.into())
}

fn both(expected: &[u8], new: &[u8]) -> Vec<u8> {
    [expected, new].concat()
}

fn slow() -> (Rig, Gate) {
    let (medium, gate) = Slow::new(BLOCKS * 512);
    (Rig::with(config(), Box::new(medium)), gate)
}

#[test]
fn writes_when_equal_and_says_where_when_not() {
    let mut rig = Rig::new();
    let (old, new) = (pattern(1024, 1), pattern(1024, 2));
    rig.write(5, &old);
    let reply = rig.run(A, &compare_and_write(5, 2), 0, &both(&old, &new));
    assert_eq!(reply.transferable, 2048);
    reply.good();
    assert_eq!(rig.read(5, 2), new);
    for at in [0, 1, 512, 1023] {
        let mut wrong = new.clone();
        wrong[at] ^= 1;
        let reply = rig.run(B, &compare_and_write(5, 2), 0, &both(&wrong, &old));
        reply.check(SenseKey::MISCOMPARE, Asc::MISCOMPARE_DURING_VERIFY);
        assert_eq!(reply.information(), Some(u32::try_from(at).unwrap()));
    }
    assert_eq!(rig.read(5, 2), new);
}

#[test]
fn a_write_whose_data_does_not_come_back_has_been_written() {
    let (mut rig, gate) = slow();
    gate.keep_data();
    let (old, new) = (pattern(1024, 1), pattern(1024, 2));
    rig.write(5, &old);
    rig.run(A, &compare_and_write(5, 2), 0, &both(&old, &new)).good();
    assert_eq!(rig.read(5, 2), new);
}

#[test]
fn lengths_are_bounded_and_must_fit_what_is_sent() {
    let mut rig = Rig::new();
    rig.run(A, &compare_and_write(0, 0), 0, &[]).good();
    let zeros = [0; 255 * 1024];
    rig.run(A, &compare_and_write(0, 0), 0, &zeros[..1024]).illegal(Asc::INVALID_FIELD_IN_CDB);
    rig.run(A, &compare_and_write(0, 255), 0, &zeros).good();
    for (blocks, sent) in [(1, 4 * 512), (3, 4 * 512), (1, 512), (1, 1023), (1, 0)] {
        let reply = rig.run(A, &compare_and_write(0, blocks), 0, &zeros[..sent]);
        reply.illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
    }
    let mut few =
        Rig::with(UnitConfig { transfer_blocks_max: 4, ..config() }, Box::new(store::ram::Ram::new(1 << 20)));
    few.run(A, &compare_and_write(0, 5), 0, &zeros[..10 * 512]).illegal(Asc::INVALID_FIELD_IN_CDB);
    rig.run(A, &compare_and_write(BLOCKS, 1), 0, &zeros[..1024]).illegal(Asc::LBA_OUT_OF_RANGE);
    rig.run(A, &cdb_16(op::COMPARE_AND_WRITE, 0, 0, 0x101), 0, &zeros[..1024])
        .illegal(Asc::INVALID_FIELD_IN_CDB);
    rig.run(A, &compare_and_write(0, 1), 1024, &[]).illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
}

/// COMPARE AND WRITE has NUMBER OF LOGICAL BLOCKS in byte 13 (SBC-4 §5.3), WRITE ATOMIC(16) has TRANSFER
/// LENGTH from byte 12 on (SBC-4 §5.48).
#[test]
fn the_sense_of_a_length_that_is_too_long_points_at_its_field() {
    let mut few =
        Rig::with(UnitConfig { transfer_blocks_max: 4, ..config() }, Box::new(store::ram::Ram::new(1 << 20)));
    let zeros = [0; 10 * 512];
    let mut points_at = |cdb: &[u8], sent: usize| {
        let reply = few.run(A, cdb, 0, &zeros[..sent]);
        reply.illegal(Asc::INVALID_FIELD_IN_CDB);
        assert_eq!(reply.sense_bytes[15] & 0xc0, 0xc0, "no field pointer in the CDB");
        u16::from_be_bytes([reply.sense_bytes[16], reply.sense_bytes[17]])
    };
    assert_eq!(points_at(&compare_and_write(0, 5), 10 * 512), 13);
    assert_eq!(points_at(&compare_and_write(0, 0), 1024), 13);
    assert_eq!(points_at(&cdb_16(op::WRITE_ATOMIC_16, 0, 0, 5), 5 * 512), 12);
    assert_eq!(points_at(&cdb_32(long::WRITE_ATOMIC_32, 0x18, 0, 5), 5 * 512), 28);
    assert_eq!(points_at(&cdb_16(op::ORWRITE_16, 0, 0, 5), 5 * 512), 10);
}

#[test]
fn bits_are_set_and_none_is_cleared() {
    let mut rig = Rig::new();
    let (old, sent) = (pattern((1 << 20) + 1024, 1), pattern((1 << 20) + 1024, 0x5a));
    let blocks = u32::try_from(old.len() / 512).unwrap();
    rig.write(2, &old);
    rig.run(A, &cdb_16(op::ORWRITE_16, 0x18, 2, blocks), 0, &sent).good();
    let expected: Vec<u8> = old.iter().zip(&sent).map(|(a, b)| a | b).collect();
    assert!(rig.read(2, blocks) == expected);
    rig.run(A, &cdb_16(op::ORWRITE_16, 0, BLOCKS + 1, 0), 0, &[]).illegal(Asc::LBA_OUT_OF_RANGE);
    rig.run(A, &cdb_16(op::ORWRITE_16, 0x20, 0, 1), 0, &[0; 512]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn an_atomic_write_is_all_or_nothing_and_bounded() {
    let mut rig = Rig::new();
    let data = pattern(2048 * 512, 6);
    rig.run(A, &cdb_16(op::WRITE_ATOMIC_16, 0, 1, 2048), 0, &data).good();
    assert!(rig.read(1, 2048) == data);
    rig.run(A, &cdb_32(long::WRITE_ATOMIC_32, 0x18, 0, 2), 0, &data[..1024]).good();
    assert_eq!(rig.read(0, 2), data[..1024]);
    let long = cdb_16(op::WRITE_ATOMIC_16, 0, 0, 2049);
    rig.run(A, &long, 0, &pattern(2049 * 512, 1)).illegal(Asc::INVALID_FIELD_IN_CDB);
    rig.run(A, &cdb_16(op::WRITE_ATOMIC_16, 0, 0, 2), 0, &[0; 512])
        .illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
    rig.run(A, &cdb_16(op::WRITE_ATOMIC_16, 0, BLOCKS, 0), 0, &[]).good();
    // An atomic boundary is not supported.
    rig.run(A, &cdb_16(op::WRITE_ATOMIC_16, 0, 0, 0x0001_0001), 0, &[0; 512])
        .illegal(Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn atomic_writes_keep_to_the_alignment_and_granularity_that_are_reported() {
    let mut rig =
        Rig::with(UnitConfig { atomic_blocks: 8, ..config() }, Box::new(store::ram::Ram::new(BLOCKS * 512)));
    let limits = rig.run(A, &[op::INQUIRY, 1, 0xb0, 0, 64, 0], 64, &[]).good();
    let field = |at: usize| u32::from_be_bytes(limits[at..at + 4].try_into().unwrap());
    assert_eq!((field(44) % 8, field(48), field(52)), (0, 8, 8));
    for (lba, blocks, fits) in [(0, 8, true), (8, 16, true), (4, 8, false), (8, 4, false), (0, 9_u16, false)]
    {
        let data = pattern(usize::from(blocks) * 512, 1);
        let cdb = cdb_16(op::WRITE_ATOMIC_16, 0, lba, u32::from(blocks));
        let answer = rig.run(A, &cdb, 0, &data);
        if fits {
            answer.good();
        } else {
            answer.illegal(Asc::INVALID_FIELD_IN_CDB);
        }
    }
}

#[test]
fn a_medium_that_tears_writes_offers_no_atomic_ones() {
    let power = store::powercut::Power::new(1 << 20);
    let mut rig = Rig::with(config(), Box::new(power.store()));
    rig.run(A, &cdb_16(op::WRITE_ATOMIC_16, 0, 0, 1), 0, &[0; 512])
        .illegal(Asc::INVALID_COMMAND_OPERATION_CODE);
}

#[test]
fn two_initiators_cannot_both_win_a_block() {
    let (mut rig, gate) = slow();
    let (zero, one, two) = ([0; 512], [1; 512], [2; 512]);
    gate.close();
    let a = rig.start(A, &compare_and_write(7, 1), 0, 1024);
    let b = rig.start(B, &compare_and_write(7, 1), 0, 1024);
    for (key, data) in [(a, both(&zero, &one)), (b, both(&zero, &two))] {
        assert!(matches!(rig.event_of(key), Some(UnitEvent::FetchDataOut { offset: 0, len: 1024, .. })));
        rig.send(key, &data, 0, 1024);
    }
    assert_eq!(gate.held(), 1, "the second waits for the first");
    gate.open();
    rig.ready();
    assert_eq!(rig.finish(a, &[]).status, Status::GOOD);
    rig.finish(b, &[]).check(SenseKey::MISCOMPARE, Asc::MISCOMPARE_DURING_VERIFY);
    assert_eq!(rig.read(7, 1), one);
}

#[test]
fn plain_access_waits_for_an_exclusive_range_and_only_there() {
    let (mut rig, gate) = slow();
    gate.close();
    let exclusive = rig.start(A, &compare_and_write(8, 4), 0, 4096);
    rig.send(exclusive, &[0; 4096], 0, 4096);
    let (overlapping, beside) = (cdb_16(op::READ_16, 0, 11, 2), cdb_16(op::READ_16, 0, 12, 2));
    let held = rig.start(B, &overlapping, 1024, 0);
    let free = rig.start(B, &beside, 1024, 0);
    assert_eq!(gate.held(), 2);
    gate.open();
    rig.ready();
    rig.event_of(exclusive);
    for key in [exclusive, held, free] {
        rig.finish(key, &[]).good();
    }
}

#[test]
fn an_exclusive_range_waits_for_writes_under_way() {
    let (mut rig, gate) = slow();
    gate.close();
    let write = rig.start(B, &cdb_16(op::WRITE_16, 0, 0, 1), 0, 512);
    rig.send(write, &[9; 512], 0, 512);
    let exclusive = rig.start(A, &compare_and_write(0, 1), 0, 1024);
    rig.send(exclusive, &both(&[9; 512], &[1; 512]), 0, 1024);
    assert_eq!(gate.held(), 1);
    gate.open();
    rig.ready();
    rig.event_of(exclusive);
    rig.finish(exclusive, &[]).good();
    assert_eq!(rig.read(0, 1), [1; 512]);
}

#[test]
fn aborting_who_holds_or_awaits_a_range_lets_the_others_through() {
    for abort_holder in [true, false] {
        let (mut rig, gate) = slow();
        gate.close();
        let holder = rig.start(A, &compare_and_write(0, 1), 0, 1024);
        rig.send(holder, &[0; 1024], 0, 1024);
        let waiter = rig.start(A, &compare_and_write(0, 2), 0, 2048);
        rig.send(waiter, &[0; 2048], 0, 2048);
        let reader = rig.start(B, &cdb_16(op::READ_16, 0, 1, 1), 512, 0);
        let victim = if abort_holder { holder } else { waiter };
        let outcome = rig.manage(A, Tmf::AbortTask(victim));
        assert_eq!(outcome.is_some(), !abort_holder, "its operation on the medium is waited for");
        gate.open();
        rig.ready();
        rig.finish(reader, &[]).good();
        if abort_holder {
            rig.event_of(waiter);
            rig.finish(waiter, &[]).good();
        }
        assert!(rig.events.iter().any(|event| matches!(event, UnitEvent::Aborted { key } if *key == victim)));
        let done =
            |event: &UnitEvent| matches!(event, UnitEvent::TmfComplete { outcome: TmfOutcome::Complete, .. });
        assert!(!abort_holder || rig.events.iter().any(done));
        rig.write(0, &[3; 1024]);
    }
}

#[test]
fn a_compare_and_write_is_no_longer_than_the_administrator_lets_it_be() {
    let claims = InquiryOverrides { compare_and_write_max: 2, ..InquiryOverrides::default() };
    let mut rig =
        Rig::with(UnitConfig { overrides: claims, ..config() }, Box::new(store::ram::Ram::new(BLOCKS * 512)));
    let zeros = [0; 6 * 512];
    rig.run(A, &compare_and_write(0, 2), 0, &zeros[..4 * 512]).good();
    rig.run(A, &compare_and_write(0, 3), 0, &zeros).illegal(Asc::INVALID_FIELD_IN_CDB);
    let page = rig.run(A, &[op::INQUIRY, 1, 0xb0, 0, 64, 0], 64, &[]).good();
    assert_eq!(page[5], 2, "MAXIMUM COMPARE AND WRITE LENGTH");
}

fn orwrite_32(lba: u64, blocks: u32, operation: (u8, u8), generations: (u32, u32)) -> [u8; 32] {
    let mut cdb = cdb_32(long::ORWRITE_32, 0, lba, blocks);
    (cdb[2], cdb[3]) = operation;
    cdb[20..24].copy_from_slice(&generations.0.to_be_bytes());
    cdb[24..28].copy_from_slice(&generations.1.to_be_bytes());
    cdb
}

const SET: u8 = 0;
const CHANGE: u8 = 1;
const ONE: [u8; 512] = [1; 512];

#[test]
fn a_change_of_generation_clears_bits_and_says_what_becomes_of_latecomers() {
    const DONE: u8 = 1;
    const DISCARDED: u8 = 0;
    let refused = |reply: &crate::testing::Reply| {
        reply.illegal(Asc::ORWRITE_GENERATION_DOES_NOT_MATCH);
    };
    for (policy, previous, other) in [
        (0, Some(DONE), None),
        (2, Some(DISCARDED), None),
        (3, Some(DONE), Some(DONE)),
        (5, Some(DISCARDED), Some(DISCARDED)),
        (7, None, None),
    ] {
        let mut rig = Rig::new();
        rig.write(4, &[0xff; 1024]);
        let kept = [pattern(512, 3), vec![0xff; 512]].concat();
        rig.run(A, &orwrite_32(4, 2, (CHANGE, policy), (0, 7)), 0, &kept).good();
        assert_eq!(rig.read(4, 2), kept);
        for (expected, fate) in [(7, Some(DONE)), (0, previous), (9, other)] {
            rig.write(9, &[0; 512]);
            let reply = rig.run(B, &orwrite_32(9, 1, (SET, 0), (expected, 0)), 0, &ONE);
            match fate {
                Some(byte) => {
                    reply.good();
                    assert_eq!(rig.read(9, 1), [byte; 512], "policy {policy}, expecting {expected}");
                }
                None => refused(&reply),
            }
        }
        // ORWRITE(16) expects generation zero, which was the previous one.
        let short = rig.run(B, &cdb_16(op::ORWRITE_16, 0, 9, 1), 0, &ONE);
        if previous.is_some() {
            short.good().clear()
        } else {
            refused(&short)
        }
        // A generation can begin only from the present one; it may begin without clearing a bit.
        refused(&rig.run(B, &orwrite_32(4, 2, (CHANGE, 7), (0, 8)), 0, &kept));
        rig.run(B, &orwrite_32(0, 0, (CHANGE, 7), (7, 8)), 0, &[]).good();
        refused(&rig.run(B, &orwrite_32(9, 1, (SET, 0), (7, 0)), 0, &ONE));
        rig.run(B, &orwrite_32(9, 1, (SET, 0), (8, 0)), 0, &ONE).good();
    }
}

#[test]
fn generations_outlive_a_reset_of_the_unit_and_no_harder_one() {
    let mut rig = Rig::new();
    rig.run(A, &orwrite_32(0, 1, (CHANGE, 7), (0, 7)), 0, &ONE).good();
    assert_eq!(rig.manage(A, Tmf::LogicalUnitReset), Some(TmfOutcome::Complete));
    let set = |generation| orwrite_32(0, 1, (SET, 0), (generation, 0));
    for id in [A, B] {
        rig.run(id, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::BUS_DEVICE_RESET_OCCURRED);
    }
    rig.run(A, &set(7), 0, &ONE).good();
    rig.unit.reset(base::time::Instant::ORIGIN, crate::unit::Reset::Target);
    rig.run(A, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::BUS_DEVICE_RESET_OCCURRED);
    rig.run(A, &set(7), 0, &ONE).illegal(Asc::ORWRITE_GENERATION_DOES_NOT_MATCH);
    rig.run(A, &set(0), 0, &ONE).good();
}

#[test]
fn a_generation_begins_when_nothing_of_the_one_before_is_under_way() {
    let (medium, gate) = Slow::new(BLOCKS * 512);
    let mut rig = Rig::with(config(), Box::new(medium));
    gate.close();
    let set = rig.start(A, &orwrite_32(9, 1, (SET, 0), (0, 0)), 0, 512);
    rig.event_of(set);
    rig.send(set, &ONE, 0, 512);
    assert!(gate.held() > 0);
    // It addresses other blocks of the medium, and nevertheless waits.
    let change = rig.start(B, &orwrite_32(0, 1, (CHANGE, 7), (0, 1)), 0, 512);
    rig.event_of(change);
    rig.send(change, &ONE, 0, 512);
    let late = rig.start(A, &orwrite_32(20, 1, (SET, 0), (0, 0)), 0, 512);
    rig.event_of(late);
    rig.send(late, &ONE, 0, 512);
    assert_eq!(gate.held(), 1);
    gate.open();
    for _ in 0..8 {
        rig.ready();
    }
    rig.finish(set, &[]).good();
    rig.finish(change, &[]).good();
    rig.finish(late, &[]).illegal(Asc::ORWRITE_GENERATION_DOES_NOT_MATCH);
    assert_eq!((rig.read(9, 1), rig.read(20, 1)), (ONE.to_vec(), vec![0; 512]));
}

#[test]
fn an_orwrite_of_generations_that_makes_no_sense_is_refused() {
    let mut rig = Rig::new();
    for operation in [(2, 0), (7, 0), (CHANGE, 1), (CHANGE, 4), (CHANGE, 6), (CHANGE, 8), (CHANGE, 15)] {
        rig.run(A, &orwrite_32(0, 1, operation, (0, 1)), 0, &ONE).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
    // Less data than the blocks to clear: nothing is cleared.
    let reply = rig.run(A, &orwrite_32(0, 2, (CHANGE, 7), (0, 1)), 0, &ONE);
    reply.illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
    rig.run(A, &orwrite_32(0, 1, (SET, 0), (0, 0)), 0, &ONE).good();
}
