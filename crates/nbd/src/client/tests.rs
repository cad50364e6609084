//! The client against a server that is a value: it holds a disk, answers late and out of order, dies, and
//! loses what was not flushed.

mod durability;
mod handover;
mod hostile;
mod lost;
mod server;

use alloc::format;
use alloc::vec;
use alloc::vec::Vec;

use base::buffer::Bytes;
use base::int_cast::{to_u64, to_usize};
use base::rng::Rng;
use base::transmit::Transmit;
use store::api::{Durability, Extent, ExtentState};

use super::*;
use crate::wire::{Cmd, Errno, FLAG_FUA};
use server::{Server, info};

/// A client, its server, and the bytes between them.
struct Rig {
    client: Client,
    server: Server,
    now: Instant,
    pool: Pool,
    next_op: u64,
    notices: Vec<Notice>,
    actions: Vec<ClientAction>,
}

impl Rig {
    fn new(server: Server) -> Self {
        let config = ClientConfig {
            patience: Some(Duration::from_secs(30)),
            write_cache: true,
            read_only: false,
            block_len: 512,
        };
        let pool = Pool::new(1 << 20);
        let mut client = Client::new(config, server.info, pool.clone());
        client.trust_earlier_client();
        client.connected(Instant::ORIGIN, server.info);
        let (notices, actions) = (Vec::new(), Vec::new());
        Self { client, server, now: Instant::ORIGIN, pool, next_op: 0, notices, actions }
    }

    fn submit(&mut self, action: OpAction) -> OpId {
        self.next_op += 1;
        let id = OpId(self.next_op);
        self.client.submit(self.now, Op { id, action });
        id
    }

    fn write(&mut self, at: u64, data: &[u8]) -> OpId {
        let data = Bytes::copied_from(data).into();
        self.submit(OpAction::Write { at, data, durability: Durability::Cached })
    }

    fn write_stable(&mut self, at: u64, data: &[u8]) -> OpId {
        let data = Bytes::copied_from(data).into();
        self.submit(OpAction::Write { at, data, durability: Durability::Stable })
    }

    /// Lets the server answer one of the requests that it holds.
    fn answer(&mut self, which: usize) {
        let answer = self.server.answer(which).unwrap();
        self.deliver(&answer, &mut Rng::from_seed(1));
        self.drain();
    }

    fn read(&mut self, at: u64, len: usize) -> OpId {
        self.submit(OpAction::Read { at, len })
    }

    /// Carries out what the client asks for, without an answer of the server.
    fn drain(&mut self) {
        while let Some(action) = self.client.poll_action() {
            self.actions.push(action);
            match action {
                ClientAction::Transmit => {
                    let mut out = Transmit::new();
                    self.client.transmit(self.now, &mut out);
                    let sent: Vec<u8> = out.pieces().flatten().copied().collect();
                    self.server.receive(&sent);
                    if out.is_full() {
                        self.client.transmit_due = true;
                    }
                    out.clear(&self.pool);
                }
                ClientAction::Abort | ClientAction::Close => {
                    self.server.disconnect();
                    self.client.disconnected(self.now);
                }
                ClientAction::Connect => {}
            }
        }
        self.notices.extend(core::iter::from_fn(|| self.client.poll_notice()));
    }

    /// Gives bytes to the client, in pieces, of which some are received in place.
    fn deliver(&mut self, bytes: &[u8], rng: &mut Rng) {
        let mut left = bytes;
        while !left.is_empty() {
            let most = u64::try_from(left.len()).unwrap();
            let len = to_usize(1 + rng.below(most.min(9000)));
            if let Some(mut rx_buffer) = self.client.take_rx_buffer() {
                let taken = len.min(rx_buffer.len_max);
                assert!(rx_buffer.buf.spare_mut().len() >= rx_buffer.len_max);
                rx_buffer.buf.append(&left[..taken]);
                left = &left[taken..];
                self.client.return_rx_buffer(self.now, rx_buffer);
            } else {
                self.client.received(self.now, &left[..len]);
                left = &left[len..];
            }
        }
    }

    /// Lets the server answer everything, in order.
    fn settle(&mut self) {
        let mut rng = Rng::from_seed(1);
        self.drain();
        while let Some(answer) = self.server.answer(0) {
            self.deliver(&answer, &mut rng);
            self.drain();
        }
    }

    /// Returns the result of an operation that has ended; others that ended are dropped.
    fn result(&mut self, id: OpId) -> Option<Result<OpOutput, Failure>> {
        core::iter::from_fn(|| self.client.poll()).find(|done| done.id == id).map(|done| done.result)
    }

    fn ended(&mut self) -> Vec<(OpId, Option<Fault>)> {
        core::iter::from_fn(|| self.client.poll())
            .map(|done| (done.id, done.result.err().map(|failure| failure.fault)))
            .collect()
    }

    /// Waits until the next deadline.
    fn wait(&mut self) {
        self.now = self.client.poll_timeout().unwrap();
        self.client.handle_timeout(self.now);
        self.drain();
    }

    /// The server dies, keeping the unflushed changes that `keeps` chooses, and is started again.
    fn restart(&mut self, keeps: Option<&mut Rng>) {
        self.server.die(keeps);
        self.client.disconnected(self.now);
        self.drain();
        self.reconnect();
    }

    fn reconnect(&mut self) {
        self.actions.clear();
        while !self.actions.contains(&ClientAction::Connect) {
            self.wait();
        }
        let info = self.server.info;
        self.client.connected(self.now, info);
        self.drain();
    }
}

fn data_of(result: Option<Result<OpOutput, Failure>>) -> Vec<u8> {
    match result {
        Some(Ok(OpOutput::Data(data))) => data.parts().iter().flat_map(|part| part.to_vec()).collect(),
        other => panic!("no data: {other:?}"),
    }
}

#[test]
fn a_long_read_and_a_long_write_are_split_and_come_back_whole() {
    for structured in [true, false] {
        let small = ExportInfo { payload_len_max: 64 << 10, structured, ..info(4 << 20) };
        let mut rig = Rig::new(Server::new(small));
        let written: Vec<u8> = (0..700_u32 * 512).map(|at| u8::try_from(at / 512 % 251).unwrap()).collect();
        let id = rig.write(512, &written);
        rig.settle();
        assert!(matches!(rig.result(id), Some(Ok(OpOutput::Done(data))) if data.len() == written.len()));
        assert_eq!(rig.server.seen.iter().filter(|request| request.command == Cmd::WRITE).count(), 6);
        let id = rig.read(512, written.len());
        rig.settle();
        assert_eq!(data_of(rig.result(id)), written);
    }
}

#[test]
fn what_the_export_cannot_do_is_not_asked_of_it() {
    let poor = ExportInfo { flags: 1, allocation_id: None, ..info(1 << 20) };
    let mut rig = Rig::new(Server::new(poor));
    let capabilities = rig.client.capabilities();
    assert!(!capabilities.volatile_cache && !capabilities.thin && !capabilities.read_only);
    let flush = rig.submit(OpAction::Flush);
    assert!(matches!(rig.result(flush), Some(Ok(_))));
    let durability = Durability::Stable;
    let unsupported = [
        OpAction::Deallocate { at: 0, len: 512 },
        OpAction::WriteZeroes { at: 0, len: 512, may_deallocate: true, durability },
    ];
    for action in unsupported {
        let id = rig.submit(action);
        assert_eq!(rig.result(id).unwrap().unwrap_err().fault, Fault::Unsupported);
    }
    let id = rig.submit(OpAction::MapStatus { at: 0, len: 4096, count_max: 3 });
    let whole = vec![Extent { at: 0, len: 4096, state: ExtentState::Mapped }];
    assert!(matches!(rig.result(id), Some(Ok(OpOutput::MapStatus(extents))) if extents == whole));
    assert!(rig.server.seen.is_empty());

    let read_only = ExportInfo { flags: 1 | transmission::READ_ONLY, ..poor };
    let mut rig = Rig::new(Server::new(read_only));
    let id = rig.write(0, &[0; 512]);
    assert_eq!(rig.result(id).unwrap().unwrap_err().fault, Fault::ReadOnly);
    let id = rig.read(1 << 20, 512);
    assert_eq!(rig.result(id).unwrap().unwrap_err().fault, Fault::OutOfRange);
}

#[test]
fn durability_becomes_fua_where_the_export_has_it_and_a_flush_elsewhere() {
    let commands = |flags: u16, write_cache: bool| {
        let mut rig = Rig::new(Server::new(ExportInfo { flags, ..info(1 << 20) }));
        rig.client.set_write_cache(write_cache);
        let data = Bytes::copied_from(&[1; 512]).into();
        let durability = if write_cache { Durability::Stable } else { Durability::Cached };
        let id = rig.submit(OpAction::Write { at: 0, data, durability });
        rig.settle();
        assert!(matches!(rig.result(id), Some(Ok(_))));
        assert!(!rig.client.has_lost_changes());
        rig.server.seen.iter().map(|request| (request.command, request.flags)).collect::<Vec<_>>()
    };
    let flush = transmission::SEND_FLUSH;
    for write_cache in [true, false] {
        assert_eq!(commands(1 | flush | transmission::SEND_FUA, write_cache), [(Cmd::WRITE, FLAG_FUA)]);
        assert_eq!(commands(1 | flush, write_cache), [(Cmd::WRITE, 0), (Cmd::FLUSH, 0)]);
        assert_eq!(commands(1, write_cache), [(Cmd::WRITE, 0)]);
    }
}

#[test]
fn block_status_becomes_extents_of_whole_blocks() {
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    let id = rig.submit(OpAction::MapStatus { at: 0, len: 8192, count_max: 16 });
    rig.server.extents = vec![(700, 3), (100, 0), (1000, 2), (1272, 1), (1024, 3), (1 << 30, 3)];
    rig.settle();
    let expected = [
        (0, 512, ExtentState::Hole),
        (512, 512, ExtentState::Mapped),
        (1024, 512, ExtentState::Anchored),
        (1536, 1536, ExtentState::Mapped),
        (3072, 5120, ExtentState::Hole),
    ];
    let Some(Ok(OpOutput::MapStatus(extents))) = rig.result(id) else { panic!() };
    let extents: Vec<_> = extents.iter().map(|extent| (extent.at, extent.len, extent.state)).collect();
    assert_eq!(extents, expected);
}

#[test]
fn a_closing_client_flushes_and_takes_leave() {
    let mut rig = Rig::new(Server::new(info(1 << 20)));
    let id = rig.write(0, &[7; 512]);
    rig.client.close();
    rig.settle();
    assert!(matches!(rig.result(id), Some(Ok(_))));
    let commands: Vec<Cmd> = rig.server.seen.iter().map(|request| request.command).collect();
    assert_eq!(commands, [Cmd::WRITE, Cmd::FLUSH, Cmd::DISC]);
    assert!(rig.client.is_closed() && !rig.client.has_lost_changes());
    assert_eq!(rig.notices, []);
    assert_eq!(rig.server.durable[..512], [7; 512]);
}

#[test]
fn many_changes_without_a_flush_of_the_owner_are_flushed_by_the_client() {
    let mut rig = Rig::new(Server::new(info(64 << 20)));
    for round in 0..80 {
        let id = rig.write(round * (1 << 20) % (64 << 20), &vec![3; 1 << 20]);
        rig.settle();
        assert!(matches!(rig.result(id), Some(Ok(_))));
    }
    let flushes = rig.server.seen.iter().filter(|request| request.command == Cmd::FLUSH).count();
    assert_eq!(flushes, 2);
}
