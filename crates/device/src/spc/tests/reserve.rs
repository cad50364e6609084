use scsi::status::Status;

use super::*;
use crate::contract::Tmf;
use crate::unit::Reset;

const RESERVE: [u8; 6] = [op::RESERVE_6, 0, 0, 0, 0, 0];
const RELEASE: [u8; 6] = [op::RELEASE_6, 0, 0, 0, 0, 0];
const MODE_SENSE: [u8; 6] = [op::MODE_SENSE_6, 0, 0x3f, 0, 255, 0];

#[track_caller]
fn conflict(reply: &Reply) {
    assert_eq!(reply.status, Status::RESERVATION_CONFLICT, "{reply:?}");
}

/// libiscsi Reserve6.2Initiators.
#[test]
fn one_initiator_reserves_and_the_other_conflicts() {
    let mut rig = Rig::new();
    rig.run(A, &RESERVE, 0, &[]).good();
    rig.run(A, &RESERVE, 0, &[]).good();
    conflict(&rig.run(B, &RESERVE, 0, &[]));
    rig.run(B, &RELEASE, 0, &[]).good();
    rig.run(A, &MODE_SENSE, 255, &[]).good();
    conflict(&rig.run(B, &MODE_SENSE, 255, &[]));
    conflict(&rig.run(B, &RESERVE, 0, &[]));
    conflict(&rig.ready_for(B));
    conflict(&read(&mut rig, B));
    conflict(&write(&mut rig, B));
    rig.run(B, &[op::INQUIRY, 0, 0, 0, 96, 0], 96, &[]).good();
    rig.run(B, &[op::READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8, &[]).good();
    rig.run(A, &RELEASE, 0, &[]).good();
    rig.run(B, &RESERVE, 0, &[]).good();
    rig.run(B, &RELEASE, 0, &[]).good();
    let reserve_10 = [op::RESERVE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    rig.run(A, &reserve_10, 0, &[]).good();
    conflict(&rig.run(B, &RESERVE, 0, &[]));
    rig.run(A, &[op::RELEASE_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0, &[]).good();
    rig.run(B, &RESERVE, 0, &[]).good();
    rig.run(A, &[op::RESERVE_6, 0x10, 0, 0, 0, 0], 0, &[]).illegal(Asc::INVALID_FIELD_IN_CDB);
}

/// libiscsi Reserve6.ITNexusLoss, .Logout, .LUNReset, .TargetWarmReset, .TargetColdReset.
#[test]
fn a_reservation_ends_with_its_nexus_and_with_every_reset() {
    let ends: [fn(&mut Rig); 4] = [
        |rig| rig.unit.nexus_lost(Instant::ORIGIN, A),
        |rig| assert!(rig.manage(B, Tmf::LogicalUnitReset).is_some()),
        |rig| rig.unit.reset(Instant::ORIGIN, Reset::Target),
        |rig| assert!(rig.manage(A, Tmf::NexusReset).is_some()),
    ];
    for end in ends {
        let mut rig = Rig::new();
        rig.run(A, &RESERVE, 0, &[]).good();
        end(&mut rig);
        rig.drain();
        while rig.ready_for(B).status == Status::CHECK_CONDITION {}
        rig.run(B, &RESERVE, 0, &[]).good();
    }
}

#[test]
fn a_nexus_that_returns_holds_nothing() {
    let mut rig = Rig::new();
    rig.run(A, &RESERVE, 0, &[]).good();
    rig.unit.nexus_lost(Instant::ORIGIN, A);
    rig.unit.nexus_established(Instant::ORIGIN, crate::testing::nexus(A));
    rig.drain();
    rig.run(B, &RESERVE, 0, &[]).good();
    rig.ready_for(A).check(SenseKey::UNIT_ATTENTION, Asc::I_T_NEXUS_LOSS_OCCURRED);
    conflict(&rig.run(A, &RESERVE, 0, &[]));
}

#[test]
fn persistent_reservations_conflict_with_any_reserve() {
    let mut rig = Rig::new();
    rig.run(A, &RESERVE, 0, &[]).good();
    for nexus in BOTH {
        conflict(&rig.run(nexus, &[op::PERSISTENT_RESERVE_IN, 0, 0, 0, 0, 0, 0, 0, 64, 0], 64, &[]));
        conflict(&rig.run(nexus, &[op::PERSISTENT_RESERVE_OUT, 6, 0, 0, 0, 0, 0, 0, 24, 0], 0, &[0; 24]));
    }
}

#[test]
fn a_reset_is_reported_before_a_conflict_and_other_attentions_after_it() {
    let mut rig = Rig::new();
    rig.run(A, &RESERVE, 0, &[]).good();
    let mut list = Vec::from([0; 4]);
    list.extend(&rig.run(A, &[op::MODE_SENSE_6, 8, 0x0a, 0, 255, 0], 255, &[]).good()[4..]);
    list[6] ^= 4;
    rig.run(A, &[op::MODE_SELECT_6, 0x10, 0, 0, 16, 0], 0, &list).good();
    conflict(&rig.ready_for(B));
    rig.run(A, &RELEASE, 0, &[]).good();
    rig.hears(B, Asc::MODE_PARAMETERS_CHANGED);
    rig.unit.reset(Instant::ORIGIN, Reset::Target);
    rig.drain();
    rig.hears(A, Asc::BUS_DEVICE_RESET_OCCURRED);
    rig.run(A, &RESERVE, 0, &[]).good();
    rig.ready_for(B).check(SenseKey::UNIT_ATTENTION, Asc::BUS_DEVICE_RESET_OCCURRED);
    conflict(&rig.ready_for(B));
}
