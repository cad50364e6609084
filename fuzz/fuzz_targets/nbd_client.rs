//! What an NBD server can send to a client: in the negotiation, and in answer to requests that the client
//! really sent.
//!
//! The first byte says what export it is; each operation is one of the owner of the client, an answer that is
//! framed here for a request under way, raw bytes, payload into a buffer that was lent, a lost connection, or
//! time that passes.
#![no_main]

use std::collections::BTreeSet;

use base::buffer::{Bytes, Pool};
use base::time::{Duration, Instant};
use base::transmit::Transmit;
use ground::Operations;
use libfuzzer_sys::fuzz_target;
use nbd::client::{Client, ClientAction, ClientConfig};
use nbd::handshake::{ExportInfo, Handshake};
use nbd::wire::{Cmd, Errno, Head, Request};
use store::api::{Durability, Op, OpAction, OpId, OpOutput};

const LEN: u64 = 8 << 20;
/// The most requests that the client has under way.
const REQUESTS_MAX: usize = 64;
const PATIENCE: Duration = Duration::from_secs(30);

struct World {
    client: Client,
    info: ExportInfo,
    pool: Pool,
    now: Instant,
    is_up: bool,
    /// The bytes of requests that are not whole, and the requests under way.
    sent: Vec<u8>,
    under_way: Vec<Request>,
    submitted: BTreeSet<(u64, usize)>,
    next: u64,
}

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    let mut world = World::new(*first);
    for (which, bytes) in Operations::of(rest) {
        match which >> 5 {
            0 => world.submit(which & 0x1f, bytes),
            1 | 2 => world.answer(which & 0x3f, bytes),
            3 => world.receive(bytes),
            4 => world.pay(bytes),
            5 => world.lose(which & 0x1f),
            6 => world.pass(u64::from(which & 0x1f)),
            _ => negotiate(bytes),
        }
        world.drain();
    }
    // Whatever the server did, every operation ends once the limit has passed.
    world.pass(1000);
    world.drain();
    world.client.disconnected(world.now);
    world.pass(1000);
    world.drain();
    assert!(world.submitted.is_empty(), "{:?}", world.submitted);
});

fn negotiate(bytes: &[u8]) {
    let mut handshake = Handshake::new("disk");
    let mut left = bytes;
    loop {
        let len = handshake.wanted().min(left.len());
        let (part, rest) = left.split_at(len);
        left = rest;
        match handshake.received(part) {
            Ok(None) if len > 0 => assert!(handshake.take_output().len() < 10_000),
            Ok(Some(info)) => {
                assert!(info.block_len.is_power_of_two() && info.payload_len_max >= info.block_len);
                assert!(
                    info.payload_len_max % info.block_len == 0 && info.len % u64::from(info.block_len) == 0
                );
                return;
            }
            _ => return,
        }
    }
}

impl World {
    fn new(first: u8) -> Self {
        let block_len = if first & 1 == 0 { 1 } else { 512 };
        let info = ExportInfo {
            len: LEN,
            flags: if first & 2 == 0 { 0x6d } else { u16::from(first) << 1 & 0x6e | 1 },
            block_len,
            preferred_block_len: 4096,
            payload_len_max: if first & 4 == 0 { 32 << 20 } else { 4096 },
            change_len_max: 1 << 31,
            structured: first & 8 == 0,
            allocation_id: (first & 8 == 0).then_some(1),
        };
        let config = ClientConfig {
            patience: Some(PATIENCE),
            write_cache: first & 16 == 0,
            read_only: false,
            block_len: 512,
        };
        let pool = Pool::new(1 << 20);
        let mut client = Client::new(config, info, pool.clone());
        client.connected(Instant::ORIGIN, info);
        let (sent, under_way) = (Vec::new(), Vec::new());
        let (now, submitted) = (Instant::ORIGIN, BTreeSet::new());
        Self { client, info, pool, now, is_up: true, sent, under_way, submitted, next: 0 }
    }

    fn submit(&mut self, which: u8, bytes: &[u8]) {
        let Some(([at, len], data)) = bytes.split_first_chunk() else { return };
        let (at, len) = (u64::from(*at) * 512, u64::from(*len) * 512 << (which >> 3));
        let bytes = usize::try_from(len).unwrap();
        let stable = data.first().is_some_and(|byte| byte & 1 != 0);
        let durability = if stable { Durability::Stable } else { Durability::Cached };
        let action = match which & 7 {
            0 | 1 => OpAction::Read { at, len: bytes },
            2 | 3 => OpAction::Write { at, data: Bytes::copied_from(&vec![7; bytes]).into(), durability },
            4 => OpAction::Flush,
            5 => OpAction::Deallocate { at, len },
            6 => OpAction::WriteZeroes { at, len, may_deallocate: stable, durability },
            _ => OpAction::MapStatus { at, len, count_max: 8 },
        };
        self.next += 1;
        let read = if matches!(action, OpAction::Read { .. }) { bytes } else { 0 };
        self.submitted.insert((self.next, read));
        self.client.submit(self.now, Op { id: OpId(self.next), action });
    }

    /// An answer to a request under way: right, an error, or a chunk with any content.
    fn answer(&mut self, which: u8, bytes: &[u8]) {
        if self.under_way.is_empty() {
            return;
        }
        let at = usize::from(which >> 3) % self.under_way.len();
        let request = self.under_way[at];
        let Request { command, cookie, at: offset, len, .. } = request;
        let simple = |error| Head::simple(cookie, error).bytes().to_vec();
        let said = match which & 7 {
            0..=3 => {
                self.under_way.remove(at);
                match command {
                    Cmd::READ if self.info.structured => [
                        Head::offset_data(cookie, offset, len).bytes(),
                        &vec![9; usize::try_from(len).unwrap()],
                    ]
                    .concat(),
                    Cmd::READ => [simple(None), vec![9; usize::try_from(len).unwrap()]].concat(),
                    Cmd::BLOCK_STATUS => [
                        Head::block_status(cookie, 16).bytes(),
                        &[0, 0, 16, 0, 0, 0, 0, 3, 0, 0, 9, 0, 0, 0, 0, 0],
                    ]
                    .concat(),
                    _ => simple(None),
                }
            }
            4 => {
                self.under_way.remove(at);
                simple(Some(Errno(u32::from(bytes.first().copied().unwrap_or(5)))))
            }
            kind => {
                let kind = [1, 2, 0x8001][usize::from(kind - 5)]
                    + u16::from(bytes.first().copied().unwrap_or(0)) / 64;
                let content = bytes.get(1..).unwrap_or_default();
                let mut said = 0x668e_33ef_u32.to_be_bytes().to_vec();
                said.extend(u16::from(which & 1).to_be_bytes());
                said.extend(kind.to_be_bytes());
                said.extend(cookie.to_be_bytes());
                said.extend((u32::try_from(content.len()).unwrap() + 8).to_be_bytes());
                said.extend(offset.wrapping_add(u64::from(which >> 5)).to_be_bytes());
                said.extend(content);
                said
            }
        };
        self.receive(&said);
    }

    fn receive(&mut self, bytes: &[u8]) {
        if self.is_up {
            self.client.received(self.now, bytes);
        }
    }

    fn pay(&mut self, bytes: &[u8]) {
        let Some(mut loan) = self.client.take_rx_buffer() else { return };
        assert!(loan.len_max > 0 && loan.len_max <= loan.buf.spare_mut().len());
        let len = bytes.len().saturating_mul(64).min(loan.len_max);
        loan.buf.append_zeros(len);
        self.client.return_rx_buffer(self.now, loan);
    }

    fn lose(&mut self, how: u8) {
        self.disconnect();
        self.drain();
        self.pass(6);
        self.drain();
        let info = ExportInfo {
            len: if how & 1 == 0 { self.info.len } else { LEN + (u64::from(how) << 12) - (1 << 15) },
            structured: how & 2 == 0,
            allocation_id: (how & 2 == 0).then_some(1),
            ..self.info
        };
        if how & 16 != 0 {
            self.client.accept_export();
        }
        self.is_up = true;
        self.client.connected(self.now, info);
        if self.client.capabilities().len == info.len {
            self.info = info;
        }
    }

    fn disconnect(&mut self) {
        self.is_up = false;
        self.sent.clear();
        self.under_way.clear();
        self.client.disconnected(self.now);
    }

    fn pass(&mut self, seconds: u64) {
        self.now = self.now.after(Duration::from_secs(seconds));
        if self.client.poll_timeout().is_some_and(|deadline| deadline <= self.now) {
            self.client.handle_timeout(self.now);
        }
    }

    fn drain(&mut self) {
        for _ in 0..1000 {
            let Some(action) = self.client.poll_action() else { break };
            match action {
                ClientAction::Transmit => self.transmit(),
                ClientAction::Abort | ClientAction::Close => self.disconnect(),
                ClientAction::Connect => {}
            }
        }
        assert!(self.client.poll_action().is_none());
        while self.client.poll_notice().is_some() {}
        while let Some(done) = self.client.poll() {
            let known = self.submitted.range((done.id.0, 0)..).next().copied();
            let (id, read) = known.expect("an operation that ends once");
            assert_eq!(id, done.id.0);
            self.submitted.remove(&(id, read));
            if let Ok(OpOutput::Data(data)) = done.result {
                assert_eq!(data.len(), read);
            }
        }
    }

    fn transmit(&mut self) {
        let mut out = Transmit::new();
        self.client.transmit(self.now, &mut out);
        out.pieces().for_each(|piece| self.sent.extend_from_slice(piece));
        out.clear(&self.pool);
        while let Some(request) = Request::parse(&self.sent) {
            let request = request.expect("a request");
            let len = usize::try_from(request.len).unwrap();
            let payload = if request.command == Cmd::WRITE { len } else { 0 };
            if self.sent.len() < Request::LEN + payload {
                return;
            }
            self.sent.drain(..Request::LEN + payload);
            assert!(payload <= usize::try_from(self.info.payload_len_max).unwrap());
            assert!(request.len > 0 || matches!(request.command, Cmd::FLUSH | Cmd::DISC), "{request:?}");
            self.under_way.push(request);
            // A chunk with any content can have ended a request that is still listed here.
            if self.under_way.len() > REQUESTS_MAX {
                self.under_way.remove(0);
            }
        }
    }
}
