//! Third-party copy: routes a call of one unit to another, which the I_T nexus must see.

use base::time::Instant;
use device::contract::{ThirdPartyCall, ThirdPartyCaller, ThirdPartyError, ThirdPartyUnit};

use crate::nexus::LunLookup;
use crate::target::Target;
use crate::units::UnitId;

impl Target {
    /// Routes a call of the copy manager of `from` to the unit that the call names, or refuses the call.
    ///
    /// Only the LUN map of the I_T nexus is searched, at the level of the command that requested the copy, so
    /// a copy reaches exactly the units that READ and WRITE of the same initiator and level reach
    /// (CVE-2020-28374, CVE-2021-3139).
    pub(crate) fn route_third_party(&mut self, now: Instant, from: UnitId, call: ThirdPartyCall) {
        let Some(incarnation) = self.units.incarnation(from) else { return };
        let caller = ThirdPartyCaller { unit: incarnation, call: call.call };
        if let ThirdPartyUnit::Lun(lun) = &call.unit
            && let Some(entry) = self.nexuses.get_mut(call.nexus)
            && let Some(LunLookup::Unbound(_)) = entry.find(*lun, call.level)
        {
            self.bindings.record(entry, *lun);
        }
        match self.resolve(&call) {
            Some(id) => {
                if let Some(unit) = self.units.mark_dirty(id) {
                    unit.execute_third_party(now, caller, call.nexus, call.request);
                }
            }
            None => {
                if let Some(unit) = self.units.mark_dirty(from) {
                    unit.third_party_reply(now, call.call, Err(ThirdPartyError::NotReachable));
                }
            }
        }
    }

    fn resolve(&self, call: &ThirdPartyCall) -> Option<UnitId> {
        let entry = self.nexuses.get(call.nexus)?;
        match &call.unit {
            ThirdPartyUnit::Lun(lun) => {
                entry.unit_at(*lun, call.level).filter(|id| self.units.get(*id).is_some())
            }
            ThirdPartyUnit::Designator { code_set, kind, designator } => {
                let named = |id: &UnitId| {
                    self.units
                        .get(*id)
                        .is_some_and(|unit| unit.is_designated_by(*code_set, *kind, designator))
                };
                entry.units_within(call.level).into_iter().find(named)
            }
        }
    }
}
