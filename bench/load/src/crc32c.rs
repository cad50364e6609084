//! CRC32C as iSCSI uses it (RFC 7143 §13.1): reflected polynomial 0x82F63B78, all ones before and after, sent
//! with the least significant byte first. Eight bytes a step by table: the load digests headers, and each
//! length of write data once.

const POLYNOMIAL: u32 = 0x82f6_3b78;
static TABLES: [[u32; 256]; 8] = tables();

#[allow(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "evaluated by the compiler, in bounds"
)]
const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0_u32; 256]; 8];
    let mut byte = 0_usize;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ POLYNOMIAL } else { value >> 1 };
            bit += 1;
        }
        tables[0][byte] = value;
        byte += 1;
    }
    let mut table = 1_usize;
    while table < 8 {
        let mut byte = 0_usize;
        while byte < 256 {
            let before = tables[table - 1][byte];
            tables[table][byte] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
}

/// A digest that grows as bytes come.
#[derive(Clone, Copy)]
pub(crate) struct Crc32c(u32);

impl Crc32c {
    pub(crate) fn new() -> Self {
        Self(!0)
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        let mut state = self.0;
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let mut eight = [0_u8; 8];
            eight.copy_from_slice(chunk);
            let mixed = u64::from_le_bytes(eight) ^ u64::from(state);
            state = mixed.to_le_bytes().iter().zip(TABLES.iter().rev()).fold(0, |sum, (byte, table)| {
                sum ^ table.get(usize::from(*byte)).copied().unwrap_or_default()
            });
        }
        for byte in chunks.remainder() {
            let [low, ..] = (state ^ u32::from(*byte)).to_le_bytes();
            let step =
                TABLES.first().and_then(|table| table.get(usize::from(low))).copied().unwrap_or_default();
            state = (state >> 8) ^ step;
        }
        self.0 = state;
    }

    /// The four bytes as they stand on the wire.
    pub(crate) fn wire(self) -> [u8; 4] {
        (!self.0).to_le_bytes()
    }
}

pub(crate) fn digest(bytes: &[u8]) -> [u8; 4] {
    let mut crc = Crc32c::new();
    crc.update(bytes);
    crc.wire()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7143 Appendix A.4 (from RFC 3720 B.4): 32 bytes of zeros, of ones, counting up.
    #[test]
    fn agrees_with_the_examples_of_the_standard() {
        assert_eq!(digest(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(digest(&[0xff; 32]), [0x43, 0xab, 0xa8, 0x62]);
        let counting: Vec<u8> = (0..32).collect();
        assert_eq!(digest(&counting), [0x4e, 0x79, 0xdd, 0x46]);
    }

    #[test]
    fn gives_the_same_digest_however_the_bytes_are_cut() {
        let bytes: Vec<u8> = (0..100).collect();
        for cut in 0..bytes.len() {
            let mut crc = Crc32c::new();
            crc.update(&bytes[..cut]);
            crc.update(&bytes[cut..]);
            assert_eq!(crc.wire(), digest(&bytes));
        }
    }
}
