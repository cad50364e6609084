//! READ CAPACITY (SBC-4 §5.20, §5.21).

use alloc::vec;
use alloc::vec::Vec;

use base::bytes::{UnexpectedEof, Writer};

use super::limits;
use crate::device_server::outcome::Outcome;
use crate::device_server::{DeviceServer, UnitInfo};
use crate::task::TaskInfo;

/// READ CAPACITY(10): a last address that does not fit is reported as FFFFFFFFh, which directs the initiator
/// to READ CAPACITY(16).
pub(crate) fn read_capacity_10(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    // The LOGICAL BLOCK ADDRESS and PMI fields are obsolete since SBC-3, where they must be zero.
    if task.cdb.u8(8) & 1 == 0 && task.cdb.u32(2) != 0 {
        return Outcome::CheckCondition(scsi::sense::Sense::invalid_cdb(2, None));
    }
    let last = u32::try_from(last_lba(&server.info)).unwrap_or(u32::MAX);
    let mut bytes = last.to_be_bytes().to_vec();
    bytes.extend(server.info.block_size().bytes().to_be_bytes());
    Outcome::ParameterData { bytes, allocation: 8 }
}

/// READ CAPACITY(16).
pub(super) fn read_capacity_16(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    match parameters_16(&server.info) {
        Ok(bytes) => Outcome::ParameterData { bytes, allocation: u64::from(task.cdb.u32(10)) },
        Err(UnexpectedEof) => Outcome::bug(),
    }
}

fn parameters_16(facts: &UnitInfo) -> Result<Vec<u8>, UnexpectedEof> {
    let mut bytes = vec![0; 32];
    let mut writer = Writer::new(&mut bytes);
    writer.u64(last_lba(facts))?;
    writer.u32(facts.block_size().bytes())?;
    // No protection information.
    writer.u8(0)?;
    writer.u8(facts.config.physical_exponent & 0xf)?;
    let provisioning = u16::from(facts.is_thin()) << 15;
    let zeros = u16::from(limits::unmapped_zeros(facts)) << 14;
    // The first block starts a physical block.
    writer.u16(provisioning | zeros)?;
    writer.zeros(16)?;
    Ok(bytes)
}

const fn last_lba(facts: &UnitInfo) -> u64 {
    facts.capacity().0.saturating_sub(1)
}
