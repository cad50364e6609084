//! Implements the command timeout, and finds commands that the target ended without a response.
//!
//! A target may end commands without a response: with TAS=0 (Control mode page, SPC-5 §7.5.11), a LOGICAL
//! UNIT RESET, a CLEAR TASK SET or a TARGET RESET of another initiator ends ours, and only a unit attention
//! for the next command reports it. So when a unit reports that its commands were ended, every command that
//! was sent to it before is aborted with ABORT TASK, and the repeatable ones are retried. The response to
//! ABORT TASK proves that the target no longer has the command, so that no old write can overwrite a new one.
//! A unit whose commands make no progress is sent a TEST UNIT READY (an attention check), which fetches such
//! a unit attention.
//!
//! An ABORT TASK whose response leaves the task open, because the target rejected it or could not take it, is
//! sent again at the next scan.
//!
//! A command whose timeout expires without progress is ended step by step: with ABORT TASK, then with LOGICAL
//! UNIT RESET (unless the unit executes other commands meanwhile), then with a new session. An attention
//! check that gets no response is ended in the same way, but without the reset. Time without a connection
//! does not count; the session has a timeout of its own for that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use base::time::Instant;
use scsi::cdb::Cdb;
use scsi::lun::Lun;
use scsi::sense::Asc;
use transport::initiator::{Outcome, SubmitError};
use transport::initiator::{TaskId, TmfId};
use transport::task_management::{TmfFunction, TmfResult};

use super::identity_check::{Cause, may_be_other};
use super::pending_attention::{PendingAttentions, attention_of};
use super::{DriverEvent, EscalationStep, Event, SessionEntry, SessionId, Sessions, index};
use crate::command::Command;
use crate::fault_injection::{self, Bug};
use crate::retry::{AbortReason, Attempt, PendingCommand, RetryDecision};

/// The default command timeout: how long a command may go without progress unless its caller, or the
/// session's owner, sets another limit.
const LIMIT: Duration = Duration::from_secs(60);

/// How long ABORT TASK and LOGICAL UNIT RESET may go without a response, unless the command timeout is
/// shorter.
const ABORT_WITHIN: Duration = Duration::from_secs(15);
const RESET_WITHIN: Duration = Duration::from_secs(30);

/// How often the commands are scanned, and how long a unit may be silent before it is sent an attention
/// check: each as an upper bound and as a fraction of the command timeout.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSES: u32 = 8;
const LOOK_AFTER: Duration = Duration::from_secs(3);
const LOOKS: u32 = 20;
/// The interval between two attention checks, as a multiple of the silence before the first.
const LOOK_AGAIN: u32 = 5;
/// The shortest scan interval, so that short timeouts do not cause constant scans.
const TICK_MIN: Duration = Duration::from_millis(10);

/// How many commands are aborted at a time: targets limit their immediate requests.
const ABORTS_MAX: usize = 8;

/// The timeouts of the commands of a session.
#[derive(Debug)]
pub(super) struct CommandTimeouts {
    /// The command timeout; `None` for no timeout.
    limit: Option<Duration>,
    /// When the commands are scanned next, while there are any.
    next: Option<Instant>,
    /// Tasks to abort.
    to_end: VecDeque<TaskId>,
    /// Our own task management requests, with the time of each.
    own: BTreeMap<TmfId, (OwnTmf, Instant)>,
    /// When a silent unit may be sent the next attention check.
    looks: BTreeMap<Lun, Instant>,
    /// Units with commands that are being aborted, and whether another command has succeeded since.
    aborting: BTreeMap<Lun, bool>,
    /// Unit attentions that our attention checks received in place of callers.
    pub(super) owed: PendingAttentions,
}

/// The purpose of a task management request of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnTmf {
    Abort(TaskId),
    Reset(Lun),
}

/// A task management request of a caller.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallerTmf {
    token: u64,
    since: Instant,
    function: TmfFunction,
    lun: Lun,
}

impl CallerTmf {
    pub(super) const fn new(since: Instant, token: u64, function: TmfFunction, lun: Lun) -> Self {
        Self { token, since, function, lun }
    }

    /// Returns whether the request ends commands of a unit without naming them.
    fn ends(&self, lun: Lun) -> bool {
        match self.function {
            TmfFunction::ABORT_TASK_SET | TmfFunction::CLEAR_TASK_SET | TmfFunction::LOGICAL_UNIT_RESET => {
                self.lun == lun
            }
            TmfFunction::TARGET_WARM_RESET
            | TmfFunction::TARGET_COLD_RESET
            | TmfFunction::I_T_NEXUS_RESET => true,
            _ => false,
        }
    }
}

impl CommandTimeouts {
    pub(super) fn new() -> Self {
        Self {
            limit: Some(LIMIT),
            next: None,
            to_end: VecDeque::new(),
            own: BTreeMap::new(),
            looks: BTreeMap::new(),
            aborting: BTreeMap::new(),
            owed: PendingAttentions::default(),
        }
    }

    /// Starts an attempt of a command.
    pub(super) fn attempt(&mut self, now: Instant) -> Attempt {
        self.arm(now);
        Attempt { since: now, ..Attempt::default() }
    }

    pub(super) const fn poll_timeout(&self) -> Option<Instant> {
        self.next
    }

    fn arm(&mut self, now: Instant) {
        let pause = self.part(PAUSES, PAUSE);
        self.next.get_or_insert(now.after(pause));
    }

    /// Returns a fraction of the command timeout, at most `most` and at least [`TICK_MIN`].
    fn part(&self, parts: u32, most: Duration) -> Duration {
        (self.limit.unwrap_or(LIMIT) / parts).clamp(TICK_MIN, most)
    }

    fn within(&self, most: Duration) -> Duration {
        self.limit.unwrap_or(LIMIT).min(most)
    }

    /// Returns the last of our ABORT TASK requests that are under way.
    #[cfg(test)]
    pub(super) fn last_abort(&self) -> Option<TmfId> {
        self.own.keys().next_back().copied()
    }

    /// Records how a command ended, if other commands of its unit are being aborted: a unit that still
    /// executes commands hangs only with some of them.
    pub(super) fn note_end(&mut self, pending: &PendingCommand, outcome: &Outcome) {
        if !self.aborting.is_empty()
            && pending.is_callers()
            && outcome.end.is_good()
            && let Some(works) = self.aborting.get_mut(&pending.command.lun)
        {
            *works = true;
        }
    }

    /// Checks the timeout of an attention check. The unit attention that it is to fetch may no longer exist,
    /// and the target may have ended the check together with other commands. Returns whether ABORT TASK has
    /// not ended it in time either.
    fn look_at_look(&mut self, now: Instant, up: bool, task: TaskId, attempt: &mut Attempt) -> bool {
        let within = self.within(ABORT_WITHIN);
        if !up {
            (attempt.since, attempt.unwanted) = (now, attempt.unwanted.map(|_| now));
        }
        if let Some(since) = attempt.unwanted {
            return now.since(since) >= within;
        }
        if now.since(attempt.since) >= within && !fault_injection::is_injected(Bug::KeepLook) {
            (attempt.abort_reason, attempt.unwanted) = (Some(AbortReason::Silence), Some(now));
            self.to_end.push_back(task);
        }
        false
    }

    /// Returns the tasks whose ABORT TASK waits to be sent, or for its response.
    fn aborted(&self) -> BTreeSet<TaskId> {
        let sent = self.own.values().filter_map(|(own, _)| match own {
            OwnTmf::Abort(task) => Some(*task),
            OwnTmf::Reset(_) => None,
        });
        self.to_end.iter().copied().chain(sent).collect()
    }

    /// Returns how many of our ABORT TASK requests may still be answered in time.
    fn aborts(&self, now: Instant) -> usize {
        let within = self.within(ABORT_WITHIN);
        let fresh =
            |(own, since): &&(OwnTmf, Instant)| matches!(own, OwnTmf::Abort(_)) && now.since(*since) < within;
        self.own.values().filter(fresh).count()
    }
}

/// The result of a scan of the commands of a session.
#[derive(Default)]
struct CommandScan {
    any: bool,
    /// Units whose commands make no progress, and units with an attention check under way.
    silent: BTreeSet<Lun>,
    asked: BTreeSet<Lun>,
    /// Units with commands whose timeout has expired, and units with commands that ABORT TASK did not end in
    /// time.
    overdue: BTreeSet<Lun>,
    stuck: BTreeSet<Lun>,
    /// Units with commands that are being aborted, units with commands of callers, and units with an
    /// attention check that ABORT TASK did not end.
    aborting: BTreeSet<Lun>,
    used: BTreeSet<Lun>,
    deaf: BTreeSet<Lun>,
}

/// Returns whether a unit attention reports that commands were ended.
fn ends_commands(asc: Asc) -> bool {
    match asc {
        Asc::RESERVATIONS_PREEMPTED | Asc::REGISTRATIONS_PREEMPTED | Asc::I_T_NEXUS_LOSS_OCCURRED => true,
        // Power on and resets; commands cleared by another initiator, by a power loss notification, by the
        // device server.
        Asc(code) => matches!(code, 0x2900..=0x2904 | 0x2f00..=0x2f02),
    }
}

impl Sessions {
    /// Sets the command timeout of a session.
    pub(crate) fn limit_commands(&mut self, now: Instant, id: SessionId, limit: Option<Duration>) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.overdue.limit = limit;
            // The scan that was scheduled with the old timeout may be too late.
            if entry.overdue.next.take().is_some() {
                entry.overdue.arm(now);
            }
        }
    }
}

impl SessionEntry {
    /// Records a caller's task management request.
    pub(super) fn asked(&mut self, now: Instant, manage: TmfId, asked: CallerTmf) {
        self.manages.insert(manage, asked);
        self.overdue.arm(now);
    }

    /// Processes the response to a task management request.
    pub(super) fn tmf_done(
        &mut self,
        now: Instant,
        id: SessionId,
        manage: TmfId,
        result: Option<TmfResult>,
        events: &mut VecDeque<DriverEvent>,
    ) {
        if let Some(CallerTmf { token, .. }) = self.manages.remove(&manage) {
            return events.push_back(DriverEvent::TmfDone { session: id, token, result });
        }
        match self.overdue.own.remove(&manage) {
            // The request was lost on the way. The task that it was to end continues, or was lost too.
            Some((OwnTmf::Abort(task), _)) if result.is_none() => {
                if let Some(pending) = self.pending_mut(task) {
                    (pending.attempt.unwanted, pending.attempt.since) = (None, now);
                }
            }
            Some((OwnTmf::Reset(lun), _)) if result.is_some_and(|result| result != TmfResult::COMPLETE) => {
                self.rebuild_session(now, id, lun, events);
            }
            _ => {}
        }
    }

    /// Reports a unit attention that came with a command. If it reports that commands were ended, all
    /// commands that were sent to the unit before, whatever connection they use, are aborted: the target
    /// executes commands in the order in which they were sent. If another device may be there, or one with
    /// other blocks, a guarded unit gets an identity check.
    pub(super) fn note_attention(
        &mut self,
        now: Instant,
        id: SessionId,
        (lun, order): (Lun, Option<u64>),
        asc: Asc,
        events: &mut VecDeque<DriverEvent>,
    ) {
        events.push_back(DriverEvent::Session { session: id, event: Event::UnitAttention { lun, asc } });
        if may_be_other(asc) {
            self.check_identity(now, id, lun, Cause::Attention(asc), events);
        }
        if !ends_commands(asc) || fault_injection::is_injected(Bug::IgnoreAttention) {
            return;
        }
        let services = self.session.services();
        for pending in self.tasks.iter_mut().flatten().chain(&mut self.ended) {
            let is_earlier = |task| services.send_order(task).is_some_and(|sent| Some(sent) < order);
            // This also aborts a command that was to be aborted before and continues because its ABORT TASK
            // was lost.
            if let Some(task) = pending.task
                && pending.command.lun == lun
                && is_earlier(task)
                && pending.attempt.unwanted.is_none()
            {
                (pending.attempt.abort_reason, pending.attempt.unwanted) =
                    (Some(AbortReason::Cleared(asc)), Some(now));
                self.overdue.to_end.push_back(task);
            }
        }
    }

    /// Sends ABORT TASK for the tasks to abort, up to the limit. Returns whether any was sent.
    pub(super) fn send_aborts(&mut self, now: Instant) -> bool {
        let mut any = false;
        while self.overdue.aborts(now) < ABORTS_MAX
            && let Some(task) = self.overdue.to_end.pop_front()
        {
            // The task may have ended meanwhile.
            let Some(lun) = self.pending_mut(task).map(|pending| pending.command.lun) else { continue };
            if fault_injection::is_injected(Bug::RetryUnended)
                && let Some(pending) = self.take(task)
            {
                self.send_look(now, pending);
                continue;
            }
            //= rfc7143#section-7.11
            //# On a ULP timeout for a command (that carried a CmdSN of n), if the iSCSI initiator intends to
            //# continue the session it MUST abort the command by using either an appropriate Task Management
            //# Function Request for the specific command or a "close the connection" logout.
            match self.session.submit_tmf(now, TmfFunction::ABORT_TASK, 0, Some(task)) {
                Ok(manage) => {
                    self.overdue.own.insert(manage, (OwnTmf::Abort(task), now));
                    self.overdue.aborting.entry(lun).or_default();
                    any = true;
                }
                Err(SubmitError::NoTask | SubmitError::Down) => {}
                Err(_) => {
                    self.overdue.to_end.push_front(task);
                    break;
                }
            }
        }
        any
    }

    /// Scans the commands, if a scan is due, and handles those that make no progress.
    pub(super) fn check_timeouts(&mut self, now: Instant, id: SessionId, events: &mut VecDeque<DriverEvent>) {
        if self.overdue.next.is_none_or(|at| at > now) {
            return;
        }
        let found = self.survey(now);
        let unanswered =
            |lun, step| DriverEvent::Session { session: id, event: Event::Unanswered { lun, step } };
        events.extend(found.overdue.iter().map(|lun| unanswered(*lun, EscalationStep::AbortTask)));
        self.send_aborts(now);
        for lun in &found.stuck {
            self.reset_unit(now, id, *lun, events);
        }
        // Units with commands of callers are left out: such a command has its own timeout, and may delay the
        // attention check for that long.
        if let Some(lun) = found.deaf.difference(&found.used).next() {
            self.rebuild_session(now, id, *lun, events);
        }
        self.overdue.aborting.retain(|lun, _| found.aborting.contains(lun));
        self.overdue.looks.retain(|lun, _| found.silent.contains(lun));
        for lun in found.silent.difference(&found.asked) {
            self.look_at(now, *lun);
        }
        let reset_within = self.overdue.within(RESET_WITHIN);
        let late = self.overdue.own.values().find_map(|(own, since)| match own {
            OwnTmf::Reset(lun) if now.since(*since) >= reset_within => Some(*lun),
            _ => None,
        });
        let limit = self.overdue.limit;
        let ignored = self.manages.values().find(|asked| {
            limit.is_some_and(|limit| self.session.services().is_up() && now.since(asked.since) >= limit)
        });
        if let Some(lun) = late.or(ignored.map(|asked| asked.lun)) {
            self.rebuild_session(now, id, lun, events);
        }
        self.overdue.next = None;
        if found.any || !self.manages.is_empty() || !self.overdue.own.is_empty() {
            self.overdue.arm(now);
        }
    }

    fn survey(&mut self, now: Instant) -> CommandScan {
        let mut found = CommandScan::default();
        let up = self.session.services().is_up();
        let (limit, abort_within) = (self.overdue.limit, self.overdue.within(ABORT_WITHIN));
        let look_after = self.overdue.part(LOOKS, LOOK_AFTER);
        let aborted = self.overdue.aborted();
        for pending in self.tasks.iter_mut().flatten().chain(&mut self.ended) {
            let (Some(task), lun) = (pending.task, pending.command.lun) else { continue };
            found.any = true;
            // The response to ABORT TASK left the task open.
            if up && pending.attempt.unwanted.is_some() && !aborted.contains(&task) {
                self.overdue.to_end.push_back(task);
            }
            if pending.is_attention_check {
                found.asked.insert(lun);
                if self.overdue.look_at_look(now, up, task, &mut pending.attempt) {
                    found.deaf.insert(lun);
                }
                continue;
            }
            found.used.insert(lun);
            let own_limit = pending.command.limit(limit);
            let attempt = &mut pending.attempt;
            let silent_for = now.since(attempt.since);
            let is_late = own_limit.is_some_and(|limit| silent_for >= limit)
                && !fault_injection::is_injected(Bug::ForgetLimit);
            if !up {
                // Without a connection no task can be aborted either.
                attempt.unwanted = attempt.unwanted.map(|_| now);
            }
            if let Some(since) = attempt.unwanted {
                found.aborting.insert(lun);
                // A command that the unit reported as ended needs no reset before its own timeout. If it has
                // none, the abort has that of other commands.
                let is_over = is_late || (own_limit.is_none() && now.since(since) >= limit.unwrap_or(LIMIT));
                let waits = matches!(attempt.abort_reason, Some(AbortReason::Cleared(_))) && !is_over;
                if now.since(since) >= abort_within && !waits {
                    found.stuck.insert(lun);
                }
                continue;
            }
            let held = self.guarded_luns.get(&lun).is_some_and(super::identity_check::GuardedLun::is_asked)
                && pending.identity_check.is_none();
            match self.session.services().progress(task) {
                // The session is about to report its end.
                None => {}
                Some(progress) if progress != attempt.progress || !up || held => {
                    (attempt.progress, attempt.since) = (progress, now);
                }
                Some(_) if is_late => {
                    attempt.abort_reason.get_or_insert(AbortReason::Silence);
                    attempt.unwanted = Some(now);
                    pending.overdue += 1;
                    self.overdue.to_end.push_back(task);
                    found.aborting.insert(lun);
                    found.overdue.insert(lun);
                }
                Some(_) if silent_for >= look_after => {
                    found.silent.insert(lun);
                }
                Some(_) => {}
            }
        }
        found
    }

    /// Sends a silent unit an attention check.
    fn look_at(&mut self, now: Instant, lun: Lun) {
        if self.overdue.looks.get(&lun).is_none_or(|at| *at <= now) {
            let again = now.after(self.overdue.part(LOOKS, LOOK_AFTER) * LOOK_AGAIN);
            self.overdue.looks.insert(lun, again);
            self.send_look(now, PendingCommand::attention_check(Command::new(lun, Cdb::from_16([0; 16]))));
        }
    }

    fn send_look(&mut self, now: Instant, look: PendingCommand) {
        // A check that cannot be sent now is sent at the next scan.
        if let Ok(task) = self.session.submit(now, &look) {
            self.carried_by(now, task, look);
        }
    }

    /// Processes the result of an attention check.
    pub(super) fn attention_checked(
        &mut self,
        now: Instant,
        id: SessionId,
        mut look: PendingCommand,
        outcome: Outcome,
        events: &mut VecDeque<DriverEvent>,
    ) {
        let (lun, order) = (look.command.lun, outcome.send_order);
        if let Some(sense) = attention_of(&outcome) {
            self.keep_attention(lun, sense);
        }
        let (care, attention) = look.decide(now, outcome);
        if let Some(asc) = attention {
            self.note_attention(now, id, (lun, order), asc, events);
        }
        // Another unit attention may be pending behind the first.
        if matches!(care, RetryDecision::RetryNow) {
            self.send_look(now, look);
        }
    }

    /// Resets a unit whose commands ABORT TASK does not end. A unit that executes other commands is not
    /// reset, since a reset affects all its initiators: a new session ends only our commands.
    fn reset_unit(&mut self, now: Instant, id: SessionId, lun: Lun, events: &mut VecDeque<DriverEvent>) {
        if self.overdue.own.values().any(|(own, _)| *own == OwnTmf::Reset(lun)) {
            return;
        }
        if self.overdue.aborting.get(&lun) == Some(&true) {
            return self.rebuild_session(now, id, lun, events);
        }
        for pending in self.tasks.iter_mut().flatten().chain(&mut self.ended) {
            if pending.command.lun == lun {
                pending.attempt.abort_reason.get_or_insert(AbortReason::Silence);
            }
        }
        match self.session.submit_tmf(now, TmfFunction::LOGICAL_UNIT_RESET, lun.0, None) {
            Ok(manage) => {
                self.overdue.own.insert(manage, (OwnTmf::Reset(lun), now));
                let news = Event::Unanswered { lun, step: EscalationStep::LogicalUnitReset };
                events.push_back(DriverEvent::Session { session: id, event: news });
            }
            // Without a connection nothing can be done, and the session recovers the connection.
            Err(SubmitError::NotUp | SubmitError::Down) => {}
            Err(_) => self.rebuild_session(now, id, lun, events),
        }
    }

    fn rebuild_session(&mut self, now: Instant, id: SessionId, lun: Lun, events: &mut VecDeque<DriverEvent>) {
        if self.session.services().is_up() {
            let news = Event::Unanswered { lun, step: EscalationStep::LogIn };
            events.push_back(DriverEvent::Session { session: id, event: news });
            self.session.services_mut().rebuild_session(now);
        }
    }

    /// Returns whether we, or its caller, have aborted a task.
    pub(super) fn wants_ended(&self, task: TaskId) -> bool {
        let here = self.tasks.get(index(task.index())).and_then(Option::as_ref);
        let mut known = here.into_iter().chain(&self.ended);
        known.find(|pending| pending.task == Some(task)).is_some_and(|pending| {
            let by_function = self.manages.values().any(|asked| asked.ends(pending.command.lun));
            pending.abort_requested || pending.attempt.abort_reason.is_some() || by_function
        })
    }

    fn pending_mut(&mut self, task: TaskId) -> Option<&mut PendingCommand> {
        let here = self.tasks.get_mut(index(task.index())).and_then(Option::as_mut);
        here.into_iter().chain(&mut self.ended).find(|pending| pending.task == Some(task))
    }
}
