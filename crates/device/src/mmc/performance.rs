//! The speed of the drive (MMC-6): GET PERFORMANCE, SET STREAMING, SET CD SPEED and READ BUFFER CAPACITY.
//!
//! A request for a speed is a hint to a drive of how fast its spindle should turn. This drive has none: it
//! accepts every request, and reads as fast as it can.

use alloc::vec::Vec;

use scsi::sense::{Asc, Sense};

use super::{data, lead_out, profile};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::task::TaskInfo;

/// TYPE of GET PERFORMANCE.
mod kind {
    pub(super) const PERFORMANCE: u8 = 0x00;
    pub(super) const WRITE_SPEED: u8 = 0x03;
}

/// The bits of DATA TYPE.
const WRITE: u8 = 0x04;
const EXCEPT: u8 = 0x03;

/// The length of a nominal performance descriptor.
const NOMINAL_LEN: u32 = 16;

/// The length of the performance descriptor of SET STREAMING.
const STREAMING_LEN: u16 = 28;

/// GET PERFORMANCE: one nominal speed from the requested block to the end of the disc. There are no
/// exceptions, and there is no write performance.
pub(super) fn get_performance(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let cdb = &task.cdb;
    let (data_type, start, count, kind) = (cdb.u8(1) & 0x1f, cdb.u32(2), cdb.u16(8), cdb.u8(10));
    let end = lead_out(server).saturating_sub(1);
    let descriptors = match kind {
        kind::PERFORMANCE if start > end => {
            return Outcome::CheckCondition(Sense::illegal(Asc::LBA_OUT_OF_RANGE));
        }
        kind::PERFORMANCE if data_type & (WRITE | EXCEPT) == 0 => {
            let speed = profile::current(server).map_or(0, profile::speed_kb);
            [start, speed, end, speed].iter().flat_map(|word| word.to_be_bytes()).collect()
        }
        kind::PERFORMANCE | kind::WRITE_SPEED => Vec::new(),
        _ => return Outcome::CheckCondition(Sense::invalid_cdb(10, None)),
    };
    let flags = match kind {
        kind::PERFORMANCE => (data_type & WRITE) >> 1 | u8::from(data_type & EXCEPT != 0),
        _ => 0,
    };
    let len = u32::try_from(descriptors.len().saturating_add(4)).unwrap_or(u32::MAX);
    let mut bytes = Vec::from(len.to_be_bytes());
    bytes.extend_from_slice(&[flags, 0, 0, 0]);
    bytes.extend_from_slice(&descriptors);
    data(bytes, 8 + u32::from(count) * NOMINAL_LEN)
}

/// SET STREAMING: only a performance descriptor, which is checked.
pub(super) fn set_streaming(_: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let (kind, len) = (task.cdb.u8(8), task.cdb.u16(9));
    match (kind, len) {
        (kind::PERFORMANCE, 0) => Outcome::Good,
        (kind::PERFORMANCE, STREAMING_LEN) => {
            Outcome::FetchParameterList { len: u32::from(len), then: streaming_set }
        }
        (kind::PERFORMANCE, _) => Outcome::CheckCondition(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR)),
        _ => Outcome::CheckCondition(Sense::invalid_cdb(8, None)),
    }
}

fn streaming_set(_: &mut DeviceServer, _: &TaskInfo, list: &[u8]) -> Outcome {
    let word =
        |at: usize| list.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
    // START LBA and END LBA.
    match (list.len() == usize::from(STREAMING_LEN), word(4), word(8)) {
        (true, Some(start), Some(end)) if start <= end => Outcome::Good,
        (true, Some(_), Some(_)) => Outcome::CheckCondition(Sense::invalid_parameter(4, None)),
        _ => Outcome::CheckCondition(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR)),
    }
}

pub(super) fn set_cd_speed(_: &mut DeviceServer, _: &TaskInfo) -> Outcome {
    Outcome::Good
}

/// READ BUFFER CAPACITY: the drive has no buffer for writing.
pub(super) fn read_buffer_capacity(_: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    data(Vec::from([0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), u32::from(task.cdb.u16(7)))
}
