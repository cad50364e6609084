//! What a client of the NBD server can send, with a medium that answers late, out of order, and not always
//! well.
//!
//! The first byte says what disk it is and how far the client got; each operation is an option or a request
//! that is framed here, raw bytes, payload into a buffer that was lent, or an answer of the medium.
#![no_main]

use attach::nbd::{Export, Session, Ticket};
use base::buffer::{Bytes, DataList, Pool};
use base::transmit::Transmit;
use ground::Operations;
use libfuzzer_sys::fuzz_target;
use store::Store;
use store::api::{Capabilities, Extent, ExtentState, Fault, OpAction, OpOutput};
use store::ram::Ram;

const LEN: u64 = 1 << 20;
/// What one client may have under way.
const OPERATIONS_MAX: usize = 256;

struct World {
    session: Session,
    profile: Capabilities,
    pool: Pool,
    held: Vec<(Ticket, OpAction)>,
}

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    let mut world = World::new(*first);
    for (which, bytes) in Operations::of(rest) {
        match which >> 5 {
            0 | 1 => world.request(which & 0x3f, bytes),
            2 => world.option(which & 0x1f, bytes),
            3 => world.session.received(bytes),
            4 => world.pay(bytes),
            5 => world.end_input(which & 0x1f),
            _ => world.answer(which & 0x3f),
        }
        world.drain();
    }
    while !world.held.is_empty() {
        world.answer(0);
        world.drain();
    }
});

impl World {
    fn new(first: u8) -> Self {
        let pool = Pool::new(1 << 20);
        let logical_block_len = if first & 1 == 0 { 512 } else { 4096 };
        let profile = Capabilities {
            logical_block_len,
            read_only: first & 2 != 0,
            thin: first & 4 == 0,
            ..Ram::new(LEN).capabilities()
        };
        let export =
            Export { name: "disk".into(), description: "a disk".into(), key: None };
        let session = Session::new(export, profile.clone(), pool.clone());
        let mut world = Self { session, profile, pool, held: Vec::new() };
        if first & 8 == 0 {
            world.session.received(&[0, 0, 0, 3]);
            if first & 16 == 0 {
                world.option(8, &[]);
                world.option(10, b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation");
            }
            if first & 32 == 0 {
                world.option(7, &[0; 6]);
            }
        }
        world
    }

    fn option(&mut self, option: u8, data: &[u8]) {
        let mut bytes = b"IHAVEOPT\0\0\0".to_vec();
        bytes.push(option);
        bytes.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
        bytes.extend(data);
        self.session.received(&bytes);
    }

    /// A request whose fields come from a few bytes, near the ends of things; what follows may be its
    /// payload.
    fn request(&mut self, which: u8, bytes: &[u8]) {
        let Some(([flags, at, len, exact], payload)) = bytes.split_first_chunk() else { return };
        let near = [0, 1, 512, 4096, LEN - 512, LEN - 1, LEN, u64::MAX][usize::from(at & 7)];
        let at = near.wrapping_add(u64::from(at >> 3) * 512);
        let lens = [0, 1, 511, 512, 4096, 65_536, 1 << 20, (32 << 20) + 1];
        let mut len: u32 = lens[usize::from(len & 7)] + u32::from(len >> 3) * 512;
        if *exact & 1 != 0 {
            len = u32::try_from(payload.len()).unwrap();
        }
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend([0, *flags, 0, which & 15]);
        request.extend(u64::from(which).to_be_bytes());
        request.extend(at.to_be_bytes());
        request.extend(len.to_be_bytes());
        request.extend(payload);
        self.session.received(&request);
    }

    fn pay(&mut self, bytes: &[u8]) {
        let Some(mut loan) = self.session.take_rx_buffer() else { return };
        assert!(loan.len_max > 0 && loan.len_max <= loan.buf.spare_mut().len());
        let len = bytes.len().saturating_mul(64).min(loan.len_max);
        loan.buf.append_zeros(len);
        self.session.return_rx_buffer(loan);
    }

    fn end_input(&mut self, how: u8) {
        match how {
            0 => self.session.input_ended(),
            1 => self.session.shut_down(),
            _ => self.session.medium_is(Capabilities { len: u64::from(how) << 15, ..self.profile.clone() }),
        }
    }

    /// The medium ends one operation: well, ill, or not as it was asked.
    fn answer(&mut self, how: u8) {
        if self.held.is_empty() {
            return;
        }
        let (ticket, action) = self.held.swap_remove(usize::from(how >> 3) % self.held.len());
        let faults = [Fault::Medium, Fault::Unsupported, Fault::OutOfRange];
        let result = match (how & 7, action) {
            (fault @ 5..=7, _) => Err(faults[usize::from(fault - 5)].into()),
            (4, _) => Ok(OpOutput::MapStatus(Vec::new())),
            (_, OpAction::Read { len, .. }) => {
                let data: DataList = Bytes::copied_from(&vec![7; len]).into();
                Ok(OpOutput::Data(data))
            }
            (_, OpAction::Write { data, .. }) => Ok(OpOutput::Done(data)),
            (state, OpAction::MapStatus { at, len, .. }) => {
                let half = len / 2;
                let states = [ExtentState::Mapped, ExtentState::Hole];
                let second = states[usize::from(state & 1)];
                let first = Extent { at, len: half, state: ExtentState::Hole };
                Ok(OpOutput::MapStatus(vec![first, Extent { at: at + half, len: LEN, state: second }]))
            }
            _ => Ok(OpOutput::Done(DataList::new())),
        };
        self.session.completed(ticket, result);
    }

    fn drain(&mut self) {
        while self.session.has_output() {
            while let Some((ticket, action)) = self.session.poll() {
                let (at, len) = action.range();
                assert!(at.checked_add(len).is_some(), "{action:?}");
                assert!(!(self.profile.read_only && action.is_change()), "{action:?}");
                self.held.push((ticket, action));
            }
            assert!(self.held.len() <= OPERATIONS_MAX);
            let mut out = Transmit::new();
            self.session.transmit(&mut out);
            out.clear(&self.pool);
        }
    }
}
