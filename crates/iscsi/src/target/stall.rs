//! Stalled Data-Out: what happens to a data sequence that makes no progress while its connection is alive.
//!
//! Every sequence has limits of its own, so data that a session sends for other sequences does not excuse one
//! that it leaves open:
//!
//! * At ErrorRecoveryLevel 0 a sequence may receive less than [`PROGRESS_BYTES_MIN`] for no longer than
//!   [`Limits::data_within`]. Initiators answer R2Ts one after the other, so a slow link that is busy with
//!   other sequences gets more time: one second for each [`BYTES_PER_EXTRA_SECOND`] of data that its
//!   connection receives meanwhile. A trickle earns no time.
//! * At any level a sequence must end within [`TOTAL_TIME_FACTOR`] times as long, whether it was asked for
//!   again or not.
//! * While other sessions wait for memory, a sequence without progress for [`STALLED_AFTER`], extended by the
//!   same second for each [`BYTES_PER_EXTRA_SECOND`], loses its reserved memory. If no data of it was
//!   received, the data may still be sent: each session may then exceed the memory quota by up to
//!   [`OVERDRAFT`], or by one fetch. Until the data is received, its session gets no more memory. If part of
//!   the data was received, its task fails, and other sessions get memory before its session for as long.
//! * A task whose connection is lost (ErrorRecoveryLevel 2) requests no memory until it is reassigned. While
//!   other sessions wait for memory, it keeps its memory for [`STALLED_AFTER`]. Then its R2Ts without data
//!   are withdrawn, and its reassignment issues them again. If part of the data was received, the task fails.
//!   The same holds for Data-In that waits for its acknowledgement, also where the session's own commands
//!   wait for its memory.
//!
//! The task fails with ABORTED COMMAND, INITIATOR RESPONSE TIMEOUT. Data that is received later is ignored.
//!
//! [`Limits::data_within`]: super::engine::Limits::data_within
//! [`PROGRESS_BYTES_MIN`]: super::sequence_progress::PROGRESS_BYTES_MIN
//! [`BYTES_PER_EXTRA_SECOND`]: super::sequence_progress::BYTES_PER_EXTRA_SECOND
//! [`TOTAL_TIME_FACTOR`]: super::sequence_progress::TOTAL_TIME_FACTOR

use base::state_machine::ConnId;
use base::time::{Duration, Instant};
use smallvec::SmallVec;

use super::arena::Key;
use super::connection::index;
use super::data_out_sequence::{IssuedR2t, Sequence};
use super::data_out_transfer::{DataOutTransfer, Freed};
use super::engine::Engine;
use super::protocol_error::ProtocolError;
use super::sequence_progress::STALLED_AFTER;
use super::task::{Task, TaskResult};
use super::timer::{Owner, Timer};
use crate::pdu::Ttt;
use crate::recovery::TransportSense;

/// By how many bytes a session may exceed the quota for solicited data when data is received whose memory was
/// given to other sessions: the longest answer to one R2T.
const OVERDRAFT: usize = 1 << 20;

/// Sequences are polled at least this often.
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(2500);

/// At level 0, how many polls there are within the time limit of a sequence.
const POLLS_PER_TIMEOUT: u32 = 4;

/// The kinds of memory that sessions wait for: for solicited data, for unsolicited data, and for Data-In.
#[derive(Clone, Copy)]
struct Wanted {
    asked: bool,
    unasked: bool,
    answers: bool,
}

impl Engine {
    /// Returns how many bytes of Data-Out a connection has received.
    pub(super) fn data_out_received(&self, conn: ConnId) -> u64 {
        self.conn(conn).map_or(0, |connection| connection.data_out_bytes)
    }

    /// Starts to watch a connection that owes data from now on.
    pub(super) fn watch_data(&mut self, now: Instant, conn: ConnId) {
        let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_mut) else { return };
        if !connection.level.requests_missing_pdus() && connection.data_idle_since.is_none() {
            (connection.data_out_bytes_at_poll, connection.data_idle_since) =
                (Some(connection.data_out_bytes), Some(now));
        }
        self.schedule_data_poll(now, conn);
    }

    /// Schedules another poll of a connection that owes nothing, while other sessions get memory before its
    /// session: no other event may occur when that time ends.
    pub(super) fn watch_deprioritized(&mut self, now: Instant, conn: ConnId) {
        let session = self.conn(conn).and_then(|connection| self.sessions.get(connection.session?));
        if session.is_some_and(|session| session.deprioritized_until.is_some_and(|until| until > now)) {
            self.schedule_data_poll(now, conn);
        }
    }

    fn schedule_data_poll(&mut self, now: Instant, conn: ConnId) {
        let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_mut) else { return };
        if !connection.deadlines.is_set(Timer::Data) {
            let look = (self.limits.data_within / POLLS_PER_TIMEOUT).min(POLL_INTERVAL_MAX);
            let after =
                if connection.level.requests_missing_pdus() { self.limits.repair_after } else { look };
            self.timers.set(
                Owner::Connection(conn),
                &mut connection.deadlines,
                Timer::Data,
                now.after(after),
            );
        }
    }

    /// Polls a connection that may owe data: fails tasks whose sequences are late, revokes the memory of
    /// stalled ones, asks again for lost data (from level 1 on), and drops the connection if it received no
    /// data for too long.
    pub(super) fn on_data_timer(&mut self, now: Instant, conn: ConnId) {
        if self.conn(conn).is_some_and(|connection| connection.level.requests_missing_pdus()) {
            self.end_late(now, conn);
            self.revoke_stalled(now, conn);
            return self.repair_late_data(now, conn);
        }
        let within = self.limits.data_within;
        let session = self.conn(conn).and_then(|connection| self.sessions.get(connection.session?));
        let owes = session.is_some_and(|session| {
            let mut tasks = session.tasks(&self.tasks);
            tasks.any(|(_, task)| task.is_on(conn) && task.data_out.is_expecting())
        });
        let Some(connection) = self.conn_mut(conn) else { return };
        if !owes && (!connection.data_timed_out || connection.command_since_timeout) {
            (connection.data_out_bytes_at_poll, connection.data_idle_since, connection.data_timed_out) =
                (None, None, false);
            return self.watch_deprioritized(now, conn);
        }
        let brought = connection.data_out_bytes;
        if connection.data_out_bytes_at_poll.replace(brought) != Some(brought) {
            (connection.data_idle_since, connection.data_timed_out) = (Some(now), false);
        }
        if connection.data_idle_since.is_some_and(|since| now.since(since) >= within) {
            return self.handle_omission(conn, ProtocolError::DataTooSlow);
        }
        self.end_late(now, conn);
        self.revoke_stalled(now, conn);
        self.watch_data(now, conn);
    }

    /// Fails the tasks of a connection whose data takes too long.
    fn end_late(&mut self, now: Instant, conn: ConnId) {
        let Some(connection) = self.conn_mut(conn) else { return };
        let (brought, repairs) = (connection.data_out_bytes, connection.level.requests_missing_pdus());
        let Some(session) = connection.session else { return };
        let limits = (self.limits.data_within, repairs);
        let late: SmallVec<[Key; 8]> = self.owing(session, conn, |out| {
            out.expected().any(|sequence| sequence.is_late(now, brought, limits))
        });
        for key in late {
            self.fail_stalled_task(key);
        }
    }

    /// Returns the tasks of a connection that owe data and satisfy `holds`.
    fn owing(
        &self,
        session: Key,
        conn: ConnId,
        holds: impl Fn(&DataOutTransfer) -> bool,
    ) -> SmallVec<[Key; 8]> {
        let Some(state) = self.sessions.get(session) else { return SmallVec::new() };
        let tasks = state.tasks(&self.tasks);
        let owing = tasks
            .filter(|(_, task)| task.is_on(conn) && task.data_out.is_expecting() && holds(&task.data_out));
        owing.map(|(key, _)| key).collect()
    }

    /// Fails a task, and stops waiting for its sequences.
    fn fail_stalled_task(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return self.impossible(None) };
        if let Some(conn) = task.allegiance.connection()
            && let Some(connection) = self.conns.get_mut(index(conn)).and_then(Option::as_deref_mut)
        {
            // The connection owes nothing any more, but it stays suspect until it sends something.
            (connection.data_timed_out, connection.command_since_timeout) = (true, false);
        }
        self.stats.data_late += 1;
        self.stop_expecting(key);
        self.fail(key, TransportSense::InitiatorResponseTimeout);
        self.queue_response(key);
    }

    /// Stops waiting for the sequences of a task. Data that comes for them is discarded.
    pub(super) fn stop_expecting(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return self.impossible(None) };
        let expected: SmallVec<[IssuedR2t; 4]> = task.data_out.expected().map(Sequence::as_issued).collect();
        for superseded in expected {
            task.data_out.drop_sequence(superseded.ttt, &self.pool);
            task.data_out.record_superseded(superseded);
        }
    }

    /// Revokes the memory of stalled sequences of a connection, if a session waits for memory.
    fn revoke_stalled(&mut self, now: Instant, conn: ConnId) {
        let (asked, unasked) =
            (self.quotas.solicited.has_waiters(), self.quotas.unsolicited.is_under_pressure());
        let Some(session) = self.conn(conn).and_then(|connection| connection.session) else { return };
        if !asked && !unasked {
            return;
        }
        let brought = self.data_out_received(conn);
        let still = self
            .owing(session, conn, |out| out.expected().all(|sequence| sequence.stands_still(now, brought)));
        for key in still {
            let Some(task) = self.tasks.get_mut(key).filter(|task| task.result.is_none()) else { continue };
            let has_early =
                task.data_out.expected().any(|sequence| sequence.is_unsolicited() && sequence.has_data());
            let has_some =
                task.data_out.expected().any(|sequence| !sequence.is_unsolicited() && sequence.has_data());
            if asked && has_some || unasked && has_early {
                // The memory that this frees is for the waiting sessions, not for the next command of the
                // same session.
                if let Some(state) = self.sessions.get_mut(session) {
                    state.deprioritized_until = Some(now.after(STALLED_AFTER));
                }
                self.fail_stalled_task(key);
                continue;
            }
            let freed = if asked { task.data_out.revoke() } else { Freed::default() };
            self.stats.revoked += u64::from(freed.solicited > 0);
            if let Some(state) = self.sessions.get_mut(session) {
                state.revoked += freed.revoked;
                if freed.solicited > 0 && freed.revoked == 0 {
                    state.deprioritized_until = Some(now.after(STALLED_AFTER));
                }
            }
            self.release_data_out(session, Freed { revoked: 0, ..freed });
            if freed.solicited > 0 {
                // The part that it can no longer ask for now waits for memory again.
                self.advance_fetches(key);
            }
        }
    }

    /// Schedules the first poll of a session's tasks that lost their connection.
    pub(super) fn watch_detached(&mut self, now: Instant, session: Key) {
        let Some(state) = self.sessions.get_mut(session) else { return };
        if !state.deadlines.is_set(Timer::Detached) {
            let at = now.after(STALLED_AFTER);
            self.timers.set(Owner::Session(session), &mut state.deadlines, Timer::Detached, at);
        }
    }

    /// Reclaims the memory of a session's tasks without a connection, if a session waits for memory, and
    /// schedules the next poll.
    pub(super) fn take_back_detached(&mut self, now: Instant, session: Key) {
        let Some(state) = self.sessions.get_mut(session) else { return self.impossible(Some(session)) };
        if state.lost.is_empty() {
            return;
        }
        let at = now.after(POLL_INTERVAL_MAX);
        self.timers.set(Owner::Session(session), &mut state.deadlines, Timer::Detached, at);
        let wanted = Wanted {
            asked: self.quotas.solicited.has_waiters(),
            unasked: self.quotas.unsolicited.is_under_pressure(),
            answers: self.quotas.data_in.has_waiters() || !state.memory_waiters.is_empty(),
        };
        let is_due = |task: &Task| state.lost.is_detached_for(task.allegiance, now, STALLED_AFTER);
        let tasks = state.tasks(&self.tasks).filter(|(_, task)| is_due(task));
        let detached: SmallVec<[(Key, bool); 8]> =
            tasks.map(|(key, task)| (key, task.result.is_some())).collect();
        for (key, has_ended) in detached {
            if has_ended {
                if wanted.answers {
                    self.drop_answer_data(key);
                }
            } else {
                self.take_back_data_out(key, wanted);
            }
        }
    }

    /// Reclaims the Data-Out memory of a command without a connection.
    fn take_back_data_out(&mut self, key: Key, wanted: Wanted) {
        let Some(task) = self.tasks.get_mut(key) else { return self.impossible(None) };
        let session = task.session;
        if wanted.asked {
            let freed = task.data_out.withdraw();
            self.stats.revoked += u64::from(freed.solicited > 0);
            self.release_data_out(session, freed);
        }
        let Some(task) = self.tasks.get(key) else { return self.impossible(None) };
        let has_some = task.data_out.has_reserved_fetch();
        if wanted.asked && has_some || wanted.unasked && task.data_out.awaits_unsolicited() {
            self.fail_stalled_task(key);
        }
    }

    /// Drops the Data-In of a command that ended and whose connection was lost. If the initiator has not
    /// received that data, the command fails when it is reassigned: a read is not executed twice.
    fn drop_answer_data(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return self.impossible(None) };
        let session = task.session;
        let freed = task.data_in.drop_unacknowledged(&self.pool);
        if freed == 0 {
            return;
        }
        task.result = Some(TaskResult::condition(TransportSense::InitiatorResponseTimeout));
        let was_answered = task.sent_status.take().is_some();
        self.stats.data_late += 1;
        if was_answered {
            self.uncount_unacked_task(session);
        }
        self.release_data_in(session, freed);
        self.drain_ready(session);
    }

    /// Records that `revoked` fetches with revoked memory came to an end. When none is left, the session may
    /// get memory again.
    pub(super) fn restore_turn(&mut self, session: Key, revoked: u32) {
        let Some(state) = self.sessions.get_mut(session).filter(|_| revoked > 0) else { return };
        state.revoked = state.revoked.saturating_sub(revoked);
        if state.revoked == 0 && !state.quota_waiters.is_empty() {
            self.quotas.solicited.enqueue_waiter(self.now, session, &mut state.shares.solicited);
        }
    }

    /// Reserves memory again for a sequence whose memory was revoked, now that its data is received. The
    /// initiator may only have been slow, so a session may exceed the quota by a little instead of losing its
    /// task. All sessions together may exceed it by as much as the quota itself.
    pub(super) fn reserve_revoked_again(&mut self, key: Key, ttt: Ttt) -> bool {
        let Some(task) = self.tasks.get_mut(key) else { return false };
        let Some(need) = task.data_out.revoked_from(ttt) else { return true };
        let Some(state) = self.sessions.get_mut(task.session) else { return false };
        let mut overdraft = 0;
        if !self.quotas.solicited.try_reserve(self.now, &mut state.shares.solicited, need) {
            let is_bounded = self.quotas.solicited.used() < self.limits.data_out_bytes_max;
            let may = state.overdraft == 0 || state.overdraft.saturating_add(need) <= OVERDRAFT;
            if !is_bounded || !may {
                return false;
            }
            self.quotas.solicited.charge(&mut state.shares.solicited, need);
            state.overdraft += need;
            overdraft = need;
        }
        task.data_out.restore_revoked(ttt, overdraft);
        let session = task.session;
        self.restore_turn(session, 1);
        true
    }

    /// Records how many bytes of a sequence are received.
    pub(super) fn record_progress(&mut self, key: Key, ttt: Ttt) {
        let now = self.now;
        let Some(conn) = self.tasks.get(key).and_then(|task| task.allegiance.connection()) else { return };
        let brought = self.data_out_received(conn);
        let sequence = self.tasks.get_mut(key).and_then(|task| task.data_out.select(ttt));
        if let Some(sequence) = sequence {
            sequence.record_progress(now, brought);
        }
    }
}
