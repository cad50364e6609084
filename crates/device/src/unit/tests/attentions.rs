//! Unit attentions: which nexuses receive them, when, and what clears them.

use alloc::boxed::Box;
use alloc::rc::Rc;

use crate::contract::{Tmf, UnitConfig};
use crate::drain::Drain;
use crate::testing::{A, B, BLOCKS, Rig, USERS_OF_THE_MEDIUM, cdb_16, config, nexus};
use crate::unit::Reset;
use base::time::Instant;
use scsi::lun::Lun;
use scsi::opcode as op;
use scsi::sense::{Asc, SenseKey};
use scsi::status::Status;
use store::api::{Capabilities, Completion, Op, Store};
use store::ram::Ram;

const NOW: Instant = Instant::ORIGIN;
const TEST_UNIT_READY: [u8; 6] = [0; 6];
const REQUEST_SENSE: [u8; 6] = [op::REQUEST_SENSE, 0, 0, 0, 18, 0];
const INQUIRY: [u8; 6] = [op::INQUIRY, 0, 0, 0, 36, 0];
const REPORT_LUNS: [u8; 12] = [op::REPORT_LUNS, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0];

/// Returns the additional sense code and qualifier from REQUEST SENSE.
fn requested(rig: &mut Rig, nexus: crate::contract::NexusId) -> u16 {
    let data = rig.run(nexus, &REQUEST_SENSE, 18, &[]).good();
    u16::from_be_bytes([data[12], data[13]])
}

#[test]
fn a_new_nexus_hears_of_a_reset_and_a_returning_one_of_its_loss() {
    let mut rig = Rig::fresh(config(), Box::new(Ram::new(BLOCKS * 512)));
    rig.run(A, &TEST_UNIT_READY, 0, &[])
        .check(SenseKey::UNIT_ATTENTION, Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
    rig.run(A, &TEST_UNIT_READY, 0, &[]).good();
    rig.unit.nexus_lost(NOW, A);
    rig.unit.nexus_established(NOW, nexus(A));
    rig.run(A, &TEST_UNIT_READY, 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::I_T_NEXUS_LOSS_OCCURRED);
    rig.run(A, &TEST_UNIT_READY, 0, &[]).good();
}

#[test]
fn what_a_lost_nexus_missed_it_hears_when_it_returns() {
    let mut rig = Rig::new();
    rig.unit.nexus_lost(NOW, A);
    rig.manage(B, Tmf::LogicalUnitReset);
    rig.unit.nexus_established(NOW, nexus(A));
    rig.run(A, &TEST_UNIT_READY, 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::BUS_DEVICE_RESET_OCCURRED);
    rig.run(A, &TEST_UNIT_READY, 0, &[]).good();
}

#[test]
fn a_nexus_whose_tasks_the_transport_ended_hears_of_it_once() {
    let mut rig = Rig::new();
    for _ in 0..2 {
        rig.unit.tasks_cleared(NOW, A, Asc::SOME_COMMANDS_CLEARED_BY_ISCSI_PROTOCOL_EVENT);
    }
    rig.run(B, &TEST_UNIT_READY, 0, &[]).good();
    rig.run(A, &TEST_UNIT_READY, 0, &[])
        .check(SenseKey::UNIT_ATTENTION, Asc::SOME_COMMANDS_CLEARED_BY_ISCSI_PROTOCOL_EVENT);
    rig.run(A, &TEST_UNIT_READY, 0, &[]).good();
}

#[test]
fn inquiry_report_luns_and_request_sense_are_done_all_the_same() {
    let mut rig = Rig::new();
    rig.unit.reset(NOW, Reset::LogicalUnit);
    rig.run(A, &INQUIRY, 36, &[]).good();
    rig.run(A, &REPORT_LUNS, 64, &[]).good();
    assert_eq!(requested(&mut rig, A), 0x2903);
    assert_eq!(requested(&mut rig, A), 0);
    rig.run(A, &TEST_UNIT_READY, 0, &[]).good();
    // An unknown command and an invalid one receive the unit attention first, and clear it.
    rig.run(B, &[0xff, 0, 0, 0, 0, 0], 0, &[])
        .check(SenseKey::UNIT_ATTENTION, Asc::BUS_DEVICE_RESET_OCCURRED);
    rig.run(B, &[0xff, 0, 0, 0, 0, 0], 0, &[]).illegal(Asc::INVALID_COMMAND_OPERATION_CODE);
}

#[test]
fn with_interlock_only_request_sense_clears() {
    let medium = Rc::new(core::cell::RefCell::new(Ram::new(BLOCKS * 512)));
    let mut rig = Rig::with(config(), Box::new(Growing(Rc::clone(&medium))));
    // UA_INTLCK_CTRL 10b.
    rig.set_control_bits(4, 0x20);
    medium.borrow_mut().resize(2 * BLOCKS * 512).unwrap();
    rig.unit.capacity_changed(NOW);
    for _ in 0..3 {
        rig.run(A, &TEST_UNIT_READY, 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::CAPACITY_DATA_HAS_CHANGED);
    }
    assert_eq!(requested(&mut rig, A), 0x2a09);
    rig.run(A, &TEST_UNIT_READY, 0, &[]).good();
}

#[test]
fn another_lun_map_is_announced_to_its_nexus_alone_until_it_reads_it() {
    let mut rig = Rig::new();
    for _ in 0..2 {
        let mut changed = nexus(A);
        changed.luns = Rc::from([Lun(0), Lun(1 << 48)].as_slice());
        rig.unit.nexus_changed(NOW, changed);
    }
    rig.run(B, &TEST_UNIT_READY, 0, &[]).good();
    let data = rig.run(A, &REPORT_LUNS, 64, &[]).good();
    assert_eq!(data[..4], [0, 0, 0, 16]);
    rig.run(A, &TEST_UNIT_READY, 0, &[]).good();
    let back = nexus(A);
    rig.unit.nexus_changed(NOW, back);
    rig.run(A, &TEST_UNIT_READY, 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::REPORTED_LUNS_DATA_HAS_CHANGED);
    rig.run(A, &TEST_UNIT_READY, 0, &[]).good();
}

/// A medium that a test can resize.
struct Growing(Rc<core::cell::RefCell<Ram>>);

impl Store for Growing {
    fn capabilities(&self) -> Capabilities {
        self.0.borrow().capabilities()
    }

    fn submit(&mut self, op: Op) {
        self.0.borrow_mut().submit(op);
    }

    fn poll(&mut self) -> Option<Completion> {
        self.0.borrow_mut().poll()
    }
}

#[test]
fn everyone_hears_that_the_capacity_changed_and_finds_it_changed() {
    let medium = Rc::new(core::cell::RefCell::new(Ram::new(BLOCKS * 512)));
    let mut rig = Rig::with(config(), Box::new(Growing(Rc::clone(&medium))));
    rig.unit.capacity_changed(NOW);
    rig.run(A, &TEST_UNIT_READY, 0, &[]).good();
    medium.borrow_mut().resize(2 * BLOCKS * 512).unwrap();
    rig.unit.capacity_changed(NOW);
    for id in [A, B] {
        rig.run(id, &TEST_UNIT_READY, 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::CAPACITY_DATA_HAS_CHANGED);
        rig.run(id, &TEST_UNIT_READY, 0, &[]).good();
    }
    rig.write(2 * BLOCKS - 1, &[1; 512]);
    medium.borrow_mut().resize(BLOCKS * 512).unwrap();
    rig.unit.reconfigure(NOW, UnitConfig { task_set_max: 5, ..config() });
    rig.run(A, &TEST_UNIT_READY, 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::CAPACITY_DATA_HAS_CHANGED);
    rig.run(A, &cdb_16(op::READ_16, 0, BLOCKS, 1), 512, &[]).illegal(Asc::LBA_OUT_OF_RANGE);
}

/// Returns WCE of the caching mode page.
fn write_cache(rig: &mut Rig) -> bool {
    rig.run(A, &[op::MODE_SENSE_6, 8, 0x08, 0, 255, 0], 255, &[]).good()[6] & 4 != 0
}

#[test]
fn everyone_hears_of_another_identity_cache_and_write_protection() {
    let mut rig = Rig::new();
    let heard = |rig: &mut Rig, asc| {
        for id in [A, B] {
            rig.run(id, &TEST_UNIT_READY, 0, &[]).check(SenseKey::UNIT_ATTENTION, asc);
            rig.run(id, &TEST_UNIT_READY, 0, &[]).good();
        }
    };
    let mut changed = config();
    changed.identity.vendor = *b"ACME    ";
    changed.identity.serial = "another".into();
    rig.unit.reconfigure(NOW, changed.clone());
    heard(&mut rig, Asc::INQUIRY_DATA_HAS_CHANGED);
    assert_eq!(rig.run(A, &INQUIRY, 36, &[]).good()[8..16], *b"ACME    ");
    changed.write_cache = false;
    rig.unit.reconfigure(NOW, changed.clone());
    heard(&mut rig, Asc::MODE_PARAMETERS_CHANGED);
    assert!(!write_cache(&mut rig));
    changed.write_cache = true;
    rig.unit.reconfigure(NOW, changed.clone());
    heard(&mut rig, Asc::MODE_PARAMETERS_CHANGED);
    assert!(write_cache(&mut rig));
    changed.read_only = true;
    rig.unit.reconfigure(NOW, changed.clone());
    heard(&mut rig, Asc::MODE_PARAMETERS_CHANGED);
    rig.unit.reconfigure(NOW, changed);
    for id in [A, B] {
        rig.run(id, &TEST_UNIT_READY, 0, &[]).good();
    }
}

#[test]
fn a_drained_unit_ends_what_it_has_and_takes_no_new_command_for_its_medium() {
    let mut rig = Rig::new();
    rig.write(1, &[7; 512]);
    let write = rig.start(A, &cdb_16(op::WRITE_16, 0, 2, 1), 0, 512);
    rig.unit.set_drained(NOW, true);
    assert_eq!(rig.unit.drain(), Drain::Ending);
    for _ in 0..2 {
        assert_eq!(rig.run(A, &TEST_UNIT_READY, 0, &[]).status, Status::BUSY);
        assert_eq!(requested(&mut rig, A), Asc::NOT_READY_OPERATION_IN_PROGRESS.0);
        assert_eq!(rig.run(B, &cdb_16(op::WRITE_16, 0, 1, 1), 0, &[8; 512]).status, Status::BUSY);
        rig.run(B, &INQUIRY, 36, &[]).good();
        for cdb in USERS_OF_THE_MEDIUM {
            assert_eq!(rig.run(B, &cdb, 0, &[]).status, Status::BUSY, "{cdb:02x?}");
        }
        rig.unit.set_drained(NOW, true);
    }
    assert_eq!(rig.unit.stats().tasks, 1);
    rig.finish(write, &[9; 512]).good();
    assert_eq!(rig.unit.stats().tasks, 0);
    assert_eq!(rig.unit.drain(), Drain::Ended { flush_failed: false });
    rig.unit.set_drained(NOW, false);
    assert_eq!(rig.unit.drain(), Drain::No);
    for id in [A, B] {
        rig.run(id, &TEST_UNIT_READY, 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
        rig.run(id, &TEST_UNIT_READY, 0, &[]).good();
    }
    assert_eq!([rig.read(1, 1), rig.read(2, 1)], [[7; 512], [9; 512]]);
}

/// Linux prevents the removal of a mounted disk, and fails its file system by any unit attention.
#[test]
fn a_medium_that_a_host_holds_is_the_same_after_a_drain() {
    for is_held in [true, false] {
        let mut rig = Rig::with(UnitConfig { removable: true, ..config() }, Box::new(Ram::new(BLOCKS * 512)));
        let prevent = [op::PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, u8::from(is_held), 0];
        rig.run(A, &prevent, 0, &[]).good();
        for is_drained in [true, false] {
            rig.unit.set_drained(NOW, is_drained);
        }
        for id in [A, B] {
            let reply = rig.run(id, &TEST_UNIT_READY, 0, &[]);
            if is_held {
                reply.good();
            } else {
                reply.check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
            }
        }
    }
}

#[test]
fn a_withheld_medium_is_not_ready_until_it_is_given_back_which_everyone_hears() {
    let mut rig = Rig::new();
    rig.write(1, &[7; 512]);
    let asc = Asc::NOT_READY_MANUAL_INTERVENTION_REQUIRED;
    for _ in 0..2 {
        rig.unit.withhold_medium(NOW, true);
        rig.run(A, &TEST_UNIT_READY, 0, &[]).check(SenseKey::NOT_READY, asc);
        rig.run(A, &cdb_16(op::READ_16, 0, 1, 1), 512, &[]).check(SenseKey::NOT_READY, asc);
        rig.run(B, &cdb_16(op::WRITE_16, 0, 1, 1), 0, &[8; 512]).check(SenseKey::NOT_READY, asc);
        rig.run(A, &INQUIRY, 36, &[]).good();
    }
    rig.unit.withhold_medium(NOW, false);
    for id in [A, B] {
        rig.run(id, &TEST_UNIT_READY, 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::MEDIUM_MAY_HAVE_CHANGED);
        rig.run(id, &TEST_UNIT_READY, 0, &[]).good();
    }
    assert_eq!(rig.read(1, 1), [7; 512]);
    rig.unit.withhold_medium(NOW, false);
    rig.run(A, &TEST_UNIT_READY, 0, &[]).good();
}

/// A medium whose server can be gone. Operations wait for it then.
struct Served {
    ram: Ram,
    is_away: Rc<core::cell::Cell<bool>>,
}

impl Store for Served {
    fn capabilities(&self) -> Capabilities {
        self.ram.capabilities()
    }

    fn is_away(&self) -> bool {
        self.is_away.get()
    }

    fn submit(&mut self, op: Op) {
        self.ram.submit(op);
    }

    fn poll(&mut self) -> Option<Completion> {
        if self.is_away.get() { None } else { self.ram.poll() }
    }
}

#[test]
fn a_medium_that_is_away_is_not_ready_and_reads_wait_for_it() {
    let is_away = Rc::new(core::cell::Cell::new(false));
    let medium = Served { ram: Ram::new(BLOCKS * 512), is_away: Rc::clone(&is_away) };
    let mut rig = Rig::with(config(), Box::new(medium));
    let start = [op::START_STOP_UNIT, 0, 0, 0, 1, 0];
    let activate = [op::START_STOP_UNIT, 0, 0, 0, 0x10, 0];
    let self_test = [op::SEND_DIAGNOSTIC, 4, 0, 0, 0, 0];
    for away in [false, true, false] {
        is_away.set(away);
        let expected = (SenseKey::NOT_READY, Asc::LOGICAL_UNIT_DOES_NOT_RESPOND_TO_SELECTION);
        for cdb in [TEST_UNIT_READY, start, activate, self_test] {
            let answer = rig.run(A, &cdb, 0, &[]);
            if away {
                answer.check(expected.0, expected.1);
            } else {
                answer.good();
            }
        }
        let sense = rig.run(A, &[op::REQUEST_SENSE, 0, 0, 0, 252, 0], 252, &[]).good();
        let no_sense = (SenseKey::NO_SENSE, Asc::NONE);
        let sense = scsi::sense::Sense::parse(&sense).unwrap();
        assert_eq!((sense.key, sense.asc), if away { expected } else { no_sense });
        assert_eq!(rig.unit.not_ready().is_some(), away, "the operator sees what hosts see");
    }
    is_away.set(true);
    rig.start(A, &cdb_16(op::READ_16, 0, 1, 1), 512, 0);
    assert_eq!(rig.unit.stats().tasks, 1, "it waits");
    is_away.set(false);
    rig.ready();
    assert_eq!(rig.unit.stats().tasks, 0);
}

#[test]
fn a_medium_cut_short_under_the_unit_fails_and_does_no_harm() {
    let medium = Rc::new(core::cell::RefCell::new(Ram::new(BLOCKS * 512)));
    let mut rig = Rig::with(config(), Box::new(Growing(Rc::clone(&medium))));
    medium.borrow_mut().resize(1024).unwrap();
    rig.run(A, &cdb_16(op::READ_16, 0, 2, 1), 512, &[]).illegal(Asc::LBA_OUT_OF_RANGE);
    rig.read(1, 1);
}
