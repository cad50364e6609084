//! The units of a [`World`](super::world::World), and the router between them, which a test can slow down.

use alloc::vec::Vec;

use base::buffer::DataList;
use base::rng::Rng;
use base::time::Instant;
use base::units::{BlockSize, Blocks};
use security::Level;

use crate::contract::{
    Access, Command, Nexus, NexusId, TaskKey, ThirdPartyCall, ThirdPartyCaller, ThirdPartyError,
    ThirdPartyUnit, Tmf, TmfKey, UnitConfig, UnitEvent,
};
use crate::testing::nexus;
use crate::unit::{LogicalUnit, Reset};

/// A few units, and which nexus sees which.
pub(super) struct Units {
    units: Vec<LogicalUnit>,
    /// The units that a nexus sees.
    maps: Vec<(NexusId, Vec<usize>)>,
    /// Calls that wait for the router, and their callers.
    calls: Vec<(usize, ThirdPartyCall)>,
    /// The level that every call must have.
    level: Level,
    /// Whether calls wait until [`Self::route`] takes one.
    hold_calls: bool,
}

impl Units {
    pub(super) const fn new(units: Vec<LogicalUnit>) -> Self {
        Self { units, maps: Vec::new(), calls: Vec::new(), level: Level::None, hold_calls: false }
    }

    /// Adds a nexus that sees every unit.
    pub(super) fn establish(&mut self, now: Instant, id: NexusId) {
        self.maps.push((id, (0..self.units.len()).collect()));
        for unit in &mut self.units {
            unit.nexus_established(now, nexus(id));
        }
    }

    /// Changes the access of a nexus to a unit.
    pub(super) fn grant(&mut self, now: Instant, unit: usize, id: NexusId, access: Access) {
        self.units[unit].nexus_changed(now, Nexus { access, ..nexus(id) });
    }

    /// Changes which units a nexus sees.
    pub(super) fn show(&mut self, _: Instant, id: NexusId, units: &[usize]) {
        self.maps.iter_mut().find(|(nexus, _)| *nexus == id).unwrap().1 = units.to_vec();
    }

    pub(super) fn lose(&mut self, now: Instant, id: NexusId) {
        self.units.iter_mut().for_each(|unit| unit.nexus_lost(now, id));
    }

    pub(super) fn execute(&mut self, now: Instant, unit: usize, command: Command) {
        self.units[unit].execute(now, command);
    }

    pub(super) fn data_out(&mut self, now: Instant, unit: usize, key: TaskKey, offset: u32, data: DataList) {
        self.units[unit].data_out(now, key, offset, Ok(data));
    }

    pub(super) fn execute_tmf(&mut self, now: Instant, unit: usize, id: NexusId, key: TmfKey, function: Tmf) {
        self.units[unit].execute_tmf(now, id, key, function);
    }

    pub(super) fn reset(&mut self, now: Instant, unit: usize, why: Reset) {
        self.units[unit].reset(now, why);
    }

    pub(super) fn set_drained(&mut self, now: Instant, unit: usize, drained: bool) {
        self.units[unit].set_drained(now, drained);
    }

    pub(super) fn withhold(&mut self, now: Instant, unit: usize, withheld: bool) {
        self.units[unit].withhold_medium(now, withheld);
    }

    pub(super) fn reconfigure(&mut self, now: Instant, unit: usize, config: UnitConfig) {
        self.units[unit].reconfigure(now, config);
    }

    /// Lets every unit collect completions.
    pub(super) fn store_ready(&mut self, now: Instant) {
        self.units.iter_mut().for_each(|unit| unit.store_ready(now));
    }

    /// From now on, every call must have this level: that of the command which requested it.
    pub(super) const fn expect_level(&mut self, level: Level) {
        self.level = level;
    }

    /// Has calls wait until [`Self::route`] takes one, or routes them at once.
    pub(super) const fn hold_calls(&mut self, hold: bool) {
        self.hold_calls = hold;
    }

    /// Routes one call that waits, chosen at random. Returns whether there was one.
    pub(super) fn route(&mut self, now: Instant, rng: &mut Rng) -> bool {
        if self.calls.is_empty() {
            return false;
        }
        let at = usize::try_from(rng.below(self.calls.len() as u64)).unwrap();
        let (from, call) = self.calls.swap_remove(at);
        self.deliver(now, from, call);
        true
    }

    /// Returns the next event for an initiator, and its unit. Routes calls meanwhile.
    pub(super) fn poll(&mut self, now: Instant) -> Option<(usize, UnitEvent)> {
        loop {
            let Some((at, event)) = self.next_event() else {
                if self.hold_calls || self.calls.is_empty() {
                    return None;
                }
                let (from, call) = self.calls.remove(0);
                self.deliver(now, from, call);
                continue;
            };
            match event {
                UnitEvent::ThirdPartyCall(call) => self.calls.push((at, *call)),
                UnitEvent::ThirdPartyReply { caller, result } => {
                    let unit = usize::try_from(caller.unit).unwrap();
                    self.units[unit].third_party_reply(now, caller.call, result);
                }
                other => return Some((at, other)),
            }
        }
    }

    fn next_event(&mut self) -> Option<(usize, UnitEvent)> {
        self.units.iter_mut().enumerate().find_map(|(at, unit)| Some((at, unit.poll()?)))
    }

    fn deliver(&mut self, now: Instant, from: usize, call: ThirdPartyCall) {
        assert_eq!(call.level, self.level, "a call has the protection of its command");
        let seen = &self.maps.iter().find(|(id, _)| *id == call.nexus).unwrap().1;
        let ThirdPartyUnit::Designator { code_set, kind, designator } = &call.unit else {
            panic!("{call:?}")
        };
        let found =
            seen.iter().copied().find(|at| self.units[*at].is_designated_by(*code_set, *kind, designator));
        match found {
            Some(at) => {
                let caller = ThirdPartyCaller { unit: u32::try_from(from).unwrap(), call: call.call };
                self.units[at].execute_third_party(now, caller, call.nexus, call.request);
            }
            None => self.units[from].third_party_reply(now, call.call, Err(ThirdPartyError::NotReachable)),
        }
    }

    /// Returns how many tasks a unit has.
    pub(super) fn tasks(&self, unit: usize) -> u64 {
        self.units[unit].stats().tasks
    }

    pub(super) fn capacity(&self, unit: usize) -> Blocks {
        self.units[unit].capacity()
    }

    pub(super) fn block_size(&self, unit: usize) -> BlockSize {
        self.units[unit].block_size()
    }
}
