//! The progress of tasks that get no answer, as the owner sees it, and the replacement of a session.

use base::state_machine::Action;
use transport::initiator::{InitiatorTransport as _, Request, TaskResult};

use super::pair::{Setup, read, write};
use super::scripted_target::ScriptedTarget;

#[test]
fn progress_is_another_number_whenever_a_task_gets_on() {
    let (mut raw, conn) = ScriptedTarget::level(0, &["InitialR2T=Yes", "ImmediateData=No"]);
    let (reading, command) = raw.start(conn, read(0, 1024));
    let mut seen = alloc::vec![raw.session.progress(reading).unwrap()];
    for number in 0..2 {
        raw.pass(core::time::Duration::from_secs(1));
        assert_eq!(raw.session.progress(reading), seen.last().copied(), "nothing came");
        let pdu = raw.data_in(conn, command.itt, number, number * 256);
        raw.send(conn, &pdu, &[7; 256]);
        seen.push(raw.session.progress(reading).unwrap());
    }
    let (writing, command) = raw.start(conn, write(0, 1, &[1; 1024]));
    let started = raw.session.progress(writing).unwrap();
    let r2t = raw.r2t(conn, command.itt, 0, 0, 512);
    raw.send(conn, &r2t, &[]);
    let asked = raw.session.progress(writing).unwrap();
    let r2t = raw.r2t(conn, command.itt, 1, 512, 512);
    raw.send(conn, &r2t, &[]);
    let asked_again = raw.session.progress(writing).unwrap();
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    assert!(started < asked && asked < asked_again, "{started} {asked} {asked_again}");
}

#[test]
fn a_session_that_is_given_up_is_built_anew_and_only_what_may_run_again_does() {
    let (mut raw, conn) = ScriptedTarget::up(Setup::default(), &[]);
    let (again, _) = raw.start(conn, Request { replay: true, ..read(0, 512) });
    let (lost, _) = raw.start(conn, write(0, 1, &[1; 512]));
    raw.session.rebuild_session(raw.now);
    raw.drain();
    assert!(matches!(raw.ended(conn), Some(Action::Abort(_))), "{:?}", raw.ended(conn));
    assert_eq!(raw.outcome(lost).end, TaskResult::Lost);
    raw.pass(core::time::Duration::from_secs(5));
    let next = *raw.ends.keys().last().unwrap();
    assert_ne!(next, conn);
    raw.log_in(next, 8, &[]);
    assert!(raw.session.is_up());
    assert!(raw.session.progress(again).is_some(), "it is on its way again");
    assert_eq!(raw.session.stats().replays, 1);
}
