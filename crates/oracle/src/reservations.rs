//! Tracks the possible reservations of one logical unit, given the commands that were sent and their
//! outcomes.
//!
//! Commands that change reservations run concurrently, are aborted, and are lost with their sessions. So this
//! module keeps the set of all possible states instead of one state. It follows every order in which the
//! commands under way can take effect, and the outcome of a command removes the orders that would have had
//! another outcome. This is an incremental check of linearizability. An empty set means that no order
//! explains the outcomes.

mod model;
#[cfg(test)]
mod tests;

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

pub use model::{
    Access, Admits, Attentions, Nexus, Nexuses, ReservationType, ReserveCommand, ReserveOutcome, State,
};

/// The id of a command that changes reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceId(pub u64);

/// The error for an outcome that no order of the commands under way explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unexplained;

/// The most commands that the caller has under way at a time. The number of orders to follow is the number of
/// permutations of these commands.
pub const MAX_PENDING: usize = 4;

/// The possible reservations of one logical unit.
#[derive(Clone, Debug)]
pub struct Reservations {
    possible: BTreeSet<Possible>,
    pending: BTreeMap<ServiceId, (Nexus, ReserveCommand)>,
    /// Counts the events after which the set may have grown.
    version: u64,
}

/// One state, with the commands under way that have taken effect in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Possible {
    state: State,
    effects: Vec<Effect>,
}

/// A command that has taken effect and whose response has not arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Effect {
    id: ServiceId,
    outcome: ReserveOutcome,
    /// The nexuses that the command preempted and whose writes have been stopped since then.
    fenced: Nexuses,
    /// The unit attentions that the command has established.
    attentions: Attentions,
}

impl Default for Reservations {
    fn default() -> Self {
        Self { possible: BTreeSet::from([Possible::default()]), pending: BTreeMap::new(), version: 0 }
    }
}

impl Reservations {
    /// Returns whether another command may be submitted.
    pub fn may_begin(&self) -> bool {
        self.pending.len() < MAX_PENDING
    }

    /// Returns whether no command is under way.
    pub fn is_settled(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns a number that changes whenever states become possible that were impossible before.
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Returns the states that are possible now; some of them occur more than once.
    pub fn states(&self) -> impl Iterator<Item = &State> {
        self.possible.iter().map(|possible| &possible.state)
    }

    /// Records that a command is submitted. From now on it may take effect.
    pub fn submit_command(&mut self, id: ServiceId, nexus: Nexus, service: ReserveCommand) {
        self.pending.insert(id, (nexus, service));
        self.explore_orders();
    }

    /// Records the outcome of a command. Returns the nexuses that the command preempted and whose writes have
    /// been stopped since then.
    ///
    /// # Errors
    /// Returns [`Unexplained`] if no order explains the outcome. The outcome is then ignored.
    pub fn end_command(&mut self, id: ServiceId, outcome: ReserveOutcome) -> Result<Nexuses, Unexplained> {
        if self.pending.remove(&id).is_none() {
            return Ok(Nexuses::default());
        }
        let gave = |effect: &Effect| effect.id == id && effect.outcome == outcome;
        let explains = |possible: &Possible| possible.effects.iter().any(gave);
        if !self.possible.iter().any(explains) {
            self.forget(id);
            return Err(Unexplained);
        }
        self.possible.retain(explains);
        let fenced =
            self.possible.iter().flat_map(|possible| &possible.effects).filter(|effect| gave(effect));
        let fenced = fenced.map(|effect| effect.fenced).reduce(Nexuses::and).unwrap_or_default();
        self.forget(id);
        Ok(fenced)
    }

    /// Returns the unit attentions that a command has established if it ends with this outcome: those in
    /// which all orders that explain the outcome agree. Called before [`Self::end_command`].
    pub fn attentions_of(&self, id: ServiceId, outcome: ReserveOutcome) -> Attentions {
        let effects = self.possible.iter().flat_map(|possible| &possible.effects);
        let own = effects.filter(|effect| effect.id == id && effect.outcome == outcome);
        own.map(|effect| effect.attentions).reduce(Attentions::and).unwrap_or_default()
    }

    /// Records that a command was refused before it had any effect.
    ///
    /// # Errors
    /// Returns [`Unexplained`] if the effect of the command was observed.
    pub fn refused(&mut self, id: ServiceId) -> Result<(), Unexplained> {
        if self.pending.remove(&id).is_none() {
            return Ok(());
        }
        let explains = |possible: &Possible| possible.effects.iter().all(|effect| effect.id != id);
        if !self.possible.iter().any(explains) {
            self.forget(id);
            return Err(Unexplained);
        }
        self.possible.retain(explains);
        Ok(())
    }

    /// Records that a command is over and that it is unknown whether it took effect.
    pub fn conclude_unknown(&mut self, id: ServiceId) {
        if self.pending.remove(&id).is_some() {
            self.forget(id);
        }
    }

    /// Keeps only states for which `holds` is true, because an initiator observed that while no command was
    /// under way. Returns whether there is any.
    pub fn observe(&mut self, holds: impl Fn(&State) -> bool) -> bool {
        let any = self.states().any(&holds);
        if any {
            self.possible.retain(|possible| holds(&possible.state));
        }
        if self.states().any(State::is_reserved) {
            // The reservation existed when the initiator observed it, and may be released at any time.
            self.explore_orders();
        }
        any
    }

    /// Records that the unit lost its power.
    pub fn power_lost(&mut self) {
        let possible = core::mem::take(&mut self.possible);
        self.possible = (possible.into_iter())
            .map(|possible| Possible {
                state: possible.state.after_power_loss(),
                effects: (possible.effects.into_iter())
                    .map(|effect| Effect { fenced: Nexuses::default(), ..effect })
                    .collect(),
            })
            .collect();
        self.explore_orders();
    }

    /// Stops tracking a command: its effect is part of the state from now on.
    fn forget(&mut self, id: ServiceId) {
        let possible = core::mem::take(&mut self.possible);
        self.possible = (possible.into_iter())
            .map(|mut possible| {
                possible.effects.retain(|effect| effect.id != id);
                possible
            })
            .collect();
    }

    /// Follows every order in which the commands under way that have not taken effect can take effect.
    fn explore_orders(&mut self) {
        self.version += 1;
        let mut left: Vec<Possible> = self.possible.iter().cloned().collect();
        while let Some(possible) = left.pop() {
            let mut nexts = Vec::new();
            if possible.state.is_reserved() {
                nexts.push(Possible { state: possible.state.released(), effects: possible.effects.clone() });
            }
            for (id, (nexus, service)) in &self.pending {
                if possible.effects.iter().all(|effect| effect.id != *id) {
                    nexts.push(possible.after(*id, *nexus, *service));
                }
            }
            for next in nexts {
                if self.possible.insert(next.clone()) {
                    left.push(next);
                }
            }
        }
    }
}

impl Possible {
    fn after(&self, id: ServiceId, nexus: Nexus, service: ReserveCommand) -> Self {
        let (state, outcome, preempted) = self.state.after(nexus, service);
        let mut effects = self.effects.clone();
        for effect in &mut effects {
            effect.fenced = state.stopped(effect.fenced);
        }
        let attentions = match outcome {
            ReserveOutcome::Good => self.state.attentions(&state, nexus, service, preempted),
            ReserveOutcome::Conflict | ReserveOutcome::Illegal => Attentions::default(),
        };
        effects.push(Effect { id, outcome, fenced: state.stopped(preempted), attentions });
        effects.sort_unstable();
        Self { state, effects }
    }
}
