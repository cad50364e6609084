use super::*;
use crate::contract::Tmf;

fn start_stop(flags: u8) -> [u8; 6] {
    [op::START_STOP_UNIT, 0, 0, 0, flags, 0]
}

fn prevent(value: u8) -> [u8; 6] {
    [op::PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, value, 0]
}

const EJECT: u8 = 0x02;
const LOAD: u8 = 0x03;

fn prevented(reply: &Reply) {
    reply.illegal(Asc::MEDIUM_REMOVAL_PREVENTED);
}

fn no_medium(reply: &Reply) {
    reply.check(SenseKey::NOT_READY, Asc::MEDIUM_NOT_PRESENT);
}

/// libiscsi StartStopUnit.Simple.
#[test]
fn a_medium_goes_out_and_comes_in() {
    let mut rig = removable();
    for immediate in [0, 1] {
        let with = |flags| [op::START_STOP_UNIT, immediate, 0, 0, flags, 0];
        rig.run(A, &with(EJECT), 0, &[]).good();
        no_medium(&rig.ready_for(A));
        rig.run(A, &with(EJECT), 0, &[]).good();
        rig.run(A, &with(LOAD), 0, &[]).good();
        rig.ready_for(A).good();
        rig.hears(B, Asc::MEDIUM_MAY_HAVE_CHANGED);
        rig.run(A, &with(LOAD), 0, &[]).good();
        rig.ready_for(B).good();
    }
}

/// libiscsi NoMedia.Simple.
#[test]
fn commands_for_the_medium_find_none() {
    let mut rig = removable();
    rig.run(A, &start_stop(EJECT), 0, &[]).good();
    no_medium(&read(&mut rig, A));
    no_medium(&write(&mut rig, A));
    no_medium(&rig.run(A, &[op::READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8, &[]));
    let self_test = [op::SEND_DIAGNOSTIC, 0x04, 0, 0, 0, 0];
    no_medium(&rig.run(A, &self_test, 0, &[]));
    let request_sense = rig.run(A, &[op::REQUEST_SENSE, 0, 0, 0, 252, 0], 252, &[]).good();
    assert_eq!((request_sense[2], request_sense[12]), (2, 0x3a));
    let mode = rig.run(A, &[op::MODE_SENSE_6, 0, 0x0a, 0, 255, 0], 255, &[]).good();
    assert_eq!(mode[4..8], [0; 4], "no blocks");
    rig.run(A, &[op::INQUIRY, 0, 0, 0, 96, 0], 96, &[]).good();
}

/// libiscsi StartStopUnit.NoLoej and StartStopUnit.PwrCnd.
#[test]
fn stopping_and_power_conditions_leave_the_medium_in() {
    let mut rig = removable();
    for immediate in [0, 1] {
        for flags in [0x00, 0x01, 0x04, 0x05] {
            rig.run(A, &[op::START_STOP_UNIT, immediate, 0, 0, flags, 0], 0, &[]).good();
            rig.ready_for(A).good();
        }
    }
    for condition in 1..16 {
        rig.run(A, &start_stop(condition << 4 | EJECT), 0, &[]).good();
        rig.ready_for(A).good();
        read(&mut rig, A).good();
    }
}

/// libiscsi PreventAllow.Eject.
#[test]
fn prevention_keeps_the_medium_where_it_is() {
    let mut rig = removable();
    rig.run(A, &prevent(1), 0, &[]).good();
    prevented(&rig.run(A, &start_stop(EJECT), 0, &[]));
    rig.ready_for(A).good();
    rig.run(A, &prevent(0), 0, &[]).good();
    rig.run(A, &start_stop(EJECT), 0, &[]).good();
    no_medium(&rig.ready_for(A));
    rig.run(A, &prevent(1), 0, &[]).good();
    prevented(&rig.run(A, &start_stop(LOAD), 0, &[]));
    rig.run(A, &prevent(0), 0, &[]).good();
    rig.run(A, &start_stop(LOAD), 0, &[]).good();
    for reserved in [2, 3] {
        rig.run(A, &prevent(reserved), 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
}

/// libiscsi PreventAllow.2ITNexuses, .ITNexusLoss, .Logout, .LUNReset, .WarmReset, .ColdReset.
#[test]
fn prevention_binds_everybody_and_ends_with_its_nexus() {
    for end in 0..4 {
        let mut rig = removable();
        rig.run(A, &prevent(1), 0, &[]).good();
        prevented(&rig.run(B, &start_stop(EJECT), 0, &[]));
        match end {
            0 => rig.unit.nexus_lost(Instant::ORIGIN, A),
            1 => rig.unit.reset(Instant::ORIGIN, crate::unit::Reset::Target),
            2 => assert!(rig.manage(B, Tmf::LogicalUnitReset).is_some()),
            _ => assert!(rig.manage(A, Tmf::NexusReset).is_some()),
        }
        rig.drain();
        while rig.ready_for(B).status != scsi::status::Status::GOOD {}
        rig.run(B, &start_stop(EJECT), 0, &[]).good();
        no_medium(&rig.ready_for(B));
        rig.unit.reset(Instant::ORIGIN, crate::unit::Reset::LogicalUnit);
        rig.drain();
        rig.ready_for(B).check(SenseKey::UNIT_ATTENTION, Asc::BUS_DEVICE_RESET_OCCURRED);
        no_medium(&rig.ready_for(B));
    }
}

#[test]
fn a_fixed_medium_cannot_be_ejected_nor_held() {
    let mut rig = Rig::new();
    rig.run(A, &start_stop(EJECT), 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    rig.run(A, &start_stop(LOAD), 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    rig.run(A, &prevent(1), 0, &[]).illegal(Asc::INVALID_COMMAND_OPERATION_CODE);
    rig.run(A, &start_stop(0x01), 0, &[]).good();
}

#[test]
fn a_medium_that_can_no_longer_be_removed_is_in() {
    let mut rig = removable();
    rig.run(A, &start_stop(EJECT), 0, &[]).good();
    rig.unit.reconfigure(Instant::ORIGIN, config());
    rig.drain();
    rig.ready_for(A).good();
}

#[test]
fn stopping_and_ejecting_write_the_cache() {
    let config = crate::contract::UnitConfig { removable: true, ..config() };
    for (flags, flushes) in [(0x00, 1), (0x04, 0), (0x30, 1), (0xb0, 1), (0x34, 0), (0x10, 0), (EJECT, 1)] {
        let (store, recording) = Recorder::new();
        let mut rig = Rig::with(config.clone(), Box::new(store));
        rig.run(A, &start_stop(flags), 0, &[]).good();
        assert_eq!(recording.borrow().flushes, flushes, "{flags:02x}");
    }
}

#[test]
fn a_medium_whose_cache_cannot_be_written_stays_in() {
    let (store, recording) = Recorder::new();
    let config = crate::contract::UnitConfig { removable: true, ..config() };
    let mut rig = Rig::with(config, Box::new(store));
    recording.borrow_mut().fail_flushes = true;
    rig.run(A, &start_stop(EJECT), 0, &[]).check(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
    rig.ready_for(A).good();
}

#[test]
fn removal_prevented_while_the_cache_is_written_still_counts() {
    let (store, recording) = Recorder::new();
    let config = crate::contract::UnitConfig { removable: true, ..config() };
    let mut rig = Rig::with(config, Box::new(store));
    recording.borrow_mut().hold = true;
    let eject = rig.start(A, &start_stop(EJECT), 0, 0);
    rig.run(B, &prevent(1), 0, &[]).good();
    recording.borrow_mut().hold = false;
    rig.ready();
    prevented(&rig.finish(eject, &[]));
    rig.ready_for(A).good();
}

#[test]
fn buffers_give_back_what_was_put_in_and_nothing_else() {
    let mut rig = Rig::new();
    let read = |mode: u8, buffer: u8, offset: u8, len: u8| {
        [op::READ_BUFFER_10, mode, buffer, 0, 0, offset, 0, 0, len, 0]
    };
    let write = |mode: u8, buffer: u8, offset: u8, len: u8| {
        [op::WRITE_BUFFER, mode, buffer, 0, 0, offset, 0, 0, len, 0]
    };
    assert_eq!(rig.run(A, &read(3, 0, 0, 4), 4, &[]).good(), [0, 1, 0, 0]);
    assert_eq!(rig.run(A, &read(3, 1, 0, 4), 4, &[]).good(), [0; 4]);
    assert_eq!(rig.run(A, &read(0x0b, 0, 0, 4), 4, &[]).good(), [1, 0, 0x10, 0]);
    assert_eq!(rig.run(A, &read(2, 0, 0, 200), 200, &[]).good(), [0; 200]);
    rig.run(A, &write(2, 0, 4, 3), 0, b"abc").good();
    assert_eq!(rig.run(B, &read(2, 0, 2, 8), 8, &[]).good(), b"\0\0abc\0\0\0");
    let mut read_16 = [0; 16];
    (read_16[0], read_16[1], read_16[9], read_16[13]) = (op::READ_BUFFER_16, 2, 4, 3);
    assert_eq!(rig.run(A, &read_16, 3, &[]).good(), b"abc");
    rig.run(A, &read(2, 1, 0, 1), 1, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    rig.run(A, &write(2, 1, 0, 1), 0, b"x").illegal(Asc::INVALID_FIELD_IN_CDB);
    rig.run(A, &write(2, 0, 0, 3), 0, b"xx").illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);

    rig.run(A, &read(0x0a, 0, 0, 8), 8, &[]).illegal(Asc::COMMAND_SEQUENCE_ERROR);
    rig.run(A, &write(0x0a, 0, 0, 5), 0, b"hello").good();
    assert_eq!(rig.run(A, &read(0x0a, 0, 0, 8), 8, &[]).good(), b"hello");
    rig.run(B, &read(0x0a, 0, 0, 8), 8, &[]).illegal(Asc::COMMAND_SEQUENCE_ERROR);
}

#[test]
fn microcode_cannot_be_downloaded() {
    let mut rig = Rig::new();
    for mode in (0..32).filter(|mode| ![0x02, 0x0a].contains(mode)) {
        let cdb = [op::WRITE_BUFFER, mode, 0, 0, 0, 0, 0, 0, 4, 0];
        rig.run(A, &cdb, 0, &[0; 4]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
    let beyond = [op::WRITE_BUFFER, 2, 0, 0, 0xff, 0xff, 0, 0, 2, 0];
    rig.run(A, &beyond, 0, &[0; 2]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn self_tests_read_the_medium_and_leave_results() {
    let (store, recording) = Recorder::new();
    let mut rig = Rig::with(config(), Box::new(store));
    let test = |code: u8| [op::SEND_DIAGNOSTIC, code << 5, 0, 0, 0, 0];
    let results = [op::LOG_SENSE, 0, 0x50, 0, 0, 0, 0, 1, 0xff, 0];
    rig.run(A, &[op::SEND_DIAGNOSTIC, 0x04, 0, 0, 0, 0], 0, &[]).good();
    assert_eq!(rig.run(A, &results, 511, &[]).good()[8..24], [0; 16], "the default test leaves none");
    for code in [1, 2, 5, 6] {
        rig.run(A, &test(code), 0, &[]).good();
        assert_eq!(rig.run(A, &results, 511, &[]).good()[8], code << 5);
    }
    recording.borrow_mut().fail_reads = true;
    rig.run(A, &test(5), 0, &[]).check(SenseKey::HARDWARE_ERROR, Asc::LOGICAL_UNIT_FAILED_SELF_TEST);
    assert_eq!(rig.run(A, &results, 511, &[]).good()[8], 0xa5);
    rig.run(A, &test(2), 0, &[]).good();
    assert_eq!(rig.run(A, &results, 511, &[]).good()[8], 0x45);
    for code in [3, 4, 7] {
        rig.run(A, &test(code), 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
    rig.run(A, &[op::SEND_DIAGNOSTIC, 0x24, 0, 0, 0, 0], 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

#[test]
fn the_diagnostic_pages_are_one() {
    let mut rig = Rig::new();
    let receive = |valid: u8, page: u8| [op::RECEIVE_DIAGNOSTIC_RESULTS, valid, page, 0, 255, 0];
    assert_eq!(rig.run(A, &receive(1, 0), 255, &[]).good(), [0, 0, 0, 1, 0]);
    rig.run(A, &receive(1, 1), 255, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
    let send = |flags: u8, len: u8| [op::SEND_DIAGNOSTIC, flags, 0, 0, len, 0];
    rig.run(A, &send(0x10, 4), 0, &[0, 0, 0, 0]).good();
    rig.run(A, &send(0x10, 0), 0, &[]).good();
    rig.run(A, &send(0x10, 4), 0, &[0x40, 0, 0, 0]).illegal(Asc::INVALID_FIELD_IN_PARAMETER_LIST);
    rig.run(A, &send(0x10, 4), 0, &[0, 0, 0, 1]).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    rig.run(A, &send(0x10, 3), 0, &[0, 0, 0]).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    rig.run(A, &send(0x00, 4), 0, &[0, 0, 0, 0]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

/// Checks the reply to a host that uses a stopped unit.
fn stopped(reply: &Reply) {
    reply.check(SenseKey::NOT_READY, Asc::NOT_READY_INITIALIZING_COMMAND_REQUIRED);
}

#[test]
fn a_stopped_disk_is_not_ready_for_anybody_until_it_is_started() {
    let (store, recording) = Recorder::new();
    let mut rig = Rig::with(config(), Box::new(store));
    write(&mut rig, A).good();
    for start in [0x01, 0x10, 0x20, 0x30] {
        let flushes = recording.borrow().flushes;
        rig.run(A, &start_stop(0x00), 0, &[]).good();
        assert_eq!(recording.borrow().flushes, flushes + 1);
        for nexus in BOTH {
            stopped(&rig.ready_for(nexus));
            stopped(&read(&mut rig, nexus));
            stopped(&write(&mut rig, nexus));
            rig.run(nexus, &[op::INQUIRY, 0, 0, 0, 96, 0], 96, &[]).good();
            rig.run(nexus, &[op::MODE_SENSE_6, 0, 0x0a, 0, 255, 0], 255, &[]).good();
            let sense = rig.run(nexus, &[op::REQUEST_SENSE, 0, 0, 0, 252, 0], 252, &[]).good();
            assert_eq!((sense[2], sense[12], sense[13]), (2, 4, 2));
        }
        rig.run(A, &start_stop(0x00), 0, &[]).good();
        rig.run(B, &start_stop(start), 0, &[]).good();
        for nexus in BOTH {
            rig.ready_for(nexus).good();
            write(&mut rig, nexus).good();
        }
    }
    rig.run(A, &start_stop(0x04), 0, &[]).good();
    assert!(rig.manage(B, Tmf::LogicalUnitReset).is_some());
    while rig.ready_for(B).sense.is_some_and(|(key, _)| key == SenseKey::UNIT_ATTENTION) {}
    stopped(&rig.ready_for(B));
    rig.unit.reset(Instant::ORIGIN, crate::unit::Reset::Target);
    rig.drain();
    while rig.ready_for(B).status != scsi::status::Status::GOOD {}
}

#[test]
fn a_nexus_that_may_only_read_does_not_start_what_another_has_stopped() {
    let mut rig = Rig::new();
    let access = crate::contract::Access::ReadOnly;
    let limited = crate::contract::Nexus { access, ..crate::testing::nexus(B) };
    rig.unit.nexus_changed(Instant::ORIGIN, limited);
    rig.hears(B, Asc::MODE_PARAMETERS_CHANGED);
    rig.run(A, &start_stop(0x00), 0, &[]).good();
    rig.run(B, &start_stop(0x01), 0, &[]).check(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED);
    stopped(&rig.ready_for(A));
    rig.run(A, &start_stop(0x01), 0, &[]).good();
    rig.run(B, &start_stop(0x01), 0, &[]).good();
}
