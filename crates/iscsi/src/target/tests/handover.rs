//! Sessions move to another engine: when they may, and how they go on there.

mod documents;

use alloc::string::String;
use alloc::vec::Vec;

use base::state_machine::{AcceptInfo, Action, ConnId, DisconnectReason, PortalId};
use base::time::Duration;
use transport::target::{Finish, TargetTransport};
use transport::task_management::{TmfFunction, TmfResult};

use super::erl1::{ack, policy};
use super::mcs::{issue, issue_on_each, session, several};
use super::world::{TARGET, TLS_PORTAL, World, data_out, keys, pattern};
use crate::login::directory::TargetId;
use crate::pdu::data_in::DataIn;
use crate::pdu::login_request::LoginRequest;
use crate::pdu::login_response::LoginResponse;
use crate::pdu::logout_request::{LogoutReason, LogoutRequest};
use crate::pdu::logout_response::LogoutResponse;
use crate::pdu::nop_in::NopIn;
use crate::pdu::nop_out::NopOut;
use crate::pdu::r2t::R2t;
use crate::pdu::scsi_response::ScsiResponse;
use crate::pdu::text_request::TextRequest;
use crate::pdu::{BHS_LEN, Itt, PduHeader, Ttt};
use crate::serial::{CmdSn, StatSn};
use crate::target::contract::{AsyncEvent, Event, SessionUp};
use crate::target::engine::{Engine, Limits};
use crate::target::handover::{BusyReason, ResumeError, SessionState};
use crate::target::protection::Protection;

/// Returns the state of the only normal session as a document, and its connections.
fn exported(world: &World) -> (String, Vec<ConnId>) {
    let view = world.engine.sessions().find(|view| view.target.is_some()).unwrap();
    let (state, conns) = world.engine.export(view.session).unwrap();
    (serde_json::to_string(&state).unwrap(), conns)
}

/// Returns the reason why the only session cannot move.
fn reason(world: &World) -> Option<BusyReason> {
    let view = world.engine.sessions().next().unwrap();
    let refused = world.engine.export(view.session).err();
    assert!(refused.is_none_or(|busy| busy.session == view.session));
    let all = world.engine.busy();
    assert_eq!(all.is_some(), refused.is_some_and(|busy| busy.reason != BusyReason::Discovery));
    refused.map(|busy| busy.reason)
}

/// Connects to an engine as the driver does for a connection that comes from another process.
fn connect(engine: &mut Engine, world: &World, conn: ConnId, port: u16) {
    let peer = ([127, 0, 0, 1], port).into();
    let local = ([127, 0, 0, 1], 3260).into();
    engine.taken_over(world.now, conn, &AcceptInfo { portal: PortalId(7), local, peer, entropy: [9; 32] });
}

/// Replaces the engine by one to which the session moves. Its connections get the numbers from `first` on.
/// Returns them and the reported session.
pub(super) fn move_session(world: &mut World, first: u32) -> (Vec<ConnId>, SessionUp) {
    let (document, old) = exported(world);
    let limits = world.engine.limits;
    let mut engine = Engine::new(limits, world.pool.clone());
    let new: Vec<ConnId> = (first..).take(old.len()).map(ConnId).collect();
    for conn in &new {
        connect(&mut engine, world, *conn, 40000);
    }
    let state: SessionState = serde_json::from_str(&document).unwrap();
    let id = engine.resume(world.now, state, TargetId(0), &new, &world.names).unwrap();
    assert_eq!(engine.export(id).unwrap_err().reason, BusyReason::SendQueue);
    world.engine = engine;
    let mut peers: Vec<_> = old.iter().map(|conn| world.peers.remove(conn).unwrap()).collect();
    for conn in new.iter().rev() {
        world.peers.insert(*conn, peers.pop().unwrap());
    }
    world.next_conn = first + 100;
    world.drain();
    let Some(Event::SessionUp(up)) = world.next_event() else { panic!("no session") };
    assert_eq!((up.session, up.portal), (id, PortalId(7)));
    (new, *up)
}

/// Sends a command and answers it. Returns the response.
fn run_command(world: &mut World, conn: ConnId) -> ScsiResponse {
    let command = world.command(conn);
    let task = world.start(conn, &command, &[]).task;
    world.finish(task, Finish::good(0));
    let response: ScsiResponse = world.expect(conn);
    assert_eq!(response.itt, command.itt);
    response
}

/// Reads all PDUs from a connection. Returns the last one.
fn last<M: PduHeader + core::fmt::Debug>(world: &mut World, conn: ConnId) -> M {
    let mut last = world.expect_any(conn);
    while let Some(next) = world.receive(conn) {
        last = next;
    }
    last.read()
}

fn ping(world: &mut World, conn: ConnId, ttt: Ttt, exp_stat_sn: StatSn) {
    let (_, cmd_sn) = world.numbers(conn);
    let pong = NopOut { immediate: true, lun: 0, itt: Itt::NONE, ttt, cmd_sn, exp_stat_sn };
    world.send(conn, &pong, &[]);
}

/// Logs in at this ErrorRecoveryLevel, and acknowledges the last Login Response.
fn idle_session(level: u8) -> (World, ConnId) {
    let mut world = World::with(Limits::default(), several(level));
    let conn = world.login(&[&*alloc::format!("ErrorRecoveryLevel={level}")]).0;
    if level > 0 {
        assert_eq!(reason(&world), Some(BusyReason::Unacknowledged), "the last Login Response");
        ack(&mut world, conn, StatSn(2));
    }
    assert_eq!(reason(&world), None, "level {level}");
    (world, conn)
}

#[test]
fn a_session_with_something_under_way_is_refused_with_the_reason() {
    let (mut world, conn) = idle_session(0);
    let command = world.command(conn);
    let task = world.start(conn, &command, &[]).task;
    assert_eq!(reason(&world), Some(BusyReason::Command));
    world.stalled.insert(conn);
    world.finish(task, Finish::good(0));
    assert_eq!(reason(&world), Some(BusyReason::Command), "its response is not sent");
    world.stalled.clear();
    world.transmit(conn);
    assert_eq!(reason(&world), None);

    // Data-Out.
    let write = world.write(conn, 1000);
    let task = world.start(conn, &write, &[]).task;
    world.fetch(task, 0, 1000);
    assert_eq!(reason(&world), Some(BusyReason::DataOut));
    let r2t: R2t = last(&mut world, conn);
    world.send(conn, &data_out(&write, r2t.ttt, 0, 0, true), &pattern(0, 1000));
    assert_eq!(reason(&world), Some(BusyReason::Command));
    world.expect_data(task, 0);
    world.finish(task, Finish::good(1000));
    assert_eq!(reason(&world), None);

    // A command number is missing.
    let (first, mut second) = (world.command(conn), world.command(conn));
    second.cmd_sn = first.cmd_sn.next();
    world.send(conn, &second, &[]);
    assert_eq!(reason(&world), Some(BusyReason::MissingCommand));
    world.issue(conn, &first, &[]);
    world.count(conn);
    for _ in 0..2 {
        let task = world.expect_command().task;
        world.finish(task, Finish::good(0));
    }
    assert_eq!(reason(&world), None);

    // A task management function.
    let reset = world.manage(conn, TmfFunction::LOGICAL_UNIT_RESET);
    world.send(conn, &reset, &[]);
    let Some(Event::Tmf(tmf)) = world.next_event() else { panic!("no function") };
    assert_eq!(reason(&world), Some(BusyReason::TaskManagement));
    world.engine.finish_tmf(tmf.tmf, TmfResult::COMPLETE);
    world.drain();
    assert_eq!(reason(&world), None);
}

#[test]
fn a_connection_amid_a_pdu_a_text_or_a_logout_is_refused_with_the_reason() {
    let (mut world, conn) = idle_session(0);

    // A part of a PDU.
    let bytes = world.command(conn).encode().to_bytes();
    let mut fed = 0;
    for len in [1, 20, BHS_LEN - 1] {
        world.feed(conn, &bytes[fed..len]);
        assert_eq!(reason(&world), Some(BusyReason::PartialPdu), "{len} bytes");
        fed = len;
    }
    world.feed(conn, &bytes[fed..]);
    world.count(conn);
    let task = world.expect_command().task;
    world.finish(task, Finish::good(0));
    assert_eq!(reason(&world), None);

    // A PDU that is not sent.
    world.stalled.insert(conn);
    let (itt, cmd_sn) = world.numbers(conn);
    let echo = NopOut { immediate: true, lun: 0, itt, ttt: Ttt::NONE, cmd_sn, exp_stat_sn: StatSn(0) };
    world.send(conn, &echo, &[]);
    assert_eq!(reason(&world), Some(BusyReason::SendQueue));
    world.stalled.clear();
    world.transmit(conn);
    assert_eq!(reason(&world), None);

    // A text negotiation.
    let (itt, cmd_sn) = world.numbers(conn);
    let text = TextRequest {
        immediate: true,
        is_final: false,
        continues: true,
        lun: 0,
        itt,
        ttt: Ttt::NONE,
        cmd_sn,
        exp_stat_sn: StatSn(0),
    };
    world.send(conn, &text, b"SendTar");
    assert_eq!(reason(&world), Some(BusyReason::TextNegotiation));
    // The initiator never continues it.
    world.pass(Duration::from_secs(3));
    assert_eq!(reason(&world), None);

    // A logout that the target asked for.
    let (mut world, conn) = idle_session(0);
    let view = world.engine.sessions().next().unwrap().session;
    world.engine.async_message(world.now, view, AsyncEvent::LogoutRequest { within: Duration::from_secs(9) });
    world.drain();
    assert_eq!(reason(&world), Some(BusyReason::Logout));

    // A logout that waits for a task.
    let (mut world, conn_of_logout) = idle_session(0);
    assert_eq!(conn, conn_of_logout);
    let command = world.command(conn);
    world.start(conn, &command, &[]);
    let (itt, cmd_sn) = world.numbers(conn);
    let why = LogoutReason::CloseSession;
    let request = LogoutRequest { immediate: true, reason: why, itt, cid: 0, cmd_sn, exp_stat_sn: StatSn(0) };
    world.send(conn, &request, &[]);
    assert_eq!(reason(&world), Some(BusyReason::Logout));

    // A status that is not acknowledged.
    let (mut world, conn) = idle_session(1);
    let response = run_command(&mut world, conn);
    assert_eq!(reason(&world), Some(BusyReason::Unacknowledged));
    ack(&mut world, conn, response.sn.stat_sn.next());
    assert_eq!(reason(&world), None);

    // A lost connection whose task waits for reassignment.
    let (mut world, conn) = idle_session(2);
    let command = world.command(conn);
    world.start(conn, &command, &[]);
    world.hang_up(conn, DisconnectReason::Failed);
    assert_eq!(reason(&world), Some(BusyReason::LostConnection));
}

#[test]
fn a_response_behind_a_fence_keeps_its_session_busy() {
    let (mut world, conns, _) = session(0, 2);
    let command = world.command(conns[1]);
    issue(&mut world, &conns, conns[1], &command, &[]);
    let task = world.expect_command().task;
    world.finish(task, Finish::good(0));
    let before: ScsiResponse = world.expect(conns[1]);
    let reset = world.manage(conns[0], TmfFunction::LOGICAL_UNIT_RESET);
    world.send(conns[0], &reset, &[]);
    let Some(Event::Tmf(tmf)) = world.next_event() else { panic!("no function") };
    world.engine.finish_tmf(tmf.tmf, TmfResult::COMPLETE);
    world.drain();
    assert_eq!(reason(&world), Some(BusyReason::ResponseFence));
    ack(&mut world, conns[1], before.sn.stat_sn.next());
    assert_eq!(reason(&world), Some(BusyReason::ResponseFence), "the response is not acknowledged");
    world.pass(Duration::from_secs(40));
    assert!(reason(&world) != Some(BusyReason::ResponseFence));
}

#[test]
fn sessions_that_never_move_are_told_from_those_that_do_not_move_yet() {
    let mut world = World::new();
    world.discover();
    assert_eq!(reason(&world), Some(BusyReason::Discovery));
    assert_eq!(world.engine.busy(), None, "discovery sessions hold nothing up");
    assert!(!BusyReason::Discovery.can_end());

    let (mut world, conns, _) = session(0, 1);
    let view = world.engine.sessions().next().unwrap().session;
    // A second session has a command under way.
    let open = world.connect();
    let busy = world.login_on(open, 1, &[]);
    let command = world.command(open);
    let task = world.start(open, &command, &[]).task;
    let told = world.engine.busy().unwrap();
    assert_eq!((told.session, told.reason), (busy.session, BusyReason::Command));
    let key = busy.session.0;
    let sentence =
        alloc::format!("session {}.{} cannot move: a command is under way", key.index, key.generation);
    assert_eq!(alloc::format!("{told}"), sentence);
    world.finish(task, Finish::good(0));
    assert_eq!(world.engine.busy(), None);
    world.hang_up(conns[0], DisconnectReason::Closed);
    assert_eq!(world.engine.export(view).unwrap_err().reason, BusyReason::NoSession);
}

#[test]
fn a_session_inside_tls_keeps_its_protection_and_moves_to_no_portal_without_tls() {
    let mut world = World::with(Limits::default(), several(0));
    world.portal = TLS_PORTAL;
    let (first, up) = world.login(&["MaxConnections=4"]);
    assert_eq!(world.join(first, up.tsih, 1, &[]).1, 0);
    let (document, _) = exported(&world);
    assert!(document.contains(r#""protection":"TLS""#), "{document}");
    let (peer, local) = (([127, 0, 0, 1], 40000).into(), ([127, 0, 0, 1], 3260).into());
    let resume = |portals: [PortalId; 2], document: &str| {
        let mut engine = Engine::new(world.engine.limits, world.pool.clone());
        let conns = [ConnId(0), ConnId(1)];
        for (conn, portal) in conns.iter().zip(portals) {
            engine.taken_over(world.now, *conn, &AcceptInfo { portal, local, peer, entropy: [9; 32] });
        }
        let state = serde_json::from_str(document).unwrap();
        engine.resume(world.now, state, TargetId(0), &conns, &world.names).map(|_| engine)
    };
    let engine = resume([TLS_PORTAL; 2], &document).unwrap();
    assert_eq!(engine.sessions().next().unwrap().protection, Protection::Tls);
    for portals in [[TLS_PORTAL, PortalId(0)], [PortalId(0), TLS_PORTAL]] {
        assert_eq!(resume(portals, &document).err(), Some(ResumeError::Protection));
    }
    // A session that began in the clear has no protection, whatever joined it.
    let clear = document.replace(r#""protection":"TLS""#, r#""protection":null"#);
    let engine = resume([TLS_PORTAL, PortalId(0)], &clear).unwrap();
    assert_eq!(engine.sessions().next().unwrap().protection, Protection::None);
    let other = document.replace(r#""protection":"TLS""#, r#""protection":"TLS1""#);
    assert_eq!(resume([TLS_PORTAL; 2], &other).err(), Some(ResumeError::Protection));
}

#[test]
fn the_window_stays_as_it_was_granted_and_opens_where_the_session_goes_on() {
    //= rfc7143#section-11.19.1
    //= type=test
    //# If the target is initiating a NOP-In without wanting to receive a corresponding NOP-Out, this
    //# field MUST hold the reserved value 0xffffffff.
    for digests in [&[][..], &["HeaderDigest=CRC32C", "DataDigest=CRC32C"]] {
        let limits = Limits { queue_depth: 2, ..Limits::default() };
        let mut world = World::with(limits, keys());
        let (conn, up) = world.login(digests);
        world.engine.freeze(world.now);
        for left in [1, 0] {
            let response = run_command(&mut world, conn);
            assert_eq!(response.sn.max_cmd_sn, CmdSn(101));
            assert_eq!(response.sn.exp_cmd_sn, CmdSn(102 - left));
        }
        world.expect_silence(conn);
        assert_eq!(world.engine.busy(), None);
        world.engine.freeze(world.now);
        world.drain();
        world.expect_silence(conn);
        let (conns, again) = move_session(&mut world, 33);
        let told: NopIn = world.expect(conns[0]);
        assert_eq!((told.itt, told.ttt), (Itt::NONE, Ttt::NONE));
        assert_eq!((told.sn.exp_cmd_sn, told.sn.max_cmd_sn), (CmdSn(102), CmdSn(103)));
        assert_eq!(told.sn.stat_sn, StatSn(4), "one login response and two statuses");
        let response = run_command(&mut world, conns[0]);
        assert_eq!(response.sn.stat_sn, StatSn(4));
        assert_eq!((response.sn.exp_cmd_sn, response.sn.max_cmd_sn), (CmdSn(103), CmdSn(104)));
        world.expect_silence(conns[0]);
        let same = SessionUp { session: again.session, portal: again.portal, ..up };
        assert_eq!(alloc::format!("{same:?}"), alloc::format!("{again:?}"));
        assert_eq!(world.engine.stats().bugs, 0);
    }
}

#[test]
fn a_thaw_tells_an_initiator_whose_window_is_closed_and_no_other() {
    let limits = Limits { queue_depth: 8, ..Limits::default() };
    for (commands, is_told) in [(0, false), (5, false), (6, true), (8, true)] {
        let mut world = World::with(limits, keys());
        let (conn, _) = world.login(&[]);
        world.engine.freeze(world.now);
        for _ in 0..commands {
            run_command(&mut world, conn);
        }
        world.expect_silence(conn);
        world.engine.thaw(world.now);
        world.drain();
        if is_told {
            let told: NopIn = world.expect(conn);
            assert_eq!((told.itt, told.ttt), (Itt::NONE, Ttt::NONE));
            assert_eq!(told.sn.max_cmd_sn, CmdSn(107 + commands));
        }
        world.expect_silence(conn);
        assert_eq!(run_command(&mut world, conn).sn.max_cmd_sn, CmdSn(108 + commands));
        world.engine.thaw(world.now);
        world.drain();
        world.expect_silence(conn);
    }
}

#[test]
fn a_frozen_engine_asks_for_the_last_acknowledgements_and_not_for_each() {
    let mut world = World::with(Limits::default(), policy(1));
    let (conn, _) = world.login(&["ErrorRecoveryLevel=1"]);
    let commands: Vec<_> = (0..2)
        .map(|_| {
            let command = world.command(conn);
            world.start(conn, &command, &[]).task
        })
        .collect();
    world.engine.freeze(world.now);
    world.drain();
    let asked: NopIn = world.expect(conn);
    assert_ne!(asked.ttt, Ttt::NONE);
    ping(&mut world, conn, asked.ttt, asked.sn.stat_sn);
    world.expect_silence(conn);
    world.finish(commands[0], Finish::good(0));
    let first: ScsiResponse = world.expect(conn);
    world.expect_silence(conn);
    // No command of the initiator would acknowledge the last status.
    world.finish(commands[1], Finish::good(0));
    let last: ScsiResponse = world.expect(conn);
    let asked: NopIn = world.expect(conn);
    assert_eq!(asked.sn.stat_sn, last.sn.stat_sn.next());
    assert_eq!(reason(&world), Some(BusyReason::Unacknowledged));
    // An answer that acknowledges only some is followed by another ping.
    ping(&mut world, conn, asked.ttt, first.sn.stat_sn.next());
    let asked: NopIn = world.expect(conn);
    ping(&mut world, conn, asked.ttt, asked.sn.stat_sn);
    assert_eq!(reason(&world), None);
    world.expect_silence(conn);

    // One that was lost is asked for soon.
    let task = world.command(conn);
    let task = world.start(conn, &task, &[]).task;
    world.finish(task, Finish::good(0));
    let lost: ScsiResponse = world.expect(conn);
    let asked: NopIn = world.expect(conn);
    ping(&mut world, conn, asked.ttt, lost.sn.stat_sn);
    world.pass(Duration::from_millis(150));
    let asked: NopIn = world.expect(conn);
    ping(&mut world, conn, asked.ttt, asked.sn.stat_sn);
    assert_eq!(reason(&world), None);
}

#[test]
fn a_frozen_engine_asks_every_connection_of_a_session_for_its_last_acknowledgements() {
    let (mut world, conns, _) = session(2, 4);
    let tasks = issue_on_each(&mut world, &conns);
    world.engine.freeze(world.now);
    world.drain();
    for conn in &conns {
        // The last Login Response, unless a command has acknowledged it.
        while let Some(asked) = world.receive(*conn) {
            let asked: NopIn = asked.read();
            ping(&mut world, *conn, asked.ttt, asked.sn.stat_sn);
        }
    }
    let sent: Vec<ScsiResponse> = conns
        .iter()
        .zip(tasks)
        .map(|(conn, task)| {
            world.expect_silence(*conn);
            world.finish(task, Finish::good(0));
            world.expect(*conn)
        })
        .collect();
    // Each connection has numbers of its own, and no further PDU of the initiator acknowledges them.
    for (conn, last) in conns.iter().zip(&sent) {
        assert_eq!(reason(&world), Some(BusyReason::Unacknowledged));
        let asked: NopIn = world.expect(*conn);
        assert_eq!(asked.sn.stat_sn, last.sn.stat_sn.next());
        ping(&mut world, *conn, asked.ttt, asked.sn.stat_sn);
    }
    assert_eq!(reason(&world), None);
    conns.iter().for_each(|conn| world.expect_silence(*conn));
}

#[test]
fn statuses_that_follow_a_ping_are_asked_for_when_it_is_answered() {
    let (mut world, conns, _) = session(2, 4);
    for conn in &conns {
        ack(&mut world, *conn, StatSn(2));
    }
    let first = conns[0];
    let tasks: Vec<_> = (0..2)
        .map(|_| {
            let command = world.command(first);
            issue(&mut world, &conns, first, &command, &[]);
            world.expect_command().task
        })
        .collect();
    world.finish(tasks[0], Finish::good(0));
    let withheld: ScsiResponse = world.expect(first);
    world.engine.freeze(world.now);
    world.drain();
    let asked: NopIn = world.expect(first);
    assert_eq!(asked.sn.stat_sn, withheld.sn.stat_sn.next());
    world.finish(tasks[1], Finish::good(0));
    let last: ScsiResponse = world.expect(first);
    world.expect_silence(first);
    // The initiator acknowledges nothing while it lacks data of the first command.
    ping(&mut world, first, asked.ttt, withheld.sn.stat_sn);
    let asked: NopIn = world.expect(first);
    assert_eq!(asked.sn.stat_sn, last.sn.stat_sn.next());
    // A ping that no status followed is not repeated at once.
    ping(&mut world, first, asked.ttt, withheld.sn.stat_sn);
    world.expect_silence(first);
    assert_eq!(reason(&world), Some(BusyReason::Unacknowledged));
    world.pass(Duration::from_millis(150));
    let asked: NopIn = world.expect(first);
    ping(&mut world, first, asked.ttt, asked.sn.stat_sn);
    assert_eq!(reason(&world), None);
}

#[test]
fn connections_that_cannot_move_are_those_without_a_normal_session() {
    let mut world = World::new();
    let unmovable = |world: &World| world.engine.unmovable_connections();
    assert_eq!(unmovable(&world), 0);
    let silent = world.connect();
    assert_eq!(unmovable(&world), 1);
    let halfway = world.connect();
    let request = LoginRequest { transit: false, ..world.login_request(halfway, (0, 0, 0)) };
    let names = ["InitiatorName=", world.initiator, "\0TargetName=", TARGET, "\0"].concat();
    world.send(halfway, &request, names.as_bytes());
    world.expect_any(halfway);
    assert_eq!(unmovable(&world), 2);
    let discovery = world.discover();
    assert_eq!(unmovable(&world), 3);
    world.send(halfway, &LoginRequest { transit: true, ..request }, &[]);
    assert_eq!(world.expect::<LoginResponse>(halfway).status, 0);
    assert_eq!(unmovable(&world), 2);
    for conn in [silent, discovery] {
        world.hang_up(conn, DisconnectReason::Closed);
    }
    assert_eq!(unmovable(&world), 0);
}

#[test]
fn connections_that_cannot_move_can_be_ended() {
    let mut world = World::new();
    let silent = world.connect();
    let halfway = world.connect();
    let request = LoginRequest { transit: false, ..world.login_request(halfway, (0, 0, 0)) };
    let names = ["InitiatorName=", world.initiator, "\0TargetName=", TARGET, "\0"].concat();
    world.send(halfway, &request, names.as_bytes());
    world.expect_any(halfway);
    let discovery = world.discover();
    world.login(&[]);
    world.engine.freeze(world.now);
    world.drain();
    world.engine.end_unmovable_connections(world.now);
    let actions: Vec<Action> = core::iter::from_fn(|| world.engine.poll_action()).collect();
    assert_eq!(actions, [silent, halfway, discovery].map(Action::Close));
    for ended in [silent, halfway, discovery] {
        world.hang_up(ended, DisconnectReason::Closed);
    }
    assert_eq!((world.engine.unmovable_connections(), world.engine.busy()), (0, None));
    let conn = move_session(&mut world, 50).0[0];
    world.expect::<NopIn>(conn);
    run_command(&mut world, conn);
}

#[test]
fn a_login_to_a_frozen_engine_succeeds_and_its_session_waits() {
    for thaws in [true, false] {
        let mut world = World::new();
        world.engine.freeze(world.now);
        let (conn, _) = world.login(&[]);
        let found = world.discover();
        assert_eq!(world.engine.busy(), None);
        let discovery = world.engine.sessions().find(|view| view.target.is_none()).unwrap();
        assert_eq!(discovery.members.len(), 1, "{found:?} has a session");
        let command = world.command(conn);
        world.send(conn, &command, &[]);
        world.expect_silence(conn);
        let conn = if thaws {
            world.engine.thaw(world.now);
            world.drain();
            conn
        } else {
            move_session(&mut world, 50).0[0]
        };
        let told: NopIn = world.expect(conn);
        assert_eq!((told.sn.exp_cmd_sn, told.sn.max_cmd_sn), (CmdSn(100), CmdSn(227)));
        run_command(&mut world, conn);
    }
}

#[test]
fn the_answer_to_an_old_ping_is_accepted_and_old_tags_do_not_come_back() {
    let mut world = World::with(Limits { ping_after: Duration::from_secs(5), ..Limits::default() }, keys());
    let (conn, _) = world.login(&[]);
    world.pass(Duration::from_secs(6));
    let old: NopIn = world.expect(conn);
    assert_ne!(old.ttt, Ttt::NONE);
    let (conns, _) = move_session(&mut world, 5);
    let conn = conns[0];
    let _: NopIn = world.expect(conn);
    ping(&mut world, conn, old.ttt, StatSn(2));
    world.expect_silence(conn);
    assert_eq!(world.engine.stats().rejects + world.engine.stats().ignored, 0);
    world.pass(Duration::from_secs(6));
    let new: NopIn = world.expect(conn);
    assert_ne!(new.ttt, Ttt::NONE);
    assert_eq!(new.ttt.0, old.ttt.0 + 1);
    // The answer to the old ping again: the peer is alive, so it is pinged once more and not dropped.
    ping(&mut world, conn, old.ttt, StatSn(2));
    world.pass(Duration::from_secs(4));
    assert_eq!(world.ended(conn), None);
}

#[test]
fn tags_go_on_where_they_were_however_many_were_handed_out() {
    let mut world = World::with(Limits { ping_after: Duration::from_secs(5), ..Limits::default() }, keys());
    let (mut conn, _) = world.login(&[]);
    for (first, next) in [(7, 7), (1 << 31, 1 << 31), (u32::MAX - 1, u32::MAX - 1), (u32::MAX, 0)] {
        world.engine.next_ttt = first;
        conn = move_session(&mut world, conn.0 + 5).0[0];
        let _: NopIn = world.expect(conn);
        world.pass(Duration::from_secs(6));
        let new: NopIn = world.expect(conn);
        assert_eq!(new.ttt.0, next);
        ping(&mut world, conn, new.ttt, StatSn(2));
    }
}

#[test]
fn logins_find_the_resumed_session() {
    for level in [0, 2] {
        let (mut world, conns, tsih) = session(level, 2);
        if level > 0 {
            conns.iter().for_each(|conn| ack(&mut world, *conn, StatSn(2)));
        }
        let (conns, up) = move_session(&mut world, 20);
        assert_eq!(up.tsih, tsih);
        let _: NopIn = world.expect(conns[0]);
        // Another session gets another TSIH, although this engine has assigned none.
        let other = world.connect();
        assert_ne!(world.login_on(other, 9, &[]).tsih, tsih);
        // A connection joins.
        let (joined, status) = world.join(conns[0], tsih, 2, &[]);
        assert_eq!(status, 0);
        let command = world.command(joined);
        issue(&mut world, &conns, joined, &command, &[]);
        assert_eq!(world.expect_command().session, up.session);
        // One is replaced.
        let (_, status) = world.join(joined, tsih, 1, &[]);
        assert_eq!(status, 0);
        assert_eq!(world.ended(conns[1]), Some(Action::Abort(conns[1])));
        assert_eq!(world.engine.stats().connections_reinstated, 1);
        // The session is replaced.
        world.events.clear();
        let again = world.connect();
        world.login_pdu(again, 0, &["SessionType=Normal", &["TargetName=", TARGET].concat()]);
        assert_eq!(world.engine.stats().sessions_reinstated, 1);
        assert_eq!(world.engine.stats().bugs, 0);
    }
}

#[test]
fn a_lost_connection_without_tasks_moves_as_one() {
    let (mut world, conns, tsih) = session(2, 2);
    conns.iter().for_each(|conn| ack(&mut world, *conn, StatSn(2)));
    world.hang_up(conns[1], DisconnectReason::Failed);
    assert_eq!(world.engine.sessions().next().unwrap().lost, 1);
    let (conns, _) = move_session(&mut world, 20);
    let _: NopIn = world.expect(conns[0]);
    assert_eq!(world.engine.sessions().next().unwrap().lost, 1);
    let released = super::erl2::release(&mut world, conns[0], 1);
    assert_eq!(released.response, crate::pdu::logout_response::LogoutResult::CLOSED);
    ping(&mut world, conns[0], Ttt::NONE, released.sn.stat_sn.next());
    super::data_out::idle(&mut world, &conns, 30);
    assert_eq!(world.engine.sessions().next().unwrap().lost, 0, "the retention time ends");
    let (_, status) = world.join(conns[0], tsih, 1, &[]);
    assert_eq!(status, 0);
}

#[test]
fn counters_and_times_go_on() {
    let mut world = World::new();
    let (conn, _) = world.login(&["MaxRecvDataSegmentLength=4096"]);
    let read = world.read(conn, 5000);
    let task = world.start(conn, &read, &[]).task;
    world.data_in(task, 0, &pattern(0, 5000));
    world.finish(task, Finish::good(5000));
    let lens: Vec<usize> = (0..2).map(|_| world.expect_any(conn).data.len()).collect();
    assert_eq!(lens, [4096, 904]);
    let _: ScsiResponse = world.expect(conn);
    let before = world.engine.sessions().next().map(|view| (view.traffic, view.repairs)).unwrap();
    assert_eq!(before.0.data_in_bytes, 5000);
    let (conns, _) = move_session(&mut world, 0);
    let _: NopIn = world.expect(conns[0]);
    let after = world.engine.sessions().next().map(|view| (view.traffic, view.repairs)).unwrap();
    assert_eq!(after, before);
    let read = world.read(conns[0], 5000);
    let task = world.start(conns[0], &read, &[]).task;
    world.data_in(task, 0, &pattern(0, 5000));
    world.finish(task, Finish::good(5000));
    let first = world.expect_any(conns[0]);
    assert_eq!(first.data.len(), 4096, "the initiator's longest segment moved");
    let _: DataIn = world.expect(conns[0]);
    assert_eq!(world.expect::<ScsiResponse>(conns[0]).sn.stat_sn, StatSn(3));
    // A silent initiator is pinged, and a logout ends the session.
    world.pass(Duration::from_secs(31));
    let _: NopIn = world.expect(conns[0]);
    let (itt, cmd_sn) = world.numbers(conns[0]);
    let why = LogoutReason::CloseSession;
    let request = LogoutRequest { immediate: true, reason: why, itt, cid: 0, cmd_sn, exp_stat_sn: StatSn(4) };
    world.send(conns[0], &request, &[]);
    let _: LogoutResponse = world.expect(conns[0]);
    assert_eq!(world.engine.sessions().count(), 0);
    assert_eq!(world.engine.stats().bugs, 0);
}

#[test]
fn hosts_that_take_a_session_over_from_each_other_are_noticed_across_a_move() {
    let mut world = World::new();
    let name = ["TargetName=", TARGET].concat();
    let take_over = |world: &mut World, host: u8| {
        let conn = world.connect_from(([127, 0, 0, host], 40000).into());
        world.login_pdu(conn, 0, &["SessionType=Normal", &name]);
        conn
    };
    take_over(&mut world, 1);
    take_over(&mut world, 2);
    assert_eq!(world.engine.poll_note().map(|note| note.kind), None);
    world.events.clear();
    let (document, _) = exported(&world);
    let mut engine = Engine::new(Limits::default(), world.pool.clone());
    let (peer, local) = (([127, 0, 0, 2], 40000).into(), ([127, 0, 0, 1], 3260).into());
    let arrival = AcceptInfo { portal: PortalId(0), local, peer, entropy: [9; 32] };
    engine.taken_over(world.now, ConnId(1), &arrival);
    let state = serde_json::from_str(&document).unwrap();
    engine.resume(world.now, state, TargetId(0), &[ConnId(1)], &world.names).unwrap();
    world.engine = engine;
    world.drain();
    take_over(&mut world, 1);
    assert!(world.engine.poll_note().is_some(), "the second takeover within a minute");
}

#[test]
fn connections_that_are_not_new_or_not_the_right_ones_are_refused() {
    let (mut world, _, _) = session(0, 2);
    let (document, _) = exported(&world);
    let mut engine = Engine::new(Limits::default(), world.pool.clone());
    for (conn, port) in [(0, 40000), (1, 40000), (2, 40001), (3, 40000)] {
        connect(&mut engine, &world, ConnId(conn), port);
    }
    engine.received(world.now, ConnId(3), &[0x43], &world.names);
    // Its peer has reset it.
    let (peer, local) = (([0, 0, 0, 0], 0).into(), ([127, 0, 0, 1], 3260).into());
    let arrival = AcceptInfo { portal: PortalId(0), local, peer, entropy: [9; 32] };
    engine.taken_over(world.now, ConnId(4), &arrival);
    let mut try_with = |conns: &[u32]| {
        let conns: Vec<ConnId> = conns.iter().copied().map(ConnId).collect();
        let state = serde_json::from_str(&document).unwrap();
        let result = engine.resume(world.now, state, TargetId(0), &conns, &world.names).map(|_| ());
        if result.is_err() {
            assert_eq!(engine.sessions().count(), 0);
            assert!(engine.poll_event().is_none() && engine.poll_action().is_none());
        }
        result
    };
    let count = |given| Err(ResumeError::ConnectionCount { state: 2, given, max: 4 });
    assert_eq!(try_with(&[]), count(0));
    assert_eq!(try_with(&[0]), count(1));
    assert_eq!(try_with(&[0, 1, 2]), count(3));
    assert_eq!(try_with(&[0, 0]), Err(ResumeError::NotNew(ConnId(0))));
    assert_eq!(try_with(&[0, 2]), Err(ResumeError::Peer(ConnId(2))));
    assert_eq!(try_with(&[3, 1]), Err(ResumeError::NotNew(ConnId(3))));
    assert_eq!(try_with(&[0, 9]), Err(ResumeError::NotNew(ConnId(9))));
    assert_eq!(try_with(&[0, 4]), Ok(()));
    // A state is resumed once.
    let state = serde_json::from_str(&document).unwrap();
    let twice = engine.resume(world.now, state, TargetId(0), &[ConnId(0), ConnId(1)], &world.names);
    assert!(matches!(twice, Err(ResumeError::TsihInUse(_))));
    world.drain();
}

/// The bound on retained statuses follows the deepest window that was granted.
#[test]
fn a_window_that_is_deeper_than_the_new_limit_is_kept() {
    let mut world = World::with(Limits { queue_depth: 500, ..Limits::default() }, policy(0));
    let (conn, _) = world.login(&[]);
    world.engine.limits.queue_depth = 4;
    let (conns, up) = move_session(&mut world, 8);
    assert_ne!(conn, conns[0]);
    let told: NopIn = world.expect(conns[0]);
    assert_eq!(told.sn.max_cmd_sn, CmdSn(599));
    assert!(world.engine.depth_max >= 500);
    for _ in 0..20 {
        let command = world.command(conns[0]);
        assert_eq!(world.start(conns[0], &command, &[]).session, up.session);
    }
}

#[test]
fn limits_of_new_connections_do_not_hold_up_those_of_another_engine() {
    let (mut world, _) = idle_session(0);
    world.engine.limits.connections_max = 1;
    let (conns, _) = move_session(&mut world, 7);
    assert_eq!(conns, [ConnId(7)]);
}

#[test]
fn numbers_of_connections_that_were_taken_over_do_not_count_as_connections() {
    let (mut world, _) = idle_session(0);
    world.engine.limits.connections_max = 2;
    move_session(&mut world, 7);
    world.next_conn = 8;
    let new = world.connect();
    assert_eq!(world.ended(new), None, "the second of two");
    let third = world.connect();
    assert_eq!(world.ended(third), Some(Action::Abort(third)));
}

#[test]
fn immediate_data_that_was_cut_off_does_not_keep_a_session_busy() {
    for is_replaced in [true, false] {
        let (mut world, conns, tsih) = session(2, 2);
        let write = world.write(conns[1], 4096);
        let bytes = world.frame(conns[1], write.encode(), &[], &pattern(0, 4096));
        world.feed(conns[1], &bytes[..1000]);
        if is_replaced {
            let (_, status) = world.join(conns[0], tsih, 1, &[]);
            assert_eq!(status, 0);
        } else {
            super::erl2::release(&mut world, conns[0], 1);
        }
        if world.ended(conns[1]).is_none() {
            world.hang_up(conns[1], DisconnectReason::Failed);
        }
        assert_ne!(reason(&world), Some(BusyReason::Command), "{is_replaced}");
    }
}

#[test]
fn the_alias_of_an_initiator_goes_with_its_session() {
    let mut world = World::with(Limits::default(), several(0));
    world.login(&["InitiatorAlias=host7"]);
    let (_, up) = move_session(&mut world, 50);
    assert_eq!(up.initiator_alias.as_deref(), Some("host7"));
}
