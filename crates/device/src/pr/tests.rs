use alloc::format;
use alloc::string::String;
use alloc::vec;

use base::bytes::Reader;
use base::rng::Rng;
use scsi::pr::{BasicList, MoveList};
use scsi::transport_id::TransportId;

use super::conflict::Conflict;
use super::out::{KnownPorts, Request};
use super::*;

const K1: ReservationKey = ReservationKey(0x1111);
const K2: ReservationKey = ReservationKey(0x2222);
const K3: ReservationKey = ReservationKey(0x3333);
const NONE: ReservationKey = ReservationKey::NONE;
const PORTS: [RelativePort; 2] = [RelativePort(1), RelativePort(2)];
const WE: ReservationType = ReservationType::WriteExclusive;
const EA: ReservationType = ReservationType::ExclusiveAccess;
const WERO: ReservationType = ReservationType::WriteExclusiveRegistrantsOnly;
const EARO: ReservationType = ReservationType::ExclusiveAccessRegistrantsOnly;
const WEAR: ReservationType = ReservationType::WriteExclusiveAllRegistrants;

fn initiator(name: &str) -> TransportId {
    TransportId::iscsi_port(name, [0, 2, 0x3d, 0, 0, 1]).unwrap()
}

fn nexus(name: &str, target_port: u16) -> NexusName {
    NexusName { initiator_port: initiator(name).encode().into(), target_port: RelativePort(target_port) }
}

/// One logical unit with the nexuses `a`, `b`, `c` through port 1 and `a2` (initiator a through port 2).
struct Unit {
    pr: PersistentReservations,
    a: NexusName,
    a2: NexusName,
    b: NexusName,
    c: NexusName,
}

impl Unit {
    fn new() -> Self {
        Self {
            pr: PersistentReservations::new(),
            a: nexus("iqn.a", 1),
            a2: nexus("iqn.a", 2),
            b: nexus("iqn.b", 1),
            c: nexus("iqn.c", 1),
        }
    }

    /// Creates a unit with a and b registered under K1 and K2.
    fn of_two() -> Self {
        let mut unit = Self::new();
        unit.register(&unit.a.clone(), K1);
        unit.register(&unit.b.clone(), K2);
        unit
    }

    /// Creates a unit with a, b and c registered and a holding `kind`.
    fn held(kind: ReservationType) -> Self {
        let mut unit = Self::of_two();
        unit.register(&unit.c.clone(), K3);
        unit.good(&unit.a.clone(), Request::Reserve(K1, kind));
        unit
    }

    fn send(&mut self, from: &NexusName, request: Request) -> Result<Effects, PrError> {
        let live = [&self.a, &self.b, &self.c].map(|nexus| Rc::clone(&nexus.initiator_port));
        self.pr.out(from, request, KnownPorts { target_ports: &PORTS, initiator_ports: &live })
    }

    fn good(&mut self, from: &NexusName, request: Request) -> Effects {
        self.send(from, request).unwrap()
    }

    fn register(&mut self, from: &NexusName, key: ReservationKey) {
        assert_eq!(self.good(from, Request::Register(list(NONE, key))), Effects::default());
    }

    fn keys(&self) -> Vec<u64> {
        self.pr.keys().keys.iter().map(|key| key.0).collect()
    }
}

fn list(key: ReservationKey, service_action_key: ReservationKey) -> BasicList {
    BasicList { key, service_action_key, ..BasicList::default() }
}

fn preempt(key: ReservationKey, victims: ReservationKey, new: ReservationType) -> Request {
    Request::Preempt { key, victims, new: Ok(new), abort: false }
}

fn move_to(key: ReservationKey, new: ReservationKey, to: &str, port: u16) -> MoveList {
    MoveList {
        key,
        service_action_key: new,
        unregister: false,
        persist: false,
        relative_port: port,
        initiator_port: initiator(to),
    }
}

fn parameter(byte: u16, bit: Option<u8>) -> Result<Effects, PrError> {
    Err(PrError::Check(Sense::invalid_parameter(byte, bit)))
}

#[test]
fn register_follows_the_table() {
    // (key registered before, RESERVATION KEY, SERVICE ACTION RESERVATION KEY, keys afterwards or a conflict)
    for (before, key, new, after) in [
        (NONE, NONE, NONE, Ok(NONE)),
        (NONE, NONE, K2, Ok(K2)),
        (NONE, K1, K2, Err(PrError::Conflict)),
        (NONE, K1, NONE, Err(PrError::Conflict)),
        (K1, K2, K3, Err(PrError::Conflict)),
        (K1, NONE, K3, Err(PrError::Conflict)),
        (K1, K1, NONE, Ok(NONE)),
        (K1, K1, K2, Ok(K2)),
        (K1, K1, K1, Ok(K1)),
    ] {
        let mut unit = Unit::new();
        let a = unit.a.clone();
        if before != NONE {
            unit.register(&a, before);
        }
        let case = format!("{before:?} {key:?} {new:?}");
        let answer = unit.send(&a, Request::Register(list(key, new)));
        assert_eq!(answer, after.map(|_| Effects::default()), "{case}");
        let expected = after.unwrap_or(before);
        assert_eq!(unit.keys(), if expected == NONE { vec![] } else { vec![expected.0] }, "{case}");
    }
}

#[test]
fn register_and_ignore_follows_the_table() {
    for (before, new) in [(NONE, NONE), (NONE, K1), (K1, NONE), (K1, K2), (K1, K1)] {
        let mut unit = Unit::new();
        let a = unit.a.clone();
        if before != NONE {
            unit.register(&a, before);
        }
        unit.good(&a, Request::RegisterAndIgnore(list(K3, new)));
        assert_eq!(unit.keys(), if new == NONE { vec![] } else { vec![new.0] }, "{before:?} {new:?}");
    }
}

#[test]
fn everything_but_registering_needs_the_right_key() {
    let requests = |key| {
        [
            Request::Reserve(key, WE),
            Request::Release(key, 1),
            Request::Clear(key),
            preempt(key, K1, WE),
            Request::Move(move_to(key, K3, "iqn.c", 1)),
        ]
    };
    let mut unit = Unit::held(EA);
    let (b, stranger) = (unit.b.clone(), nexus("iqn.d", 1));
    let before = unit.pr.clone();
    for request in requests(K1).into_iter().chain(requests(NONE)) {
        assert_eq!(unit.send(&b, request.clone()), Err(PrError::Conflict), "{request:?}");
        assert_eq!(unit.send(&stranger, request.clone()), Err(PrError::Conflict), "{request:?}");
    }
    assert_eq!(unit.pr, before);
}

#[test]
fn the_generation_counts_registrations_and_not_reservations() {
    let mut unit = Unit::of_two();
    let (a, b) = (unit.a.clone(), unit.b.clone());
    let generation = |unit: &Unit| unit.pr.keys().generation;
    assert_eq!(generation(&unit), 2);
    unit.good(&a, Request::Reserve(K1, WE));
    unit.good(&a, Request::Release(K1, 1));
    assert_eq!(generation(&unit), 2);
    unit.good(&a, Request::Register(list(K1, K3)));
    assert_eq!(generation(&unit), 3);
    unit.good(&a, Request::Reserve(K3, WE));
    unit.good(&b, preempt(K2, K3, EA));
    assert_eq!(generation(&unit), 4);
    unit.good(&b, Request::Clear(K2));
    assert_eq!(generation(&unit), 5);
    unit.good(&a, Request::Register(list(NONE, NONE)));
    assert_eq!(generation(&unit), 5);
}

#[test]
fn a_second_reservation_conflicts_unless_it_is_the_same() {
    for kind in ReservationType::ALL {
        let mut unit = Unit::held(kind);
        let (a, b) = (unit.a.clone(), unit.b.clone());
        assert_eq!(unit.send(&a, Request::Reserve(K1, kind)), Ok(Effects::default()));
        let other = if kind == WE { EA } else { WE };
        assert_eq!(unit.send(&a, Request::Reserve(K1, other)), Err(PrError::Conflict));
        let from_registrant = unit.send(&b, Request::Reserve(K2, kind));
        let expected =
            if kind.is_all_registrants() { Ok(Effects::default()) } else { Err(PrError::Conflict) };
        assert_eq!(from_registrant, expected, "{kind:?}");
    }
}

#[test]
fn release_tells_the_other_registrants_where_they_are_concerned() {
    for kind in ReservationType::ALL {
        let mut unit = Unit::held(kind);
        let (a, b, c) = (unit.a.clone(), unit.b.clone(), unit.c.clone());
        let wrong = if kind == WE { 3 } else { 1 };
        let invalid = Sense::illegal(Asc::INVALID_RELEASE_OF_PERSISTENT_RESERVATION);
        assert_eq!(unit.send(&a, Request::Release(K1, wrong)), Err(PrError::Check(invalid)));
        assert_eq!(unit.send(&a, Request::Release(K1, 0x10 | kind.code())), Err(PrError::Check(invalid)));
        if !kind.is_all_registrants() {
            assert_eq!(unit.send(&b, Request::Release(K2, kind.code())), Ok(Effects::default()));
        }
        assert_eq!(unit.pr.kind(), Some(kind));
        let change = unit.good(&a, Request::Release(K1, kind.code()));
        let told = if kind.admits_registrants() {
            vec![(b, Asc::RESERVATIONS_RELEASED), (c, Asc::RESERVATIONS_RELEASED)]
        } else {
            vec![]
        };
        assert_eq!(change.attentions, told, "{kind:?}");
        assert_eq!((unit.pr.kind(), unit.keys().len()), (None, 3));
        assert_eq!(unit.send(&a, Request::Release(K1, kind.code())), Ok(Effects::default()));
    }
}

#[test]
fn unregistering_the_holder_releases_and_never_tells_the_sender() {
    for kind in ReservationType::ALL {
        let mut unit = Unit::held(kind);
        let (a, b, c) = (unit.a.clone(), unit.b.clone(), unit.c.clone());
        let change = unit.good(&a, Request::Register(list(K1, NONE)));
        let told: Vec<NexusName> = change.attentions.iter().map(|(nexus, _)| nexus.clone()).collect();
        if kind.is_all_registrants() {
            assert_eq!((unit.pr.kind(), told), (Some(kind), vec![]));
            unit.good(&b, Request::Register(list(K2, NONE)));
            assert_eq!(unit.pr.kind(), Some(kind));
            unit.good(&c, Request::Register(list(K3, NONE)));
        } else if kind.admits_registrants() {
            assert_eq!(told, [b, c]);
        } else {
            assert_eq!(told, []);
        }
        assert_eq!(unit.pr.kind(), None, "{kind:?}");
    }
}

#[test]
fn clear_empties_everything_and_tells_the_others() {
    let mut unit = Unit::held(EARO);
    let (b, c) = (unit.b.clone(), unit.c.clone());
    let change = unit.good(&b, Request::Clear(K2));
    assert_eq!(
        change.attentions,
        [(unit.a.clone(), Asc::RESERVATIONS_PREEMPTED), (c, Asc::RESERVATIONS_PREEMPTED)]
    );
    assert_eq!((unit.keys(), unit.pr.kind()), (vec![], None));
}

#[test]
fn preempting_the_holder_takes_the_reservation_over() {
    let mut unit = Unit::held(WERO);
    let (a, b, c) = (unit.a.clone(), unit.b.clone(), unit.c.clone());
    let change = unit.good(&b, Request::Preempt { key: K2, victims: K1, new: Ok(EA), abort: true });
    assert_eq!(
        change.attentions,
        [(c, Asc::RESERVATIONS_RELEASED), (a.clone(), Asc::REGISTRATIONS_PREEMPTED)]
    );
    assert_eq!(change.abort, [a]);
    assert_eq!(unit.keys(), [K2.0, K3.0]);
    assert_eq!((unit.pr.kind(), unit.pr.role_of(&b)), (Some(EA), PrRole::Holder));
}

#[test]
fn preempting_with_the_same_type_tells_only_the_victims() {
    let mut unit = Unit::held(WERO);
    let (a, b) = (unit.a.clone(), unit.b.clone());
    let change = unit.good(&b, preempt(K2, K1, WERO));
    assert_eq!(change.attentions, [(a, Asc::REGISTRATIONS_PREEMPTED)]);
    assert_eq!(change.abort, []);
}

#[test]
fn preempting_a_registrant_removes_only_its_registration() {
    let mut unit = Unit::held(EA);
    let (a, b, c) = (unit.a.clone(), unit.b.clone(), unit.c.clone());
    let bad_type = Sense::invalid_cdb(2, Some(3));
    let change = unit.good(&b, Request::Preempt { key: K2, victims: K3, new: Err(bad_type), abort: true });
    assert_eq!(change.attentions, [(c.clone(), Asc::REGISTRATIONS_PREEMPTED)]);
    assert_eq!(change.abort, [c]);
    assert_eq!((unit.pr.kind(), unit.pr.role_of(&a)), (Some(EA), PrRole::Holder));
}

#[test]
fn a_bad_type_is_refused_only_where_it_counts() {
    let mut unit = Unit::held(EA);
    let b = unit.b.clone();
    let sense = Sense::invalid_cdb(2, Some(3));
    let before = unit.pr.clone();
    let taking_over = Request::Preempt { key: K2, victims: K1, new: Err(sense), abort: false };
    assert_eq!(unit.send(&b, taking_over), Err(PrError::Check(sense)));
    assert_eq!(unit.pr, before);
}

#[test]
fn the_holder_may_preempt_itself_and_stays_registered() {
    let mut unit = Unit::held(EA);
    let a = unit.a.clone();
    let change = unit.good(&a, preempt(K1, K1, WE));
    assert_eq!(unit.keys().len(), 3);
    assert_eq!((unit.pr.kind(), unit.pr.role_of(&a)), (Some(WE), PrRole::Holder));
    assert!(!change.attentions.iter().any(|(nexus, _)| *nexus == a));
}

#[test]
fn a_registrant_may_preempt_itself_away() {
    let mut unit = Unit::held(EA);
    let b = unit.b.clone();
    assert_eq!(unit.good(&b, preempt(K2, K2, WE)), Effects::default());
    assert_eq!((unit.keys(), unit.pr.kind()), (vec![K1.0, K3.0], Some(EA)));
}

#[test]
fn preempt_with_an_unknown_key_conflicts_and_with_none_is_illegal() {
    let mut unit = Unit::held(EA);
    let b = unit.b.clone();
    assert_eq!(unit.send(&b, preempt(K2, ReservationKey(9), WE)), Err(PrError::Conflict));
    assert_eq!(unit.send(&b, preempt(K2, NONE, WE)), parameter(8, None));
    let mut unit = Unit::of_two();
    let b = unit.b.clone();
    assert_eq!(unit.send(&b, preempt(K2, NONE, WE)), parameter(8, None));
}

#[test]
fn preempting_all_registrants_needs_the_key_zero() {
    let mut unit = Unit::held(WEAR);
    let (a, b, c) = (unit.a.clone(), unit.b.clone(), unit.c.clone());
    let change = unit.good(&b, preempt(K2, K1, EA));
    assert_eq!(change.attentions, [(a.clone(), Asc::REGISTRATIONS_PREEMPTED)]);
    assert_eq!(unit.pr.kind(), Some(WEAR));
    let change = unit.good(&b, Request::Preempt { key: K2, victims: NONE, new: Ok(EA), abort: true });
    assert_eq!(change.attentions, [(c.clone(), Asc::REGISTRATIONS_PREEMPTED)]);
    assert_eq!(change.abort, [b.clone(), c]);
    assert_eq!((unit.keys(), unit.pr.kind()), (vec![K2.0], Some(EA)));
    assert_eq!(unit.pr.role_of(&a), PrRole::Unregistered);
}

#[test]
fn removing_the_last_registrant_ends_an_all_registrants_reservation() {
    let mut unit = Unit::new();
    let a = unit.a.clone();
    unit.register(&a, K1);
    unit.good(&a, Request::Reserve(K1, WEAR));
    unit.good(&a, preempt(K1, K1, WE));
    assert_eq!((unit.keys(), unit.pr.kind()), (vec![], None));
}

#[test]
fn nexuses_that_share_a_key_fall_together() {
    let mut unit = Unit::new();
    let (a, a2, b) = (unit.a.clone(), unit.a2.clone(), unit.b.clone());
    for (nexus, key) in [(&a, K1), (&a2, K1), (&b, K2)] {
        unit.register(nexus, key);
    }
    unit.good(&a, Request::Reserve(K1, EA));
    assert_eq!(unit.pr.role_of(&a2), PrRole::Registrant);
    let change = unit.good(&b, preempt(K2, K1, EA));
    assert_eq!(change.attentions, [(a, Asc::REGISTRATIONS_PREEMPTED), (a2, Asc::REGISTRATIONS_PREEMPTED)]);
}

#[test]
fn all_tg_pt_registers_through_every_port() {
    let mut unit = Unit::new();
    let (a, a2) = (unit.a.clone(), unit.a2.clone());
    let all = |key, new| BasicList { all_target_ports: true, ..list(key, new) };
    unit.good(&a, Request::Register(all(NONE, K1)));
    assert_eq!(unit.pr.role_of(&a2), PrRole::Registrant);
    unit.good(&a2, Request::Register(all(K1, K2)));
    assert_eq!(unit.keys(), [K2.0, K2.0]);
    unit.good(&a, Request::Register(list(K2, K3)));
    unit.good(&a2, Request::Register(all(K2, NONE)));
    assert_eq!(unit.keys(), [K3.0], "another key is another registration");
    assert_eq!(unit.send(&a2, Request::Register(all(NONE, K1))), Err(PrError::Conflict));
    unit.good(&a2, Request::RegisterAndIgnore(all(NONE, K1)));
    assert_eq!(unit.keys(), [K1.0, K1.0]);
    unit.good(&a2, Request::RegisterAndIgnore(all(NONE, NONE)));
    assert_eq!(unit.keys(), [0_u64; 0]);
}

#[test]
fn spec_i_pt_registers_others_all_or_none() {
    let mut unit = Unit::new();
    let (a, b) = (unit.a.clone(), unit.b.clone());
    let with = |ports: Vec<TransportId>, all_target_ports| {
        let initiator_ports = Some(ports);
        Request::Register(BasicList { initiator_ports, all_target_ports, ..list(NONE, K1) })
    };
    unit.register(&b, K2);
    let taken = with(vec![initiator("iqn.c"), initiator("iqn.b")], false);
    assert_eq!(unit.send(&a, taken), parameter(28, None));
    let unknown = with(vec![TransportId::iscsi_device("iqn.nobody").unwrap()], false);
    assert_eq!(unit.send(&a, unknown), parameter(28, None));
    let foreign = with(vec![TransportId::Other([6; 24])], false);
    assert_eq!(unit.send(&a, foreign), parameter(28, None));
    assert_eq!(unit.keys(), [K2.0]);
    let listed = vec![
        initiator("iqn.a"),
        TransportId::iscsi_device("iqn.c").unwrap(),
        initiator("iqn.c"),
        initiator("iqn.d"),
    ];
    unit.good(&a, with(listed, true));
    assert_eq!(unit.keys(), [K2.0, K1.0, K1.0, K1.0, K1.0, K1.0, K1.0]);
    assert_eq!(unit.pr.role_of(&nexus("iqn.d", 2)), PrRole::Registrant);
}

#[test]
fn spec_i_pt_is_illegal_for_who_is_registered_and_for_ignoring() {
    let mut unit = Unit::of_two();
    let a = unit.a.clone();
    let listed = BasicList { initiator_ports: Some(vec![initiator("iqn.c")]), ..list(K1, K3) };
    assert_eq!(unit.send(&a, Request::Register(listed.clone())), parameter(20, Some(3)));
    assert_eq!(unit.send(&a, Request::RegisterAndIgnore(listed)), parameter(20, Some(3)));
}

#[test]
fn registrants_are_bounded() {
    let mut unit = Unit::new();
    for number in 0..MAX_REGISTRANTS {
        unit.register(&nexus(&format!("iqn.{number}"), 1), K1);
    }
    let full = Err(PrError::Check(Sense::illegal(Asc::INSUFFICIENT_REGISTRATION_RESOURCES)));
    let (a, first) = (unit.a.clone(), nexus("iqn.0", 1));
    assert_eq!(unit.send(&a, Request::Register(list(NONE, K1))), full);
    assert_eq!(unit.send(&a, Request::RegisterAndIgnore(list(NONE, K1))), full);
    unit.good(&first, Request::Reserve(K1, EA));
    assert_eq!(unit.send(&first, Request::Move(move_to(K1, K2, "iqn.a", 1))), full);
    unit.good(&first, Request::Register(list(K1, NONE)));
    unit.register(&a, K1);
}

#[test]
fn register_and_move_hands_the_reservation_on() {
    let mut unit = Unit::held(EARO);
    let (a, c) = (unit.a.clone(), unit.c.clone());
    let change = unit.good(&a, Request::Move(move_to(K1, ReservationKey(7), "iqn.c", 1)));
    assert_eq!(change, Effects::default());
    assert_eq!((unit.pr.role_of(&a), unit.pr.role_of(&c)), (PrRole::Registrant, PrRole::Holder));
    assert_eq!(unit.keys(), [K1.0, K2.0, 7]);
    let away = MoveList { unregister: true, ..move_to(ReservationKey(7), K3, "iqn.new", 2) };
    unit.good(&c, Request::Move(away));
    assert_eq!(unit.pr.role_of(&c), PrRole::Unregistered);
    assert_eq!(unit.pr.role_of(&nexus("iqn.new", 2)), PrRole::Holder);
    assert_eq!(unit.pr.kind(), Some(EARO));
}

#[test]
fn register_and_move_refuses_what_spc_forbids() {
    let no_reservation = Err(PrError::Check(Sense::invalid_cdb(1, Some(4))));
    let mut unit = Unit::of_two();
    let (a, b) = (unit.a.clone(), unit.b.clone());
    let good = move_to(K1, K3, "iqn.c", 2);
    assert_eq!(unit.send(&a, Request::Move(good.clone())), no_reservation);
    let device = TransportId::iscsi_device("iqn.c").unwrap();
    for (what, answer) in [
        (MoveList { service_action_key: NONE, ..good.clone() }, parameter(8, None)),
        (MoveList { relative_port: 3, ..good.clone() }, parameter(18, None)),
        (MoveList { initiator_port: initiator("iqn.a"), ..good.clone() }, parameter(24, None)),
        (MoveList { initiator_port: device, ..good.clone() }, parameter(24, None)),
        (MoveList { initiator_port: TransportId::Other([6; 24]), ..good.clone() }, parameter(24, None)),
    ] {
        let mut unit = Unit::held(EA);
        assert_eq!(unit.send(&a, Request::Move(what.clone())), answer, "{what:?}");
        assert_eq!(unit.send(&b, Request::Move(MoveList { key: K2, ..what })), Err(PrError::Conflict));
    }
    let mut unit = Unit::held(WEAR);
    assert_eq!(unit.send(&a, Request::Move(good)), Err(PrError::Conflict));
}

#[test]
fn a_lost_reservation_is_replaced_and_only_then() {
    let replace = |key, new| Request::ReplaceLost(BasicList { persist: true, ..list(key, new) }, EA);
    let mut unit = Unit::of_two();
    let a = unit.a.clone();
    let not_lost = Sense::illegal(Asc::INVALID_RELEASE_OF_PERSISTENT_RESERVATION);
    assert_eq!(unit.send(&a, replace(NONE, K1)), Err(PrError::Check(not_lost)));
    unit.pr = PersistentReservations::lost();
    assert_eq!(unit.send(&a, replace(K1, K1)), parameter(0, None));
    assert_eq!(unit.send(&a, replace(NONE, NONE)), parameter(8, None));
    assert!(unit.pr.is_lost());
    let change = unit.good(&a, replace(NONE, K1));
    assert!(!unit.pr.is_lost());
    assert_eq!((unit.pr.role_of(&a), unit.pr.keys().generation), (PrRole::Holder, 0));
    assert!(change.save && unit.pr.persists());
    unit.pr = PersistentReservations::lost();
    let forget = Request::ReplaceLost(list(NONE, K1), EA);
    assert!(unit.good(&a, forget).save, "unreadable state must not come back");
}

#[test]
fn aptpl_saves_every_change_from_then_on() {
    let mut unit = Unit::new();
    let (a, b) = (unit.a.clone(), unit.b.clone());
    let persist = |key, new| BasicList { persist: true, ..list(key, new) };
    unit.register(&b, K2);
    let change = unit.good(&a, Request::Register(persist(NONE, K1)));
    assert!(change.save);
    assert!(unit.pr.capabilities().persist_active);
    assert!(unit.good(&b, Request::Reserve(K2, EA)).save);
    assert!(!unit.good(&b, Request::Reserve(K2, EA)).save, "nothing changed");
    let change = unit.good(&a, Request::Register(list(K1, K1)));
    assert!(change.save && !unit.pr.persists(), "the last APTPL counts");
    assert!(!unit.good(&b, Request::Release(K2, 3)).save);
}

#[test]
fn full_status_tells_who_holds_through_which_port() {
    let mut unit = Unit::held(WERO);
    let told = unit.pr.full_status();
    let holders: Vec<_> = told.registrants.iter().map(|one| (one.key, one.holds)).collect();
    assert_eq!(holders, [(K1, Some(WERO)), (K2, None), (K3, None)]);
    assert_eq!(told.registrants[0].initiator_port, initiator("iqn.a").encode());
    let a = unit.a.clone();
    unit.good(&a, Request::Release(K1, 5));
    unit.good(&a, Request::Reserve(K1, WEAR));
    assert!(unit.pr.full_status().registrants.iter().all(|one| one.holds == Some(WEAR)));
    assert_eq!(unit.pr.reservation().reservation.unwrap().key, NONE);
}

/// The whole table in reviewable form: every class of command, under every type, for every role.
#[test]
fn the_conflict_table_is_the_one_in_the_snapshot() {
    let mut table =
        String::from("class       type                             holder  registrant  stranger\n");
    let outcome = |conflict| if conflict { "conflict" } else { "-" };
    for (name, class) in [
        ("Never", Conflict::Never),
        ("Reserve", Conflict::Reserve),
        ("Reads", Conflict::Reads),
        ("Writes", Conflict::Writes),
        ("Persistent", Conflict::Persistent),
        ("Own", Conflict::Own),
    ] {
        for kind in ReservationType::ALL {
            let [holder, registrant, stranger] = [PrRole::Holder, PrRole::Registrant, PrRole::Unregistered]
                .map(|standing| outcome(class.conflicts_with(kind, standing)));
            let kind = format!("{kind:?}");
            table += &format!("{name:<11} {kind:<32} {holder:<7} {registrant:<11} {stranger}\n");
        }
        let (own, others) =
            (outcome(class.conflicts_with_reserve(true)), outcome(class.conflicts_with_reserve(false)));
        table += &format!("{name:<11} {:<32} {own:<7} {:<11} {others}\n", "RESERVE(6), RESERVE(10)", "");
    }
    let table: String = table.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    assert_eq!(table, include_str!("conflict.snap"), "the table is now:\n{table}");
}

/// Random commands of four nexuses; a failure prints the seed of the run that broke an invariant.
#[test]
fn random_commands_keep_the_invariants() {
    for seed in 0..400 {
        let mut rng = Rng::from_seed(seed);
        let mut unit = Unit::new();
        let everyone = [unit.a.clone(), unit.a2.clone(), unit.b.clone(), unit.c.clone()];
        for step in 0..120 {
            let from = pick(&mut rng, &everyone);
            let request = random_request(&mut rng);
            let before = unit.pr.clone();
            let answer = unit.send(&from, request.clone());
            let case = format!("seed {seed}, step {step}: {request:?}");
            match answer {
                Err(_) => assert_eq!(unit.pr, before, "{case}: refused and yet changed"),
                Ok(change) => check_change(&before, &unit.pr, &from, &request, &change, &case),
            }
            check_state(&unit.pr, &case);
        }
    }
}

fn pick<T: Clone>(rng: &mut Rng, from: &[T]) -> T {
    from[usize::try_from(rng.below(from.len() as u64)).unwrap()].clone()
}

fn random_request(rng: &mut Rng) -> Request {
    let key = |rng: &mut Rng| pick(rng, &[NONE, K1, K1, K2, K2, K3]);
    let kind = |rng: &mut Rng| pick(rng, &ReservationType::ALL);
    let names = ["iqn.a", "iqn.b", "iqn.c", "iqn.d"];
    let basic = |rng: &mut Rng| BasicList {
        key: key(rng),
        service_action_key: key(rng),
        all_target_ports: rng.chance(1, 4),
        persist: rng.chance(1, 2),
        initiator_ports: rng.chance(1, 5).then(|| vec![initiator(pick(rng, &names))]),
    };
    match rng.below(9) {
        0 | 1 => Request::Register(basic(rng)),
        2 | 3 => Request::RegisterAndIgnore(BasicList { initiator_ports: None, ..basic(rng) }),
        4 => Request::Reserve(key(rng), kind(rng)),
        5 => Request::Release(key(rng), kind(rng).code()),
        6 if rng.chance(1, 4) => Request::Clear(key(rng)),
        6 | 7 => {
            let (key, victims) = (key(rng), key(rng));
            Request::Preempt { key, victims, new: Ok(kind(rng)), abort: rng.chance(1, 2) }
        }
        _ => Request::Move(MoveList {
            unregister: rng.chance(1, 2),
            persist: rng.chance(1, 2),
            ..move_to(key(rng), key(rng), pick(rng, &names), pick(rng, &[1, 2, 3]))
        }),
    }
}

fn check_state(pr: &PersistentReservations, case: &str) {
    let mut names: Vec<_> = pr.registrants.iter().map(|one| one.nexus.clone()).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), pr.registrants.len(), "{case}: registered twice");
    assert!(pr.registrants.iter().all(|one| one.key != NONE), "{case}: registered without a key");
    let holders = pr.registrants.iter().filter(|one| pr.role_of(&one.nexus) == PrRole::Holder).count();
    match pr.kind() {
        None => assert_eq!(holders, 0, "{case}"),
        Some(kind) if kind.is_all_registrants() => {
            assert!(holders > 0 && holders == pr.registrants.len(), "{case}: nobody holds it");
        }
        Some(_) => assert_eq!(holders, 1, "{case}"),
    }
    let mut bytes = Vec::new();
    PersistentReservations { persist: true, ..pr.clone() }.encode(&mut bytes);
    let back = PersistentReservations::take(&mut Reader::new(&bytes)).unwrap();
    let expected = PersistentReservations { generation: 0, persist: true, ..pr.clone() };
    assert_eq!(back, expected, "{case}");
}

fn check_change(
    before: &PersistentReservations,
    after: &PersistentReservations,
    from: &NexusName,
    request: &Request,
    change: &Effects,
    case: &str,
) {
    let mut told: Vec<_> = change.attentions.iter().map(|(nexus, _)| nexus.clone()).collect();
    assert!(!told.contains(from), "{case}: the sender was told");
    assert!(told.iter().all(|nexus| before.is_known(nexus)), "{case}: a stranger was told");
    let count = told.len();
    told.sort();
    told.dedup();
    assert_eq!(told.len(), count, "{case}: told twice");

    let counts = !matches!(request, Request::Reserve(..) | Request::Release(..));
    let steps = after.generation - before.generation;
    assert!(steps <= u32::from(counts), "{case}: generation");
    assert!(steps == 1 || before.registrants == after.registrants, "{case}: changed unseen");

    for lost in before.registrants.iter().filter(|one| !after.is_known(&one.nexus)) {
        let own = lost.nexus.initiator_port == from.initiator_port;
        let preempted = change.attentions.iter().any(|(nexus, asc)| {
            *nexus == lost.nexus && [Asc::REGISTRATIONS_PREEMPTED, Asc::RESERVATIONS_PREEMPTED].contains(asc)
        });
        assert!(own || preempted, "{case}: fenced without being told");
    }
    let must_save = (before.persist || after.persist) && before != after;
    assert_eq!(change.save, must_save, "{case}");
    if !matches!(request, Request::Preempt { abort: true, .. }) {
        assert!(change.abort.is_empty(), "{case}");
    }
}

impl PersistentReservations {
    fn is_known(&self, nexus: &NexusName) -> bool {
        self.role_of(nexus) != PrRole::Unregistered
    }
}
