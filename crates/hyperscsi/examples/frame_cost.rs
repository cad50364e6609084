//! What a frame costs the machines of both ends, without any I/O between them: a loop for a profiler.
//!
//! `cargo run --release -p targe-hyperscsi --example frame_cost [MTU [none|integrity|encrypt [LOSS one in]]]`

#![allow(clippy::expect_used, reason = "a tool at a developer's desk may stop")]

use std::collections::VecDeque;
use std::time::Instant as Clock;

use base::buffer::{Buf, Bytes, DataList, Pool};
use base::ether::{EtherPort, FrameBatch, Mac, PortState};
use base::rng::Rng;
use base::time::Instant;
use hyperscsi::Role;
use hyperscsi::aead::SessionKeys;
use hyperscsi::connection::{Connection, ConnectionConfig, ConnectionEvent, Message, PathAddress};
use hyperscsi::frame::{Cmd, Header};
use hyperscsi::pdu::parameters::Parameters;
use security::Level;

const BODY: usize = 256 << 10;
const DEPTH: usize = 16;
const MESSAGES: usize = 20_000;

struct End {
    connection: Connection,
    mac: Mac,
    inbox: VecDeque<Vec<u8>>,
    batch: FrameBatch,
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mtu: usize = arguments.next().map_or(9000, |mtu| mtu.parse().expect("an MTU"));
    let level = match arguments.next().as_deref() {
        Some("integrity") => Level::Integrity,
        Some("encrypt") => Level::Encrypt,
        _ => Level::None,
    };
    let loss: u64 = arguments.next().map_or(0, |loss| loss.parse().expect("a number of frames"));
    let messages: usize =
        arguments.next().map_or(MESSAGES, |count| count.parse().expect("a number of messages"));
    let mut ends = [end(Role::Initiator, mtu, level), end(Role::Target, mtu, level)];
    let mut body = Buf::with_capacity(BODY);
    body.append_zeros(BODY);
    let body = body.freeze();
    let (mut sent, mut done, mut frames, mut bytes) = (0, 0, 0_u64, 0_u64);
    let mut dice = Rng::from_seed(1);
    let mut spare: Vec<Vec<u8>> = Vec::new();
    let pool = Pool::new(1 << 20);
    let clock = Clock::now();
    while done < messages {
        let now = Instant(u64::try_from(clock.elapsed().as_nanos()).expect("it is not that long") + 1);
        while sent < messages && sent - done < DEPTH {
            ends[1].connection.send(message(sent, level, &body));
            sent += 1;
        }
        for from in 0..2 {
            let [a, b] = &mut ends;
            let (own, other) = if from == 0 { (a, b) } else { (b, a) };
            while let Some(mut frame) = own.inbox.pop_front() {
                let (header, _) = Header::parse(&frame).expect("a frame of ours");
                let taken = own.connection.frame_received(
                    now,
                    now,
                    PathAddress { port: EtherPort(0), mac: other.mac },
                    header,
                    &mut frame,
                    &mut |_, data| {
                        bytes += data.len() as u64;
                    },
                );
                taken.expect("a frame of ours");
                frames += 1;
                spare.push(frame);
            }
            if own.connection.poll_timeout().is_some_and(|at| at <= now) {
                own.connection.handle_timeout(now);
            }
            while let Some(event) = own.connection.poll_event() {
                done += usize::from(matches!(event, ConnectionEvent::Delivered(_)));
            }
            while let Some(port) = own.connection.poll_port() {
                own.connection.transmit(now, port, &mut own.batch);
                for (_, _, pieces) in own.batch.frames() {
                    let mut frame = spare.pop().unwrap_or_default();
                    frame.clear();
                    pieces.for_each(|piece| frame.extend_from_slice(piece));
                    if loss == 0 || !dice.chance(1, loss) {
                        other.inbox.push_back(frame);
                    }
                }
                own.batch.clear(&pool);
            }
        }
    }
    let took = clock.elapsed();
    println!(
        "MTU {mtu}, {level}: {frames} frames, {} bytes of data, {:.0} ns and {:.2} GB/s each way",
        bytes,
        took.as_nanos() as f64 / frames as f64,
        bytes as f64 / took.as_nanos() as f64
    );
    for end in &ends {
        println!("{:?}", end.connection.paths().next().expect("a path").stats);
    }
}

fn end(role: Role, mtu: usize, level: Level) -> End {
    let frame_max = u16::try_from(mtu).expect("an MTU");
    let parameters = Parameters { frame_max, ..Parameters::DEFAULT };
    let plan = ConnectionConfig::new(&parameters, &parameters, 256, [0; 16], [1; 8]);
    let keys = (level != Level::None).then(|| SessionKeys::from_secret(&[7; 64], &[9; 64]));
    let macs = [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])];
    let (own, peer) = if role == Role::Initiator { (macs[0], macs[1]) } else { (macs[1], macs[0]) };
    let port = PortState { mac: own, mtu, receive_slots: 512 };
    let address = PathAddress { port: EtherPort(0), mac: peer };
    let connection = Connection::new(role, &plan, Instant(0), keys.as_ref(), 7, 7, address, &port);
    End { connection, mac: own, inbox: VecDeque::new(), batch: FrameBatch::new() }
}

fn message(number: usize, level: Level, body: &Bytes) -> Message {
    let xid = u32::try_from(number + 1).expect("few messages");
    let message = Message::data(
        Cmd::Reply,
        xid,
        u16::try_from(number % 512).expect("nine bits"),
        level,
        0,
        DataList::from(body.clone()),
    );
    Message { last: true, good: true, ..message }
}
