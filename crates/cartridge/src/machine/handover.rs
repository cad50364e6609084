//! The hand-over of a loaded cartridge from one process to the next. The next process does not load the
//! cartridge again: it counts no load, repairs nothing and keeps the position.
//!
//! Everything must be in the files before ([`crate::command::Command::Synchronize`]), and no operation may be
//! under way. What was read of the log is read again.

use alloc::vec::Vec;

use store::api::{Failure, Fault};

use super::{Cartridge, DAMAGED_HEADERS_MAX};
use crate::command::Position;
use crate::label::{Checkpoint, Label};

/// A loaded cartridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedState {
    /// A copy of the label, with what was changed in it since it was written.
    pub label: Vec<u8>,
    /// Whether the label was changed since it was written.
    pub is_label_changed: bool,
    /// Which copy of the label is to be written first.
    pub first_copy: u8,
    /// Whether the cartridge can be written.
    pub is_writable: bool,
    /// The partition of the position.
    pub partition: u8,
    /// How many objects and filemarks are before the position, and where in the stream of the log it is.
    pub position: [u64; 3],
    /// The epoch at the position.
    pub epoch: u32,
    /// The partitions.
    pub partitions: Vec<PartitionState>,
    /// Whether the last movement skipped what cannot be read behind the end of data.
    pub is_end_skipped: bool,
    /// The damaged chunk headers that were met: partition and number.
    pub damaged_headers: Vec<(u8, u64)>,
}

/// A partition of a loaded cartridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionState {
    /// Its end, objects and filemarks.
    pub now: Checkpoint,
    /// Up to where in the stream everything is durable, and where the data ended when the label was last
    /// written.
    pub durable: [u64; 2],
    /// Whether the log behind the end cannot be read, and the first byte of it, if that is known.
    pub unreadable: Option<Option<u64>>,
}

impl Cartridge {
    /// Returns whether records are not in the files, or not durable.
    pub fn is_unsynchronized(&self) -> bool {
        !self.dirty.is_empty() || self.is_unfiled()
    }

    /// Returns whether [`Self::export`] returns a state.
    pub fn is_movable(&self) -> bool {
        let is_idle = !self.is_busy() && self.outcome.is_none();
        self.label.is_some() && is_idle && !self.is_unsynchronized() && self.lost.is_none()
    }

    /// Returns the state of a loaded cartridge for another process; `None` if it is not loaded, not
    /// synchronized, has lost writes or is busy.
    pub fn export(&self) -> Option<LoadedState> {
        // Every field is named here, so that a new one is not forgotten.
        let Self {
            io: _,
            cache: _,
            label,
            label_write,
            parts,
            is_writable,
            position,
            writer: _,
            append: _,
            trailing: _,
            spares: _,
            dirty: _,
            lost: _,
            is_loss_told: _,
            is_cut: _,
            giving_up: _,
            damaged_headers,
            is_end_skipped,
            ahead: _,
            task: _,
            outcome: _,
            stored: _,
        } = self;
        if !self.is_movable() {
            return None;
        }
        let (is_label_changed, first_copy) = label_write.export();
        let part = |part: &super::Partition| PartitionState {
            now: part.now,
            durable: [part.durable, part.checkpoint],
            unreadable: part.unreadable.map(|failure| failure.at),
        };
        Some(LoadedState {
            label: label.as_ref()?.encode(),
            is_label_changed,
            first_copy,
            is_writable: *is_writable,
            partition: position.partition,
            position: [position.object, position.filemarks, position.at],
            epoch: position.epoch,
            partitions: parts.iter().map(part).collect(),
            is_end_skipped: *is_end_skipped,
            damaged_headers: damaged_headers.iter().copied().collect(),
        })
    }

    /// Returns the cartridge of such a state; `None` if it is not one that [`Self::export`] returns.
    pub fn restore(state: &LoadedState) -> Option<Self> {
        let label = Label::decode(&state.label).ok()?;
        let [object, filemarks, at] = state.position;
        let position = Position { partition: state.partition, object, filemarks, at, epoch: state.epoch };
        let ends =
            Label { partitions: state.partitions.iter().map(|part| part.now).collect(), ..label.clone() };
        let is_same_size = |(part, was): (&PartitionState, &Checkpoint)| part.now.capacity == was.capacity;
        let are_possible = ends.is_possible()
            && ends.partitions.len() == label.partitions.len()
            && state.partitions.iter().zip(&label.partitions).all(is_same_size)
            && state.damaged_headers.len() <= DAMAGED_HEADERS_MAX;
        let end = ends.partitions.get(usize::from(state.partition)).filter(|_| are_possible)?;
        if at > end.end || object > end.objects || filemarks > end.filemarks || filemarks > object {
            return None;
        }
        let mut cartridge = Self {
            is_writable: state.is_writable,
            position,
            is_end_skipped: state.is_end_skipped,
            damaged_headers: state.damaged_headers.iter().copied().collect(),
            ..Self::new()
        };
        cartridge.set_partitions(&label.secret, &ends.partitions);
        for (part, state) in cartridge.parts.iter_mut().zip(&state.partitions) {
            let [durable, checkpoint] = state.durable.map(|at| at.min(state.now.end));
            part.durable = durable;
            part.checkpoint = checkpoint;
            part.unreadable = state.unreadable.map(|at| Failure { fault: Fault::Medium, at });
        }
        cartridge.label_write.restore(state.is_label_changed, state.first_copy);
        cartridge.label = Some(label);
        Some(cartridge)
    }
}
