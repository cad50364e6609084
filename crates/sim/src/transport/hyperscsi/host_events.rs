//! Events of the target and hosts: another configuration comes into force; hosts wake, restart or crash.

use base::ether::FrameMachine as _;
use base::time::Instant;
use transport::initiator::InitiatorTransport as _;

use super::HyperScsi;
use super::host::Host;
use super::net::Node;
use super::shard;
use crate::transport::{CommandOutcome, TransportEvent};

impl HyperScsi {
    /// Applies the configuration that waits, if it can come into force.
    pub(super) fn apply_layout(&mut self, now: Instant) {
        let Some(layout) = self.disks.ready(&mut self.shard) else { return };
        self.happenings.push_back(TransportEvent::ConfigApplied(layout.clone()));
        let (plan, access, serving) = (&self.plan, &self.access, (&mut self.shard, &self.shard_pool));
        self.disks.change(now, serving, layout, |shard, disks| {
            shard.apply(now, shard::config(disks, plan, access.clone()));
        });
    }

    pub(super) fn wake(&mut self, now: Instant, who: Node) {
        let (frames, lost) = self.rings.wake(now, who);
        for come in frames {
            self.deliver(now, come);
        }
        for (port, count) in lost {
            self.trace.say(|| format!("{who:?} lost {count} frames on {port:?} for want of room"));
            self.counters.add("frames lost in full rings", count.into());
            match who {
                Node::Target => self.shard.frames_overrun(now, port, count),
                Node::Initiator(at) => self.hosts[at].session.frames_overrun(now, port, count),
            }
        }
    }

    /// Replaces a session that has ended by a new one.
    pub(super) fn replace(&mut self, now: Instant, at: usize) {
        if self.is_stranger(at) && self.healed {
            return;
        }
        let fresh = Host::new(now, self.plan_of(at));
        let old = std::mem::replace(&mut self.hosts[at], fresh);
        let stats = old.session.stats();
        self.counters.session(&stats);
        self.bugs += stats.bugs;
        self.plug(now, Node::Initiator(at));
        if old.leaving {
            self.hosts[at].leaving = true;
            self.hosts[at].session.logout(now);
        }
    }

    /// Crashes an initiator without a logout. The outcome of its open commands is unknown, and the frames
    /// that it sent are still under way.
    pub(super) fn crash_host(&mut self, now: Instant, at: usize) {
        if self.hosts[at].leaving || self.hosts[at].session.is_down() {
            return;
        }
        self.trace.say(|| format!("initiator {at} dies"));
        self.counters.one("initiators that died");
        self.trouble = self.trouble.max(now);
        self.rings.forget(Node::Initiator(at));
        for ticket in std::mem::take(&mut self.hosts[at].tasks).into_values() {
            let ended = CommandOutcome::Lost;
            self.happenings.push_back(TransportEvent::Ended { initiator: at, ticket, ended });
        }
        for ticket in std::mem::take(&mut self.hosts[at].manages).into_values() {
            self.happenings.push_back(TransportEvent::TmfDone { initiator: at, ticket, answer: None });
        }
        self.happenings.push_back(TransportEvent::Down { initiator: at, is_final: false });
        self.replace(now, at);
    }
}
