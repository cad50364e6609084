//! The state of a medium changer: its library, and the changes that are to be made. `smc::motion` works with
//! it.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use cartridge::library::{Counts, Element, Library};

use crate::library::{DriveName, MotionFailure, OperatorChange};
use crate::task::TaskId;

/// A medium changer.
#[derive(Debug, Default)]
pub(crate) struct Changer {
    /// The library, once it is known.
    pub(crate) library: Option<Library>,
    /// The names of the cartridges that cannot be used.
    pub(crate) unusable: BTreeSet<String>,
    /// The names of the drives, in order.
    pub(crate) drives: Vec<DriveName>,
    /// The change that the owner of the library makes now, or `None` in its place if its task has ended, and
    /// the library after it.
    pub(crate) running: Option<(Option<Motion>, Library)>,
    /// The changes that wait. There are no more than tasks and operators.
    pub(crate) waiting: VecDeque<Motion>,
    /// How the changes of tasks ended.
    pub(crate) ended: BTreeMap<TaskId, Result<(), MotionFailure>>,
}

/// A change that is to be made.
#[derive(Debug)]
pub(crate) enum Motion {
    /// By a command.
    Task(TaskId, Movement),
    /// By an operator, with the number of the request.
    Operator(u64, OperatorChange),
}

/// What a command moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Movement {
    Move { from: Element, to: Element },
    Exchange { from: Element, first: Element, second: Element },
}

impl Changer {
    /// Returns whether a cartridge is being moved, or is to be.
    pub(crate) fn is_moving(&self) -> bool {
        let Self { library: _, unusable: _, drives: _, running, waiting, ended } = self;
        running.is_some() || !waiting.is_empty() || !ended.is_empty()
    }

    /// Returns how many elements there are.
    pub(crate) fn counts(&self) -> Counts {
        self.library.as_ref().map(Library::counts).unwrap_or_default()
    }

    /// Forgets the change of a task that has ended. One that is being made goes on.
    pub(crate) fn forget_task(&mut self, task: TaskId) {
        let is_of_task = |motion: &Motion| matches!(motion, Motion::Task(other, _) if *other == task);
        self.waiting.retain(|motion| !is_of_task(motion));
        self.ended.remove(&task);
        if let Some((motion, _)) = &mut self.running {
            motion.take_if(|motion| is_of_task(motion));
        }
    }
}
