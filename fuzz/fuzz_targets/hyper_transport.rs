//! The transport of a HyperSCSI session against a peer that has its keys and means harm, and against
//! everybody else.
//!
//! The first byte says which end it is and whether there are keys. Each operation is a frame that the peer
//! seals (any header, any payload), raw bytes from anywhere, a message that the owner sends, or time that
//! passes.
#![no_main]

use base::buffer::{Bytes, Pool};
use base::ether::{EtherPort, FrameBatch, Mac, PortState};
use base::time::{Duration, Instant};
use ground::Operations;
use hyperscsi::Role;
use hyperscsi::aead::{Encryptor, SessionKeys};
use security::Level;
use hyperscsi::connection::{Connection, ConnectionConfig, Message, PathAddress};
use hyperscsi::frame::{Cmd, Flags, HEADER_LEN, Header, VERSION};
use hyperscsi::pdu::parameters::Parameters;
use libfuzzer_sys::fuzz_target;

const PEER: Mac = Mac([2, 0, 0, 0, 0, 1]);
const PORT: EtherPort = EtherPort(0);
const SID: u32 = 0x0102_0304;

struct World {
    connection: Connection,
    /// What the peer seals its frames with.
    encryptor: Encryptor,
    keyed: bool,
    pns: [u64; 2],
    now: Instant,
    delivered: u64,
    pool: Pool,
}

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    let mut world = World::new(*first);
    for (which, bytes) in Operations::of(rest) {
        match which >> 6 {
            0 => world.sealed(which, bytes),
            1 => world.raw(bytes),
            2 => world.send(which, bytes),
            _ => world.pass(Duration::from_micros(u64::from(which & 0x3f).pow(4))),
        }
        world.drain();
    }
    // Left alone, it comes to an end: no path shows a sign of life.
    for _ in 0..500 {
        let Some(at) = world.connection.poll_timeout() else { return };
        world.now = world.now.max(at);
        world.connection.handle_timeout(world.now);
        world.drain();
    }
    assert!(world.now.since(Instant::ORIGIN) < Duration::from_secs(3600), "it lives on by itself");
});

impl World {
    fn new(first: u8) -> Self {
        let (role, keyed) = (if first & 1 == 0 { Role::Target } else { Role::Initiator }, first & 2 == 0);
        let keys = keyed.then(|| SessionKeys::from_secret(b"a secret", &[1; 64]));
        let ours = Parameters { frame_max: 9000, lost_after_ms: 1000, ..Parameters::DEFAULT };
        let repair =
            if first & 4 == 0 { Default::default() } else { hyperscsi::pdu::parameters::Repair::Window };
        let plan = ConnectionConfig::new(&ours, &Parameters { repair, ..ours }, 256, [5; 16], [9; 8]);
        let state = PortState { mac: Mac([2, 0, 0, 0, 0, 2]), mtu: 9000, receive_slots: 256 };
        let address = PathAddress { port: PORT, mac: PEER };
        let connection =
            Connection::new(role, &plan, Instant::ORIGIN, keys.as_ref(), 7, SID, address, &state);
        Self {
            connection,
            encryptor: keys
                .map_or_else(Encryptor::without_keys, |keys| Encryptor::for_role(&keys, role.other())),
            keyed,
            pns: [0; 2],
            now: Instant::ORIGIN,
            delivered: 0,
            pool: Pool::new(1 << 20),
        }
    }

    /// A frame of the peer's, with everything but SID and trailer as the input has it.
    fn sealed(&mut self, which: u8, bytes: &[u8]) {
        let Some((head, payload)) = bytes.split_at_checked(HEADER_LEN) else { return };
        let mut head = head.to_vec();
        head[0] &= 0x0f;
        head[3] = VERSION;
        head[4] |= 0x80;
        head[5] &= !0x01;
        head[6..8].fill(0);
        head.resize(HEADER_LEN + 16, 0);
        let Ok((mut header, _)) = Header::parse(&head) else { return };
        (header.sid, header.len) = (SID, u16::try_from(payload.len()).unwrap());
        header.protected = self.keyed && which & 1 == 0;
        // The next number, or one that the input names, on the first path or on another.
        let pn = &mut self.pns[usize::from(header.protected)];
        let wanted = if which & 2 == 0 { *pn + 1 } else { header.pn & 0xffff };
        if header.protected && wanted <= *pn {
            return;
        }
        *pn = wanted.max(*pn);
        let path = if which & 4 == 0 { 0 } else { u64::from(which >> 3 & 3) };
        header.pn = (path << 56) | wanted;
        let keyed = Flags::PHASE.0 | if header.protected { 0 } else { Flags::ENCRYPTED.0 };
        header.flags = Flags(header.flags.0 & !keyed);
        let mut batch = FrameBatch::new();
        batch.begin_frame(PEER);
        batch.put(&header.to_bytes());
        batch.put(payload);
        self.encryptor.seal(&header, &mut batch).unwrap();
        batch.end_frame();
        let mut frame: Vec<u8> =
            batch.frames().flat_map(|(_, _, pieces)| pieces.flatten().copied()).collect();
        self.deliver(header, &mut frame);
    }

    fn raw(&mut self, bytes: &[u8]) {
        let Ok((header, _)) = Header::parse(bytes) else { return };
        self.deliver(header, &mut bytes.to_vec());
    }

    fn deliver(&mut self, header: Header, frame: &mut [u8]) {
        let delivered = &mut self.delivered;
        let came = self.now.before(Duration::from_nanos(self.now.0 % 3_000_000));
        let address = PathAddress { port: PORT, mac: PEER };
        let taken =
            self.connection.frame_received(self.now, came, address, header, frame, &mut |header, payload| {
                assert!(
                    payload.len() == usize::from(header.len) && !matches!(header.cmd, Cmd::Ack | Cmd::Ask)
                );
                *delivered += 1;
            });
        let again = self.connection.frame_received(self.now, came, address, header, frame, &mut |_, _| {
            assert!(taken.is_err(), "a frame came up twice");
        });
        assert!(taken.is_err() || again.is_err(), "a frame was taken twice");
    }

    fn send(&mut self, which: u8, bytes: &[u8]) {
        let level = match which & 3 {
            1 if self.keyed => Level::Integrity,
            2 if self.keyed => Level::Encrypt,
            _ => Level::None,
        };
        if which & 4 == 0 {
            let head = bytes[..bytes.len().min(600)].to_vec();
            self.connection.send(Message::block(Cmd::Reply, 1, 0, level, head));
        } else {
            let body = Bytes::copied_from(&vec![0x5a; bytes.len() * 16]);
            self.connection.send(Message::data(Cmd::Reply, 1, 0, level, 0, body.into()));
        }
    }

    fn pass(&mut self, span: Duration) {
        self.now = self.now.after(span);
        self.connection.handle_timeout(self.now);
    }

    fn drain(&mut self) {
        while self.connection.poll_event().is_some() {}
        let mut batch = FrameBatch::new();
        for _ in 0..1000 {
            let Some(port) = self.connection.poll_port() else { return };
            self.connection.transmit(self.now, port, &mut batch);
            for (to, len, _) in batch.frames() {
                assert!(to == PEER && len <= 9000, "{len} bytes to {to}");
            }
            batch.clear(&self.pool);
        }
        panic!("it never stops sending");
    }
}
