//! HyperSCSI frames as they come off the wire: header, CRC or tag, payload. Each operation is a frame.
//!
//! Raw ones end at the CRC or the tag nearly always; so others are taken as header and payload and sealed
//! here, by somebody who has the keys: what a peer that logged in can send.
#![no_main]

use base::buffer::Bytes;
use base::ether::{FrameBatch, Mac};
use base::time::{Duration, Instant};
use ground::{Operations, hyper};
use hyperscsi::Role;
use hyperscsi::aead::{Decryptor, Encryptor, SessionKeys, trailer_len};
use hyperscsi::frame::{BadFrame, Flags, HEADER_LEN, Header};
use libfuzzer_sys::fuzz_target;

struct World {
    sealer: Encryptor,
    opener: Decryptor,
    now: Instant,
    pn: u64,
}

fuzz_target!(|input: &[u8]| {
    let keys = SessionKeys::from_secret(b"no input holds this secret", &[3; 64]);
    let mut world = World {
        sealer: Encryptor::for_role(&keys, Role::Initiator),
        opener: Decryptor::for_role(&keys, Role::Target),
        now: Instant::ORIGIN,
        pn: 0,
    };
    for (which, bytes) in Operations::of(input) {
        match which >> 6 {
            0 => world.raw(bytes),
            1 | 2 => world.sealed(which, bytes),
            _ => {
                // A change of keys, as often as a sender may.
                world.now = world.now.after(Duration::from_millis(1000 + u64::from(which & 0x3f)));
                world.sealer.update(world.now);
                // The first frame of the new keys always comes: without it the next change would be one too
                // many.
                world.sealed(0x40, &[0; HEADER_LEN]);
            }
        }
    }
});

impl World {
    fn raw(&mut self, bytes: &[u8]) {
        let Ok((header, len)) = Header::parse(bytes) else { return };
        assert!(len <= bytes.len() && Header::parse(&header.to_bytes()).is_ok_or_short());
        let mut frame = bytes.to_vec();
        let opened = self.opener.open(self.now, &header, &mut frame);
        assert!(opened.is_err() || !header.protected, "somebody made a tag without the key");
        if let Ok(payload) = opened {
            hyper::read(&header, payload);
        }
    }

    /// Seals a header and a payload; what is opened is what was sealed.
    fn sealed(&mut self, which: u8, bytes: &[u8]) {
        let Some((head, payload)) = bytes.split_at_checked(HEADER_LEN) else { return };
        let mut head = head.to_vec();
        // So that the header is legal: no reserved bit, this version, and a trailer behind no payload.
        head[0] &= 0x0f;
        head[3] = hyperscsi::frame::VERSION;
        head[5] &= !0x01;
        head[6..8].fill(0);
        head[4] |= 0x80;
        head.resize(HEADER_LEN + 16, 0);
        let Ok((mut header, _)) = Header::parse(&head) else { return };
        header.len = u16::try_from(payload.len()).unwrap();
        header.protected = which & 1 == 0;
        self.pn += 1;
        header.pn = self.pn;
        let keyed = Flags::PHASE.0 | if header.protected { 0 } else { Flags::ENCRYPTED.0 };
        header.flags = Flags(header.flags.0 & !keyed);
        if header.protected && self.sealer.phase() {
            header.flags = header.flags.with(Flags::PHASE);
        }
        let mut batch = FrameBatch::new();
        batch.begin_frame(Mac::BROADCAST);
        batch.put(&header.to_bytes());
        let (put, shared) = payload.split_at(payload.len() * usize::from(which >> 1 & 3) / 3);
        batch.put(put);
        batch.put_shared(Bytes::copied_from(shared));
        self.sealer.seal(&header, &mut batch).unwrap();
        batch.end_frame();
        let mut frame: Vec<u8> =
            batch.frames().flat_map(|(_, _, pieces)| pieces.flatten().copied()).collect();
        assert_eq!(frame.len(), HEADER_LEN + payload.len() + trailer_len(header.level()));
        frame.resize(frame.len().max(60), 0);
        let (parsed, _) = Header::parse(&frame).unwrap();
        assert_eq!(parsed, header);
        assert_eq!(self.opener.open(self.now, &parsed, &mut frame).as_deref(), Ok(payload));
        hyper::read(&header, payload);
    }
}

/// A header by itself is well formed, or lacks what it announces.
trait Formed {
    fn is_ok_or_short(&self) -> bool;
}

impl Formed for Result<(Header, usize), BadFrame> {
    fn is_ok_or_short(&self) -> bool {
        matches!(self, Ok(_) | Err(BadFrame::Short))
    }
}
