//! Limits of initiators and users.

use alloc::rc::Rc;
use core::cell::RefCell;

use base::time::Instant;
use device::contract::NexusId;
use device::rate_limit::{Limiter, RateLimit};

use super::Target;
use crate::nexus::NexusEntry;

impl Target {
    /// Sets the limit of the user or, without a user, of the initiator of an I_T nexus. All its nexuses at
    /// the same target share the limit, over all units, and so do those of its earlier sessions until what
    /// they used up is saved up again. Commands that wait do so under the new limit. A user whose initiator
    /// names have different limits shares each limit among the names that have it.
    pub fn limit_initiator(&mut self, now: Instant, id: NexusId, limit: RateLimit) {
        let Some(entry) = self.nexuses.get(id) else { return };
        let has_user = entry.info().user.is_some();
        let is_right = |known: &Rc<RefCell<Limiter>>| known.borrow().limit() == limit;
        let others = || self.nexuses.iter().filter(|(other, _)| *other != id).map(|(_, other)| other);
        let known = match entry.limiter.clone() {
            Some(own) if !has_user || is_right(&own) => Some(own),
            own => {
                let mut of_user = others().filter(|other| other.shares_limit_with(entry.info()));
                let is_usable = |known: &Rc<RefCell<Limiter>>| !has_user || is_right(known);
                let found = of_user.find_map(|other| other.limiter.clone().filter(is_usable));
                // The limit of another name of the user does not change with that of this name.
                let is_of_others = |own: &Rc<RefCell<Limiter>>| {
                    others().any(|other| {
                        !other.is_of(entry.info())
                            && other.limiter.as_ref().is_some_and(|other| Rc::ptr_eq(other, own))
                    })
                };
                let is_new = own.is_none();
                let kept = found.or_else(|| own.filter(|own| !is_of_others(own)));
                kept.or_else(|| is_new.then(|| self.idle_limiters.take(entry)).flatten())
            }
        };
        let limiter = match known {
            None if limit.is_none() && entry.limiter.is_none() => return,
            None => Rc::new(RefCell::new(Limiter::new(now, limit))),
            Some(limiter) => limiter,
        };
        let is_new = !entry.limiter.as_ref().is_some_and(|own| Rc::ptr_eq(own, &limiter));
        let has_changed = !is_right(&limiter);
        if has_changed {
            limiter.borrow_mut().change(now, limit);
        }
        if let Some(entry) = self.nexuses.get_mut(id) {
            entry.limiter = Some(limiter);
        }
        if has_changed || is_new {
            self.report_limit(now, id, has_changed);
        }
    }

    /// Notifies the units of a nexus of its limiter, and those of the others that share it.
    fn report_limit(&mut self, now: Instant, id: NexusId, to_others: bool) {
        let Some(entry) = self.nexuses.get(id) else { return };
        let own = entry.limiter.as_ref();
        let shares = |other: &NexusEntry| {
            other.limiter.as_ref().zip(own).is_some_and(|(other, own)| Rc::ptr_eq(other, own))
        };
        let nexuses = self.nexuses.iter().filter(|(nexus, other)| *nexus == id || to_others && shares(other));
        for (nexus, other) in nexuses {
            for unit in other.units() {
                if let (Some(nexus), Some(unit)) = (other.seen_by(nexus, unit), self.units.mark_dirty(unit)) {
                    unit.nexus_limited(now, nexus);
                }
            }
        }
    }
}
