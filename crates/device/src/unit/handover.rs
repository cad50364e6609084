//! Hands a logical unit over to the next process. [`crate::handover`] tells what becomes of its state.

use base::time::Instant;

use super::LogicalUnit;
use crate::contract::NexusId;
use crate::document::RestoreError;
use crate::handover::{UnitBusy, UnitState};

impl LogicalUnit {
    /// Returns what keeps the unit from being handed over; `None` if it is idle.
    pub fn busy(&self) -> Option<UnitBusy> {
        if self.tasks.len() > 0 {
            let has_commands = self.tasks.has_transport_tasks();
            return Some(if has_commands { UnitBusy::Commands } else { UnitBusy::Background });
        }
        if !self.pending_tmfs.is_empty() || !self.waiting_for_aborts.is_empty() {
            return Some(UnitBusy::Tmf);
        }
        self.server.busy()
    }

    /// Makes durable what a tape drive holds, if that is what keeps the unit from being handed over. Call
    /// this as often as [`Self::busy`] while the unit is to be handed over.
    pub fn prepare_handover(&mut self, now: Instant) {
        if self.busy() == Some(UnitBusy::Unsynchronized) {
            self.server.now = now;
            self.server.synchronize_idle_tape();
            self.process_pending();
        }
    }

    /// Returns the state of the unit for the next process. `index_of` returns the index under which a nexus
    /// is handed over; `None` for a nexus whose session is not handed over, which counts as lost.
    ///
    /// The unit does not change: it can go on to serve if the next process cannot.
    ///
    /// # Errors
    /// What keeps the unit from being handed over.
    pub fn export(
        &self,
        now: Instant,
        index_of: impl Fn(NexusId) -> Option<u32>,
    ) -> Result<UnitState, UnitBusy> {
        // Every field is named here, so that a new one is not forgotten.
        let Self {
            server,
            tasks: _,
            pending_tmfs: _,
            waiting_for_aborts: _,
            removal_wait: _,
            io_deadline: _,
            throttle,
        } = self;
        match self.busy() {
            Some(why) => Err(why),
            None => Ok(UnitState {
                server: server.export(now, &index_of),
                limit: throttle.as_ref().map(|throttle| throttle.export(now)),
            }),
        }
    }

    /// Takes over the state of the unit in the process that handed it over. `nexus_of` returns the nexus that
    /// was resumed with an index; `None` if none was. Such a nexus, and one that does not see this unit any
    /// more, counts as lost.
    ///
    /// Call this after [`Self::seed`] and after the nexuses were established, and before anything else. What
    /// the unit has loaded of its saved state is replaced, and so are the unit attentions of the nexuses that
    /// the state names.
    ///
    /// # Errors
    /// Why the state is not that of this unit. The unit is unchanged then.
    pub fn restore(
        &mut self,
        now: Instant,
        state: &UnitState,
        nexus_of: impl Fn(u32) -> Option<NexusId>,
    ) -> Result<(), RestoreError> {
        let UnitState { server, limit } = state;
        if self.tasks.len() > 0 || !self.pending_tmfs.is_empty() || !self.server.is_untouched() {
            return Err(RestoreError::InUse);
        }
        // A nexus that does not see this unit any more holds nothing of it.
        let seen = |index| nexus_of(index).filter(|id| self.server.nexuses.find(*id).is_some());
        let restored = self.server.check(now, server, &seen)?;
        self.server.adopt(now, server, restored);
        if let (Some(throttle), Some(limit)) = (&mut self.throttle, limit) {
            throttle.adopt(now, limit);
        }
        Ok(())
    }
}
