//! Derives which operation takes effect first from the order of the tasks in a task set (SAM-5 §8).

/// The position of an operation in its task set. Operations without a position are ordered only by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskPosition {
    /// The task set, as the caller numbers it.
    pub set: u64,
    /// The position in the order in which the tasks enter the set.
    pub number: u64,
    /// The task attribute.
    pub attribute: Attribute,
}

/// A task attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// SIMPLE: waits for older ORDERED and HEAD OF QUEUE tasks.
    Simple,
    /// ORDERED: waits for all older tasks.
    Ordered,
    /// HEAD OF QUEUE: waits for none.
    HeadOfQueue,
}

impl TaskPosition {
    /// Returns whether this task has ended, or never begins, before the task at `other` begins.
    pub const fn precedes(self, other: Self) -> bool {
        let waits = match other.attribute {
            Attribute::Simple => matches!(self.attribute, Attribute::Ordered | Attribute::HeadOfQueue),
            Attribute::Ordered => true,
            Attribute::HeadOfQueue => false,
        };
        self.set == other.set && self.number < other.number && waits
    }
}

/// Returns whether an operation at `one` has ended before one at `other` begins; `false` if either has no
/// position.
pub(crate) fn precedes(one: Option<TaskPosition>, other: Option<TaskPosition>) -> bool {
    matches!((one, other), (Some(one), Some(other)) if one.precedes(other))
}

/// A rule, beyond the order of time, that a read can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderRule {
    /// Task attributes.
    Order,
    /// A COMPARE AND WRITE is atomic.
    Atomic,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_waits_for_what_its_attribute_and_those_of_older_tasks_say() {
        use Attribute::{HeadOfQueue, Ordered, Simple};
        for (older, younger, waits) in [
            (Simple, Simple, false),
            (Simple, Ordered, true),
            (Simple, HeadOfQueue, false),
            (Ordered, Simple, true),
            (Ordered, Ordered, true),
            (Ordered, HeadOfQueue, false),
            (HeadOfQueue, Simple, true),
            (HeadOfQueue, Ordered, true),
            (HeadOfQueue, HeadOfQueue, false),
        ] {
            let place = |set, number, attribute| TaskPosition { set, number, attribute };
            let (first, second) = (place(1, 1, older), place(1, 2, younger));
            assert_eq!(first.precedes(second), waits, "{older:?} {younger:?}");
            assert!(!second.precedes(first));
            assert!(!first.precedes(place(2, 2, younger)));
            assert_eq!(precedes(Some(first), Some(second)), waits);
            assert!(!precedes(None, Some(second)) && !precedes(Some(first), None));
        }
    }
}
