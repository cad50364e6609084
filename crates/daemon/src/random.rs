//! Random bytes of the operating system.

use std::io;

use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

/// Fills `bytes`.
pub(crate) fn fill(bytes: &mut [u8]) -> io::Result<()> {
    // A request of up to 256 bytes is never filled partially (getrandom(2)).
    for piece in bytes.chunks_mut(256) {
        let filled = retry_on_intr(|| getrandom(&mut *piece, GetRandomFlags::empty()))?;
        if filled != piece.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// Returns 32 bytes.
pub(crate) fn entropy() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    fill(&mut bytes)?;
    Ok(bytes)
}
