use oracle::reservations::Nexuses;

use super::*;
use crate::transport::Attribute;

const READ: u8 = 0x28;
const WRITE: u8 = 0x2a;
const CONFLICT: u8 = 0x18;

/// A judge of one unit and two initiators, with counters of tickets and of seconds.
struct Rig {
    judge: CauseJudge,
    last: u64,
    /// Whether the transport loses something all the time.
    has_faults: bool,
}

impl Rig {
    /// Makes a judge whose initiators were told that their nexuses are new.
    fn new() -> Self {
        Self::with(false)
    }

    fn with(transport_aborts: bool) -> Self {
        let mut rig = Self {
            judge: CauseJudge::new(2, transport_aborts, vec![false], 512),
            last: 0,
            has_faults: false,
        };
        for initiator in 0..2 {
            rig.judge.nexus_began(Instant(0), initiator);
            let ticket = rig.send(initiator, READ);
            assert_eq!(rig.end(ticket, &attention(0x2900)), None);
        }
        rig
    }

    fn now(&self) -> Instant {
        Instant(self.last * 1_000_000_000)
    }

    fn send(&mut self, initiator: usize, opcode: u8) -> Ticket {
        self.send_cdb(initiator, &[opcode, 0, 0, 0, 0, 0, 0, 0, 1, 0])
    }

    fn send_cdb(&mut self, initiator: usize, cdb: &[u8]) -> Ticket {
        self.last += 1;
        let order = ScsiCommand {
            unit: 0,
            cdb: cdb.to_vec(),
            data_out: Vec::new(),
            data_in_len: 0,
            attribute: Attribute::Simple,
            immediate: false,
            replay: false,
        };
        self.judge.sent(self.now(), initiator, Ticket(self.last), &order, &Effect::Nothing);
        Ticket(self.last)
    }

    fn end(&mut self, ticket: Ticket, ended: &CommandOutcome) -> Option<Property> {
        let now = self.now();
        let last_fault = self.has_faults.then_some(now);
        self.judge.ended(ticket, ended, now, last_fault).map(|wrong| wrong.property)
    }

    /// Sends a command and ends it.
    fn execute(&mut self, initiator: usize, ended: &CommandOutcome) -> Option<Property> {
        let ticket = self.send(initiator, READ);
        self.end(ticket, ended)
    }

    /// Sends a task management function, which succeeds.
    fn manage(&mut self, initiator: usize, function: TaskManagement) {
        self.manage_slowly(initiator, function, Duration::ZERO);
    }

    /// Sends a task management function, which succeeds after this time.
    fn manage_slowly(&mut self, initiator: usize, function: TaskManagement, after: Duration) {
        self.last += 1;
        let now = self.now();
        self.judge.function_sent(now, initiator, Ticket(self.last), function);
        self.judge.function_ended(now.after(after), initiator, Ticket(self.last), Some(true));
    }
}

fn status(status: u8) -> CommandOutcome {
    CommandOutcome::Status { status, sense: Vec::new(), data: Vec::new() }
}

fn check(key: SenseKey, code: u16) -> CommandOutcome {
    let [asc, ascq] = code.to_be_bytes();
    let sense = vec![0x70, 0, key.0, 0, 0, 0, 0, 10, 0, 0, 0, 0, asc, ascq, 0, 0, 0, 0];
    CommandOutcome::Status { status: 2, sense, data: Vec::new() }
}

fn attention(code: u16) -> CommandOutcome {
    check(SenseKey::UNIT_ATTENTION, code)
}

#[test]
fn a_command_that_was_aborted_has_told_nobody_of_a_reset() {
    for (end, is_iscsi, has_faults, expected) in [
        (CommandOutcome::Aborted, true, false, Some(Property::Told)),
        (CommandOutcome::Aborted, false, true, Some(Property::Told)),
        // The status may have been lost before the abort, or the answer with the session.
        (CommandOutcome::Aborted, true, true, None),
        (CommandOutcome::Lost, false, false, None),
    ] {
        let mut rig = Rig::with(is_iscsi);
        rig.has_faults = has_faults;
        let open = rig.send(0, READ);
        rig.manage(1, TaskManagement::UnitReset(0));
        assert_eq!(rig.end(open, &end), None);
        assert_eq!(rig.execute(0, &status(GOOD)), expected, "{end:?}, {is_iscsi}, {has_faults}");
    }
}

#[test]
fn what_others_do_to_reservations_must_be_told() {
    let preempted = || ReservationAttentions {
        registrations_preempted: Nexuses::default().with(Nexus(0)),
        ..ReservationAttentions::default()
    };
    let rig = || {
        let mut rig = Rig::new();
        let preempt = rig.send_cdb(1, &[PERSISTENT_RESERVE_OUT, 4]);
        rig.judge.reservations_changed(preempt, 0, preempted());
        assert_eq!(rig.end(preempt, &status(GOOD)), None);
        rig
    };
    assert_eq!(rig().execute(0, &status(GOOD)), Some(Property::Told));
    assert_eq!(rig().execute(1, &status(GOOD)), None, "the sender is told nothing");
    let mut rig = rig();
    assert_eq!(rig.execute(0, &status(CONFLICT)), None, "a conflict comes before the unit attention");
    assert_eq!(rig.execute(0, &attention(Asc::REGISTRATIONS_PREEMPTED.0)), None);
    assert_eq!(rig.execute(0, &status(GOOD)), None);
    assert_eq!(rig.execute(0, &attention(Asc::REGISTRATIONS_PREEMPTED.0)), Some(Property::Caused));
}

#[test]
fn a_cause_of_long_ago_excuses_no_unit_attention() {
    let cleared = attention(Asc::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR.0);
    let mut rig = Rig::new();
    rig.manage(1, TaskManagement::ClearTaskSet(0));
    let open = rig.send(0, READ);
    assert_eq!(rig.execute(0, &status(GOOD)), None);
    assert_eq!(rig.execute(0, &cleared), Some(Property::Caused), "sent after a command that was not told");
    assert_eq!(rig.end(open, &cleared), None, "executed before that command");
}

#[test]
fn resets_that_were_pending_together_are_told_once() {
    let mut rig = Rig::new();
    rig.manage(0, TaskManagement::UnitReset(0));
    rig.manage(1, TaskManagement::WarmReset);
    assert_eq!(rig.execute(0, &attention(0x2903)), None);
    assert_eq!(rig.execute(0, &attention(0x2903)), Some(Property::Caused));
}

#[test]
fn a_function_that_its_initiator_may_have_repeated_is_told_more_than_once() {
    for (is_iscsi, after, second) in [
        (true, REPEATED_AFTER, None),
        (false, REPEATED_AFTER, Some(Property::Caused)),
        (true, Duration::ZERO, Some(Property::Caused)),
    ] {
        let mut rig = Rig::with(is_iscsi);
        rig.manage_slowly(1, TaskManagement::WarmReset, after);
        assert_eq!(rig.execute(0, &attention(0x2903)), None);
        assert_eq!(rig.execute(0, &attention(0x2903)), second, "{after:?}");
        assert_eq!(rig.execute(0, &attention(0x2903)), Some(Property::Caused), "{after:?}");
    }
}

#[test]
fn a_reset_that_is_executed_after_a_new_nexus_was_told_is_told_too() {
    let mut rig = Rig::new();
    rig.last += 1;
    let (now, reset) = (rig.now(), Ticket(rig.last));
    rig.judge.function_sent(now, 1, reset, TaskManagement::WarmReset);
    rig.judge.nexus_began(now, 0);
    let first = rig.send(0, READ);
    rig.judge.function_ended(rig.now(), 1, reset, Some(true));
    assert_eq!(rig.end(first, &attention(0x2900)), None);
    assert_eq!(rig.execute(0, &attention(0x2903)), None);
    assert_eq!(rig.execute(0, &attention(0x2903)), Some(Property::Caused));
}

#[test]
fn tasks_cleared_with_a_connection_need_a_lost_connection() {
    let cleared = attention(Asc::SOME_COMMANDS_CLEARED_BY_ISCSI_PROTOCOL_EVENT.0);
    let mut rig = Rig::new();
    rig.judge.connection_lost(0);
    assert_eq!(rig.execute(1, &cleared), Some(Property::Caused), "another initiator lost it");
    assert_eq!(rig.execute(0, &cleared), None);
    assert_eq!(rig.execute(0, &cleared), Some(Property::Caused));
}

#[test]
fn only_a_transport_that_judges_its_faults_may_abort_commands() {
    let crc = check(SenseKey::ABORTED_COMMAND, Asc::PROTOCOL_SERVICE_CRC_ERROR.0);
    let overlapped = check(SenseKey::ABORTED_COMMAND, Asc::OVERLAPPED_COMMANDS_ATTEMPTED.0);
    for (transport_aborts, end, expected) in [
        (false, &crc, Some(Property::Caused)),
        (true, &crc, None),
        (true, &overlapped, Some(Property::Caused)),
    ] {
        let mut rig = Rig::with(transport_aborts);
        let write = rig.send(0, WRITE);
        assert_eq!(rig.end(write, end), expected, "{end:?}");
    }
}
