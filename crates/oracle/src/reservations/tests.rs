use super::*;

const A: Nexus = Nexus(0);
const B: Nexus = Nexus(1);
const ANYTHING: u64 = 0xffff;

const fn kind(exclusive_access: bool, admits: Admits) -> Kind {
    Kind { exclusive_access, admits }
}

const fn register(new: u64) -> Service {
    Service::Register { key: 0, new, persist: false, ignores: false }
}

/// Reservations, and a counter that names commands.
#[derive(Default)]
struct Unit(Reservations, u64);

impl Unit {
    fn begin(&mut self, nexus: Nexus, service: Service) -> ServiceId {
        self.1 += 1;
        self.0.begin(ServiceId(self.1), nexus, service);
        ServiceId(self.1)
    }

    fn does(&mut self, nexus: Nexus, service: Service, outcome: Outcome) -> Nexuses {
        let id = self.begin(nexus, service);
        self.0.end(id, outcome).unwrap_or_else(|_| panic!("{service:?} cannot end as {outcome:?}"))
    }

    fn both_registered() -> Self {
        let mut unit = Self::default();
        unit.does(A, register(10), Outcome::Good);
        unit.does(B, register(20), Outcome::Good);
        unit
    }

    /// Whether commands can pass, and can be stopped.
    fn can(&self, nexus: Nexus, access: Access) -> (bool, bool) {
        let stops = |state: &State| state.stops(nexus, access);
        (self.0.states().any(|state| !stops(state)), self.0.states().any(stops))
    }
}

#[test]
fn each_type_stops_whom_it_says() {
    // The holder, another registrant, somebody who is not registered; each as reader and writer.
    for (code, stopped) in [
        (1, [false, false, false, true, false, true]),
        (3, [false, false, true, true, true, true]),
        (5, [false, false, false, false, false, true]),
        (6, [false, false, false, false, true, true]),
        (7, [false, false, false, false, false, true]),
        (8, [false, false, false, false, true, true]),
    ] {
        let mut unit = Unit::both_registered();
        unit.does(A, Service::Reserve(10, Kind::from_code(code).unwrap()), Outcome::Good);
        for (at, stopped) in stopped.into_iter().enumerate() {
            let nexus = Nexus(u8::try_from(at / 2).unwrap());
            let access = if at % 2 == 0 { Access::Reads } else { Access::Writes };
            assert_eq!(unit.can(nexus, access), (!stopped, stopped), "type {code} {nexus:?} {access:?}");
            assert_eq!(unit.can(nexus, Access::Asks), (true, false));
        }
    }
}

#[test]
fn who_does_not_know_its_key_changes_nothing() {
    let mut unit = Unit::both_registered();
    let own = kind(false, Admits::Holder);
    unit.does(A, register(11), Outcome::Conflict);
    unit.does(Nexus(2), Service::Reserve(0, own), Outcome::Conflict);
    unit.does(A, Service::Clear(20), Outcome::Conflict);
    unit.does(A, Service::Preempt { key: 10, victims: 99, kind: own }, Outcome::Conflict);
    unit.does(A, Service::Preempt { key: 10, victims: 0, kind: own }, Outcome::Illegal);
    unit.does(A, Service::Reserve(10, own), Outcome::Good);
    unit.does(A, Service::Release(10, kind(true, Admits::Holder)), Outcome::Illegal);
    unit.does(B, Service::Release(20, own), Outcome::Good);
    let state = unit.0.states().next().unwrap();
    assert_eq!((state.generation(), state.keys()), (2, [10, 20].to_vec()));
    assert_eq!(state.reservation(), Some((10, own)));
}

#[test]
fn the_preempted_are_unregistered_and_the_sender_holds_what_their_holder_held() {
    let mut unit = Unit::both_registered();
    let own = kind(false, Admits::Holder);
    unit.does(A, Service::Reserve(10, own), Outcome::Good);
    let fenced = unit.does(B, Service::Preempt { key: 20, victims: 10, kind: own }, Outcome::Good);
    assert!(fenced.has(A) && !fenced.has(B));
    let state = unit.0.states().next().unwrap();
    assert_eq!((state.generation(), state.keys(), state.reservation()), (3, [20].to_vec(), Some((20, own))));
    assert_eq!((unit.can(A, Access::Writes), unit.can(B, Access::Writes)), ((false, true), (true, false)));
    // What is not the holder's registration leaves the reservation alone.
    unit.does(A, register(10), Outcome::Good);
    let fenced = unit.does(B, Service::Preempt { key: 20, victims: 10, kind: own }, Outcome::Good);
    assert!(fenced.has(A));
    unit.does(B, Service::Clear(20), Outcome::Good);
    assert_eq!(unit.0.states().next().unwrap().reservation(), None);
}

#[test]
fn all_registrants_hold_until_the_last_is_gone() {
    let mut unit = Unit::both_registered();
    let all = kind(true, Admits::Holders);
    let unregister = |key| Service::Register { key, new: 0, persist: false, ignores: false };
    unit.does(A, Service::Reserve(10, all), Outcome::Good);
    unit.does(A, unregister(10), Outcome::Good);
    assert_eq!(unit.0.states().next().unwrap().reservation(), Some((0, all)));
    unit.does(B, unregister(20), Outcome::Good);
    assert_eq!(unit.0.states().next().unwrap().reservation(), None);
    let mut unit = Unit::both_registered();
    unit.does(A, Service::Reserve(10, all), Outcome::Good);
    unit.does(B, Service::Preempt { key: 20, victims: 0, kind: all }, Outcome::Good);
    assert_eq!(unit.0.states().next().unwrap().keys(), [20].to_vec());
}

#[test]
fn commands_under_way_take_effect_in_any_order_and_the_answers_tell_which() {
    let mut unit = Unit::both_registered();
    let own = kind(false, Admits::Holder);
    let first = unit.begin(A, Service::Reserve(10, own));
    let second = unit.begin(B, Service::Reserve(20, own));
    assert_eq!(unit.can(A, Access::Writes), (true, true));
    assert_eq!(unit.0.end(first, Outcome::Conflict), Ok(Nexuses::default()));
    assert_eq!(unit.can(A, Access::Writes), (false, true), "the other was first");
    assert_eq!(unit.0.end(second, Outcome::Conflict), Err(Unexplained));
    let read = unit.0.states().filter_map(State::reservation).collect::<Vec<_>>();
    assert_eq!(read, [(20, own)]);
}

#[test]
fn a_command_whose_end_nobody_knows_leaves_both_possible_until_somebody_looks() {
    let mut unit = Unit::both_registered();
    let own = kind(false, Admits::Holder);
    let lost = unit.begin(A, Service::Reserve(10, own));
    assert!(!unit.0.is_settled());
    unit.0.gone(lost);
    assert!(unit.0.is_settled());
    assert_eq!(unit.can(B, Access::Writes), (true, true));
    assert!(unit.0.saw(|state| state.stops(B, Access::Writes)));
    assert_eq!(unit.can(B, Access::Writes), (false, true));
    assert!(!unit.0.saw(|state| state.reservation().is_none()));
}

#[test]
fn a_refused_command_whose_effect_was_seen_is_unexplained() {
    let mut unit = Unit::default();
    let id = unit.begin(A, register(10));
    assert!(unit.0.saw(|state| state.key_of(A).is_some()));
    assert_eq!(unit.0.refused(id), Err(Unexplained));
    let id = unit.begin(B, register(20));
    assert_eq!(unit.0.refused(id), Ok(()));
    assert_eq!(unit.0.states().next().unwrap().keys(), [10].to_vec());
}

#[test]
fn nobody_is_fenced_who_was_let_in_again_before_the_answer() {
    let mut unit = Unit::both_registered();
    let registrants = kind(false, Admits::Registrants);
    unit.does(B, Service::Reserve(20, registrants), Outcome::Good);
    let preempt = unit.begin(B, Service::Preempt { key: 20, victims: 10, kind: registrants });
    let back = unit.begin(A, register(10));
    assert_eq!(unit.0.end(back, Outcome::Good), Ok(Nexuses::default()), "it came after the preemption");
    assert!(unit.0.end(preempt, Outcome::Good).unwrap().is_empty());
}

#[test]
fn only_what_is_said_to_persist_survives_a_loss_of_power() {
    for persist in [false, true] {
        let mut unit = Unit::default();
        unit.does(A, Service::Register { key: ANYTHING, new: 10, persist, ignores: true }, Outcome::Good);
        unit.does(A, Service::Reserve(10, kind(true, Admits::Holder)), Outcome::Good);
        unit.0.power_lost();
        let state = unit.0.states().next().unwrap();
        assert_eq!((state.generation(), state.keys().len()), (0, usize::from(persist)));
        assert_eq!(unit.can(B, Access::Reads), (!persist, persist));
    }
}

#[test]
fn a_unit_reserved_the_old_way_may_be_released_at_any_time_by_a_lost_nexus() {
    let mut unit = Unit::default();
    unit.does(A, Service::ReserveUnit, Outcome::Good);
    assert_eq!(unit.can(B, Access::Reads), (true, true));
    assert_eq!(unit.can(A, Access::Reads), (true, false));
    assert_eq!(unit.can(A, Access::Asks), (true, true));
    unit.does(B, register(20), Outcome::Conflict);
    unit.does(B, register(20), Outcome::Good);
    unit.does(A, Service::ReserveUnit, Outcome::Conflict);
}
