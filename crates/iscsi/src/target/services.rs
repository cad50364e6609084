//! What the layer above asks of the engine: the services of a transport.

use base::buffer::DataList;
use base::time::Instant;
use transport::status::SENSE_MAX;
use transport::target::{Finish, SessionId, TargetTransport, TaskRef, TmfRef};
use transport::task_management::TmfResult;

use super::contract::SessionEnd;
use super::engine::Engine;
use super::output::Output;
use super::task::{Holder, TaskResult};

impl TargetTransport for Engine {
    /// Serves the fetches of a task in order, as far as the R2Ts go. The range must not be empty and must lie
    /// within `data_out_len`.
    fn fetch(&mut self, task: TaskRef, offset: u32, len: u32) {
        let key = task.0;
        let Some(state) = self.tasks.get_mut(key).filter(|task| task.result.is_none()) else { return };
        let session = state.session;
        let end = offset.checked_add(len).filter(|end| *end <= state.data_out_len && len > 0);
        let Some(end) = end else { return self.bug(session) };
        state.data_out.add_fetch(offset, end);
        self.advance_fetches(key);
        self.mark_logouts_dirty(session);
    }

    /// Queues data for the initiator. The pieces must follow one another without gaps and end within
    /// `data_in_len`.
    fn data_in(&mut self, task: TaskRef, offset: u32, data: DataList) {
        let key = task.0;
        let Some(state) = self.tasks.get_mut(key).filter(|task| task.result.is_none()) else { return };
        let len = u64::try_from(data.len()).unwrap_or(u64::MAX);
        let (end, session) = (state.data_in.end(), state.session);
        if u64::from(offset) != end || end.saturating_add(len) > u64::from(state.data_in_len) {
            return self.bug(session);
        }
        for part in data.into_parts() {
            state.data_in.push(part);
        }
        let excess = state.data_in.grow_reservation();
        if let Some(session) = self.sessions.get_mut(session) {
            self.quotas.data_in.charge(&mut session.shares.data_in, excess);
        }
        if state.data_in.has_queued()
            && let Some(conn) = state.enter_send_queue()
        {
            self.queue(conn, Output::Task(key));
        }
    }

    fn fence_response(&mut self, task: TaskRef) {
        if let Some(task) = self.tasks.get_mut(task.0) {
            task.needs_fence = true;
        }
    }

    /// Sends the queued Data-In of the task first, and status GOOD in the last Data-In.
    fn finish(&mut self, task: TaskRef, finish: Finish<'_>) {
        let key = task.0;
        let Some(state) = self.tasks.get_mut(key).filter(|task| task.holder == Holder::DeviceServer) else {
            return;
        };
        state.holder = Holder::Nobody;
        let sense = finish.sense.get(..SENSE_MAX).unwrap_or(finish.sense);
        state.result = Some(TaskResult {
            status: finish.status,
            sense: (!sense.is_empty()).then(|| sense.into()),
            transferable: Some(finish.transferable),
            is_unit_attention: finish.is_unit_attention,
        });
        // Data-In that the layer above did not supply before will not follow.
        let spare = state.data_in.end_input();
        let session = state.session;
        self.release_data_in(session, spare);
        self.stop_data_out(key);
        self.queue_response(key);
        self.drain_ready(session);
    }

    /// Sends nothing more for the task. If the initiator did not request the abort itself and FastAbort is in
    /// use, an asynchronous message reports it (RFC 7143 §4.2.3.4).
    fn abort(&mut self, task: TaskRef) {
        let key = task.0;
        let Some(state) = self.tasks.get_mut(key).filter(|task| task.holder == Holder::DeviceServer) else {
            return;
        };
        state.holder = Holder::Nobody;
        let (session, conn, lun) = (state.session, state.allegiance.connection(), state.lun);
        self.remove_task(key);
        self.report_abort(session, key, conn, lun);
    }

    fn finish_tmf(&mut self, tmf: TmfRef, result: TmfResult) {
        let Some(conn) = self.tmfs.get(tmf.0).map(|tmf| tmf.conn) else { return };
        if let Err(why) = self.answer_tmf(tmf.0, result) {
            self.drop_connection(conn, why);
        }
    }

    /// Reports the end to the initiator in an asynchronous message, sends the queued output, and closes the
    /// connections.
    fn close_session(&mut self, _now: Instant, session: SessionId) {
        self.announce_drop(session.0);
        self.end_session(session.0, SessionEnd::Closed);
    }
}
