//! The commands of a session that wait for memory for their Data-In: one queue for each logical unit.
//!
//! The commands of one logical unit keep their order. The logical units take turns, so that one that executes
//! nothing does not hold up the others.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The waiting commands of a session.
#[derive(Debug)]
pub struct LunQueues<T> {
    /// The queues that are not empty. The one whose turn is next comes first.
    queues: VecDeque<(u64, VecDeque<T>)>,
}

impl<T> LunQueues<T> {
    /// Returns whether no command waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Returns whether a command of this logical unit waits.
    pub fn contains(&self, lun: u64) -> bool {
        self.queues.iter().any(|(other, _)| *other == lun)
    }

    /// Adds a command behind those of its logical unit.
    pub fn push_back(&mut self, lun: u64, command: T) {
        match self.queues.iter_mut().find(|(other, _)| *other == lun) {
            Some((_, queue)) => queue.push_back(command),
            None => self.queues.push_back((lun, VecDeque::from([command]))),
        }
    }

    /// Returns the first command of the logical unit whose turn comes after `turn` others.
    pub fn front(&self, turn: usize) -> Option<(u64, &T)> {
        let (lun, queue) = self.queues.get(turn)?;
        Some((*lun, queue.front()?))
    }

    /// Removes the command that [`Self::front`] returns. The turn of its logical unit comes last now.
    pub fn pop_front(&mut self, turn: usize) -> Option<T> {
        let (lun, mut queue) = self.queues.remove(turn)?;
        let command = queue.pop_front();
        if !queue.is_empty() {
            self.queues.push_back((lun, queue));
        }
        self.free_if_empty();
        command
    }

    /// Removes a command of a logical unit.
    pub fn remove(&mut self, lun: u64, is_it: impl Fn(&T) -> bool) {
        let Some(turn) = self.queues.iter().position(|(other, _)| *other == lun) else { return };
        let Some((_, queue)) = self.queues.get_mut(turn) else { return };
        queue.retain(|command| !is_it(command));
        if queue.is_empty() {
            self.queues.remove(turn);
            self.free_if_empty();
        }
    }

    /// Removes all commands of the logical units for which `is_affected` returns true.
    pub fn take(&mut self, is_affected: impl Fn(u64) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        self.queues.retain_mut(|(lun, queue)| {
            let is_kept = !is_affected(*lun);
            if !is_kept {
                taken.extend(queue.drain(..));
            }
            is_kept
        });
        self.free_if_empty();
        taken
    }

    /// Removes all commands.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// A session that does not wait keeps no memory for it.
    fn free_if_empty(&mut self) {
        if self.queues.is_empty() {
            self.clear();
        }
    }
}

impl<T> Default for LunQueues<T> {
    fn default() -> Self {
        Self { queues: VecDeque::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logical_units_take_turns_and_each_keeps_its_order() {
        let mut queues = LunQueues::default();
        for (lun, command) in [(1, "a"), (1, "b"), (2, "c"), (1, "d"), (3, "e"), (2, "f")] {
            queues.push_back(lun, command);
        }
        queues.remove(1, |command| *command == "b");
        queues.remove(3, |command| *command == "e");
        assert!(queues.contains(1) && !queues.contains(3));
        assert_eq!(
            (queues.front(0), queues.front(1), queues.front(2)),
            (Some((1, &"a")), Some((2, &"c")), None)
        );
        assert_eq!(queues.pop_front(1), Some("c"));
        let rest: Vec<&str> = core::iter::from_fn(|| queues.pop_front(0)).collect();
        assert_eq!(rest, ["a", "f", "d"]);
        assert!(queues.is_empty());
    }

    #[test]
    fn the_commands_of_some_logical_units_are_taken_and_others_stay() {
        let mut queues = LunQueues::default();
        for (lun, command) in [(1, 10), (2, 20), (1, 11), (3, 30)] {
            queues.push_back(lun, command);
        }
        assert_eq!(queues.take(|lun| lun != 2), [10, 11, 30]);
        assert_eq!(queues.take(|lun| lun != 2), [0; 0]);
        assert_eq!(queues.pop_front(0), Some(20));
    }
}
