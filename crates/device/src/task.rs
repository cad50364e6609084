//! A task as its handler sees it: the command, and counters of what is under way on its behalf.

use alloc::boxed::Box;
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};

use base::buffer::DataList;
use scsi::cdb::Cdb;
use scsi::status::TaskAttribute;

use crate::contract::{NexusId, TaskKey, ThirdPartyCaller};

/// Names a task inside the logical unit. The generation tells a slot's users apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TaskId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// What a handler or a job knows of its task.
#[derive(Debug)]
pub(crate) struct TaskInfo {
    /// Its name here.
    pub(crate) id: TaskId,
    /// Who asked.
    pub(crate) origin: Origin,
    /// On which nexus.
    pub(crate) nexus: NexusId,
    /// The command.
    pub(crate) cdb: Cdb,
    /// Its place in the task set.
    pub(crate) attribute: TaskAttribute,
    /// How many bytes the initiator is ready to receive.
    pub(crate) data_in_len: u32,
    /// How many bytes the initiator is ready to send.
    pub(crate) data_out_len: u32,
    /// How many bytes would have been transferred, see `Event::Finish`.
    pub(crate) transferable: Cell<u64>,
    /// Operations of the medium under way.
    pub(crate) ops: Cell<u32>,
    /// Calls of other units under way.
    pub(crate) calls: Cell<u32>,
}

/// Who asked for a task.
#[derive(Debug)]
pub(crate) enum Origin {
    /// A transport.
    Transport(TaskKey),
    /// The copy manager of some unit, in the name of the nexus.
    ThirdParty(Box<ThirdPartyTask>),
    /// Our own copy manager, whose command has been answered. Nobody hears how the task ends.
    Background,
}

/// What a task has that serves a copy manager.
#[derive(Debug)]
pub(crate) struct ThirdPartyTask {
    pub(crate) caller: ThirdPartyCaller,
    /// The bytes to write.
    pub(crate) data_out: DataList,
    /// The bytes read so far.
    pub(crate) data_in: RefCell<DataList>,
    /// The ROD token by which they are read, which must be good to the end.
    pub(crate) token: Option<Rc<[u8]>>,
}

impl TaskId {
    /// Not a task: what the unit does on the medium by itself.
    pub(crate) const BACKGROUND: Self = Self { slot: u32::MAX, generation: u32::MAX };

    /// Not a task: the owner of what an abandoned operation of the medium changes. `index` is the operation's.
    pub(crate) const fn abandoned(index: u32) -> Self {
        Self { slot: u32::MAX - 1, generation: index }
    }
}

impl TaskInfo {
    /// Describes a command without data. The task set gives it its name.
    pub(crate) const fn new(origin: Origin, nexus: NexusId, cdb: Cdb) -> Self {
        Self {
            id: TaskId { slot: 0, generation: 0 },
            origin,
            nexus,
            cdb,
            attribute: TaskAttribute::Simple,
            data_in_len: 0,
            data_out_len: 0,
            transferable: Cell::new(0),
            ops: Cell::new(0),
            calls: Cell::new(0),
        }
    }

    /// The same with a task attribute.
    pub(crate) fn with_attribute(mut self, attribute: TaskAttribute) -> Self {
        self.attribute = attribute;
        self
    }

    /// The same with what the initiator is ready to receive and to send.
    pub(crate) fn with_lengths(mut self, data_in_len: u32, data_out_len: u32) -> Self {
        (self.data_in_len, self.data_out_len) = (data_in_len, data_out_len);
        self
    }

    /// Returns whether nothing is under way any more.
    pub(crate) const fn is_idle(&self) -> bool {
        self.ops.get() == 0 && self.calls.get() == 0
    }

    /// Returns the transport's name of the task, if a transport asked for it.
    pub(crate) const fn key(&self) -> Option<TaskKey> {
        match &self.origin {
            Origin::Transport(key) => Some(*key),
            Origin::ThirdParty(_) | Origin::Background => None,
        }
    }
}
