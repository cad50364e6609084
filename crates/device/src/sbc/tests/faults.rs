//! The sense data for failures of the medium, and the data that survives a loss of power.

use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::Cell;

use crate::contract::{UnitConfig, UnitEvent};
use crate::space_threshold::{SpaceLevel, SpaceThreshold};
use crate::testing::{A, B, BLOCKS, Rig, Slow, cdb_10, cdb_16, config, pattern};
use base::int_cast::to_u64;
use base::rng::Rng;
use base::time::Instant;
use scsi::opcode as op;
use scsi::sense::{Asc, SenseKey};
use store::api::{Capabilities, Completion, Fault, Op, Space, Store};
use store::fault_inject::{FaultInjector, FaultRules, OpKind, Rule};
use store::powercut::Power;
use store::ram::Ram;

fn faulty() -> (Rig, FaultRules) {
    let (medium, faults) = FaultInjector::new(Ram::new(BLOCKS * 512), 1);
    (Rig::with(config(), Box::new(medium)), faults)
}

#[test]
fn every_failure_has_its_sense_and_a_bad_block_its_address() {
    let reads = [op::READ_16, op::VERIFY_16];
    let writes = [op::WRITE_16, op::ORWRITE_16, op::WRITE_AND_VERIFY_16];
    for (fault, key, reading, writing) in [
        (Fault::Medium, SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR, Asc::WRITE_ERROR),
        (
            Fault::NoSpace,
            SenseKey::DATA_PROTECT,
            Asc::SPACE_ALLOCATION_FAILED_WRITE_PROTECT,
            Asc::SPACE_ALLOCATION_FAILED_WRITE_PROTECT,
        ),
        (Fault::ReadOnly, SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED, Asc::WRITE_PROTECTED),
        (
            Fault::Gone,
            SenseKey::NOT_READY,
            Asc::LOGICAL_UNIT_DOES_NOT_RESPOND_TO_SELECTION,
            Asc::LOGICAL_UNIT_DOES_NOT_RESPOND_TO_SELECTION,
        ),
        (
            Fault::Reserved,
            SenseKey::DATA_PROTECT,
            Asc::ACCESS_DENIED_NO_ACCESS_RIGHTS,
            Asc::ACCESS_DENIED_NO_ACCESS_RIGHTS,
        ),
        (Fault::Busy, SenseKey::ABORTED_COMMAND, Asc::TIMEOUT_ON_LOGICAL_UNIT, Asc::TIMEOUT_ON_LOGICAL_UNIT),
        (Fault::Bug, SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE, Asc::INTERNAL_TARGET_FAILURE),
    ] {
        let (mut rig, faults) = faulty();
        for (kind, codes, asc) in [(OpKind::Read, &reads[..], reading), (OpKind::Write, &writes[..], writing)]
        {
            faults.clear();
            faults.add(Rule::always(kind, 11 * 512 + 3, 1, fault));
            // A write that failed may have changed any part of its range.
            let first = if kind == OpKind::Read { 11 } else { 8 };
            for code in codes {
                let out = if kind == OpKind::Read { Vec::new() } else { pattern(8 * 512, 1) };
                let reply = rig.run(A, &cdb_16(*code, 0, 8, 8), 4096 - out.len(), &out);
                reply.check(key, asc);
                let named = matches!(fault, Fault::Medium | Fault::NoSpace);
                assert_eq!(reply.information(), named.then_some(first));
                // Other nexuses receive the unit attention for lack of space too; see the test of unit
                // attentions.
                while rig.run(A, &[0; 6], 0, &[]).sense.is_some() {}
            }
        }
    }
}

#[test]
fn a_bad_block_in_a_long_transfer_is_named_even_by_a_medium_that_cannot_tell() {
    let (mut rig, faults) = faulty();
    faults.add(Rule { names_place: false, ..Rule::always(OpKind::Read, (1 << 20) + 512, 1, Fault::Medium) });
    faults.add(Rule { names_place: false, ..Rule::always(OpKind::Write, (1 << 20) + 512, 1, Fault::Medium) });
    let len = (1 << 20) + 4096;
    let blocks = u32::try_from(len / 512).unwrap();
    let read = rig.run(A, &cdb_16(op::READ_16, 0, 0, blocks), len, &[]);
    read.check(SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR);
    assert_eq!(read.information(), Some(2048), "the part that failed");
    let write = rig.run(A, &cdb_16(op::WRITE_16, 0, 0, blocks), 0, &pattern(len, 1));
    write.check(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR);
    assert_eq!(write.information(), Some(2048));
}

#[test]
fn a_read_that_failed_has_transferred_what_was_delivered() {
    let (mut rig, faults) = faulty();
    faults.add(Rule::always(OpKind::Read, 11 * 512, 1, Fault::Medium));
    let reply = rig.run(A, &cdb_16(op::READ_16, 0, 8, 8), 4096, &[]);
    reply.check(SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR);
    assert_eq!((reply.information(), reply.transferable, reply.data.len()), (Some(11), 0, 0));
}

#[test]
fn blocks_before_the_one_that_a_long_read_names_are_delivered() {
    const PART: usize = 1 << 20;
    for failed in 0..3 {
        let (medium, gate) = Slow::new(3 << 20);
        let mut rig = Rig::with(config(), Box::new(medium));
        gate.close();
        let key = rig.start(A, &cdb_16(op::READ_16, 0, 0, 3 << 11), 3 * PART, 0);
        assert_eq!(gate.held(), 3);
        // The parts before this one are still being read.
        gate.fail_held(failed, Fault::Medium);
        rig.ready();
        gate.open();
        rig.ready();
        let reply = rig.finish(key, &[]);
        reply.check(SenseKey::MEDIUM_ERROR, Asc::UNRECOVERED_READ_ERROR);
        assert_eq!(reply.information(), Some(u32::try_from(failed << 11).unwrap()));
        assert_eq!((reply.data.len(), reply.transferable), (failed * PART, to_u64(failed * PART)));
    }
}

#[test]
fn blocks_before_the_one_that_a_long_write_names_are_written() {
    const PART: u32 = 1 << 20;
    for (force_unit_access, first) in [(0, 1), (8, 0)] {
        for failed in 0..2 {
            let (medium, gate) = Slow::new(3 << 20);
            let mut rig = Rig::with(config(), Box::new(medium));
            let out = pattern(3 << 20, 1);
            let key = rig.start(A, &cdb_16(op::WRITE_16, force_unit_access, 0, 3 << 11), 0, out.len());
            while let Some(fetch) = rig.event_of(key) {
                assert!(matches!(fetch, UnitEvent::FetchDataOut { .. }), "{fetch:?}");
            }
            rig.send(key, &out, 0, PART);
            gate.close();
            rig.send(key, &out, PART, PART);
            rig.send(key, &out, 2 * PART, PART);
            assert_eq!(gate.held(), 2);
            gate.fail_held(failed, Fault::Medium);
            rig.ready();
            gate.open();
            rig.ready();
            let reply = rig.finish(key, &[]);
            reply.check(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR);
            assert_eq!(reply.information(), Some(first << 11), "FUA {force_unit_access}, part {failed}");
        }
    }
}

#[test]
fn a_write_same_that_failed_names_no_block_behind_one_that_can_still_fail() {
    for failed in 0..3 {
        let (medium, gate) = Slow::new(3 << 20);
        let mut rig = Rig::with(config(), Box::new(medium));
        gate.close();
        let key = rig.start(A, &cdb_16(op::WRITE_SAME_16, 0, 0, 3 << 11), 0, 512);
        assert!(matches!(rig.event_of(key), Some(UnitEvent::FetchDataOut { .. })));
        rig.send(key, &[1; 512], 0, 512);
        assert_eq!(gate.held(), 3);
        gate.fail_held(failed, Fault::Medium);
        rig.ready();
        gate.open();
        rig.ready();
        let reply = rig.finish(key, &[]);
        reply.check(SenseKey::MEDIUM_ERROR, Asc::WRITE_ERROR);
        assert_eq!(reply.information(), Some(0), "part {failed}");
    }
}

#[test]
fn everyone_hears_once_that_storage_is_short_unless_that_is_disabled() {
    const READY: [u8; 6] = [0; 6];
    let mut rig = Rig::new();
    let asc = Asc::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED;
    let report = |rig: &mut Rig, level| {
        rig.unit.set_space_threshold(Instant::ORIGIN, SpaceThreshold { bytes: 3 << 20, level });
    };
    report(&mut rig, SpaceLevel::Near);
    rig.run(A, &READY, 0, &[]).good();
    for level in [SpaceLevel::Ample, SpaceLevel::Short, SpaceLevel::Near, SpaceLevel::Short] {
        report(&mut rig, level);
    }
    for nexus in [A, B] {
        rig.run(nexus, &READY, 0, &[]).check(SenseKey::UNIT_ATTENTION, asc);
        rig.run(nexus, &READY, 0, &[]).good();
    }
    // The threshold in sets of a mebibyte, and LBPERE.
    let page = rig.run(A, &[0x1a, 8, 0x1c, 2, 255, 0], 255, &[]).good();
    assert_eq!(page[4..].len(), 24);
    assert_eq!(page[20..], [0x80, 1, 0, 0, 0, 0, 0, 3]);
    let recovery = rig.run(A, &[0x1a, 8, 0x01, 0, 255, 0], 255, &[]).good();
    assert_eq!(recovery[4 + 7], 0x80);
    // It is short again after it was not.
    for level in [SpaceLevel::Ample, SpaceLevel::Near, SpaceLevel::Short] {
        report(&mut rig, level);
    }
    rig.run(B, &READY, 0, &[]).check(SenseKey::UNIT_ATTENTION, asc);
    rig.run(A, &READY, 0, &[]).check(SenseKey::UNIT_ATTENTION, asc);
    let mut list = [0; 16];
    list[4..].copy_from_slice(&recovery[4..]);
    (list[4], list[4 + 7]) = (0x01, 0);
    rig.run(A, &[0x15, 0x10, 0, 0, 16, 0], 0, &list).good();
    rig.run(B, &READY, 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::MODE_PARAMETERS_CHANGED);
    for level in [SpaceLevel::Ample, SpaceLevel::Short] {
        report(&mut rig, level);
    }
    rig.run(B, &READY, 0, &[]).good();
    // Linux gives up a removable disk at any unit attention.
    let mut rig = Rig::with(UnitConfig { removable: true, ..config() }, Box::new(Ram::new(2 << 20)));
    report(&mut rig, SpaceLevel::Short);
    rig.run(A, &READY, 0, &[]).good();
    assert_eq!(rig.run(A, &[0x1a, 8, 0x01, 0, 255, 0], 255, &[]).good()[4 + 7], 0);
}

#[test]
fn everyone_hears_once_that_space_ran_out_however_many_writes_fail() {
    let (mut rig, faults) = faulty();
    faults.add(Rule::always(OpKind::Write, 0, 512, Fault::NoSpace));
    let full = (SenseKey::DATA_PROTECT, Asc::SPACE_ALLOCATION_FAILED_WRITE_PROTECT);
    let attention = (SenseKey::UNIT_ATTENTION, Asc::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED);
    let fill = |rig: &mut Rig, nexus| {
        rig.run(nexus, &cdb_10(op::WRITE_10, 0, 0, 1), 0, &[1; 512]).check(full.0, full.1);
    };
    for _ in 0..2 {
        fill(&mut rig, A);
        for nexus in [A, B] {
            rig.run(nexus, &[0; 6], 0, &[]).check(attention.0, attention.1);
            rig.run(nexus, &[0; 6], 0, &[]).good();
        }
        for nexus in [B, A, B, A] {
            fill(&mut rig, nexus);
            rig.run(nexus, &[0; 6], 0, &[]).good();
        }
        // Unmapped blocks can be written again, and space can run out again.
        let mut list = [0; 24];
        (list[1], list[3], list[19]) = (22, 16, 8);
        rig.run(A, &[op::UNMAP, 0, 0, 0, 0, 0, 0, 0, 24, 0], 0, &list).good();
    }
}

/// Linux gives up a removable disk at any unit attention, for reading too.
#[test]
fn nobody_hears_that_space_ran_out_while_lbpere_is_0() {
    let set_reports = |rig: &mut Rig, on: u8| {
        let page = rig.run(A, &[0x1a, 8, 0x01, 0, 255, 0], 255, &[]).good();
        let mut list = [0; 16];
        list[4..].copy_from_slice(&page[4..]);
        (list[4], list[4 + 7]) = (0x01, on);
        rig.run(A, &[0x15, 0x10, 0, 0, 16, 0], 0, &list).good();
        rig.run(B, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::MODE_PARAMETERS_CHANGED);
    };
    for is_removable in [false, true] {
        let (medium, faults) = FaultInjector::new(Ram::new(BLOCKS * 512), 1);
        let config = UnitConfig { removable: is_removable, ..config() };
        let mut rig = Rig::with(config, Box::new(medium));
        if !is_removable {
            set_reports(&mut rig, 0);
        }
        faults.add(Rule::always(OpKind::Write, 0, 512, Fault::NoSpace));
        let fill = |rig: &mut Rig| {
            rig.run(A, &cdb_10(op::WRITE_10, 0, 0, 1), 0, &[1; 512])
                .check(SenseKey::DATA_PROTECT, Asc::SPACE_ALLOCATION_FAILED_WRITE_PROTECT);
        };
        fill(&mut rig);
        for nexus in [A, B] {
            rig.run(nexus, &cdb_10(op::READ_10, 0, 1, 1), 512, &[]).good();
        }
        // Who enables it hears of the next write that fails.
        set_reports(&mut rig, 0x80);
        fill(&mut rig);
        for nexus in [A, B] {
            let attention = Asc::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED;
            rig.run(nexus, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, attention);
        }
    }
}

/// A medium that reports these numbers, as a file reports what a thread measured last.
struct Measured<S>(S, Rc<Cell<Space>>);

impl<S: Store> Store for Measured<S> {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn space(&self) -> Option<Space> {
        Some(self.1.get())
    }

    fn submit(&mut self, op: Op) {
        self.0.submit(op);
    }

    fn poll(&mut self) -> Option<Completion> {
        self.0.poll()
    }
}

#[test]
fn numbers_that_are_measured_late_are_no_new_lack_of_space() {
    let numbers =
        |used: u64, available: u64| Space { used: used << 20, available: available << 20, shared: true };
    let space = Rc::new(Cell::new(numbers(10, 500)));
    let (medium, faults) = FaultInjector::new(Ram::new(BLOCKS * 512), 1);
    let mut rig = Rig::with(config(), Box::new(Measured(medium, Rc::clone(&space))));
    faults.add(Rule::always(OpKind::Write, 0, 512, Fault::NoSpace));
    let attention = (SenseKey::UNIT_ATTENTION, Asc::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED);
    let mut fill = |now: Space, is_reported: bool| {
        space.set(now);
        rig.run(A, &cdb_10(op::WRITE_10, 0, 0, 1), 0, &[1; 512])
            .check(SenseKey::DATA_PROTECT, Asc::SPACE_ALLOCATION_FAILED_WRITE_PROTECT);
        if is_reported {
            rig.run(A, &[0; 6], 0, &[]).check(attention.0, attention.1);
        }
        rig.run(A, &[0; 6], 0, &[]).good();
    };
    // The numbers of the first failure are from before it.
    fill(numbers(10, 500), true);
    fill(numbers(10, 500), false);
    fill(numbers(510, 0), false);
    fill(numbers(511, 0), false);
    // More storage was added, and is used up.
    fill(numbers(900, 0), true);
    fill(numbers(900, 0), false);
}

#[test]
fn a_flush_that_the_medium_refuses_is_not_taken_for_needless() {
    let (medium, faults) = FaultInjector::new(Power::new(1 << 20).store(), 1);
    let mut rig = Rig::with(config(), Box::new(medium));
    rig.write(0, &[1; 512]);
    faults.add(Rule::always(OpKind::Flush, 0, 0, Fault::Unsupported));
    let reply = rig.run(A, &cdb_10(op::SYNCHRONIZE_CACHE_10, 0, 0, 0), 0, &[]);
    reply.check(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
}

#[test]
fn after_a_failed_flush_none_is_vouched_for_again() {
    let (medium, faults) = FaultInjector::new(Power::new(1 << 20).store(), 1);
    let mut rig = Rig::with(config(), Box::new(medium));
    rig.write(0, &[1; 512]);
    faults.add(Rule { times: Some(1), ..Rule::always(OpKind::Flush, 0, 0, Fault::Medium) });
    // Not MEDIUM ERROR with WRITE ERROR, for which dm-multipath would try every path and give up each.
    let lost = (SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
    for nexus in [A, B, A, B] {
        rig.run(nexus, &cdb_10(op::SYNCHRONIZE_CACHE_10, 0, 0, 0), 0, &[]).check(lost.0, lost.1);
        rig.run(nexus, &cdb_10(op::SYNCHRONIZE_CACHE_10, 2, 0, 0), 0, &[]).check(lost.0, lost.1);
    }
    // A write that is itself durable can still be acknowledged.
    rig.run(A, &cdb_10(op::WRITE_10, 8, 0, 1), 0, &[2; 512]).good();
}

#[test]
fn a_medium_that_cannot_zero_in_place_is_written_with_zeros() {
    let (mut rig, faults) = faulty();
    rig.write(0, &[1; 3000 * 512]);
    faults.add(Rule::always(OpKind::WriteZeroes, 0, u64::MAX, Fault::Unsupported));
    rig.run(A, &cdb_16(op::WRITE_SAME_16, 1, 1, 2998), 0, &[]).good();
    let data = rig.read(0, 3000);
    assert!(data[512..2999 * 512].iter().all(|byte| *byte == 0));
    assert_eq!((data[511], data[2999 * 512]), (1, 1));
}

/// The possible contents of each block after a power cut: the version last made durable, then the versions
/// written since.
struct Ledger {
    versions: Vec<Vec<u8>>,
}

impl Ledger {
    fn new(blocks: usize) -> Self {
        Self { versions: alloc::vec![alloc::vec![0]; blocks] }
    }

    fn write(&mut self, lba: usize, count: usize, value: u8, durable: bool) {
        for versions in &mut self.versions[lba..lba + count] {
            if durable {
                versions.clear();
            }
            versions.push(value);
        }
    }

    fn flush(&mut self) {
        for versions in &mut self.versions {
            versions.drain(..versions.len() - 1);
        }
    }
}

/// Runs random commands, cuts the power, and checks every block against the durability that the commands
/// guaranteed.
fn survives(seed: u64, write_cache: bool) {
    const COUNT: usize = 64;
    let mut rng = Rng::from_seed(seed);
    let power = Power::new(u64::try_from(COUNT).unwrap() * 512);
    let config = || UnitConfig { write_cache, ..config() };
    let mut rig = Rig::with(config(), Box::new(power.store()));
    let mut ledger = Ledger::new(COUNT);
    for step in 0..rng.below(60) {
        let lba = usize::try_from(rng.below(60)).unwrap();
        let count = usize::try_from(1 + rng.below(4)).unwrap();
        let value = u8::try_from(1 + step).unwrap();
        let (wide, blocks) = (u64::try_from(lba).unwrap(), u32::try_from(count).unwrap());
        let data = alloc::vec![value; count * 512];
        let nexus = if rng.chance(1, 2) { A } else { B };
        match rng.below(7) {
            0 | 1 => {
                rig.run(nexus, &cdb_16(op::WRITE_16, 0, wide, blocks), 0, &data).good();
                ledger.write(lba, count, value, !write_cache);
            }
            2 => {
                rig.run(nexus, &cdb_16(op::WRITE_16, 8, wide, blocks), 0, &data).good();
                ledger.write(lba, count, value, true);
            }
            3 => {
                rig.run(nexus, &cdb_16(op::WRITE_AND_VERIFY_16, 2, wide, blocks), 0, &data).good();
                ledger.write(lba, count, value, true);
            }
            4 => {
                rig.run(nexus, &cdb_16(op::WRITE_SAME_16, 0, wide, blocks), 0, &data[..512]).good();
                ledger.write(lba, count, value, !write_cache);
            }
            5 => {
                rig.run(nexus, &cdb_16(op::WRITE_SAME_16, 9, wide, blocks), 0, &[]).good();
                ledger.write(lba, count, 0, !write_cache);
            }
            _ => {
                rig.run(nexus, &cdb_16(op::SYNCHRONIZE_CACHE_16, 0, 0, 0), 0, &[]).good();
                ledger.flush();
            }
        }
    }
    power.cut(seed);
    let mut after = Rig::with(config(), Box::new(power.store()));
    let data = after.read(0, u32::try_from(COUNT).unwrap());
    for (lba, (block, versions)) in data.as_chunks::<512>().0.iter().zip(&ledger.versions).enumerate() {
        assert!(block.iter().all(|byte| *byte == block[0]), "seed {seed}: block {lba} is torn");
        assert!(
            versions.contains(&block[0]),
            "seed {seed}: block {lba} is {}, promised {versions:?}",
            block[0]
        );
    }
}

#[test]
fn a_loss_of_power_takes_nothing_that_was_promised() {
    for seed in 0..300 {
        survives(seed, true);
        survives(seed, false);
    }
}

#[test]
fn operations_of_the_medium_in_any_order_change_no_promise() {
    // A long write with FUA is several operations and a flush; once it is acknowledged, all of it survives.
    for seed in 0..8 {
        let mut rng = Rng::from_seed(seed);
        let power = Power::new(4 << 20);
        let mut rig = Rig::with(config(), Box::new(power.store()));
        power.hold();
        let data = pattern(3 << 20, 1);
        let long = rig.start(A, &cdb_16(op::WRITE_16, 8, 0, 6144), 0, data.len());
        let finished = loop {
            match rig.event_of(long) {
                Some(UnitEvent::FetchDataOut { offset, len, .. }) => rig.send(long, &data, offset, len),
                Some(UnitEvent::CommandComplete { status, .. }) => break status,
                Some(other) => panic!("{other:?}"),
                None => {
                    assert!(power.begin_one(&mut rng), "seed {seed}: it hangs");
                    rig.ready();
                }
            }
        };
        assert_eq!(finished, scsi::status::Status::GOOD);
        power.cut(seed);
        let mut after = Rig::with(config(), Box::new(power.store()));
        assert!(after.read(0, 6144) == data, "seed {seed}");
    }
}
