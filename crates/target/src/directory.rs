//! The configuration as the login phase asks for it.

use core::net::SocketAddr;

use iscsi::chap::{Credentials, Secret};
use iscsi::login::directory::{
    Directory, DiscoveryAccess, Found, Listed, Realm, SessionFacts, SessionQuery, TargetAccess,
    TargetAddress, TargetId, Via,
};
use iscsi::name::{IscsiName, PortalGroupTag};

use crate::config::{Admission, Portal, ShardConfig, TargetConfig};

impl ShardConfig {
    /// Returns a target by number.
    pub fn target(&self, id: TargetId) -> Option<&TargetConfig> {
        self.targets.iter().find(|target| target.id == id)
    }

    fn portal(&self, via: &Via) -> Option<&Portal> {
        self.portals.iter().find(|portal| portal.id == via.portal)
    }

    /// The addresses of `target` as an initiator that came in `via` should try them, that way first.
    fn addresses(
        &self,
        target: &TargetConfig,
        via: &Via,
    ) -> alloc::vec::Vec<(TargetAddress, PortalGroupTag)> {
        let served = self.portals.iter().filter(|portal| target.port_at(portal.id).is_some());
        let (asked, others): (alloc::vec::Vec<_>, _) = served.partition(|portal| portal.id == via.portal);
        let others: alloc::vec::Vec<_> = others;
        asked
            .into_iter()
            .map(|portal| (portal, Some(via.local)))
            .chain(others.into_iter().map(|portal| (portal, None)))
            .filter_map(|(portal, arrived_at)| Some((portal.address(arrived_at)?, portal.group)))
            .collect()
    }
}

impl Portal {
    /// What to say about this portal to someone who, perhaps, arrived through it.
    fn address(&self, arrived_at: Option<SocketAddr>) -> Option<TargetAddress> {
        self.announced.clone().or(arrived_at.or(self.bound).map(TargetAddress::Socket))
    }
}

impl Directory for ShardConfig {
    fn find_target(&self, via: &Via, initiator: &IscsiName, name: &IscsiName) -> Found {
        let Some(target) = self.targets.iter().find(|target| target.name == *name) else {
            return Found::NotFound;
        };
        let (Some(portal), Some(_)) = (self.portal(via), target.port_at(via.portal)) else {
            return Found::NotFound;
        };
        if matches!(target.admit(initiator.as_str()), Admission::Refused) {
            return Found::Forbidden;
        }
        let (auth, _) = target.auth_of(initiator.as_str());
        Found::Here(TargetAccess {
            target: target.id,
            portal_group: portal.group,
            alias: target.alias.clone(),
            auth: auth.clone(),
            keys: target.keys.clone(),
        })
    }

    fn discovery(&self, _via: &Via, _initiator: &IscsiName) -> DiscoveryAccess {
        if !self.discovery.enabled {
            return DiscoveryAccess::NotServed;
        }
        DiscoveryAccess::Granted { auth: self.discovery.auth.clone(), keys: self.discovery.keys.clone() }
    }

    fn chap_secret(&self, realm: Realm, initiator: &IscsiName, user: &str) -> Option<Secret> {
        let users: &[Credentials] = match realm {
            Realm::Discovery => &self.discovery.users,
            Realm::Target(id) => self.target(id)?.auth_of(initiator.as_str()).1,
        };
        users.iter().find(|known| known.name == user).map(|known| known.secret.clone())
    }

    fn find_session(&self, _query: &SessionQuery<'_>) -> Option<SessionFacts> {
        // Sessions live in the engine, which asks itself before it asks us.
        None
    }

    fn target_behind(&self, via: &Via, initiator: &IscsiName, after: Option<&IscsiName>) -> Option<Listed> {
        let start = after.map_or(0, |after| self.targets.partition_point(|target| target.name <= *after));
        let target = self.targets.get(start..)?.iter().find(|target| {
            target.port_at(via.portal).is_some()
                && !matches!(target.admit(initiator.as_str()), Admission::Refused)
        })?;
        Some(Listed { name: target.name.clone(), addresses: self.addresses(target, via) })
    }
}
