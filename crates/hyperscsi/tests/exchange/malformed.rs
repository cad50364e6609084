//! Tests of malformed requests: each is answered and counts as delivered, so that no request behind it waits
//! for it.

use std::collections::BTreeSet;

use hyperscsi::exchange::xid::xid_plus;
use hyperscsi::frame::{Cmd, Flags, HEADER_LEN, Header};
use hyperscsi::pdu::abort::{Abort, AbortReason, AbortResult};
use hyperscsi::pdu::ack::Ack;
use hyperscsi::pdu::command::{Command, Manage, Request};
use hyperscsi::target::engine::EngineLimits;
use transport::command::TaskAttribute;
use transport::task_management::TmfFunction;

use crate::hostile::{Raw, command};
use crate::world::*;

const OPEN_MAX: u32 = 128;

fn new() -> Raw {
    let limits = EngineLimits::default();
    assert_eq!(u32::from(limits.parameters.exchanges), OPEN_MAX);
    let mut raw = Raw::within(true, limits);
    raw.world.captures = true;
    raw
}

fn block(request: Request) -> Vec<u8> {
    let mut out = Vec::new();
    request.encode(&mut out);
    out
}

fn count(number: u32) -> Vec<u8> {
    block(Request::Command(command(COUNT, number, 0, 0)))
}

/// Returns the exchanges that the target gave up (TAG, XID, result), and the last XID LIMIT that it sent.
fn said(raw: &Raw) -> (BTreeSet<(u16, u32, u8)>, u32) {
    let (mut given_up, mut limit) = (BTreeSet::new(), 0);
    for (_, from, frame) in &raw.world.capture {
        let (header, len) = Header::parse(frame).unwrap();
        if *from != raw.world.sockets[0].state.mac || header.sid != raw.sids.0 {
            continue;
        }
        let mut payload = &frame[HEADER_LEN..len - 4];
        if header.cmd == Cmd::Ack || header.flags.has(Flags::ACKS) {
            let (ack, behind) = Ack::parse(payload).unwrap();
            (limit, payload) = (limit.max(ack.xid_limit), behind);
        }
        if header.cmd == Cmd::Abort {
            let Ok(Abort::GivenUp(result)) = Abort::parse(payload) else { panic!("{header:?}") };
            assert!(header.last && header.off == 0 && !header.protected, "{header:?}");
            given_up.insert((header.tag, header.xid, result.0));
        }
    }
    (given_up, limit)
}

/// Returns each kind of malformed block, for an exchange `xid`.
fn blocks(xid: u32) -> Vec<(&'static str, Vec<u8>)> {
    let spoil = |at: usize, value: u8| {
        let mut payload = count(9);
        payload[at] = value;
        payload
    };
    let after = |after: u32| block(Request::Command(Command { after, ..command(COUNT, 9, 0, 0) }));
    let manage = Manage { function: TmfFunction::ABORT_TASK_SET, lun: 0, after: 0, referenced: 0 };
    let mut with_item = count(9);
    with_item.extend_from_slice(&[0x81, 0, 0]);
    with_item[3] += 3;
    vec![
        ("no block", vec![]),
        ("a block cut short", count(9)[..20].to_vec()),
        ("a block longer than what is there", spoil(3, 200)),
        ("another kind", spoil(0, 3)),
        ("no attribute", spoil(1, 0)),
        ("an attribute that is none", spoil(1, 5)),
        ("a reserved field", spoil(30, 1)),
        ("no CDB", spoil(29, 0)),
        ("a CDB longer than any", spoil(28, 2)),
        ("more unasked than there is", block(Request::Command(command(WRITE, 0, 512, 600)))),
        ("more behind the block than comes unasked", [count(9), vec![0; 8]].concat()),
        ("an item that must be known", with_item),
        ("something behind a function", [block(Request::Manage(manage)), vec![0]].concat()),
        ("behind itself", after(xid)),
        ("behind a later one", after(xid + 3)),
        ("behind one of the other class", after(1 << 31 | 1)),
    ]
}

#[test]
fn each_kind_is_given_up_at_once_and_what_comes_behind_it_goes_on() {
    let mut raw = new();
    let mut expected = BTreeSet::new();
    let mut xid = 1;
    for (number, (what, payload)) in (0..).zip(blocks(0)) {
        // Blocks that name another exchange in AFTER depend on their own XID.
        let payload = if what.starts_with("behind") { blocks(xid)[number].1.clone() } else { payload };
        raw.say(Cmd::Request, Flags::default(), (7, xid, 0), true, &payload);
        expected.insert((7, xid, AbortResult::BROKEN.0));
        assert_eq!(said(&raw).0, expected, "{what}");
        // The exchange has ended: the next request with its XID is a duplicate, and does not become a task.
        raw.say(Cmd::Request, Flags::default(), (7, xid, 0), true, &count(9));
        let ordered = Command { attribute: TaskAttribute::ORDERED, after: xid, ..command(COUNT, 1, 0, 0) };
        raw.request(8, xid + 1, &ordered, &[]);
        assert_eq!(raw.world.server.counts[&1], xid.div_ceil(2), "{what}");
        xid += 2;
        raw.acknowledge();
    }
    assert_eq!(raw.world.server.counts.keys().collect::<Vec<_>>(), [&1]);
    let (given_up, limit) = said(&raw);
    assert_eq!(given_up, expected, "nothing else was");
    assert!(limit + OPEN_MAX / 4 >= xid - 1 + OPEN_MAX, "{limit} of {xid}");
    let stats = raw.world.engine.stats();
    assert_eq!((stats.malformed, stats.duplicates, stats.bugs), (16, 16, 0), "{stats:?}");
}

#[test]
fn a_place_that_cannot_be_ends_an_exchange_and_not_the_one_that_has_it() {
    let mut raw = new();
    let broken = AbortResult::BROKEN.0;
    raw.request(3, 1, &command(LINGER, 0, 0, 0), &[]);
    raw.request(3, 2, &command(COUNT, 9, 0, 0), &[]);
    raw.request(OPEN_MAX as u16, 3, &command(COUNT, 9, 0, 0), &[]);
    raw.say(Cmd::Request, Flags::default(), (4, 4, 5), true, &count(9));
    let mut give_up = Vec::new();
    Abort::GiveUp(AbortReason::ASKED).encode(&mut give_up);
    raw.say(Cmd::Abort, Flags::default(), (3, 5, 0), true, &give_up);
    let never = AbortResult::NEVER_BEGUN.0;
    let expected = [(3, 2, broken), (OPEN_MAX as u16, 3, broken), (4, 4, broken), (3, 5, never)];
    assert_eq!(said(&raw).0, expected.into());
    assert_eq!((raw.world.server.tasks.len(), raw.world.server.executed), (1, 1), "it goes on");
    let last = Command { attribute: TaskAttribute::ORDERED, after: 5, ..command(COUNT, 1, 0, 0) };
    raw.request(5, 6, &last, &[]);
    assert_eq!(raw.world.server.counts, [(1, 1)].into());
    // A request beyond the window, without an XID, or of the other packet number space is dropped without an
    // answer.
    for xid in [7 + 4096, 0, 1 << 31 | 1] {
        raw.say(Cmd::Request, Flags::default(), (6, xid, 0), true, &[9; 40]);
    }
    assert_eq!(said(&raw).0, expected.into());
    raw.request(6, 7, &Command { after: 6, ..command(COUNT, 2, 0, 0) }, &[]);
    assert_eq!(raw.world.server.counts, [(1, 1), (2, 1)].into());
}

#[test]
fn a_part_of_a_frame_that_makes_no_sense_is_given_up_by_itself() {
    let mut raw = new();
    let part = |tag: u16| (tag, u32::from(tag) + 1, command(COUNT, u32::from(tag), 0, 0));
    let spoilt = |at: usize| move |payload: &mut Vec<u8>| payload[4 + 2 * 14 + at * 42] = 9;
    raw.requests(&[part(0), part(1), part(2)], spoilt(0));
    raw.requests(&[part(3), part(4), part(5)], spoilt(1));
    raw.requests(&[part(6), part(7), part(8)], spoilt(2));
    let broken = |tag: u16| (tag, u32::from(tag) + 1, AbortResult::BROKEN.0);
    assert_eq!(said(&raw).0, [broken(0), broken(4), broken(8)].into());
    assert_eq!(raw.world.server.order, [1, 2, 3, 5, 6, 7]);
    raw.request(9, 10, &Command { after: 9, ..command(COUNT, 10, 0, 0) }, &[]);
    assert_eq!(raw.world.server.counts[&10], 1);
}

#[test]
fn data_that_came_before_a_request_that_makes_no_sense_is_forgotten_with_it() {
    let mut raw = new();
    raw.data(2, 1, 100, &[1; 100]);
    assert!(raw.world.engine.data_bytes() > 0);
    raw.say(Cmd::Request, Flags::default(), (2, 1, 0), true, &[9; 40]);
    assert_eq!(raw.world.engine.data_bytes(), 0);
    raw.data(2, 1, 0, &[1; 100]);
    assert_eq!((raw.world.engine.data_bytes(), raw.world.engine.stats().strays), (0, 1));
    raw.request(2, 2, &command(WRITE, 0, 512, 512), &[5; 512]);
    assert!(raw.world.server.disk_of(0)[..512] == [5; 512]);
}

#[test]
fn who_says_nothing_but_nonsense_and_does_not_listen_is_told_of_some_of_it_only() {
    let mut raw = new();
    for xid in 1..=300 {
        raw.say(Cmd::Request, Flags::default(), (1, xid, 0), true, &[9; 40]);
    }
    raw.world.rest(base::time::Duration::from_secs(1));
    raw.acknowledge();
    raw.world.rest(base::time::Duration::from_secs(1));
    let (given_up, limit) = said(&raw);
    assert_eq!(given_up, (1..=64).map(|xid| (1, xid, AbortResult::BROKEN.0)).collect());
    assert!(limit >= xid_plus(300, OPEN_MAX - OPEN_MAX / 4), "{limit}");
    // An initiator that acknowledges the answers receives answers again.
    raw.acknowledge();
    raw.say(Cmd::Request, Flags::default(), (1, 301, 0), true, &[9; 40]);
    assert!(said(&raw).0.contains(&(1, 301, AbortResult::BROKEN.0)));
    raw.request(1, 302, &Command { after: 301, ..command(COUNT, 1, 0, 0) }, &[]);
    assert_eq!(raw.world.server.counts, [(1, 1)].into());
}
