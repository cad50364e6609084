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
    /// Whether reloads hide every LUN.
    was_hidden: bool,
}

impl Rig {
    /// Makes a judge whose initiators were told that their nexuses are new.
    fn new() -> Self {
        Self::with(false)
    }

    fn with(transport_aborts: bool) -> Self {
        let mut rig = Self {
            judge: CauseJudge::new(CauseRules {
                initiators: 2,
                transport_aborts,
                refuses_protection: vec![false],
                block_len: 512,
                task_set_max: 3,
                has_reservations: true,
                ..CauseRules::default()
            }),
            last: 0,
            has_faults: false,
            was_hidden: false,
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
        self.judge.ended(ticket, ended, now, last_fault, self.was_hidden).map(|wrong| wrong.property)
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

const BUSY: u8 = 0x08;
const FULL: u8 = 0x28;

#[test]
fn a_task_set_is_full_of_the_commands_that_can_be_in_it() {
    // How many others are open, were answered since, and were lost with an old nexus or with this one.
    for (open, answered, lost, lost_now, expected) in [
        (3, 0, 0, 0, None),
        (2, 0, 0, 0, Some(Property::Caused)),
        (2, 1, 0, 0, None),
        (1, 1, 0, 0, Some(Property::Caused)),
        (2, 0, 1, 0, Some(Property::Caused)),
        (2, 0, 0, 1, None),
    ] {
        let mut rig = Rig::new();
        let send = |rig: &mut Rig, count: u64| (0..count).map(|_| rig.send(1, READ)).collect::<Vec<_>>();
        for ticket in send(&mut rig, lost) {
            assert_eq!(rig.end(ticket, &CommandOutcome::Lost), None);
        }
        rig.judge.nexus_began(rig.now(), 1);
        let ticket = rig.send(1, READ);
        assert_eq!(rig.end(ticket, &attention(0x2900)), None);
        for ticket in send(&mut rig, lost_now) {
            assert_eq!(rig.end(ticket, &CommandOutcome::Lost), None);
        }
        let _open = send(&mut rig, open);
        let answered = send(&mut rig, answered);
        let judged = rig.send(0, READ);
        for ticket in answered {
            assert_eq!(rig.end(ticket, &status(GOOD)), None);
        }
        assert_eq!(rig.end(judged, &status(FULL)), expected, "{open} open, {lost} and {lost_now} lost");
    }
}

#[test]
fn a_command_that_is_repeated_can_be_in_a_full_task_set_itself() {
    for (repeats, expected) in [(true, None), (false, Some(Property::Caused))] {
        let mut rig = Rig::new();
        let _open = [rig.send(1, READ), rig.send(1, READ)];
        let judged = rig.send(0, READ);
        rig.judge.open.get_mut(&judged).unwrap().repeats = repeats;
        assert_eq!(rig.end(judged, &status(FULL)), expected);
    }
}

#[test]
fn busy_and_conflicts_need_a_cause() {
    // The operation code, the status, whether initiators reserve, and how much of 1000 bytes is in use.
    for (opcode, ended, has_reservations, in_use, expected) in [
        (WRITE, BUSY, true, 124, Some(Property::Caused)),
        (WRITE, BUSY, true, 125, None),
        (EXTENDED_COPY, BUSY, false, 0, None),
        (WRITE, CONFLICT, true, 0, None),
        (WRITE, CONFLICT, false, 0, Some(Property::Caused)),
        (WRITE, 0x30, true, 0, Some(Property::Caused)),
    ] {
        let mut rig = Rig::new();
        (rig.judge.rules.has_reservations, rig.judge.rules.data_bytes_max) = (has_reservations, Some(1000));
        let (other, ticket) = (rig.send(1, READ), rig.send(0, opcode));
        rig.judge.open.get_mut(&other).unwrap().data_bytes = in_use;
        assert_eq!(rig.end(ticket, &status(ended)), expected, "{opcode:02x}h ended with {ended:02x}h");
    }
    let mut rig = Rig::new();
    assert_eq!(rig.execute(0, &status(BUSY)), Some(Property::Caused), "nothing keeps data");
}

#[test]
fn a_task_is_aborted_by_a_request_of_another_initiator() {
    const ABORTED: u8 = 0x40;
    for (function, by, before, expected) in [
        (TaskManagement::ClearTaskSet(0), 1, false, None),
        (TaskManagement::UnitReset(0), 1, false, None),
        (TaskManagement::WarmReset, 1, false, None),
        (TaskManagement::AbortTaskSet(0), 1, false, Some(Property::Caused)),
        (TaskManagement::UnitReset(0), 0, false, Some(Property::Caused)),
        (TaskManagement::ClearTaskSet(0), 1, true, Some(Property::Caused)),
    ] {
        let mut rig = Rig::new();
        let early = rig.send(0, READ);
        rig.manage(by, function);
        let judged = if before { rig.send(0, READ) } else { early };
        assert_eq!(rig.end(judged, &status(ABORTED)), expected, "{function:?} by {by}");
    }
    // A request of the initiator's former nexus.
    for (is_lost, expected) in [(true, None), (false, Some(Property::Caused))] {
        let mut rig = Rig::new();
        let preempt = rig.send_cdb(0, &[PERSISTENT_RESERVE_OUT, 5]);
        if is_lost {
            assert_eq!(rig.end(preempt, &CommandOutcome::Lost), None);
        }
        let (last, now) = (rig.last, rig.now());
        rig.judge.nexus_began(now, 0);
        let order = rig.send(0, INQUIRY);
        rig.judge.open.get_mut(&order).unwrap().since = now;
        assert_eq!(rig.end(order, &status(ABORTED)), expected, "after {last}");
    }
    for (action, expected) in [(5, None), (4, Some(Property::Caused))] {
        let mut rig = Rig::new();
        let judged = rig.send(0, READ);
        rig.send_cdb(1, &[PERSISTENT_RESERVE_OUT, action]);
        assert_eq!(rig.end(judged, &status(ABORTED)), expected, "PREEMPT {action}");
    }
}

#[test]
fn where_reloads_change_luns_any_disk_is_a_cause_and_attentions_are_judged_elsewhere() {
    for (has_reloads, expected) in [(true, None), (false, Some(Property::Caused))] {
        for ended in [
            attention(0x3f0e),
            check(SenseKey::ILLEGAL_REQUEST, 0x2500),
            check(SenseKey::DATA_PROTECT, 0x2700),
        ] {
            let mut rig = Rig::new();
            (rig.judge.rules.has_reloads, rig.was_hidden) = (has_reloads, has_reloads);
            assert_eq!(rig.execute(0, &ended), expected, "{ended:?}");
        }
        let mut rig = Rig::new();
        rig.judge.rules.has_reloads = has_reloads;
        assert_eq!(rig.execute(0, &check(SenseKey::MEDIUM_ERROR, 0x0c00)), Some(Property::Caused));
    }
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
