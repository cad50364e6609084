use super::*;

const A: Nexus = Nexus(0);
const B: Nexus = Nexus(1);
const ANYTHING: u64 = 0xffff;

const fn kind(exclusive_access: bool, admits: Admits) -> ReservationType {
    ReservationType { exclusive_access, admits }
}

const fn register(new: u64) -> ReserveCommand {
    ReserveCommand::Register { key: 0, sa_key: new, aptpl: false, ignore_existing_key: false }
}

/// Reservations, and a counter for the ids of commands.
#[derive(Default)]
struct Unit(Reservations, u64);

impl Unit {
    fn begin(&mut self, nexus: Nexus, service: ReserveCommand) -> ServiceId {
        self.1 += 1;
        self.0.submit_command(ServiceId(self.1), nexus, service);
        ServiceId(self.1)
    }

    fn does(&mut self, nexus: Nexus, service: ReserveCommand, outcome: ReserveOutcome) -> Nexuses {
        let id = self.begin(nexus, service);
        self.0.end_command(id, outcome).unwrap_or_else(|_| panic!("{service:?} cannot end as {outcome:?}"))
    }

    fn both_registered() -> Self {
        let mut unit = Self::default();
        unit.does(A, register(10), ReserveOutcome::Good);
        unit.does(B, register(20), ReserveOutcome::Good);
        unit
    }

    /// Returns whether commands can pass, and whether they can be stopped.
    fn can(&self, nexus: Nexus, access: Access) -> (bool, bool) {
        let stops = |state: &State| state.conflicts_with(nexus, access);
        (self.0.states().any(|state| !stops(state)), self.0.states().any(stops))
    }
}

#[test]
fn each_type_stops_whom_it_says() {
    // The holder, another registrant, and a nexus that is not registered; each as reader and writer.
    for (code, stopped) in [
        (1, [false, false, false, true, false, true]),
        (3, [false, false, true, true, true, true]),
        (5, [false, false, false, false, false, true]),
        (6, [false, false, false, false, true, true]),
        (7, [false, false, false, false, false, true]),
        (8, [false, false, false, false, true, true]),
    ] {
        let mut unit = Unit::both_registered();
        unit.does(
            A,
            ReserveCommand::Reserve(10, ReservationType::from_code(code).unwrap()),
            ReserveOutcome::Good,
        );
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
    unit.does(A, register(11), ReserveOutcome::Conflict);
    unit.does(Nexus(2), ReserveCommand::Reserve(0, own), ReserveOutcome::Conflict);
    unit.does(A, ReserveCommand::Clear(20), ReserveOutcome::Conflict);
    unit.does(A, ReserveCommand::Preempt { key: 10, sa_key: 99, kind: own }, ReserveOutcome::Conflict);
    unit.does(A, ReserveCommand::Preempt { key: 10, sa_key: 0, kind: own }, ReserveOutcome::Illegal);
    unit.does(A, ReserveCommand::Reserve(10, own), ReserveOutcome::Good);
    unit.does(A, ReserveCommand::Release(10, kind(true, Admits::Holder)), ReserveOutcome::Illegal);
    unit.does(B, ReserveCommand::Release(20, own), ReserveOutcome::Good);
    let state = unit.0.states().next().unwrap();
    assert_eq!((state.generation(), state.keys()), (2, [10, 20].to_vec()));
    assert_eq!(state.reservation(), Some((10, own)));
}

#[test]
fn the_preempted_are_unregistered_and_the_sender_holds_what_their_holder_held() {
    let mut unit = Unit::both_registered();
    let own = kind(false, Admits::Holder);
    unit.does(A, ReserveCommand::Reserve(10, own), ReserveOutcome::Good);
    let fenced =
        unit.does(B, ReserveCommand::Preempt { key: 20, sa_key: 10, kind: own }, ReserveOutcome::Good);
    assert!(fenced.has(A) && !fenced.has(B));
    let state = unit.0.states().next().unwrap();
    assert_eq!((state.generation(), state.keys(), state.reservation()), (3, [20].to_vec(), Some((20, own))));
    assert_eq!((unit.can(A, Access::Writes), unit.can(B, Access::Writes)), ((false, true), (true, false)));
    // A PREEMPT of a registration that is not the holder's does not change the reservation.
    unit.does(A, register(10), ReserveOutcome::Good);
    let fenced =
        unit.does(B, ReserveCommand::Preempt { key: 20, sa_key: 10, kind: own }, ReserveOutcome::Good);
    assert!(fenced.has(A));
    unit.does(B, ReserveCommand::Clear(20), ReserveOutcome::Good);
    assert_eq!(unit.0.states().next().unwrap().reservation(), None);
}

#[test]
fn all_registrants_hold_until_the_last_is_gone() {
    let mut unit = Unit::both_registered();
    let all = kind(true, Admits::Holders);
    let unregister =
        |key| ReserveCommand::Register { key, sa_key: 0, aptpl: false, ignore_existing_key: false };
    unit.does(A, ReserveCommand::Reserve(10, all), ReserveOutcome::Good);
    unit.does(A, unregister(10), ReserveOutcome::Good);
    assert_eq!(unit.0.states().next().unwrap().reservation(), Some((0, all)));
    unit.does(B, unregister(20), ReserveOutcome::Good);
    assert_eq!(unit.0.states().next().unwrap().reservation(), None);
    let mut unit = Unit::both_registered();
    unit.does(A, ReserveCommand::Reserve(10, all), ReserveOutcome::Good);
    unit.does(B, ReserveCommand::Preempt { key: 20, sa_key: 0, kind: all }, ReserveOutcome::Good);
    assert_eq!(unit.0.states().next().unwrap().keys(), [20].to_vec());
}

#[test]
fn commands_under_way_take_effect_in_any_order_and_the_answers_tell_which() {
    let mut unit = Unit::both_registered();
    let own = kind(false, Admits::Holder);
    let first = unit.begin(A, ReserveCommand::Reserve(10, own));
    let second = unit.begin(B, ReserveCommand::Reserve(20, own));
    assert_eq!(unit.can(A, Access::Writes), (true, true));
    assert_eq!(unit.0.end_command(first, ReserveOutcome::Conflict), Ok(Nexuses::default()));
    assert_eq!(unit.can(A, Access::Writes), (false, true), "the other was first");
    assert_eq!(unit.0.end_command(second, ReserveOutcome::Conflict), Err(Unexplained));
    let read = unit.0.states().filter_map(State::reservation).collect::<Vec<_>>();
    assert_eq!(read, [(20, own)]);
}

#[test]
fn a_command_whose_end_nobody_knows_leaves_both_possible_until_somebody_looks() {
    let mut unit = Unit::both_registered();
    let own = kind(false, Admits::Holder);
    let lost = unit.begin(A, ReserveCommand::Reserve(10, own));
    assert!(!unit.0.is_settled());
    unit.0.conclude_unknown(lost);
    assert!(unit.0.is_settled());
    assert_eq!(unit.can(B, Access::Writes), (true, true));
    assert!(unit.0.observe(|state| state.conflicts_with(B, Access::Writes)));
    assert_eq!(unit.can(B, Access::Writes), (false, true));
    assert!(!unit.0.observe(|state| state.reservation().is_none()));
}

#[test]
fn a_refused_command_whose_effect_was_seen_is_unexplained() {
    let mut unit = Unit::default();
    let id = unit.begin(A, register(10));
    assert!(unit.0.observe(|state| state.key_of(A).is_some()));
    assert_eq!(unit.0.refused(id), Err(Unexplained));
    let id = unit.begin(B, register(20));
    assert_eq!(unit.0.refused(id), Ok(()));
    assert_eq!(unit.0.states().next().unwrap().keys(), [10].to_vec());
}

#[test]
fn nobody_is_fenced_who_was_let_in_again_before_the_answer() {
    let mut unit = Unit::both_registered();
    let registrants = kind(false, Admits::Registrants);
    unit.does(B, ReserveCommand::Reserve(20, registrants), ReserveOutcome::Good);
    let preempt = unit.begin(B, ReserveCommand::Preempt { key: 20, sa_key: 10, kind: registrants });
    let back = unit.begin(A, register(10));
    assert_eq!(
        unit.0.end_command(back, ReserveOutcome::Good),
        Ok(Nexuses::default()),
        "it came after the preemption"
    );
    assert!(unit.0.end_command(preempt, ReserveOutcome::Good).unwrap().is_empty());
}

#[test]
fn only_what_is_said_to_persist_survives_a_loss_of_power() {
    for persist in [false, true] {
        let mut unit = Unit::default();
        unit.does(
            A,
            ReserveCommand::Register { key: ANYTHING, sa_key: 10, aptpl: persist, ignore_existing_key: true },
            ReserveOutcome::Good,
        );
        unit.does(A, ReserveCommand::Reserve(10, kind(true, Admits::Holder)), ReserveOutcome::Good);
        unit.0.power_lost();
        let state = unit.0.states().next().unwrap();
        assert_eq!((state.generation(), state.keys().len()), (0, usize::from(persist)));
        assert_eq!(unit.can(B, Access::Reads), (!persist, persist));
    }
}

#[test]
fn a_unit_reserved_the_old_way_may_be_released_at_any_time_by_a_lost_nexus() {
    let mut unit = Unit::default();
    unit.does(A, ReserveCommand::ReserveUnit, ReserveOutcome::Good);
    assert_eq!(unit.can(B, Access::Reads), (true, true));
    assert_eq!(unit.can(A, Access::Reads), (true, false));
    assert_eq!(unit.can(A, Access::Asks), (true, true));
    unit.does(B, register(20), ReserveOutcome::Conflict);
    unit.does(B, register(20), ReserveOutcome::Good);
    unit.does(A, ReserveCommand::ReserveUnit, ReserveOutcome::Conflict);
}

#[test]
fn those_who_lose_a_registration_or_a_shared_reservation_are_told() {
    const C: Nexus = Nexus(2);
    let registrants = kind(false, Admits::Registrants);
    let three = || {
        let mut unit = Unit::both_registered();
        unit.does(C, register(30), ReserveOutcome::Good);
        unit.does(A, ReserveCommand::Reserve(10, registrants), ReserveOutcome::Good);
        unit
    };
    let only = |nexus| Nexuses::default().with(nexus);
    let preempt = |kind| ReserveCommand::Preempt { key: 20, sa_key: 10, kind };
    let unregister =
        ReserveCommand::Register { key: 10, sa_key: 0, aptpl: false, ignore_existing_key: false };
    let none = Nexuses::default();
    for (nexus, service, expected) in [
        (B, preempt(registrants), [only(A), none, none]),
        (B, preempt(kind(true, Admits::Holder)), [only(A), none, only(C)]),
        (B, ReserveCommand::Clear(20), [none, only(A).with(C), none]),
        (A, ReserveCommand::Release(10, registrants), [none, none, only(B).with(C)]),
        (A, unregister, [none, none, only(B).with(C)]),
        (B, ReserveCommand::Release(20, registrants), [none; 3]),
    ] {
        let mut unit = three();
        let id = unit.begin(nexus, service);
        let told = unit.0.attentions_of(id, ReserveOutcome::Good);
        let told = [told.registrations_preempted, told.reservations_preempted, told.reservations_released];
        assert_eq!(told, expected, "{service:?}");
    }
    let mut unit = three();
    let clearing = unit.begin(B, ReserveCommand::Clear(20));
    unit.begin(A, unregister);
    let told = unit.0.attentions_of(clearing, ReserveOutcome::Good);
    assert_eq!(told.reservations_preempted, only(C), "the other one may have left before");
}
