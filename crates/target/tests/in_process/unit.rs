//! `device::unit` as the device suite sees it here: a [`LogicalUnit`] is the only one of a target, behind the
//! in-process transport.

use std::convert::Infallible;

use base::buffer::{DataList, Pool};
use base::time::Instant;
use base::units::BlockSize;
use device::contract::{Command, Nexus, NexusId, TaskKey, Tmf, TmfKey, UnitConfig};
use device::drain::Drain;
use device::removal_obstacle::RemovalObstacle;
use device::space_threshold::SpaceThreshold;
use device::stats::UnitStats;
use device::unit as real;
use scsi::sense::Asc;
use store::Store;
use target::nexus::MapEntry;
use target::units::{DiskId, UnitId};

use crate::contract::UnitEvent;
use crate::testbed::{Testbed, entry};

pub(crate) use real::{Reset, UnitError, reservations};

const UNIT: UnitId = UnitId(0);

/// A logical unit with the calls of [`real::LogicalUnit`]. A call that an initiator or its transport causes
/// goes through the in-process transport; the others are those of the owner of the target.
pub(crate) struct LogicalUnit {
    /// The unit, before the first initiator logs in.
    new: Option<real::LogicalUnit>,
    testbed: Testbed,
    block_size: BlockSize,
    is_retired: bool,
}

impl LogicalUnit {
    pub(crate) fn new(
        config: UnitConfig,
        store: Box<dyn Store>,
        saved: Option<&[u8]>,
        pool: Pool,
    ) -> Result<Self, UnitError> {
        real::LogicalUnit::new(config, store, saved, pool).map(Self::of)
    }

    pub(crate) fn new_without_reservations(
        config: UnitConfig,
        store: Box<dyn Store>,
        pool: Pool,
    ) -> Result<Self, UnitError> {
        real::LogicalUnit::new_without_reservations(config, store, pool).map(Self::of)
    }

    fn of(unit: real::LogicalUnit) -> Self {
        let block_size = unit.block_size();
        Self { new: Some(unit), testbed: Testbed::default(), block_size, is_retired: false }
    }

    pub(crate) fn seed(&mut self, entropy: &[u8; 32]) {
        self.new.as_mut().expect("a unit that no initiator has reached").seed(entropy);
    }

    /// Returns a new unit itself.
    pub(crate) fn into_new(self) -> real::LogicalUnit {
        self.new.expect("a unit that no initiator has reached")
    }

    pub(crate) const fn block_size(&self) -> BlockSize {
        self.block_size
    }

    pub(crate) fn nexus_established(&mut self, now: Instant, nexus: Nexus) {
        if let Some(unit) = self.new.take() {
            assert!(self.testbed.target.add_unit(now, UNIT, unit, DiskId::of_unit(UNIT)));
        }
        let map = map_of(&nexus);
        self.testbed.establish(now, nexus, map);
    }

    pub(crate) fn nexus_changed(&mut self, now: Instant, nexus: Nexus) {
        self.testbed.remap(now, nexus.id, map_of(&nexus));
    }

    pub(crate) fn nexus_withdrawn(&mut self, now: Instant, id: NexusId) {
        self.testbed.remap(now, id, vec![]);
    }

    pub(crate) fn nexus_lost(&mut self, now: Instant, id: NexusId) {
        self.testbed.lose(now, id);
    }

    pub(crate) fn execute(&mut self, now: Instant, command: Command) {
        self.testbed.execute(now, UNIT.0, &command, &[]);
    }

    /// Executes a command whose initiator has all of its data ready.
    pub(crate) fn execute_with(&mut self, now: Instant, command: Command, data: &[u8]) {
        self.testbed.execute(now, UNIT.0, &command, data);
    }

    pub(crate) fn data_out(
        &mut self,
        now: Instant,
        key: TaskKey,
        offset: u32,
        data: Result<DataList, Infallible>,
    ) {
        let Ok(data) = data;
        self.testbed.data_out(now, key, offset, data);
    }

    pub(crate) fn execute_tmf(&mut self, now: Instant, nexus: NexusId, key: TmfKey, function: Tmf) {
        self.testbed.manage(now, nexus, UNIT.0, Some(key), function);
    }

    /// Has an initiator that no test names reset the unit.
    pub(crate) fn reset(&mut self, now: Instant, why: Reset) {
        self.testbed.reset(now, UNIT.0, why);
    }

    pub(crate) fn task_gone(&mut self, now: Instant, key: TaskKey) {
        self.testbed.drop_task(now, key);
    }

    pub(crate) fn tasks_cleared(&mut self, now: Instant, id: NexusId, code: Asc) {
        assert_eq!(code, Asc::SOME_COMMANDS_CLEARED_BY_ISCSI_PROTOCOL_EVENT, "what the transport reports");
        self.testbed.clear_tasks(now, id, UNIT.0);
    }

    pub(crate) fn state_saved(&mut self, now: Instant, ticket: u64, ok: bool) {
        self.testbed.target.state_saved(now, UNIT, ticket, ok);
        self.process_pending(now);
    }

    pub(crate) fn store_ready(&mut self, now: Instant) {
        self.testbed.target.medium_ready(now, UNIT);
        self.process_pending(now);
    }

    pub(crate) fn reconfigure(&mut self, now: Instant, config: UnitConfig) {
        self.testbed.target.reconfigure_unit(now, UNIT, config);
        self.process_pending(now);
    }

    pub(crate) fn capacity_changed(&mut self, now: Instant) {
        self.testbed.target.capacity_changed(now, UNIT);
        self.process_pending(now);
    }

    pub(crate) fn withhold_medium(&mut self, now: Instant, withheld: bool) {
        self.testbed.target.withhold_medium(now, UNIT, withheld);
        self.process_pending(now);
    }

    pub(crate) fn set_space_threshold(&mut self, now: Instant, threshold: SpaceThreshold) {
        self.testbed.target.set_space_threshold(now, UNIT, threshold);
        self.process_pending(now);
    }

    pub(crate) fn medium_replaced(&mut self, now: Instant) {
        self.testbed.target.medium_replaced(now, UNIT);
        self.process_pending(now);
    }

    pub(crate) fn removal_requested(&mut self, now: Instant) {
        self.testbed.target.removal_requested(now, UNIT);
        self.process_pending(now);
    }

    pub(crate) fn set_drained(&mut self, now: Instant, drained: bool) {
        self.testbed.target.set_unit_drained(now, UNIT, drained);
        self.process_pending(now);
    }

    pub(crate) fn drain(&self) -> Drain {
        self.testbed.target.units()[0].drain
    }

    pub(crate) fn not_ready(&self) -> Option<scsi::sense::Sense> {
        self.testbed.target.units()[0].not_ready
    }

    pub(crate) fn is_removal_prevented(&self) -> bool {
        self.testbed.target.units()[0].removal_prevented
    }

    pub(crate) fn removal_obstacle(&self) -> Option<RemovalObstacle> {
        self.testbed.target.removal_obstacle(UNIT)
    }

    pub(crate) fn save_medium(&mut self, now: Instant) {
        self.testbed.target.save_medium(now, UNIT);
        self.process_pending(now);
    }

    pub(crate) fn reservations(&self) -> Option<reservations::ReservationReport> {
        self.testbed.target.reservations().pop().map(|(_, report)| report)
    }

    pub(crate) fn reservation_details(&self) -> reservations::ReservationDetails {
        self.testbed.target.reservation_details(UNIT).expect("the unit")
    }

    pub(crate) fn remove_reservations(
        &mut self,
        now: Instant,
        selection: reservations::ReservationRemoval,
        is_forced: bool,
    ) -> Result<reservations::RemovedReservations, reservations::RemovalError> {
        let removed = self.testbed.target.remove_reservations(now, UNIT, selection, is_forced);
        self.process_pending(now);
        removed.expect("the unit")
    }

    pub(crate) fn removal_progress(&self) -> reservations::RemovalProgress {
        self.testbed.target.removal_progress(UNIT).expect("the unit")
    }

    pub(crate) fn retire(&mut self, now: Instant) {
        assert!(self.testbed.target.remove_unit(now, UNIT));
        self.process_pending(now);
    }

    pub(crate) const fn is_retired(&self) -> bool {
        self.is_retired
    }

    pub(crate) fn poll(&mut self) -> Option<UnitEvent> {
        Some(self.testbed.poll()?.1)
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.testbed.target.poll_timeout()
    }

    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.testbed.target.handle_timeout(now);
        self.process_pending(now);
    }

    pub(crate) fn stats(&self) -> UnitStats {
        self.testbed.target.units()[0].stats
    }

    fn process_pending(&mut self, now: Instant) {
        self.testbed.process_pending(now);
        self.is_retired |= self.testbed.target.poll_removed().is_some();
    }
}

/// Returns the LUN map of a nexus. It leads to the unit, and at other LUNs to units that do not exist.
fn map_of(nexus: &Nexus) -> Vec<MapEntry> {
    let of = |lun: &scsi::lun::Lun| entry(lun.number().unwrap().into(), nexus.access);
    nexus.luns.iter().map(of).collect()
}
