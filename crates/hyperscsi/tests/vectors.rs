//! Tests that this crate encodes and parses the payloads that the specification prints.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::fmt::Write as _;

use base::ether::Mac;
use hyperscsi::frame::{Cmd, Flags, Header};
use hyperscsi::pdu::abort::{Abort, AbortReason, AbortResult};
use hyperscsi::pdu::ack::{Ack, Range, Ranges};
use hyperscsi::pdu::ask::{Ask, PathValidation};
use hyperscsi::pdu::command::{Command, Manage, Request};
use hyperscsi::pdu::disconnect::{Disconnect, DisconnectReason};
use hyperscsi::pdu::discovery::{Answer, Discovery, ExportedLun, Question};
use hyperscsi::pdu::name::{GroupName, Name};
use hyperscsi::pdu::negotiate::{self, Accept, Finish, Hello, Negotiate, Negotiated, RefuseReason, Start};
use hyperscsi::pdu::parameters::Parameters;
use hyperscsi::pdu::parts::{self, Parts};
use hyperscsi::pdu::reply::{Reply, Response, TransferReady};
use security::Level;
use security::opaque::StretchCost;
use transport::command::{Cdb, TaskAttribute};
use transport::task_management::{TmfFunction, TmfResult};

/// The text of the vectors, and the bytes of each with the command of its frame.
#[derive(Default)]
struct Vectors {
    text: String,
    payloads: Vec<(Cmd, Vec<u8>)>,
}

impl Vectors {
    fn add(&mut self, cmd: Cmd, what: &str, encode: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        encode(&mut bytes);
        self.print(what, &bytes);
        self.payloads.push((cmd, bytes));
    }

    fn print(&mut self, what: &str, bytes: &[u8]) {
        writeln!(self.text, "{what} =").unwrap();
        for line in bytes.chunks(32) {
            let hex: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(self.text, "  {hex}").unwrap();
        }
    }

    fn made() -> Self {
        let mut vectors = Self::default();
        vectors.exchanges();
        vectors.transport();
        vectors.parts();
        vectors.outside();
        vectors
    }

    fn exchanges(&mut self) {
        let command = Command {
            lun: 1 << 48,
            attribute: TaskAttribute::SIMPLE,
            priority: 3,
            after: 7,
            data_in_len: 0,
            data_out_len: 4096,
            unsolicited_len: 4096,
            cdb: Cdb::new(&[0x2a, 0, 0, 0, 0, 9, 0, 0, 8, 0]).unwrap(),
        };
        let text = "COMMAND: LUN 1, SIMPLE, priority 3, after 7, 4096 bytes out, all unsolicited, WRITE(10)";
        self.add(Cmd::Request, text, |out| Request::Command(command).encode(out));
        let manage = Manage { function: TmfFunction::ABORT_TASK, lun: 5 << 48, after: 11, referenced: 9 };
        let text = "MANAGE: ABORT TASK, LUN 5, after 11, exchange 9";
        self.add(Cmd::Request, text, |out| Request::Manage(manage).encode(out));
        let ready = Reply::TransferReady(TransferReady { number: 2, offset: 65536, len: 131_072 });
        self.add(Cmd::Reply, "TRANSFER READY: number 2, 128 KiB from 64 KiB on", |out| ready.encode(out));
        let sense = [0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x20, 0, 0, 0, 0, 0];
        let response = Response { status: 2, data_in_len: 512, transferable: 512, sense: &sense };
        let text = "RESPONSE: CHECK CONDITION, 512 bytes of Data-In, sense 5/20h/00h";
        self.add(Cmd::Reply, text, |out| Reply::Response(response).encode(out));
        let managed = Reply::Managed(TmfResult::COMPLETE);
        self.add(Cmd::Reply, "MANAGED: complete", |out| managed.encode(out));
        self.add(Cmd::Abort, "GIVE UP: too late", |out| Abort::GiveUp(AbortReason::TOO_LATE).encode(out));
        self.add(Cmd::Abort, "GIVEN UP: aborted", |out| Abort::GivenUp(AbortResult::ABORTED).encode(out));
    }

    fn transport(&mut self) {
        let ack = Ack {
            sealed: true,
            largest: (3 << 56) | 100,
            delay_us: 25,
            first: 10,
            pn_limit: (3 << 56) | 4196,
            xid_limit: 0x8000_0200,
            overruns: 1,
            ranges: Ranges::default(),
        };
        let ranges = [Range { gap: 2, len: 5 }, Range { gap: 1, len: 82 }];
        let text =
            "ACK: Sealed, path 3: 91 to 100, 84 to 88, 1 to 82; 25 us; limits 4196 and 80000200h; 1 overrun";
        self.add(Cmd::Ack, text, |out| ack.encode(ranges.into_iter(), out));
        let path = PathValidation {
            challenge: 0x1112_1314_1516_1718,
            echo: 0,
            frame_max: 9000,
            token: Some([7; 16]),
        };
        for (text, ask) in [
            ("PING", Ask::Ping),
            ("MTU: 9000 (padding follows)", Ask::Mtu(9000)),
            ("PATH: a challenge, frames of up to 9000 bytes, the token", Ask::Path(path)),
            ("LEAVE: path 3", Ask::Leave { path: 3 }),
            ("RECEIVES: 1500", Ask::Receives(1500)),
        ] {
            self.add(Cmd::Ask, text, |out| ask.encode(out));
        }
        for (text, end) in [
            ("GOODBYE: shutdown", Disconnect::Goodbye(DisconnectReason::SHUTDOWN)),
            ("DONE", Disconnect::Done),
            ("UNKNOWN: 0000cafeh", Disconnect::Unknown { sid: 0xcafe }),
        ] {
            self.add(Cmd::Disconnect, text, |out| end.encode(out));
        }
    }

    /// Appends a payload of three parts; the header of the frame describes the first one.
    fn parts(&mut self) -> Vec<u8> {
        let mut first = Vec::new();
        Reply::Managed(TmfResult::COMPLETE).encode(&mut first);
        let mut ready = Vec::new();
        Reply::TransferReady(TransferReady { number: 2, offset: 65536, len: 131_072 }).encode(&mut ready);
        let header = Header {
            tag: 5,
            last: true,
            fragment: 0,
            protected: false,
            cmd: Cmd::Reply,
            flags: Flags::DATA.with(Flags::GOOD),
            len: 8,
            sid: 0,
            pn: 0,
            xid: 6,
            off: 4096,
        };
        let (flags, len) = (Flags::default(), u16::try_from(ready.len()).unwrap());
        let further = [header, Header { tag: 7, flags, len, xid: 8, off: 0, ..header }];
        let mut bytes = Vec::new();
        parts::encode(further.into_iter(), &mut bytes);
        bytes.extend_from_slice(&first);
        bytes.extend_from_slice(b"the data");
        bytes.extend_from_slice(&ready);
        let text = "PARTS: MANAGED; 8 bytes of data from 4096 on, GOOD, slot 5, exchange 6; TRANSFER READY, slot 7, exchange 8";
        self.print(text, &bytes);
        bytes
    }

    fn outside(&mut self) {
        let (group, target) =
            (GroupName::new("backup").unwrap(), Name::new("iqn.2026-01.org.example:disk").unwrap());
        let question = Question { nonce: [0x11; 16], group: group.clone(), target: None };
        let text = "QUESTION: group backup";
        self.add(Cmd::Discovery, text, |out| Discovery::Question(question).encode(out));
        let answer = Answer {
            nonce: [0x11; 16],
            instance: [0x22; 16],
            group: group.clone(),
            target: target.clone(),
            authenticates: true,
            luns: vec![
                ExportedLun { lun: 0, level: Level::Encrypt },
                ExportedLun { lun: 1 << 48, level: Level::None },
            ],
            more: false,
            macs: vec![Mac([2, 0, 0, 0, 0, 1])],
            frame_max: 9000,
        };
        let text =
            "ANSWER: LUN 0 at encrypt, LUN 1 at none, one port, frames of up to 9000 bytes, a password";
        self.add(Cmd::Discovery, text, |out| Discovery::Answer(answer).encode(out));
        let handshake = [0x33; 16];
        let hello = Hello { handshake, group: group.clone(), target: target.clone() };
        self.add(Cmd::Negotiate, "HELLO, padded", |out| Negotiate::Hello(hello).encode(out));
        let cookie = Negotiated::Cookie { handshake, cookie: [0x44; 40] };
        self.add(Cmd::Negotiated, "COOKIE", |out| cookie.encode(out));
        let start = Start {
            handshake,
            cookie: [0x44; 40],
            group,
            target,
            initiator: Name::new("iqn.2026-01.org.example:host").unwrap(),
            isid: [0x80, 0, 0, 0, 0, 1],
            sid: 0x0102_0304,
            offer: Parameters { frame_max: 9000, ..Parameters::DEFAULT },
            ke1: None,
        };
        let text = "START: SID 01020304h, frames of up to 9000 bytes, all else default, no password";
        self.add(Cmd::Negotiate, text, |out| Negotiate::Start(Box::new(start)).encode(out));
        let (sid, choice) = (0x0506_0708, Parameters::DEFAULT);
        let stretch = StretchCost { memory_kib: 65536, passes: 3, lanes: 1 };
        let answer = negotiate::Answer { handshake, sid, choice, stretch, ke2: [0x55; 320] };
        let text = "ANSWER: SID 05060708h, 64 MiB, 3 passes, 1 lane";
        self.add(Cmd::Negotiated, text, |out| Negotiated::Answer(Box::new(answer)).encode(out));
        let finish = Finish { handshake, sid, ke3: [0x66; 64] };
        self.add(Cmd::Negotiate, "FINISH", |out| Negotiate::Finish(finish).encode(out));
        let (token, instance, proof) = ([0x77; 16], [0x22; 16], Some([0x88; 32]));
        let accept = Accept { handshake, sid, choice, token, instance, proof };
        self.add(Cmd::Negotiated, "ACCEPT", |out| Negotiated::Accept(accept).encode(out));
        let refuse = Negotiated::Refuse { handshake, reason: RefuseReason::BUSY, retry_after_ms: 250 };
        self.add(Cmd::Negotiated, "REFUSE: busy, again after 250 ms", |out| refuse.encode(out));
    }
}

#[test]
fn payloads_are_those_of_the_specification() {
    let made = Vectors::made().text;
    let document = include_str!("../../../docs/hyperscsi.md");
    assert!(document.contains(&made), "docs/hyperscsi.md prints others than are made now:\n{made}");
}

#[test]
fn the_parts_of_the_specification_are_three_and_each_is_what_it_says() {
    let bytes = Vectors::default().parts();
    let frame = Header {
        tag: 1,
        last: true,
        fragment: 0,
        protected: false,
        cmd: Cmd::Reply,
        flags: Flags::ELICITS.with(Flags::PARTS),
        len: u16::try_from(bytes.len()).unwrap(),
        sid: 1,
        pn: 1,
        xid: 2,
        off: 0,
    };
    let mut read = Vec::new();
    Parts::parse(&bytes).unwrap().each(&frame, &mut |header, payload| {
        let is_data = header.flags.has(Flags::DATA);
        let what = if is_data {
            String::from_utf8(payload.to_vec()).unwrap()
        } else {
            format!("{:?}", Reply::parse(payload).unwrap())
        };
        read.push((header.tag, header.xid, header.off, header.flags.has(Flags::GOOD), what));
    });
    assert_eq!(read.len(), 3);
    assert_eq!(read[0], (1, 2, 0, false, format!("{:?}", Reply::Managed(TmfResult::COMPLETE))));
    assert_eq!(read[1], (5, 6, 4096, true, "the data".into()));
    assert!(
        read[2].4.starts_with("TransferReady") && (read[2].0, read[2].1, read[2].3) == (7, 8, false),
        "{read:?}"
    );
}

#[test]
fn payloads_of_the_specification_are_read_for_what_they_are_and_never_for_another() {
    for (cmd, payload) in Vectors::made().payloads {
        let read = match cmd {
            Cmd::Request => Request::parse(&payload).is_ok(),
            Cmd::Reply => Reply::parse(&payload).is_ok(),
            Cmd::Discovery => Discovery::parse(&payload).is_ok(),
            Cmd::Negotiate => Negotiate::parse(&payload).is_ok(),
            Cmd::Negotiated => Negotiated::parse(&payload).is_ok(),
            Cmd::Disconnect => Disconnect::parse(&payload).is_ok(),
            Cmd::Ask => Ask::parse(&payload).is_ok(),
            Cmd::Ack => Ack::parse(&payload).is_ok(),
            Cmd::Abort => Abort::parse(&payload).is_ok(),
        };
        assert!(read, "{cmd:?} {payload:02x?}");
        // A length field that is one byte too long or too short: the block is refused.
        for len in [payload.len() - 1, payload.len() + 1] {
            let mut wrong = payload.clone();
            wrong[2..4].copy_from_slice(&u16::try_from(len).unwrap().to_be_bytes());
            let reads = [
                Request::parse(&wrong).is_ok(),
                Reply::parse(&wrong).is_ok(),
                Ack::parse(&wrong).is_ok(),
                Abort::parse(&wrong).is_ok(),
            ];
            assert!(!reads.contains(&true), "{cmd:?} of {len} bytes");
        }
    }
}
