//! Commands, and how an initiator handles their responses (RFC 7143 §11.3, §11.4): the cases `ffp-i-16.*` of
//! the UNH-IOL plan.

use std::time::Instant;

use iscsi::pdu::reject::{Reject, RejectReason};
use iscsi::pdu::scsi_command::ScsiCommand;
use iscsi::pdu::{Itt, Opcode};
use iscsi::serial::{CmdSn, DataSn};

use crate::suite::case;
use crate::verdict::Outcome;

use super::Test;
use super::cmd_sn::SILENCE;
use super::conn::End;
use super::disk::Answer;
use super::fixture::{Event, EventKind, Fixture, ReceivedCommand};
use super::transfer::{collect, finish, release, start_and_hold_write};

const FIELDS: &str = "RFC 7143 §11.3";
const UNSOLICITED: &str = "RFC 7143 §11.3.4, §4.2.5.2";
const FAILURE: &str = "RFC 7143 §7.2.1, §11.4.7.2";

pub(super) const CASES: &[Test] = &[
    case("ffp-i-16.1.1", FIELDS, "the fields of a command are right with immediate data", |s| {
        fields(s, true)
    }),
    case("ffp-i-16.1.2", FIELDS, "the fields of a command are right without immediate data", |s| {
        fields(s, false)
    }),
    case("ffp-i-16.2.1", UNSOLICITED, "immediate data alone: F is set", |s| write_mode(s, true, true)),
    case("ffp-i-16.2.2", UNSOLICITED, "no immediate data in R2T mode", |s| write_mode(s, false, true)),
    case("ffp-i-16.2.3", UNSOLICITED, "no immediate data where none was agreed on", |s| {
        write_mode(s, false, false)
    }),
    case("ffp-i-16.2.4", UNSOLICITED, "immediate and unsolicited data keep within FirstBurstLength", |s| {
        write_mode(s, true, false)
    }),
    case("ffp-i-16.3.1", FIELDS, "F is set where no unsolicited data follows", final_bit),
    case("ffp-i-16.4.1", FAILURE, "a CRC error at the target is no success", |s| {
        failure(s, CommandFailure::Sense(0x4705))
    }),
    case("ffp-i-16.4.2", "RFC 7143 §7.2.1, §11.16", "a refused SNACK is no success", snack_refused),
    case("ffp-i-16.4.3", FAILURE, "unexpected unsolicited data is no success", |s| {
        failure(s, CommandFailure::Sense(0x0c0c))
    }),
    case("ffp-i-16.4.4", FAILURE, "too little unsolicited data is no success", |s| {
        failure(s, CommandFailure::Sense(0x0c0d))
    }),
    case("ffp-i-16.4.5", "RFC 7143 §11.4.2, SAM-5 §5.3.1", "BUSY is no success", |s| {
        failure(s, CommandFailure::Status(8))
    }),
    case("ffp-i-16.4.6", "RFC 7143 §11.4.2, SAM-5 §5.3.1", "RESERVATION CONFLICT is no success", |s| {
        failure(s, CommandFailure::Status(0x18))
    }),
    case(
        "ffp-i-16.5",
        "RFC 7143 §4.2.2.1, §11.4.8",
        "no command follows a response that closes the window",
        window_in_response,
    ),
    case(
        "ffp-i-16.6",
        "RFC 7143 §11.3.4",
        "Expected Data Transfer Length is what the command moves",
        expected_length,
    ),
];

fn fields(fixture: &mut Fixture, immediate: bool) -> Outcome {
    fixture.start(&[("ImmediateData", if immediate { "Yes" } else { "No" })])?;
    let wait = fixture.start_wait();
    let event = fixture.serve_until(wait, |event| event.is(Opcode::SCSI_COMMAND).is_some())?;
    let Some(Event { conn, what: EventKind::Received(pdu), .. }) = event else {
        need!(false, "the initiator sent no command");
        return Ok(());
    };
    let (cmd_sn, stat_sn) = match (fixture.sessions.first(), fixture.conns.get(conn)) {
        (Some(session), Some(conn)) => (session.exp_cmd_sn, conn.stat_sn),
        _ => fail!("a command came before the login ended"),
    };
    require!(pdu.word(24) == cmd_sn.0, "expected CmdSN {:x} in {}", cmd_sn.0, pdu.shown());
    require!(pdu.word(28) == stat_sn.0, "expected ExpStatSN {:x} in {}", stat_sn.0, pdu.shown());
    require!(pdu.itt() != Itt::NONE, "the task tag is the reserved value in {}", pdu.shown());
    let command: ScsiCommand = pdu.read()?;
    require!(command.write || pdu.data.is_empty(), "data goes along with a command that does not write");
    if !immediate {
        require!(pdu.data.is_empty(), "ImmediateData=No, but {} bytes are immediate", pdu.data.len());
    }
    require!(pdu.bhs.ahs_len() == 0, "a CDB of 16 bytes or less needs no extension: {}", pdu.shown());
    Ok(())
}

fn write_mode(fixture: &mut Fixture, immediate: bool, initial_r2t: bool) -> Outcome {
    let spell = |yes| if yes { "Yes" } else { "No" };
    let keys = [
        ("ImmediateData", spell(immediate)),
        ("InitialR2T", spell(initial_r2t)),
        ("FirstBurstLength", "8192"),
        ("MaxBurstLength", "65536"),
    ];
    let got = start_and_hold_write(fixture, &keys)?;
    let (sent, total) = (got.pdu.data.len(), got.command.expected_data_transfer_length);
    let total = usize::try_from(total).unwrap_or_default();
    require!(got.command.write, "W is clear in a WRITE: {}", got.pdu.shown());
    require!(
        sent <= total && sent <= 8192,
        "{sent} bytes are immediate, of {total} and FirstBurstLength=8192"
    );
    require!(immediate || sent == 0, "ImmediateData=No, but {sent} bytes are immediate");
    require!(sent < total || got.command.is_final, "all data is immediate, but F is clear");
    require!(!initial_r2t || got.command.is_final, "InitialR2T=Yes, but F is clear");
    release(fixture, &got)?;
    fixture.serve_out(fixture.options.patience)?;
    let data = fixture.data_out(got.command.itt);
    let unsolicited: Vec<_> = data.iter().filter(|pdu| pdu.word(20) == u32::MAX).collect();
    let first: usize = sent + unsolicited.iter().map(|pdu| pdu.data.len()).sum::<usize>();
    require!(first <= 8192, "{first} bytes come unsolicited, FirstBurstLength is 8192");
    let ends = unsolicited.last().is_none_or(|pdu| pdu.flags() & 0x80 != 0);
    require!(ends, "the last unsolicited data has no F");
    Ok(())
}

fn final_bit(fixture: &mut Fixture) -> Outcome {
    let got = start_and_hold_write(fixture, &[("ImmediateData", "No"), ("InitialR2T", "Yes")])?;
    require!(got.pdu.data.is_empty(), "ImmediateData=No, but {} bytes are immediate", got.pdu.data.len());
    require!(got.command.is_final, "no unsolicited data follows, but F is clear");
    let early = fixture.serve_until(SILENCE / 3, |event| {
        event.is(Opcode::DATA_OUT).is_some_and(|pdu| pdu.itt() == got.command.itt)
    })?;
    require!(early.is_none(), "data comes before any R2T");
    let len = got.command.expected_data_transfer_length.min(65_536);
    let (_, pdus) = collect(fixture, &got, 0, 0, len)?;
    require!(pdus.last().is_some_and(|pdu| pdu.flags() & 0x80 != 0), "the last data has no F");
    finish(fixture, &got)
}

/// How the target fails a command.
#[derive(Clone, Copy)]
enum CommandFailure {
    Status(u8),
    /// CHECK CONDITION with ABORTED COMMAND and this additional sense code.
    Sense(u16),
}

fn fail_it(fixture: &mut Fixture, got: &ReceivedCommand, ending: CommandFailure) {
    if let Some(conn) = fixture.conns.get_mut(got.conn) {
        conn.pending.clear();
    }
    match ending {
        CommandFailure::Status(status) => fixture.respond(got.conn, got.command.itt, status, None),
        CommandFailure::Sense(code) => fixture.respond(got.conn, got.command.itt, 2, Some((0xb, code))),
    }
}

/// After a failed command: the initiator must either retry it as a new command, or report the error to its
/// caller.
fn is_told(fixture: &mut Fixture, got: &ReceivedCommand) -> Outcome {
    let (cdb, number) = (got.command.cdb, got.command.cmd_sn);
    let wait = fixture.options.patience.max(SILENCE);
    let again =
        fixture.serve_until(wait, |event| event.command().is_some_and(|command| command.cdb == cdb))?;
    if let Some(event) = again {
        let again = event.command().map(|command| command.cmd_sn);
        // Another session has numbers of its own.
        let session = |conn: usize| fixture.conns.get(conn).and_then(|conn| conn.session);
        require!(
            again != Some(number) || session(event.conn) != session(got.conn),
            "the command comes again with its old CmdSN: a failed one must be a new one"
        );
        return Ok(());
    }
    match fixture.exit() {
        Some(false) => {
            fixture.record.remark("the initiator leaves it to its caller, as it may");
            Ok(())
        }
        Some(true) => fail!("the initiator goes on as if the command had succeeded"),
        None => {
            fixture.record.remark("the initiator leaves it to its caller, who does nothing yet");
            Ok(())
        }
    }
}

fn failure(fixture: &mut Fixture, ending: CommandFailure) -> Outcome {
    fixture.start(&[])?;
    let got = fixture.command("READ or WRITE", Event::moves)?;
    fail_it(fixture, &got, ending);
    is_told(fixture, &got)
}

fn snack_refused(fixture: &mut Fixture) -> Outcome {
    fixture.start(&[("ErrorRecoveryLevel", "1")])?;
    let got = fixture.command("READ", Event::reads)?;
    let Answer::Data(data) = fixture.disk.answer(got.command.lun, &got.command.cdb) else {
        fail!("a READ beyond the end")
    };
    // The target never sends the first half.
    let half = (data.len() / 2).next_multiple_of(512).min(data.len() - 1) & !511;
    let limit = fixture.send_max(got.conn);
    let rest = data.get(half..).unwrap_or_default();
    let last = rest.chunks(limit).count() - 1;
    for (index, bytes) in rest.chunks(limit).enumerate() {
        let end = if index == last { End::Status } else { End::More };
        let number = u32::try_from(index + 1).unwrap_or_default();
        fixture.data_in(got.conn, &got.command, (number, half + index * limit), bytes, end);
    }
    let wait = fixture.options.patience;
    while let Some(event) = fixture.serve_until(wait, |event| {
        event.is(Opcode::SNACK).is_some()
            || event.reads().is_some_and(|command| command.cdb == got.command.cdb)
            || matches!(event.what, EventKind::Closed)
    })? {
        // An initiator that closes the connection may have given up, or may have ended its work.
        let EventKind::Received(pdu) = &event.what else { break };
        if let Some(command) = event.reads() {
            require!(command.cmd_sn != got.command.cmd_sn, "the command comes again with its old CmdSN");
            return Ok(());
        }
        let sn = fixture.counted(event.conn);
        let reject = Reject { reason: RejectReason::SNACK_REJECT, sn, data_sn: DataSn(0) };
        fixture.send(event.conn, &reject, pdu.bhs.bytes());
    }
    is_told(fixture, &got)
}

fn window_in_response(fixture: &mut Fixture) -> Outcome {
    fixture.window = 1;
    let got = start_and_hold_write(fixture, &[("ImmediateData", "No"), ("InitialR2T", "Yes")])?;
    let len = got.command.expected_data_transfer_length.min(65_536);
    collect(fixture, &got, 0, 0, len)?;
    fixture.window = 0;
    finish(fixture, &got)?;
    let session = fixture.conns.get(got.conn).and_then(|conn| conn.session);
    let until = Instant::now() + SILENCE;
    // A response before may have opened the window for a command that comes only now.
    while let Some(event) = fixture.serve_until(until.saturating_duration_since(Instant::now()), |event| {
        event.conn == got.conn && event.command().is_some_and(|command| !command.immediate)
    })? {
        if let EventKind::Received(pdu) = &event.what {
            let max = session.and_then(|index| fixture.sessions.get(index)).map(|session| session.max_cmd_sn);
            let is_beyond = max.is_none_or(|max| CmdSn(pdu.word(24)).after(max));
            require!(!is_beyond, "the window is closed, but came {}", pdu.shown());
        }
        fixture.serve(&event)?;
    }
    fixture.window = 4;
    fixture.ping(got.conn, false);
    let more = fixture.serve_until(fixture.options.patience, |event| event.command().is_some())?;
    need!(more.is_some(), "the initiator sent nothing more when the window was open again");
    Ok(())
}

fn expected_length(fixture: &mut Fixture) -> Outcome {
    let got = start_and_hold_write(
        fixture,
        &[("ImmediateData", "Yes"), ("InitialR2T", "Yes"), ("FirstBurstLength", "512")],
    )?;
    let (sent, total) = (got.pdu.data.len(), got.command.expected_data_transfer_length);
    let total = usize::try_from(total).unwrap_or_default();
    let Answer::Write { len, .. } = fixture.disk.answer(got.command.lun, &got.command.cdb) else {
        fail!("a WRITE beyond the end")
    };
    require!(total == len, "the CDB writes {len} bytes, Expected Data Transfer Length is {total}");
    require!(sent < total || got.command.is_final, "all data is immediate, but F is clear");
    require!(sent <= 512, "{sent} bytes are immediate, FirstBurstLength is 512");
    if sent < total {
        let early = fixture.serve_until(SILENCE / 3, |event| {
            event.is(Opcode::DATA_OUT).is_some_and(|pdu| pdu.itt() == got.command.itt)
        })?;
        require!(early.is_none(), "data comes before any R2T although InitialR2T=Yes");
    }
    finish(fixture, &got)
}
