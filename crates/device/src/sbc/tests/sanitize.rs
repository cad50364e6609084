//! SANITIZE and FORMAT UNIT.

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

use crate::contract::{Access, Tmf, TmfOutcome, UnitConfig, UnitEvent};
use crate::drain::Drain;
use crate::testing::{A, B, BLOCKS, Rig, Slow, cdb_16, config, nexus, pattern};
use crate::unit::LogicalUnit;
use base::buffer::Bytes;
use base::time::{Duration, Instant};
use scsi::opcode as op;
use scsi::sense::{Asc, SenseKey};
use scsi::status::Status;
use store::Store;
use store::api::{Capabilities, Completion, Durability, Fault, Op, OpAction, OpId};
use store::encrypt::{DataUnit, Encrypted, KeyStore, MediaKey, Replaced};
use store::fault_inject::{FaultInjector, FaultRules, OpKind, Rule};
use store::ram::Ram;

fn sanitize(action: u8, flags: u8, len: usize) -> [u8; 10] {
    let [high, low] = u16::try_from(len).unwrap().to_be_bytes();
    [op::SANITIZE, action | flags, 0, 0, 0, 0, 0, high, low, 0]
}

fn overwrite_list(first: u8, pattern: &[u8]) -> Vec<u8> {
    let [high, low] = u16::try_from(pattern.len()).unwrap().to_be_bytes();
    let mut list = vec![first, 0, high, low];
    list.extend_from_slice(pattern);
    list
}

/// Lets time pass until the unit has nothing left to do, and returns how long that took.
fn wait(rig: &mut Rig) -> Duration {
    let mut now = Instant::ORIGIN;
    loop {
        while rig.keep(true).is_some() {}
        let Some(due) = rig.unit.poll_timeout() else { break };
        now = now.max(due);
        rig.unit.handle_timeout(now);
        rig.drain();
    }
    now.since(Instant::ORIGIN)
}

fn faulty() -> (Rig, FaultRules) {
    let (medium, faults) = FaultInjector::new(Ram::new(BLOCKS * 512), 1);
    (Rig::with(config(), Box::new(medium)), faults)
}

const OVERWRITE: u8 = 1;
const BLOCK_ERASE: u8 = 2;
const CRYPTO_ERASE: u8 = 3;
const EXIT_FAILURE_MODE: u8 = 0x1f;
const IMMED: u8 = 0x80;
const AUSE: u8 = 0x20;

#[test]
fn block_erase_leaves_nothing() {
    let mut rig = Rig::new();
    rig.write(0, &pattern(512 * 100, 1));
    rig.write(BLOCKS - 100, &pattern(512 * 100, 1));
    rig.run(A, &sanitize(BLOCK_ERASE, 0, 0), 0, &[]).good();
    assert!(rig.read(0, u32::try_from(BLOCKS).unwrap()).iter().all(|byte| *byte == 0));
    let status = rig.run(A, &cdb_16(op::SERVICE_ACTION_IN_16, 0x12, 0, 256), 256, &[]).good();
    assert_eq!(status.len(), 24);
    assert_eq!(status[8..21], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 1]);
}

#[test]
fn a_unit_that_cannot_give_storage_back_has_no_block_erase() {
    let thick = UnitConfig { thin: false, ..config() };
    let mut rig = Rig::with(thick, Box::new(Ram::new(BLOCKS * 512)));
    rig.run(A, &sanitize(BLOCK_ERASE, 0, 0), 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn overwriting_takes_a_pattern_of_any_length_up_to_a_block() {
    for (block, first) in [(pattern(512, 3), 1), (vec![1, 2, 3], 1), (vec![0xaa], 2), (vec![0x0f], 0x83)] {
        let mut rig = Rig::new();
        let list = overwrite_list(first, &block);
        let key = rig.start(A, &sanitize(OVERWRITE, 0, list.len()), 0, list.len());
        rig.event_of(key);
        rig.send(key, &list, 0, u32::try_from(list.len()).unwrap());
        wait(&mut rig);
        rig.finish(key, &[]).good();
        let expected: Vec<u8> = block.iter().copied().cycle().take(512).collect();
        let data = rig.read(0, u32::try_from(BLOCKS).unwrap());
        assert!(data.as_chunks::<512>().0.iter().all(|found| found[..] == expected));
    }
}

#[test]
fn an_even_number_of_inverting_passes_ends_inverted() {
    let mut rig = Rig::new();
    let list = overwrite_list(0x82, &[0x0f]);
    rig.run(A, &sanitize(OVERWRITE, IMMED, list.len()), 0, &list).good();
    wait(&mut rig);
    assert_eq!(rig.read(7, 1), [0xf0; 512]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut rig = Rig::new();
    let good = overwrite_list(1, &[0xaa; 512]);
    for action in [0, 3, 4, 0x1e] {
        rig.run(A, &sanitize(action, 0, 0), 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
    for action in [BLOCK_ERASE, EXIT_FAILURE_MODE] {
        rig.run(A, &sanitize(action, 0, 8), 0, &[0; 8]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
    for len in [0, 1, 4, 517] {
        rig.run(A, &sanitize(OVERWRITE, 0, len), 0, &vec![1; len]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
    for (byte, value) in [(1, 0x40), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)] {
        let mut cdb = sanitize(OVERWRITE, 0, good.len());
        cdb[byte] |= value;
        rig.run(A, &cdb, 0, &good).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
    for (byte, value) in [(0, 0), (0, 0x21), (2, 0), (2, 3)] {
        let mut list = good.clone();
        list[byte] = value;
        list[3] = if byte == 2 { 0 } else { list[3] };
        rig.run(A, &sanitize(OVERWRITE, 0, list.len()), 0, &list)
            .illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    }
    rig.run(A, &sanitize(OVERWRITE, 0, good.len()), 0, &good[..3]).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    assert!(rig.unit.poll_timeout().is_none());
}

#[test]
fn a_unit_that_may_not_be_written_is_not_sanitized() {
    let mut rig = Rig::new();
    let mut limited = nexus(B);
    limited.access = Access::ReadOnly;
    rig.unit.nexus_changed(Instant::ORIGIN, limited);
    rig.run(B, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::MODE_PARAMETERS_CHANGED);
    let list = overwrite_list(1, &[0xaa; 512]);
    for (cdb, list) in [
        (sanitize(BLOCK_ERASE, 0, 0), &[][..]),
        (sanitize(OVERWRITE, 0, list.len()), &list),
        (format(0), &[]),
    ] {
        rig.run(B, &cdb, 0, list).check(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED);
    }
}

#[test]
fn while_it_runs_the_unit_only_answers_questions_and_says_how_far_it_is() {
    let medium = 64 << 20;
    let mut rig = Rig::with(config(), Box::new(Ram::new(medium)));
    let list = overwrite_list(1, &[0xaa; 512]);
    rig.run(A, &sanitize(OVERWRITE, IMMED, list.len()), 0, &list).good();
    rig.unit.handle_timeout(Instant(250_000_000));
    for cdb in [
        &[op::TEST_UNIT_READY, 0, 0, 0, 0, 0][..],
        &cdb_16(op::READ_16, 0, 0, 1),
        &[op::START_STOP_UNIT, 0, 0, 0, 1, 0],
    ] {
        rig.run(B, cdb, 512, &[]).check(SenseKey::NOT_READY, Asc::SANITIZE_IN_PROGRESS);
    }
    rig.run(B, &sanitize(BLOCK_ERASE, 0, 0), 0, &[]).check(SenseKey::NOT_READY, Asc::SANITIZE_IN_PROGRESS);
    rig.run(B, &[op::INQUIRY, 0, 0, 0, 36, 0], 36, &[]).good();
    let sense = rig.run(B, &[op::REQUEST_SENSE, 0, 0, 0, 18, 0], 18, &[]).good();
    assert_eq!((sense[2], sense[12], sense[13], sense[15]), (2, 0x04, 0x1b, 0x80));
    let progress = u16::from_be_bytes([sense[16], sense[17]]);
    assert!((30_000..40_000).contains(&progress), "{progress}");
    let took = wait(&mut rig);
    assert!(took >= Duration::from_millis(450) && took <= Duration::from_millis(550), "{took:?}");
    assert_eq!(rig.read(5, 1), [0xaa; 512]);
}

#[test]
fn no_abort_and_no_reset_stops_it() {
    let mut rig = Rig::with(config(), Box::new(Ram::new(64 << 20)));
    let list = overwrite_list(1, &[0x55; 512]);
    let key = rig.start(A, &sanitize(OVERWRITE, 0, list.len()), 0, list.len());
    rig.event_of(key);
    rig.send(key, &list, 0, u32::try_from(list.len()).unwrap());
    assert_eq!(rig.manage(A, Tmf::AbortTask(key)), Some(TmfOutcome::Complete));
    assert!(matches!(rig.event_of(key), Some(UnitEvent::Aborted { .. })));
    assert_eq!(rig.manage(B, Tmf::LogicalUnitReset), Some(TmfOutcome::Complete));
    rig.unit.nexus_lost(Instant::ORIGIN, A);
    rig.run(B, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::BUS_DEVICE_RESET_OCCURRED);
    rig.run(B, &[0; 6], 0, &[]).check(SenseKey::NOT_READY, Asc::SANITIZE_IN_PROGRESS);
    wait(&mut rig);
    let data = rig.run(B, &cdb_16(op::READ_16, 0, 9, 1), 512, &[]).good();
    assert_eq!(data, [0x55; 512]);
}

#[test]
fn a_write_that_began_before_does_not_come_after() {
    let mut rig = Rig::new();
    let write = rig.start(B, &cdb_16(op::WRITE_16, 0, 0, 1), 0, 512);
    rig.event_of(write);
    let list = overwrite_list(1, &[0; 4]);
    rig.run(A, &sanitize(OVERWRITE, IMMED, list.len()), 0, &list).good();
    rig.send(write, &[7; 512], 0, 512);
    rig.finish(write, &[]).check(SenseKey::NOT_READY, Asc::SANITIZE_IN_PROGRESS);
    wait(&mut rig);
    assert_eq!(rig.read(0, 1), [0; 512]);
}

#[test]
fn a_failure_closes_the_unit_until_somebody_who_may_opens_it() {
    for flags in [0, AUSE] {
        let (mut rig, faults) = faulty();
        faults.add(Rule::always(OpKind::Deallocate, 5000, 1, Fault::Medium));
        let failed = (SenseKey::MEDIUM_ERROR, Asc::SANITIZE_COMMAND_FAILED);
        rig.run(A, &sanitize(BLOCK_ERASE, flags, 0), 0, &[]).check(failed.0, failed.1);
        rig.run(A, &cdb_16(op::READ_16, 0, 0, 1), 512, &[]).check(failed.0, failed.1);
        rig.run(A, &[op::INQUIRY, 0, 0, 0, 36, 0], 36, &[]).good();
        let exit = rig.run(B, &sanitize(EXIT_FAILURE_MODE, 0, 0), 0, &[]);
        if flags == AUSE {
            exit.good();
        } else {
            exit.illegal(Asc::INVALID_FIELD_IN_CDB);
            faults.clear();
            rig.run(A, &sanitize(BLOCK_ERASE, 0, 0), 0, &[]).good();
        }
        rig.read(0, 1);
        rig.run(B, &sanitize(EXIT_FAILURE_MODE, 0, 0), 0, &[]).good();
    }
}

fn format(flags: u8) -> [u8; 10] {
    [op::FORMAT_UNIT, flags, 0, 0, 0, 0, 0, 0, 0, 0]
}

#[test]
fn formatting_zeroes_a_unit_of_either_kind() {
    for thin in [true, false] {
        let config = UnitConfig { thin, ..config() };
        let mut rig = Rig::with(config, Box::new(Ram::new(BLOCKS * 512)));
        for (flags, header) in [(0, &[][..]), (0x10, &[0, 2, 0, 0]), (0x30, &[0, 0x82, 0, 0, 0, 0, 0, 0])] {
            rig.write(0, &pattern(4096, 1));
            let key = rig.start(A, &format(flags), 0, header.len());
            if !header.is_empty() {
                rig.event_of(key);
                rig.send(key, header, 0, u32::try_from(header.len()).unwrap());
            }
            if !thin {
                rig.run(B, &[0; 6], 0, &[]).check(SenseKey::NOT_READY, Asc::FORMAT_IN_PROGRESS);
            }
            wait(&mut rig);
            assert_eq!(rig.finish(key, &[]).status, Status::GOOD);
            assert!(rig.read(0, 8).iter().all(|byte| *byte == 0));
        }
        for header in [[0x40, 0, 0, 0], [0, 0x08, 0, 0], [0, 0, 0, 8]] {
            rig.run(A, &format(0x10), 0, &header).illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
        }
        for flags in [0x40, 0x80, 0x01] {
            rig.run(A, &format(flags), 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
        }
    }
}

/// A key store without a key: it returns the given results, one for each replacement.
struct Keeper(Vec<Replaced>, bool);

impl KeyStore for Keeper {
    fn replace(&mut self) {
        self.1 = true;
    }

    fn poll(&mut self) -> Option<Replaced> {
        core::mem::take(&mut self.1).then(|| self.0.remove(0))
    }
}

fn encrypted(config: UnitConfig, answers: Vec<Replaced>) -> Rig {
    let key = MediaKey::new([[1; 32], [2; 32]]);
    let (ram, pool) = (Ram::new(BLOCKS * 512), base::buffer::Pool::new(1 << 20));
    Rig::with(config, Box::new(Encrypted::new(ram, Keeper(answers, false), &key, DataUnit::B512, pool)))
}

fn other_key() -> Replaced {
    Replaced::Fresh(MediaKey::new([[3; 32], [4; 32]]))
}

#[test]
fn a_crypto_erase_leaves_nothing_that_was_written() {
    for thin in [true, false] {
        for flags in [0, IMMED] {
            let mut rig = encrypted(UnitConfig { thin, ..config() }, vec![other_key()]);
            let page = rig.run(A, &[op::INQUIRY, 1, 0xb1, 0, 64, 0], 64, &[]).good();
            assert_eq!(page[7] >> 4 & 3, 1, "WACEREQ: reads succeed afterwards");
            let written = pattern(512 * 100, 1);
            rig.write(0, &written);
            assert_eq!(rig.read(0, 100), written);
            rig.run(A, &sanitize(CRYPTO_ERASE, flags, 0), 0, &[]).good();
            wait(&mut rig);
            let read = rig.read(0, 100);
            if thin {
                assert!(read.iter().all(|byte| *byte == 0));
            } else {
                let kept = read.iter().zip(&written).filter(|(a, b)| a == b).count();
                assert!(kept < read.len() / 50, "{kept} bytes as they were");
            }
            rig.write(3, &written);
            assert_eq!(rig.read(3, 100), written);
        }
    }
}

#[test]
fn a_key_that_could_not_be_replaced_fails_the_sanitize_operation_and_keeps_the_data() {
    let mut rig = encrypted(config(), vec![Replaced::Kept, other_key()]);
    rig.write(0, &pattern(512, 1));
    rig.run(A, &sanitize(CRYPTO_ERASE, AUSE, 0), 0, &[])
        .check(SenseKey::MEDIUM_ERROR, Asc::SANITIZE_COMMAND_FAILED);
    rig.run(A, &sanitize(EXIT_FAILURE_MODE, 0, 0), 0, &[]).good();
    assert_eq!(rig.read(0, 1), pattern(512, 1));
    rig.run(A, &sanitize(CRYPTO_ERASE, 0, 0), 0, &[]).good();
    assert_eq!(rig.read(0, 1), [0; 512]);
}

#[test]
fn a_medium_without_a_key_has_no_crypto_erase() {
    let mut rig = Rig::new();
    let page = rig.run(A, &[op::INQUIRY, 1, 0xb1, 0, 64, 0], 64, &[]).good();
    assert_eq!(page[7] >> 4 & 3, 0);
    rig.run(A, &sanitize(CRYPTO_ERASE, 0, 0), 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

/// Starts a unit with the state that was stored last, on a medium filled with `fill`.
fn restarted(config: UnitConfig, fill: u8, state: &[u8]) -> Rig {
    let mut medium = Ram::new(BLOCKS * 512);
    let data = Bytes::copied_from(&vec![fill; usize::try_from(BLOCKS).unwrap() * 512]).into();
    medium
        .submit(Op { id: OpId(0), action: OpAction::Write { at: 0, data, durability: Durability::Cached } });
    assert!(medium.poll().is_some_and(|done| done.result.is_ok()));
    let unit = LogicalUnit::new(config, Box::new(medium), Some(state), base::buffer::Pool::new(1 << 20));
    Rig::of(unit.unwrap())
}

fn is_all(rig: &mut Rig, byte: u8) -> bool {
    rig.read(0, u32::try_from(BLOCKS).unwrap()).iter().all(|found| *found == byte)
}

#[test]
fn it_goes_on_where_the_unit_is_started_again() {
    for (action, flags, list, byte) in [
        (OVERWRITE, 0, overwrite_list(3, &[0xaa, 0xaa]), 0xaa),
        (OVERWRITE, IMMED, overwrite_list(0x82, &[0x0f]), 0xf0),
        (BLOCK_ERASE, 0, vec![], 0),
    ] {
        let mut rig = Rig::new();
        let key = rig.start(A, &sanitize(action, flags, list.len()), 0, list.len());
        if !list.is_empty() {
            rig.event_of(key);
            rig.send(key, &list, 0, u32::try_from(list.len()).unwrap());
        }
        // Nothing is begun, and nothing answered, before the journal is stored.
        rig.run(B, &[0; 6], 0, &[]).check(SenseKey::NOT_READY, Asc::SANITIZE_IN_PROGRESS);
        assert!(rig.event_of(key).is_none() && rig.unit.poll_timeout().is_none());
        let state = rig.keep(true).unwrap();
        drop(rig);
        let mut rig = restarted(config(), 0x77, &state);
        rig.run(B, &[0; 6], 0, &[]).check(SenseKey::NOT_READY, Asc::SANITIZE_IN_PROGRESS);
        assert_eq!(rig.unit.poll_timeout(), Some(Instant::ORIGIN), "it needs nobody to go on");
        let mut now = Instant::ORIGIN;
        while let Some(due) = rig.unit.poll_timeout() {
            now = now.max(due);
            rig.unit.handle_timeout(now);
            rig.drain();
        }
        // The operation ends when the journal is stored: until then the next start would execute it again and
        // overwrite later writes.
        rig.run(B, &cdb_16(op::WRITE_16, 0, 0, 1), 0, &[1; 512])
            .check(SenseKey::NOT_READY, Asc::SANITIZE_IN_PROGRESS);
        assert_eq!(rig.keep(true), Some(vec![]));
        assert!(is_all(&mut rig, byte));
        rig.write(0, &[1; 512]);
    }
}

#[test]
fn what_cannot_be_written_down_is_not_begun() {
    let mut rig = Rig::new();
    rig.write(0, &[7; 512]);
    for flags in [0, IMMED] {
        let key = rig.start(A, &sanitize(BLOCK_ERASE, flags, 0), 0, 0);
        assert!(rig.keep(false).is_some());
        rig.finish(key, &[]).check(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
        assert_eq!(rig.read(0, 1), [7; 512]);
    }
    // Nor does it end when the journal cannot be stored; the command that clears the failure stores it.
    let key = rig.start(A, &sanitize(BLOCK_ERASE, AUSE, 0), 0, 0);
    assert!(rig.keep(true).is_some() && rig.keep(false).is_some());
    let failed = (SenseKey::MEDIUM_ERROR, Asc::SANITIZE_COMMAND_FAILED);
    rig.finish(key, &[]).check(failed.0, failed.1);
    let exit = rig.start(A, &sanitize(EXIT_FAILURE_MODE, 0, 0), 0, 0);
    assert!(rig.keep(false).is_some());
    rig.finish(exit, &[]).check(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
    rig.run(A, &cdb_16(op::READ_16, 0, 0, 1), 512, &[]).check(failed.0, failed.1);
    rig.run(A, &sanitize(EXIT_FAILURE_MODE, 0, 0), 0, &[]).good();
    assert_eq!(rig.read(0, 1), [0; 512]);
}

#[test]
fn a_failure_outlives_the_daemon() {
    for (cdb, asc) in [
        (sanitize(BLOCK_ERASE, AUSE, 0), Asc::SANITIZE_COMMAND_FAILED),
        (format(0), Asc::FORMAT_COMMAND_FAILED),
    ] {
        let (mut rig, faults) = faulty();
        faults.add(Rule::always(OpKind::Deallocate, 5000, 1, Fault::Medium));
        let key = rig.start(A, &cdb, 0, 0);
        assert!(rig.keep(true).is_some());
        let state = rig.keep(true).unwrap();
        rig.finish(key, &[]).check(SenseKey::MEDIUM_ERROR, asc);
        let mut rig = restarted(config(), 0x77, &state);
        rig.run(B, &cdb_16(op::READ_16, 0, 0, 1), 512, &[]).check(SenseKey::MEDIUM_ERROR, asc);
        // A failed operation can be tried again.
        rig.run(B, &cdb, 0, &[]).good();
        assert!(is_all(&mut rig, 0));
    }
}

#[test]
fn what_the_unit_cannot_do_any_more_has_failed() {
    let erase = {
        let mut rig = Rig::new();
        rig.start(A, &sanitize(BLOCK_ERASE, AUSE, 0), 0, 0);
        rig.keep(true).unwrap()
    };
    for config in [UnitConfig { thin: false, ..config() }, UnitConfig { read_only: true, ..config() }] {
        let unit = LogicalUnit::new(
            config,
            Box::new(Ram::new(BLOCKS * 512)),
            Some(&erase),
            base::buffer::Pool::new(1 << 20),
        );
        let mut rig = Rig::of(unit.unwrap());
        wait(&mut rig);
        rig.run(A, &[0; 6], 0, &[]).check(SenseKey::MEDIUM_ERROR, Asc::SANITIZE_COMMAND_FAILED);
    }
}

#[test]
fn a_failure_waits_for_what_is_still_under_way() {
    let (slow, gate) = Slow::new(BLOCKS * 512);
    let (medium, faults) = FaultInjector::new(slow, 1);
    faults.add(Rule::always(OpKind::Write, BLOCKS * 512 - 512, 1, Fault::Medium));
    let mut rig = Rig::with(config(), Box::new(medium));
    let list = overwrite_list(1, &[0xaa]);
    let key = rig.start(A, &sanitize(OVERWRITE, AUSE, list.len()), 0, list.len());
    rig.event_of(key);
    gate.close();
    rig.send(key, &list, 0, u32::try_from(list.len()).unwrap());
    rig.keep(true).unwrap();
    let mut now = Instant::ORIGIN;
    while let Some(due) = rig.unit.poll_timeout() {
        now = now.max(due);
        rig.unit.handle_timeout(now);
        rig.drain();
    }
    assert!(gate.held() > 0 && rig.event_of(key).is_none());
    gate.open();
    rig.ready();
    rig.finish(key, &[]).check(SenseKey::MEDIUM_ERROR, Asc::SANITIZE_COMMAND_FAILED);
}

#[test]
fn a_drain_waits_for_an_overwrite_whose_command_has_ended() {
    let mut rig = Rig::with(config(), Box::new(Ram::new(BLOCKS * 512)));
    let list = overwrite_list(1, &[0xaa]);
    let key = rig.start(A, &sanitize(OVERWRITE, IMMED, list.len()), 0, list.len());
    rig.event_of(key);
    rig.send(key, &list, 0, u32::try_from(list.len()).unwrap());
    rig.keep(true).unwrap();
    rig.finish(key, &[]).good();
    rig.unit.set_drained(Instant::ORIGIN, true);
    assert_eq!((rig.unit.stats().tasks, rig.unit.drain()), (0, Drain::Ending));
    wait(&mut rig);
    assert_eq!(rig.unit.drain(), Drain::Ended { flush_failed: false });
    for cdb in [&sanitize(BLOCK_ERASE, 0, 0)[..], &[op::FORMAT_UNIT, 0, 0, 0, 0, 0]] {
        assert_eq!(rig.run(A, cdb, 0, &[]).status, Status::BUSY);
    }
}

/// A medium that notes its writes and flushes.
struct Noted(Ram, Rc<RefCell<Vec<&'static str>>>);

impl Store for Noted {
    fn capabilities(&self) -> Capabilities {
        Capabilities { volatile_cache: true, ..self.0.capabilities() }
    }

    fn submit(&mut self, op: Op) {
        self.1.borrow_mut().push(if matches!(op.action, OpAction::Flush) { "flush" } else { "write" });
        self.0.submit(op);
    }

    fn poll(&mut self) -> Option<Completion> {
        self.0.poll()
    }
}

#[test]
fn each_pass_is_durable_before_the_next_one_replaces_it() {
    for fails in [false, true] {
        let notes = Rc::<RefCell<Vec<_>>>::default();
        let (medium, faults) = FaultInjector::new(Noted(Ram::new(BLOCKS * 512), Rc::clone(&notes)), 1);
        let mut rig = Rig::with(config(), Box::new(medium));
        if fails {
            faults.add(Rule::always(OpKind::Flush, 0, 0, Fault::Medium));
        }
        let list = overwrite_list(0x83, &[0x0f]);
        rig.run(A, &sanitize(OVERWRITE, IMMED, list.len()), 0, &list).good();
        wait(&mut rig);
        let mut steps = notes.take();
        steps.dedup();
        if fails {
            assert_eq!(steps, ["write"], "the flush fails");
            let read = rig.run(A, &cdb_16(op::READ_16, 0, 0, 1), 512, &[]);
            read.check(SenseKey::MEDIUM_ERROR, Asc::SANITIZE_COMMAND_FAILED);
        } else {
            assert_eq!(steps, ["write", "flush", "write", "flush", "write", "flush"]);
            assert_eq!(rig.read(7, 1), [0x0f; 512]);
        }
    }
}
