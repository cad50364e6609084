//! Live upgrades of the target: another shard takes over its sessions and units, while frames for the target
//! wait in its rings; or the attempt fails, and the shard goes on.

use base::time::Instant;

use super::net::Node;
use super::{HyperScsi, Scheduled, new_shard, shard};
use crate::scenario::Upgrade;

/// An upgrade that is under way.
pub(super) struct Upgrading {
    plan: Upgrade,
    number: u64,
    /// Whether the sessions were exported.
    moved: bool,
}

impl HyperScsi {
    pub(super) fn begin_upgrade(&mut self, now: Instant, plan: Upgrade) {
        if !self.powered || self.upgrade.is_some() || !self.disks.is_settled() {
            return self.counters.one("upgrades given up");
        }
        self.trace.say(|| format!("an upgrade begins: {plan:?}"));
        self.trouble = self.trouble.max(now.after(plan.patience));
        self.shard.freeze(now);
        let number = self.number;
        self.upgrade = Some(Upgrading { plan, number, moved: false });
        self.schedule(now.after(plan.patience), Scheduled::GiveUp(number));
    }

    /// Moves the sessions and units, if an upgrade waits for that and they are idle. Returns whether it did.
    pub(super) fn move_if_idle(&mut self, now: Instant) -> bool {
        let waits = |upgrade: &&mut Upgrading| !upgrade.moved;
        let Some(upgrade) = self.upgrade.as_mut().filter(waits) else { return false };
        if self.rings.is_asleep(Node::Target) || self.shard.busy().is_some() {
            return false;
        }
        let Ok(exported) = self.shard.export(now) else { return false };
        upgrade.moved = true;
        let plan = upgrade.plan;
        let until = now.after(plan.pause);
        self.trace.say(|| format!("the target moves: {plan:?}"));
        self.trouble = self.trouble.max(until);
        if plan.fails {
            self.counters.one("upgrades that failed");
        } else {
            self.counters.one("upgrades");
            self.handle_notices();
            // A session that has ended does not move. A host may also not know yet that an earlier one has
            // ended, although the target has a new session of it already.
            for host in &mut self.hosts {
                host.untold |= host.ended_by_target;
            }
            let stats = *self.shard.frame_stats();
            self.bugs += stats.bugs;
            self.counters.engine(&stats);
            let bindings: Vec<_> = self.shard.bindings(now).collect();
            self.shard = new_shard(&self.disks, &self.plan, &self.access, &self.shard_pool);
            self.disks.boot(now, &mut self.shard, &self.shard_pool);
            // The owner stores them.
            bindings.into_iter().for_each(|saved| self.shard.restore_bindings(now, saved));
            if self.scenario.reloads.is_some() {
                self.shard.apply(now, shard::config(&self.disks, &self.plan, self.access.clone()));
            }
            self.plug(now, Node::Target);
            if let Err(why) = self.shard.resume(now, &exported.state, &exported.connections) {
                self.violations.push(format!("an upgrade failed: {why}"));
            }
        }
        self.rings.sleep(Node::Target, until);
        self.schedule(until, Scheduled::Thaw);
        self.schedule(until, Scheduled::Wake(Node::Target));
        true
    }

    pub(super) fn thaw(&mut self, now: Instant) {
        self.trace.say(|| "the target goes on".into());
        self.shard.thaw(now);
        self.upgrade = None;
    }

    pub(super) fn give_up_upgrade(&mut self, now: Instant, number: u64) {
        if self.upgrade.as_ref().is_some_and(|upgrade| upgrade.number == number && !upgrade.moved) {
            self.trace.say(|| format!("the upgrade is given up: {:?}", self.shard.busy()));
            self.counters.one("upgrades given up");
            self.thaw(now);
        }
    }
}
