//! Orders that the driver carries out alone: nobody waits for a session.

use iscsi::initiator::contract::SubmitError;

use super::{Request, Session};
use crate::command::CommandError;
use crate::driver::Driver;
use crate::future::{ResponseFuture, response_channel};
use crate::sessions::SessionId;

impl Session {
    /// Asks the target for a sign of life, and returns how many messages came from it so far: if it lives, there are more
    /// soon. Fails once the session has ended.
    pub fn ping(&self) -> ResponseFuture<u64, CommandError> {
        self.ask(move |driver, id| driver.ping(id).ok_or(SubmitError::Down))
    }

    pub(super) fn ask<T: Send + 'static>(
        &self,
        does: impl FnOnce(&mut Driver, SessionId) -> Result<T, SubmitError> + Send + 'static,
    ) -> ResponseFuture<T, CommandError> {
        let (completer, answer) = response_channel();
        self.with(move |driver, id| completer.complete(does(driver, id).map_err(Into::into)));
        answer
    }

    pub(super) fn with(&self, does: impl FnOnce(&mut Driver, SessionId) + Send + 'static) {
        self.handle.shared.order(Request::With(self.handle.id, Box::new(does)));
    }
}
