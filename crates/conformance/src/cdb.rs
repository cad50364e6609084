//! The few commands that the cases use, as CDBs of 16 bytes, and the parser for sense data.

use scsi::opcode;

use crate::wire::word;

/// A CDB with the length of the field in the basic header segment.
pub(crate) type Cdb = [u8; 16];

/// Returns these bytes as a CDB; the rest is zeros.
pub(crate) fn cdb(bytes: &[u8]) -> Cdb {
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

/// The bits of a stream in sense data, as fixed format has them.
pub(crate) mod stream {
    pub(crate) const FILEMARK: u8 = 0x80;
    pub(crate) const EOM: u8 = 0x40;
    pub(crate) const ILI: u8 = 0x20;
    pub(crate) const ALL: u8 = FILEMARK | EOM | ILI;
}

/// What sense data say, in either format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SenseData {
    pub(crate) key: u8,
    pub(crate) code: u16,
    /// The bits of [`stream`].
    pub(crate) bits: u8,
    /// INFORMATION with its sign, if it is valid.
    pub(crate) information: Option<i64>,
}

impl SenseData {
    /// Reads sense data.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let (key, code) = sense(bytes)?;
        let format = bytes.first()?;
        if format & 0x7f < 0x72 {
            let information = word(bytes, 3).cast_signed();
            return Some(Self {
                key,
                code,
                bits: bytes.get(2)? & stream::ALL,
                information: (format & 0x80 != 0).then_some(i64::from(information)),
            });
        }
        let mut data = Self { key, code, bits: 0, information: None };
        let mut rest = bytes.get(8..)?;
        while let [kind, len, body @ ..] = rest {
            let body = body.get(..usize::from(*len))?;
            match kind {
                0 => {
                    data.information = body.get(2..10)?.first_chunk().map(|bytes| i64::from_be_bytes(*bytes))
                }
                4 => data.bits = body.get(1)? & stream::ALL,
                _ => {}
            }
            rest = rest.get(2 + usize::from(*len)..)?;
        }
        Some(data)
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

    #[test]
    fn stream_bits_and_information_are_read_in_both_formats() {
        let mut fixed = [0; 18];
        (fixed[0], fixed[2]) = (0xf0, 0x20);
        fixed[3..7].copy_from_slice(&(-900i32).to_be_bytes());
        let wanted = SenseData { key: 0, code: 0, bits: stream::ILI, information: Some(-900) };
        assert_eq!(SenseData::read(&fixed), Some(wanted));
        fixed[0] = 0x70;
        assert_eq!(SenseData::read(&fixed), Some(SenseData { information: None, ..wanted }));
        let mut described = vec![0x72, 0, 0, 0, 0, 0, 0, 16, 0, 10, 0x80, 0];
        described.extend_from_slice(&(-900i64).to_be_bytes());
        described.extend_from_slice(&[4, 2, 0, 0x20]);
        assert_eq!(SenseData::read(&described), Some(wanted));
        assert_eq!(SenseData::read(&described[..22]), None, "a descriptor that is cut");
    }
}
