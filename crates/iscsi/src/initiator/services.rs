//! The session as the transport of an initiator.

use base::time::Instant;
use transport::initiator::{InitiatorTransport, Request, SubmitError, TaskId, TmfId, TmfParameters};

use super::session::Session;

impl InitiatorTransport for Session {
    fn submit(&mut self, now: Instant, request: Request) -> Result<TaskId, SubmitError> {
        self.submit(now, request)
    }

    fn submit_tmf(&mut self, now: Instant, parameters: TmfParameters) -> Result<TmfId, SubmitError> {
        self.submit_tmf(now, parameters)
    }

    fn progress(&self, task: TaskId) -> Option<u64> {
        self.progress(task)
    }

    fn require_identity_check(&mut self, lun: u64) {
        self.require_identity_check(lun);
    }

    fn confirm_identity(&mut self, now: Instant, lun: u64) {
        self.confirm_identity(now, lun);
    }

    fn fail_identity(&mut self, lun: u64) {
        self.fail_identity(lun);
    }

    fn is_up(&self) -> bool {
        self.is_up()
    }

    fn rebuild_session(&mut self, now: Instant) {
        self.rebuild_session(now);
    }

    fn ping(&mut self, now: Instant) -> u64 {
        self.ping_all(now);
        self.stats().pdus_in
    }

    fn logout(&mut self, now: Instant) {
        self.logout(now);
    }

    fn close(&mut self, now: Instant) {
        self.close(now);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.handle_timeout(now);
    }
}
