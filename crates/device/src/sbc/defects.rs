//! READ DEFECT DATA (SBC-4 §5.22, §5.23): the defect lists are always empty.

use crate::device_server::DeviceServer;
use crate::device_server::outcome::Outcome;
use crate::task::TaskInfo;

/// READ DEFECT DATA(10): an empty list, in the requested format.
pub(super) fn read_10(_: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let asked = task.cdb.u8(2) & 0x1f;
    Outcome::ParameterData { bytes: [0, asked, 0, 0].into(), allocation: u64::from(task.cdb.u16(7)) }
}

/// READ DEFECT DATA(12).
pub(super) fn read_12(_: &mut DeviceServer, task: &TaskInfo) -> Outcome {
    let asked = task.cdb.u8(1) & 0x1f;
    let bytes = [0, asked, 0, 0, 0, 0, 0, 0].into();
    Outcome::ParameterData { bytes, allocation: u64::from(task.cdb.u32(6)) }
}
