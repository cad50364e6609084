//! READ DEFECT DATA (SBC-4 §5.22, §5.23): there are no defects that anyone has to know of.

use crate::server::Core;
use crate::task::TaskInfo;
use crate::verdict::Verdict;

/// READ DEFECT DATA(10): an empty list, in the format asked for.
pub(super) fn read_10(_: &mut Core, task: &TaskInfo) -> Verdict {
    let asked = task.cdb.u8(2) & 0x1f;
    Verdict::Data { bytes: [0, asked, 0, 0].into(), allocation: u64::from(task.cdb.u16(7)) }
}

/// READ DEFECT DATA(12).
pub(super) fn read_12(_: &mut Core, task: &TaskInfo) -> Verdict {
    let asked = task.cdb.u8(1) & 0x1f;
    let bytes = [0, asked, 0, 0, 0, 0, 0, 0].into();
    Verdict::Data { bytes, allocation: u64::from(task.cdb.u32(6)) }
}
