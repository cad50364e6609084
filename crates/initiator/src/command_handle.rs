//! A command that is under way, and can be ended.
//!
//! A plain [`ResponseFuture`] can be dropped, but its command goes on. Who gives a command a time, or
//! lets its user lose patience, wants it ended at the target: ABORT TASK.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use iscsi::pdu::tmf_response::TmfResult;

use crate::client::Session;
use crate::command::{CommandError, Reply};
use crate::future::ResponseFuture;

/// Names a command of a client that can be ended. Names are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CommandId(pub(crate) u64);

/// A command that is under way: a future of its reply, which any executor can poll. Dropping it drops the answer and not
/// the command; [`Self::abort`] ends that.
///
/// ```no_run
/// # use std::time::Duration;
/// # use targe_initiator::{client::Session, command::{Command, CommandError, Reply}};
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
#[must_use = "an answer that nobody looks at hides what went wrong"]
pub struct CommandHandle {
    abort_handle: AbortHandle,
    answer: ResponseFuture<Reply, CommandError>,
}

/// Ends one command, from any thread.
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

    /// Ends the command, as [`AbortHandle::abort`] does.
    pub fn abort(&self) -> ResponseFuture<Option<TmfResult>, CommandError> {
        self.abort_handle.abort()
    }

    /// Returns what can end the command from elsewhere.
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort_handle.clone()
    }

    /// Blocks until the command has ended. Not from a callback of the client: its thread would wait for itself.
    ///
    /// # Errors
    /// [`CommandError`]; [`CommandError::Aborted`] if it was ended before.
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
    /// Ends the command, and no other: one that waits for its turn is taken back, for one that the target knows of there
    /// is an ABORT TASK. The answer is [`TmfResult::COMPLETE`] then, [`TmfResult::NO_TASK`] if it had ended by itself,
    /// and `None` if no connection is up, or the session was lost before the target answered. From now on the command is
    /// not tried again, whatever becomes of it, and the command's own answer comes in any case: it says what did.
    pub fn abort(&self) -> ResponseFuture<Option<TmfResult>, CommandError> {
        self.session.abort(self.command_id)
    }
}
