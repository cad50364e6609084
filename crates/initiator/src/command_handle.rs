//! A command that is under way and can be aborted.
//!
//! A plain [`ResponseFuture`] can be dropped, but its command continues. A caller whose timeout expires, or
//! whose user cancels, uses the handle here to abort the command at the target with ABORT TASK.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use transport::task_management::TmfResult;

use crate::client::Session;
use crate::command::{CommandError, Reply};
use crate::future::ResponseFuture;

/// The id of a command of a client that can be aborted. Ids are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CommandId(pub(crate) u64);

/// A command that is under way: a future of its reply, which any executor can poll. Dropping the handle drops
/// the reply but does not abort the command; [`Self::abort`] does.
///
/// ```no_run
/// # use std::time::Duration;
/// # use targe_initiator::{Command, CommandError, Reply, Session};
/// /// Gives a command a time.
/// fn run_for(session: &Session, command: Command, patience: Duration) -> Result<Reply, CommandError> {
///     let running = session.start_command(command);
///     let abort_handle = running.abort_handle();
///     let (done, waits) = std::sync::mpsc::channel::<()>();
///     std::thread::spawn(move || {
///         if waits.recv_timeout(patience).is_err_and(|why| why == std::sync::mpsc::RecvTimeoutError::Timeout) {
///             let _ = abort_handle.abort().wait();
///         }
///     });
///     let reply = running.wait(); // `CommandError::Aborted` if it took too long.
///     drop(done);
///     reply
/// }
/// ```
#[derive(Debug)]
#[must_use = "an unused result hides errors"]
pub struct CommandHandle {
    abort_handle: AbortHandle,
    answer: ResponseFuture<Reply, CommandError>,
}

/// Aborts one command, from any thread.
#[derive(Clone, Debug)]
pub struct AbortHandle {
    session: Session,
    command_id: CommandId,
}

impl CommandHandle {
    pub(crate) const fn new(
        session: Session,
        command_id: CommandId,
        answer: ResponseFuture<Reply, CommandError>,
    ) -> Self {
        Self { abort_handle: AbortHandle { session, command_id }, answer }
    }

    /// Aborts the command, as [`AbortHandle::abort`] does.
    pub fn abort(&self) -> ResponseFuture<Option<TmfResult>, CommandError> {
        self.abort_handle.abort()
    }

    /// Returns a handle that can abort the command from another thread.
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort_handle.clone()
    }

    /// Blocks until the command has ended. Must not be called from a callback of the client, whose thread
    /// would wait for itself.
    ///
    /// # Errors
    /// Returns [`CommandError`]; [`CommandError::Aborted`] if the command was aborted.
    pub fn wait(self) -> Result<Reply, CommandError> {
        self.answer.wait()
    }
}

impl Future for CommandHandle {
    type Output = Result<Reply, CommandError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.answer).poll(context)
    }
}

impl AbortHandle {
    /// Aborts this command and no other: a command that waits in the queue is removed, and a command that the
    /// target has received is aborted with ABORT TASK. The result is [`TmfResult::COMPLETE`] then,
    /// [`TmfResult::NO_TASK`] if the command had ended before, and `None` if no connection is up, or the
    /// session was lost before the target responded. From now on the command is not retried. The future of
    /// the command completes in any case, with the command's own result.
    pub fn abort(&self) -> ResponseFuture<Option<TmfResult>, CommandError> {
        self.session.abort(self.command_id)
    }
}
