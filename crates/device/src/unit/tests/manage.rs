//! Task management functions, resets, and the effects of the tasks that they abort.

use alloc::boxed::Box;

use crate::contract::{DataOutFault, TaskKey, Tmf, TmfKey, TmfOutcome, UnitEvent};
use crate::settings::QueueError;
use crate::testing::{A, B, BLOCKS, Gate, Rig, Slow, cdb_16, config, nexus};
use crate::unit::Reset;
use base::buffer::Bytes;
use base::time::Instant;
use scsi::opcode as op;
use scsi::sense::{Asc, SenseKey};
use scsi::status::Status;

const NOW: Instant = Instant::ORIGIN;

fn slow() -> (Rig, Gate) {
    let (medium, gate) = Slow::new(BLOCKS * 512);
    (Rig::with(config(), Box::new(medium)), gate)
}

fn start_read(rig: &mut Rig, nexus: crate::contract::NexusId) -> TaskKey {
    rig.start(nexus, &cdb_16(op::READ_16, 0, 100, 1), 512, 0)
}

/// Starts a write whose data was received and whose operation was submitted to the medium.
fn start_write(rig: &mut Rig, nexus: crate::contract::NexusId, lba: u64, byte: u8) -> TaskKey {
    let key = rig.start(nexus, &cdb_16(op::WRITE_16, 0, lba, 1), 0, 512);
    assert!(matches!(rig.event_of(key), Some(UnitEvent::FetchDataOut { .. })));
    rig.send(key, &[byte; 512], 0, 512);
    key
}

fn aborted(rig: &mut Rig, key: TaskKey) -> bool {
    matches!(rig.event_of(key), Some(UnitEvent::Aborted { .. }))
}

fn any_managed(rig: &mut Rig) -> Option<TmfOutcome> {
    let at = rig.events.iter().position(|event| matches!(event, UnitEvent::TmfComplete { .. }))?;
    match rig.events.remove(at)? {
        UnitEvent::TmfComplete { outcome, .. } => Some(outcome),
        _ => None,
    }
}

#[test]
fn an_abort_is_confirmed_only_when_the_medium_has_let_go() {
    let (mut rig, gate) = slow();
    gate.close();
    let key = start_write(&mut rig, A, 0, 7);
    assert_eq!(rig.manage(A, Tmf::AbortTask(key)), None);
    assert!(rig.events.is_empty(), "neither the task nor the function has ended");
    gate.open();
    rig.ready();
    assert!(aborted(&mut rig, key));
    assert_eq!(any_managed(&mut rig), Some(TmfOutcome::Complete));
}

#[test]
fn a_function_for_every_task_waits_for_those_that_were_aborted_before() {
    for function in [Tmf::LogicalUnitReset, Tmf::TargetReset, Tmf::AbortTaskSet] {
        let (mut rig, gate) = slow();
        gate.close();
        let key = start_write(&mut rig, A, 0, 7);
        assert_eq!(rig.manage(A, Tmf::AbortTask(key)), None);
        assert_eq!(rig.manage(A, function), None, "{function:?}: the medium still writes");
        gate.open();
        rig.ready();
        assert!(aborted(&mut rig, key));
        assert_eq!(any_managed(&mut rig), Some(TmfOutcome::Complete));
        assert_eq!(any_managed(&mut rig), Some(TmfOutcome::Complete));
    }
}

#[test]
fn data_that_comes_after_an_abort_never_reaches_the_medium() {
    let mut rig = Rig::new();
    let key = rig.start(A, &cdb_16(op::WRITE_16, 0, 0, 1), 0, 512);
    rig.event_of(key);
    assert_eq!(rig.manage(A, Tmf::AbortTask(key)), Some(TmfOutcome::Complete));
    assert!(aborted(&mut rig, key));
    rig.send(key, &[7; 512], 0, 512);
    assert!(rig.events.is_empty());
    assert_eq!(rig.read(0, 1), [0; 512]);
}

#[test]
fn a_later_command_does_not_overtake_what_an_aborted_one_still_writes() {
    let (mut rig, gate) = slow();
    gate.close();
    let key = start_write(&mut rig, A, 0, 1);
    rig.unit.task_gone(NOW, key);
    let next = start_write(&mut rig, A, 0, 2);
    assert_eq!(gate.held(), 1);
    gate.open();
    rig.ready();
    rig.finish(next, &[]).good();
    assert_eq!(rig.read(0, 1), [2; 512]);
}

#[test]
fn only_ones_own_tasks_can_be_aborted_and_queried() {
    let (mut rig, gate) = slow();
    gate.close();
    let key = start_read(&mut rig, A);
    assert_eq!(rig.manage(B, Tmf::AbortTask(key)), Some(TmfOutcome::NoSuchTask));
    assert_eq!(rig.manage(B, Tmf::QueryTask(key)), Some(TmfOutcome::Complete));
    assert_eq!(rig.manage(B, Tmf::QueryTaskSet), Some(TmfOutcome::Complete));
    assert_eq!(rig.manage(A, Tmf::QueryTask(key)), Some(TmfOutcome::Succeeded));
    assert_eq!(rig.manage(A, Tmf::QueryTaskSet), Some(TmfOutcome::Succeeded));
    gate.open();
    rig.ready();
    rig.finish(key, &[]).good();
    assert_eq!(rig.manage(A, Tmf::AbortTask(key)), Some(TmfOutcome::NoSuchTask));
    assert_eq!(rig.manage(A, Tmf::QueryTask(key)), Some(TmfOutcome::Complete));
    assert_eq!(rig.manage(A, Tmf::QueryTaskSet), Some(TmfOutcome::Complete));
    assert_eq!(rig.manage(A, Tmf::ClearAca), Some(TmfOutcome::NotSupported));
}

#[test]
fn a_pending_attention_is_told_to_who_queries_it_and_stays() {
    let mut rig = Rig::new();
    assert_eq!(rig.manage(A, Tmf::QueryAsynchronousEvent), Some(TmfOutcome::Complete));
    rig.unit.reset(NOW, Reset::Target);
    rig.drain();
    for _ in 0..2 {
        let outcome = rig.manage(A, Tmf::QueryAsynchronousEvent);
        assert_eq!(outcome, Some(TmfOutcome::SucceededWith([0x16, 0x29, 0x03])));
    }
    rig.unit.server.nexuses.establish_ua(A, Asc::CAPACITY_DATA_HAS_CHANGED);
    let several = rig.manage(A, Tmf::QueryAsynchronousEvent);
    assert_eq!(several, Some(TmfOutcome::SucceededWith([0x26, 0x29, 0x03])));
    rig.run(A, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::BUS_DEVICE_RESET_OCCURRED);
}

#[test]
fn aborting_a_task_set_spares_the_tasks_of_others() {
    let (mut rig, gate) = slow();
    gate.close();
    let (own, other) = (start_read(&mut rig, A), start_read(&mut rig, B));
    let dormant =
        rig.start_as(A, scsi::status::TaskAttribute::Ordered, &cdb_16(op::READ_16, 0, 0, 1), 512, 0);
    rig.manage(A, Tmf::AbortTaskSet);
    gate.open();
    rig.ready();
    assert!(aborted(&mut rig, own) && aborted(&mut rig, dormant));
    rig.finish(other, &[]).good();
    rig.run(B, &[0; 6], 0, &[]).good();
}

#[test]
fn clearing_a_task_set_tells_the_others_as_tas_says() {
    for tas in [false, true] {
        let (mut rig, gate) = slow();
        rig.unit.server.settings.task_aborted_status = tas;
        gate.close();
        let (own, other) = (start_read(&mut rig, A), start_read(&mut rig, B));
        rig.manage(A, Tmf::ClearTaskSet);
        gate.open();
        rig.ready();
        assert!(aborted(&mut rig, own), "never a status to who asked");
        if tas {
            assert_eq!(rig.finish(other, &[]).status, Status::TASK_ABORTED);
        } else {
            assert!(aborted(&mut rig, other));
            rig.run(B, &[0; 6], 0, &[])
                .check(SenseKey::UNIT_ATTENTION, Asc::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR);
        }
        rig.run(A, &[0; 6], 0, &[]).good();
        rig.run(B, &[0; 6], 0, &[]).good();
    }
}

#[test]
fn a_failed_command_takes_those_with_it_that_qerr_says() {
    for (aborts, only_own) in [(false, false), (true, false), (true, true)] {
        let (mut rig, gate) = slow();
        rig.unit.server.settings.queue_error = QueueError { aborts, only_own };
        gate.close();
        let (own, other) = (start_read(&mut rig, A), start_read(&mut rig, B));
        rig.run(A, &[0xff; 6], 0, &[]).illegal(Asc::INVALID_COMMAND_OPERATION_CODE);
        gate.open();
        rig.ready();
        if aborts {
            assert!(aborted(&mut rig, own));
        } else {
            rig.finish(own, &[]).good();
        }
        if aborts && !only_own {
            assert!(aborted(&mut rig, other));
            rig.run(B, &[0; 6], 0, &[])
                .check(SenseKey::UNIT_ATTENTION, Asc::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR);
        } else {
            rig.finish(other, &[]).good();
        }
        rig.run(A, &[0; 6], 0, &[]).good();
        rig.run(B, &[0; 6], 0, &[]).good();
    }
}

#[test]
fn a_reset_ends_every_task_and_everyone_hears_of_it() {
    //= rfc7143#section-11.5.1
    //= type=test
    //# For the LOGICAL UNIT RESET function, the target MUST behave as dictated by the Logical Unit Reset
    //# function in [SAM2].
    for why in [None, Some(Reset::LogicalUnit), Some(Reset::Target)] {
        let (mut rig, gate) = slow();
        gate.close();
        let (own, other) = (start_write(&mut rig, A, 0, 1), start_read(&mut rig, B));
        match why {
            None => assert_eq!(rig.manage(A, Tmf::LogicalUnitReset), None),
            Some(why) => rig.unit.reset(NOW, why),
        }
        gate.open();
        rig.ready();
        assert!(aborted(&mut rig, own) && aborted(&mut rig, other));
        assert_eq!(any_managed(&mut rig), why.is_none().then_some(TmfOutcome::Complete));
        for nexus in [A, B] {
            rig.run(nexus, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::BUS_DEVICE_RESET_OCCURRED);
            rig.run(nexus, &[0; 6], 0, &[]).good();
        }
    }
}

#[test]
fn a_nexus_reset_is_a_nexus_loss_that_the_nexus_survives() {
    let (mut rig, gate) = slow();
    gate.close();
    let (own, other) = (start_read(&mut rig, A), start_read(&mut rig, B));
    rig.manage(A, Tmf::NexusReset);
    gate.open();
    rig.ready();
    assert!(aborted(&mut rig, own));
    rig.finish(other, &[]).good();
    rig.run(A, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::I_T_NEXUS_LOSS_OCCURRED);
    rig.run(B, &[0; 6], 0, &[]).good();
}

#[test]
fn a_function_for_the_tasks_of_one_nexus_does_not_wait_for_those_of_another() {
    let (mut rig, gate) = slow();
    gate.close();
    let key = start_write(&mut rig, A, 0, 1);
    rig.unit.execute_tmf(NOW, A, TmfKey(1), Tmf::AbortTask(key));
    rig.unit.execute_tmf(NOW, B, TmfKey(2), Tmf::QueryTaskSet);
    rig.unit.execute_tmf(NOW, B, TmfKey(3), Tmf::AbortTaskSet);
    rig.drain();
    let managed = |rig: &Rig| -> alloc::vec::Vec<u64> {
        let key = |event: &UnitEvent| match event {
            UnitEvent::TmfComplete { key, .. } => Some(key.0),
            _ => None,
        };
        rig.events.iter().filter_map(key).collect()
    };
    assert_eq!(managed(&rig), [2, 3]);
    gate.open();
    rig.ready();
    assert_eq!(managed(&rig), [2, 3, 1]);
}

#[test]
fn who_is_gone_hears_nothing_more_and_its_keys_are_free() {
    let (mut rig, gate) = slow();
    gate.close();
    let first = start_write(&mut rig, A, 0, 1);
    let second = start_read(&mut rig, A);
    rig.unit.task_gone(NOW, first);
    rig.unit.task_gone(NOW, first);
    rig.unit.nexus_lost(NOW, A);
    let other = start_read(&mut rig, B);
    gate.open();
    rig.ready();
    assert!(rig.event_of(first).is_none() && rig.event_of(second).is_none());
    rig.finish(other, &[]).good();
    assert_eq!(rig.unit.stats().tasks, 0);
    // An abort that was in progress when the transport dropped the task also ends without a report.
    rig.unit.nexus_established(NOW, nexus(A));
    rig.run(A, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::I_T_NEXUS_LOSS_OCCURRED);
    gate.close();
    let third = start_write(&mut rig, A, 0, 1);
    rig.manage(A, Tmf::AbortTask(third));
    rig.unit.task_gone(NOW, third);
    gate.open();
    rig.ready();
    assert!(rig.event_of(third).is_none());
    assert_eq!(any_managed(&mut rig), Some(TmfOutcome::Complete));
}

#[test]
fn a_nexus_that_is_lost_while_its_aborts_are_under_way_hears_nothing_of_them() {
    for tas in [false, true] {
        let (mut rig, gate) = slow();
        rig.unit.server.settings.task_aborted_status = tas;
        gate.close();
        let key = start_write(&mut rig, A, 0, 1);
        rig.manage(B, Tmf::ClearTaskSet);
        rig.unit.nexus_lost(NOW, A);
        gate.open();
        rig.ready();
        assert!(rig.event_of(key).is_none());
        assert_eq!(any_managed(&mut rig), Some(TmfOutcome::Complete));
        assert_eq!(rig.unit.stats().tasks, 0);
    }
}

#[test]
fn data_that_does_not_come_ends_the_command_with_the_reason() {
    for (fault, asc) in [
        (DataOutFault::Digest, Asc::PROTOCOL_SERVICE_CRC_ERROR),
        (DataOutFault::NotEnoughUnsolicited, Asc::NOT_ENOUGH_UNSOLICITED_DATA),
        (DataOutFault::UnexpectedUnsolicited, Asc::UNEXPECTED_UNSOLICITED_DATA),
        (DataOutFault::Sequence, Asc::DATA_PHASE_ERROR),
    ] {
        let mut rig = Rig::new();
        let writes = [
            cdb_16(op::WRITE_16, 0, 0, 4000),
            cdb_16(op::WRITE_16, 0, 0, 1),
            cdb_16(op::ORWRITE_16, 0, 0, 1),
        ];
        for cdb in writes {
            let key = rig.start(A, &cdb, 0, 4000 * 512);
            while rig.event_of(key).is_some() {}
            rig.unit.data_out(NOW, key, 0, Err(fault));
            rig.drain();
            rig.finish(key, &[]).check(SenseKey::ABORTED_COMMAND, asc);
            let late = Bytes::copied_from(&[1; 512]).into();
            rig.unit.data_out(NOW, key, 0, Ok(late));
        }
        assert_eq!(rig.read(0, 1), [0; 512]);
    }
}

#[test]
fn a_fault_while_parts_are_being_written_waits_for_them() {
    let (mut rig, gate) = slow();
    gate.close();
    let key = rig.start(A, &cdb_16(op::WRITE_16, 0, 0, 4096), 0, 4096 * 512);
    while rig.event_of(key).is_some() {}
    let part = alloc::vec![1; 2 << 20];
    rig.send(key, &part, 0, 1 << 20);
    rig.unit.data_out(NOW, key, 1 << 20, Err(DataOutFault::Digest));
    rig.drain();
    assert!(rig.events.is_empty());
    gate.open();
    rig.ready();
    rig.finish(key, &[]).check(SenseKey::ABORTED_COMMAND, Asc::PROTOCOL_SERVICE_CRC_ERROR);
}
