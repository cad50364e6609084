//! The engine as the transport of a target.

use base::buffer::DataList;
use base::time::Instant;
use transport::target::{Finish, SessionId, TargetTransport, TaskRef, TmfRef};
use transport::task_management::TmfResult;

use super::engine::Engine;

impl TargetTransport for Engine {
    fn fetch(&mut self, task: TaskRef, offset: u32, len: u32) {
        self.fetch(task, offset, len);
    }

    fn data_in(&mut self, task: TaskRef, offset: u32, data: DataList) {
        self.data_in(task, offset, data);
    }

    fn finish(&mut self, task: TaskRef, outcome: Finish<'_>) {
        self.finish(task, outcome);
    }

    fn abort(&mut self, task: TaskRef) {
        self.abort(task);
    }

    fn finish_tmf(&mut self, tmf: TmfRef, result: TmfResult) {
        self.finish_tmf(tmf, result);
    }

    fn close_session(&mut self, now: Instant, session: SessionId) {
        self.close_session(now, session);
    }
}
