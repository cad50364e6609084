//! Events of the target and hosts: another configuration comes into force; hosts wake, restart or crash.

use base::ether::FrameMachine as _;
use base::time::{Duration, Instant};
use netem::probability::DurationRange;
use transport::initiator::InitiatorTransport as _;

use super::host::Host;
use super::net::Node;
use super::shard;
use super::{HyperScsi, Scheduled, new_shard};
use crate::transport::{CommandOutcome, TransportEvent};

impl HyperScsi {
    /// Schedules the faults of the plan.
    pub(super) fn schedule_faults(&mut self, now: Instant) {
        for (from, until) in self.nets.cuts() {
            self.schedule(from, Scheduled::Trouble(until));
        }
        for change in self.plan.mtu_changes.clone() {
            let step = Scheduled::Mtu { net: change.net, mtu: change.mtu, told: change.told };
            self.schedule(now.after(change.after), step);
        }
        for host in 0..self.scenario.initiators {
            for _ in 0..self.plan.rekeys {
                let after =
                    DurationRange::between(Duration::ZERO, Duration::from_millis(400)).pick(&mut self.rng);
                self.schedule(now.after(after), Scheduled::Rekey(host));
            }
        }
        for sleep in self.plan.sleeps.clone() {
            let who = match sleep.who % (self.scenario.initiators + 1) {
                0 => Node::Target,
                initiator => Node::Initiator(initiator - 1),
            };
            let from = now.after(sleep.after);
            self.schedule(from, Scheduled::Sleep(who, from.after(sleep.span)));
        }
        for upgrade in self.plan.upgrades.clone() {
            self.schedule(now.after(upgrade.after), Scheduled::Upgrade(upgrade));
        }
        for death in self.plan.deaths.clone() {
            self.schedule(now.after(death.after), Scheduled::Crash(death.who % self.scenario.initiators));
        }
    }

    /// Cuts the power of the target.
    pub(super) fn power_off(&mut self, now: Instant) {
        let stats = *self.shard.frame_stats();
        self.bugs += stats.bugs;
        self.counters.engine(&stats);
        self.counters.one("losses of the target's power");
        self.upgrade = None;
        self.rings.forget(Node::Target);
        self.queue.retain(|_, step| {
            !matches!(step, Scheduled::Saved(..) | Scheduled::Boot | Scheduled::GiveUp(_) | Scheduled::Thaw)
        });
        // The new shard has no port before it boots.
        self.shard = new_shard(&self.disks, &self.plan, &self.access, &self.shard_pool);
        self.powered = false;
        let off =
            DurationRange::between(Duration::from_micros(1), Duration::from_secs(4)).pick(&mut self.rng);
        self.trouble = self.trouble.max(now.after(off));
        self.schedule(now.after(off), Scheduled::Boot);
    }

    /// Applies the configuration that waits, if it can come into force.
    pub(super) fn apply_layout(&mut self, now: Instant) {
        if self.upgrade.is_some() {
            return;
        }
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
        for (ticket, _) in std::mem::take(&mut self.hosts[at].tasks).into_values() {
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
