//! LOCATE and SPACE.

use super::search::{Goal, Search};
use super::{Cartridge, Halt, end_of};
use crate::command::{Destination, Outcome, Position, SpaceUnit, Stop};
use crate::error::Error;
use crate::label::Checkpoint;

#[derive(Debug)]
pub(super) struct SpaceTask {
    unit: SpaceUnit,
    count: i64,
    /// Where the movement begins, and where it would end if no filemark were in the way.
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Start,
    /// Looking for the object that is so many objects away.
    Object(Option<Search>, u64),
    /// Looking for the filemark in the way.
    Filemark(Search),
}

impl SpaceTask {
    pub(super) fn new(unit: SpaceUnit, count: i64) -> Self {
        Self { unit, count, stage: Stage::Start }
    }
}

impl Cartridge {
    pub(super) fn step_locate(
        &mut self,
        search: &mut Option<Search>,
        partition: u8,
        destination: Destination,
    ) -> Result<Outcome, Halt> {
        self.settle()?;
        let now = self.part(partition)?.now;
        let (goal, left) = match destination {
            Destination::EndOfData => (None, 0),
            Destination::Object(object) if object >= now.objects => (None, object - now.objects),
            Destination::Object(object) => (Some(Goal::Object(object)), 0),
            Destination::Filemark(count) if count > now.filemarks => (None, count - now.filemarks),
            Destination::Filemark(0) => (Some(Goal::Object(0)), 0),
            Destination::Filemark(count) => (Some(Goal::BehindFilemark(count)), 0),
        };
        let stop = (left > 0).then_some(Stop::EndOfData);
        self.position = match goal {
            None => end_of(partition, &now),
            Some(Goal::Object(0)) => Position { partition, ..Position::default() },
            Some(goal) => {
                let search = search.get_or_insert_with(|| Search::new(partition, goal, now.end));
                self.search(search)?
            }
        };
        Ok(Outcome::Moved { stop, left })
    }

    pub(super) fn step_space(&mut self, task: &mut SpaceTask) -> Result<Outcome, Halt> {
        self.settle()?;
        let now = self.part(self.position.partition)?.now;
        match task.unit {
            SpaceUnit::EndOfData => {
                self.position = end_of(self.position.partition, &now);
                Ok(Outcome::Moved { stop: None, left: 0 })
            }
            SpaceUnit::Filemarks => self.space_filemarks(task, &now),
            SpaceUnit::Records => self.space_records(task, &now),
        }
    }

    fn space_filemarks(&mut self, task: &mut SpaceTask, now: &Checkpoint) -> Result<Outcome, Halt> {
        let position = self.position;
        let distance = task.count.unsigned_abs();
        let (goal, available) = if task.count > 0 {
            let available = now.filemarks - position.filemarks.min(now.filemarks);
            (Goal::BehindFilemark(position.filemarks.saturating_add(distance)), available)
        } else {
            (Goal::BeforeFilemark((position.filemarks + 1).saturating_sub(distance)), position.filemarks)
        };
        if distance == 0 {
            return Ok(Outcome::Moved { stop: None, left: 0 });
        }
        if distance > available {
            let (stop, at) = if task.count > 0 {
                (Stop::EndOfData, end_of(position.partition, now))
            } else {
                (Stop::Start, Position { partition: position.partition, ..Position::default() })
            };
            self.position = at;
            return Ok(Outcome::Moved { stop: Some(stop), left: distance - available });
        }
        if let Stage::Start = task.stage {
            task.stage = Stage::Filemark(Search::new(position.partition, goal, now.end));
        }
        let Stage::Filemark(search) = &mut task.stage else { return Err(Error::Misuse.into()) };
        self.position = self.search(search)?;
        Ok(Outcome::Moved { stop: None, left: 0 })
    }

    fn space_records(&mut self, task: &mut SpaceTask, now: &Checkpoint) -> Result<Outcome, Halt> {
        let start = self.position;
        let (distance, is_forward) = (task.count.unsigned_abs(), task.count > 0);
        let goal = if is_forward {
            start.object.saturating_add(distance).min(now.objects)
        } else {
            start.object.saturating_sub(distance)
        };
        if let Stage::Start = task.stage {
            let is_simple = goal == 0 || goal >= now.objects;
            let search = (!is_simple).then(|| Search::new(start.partition, Goal::Object(goal), now.end));
            task.stage = Stage::Object(search, goal);
        }
        if let Stage::Object(search, goal) = &mut task.stage {
            let reached = match search {
                Some(search) => self.search(search)?,
                None if *goal == 0 => Position { partition: start.partition, ..Position::default() },
                None => end_of(start.partition, now),
            };
            if reached.filemarks == start.filemarks {
                self.position = reached;
                let left = distance - reached.object.abs_diff(start.object);
                let end = if is_forward { Stop::EndOfData } else { Stop::Start };
                return Ok(Outcome::Moved { stop: (left > 0).then_some(end), left });
            }
            let goal = if is_forward {
                Goal::BehindFilemark(start.filemarks + 1)
            } else {
                Goal::BeforeFilemark(start.filemarks)
            };
            task.stage = Stage::Filemark(Search::new(start.partition, goal, now.end));
        }
        let Stage::Filemark(search) = &mut task.stage else { return Err(Error::Misuse.into()) };
        let reached = self.search(search)?;
        self.position = reached;
        // The filemark itself is no record.
        let moved = reached.object.abs_diff(start.object).saturating_sub(1);
        Ok(Outcome::Moved { stop: Some(Stop::Filemark), left: distance - moved.min(distance) })
    }
}
