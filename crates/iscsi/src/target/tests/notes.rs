//! Notes about initiators that logged in: deviations from the standard, reported once, and hosts that use one
//! name.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use base::state_machine::ConnId;
use base::time::Duration;

use super::world::{INITIATOR, TARGET, World, keys};
use crate::keys::Key;
use crate::login::deviation::Deviation as InLogin;
use crate::negotiate::KeyPolicy;
use crate::pdu::login_response::LoginResponse;
use crate::serial::CmdSn;
use crate::target::engine::Limits;
use crate::target::initiator_notes::{Deviation, InitiatorNote, NoteKind};
use crate::target::protocol_error::ProtocolError;

/// Logs in with one text in the operational negotiation stage.
fn log_in(world: &mut World, conn: ConnId, name: &str, isid: u8, keys: &[&str]) -> u16 {
    let mut text = format!("InitiatorName={name}\0");
    if !keys.contains(&"SessionType=Discovery") {
        text.push_str(&format!("SessionType=Normal\0TargetName={TARGET}\0"));
    }
    text.extend(keys.iter().map(|key| format!("{key}\0")));
    let request = world.login_request(conn, (isid, 0, 0));
    world.send(conn, &request, text.as_bytes());
    world.expect_any(conn).read::<LoginResponse>().status
}

fn notes(world: &mut World) -> Vec<InitiatorNote> {
    core::iter::from_fn(|| world.engine.poll_note()).collect()
}

fn departures(world: &mut World) -> Vec<Deviation> {
    let departure = |note: InitiatorNote| match note.kind {
        NoteKind::Deviation(departure) => departure,
        NoteKind::SharedName { .. } => panic!("{note:?}"),
    };
    notes(world).into_iter().map(departure).collect()
}

#[test]
fn each_departure_in_a_login_is_told_once_of_an_initiator_with_what_was_made_of_it() {
    for (name, more, departure, said) in [
        (INITIATOR, "AuthMethod=None", InLogin::AuthMethodInOperationalStage, "AuthMethod=None"),
        (INITIATOR, "IFMarker=Yes", InLogin::MarkersWanted(Key::IfMarker), "IFMarker"),
        (INITIATOR, "OFMarkInt=2048~8192", InLogin::MarkersWanted(Key::OfMarkInt), "OFMarkInt"),
        (
            INITIATOR,
            "SessionType=Discovery MaxConnections=8",
            InLogin::ConnectionsInDiscovery,
            "MaxConnections",
        ),
        ("iqn.2026-11.com.example:a_host", "", InLogin::UnderscoreInName, "underscore"),
        ("thirteen-hosts", "", InLogin::LenientName, "lenient"),
    ] {
        let mut world = World::with(Limits { lenient_names: true, ..Limits::default() }, keys());
        let more: Vec<&str> = more.split_whitespace().collect();
        for isid in 0..3 {
            let conn = world.connect();
            assert_eq!(log_in(&mut world, conn, name, isid, &more), 0, "{name} {more:?}");
        }
        let reported = notes(&mut world);
        let [InitiatorNote { initiator, target, peer, kind: NoteKind::Deviation(found) }] = &reported[..]
        else {
            panic!("{name} {more:?}: {reported:?}");
        };
        assert_eq!((initiator.as_str(), *found), (name, Deviation::Login(departure)));
        assert_eq!(target.is_none(), departure == InLogin::ConnectionsInDiscovery);
        assert_eq!(peer.to_string(), "127.0.0.1:40000");
        assert!(found.to_string().contains(said), "{found}");
        // The deviations of another initiator are reported as well.
        let conn = world.connect();
        assert_eq!(log_in(&mut world, conn, "iqn.2026-11.com.example:an_other", 9, &more), 0);
        assert!(!notes(&mut world).is_empty());
    }
}

#[test]
fn what_the_standard_allows_is_not_told_and_neither_is_what_is_refused() {
    let mut world = World::new();
    let conn = world.connect();
    let fine = ["IFMarker=No", "OFMarker=No", "MaxConnections=8", "HeaderDigest=CRC32C,None", "X-a.b=c"];
    assert_eq!(log_in(&mut world, conn, INITIATOR, 0, &fine), 0);
    let conn = world.connect();
    assert_ne!(log_in(&mut world, conn, "iqn.2026-11.com.example:a_host", 1, &["AuthMethod=CHAP"]), 0);
    assert_eq!(notes(&mut world), []);
}

#[test]
fn requests_that_are_passed_over_are_told_once() {
    let mut world = World::new();
    let (conn, _) = world.login(&[]);
    for ahead in [5000, 6000, 7000] {
        let mut command = world.command(conn);
        command.cmd_sn = CmdSn(command.cmd_sn.0 + ahead);
        world.issue(conn, &command, &[]);
    }
    assert_eq!(departures(&mut world), [Deviation::PassedOver(ProtocolError::CmdSnOutsideWindow)]);
}

#[test]
fn an_idle_initiator_that_answers_no_ping_is_told_once() {
    let mut world = World::new();
    let (conn, _) = world.login(&[]);
    world.pass(Duration::from_secs(100));
    assert_eq!(world.ended(conn), None);
    assert_eq!(departures(&mut world), [Deviation::Silent]);
}

#[test]
fn no_crowd_of_names_makes_it_remember_or_tell_without_bound() {
    let mut world = World::with(Limits { sessions_max: 100, ..Limits::default() }, keys());
    let mut reported = 0;
    for round in 0..3000 {
        let conn = world.connect();
        let name = format!("iqn.2026-11.com.example:host_{round}");
        assert_eq!(log_in(&mut world, conn, &name, 0, &[]), 0, "{round}");
        world.hang_up(conn, base::state_machine::DisconnectReason::Closed);
        world.events.clear();
        if round == 1500 {
            reported = notes(&mut world).len();
        }
        assert!(world.engine.notes.remembered() <= 1024);
    }
    assert_eq!((reported, notes(&mut world).len()), (64, 64));
}

/// Logs a host in; the session that it takes over ends. Returns the notes about it.
fn come(world: &mut World, host: u8) -> Vec<InitiatorNote> {
    let conn = world.connect_from(([192, 0, 2, host], 40000).into());
    assert_eq!(log_in(world, conn, INITIATOR, 0, &[]), 0);
    world.events.clear();
    notes(world)
}

#[test]
fn two_hosts_under_one_name_are_told_with_both_addresses_and_seldom() {
    let mut world = World::new();
    assert_eq!((come(&mut world, 1), come(&mut world, 2)), (Vec::new(), Vec::new()));
    let reported = come(&mut world, 1);
    let [InitiatorNote { initiator, target, peer, kind: NoteKind::SharedName { isid, other, times } }] =
        &reported[..]
    else {
        panic!("{reported:?}");
    };
    let (target, other) = (target.as_ref().unwrap(), other.to_string());
    assert_eq!((initiator.as_str(), target.as_str()), (INITIATOR, TARGET));
    assert_eq!((peer.ip().to_string(), other, *times), (String::from("192.0.2.1"), "192.0.2.2".into(), 2));
    assert_eq!(isid, "800000000000");
    // Two logins per second for ten minutes: one note per minute, with the number of takeovers since the
    // last.
    let mut counts = Vec::new();
    for round in 0..1200 {
        world.pass(Duration::from_millis(500));
        for note in come(&mut world, 2 - u8::from(round % 2 == 1)) {
            let NoteKind::SharedName { times, .. } = note.kind else { panic!("{note:?}") };
            counts.push(times);
        }
    }
    assert_eq!(counts, [120; 10]);
    assert_eq!(world.engine.stats().rival_logins, 1201);
    assert_eq!(world.engine.sessions().count(), 1);
}

#[test]
fn one_host_that_logs_in_again_or_changes_its_address_is_no_two_hosts() {
    let mut world = World::new();
    for _ in 0..10 {
        assert_eq!(come(&mut world, 1), []);
    }
    // The host changes its address once, and changes it back much later.
    assert_eq!(come(&mut world, 2), []);
    for _ in 0..7 {
        world.pass(Duration::from_secs(10));
        assert_eq!(come(&mut world, 2), []);
    }
    assert_eq!(come(&mut world, 1), []);
    assert_eq!(world.engine.stats().rival_logins, 0);
}

#[test]
fn the_rivals_of_one_name_leave_the_sessions_of_others_alone() {
    let mut world = World::with(Limits::default(), KeyPolicy { error_recovery_level: 2, ..keys() });
    let witness = world.connect_from(([192, 0, 2, 9], 40000).into());
    assert_eq!(log_in(&mut world, witness, "iqn.2026-11.com.example:witness", 0, &[]), 0);
    world.events.clear();
    for round in 0..100 {
        come(&mut world, 1 + round % 2);
        let command = world.command(witness);
        let task = world.start(witness, &command, &[]).task;
        world.finish(task, transport::target::Finish::good(0));
        let answer: crate::pdu::scsi_response::ScsiResponse = world.expect(witness);
        assert_eq!((answer.status, answer.itt), (0, command.itt));
    }
    assert_eq!((world.ended(witness), world.engine.sessions().count()), (None, 2));
}
