//! What a hostile image can hold as its LUKS2 header.
//!
//! The first byte says what the input is: metadata for which a valid binary header is made here, or the first
//! bytes of the medium as they are. Keys are not derived: their cost is checked before that, and a minute for
//! one input is too long.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sha2::{Digest, Sha256};
use store::luks2::{Header, MediumIo};

const LEN: usize = 32 << 20;
const COPY_LEN: usize = 16 << 10;
const BINARY_LEN: usize = 4096;

/// The first bytes of a medium; zeros follow.
struct Start(Vec<u8>);

impl MediumIo for Start {
    type Error = ();

    fn read(&mut self, at: u64, buf: &mut [u8]) -> Result<(), ()> {
        let at = usize::try_from(at).map_err(drop)?;
        assert!(at + buf.len() <= LEN, "a read beyond the end");
        buf.fill(0);
        let known = self.0.get(at..).unwrap_or_default();
        buf.iter_mut().zip(known).for_each(|(to, from)| *to = *from);
        Ok(())
    }

    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), ()> {
        Err(())
    }

    fn zero(&mut self, _: u64, _: u64) -> Result<(), ()> {
        Err(())
    }

    fn flush(&mut self) -> Result<(), ()> {
        Err(())
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    let mut medium = Start(if first & 1 == 0 { copy_of(rest) } else { rest.to_vec() });
    let Ok(header) = Header::load(&mut medium, LEN as u64) else { return };
    assert!(header.data_offset() >= 2 * COPY_LEN as u64);
    let end = header.data_offset().checked_add(header.data_len().unwrap_or(0));
    assert!(end.is_some_and(|end| end <= LEN as u64), "data beyond the end");
    assert!(header.keyslots() <= 32 && header.uuid().len() <= 40);
});

/// Returns the primary copy of a header with these metadata.
fn copy_of(json: &[u8]) -> Vec<u8> {
    let mut copy = vec![0; COPY_LEN];
    copy[..8].copy_from_slice(b"LUKS\xba\xbe\x00\x02");
    copy[8..16].copy_from_slice(&(COPY_LEN as u64).to_be_bytes());
    copy[16..24].copy_from_slice(&1_u64.to_be_bytes());
    copy[72..78].copy_from_slice(b"sha256");
    let len = json.len().min(COPY_LEN - BINARY_LEN - 1);
    copy[BINARY_LEN..BINARY_LEN + len].copy_from_slice(&json[..len]);
    let sum = Sha256::digest(&copy);
    copy[448..480].copy_from_slice(&sum);
    copy
}
