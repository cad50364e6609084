//! NOP-Out and NOP-In (RFC 7143 §11.18, §11.19): the cases `ffp-t-15.*` of the UNH-IOL plan.

use std::time::{Duration, Instant};

use iscsi::pdu::nop_in::NopIn;
use iscsi::pdu::{Itt, Opcode, Ttt};

use crate::cdb;
use crate::entropy::pattern;
use crate::suite::case;
use crate::verdict::Outcome;
use crate::wire::{Pdu, Received};

use super::Test;
use super::conn::{Conn, Flow};
use super::fixture::Fixture;

pub(super) const CASES: &[Test] = &[
    case("ffp-t-15.1.1", "RFC 7143 §11.18, §11.19", "an immediate ping without data is answered", |s| {
        ping(s, true, 0)
    }),
    case("ffp-t-15.1.2", "RFC 7143 §11.18, §11.19", "a ping without data is answered", |s| {
        ping(s, false, 0)
    }),
    case("ffp-t-15.1.3", "RFC 7143 §11.18, §11.19", "a ping comes back with its data", |s| {
        ping(s, false, 300)
    }),
    case("ffp-t-15.1.4", "RFC 7143 §11.18, §11.19", "an immediate ping comes back with its data", |s| {
        ping(s, true, 301)
    }),
    case(
        "ffp-t-15.1.5",
        "RFC 7143 §11.18, §13.12",
        "an immediate ping's data is cut to what we take",
        |s| long_ping(s, true),
    ),
    case("ffp-t-15.1.6", "RFC 7143 §11.18, §13.12", "a ping's data is cut to what we take", |s| {
        long_ping(s, false)
    }),
    case("ffp-t-15.2", "RFC 7143 §11.19", "a ping of the target is well-formed", target_pings),
    case("ffp-t-15.3", "RFC 7143 §11.19", "a window that was used up opens again", window_opens),
];

/// Sends a ping with these bytes, and checks the answer and its StatSN.
fn ping_with(conn: &mut Conn, immediate: bool, data: &[u8], back: usize) -> Outcome {
    let ping = conn.ping(immediate);
    conn.send(&ping, data);
    let (pong, pdu) = conn.expect::<NopIn>(ping.itt)?;
    require!(pong.ttt == Ttt::NONE, "the answer to a ping has a transfer tag: {}", pdu.shown());
    let expected = data.get(..back).unwrap_or(data);
    require!(
        pdu.data == expected,
        "expected the first {} bytes of the ping, came {} bytes that are {}",
        expected.len(),
        pdu.data.len(),
        if pdu.data.len() == expected.len() { "others" } else { "too many or too few" }
    );
    let status = pdu.word(24);
    let done = conn.run(cdb::test_unit_ready(), Flow::None, 0, &[])?;
    let next = status.wrapping_add(1);
    require!(done.stat_sn == next, "StatSN {:x} follows {status:x} of the answer to the ping", done.stat_sn);
    Ok(())
}

fn ping(fixture: &mut Fixture, immediate: bool, len: usize) -> Outcome {
    let mut conn = fixture.start(&[])?;
    ping_with(&mut conn, immediate, &pattern(60, len), len)
}

fn long_ping(fixture: &mut Fixture, immediate: bool) -> Outcome {
    let mut conn = fixture.start(&[("MaxRecvDataSegmentLength", "512")])?;
    // The longest segment that the target accepts, up to 64 KiB; longer ones would show nothing more.
    let len = conn.params.send_max.min(64 << 10);
    need!(len > 512, "the target takes no more than we do");
    ping_with(&mut conn, immediate, &pattern(61, len), 512)
}

/// How long a case waits for a ping of an idle target.
const SILENCE_MAX: Duration = Duration::from_secs(45);

fn target_pings(fixture: &mut Fixture) -> Outcome {
    fixture.deadline = Instant::now() + SILENCE_MAX + fixture.options.limit;
    let mut conn = fixture.start(&[])?;
    conn.answers_pings = false;
    let until = Instant::now() + SILENCE_MAX;
    let pdu = loop {
        let pdu = match conn.arrive(until.saturating_duration_since(Instant::now()))? {
            Received::Pdu(pdu) => pdu,
            Received::Closed => fail!("the target closes an idle connection without a ping"),
            Received::Nothing => {
                need!(false, "the target does not ping within {SILENCE_MAX:?}; it need not");
                return Ok(());
            }
        };
        require!(pdu.opcode() == Opcode::NOP_IN, "expected NOP-In, came {}", pdu.shown());
        require!(pdu.itt() == Itt::NONE, "a NOP-In that answers nothing has no task tag: {}", pdu.shown());
        // A NOP-In without a transfer tag only updates the counters and needs no answer.
        if pdu.word(20) != u32::MAX {
            break pdu;
        }
    };
    require!(pdu.data.is_empty(), "a ping of the target has no data: {}", pdu.shown());
    conn.answer_ping(&pdu);
    conn.answers_pings = true;
    let done = conn.run(cdb::test_unit_ready(), Flow::None, 0, &[])?;
    require!(done.stat_sn == pdu.word(24), "a ping of the target must not use up StatSN {:x}", pdu.word(24));
    Ok(())
}

/// The most commands that a case sends to fill the command window.
const WINDOW_MAX: u32 = 1024;

fn window_opens(fixture: &mut Fixture) -> Outcome {
    let mut conn = fixture.start(&[])?;
    let open = {
        let nexus = conn.nexus.borrow();
        nexus.max_cmd_sn.wrapping_sub(nexus.cmd_sn).wrapping_add(1)
    };
    require!(open > 0, "the window is closed although nothing is outstanding");
    let mut tasks = Vec::new();
    for _ in 0..open.min(WINDOW_MAX) {
        let task = conn.read(1);
        conn.send(&task, &[]);
        tasks.push(task);
    }
    for task in &tasks {
        // The target may end some of them with TASK SET FULL.
        conn.finish(task, &[])?;
    }
    let unasked = |pdu: &&Pdu| pdu.opcode() == Opcode::NOP_IN && pdu.itt() == Itt::NONE;
    for pdu in conn.seen.iter().filter(unasked) {
        require!(pdu.data.is_empty(), "a NOP-In of the target has no data: {}", pdu.shown());
    }
    let done = conn.run(cdb::test_unit_ready(), Flow::None, 0, &[])?;
    if let Some(nop) = conn.seen.iter().rfind(unasked) {
        require!(
            done.stat_sn == nop.word(24),
            "a NOP-In of the target must not use up StatSN {:x}",
            nop.word(24)
        );
    } else {
        fixture.record.remark("responses told that the window was open again: no NOP-In was needed");
    }
    Ok(())
}
