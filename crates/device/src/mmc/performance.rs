//! The speed of the drive (MMC-6): GET PERFORMANCE, SET STREAMING, SET CD SPEED and READ BUFFER CAPACITY.
//!
//! A request for a speed is a hint to a drive of how fast its spindle should turn. This drive has none: it
//! accepts every request, and reads as fast as it can.

use alloc::vec::Vec;

use scsi::sense::{Asc, Sense};

use super::profile::{self, Disc};
use super::{data, lead_out};
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
/// exceptions. The speed of writing is that of reading.
pub(super) fn get_performance(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let cdb = &task.cdb;
    let (data_type, start, count, kind) = (cdb.u8(1) & 0x1f, cdb.u32(2), cdb.u16(8), cdb.u8(10));
    let disc = profile::current(server);
    let writes = matches!(disc, Some(Disc::Writable(_)));
    let end = match &server.recorder {
        Some(recorder) => recorder.record.capacity,
        None => lead_out(server),
    };
    let end = end.saturating_sub(1);
    let speed = disc.map_or(0, Disc::speed_kb);
    let descriptors = match kind {
        kind::PERFORMANCE if start > end => {
            return Outcome::CheckCondition(Sense::illegal(Asc::LBA_OUT_OF_RANGE));
        }
        kind::PERFORMANCE if data_type & EXCEPT == 0 && (writes || data_type & WRITE == 0) => {
            [start, speed, end, speed].iter().flat_map(|word| word.to_be_bytes()).collect()
        }
        // The flags of the descriptor: any sector can be written at this speed.
        kind::WRITE_SPEED if writes => {
            [0, end, speed, speed].iter().flat_map(|word| word.to_be_bytes()).collect()
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

/// READ BUFFER CAPACITY: the drive takes what it is sent as fast as it arrives, so the whole buffer is always
/// available. With a read-only disc it has none for writing.
pub(super) fn read_buffer_capacity(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    const BUFFER_LEN: u32 = 8 << 20;
    let writes = matches!(profile::current(server), Some(Disc::Writable(_)));
    let len = if writes { BUFFER_LEN } else { 0 };
    let mut bytes = Vec::from([0, 10, 0, 0]);
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    data(bytes, u32::from(task.cdb.u16(7)))
}
