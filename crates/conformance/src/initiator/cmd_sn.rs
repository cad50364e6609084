//! Numbers of an initiator's requests, and the command window (RFC 7143 §4.2.2): the cases `ffp-i-1.*` to
//! `ffp-i-5.*` of the UNH-IOL plan.

use std::time::{Duration, Instant};

use iscsi::pdu::Opcode;
use iscsi::serial::{CmdSn, StatSn};

use crate::suite::case;
use crate::verdict::{Outcome, Stop};
use crate::wire::Pdu;

use super::Test;
use super::fixture::{Event, EventKind, Fixture};

const SN: &str = "RFC 7143 §4.2.2.1";

pub(super) const CASES: &[Test] = &[
    case("ffp-i-1.1", SN, "CmdSN counts every request that is not immediate", numbering),
    case("ffp-i-2.1", SN, "an immediate request carries the next CmdSN and does not use it up", immediate),
    case(
        "ffp-i-2.2",
        SN,
        "an immediate TMF carries the next CmdSN and does not use it up",
        immediate_management,
    ),
    case("ffp-i-3.1", SN, "no command is sent into a closed window", closed_window),
    case("ffp-i-3.2", SN, "commands stay within a wide window", wide_window),
    case("ffp-i-3.3", SN, "one command at a time in a window of one", window_of_one),
    case("ffp-i-4.1", "RFC 7143 §7.2.1", "a command that is sent again is the same", retry),
    case("ffp-i-5.1", "RFC 7143 §4.2.2.2", "a leap of StatSN is no acknowledgement", status_leap),
];

/// How long a case waits for an initiator that should send nothing.
pub(super) const SILENCE: Duration = Duration::from_millis(1500);

/// Returns whether a PDU is a request with a CmdSN.
fn is_request(pdu: &Pdu) -> bool {
    matches!(
        pdu.opcode(),
        Opcode::SCSI_COMMAND
            | Opcode::NOP_OUT
            | Opcode::TEXT_REQUEST
            | Opcode::LOGOUT_REQUEST
            | Opcode::TMF_REQUEST
    )
}

/// Judges the CmdSNs in each session with a single connection. Returns the number of requests that use up a
/// CmdSN, and of immediate ones.
fn judge_numbers(fixture: &Fixture) -> Outcome<(usize, usize)> {
    let (mut plain, mut immediate) = (0, 0);
    for conn in 0..fixture.conns.len() {
        if fixture.conns.get(conn).is_some_and(|one| {
            one.session.is_none()
                || fixture.conns.iter().filter(|other| other.session == one.session).count() > 1
        }) {
            continue;
        }
        let mut next: Option<CmdSn> = None;
        for (pdu, _) in fixture.came(conn) {
            let sn = CmdSn(pdu.word(24));
            if pdu.opcode() == Opcode::LOGIN_REQUEST {
                next = Some(sn);
            } else if is_request(pdu) {
                let expected = next.unwrap_or(sn);
                require!(sn == expected, "expected CmdSN {:x} in {}", expected.0, pdu.shown());
                if pdu.bhs.is_immediate() {
                    immediate += 1;
                } else {
                    plain += 1;
                    next = Some(sn.next());
                }
            }
        }
    }
    Ok((plain, immediate))
}

fn numbering(fixture: &mut Fixture) -> Outcome {
    fixture.start(&[])?;
    fixture
        .command("READ or WRITE", Event::moves)
        .map(|got| fixture.execute(got.conn, &got.command, &got.pdu.data))??;
    fixture.serve_out(fixture.options.patience)?;
    let (plain, _) = judge_numbers(fixture)?;
    require!(plain > 1, "only {plain} requests came");
    Ok(())
}

fn immediate(fixture: &mut Fixture) -> Outcome {
    fixture.start(&[])?;
    let got = fixture.command("READ or WRITE", Event::moves)?;
    // The initiator answers a ping with a NOP-Out without a task tag, which must be immediate (§11.18).
    fixture.ping(got.conn, true);
    fixture.execute(got.conn, &got.command, &got.pdu.data)?;
    fixture.serve_out(fixture.options.patience)?;
    let (_, immediate) = judge_numbers(fixture)?;
    need!(immediate > 0, "the initiator sent nothing immediate, not even in answer to a ping");
    Ok(())
}

fn immediate_management(fixture: &mut Fixture) -> Outcome {
    fixture.start(&[])?;
    fixture.command("READ or WRITE", Event::moves)?;
    let (conn, pdu) =
        fixture.request(Opcode::TMF_REQUEST, fixture.options.limit / 2, "task management request")?;
    need!(pdu.bhs.is_immediate(), "the task management request is not immediate");
    fixture.answer_management(conn, &pdu.read()?, transport::task_management::TmfResult::COMPLETE);
    fixture.serve_out(SILENCE)?;
    judge_numbers(fixture)?;
    Ok(())
}

fn is_new_command(event: &Event) -> bool {
    event.is(Opcode::SCSI_COMMAND).is_some_and(|pdu| !pdu.bhs.is_immediate())
}

fn closed_window(fixture: &mut Fixture) -> Outcome {
    fixture.window = 1;
    fixture.start(&[])?;
    let got = fixture.command("READ or WRITE", Event::moves)?;
    // The response leaves MaxCmdSN unchanged, so the command window is closed.
    fixture.window = 0;
    fixture.execute(got.conn, &got.command, &got.pdu.data)?;
    if let Some(Event { what: EventKind::Received(pdu), .. }) =
        fixture.serve_until(SILENCE, is_new_command)?
    {
        let max = fixture.sessions.first().map_or(CmdSn(0), |session| session.max_cmd_sn);
        require!(!CmdSn(pdu.word(24)).after(max), "the window is closed, but came {}", pdu.shown());
    }
    fixture.window = 4;
    fixture.ping(got.conn, false);
    let more = fixture.serve_until(fixture.options.patience, is_new_command)?;
    need!(more.is_some(), "the initiator sent nothing more when the window was open again");
    Ok(())
}

fn wide_window(fixture: &mut Fixture) -> Outcome {
    fixture.window = 100;
    fixture.start(&[])?;
    let got = fixture.command("READ or WRITE", Event::moves)?;
    let mut held = vec![got];
    while let Some(event) = fixture.serve_until(Duration::from_millis(500), is_new_command)? {
        let (EventKind::Received(pdu), Some(command)) = (&event.what, event.command()) else { continue };
        let max = fixture.sessions.first().map_or(CmdSn(0), |session| session.max_cmd_sn);
        require!(!CmdSn(pdu.word(24)).after(max), "beyond MaxCmdSN {:x}: {}", max.0, pdu.shown());
        fixture.number(event.conn, pdu);
        held.push(super::fixture::ReceivedCommand { conn: event.conn, command, pdu: pdu.clone() });
    }
    fixture.record.remark(format!("{} commands were outstanding at once", held.len()));
    for got in held {
        fixture.execute(got.conn, &got.command, &got.pdu.data)?;
    }
    Ok(())
}

fn window_of_one(fixture: &mut Fixture) -> Outcome {
    fixture.window = 1;
    fixture.start(&[])?;
    for index in 0..3 {
        let got = match fixture.command("READ or WRITE", Event::moves) {
            Ok(got) => got,
            // Two commands, one after the other, are enough.
            Err(Stop::Skip(_)) if index > 1 => break,
            Err(Stop::Skip(_)) if index == 1 => {
                let why = "the initiator sent one READ or WRITE, and only several can come one at a time";
                return Err(Stop::Skip(why.to_owned()));
            }
            Err(stop) => return Err(stop),
        };
        if let Some(Event { what: EventKind::Received(pdu), .. }) =
            fixture.serve_until(SILENCE / 3, is_new_command)?
        {
            fail!("the window is one command wide, but a second came: {}", pdu.shown());
        }
        fixture.execute(got.conn, &got.command, &got.pdu.data)?;
    }
    Ok(())
}

fn retry(fixture: &mut Fixture) -> Outcome {
    fixture.start(&[("ErrorRecoveryLevel", "1")])?;
    // The target neither answers nor acknowledges the command, so the initiator must treat it as lost.
    let got = fixture.unnumbered("READ or WRITE", Event::moves)?;
    let wait = fixture.options.limit / 2;
    let until = Instant::now() + wait;
    let mut later = Vec::new();
    let again = loop {
        // The target does not execute the later commands either, as a target that misses an earlier CmdSN
        // must not.
        let event = fixture.serve_until(until.saturating_duration_since(Instant::now()), is_new_command)?;
        match event.as_ref().map(|event| &event.what) {
            Some(EventKind::Received(pdu)) if pdu.word(24) != got.pdu.word(24) => later.extend(event),
            _ => break event,
        }
    };
    match again {
        Some(Event { conn, what: EventKind::Received(pdu), .. }) if conn == got.conn => {
            let same = |at: usize| got.pdu.byte(at) == pdu.byte(at);
            // Bytes 28 to 31 are ExpStatSN.
            let differs = (0..28).chain(32..48).find(|at| !same(*at));
            require!(
                differs.is_none(),
                "byte {differs:?} differs: first {}, again {}",
                got.pdu.shown(),
                pdu.shown()
            );
            require!(got.pdu.data == pdu.data, "the immediate data differs");
            fixture.number(conn, &pdu);
            fixture.execute(conn, &got.command, &pdu.data)?;
            for event in later {
                fixture.serve(&event)?;
            }
            fixture.serve_out(fixture.options.patience)?;
            require!(fixture.exit() != Some(false), "the initiator fails although its command was executed");
            Ok(())
        }
        Some(_) => fail!("the command is sent again on another connection"),
        None => {
            need!(false, "the initiator did not send the command again within {wait:?}; it need not");
            Ok(())
        }
    }
}

fn status_leap(fixture: &mut Fixture) -> Outcome {
    fixture.start(&[("ErrorRecoveryLevel", "1")])?;
    let got = fixture.command("READ or WRITE", Event::moves)?;
    let leap = {
        let Some(conn) = fixture.conns.get_mut(got.conn) else { fail!("the connection is gone") };
        conn.stat_sn = StatSn(conn.stat_sn.0.wrapping_add(0x8000_0000));
        conn.stat_sn
    };
    fixture.execute(got.conn, &got.command, &got.pdu.data)?;
    let wait = fixture.options.patience;
    let next = fixture.serve_until(wait, |event| {
        event.conn == got.conn
            && matches!(&event.what, EventKind::Received(pdu) if pdu.opcode() == Opcode::SCSI_COMMAND)
    })?;
    if let Some(Event { what: EventKind::Received(pdu), .. }) = next {
        require!(pdu.word(28) != leap.next().0, "the leap is taken for the next status: {}", pdu.shown());
    }
    Ok(())
}
