//! The disk of the scripted target: as much of SPC and SBC as an initiator needs to start, read and write.

use std::collections::BTreeMap;

use scsi::opcode;

/// The logical block length, in bytes.
pub(super) const BLOCK: usize = 512;
/// The number of blocks: 64 MiB.
pub(super) const BLOCKS: u64 = 64 << 11;

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Data for the initiator, and GOOD.
    Data(Vec<u8>),
    /// GOOD.
    Good,
    /// CHECK CONDITION with ILLEGAL REQUEST and this additional sense code.
    Illegal(u16),
    /// The command writes `len` bytes, beginning with block `lba`.
    Write { lba: u64, len: usize },
}

/// The blocks that were written; all others read as zeros.
#[derive(Debug, Default)]
pub(super) struct Disk {
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Disk {
    pub(super) fn answer(&self, lun: u64, cdb: &[u8; 16]) -> Answer {
        let [operation, ..] = *cdb;
        if operation == opcode::REPORT_LUNS {
            return data([0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0].to_vec(), be(cdb, 6, 4));
        }
        if operation == opcode::INQUIRY {
            return inquiry(lun, cdb);
        }
        if lun != 0 {
            return Answer::Illegal(0x2500);
        }
        match operation {
            opcode::TEST_UNIT_READY
            | opcode::SYNCHRONIZE_CACHE_10
            | opcode::SYNCHRONIZE_CACHE_16
            | opcode::START_STOP_UNIT
            | opcode::PREVENT_ALLOW_MEDIUM_REMOVAL
            | opcode::VERIFY_10 => Answer::Good,
            opcode::READ_CAPACITY_10 => {
                let last = u32::try_from(BLOCKS - 1).unwrap_or(u32::MAX).to_be_bytes();
                data([last, 512_u32.to_be_bytes()].concat(), 8)
            }
            opcode::SERVICE_ACTION_IN_16 if cdb.get(1) == Some(&0x10) => {
                let mut out = (BLOCKS - 1).to_be_bytes().to_vec();
                out.extend(512_u32.to_be_bytes());
                out.resize(32, 0);
                data(out, be(cdb, 10, 4))
            }
            opcode::MODE_SENSE_6 => data(vec![3, 0, 0, 0], be(cdb, 4, 1)),
            opcode::MODE_SENSE_10 => data(vec![0, 6, 0, 0, 0, 0, 0, 0], be(cdb, 7, 2)),
            opcode::REQUEST_SENSE => {
                let mut sense = vec![0x70, 0, 0, 0, 0, 0, 0, 10];
                sense.resize(18, 0);
                data(sense, be(cdb, 4, 1))
            }
            _ => self.transfer(cdb),
        }
    }

    fn transfer(&self, cdb: &[u8; 16]) -> Answer {
        let [operation, ..] = *cdb;
        let (lba, count) = match operation {
            opcode::READ_6 | opcode::WRITE_6 => {
                let count = be(cdb, 4, 1);
                (be(cdb, 1, 3) & 0x1f_ffff, if count == 0 { 256 } else { count })
            }
            opcode::READ_10 | opcode::WRITE_10 => (be(cdb, 2, 4), be(cdb, 7, 2)),
            opcode::READ_12 | opcode::WRITE_12 => (be(cdb, 2, 4), be(cdb, 6, 4)),
            opcode::READ_16 | opcode::WRITE_16 => (be(cdb, 2, 8), be(cdb, 10, 4)),
            _ => return Answer::Illegal(0x2000),
        };
        if lba.checked_add(count).is_none_or(|end| end > BLOCKS) {
            return Answer::Illegal(0x2100);
        }
        if is_write(operation) {
            return Answer::Write { lba, len: usize::try_from(count).unwrap_or(0) * BLOCK };
        }
        let blocks = (lba..lba + count).flat_map(|lba| match self.blocks.get(&lba) {
            Some(block) => block.clone(),
            None => vec![0; BLOCK],
        });
        Answer::Data(blocks.collect())
    }

    pub(super) fn write(&mut self, lba: u64, bytes: &[u8]) {
        for (lba, block) in (lba..).zip(bytes.chunks(BLOCK)) {
            self.blocks.insert(lba, block.to_vec());
        }
    }
}

/// Returns whether an operation code reads blocks.
pub(super) const fn is_read(operation: u8) -> bool {
    matches!(operation, opcode::READ_6 | opcode::READ_10 | opcode::READ_12 | opcode::READ_16)
}

/// Returns whether an operation code writes blocks.
pub(super) const fn is_write(operation: u8) -> bool {
    matches!(operation, opcode::WRITE_6 | opcode::WRITE_10 | opcode::WRITE_12 | opcode::WRITE_16)
}

fn be(cdb: &[u8; 16], at: usize, len: usize) -> u64 {
    cdb.iter().skip(at).take(len).fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn data(mut bytes: Vec<u8>, allocation: u64) -> Answer {
    bytes.truncate(usize::try_from(allocation).unwrap_or(usize::MAX));
    Answer::Data(bytes)
}

fn inquiry(lun: u64, cdb: &[u8; 16]) -> Answer {
    let allocation = be(cdb, 3, 2);
    let kind = if lun == 0 { 0 } else { 0x7f };
    if cdb.get(1).is_none_or(|flags| flags & 1 == 0) {
        let mut out = vec![kind, 0, 6, 2, 31, 0, 0, 2];
        out.extend_from_slice(b"targe   conformance disk0001");
        return data(out, allocation);
    }
    let page = cdb.get(2).copied().unwrap_or_default();
    let body: &[u8] = match page {
        0x00 => &[0x00, 0x80, 0x83],
        0x80 => b"conform0",
        0x83 => b"\x02\x01\x00\x0ctarge   cnf0",
        _ => return Answer::Illegal(0x2400),
    };
    let mut out = vec![kind, page, 0, u8::try_from(body.len()).unwrap_or(0)];
    out.extend_from_slice(body);
    data(out, allocation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut disk = Disk::default();
        let cdb = crate::cdb::write(7, 2);
        assert_eq!(disk.answer(0, &cdb), Answer::Write { lba: 7, len: 1024 });
        disk.write(7, &[9; 1024]);
        let Answer::Data(back) = disk.answer(0, &crate::cdb::read(6, 4)) else { panic!("no data") };
        assert_eq!(back.iter().filter(|byte| **byte == 9).count(), 1024);
        assert_eq!(disk.answer(0, &crate::cdb::read(u32::MAX, 1)), Answer::Illegal(0x2100));
        assert_eq!(disk.answer(1 << 48, &crate::cdb::read(0, 1)), Answer::Illegal(0x2500));
        assert_eq!(disk.answer(0, &crate::cdb::unknown()), Answer::Illegal(0x2000));
    }
}
