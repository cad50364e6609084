//! Recovery, logout, pings, text and asynchronous messages of an initiator: the cases `ffp-i-7.*`,
//! `ffp-i-13.*` to `ffp-i-15.*`, `ffp-i-17.*`, `ffp-i-18.*` and `ffp-i-20.*` of the UNH-IOL plan.

use std::time::{Duration, Instant};

use iscsi::pdu::async_message::{AsyncEventCode, AsyncMessage};
use iscsi::pdu::logout_request::LogoutReason;
use iscsi::pdu::nop_in::NopIn;
use iscsi::pdu::reject::{Reject, RejectReason};
use iscsi::pdu::snack::SnackKind;
use iscsi::pdu::text_request::TextRequest;
use iscsi::pdu::text_response::TextResponse;
use iscsi::pdu::{Itt, Opcode, Ttt};
use iscsi::serial::DataSn;
use transport::task_management::TmfFunction;

use crate::suite::case;
use crate::text::Keys;
use crate::verdict::{Outcome, Stop};
use crate::wire::Pdu;

use super::Test;
use super::cmd_sn::SILENCE;
use super::conn::End;
use super::disk::Answer;
use super::fixture::{Event, EventKind, Fixture, ReceivedCommand};
use super::transfer::{acknowledges, collect, finish, start_and_hold_write};

const ASYNC: &str = "RFC 7143 §11.9.1";
const LOGOUT: &str = "RFC 7143 §11.9.1, §11.14";
const PING: &str = "RFC 7143 §11.18, §11.19";
const TEXT: &str = "RFC 7143 §11.10, §11.11";

pub(super) const CASES: &[Test] = &[
    case("ffp-i-7.1", "RFC 7143 §7.2.2", "a task whose connection broke is reassigned", reassigns),
    case("ffp-i-13.1", "RFC 7143 §11.16", "missing Data-In is asked for by SNACK", snack),
    case("ffp-i-13.2", "RFC 7143 §11.16", "a DataACK is well-formed", acknowledges),
    case("ffp-i-14.1", LOGOUT, "a request to log out is followed in time", logs_out),
    case("ffp-i-14.2", LOGOUT, "a request to log out concerns its connection", logs_one_out),
    case("ffp-i-15.1", PING, "a ping is answered", answers_ping),
    case("ffp-i-15.2", PING, "a ping of the initiator is well-formed", pings),
    case("ffp-i-15.3", PING, "a NOP-Out that tells ExpStatSN is well-formed", confirms),
    case("ffp-i-17.1", LOGOUT, "no command follows a Logout", nothing_after_logout),
    case("ffp-i-18.1", TEXT, "the text of a discovery is well-formed", discovery_text),
    case("ffp-i-18.2", TEXT, "a text that goes on is asked for with its tags", text_goes_on),
    case("ffp-i-18.3.1", TEXT, "F with a transfer tag does no harm", |s| odd_tag(s, true)),
    case("ffp-i-18.3.2", TEXT, "no F and no transfer tag: the initiator gives up", |s| odd_tag(s, false)),
    case(
        "ffp-i-18.4",
        "RFC 7143 §4.3, §6.2",
        "a key that does not belong into discovery does no harm",
        stray_key,
    ),
    case(
        "ffp-i-18.5",
        "RFC 7143 §6.4, §7.12",
        "a rejected negotiation is not taken for agreed",
        negotiation_rejected,
    ),
    case("ffp-i-20.1", ASYNC, "a request to log out within a second is followed", within_a_second),
    case("ffp-i-20.2", ASYNC, "a connection that the target drops is given up, and made anew", dropped),
    case("ffp-i-20.3", ASYNC, "a session that the target drops is given up, and made anew", session_dropped),
    case(
        "ffp-i-20.4",
        ASYNC,
        "a request to negotiate is answered with a text, or a logout",
        negotiation_requested,
    ),
];

fn level(fixture: &Fixture, least: u32) -> Outcome {
    let level = fixture.sessions.first().map_or(0, |session| session.agreed.number("ErrorRecoveryLevel"));
    if level < least {
        return Err(Stop::Skip(format!("the initiator agrees to ErrorRecoveryLevel={level} only")));
    }
    Ok(())
}

fn reassigns(fixture: &mut Fixture) -> Outcome {
    fixture.start(&[("ErrorRecoveryLevel", "2")])?;
    let got = fixture.command("READ", Event::reads)?;
    level(fixture, 2)?;
    let Answer::Data(data) = fixture.disk.answer(got.command.lun, &got.command.cdb) else {
        fail!("a READ beyond the end")
    };
    let limit = fixture.send_max(got.conn).min(data.len());
    let first = data.get(..limit).unwrap_or_default().to_vec();
    fixture.data_in(got.conn, &got.command, (0, 0), &first, End::Sequence);
    if let Some(conn) = fixture.conns.get_mut(got.conn) {
        conn.line.drop_connection();
        conn.gone = true;
    }
    let wait = fixture.options.patience * 2;
    let is_reassign = |event: &Event| {
        event.is(Opcode::TMF_REQUEST).is_some_and(|pdu| pdu.flags() & 0x7f == TmfFunction::TASK_REASSIGN.0)
    };
    let event = fixture.serve_until(wait, is_reassign)?;
    let Some(Event { conn, what: EventKind::Received(pdu), .. }) = event else {
        fail!("no TASK REASSIGN came")
    };
    require!(pdu.word(20) == got.command.itt.0, "expected task {:x} in {}", got.command.itt.0, pdu.shown());
    require!(conn != got.conn, "TASK REASSIGN comes on the connection that broke");
    fixture.number(conn, &pdu);
    fixture.answer_management(conn, &pdu.read()?, transport::task_management::TmfResult::COMPLETE);
    // ExpDataSN tells how many Data-In PDUs the initiator has received.
    let have = usize::try_from(pdu.word(36)).unwrap_or_default();
    require!(have <= 1, "ExpDataSN {have} acknowledges data that was not sent");
    let begin = if have == 0 { 0 } else { limit };
    let rest = data.get(begin..).unwrap_or_default().to_vec();
    let last = rest.chunks(limit).count().saturating_sub(1);
    for (index, bytes) in rest.chunks(limit).enumerate() {
        let end = if index == last { End::Status } else { End::More };
        let number = u32::try_from(have + index).unwrap_or_default();
        fixture.data_in(conn, &got.command, (number, begin + index * limit), bytes, end);
    }
    if rest.is_empty() {
        fixture.respond(conn, got.command.itt, 0, None);
    }
    fixture.serve_out(fixture.options.patience)?;
    require!(fixture.exit() != Some(false), "the initiator fails although its task was finished elsewhere");
    Ok(())
}

/// Sends the data of a read in pieces of 512 bytes, except piece `hole`.
fn with_a_hole(fixture: &mut Fixture, got: &ReceivedCommand, hole: usize) -> Vec<Vec<u8>> {
    let Answer::Data(data) = fixture.disk.answer(got.command.lun, &got.command.cdb) else {
        return Vec::new();
    };
    let pieces: Vec<Vec<u8>> = data.chunks(512).map(<[u8]>::to_vec).collect();
    for (index, bytes) in pieces.iter().enumerate().filter(|(index, _)| *index != hole) {
        let end = if index + 1 == pieces.len() { End::Sequence } else { End::More };
        let number = u32::try_from(index).unwrap_or_default();
        fixture.data_in(got.conn, &got.command, (number, index * 512), bytes, end);
    }
    pieces
}

fn snack(fixture: &mut Fixture) -> Outcome {
    fixture.start(&[("ErrorRecoveryLevel", "1")])?;
    let got = fixture.command("READ", Event::reads)?;
    level(fixture, 1)?;
    need!(
        got.command.expected_data_transfer_length >= 2560,
        "the READ is too short to miss the fourth PDU of it"
    );
    let pieces = with_a_hole(fixture, &got, 3);
    let event = fixture.serve_until(fixture.options.patience, |event| event.is(Opcode::SNACK).is_some())?;
    let Some(Event { what: EventKind::Received(pdu), .. }) = event else {
        fail!("missing Data-In is not asked for")
    };
    require!(
        pdu.flags() & 0xf == SnackKind::DATA_OR_R2T.0,
        "expected a Data/R2T SNACK, came {}",
        pdu.shown()
    );
    require!(pdu.itt() == got.command.itt, "expected task {:x} in {}", got.command.itt.0, pdu.shown());
    require!(pdu.word(20) == u32::MAX, "a Data SNACK has no transfer tag: {}", pdu.shown());
    let (begin, run) = (pdu.word(40), pdu.word(44));
    require!(
        (begin, run) == (3, 1) || (begin, run) == (3, 0) || (begin, run) == (0, 0),
        "expected BegRun 3, RunLength 1 in {}",
        pdu.shown()
    );
    let bytes = pieces.get(3).cloned().unwrap_or_default();
    fixture.data_in(got.conn, &got.command, (3, 3 * 512), &bytes, End::More);
    fixture.respond(got.conn, got.command.itt, 0, None);
    fixture.serve_out(fixture.options.patience)?;
    require!(fixture.exit() != Some(false), "the initiator fails although the missing data came");
    Ok(())
}

/// Sends an Asynchronous Message.
fn send_async(
    fixture: &mut Fixture,
    conn: usize,
    event: AsyncEventCode,
    parameters: (u16, u16, u16),
) -> Instant {
    let sn = fixture.counted(conn);
    let (parameter1, parameter2, parameter3) = parameters;
    let message = AsyncMessage { lun: 0, sn, event, vendor_code: 0, parameter1, parameter2, parameter3 };
    fixture.send(conn, &message, &[]);
    Instant::now()
}

/// Waits for a Logout on `conn`; fails if it arrives more than `within` (and 200 ms tolerance) after `since`.
fn logout_on(fixture: &mut Fixture, conn: usize, since: Instant, within: Duration) -> Outcome<Pdu> {
    let event = fixture.serve_until(within + Duration::from_millis(500), |event| {
        event.conn == conn
            && (event.is(Opcode::LOGOUT_REQUEST).is_some() || matches!(event.what, EventKind::Closed))
    })?;
    let Some(Event { what: EventKind::Received(pdu), at, .. }) = event else {
        fail!("no Logout came within {within:?}")
    };
    let took = at.saturating_duration_since(since);
    require!(
        took <= within + Duration::from_millis(200),
        "the Logout came after {took:?}, {within:?} were allowed"
    );
    Ok(pdu)
}

/// Judges a Logout that the target asked for, and answers it.
fn judge_logout(fixture: &mut Fixture, conn: usize, pdu: &Pdu) -> Outcome {
    let request: iscsi::pdu::logout_request::LogoutRequest = pdu.read()?;
    let (cid, stat_sn) = fixture.conns.get(conn).map(|conn| (conn.cid, conn.stat_sn)).unwrap_or_default();
    require!(
        request.reason != LogoutReason::RemoveForRecovery,
        "the reason is recovery, nobody asked for that"
    );
    if request.reason == LogoutReason::CloseConnection {
        require!(request.cid == cid, "expected CID {cid:x} in {}", pdu.shown());
    }
    // ExpStatSN may lag, but it must not be beyond the target's StatSN.
    require!(!request.exp_stat_sn.after(stat_sn), "ExpStatSN is beyond {:x} in {}", stat_sn.0, pdu.shown());
    require!(pdu.data.is_empty() && pdu.bhs.ahs_len() == 0, "a Logout has neither data nor AHS");
    fixture.number(conn, pdu);
    fixture.log_out(conn, &request);
    Ok(())
}

/// Fails if a command arrives on `conn` within [`SILENCE`].
fn no_command(fixture: &mut Fixture, conn: usize) -> Outcome {
    let event = fixture.serve_until(SILENCE, |event| event.conn == conn && event.command().is_some())?;
    match event {
        Some(Event { what: EventKind::Received(pdu), .. }) => {
            fail!("a command follows the Logout: {}", pdu.shown())
        }
        _ => Ok(()),
    }
}

fn logs_out(fixture: &mut Fixture) -> Outcome {
    let got = start_and_hold_write(
        fixture,
        &[("ImmediateData", "No"), ("InitialR2T", "Yes"), ("ErrorRecoveryLevel", "1")],
    )?;
    let len = got.command.expected_data_transfer_length.min(65_536);
    collect(fixture, &got, 0, 0, len)?;
    let since = send_async(fixture, got.conn, AsyncEventCode::LOGOUT_REQUEST, (0, 0, 5));
    finish(fixture, &got)?;
    let pdu = logout_on(fixture, got.conn, since, Duration::from_secs(5))?;
    judge_logout(fixture, got.conn, &pdu)?;
    no_command(fixture, got.conn)
}

/// Serves until the initiator has two connections in one session.
fn two_connections(fixture: &mut Fixture) -> Outcome<(usize, usize)> {
    let until = Instant::now() + fixture.start_wait();
    loop {
        let mut of_first = fixture
            .conns
            .iter()
            .enumerate()
            .filter(|(_, conn)| conn.session == Some(0) && !conn.gone && conn.in_full_feature);
        if let (Some((one, _)), Some((two, _))) = (of_first.next(), of_first.next()) {
            return Ok((one, two));
        }
        let event = fixture.step(until)?;
        match event {
            Some(event) => fixture.serve(&event)?,
            None => return Err(Stop::Skip("the initiator makes one connection per session".to_owned())),
        }
    }
}

fn logs_one_out(fixture: &mut Fixture) -> Outcome {
    fixture.start(&[("ErrorRecoveryLevel", "1")])?;
    let (one, two) = two_connections(fixture)?;
    let since = send_async(fixture, two, AsyncEventCode::LOGOUT_REQUEST, (0, 0, 5));
    let event =
        fixture.serve_until(Duration::from_secs(5), |event| event.is(Opcode::LOGOUT_REQUEST).is_some())?;
    let Some(Event { conn, what: EventKind::Received(pdu), at, .. }) = event else {
        fail!("no Logout came within 5 s")
    };
    require!(at.saturating_duration_since(since) <= Duration::from_millis(5200), "the Logout came too late");
    let request: iscsi::pdu::logout_request::LogoutRequest = pdu.read()?;
    fixture.number(conn, &pdu);
    fixture.log_out(conn, &request);
    if request.reason == LogoutReason::CloseConnection {
        let cid = fixture.conns.get(two).map(|conn| conn.cid);
        require!(
            Some(request.cid) == cid,
            "another connection is logged out than was asked for: {}",
            pdu.shown()
        );
        no_command(fixture, two)?;
        let goes_on = fixture.conns.get(one).is_some_and(|conn| !conn.gone) || fixture.exit() == Some(true);
        require!(goes_on, "the other connection of the session is gone too");
    }
    Ok(())
}

fn answers_ping(fixture: &mut Fixture) -> Outcome {
    fixture.start(&[])?;
    let got = fixture.command("READ or WRITE", Event::moves)?;
    let ping = fixture.ping(got.conn, true);
    let wait = fixture.options.patience;
    let event = fixture
        .serve_until(wait, |event| event.is(Opcode::NOP_OUT).is_some_and(|pdu| pdu.word(20) == ping.ttt.0))?;
    let Some(Event { what: EventKind::Received(pdu), .. }) = event else { fail!("a ping is not answered") };
    require!(pdu.itt() == Itt::NONE, "an answer to a ping has no task tag: {}", pdu.shown());
    require!(pdu.bhs.is_immediate(), "a NOP-Out without a task tag is immediate: {}", pdu.shown());
    require!(pdu.bhs.lun() == ping.lun, "expected the LUN of the ping in {}", pdu.shown());
    require!(pdu.data.is_empty(), "the ping had no data: {}", pdu.shown());
    fixture.execute(got.conn, &got.command, &got.pdu.data)?;
    let next =
        fixture.serve_until(wait, |event| event.command().is_some_and(|command| !command.immediate))?;
    if let Some(Event { what: EventKind::Received(next), .. }) = next {
        require!(next.word(24) == pdu.word(24), "the immediate NOP-Out used up a CmdSN: {}", next.shown());
    }
    Ok(())
}

/// Judges a NOP-Out that asks for an answer, and answers it.
fn judge_ping(fixture: &mut Fixture, conn: usize, pdu: &Pdu) -> Outcome {
    require!(pdu.word(20) == u32::MAX, "a ping of the initiator has no transfer tag: {}", pdu.shown());
    require!(pdu.bhs.lun() == 0, "the LUN is reserved in {}", pdu.shown());
    fixture.number(conn, pdu);
    let pong = NopIn { lun: 0, itt: pdu.itt(), ttt: Ttt::NONE, sn: fixture.counted(conn) };
    fixture.send(conn, &pong, &pdu.data);
    let next = fixture.serve_until(fixture.options.patience, |event| {
        event.conn == conn && event.command().is_some_and(|command| !command.immediate)
    })?;
    if let Some(Event { what: EventKind::Received(next), .. }) = next {
        let expected = if pdu.bhs.is_immediate() { pdu.word(24) } else { pdu.word(24).wrapping_add(1) };
        require!(
            next.word(24) == expected,
            "expected CmdSN {expected:x} after the ping, came {}",
            next.shown()
        );
    }
    Ok(())
}

fn pings(fixture: &mut Fixture) -> Outcome {
    fixture.start(&[])?;
    let got = fixture.command("READ or WRITE", Event::moves)?;
    // The target becomes silent: it answers neither this command nor those that follow. An answer would put
    // the ping off.
    let wait = fixture.options.limit / 2;
    let until = Instant::now() + wait;
    let mut unanswered = Vec::new();
    let ping = loop {
        let Some(event) = fixture.step(until)? else { break None };
        match event.is(Opcode::NOP_OUT) {
            Some(pdu) if pdu.itt() != Itt::NONE => break Some((event.conn, pdu.clone())),
            _ => unanswered.push(event),
        }
    };
    let Some((conn, pdu)) = ping else {
        return Err(Stop::Skip(format!("the initiator does not ping within {wait:?}; it need not")));
    };
    unanswered.iter().try_for_each(|event| fixture.serve(event))?;
    judge_ping(fixture, conn, &pdu)?;
    fixture.execute(got.conn, &got.command, &got.pdu.data)
}

fn confirms(fixture: &mut Fixture) -> Outcome {
    // At level 0 no PDU can be requested again, so nothing waits for ExpStatSN there: use level 1.
    fixture.start(&[("ErrorRecoveryLevel", "1")])?;
    let got = fixture.command("READ or WRITE", Event::moves)?;
    fixture.execute(got.conn, &got.command, &got.pdu.data)?;
    let wait = fixture.options.limit / 2;
    let event = fixture.serve_until(wait, |event| {
        event.is(Opcode::NOP_OUT).is_some_and(|pdu| pdu.itt() == Itt::NONE && pdu.word(20) == u32::MAX)
    })?;
    let Some(Event { what: EventKind::Received(pdu), .. }) = event else {
        return Err(Stop::Skip("the initiator tells ExpStatSN by other requests only; it may".to_owned()));
    };
    require!(pdu.bhs.is_immediate(), "a NOP-Out without a task tag is immediate: {}", pdu.shown());
    require!(pdu.bhs.lun() == 0, "the LUN is reserved in {}", pdu.shown());
    let expected = fixture.conns.get(got.conn).map_or(0, |conn| conn.stat_sn.0);
    require!(pdu.word(28) == expected, "expected ExpStatSN {expected:x} in {}", pdu.shown());
    let next = fixture.sessions.first().map_or(0, |session| session.exp_cmd_sn.0);
    require!(pdu.word(24) == next, "expected CmdSN {next:x}, which it does not use up, in {}", pdu.shown());
    Ok(())
}

fn nothing_after_logout(fixture: &mut Fixture) -> Outcome {
    fixture.start(&[])?;
    let got = fixture.command("READ or WRITE", Event::moves)?;
    let since = send_async(fixture, got.conn, AsyncEventCode::LOGOUT_REQUEST, (0, 0, 5));
    fixture.execute(got.conn, &got.command, &got.pdu.data)?;
    let pdu = logout_on(fixture, got.conn, since, Duration::from_secs(5))?;
    judge_logout(fixture, got.conn, &pdu)?;
    no_command(fixture, got.conn)?;
    let closed = |fixture: &Fixture| fixture.conns.get(got.conn).is_some_and(|conn| conn.gone);
    if !closed(fixture) {
        fixture.serve_until(fixture.options.patience, |event| matches!(event.what, EventKind::Closed))?;
    }
    require!(
        closed(fixture)
            || fixture.history.iter().any(|e| e.conn == got.conn && matches!(e.what, EventKind::Closed)),
        "the connection is not closed after the Logout Response"
    );
    Ok(())
}

/// Starts a discovery and waits for its Text Request.
fn discovery(fixture: &mut Fixture) -> Outcome<(usize, Pdu, TextRequest)> {
    fixture.start_discovery()?;
    let (conn, pdu) = fixture.request(Opcode::TEXT_REQUEST, fixture.start_wait(), "Text Request")?;
    fixture.number(conn, &pdu);
    let request = pdu.read()?;
    Ok((conn, pdu, request))
}

fn discovery_text(fixture: &mut Fixture) -> Outcome {
    let (conn, pdu, request) = discovery(fixture)?;
    let keys = Keys::parse(&pdu.data)?;
    require!(keys.value("SendTargets").is_some(), "no SendTargets in {}", pdu.shown());
    require!(request.ttt == Ttt::NONE, "the first request has a transfer tag: {}", pdu.shown());
    require!(request.itt != Itt::NONE, "the task tag is the reserved value: {}", pdu.shown());
    require!(request.is_final, "the only request has no F: {}", pdu.shown());
    let first = fixture.conns.get(conn).and_then(|conn| conn.first).map(|first| first.cmd_sn.0);
    require!(first == Some(pdu.word(24)), "expected CmdSN {first:x?} in {}", pdu.shown());
    let records = fixture.records();
    fixture.send_text(conn, &request, &records, true);
    fixture.serve_out(fixture.options.patience)
}

fn text_goes_on(fixture: &mut Fixture) -> Outcome {
    let (conn, _, request) = discovery(fixture)?;
    let records = fixture.records();
    let first = Keys::of(&[("TargetName", records.value("TargetName").unwrap_or_default())]);
    let sn = fixture.counted(conn);
    let response = TextResponse {
        is_final: false,
        continues: false,
        lun: 0x0001_0000_0000_0000,
        itt: request.itt,
        ttt: Ttt(0x7a7a_7a7a),
        sn,
    };
    fixture.send(conn, &response, &first.to_bytes());
    let event =
        fixture.serve_until(fixture.options.patience, |event| event.is(Opcode::TEXT_REQUEST).is_some())?;
    let Some(Event { what: EventKind::Received(pdu), .. }) = event else {
        fail!("the rest of the text is not asked for")
    };
    fixture.number(conn, &pdu);
    require!(pdu.itt() == request.itt, "expected task tag {:x} in {}", request.itt.0, pdu.shown());
    require!(pdu.word(20) == response.ttt.0, "expected transfer tag {:x} in {}", response.ttt.0, pdu.shown());
    require!(pdu.bhs.lun() == response.lun, "expected LUN {:x}, came {:x}", response.lun, pdu.bhs.lun());
    require!(pdu.data.is_empty(), "nothing is left to say: {}", pdu.shown());
    let address = records.value("TargetAddress").unwrap_or_default().to_owned();
    fixture.send_text(conn, &pdu.read()?, &Keys::of(&[("TargetAddress", &address)]), true);
    fixture.serve_out(fixture.options.patience)
}

fn odd_tag(fixture: &mut Fixture, is_final: bool) -> Outcome {
    let (conn, _, request) = discovery(fixture)?;
    let sn = fixture.counted(conn);
    let ttt = if is_final { Ttt(0x7a7a_7a7a) } else { Ttt::NONE };
    let response = TextResponse { is_final, continues: false, lun: 0, itt: request.itt, ttt, sn };
    let records = fixture.records().to_bytes();
    fixture.send(conn, &response, &records);
    let event = fixture.serve_until(fixture.options.patience, |event| {
        event.is(Opcode::LOGOUT_REQUEST).is_some()
            || event.is(Opcode::TEXT_REQUEST).is_some()
            || matches!(event.what, EventKind::Closed)
    })?;
    match event {
        Some(Event { what: EventKind::Closed, .. }) => Ok(()),
        Some(Event { what: EventKind::Received(pdu), .. }) if pdu.opcode() == Opcode::LOGOUT_REQUEST => {
            require!(pdu.flags() & 0x7f == 0, "discovery ends by closing the session: {}", pdu.shown());
            require!(pdu.itt() != request.itt, "the Logout has the task tag of the text: {}", pdu.shown());
            let request = pdu.read()?;
            fixture.number(conn, &pdu);
            fixture.log_out(conn, &request);
            Ok(())
        }
        Some(Event { what: EventKind::Received(pdu), .. }) => {
            fail!("expected Logout or the end of the connection, came {}", pdu.shown())
        }
        _ => fail!("expected Logout or the end of the connection; nothing came"),
    }
}

fn stray_key(fixture: &mut Fixture) -> Outcome {
    let (conn, _, request) = discovery(fixture)?;
    let mut records = fixture.records();
    records.push("MaxBurstLength", "512");
    fixture.send_text(conn, &request, &records, true);
    fixture.serve_out(fixture.options.patience)?;
    // The initiator may ignore the key, answer it or give up; it must not hang.
    require!(fixture.conns.get(conn).is_some_and(|conn| conn.gone), "the discovery does not end");
    Ok(())
}

fn negotiation_rejected(fixture: &mut Fixture) -> Outcome {
    fixture.start(&[])?;
    let (conn, pdu) =
        fixture.request(Opcode::TEXT_REQUEST, fixture.start_wait(), "Text Request in a normal session")?;
    let sn = fixture.counted(conn);
    let reject = Reject { reason: RejectReason::PROTOCOL_ERROR, sn, data_sn: DataSn(0) };
    fixture.send(conn, &reject, pdu.bhs.bytes());
    let event = fixture.serve_until(fixture.options.patience, |event| {
        [Opcode::TEXT_REQUEST, Opcode::LOGOUT_REQUEST].iter().any(|opcode| event.is(*opcode).is_some())
            || matches!(event.what, EventKind::Closed)
    })?;
    require!(
        !matches!(event, Some(Event { what: EventKind::Closed, .. })),
        "the connection is closed because of the Reject"
    );
    if let Some(event) = event {
        fixture.serve(&event)?;
    }
    // The earlier value still holds: a segment longer than the rejected value is legal.
    fixture.serve_out(fixture.options.patience)?;
    require!(fixture.exit() != Some(false), "the initiator fails after the Reject");
    Ok(())
}

fn within_a_second(fixture: &mut Fixture) -> Outcome {
    fixture.start(&[])?;
    let got = fixture.command("READ or WRITE", Event::moves)?;
    let since = send_async(fixture, got.conn, AsyncEventCode::LOGOUT_REQUEST, (0, 0, 1));
    let pdu = logout_on(fixture, got.conn, since, Duration::from_secs(1))?;
    judge_logout(fixture, got.conn, &pdu)?;
    no_command(fixture, got.conn)
}

/// Waits for the initiator to connect again after `since`; returns how long that took.
fn comes_back(fixture: &mut Fixture, since: Instant, within: Duration) -> Outcome<Duration> {
    let event = fixture.serve_until(within, |event| matches!(event.what, EventKind::Opened))?;
    match event {
        Some(event) => Ok(event.at.saturating_duration_since(since)),
        None => Err(Stop::Skip("the initiator does not connect again; its caller may".to_owned())),
    }
}

/// Announces that connections are dropped, drops them, and waits for the initiator to connect again.
fn drop_and_wait(fixture: &mut Fixture, code: AsyncEventCode, conns: &[usize], times: (u16, u16)) -> Outcome {
    let Some(first) = conns.first() else { fail!("no connection to drop") };
    let cid = fixture.conns.get(*first).map(|conn| conn.cid).unwrap_or_default();
    let parameter1 = if code == AsyncEventCode::CONNECTION_DROP { cid } else { 0 };
    send_async(fixture, *first, code, (parameter1, times.0, times.1));
    std::thread::sleep(Duration::from_millis(50));
    for conn in conns {
        if let Some(conn) = fixture.conns.get_mut(*conn) {
            conn.line.drop_connection();
            conn.gone = true;
        }
    }
    let wait = u64::from(times.0);
    let took = comes_back(fixture, Instant::now(), fixture.options.patience + Duration::from_secs(wait))?;
    let least = Duration::from_secs(wait).saturating_sub(Duration::from_millis(200));
    require!(took >= least, "the initiator comes back after {took:?}, Time2Wait is {wait} s");
    fixture.serve_out(fixture.options.patience)?;
    require!(fixture.exit() != Some(false), "the initiator comes back, but fails");
    Ok(())
}

fn dropped(fixture: &mut Fixture) -> Outcome {
    fixture.start(&[])?;
    let got = fixture.command("READ or WRITE", Event::moves)?;
    drop_and_wait(fixture, AsyncEventCode::CONNECTION_DROP, &[got.conn], (0, 1))
}

fn session_dropped(fixture: &mut Fixture) -> Outcome {
    fixture.start(&[])?;
    let conns = match two_connections(fixture) {
        Ok((one, two)) => vec![one, two],
        Err(Stop::Skip(_)) => {
            fixture.record.remark("with one connection: the initiator makes no second one");
            (0..fixture.conns.len())
                .filter(|index| fixture.conns.get(*index).is_some_and(|conn| !conn.gone))
                .collect()
        }
        Err(stop) => return Err(stop),
    };
    need!(!conns.is_empty(), "the initiator has gone before its session could be dropped");
    drop_and_wait(fixture, AsyncEventCode::SESSION_DROP, &conns, (1, 2))
}

fn negotiation_requested(fixture: &mut Fixture) -> Outcome {
    fixture.start(&[])?;
    let got = fixture.command("READ or WRITE", Event::moves)?;
    let since = send_async(fixture, got.conn, AsyncEventCode::NEGOTIATION_REQUEST, (0, 0, 3));
    fixture.execute(got.conn, &got.command, &got.pdu.data)?;
    let event = fixture.serve_until(Duration::from_millis(3500), |event| {
        event.is(Opcode::TEXT_REQUEST).is_some() || event.is(Opcode::LOGOUT_REQUEST).is_some()
    })?;
    let Some(Event { at, .. }) = event else { fail!("neither a Text Request nor a Logout came within 3 s") };
    require!(at.saturating_duration_since(since) <= Duration::from_millis(3200), "it came too late");
    Ok(())
}
