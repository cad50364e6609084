//! What sessions report to their owners.

use base::time::{Duration, Instant};
use iscsi::initiator::contract::{ConnectionDown, Event, SessionEnd, SessionOrigin};
use iscsi::initiator::protocol_error::ProtocolError;
use transport::task_management::TmfResult;

use super::{Iscsi, Scheduled};
use crate::transport::{CommandOutcome, TransportEvent, wrong_residual};

impl Iscsi {
    pub(super) fn event(&mut self, now: Instant, host: usize, event: Event) {
        match event {
            Event::Connect { slot, .. } => {
                let token = self.number;
                self.hosts[host].connecting.insert(slot, token);
                let delay = self.plan.connect_within.pick(&mut self.rng);
                self.schedule(now.after(delay), Scheduled::Connect(host, slot, token));
            }
            Event::CancelConnect { slot } => {
                self.hosts[host].connecting.remove(&slot);
            }
            Event::Up(up) => {
                self.trace.say(|| format!("initiator {host} is up: {:?}, {:?}", up.origin, up.parameters));
                let fresh = up.origin != SessionOrigin::Continued;
                self.hosts[host].invariants.up(&up.parameters, up.origin);
                self.happenings.push_back(TransportEvent::Up { initiator: host, is_new_nexus: fresh });
            }
            Event::Recovering => {
                self.happenings.push_back(TransportEvent::Down { initiator: host, is_final: false })
            }
            Event::Down(why) => self.session_down(now, host, why),
            Event::Done { task, outcome } => {
                let Some((ticket, data_in_len)) = self.hosts[host].tasks.remove(&task) else {
                    panic!("a task ended that is not open, or ended before: {outcome:?}");
                };
                self.hosts[host].tickets.remove(&ticket);
                let since = self.hosts[host].invariants.submitted_at(ticket);
                let unexplained = self.hosts[host].faults.unexplained(now, since, task, &outcome.end);
                self.uncaused.extend(unexplained.map(|what| format!("order {} {what}", ticket.0)));
                let wrong = self.hosts[host].invariants.ended(now, ticket, &outcome.end);
                self.violations.extend(wrong);
                let data = outcome.data_in.as_ref().map(|data| data.to_vec()).unwrap_or_default();
                self.violations.extend(wrong_residual(ticket, &outcome.end, data_in_len, data.len()));
                if let Some(data) = outcome.data_in {
                    self.hosts[host].pool.recycle(data);
                }
                let ended = CommandOutcome::of(outcome.end, data);
                self.happenings.push_back(TransportEvent::Ended { initiator: host, ticket, ended });
            }
            Event::TmfDone { id, result } => {
                let Some(ticket) = self.hosts[host].manages.remove(&id) else {
                    panic!("a management request was answered that is not open, or was answered before");
                };
                let answer =
                    result.map(|result| matches!(result, TmfResult::COMPLETE | TmfResult::SUCCEEDED));
                self.happenings.push_back(TransportEvent::TmfDone { initiator: host, ticket, answer });
            }
            Event::ConnectionUp { slot, .. } => {
                self.seal_client(host, slot);
                self.trace.say(|| format!("initiator {host} slot {} is up", slot.0));
            }
            Event::ConnectionDown { slot, why } => {
                self.trouble = now;
                self.happenings.push_back(TransportEvent::ConnectionLost { initiator: host });
                let is_modified = why == ConnectionDown::ProtocolError(ProtocolError::PdusModified);
                self.counters.modified += u64::from(is_modified);
                self.violations.extend(self.hosts[host].invariants.lost(now, why));
                self.trace.say(|| format!("initiator {host} slot {} is down: {why}", slot.0));
            }
            other => self.trace.say(|| format!("initiator {host}: {other:?}")),
        }
    }

    /// Handles the end of a session: its owner starts a new one, unless the owner logged out.
    fn session_down(&mut self, now: Instant, host: usize, why: SessionEnd) {
        self.trace.say(|| format!("initiator {host} is down: {why}"));
        self.trouble = now;
        let entry = &mut self.hosts[host];
        assert!(entry.tasks.is_empty(), "a session went down with tasks that were not reported");
        assert!(
            entry.manages.is_empty(),
            "a session went down with management requests that were not reported"
        );
        entry.invariants.down();
        entry.gone = entry.leaving;
        let last = entry.leaving;
        self.happenings.push_back(TransportEvent::Down { initiator: host, is_final: last });
        if !last {
            let delay = Duration::from_millis(self.rng.below(3000));
            self.schedule(now.after(delay), Scheduled::Restart(host));
        }
    }
}
