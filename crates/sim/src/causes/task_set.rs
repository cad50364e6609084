//! How many commands can be in a task set, and who can abort them, for the judges of TASK SET FULL and TASK
//! ABORTED.
//!
//! A command is in the task set of its unit from some time after it was sent until some time before its
//! initiator hears of its end. One whose end is unknown can be there until its initiator has a new I_T nexus.

use std::ops::Range;

use base::time::Instant;

use super::OpenCommand;
use crate::transport::{CommandOutcome, Ticket};

/// The commands that are not open any more and can have been in a task set together with those that are.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    past: Vec<Past>,
    aborting: Vec<Aborting>,
}

/// A request that aborts tasks of others.
#[derive(Debug)]
struct Aborting {
    request: Ticket,
    initiator: usize,
    units: Range<u16>,
    until: Until,
    /// Whether its initiator has another nexus now. It then aborts tasks of this one as well.
    is_of_former_nexus: bool,
}

/// Until when a request can abort tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// It has not ended.
    Open,
    At(Instant),
    /// Its end is unknown: until its initiator has a new nexus.
    Lost,
}

#[derive(Debug)]
struct Past {
    initiator: usize,
    unit: u16,
    data_bytes: usize,
    /// Until when it can be in the task set; `None`: until its initiator has a new nexus.
    until: Option<Instant>,
}

impl Occupancy {
    /// Records how a command ended. `open` are those that have not.
    pub(super) fn ended<'a>(
        &mut self,
        now: Instant,
        command: &OpenCommand,
        ended: &CommandOutcome,
        open: impl Iterator<Item = &'a OpenCommand>,
    ) {
        let until = match ended {
            CommandOutcome::Refused => return,
            CommandOutcome::Status { .. } | CommandOutcome::Aborted => Some(now),
            CommandOutcome::Failed | CommandOutcome::Lost => None,
        };
        let oldest = open.map(|open| open.since).min().unwrap_or(now).min(command.since);
        self.past.retain(|past| past.until.is_none_or(|until| until >= oldest));
        self.aborting.retain(|one| match one.until {
            Until::Open | Until::Lost => true,
            Until::At(until) => until >= oldest,
        });
        let (initiator, unit, data_bytes) = (command.initiator, command.unit, command.data_bytes);
        self.past.push(Past { initiator, unit, data_bytes, until });
    }

    /// Returns how many bytes of data the commands have, at most, that can have been in the target with one;
    /// that one is included.
    pub(super) fn data_bytes<'a>(
        &self,
        command: &OpenCommand,
        open: impl Iterator<Item = &'a OpenCommand>,
    ) -> usize {
        let past = self.past.iter();
        let past = past.filter(|past| past.until.is_none_or(|until| until >= command.since));
        // `ended` has recorded the command itself.
        past.map(|past| past.data_bytes).sum::<usize>() + open.map(|open| open.data_bytes).sum::<usize>()
    }

    /// Records that an initiator has a new I_T nexus: its lost commands are gone after this time.
    pub(super) fn nexus_began(&mut self, until: Instant, initiator: usize) {
        let lost = self.past.iter_mut().filter(|past| past.initiator == initiator && past.until.is_none());
        lost.for_each(|past| past.until = Some(until));
        let lost =
            self.aborting.iter_mut().filter(|one| one.initiator == initiator && one.until == Until::Lost);
        lost.for_each(|one| (one.until, one.is_of_former_nexus) = (Until::At(until), true));
    }

    /// Records a request that can abort tasks of other initiators at these units.
    pub(super) fn aborts(&mut self, request: Ticket, initiator: usize, units: Range<u16>) {
        if !units.is_empty() {
            let (until, is_of_former_nexus) = (Until::Open, false);
            self.aborting.push(Aborting { request, initiator, units, until, is_of_former_nexus });
        }
    }

    /// Records until when such a request can abort tasks; `None`: its end is unknown.
    pub(super) fn abort_ended(&mut self, request: Ticket, until: Option<Instant>) {
        let ended = self.aborting.iter_mut().filter(|one| one.request == request);
        ended.for_each(|one| one.until = until.map_or(Until::Lost, Until::At));
    }

    /// Returns whether a request of another initiator can have aborted a command; `unit` is `None` where its
    /// LUN can lead to any unit.
    pub(super) fn can_be_aborted(&self, command: &OpenCommand, unit: Option<u16>) -> bool {
        self.aborting.iter().any(|one| {
            (one.initiator != command.initiator || one.is_of_former_nexus)
                && unit.is_none_or(|unit| one.units.contains(&unit))
                && match one.until {
                    Until::Open | Until::Lost => true,
                    Until::At(until) => until >= command.since,
                }
        })
    }

    /// Returns how many other commands can have been in the task set with one, at most; `unit` is `None`
    /// where a command of any LUN can be in it. A command that its initiator may repeat can be there twice.
    pub(super) fn others<'a>(
        &self,
        command: &OpenCommand,
        unit: Option<u16>,
        open: impl Iterator<Item = &'a OpenCommand>,
    ) -> usize {
        let is_there = |of: u16| unit.is_none_or(|unit| unit == of);
        let places = |open: &OpenCommand| if open.repeats { 2 } else { 1 };
        let open: usize = open.filter(|open| is_there(open.unit)).map(places).sum();
        let past = self.past.iter().filter(|past| is_there(past.unit));
        let past = past.filter(|past| past.until.is_none_or(|until| until >= command.since)).count();
        // `ended` has recorded the command itself.
        open + past - 1 + usize::from(command.repeats)
    }
}
