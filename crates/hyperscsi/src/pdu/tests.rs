//! Golden bytes in both directions, and payloads that are refused.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use base::ether::Mac;
use base::rng::Rng;
use transport::command::{Cdb, TaskAttribute};
use transport::task_management::{TmfFunction, TmfResult};

use super::abort::{Abort, AbortReason, AbortResult};
use super::ack::{Ack, PN_COUNT_MASK, Range, Ranges};
use super::ask::{Ask, PathValidation};
use super::command::{Command, Manage, Request};
use super::disconnect::{Disconnect, DisconnectReason};
use super::discovery::{self, Discovery, ExportedLun, Question};
use super::name::{GroupName, Name};
use super::negotiate::{self, Accept, Finish, Hello, Negotiate, Negotiated, RefuseReason, Start};
use super::parameters::{Illegal, Levels, Parameters};
use super::reply::{Reply, Response, TransferReady};
use super::*;
use security::Level;

fn bytes(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    // Encoders append to `out`: the bytes that it held before must stay.
    let mut out = vec![0xa5];
    encode(&mut out);
    assert_eq!(out.remove(0), 0xa5);
    out
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn command() -> Command {
    Command {
        lun: 0x0001_0000_0000_0000,
        attribute: TaskAttribute::SIMPLE,
        priority: 3,
        after: 7,
        data_in_len: 0,
        data_out_len: 4096,
        unsolicited_len: 512,
        cdb: Cdb::new(&[0x2a, 0, 0, 0, 0, 9, 0, 0, 8, 0]).unwrap(),
    }
}

#[test]
fn a_command_looks_as_the_specification_draws_it_and_data_follows_it() {
    let mut payload = bytes(|out| command().encode(out));
    assert_eq!(
        hex(&payload),
        "0131002a\
         00000007\
         0001000000000000\
         00000000\
         00001000\
         00000200\
         000a0000\
         2a000000000900000800"
    );
    payload.extend_from_slice(&[0x5a; 512]);
    let (request, data) = Request::parse(&payload).unwrap();
    assert_eq!((request, data), (Request::Command(command()), &[0x5a; 512][..]));
    payload.push(0);
    assert_eq!(Request::parse(&payload), Err(Malformed::Value), "more data than announced");
}

#[test]
fn every_kind_of_payload_reads_back_as_it_was_written() {
    let manage = Manage { function: TmfFunction::ABORT_TASK, lun: 5 << 48, after: 11, referenced: 9 };
    let payload = bytes(|out| Request::Manage(manage).encode(out));
    assert_eq!(hex(&payload), "020100140000000b000500000000000000000009");
    assert_eq!(Request::parse(&payload), Ok((Request::Manage(manage), &[][..])));

    for (reply, want) in [
        (
            Reply::TransferReady(TransferReady { number: 2, offset: 65536, len: 131_072 }),
            "01000010000000020001000000020000",
        ),
        (
            Reply::Response(Response {
                status: 2,
                data_in_len: 512,
                transferable: 1 << 33,
                sense: &[0x70, 0, 5],
            }),
            "0202001700000200000000020000000000030000700005",
        ),
        (Reply::Managed(TmfResult::NO_LUN), "03020004"),
    ] {
        let payload = bytes(|out| reply.encode(out));
        assert_eq!(hex(&payload), want);
        assert_eq!(Reply::parse(&payload), Ok(reply));
    }

    let path = PathValidation { challenge: 1, echo: 0, frame_max: 9000, token: Some([7; 16]) };
    for (ask, want) in [
        (Ask::Ping, "01000004"),
        (Ask::Mtu(9000), "020000062328"),
        (
            Ask::Path(path),
            "0300002b000000000000000100000000000000002328000081001007070707070707070707070707070707",
        ),
        (Ask::Leave { path: 3 }, "04030004"),
        (Ask::Receives(1500), "0500000605dc"),
    ] {
        let mut payload = bytes(|out| ask.encode(out));
        assert_eq!(hex(&payload), want);
        payload.resize(100, 0);
        assert_eq!(Ask::parse(&payload), Ok(ask), "with padding");
    }

    for (abort, want) in [
        (Abort::GiveUp(AbortReason::TOO_LATE), "01010004"),
        (Abort::GivenUp(AbortResult::HAD_ENDED), "02020004"),
    ] {
        let payload = bytes(|out| abort.encode(out));
        assert_eq!(hex(&payload), want);
        assert_eq!(Abort::parse(&payload), Ok(abort));
    }

    for (disconnect, want) in [
        (Disconnect::Goodbye(DisconnectReason::SHUTDOWN), "01020004"),
        (Disconnect::Done, "02000004"),
        (Disconnect::Unknown { sid: 0xcafe }, "030000080000cafe"),
    ] {
        let payload = bytes(|out| disconnect.encode(out));
        assert_eq!(hex(&payload), want);
        assert_eq!(Disconnect::parse(&payload), Ok(disconnect));
    }
}

fn ack() -> Ack<'static> {
    Ack {
        sealed: true,
        largest: (3 << 56) | 100,
        delay_us: 25,
        first: 10,
        pn_limit: (3 << 56) | 4196,
        xid_limit: 512,
        overruns: 1,
        ranges: Ranges::default(),
    }
}

#[test]
fn an_acknowledgement_names_its_ranges_and_what_follows_it() {
    let ranges = [Range { gap: 2, len: 5 }, Range { gap: 1, len: 82 }];
    let mut payload = bytes(|out| ack().encode(ranges.into_iter(), out));
    assert_eq!(
        hex(&payload),
        "02020034\
         0300000000000064\
         00000019\
         0000000a\
         0300000000001064\
         00000200\
         00000001\
         0000000200000005\
         0000000100000052"
    );
    payload.extend_from_slice(b"reply");
    let (read, rest) = Ack::parse(&payload).unwrap();
    assert_eq!(rest, b"reply");
    assert!(read.ranges.eq(ranges));
    assert_eq!(Ack { ranges: Ranges::default(), ..read }, ack());
}

#[test]
fn an_acknowledgement_that_cannot_be_is_refused() {
    let parse = |ack: Ack<'_>, ranges: &[Range]| {
        let payload = bytes(|out| ack.encode(ranges.iter().copied(), out));
        Ack::parse(&payload).map(|_| ())
    };
    let nothing = Ack { largest: 3 << 56, first: 0, ..ack() };
    assert_eq!(parse(nothing, &[]), Ok(()));
    assert_eq!(parse(nothing, &[Range { gap: 1, len: 1 }]), Err(Malformed::Value));
    assert_eq!(parse(Ack { first: 0, ..ack() }, &[]), Err(Malformed::Value));
    assert_eq!(parse(Ack { first: 100, ..ack() }, &[]), Ok(()), "down to the first packet number");
    assert_eq!(parse(Ack { first: 101, ..ack() }, &[]), Err(Malformed::Value));
    assert_eq!(
        parse(Ack { pn_limit: 4196, ..ack() }, &[]),
        Err(Malformed::Value),
        "the limit of another path"
    );
    assert_eq!(parse(ack(), &[Range { gap: 0, len: 1 }]), Err(Malformed::Value));
    assert_eq!(parse(ack(), &[Range { gap: 1, len: 0 }]), Err(Malformed::Value));
    assert_eq!(parse(ack(), &[Range { gap: 8, len: 82 }]), Ok(()));
    assert_eq!(parse(ack(), &[Range { gap: 9, len: 82 }]), Err(Malformed::Value));
    assert_eq!(parse(ack(), &[Range { gap: u32::MAX, len: u32::MAX }]), Err(Malformed::Value));
    let most = Ack { largest: PN_COUNT_MASK, pn_limit: PN_COUNT_MASK, ..ack() };
    assert_eq!(parse(most, &[Range { gap: u32::MAX, len: u32::MAX }; ack::RANGES_MAX + 1]), Ok(()));
}

fn group() -> GroupName {
    GroupName::new("backup").unwrap()
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn answer() -> discovery::Answer {
    discovery::Answer {
        nonce: [1; 16],
        instance: [2; 16],
        group: group(),
        target: name("iqn.2026-01.org.example:disk"),
        authenticates: true,
        luns: vec![
            ExportedLun { lun: 0, level: Level::Encrypt },
            ExportedLun { lun: 1 << 48, level: Level::None },
        ],
        more: false,
        macs: vec![Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])],
        frame_max: 9000,
    }
}

#[test]
fn discovery_reads_back_as_it_was_written_and_the_fullest_answer_fits_a_frame() {
    for discovery in [
        Discovery::Question(Question { nonce: [9; 16], group: group(), target: None }),
        Discovery::Question(Question {
            nonce: [9; 16],
            group: group(),
            target: Some(name("naa.52004567ba64678d")),
        }),
        Discovery::Answer(answer()),
    ] {
        let mut payload = bytes(|out| discovery.encode(out));
        payload.resize(payload.len() + 20, 0);
        assert_eq!(Discovery::parse(&payload).as_ref(), Ok(&discovery), "with padding");
    }
    let full = discovery::Answer {
        group: GroupName::new(&"g".repeat(64)).unwrap(),
        target: name(&format!("iqn.{}", "t".repeat(219))),
        luns: vec![ExportedLun { lun: 0, level: Level::None }; discovery::LUNS_MAX + 1],
        macs: vec![Mac::default(); discovery::MACS_MAX + 1],
        ..answer()
    };
    let payload = bytes(|out| Discovery::Answer(full).encode(out));
    assert!(payload.len() + crate::frame::HEADER_LEN + crate::frame::CRC_LEN <= 1500, "{}", payload.len());
    let Ok(Discovery::Answer(read)) = Discovery::parse(&payload) else { panic!("not an answer") };
    assert!(read.more && read.luns.len() == discovery::LUNS_MAX && read.macs.len() == discovery::MACS_MAX);
}

fn start() -> Start {
    Start {
        handshake: [4; 16],
        cookie: [5; 40],
        group: group(),
        target: name("iqn.2026-01.org.example:disk"),
        initiator: name("iqn.2026-01.org.example:host"),
        isid: [0x80, 1, 2, 3, 4, 5],
        sid: 77,
        offer: Parameters { frame_max: 9000, levels: Levels::from(Level::Integrity), ..Parameters::DEFAULT },
        ke1: Some([6; 96]),
    }
}

fn start_usual() -> Start {
    Start { offer: Parameters::DEFAULT, ..start() }
}

#[test]
fn every_step_of_the_handshake_reads_back_as_it_was_written() {
    let hello = Hello { handshake: [4; 16], group: group(), target: name("eui.02004567a425678d") };
    for step in [
        Negotiate::Hello(hello),
        Negotiate::Start(alloc::boxed::Box::new(start())),
        Negotiate::Start(alloc::boxed::Box::new(Start { ke1: None, ..start() })),
        Negotiate::Illegal(alloc::boxed::Box::new(start_usual()), Illegal::FrameMax),
        Negotiate::Illegal(alloc::boxed::Box::new(start_usual()), Illegal::Levels),
        Negotiate::Finish(Finish { handshake: [4; 16], sid: 8, ke3: [1; 64] }),
    ] {
        let payload = bytes(|out| step.encode(out));
        assert_eq!(Negotiate::parse(&payload).as_ref(), Ok(&step));
        assert_eq!(Negotiated::parse(&payload), Err(Malformed::Kind), "not from a target");
    }
    let (handshake, sid, choice) = ([4; 16], 9, Parameters::DEFAULT);
    let stretch = security::opaque::StretchCost { memory_kib: 65536, passes: 3, lanes: 1 };
    let answer = negotiate::Answer { handshake, sid, choice, stretch, ke2: [8; 320] };
    for step in [
        Negotiated::Cookie { handshake, cookie: [3; 40] },
        Negotiated::Answer(alloc::boxed::Box::new(answer)),
        Negotiated::Accept(Accept {
            handshake,
            sid,
            choice,
            token: [1; 16],
            instance: [2; 16],
            proof: Some([3; 32]),
        }),
        Negotiated::Refuse { handshake, reason: RefuseReason::BUSY, retry_after_ms: 250 },
    ] {
        let payload = bytes(|out| step.encode(out));
        assert_eq!(Negotiated::parse(&payload).as_ref(), Ok(&step));
        assert_eq!(Negotiate::parse(&payload), Err(Malformed::Kind), "not from an initiator");
    }
}

#[test]
fn unknown_items_are_passed_over_unless_they_must_be_known_and_none_comes_twice() {
    let with = |item: &[u8]| {
        let mut payload = bytes(|out| Negotiate::Start(alloc::boxed::Box::new(start())).encode(out));
        payload.extend_from_slice(item);
        let len = u16::try_from(payload.len()).unwrap();
        payload[2..4].copy_from_slice(&len.to_be_bytes());
        Negotiate::parse(&payload).map(|_| ())
    };
    assert_eq!(with(&[]), Ok(()));
    assert_eq!(with(&[0x7f, 0, 2, 1, 2]), Ok(()));
    assert_eq!(with(&[0xff, 0, 2, 1, 2]), Err(Malformed::Item));
    assert_eq!(with(&[0x84, 0, 6, 0, 0, 0, 0, 0, 0]), Err(Malformed::Item), "twice");
    assert_eq!(with(&[0x7f, 0, 2, 1]), Err(Malformed::Short));
    let mut twice = bytes(|out| Parameters::DEFAULT.encode(out));
    assert_eq!(Parameters::parse(&twice), Ok(Parameters::DEFAULT));
    twice.extend_from_slice(&[8, 0, 1, 2]);
    assert_eq!(Parameters::parse(&twice), Err(Malformed::Item));
    assert_eq!(Parameters::parse(&[8, 0, 1, 0]), Err(Malformed::Value), "no path at all");
    assert_eq!(Parameters::parse(&[4, 0, 1, 8]), Err(Malformed::Value), "no level that anybody knows");
    assert_eq!(Parameters::parse(&[]), Ok(Parameters::DEFAULT));
}

#[test]
fn what_cannot_be_is_refused() {
    let change = |at: usize, value: u8| {
        let mut payload = bytes(|out| command().encode(out));
        payload[at] = value;
        Request::parse(&payload).map(|_| ())
    };
    assert_eq!(change(0, 9), Err(Malformed::Kind));
    assert_eq!(change(1, 0x30), Err(Malformed::Value), "no task attribute");
    assert_eq!(change(1, 0x35), Err(Malformed::Value), "a task attribute that is none");
    assert_eq!(change(3, 3), Err(Malformed::Short), "a block shorter than its head");
    assert_eq!(change(3, 0x2b), Err(Malformed::Short), "a block longer than the payload");
    assert_eq!(change(24, 1), Err(Malformed::Value), "more unasked than there is");
    assert_eq!(change(29, 0), Err(Malformed::Value), "no CDB");
    assert_eq!(change(31, 1), Err(Malformed::Value), "a reserved field");
    assert!(Cdb::new(&[0; 260]).is_some() && Cdb::new(&[0; 261]).is_none());
    let ready = Reply::TransferReady(TransferReady { number: 0, offset: u32::MAX, len: 1 });
    assert_eq!(Reply::parse(&bytes(|out| ready.encode(out))), Err(Malformed::Value), "beyond all data");
    for text in ["", "iqn.", "disk", "iqn.A", "iqn.a b", "iqn.a\n", "iqn.a/b"] {
        assert_eq!(Name::new(text), None, "{text:?}");
    }
    for text in ["", "a\tb", "\u{7f}", &"x".repeat(65)] {
        assert_eq!(GroupName::new(text), None, "{text:?}");
    }
}

/// Parses `payload` as every kind of payload.
fn read_all(payload: &[u8]) {
    let _ = Request::parse(payload);
    let _ = Reply::parse(payload);
    let _ = Ack::parse(payload).map(|(ack, _)| ack.ranges.count());
    let _ = Ask::parse(payload);
    let _ = Abort::parse(payload);
    let _ = Disconnect::parse(payload);
    let _ = Discovery::parse(payload);
    let _ = Negotiate::parse(payload);
    let _ = Negotiated::parse(payload);
}

#[test]
fn damaged_payloads_are_read_without_harm() {
    let whole = [
        bytes(|out| command().encode(out)),
        bytes(|out| ack().encode([Range { gap: 1, len: 1 }].into_iter(), out)),
        bytes(|out| Discovery::Answer(answer()).encode(out)),
        bytes(|out| Negotiate::Start(alloc::boxed::Box::new(start())).encode(out)),
    ];
    let seed = 20_260_401;
    let mut rng = Rng::from_seed(seed);
    for payload in &whole {
        for cut in 0..=payload.len() {
            read_all(&payload[..cut]);
        }
        for _ in 0..4000 {
            let mut damaged = payload.clone();
            for _ in 0..=rng.below(4) {
                let at = usize::try_from(rng.below(u64::try_from(damaged.len()).unwrap())).unwrap();
                damaged[at] = u8::try_from(rng.below(256)).unwrap();
            }
            read_all(&damaged);
        }
    }
}

//= hyperscsi#section-4.1
//= type=test
//# Reserved fields are 0 and MUST be checked
//# to be 0, so that a later revision can use them.
#[test]
fn an_info_that_says_nothing_is_checked_to_be_zero() {
    let question = Discovery::Question(Question { nonce: [1; 16], group: group(), target: None });
    let mut payload = bytes(|out| question.encode(out));
    assert!(Discovery::parse(&payload).is_ok());
    payload[1] = 1;
    assert_eq!(Discovery::parse(&payload), Err(Malformed::Value));
    let mut payload = bytes(|out| Discovery::Answer(answer()).encode(out));
    for bit in 0..6 {
        payload[1] ^= 1 << bit;
        assert_eq!(Discovery::parse(&payload), Err(Malformed::Value), "bit {bit}");
        payload[1] ^= 1 << bit;
    }
    assert!(Discovery::parse(&payload).is_ok());
    for said in [Disconnect::Done, Disconnect::Unknown { sid: 9 }] {
        let mut payload = bytes(|out| said.encode(out));
        assert_eq!(Disconnect::parse(&payload), Ok(said));
        payload[1] = 1;
        assert_eq!(Disconnect::parse(&payload), Err(Malformed::Value));
    }
}

//= hyperscsi#section-6.2
//= type=test
//# A HELLO's payload MUST be padded to 63 bytes if it is shorter, and a target MUST drop a shorter one
#[test]
fn a_hello_is_no_shorter_than_the_cookie_that_answers_it() {
    let cookie = bytes(|out| Negotiated::Cookie { handshake: [4; 16], cookie: [3; 40] }.encode(out));
    for target in ["eui.02004567a425678d", "iqn.2026-01.org.example:a-disk-with-a-long-name"] {
        let group = GroupName::new("g").unwrap();
        let hello = Negotiate::Hello(Hello { handshake: [4; 16], group, target: name(target) });
        let payload = bytes(|out| hello.encode(out));
        assert!(payload.len() >= cookie.len(), "{} bytes", payload.len());
        assert_eq!(Negotiate::parse(&payload), Ok(hello));
        assert_eq!(Negotiate::parse(&payload[..cookie.len() - 1]), Err(Malformed::Short));
    }
}
