//! What becomes of connections, sessions and tasks when something is lost (RFC 7143 §7): repairs within a connection,
//! tasks that move to another connection, sessions built anew.
//!
//! A connection whose target *breaks a rule* takes its session with it at any level: whoever lies once is not asked
//! to go on from where it was. Only damage (digest errors, silence, a lost transport) is recovered from.

use alloc::vec::Vec;

use base::fault_injection::{self, Bug};
use base::state_machine::Action;
use base::time::{Duration, Instant};

use super::contract::{ConnectionDown, Down, End, Event, MAX_CONNECTIONS, Slot};
use super::manage::{Errand, Manage};
use super::place::{Incoming, Link, Output, Removal, Stage, Timer};
use super::session::{Phase, Session, TAG_TASK, tag};
use super::task::Standing;
use super::why::Why;
use crate::login::Status;
use crate::pdu::logout_request::LogoutReason;
use crate::pdu::tmf_request::TmfFunction;
use crate::pdu::tmf_response::TmfResult;
use crate::target::arena::Key;

/// How often a task may be carried out again, or its move be tried again. A target under which it is lost each time
/// is not asked forever.
const MAX_REPLAYS: u8 = 8;

/// How many tasks are moved at a time: targets bound their immediate requests.
const MAX_MOVING: u32 = 8;

impl Session {
    /// Ends a connection whose target broke a rule, or that is damaged beyond repair.
    pub(super) fn misbehaved(&mut self, now: Instant, slot: Slot, why: Why) {
        if why == Why::Bug {
            self.stats.bugs += 1;
        }
        let up = self
            .place(slot)
            .is_some_and(|place| place.link.as_ref().is_some_and(|link| link.login.is_none()));
        if up && !why.is_damage() {
            if let Some(link) = self.end_link(slot, ConnectionDown::Misbehaved(why)) {
                self.orphan(slot, link);
            }
            self.lose_session(now, ConnectionDown::Misbehaved(why));
        } else {
            self.lose(now, slot, ConnectionDown::Misbehaved(why));
        }
    }

    /// Takes the connection out of a place, and says so. Its tasks stay as they are until [`Self::orphan`] takes them off.
    #[must_use = "its tasks, and what never left, are to be taken off"]
    fn end_link(&mut self, slot: Slot, why: ConnectionDown) -> Option<Link> {
        let place = self.place_mut(slot)?;
        place.deadlines.clear_all();
        place.logout = None;
        place.stage = Stage::Idle;
        let link = place.link.take().map(|link| *link);
        if let Some(link) = &link {
            if !link.gone {
                let close = why == ConnectionDown::LoggedOut;
                let action = if close { Action::Close(link.conn) } else { Action::Abort(link.conn) };
                self.actions.push_back(action);
            }
            match link.login {
                None if why != ConnectionDown::LoggedOut => self.stats.connections_lost += 1,
                Some(_) => self.stats.logins_failed += 1,
                None => {}
            }
        }
        if why != ConnectionDown::SessionEnded {
            self.last = why;
        }
        self.events.push_back(Event::ConnectionDown { slot, why });
        // What this connection was to clean up for others is to be asked for again.
        for place in &mut self.places {
            if matches!(place.removal, Removal::Asked { by, .. } if by == slot) {
                place.removal = Removal::None;
                place.deadlines.clear(Timer::Logout);
            }
        }
        link
    }

    /// Takes note that a connection, or an attempt to have one, came to its end.
    pub(super) fn lose(&mut self, now: Instant, slot: Slot, why: ConnectionDown) {
        let stage = self.stage(slot);
        if matches!(stage, Stage::Idle | Stage::Waiting) || self.phase == Phase::Down {
            return;
        }
        let wait = self.place_mut(slot).and_then(|place| place.wait.take());
        let link = self.end_link(slot, why);
        let was_up = link.as_ref().is_some_and(|link| link.login.is_none());
        let logged_out = why == ConnectionDown::LoggedOut;
        if !was_up {
            return self.attempt_failed(now, slot, why);
        }
        let others = self.any_up(None).is_some();
        // Also where the session is lost with it: what never left waits for the next one.
        if let Some(link) = link {
            self.orphan(slot, link);
        }
        if !self.recovers() && !logged_out {
            self.reset_place(slot);
            return self.lose_session(now, why);
        }
        if logged_out && !self.recovers() {
            self.lose_orphans(slot);
        }
        if !others && (self.farewell.is_some() || self.is_through()) {
            return self.end(Down::LoggedOut);
        }
        if !others && logged_out && !self.has_orphans(slot) {
            // The last connection was closed in order, and the session with it.
            self.lose_session(now, why);
            return;
        }
        let span = |seconds: u16| Duration::from_secs(seconds.into());
        let wait = wait.unwrap_or(span(self.parameters.default_time2wait));
        if !others {
            self.phase = Phase::Away;
            self.events.push_back(Event::Recovering);
            self.retain = Some(now.after(wait).after(span(self.parameters.default_time2retain)));
        }
        let has_orphans = self.has_orphans(slot);
        if others && has_orphans {
            if let Some(place) = self.place_mut(slot) {
                place.stage = Stage::Waiting;
                if logged_out {
                    place.removal = Removal::Waits;
                    place.deadlines.set(Timer::Adopt, now.after(wait));
                }
            }
            self.free_orphans(now);
        } else if slot.0 < self.wanted && !self.is_through() {
            let wait = if others { Duration::ZERO } else { wait };
            self.try_again(now, slot, why, true, wait);
        }
        if !others {
            self.free_orphans(now);
        }
    }

    /// Plans what follows an attempt that failed.
    fn attempt_failed(&mut self, now: Instant, slot: Slot, why: ConnectionDown) {
        let unknown = why == ConnectionDown::Refused(Status::SESSION_DOES_NOT_EXIST);
        if unknown && self.phase != Phase::Up && self.tsih.is_some() {
            return self.lose_session(now, why);
        }
        if self.has_orphans(slot) && self.any_up(None).is_some() {
            if let Some(place) = self.place_mut(slot) {
                place.stage = Stage::Waiting;
            }
            return self.free_orphans(now);
        }
        if (slot.0 < self.wanted || self.has_orphans(slot)) && !self.is_through() {
            self.try_again(now, slot, why, false, Duration::ZERO);
        }
    }

    fn reset_place(&mut self, slot: Slot) {
        if let Some(place) = self.place_mut(slot) {
            place.deadlines.clear_all();
            place.removal = Removal::None;
            place.logout = None;
            place.stage = Stage::Idle;
        }
    }

    /// Returns whether requests are left of a connection that is gone.
    fn has_orphans(&self, slot: Slot) -> bool {
        self.tasks.iter().any(|(_, task)| task.standing == Standing::Orphan(slot))
            || self.manages.iter().any(|(_, manage)| manage.slot == slot)
    }

    /// Takes the tasks off a lost connection: those that never left wait again, the others are orphans.
    fn orphan(&mut self, slot: Slot, mut link: Link) {
        if let (Some(receiver), Incoming::Data(key)) = (link.receiver.as_mut(), link.incoming) {
            let landing = receiver.abandon();
            self.give_back(Incoming::Data(key), landing);
        } else if let Some(receiver) = link.receiver.take() {
            self.abandon(slot, receiver);
        }
        let mut unsent = Vec::new();
        for output in &link.out {
            if let Output::Command(key) = output
                && let Some(task) = self.tasks.get_mut(*key)
                && task.standing == Standing::Assigned(slot)
            {
                if !task.request.immediate && !task.numbered {
                    self.unnumbered = self.unnumbered.saturating_sub(1);
                }
                task.standing = Standing::Waiting;
                unsent.push(*key);
            }
        }
        for key in unsent.into_iter().rev() {
            self.waiting.push_front(key);
        }
        for key in link.adopting {
            if let Some(task) = self.tasks.get_mut(key) {
                task.standing = Standing::Orphan(slot);
            }
        }
        let sent = self.tasks.iter().filter(|(_, task)| task.standing == Standing::Sent(slot));
        for key in sent.map(|(key, _)| key).collect::<Vec<_>>() {
            let Some(task) = self.tasks.get_mut(key) else { continue };
            task.standing = Standing::Orphan(slot);
            task.out.unsolicited = None;
            task.out.bursts.clear();
            (task.ack, task.ending, task.held) = (None, None, false);
            task.lose_tag();
            if task.inn.lost_buffer() {
                task.inn.clear(&self.pool);
                task.numbers = super::task::Numbers::default();
            }
        }
        self.lose_manages(Some(slot));
        self.lose_talk(Some(slot));
    }

    /// Gives up the orphans of a connection: nobody can know what became of them.
    fn lose_orphans(&mut self, slot: Slot) {
        let orphans = self.tasks.iter().filter(|(_, task)| task.standing == Standing::Orphan(slot));
        let mut keys: Vec<_> = orphans.map(|(key, task)| (task.order, key)).collect();
        keys.sort_unstable();
        for (_, key) in keys.into_iter().rev() {
            self.replay_or_lose(key);
        }
    }

    /// Carries a task out again whose fate is not known, if its owner allowed that; else gives it up.
    fn replay_or_lose(&mut self, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        if (task.request.replay || fault_injection::is_injected(Bug::ReplayWrites))
            && task.replays < MAX_REPLAYS
        {
            task.replays += 1;
            task.start_over(&self.pool);
            self.stats.replays += 1;
            self.waiting.push_front(key);
        } else {
            self.finish(key, End::Lost);
        }
    }

    /// Gives the session up and starts to build it anew (RFC 7143 §7.14 c, §7.1.4.4: session recovery).
    pub(super) fn lose_session(&mut self, now: Instant, why: ConnectionDown) {
        if self.phase == Phase::Down {
            return;
        }
        let wait = self.place_mut(Slot(0)).and_then(|place| place.wait.take());
        for slot in (0..MAX_CONNECTIONS).map(Slot) {
            if self.stage(slot) == Stage::Connecting {
                self.events.push_back(Event::Forget { slot });
            }
            if self.link(slot).is_some()
                && let Some(link) = self.end_link(slot, ConnectionDown::SessionEnded)
            {
                self.orphan(slot, link);
            }
            self.reset_place(slot);
        }
        self.tsih = None;
        (self.retain, self.unnumbered) = (None, 0);
        // What waits keeps its place behind what was sent.
        let mut out: Vec<_> = self
            .tasks
            .iter()
            .filter(|(_, task)| task.is_out())
            .map(|(key, task)| (task.order, key))
            .collect();
        out.sort_unstable();
        for (_, key) in out.into_iter().rev() {
            self.replay_or_lose(key);
        }
        self.lose_manages(None);
        self.lose_talk(None);
        if self.farewell.is_some() || self.is_through() {
            return self.end(Down::LoggedOut);
        }
        if self.phase == Phase::Up {
            self.phase = Phase::Away;
            self.events.push_back(Event::Recovering);
        }
        self.try_again(now, Slot(0), why, true, wait.unwrap_or_default());
    }

    /// Ends the session for good.
    pub(super) fn end(&mut self, down: Down) {
        if self.phase == Phase::Down {
            return;
        }
        let why =
            if down == Down::LoggedOut { ConnectionDown::LoggedOut } else { ConnectionDown::SessionEnded };
        for slot in (0..MAX_CONNECTIONS).map(Slot) {
            if self.stage(slot) == Stage::Connecting {
                self.events.push_back(Event::Forget { slot });
            }
            if self.link(slot).is_some()
                && let Some(link) = self.end_link(slot, why)
            {
                self.orphan(slot, link);
            }
            self.reset_place(slot);
        }
        self.phase = Phase::Down;
        self.tsih = None;
        (self.patience, self.retain, self.farewell) = (None, None, None);
        for (key, is_out) in self.tasks.iter().map(|(key, task)| (key, task.is_out())).collect::<Vec<_>>() {
            self.finish(key, if is_out { End::Lost } else { End::NotSent });
        }
        self.waiting.clear();
        self.lose_manages(None);
        self.give_talk_up();
        self.events.push_back(Event::Down(down));
    }

    /// Has connections cleaned up that are lost for good, so that their tasks can move (RFC 7143 §7.2.2): by an
    /// explicit logout on another connection if there is one; else the same place logs in again.
    pub(super) fn free_orphans(&mut self, now: Instant) {
        for slot in (0..MAX_CONNECTIONS).map(Slot) {
            let idle = self.place(slot).is_some_and(|place| {
                matches!(place.stage, Stage::Waiting | Stage::Idle) && place.removal == Removal::None
            });
            if !idle || !self.has_orphans(slot) {
                continue;
            }
            match self.any_up(Some(slot)) {
                Some(by) => {
                    let itt = self.log_out(by, LogoutReason::RemoveForRecovery, slot);
                    let within = now.after(self.plan.limits.logout_within);
                    if let Some(place) = self.place_mut(slot) {
                        place.stage = Stage::Waiting;
                        place.removal = Removal::Asked { by, itt };
                        place.deadlines.clear(Timer::Retry);
                        place.deadlines.set(Timer::Logout, within);
                    }
                }
                None => {
                    let wait = Duration::from_secs(self.parameters.default_time2wait.into());
                    if self.place(slot).is_some_and(|place| !place.deadlines.is_set(Timer::Retry))
                        && let Some(place) = self.place_mut(slot)
                    {
                        place.stage = Stage::Waiting;
                        place.deadlines.set(Timer::Retry, now.after(wait));
                    }
                }
            }
        }
    }

    /// Moves the orphans of a place, whose connection the target let go, to the best connection there is.
    pub(super) fn adopt_anywhere(&mut self, now: Instant, slot: Slot) {
        if let Some(place) = self.place_mut(slot) {
            place.removal = Removal::None;
        }
        match self.best(None).or_else(|| self.any_up(None)) {
            Some(to) => {
                self.adopt(now, slot, to);
                if slot.0 < self.wanted && self.stage(slot) == Stage::Waiting {
                    self.attempt(now, slot);
                }
            }
            None => self.free_orphans(now),
        }
    }

    /// Moves the orphans of a place to its own new connection, which took the place of the old one.
    pub(super) fn adopt_own(&mut self, now: Instant, slot: Slot) {
        if let Some(place) = self.place_mut(slot) {
            place.removal = Removal::None;
        }
        self.adopt(now, slot, slot);
    }

    fn adopt(&mut self, now: Instant, from: Slot, to: Slot) {
        self.resend_manages(from, to);
        let orphans = self.tasks.iter().filter(|(_, task)| task.standing == Standing::Orphan(from));
        let mut keys: Vec<_> = orphans.map(|(key, task)| (task.order, key)).collect();
        keys.sort_unstable();
        for (_, key) in keys {
            let exp_cmd_sn = self.exp_cmd_sn;
            let Some(task) = self.tasks.get_mut(key) else { continue };
            if task.numbered && !task.cmd_sn.before(exp_cmd_sn) {
                //= rfc7143#section-7.2.1
                // It never arrived: the same command under the same number fills the gap.
                task.numbers = super::task::Numbers::default();
                task.inn.clear(&self.pool);
                task.anew = None;
                self.allot(to, key);
                self.stats.retries += 1;
                self.queue(to, Output::Command(key));
            } else {
                // From now on it shares the fate of the connection that it moves to.
                task.standing = Standing::Orphan(to);
                if let Some(link) = self.link_mut(to) {
                    link.adopting.push_back(key);
                }
            }
        }
        self.move_on(now, to);
    }

    /// Makes a task allegiant to a connection.
    fn allot(&mut self, slot: Slot, key: Key) {
        let Some(task) = self.tasks.get_mut(key) else { return };
        task.standing = Standing::Sent(slot);
        let weight = task.weight();
        if let Some(link) = self.link_mut(slot) {
            link.tasks += 1;
            link.weight += weight;
        }
    }

    /// Asks for the next tasks to be moved to a connection.
    pub(super) fn move_on(&mut self, _now: Instant, slot: Slot) {
        while let Some(link) = self.link_mut(slot).filter(|link| link.moving < MAX_MOVING) {
            let Some(key) = link.adopting.pop_front() else { return };
            let Some(task) = self.tasks.get(key) else { continue };
            let manage = Manage {
                lun: task.request.lun,
                task: Some(key),
                referenced: (tag(TAG_TASK, key), crate::serial::CmdSn(0)),
                ..Manage::new(Errand::Reassign, TmfFunction::TASK_REASSIGN, slot)
            };
            self.allot(slot, key);
            if let Some(link) = self.link_mut(slot) {
                link.moving += 1;
            }
            let manage = self.manages.insert_with(|_| manage);
            self.queue(slot, Output::Manage(manage));
        }
    }

    /// Acts on the answer to a reassignment.
    pub(super) fn reassigned(&mut self, now: Instant, manage: &Manage, key: Key, result: TmfResult) {
        let slot = manage.slot;
        if let Some(link) = self.link_mut(slot) {
            link.moving = link.moving.saturating_sub(1);
        }
        if let Some(task) = self.tasks.get_mut(key) {
            match result {
                TmfResult::COMPLETE => self.stats.reassigns += 1,
                // It was asked twice, and had moved the first time.
                TmfResult::STILL_ALLEGIANT if manage.again => self.stats.reassigns += 1,
                TmfResult::STILL_ALLEGIANT if task.replays < MAX_REPLAYS => {
                    task.replays += 1;
                    self.unassign(key);
                    if let Some(task) = self.tasks.get_mut(key) {
                        task.standing = Standing::Orphan(slot);
                    }
                    if let Some(link) = self.link_mut(slot) {
                        link.adopting.push_back(key);
                    }
                    return self.watch(now, slot);
                }
                _ => {
                    self.unassign(key);
                    if let Some(task) = self.tasks.get_mut(key) {
                        task.standing = Standing::Orphan(slot);
                    }
                    self.replay_or_lose(key);
                }
            }
        }
        self.move_on(now, slot);
    }
}
