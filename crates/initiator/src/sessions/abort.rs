//! Aborts one command.

use std::collections::VecDeque;

use base::time::Instant;
use transport::initiator::SubmitError;
use transport::initiator::TaskId;
use transport::task_management::{TmfFunction, TmfResult};

use scsi::lun::Lun;

use super::command_timeout::CallerTmf;
use super::{DriverEvent, SessionEntry, SessionId, Sessions};
use crate::command::CommandError;
use crate::retry::PendingCommand;

/// The state of a command that is to be aborted.
enum Found {
    /// The session executes it.
    Carried(TaskId),
    /// It waits in a queue of the [`SessionEntry`].
    Here(Box<PendingCommand>),
    /// It has ended, or never existed.
    Gone,
}

impl Sessions {
    /// Aborts the command whose token is `command`. An event always reports the result of the abort. Another
    /// event reports the end of the command before that.
    pub(crate) fn abort(&mut self, now: Instant, id: SessionId, token: u64, command: u64) {
        let Some(entry) = self.entry(id) else {
            return self.events.push_back(DriverEvent::TmfDone {
                session: id,
                token,
                result: Some(TmfResult::NO_TASK),
            });
        };
        let result = match entry.give_up(command) {
            Found::Carried(task) => {
                match entry.session.submit_tmf(now, TmfFunction::ABORT_TASK, 0, Some(task)) {
                    Ok(manage) => {
                        let function = TmfFunction::ABORT_TASK;
                        return entry.asked(now, manage, CallerTmf::new(now, token, function, Lun(0)));
                    }
                    Err(SubmitError::NoTask) => Some(TmfResult::NO_TASK),
                    Err(_) => None,
                }
            }
            Found::Here(pending) => {
                let result = Err(CommandError::Aborted);
                self.events.push_back(DriverEvent::Finished { session: id, token: pending.token, result });
                Some(TmfResult::COMPLETE)
            }
            Found::Gone => Some(TmfResult::NO_TASK),
        };
        self.events.push_back(DriverEvent::TmfDone { session: id, token, result });
    }
}

impl SessionEntry {
    /// Finds a command, and ensures that it is not retried.
    fn give_up(&mut self, command: u64) -> Found {
        let mut carried = self.tasks.iter_mut().flatten().chain(&mut self.ended);
        if let Some(pending) = carried.find(|pending| pending.token == command) {
            pending.abort_requested = true;
            return pending.task.map_or(Found::Gone, Found::Carried);
        }
        let later = self.delayed.iter().find(|(_, pending)| pending.token == command).map(|(key, _)| *key);
        let here = later.and_then(|key| self.delayed.remove(&key));
        let here = here.or_else(|| take_from(&mut self.waiting, command));
        here.map_or(Found::Gone, |pending| Found::Here(Box::new(pending)))
    }
}

fn take_from(waiting: &mut VecDeque<PendingCommand>, command: u64) -> Option<PendingCommand> {
    let at = waiting.iter().position(|pending| pending.token == command)?;
    waiting.remove(at)
}
