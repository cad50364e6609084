//! Writable discs, and commands that write them.

use base::rng::Rng;
use device::disc_record::{DiscRecord, TRAILER_LEN, WritableKind};
use store::Store;
use store::api::{Capabilities, Completion, Op};

/// The image of a blank disc, as long as what is inside.
pub struct Image {
    pub inner: Box<dyn Store>,
    trailer: Vec<u8>,
}

impl Image {
    /// Makes the image of one of the kinds of discs of a medium.
    pub fn new(inner: Box<dyn Store>, kind: u8, medium_len: u64) -> Self {
        let kind = WritableKind::ALL[usize::from(kind & 3)];
        let sectors = u32::try_from((medium_len - TRAILER_LEN as u64) / 2048).unwrap();
        let mut record = DiscRecord::blank(kind, sectors / 32 * 32).expect("a possible disc");
        Self { inner, trailer: record.new_trailer() }
    }
}

impl Store for Image {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn trailer(&self) -> Option<Vec<u8>> {
        Some(self.trailer.clone())
    }

    fn submit(&mut self, op: Op) {
        self.inner.submit(op);
    }

    fn poll(&mut self) -> Option<Completion> {
        self.inner.poll()
    }
}

/// Makes an input of commands for a writable disc, so that a corpus begins with tracks and sessions.
pub fn burns(seed: u64) -> Vec<u8> {
    let mut rng = Rng::from_seed(seed);
    let kind = u8::try_from(rng.below(4)).unwrap();
    let mut input = vec![0x81 | kind << 1];
    let mut next = 0_u16;
    for _ in 0..rng.below(40) {
        let mut any = |from: &[u16]| from[usize::try_from(rng.below(from.len() as u64)).unwrap()];
        let sectors = any(&[1, 2, 16, 32, 33]);
        let lba = any(&[next, next, next, 0, next.wrapping_add(1), 0x07df]);
        let ([high, low], [_, count]) = (lba.to_be_bytes(), sectors.to_be_bytes());
        let byte = |word: u16| word.to_be_bytes()[1];
        let (cdb, send): (Vec<u8>, u32) = match any(&[0x2a, 0x2a, 0x2a, 0xaa, 0x35, 0x5b, 0x53, 0x04, 0x55, 0x51, 0x52, 0x28, 0x1b]) {
            0x2a => (vec![0x2a, 0, 0, 0, high, low, 0, 0, count, 0], u32::from(sectors) * 2048),
            0xaa => (vec![0xaa, 0, 0, 0, high, low, 0, 0, 0, count, 0, 0], u32::from(sectors) * 2048),
            0x35 => (vec![0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0),
            0x5b => (vec![0x5b, 0, byte(any(&[0, 1, 2, 3, 6])), 0, 0, byte(any(&[1, 2, 3])), 0, 0, 0, 0], 0),
            0x53 => (vec![0x53, 0, 0, 0, 0, 0, 0, 0, count, 0], 0),
            0x04 => (vec![0x04, 0x11, 0, 0, 0, 0], 12),
            0x55 => (vec![0x55, 0x10, 0, 0, 0, 0, 0, 0, 60, 0], 60),
            0x51 => (vec![0x51, 0, 0, 0, 0, 0, 0, 0, 34, 0], 0),
            0x52 => (vec![0x52, byte(any(&[0, 1, 2])), 0, 0, 0, byte(any(&[1, 2, 0xff])), 0, 0, 36, 0], 0),
            0x28 => (vec![0x28, 0, 0, 0, high, low, 0, 0, count, 0], 0),
            _ => (vec![0x1b, 0, 0, 0, byte(any(&[2, 3])), 0], 0),
        };
        if matches!(cdb[0], 0x2a | 0xaa) && lba == next {
            next = next.wrapping_add(sectors);
        }
        let list: &[u8] = match cdb[0] {
            0x04 => &[0, 2, 0, 8, 0xff, 0xff, 0xff, 0xff, byte(any(&[0, 0x98, 0xc0, 0xc4])), 0, 0, 0],
            0x55 => &[0, 0, 0, 0, 0, 0, 0, 0, 5, 50, byte(any(&[0, 2])) | 0x40, 0xc5, 8, 16, 0, 0, 0, 0, 0, 0, 0, 16, 0, 150],
            _ => &[],
        };
        let [_, s0, s1, s2] = send.to_be_bytes();
        let receive = if matches!(cdb[0], 0x28 | 0x51 | 0x52) { 0x10 } else { 0 };
        let mut bytes = vec![byte(any(&[0, 1])), 0, receive, 0, s0, s1, s2, u8::try_from(cdb.len()).unwrap()];
        bytes.extend(cdb);
        bytes.extend(list);
        bytes.resize(bytes.len() + if list.len() == 24 { 36 } else { 0 }, 0);
        input.push(0);
        input.extend(u16::try_from(bytes.len()).unwrap().to_be_bytes());
        input.extend(bytes);
    }
    input
}
