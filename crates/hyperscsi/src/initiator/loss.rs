//! What becomes of requests when the nexus is lost, and the end of the session.

use alloc::vec::Vec;

use base::arena::Key;
use base::time::Instant;

use super::contract::{Down, End, Event, Lost};
use super::session::{Phase, Session};
use super::task::{MAX_REPLAYS, What};
use crate::pdu::disconnect::DisconnectReason;

impl Session {
    /// Takes note that the session with the target is lost, and starts to build it anew.
    pub(super) fn lose(&mut self, now: Instant, why: Lost) {
        let Some(link) = self.link.take() else { return };
        self.stats.sessions_lost += 1;
        let keyed = link.keyed;
        self.part(*link);
        self.lose_tasks();
        (self.phase, self.last) = (Phase::Away, why);
        if self.leaving {
            return self.end(Down::LoggedOut);
        }
        match why {
            // By ourselves.
            Lost::Ended(DisconnectReason::REPLACED) if self.finder.explains_replaced(now) => {
                self.last = Lost::Forgotten;
            }
            // Whoever took its place would lose it again, and so on.
            Lost::Ended(DisconnectReason::REPLACED | DisconnectReason::NOT_AUTHORIZED) => {
                return self.end(Down::Hopeless(why));
            }
            // Without keys, anybody may have done it in the target's name.
            Lost::Misbehaved(_) if keyed => return self.end(Down::Hopeless(why)),
            _ => {}
        }
        if self.plan.retry.patience.is_zero() {
            return self.end(Down::NoPath(self.last));
        }
        self.patience = Some(now.after(self.plan.retry.patience));
        self.events.push_back(Event::Recovering(why));
        if why != Lost::Forgotten {
            self.seek(now);
        }
    }

    /// Decides about everything that was on the way. What may be carried out again goes ahead of what waits, in the order in
    /// which it was sent.
    fn lose_tasks(&mut self) {
        let mut out: Vec<(u64, Key)> = Vec::new();
        let mut manages = Vec::new();
        for (key, task) in self.tasks.iter() {
            if !task.is_command() {
                manages.push(key);
            } else if task.wire.is_some() {
                out.push((task.order, key));
            }
        }
        out.sort_unstable();
        for (_, key) in out.into_iter().rev() {
            self.release(key);
            let Some(task) = self.tasks.get_mut(key) else { continue };
            let replay = matches!(&task.what, What::Command(request) if request.replay);
            if replay && task.replays < MAX_REPLAYS {
                task.replays += 1;
                task.start_over(&self.pool);
                self.stats.replays += 1;
                self.waiting.push_front(key);
            } else {
                self.finish(key, End::Lost);
            }
        }
        for key in manages {
            self.report(key, None);
        }
        self.expected = 0;
    }

    /// Ends the session for good.
    pub(super) fn end(&mut self, down: Down) {
        if self.phase == Phase::Down {
            return;
        }
        self.phase = Phase::Down;
        if let Some(link) = self.link.take() {
            self.part(*link);
        }
        let mut open: Vec<(bool, u64, Key)> =
            self.tasks.iter().map(|(key, task)| (task.wire.is_none(), task.order, key)).collect();
        open.sort_unstable();
        for (unsent, _, key) in open {
            if self.tasks.get(key).is_some_and(super::task::Task::is_command) {
                self.finish(key, if unsent { End::NotSent } else { End::Lost });
            }
        }
        for key in self.tasks.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            self.report(key, None);
        }
        self.waiting.clear();
        self.finder.stop();
        self.end_deadlines();
        self.events.push_back(Event::Down(down));
    }
}
