//! Logical block protection (SSC-4): four bytes behind each block on its way between host and drive, by which
//! each of them notices that the block was damaged.

use base::buffer::{Bytes, DataList};
use cartridge::command::Guard;
use cartridge::layout::Crc;
use scsi::sense::{Asc, Sense, SenseKey};

use crate::settings::ProtectionMethod;

/// The length of the protection information of both methods.
const GUARD_LEN: u32 = 4;

/// The sense data of a block that is not what its guard says. LTO drives use this sense key.
pub(super) const GUARD_FAILED: Sense =
    Sense::new(SenseKey::HARDWARE_ERROR, Asc::LOGICAL_BLOCK_GUARD_CHECK_FAILED);

/// Returns the guard of a block, as the number whose bytes follow the block.
pub(super) fn guard_of(method: ProtectionMethod, block: &DataList) -> u32 {
    match method {
        ProtectionMethod::ReedSolomon => {
            block.parts().iter().fold(0, |register, part| reed_solomon(register, part))
        }
        ProtectionMethod::Crc32c => {
            let mut crc = Crc::new();
            block.parts().iter().for_each(|part| crc.update(part));
            // As in iSCSI, the low byte comes first.
            crc.value().swap_bytes()
        }
    }
}

/// Takes the guard off a block that a host sent, and checks it.
///
/// # Errors
/// The block is not what its guard says.
pub(super) fn checked(method: ProtectionMethod, block: &DataList) -> Result<(DataList, Guard), Sense> {
    let len = block.len().saturating_sub(GUARD_LEN as usize);
    let data = block.slice(0, len);
    let mut sent = [0; GUARD_LEN as usize];
    block.copy_to(len, &mut sent);
    let value = u32::from_be_bytes(sent);
    if guard_of(method, &data) != value {
        return Err(GUARD_FAILED);
    }
    Ok((data, Guard { method: method as u8, value }))
}

/// Puts the guard behind a block for a host: the one that is stored with it, if it has the same method.
pub(super) fn guarded(method: ProtectionMethod, mut block: DataList, stored: Option<Guard>) -> DataList {
    let value = match stored {
        Some(guard) if guard.method == method as u8 => guard.value,
        _ => guard_of(method, &block),
    };
    block.push(Bytes::copied_from(&value.to_be_bytes()));
    block
}

/// Returns whether a block is what the guard says that is stored with it.
pub(super) fn is_intact(block: &DataList, stored: Guard) -> bool {
    let method = match stored.method {
        1 => ProtectionMethod::ReedSolomon,
        2 => ProtectionMethod::Crc32c,
        // No release has stored another one.
        _ => return true,
    };
    guard_of(method, block) == stored.value
}

/// Adds bytes to the Reed-Solomon CRC of ECMA-319: the remainder by x^4 + 38h x^3 + CFh x^2 + 38h x + 1 over
/// the field of 256 elements.
fn reed_solomon(mut register: u32, bytes: &[u8]) -> u32 {
    let entry = |table: usize, byte: u8| {
        TABLES.get(table).and_then(|table| table.get(usize::from(byte))).copied().unwrap_or(0)
    };
    let (fours, rest) = bytes.as_chunks::<4>();
    for four in fours {
        let [a, b, c, d] = (register ^ u32::from_be_bytes(*four)).to_be_bytes();
        register = entry(3, a) ^ entry(2, b) ^ entry(1, c) ^ entry(0, d);
    }
    for byte in rest {
        let [first, ..] = register.to_be_bytes();
        register = register << 8 ^ entry(0, first ^ byte);
    }
    register
}

/// The remainder of each byte, and of that byte before one, two and three zeros: four bytes are divided at a
/// time.
static TABLES: [[u32; 256]; 4] = tables();

#[expect(clippy::indexing_slicing, reason = "evaluated by the compiler, with indices below the lengths")]
const fn tables() -> [[u32; 256]; 4] {
    let mut tables = [[0; 256]; 4];
    let mut number: u8 = 0;
    loop {
        let byte = number as usize;
        tables[0][byte] =
            u32::from_be_bytes([product(number, 0x38), product(number, 0xcf), product(number, 0x38), number]);
        match number.checked_add(1) {
            Some(next) => number = next,
            None => break,
        }
    }
    let mut table = 1;
    while table < tables.len() {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[table - 1][byte];
            let [first, ..] = before.to_be_bytes();
            tables[table][byte] = before << 8 ^ tables[0][first as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
}

/// Returns the product in the field of 256 elements by x^8 + x^4 + x^3 + x^2 + 1.
const fn product(mut left: u8, mut right: u8) -> u8 {
    let mut sum = 0;
    while right > 0 {
        if right & 1 == 1 {
            sum ^= left;
        }
        left = left << 1 ^ if left & 0x80 != 0 { 0x1d } else { 0 };
        right >>= 1;
    }
    sum
}

/// Returns the length of the guard of each block.
pub(super) const fn guard_len(method: Option<ProtectionMethod>) -> u32 {
    if method.is_some() { GUARD_LEN } else { 0 }
}

/// Returns the length of the blocks of a command without their guards, or `None` if there is nothing else.
pub(super) fn data_len(method: Option<ProtectionMethod>, block_len: u32) -> Option<u32> {
    block_len.checked_sub(guard_len(method)).filter(|len| *len > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(parts: &[&[u8]]) -> DataList {
        let mut list = DataList::new();
        parts.iter().for_each(|part| list.push(Bytes::copied_from(part)));
        list
    }

    #[test]
    fn the_reed_solomon_crc_is_that_of_ecma_319() {
        // Entries of the table that the LTO reference of IBM prints.
        let printed = [(1, 0x38cf_3801), (2, 0x7083_7002), (16, 0xa76c_a710), (64, 0xa6ad_a640)];
        for (byte, value) in printed {
            assert_eq!(TABLES[0][byte], value);
        }
        let guard = |parts: &[&[u8]]| guard_of(ProtectionMethod::ReedSolomon, &list(parts));
        // Computed with that table, byte by byte.
        assert_eq!(guard(&[b"123456789"]), VECTOR);
        assert_eq!(guard(&[b"12", b"3456", b"789"]), VECTOR);
        assert_eq!(guard(&[&[0; 100]]), 0);
    }

    const VECTOR: u32 = 0x4b4f_673a;

    #[test]
    fn the_crc32c_has_the_bytes_of_an_iscsi_digest() {
        let guard = |parts: &[&[u8]]| guard_of(ProtectionMethod::Crc32c, &list(parts)).to_be_bytes();
        // RFC 7143, appendix A.4: 32 bytes of zeros, and of ones.
        assert_eq!(guard(&[&[0; 32]]), [0xaa, 0x36, 0x91, 0x8a]);
        assert_eq!(guard(&[&[0xff; 30], &[0xff; 2]]), [0x43, 0xab, 0xa8, 0x62]);
    }

    #[test]
    fn a_guard_is_put_on_and_taken_off() {
        for method in [ProtectionMethod::ReedSolomon, ProtectionMethod::Crc32c] {
            let block = guarded(method, list(&[b"some", b" data"]), None);
            let (data, guard) = checked(method, &block).unwrap();
            assert_eq!(data.len(), 9);
            assert!(is_intact(&data, guard));
            assert!(!is_intact(&list(&[b"same", b" data"]), guard));
            let again = guarded(method, data, Some(guard));
            assert_eq!(again.len(), 13);
            for at in 0..block.len() {
                let mut bytes: alloc::vec::Vec<u8> =
                    block.parts().iter().flat_map(|part| part.to_vec()).collect();
                bytes[at] ^= 0x10;
                assert_eq!(checked(method, &list(&[&bytes])).unwrap_err(), GUARD_FAILED);
            }
        }
        assert_eq!(data_len(None, 4), Some(4));
        assert_eq!(data_len(Some(ProtectionMethod::Crc32c), 4), None);
        assert_eq!(data_len(Some(ProtectionMethod::Crc32c), 5), Some(1));
    }
}
