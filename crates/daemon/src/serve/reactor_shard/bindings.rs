//! The nexus bindings of a reactor.

use std::collections::{BTreeMap, BTreeSet};

use base::time::Instant;
use target::bindings::{Forgotten, NexusBindings};
use target::nexus::TargetNumber;

use super::ReactorShard;
use crate::serve::daemon_event::DaemonEvent;

/// Nexus bindings that a reactor restores.
#[derive(Debug, Default)]
pub(in crate::serve) struct ReactorBindings {
    pub(in crate::serve) nexuses: Vec<NexusBindings>,
    /// Whether every LUN is withheld from an initiator port without a record.
    pub(in crate::serve) seals_unknown: bool,
}

impl ReactorShard {
    /// Returns the nexus bindings.
    pub(in crate::serve) fn bindings(&self, now: Instant) -> Vec<NexusBindings> {
        self.shard.bindings(now).collect()
    }

    /// Removes the nexus bindings of a target that another reactor serves from now on, and returns them.
    pub(in crate::serve) fn take_bindings(
        &mut self,
        now: Instant,
        target: TargetNumber,
    ) -> Vec<NexusBindings> {
        self.shard.take_bindings(now, target)
    }

    /// Returns the LUNs of each target that an initiator port has used and not given up by a logout.
    pub(in crate::serve) fn bound_luns(&self) -> BTreeMap<String, BTreeSet<u16>> {
        self.shard.bound_luns()
    }

    /// Forgets which disks the ports of an initiator have used, unless they have a session.
    pub(in crate::serve) fn forget_bindings(
        &mut self,
        target: Option<TargetNumber>,
        initiator: &str,
        isid: Option<[u8; 6]>,
    ) -> Forgotten {
        self.shard.forget_bindings(target, initiator, isid)
    }

    /// Restores nexus bindings from before a restart, or of targets that another reactor served before.
    pub(in crate::serve) fn restore_bindings(&mut self, now: Instant, saved: ReactorBindings) {
        if saved.seals_unknown {
            self.shard.seal_unknown_nexuses();
        }
        for nexus in saved.nexuses {
            self.shard.restore_bindings(now, nexus);
        }
    }

    /// Notifies the main thread when nexus bindings have changed, and logs how many were dropped.
    pub(super) fn report_binding_changes(&mut self) {
        let changes = self.shard.binding_changes();
        if changes != self.reported_binding_changes {
            self.reported_binding_changes = changes;
            // The main thread stops to receive events only when the daemon ends.
            let _ = self.events.send(DaemonEvent::BindingsChanged);
        }
        let evictions = self.shard.binding_evictions();
        if evictions != self.reported_binding_evictions {
            let forgotten = evictions - std::mem::replace(&mut self.reported_binding_evictions, evictions);
            crate::warning!(
                "too many initiator ports that have used LUNs have no session: {forgotten} records of them are \
                 dropped, those of the ports that lost their sessions longest ago; when they come back, their LUNs \
                 lead to what the configuration says"
            );
        }
    }
}
