//! `copy/tests/units.rs` as the device suite sees it here: the units of a `World` are those of a target,
//! which routes the calls between them, behind the in-process transport.

use std::collections::BTreeMap;

use base::buffer::DataList;
use base::rng::Rng;
use base::time::Instant;
use base::units::{BlockSize, Blocks};
use device::contract::{Access, Command, NexusId, TaskKey, Tmf, TmfKey, UnitConfig};
use security::Level;
use target::nexus::MapEntry;
use target::units::{DiskId, UnitId};

use crate::contract::UnitEvent;
use crate::testbed::{Testbed, entry};
use crate::testing::nexus;
use crate::unit::{LogicalUnit, Reset};

pub(super) struct Units {
    testbed: Testbed,
    sizes: Vec<(BlockSize, Blocks)>,
    /// The access of each nexus to each unit, and whether the nexus sees the unit.
    maps: BTreeMap<NexusId, Vec<(Access, bool)>>,
}

impl Units {
    pub(super) fn new(units: Vec<LogicalUnit>) -> Self {
        let mut this = Self { testbed: Testbed::default(), sizes: vec![], maps: BTreeMap::new() };
        for (number, unit) in (0..).map(UnitId).zip(units) {
            let unit = unit.into_new();
            this.sizes.push((unit.block_size(), unit.capacity()));
            assert!(this.testbed.target.add_unit(Instant::ORIGIN, number, unit, DiskId::of_unit(number)));
        }
        this
    }

    fn map_of(&self, id: NexusId) -> Vec<MapEntry> {
        let rows = (0..).zip(&self.maps[&id]).filter(|(_, (_, is_seen))| *is_seen);
        rows.map(|(unit, (access, _))| entry(unit, *access)).collect()
    }

    pub(super) fn establish(&mut self, now: Instant, id: NexusId) {
        self.maps.insert(id, vec![(Access::ReadWrite, true); self.sizes.len()]);
        self.testbed.establish(now, nexus(id), self.map_of(id));
    }

    pub(super) fn grant(&mut self, now: Instant, unit: usize, id: NexusId, access: Access) {
        self.maps.get_mut(&id).unwrap()[unit].0 = access;
        self.testbed.remap(now, id, self.map_of(id));
    }

    pub(super) fn show(&mut self, now: Instant, id: NexusId, units: &[usize]) {
        for (unit, row) in self.maps.get_mut(&id).unwrap().iter_mut().enumerate() {
            row.1 = units.contains(&unit);
        }
        self.testbed.remap(now, id, self.map_of(id));
    }

    pub(super) fn lose(&mut self, now: Instant, id: NexusId) {
        self.testbed.lose(now, id);
    }

    pub(super) fn execute(&mut self, now: Instant, unit: usize, command: Command) {
        self.testbed.execute(now, number(unit), &command, &[]);
    }

    pub(super) fn data_out(&mut self, now: Instant, _: usize, key: TaskKey, offset: u32, data: DataList) {
        self.testbed.data_out(now, key, offset, data);
    }

    pub(super) fn execute_tmf(&mut self, now: Instant, unit: usize, id: NexusId, key: TmfKey, function: Tmf) {
        self.testbed.manage(now, id, number(unit), Some(key), function);
    }

    pub(super) fn reset(&mut self, now: Instant, unit: usize, why: Reset) {
        self.testbed.reset(now, number(unit), why);
    }

    pub(super) fn set_drained(&mut self, now: Instant, unit: usize, drained: bool) {
        self.testbed.target.set_unit_drained(now, UnitId(number(unit)), drained);
        self.testbed.process_pending(now);
    }

    pub(super) fn withhold(&mut self, now: Instant, unit: usize, withheld: bool) {
        self.testbed.target.withhold_medium(now, UnitId(number(unit)), withheld);
        self.testbed.process_pending(now);
    }

    pub(super) fn reconfigure(&mut self, now: Instant, unit: usize, config: UnitConfig) {
        self.testbed.target.reconfigure_unit(now, UnitId(number(unit)), config);
        self.testbed.process_pending(now);
    }

    pub(super) fn store_ready(&mut self, now: Instant) {
        for unit in 0..self.sizes.len() {
            self.testbed.target.medium_ready(now, UnitId(number(unit)));
        }
        self.testbed.process_pending(now);
    }

    /// Does nothing: a target compares the level of a call with that of the unit.
    pub(super) const fn expect_level(&mut self, _: Level) {}

    /// Does nothing: a target routes calls at once.
    pub(super) const fn hold_calls(&mut self, _: bool) {}

    /// Returns false: no call waits.
    pub(super) const fn route(&mut self, _: Instant, _: &mut Rng) -> bool {
        false
    }

    pub(super) fn poll(&mut self, _: Instant) -> Option<(usize, UnitEvent)> {
        let (unit, event) = self.testbed.poll()?;
        Some((usize::try_from(unit).unwrap(), event))
    }

    pub(super) fn tasks(&self, unit: usize) -> u64 {
        self.testbed.target.units()[unit].stats.tasks
    }

    pub(super) fn capacity(&self, unit: usize) -> Blocks {
        self.sizes[unit].1
    }

    pub(super) fn block_size(&self, unit: usize) -> BlockSize {
        self.sizes[unit].0
    }
}

fn number(unit: usize) -> u32 {
    u32::try_from(unit).unwrap()
}
