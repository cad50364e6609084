//! Requests that the driver executes at once, without waiting for the target.

use transport::initiator::SubmitError;

use super::{Request, Session};
use crate::command::CommandError;
use crate::driver::Driver;
use crate::future::{ResponseFuture, response_channel};
use crate::sessions::SessionId;

impl Session {
    /// Pings the target, and returns how many messages it has sent so far. If the target is alive, that
    /// number soon increases. Fails once the session has ended.
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
