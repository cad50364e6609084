//! Collects the Data-Out of commands that need all of it before they begin.

use base::buffer::DataList;

use super::PART_LEN;
use crate::device_server::DeviceServer;
use crate::task::TaskInfo;

/// A Data-Out buffer that is fetched one part at a time.
#[derive(Debug)]
pub(super) struct DataOutCollector {
    total: usize,
    data: DataList,
}

impl DataOutCollector {
    /// Expects `total` bytes, which must not be zero.
    pub(super) fn new(total: usize) -> Self {
        Self { total, data: DataList::new() }
    }

    /// Requests the next part.
    pub(super) fn ask(&self, server: &mut DeviceServer, task: &TaskInfo) {
        let narrow = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let have = self.data.len();
        server.fetch_data_out(task, narrow(have), narrow(PART_LEN.min(self.total - have)));
    }

    /// Adds a part and returns whether it was the last; if not, requests the next.
    pub(super) fn take(&mut self, server: &mut DeviceServer, task: &TaskInfo, part: DataList) -> bool {
        part.into_parts().for_each(|bytes| self.data.push(bytes));
        let whole = self.data.len() >= self.total;
        if !whole {
            self.ask(server, task);
        }
        whole
    }

    /// Returns the data received so far.
    pub(super) const fn data(&self) -> &DataList {
        &self.data
    }

    /// Takes the data received so far.
    pub(super) fn take_all(&mut self) -> DataList {
        core::mem::take(&mut self.data)
    }
}
