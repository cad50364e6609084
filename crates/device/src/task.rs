//! A task as its handler sees it: the command, and counters of its operations and calls in progress.

use alloc::boxed::Box;
use alloc::rc::Rc;
use core::cell::{Cell, RefCell};

use base::buffer::DataList;
use base::time::Instant;
use scsi::cdb::Cdb;
use scsi::status::{Status, TaskAttribute};
use security::Level;

use crate::contract::{NexusId, TaskKey, ThirdPartyCaller};
use crate::task_timing::TaskTiming;

/// Names a task inside the logical unit. The generation distinguishes the successive tasks of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TaskId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// The information that a handler or a job has about its task.
#[derive(Debug)]
pub(crate) struct TaskInfo {
    /// The name of the task inside the unit.
    pub(crate) id: TaskId,
    /// The originator of the task.
    pub(crate) origin: Origin,
    /// The nexus that the task belongs to.
    pub(crate) nexus: NexusId,
    /// The protection of the command.
    pub(crate) level: Level,
    /// The command.
    pub(crate) cdb: Cdb,
    /// When the unit received the command.
    pub(crate) arrived: Instant,
    /// Where its time goes.
    pub(crate) timing: TaskTiming,
    /// How often the unit had unloaded a cartridge when it received the command.
    pub(crate) demounts: u32,
    /// The task attribute.
    pub(crate) attribute: TaskAttribute,
    /// How many bytes the initiator is ready to receive.
    pub(crate) data_in_len: u32,
    /// How many bytes the initiator is ready to send.
    pub(crate) data_out_len: u32,
    /// How many bytes would have been transferred, see `UnitEvent::CommandComplete`.
    pub(crate) transferable: Cell<u64>,
    /// Up to where data was delivered, in bytes of the data of the command.
    pub(crate) delivered: Cell<u64>,
    /// How many operations of the medium are in progress.
    pub(crate) ops: Cell<u32>,
    /// How many calls of other units are in progress.
    pub(crate) calls: Cell<u32>,
}

/// The originator of a task.
#[derive(Debug)]
pub(crate) enum Origin {
    /// A transport.
    Transport(TaskKey),
    /// The copy manager of some unit, on behalf of the nexus.
    ThirdParty(Box<ThirdPartyTask>),
    /// This unit's own copy manager, whose command has been answered. The end of the task is reported to no
    /// initiator.
    Background,
}

/// The data of a task that serves a copy manager.
#[derive(Debug)]
pub(crate) struct ThirdPartyTask {
    pub(crate) caller: ThirdPartyCaller,
    /// The bytes to write.
    pub(crate) data_out: DataList,
    /// The bytes read so far.
    pub(crate) data_in: RefCell<DataList>,
    /// The ROD token that the bytes are read by. It must be valid until the end.
    pub(crate) token: Option<Rc<[u8]>>,
}

impl TaskId {
    /// Not a task: the owner of the unit's own work on the medium.
    pub(crate) const BACKGROUND: Self = Self { slot: u32::MAX, generation: u32::MAX };

    /// Not a task: the owner of the operations on the files of a cartridge. They have no time limit, because
    /// a command that a host has given up does not end them.
    pub(crate) const TAPE: Self = Self { slot: u32::MAX - 2, generation: u32::MAX };

    /// Not a task: an operator whose change of the reservations is being stored.
    pub(crate) const OPERATOR: Self = Self { slot: u32::MAX - 4, generation: u32::MAX };

    /// Not a task: the owner of the commands that a unit sends by itself to the device that it passes
    /// commands to.
    pub(crate) const DEVICE: Self = Self { slot: u32::MAX - 3, generation: u32::MAX };

    /// Not a task: the owner of the range that an abandoned operation of the medium changes. `index` is the
    /// slot of the operation.
    pub(crate) const fn abandoned(index: u32) -> Self {
        Self { slot: u32::MAX - 1, generation: index }
    }
}

impl TaskInfo {
    /// Describes a command without data and without protection. The task set assigns the name.
    pub(crate) const fn new(origin: Origin, nexus: NexusId, cdb: Cdb) -> Self {
        Self {
            id: TaskId { slot: 0, generation: 0 },
            origin,
            nexus,
            level: Level::None,
            cdb,
            arrived: Instant::ORIGIN,
            timing: TaskTiming::new(),
            demounts: 0,
            attribute: TaskAttribute::Simple,
            data_in_len: 0,
            data_out_len: 0,
            transferable: Cell::new(0),
            delivered: Cell::new(0),
            ops: Cell::new(0),
            calls: Cell::new(0),
        }
    }

    /// Returns how many bytes the command would have transferred, for the response. A command that failed
    /// has transferred what it delivered: initiators take the blocks before the one that the sense data
    /// names as read, up to there.
    pub(crate) fn transferable_for(&self, status: Status) -> u64 {
        let (transferable, delivered) = (self.transferable.get(), self.delivered.get());
        let is_cut = self.data_out_len == 0 && delivered < transferable.min(u64::from(self.data_in_len));
        if status != Status::GOOD && is_cut { delivered } else { transferable }
    }

    /// Sets the protection of the command.
    pub(crate) const fn with_level(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    /// Sets when the unit received the command.
    pub(crate) const fn with_arrival(mut self, at: Instant) -> Self {
        self.arrived = at;
        self
    }

    /// Sets the task attribute.
    pub(crate) fn with_attribute(mut self, attribute: TaskAttribute) -> Self {
        self.attribute = attribute;
        self
    }

    /// Sets how many bytes the initiator is ready to receive and to send.
    pub(crate) fn with_lengths(mut self, data_in_len: u32, data_out_len: u32) -> Self {
        (self.data_in_len, self.data_out_len) = (data_in_len, data_out_len);
        self
    }

    /// Returns whether no operation and no call is in progress.
    pub(crate) const fn is_idle(&self) -> bool {
        self.ops.get() == 0 && self.calls.get() == 0
    }

    /// Returns the transport's key of the task, if a transport originated it.
    pub(crate) const fn key(&self) -> Option<TaskKey> {
        match &self.origin {
            Origin::Transport(key) => Some(*key),
            Origin::ThirdParty(_) | Origin::Background => None,
        }
    }
}
