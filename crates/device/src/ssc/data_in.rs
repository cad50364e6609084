//! The Data-In of READ: blocks on their way to the initiator.

use base::buffer::{Buf, Bytes, DataList};
use base::int_cast::{to_u32, to_usize};

use crate::device_server::DeviceServer;
use crate::task::TaskInfo;

/// Blocks that are shorter than this are copied together: each one costs the transport a segment.
const SHORT: usize = 4 << 10;

/// How many bytes are copied together at most, if no block alone is longer.
const GATHERED_MAX: u32 = 64 << 10;

/// How many times its length a block may hold in buffers of the read-ahead until it is sent. A session counts
/// the length only. A block that holds more is copied.
const HELD_FACTOR_MAX: usize = 4;

/// Blocks that are delivered in order.
#[derive(Debug)]
pub(super) struct DataIn {
    /// Blocks that were copied together and are not passed on yet.
    gathered: Option<Buf>,
    /// How many bytes were passed on.
    passed: u32,
}

impl DataIn {
    pub(super) const fn new() -> Self {
        Self { gathered: None, passed: 0 }
    }

    /// Delivers a block, of which `left` bytes and more may follow in the same command.
    pub(super) fn deliver(&mut self, server: &mut DeviceServer, task: &TaskInfo, data: DataList, left: u32) {
        let data = match data {
            short if short.len() < SHORT => short,
            data => match hold_less(server, data) {
                Ok(data) => {
                    self.pass_on(server, task);
                    return self.send(server, task, data);
                }
                Err(data) => data,
            },
        };
        let has_room = |buf: &Buf| buf.capacity() - buf.len() >= data.len();
        if !self.gathered.as_ref().is_some_and(has_room) {
            self.pass_on(server, task);
        }
        let wanted = to_usize(left.min(GATHERED_MAX)).max(data.len());
        let gathered = self.gathered.get_or_insert_with(|| server.pool.take(wanted));
        for part in data.parts() {
            gathered.append(part);
        }
        server.recycle(data);
    }

    /// Passes on what was copied together.
    pub(super) fn pass_on(&mut self, server: &mut DeviceServer, task: &TaskInfo) {
        if let Some(gathered) = self.gathered.take() {
            self.send(server, task, gathered.freeze().into());
        }
    }

    fn send(&mut self, server: &mut DeviceServer, task: &TaskInfo, data: DataList) {
        let len = to_u32(data.len());
        server.send_data_in(task, self.passed, data);
        self.passed = self.passed.saturating_add(len);
    }
}

/// Returns data that keep no buffers from being reused that are far longer. If a block is in several buffers,
/// all but its longest part are copied.
///
/// # Errors
/// The data would still hold too much, and are returned unchanged.
fn hold_less(server: &DeviceServer, data: DataList) -> Result<DataList, DataList> {
    let bound = data.len().saturating_mul(HELD_FACTOR_MAX);
    if data.parts().iter().map(Bytes::block_len).fold(0, usize::saturating_add) <= bound {
        return Ok(data);
    }
    let Some((longest, part)) = data.parts().iter().enumerate().max_by_key(|(_, part)| part.len()) else {
        return Err(data);
    };
    if part.block_len() > bound {
        return Err(data);
    }
    let mut less = DataList::new();
    for (number, part) in data.parts().iter().enumerate() {
        if number == longest {
            less.push(part.clone());
        } else {
            let mut copy = server.pool.take(part.len());
            copy.append(part);
            less.push(copy.freeze());
        }
    }
    server.recycle(data);
    Ok(less)
}
