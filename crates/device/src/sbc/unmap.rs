//! UNMAP (SBC-4 §5.35).

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use base::bytes::{Reader, UnexpectedEof};
use base::units::{Blocks, Lba};
use scsi::sense::{Asc, Sense};

use super::address::Span;
use super::bulk_change::{BulkChange, Change};
use super::limits;
use crate::device_server::outcome::Outcome;
use crate::device_server::{DeviceServer, UnitInfo};
use crate::range_lock::ByteRange;
use crate::task::TaskInfo;

/// The length of the header before the descriptors, and of each descriptor.
const HEADER_LEN: usize = 8;
const DESCRIPTOR_LEN: usize = 16;

/// UNMAP.
pub(super) fn unmap(_: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    Outcome::FetchParameterList { len: u32::from(task.cdb.u16(7)), then: free }
}

fn free(server: &mut DeviceServer, _: &TaskInfo, list: &[u8]) -> Outcome {
    let ranges = match ranges(&server.info, list) {
        Ok(ranges) => ranges,
        Err(sense) => return Outcome::CheckCondition(sense),
    };
    Outcome::Run(Box::new(BulkChange::new(Change::Free, ranges)))
}

/// Decodes the list, and checks all of it before any block is deallocated.
fn ranges(facts: &UnitInfo, list: &[u8]) -> Result<VecDeque<ByteRange>, Sense> {
    if list.is_empty() {
        return Ok(VecDeque::new());
    }
    let length_error = |_: UnexpectedEof| Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR);
    let mut reader = Reader::new(list);
    let _data_len = reader.u16().map_err(length_error)?;
    let descriptors_len = usize::from(reader.u16().map_err(length_error)?);
    reader.take(4).map_err(length_error)?;
    let descriptors = reader.take(descriptors_len).map_err(length_error)?;
    // A remainder shorter than a descriptor is ignored (SBC-4 §5.35.2).
    let count = descriptors.len() / DESCRIPTOR_LEN;
    let limits = limits::limits(facts);
    if count > usize::try_from(limits.unmap_descriptors_max).unwrap_or(usize::MAX) {
        return Err(Sense::invalid_parameter(2, None));
    }
    let mut total = 0;
    let mut ranges = VecDeque::with_capacity(count);
    for (number, descriptor) in descriptors.chunks_exact(DESCRIPTOR_LEN).enumerate() {
        let mut reader = Reader::new(descriptor);
        let lba = Lba(reader.u64().map_err(length_error)?);
        let blocks = Blocks(u64::from(reader.u32().map_err(length_error)?));
        total += blocks.0;
        if total > u64::from(limits.unmap_max) {
            let at = HEADER_LEN + number * DESCRIPTOR_LEN + 8;
            return Err(Sense::invalid_parameter(u16::try_from(at).unwrap_or(u16::MAX), None));
        }
        let span = Span::new(facts, lba, blocks)?;
        ranges.push_back(ByteRange::new(span.at, span.len));
    }
    Ok(ranges)
}
