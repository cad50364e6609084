//! The bindings of I_T nexuses to disks, for the owner of the shard, who stores them.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::string::String;
use alloc::vec::Vec;

use base::time::Instant;
use device::contract::{NexusId, RelativePort};
use scsi::transport_id::TransportId as InitiatorPort;
use target::bindings::{Forgotten, NexusBindings};
use target::nexus::TargetNumber;

use crate::config::{ShardConfig, TargetConfig, TargetPortName};
use crate::shard::Shard;

impl Shard {
    /// Returns how often the result of [`Self::bindings`] has changed, to compare with an earlier count.
    pub const fn binding_changes(&self) -> u64 {
        self.target.binding_changes()
    }

    /// Returns how many records of I_T nexuses without a session were forgotten because there were too many.
    pub const fn binding_evictions(&self) -> u64 {
        self.target.binding_evictions()
    }

    /// Returns the disks that every I_T nexus has used, also those of nexuses without a session.
    pub fn bindings(&self, now: Instant) -> impl Iterator<Item = NexusBindings> {
        self.target.bindings(now)
    }

    /// Returns the LUNs of each target that an initiator port has used and not given up by a logout.
    pub fn bound_luns(&self) -> BTreeMap<String, BTreeSet<u16>> {
        let mut bound: BTreeMap<String, BTreeSet<u16>> = BTreeMap::new();
        for nexus in self.target.bindings(Instant::ORIGIN) {
            let target = self.config.target_of(nexus.target);
            let concerns_any =
                |target: &TargetConfig| ports_of(target).iter().any(|port| nexus.concerns(*port));
            if let Some(target) = target.filter(|target| concerns_any(target)) {
                let numbers = nexus.luns.iter().map(|(number, _)| *number);
                bound.entry(target.name.as_str().into()).or_default().extend(numbers);
            }
        }
        bound
    }

    /// Removes the bindings of all I_T nexuses of a target that another shard serves from now on, and returns
    /// them.
    pub fn take_bindings(&mut self, now: Instant, target: TargetNumber) -> Vec<NexusBindings> {
        self.target.take_bindings(now, target)
    }

    /// Restores the bindings of an I_T nexus from before a restart, when it has no session yet.
    pub fn restore_bindings(&mut self, now: Instant, saved: NexusBindings) {
        self.target.restore_bindings(now, saved);
    }

    /// Withholds every LUN from initiator ports without a record of bindings, because records were lost.
    pub const fn seal_unknown_nexuses(&mut self) {
        self.target.seal_unknown_nexuses();
    }

    /// Forgets which disks the ports of an initiator have used at a target, or at all, those with this ISID
    /// if there is one, unless they have a session.
    pub fn forget_bindings(
        &mut self,
        target: Option<TargetNumber>,
        initiator: &str,
        isid: Option<[u8; 6]>,
    ) -> Forgotten {
        // The configuration does not have every target with records: one may have been removed meanwhile.
        self.target.forget_bindings(|record| {
            target.is_none_or(|target| target == record.target)
                && is_port_of(&record.initiator_port, initiator, isid)
        })
    }

    /// Reports the ports of all targets to the target machine.
    pub(crate) fn update_target_ports(&mut self) {
        let ports = self.config.targets.iter().map(|target| (TargetNumber(target.id.0), ports_of(target)));
        self.target.set_target_ports(ports.collect());
    }

    /// Returns the portals that belong to another target port in a new configuration: their targets, their
    /// ports until now and their new ones.
    pub(crate) fn moved_portals(&self, new: &ShardConfig) -> Vec<(TargetNumber, RelativePort, RelativePort)> {
        let of_target = |target: &TargetConfig| {
            let old = self.config.target(target.id)?;
            let ports = target.ports.iter().map(|(portal, port)| (old.port_at(*portal), *port));
            let moved = ports.filter_map(|(was, port)| Some((was.filter(|was| *was != port)?, port)));
            Some(moved.map(|(was, port)| (TargetNumber(target.id.0), was, port)).collect::<Vec<_>>())
        };
        new.targets.iter().filter_map(of_target).flatten().collect()
    }

    /// Returns the names of the target ports through which the initiator of an I_T nexus has to log out
    /// before a withheld LUN leads it to a disk again.
    pub(crate) fn claims_on(&self, id: NexusId, lun: u16) -> Vec<TargetPortName> {
        let target = self.target.nexus(id).and_then(|entry| self.config.target_of(entry.target()));
        let Some(target) = target else { return Vec::new() };
        let claims = self.target.claims_on(id, lun);
        claims.into_iter().filter_map(|port| name_of(&self.config, target, port)).collect()
    }
}

/// Returns whether a TransportID is that of a port of an initiator, with this ISID if there is one.
pub fn is_port_of(transport_id: &[u8], initiator: &str, isid: Option<[u8; 6]>) -> bool {
    match InitiatorPort::from_bytes(transport_id) {
        Ok(InitiatorPort::IscsiPort { name, isid: of }) => {
            name == initiator && isid.is_none_or(|wanted| wanted == of)
        }
        _ => false,
    }
}

/// Returns the ports of a target.
pub(crate) fn ports_of(target: &TargetConfig) -> BTreeSet<RelativePort> {
    let groups = target.groups.iter().map(|(_, port)| *port);
    target.ports.iter().map(|(_, port)| *port).chain(groups).collect()
}

fn name_of(config: &ShardConfig, target: &TargetConfig, port: RelativePort) -> Option<TargetPortName> {
    if let Some((group, _)) = target.groups.iter().find(|(_, known)| *known == port) {
        return Some(TargetPortName::Group(group.clone()));
    }
    let (id, _) = target.ports.iter().find(|(_, known)| *known == port)?;
    let portal = config.portals.iter().find(|portal| portal.id == *id)?;
    Some(TargetPortName::PortalGroup(portal.group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_known_by_the_name_of_its_initiator_and_by_its_isid() {
        let id = InitiatorPort::iscsi_port("iqn.a", [1; 6]).unwrap().encode();
        assert!(is_port_of(&id, "iqn.a", None) && is_port_of(&id, "iqn.a", Some([1; 6])));
        assert!(!is_port_of(&id, "iqn.a", Some([2; 6])) && !is_port_of(&id, "iqn.b", None));
        assert!(!is_port_of(&[], "iqn.a", None));
    }
}
