//! Which unit executes each open task.

use alloc::vec::Vec;

use base::buffer::Bytes;
use base::int_cast::to_usize;
use transport::target::TaskRef;

use crate::transport_id::{TRANSPORTS_MAX, TransportId};
use crate::units::UnitId;

/// The unit that executes each open task, for each transport.
#[derive(Default)]
pub(crate) struct Owners {
    tasks: [Vec<Option<Owner>>; TRANSPORTS_MAX],
}

struct Owner {
    /// The generation of the task. A unit can still have events of an earlier task with the same index, which
    /// the transport gave up.
    generation: u32,
    unit: UnitId,
    /// The Data-Out that came with the command, until the unit requests it.
    data_out: Option<Bytes>,
}

impl Owners {
    pub(crate) fn get(&self, transport: TransportId, task: TaskRef) -> Option<UnitId> {
        let owner = self.tasks.get(transport.number())?.get(index(task))?.as_ref();
        owner.filter(|owner| owner.generation == task.0.generation).map(|owner| owner.unit)
    }

    /// Returns bytes of a task's Data-Out, if all of them came with the command. A unit that requests them
    /// all gets the only share, so that their buffers can be used again.
    pub(crate) fn data_of_command(
        &mut self,
        transport: TransportId,
        task: TaskRef,
        offset: u32,
        len: u32,
    ) -> Option<Bytes> {
        let owner = self.tasks.get_mut(transport.number())?.get_mut(index(task))?.as_mut();
        let data = &mut owner.filter(|owner| owner.generation == task.0.generation)?.data_out;
        let (start, len, all) = (to_usize(offset), to_usize(len), data.as_ref()?.len());
        if start.saturating_add(len) > all {
            return None;
        }
        if len == all { data.take() } else { data.as_ref().map(|data| data.slice(start, start + len)) }
    }

    pub(crate) fn take(&mut self, transport: TransportId, task: TaskRef) -> Option<UnitId> {
        let slot = self.tasks.get_mut(transport.number())?.get_mut(index(task))?;
        slot.take_if(|owner| owner.generation == task.0.generation).map(|owner| owner.unit)
    }

    /// Records that a unit has a new number.
    pub(crate) fn rename(&mut self, old: UnitId, new: UnitId) {
        let owners = self.tasks.iter_mut().flatten().flatten();
        owners.filter(|owner| owner.unit == old).for_each(|owner| owner.unit = new);
    }

    pub(crate) fn own(
        &mut self,
        transport: TransportId,
        task: TaskRef,
        unit: UnitId,
        data_out: Option<Bytes>,
    ) {
        let Some(owners) = self.tasks.get_mut(transport.number()) else { return };
        while owners.len() <= index(task) {
            owners.push(None);
        }
        if let Some(slot) = owners.get_mut(index(task)) {
            *slot = Some(Owner { generation: task.0.generation, unit, data_out });
        }
    }
}

fn index(task: TaskRef) -> usize {
    usize::try_from(task.index()).unwrap_or(usize::MAX)
}
