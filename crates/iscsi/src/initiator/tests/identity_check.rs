//! Guarded logical units: in a new session they get no commands until their owner has checked their identity.

use alloc::vec::Vec;

use base::state_machine::ConnId;
use transport::initiator::{InitiatorTransport as _, Request, SubmitError, TaskId, TaskResult};

use super::pair::{LUN, Setup, pattern, read, write};
use super::scripted_target::ScriptedTarget;
use crate::pdu::logout_request::{LogoutReason, LogoutRequest};
use crate::pdu::scsi_command::ScsiCommand;
use crate::pdu::{Opcode, PduHeader};

const OTHER: u64 = 2 << 48;

fn probe() -> Request {
    Request { is_identity_check: true, ..read(0, 36) }
}

/// A guarded logical unit with a read that waits, a write that was sent and may be repeated, and one that
/// must not; then the session is established again.
fn rebuilt() -> (ScriptedTarget, ConnId, [TaskId; 3]) {
    let (mut raw, conn) = ScriptedTarget::up(Setup::default(), &["ErrorRecoveryLevel=0"]);
    raw.session.require_identity_check(LUN);
    raw.session.confirm_identity(raw.now, LUN);
    let (repeated, _) = raw.start(conn, Request { replay: true, ..write(0, 1, &[7; 512]) });
    let (lost, _) = raw.start(conn, write(8, 2, &[8; 512]));
    raw.manual = true;
    raw.cut(conn);
    assert_eq!(raw.outcome(lost).end, TaskResult::Lost);
    let waits = raw.session.submit(raw.now, read(16, 512)).unwrap();
    let other = raw.session.submit(raw.now, Request { lun: OTHER, ..read(0, 512) }).unwrap();
    raw.pass(base::time::Duration::from_secs(3));
    let conn = raw.connect();
    raw.drain();
    raw.exp_cmd_sn = 1;
    raw.log_in(conn, 8, &["ErrorRecoveryLevel=0"]);
    assert!(raw.session.is_up(), "{:?}", raw.events);
    (raw, conn, [repeated, waits, other])
}

fn commands(raw: &mut ScriptedTarget, conn: ConnId) -> Vec<ScsiCommand> {
    let sent = core::iter::from_fn(|| raw.receive(conn));
    sent.filter(|sent| sent.bhs.opcode() == Opcode::SCSI_COMMAND)
        .map(|sent| ScsiCommand::decode(&sent.bhs).unwrap())
        .collect()
}

#[test]
fn a_new_session_sends_a_guarded_unit_nothing_but_probes_until_it_is_vouched_for() {
    let (mut raw, conn, [repeated, waits, _]) = rebuilt();
    let sent = commands(&mut raw, conn);
    assert_eq!(sent.iter().map(|command| command.lun).collect::<Vec<_>>(), [OTHER], "others are not held up");
    let (asked, question) = raw.start(conn, probe());
    let pdu = raw.data_in(conn, question.itt, 0, 0);
    let pdu = raw.with_status(conn, pdu);
    raw.send(conn, &pdu, &pattern(1, 36));
    assert!(raw.outcome(asked).end.is_good());
    assert!(commands(&mut raw, conn).is_empty());
    // The owner has not heard of the new session: that is the device of the former one.
    raw.session.confirm_identity(raw.now, LUN);
    raw.drain();
    assert!(commands(&mut raw, conn).is_empty());
    raw.session.require_identity_check(LUN);
    raw.session.confirm_identity(raw.now, LUN);
    raw.drain();
    let sent = commands(&mut raw, conn);
    assert_eq!(
        sent.iter().map(|command| (command.lun, command.write)).collect::<Vec<_>>(),
        [(LUN, true), (LUN, false)]
    );
    assert_eq!(raw.session.open_tasks(), 3, "{repeated:?} and {waits:?} are on their way");
}

#[test]
fn what_waits_for_another_device_ends_and_is_never_sent() {
    let (mut raw, conn, [repeated, waits, other]) = rebuilt();
    commands(&mut raw, conn);
    raw.session.fail_identity(raw.now, LUN);
    raw.drain();
    // The task was sent once, and it is unknown whether the target executed it.
    assert_eq!(raw.outcome(repeated).end, TaskResult::Lost);
    assert_eq!(raw.outcome(waits).end, TaskResult::NotSent);
    let later = raw.session.submit(raw.now, write(0, 3, &[9; 512])).unwrap();
    raw.drain();
    assert!(commands(&mut raw, conn).is_empty());
    assert_eq!(raw.session.open_tasks(), 2, "{later:?} and {other:?}");
}

#[test]
fn there_is_room_for_a_probe_when_there_is_none_for_anything_else() {
    let mut setup = Setup::default();
    setup.plan.limits.tasks_max = 2;
    let (mut raw, conn) = ScriptedTarget::up(setup, &["ErrorRecoveryLevel=0"]);
    raw.session.require_identity_check(LUN);
    for _ in 0..2 {
        raw.session.submit(raw.now, read(0, 512)).unwrap();
    }
    assert_eq!(raw.session.submit(raw.now, read(0, 512)), Err(SubmitError::Full));
    raw.session.submit(raw.now, probe()).unwrap();
    raw.drain();
    assert_eq!(commands(&mut raw, conn).len(), 1);
}

#[test]
fn a_logout_waits_for_a_task_that_waits_for_the_check() {
    for is_same in [true, false] {
        let (mut raw, conn) = ScriptedTarget::up(Setup::default(), &["ErrorRecoveryLevel=0"]);
        raw.session.require_identity_check(LUN);
        let held = raw.session.submit(raw.now, read(0, 36)).unwrap();
        raw.session.logout(raw.now);
        raw.drain();
        assert_eq!(raw.session.submit(raw.now, read(0, 36)), Err(SubmitError::Down), "a new request");
        let (asked, question) = raw.start(conn, probe());
        let good = |raw: &mut ScriptedTarget, itt| {
            let pdu = raw.data_in(conn, itt, 0, 0);
            let pdu = raw.with_status(conn, pdu);
            raw.send(conn, &pdu, &pattern(1, 36));
        };
        good(&mut raw, question.itt);
        assert!(raw.outcome(asked).end.is_good());
        if is_same {
            raw.session.confirm_identity(raw.now, LUN);
            raw.drain();
            let command: ScsiCommand = raw.expect(conn);
            good(&mut raw, command.itt);
            assert!(raw.outcome(held).end.is_good());
        } else {
            raw.session.fail_identity(raw.now, LUN);
            raw.drain();
            assert_eq!(raw.outcome(held).end, TaskResult::NotSent);
        }
        assert_eq!(raw.session.submit(raw.now, probe()), Err(SubmitError::Down), "nothing waits for it");
        assert_eq!(raw.expect::<LogoutRequest>(conn).reason, LogoutReason::CloseSession);
    }
}
