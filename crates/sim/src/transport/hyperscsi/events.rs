//! Handles the events that sessions report, and checks whether they may happen.

use base::time::{Duration, Instant};
use hyperscsi::initiator::contract::{Event, LossReason, SessionEnd};
use transport::task_management::TmfResult;

use super::{HyperScsi, Scheduled};
use crate::transport::{CommandOutcome, TransportEvent, wrong_residual};

impl HyperScsi {
    /// Handles an event of a stranger's session, which must not come up.
    fn strange(&mut self, now: Instant, at: usize, event: &Event) {
        match event {
            Event::Up(_) => self.violations.push(format!("stranger {at} was let in")),
            Event::Down(why) => {
                self.trace.say(|| format!("stranger {at}: {why}"));
                self.counters.one("strangers turned away");
                let delay = Duration::from_millis(1 + self.rng.below(1000));
                self.schedule(now.after(delay), Scheduled::Restart(at));
            }
            _ => {}
        }
    }

    pub(super) fn event(&mut self, now: Instant, at: usize, event: Event) {
        if self.is_stranger(at) {
            return self.strange(now, at, &event);
        }
        match event {
            Event::Up(up) => {
                self.watch.agreed(up.sids);
                self.trace.say(|| format!("initiator {at} is up: {up:?}"));
                self.trouble = self.trouble.max(now);
                self.hosts[at].session_lost = true;
                if up.authenticated != self.plan.has_password {
                    self.violations
                        .push(format!("initiator {at} is up, authenticated: {}", up.authenticated));
                }
                self.happenings.push_back(TransportEvent::Up { initiator: at, is_new_nexus: true });
            }
            Event::PathUp { port, peer } => {
                self.counters.one("paths that came up");
                self.trace.say(|| format!("initiator {at} has a path from {port:?} to {peer}"));
            }
            Event::PathDown { port, peer } => {
                self.counters.one("paths lost");
                self.trouble = self.trouble.max(now);
                self.trace.say(|| format!("initiator {at} has lost its path from {port:?} to {peer}"));
            }
            Event::PathMtuStatus { port, peer, status: width } => {
                self.trace.say(|| format!("initiator {at}, from {port:?} to {peer}: {width}"));
            }
            Event::OtherServer { port, peer } => {
                self.violations.push(format!("initiator {at} sees another server at {peer} on {port:?}"));
            }
            Event::Recovering(why) => {
                self.trace.say(|| format!("initiator {at} recovers: {why}"));
                self.lost(now, at, why);
                self.happenings.push_back(TransportEvent::Down { initiator: at, is_final: false });
            }
            Event::Down(why) => self.session_down(now, at, why),
            Event::Done { task, outcome } => {
                let Some((ticket, data_in_len)) = self.hosts[at].tasks.remove(&task) else {
                    panic!("a task ended that is not open, or ended before: {outcome:?}");
                };
                self.hosts[at].tickets.remove(&ticket);
                let wrong = self.hosts[at].ended(ticket, &outcome.end, self.scenario.aborts());
                self.violations.extend(wrong);
                let data = outcome.data_in.as_ref().map(|data| data.to_vec()).unwrap_or_default();
                self.violations.extend(wrong_residual(ticket, &outcome.end, data_in_len, data.len()));
                if let Some(data) = outcome.data_in {
                    self.hosts[at].pool.recycle(data);
                }
                let ended = CommandOutcome::of(outcome.end, data);
                self.happenings.push_back(TransportEvent::Ended { initiator: at, ticket, ended });
            }
            Event::TmfDone { id, result } => {
                let Some(ticket) = self.hosts[at].manages.remove(&id) else {
                    panic!("a management request was answered that is not open, or was answered before");
                };
                let answer =
                    result.map(|result| matches!(result, TmfResult::COMPLETE | TmfResult::SUCCEEDED));
                self.happenings.push_back(TransportEvent::TmfDone { initiator: at, ticket, answer });
            }
        }
    }

    /// Handles the loss of a session, and checks whether a fault explains it.
    fn lost(&mut self, now: Instant, at: usize, why: LossReason) {
        self.trouble = self.trouble.max(now);
        self.counters.one(match why {
            LossReason::KeysExhausted => "sessions ended with their keys used up",
            LossReason::UnknownToTarget => "sessions found to be forgotten",
            LossReason::PathLost => "sessions lost with their last path",
            _ => "sessions lost otherwise",
        });
        self.hosts[at].session_lost = true;
        let is_untold = std::mem::take(&mut self.hosts[at].untold);
        let wrong = match why {
            LossReason::Misbehaved(_) => true,
            // A target whose keys are used up cannot even report that.
            LossReason::PathLost | LossReason::UnknownToTarget => {
                let has_faults = self.plan.has_cuts() || self.scenario.crashes > 0;
                !has_faults && !is_untold && self.plan.key_frames[0].is_none()
            }
            _ => false,
        };
        if wrong {
            self.violations.push(format!("initiator {at} lost its session, and nothing explains it: {why}"));
        }
    }

    /// Handles the end of a session: its owner starts a new one, unless the owner logged out.
    fn session_down(&mut self, now: Instant, at: usize, why: SessionEnd) {
        self.trace.say(|| format!("initiator {at} is down: {why}"));
        if let SessionEnd::RetriesExhausted(why) | SessionEnd::Permanent(why) = why {
            self.lost(now, at, why);
        }
        self.trouble = self.trouble.max(now);
        let host = &mut self.hosts[at];
        assert!(host.tasks.is_empty(), "a session went down with tasks that were not reported");
        assert!(host.manages.is_empty(), "a session went down with requests that were not reported");
        host.session_lost = true;
        let last = host.leaving;
        self.happenings.push_back(TransportEvent::Down { initiator: at, is_final: last });
        if !last {
            let delay = Duration::from_millis(1 + self.rng.below(3000));
            self.schedule(now.after(delay), Scheduled::Restart(at));
        }
    }
}
