//! Unpredictable numbers, from a seed that the operating system provided: the ChaCha20 block function (RFC
//! 8439 §2.3) in counter mode.
//!
//! The protocol crates have no source of randomness. A unit receives 32 bytes when it is created, and every
//! ROD token takes 32 bytes of the stream that they generate. The stream is 2^70 bytes long, so it does not
//! end in practice.

use scsi::copy::rod::SECRET_LEN;

/// Generates secrets, each only once.
#[derive(Clone)]
pub(crate) struct Secrets {
    key: [u32; 8],
    counter: u64,
}

impl Secrets {
    /// Starts from a secret seed.
    pub(crate) fn from_seed(seed: &[u8; 32]) -> Self {
        Self { key: words(seed), counter: 0 }
    }

    /// Returns the next secret.
    pub(crate) fn next_secret(&mut self) -> [u8; SECRET_LEN] {
        let [low, high] = halves(self.counter);
        let block = block(&self.key, [low, high, 0, 0]);
        self.counter = self.counter.wrapping_add(1);
        let mut out = [0; SECRET_LEN];
        for (to, from) in out.iter_mut().zip(block) {
            *to = from;
        }
        out
    }
}

impl core::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Secrets")
    }
}

fn halves(counter: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = counter.to_le_bytes();
    [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])]
}

fn words(bytes: &[u8; 32]) -> [u32; 8] {
    let mut out = [0; 8];
    let (groups, _) = bytes.as_chunks::<4>();
    for (to, from) in out.iter_mut().zip(groups) {
        *to = u32::from_le_bytes(*from);
    }
    out
}

/// The block function: `tail` is the block counter and the nonce.
fn block(key: &[u32; 8], tail: [u32; 4]) -> [u8; 64] {
    let [k0, k1, k2, k3, k4, k5, k6, k7] = *key;
    let [t0, t1, t2, t3] = tail;
    let start =
        [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574, k0, k1, k2, k3, k4, k5, k6, k7, t0, t1, t2, t3];
    let mut state = start;
    for _double_round in 0..10 {
        state = diagonals(columns(state));
    }
    let mut out = [0; 64];
    let sums = state.iter().zip(start).map(|(a, b)| a.wrapping_add(b));
    for (to, sum) in out.as_chunks_mut::<4>().0.iter_mut().zip(sums) {
        *to = sum.to_le_bytes();
    }
    out
}

fn columns(s: [u32; 16]) -> [u32; 16] {
    let [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3] = s;
    let [a0, b0, c0, d0] = quarter(a0, b0, c0, d0);
    let [a1, b1, c1, d1] = quarter(a1, b1, c1, d1);
    let [a2, b2, c2, d2] = quarter(a2, b2, c2, d2);
    let [a3, b3, c3, d3] = quarter(a3, b3, c3, d3);
    [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3]
}

fn diagonals(s: [u32; 16]) -> [u32; 16] {
    let [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3] = s;
    let [a0, b1, c2, d3] = quarter(a0, b1, c2, d3);
    let [a1, b2, c3, d0] = quarter(a1, b2, c3, d0);
    let [a2, b3, c0, d1] = quarter(a2, b3, c0, d1);
    let [a3, b0, c1, d2] = quarter(a3, b0, c1, d2);
    [a0, a1, a2, a3, b0, b1, b2, b3, c0, c1, c2, c3, d0, d1, d2, d3]
}

const fn quarter(mut a: u32, mut b: u32, mut c: u32, mut d: u32) -> [u32; 4] {
    a = a.wrapping_add(b);
    d = (d ^ a).rotate_left(16);
    c = c.wrapping_add(d);
    b = (b ^ c).rotate_left(12);
    a = a.wrapping_add(b);
    d = (d ^ a).rotate_left(8);
    c = c.wrapping_add(d);
    b = (b ^ c).rotate_left(7);
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_function_is_that_of_rfc_8439() {
        //= rfc8439#section-2.3.2
        let mut key = [0; 32];
        for (at, byte) in key.iter_mut().enumerate() {
            *byte = u8::try_from(at).unwrap();
        }
        let tail = [1, 0x0900_0000, 0x4a00_0000, 0];
        let wanted = [
            0x10, 0xf1, 0xe7, 0xe4, 0xd1, 0x3b, 0x59, 0x15, 0x50, 0x0f, 0xdd, 0x1f, 0xa3, 0x20, 0x71, 0xc4,
            0xc7, 0xd1, 0xf4, 0xc7, 0x33, 0xc0, 0x68, 0x03, 0x04, 0x22, 0xaa, 0x9a, 0xc3, 0xd4, 0x6c, 0x4e,
            0xd2, 0x82, 0x64, 0x46, 0x07, 0x9f, 0xaa, 0x09, 0x14, 0xc2, 0xd7, 0x05, 0xd9, 0x8b, 0x02, 0xa2,
            0xb5, 0x12, 0x9c, 0xd1, 0xde, 0x16, 0x4e, 0xb9, 0xcb, 0xd0, 0x83, 0xe8, 0xa2, 0x50, 0x3c, 0x4e,
        ];
        assert_eq!(block(&words(&key), tail), wanted);
    }

    #[test]
    fn no_secret_comes_twice_and_seeds_differ() {
        let (mut a, mut b) = (Secrets::from_seed(&[1; 32]), Secrets::from_seed(&[2; 32]));
        let all: alloc::vec::Vec<_> = (0..100).flat_map(|_| [a.next_secret(), b.next_secret()]).collect();
        for (at, one) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(one));
        }
    }
}
