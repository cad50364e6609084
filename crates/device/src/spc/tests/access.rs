//! A nexus with read-only access changes nothing that another nexus observes.

use scsi::pr::{BasicList, ReservationKey, service_action_out as pr_out};
use scsi::status::Status;

use super::*;
use crate::contract::{Access, Tmf, TmfOutcome};
use crate::testing::nexus;

/// Returns a removable unit on which B has read-only access.
pub(super) fn limited() -> Rig {
    let mut rig = removable();
    limit(&mut rig);
    rig
}

fn limit(rig: &mut Rig) {
    rig.unit.nexus_changed(Instant::ORIGIN, crate::contract::Nexus { access: Access::ReadOnly, ..nexus(B) });
    rig.hears(B, Asc::MODE_PARAMETERS_CHANGED);
}

/// Sends a command without data, and returns whether it ended with the write protection of the nexus.
pub(super) fn is_refused(rig: &mut Rig, from: NexusId, cdb: &[u8]) -> bool {
    let task = rig.start(from, cdb, 0, 0);
    let Some(UnitEvent::CommandComplete { status, sense, .. }) = rig.event_of(task) else { return false };
    let sense = sense.and_then(|sense| crate::testing::decode(sense.bytes()));
    (status, sense) == (Status::CHECK_CONDITION, Some((SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED)))
}

#[test]
fn a_read_only_nexus_may_start_a_unit_that_runs_and_allow_removal() {
    for (cdb, refused) in [
        ([op::START_STOP_UNIT, 0, 0, 0, 1, 0], false),
        ([op::START_STOP_UNIT, 0, 0, 0, 0, 0], true),
        ([op::START_STOP_UNIT, 0, 0, 0, 2, 0], true),
        ([op::START_STOP_UNIT, 0, 0, 0, 3, 0], true),
        ([op::START_STOP_UNIT, 0, 0, 0, 0x31, 0], true),
        ([op::PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, 0, 0], false),
        ([op::PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, 1, 0], true),
    ] {
        assert_eq!(is_refused(&mut limited(), B, &cdb), refused, "{cdb:x?}");
        assert!(!is_refused(&mut limited(), A, &cdb), "{cdb:x?}");
    }
}

#[test]
fn a_read_only_nexus_neither_disables_writers_by_mode_select_nor_by_a_reservation() {
    let mut rig = limited();
    let list = BasicList { service_action_key: ReservationKey(1), ..BasicList::default() }.encode();
    let action = u8::try_from(pr_out::REGISTER).unwrap();
    for (cdb, list) in [
        (&[op::PERSISTENT_RESERVE_OUT, action, 0, 0, 0, 0, 0, 0, 24, 0][..], &list[..]),
        (&[op::MODE_SELECT_6, 0x10, 0, 0, 16, 0], &[0, 0, 0, 0, 0x0a, 10, 2, 16, 8, 0, 0, 0, 0, 0, 0, 1]),
        (&[op::RESERVE_6, 0, 0, 0, 0, 0], &[]),
    ] {
        rig.run(B, cdb, 0, list).check(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED);
    }
    write(&mut rig, A).good();
    read(&mut rig, B).good();
}

#[test]
fn a_read_only_nexus_aborts_its_own_tasks_and_resets_nobody() {
    let mut rig = limited();
    let [of_a, of_b] =
        [rig.start(A, &WRITE, 0, 512), rig.start(B, &[op::MODE_SENSE_6, 0, 0x3f, 0, 0, 0], 0, 0)];
    rig.finish(of_b, &[]).good();
    for function in [Tmf::LogicalUnitReset, Tmf::TargetReset, Tmf::ClearTaskSet] {
        assert_eq!(rig.manage(B, function), Some(TmfOutcome::NotAuthorized), "{function:?}");
    }
    for function in [Tmf::AbortTaskSet, Tmf::NexusReset] {
        assert_eq!(rig.manage(B, function), Some(TmfOutcome::Complete), "{function:?}");
    }
    rig.finish(of_a, &[3; 512]).good();
    rig.ready_for(A).good();
}

#[test]
fn access_that_narrows_gives_up_what_the_nexus_holds_against_others() {
    let mut rig = removable();
    rig.run(B, &[op::RESERVE_6, 0, 0, 0, 0, 0], 0, &[]).good();
    rig.run(B, &[op::PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, 1, 0], 0, &[]).good();
    assert_eq!(write(&mut rig, A).status, Status::RESERVATION_CONFLICT);
    limit(&mut rig);
    write(&mut rig, A).good();
    rig.run(A, &[op::START_STOP_UNIT, 0, 0, 0, 2, 0], 0, &[]).good();
}

/// Returns the commands with data that change something for other nexuses, and their data.
fn changes() -> [(Vec<u8>, Vec<u8>); 7] {
    let registration =
        BasicList { service_action_key: ReservationKey(1), persist: true, ..BasicList::default() };
    let overwrite = [1, 0, 0, 1, 0xaa];
    let unmap = [0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0];
    let compare: Vec<u8> = [[1; 512], [2; 512]].concat();
    [
        (WRITE.to_vec(), Vec::from([2; 512])),
        (Vec::from([op::SANITIZE, 0x81, 0, 0, 0, 0, 0, 0, 5, 0]), overwrite.to_vec()),
        (Vec::from([op::FORMAT_UNIT, 0x10, 0, 0, 0, 0]), Vec::from([0, 2, 0, 0])),
        (Vec::from([op::UNMAP, 0, 0, 0, 0, 0, 0, 0, 24, 0]), unmap.to_vec()),
        (Vec::from([op::COMPARE_AND_WRITE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]), compare),
        (Vec::from([op::PERSISTENT_RESERVE_OUT, 0, 0, 0, 0, 0, 0, 0, 24, 0]), registration.encode()),
        (
            Vec::from([op::MODE_SELECT_6, 0x10, 0, 0, 16, 0]),
            Vec::from([0, 0, 0, 0, 0x0a, 10, 2, 16, 8, 0, 0, 0, 0, 0, 0, 1]),
        ),
    ]
}

#[test]
fn a_nexus_that_may_only_read_finishes_no_change_that_it_began() {
    for (cdb, data) in changes() {
        for is_limited in [true, false] {
            let mut rig = Rig::new();
            rig.write(0, &[1; 512 * 8]);
            let keys = [op::PERSISTENT_RESERVE_IN, 0, 0, 0, 0, 0, 0, 0, 255, 0];
            let (modes, keys_before) = (control_page(&mut rig), rig.run(A, &keys, 255, &[]).good());
            let key = rig.start(B, &cdb, 0, data.len());
            if is_limited {
                limit(&mut rig);
                let reply = rig.finish(key, &data);
                reply.check(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED);
                assert_eq!(rig.read(0, 8), [1; 512 * 8], "{cdb:x?}");
                assert_eq!(rig.run(A, &keys, 255, &[]).good(), keys_before, "{cdb:x?}");
                assert_eq!(control_page(&mut rig), modes, "{cdb:x?}");
            } else {
                rig.finish(key, &data).good();
            }
        }
    }
}

fn control_page(rig: &mut Rig) -> Vec<u8> {
    rig.run(A, &[op::MODE_SENSE_6, 8, 0x0a, 0, 255, 0], 255, &[]).good()
}

#[test]
fn a_unit_that_becomes_read_only_is_not_changed_by_a_command_that_began_before() {
    for (cdb, data) in changes().into_iter().take(5) {
        let mut rig = Rig::new();
        rig.write(0, &[1; 512 * 8]);
        let key = rig.start(B, &cdb, 0, data.len());
        rig.unit.reconfigure(Instant::ORIGIN, crate::contract::UnitConfig { read_only: true, ..config() });
        rig.drain();
        rig.finish(key, &data).check(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED);
        rig.hears(A, Asc::MODE_PARAMETERS_CHANGED);
        assert_eq!(rig.read(0, 8), [1; 512 * 8], "{cdb:x?}");
    }
}

#[test]
fn a_reservation_that_waits_for_a_save_is_not_made_by_a_nexus_that_may_only_read_then() {
    let mut rig = Rig::new();
    let list = |key, service_action_key| {
        let (key, service_action_key) = (ReservationKey(key), ReservationKey(service_action_key));
        BasicList { key, service_action_key, persist: true, ..BasicList::default() }.encode()
    };
    let register = [op::PERSISTENT_RESERVE_OUT, 0, 0, 0, 0, 0, 0, 0, 24, 0];
    rig.run(A, &register, 0, &list(0, 1)).good();
    let removal = rig.start(A, &register, 0, 24);
    rig.send(removal, &list(1, 0), 0, 24);
    let reserve = rig.start(B, &[op::RESERVE_6, 0, 0, 0, 0, 0], 0, 0);
    limit(&mut rig);
    rig.save(true);
    rig.finish(reserve, &[]).check(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED);
    write(&mut rig, A).good();
}

#[test]
fn a_nexus_learns_that_its_access_has_changed() {
    let mut rig = Rig::new();
    for access in [Access::ReadOnly, Access::ReadWrite] {
        rig.unit.nexus_changed(Instant::ORIGIN, crate::contract::Nexus { access, ..nexus(B) });
        rig.hears(B, Asc::MODE_PARAMETERS_CHANGED);
        rig.unit.nexus_changed(Instant::ORIGIN, crate::contract::Nexus { access, ..nexus(B) });
        rig.ready_for(B).good();
        rig.ready_for(A).good();
    }
}
