//! READ BUFFER and WRITE BUFFER.

use alloc::vec::Vec;

use scsi::opcode;
use scsi::sense::Sense;

use super::{data, data_or, good_or, whole};
use crate::data_buffer::{self, DATA_LEN, ECHO_LEN};
use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::task::TaskInfo;

/// MODE (SPC-5 §6.20). The modes that download microcode are not supported.
mod mode {
    pub(super) const DATA: u8 = 0x02;
    pub(super) const DESCRIPTOR: u8 = 0x03;
    pub(super) const ECHO: u8 = 0x0a;
    pub(super) const ECHO_DESCRIPTOR: u8 = 0x0b;
}

/// What a READ BUFFER requests, and the offsets of these fields in its CDB.
struct Request {
    buffer: u8,
    offset: u64,
    offset_at: u16,
    buffer_at: u16,
    allocation: u32,
}

pub(super) fn read(server: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let cdb = &task.cdb;
    let request = match cdb.opcode() {
        opcode::READ_BUFFER_16 => Request {
            buffer: cdb.u8(14),
            offset: cdb.u64(2),
            offset_at: 2,
            buffer_at: 14,
            allocation: cdb.u32(10),
        },
        _ => Request {
            buffer: cdb.u8(2),
            offset: u64::from(cdb.u24(3)),
            offset_at: 3,
            buffer_at: 2,
            allocation: cdb.u24(6),
        },
    };
    let allocation = request.allocation;
    match cdb.u8(1) & 0x1f {
        mode::DATA => data_or(read_data(server, &request), allocation),
        mode::DESCRIPTOR => data(descriptor(request.buffer), allocation),
        mode::ECHO => data_or(server.spc.data_buffers.read_echo(task.nexus), allocation),
        mode::ECHO_DESCRIPTOR => data(echo_descriptor(), allocation),
        _ => Outcome::CheckCondition(Sense::invalid_cdb(1, Some(4))),
    }
}

pub(super) fn write(_: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let (len, offset) = (task.cdb.u24(6), u64::from(task.cdb.u24(3)));
    let checked = match task.cdb.u8(1) & 0x1f {
        mode::DATA if task.cdb.u8(2) != 0 => Err(Sense::invalid_cdb(2, None)),
        mode::DATA => data_buffer::check_data_range(offset, u64::from(len)),
        mode::ECHO if usize::try_from(len).is_ok_and(|len| len <= ECHO_LEN) => Ok(()),
        mode::ECHO => Err(Sense::invalid_cdb(6, None)),
        _ => Err(Sense::invalid_cdb(1, Some(4))),
    };
    match checked {
        Ok(()) => Outcome::FetchParameterList { len, then: write_list },
        Err(sense) => Outcome::CheckCondition(sense),
    }
}

fn write_list(server: &mut DeviceServer, task: &TaskInfo, list: &[u8]) -> Outcome {
    let list = match whole(list, task.cdb.u24(6)) {
        Ok(list) => list,
        Err(outcome) => return outcome,
    };
    good_or(match task.cdb.u8(1) & 0x1f {
        mode::DATA => server.spc.data_buffers.write_data(u64::from(task.cdb.u24(3)), list),
        _ => server.spc.data_buffers.write_echo(task.nexus, list),
    })
}

fn read_data(server: &DeviceServer, request: &Request) -> Result<Vec<u8>, Sense> {
    if request.buffer != 0 {
        return Err(Sense::invalid_cdb(request.buffer_at, None));
    }
    server.spc.data_buffers.read_data(request.offset, u64::from(request.allocation), request.offset_at)
}

/// Returns the descriptor of a buffer. There is one data buffer, number 0, that can be written at any byte;
/// every other number has no capacity.
fn descriptor(buffer: u8) -> Vec<u8> {
    let capacity = if buffer == 0 { u32::try_from(DATA_LEN).unwrap_or(0) } else { 0 };
    // OFFSET BOUNDARY zero, and 24 bits of BUFFER CAPACITY.
    Vec::from((capacity & 0x00ff_ffff).to_be_bytes())
}

/// Returns the descriptor of the echo buffer. EBOS: a nexus that reads an echo that another nexus has
/// overwritten receives an error.
fn echo_descriptor() -> Vec<u8> {
    let [high, low] = u16::try_from(ECHO_LEN).unwrap_or(0).to_be_bytes();
    Vec::from([1, 0, high & 0x1f, low])
}
