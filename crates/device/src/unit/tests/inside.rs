//! What no transport carries through the traits of `transport`, so that only a test beside the unit sees it:
//! the additional information of a query, Data-Out that failed (a transport that loses data ends the task),
//! and a key that is in use (a transport has a name of its own for each task).

use alloc::boxed::Box;

use crate::contract::{DataOutFault, Tmf, TmfOutcome};
use crate::testing::{A, BLOCKS, Gate, Rig, Slow, cdb_16, config};
use crate::unit::Reset;
use base::buffer::Bytes;
use base::time::Instant;
use scsi::opcode as op;
use scsi::sense::{Asc, SenseKey};
use scsi::status::TaskAttribute::Simple;

const NOW: Instant = Instant::ORIGIN;

fn slow() -> (Rig, Gate) {
    let (medium, gate) = Slow::new(BLOCKS * 512);
    (Rig::with(config(), Box::new(medium)), gate)
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

#[test]
fn a_key_in_use_is_an_overlapped_command_and_its_first_user_goes_on() {
    let (mut rig, gate) = slow();
    gate.close();
    let key = rig.start(A, &cdb_16(op::READ_16, 0, 0, 1), 512, 0);
    let command = crate::contract::Command {
        nexus: A,
        key,
        level: security::Level::None,
        attribute: Simple,
        priority: 0,
        cdb: scsi::cdb::Cdb::from_16([0; 16]),
        data_in_len: 0,
        data_out_len: 0,
    };
    rig.unit.execute(NOW, command);
    rig.drain();
    rig.finish(key, &[]).check(SenseKey::ABORTED_COMMAND, Asc::OVERLAPPED_COMMANDS_ATTEMPTED);
    gate.open();
    rig.ready();
    rig.finish(key, &[]).good();
}
