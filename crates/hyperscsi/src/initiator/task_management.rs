//! Task management.
//!
//! The answer to a function is reported once every task that the function ended was reported: the target
//! sends a result for each of these tasks, and the results may arrive in any order.

use alloc::vec::Vec;

use base::arena::Key;
use base::time::Instant;
use transport::initiator::{InitiatorTransport as _, SubmitError, TaskId, TmfId, TmfParameters};
use transport::task_management::{TmfFunction, TmfResult};

use super::contract::{Event, ProtocolError};
use super::reply::FrameError;
use super::session::Session;
use super::task::{Task, TaskKind};

/// Returns whether a task management function ends this task.
pub(super) fn affects(function: &TmfParameters, key: Key, task: &Task) -> bool {
    task.is_command()
        && match function.function {
            TmfFunction::ABORT_TASK => function.task == Some(TaskId(key)),
            TmfFunction::ABORT_TASK_SET | TmfFunction::CLEAR_TASK_SET | TmfFunction::LOGICAL_UNIT_RESET => {
                task.lun() == function.lun
            }
            TmfFunction::TARGET_WARM_RESET
            | TmfFunction::TARGET_COLD_RESET
            | TmfFunction::I_T_NEXUS_RESET => true,
            _ => false,
        }
}

impl Session {
    /// Aborts one task; a short form of ABORT TASK.
    ///
    /// # Errors
    /// [`SubmitError`], when the session does not accept the request.
    pub fn abort(&mut self, now: Instant, task: TaskId) -> Result<TmfId, SubmitError> {
        self.submit_tmf(now, TmfParameters { function: TmfFunction::ABORT_TASK, lun: 0, task: Some(task) })
    }

    /// Processes the answer to a task management request.
    pub(super) fn managed(&mut self, key: Key, answer: TmfResult) -> Result<(), FrameError> {
        let task = self.tasks.get(key).ok_or(FrameError::UnknownExchange)?;
        let (TaskKind::Manage { wanted, result, .. }, order) = (&task.kind, task.order) else {
            return Err(FrameError::Broken(ProtocolError::WrongAnswer));
        };
        if result.is_some() {
            return Ok(());
        }
        let wanted = *wanted;
        let ended = self
            .tasks
            .iter()
            .filter(|(_, task)| answer == TmfResult::COMPLETE && task.wire.is_some() && task.order < order);
        let ended: Vec<Key> =
            ended.filter(|(key, task)| affects(&wanted, *key, task)).map(|(key, _)| key).collect();
        self.release(key);
        if ended.is_empty() {
            self.report(key, Some(answer));
        } else if let Some(Task { kind: TaskKind::Manage { result, fence, .. }, .. }) =
            self.tasks.get_mut(key)
        {
            (*result, *fence) = (Some(answer), ended);
            self.held.push(key);
        }
        Ok(())
    }

    /// Records that a task was reported, and reports the answers that waited for it.
    pub(super) fn unfence(&mut self, ended: Key) {
        if self.held.is_empty() {
            return;
        }
        let mut due = Vec::new();
        for key in &self.held {
            if let Some(Task { kind: TaskKind::Manage { fence, result, .. }, .. }) = self.tasks.get_mut(*key)
            {
                fence.retain(|other| *other != ended);
                if fence.is_empty() {
                    due.push((*key, *result));
                }
            }
        }
        for (key, result) in due {
            self.report(key, result);
        }
    }

    /// Reports the answer to a task management request.
    pub(super) fn report(&mut self, key: Key, result: Option<TmfResult>) {
        self.release(key);
        self.held.retain(|other| *other != key);
        self.urgent.retain(|other| *other != key);
        if self.tasks.remove(key).is_some() {
            self.manages = self.manages.saturating_sub(1);
            self.events.push_back(Event::TmfDone { id: TmfId(key), result });
        }
    }
}
