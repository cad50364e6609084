//! Writes a capture (pcap) of frames that this room made: every command, every block, every level. Prints one
//! line for each frame that says what was sent, for those who judge what a dissector makes of it.
//!
//! ```sh
//! cargo run -p targe-hyperscsi --example capture -- /tmp/hyperscsi.pcap
//! ```

use std::boxed::Box;
use std::io::{self, Write as _};

use base::buffer::Bytes;
use base::ether::{FrameBatch, Mac};
use hyperscsi::aead::{Encryptor, SessionKeys};
use hyperscsi::frame::{Cmd, Flags, Header, VERSION};
use hyperscsi::pdu::abort::{Abort, AbortReason, AbortResult};
use hyperscsi::pdu::ack::{Ack, Range, Ranges};
use hyperscsi::pdu::ask::{Ask, PathValidation};
use hyperscsi::pdu::command::{Command, Manage, Request};
use hyperscsi::pdu::disconnect::{Disconnect, DisconnectReason};
use hyperscsi::pdu::discovery::{self, Discovery, ExportedLun, Question};
use hyperscsi::pdu::name::{GroupName, Name};
use hyperscsi::pdu::negotiate::{Accept, Answer, Finish, Hello, Negotiate, Negotiated, RefuseReason, Start};
use hyperscsi::pdu::parameters::Parameters;
use hyperscsi::pdu::parts;
use hyperscsi::pdu::reply::{Reply, Response, TransferReady};
use hyperscsi::{ETHERTYPE, Role};
use security::Level;
use security::opaque::StretchCost;
use transport::command::{Cdb, TaskAttribute};
use transport::task_management::{TmfFunction, TmfResult};

const INITIATOR: Mac = Mac([2, 0, 0, 0, 0, 1]);
const TARGET: Mac = Mac([2, 0, 0, 0, 0, 2]);

fn main() -> io::Result<()> {
    let Some(path) = std::env::args().nth(1) else {
        eprintln!("usage: capture FILE");
        std::process::exit(2);
    };
    let mut capture = Capture::new();
    capture.outside_of_sessions();
    for level in [Level::None, Level::Integrity, Level::Encrypt] {
        capture.session(level);
    }
    std::fs::write(&path, &capture.file)?;
    io::stdout().write_all(capture.told.as_bytes())
}

/// A payload, and the blocks in it by name.
type Payload = (Vec<u8>, &'static str);

fn payload(name: &'static str, encode: impl FnOnce(&mut Vec<u8>)) -> Payload {
    let mut out = Vec::new();
    encode(&mut out);
    (out, name)
}

struct Capture {
    file: Vec<u8>,
    told: String,
    sealers: [Encryptor; 2],
    count: u64,
}

impl Capture {
    fn new() -> Self {
        // The header of a pcap file: magic, version 2.4, time zone, accuracy, longest frame, Ethernet.
        let words = [0xa1b2_c3d4_u32, 0x0002_0004, 0, 0, 1 << 18, 1];
        let keys = SessionKeys::from_secret(b"a capture", &[7; 64]);
        Self {
            file: words.into_iter().flat_map(u32::to_be_bytes).collect(),
            told: String::new(),
            sealers: [Role::Initiator, Role::Target].map(|role| Encryptor::for_role(&keys, role)),
            count: 0,
        }
    }

    fn outside_of_sessions(&mut self) {
        let (group, target) = (GroupName::new("backup"), Name::new("iqn.2026-01.org.example:disk"));
        let (Some(group), Some(target), Some(initiator)) =
            (group, target, Name::new("iqn.2026-01.org.example:host"))
        else {
            return;
        };
        let question = Question { nonce: [1; 16], group: group.clone(), target: None };
        let answer = discovery::Answer {
            nonce: [1; 16],
            instance: [2; 16],
            group: group.clone(),
            target: target.clone(),
            authenticates: true,
            luns: vec![ExportedLun { lun: 1 << 48, level: Level::Encrypt }],
            more: false,
            macs: vec![TARGET],
            frame_max: 9000,
        };
        for (name, step) in
            [("QUESTION", Discovery::Question(question)), ("ANSWER", Discovery::Answer(answer))]
        {
            self.plain(Cmd::Discovery, payload(name, |out| step.encode(out)));
        }
        let (handshake, sid, choice) = ([3; 16], 0x0102_0304, Parameters::DEFAULT);
        let start = Start {
            handshake,
            cookie: [4; 40],
            group: group.clone(),
            target: target.clone(),
            initiator,
            isid: [0x80, 0, 0, 0, 0, 1],
            sid,
            offer: Parameters { frame_max: 9000, ..choice },
            ke1: Some([5; 96]),
        };
        for (name, step) in [
            ("HELLO", Negotiate::Hello(Hello { handshake, group, target })),
            ("START", Negotiate::Start(Box::new(start))),
            ("FINISH", Negotiate::Finish(Finish { handshake, sid, ke3: [6; 64] })),
        ] {
            self.plain(Cmd::Negotiate, payload(name, |out| step.encode(out)));
        }
        let stretch = StretchCost { memory_kib: 64 << 10, passes: 3, lanes: 1 };
        let answer = Answer { handshake, sid, choice, stretch, ke2: [7; 320] };
        for (name, step) in [
            ("COOKIE", Negotiated::Cookie { handshake, cookie: [4; 40] }),
            ("ANSWER", Negotiated::Answer(Box::new(answer))),
            (
                "ACCEPT",
                Negotiated::Accept(Accept {
                    handshake,
                    sid,
                    choice,
                    token: [8; 16],
                    instance: [2; 16],
                    proof: Some([9; 32]),
                }),
            ),
            ("REFUSE", Negotiated::Refuse { handshake, reason: RefuseReason::BUSY, retry_after_ms: 500 }),
        ] {
            self.plain(Cmd::Negotiated, payload(name, |out| step.encode(out)));
        }
        self.plain(
            Cmd::Disconnect,
            payload("UNKNOWN", |out| Disconnect::Unknown { sid: 0xcafe }.encode(out)),
        );
    }

    fn plain(&mut self, cmd: Cmd, payload: Payload) {
        let header = Header { cmd, ..header() };
        self.frame(header, Level::None, payload, &[]);
    }

    fn session(&mut self, level: Level) {
        for (cmd, payload) in blocks() {
            self.count += 1;
            let count = u32::try_from(self.count).unwrap_or_default();
            let header = Header {
                cmd,
                tag: u16::try_from(self.count * 37 % 512).unwrap_or_default(),
                flags: Flags::ELICITS,
                sid: 0x0a0b_0c0d,
                xid: count,
                ..header()
            };
            let data: &[u8] = if payload.1 == "COMMAND, data" { &[0x5a; 512] } else { &[] };
            self.frame(header, level, payload, data);
        }
        self.several(level);
        let acked = payload("ACK of protected frames, data", |out| ack().encode(ranges().into_iter(), out));
        let flags = Flags::ELICITS.with(Flags::DATA).with(Flags::GOOD).with(Flags::ACKS);
        let data = [0xa5; 8000];
        for (fragment, len) in [(0, 1), (512, 1400), (1023, data.len())] {
            let off = u32::from(fragment) * 1400;
            let last = fragment == 1023;
            let header =
                Header { cmd: Cmd::Reply, tag: 511, flags, fragment, last, xid: 99, off, ..header() };
            self.frame(header, level, acked.clone(), data.get(..len).unwrap_or_default());
        }
    }

    /// Frames of several parts, requests and replies.
    fn several(&mut self, level: Level) {
        let of = |cmd| blocks().into_iter().filter(move |(own, _)| *own == cmd).map(|(_, payload)| payload);
        for cmd in [Cmd::Request, Cmd::Reply] {
            let mut parts: Vec<(Header, Payload)> = Vec::new();
            for (at, block) in (7..).zip(of(cmd).chain([(vec![0xa5; 600], "data"), (Vec::new(), "data")])) {
                let is_data = block.1 == "data";
                let flags = if is_data { Flags::DATA.with(Flags::GOOD) } else { Flags::default() };
                let len = u16::try_from(block.0.len()).unwrap_or_default();
                let off = if is_data { 4096 } else { 0 };
                let (tag, xid) = (at, u32::from(at) * 100);
                // The data of a write stands behind its block; here there is none.
                let name = if block.1 == "COMMAND, data" { "COMMAND" } else { block.1 };
                parts.push((
                    Header { cmd, tag, fragment: at, flags, len, xid, off, ..header() },
                    (block.0, name),
                ));
            }
            let (first, further) = match parts.split_first() {
                Some(((first, _), further)) => (*first, further),
                None => return,
            };
            let mut whole = Vec::new();
            ack().encode(ranges().into_iter(), &mut whole);
            parts::encode(further.iter().map(|(header, _)| *header), &mut whole);
            parts.iter().for_each(|(_, (bytes, _))| whole.extend_from_slice(bytes));
            let mut names = vec!["ACK of protected frames"];
            names.extend(parts.iter().map(|(_, (_, name))| *name));
            let flags = first.flags.with(Flags::ELICITS).with(Flags::ACKS).with(Flags::PARTS);
            let header = Header { flags, sid: 0x0a0b_0c0d, ..first };
            self.frame(header, level, (whole, &names.join(", ")), &[]);
        }
    }

    fn frame(&mut self, mut header: Header, level: Level, (payload, name): (Vec<u8>, &str), data: &[u8]) {
        self.count += 1;
        let reply = matches!(header.cmd, Cmd::Reply | Cmd::Negotiated);
        header.protected = level != Level::None;
        if level == Level::Encrypt {
            header.flags = header.flags.with(Flags::ENCRYPTED);
        }
        header.len = u16::try_from(payload.len() + data.len()).unwrap_or_default();
        header.pn = if header.sid == 0 && level == Level::None { 0 } else { (3 << 56) | self.count };
        let mut batch = FrameBatch::new();
        batch.begin_frame(if reply { INITIATOR } else { TARGET });
        batch.put(&header.to_bytes());
        batch.put(&payload);
        batch.put_shared(Bytes::copied_from(data));
        let [initiator, target] = &mut self.sealers;
        if let Err(why) = if reply { target } else { initiator }.seal(&header, &mut batch) {
            eprintln!("{why}");
            return;
        }
        batch.end_frame();
        self.record(&batch, if reply { TARGET } else { INITIATOR });
        let shown = if level == Level::Encrypt { "encrypted" } else { name };
        self.told += &format!(
            "{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{shown}\n",
            header.tag,
            u8::from(header.last),
            header.fragment,
            VERSION,
            header.cmd as u8,
            u8::from(header.protected),
            header.flags.0,
            header.len,
            header.sid,
            header.pn,
            header.xid,
            header.off,
        );
    }

    fn record(&mut self, batch: &FrameBatch, from: Mac) {
        for (to, _, pieces) in batch.frames() {
            let mut frame = [to.0, from.0].concat();
            frame.extend_from_slice(&ETHERTYPE.to_be_bytes());
            pieces.for_each(|piece| frame.extend_from_slice(piece));
            // As a card pads it.
            frame.resize(frame.len().max(60), 0);
            let len = u32::try_from(frame.len()).unwrap_or_default();
            let micros = u32::try_from(self.count).unwrap_or_default();
            self.file.extend([0, micros, len, len].into_iter().flat_map(u32::to_be_bytes));
            self.file.extend_from_slice(&frame);
        }
    }
}

fn header() -> Header {
    Header {
        tag: 0,
        last: true,
        fragment: 0,
        protected: false,
        cmd: Cmd::Request,
        flags: Flags::default(),
        len: 0,
        sid: 0,
        pn: 0,
        xid: 0,
        off: 0,
    }
}

fn ack() -> Ack<'static> {
    Ack {
        sealed: true,
        largest: (3 << 56) | 5000,
        delay_us: 40,
        first: 100,
        pn_limit: (3 << 56) | 9000,
        xid_limit: 512,
        overruns: 1,
        ranges: Ranges::default(),
    }
}

fn ranges() -> [Range; 2] {
    [Range { gap: 3, len: 20 }, Range { gap: 1, len: 7 }]
}

/// Every block that stands in a session.
fn blocks() -> Vec<(Cmd, Payload)> {
    let command = Command {
        lun: 1 << 48,
        attribute: TaskAttribute::ORDERED,
        priority: 2,
        after: 4,
        data_in_len: 0,
        data_out_len: 512,
        unsolicited_len: 512,
        cdb: Cdb::new(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0]).unwrap_or_else(|| unreachable!()),
    };
    let manage = Manage { function: TmfFunction::ABORT_TASK, lun: 0, after: 3, referenced: 2 };
    let ready = TransferReady { number: 1, offset: 65536, len: 65536 };
    let response =
        Response { status: 2, data_in_len: 0, transferable: 0, sense: &[0x70, 0, 5, 0, 0, 0, 0, 10] };
    let path = PathValidation { challenge: 1, echo: 2, frame_max: 9000, token: Some([9; 16]) };
    let reply = |name, reply: Reply<'_>| (Cmd::Reply, payload(name, |out| reply.encode(out)));
    let ask = |name, ask: Ask| (Cmd::Ask, payload(name, |out| ask.encode(out)));
    vec![
        (Cmd::Request, payload("COMMAND, data", |out| Request::Command(command).encode(out))),
        (Cmd::Request, payload("MANAGE", |out| Request::Manage(manage).encode(out))),
        reply("TRANSFER READY", Reply::TransferReady(ready)),
        reply("RESPONSE", Reply::Response(response)),
        reply("MANAGED", Reply::Managed(TmfResult::COMPLETE)),
        ask("PING", Ask::Ping),
        ask("MTU", Ask::Mtu(1500)),
        ask("PATH", Ask::Path(path)),
        ask("LEAVE", Ask::Leave { path: 2 }),
        ask("RECEIVES", Ask::Receives(1500)),
        (Cmd::Ack, payload("ACK of protected frames", |out| ack().encode(ranges().into_iter(), out))),
        (Cmd::Abort, payload("GIVE UP", |out| Abort::GiveUp(AbortReason::ASKED).encode(out))),
        (Cmd::Abort, payload("GIVEN UP", |out| Abort::GivenUp(AbortResult::ABORTED).encode(out))),
        (
            Cmd::Disconnect,
            payload("GOODBYE", |out| Disconnect::Goodbye(DisconnectReason::SHUTDOWN).encode(out)),
        ),
        (Cmd::Disconnect, payload("DONE", |out| Disconnect::Done.encode(out))),
    ]
}
