//! Requests of copy managers: they are executed as commands on behalf of a nexus.

use alloc::boxed::Box;

use crate::contract::{
    Access, NexusId, ThirdPartyCaller, ThirdPartyError, ThirdPartyReply, ThirdPartyRequest, ThirdPartyResult,
    UnitEvent,
};
use crate::testing::{A, B, BLOCKS, Rig, Slow, cdb_16, config, nexus, pattern};
use crate::unit::Reset;
use base::buffer::Bytes;
use base::time::Instant;
use base::units::{Blocks, Lba};
use scsi::opcode as op;
use scsi::sense::{Asc, Sense, SenseKey};
use scsi::status::Status;

const NOW: Instant = Instant::ORIGIN;
const CALLER: ThirdPartyCaller = ThirdPartyCaller { unit: 3, call: 7 };

fn ask(rig: &mut Rig, nexus: NexusId, request: ThirdPartyRequest) -> ThirdPartyResult {
    rig.unit.execute_third_party(NOW, CALLER, nexus, request);
    rig.drain();
    answer(rig).expect("the unit answers at once")
}

fn answer(rig: &mut Rig) -> Option<ThirdPartyResult> {
    let at = rig.events.iter().position(|event| matches!(event, UnitEvent::ThirdPartyReply { .. }))?;
    match rig.events.remove(at)? {
        UnitEvent::ThirdPartyReply { caller, result } => {
            assert_eq!(caller, CALLER);
            Some(result)
        }
        _ => None,
    }
}

fn sense_of(result: ThirdPartyResult) -> Option<(SenseKey, Asc)> {
    match result {
        Err(ThirdPartyError::Status(Status::CHECK_CONDITION, Some(Sense { key, asc, .. }))) => {
            Some((key, asc))
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn reads_writes_and_zeroes_like_a_command() {
    let mut rig = Rig::new();
    let data = pattern(2048, 1);
    let write = ThirdPartyRequest::Write { lba: Lba(4), data: Bytes::copied_from(&data).into() };
    assert!(matches!(ask(&mut rig, A, write), Ok(ThirdPartyReply::Done)));
    assert_eq!(rig.read(4, 4), data);
    let Ok(ThirdPartyReply::Data(list)) =
        ask(&mut rig, B, ThirdPartyRequest::Read { lba: Lba(5), blocks: Blocks(2) })
    else {
        panic!()
    };
    assert_eq!(crate::device_server::DeviceServer::gather(&list), data[512..1536]);
    let zero = ThirdPartyRequest::Zero { lba: Lba(4), blocks: Blocks(4) };
    assert!(matches!(ask(&mut rig, A, zero), Ok(ThirdPartyReply::Done)));
    assert_eq!(rig.read(4, 4), [0; 2048]);
    assert!(matches!(ask(&mut rig, A, ThirdPartyRequest::Flush), Ok(ThirdPartyReply::Done)));
    let facts = ask(&mut rig, A, ThirdPartyRequest::Describe);
    assert!(matches!(facts, Ok(ThirdPartyReply::Description { blocks: Blocks(BLOCKS), device_type: 0, .. })));
}

#[test]
fn every_check_of_a_command_applies_and_no_attention_is_used_up() {
    let mut rig = Rig::new();
    let mut limited = nexus(B);
    limited.access = Access::ReadOnly;
    rig.unit.nexus_changed(NOW, limited);
    rig.unit.reset(NOW, Reset::LogicalUnit);
    let write = || ThirdPartyRequest::Write { lba: Lba(0), data: Bytes::copied_from(&[1; 512]).into() };
    let refused = sense_of(ask(&mut rig, B, write()));
    assert_eq!(refused, Some((SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED)));
    let beyond = ThirdPartyRequest::Read { lba: Lba(BLOCKS), blocks: Blocks(1) };
    assert_eq!(sense_of(ask(&mut rig, A, beyond)), Some((SenseKey::ILLEGAL_REQUEST, Asc::LBA_OUT_OF_RANGE)));
    for blocks in [1 << 33, u64::MAX] {
        let much = ThirdPartyRequest::Read { lba: Lba(0), blocks: Blocks(blocks) };
        assert_eq!(
            sense_of(ask(&mut rig, A, much)),
            Some((SenseKey::ILLEGAL_REQUEST, Asc::INVALID_FIELD_IN_CDB))
        );
    }
    let stranger = ask(&mut rig, NexusId(99), write());
    assert_eq!(sense_of(stranger), Some((SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE)));
    rig.run(A, &[0; 6], 0, &[]).check(SenseKey::UNIT_ATTENTION, Asc::BUS_DEVICE_RESET_OCCURRED);
}

#[test]
fn a_request_that_a_reset_ends_is_answered() {
    let (medium, gate) = Slow::new(BLOCKS * 512);
    let mut rig = Rig::with(config(), Box::new(medium));
    gate.close();
    rig.unit.execute_third_party(NOW, CALLER, A, ThirdPartyRequest::Read { lba: Lba(0), blocks: Blocks(1) });
    rig.drain();
    assert!(answer(&mut rig).is_none());
    rig.unit.reset(NOW, Reset::Target);
    gate.open();
    rig.ready();
    assert!(matches!(answer(&mut rig), Some(Err(ThirdPartyError::Status(Status::TASK_ABORTED, None)))));
}

#[test]
fn an_ordered_task_does_not_hold_up_a_copy_manager() {
    let (medium, gate) = Slow::new(BLOCKS * 512);
    let mut rig = Rig::with(config(), Box::new(medium));
    gate.close();
    let ordered =
        rig.start_as(A, scsi::status::TaskAttribute::Ordered, &cdb_16(op::READ_16, 0, 0, 1), 512, 0);
    rig.unit.execute_third_party(NOW, CALLER, A, ThirdPartyRequest::Read { lba: Lba(0), blocks: Blocks(1) });
    assert_eq!(gate.held(), 2);
    gate.open();
    rig.ready();
    assert!(answer(&mut rig).is_some());
    rig.finish(ordered, &[]).good();
}

#[test]
fn a_copy_manager_hears_that_the_unit_is_gone() {
    let (medium, gate) = Slow::new(BLOCKS * 512);
    let mut rig = Rig::with(config(), Box::new(medium));
    gate.close();
    let caller = ThirdPartyCaller { unit: 5, call: 6 };
    rig.unit.execute_third_party(NOW, caller, A, ThirdPartyRequest::Read { lba: Lba(0), blocks: Blocks(8) });
    rig.drain();
    assert!(rig.events.is_empty());
    rig.unit.retire(NOW);
    rig.drain();
    let Some(UnitEvent::ThirdPartyReply {
        caller: told,
        result: Err(ThirdPartyError::Status(status, Some(sense))),
    }) = rig.events.pop_front()
    else {
        panic!("{:?}", rig.events)
    };
    assert_eq!((told, status, sense.asc), (caller, Status::CHECK_CONDITION, Asc::LOGICAL_UNIT_NOT_SUPPORTED));
    gate.open();
    rig.ready();
    assert!(rig.unit.is_retired() && rig.events.is_empty());
}
