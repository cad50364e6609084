//! The few commands that the cases use, as CDBs of 16 bytes, and the parser for sense data.

use scsi::opcode;

/// A CDB with the length of the field in the basic header segment.
pub(crate) type Cdb = [u8; 16];

fn cdb(bytes: &[u8]) -> Cdb {
    let mut cdb = [0; 16];
    cdb.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    cdb
}

pub(crate) fn test_unit_ready() -> Cdb {
    cdb(&[opcode::TEST_UNIT_READY])
}

pub(crate) fn inquiry(allocation: u16) -> Cdb {
    let [high, low] = allocation.to_be_bytes();
    cdb(&[opcode::INQUIRY, 0, 0, high, low, 0])
}

pub(crate) fn read_capacity() -> Cdb {
    cdb(&[opcode::READ_CAPACITY_10])
}

pub(crate) fn report_luns(allocation: u32) -> Cdb {
    let [a, b, c, d] = allocation.to_be_bytes();
    cdb(&[opcode::REPORT_LUNS, 0, 0, 0, 0, 0, a, b, c, d])
}

pub(crate) fn read(lba: u32, blocks: u16) -> Cdb {
    ten(opcode::READ_10, lba, blocks)
}

pub(crate) fn write(lba: u32, blocks: u16) -> Cdb {
    ten(opcode::WRITE_10, lba, blocks)
}

/// An operation code that SPC reserves, so no device supports it.
pub(crate) fn unknown() -> Cdb {
    cdb(&[0xff])
}

fn ten(operation: u8, lba: u32, blocks: u16) -> Cdb {
    let [a, b, c, d] = lba.to_be_bytes();
    let [high, low] = blocks.to_be_bytes();
    cdb(&[operation, 0, a, b, c, d, 0, high, low, 0])
}

/// Returns the sense key and the additional sense code from sense data of either format.
pub(crate) fn sense(bytes: &[u8]) -> Option<(u8, u16)> {
    let at = |index: usize| bytes.get(index).copied();
    match at(0)? & 0x7f {
        0x70 | 0x71 => Some((at(2)? & 0xf, u16::from_be_bytes([at(12)?, at(13)?]))),
        0x72 | 0x73 => Some((at(1)? & 0xf, u16::from_be_bytes([at(2)?, at(3)?]))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sense_is_read_in_both_formats() {
        let mut fixed = [0; 18];
        (fixed[0], fixed[2], fixed[12], fixed[13]) = (0xf0, 0x6b, 0x0c, 0x0d);
        assert_eq!(sense(&fixed), Some((0xb, 0x0c0d)));
        assert_eq!(sense(&[0x72, 5, 0x20, 0, 0, 0, 0, 0]), Some((5, 0x2000)));
        assert_eq!(sense(&fixed[..13]), None);
        assert_eq!(sense(&[]), None);
    }
}
