//! The state tables of both halves: the states, and the events that change them.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;

use base::time::Duration;

use super::abuse::recrc;
use super::fixture::{GROUP, PASSWORD, PORT, Rig, plan};
use crate::frame::HEADER_LEN;
use crate::login::initiator::Login;

const SEED: u64 = 11;

/// Returns the frames of both ends in a handshake without losses, in order.
fn script() -> Vec<Vec<u8>> {
    let mut rig = fresh();
    rig.run().unwrap();
    let frames: Vec<_> = rig.log.into_iter().map(|(_, frame)| frame).collect();
    assert_eq!(frames.len(), 6);
    frames
}

fn fresh() -> Rig {
    let mut rig = Rig::new(plan(GROUP, Some(PASSWORD)), SEED);
    rig.bring_up();
    rig
}

fn damaged(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let at = frame.len() - 10;
    frame[at] ^= 1;
    recrc(&mut frame);
    frame
}

/// Makes a REFUSE of this handshake from the COOKIE in it.
fn refuse(cookie: &[u8], reason: u8) -> Vec<u8> {
    let mut frame = cookie[..HEADER_LEN + 20].to_vec();
    frame[6..8].copy_from_slice(&20_u16.to_be_bytes());
    frame[HEADER_LEN..HEADER_LEN + 4].copy_from_slice(&[7, reason, 0, 20]);
    frame.extend_from_slice(&[0; 4]);
    recrc(&mut frame);
    frame
}

#[test]
fn the_initiators_states_are_those_of_the_table() {
    let script = script();
    let [_, cookie, _, answer, _, accept] = &script[..] else { panic!("six frames") };
    let job = |rig: &mut Rig| {
        if let Some(job) = rig.login.poll_job() {
            rig.login.job_done(rig.now, job.run());
        }
    };
    let reach = |state: usize| {
        let mut rig = fresh();
        if state > 0 {
            rig.initiator_hears(cookie);
        }
        if state > 1 {
            rig.initiator_hears(answer);
        }
        if state > 2 {
            job(&mut rig);
        }
        if state > 3 {
            rig.initiator_hears(accept);
        }
        rig
    };
    type Event<'a> = (&'a str, alloc::boxed::Box<dyn Fn(&mut Rig) + 'a>);
    let hear = |name, frame: Vec<u8>| -> Event<'_> {
        (name, alloc::boxed::Box::new(move |rig: &mut Rig| rig.initiator_hears(&frame)))
    };
    let wait = |name, span: Duration| -> Event<'_> {
        let act = move |rig: &mut Rig| {
            rig.now = rig.now.after(span);
            rig.login.handle_timeout(rig.now);
        };
        (name, alloc::boxed::Box::new(act))
    };
    let events: Vec<Event<'_>> = [
        hear("COOKIE", cookie.clone()),
        hear("ANSWER", answer.clone()),
        hear("ANSWER, forged", damaged(answer)),
        hear("ACCEPT", accept.clone()),
        hear("ACCEPT, forged", damaged(accept)),
        hear("REFUSE", refuse(cookie, 2)),
        hear("REFUSE, busy", refuse(cookie, 3)),
        ("the slow step is done", alloc::boxed::Box::new(job)),
        ("the port vanishes", alloc::boxed::Box::new(|rig| rig.login.port_down(rig.now, PORT))),
        wait("2 s of silence", 2 * Login::GRACE),
        wait("4 s of silence", 4 * Login::GRACE),
        wait("10 s of silence", 10 * Login::GRACE),
    ]
    .into_iter()
    .collect();
    let mut table = String::new();
    for state in 0..5 {
        let before = reach(state).login.state_name();
        for (name, event) in &events {
            let mut rig = reach(state);
            event(&mut rig);
            let after = rig.login.state_name();
            if after != before {
                writeln!(table, "{before:<10} | {name:<22} | {after}").unwrap();
            }
        }
    }
    assert_eq!(table, INITIATOR, "\n{table}");
}

#[test]
fn a_forged_answer_is_forgotten_when_the_real_one_opens() {
    let script = script();
    let mut rig = fresh();
    rig.initiator_hears(&script[1]);
    rig.initiator_hears(&damaged(&script[3]));
    let job = rig.login.poll_job().unwrap();
    rig.login.job_done(rig.now, job.run());
    assert_eq!(rig.login.state_name(), "starting, in doubt");
    rig.run().unwrap();
}

#[test]
fn the_targets_states_are_those_of_the_table() {
    let script = script();
    let [hello, _, start, _, finish, _] = &script[..] else { panic!("six frames") };
    let reach = |state: usize| {
        let mut rig = fresh();
        rig.target_hears(hello);
        if state > 0 {
            rig.target_hears(start);
        }
        if state > 1 {
            rig.target_hears(finish);
        }
        said(&mut rig);
        rig
    };
    let bad_cookie = {
        let mut frame = start.clone();
        let at = frame.len() - 5;
        frame[at] ^= 1;
        recrc(&mut frame);
        frame
    };
    let events = [
        ("HELLO", Some(hello.clone())),
        ("START", Some(start.clone())),
        ("START, bad cookie", Some(bad_cookie)),
        ("FINISH", Some(finish.clone())),
        ("FINISH, forged", Some(damaged(finish))),
        ("10 s", None),
    ];
    let mut table = String::new();
    for state in 0..3 {
        for (name, event) in &events {
            let mut rig = reach(state);
            let before = name_of(&rig);
            match event {
                Some(frame) => rig.target_hears(frame),
                None => {
                    rig.now = rig.now.after(Duration::from_secs(10));
                    rig.handshakes.handle_timeout(rig.now);
                }
            }
            let (said, after) = (said(&mut rig), name_of(&rig));
            writeln!(table, "{before:<9} | {name:<17} | {said:<6} | {after}").unwrap();
        }
    }
    assert_eq!(table, TARGET, "\n{table}");
}

fn name_of(rig: &Rig) -> String {
    match (rig.handshakes.half_open(), rig.agreed.len()) {
        (0, 0) => "nothing".into(),
        (1, 0) => "half-open".into(),
        (0, 1) => "session".into(),
        other => format!("{other:?}"),
    }
}

fn said(rig: &mut Rig) -> &'static str {
    let mut batch = base::ether::FrameBatch::new();
    while let Some(port) = rig.handshakes.poll_port() {
        rig.handshakes.transmit(port, &mut batch);
    }
    let kind = super::fixture::frames(&batch).last().map(|(_, frame)| frame[HEADER_LEN]);
    match kind {
        None => "",
        Some(2) => "COOKIE",
        Some(4) => "ANSWER",
        Some(6) => "ACCEPT",
        Some(_) => "REFUSE",
    }
}

const INITIATOR: &str = "\
asking     | COOKIE                 | starting
asking     | 10 s of silence        | failed
starting   | ANSWER                 | stretching
starting   | ANSWER, forged         | stretching
starting   | REFUSE                 | starting, in doubt
starting   | the port vanishes      | asking
starting   | 4 s of silence         | asking
starting   | 10 s of silence        | failed
stretching | the slow step is done  | finishing
stretching | 10 s of silence        | failed
finishing  | ACCEPT                 | agreed
finishing  | the port vanishes      | asking
finishing  | 4 s of silence         | asking
finishing  | 10 s of silence        | failed
";

const TARGET: &str = "\
nothing   | HELLO             | COOKIE | nothing
nothing   | START             | ANSWER | half-open
nothing   | START, bad cookie | COOKIE | nothing
nothing   | FINISH            |        | nothing
nothing   | FINISH, forged    |        | nothing
nothing   | 10 s              |        | nothing
half-open | HELLO             | COOKIE | half-open
half-open | START             | ANSWER | half-open
half-open | START, bad cookie | COOKIE | half-open
half-open | FINISH            | ACCEPT | session
half-open | FINISH, forged    |        | half-open
half-open | 10 s              |        | nothing
session   | HELLO             | COOKIE | session
session   | START             | ACCEPT | session
session   | START, bad cookie | COOKIE | session
session   | FINISH            | ACCEPT | session
session   | FINISH, forged    | ACCEPT | session
session   | 10 s              |        | session
";
