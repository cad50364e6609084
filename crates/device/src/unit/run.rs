//! How a task goes from its arrival to its end.

use alloc::boxed::Box;

use base::buffer::DataList;
use base::planted::{self, Bug};
use scsi::cdb::Cdb;
use scsi::sense::{Asc, Sense, SenseKey};
use scsi::status::{Status, TaskAttribute};

use super::LogicalUnit;
use crate::attention;
use crate::contract::{
    DataOutFault, Event, NexusId, PeerAnswer, PeerCaller, PeerFault, PeerRequest, PeerResult, SenseBytes,
};
use crate::medium::{Ended, Granted};
use crate::peer;
use crate::server::Core;
use crate::settings::AttentionInterlock;
use crate::table::{Attention, Handler, Medium, Row};
use crate::task::{Origin, PeerTask, TaskId, TaskInfo};
use crate::task_set::{Answer, Refused, Task, Work};
use crate::verdict::{Job, JobInput, JobStep, MAX_PARAMETER_LIST, Verdict};

impl LogicalUnit {
    /// Takes a task in and starts it if the task set allows.
    pub(super) fn enter(&mut self, info: TaskInfo) {
        match self.tasks.add(info) {
            Ok(id) => {
                if self.tasks.may_start(id) {
                    self.start(id);
                }
            }
            Err((Refused::Full, info)) => {
                self.core.stats.task_set_full += 1;
                self.core.answer(&info, Status::TASK_SET_FULL, None);
            }
            Err((Refused::Overlapped, info)) => {
                let sense = Sense::new(SenseKey::ABORTED_COMMAND, Asc::OVERLAPPED_COMMANDS_ATTEMPTED);
                self.core.answer(&info, Status::CHECK_CONDITION, Some(&sense));
            }
        }
    }

    /// Lets everything happen that can happen now.
    pub(super) fn settle(&mut self) {
        loop {
            if let Some(ended) = self.core.next_ended() {
                self.operation_ended(ended);
            } else if let Some((id, offset, len)) = self.core.next_peer_fetch() {
                self.feed_peer(id, offset, len);
            } else if let Some(granted) = self.core.medium.grant() {
                match granted {
                    Granted::Operation => {}
                    Granted::Exclusive(TaskId::BACKGROUND) => self.core.sanitizer_locked(),
                    Granted::Exclusive(id) => self.step(id, JobInput::Locked),
                }
            } else if let Some(id) = self.core.next_woken() {
                self.step(id, JobInput::Woken);
            } else if let Some((nexus, job)) = self.core.copies.take_spawned() {
                self.begin_background(nexus, job);
            } else if let Some(id) = self.tasks.wake() {
                self.start(id);
            } else if !self.finish_managing() {
                return;
            }
        }
    }

    fn start(&mut self, id: TaskId) {
        let Some(task) = self.tasks.find_mut(id) else { return };
        let verdict = match self.core.admit(&task.info) {
            Ok(handler) => handler(&mut self.core, &task.info),
            Err(verdict) => verdict,
        };
        self.apply(id, verdict);
    }

    /// Carries a verdict out, and those that follow from it at once.
    fn apply(&mut self, id: TaskId, verdict: Verdict) {
        let mut next = Some(verdict);
        while let Some(verdict) = next {
            let Some(task) = self.tasks.find_mut(id) else { return };
            if task.aborted.is_some() {
                return self.drained(id);
            }
            if !task.info.is_idle() {
                task.work = Work::Ending(Box::new(verdict));
                return;
            }
            next = match verdict {
                Verdict::Good => self.finish(id, Status::GOOD, None),
                Verdict::Status(status) => self.finish(id, status, None),
                Verdict::Check(sense) => self.finish(id, Status::CHECK_CONDITION, Some(sense)),
                Verdict::AbortOthers { nexuses, then } => self.abort_others(id, &nexuses, then),
                Verdict::AbortTask { task, then } => {
                    self.abort(task, Answer::TaskAborted);
                    self.go_on_after_aborts(id, then)
                }
                verdict => {
                    let LogicalUnit { core, tasks, .. } = self;
                    tasks.find_mut(id).and_then(|task| core.begin(task, verdict))
                }
            };
        }
    }

    /// Tells the job of a task what happened.
    fn step(&mut self, id: TaskId, input: JobInput) {
        let Some(task) = self.tasks.find_mut(id) else { return };
        if let Some(verdict) = self.core.step(task, input) {
            self.apply(id, verdict);
        }
    }

    fn operation_ended(&mut self, ended: Ended) {
        let Ended { owner, tag, result } = ended;
        if owner == TaskId::BACKGROUND {
            return self.core.sanitizer_ended(result);
        }
        let Some(task) = self.tasks.find_mut(owner) else { return self.core.discard(result) };
        task.info.ops.set(task.info.ops.get().saturating_sub(1));
        match task.work {
            Work::Draining | Work::Ending(_) | Work::Saving(_) => {
                self.core.discard(result);
                self.resume_idle(owner);
            }
            _ => self.step(owner, JobInput::Store { tag, result }),
        }
    }

    /// Goes on with a task that only waited for what was under way.
    fn resume_idle(&mut self, id: TaskId) {
        let Some(task) = self.tasks.find_mut(id).filter(|task| task.info.is_idle()) else { return };
        match core::mem::replace(&mut task.work, Work::Draining) {
            Work::Ending(verdict) => self.apply(id, *verdict),
            Work::Draining => self.drained(id),
            other => task.work = other,
        }
    }

    pub(super) fn data_arrived(&mut self, id: TaskId, offset: u32, data: Result<DataList, DataOutFault>) {
        let Some(task) = self.tasks.find_mut(id) else { return };
        match (&task.work, data) {
            (Work::Parameters(_) | Work::Read(_) | Work::Write(_) | Work::Job(_), Err(fault)) => {
                self.apply(id, Verdict::Check(fault.sense()));
            }
            (Work::Parameters(then), Ok(data)) => {
                let then = *then;
                let verdict = match data.parts() {
                    [only] => then(&mut self.core, &task.info, only),
                    _ => then(&mut self.core, &task.info, &Core::gather(&data)),
                };
                self.core.recycle(data);
                self.apply(id, verdict);
            }
            (Work::Read(_) | Work::Write(_) | Work::Job(_), Ok(data)) => {
                self.step(id, JobInput::DataOut { offset, data });
            }
            (_, data) => data.into_iter().for_each(|data| self.core.recycle(data)),
        }
    }

    fn feed_peer(&mut self, id: TaskId, offset: u32, len: u32) {
        let Some(task) = self.tasks.find_mut(id) else { return };
        let Origin::Peer(peer) = &task.info.origin else { return };
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let data =
            peer.data_out.slice(start, start.saturating_add(usize::try_from(len).unwrap_or(usize::MAX)));
        self.data_arrived(id, offset, Ok(data));
    }

    pub(super) fn peer_answered(&mut self, id: TaskId, call: u32, result: PeerResult) {
        let Some(task) = self.tasks.find_mut(id) else { return };
        task.info.calls.set(task.info.calls.get().saturating_sub(1));
        match task.work {
            Work::Job(_) => self.step(id, JobInput::Peer { call, result }),
            _ => self.resume_idle(id),
        }
    }

    /// Turns a request of a copy manager into a task.
    pub(super) fn serve(&mut self, caller: PeerCaller, nexus: NexusId, request: PeerRequest) {
        match peer::task_of(&mut self.core, caller, nexus, request) {
            Ok(info) => self.enter(info),
            Err(answer) => self.core.answer_peer(caller, answer),
        }
    }

    /// Ends a task with a status.
    fn finish(&mut self, id: TaskId, status: Status, sense: Option<Sense>) -> Option<Verdict> {
        let task = self.tasks.remove(id)?;
        self.core.medium.unlock(id);
        match status {
            Status::CHECK_CONDITION => self.core.stats.check_conditions += 1,
            Status::RESERVATION_CONFLICT => self.core.stats.reservation_conflicts += 1,
            _ => {}
        }
        self.core.answer(&task.info, status, sense.as_ref());
        if status == Status::CHECK_CONDITION && self.core.settings.queue_error.aborts {
            self.abort_after_error(&task.info);
        }
        None
    }

    /// Aborts a task. It is gone, and reported as `answer` says, when the medium has let go of it.
    pub(crate) fn abort(&mut self, id: TaskId, answer: Answer) {
        let Some(task) = self.tasks.find_mut(id) else { return };
        if task.aborted.is_some() {
            return;
        }
        self.core.stats.aborts += 1;
        let held_back = self.core.medium.forget_waiting(id);
        task.info.ops.set(task.info.ops.get().saturating_sub(held_back));
        if !task.info.is_idle() && !planted::is(Bug::ForgetFence) {
            self.core.medium.fence(id);
        }
        self.tasks.mark_aborted(id, answer);
        self.drained(id);
    }

    /// Removes an aborted task once nothing of it is under way.
    fn drained(&mut self, id: TaskId) {
        let Some(task) = self.tasks.find_mut(id) else { return };
        if task.aborted.is_none() || !task.info.is_idle() || matches!(task.work, Work::Saving(_)) {
            return;
        }
        self.core.medium.unlock(id);
        let Some(task) = self.tasks.remove(id) else { return };
        match (task.aborted, task.info.key()) {
            (Some(Answer::TaskAborted), _) | (_, None) => {
                self.core.answer(&task.info, Status::TASK_ABORTED, None);
            }
            (Some(Answer::Aborted), Some(key)) => self.core.emit(Event::Aborted { key }),
            _ => {}
        }
    }

    fn abort_others(&mut self, id: TaskId, nexuses: &[NexusId], then: Box<Verdict>) -> Option<Verdict> {
        let requester = self.tasks.find_mut(id)?.info.nexus;
        for other in self.tasks.select(|task| nexuses.contains(&task.nexus) && task.id != id) {
            let Some(owner) = self.tasks.find_mut(other).map(|task| task.info.nexus) else { continue };
            let answer = self.core.answer_to_abort(owner == requester);
            self.abort(other, answer);
            if owner != requester && answer == Answer::Aborted {
                self.core.nexuses.attend(owner, Asc::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR);
            }
        }
        self.go_on_after_aborts(id, then)
    }

    /// Lets a task go on when everything aborted so far is gone.
    fn go_on_after_aborts(&mut self, id: TaskId, then: Box<Verdict>) -> Option<Verdict> {
        let mark = self.tasks.abort_mark();
        self.tasks.find_mut(id)?.work = Work::AbortingOthers(mark, then);
        self.waiting_for_aborts.push(id);
        None
    }

    /// Begins work that has no command any more. Where there is no room for it, it counts as aborted.
    fn begin_background(&mut self, nexus: NexusId, job: Box<dyn Job>) {
        let info = TaskInfo::new(Origin::Background, nexus, Cdb::from_16([0; 16]));
        if let Ok(id) = self.tasks.add(info) {
            self.apply(id, Verdict::Run(job));
        }
    }

    /// Answers task management functions, and goes on with tasks, that waited for aborted tasks to be gone. Returns
    /// whether there was one.
    fn finish_managing(&mut self) -> bool {
        if let Some(managing) = self.managing.front()
            && self.tasks.is_past(managing.mark)
            && let Some(managing) = self.managing.pop_front()
        {
            self.core.emit(Event::Managed { key: managing.key, outcome: managing.outcome });
            return true;
        }
        for at in 0..self.waiting_for_aborts.len() {
            let Some(id) = self.waiting_for_aborts.get(at).copied() else { break };
            let Some(task) = self.tasks.find_mut(id) else {
                self.waiting_for_aborts.swap_remove(at);
                return true;
            };
            let Work::AbortingOthers(mark, _) = &task.work else {
                self.waiting_for_aborts.swap_remove(at);
                return true;
            };
            let mark = *mark;
            if self.tasks.is_past(mark)
                && let Some(task) = self.tasks.find_mut(id)
                && let Work::AbortingOthers(_, then) = core::mem::replace(&mut task.work, Work::Dormant)
            {
                self.waiting_for_aborts.swap_remove(at);
                self.apply(id, *then);
                return true;
            }
        }
        false
    }

    /// Goes on with a task whose state was stored, or not.
    pub(super) fn stored(&mut self, ticket: u64, ok: bool) {
        let Some(id) = self.core.take_ticket(ticket) else { return };
        if id == TaskId::BACKGROUND {
            return self.core.sanitizer_recorded(ok);
        }
        let Some(task) = self.tasks.find_mut(id) else { return };
        if let Work::Saving(then) = core::mem::replace(&mut task.work, Work::Draining) {
            let verdict = then(&mut self.core, &task.info, ok);
            self.apply(id, verdict);
        }
    }
}

impl Core {
    /// Finds the handler of a command, or the verdict that keeps it from being executed.
    fn admit(&mut self, task: &TaskInfo) -> Result<Handler, Verdict> {
        if self.nexuses.find(task.nexus).is_none() {
            return Err(Verdict::Check(Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE)));
        }
        let found = self.table.find(&self.facts, &task.cdb);
        let passed = matches!(found, Ok(Row { attention: Attention::Passed, .. })) || task.key().is_none();
        // SAM-5 §5.3.3: resets are reported before a reservation conflict, everything else after it.
        let obstacle = self
            .attention(task, passed, attention::outranks_conflict)
            .or_else(|| found.as_ref().ok().and_then(|row| self.reservation_stops(task, row)))
            .or_else(|| self.attention(task, passed, |_| true));
        if let Some(verdict) = obstacle {
            return Err(verdict);
        }
        let row = found.map_err(Verdict::Check)?;
        self.check_request(task, row)?;
        Ok(row.handler)
    }

    /// Reports the next unit attention of a task's nexus, if it is one of those that `counts` says.
    fn attention(&mut self, task: &TaskInfo, passed: bool, counts: fn(Asc) -> bool) -> Option<Verdict> {
        let kept = self.settings.attention_interlock == AttentionInterlock::Kept;
        let state = self.nexuses.find_mut(task.nexus)?;
        let next = state.attentions.next().filter(|next| !passed && counts(next.asc))?;
        if !kept {
            state.attentions.take();
        }
        Some(Verdict::Check(next))
    }

    fn check_request(&self, task: &TaskInfo, row: &Row) -> Result<(), Verdict> {
        if task.data_in_len > 0 && task.data_out_len > 0 {
            let sense = Sense::illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT);
            return Err(Verdict::Check(sense));
        }
        if task.attribute == TaskAttribute::Aca {
            return Err(Verdict::Check(Sense::illegal(Asc::INVALID_MESSAGE_ERROR)));
        }
        if let Some(sense) = self.sanitizer.obstacle(row.opcode) {
            return Err(Verdict::Check(self.sanitizer.progress(self.facts.profile.len).unwrap_or(sense)));
        }
        if row.medium == Medium::Untouched {
            return Ok(());
        }
        let obstacle = self.not_ready().or_else(|| match row.medium {
            Medium::Written => self.write_protection(task.nexus),
            _ => None,
        });
        obstacle.map_or(Ok(()), |sense| Err(Verdict::Check(sense)))
    }

    /// Begins what a verdict asks for, or returns the verdict that follows from it at once.
    fn begin(&mut self, task: &mut Task, verdict: Verdict) -> Option<Verdict> {
        match verdict {
            Verdict::Data { bytes, allocation } => Some(self.parameter_data(&task.info, &bytes, allocation)),
            Verdict::Parameters { len, then } => self.parameter_list(task, len, then),
            Verdict::Read(read) => {
                task.work = Work::Read(read);
                self.step(task, JobInput::Start)
            }
            Verdict::Write(write) => {
                task.work = Work::Write(write);
                self.step(task, JobInput::Start)
            }
            Verdict::Run(job) => {
                task.work = Work::Job(job);
                self.step(task, JobInput::Start)
            }
            Verdict::Save { state, then } => {
                task.work = Work::Saving(then);
                self.save(task.info.id, state);
                None
            }
            other => Some(other),
        }
    }

    fn step(&mut self, task: &mut Task, input: JobInput) -> Option<Verdict> {
        let Task { info, work, .. } = task;
        let step = match work {
            Work::Read(read) => read.step(self, info, input),
            Work::Write(write) => write.step(self, info, input),
            Work::Job(job) => job.step(self, info, input),
            _ => return None,
        };
        match step {
            JobStep::Wait => None,
            JobStep::Done(verdict) => Some(verdict),
        }
    }

    fn parameter_data(&mut self, task: &TaskInfo, bytes: &[u8], allocation: u64) -> Verdict {
        if task.data_out_len > 0 {
            return Verdict::Check(Sense::illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT));
        }
        let wanted = usize::try_from(allocation).unwrap_or(usize::MAX).min(bytes.len());
        task.transferable.set(u64::try_from(wanted).unwrap_or(u64::MAX));
        let len = wanted.min(usize::try_from(task.data_in_len).unwrap_or(usize::MAX));
        if let Some(bytes) = bytes.get(..len).filter(|bytes| !bytes.is_empty()) {
            let data = self.buffer_of(bytes).into();
            self.deliver(task, 0, data);
        }
        Verdict::Good
    }

    fn parameter_list(
        &mut self,
        task: &mut Task,
        len: u32,
        then: fn(&mut Self, &TaskInfo, &[u8]) -> Verdict,
    ) -> Option<Verdict> {
        if len > MAX_PARAMETER_LIST {
            return Some(Verdict::Check(Sense::illegal(Asc::PARAMETER_LIST_LENGTH_ERROR)));
        }
        if task.info.data_in_len > 0 {
            return Some(Verdict::Check(Sense::illegal(Asc::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT)));
        }
        task.info.transferable.set(u64::from(len));
        match len.min(task.info.data_out_len) {
            0 => Some(then(self, &task.info, &[])),
            len => {
                task.work = Work::Parameters(then);
                self.fetch(&task.info, 0, len);
                None
            }
        }
    }

    /// Tells whoever asked for a task how it ended.
    fn answer(&mut self, task: &TaskInfo, status: Status, sense: Option<&Sense>) {
        let transferable = task.transferable.get();
        match &task.origin {
            Origin::Transport(key) => {
                let descriptor = self.settings.descriptor_sense;
                let sense = sense.map(|sense| SenseBytes::new(sense, descriptor));
                self.emit(Event::Finish { key: *key, status, sense, transferable });
            }
            Origin::Peer(peer) => {
                let result = match status {
                    Status::GOOD if task.data_in_len > 0 => self.read_for(peer),
                    Status::GOOD => Ok(PeerAnswer::Done),
                    status => Err(PeerFault::Status(status, sense.copied())),
                };
                self.answer_peer(peer.caller, result);
            }
            Origin::Background => {}
        }
    }

    /// What a copy manager read, unless the token by which it did is worth nothing any more.
    fn read_for(&self, peer: &PeerTask) -> PeerResult {
        let good = peer.token.as_ref().map_or(Ok(()), |token| self.copies.tokens.still_good(token));
        let refused = |sense| PeerFault::Status(Status::CHECK_CONDITION, Some(sense));
        good.map(|()| PeerAnswer::Data(peer.data_in.take())).map_err(refused)
    }

    fn discard(&self, result: Result<store::contract::Outcome, store::contract::Failure>) {
        if let Ok(store::contract::Outcome::Data(data) | store::contract::Outcome::Done(data)) = result {
            self.recycle(data);
        }
    }
}
