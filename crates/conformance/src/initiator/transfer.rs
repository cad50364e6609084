//! Data of reads and writes (RFC 7143 §4.2.5, §11.7, §11.8): the cases `ffp-i-6.*` and `ffp-i-8.*` to
//! `ffp-i-12.*` of the UNH-IOL plan.

use std::time::Duration;

use iscsi::pdu::r2t::R2t;
use iscsi::pdu::snack::SnackKind;
use iscsi::pdu::{Itt, Opcode, Ttt};
use iscsi::serial::StatSn;

use crate::suite::case;
use crate::verdict::{Outcome, Stop};
use crate::wire::Pdu;

use super::Test;
use super::conn::End;
use super::disk::Answer;
use super::fixture::{Event, EventKind, Fixture, ReceivedCommand};

const UNSOLICITED: &str = "RFC 7143 §4.2.5.2";
const R2T: &str = "RFC 7143 §11.8";

pub(super) const CASES: &[Test] = &[
    case("ffp-i-6.1", "RFC 7143 §4.2.2.4, §11.7.5", "DataSN counts from 0 in every sequence", data_sn),
    case("ffp-i-8.1", UNSOLICITED, "unsolicited data keeps within FirstBurstLength", |s| {
        unsolicited(s, true, false)
    }),
    case("ffp-i-8.2", UNSOLICITED, "no unsolicited data in R2T mode", |s| unsolicited(s, false, true)),
    case(
        "ffp-i-8.3",
        UNSOLICITED,
        "unsolicited Data-Out keeps within FirstBurstLength, and none is immediate",
        |s| unsolicited(s, false, false),
    ),
    case(
        "ffp-i-9.1",
        "RFC 7143 §4.2.5.3, §11.7.4",
        "Data-Out carries the transfer tag of its R2T",
        transfer_tag,
    ),
    case("ffp-i-10.1", "RFC 7143 §11.7.3", "status on Data-In is taken", status_on_data),
    case("ffp-i-10.2", "RFC 7143 §11.7.2, §11.16", "Data-In with A is acknowledged", acknowledges),
    case(
        "ffp-i-11.1.1",
        "RFC 7143 §11.7.7, §13.12",
        "Data-Out keeps within our MaxRecvDataSegmentLength",
        short_segments,
    ),
    case("ffp-i-11.1.2", "RFC 7143 §11.7.7", "Data-In of no bytes is no error", empty_data_in),
    case("ffp-i-11.2.1", "RFC 7143 §11.7.1", "the last unsolicited data has F set", |s| {
        last_is_final(s, true)
    }),
    case("ffp-i-11.2.2", "RFC 7143 §11.7.1", "the last data for an R2T has F set", |s| {
        last_is_final(s, false)
    }),
    case("ffp-i-11.3", "RFC 7143 §11.7.5", "DataSN counts within the data for an R2T", data_sn),
    case("ffp-i-11.4", "RFC 7143 §11.7.6", "Buffer Offset of Data-Out is right and grows", offsets),
    case("ffp-i-12.1", R2T, "an R2T is answered with its tag, offset and length", |s| answers_r2t(s, 2048)),
    case("ffp-i-12.2", R2T, "an R2T is answered in order and without holes", |s| answers_r2t(s, 4096)),
    case("ffp-i-12.3", R2T, "R2Ts are answered in the order in which they come", r2t_order),
    case("ffp-i-12.4", R2T, "R2Ts of two commands are answered in the order in which they come", parallel),
];

/// R2T for all data, with the burst lengths of the test plan.
const R2T_MODE: [(&str, &str); 4] = [
    ("ImmediateData", "No"),
    ("InitialR2T", "Yes"),
    ("FirstBurstLength", "65536"),
    ("MaxBurstLength", "262144"),
];

/// Serves until a write arrives, and registers it without sending an R2T.
pub(super) fn start_and_hold_write(fixture: &mut Fixture, keys: &[(&str, &str)]) -> Outcome<ReceivedCommand> {
    fixture.start(keys)?;
    next_write(fixture)
}

pub(super) fn next_write(fixture: &mut Fixture) -> Outcome<ReceivedCommand> {
    let got = fixture.command("WRITE", Event::writes)?;
    let Answer::Write { lba, len } = fixture.disk.answer(got.command.lun, &got.command.cdb) else {
        return Err(Stop::Skip("the initiator writes beyond the end of the disk".to_owned()));
    };
    fixture.begin_write(got.conn, &got.command, (lba, len), &got.pdu.data);
    fixture.held = Some(got.command.itt);
    Ok(got)
}

/// Leaves the rest of a write to the default behavior of the scripted target, including data that is still
/// under way.
pub(super) fn release(fixture: &mut Fixture, got: &ReceivedCommand) -> Outcome {
    fixture.held = None;
    fixture.continue_write(got.conn, got.command.itt)
}

/// Sends an R2T for a piece and collects the Data-Out that answers it, up to the F bit.
pub(super) fn collect(
    fixture: &mut Fixture,
    got: &ReceivedCommand,
    sn: u32,
    offset: u32,
    len: u32,
) -> Outcome<(R2t, Vec<Pdu>)> {
    let r2t = fixture.send_r2t(got.conn, &got.command, sn, offset, len);
    let pdus = answers_to(fixture, r2t.ttt)?;
    Ok((r2t, pdus))
}

/// Collects the Data-Out with this transfer tag, up to the F bit, and stores its data in the write.
fn answers_to(fixture: &mut Fixture, ttt: Ttt) -> Outcome<Vec<Pdu>> {
    let mut pdus = Vec::new();
    loop {
        let event = fixture.serve_until(fixture.options.patience, |event| {
            event.is(Opcode::DATA_OUT).is_some_and(|pdu| pdu.word(20) == ttt.0)
        })?;
        let Some(Event { conn, what: EventKind::Received(pdu), .. }) = event else {
            fail!("the R2T is not answered to its end: {} PDUs came", pdus.len())
        };
        let mut head: iscsi::pdu::data_out::DataOut = pdu.read()?;
        let is_final = head.is_final;
        // The case decides what to ask for next.
        head.is_final = false;
        fixture.take_data(conn, &head, &pdu.data)?;
        pdus.push(pdu);
        if is_final {
            return Ok(pdus);
        }
    }
}

/// Lets the scripted target complete a write by its default behavior.
pub(super) fn finish(fixture: &mut Fixture, got: &ReceivedCommand) -> Outcome {
    if let Some(write) = fixture
        .conns
        .get_mut(got.conn)
        .and_then(|conn| conn.pending.iter_mut().find(|w| w.command.itt == got.command.itt))
    {
        write.asked = write.have;
        write.unsolicited = false;
    }
    release(fixture, got)
}

fn len_of(pdus: &[Pdu]) -> usize {
    pdus.iter().map(|pdu| pdu.data.len()).sum()
}

/// Fails unless PDUs cover one R2T in order: tag, DataSN, offsets, and F on the last only.
fn covers(r2t: &R2t, pdus: &[Pdu]) -> Outcome {
    let mut offset = r2t.buffer_offset;
    for (sn, pdu) in (0u32..).zip(pdus) {
        require!(pdu.word(20) == r2t.ttt.0, "expected transfer tag {:x} in {}", r2t.ttt.0, pdu.shown());
        require!(pdu.word(36) == sn, "expected DataSN {sn} in {}", pdu.shown());
        require!(pdu.word(40) == offset, "expected Buffer Offset {offset:x} in {}", pdu.shown());
        offset += u32::try_from(pdu.data.len()).unwrap_or_default();
    }
    let total = offset - r2t.buffer_offset;
    let asked = r2t.desired_data_transfer_length;
    require!(total == asked, "{total} bytes came, {asked} were asked for");
    Ok(())
}

/// Returns the length of a piece of `wanted` bytes, limited to the length of this command.
fn piece(got: &ReceivedCommand, wanted: u32) -> u32 {
    wanted.min(got.command.expected_data_transfer_length)
}

fn data_sn(fixture: &mut Fixture) -> Outcome {
    let keys = [R2T_MODE.as_slice(), &[("MaxRecvDataSegmentLength", "1024")]].concat();
    let got = start_and_hold_write(fixture, &keys)?;
    let total = got.command.expected_data_transfer_length;
    let (mut offset, mut sn) = (0, 0);
    while offset < total && sn < 16 {
        let len = 2048.min(total - offset);
        let (r2t, pdus) = collect(fixture, &got, sn, offset, len)?;
        covers(&r2t, &pdus)?;
        offset += len;
        sn += 1;
    }
    finish(fixture, &got)
}

fn unsolicited(fixture: &mut Fixture, immediate: bool, initial_r2t: bool) -> Outcome {
    let spell = |yes| if yes { "Yes" } else { "No" };
    let keys = [
        ("FirstBurstLength", "512"),
        ("MaxBurstLength", "1024"),
        ("InitialR2T", spell(initial_r2t)),
        ("ImmediateData", spell(immediate)),
    ];
    let got = start_and_hold_write(fixture, &keys)?;
    let agreed = fixture.sessions.first().map(|session| session.agreed.clone()).unwrap_or_default();
    let burst = usize::try_from(agreed.number("FirstBurstLength")).unwrap_or_default();
    let at_once = got.pdu.data.len();
    require!(
        agreed.yes("ImmediateData") || at_once == 0,
        "ImmediateData=No, but {at_once} bytes are immediate"
    );
    if initial_r2t {
        require!(got.command.is_final, "InitialR2T=Yes, but F is clear in {}", got.pdu.shown());
    }
    // Watch for Data-Out that arrives before the target sends an R2T.
    let event = fixture.serve_until(Duration::from_millis(300), |event| {
        event.is(Opcode::DATA_OUT).is_some_and(|pdu| pdu.itt() == got.command.itt && pdu.word(20) != u32::MAX)
    })?;
    if let Some(Event { what: EventKind::Received(pdu), .. }) = event {
        fail!("data with a transfer tag before any R2T: {}", pdu.shown());
    }
    let pdus = fixture.data_out(got.command.itt);
    require!(pdus.is_empty() || !agreed.yes("InitialR2T"), "InitialR2T=Yes, but unsolicited data comes");
    let sent = at_once + len_of(&pdus);
    require!(sent <= burst, "{sent} bytes come unsolicited, FirstBurstLength is {burst}");
    require!(
        pdus.is_empty() || pdus.last().is_some_and(|pdu| pdu.flags() & 0x80 != 0),
        "the last unsolicited data has no F"
    );
    finish(fixture, &got)?;
    fixture.serve_out(fixture.options.patience)?;
    let rest = fixture.data_out(got.command.itt);
    let solicited = rest.iter().filter(|pdu| pdu.word(20) != u32::MAX).count();
    let total = usize::try_from(got.command.expected_data_transfer_length).unwrap_or_default();
    require!(sent >= total || solicited > 0, "R2Ts are not answered");
    Ok(())
}

fn transfer_tag(fixture: &mut Fixture) -> Outcome {
    let keys = [
        ("FirstBurstLength", "512"),
        ("MaxBurstLength", "1024"),
        ("InitialR2T", "Yes"),
        ("ImmediateData", "No"),
    ];
    let got = start_and_hold_write(fixture, &keys)?;
    let len = piece(&got, 1024);
    let (r2t, pdus) = collect(fixture, &got, 0, 0, len)?;
    for pdu in &pdus {
        require!(pdu.bhs.lun() == r2t.lun, "the LUN of the R2T is missing in {}", pdu.shown());
    }
    covers(&r2t, &pdus)?;
    finish(fixture, &got)
}

fn status_on_data(fixture: &mut Fixture) -> Outcome {
    fixture.start(&[])?;
    let got = fixture.command("READ", Event::reads)?;
    fixture.execute(got.conn, &got.command, &[])?;
    // Requests that were under way do not acknowledge the status yet; a later one must.
    let status = fixture.conns.get(got.conn).map_or(0, |conn| conn.stat_sn.0);
    let next = fixture.serve_until(fixture.options.patience, |event| match &event.what {
        EventKind::Received(pdu) => !StatSn(pdu.word(28)).before(StatSn(status)),
        other => matches!(other, EventKind::Closed),
    })?;
    match next.map(|event| event.what) {
        Some(EventKind::Received(_)) => Ok(()),
        Some(_) => {
            require!(fixture.exit() != Some(false), "the initiator takes status on Data-In for an error");
            Ok(())
        }
        None => fail!("the initiator does not go on after status on Data-In"),
    }
}

/// Returns the data of a read.
fn data_of(fixture: &Fixture, got: &ReceivedCommand) -> Vec<u8> {
    match fixture.disk.answer(got.command.lun, &got.command.cdb) {
        Answer::Data(data) => data,
        _ => Vec::new(),
    }
}

pub(super) fn acknowledges(fixture: &mut Fixture) -> Outcome {
    fixture.start(&[("ErrorRecoveryLevel", "1")])?;
    let got = fixture.command("READ", Event::reads)?;
    let level = fixture.sessions.first().map_or(0, |session| session.agreed.number("ErrorRecoveryLevel"));
    need!(level > 0, "the initiator agrees to ErrorRecoveryLevel=0 only");
    let data = data_of(fixture, &got);
    let limit = fixture.send_max(got.conn);
    let pieces: Vec<&[u8]> = data.chunks(limit).collect();
    let last = pieces.len().saturating_sub(1);
    for (index, bytes) in pieces.iter().enumerate() {
        let end = if index == last { End::Acknowledge } else { End::More };
        let number = u32::try_from(index).unwrap_or_default();
        fixture.data_in(got.conn, &got.command, (number, index * limit), bytes, end);
    }
    let ttt = 0x7a00_0000;
    let event = fixture.serve_until(fixture.options.patience, |event| event.is(Opcode::SNACK).is_some())?;
    let Some(Event { what: EventKind::Received(pdu), .. }) = event else {
        fail!("Data-In with A is not acknowledged by a SNACK")
    };
    require!(pdu.flags() & 0xf == SnackKind::DATA_ACK.0, "expected a DataACK, came {}", pdu.shown());
    require!(
        pdu.word(20) & 0xff00_0000 == ttt,
        "the DataACK has not the transfer tag of the Data-In: {}",
        pdu.shown()
    );
    require!(pdu.itt() == Itt::NONE, "a DataACK has no task tag: {}", pdu.shown());
    let next = u32::try_from(pieces.len()).unwrap_or_default();
    require!(pdu.word(40) == next, "expected BegRun {next} in {}", pdu.shown());
    require!(pdu.word(44) == 0, "expected RunLength 0 in {}", pdu.shown());
    fixture.respond(got.conn, got.command.itt, 0, None);
    Ok(())
}

fn short_segments(fixture: &mut Fixture) -> Outcome {
    let keys = [
        ("ImmediateData", "Yes"),
        ("InitialR2T", "No"),
        ("FirstBurstLength", "65536"),
        ("MaxBurstLength", "262144"),
        ("MaxRecvDataSegmentLength", "512"),
    ];
    let got = start_and_hold_write(fixture, &keys)?;
    require!(got.pdu.data.len() <= 512, "longer than the 512 bytes that we take: {}", got.pdu.shown());
    release(fixture, &got)?;
    fixture.serve_out(fixture.options.patience)?;
    for pdu in fixture.data_out(got.command.itt) {
        require!(pdu.data.len() <= 512, "longer than the 512 bytes that we take: {}", pdu.shown());
    }
    Ok(())
}

fn empty_data_in(fixture: &mut Fixture) -> Outcome {
    fixture.start(&[])?;
    let got = fixture.command("READ", Event::reads)?;
    let data = data_of(fixture, &got);
    fixture.data_in(got.conn, &got.command, (0, 0), &[], End::More);
    let limit = fixture.send_max(got.conn);
    let last = data.chunks(limit).count() - 1;
    for (index, bytes) in data.chunks(limit).enumerate() {
        let end = if index == last { End::Status } else { End::More };
        let number = u32::try_from(index + 1).unwrap_or_default();
        fixture.data_in(got.conn, &got.command, (number, index * limit), bytes, end);
    }
    fixture.serve_out(fixture.options.patience)?;
    require!(fixture.exit() != Some(false), "the initiator takes Data-In of no bytes for an error");
    Ok(())
}

fn last_is_final(fixture: &mut Fixture, unsolicited: bool) -> Outcome {
    let mode = [
        ("ImmediateData", "Yes"),
        ("InitialR2T", "No"),
        ("FirstBurstLength", "65536"),
        ("MaxBurstLength", "262144"),
    ];
    let got = start_and_hold_write(fixture, if unsolicited { &mode } else { &R2T_MODE })?;
    if !unsolicited {
        let len = piece(&got, 65_536);
        let (r2t, pdus) = collect(fixture, &got, 0, 0, len)?;
        covers(&r2t, &pdus)?;
        return finish(fixture, &got);
    }
    require!(got.pdu.data.len() <= 65_536, "more immediate data than FirstBurstLength: {}", got.pdu.shown());
    if got.command.is_final {
        fixture.record.remark("the initiator sends no more than immediate data by itself");
        return finish(fixture, &got);
    }
    let wait = fixture.options.patience;
    let event = fixture
        .serve_until(wait, |event| event.is(Opcode::DATA_OUT).is_some_and(|pdu| pdu.flags() & 0x80 != 0))?;
    require!(event.is_some(), "unsolicited data does not end with F");
    Ok(())
}

fn offsets(fixture: &mut Fixture) -> Outcome {
    data_sn(fixture)
}

fn answers_r2t(fixture: &mut Fixture, wanted: u32) -> Outcome {
    let keys = [R2T_MODE.as_slice(), &[("MaxRecvDataSegmentLength", "512")]].concat();
    let got = start_and_hold_write(fixture, &keys)?;
    let len = piece(&got, wanted);
    let r2t = fixture.send_r2t_as(got.conn, &got.command, (0, Ttt(0xabba_abba)), 0, len);
    let pdus = answers_to(fixture, r2t.ttt)?;
    covers(&r2t, &pdus)?;
    finish(fixture, &got)
}

fn r2t_order(fixture: &mut Fixture) -> Outcome {
    let more =
        [("DataSequenceInOrder", "No"), ("MaxOutstandingR2T", "4"), ("MaxRecvDataSegmentLength", "512")];
    let got = start_and_hold_write(fixture, &[R2T_MODE.as_slice(), &more].concat())?;
    let agreed = fixture.sessions.first().map(|session| session.agreed.clone()).unwrap_or_default();
    let outstanding = agreed.number("MaxOutstandingR2T");
    need!(!agreed.yes("DataSequenceInOrder"), "the initiator insists on DataSequenceInOrder=Yes");
    need!(outstanding > 1, "the initiator agrees to MaxOutstandingR2T=1 only");
    need!(got.command.expected_data_transfer_length >= 4096, "the WRITE is too short for four R2Ts");
    let count = outstanding.min(4);
    let mut r2ts = Vec::new();
    for sn in 0..count {
        r2ts.push(fixture.send_r2t(got.conn, &got.command, sn, (count - 1 - sn) * 1024, 1024));
    }
    let mut order = Vec::new();
    for _ in &r2ts {
        let event = fixture.serve_until(fixture.options.patience, |event| {
            event.is(Opcode::DATA_OUT).is_some_and(|pdu| pdu.flags() & 0x80 != 0)
        })?;
        let Some(Event { conn, what: EventKind::Received(pdu), .. }) = event else {
            fail!("an R2T is not answered")
        };
        let mut head: iscsi::pdu::data_out::DataOut = pdu.read()?;
        head.is_final = false;
        fixture.take_data(conn, &head, &pdu.data)?;
        order.push(pdu.word(20));
    }
    let asked: Vec<u32> = r2ts.iter().map(|r2t| r2t.ttt.0).collect();
    require!(order == asked, "R2Ts {asked:x?} are answered in the order {order:x?}");
    Ok(())
}

fn parallel(fixture: &mut Fixture) -> Outcome {
    let first = start_and_hold_write(fixture, &R2T_MODE)?;
    let Ok(second) = next_write_soon(fixture) else {
        return Err(Stop::Skip("the initiator does not write in parallel".to_owned()));
    };
    let (short, other) = (piece(&second, 512), piece(&first, 512));
    // Send both R2Ts at once, so that the initiator chooses the order.
    need!(first.conn == second.conn, "the initiator writes on two connections");
    let line = |fixture: &mut Fixture, step: fn(&mut crate::wire::PduStream)| {
        if let Some(conn) = fixture.conns.get_mut(first.conn) {
            step(&mut conn.line);
        }
    };
    line(fixture, crate::wire::PduStream::hold_output);
    let earlier = fixture.send_r2t(second.conn, &second.command, 0, 0, short);
    let later = fixture.send_r2t(first.conn, &first.command, 0, 0, other);
    line(fixture, crate::wire::PduStream::flush_output);
    let event =
        fixture.serve_until(fixture.options.patience, |event| event.is(Opcode::DATA_OUT).is_some())?;
    let Some(Event { what: EventKind::Received(pdu), .. }) = event else {
        fail!("the R2Ts are not answered")
    };
    require!(pdu.word(20) != later.ttt.0, "the later R2T is answered first: {}", pdu.shown());
    require!(
        pdu.word(20) == earlier.ttt.0,
        "expected an answer to R2T {:x}, came {}",
        earlier.ttt.0,
        pdu.shown()
    );
    Ok(())
}

/// Like [`next_write`], but the write must arrive within 500 ms, while another is outstanding.
fn next_write_soon(fixture: &mut Fixture) -> Outcome<ReceivedCommand> {
    let event = fixture.serve_until(Duration::from_millis(500), |event| event.writes().is_some())?;
    let Some(event) = event else { return Err(Stop::Skip(String::new())) };
    let (EventKind::Received(pdu), Some(command)) = (&event.what, event.writes()) else {
        return Err(Stop::Skip(String::new()));
    };
    fixture.number(event.conn, pdu);
    if let Answer::Write { lba, len } = fixture.disk.answer(command.lun, &command.cdb) {
        fixture.begin_write(event.conn, &command, (lba, len), &pdu.data);
    }
    Ok(ReceivedCommand { conn: event.conn, command, pdu: pdu.clone() })
}
