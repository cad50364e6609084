//! The execution of a task, from its arrival to its end.

use alloc::boxed::Box;

use base::buffer::DataList;
use scsi::cdb::Cdb;
use scsi::sense::{Asc, Sense, SenseKey};
use scsi::status::Status;
use store::api::Fault;

use super::{LogicalUnit, PendingTmf};
use crate::contract::{
    DataOutFault, NexusId, ThirdPartyCaller, ThirdPartyRequest, ThirdPartyResult, UnitEvent,
};
use crate::device_server::outcome::{JobInput, JobStep, MAX_PARAMETER_LIST, Outcome, SpawnedJob};
use crate::device_server::{DeviceServer, medium_change::DRAIN_FLUSH};
use crate::fault_injection::{self, Bug};
use crate::medium::{EndedOp, Granted};
use crate::task::{Origin, TaskId, TaskInfo};
use crate::task_set::{AbortReport, AdmitError, Task, TaskState};
use crate::{medium_error, third_party};

impl LogicalUnit {
    /// Adds a task to the task set and starts it if the order of the set allows.
    pub(super) fn admit(&mut self, info: TaskInfo) {
        let info = TaskInfo { demounts: self.server.demounts(), ..info };
        match self.tasks.add(info) {
            Ok(id) => {
                if self.tasks.enable_or_queue(id) {
                    self.start(id);
                }
            }
            Err((AdmitError::Full, info)) => {
                self.server.send_response(&info, Status::TASK_SET_FULL, None);
            }
            Err((AdmitError::Overlapped, info)) => {
                let sense = Sense::new(SenseKey::ABORTED_COMMAND, Asc::OVERLAPPED_COMMANDS_ATTEMPTED);
                self.server.send_response(&info, Status::CHECK_CONDITION, Some(&sense));
            }
        }
    }

    /// Processes everything that is ready, until nothing is.
    pub(super) fn process_pending(&mut self) {
        loop {
            if let Some(ended) = self.server.next_ended() {
                self.operation_ended(ended);
            } else if let Some((id, offset, len)) = self.server.next_third_party_fetch() {
                self.feed_peer(id, offset, len);
            } else if let Some(granted) = self.server.medium.grant() {
                match granted {
                    Granted::Operation => {}
                    Granted::Exclusive(TaskId::BACKGROUND) => self.server.sanitizer_locked(),
                    Granted::Exclusive(id) => self.range_locked(id),
                }
            } else if let Some(id) = self.server.next_woken() {
                self.step(id, JobInput::Woken);
            } else if let Some(id) = self.server.saves.next_turn() {
                self.run_state_change(id);
            } else if let Some(spawned) = self.server.take_spawned() {
                self.begin_background(spawned);
            } else if let Some(id) = self.tasks.next_enabled() {
                self.start(id);
            } else if let Some(next) = self.throttle.as_mut().and_then(|limits| limits.next(self.server.now))
            {
                self.end_delay(next);
            } else if !self.server.synchronize_prevention()
                && !self.complete_waiting_tmf()
                && !self.server.finish_eject()
                && !self.server.final_flush(self.tasks.len())
                && !self.server.flush_drained(self.tasks.len())
            {
                break;
            }
        }
        self.server.note_idle(self.tasks.len() == 0);
        if self.io_deadline.is_none() && self.server.medium.is_waited_for() {
            self.io_deadline = self.server.info.config.io_timeout.map(|limit| self.server.now.after(limit));
        }
    }

    /// Ends operations and lock requests that have waited for the medium for too long.
    pub(super) fn expire_operations(&mut self) {
        self.io_deadline = None;
        let Some(limit) = self.server.info.config.io_timeout else { return };
        for id in self.server.expire_operations(limit) {
            let forgotten = self.server.medium.forget_waiting(id);
            if let Some(task) = self.tasks.find_mut(id) {
                task.info.ops.set(task.info.ops.get().saturating_sub(forgotten));
            }
            self.apply(id, Outcome::CheckCondition(medium_error::TIMED_OUT));
        }
        self.io_deadline = self.server.medium.next_expiry(limit);
    }

    /// Answers tasks of nexuses that no longer see the unit.
    pub(super) fn withdraw_tasks(&mut self, chosen: impl Fn(&TaskInfo) -> bool) {
        for id in self.tasks.select_all(chosen) {
            let Some(task) = self.tasks.find_mut(id) else { continue };
            if task.info.calls.get() > 0 || matches!(task.state, TaskState::Saving(_)) {
                // Other units execute calls for this task, or its state is being stored.
                self.abort(id, AbortReport::LunNotSupported);
                continue;
            }
            self.forget_delayed(id);
            self.server.medium.forget_waiting(id);
            self.server.medium.abandon(id);
            self.server.task_ended(id);
            if let Some(task) = self.tasks.find_mut(id) {
                self.server.stats.aborts += u64::from(task.aborted.is_none());
                self.server.report(&task.info, task.aborted.unwrap_or(AbortReport::LunNotSupported));
                self.tasks.remove(id);
            }
        }
    }

    /// Answers task management functions, even those that still wait for aborted tasks.
    pub(super) fn answer_functions(&mut self, chosen: impl Fn(&PendingTmf) -> bool) {
        for managing in core::mem::take(&mut self.pending_tmfs) {
            if chosen(&managing) {
                self.server.emit(UnitEvent::TmfComplete { key: managing.key, outcome: managing.outcome });
            } else {
                self.pending_tmfs.push_back(managing);
            }
        }
    }

    /// Executes a task that may start, unless a limit delays it.
    fn start(&mut self, id: TaskId) {
        if self.throttle.is_none() || !self.delay(id) {
            self.execute_task(id);
        }
    }

    pub(super) fn execute_task(&mut self, id: TaskId) {
        let Some(task) = self.tasks.find_mut(id) else { return };
        task.info.timing.start(self.server.now);
        let outcome = match self.server.find_handler(&task.info) {
            Ok(handler) => handler(&mut self.server, &task.info),
            Err(outcome) => outcome,
        };
        self.apply(id, outcome);
    }

    /// Applies an outcome, and the outcomes that follow from it at once.
    pub(super) fn apply(&mut self, id: TaskId, outcome: Outcome) {
        let mut next = Some(outcome);
        while let Some(outcome) = next {
            let Some(task) = self.tasks.find_mut(id) else { return };
            if task.aborted.is_some() {
                return self.finish_aborted(id);
            }
            if !task.info.is_idle() {
                task.state = TaskState::Ending(Box::new(outcome));
                return;
            }
            next = match outcome {
                Outcome::Good => self.finish(id, Status::GOOD, None),
                Outcome::Status(status) => self.finish(id, status, None),
                Outcome::CheckCondition(sense) => self.finish(id, Status::CHECK_CONDITION, Some(sense)),
                Outcome::Passed(answer) => self.finish_passed(id, answer.0, answer.1),
                Outcome::AbortOthers { nexuses, then } => self.abort_others(id, &nexuses, then),
                Outcome::AbortTask { task, then } => {
                    self.abort(task, AbortReport::TaskAborted);
                    self.resume_after_aborts(id, &[task], then)
                }
                outcome => {
                    let LogicalUnit { server, tasks, .. } = self;
                    tasks.find_mut(id).and_then(|task| server.begin(task, outcome))
                }
            };
        }
    }

    /// Passes an event to the job of a task.
    fn step(&mut self, id: TaskId, input: JobInput) {
        let Some(task) = self.tasks.find_mut(id) else { return };
        if let Some(outcome) = self.server.step(task, input) {
            self.apply(id, outcome);
        }
    }

    /// Lets a task continue that waited for an exclusive range, unless it may not change it any more.
    fn range_locked(&mut self, id: TaskId) {
        let Some(task) = self.tasks.find_mut(id) else { return };
        match self.server.access_withdrawn(&task.info) {
            Some(outcome) => self.apply(id, outcome),
            None => self.step(id, JobInput::Locked),
        }
    }

    fn operation_ended(&mut self, ended: EndedOp) {
        let EndedOp { owner, tag, flushes, result } = ended;
        if owner == TaskId::BACKGROUND && tag == DRAIN_FLUSH {
            // A flush of a disc that has been replaced counts as none.
            return if flushes {
                self.server.drain_flushed(result)
            } else {
                self.server.discard(flushes, result)
            };
        }
        if owner == TaskId::BACKGROUND {
            return self.server.sanitizer_ended(&result);
        }
        if owner == TaskId::TAPE {
            return self.server.cartridge_operation_ended(tag, result);
        }
        if owner == TaskId::DEVICE {
            return self.server.device_command_ended(result);
        }
        let Some(task) = self.tasks.find_mut(owner) else { return self.server.discard(flushes, result) };
        task.info.ops.set(task.info.ops.get().saturating_sub(1));
        if task.info.ops.get() == 0 {
            task.info.timing.leave_medium(self.server.now);
        }
        match task.state {
            TaskState::Draining | TaskState::Ending(_) | TaskState::Saving(_) => {
                self.server.discard(flushes, result);
                self.resume_idle(owner);
            }
            _ => self.step(owner, JobInput::OpCompleted { tag, result }),
        }
    }

    /// Continues a task that waited only for its operations and calls to end.
    fn resume_idle(&mut self, id: TaskId) {
        let Some(task) = self.tasks.find_mut(id).filter(|task| task.info.is_idle()) else { return };
        match core::mem::replace(&mut task.state, TaskState::Draining) {
            TaskState::Ending(outcome) => self.apply(id, *outcome),
            TaskState::Draining => self.finish_aborted(id),
            other => task.state = other,
        }
    }

    pub(super) fn data_arrived(&mut self, id: TaskId, offset: u32, data: Result<DataList, DataOutFault>) {
        let Some(task) = self.tasks.find_mut(id) else { return };
        if let Ok(data) = &data {
            task.info.timing.receive_data(self.server.now, data.len());
        }
        if matches!(task.state, TaskState::Parameters(_) | TaskState::Write(_) | TaskState::Job(_))
            && data.is_ok()
            && let Some(outcome) = self.server.access_withdrawn(&task.info)
        {
            data.into_iter().for_each(|data| self.server.recycle(data));
            return self.apply(id, outcome);
        }
        match (&task.state, data) {
            (
                TaskState::Parameters(_) | TaskState::Read(_) | TaskState::Write(_) | TaskState::Job(_),
                Err(fault),
            ) => {
                self.apply(id, Outcome::CheckCondition(fault.sense()));
            }
            (TaskState::Parameters(then), Ok(data)) => {
                let then = *then;
                let outcome = match data.parts() {
                    [only] => then(&mut self.server, &task.info, only),
                    _ => then(&mut self.server, &task.info, &DeviceServer::gather(&data)),
                };
                self.server.recycle(data);
                self.apply(id, outcome);
            }
            (TaskState::Read(_) | TaskState::Write(_) | TaskState::Job(_), Ok(data)) => {
                self.step(id, JobInput::DataOut { offset, data });
            }
            (_, data) => data.into_iter().for_each(|data| self.server.recycle(data)),
        }
    }

    fn feed_peer(&mut self, id: TaskId, offset: u32, len: u32) {
        let Some(task) = self.tasks.find_mut(id) else { return };
        let Origin::ThirdParty(peer) = &task.info.origin else { return };
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let data =
            peer.data_out.slice(start, start.saturating_add(usize::try_from(len).unwrap_or(usize::MAX)));
        self.data_arrived(id, offset, Ok(data));
    }

    pub(super) fn third_party_replied(&mut self, id: TaskId, call: u32, result: ThirdPartyResult) {
        let Some(task) = self.tasks.find_mut(id) else { return };
        task.info.calls.set(task.info.calls.get().saturating_sub(1));
        match task.state {
            TaskState::Job(_) => self.step(id, JobInput::ThirdPartyReply { call, result }),
            _ => self.resume_idle(id),
        }
    }

    /// Turns a request of a copy manager into a task.
    pub(super) fn admit_third_party(
        &mut self,
        caller: ThirdPartyCaller,
        nexus: NexusId,
        request: ThirdPartyRequest,
    ) {
        match third_party::task_of(&mut self.server, caller, nexus, request) {
            Ok(info) => self.admit(info),
            Err(answer) => self.server.reply_third_party(caller, answer),
        }
    }

    /// Ends a task with a status.
    fn finish(&mut self, id: TaskId, status: Status, sense: Option<Sense>) -> Option<Outcome> {
        let task = self.tasks.find_mut(id)?;
        if status == Status::GOOD {
            self.server.tape_command_succeeded(&task.info);
        }
        self.server.task_ended(id);
        self.server.send_response(&task.info, status, sense.as_ref());
        let failed = (status == Status::CHECK_CONDITION && self.server.settings.queue_error.aborts)
            .then(|| (task.info.nexus, task.info.key()));
        self.tasks.remove(id);
        if let Some((nexus, Some(_))) = failed {
            self.abort_after_error(nexus);
        }
        None
    }

    /// Aborts a task. It is removed, and reported as `answer` says, when its operations have ended.
    pub(crate) fn abort(&mut self, id: TaskId, answer: AbortReport) {
        let Some(task) = self.tasks.find_mut(id) else { return };
        if task.aborted.is_some() {
            return;
        }
        self.server.stats.aborts += 1;
        self.forget_delayed(id);
        let Some(task) = self.tasks.find_mut(id) else { return };
        let held_back = self.server.medium.forget_waiting(id);
        task.info.ops.set(task.info.ops.get().saturating_sub(held_back));
        if !task.info.is_idle() && !fault_injection::is_injected(Bug::ForgetFence) {
            self.server.medium.lock_unfinished_writes(id);
        }
        self.tasks.mark_aborted(id, answer);
        self.finish_aborted(id);
    }

    /// Removes an aborted task once none of its operations and calls is in progress.
    fn finish_aborted(&mut self, id: TaskId) {
        let Some(task) = self.tasks.find_mut(id) else { return };
        if task.aborted.is_none() || !task.info.is_idle() || matches!(task.state, TaskState::Saving(_)) {
            return;
        }
        self.server.task_ended(id);
        self.server.report(&task.info, task.aborted.unwrap_or(AbortReport::Unreported));
        self.tasks.remove(id);
    }

    fn abort_others(&mut self, id: TaskId, nexuses: &[NexusId], then: Box<Outcome>) -> Option<Outcome> {
        self.abort_victims(id, nexuses);
        // A write that its own host aborted, or whose session is lost, can also reach the medium late. A host
        // that fences another must receive no confirmation before that write has ended.
        let aborted = self
            .tasks
            .select_all(|task| task.id != id && !fault_injection::is_injected(Bug::PreemptWaitsForNone));
        self.resume_after_aborts(id, &aborted, then)
    }

    /// Aborts every task of `nexuses` except task `id`, which sent the request.
    fn abort_victims(&mut self, id: TaskId, nexuses: &[NexusId]) {
        let Some(requester) = self.tasks.find_mut(id).map(|task| task.info.nexus) else { return };
        let others = self.tasks.select_live(|task| nexuses.contains(&task.nexus) && task.id != id);
        self.abort_for(Some(requester), &others);
    }

    /// Aborts tasks for a nexus, or for the operator.
    pub(super) fn abort_for(&mut self, requester: Option<NexusId>, tasks: &[TaskId]) {
        for id in tasks.iter().copied() {
            let Some(owner) = self.tasks.find_mut(id).map(|task| task.info.nexus) else { continue };
            let is_own = Some(owner) == requester;
            let answer = self.server.abort_report(is_own);
            self.abort(id, answer);
            if !is_own && answer == AbortReport::Aborted {
                self.server.nexuses.establish_ua(owner, Asc::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR);
            }
        }
    }

    /// Lets a task continue when the tasks that it aborted are removed.
    fn resume_after_aborts(&mut self, id: TaskId, aborted: &[TaskId], then: Box<Outcome>) -> Option<Outcome> {
        let wait = self.tasks.wait_for(aborted);
        self.tasks.find_mut(id)?.state = TaskState::AbortingOthers(wait, then);
        self.waiting_for_aborts.push(id);
        None
    }

    /// Begins background work whose command has already been answered. When the task set is full, the work
    /// counts as aborted.
    fn begin_background(&mut self, SpawnedJob { nexus, level, job }: SpawnedJob) {
        let info = TaskInfo::new(Origin::Background, nexus, Cdb::from_16([0; 16])).with_level(level);
        if let Ok(id) = self.tasks.add(info) {
            self.apply(id, Outcome::Run(job));
        } else if let Some(drive) = &mut self.server.tape {
            drive.immediate_aborted(nexus);
        }
    }

    /// Answers task management functions, and continues tasks, that waited for aborted tasks to be removed.
    /// Returns whether there was one.
    fn complete_waiting_tmf(&mut self) -> bool {
        if let Some(at) = self.pending_tmfs.iter().position(|managing| self.tasks.is_over(managing.wait))
            && let Some(managing) = self.pending_tmfs.remove(at)
        {
            self.server.emit(UnitEvent::TmfComplete { key: managing.key, outcome: managing.outcome });
            return true;
        }
        for at in 0..self.waiting_for_aborts.len() {
            let Some(id) = self.waiting_for_aborts.get(at).copied() else { break };
            let Some(task) = self.tasks.find_mut(id) else {
                self.waiting_for_aborts.swap_remove(at);
                return true;
            };
            let TaskState::AbortingOthers(wait, _) = &task.state else {
                self.waiting_for_aborts.swap_remove(at);
                return true;
            };
            let wait = *wait;
            if self.tasks.is_over(wait)
                && let Some(task) = self.tasks.find_mut(id)
                && let TaskState::AbortingOthers(_, then) =
                    core::mem::replace(&mut task.state, TaskState::Dormant)
            {
                self.waiting_for_aborts.swap_remove(at);
                self.apply(id, *then);
                return true;
            }
        }
        false
    }

    /// Continues a task that waited for its turn to change the persistent state. A reservation that was made
    /// meanwhile stops it, and so does access that was withdrawn.
    fn run_state_change(&mut self, id: TaskId) {
        if id == TaskId::BACKGROUND {
            return self.server.record_sanitizing();
        }
        let Some(task) = self.tasks.find_mut(id).filter(|task| task.aborted.is_none()) else { return };
        if !matches!(task.state, TaskState::StateChangeQueued(..)) {
            return;
        }
        if let TaskState::StateChangeQueued(list, then) =
            core::mem::replace(&mut task.state, TaskState::Dormant)
        {
            let row = self.server.table.find(&self.server.info, &task.info.cdb).ok();
            let conflict = row.and_then(|row| self.server.reservation_conflict(&task.info, row));
            let obstacle = conflict.or_else(|| self.server.access_withdrawn(&task.info));
            let outcome = obstacle.unwrap_or_else(|| then(&mut self.server, &task.info, &list));
            self.apply(id, outcome);
        }
    }

    /// Continues a task whose state was stored, or could not be. A stored change has all of its effects,
    /// including aborts of other tasks, even if its task was aborted meanwhile.
    pub(super) fn finish_save(&mut self, ticket: u64, ok: bool) {
        let Some(id) = self.server.saves.end(ticket) else { return };
        if id == TaskId::BACKGROUND {
            return self.server.sanitizer_recorded(ok);
        }
        if id == TaskId::OPERATOR {
            return self.finish_operator_removal(ok);
        }
        let Some(task) = self.tasks.find_mut(id) else { return };
        if let TaskState::Saving(then) = core::mem::replace(&mut task.state, TaskState::Draining) {
            let is_aborted = task.aborted.is_some();
            let outcome = then(&mut self.server, &task.info, ok);
            if let Outcome::AbortOthers { nexuses, .. } = &outcome
                && is_aborted
                && !fault_injection::is_injected(Bug::SpareVictims)
            {
                self.abort_victims(id, nexuses);
            }
            self.apply(id, outcome);
        }
    }
}

impl DeviceServer {
    /// Begins the work that an outcome requests, or returns the outcome that follows from it at once.
    fn begin(&mut self, task: &mut Task, outcome: Outcome) -> Option<Outcome> {
        match outcome {
            Outcome::ParameterData { bytes, allocation } => {
                Some(self.parameter_data(&task.info, &bytes, allocation))
            }
            Outcome::FetchParameterList { len, then } => self.parameter_list(task, len, then),
            Outcome::Read(read) => {
                task.state = TaskState::Read(read);
                self.step(task, JobInput::Start)
            }
            Outcome::Write(write) => {
                task.state = TaskState::Write(write);
                self.step(task, JobInput::Start)
            }
            Outcome::Run(job) => {
                task.state = TaskState::Job(job);
                self.step(task, JobInput::Start)
            }
            Outcome::QueueStateChange { list, then } => {
                if self.saves.is_idle() {
                    return Some(then(self, &task.info, &list));
                }
                task.state = TaskState::StateChangeQueued(list, then);
                self.saves.wait(task.info.id);
                None
            }
            Outcome::SaveState { state, then } => {
                task.state = TaskState::Saving(then);
                self.save(task.info.id, state);
                None
            }
            other => Some(other),
        }
    }

    fn step(&mut self, task: &mut Task, input: JobInput) -> Option<Outcome> {
        let Task { info, state: work, .. } = task;
        let step = match work {
            TaskState::Read(read) => read.step(self, info, input),
            TaskState::Write(write) => write.step(self, info, input),
            TaskState::Job(job) => job.step(self, info, input),
            _ => return None,
        };
        match step {
            JobStep::Wait => None,
            JobStep::Done(outcome) => Some(outcome),
        }
    }

    fn parameter_data(&mut self, task: &TaskInfo, bytes: &[u8], allocation: u64) -> Outcome {
        if task.data_out_len > 0 {
            return Outcome::CheckCondition(Sense::illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT));
        }
        let wanted = usize::try_from(allocation).unwrap_or(usize::MAX).min(bytes.len());
        task.transferable.set(u64::try_from(wanted).unwrap_or(u64::MAX));
        let len = wanted.min(usize::try_from(task.data_in_len).unwrap_or(usize::MAX));
        if let Some(bytes) = bytes.get(..len).filter(|bytes| !bytes.is_empty()) {
            let data = self.buffer_of(bytes).into();
            self.send_data_in(task, 0, data);
        }
        Outcome::Good
    }

    fn parameter_list(
        &mut self,
        task: &mut Task,
        len: u32,
        then: fn(&mut Self, &TaskInfo, &[u8]) -> Outcome,
    ) -> Option<Outcome> {
        if len > MAX_PARAMETER_LIST {
            return Some(Outcome::CheckCondition(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR)));
        }
        if task.info.data_in_len > 0 {
            return Some(Outcome::CheckCondition(Sense::illegal(
                Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT,
            )));
        }
        task.info.transferable.set(u64::from(len));
        match len.min(task.info.data_out_len) {
            0 => Some(then(self, &task.info, &[])),
            len => {
                task.state = TaskState::Parameters(then);
                self.fetch_data_out(&task.info, 0, len);
                None
            }
        }
    }

    /// Discards the result of an operation whose owner no longer waits for it. A failed flush and a unit
    /// attention of a device are recorded all the same: they are reported only once.
    fn discard(&mut self, flushes: bool, result: Result<store::api::OpOutput, store::api::Failure>) {
        if flushes
            && result
                .as_ref()
                .is_err_and(|failure| !matches!(failure.fault, Fault::Busy | Fault::NotSubmitted))
            && !self.medium.keeps_changes()
        {
            self.record_lost_flush();
        }
        match result {
            Ok(store::api::OpOutput::Data(data) | store::api::OpOutput::Done(data)) => self.recycle(data),
            Ok(store::api::OpOutput::Response(response)) => {
                self.unheard_attention(&response);
                self.recycle(response.data);
            }
            Ok(store::api::OpOutput::MapStatus(_)) | Err(_) => {}
        }
    }
}
