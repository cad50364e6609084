//! The engine as the transport of a target: what the layer above asks of it. A handle of a task or a task
//! management request that has ended is ignored.

use base::arena::{Arena, Key};
use base::buffer::DataList;
use base::int_cast::to_usize;
use base::time::Instant;
use transport::target::{Finish, SessionId, TargetTransport, TaskRef, TmfRef};
use transport::task_management::TmfResult;

use super::contract::SessionEnd;
use super::engine::Engine;
use super::exchange::{Exchange, Fetch, Holder, RequestState, TaskResult};
use crate::pdu::abort::AbortResult;

impl TargetTransport for Engine {
    fn fetch(&mut self, task: TaskRef, offset: u32, len: u32) {
        let key = task.0;
        let Some(exchange) = executing(&mut self.exchanges, key) else { return };
        let end = offset.saturating_add(len).min(exchange.out.len);
        let fetch = Fetch::new(offset.min(end), end, exchange.out.unsolicited_len());
        exchange.out.fetches.push(fetch);
        self.advance_fetches(key);
    }

    fn data_in(&mut self, task: TaskRef, offset: u32, data: DataList) {
        let key = task.0;
        let Some(exchange) = executing(&mut self.exchanges, key) else { return self.recycle(data) };
        let room = exchange.data_in.len.saturating_sub(exchange.data_in.end());
        if offset != exchange.data_in.end() || data.len() > to_usize(room) {
            // Data at this offset or of this length would be stored in the wrong place by the initiator.
            self.recycle(data);
            self.bug();
            return self.fail_at_once(key, TaskResult::GivenUp(AbortResult::ABORTED));
        }
        for part in data.into_parts().filter(|part| !part.is_empty()) {
            exchange.data_in.queued.push(part);
        }
        let excess = exchange.data_in.excess();
        if let Some(session) = self.sessions.get_mut(exchange.session) {
            self.quotas.data_in.charge(&mut session.shares.data_in, excess);
        }
        self.list(key);
    }

    fn finish(&mut self, task: TaskRef, finish: Finish<'_>) {
        let key = task.0;
        let Some(exchange) = executing(&mut self.exchanges, key) else { return };
        exchange.result = Some(TaskResult::of(finish));
        // Data-In that the layer above did not supply so far will not follow.
        let spare = exchange.data_in.close();
        let session = exchange.session;
        let freed = exchange.out.stop(&self.pool);
        self.release_data_out_quota(session, freed);
        self.release_data_in_quota(session, spare);
        self.queue_result(key);
    }

    /// Nothing of the task that is not sent yet is sent. The initiator receives an Abort message, by which it
    /// knows that no status follows.
    fn abort(&mut self, task: TaskRef) {
        let key = task.0;
        let Some(exchange) = executing(&mut self.exchanges, key) else { return };
        exchange.result = Some(TaskResult::GivenUp(AbortResult::ABORTED));
        let session = exchange.session;
        let freed = exchange.out.stop(&self.pool);
        self.release_data_out_quota(session, freed);
        self.queue_result(key);
    }

    fn finish_tmf(&mut self, tmf: TmfRef, result: TmfResult) {
        let key = tmf.0;
        let Some(exchange) = executing(&mut self.exchanges, key) else { return };
        if !matches!(exchange.request, RequestState::Manage(..)) {
            return;
        }
        if exchange.tag.is_none() {
            // The exchange that was given up has its own result.
            return self.remove_exchange(key);
        }
        exchange.result = Some(TaskResult::Managed(result));
        self.queue_result(key);
    }

    fn close_session(&mut self, now: Instant, session: SessionId) {
        self.now = now;
        self.end_session(session.0, SessionEnd::Closed);
    }
}

/// Returns the exchange whose request the layer above executes.
fn executing(exchanges: &mut Arena<Exchange>, key: Key) -> Option<&mut Exchange> {
    exchanges.get_mut(key).filter(|exchange| exchange.holder == Holder::DeviceServer)
}
