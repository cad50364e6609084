use super::*;
use crate::transport::Attribute;

/// A judge of one unit, and a counter of tickets.
struct Rig(ReservationJudge, u64);

impl Rig {
    fn new() -> Self {
        Self(ReservationJudge::new(1), 0)
    }

    fn begin(&mut self, initiator: usize, cdb: &[u8], data_out: Vec<u8>) -> Ticket {
        self.1 += 1;
        let order = ScsiCommand {
            unit: 0,
            cdb: cdb.to_vec(),
            data_out,
            data_in_len: 256,
            attribute: Attribute::Simple,
            immediate: false,
            replay: false,
        };
        let signature = (cdb[0] == 0x2a).then_some((9, self.1));
        self.0.submitted(initiator, Ticket(self.1), &order, signature);
        Ticket(self.1)
    }

    fn write(&mut self, initiator: usize) -> Ticket {
        self.begin(initiator, &[0x2a], Vec::new())
    }

    /// Submits PERSISTENT RESERVE OUT with two keys.
    fn reserve_out(&mut self, initiator: usize, action: u8, code: u8, keys: [u64; 2]) -> Ticket {
        let mut list = vec![0; 24];
        list[..8].copy_from_slice(&keys[0].to_be_bytes());
        list[8..16].copy_from_slice(&keys[1].to_be_bytes());
        self.begin(initiator, &[0x5f, action, code], list)
    }

    fn end(&mut self, ticket: Ticket, status: u8, data: &[u8]) -> Vec<Property> {
        self.0.ended(ticket, &CommandOutcome::Status { status, sense: Vec::new(), data: data.to_vec() });
        self.broken()
    }

    fn broken(&mut self) -> Vec<Property> {
        self.0.take_violations().iter().map(|broken| broken.property).collect()
    }

    fn does(&mut self, initiator: usize, action: u8, code: u8, keys: [u64; 2]) {
        let ticket = self.reserve_out(initiator, action, code, keys);
        assert_eq!(self.end(ticket, GOOD, &[]), []);
    }

    /// Initiators 0 and 1 are registered with keys 10 and 20, and initiator 0 holds a WRITE EXCLUSIVE
    /// reservation of the unit.
    fn reserved() -> Self {
        let mut rig = Self::new();
        rig.does(0, 0, 0, [0, 10]);
        rig.does(1, 0, 0, [0, 20]);
        rig.does(0, 1, 1, [10, 0]);
        rig
    }
}

#[test]
fn a_stopped_command_ends_with_reservation_conflict_and_no_other_does() {
    for (initiator, status, broken) in [
        (0, GOOD, None),
        (0, RESERVATION_CONFLICT, Some(Property::ReservationAdmits)),
        (1, GOOD, Some(Property::ReservationStops)),
        (1, RESERVATION_CONFLICT, None),
    ] {
        let mut rig = Rig::reserved();
        let write = rig.write(initiator);
        assert_eq!(rig.end(write, status, &[]), Vec::from_iter(broken), "{initiator} {status}");
    }
}

#[test]
fn either_end_is_right_while_the_reservation_is_on_its_way() {
    for status in [GOOD, RESERVATION_CONFLICT] {
        let mut rig = Rig::reserved();
        let release = rig.reserve_out(0, 2, 1, [10, 0]);
        let write = rig.write(1);
        assert_eq!(rig.end(write, status, &[]), []);
        assert_eq!(rig.end(release, GOOD, &[]), []);
    }
}

#[test]
fn a_stopped_write_reaches_no_medium() {
    let mut rig = Rig::reserved();
    let write = rig.write(1);
    rig.0.took_effect((9, write.0));
    assert_eq!(rig.broken(), [Property::ReservationStops]);
    assert_eq!(rig.end(write, RESERVATION_CONFLICT, &[]), []);
    rig.0.took_effect((9, write.0));
    assert_eq!(rig.broken(), [Property::ReservationStops], "long after its end");
}

#[test]
fn an_aborted_victim_writes_until_the_answer_and_not_after() {
    let mut rig = Rig::reserved();
    let write = rig.write(0);
    let preempt = rig.reserve_out(1, 5, 1, [20, 10]);
    rig.0.took_effect((9, write.0));
    assert_eq!(rig.end(preempt, GOOD, &[]), []);
    rig.0.took_effect((9, write.0));
    assert_eq!(rig.broken(), [Property::Fenced]);
    // The answer may have been under way all the time.
    assert_eq!(rig.end(write, GOOD, &[]), []);
}

#[test]
fn a_victim_that_is_let_in_again_may_write() {
    let mut rig = Rig::reserved();
    let write = rig.write(0);
    rig.does(1, 5, 1, [20, 10]);
    rig.does(1, 2, 1, [20, 0]);
    rig.0.took_effect((9, write.0));
    assert_eq!(rig.broken(), []);
}

#[test]
fn what_is_told_is_what_is_so() {
    let keys = |generation: u8, keys: &[u8]| {
        let mut data = vec![0, 0, 0, generation, 0, 0, 0, u8::try_from(keys.len() * 8).unwrap()];
        keys.iter().for_each(|key| data.extend([0, 0, 0, 0, 0, 0, 0, *key]));
        data
    };
    let held =
        |code: u8| [&[0, 0, 0, 2, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 10][..], &[0; 5], &[code, 0, 0]].concat();
    for (action, data, right) in [
        (0, keys(2, &[20, 10]), true),
        (0, keys(2, &[10]), false),
        (0, keys(3, &[10, 20]), false),
        (1, held(1), true),
        (1, held(3), false),
        (1, vec![0, 0, 0, 2, 0, 0, 0, 0], false),
    ] {
        let mut rig = Rig::reserved();
        let asks = rig.begin(1, &[0x5e, action], Vec::new());
        let broken = (!right).then_some(Property::ReservationTold);
        assert_eq!(rig.end(asks, GOOD, &data), Vec::from_iter(broken), "{action} {data:?}");
    }
}

#[test]
fn an_answer_that_nothing_explains_is_found() {
    let mut rig = Rig::reserved();
    let reserve = rig.reserve_out(1, 1, 1, [20, 0]);
    assert_eq!(rig.end(reserve, GOOD, &[]), [Property::ReservationTold]);
}
