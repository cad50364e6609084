use alloc::format;

use scsi::pr::{
    BasicList, Capabilities, FullStatusList, Keys, MoveList, Reservation, ReservationKey, ReservationType,
    service_action_in as pr_in, service_action_out as pr_out,
};
use scsi::status::Status;
use scsi::transport_id::TransportId;

use super::*;
use crate::contract::{Tmf, TmfOutcome};
use crate::state_decode_error::StateDecodeError;
use crate::testing::nexus;
use crate::unit::reservations::{
    RemovalError, RemovalProgress, RemovedReservations, ReservationKind, ReservationRemoval,
};
use crate::unit::{LogicalUnit, Reset, UnitError};

const K1: ReservationKey = ReservationKey(0x0a0a_0a0a_0a0a_0a0a);
const K2: ReservationKey = ReservationKey(0x0b0b_0b0b_0b0b_0b0b);
const NONE: ReservationKey = ReservationKey::NONE;

fn cdb(action: u16, kind: u8, len: usize) -> [u8; 10] {
    let [a, b, c, d] = u32::try_from(len).unwrap().to_be_bytes();
    [op::PERSISTENT_RESERVE_OUT, u8::try_from(action).unwrap(), kind, 0, 0, a, b, c, d, 0]
}

/// Sends PERSISTENT RESERVE OUT with a basic parameter list.
fn out(
    rig: &mut Rig,
    from: NexusId,
    action: u16,
    kind: u8,
    key: ReservationKey,
    new: ReservationKey,
) -> Reply {
    let list = BasicList { key, service_action_key: new, ..BasicList::default() }.encode();
    rig.run(from, &cdb(action, kind, list.len()), 0, &list)
}

fn register(rig: &mut Rig, from: NexusId, key: ReservationKey) {
    out(rig, from, pr_out::REGISTER_AND_IGNORE_EXISTING_KEY, 0, NONE, key).good();
}

fn unregister(rig: &mut Rig, from: NexusId, key: ReservationKey) -> Reply {
    out(rig, from, pr_out::REGISTER, 0, key, NONE)
}

fn reserve(rig: &mut Rig, from: NexusId, key: ReservationKey, kind: ReservationType) -> Reply {
    out(rig, from, pr_out::RESERVE, kind.code(), key, NONE)
}

fn release(rig: &mut Rig, from: NexusId, key: ReservationKey, kind: ReservationType) -> Reply {
    out(rig, from, pr_out::RELEASE, kind.code(), key, NONE)
}

fn get(rig: &mut Rig, from: NexusId, action: u16, allocation: u16) -> Reply {
    let [high, low] = allocation.to_be_bytes();
    let action = u8::try_from(action).unwrap();
    let cdb = [op::PERSISTENT_RESERVE_IN, action, 0, 0, 0, 0, 0, high, low, 0];
    rig.run(from, &cdb, usize::from(allocation), &[])
}

fn reservation(rig: &mut Rig) -> Option<(ReservationKey, ReservationType)> {
    reservation_by(rig, A)
}

fn reservation_by(rig: &mut Rig, from: NexusId) -> Option<(ReservationKey, ReservationType)> {
    let bytes = get(rig, from, pr_in::READ_RESERVATION, 1024).good();
    Reservation::parse(&bytes).unwrap().reservation.map(|held| (held.key, held.kind))
}

fn keys(rig: &mut Rig) -> Keys {
    keys_by(rig, A)
}

fn keys_by(rig: &mut Rig, from: NexusId) -> Keys {
    Keys::parse(&get(rig, from, pr_in::READ_KEYS, 16384).good()).unwrap()
}

#[track_caller]
fn conflict(reply: &Reply) {
    assert_eq!(reply.status, Status::RESERVATION_CONFLICT, "{reply:?}");
}

#[track_caller]
fn may(reply: &Reply, may: bool) {
    let expected = if may { Status::GOOD } else { Status::RESERVATION_CONFLICT };
    assert_eq!(reply.status, expected, "{reply:?}");
}

/// libiscsi ProutReserve.Access{EA,WE,EARO,WERO,EAAR,WEAR}: whether a registrant may read and write, and
/// whether an unregistered nexus may.
#[test]
fn each_type_admits_whom_it_should() {
    for (kind, [registrant_reads, registrant_writes, stranger_reads, stranger_writes]) in [
        (ReservationType::ExclusiveAccess, [false, false, false, false]),
        (ReservationType::WriteExclusive, [true, false, true, false]),
        (ReservationType::ExclusiveAccessRegistrantsOnly, [true, true, false, false]),
        (ReservationType::WriteExclusiveRegistrantsOnly, [true, true, true, false]),
        (ReservationType::ExclusiveAccessAllRegistrants, [true, true, false, false]),
        (ReservationType::WriteExclusiveAllRegistrants, [true, true, true, false]),
    ] {
        let mut rig = Rig::new();
        register(&mut rig, A, K1);
        register(&mut rig, B, K2);
        reserve(&mut rig, A, K1, kind).good();
        let holder_key = if kind.is_all_registrants() { NONE } else { K1 };
        assert_eq!(reservation(&mut rig), Some((holder_key, kind)));
        read(&mut rig, A).good();
        write(&mut rig, A).good();
        may(&read(&mut rig, B), registrant_reads);
        may(&write(&mut rig, B), registrant_writes);
        unregister(&mut rig, B, K2).good();
        may(&read(&mut rig, B), stranger_reads);
        may(&write(&mut rig, B), stranger_writes);
        rig.ready_for(B).good();
        rig.run(B, &[op::READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8, &[]).good();
        may(&rig.run(B, &[op::MODE_SENSE_6, 0, 0x3f, 0, 255, 0], 255, &[]), stranger_reads);
        may(&rig.run(B, &[op::START_STOP_UNIT, 0, 0, 0, 1, 0], 0, &[]), true);
        may(&rig.run(B, &[op::START_STOP_UNIT, 0, 0, 0, 0, 0], 0, &[]), false);
        release(&mut rig, A, K1, kind).good();
        unregister(&mut rig, A, K1).good();
        write(&mut rig, B).good();
    }
}

/// libiscsi ProutReserve.Ownership*: a nexus that unregisters itself receives no unit attention for it (tgt
/// sends one, and fails).
#[test]
fn unregistering_the_holder_tells_the_others_and_not_the_holder() {
    for kind in ReservationType::ALL {
        let mut rig = Rig::new();
        register(&mut rig, A, K1);
        register(&mut rig, B, K2);
        reserve(&mut rig, A, K1, kind).good();
        unregister(&mut rig, A, K1).good();
        if kind.is_all_registrants() {
            assert_eq!(reservation(&mut rig), Some((NONE, kind)));
            release(&mut rig, B, K2, kind).good();
        } else {
            assert_eq!(reservation(&mut rig), None);
            if kind.admits_registrants() {
                rig.hears(B, Asc::RESERVATIONS_RELEASED);
            } else {
                rig.ready_for(B).good();
            }
        }
        rig.ready_for(A).good();
        unregister(&mut rig, B, K2).good();
        assert_eq!(keys(&mut rig).keys, []);
    }
}

/// libiscsi ProutRegister.Simple, ProutReserve.Simple, ProutClear.Simple, PrinReadKeys.Simple, .Truncate.
#[test]
fn one_initiator_registers_reserves_and_clears() {
    let mut rig = Rig::new();
    register(&mut rig, A, K1);
    conflict(&out(&mut rig, A, pr_out::REGISTER, 0, NONE, ReservationKey(K1.0 + 1)));
    let before = keys(&mut rig);
    assert_eq!(before.keys, [K1]);
    for kind in ReservationType::ALL {
        reserve(&mut rig, A, K1, kind).good();
        release(&mut rig, A, K1, kind).good();
    }
    reserve(&mut rig, A, K1, ReservationType::ExclusiveAccess).good();
    out(&mut rig, A, pr_out::CLEAR, 0, K1, NONE).good();
    assert_eq!(reservation(&mut rig), None);
    assert_eq!(keys(&mut rig), Keys { generation: before.generation + 1, keys: Vec::new() });
    register(&mut rig, A, K1);
    let cut = get(&mut rig, A, pr_in::READ_KEYS, 8).good();
    assert_eq!((cut.len(), &cut[4..8]), (8, &[0, 0, 0, 8][..]));
}

#[test]
fn an_operator_sees_the_reservation_its_holders_and_the_registrations() {
    let mut rig = Rig::new();
    let seen = |rig: &Rig| {
        rig.unit.reservations().map(|report| (report.kind, report.registrations, report.holders.len()))
    };
    assert_eq!(seen(&rig), None);
    rig.run(A, &[op::RESERVE_6, 0, 0, 0, 0, 0], 0, &[]).good();
    assert_eq!(seen(&rig), Some((Some(ReservationKind::Spc2), 0, 1)));
    rig.run(A, &[op::RELEASE_6, 0, 0, 0, 0, 0], 0, &[]).good();
    register(&mut rig, A, K1);
    register(&mut rig, B, K2);
    assert_eq!(seen(&rig), Some((None, 2, 0)));
    for kind in [ReservationType::WriteExclusive, ReservationType::ExclusiveAccessAllRegistrants] {
        reserve(&mut rig, A, K1, kind).good();
        // All ports of the rig are of one initiator.
        assert_eq!(seen(&rig), Some((Some(ReservationKind::Persistent(kind)), 2, 1)));
        assert_eq!(rig.unit.reservations().unwrap().holders, ["iqn.2026-11.org.initiator"]);
        release(&mut rig, A, K1, kind).good();
    }
    assert!(!rig.unit.reservations().unwrap().persists);
    out(&mut rig, A, pr_out::CLEAR, 0, K1, NONE).good();
    assert_eq!(seen(&rig), None);
}

/// Selects the initiator of the rig, or only the port of one nexus.
fn initiator_of(nexus_id: Option<NexusId>) -> ReservationRemoval {
    let port = |id| match TransportId::from_bytes(&nexus(id).initiator_port) {
        Ok(TransportId::IscsiPort { isid, .. }) => isid,
        _ => panic!("no iSCSI port"),
    };
    ReservationRemoval::Initiator { name: "IQN.2026-11.org.initiator".into(), isid: nexus_id.map(port) }
}

/// Removes reservations for the operator, and returns how many registrations and whether a reservation ended.
fn remove(rig: &mut Rig, selection: ReservationRemoval, force: bool) -> Result<(usize, bool), RemovalError> {
    let removed = rig.unit.remove_reservations(Instant::ORIGIN, selection, force);
    rig.drain();
    removed.map(|RemovedReservations { registrations, has_released }| (registrations, has_released))
}

#[test]
fn an_operator_removes_the_registration_of_a_lost_host_and_the_others_go_on() {
    for (kind, hears) in
        [(ReservationType::WriteExclusiveRegistrantsOnly, true), (ReservationType::WriteExclusive, false)]
    {
        let mut rig = Rig::new();
        register(&mut rig, A, K1);
        register(&mut rig, B, K2);
        reserve(&mut rig, A, K1, kind).good();
        let before = keys(&mut rig).generation;
        let dead = initiator_of(Some(A));
        let present = Vec::from(["iqn.2026-11.org.initiator".into()]);
        assert_eq!(remove(&mut rig, dead.clone(), false), Err(RemovalError::LoggedIn(present)));
        rig.unit.nexus_lost(Instant::ORIGIN, A);
        let details = rig.unit.reservation_details();
        let seen: Vec<_> =
            details.registrants.iter().map(|one| (one.key, one.is_holder, one.port.is_logged_in)).collect();
        assert_eq!(seen, [(K1.0, true, false), (K2.0, false, true)]);
        assert_eq!(remove(&mut rig, dead.clone(), false), Ok((1, true)));
        assert_eq!(rig.unit.removal_progress(), RemovalProgress::Done);
        assert_eq!(remove(&mut rig, dead, true), Err(RemovalError::Nothing));
        // SPC demands a unit attention for registrants when a reservation of registrants ends.
        if hears {
            rig.hears(B, Asc::RESERVATIONS_RELEASED);
        }
        rig.ready_for(B).good();
        assert_eq!(reservation_by(&mut rig, B), None);
        assert_eq!(keys_by(&mut rig, B), Keys { generation: before + 1, keys: Vec::from([K2]) });
        write(&mut rig, B).good();
        rig.unit.nexus_established(Instant::ORIGIN, nexus(A));
        rig.ready_for(A).check(SenseKey::UNIT_ATTENTION, Asc::I_T_NEXUS_LOSS_OCCURRED);
        rig.hears(A, Asc::REGISTRATIONS_PREEMPTED);
    }
}

#[test]
fn an_operator_clears_all_reservations_as_clear_does() {
    let mut rig = Rig::new();
    register(&mut rig, A, K1);
    register(&mut rig, B, K2);
    reserve(&mut rig, A, K1, ReservationType::ExclusiveAccess).good();
    let before = keys(&mut rig).generation;
    assert!(matches!(remove(&mut rig, ReservationRemoval::All, false), Err(RemovalError::LoggedIn(_))));
    assert_eq!(remove(&mut rig, ReservationRemoval::All, true), Ok((2, true)));
    for nexus in BOTH {
        rig.hears(nexus, Asc::RESERVATIONS_PREEMPTED);
        rig.ready_for(nexus).good();
    }
    assert_eq!(keys(&mut rig), Keys { generation: before + 1, keys: Vec::new() });
    write(&mut rig, B).good();
}

#[test]
fn an_operator_ends_the_reservation_of_reserve() {
    for selection in [ReservationRemoval::All, initiator_of(Some(A))] {
        let mut rig = Rig::new();
        rig.run(A, &[op::RESERVE_6, 0, 0, 0, 0, 0], 0, &[]).good();
        assert_eq!(remove(&mut rig, initiator_of(Some(B)), true), Err(RemovalError::Nothing));
        assert!(matches!(remove(&mut rig, selection.clone(), false), Err(RemovalError::LoggedIn(_))));
        assert_eq!(remove(&mut rig, selection, true), Ok((0, true)));
        rig.hears(A, Asc::RESERVATIONS_PREEMPTED);
        write(&mut rig, B).good();
    }
}

#[test]
fn the_tasks_of_a_host_whose_registration_an_operator_removes_are_aborted() {
    let mut rig = Rig::new();
    register(&mut rig, A, K1);
    let task = rig.start(A, &WRITE, 0, 512);
    let Some(UnitEvent::FetchDataOut { .. }) = rig.event_of(task) else { panic!("no fetch") };
    assert_eq!(remove(&mut rig, initiator_of(Some(A)), true), Ok((1, false)));
    let Some(UnitEvent::Aborted { .. }) = rig.event_of(task) else { panic!("not aborted") };
}

#[test]
fn a_removal_is_in_force_only_when_it_is_stored() {
    let (mut rig, _) = persistent();
    assert_eq!(remove(&mut rig, initiator_of(None), true), Ok((1, true)));
    assert_eq!(rig.unit.removal_progress(), RemovalProgress::Storing);
    assert_eq!(remove(&mut rig, initiator_of(None), true), Err(RemovalError::Busy));
    conflict(&write(&mut rig, B));
    rig.save(false);
    assert_eq!(rig.unit.removal_progress(), RemovalProgress::NotStored);
    conflict(&write(&mut rig, B));
    rig.ready_for(A).good();
    assert_eq!(remove(&mut rig, initiator_of(None), true), Ok((1, true)));
    let state = rig.save(true);
    assert_eq!(rig.unit.removal_progress(), RemovalProgress::Done);
    write(&mut rig, B).good();
    let mut rig = restart(Some(&state)).unwrap();
    assert_eq!(reservation(&mut rig), None);
    write(&mut rig, B).good();
}

#[test]
fn an_operator_ends_the_wait_for_a_lost_reservation() {
    let store = Box::new(Ram::new(BLOCKS * 512));
    let unit =
        LogicalUnit::new_without_reservations(config(), store, base::buffer::Pool::new(1 << 20)).unwrap();
    let mut rig = Rig::of(unit);
    assert_eq!(remove(&mut rig, initiator_of(None), true), Err(RemovalError::Nothing));
    assert_eq!(remove(&mut rig, ReservationRemoval::All, false), Err(RemovalError::Lost));
    assert_eq!(remove(&mut rig, ReservationRemoval::All, true), Ok((0, false)));
    assert_eq!(rig.save(true), [0_u8; 0], "the unreadable state is replaced");
    write(&mut rig, B).good();
}

/// libiscsi ProutPreempt.RemoveRegistration.
#[test]
fn a_preempted_registrant_is_told() {
    let mut rig = Rig::new();
    register(&mut rig, A, K1);
    register(&mut rig, B, K2);
    let before = keys(&mut rig).generation;
    out(&mut rig, B, pr_out::PREEMPT, 3, K2, K1).good();
    rig.hears(A, Asc::REGISTRATIONS_PREEMPTED);
    rig.ready_for(B).good();
    assert_eq!(keys(&mut rig), Keys { generation: before + 1, keys: Vec::from([K2]) });
}

/// libiscsi PrinServiceactionRange, PrinReportCapabilities.Simple.
#[test]
fn four_service_actions_report_and_the_others_do_not_exist() {
    let mut rig = Rig::new();
    for action in 0..4 {
        get(&mut rig, A, action, 16384).good();
    }
    for action in 4..0x20 {
        get(&mut rig, A, action, 16384).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
    for action in 9..0x20 {
        out(&mut rig, A, action, 0, NONE, K1).illegal(Asc::INVALID_FIELD_IN_CDB);
    }
    let told = Capabilities::parse(&get(&mut rig, A, pr_in::REPORT_CAPABILITIES, 64).good()).unwrap();
    assert_eq!((told.types, told.allow_commands), (ReservationType::MASK_OF_ALL, 4));
}

#[test]
fn scope_and_type_are_judged_where_they_count() {
    let mut rig = Rig::new();
    register(&mut rig, A, K1);
    for wrong in [0x00, 0x02, 0x04, 0x09, 0x0f, 0x11, 0xf1] {
        out(&mut rig, A, pr_out::RESERVE, wrong, K1, NONE).illegal(Asc::INVALID_FIELD_IN_CDB);
        out(&mut rig, A, pr_out::REGISTER, wrong, K1, K1).good();
        out(&mut rig, A, pr_out::RELEASE, wrong, K1, NONE).good();
    }
    reserve(&mut rig, A, K1, ReservationType::WriteExclusive).good();
    out(&mut rig, A, pr_out::RELEASE, 0x11, K1, NONE).illegal(Asc::INVALID_RELEASE_OF_PERSISTENT_RESERVATION);
    out(&mut rig, A, pr_out::PREEMPT, 0x12, K1, K1).illegal(Asc::INVALID_FIELD_IN_CDB);
    out(&mut rig, A, pr_out::PREEMPT, 0x03, K1, K1).good();
    out(&mut rig, A, pr_out::CLEAR, 0xff, K1, NONE).good();
}

/// CVE-2024-39281: a target allocated a length that the initiator chose.
#[test]
fn a_parameter_list_of_another_length_is_refused_before_it_is_fetched() {
    let mut rig = Rig::new();
    for action in 0..9 {
        for len in [0, 1, 8, 23, 25, 28, 16 << 10, (16 << 10) + 1, 128 << 10, 1 << 31, u32::MAX] {
            let variable = [pr_out::REGISTER, pr_out::REGISTER_AND_MOVE].contains(&action);
            if variable && (25..=16 << 10).contains(&len) {
                continue;
            }
            let cdb = cdb(action, 1, usize::try_from(len).unwrap());
            let key = rig.start(A, &cdb, 0, usize::try_from(len).unwrap());
            rig.finish(key, &[]).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
        }
        rig.run(A, &cdb(action, 1, 24), 0, &[0; 20]).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    }
}

#[test]
fn spec_i_pt_is_for_register_alone() {
    let mut rig = Rig::new();
    let other = TransportId::iscsi_port("iqn.2026-01.org.example:other", [1; 6]).unwrap();
    let list = |key| {
        let initiator_ports = Some(Vec::from([other.clone()]));
        BasicList { key, service_action_key: K1, initiator_ports, ..BasicList::default() }.encode()
    };
    let bytes = list(NONE);
    rig.run(A, &cdb(pr_out::REGISTER, 0, bytes.len()), 0, &bytes).good();
    assert_eq!(keys(&mut rig).keys, [K1, K1]);
    let status = FullStatusList::parse(&get(&mut rig, A, pr_in::READ_FULL_STATUS, 1024).good()).unwrap();
    assert!(status.registrants.iter().any(|one| one.initiator_port == other.encode()));
    let mut marked = list(K1)[..24].to_vec();
    for action in 1..9 {
        if action != pr_out::REGISTER_AND_MOVE {
            rig.run(A, &cdb(action, 1, 24), 0, &marked).illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
        }
    }
    marked[20] = 0;
    rig.run(A, &cdb(pr_out::RESERVE, 1, 24), 0, &marked).good();
}

#[test]
fn a_reservation_moves_to_a_nexus_that_comes_later() {
    let mut rig = Rig::new();
    register(&mut rig, A, K1);
    reserve(&mut rig, A, K1, ReservationType::ExclusiveAccess).good();
    let later = nexus(NexusId(77));
    let list = MoveList {
        key: K1,
        service_action_key: K2,
        unregister: true,
        persist: false,
        relative_port: 1,
        initiator_port: TransportId::from_bytes(&later.initiator_port).unwrap(),
    }
    .encode();
    rig.run(A, &cdb(pr_out::REGISTER_AND_MOVE, 0, list.len()), 0, &list).good();
    conflict(&write(&mut rig, A));
    rig.unit.nexus_established(Instant::ORIGIN, later);
    rig.ready_for(NexusId(77)).check(SenseKey::UNIT_ATTENTION, Asc::POWER_ON_RESET_OR_BUS_DEVICE_RESET);
    write(&mut rig, NexusId(77)).good();
}

#[test]
fn registrations_outlive_sessions_and_resets() {
    let mut rig = Rig::new();
    register(&mut rig, A, K1);
    register(&mut rig, B, K2);
    reserve(&mut rig, A, K1, ReservationType::ExclusiveAccess).good();
    rig.unit.nexus_lost(Instant::ORIGIN, A);
    conflict(&write(&mut rig, B));
    rig.unit.reset(Instant::ORIGIN, Reset::Target);
    rig.unit.nexus_established(Instant::ORIGIN, nexus(A));
    rig.drain();
    for nexus in BOTH {
        while rig.ready_for(nexus).status != Status::GOOD {}
    }
    write(&mut rig, A).good();
    conflict(&write(&mut rig, B));
    assert_eq!(keys(&mut rig).keys, [K1, K2]);
}

#[test]
fn who_was_away_hears_of_its_preemption_when_it_returns() {
    let mut rig = Rig::new();
    register(&mut rig, A, K1);
    register(&mut rig, B, K2);
    rig.unit.nexus_lost(Instant::ORIGIN, A);
    let list = BasicList { key: K2, service_action_key: K1, ..BasicList::default() }.encode();
    rig.run(B, &cdb(pr_out::PREEMPT, 1, 24), 0, &list).good();
    rig.unit.nexus_established(Instant::ORIGIN, nexus(A));
    rig.ready_for(A).check(SenseKey::UNIT_ATTENTION, Asc::I_T_NEXUS_LOSS_OCCURRED);
    rig.hears(A, Asc::REGISTRATIONS_PREEMPTED);
}

#[test]
fn preempt_and_abort_ends_the_victims_tasks_before_it_is_answered() {
    let (store, recording) = Recorder::new();
    let config = crate::contract::UnitConfig { removable: true, ..config() };
    let mut rig = Rig::with(config, Box::new(store));
    register(&mut rig, A, K1);
    register(&mut rig, B, K2);
    rig.run(A, &[op::PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, 1, 0], 0, &[]).good();
    reserve(&mut rig, A, K1, ReservationType::WriteExclusive).good();
    recording.borrow_mut().hold = true;
    let victim = rig.start(A, &WRITE, 0, 512);
    let Some(UnitEvent::FetchDataOut { .. }) = rig.event_of(victim) else { panic!("no fetch") };
    rig.send(victim, &[1; 512], 0, 512);
    let list = BasicList { key: K2, service_action_key: K1, ..BasicList::default() }.encode();
    let preempt = rig.start(B, &cdb(pr_out::PREEMPT_AND_ABORT, 1, 24), 0, 24);
    let Some(UnitEvent::FetchDataOut { .. }) = rig.event_of(preempt) else { panic!("no fetch") };
    rig.send(preempt, &list, 0, 24);
    assert!(rig.event_of(preempt).is_none(), "the medium still writes for the victim");
    recording.borrow_mut().hold = false;
    rig.ready();
    let Some(UnitEvent::Aborted { .. }) = rig.event_of(victim) else { panic!("not aborted") };
    rig.finish(preempt, &[]).good();
    rig.ready_for(A).check(SenseKey::UNIT_ATTENTION, Asc::REGISTRATIONS_PREEMPTED);
    rig.hears(A, Asc::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR);
    conflict(&write(&mut rig, A));
    rig.run(B, &[op::START_STOP_UNIT, 0, 0, 0, 2, 0], 0, &[]).good();
}

#[test]
fn preempt_and_abort_waits_for_writes_that_the_victim_has_left_behind() {
    for lost in [false, true] {
        let (store, recording) = Recorder::new();
        let mut rig = Rig::with(config(), Box::new(store));
        register(&mut rig, A, K1);
        register(&mut rig, B, K2);
        reserve(&mut rig, A, K1, ReservationType::WriteExclusive).good();
        recording.borrow_mut().hold = true;
        let victim = rig.start(A, &WRITE, 0, 512);
        let Some(UnitEvent::FetchDataOut { .. }) = rig.event_of(victim) else { panic!("no fetch") };
        rig.send(victim, &[1; 512], 0, 512);
        // The victim's host aborts the write, or its session is lost. The medium continues the write.
        if lost {
            rig.unit.nexus_lost(Instant::ORIGIN, A);
        } else {
            assert_eq!(rig.manage(A, Tmf::AbortTask(victim)), None);
        }
        let list = BasicList { key: K2, service_action_key: K1, ..BasicList::default() }.encode();
        let preempt = rig.start(B, &cdb(pr_out::PREEMPT_AND_ABORT, 1, 24), 0, 24);
        let Some(UnitEvent::FetchDataOut { .. }) = rig.event_of(preempt) else { panic!("no fetch") };
        rig.send(preempt, &list, 0, 24);
        assert!(rig.event_of(preempt).is_none(), "the medium still writes for the victim; lost: {lost}");
        // Functions that concern no task of the victim do not wait.
        assert_eq!(rig.manage(B, Tmf::QueryTask(preempt)), Some(TmfOutcome::Succeeded));
        recording.borrow_mut().hold = false;
        rig.ready();
        rig.finish(preempt, &[]).good();
    }
}

/// Returns a unit, and the state that it last requested to be saved.
fn persistent() -> (Rig, Vec<u8>) {
    let mut rig = Rig::new();
    let list = BasicList { service_action_key: K1, persist: true, ..BasicList::default() }.encode();
    let key = rig.start(A, &cdb(pr_out::REGISTER, 0, 24), 0, 24);
    let Some(UnitEvent::FetchDataOut { .. }) = rig.event_of(key) else { panic!("no fetch") };
    rig.send(key, &list, 0, 24);
    assert!(rig.event_of(key).is_none(), "answered only when it is saved");
    rig.save(true);
    rig.finish(key, &[]).good();
    let key = rig.start(A, &cdb(pr_out::RESERVE, 3, 24), 0, 24);
    let Some(UnitEvent::FetchDataOut { .. }) = rig.event_of(key) else { panic!("no fetch") };
    rig.send(key, &BasicList { key: K1, ..BasicList::default() }.encode(), 0, 24);
    let state = rig.save(true);
    rig.finish(key, &[]).good();
    (rig, state)
}

fn restart(saved: Option<&[u8]>) -> Result<Rig, UnitError> {
    let unit = LogicalUnit::new(
        config(),
        Box::new(Ram::new(BLOCKS * 512)),
        saved,
        base::buffer::Pool::new(1 << 20),
    )?;
    Ok(Rig::of(unit))
}

#[test]
fn aptpl_survives_a_restart() {
    let (mut rig, state) = persistent();
    let told = Capabilities::parse(&get(&mut rig, A, pr_in::REPORT_CAPABILITIES, 64).good()).unwrap();
    assert!(told.persist_active);
    let mut rig = restart(Some(&state)).unwrap();
    assert_eq!(reservation(&mut rig), Some((K1, ReservationType::ExclusiveAccess)));
    assert_eq!(keys(&mut rig), Keys { generation: 0, keys: Vec::from([K1]) });
    write(&mut rig, A).good();
    conflict(&write(&mut rig, B));
    let mut rig = restart(None).unwrap();
    write(&mut rig, B).good();
}

#[test]
fn a_preemption_is_saved_even_if_its_command_is_aborted() {
    let (mut rig, _) = persistent();
    let list = BasicList { service_action_key: K2, persist: true, ..BasicList::default() }.encode();
    let key = rig.start(B, &cdb(pr_out::REGISTER, 0, 24), 0, 24);
    let Some(UnitEvent::FetchDataOut { .. }) = rig.event_of(key) else { panic!("no fetch") };
    rig.send(key, &list, 0, 24);
    rig.save(true);
    rig.finish(key, &[]).good();
    let list = BasicList { key: K2, service_action_key: K1, ..BasicList::default() }.encode();
    let key = rig.start(B, &cdb(pr_out::PREEMPT_AND_ABORT, 1, 24), 0, 24);
    let Some(UnitEvent::FetchDataOut { .. }) = rig.event_of(key) else { panic!("no fetch") };
    rig.send(key, &list, 0, 24);
    rig.unit.reset(Instant::ORIGIN, Reset::LogicalUnit);
    rig.drain();
    let state = rig.save(true);
    let Some(UnitEvent::Aborted { .. }) = rig.event_of(key) else { panic!("not aborted") };
    let mut rig = restart(Some(&state)).unwrap();
    assert_eq!(reservation(&mut rig), Some((K2, ReservationType::WriteExclusive)));
    conflict(&write(&mut rig, A));
}

#[test]
fn what_could_not_be_saved_is_not_reported_as_done() {
    let mut rig = Rig::new();
    let list = BasicList { service_action_key: K1, persist: true, ..BasicList::default() }.encode();
    let key = rig.start(A, &cdb(pr_out::REGISTER, 0, 24), 0, 24);
    let Some(UnitEvent::FetchDataOut { .. }) = rig.event_of(key) else { panic!("no fetch") };
    rig.send(key, &list, 0, 24);
    rig.save(false);
    rig.finish(key, &[]).check(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE);
}

#[test]
fn turning_aptpl_off_saves_nothing_for_the_next_start() {
    let (mut rig, _) = persistent();
    let list = BasicList { key: K1, service_action_key: K1, ..BasicList::default() }.encode();
    let key = rig.start(A, &cdb(pr_out::REGISTER, 0, 24), 0, 24);
    let Some(UnitEvent::FetchDataOut { .. }) = rig.event_of(key) else { panic!("no fetch") };
    rig.send(key, &list, 0, 24);
    assert_eq!(rig.save(true), [0_u8; 0]);
    rig.finish(key, &[]).good();
}

#[test]
fn a_unit_with_unreadable_state_does_not_start_by_itself() {
    let (_, mut state) = persistent();
    state[20] ^= 1;
    let why = restart(Some(&state)).err().unwrap();
    assert_eq!(why, UnitError::SavedState(StateDecodeError::Corrupt));
    assert_eq!(format!("{why}"), "saved state: checksum does not match");
}

#[test]
fn a_unit_without_its_state_waits_for_somebody_to_say_what_was_reserved() {
    let store = Box::new(Ram::new(BLOCKS * 512));
    let unit =
        LogicalUnit::new_without_reservations(config(), store, base::buffer::Pool::new(1 << 20)).unwrap();
    let mut rig = Rig::of(unit);
    let lost = |reply: &Reply| {
        reply.check(SenseKey::DATA_PROTECT, Asc::PERSISTENT_RESERVATION_INFORMATION_LOST);
    };
    for nexus in BOTH {
        lost(&read(&mut rig, nexus));
        lost(&write(&mut rig, nexus));
        lost(&rig.ready_for(nexus));
        lost(&get(&mut rig, nexus, pr_in::READ_KEYS, 64));
        lost(&out(&mut rig, nexus, pr_out::REGISTER, 0, NONE, K1));
        lost(&rig.run(nexus, &[op::RESERVE_6, 0, 0, 0, 0, 0], 0, &[]));
        rig.run(nexus, &[op::INQUIRY, 0, 0, 0, 96, 0], 96, &[]).good();
        rig.run(nexus, &[op::LOG_SENSE, 0, 0x6f, 0, 0, 0, 0, 0, 64, 0], 64, &[]).good();
        rig.run(nexus, &[op::START_STOP_UNIT, 0, 0, 0, 1, 0], 0, &[]).good();
    }
    let key = rig.start(A, &cdb(pr_out::REPLACE_LOST_RESERVATION, 1, 24), 0, 24);
    let Some(UnitEvent::FetchDataOut { .. }) = rig.event_of(key) else { panic!("no fetch") };
    rig.send(key, &BasicList { service_action_key: K1, ..BasicList::default() }.encode(), 0, 24);
    assert_eq!(rig.save(true), [0_u8; 0], "the unreadable state is replaced");
    rig.finish(key, &[]).good();
    assert_eq!(reservation(&mut rig), Some((K1, ReservationType::WriteExclusive)));
    read(&mut rig, B).good();
    conflict(&write(&mut rig, B));
    out(&mut rig, A, pr_out::REPLACE_LOST_RESERVATION, 1, NONE, K1)
        .illegal(Asc::INVALID_RELEASE_OF_PERSISTENT_RESERVATION);
}
