//! How a task goes from its arrival to its end.

use alloc::boxed::Box;

use base::buffer::DataList;
use base::fault_injection::{self, Bug};
use scsi::cdb::Cdb;
use scsi::sense::{Asc, Sense, SenseKey};
use scsi::status::{Status, TaskAttribute};
use store::api::Fault;

use super::{LogicalUnit, Managing};
use crate::contract::{
    Access, DataOutFault, Event, NexusId, PeerAnswer, PeerCaller, PeerFault, PeerRequest, PeerResult,
    SenseBytes,
};
use crate::medium::{Ended, Granted};
use crate::peer;
use crate::server::Core;
use crate::settings::AttentionInterlock;
use crate::table::{Attention, Handler, Medium, Row};
use crate::task::{Origin, PeerTask, TaskId, TaskInfo};
use crate::task_set::{Answer, Refused, Task, Work};
use crate::verdict::{Job, JobInput, JobStep, MAX_PARAMETER_LIST, Verdict};
use crate::{absent, attention, fault};

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
            } else if let Some(id) = self.core.saves.next_turn() {
                self.take_turn(id);
            } else if let Some((nexus, job)) = self.core.copies.take_spawned() {
                self.begin_background(nexus, job);
            } else if let Some(id) = self.tasks.wake() {
                self.start(id);
            } else if !self.finish_managing() && !self.core.flush_for_the_last_time(self.tasks.len()) {
                break;
            }
        }
        self.core.note_idle(self.tasks.len() == 0);
        if self.io_deadline.is_none() && self.core.medium.is_awaited() {
            self.io_deadline = self.core.facts.config.io_timeout.map(|limit| self.core.now.after(limit));
        }
    }

    /// Ends what has waited for the medium for too long.
    pub(super) fn expire_operations(&mut self) {
        self.io_deadline = None;
        let Some(limit) = self.core.facts.config.io_timeout else { return };
        for id in self.core.expire_operations(limit) {
            let forgotten = self.core.medium.forget_waiting(id);
            if let Some(task) = self.tasks.find_mut(id) {
                task.info.ops.set(task.info.ops.get().saturating_sub(forgotten));
            }
            self.apply(id, Verdict::Check(fault::TIMED_OUT));
        }
        self.io_deadline = self.core.medium.next_expiry(limit);
    }

    /// Answers tasks of nexuses that do not see the unit any more.
    pub(super) fn withdraw_tasks(&mut self, chosen: impl Fn(&TaskInfo) -> bool) {
        for id in self.tasks.every(chosen) {
            let Some(task) = self.tasks.find_mut(id) else { continue };
            if task.info.calls.get() > 0 || matches!(task.work, Work::Saving(_)) {
                // Other units are at work for it, or its state is half way to where it is kept.
                self.abort(id, Answer::NoUnit);
                continue;
            }
            self.core.medium.forget_waiting(id);
            self.core.medium.abandon(id);
            self.core.task_ended(id);
            if let Some(task) = self.tasks.remove(id) {
                self.core.stats.aborts += u64::from(task.aborted.is_none());
                self.report(&task.info, task.aborted.unwrap_or(Answer::NoUnit));
            }
        }
    }

    /// Answers task management functions, whatever they wait for.
    pub(super) fn answer_functions(&mut self, chosen: impl Fn(&Managing) -> bool) {
        for managing in core::mem::take(&mut self.managing) {
            if chosen(&managing) {
                self.core.emit(Event::Managed { key: managing.key, outcome: managing.outcome });
            } else {
                self.managing.push_back(managing);
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
                    self.go_on_after_aborts(id, &[task], then)
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
        let Ended { owner, tag, flushes, result } = ended;
        if owner == TaskId::BACKGROUND {
            return self.core.sanitizer_ended(result);
        }
        let Some(task) = self.tasks.find_mut(owner) else { return self.core.discard(flushes, result) };
        task.info.ops.set(task.info.ops.get().saturating_sub(1));
        match task.work {
            Work::Draining | Work::Ending(_) | Work::Saving(_) => {
                self.core.discard(flushes, result);
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
        self.core.task_ended(id);
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
        if !task.info.is_idle() && !fault_injection::is_injected(Bug::ForgetFence) {
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
        self.core.task_ended(id);
        let Some(task) = self.tasks.remove(id) else { return };
        self.report(&task.info, task.aborted.unwrap_or(Answer::Nothing));
    }

    /// Reports a task that was aborted.
    fn report(&mut self, task: &TaskInfo, answer: Answer) {
        match (answer, task.key()) {
            (Answer::NoUnit, _) => {
                self.core.stats.check_conditions += 1;
                self.core.answer(task, Status::CHECK_CONDITION, Some(&absent::NOT_SUPPORTED));
            }
            (Answer::TaskAborted, _) | (_, None) => self.core.answer(task, Status::TASK_ABORTED, None),
            (Answer::Aborted, Some(key)) => self.core.emit(Event::Aborted { key }),
            (Answer::Nothing, Some(_)) => {}
        }
    }

    fn abort_others(&mut self, id: TaskId, nexuses: &[NexusId], then: Box<Verdict>) -> Option<Verdict> {
        self.abort_victims(id, nexuses);
        // A write that its own host aborted, or whose session is lost, can reach the medium late as well: a host that
        // fences another must not be told that it is out before.
        let aborted =
            self.tasks.every(|task| task.id != id && !fault_injection::is_injected(Bug::PreemptWaitsForNone));
        self.go_on_after_aborts(id, &aborted, then)
    }

    /// Aborts every task of `nexuses` but one, which is in the set.
    fn abort_victims(&mut self, id: TaskId, nexuses: &[NexusId]) {
        let Some(requester) = self.tasks.find_mut(id).map(|task| task.info.nexus) else { return };
        for other in self.tasks.select(|task| nexuses.contains(&task.nexus) && task.id != id) {
            let Some(owner) = self.tasks.find_mut(other).map(|task| task.info.nexus) else { continue };
            let answer = self.core.answer_to_abort(owner == requester);
            self.abort(other, answer);
            if owner != requester && answer == Answer::Aborted {
                self.core.nexuses.attend(owner, Asc::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR);
            }
        }
    }

    /// Lets a task go on when those that it aborted are gone.
    fn go_on_after_aborts(&mut self, id: TaskId, aborted: &[TaskId], then: Box<Verdict>) -> Option<Verdict> {
        let wait = self.tasks.wait_for(aborted);
        self.tasks.find_mut(id)?.work = Work::AbortingOthers(wait, then);
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
        if let Some(at) = self.managing.iter().position(|managing| self.tasks.is_over(managing.wait))
            && let Some(managing) = self.managing.remove(at)
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
            let Work::AbortingOthers(wait, _) = &task.work else {
                self.waiting_for_aborts.swap_remove(at);
                return true;
            };
            let wait = *wait;
            if self.tasks.is_over(wait)
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

    /// Goes on with a task that waited for its turn to change what is stored. A reservation that was made meanwhile stops it.
    fn take_turn(&mut self, id: TaskId) {
        if id == TaskId::BACKGROUND {
            return self.core.record_sanitizing();
        }
        let Some(task) = self.tasks.find_mut(id).filter(|task| task.aborted.is_none()) else { return };
        if !matches!(task.work, Work::InTurn(..)) {
            return;
        }
        if let Work::InTurn(list, then) = core::mem::replace(&mut task.work, Work::Dormant) {
            let row = self.core.table.find(&self.core.facts, &task.info.cdb).ok();
            let conflict = row.and_then(|row| self.core.reservation_stops(&task.info, row));
            let verdict = conflict.unwrap_or_else(|| then(&mut self.core, &task.info, &list));
            self.apply(id, verdict);
        }
    }

    /// Goes on with a task whose state was stored, or not. A change that is stored has all of its effects, the aborts of other
    /// tasks among them, even if its task was aborted meanwhile.
    pub(super) fn stored(&mut self, ticket: u64, ok: bool) {
        let Some(id) = self.core.saves.end(ticket) else { return };
        if id == TaskId::BACKGROUND {
            return self.core.sanitizer_recorded(ok);
        }
        let Some(task) = self.tasks.find_mut(id) else { return };
        if let Work::Saving(then) = core::mem::replace(&mut task.work, Work::Draining) {
            let is_aborted = task.aborted.is_some();
            let verdict = then(&mut self.core, &task.info, ok);
            if let Verdict::AbortOthers { nexuses, .. } = &verdict
                && is_aborted
                && !fault_injection::is_injected(Bug::SpareVictims)
            {
                self.abort_victims(id, nexuses);
            }
            self.apply(id, verdict);
        }
    }
}

impl Core {
    /// Finds the handler of a command, or the verdict that keeps it from being executed.
    fn admit(&mut self, task: &TaskInfo) -> Result<Handler, Verdict> {
        let Some(access) = self.nexuses.find(task.nexus).map(|state| state.nexus.access) else {
            return Err(Verdict::Check(Sense::new(SenseKey::HARDWARE_ERROR, Asc::INTERNAL_TARGET_FAILURE)));
        };
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
        self.check_request(task, row, access)?;
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

    fn check_request(&self, task: &TaskInfo, row: &Row, access: Access) -> Result<(), Verdict> {
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
        if access == Access::ReadOnly && !row.read_only.admits(&task.cdb) {
            return Err(Verdict::Check(Sense::new(SenseKey::DATA_PROTECT, Asc::WRITE_PROTECTED)));
        }
        if row.medium == Medium::Untouched {
            return Ok(());
        }
        if self.medium.is_clogged() {
            return Err(Verdict::Status(Status::BUSY));
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
            Verdict::InTurn { list, then } => {
                if self.saves.is_idle() {
                    return Some(then(self, &task.info, &list));
                }
                task.work = Work::InTurn(list, then);
                self.saves.wait(task.info.id);
                None
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

    /// Throws away what came of an operation whose owner does not care any more. A flush that failed is remembered all the
    /// same: the medium reports it once.
    fn discard(&mut self, flushes: bool, result: Result<store::api::OpOutput, store::api::Failure>) {
        if flushes
            && result
                .as_ref()
                .is_err_and(|failure| !matches!(failure.fault, Fault::Busy | Fault::NotSubmitted))
        {
            self.lost_a_flush();
        }
        if let Ok(store::api::OpOutput::Data(data) | store::api::OpOutput::Done(data)) = result {
            self.recycle(data);
        }
    }
}
