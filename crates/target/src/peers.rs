//! Third-party copies: a unit's call to another, routed only to what its nexus may see.

use base::time::Instant;
use device::contract::{NexusId, PeerCall, PeerCaller, PeerFault, PeerUnit};

use crate::config::UnitId;
use crate::nexus::Found;
use crate::shard::Shard;

impl Shard {
    /// Takes a call of `from`'s copy manager to the unit that it names, or refuses it.
    ///
    /// The map of the nexus is the only place that is searched, so a copy reaches exactly what READ and WRITE of the
    /// same initiator reach (CVE-2020-28374, CVE-2021-3139).
    pub(crate) fn peer(&mut self, now: Instant, from: UnitId, call: PeerCall) {
        let Some(incarnation) = self.units.incarnation(from) else { return };
        let caller = PeerCaller { unit: incarnation, call: call.call };
        if let PeerUnit::Lun(lun) = &call.unit
            && let Some(entry) = self.nexuses.get_mut(call.nexus)
            && let Some(Found::Unopened(_)) = entry.find(*lun)
        {
            entry.open(*lun, &mut self.bindings);
        }
        match self.resolve(call.nexus, &call.unit) {
            Some(id) => {
                if let Some(unit) = self.units.stir(id) {
                    unit.serve_peer(now, caller, call.nexus, call.request);
                }
            }
            None => {
                if let Some(unit) = self.units.stir(from) {
                    unit.peer_answer(now, call.call, Err(PeerFault::NotReachable));
                }
            }
        }
    }

    fn resolve(&self, nexus: NexusId, unit: &PeerUnit) -> Option<UnitId> {
        let entry = self.nexuses.get(nexus)?;
        match unit {
            PeerUnit::Lun(lun) => entry.unit_at(*lun).filter(|id| self.units.get(*id).is_some()),
            PeerUnit::Designator { code_set, kind, designator } => {
                let named = |id: &UnitId| {
                    self.units
                        .get(*id)
                        .is_some_and(|unit| unit.is_designated_by(*code_set, *kind, designator))
                };
                entry.units().into_iter().find(named)
            }
        }
    }
}
