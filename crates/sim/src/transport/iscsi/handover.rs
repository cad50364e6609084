//! Live upgrades: at random times the shard hands its sessions and units over to another one, as to another
//! process, over the same connections. Initiators must not notice it.

use std::collections::BTreeSet;

use ::shard::handover::{Exported, ShardState};
use ::shard::shard::Shard;
use base::rng::Rng;
use base::state_machine::{AcceptInfo, ConnId, PortalId, StreamMachine as _};
use base::time::{Duration, Instant};

use super::connection::TargetEnd;
use super::{Iscsi, address, config};
use crate::scenario::pick;

/// The live upgrades of a world.
pub(super) struct Upgrades {
    /// A random stream of its own, so that the other events of a seed are the same without upgrades.
    rng: Rng,
    left: u64,
    phase: Phase,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The next upgrade begins at this time.
    Serving(Instant),
    /// The shard is frozen, and serves on if it is not idle by this time.
    Freezing(Instant),
}

/// How long a shard is frozen at most.
const FREEZE_MAX: Duration = Duration::from_millis(400);

impl Upgrades {
    /// Draws the upgrades of a world: there are some in a third of the worlds.
    pub(super) fn new(now: Instant, seed: u64) -> Self {
        let mut rng = Rng::from_seed(seed ^ 0x7570_6772_6164_6573);
        let left = if rng.chance(1, 3) { 1 + rng.below(8) } else { 0 };
        let mut upgrades = Self { rng, left, phase: Phase::Serving(now) };
        upgrades.wait(now);
        upgrades
    }

    /// Returns the upgrades of a world without any.
    pub(super) fn none(now: Instant) -> Self {
        Self { rng: Rng::from_seed(0), left: 0, phase: Phase::Serving(now) }
    }

    /// Returns when the next upgrade begins, or when the one that has begun is given up.
    pub(super) fn next(&self) -> Option<Instant> {
        match self.phase {
            Phase::Serving(at) => (self.left > 0).then_some(at),
            Phase::Freezing(until) => Some(until),
        }
    }

    /// Ends an upgrade, or records that the target is lost, and waits for the next one.
    pub(super) fn wait(&mut self, now: Instant) {
        let micros = *pick(&mut self.rng, &[2_000, 50_000, 1_000_000, 10_000_000]);
        self.phase = Phase::Serving(now.after(Duration::from_micros(self.rng.below(micros))));
    }
}

impl Iscsi {
    /// Begins an upgrade that is due, or goes on with the one that has begun.
    pub(super) fn upgrade(&mut self, now: Instant) {
        if let Phase::Serving(at) = self.upgrades.phase {
            if self.upgrades.left == 0 || at > now {
                return;
            }
            self.upgrades.left -= 1;
            self.upgrades.phase = Phase::Freezing(now.after(FREEZE_MAX));
            self.trace.say(|| "the target is frozen".into());
            self.shard.freeze(now);
            self.run_until_idle(now);
        }
        let Phase::Freezing(until) = self.upgrades.phase else { return };
        if self.shard.busy().is_none() && self.disks.is_settled() && self.are_ends_idle() {
            self.replace_shard(now);
        } else if now >= until {
            let why = self.shard.busy();
            self.trace.say(|| format!("the target is thawed: {why:?}"));
            self.counters.upgrades_given_up += 1;
            self.shard.thaw(now);
        } else {
            return;
        }
        self.upgrades.wait(now);
        self.run_until_idle(now);
    }

    /// Returns whether the target's drivers have nothing to send on any connection, and close none.
    fn are_ends_idle(&self) -> bool {
        self.wires.values().all(|wire| !matches!(wire.target_end(), TargetEnd::Busy))
    }

    fn replace_shard(&mut self, now: Instant) {
        let exported = self.shard.export(now);
        let Exported { state, connections } = exported.unwrap_or_else(|why| panic!("it was idle: {why}"));
        let moved: BTreeSet<ConnId> = connections.iter().flatten().copied().collect();
        let are_all_moved = self.wires.values().all(|wire| match wire.target_end() {
            TargetEnd::Idle(conn) => moved.contains(&conn),
            TargetEnd::Gone | TargetEnd::Busy => true,
        });
        // A connection that has not logged in would be lost with the process, and so would be everything if
        // the next process fails.
        if !are_all_moved || self.upgrades.rng.chance(1, 5) {
            self.trace.say(|| "the target is thawed after an export".into());
            self.counters.upgrades_undone += 1;
            return self.shard.thaw(now);
        }
        let text = serde_json::to_string(&state).unwrap();
        let state: ShardState = serde_json::from_str(&text).unwrap();
        let mut next = self.next_shard(now);
        for conn in connections.iter().flatten() {
            let wire = self.wires.values().find(|wire| wire.target_end() == TargetEnd::Idle(*conn));
            let slot = wire.expect("a connection of a session").slot();
            let portal = u8::try_from(slot.0 % u16::from(self.plan.portals)).unwrap();
            let arrival = AcceptInfo {
                portal: PortalId(portal.into()),
                local: address(portal),
                peer: "198.51.100.7:50000".parse().unwrap(),
                entropy: [7; 32],
            };
            next.taken_over(now, *conn, &arrival);
        }
        next.resume(now, &state, &connections).unwrap_or_else(|why| panic!("it cannot be resumed: {why}"));
        let sessions = connections.len();
        self.trace.say(|| format!("the target is replaced, with {sessions} sessions"));
        self.counters.upgrades += 1;
        self.counters.moved_sessions += u64::try_from(sessions).unwrap();
        self.shard = next;
        self.shard.thaw(now);
    }

    /// Makes the shard of the next process over the same media and with the same saved state.
    fn next_shard(&mut self, now: Instant) -> Shard {
        let limits = self.plan.limits;
        let mut next = Shard::new(config(&self.disks, &self.plan), limits, self.shard_pool.clone());
        self.shard.bindings(now).for_each(|bindings| next.restore_bindings(now, bindings));
        self.counters.shard(self.shard.wire_stats());
        self.disks.boot(now, &mut next, &self.shard_pool);
        if self.has_reloads {
            next.apply(now, config(&self.disks, &self.plan));
        }
        next
    }
}
