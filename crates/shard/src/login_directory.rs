//! Answers the queries of the login phase and of SendTargets from the configuration.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::net::SocketAddr;

use base::state_machine::PortalId;
use iscsi::chap::Secret;
use iscsi::login::directory::{
    ConnectionPath, Directory, DiscoveryAccess, Realm, SendTargetsEntry, SessionInfo, SessionQuery,
    TargetAccess, TargetAddress, TargetId, TargetLookup,
};
use iscsi::name::{IscsiName, PortalGroupTag};
use iscsi::negotiate::KeyPolicy;
use iscsi::target::contract::SessionLimits;
use security::Level;
use security::opaque::PasswordRecord;
use target::target::Target;

use crate::config::{Admission, AuthConfig, Portal, ShardConfig, TargetConfig};

impl ShardConfig {
    /// Returns a target by number.
    pub fn target(&self, id: TargetId) -> Option<&TargetConfig> {
        self.targets.iter().find(|target| target.id == id)
    }

    /// Sorts the targets by name, as look-ups and SendTargets require.
    pub(crate) fn sort(&mut self) {
        self.targets.sort_by(|a, b| a.name.cmp(&b.name));
    }

    /// Returns the session limits of the targets that have limits of their own.
    pub(crate) fn session_limits(&self) -> BTreeMap<TargetId, SessionLimits> {
        self.targets.iter().filter_map(|target| Some((target.id, target.session_limits?))).collect()
    }

    /// Returns a target by its name in HyperSCSI, which is its iSCSI name.
    pub(crate) fn target_called(&self, name: &str) -> Option<&TargetConfig> {
        let at = self.targets.binary_search_by(|target| target.name.as_str().cmp(name)).ok()?;
        self.targets.get(at)
    }

    fn target_by_name(&self, name: &IscsiName) -> Option<&TargetConfig> {
        let at = self.targets.binary_search_by(|target| target.name.cmp(name)).ok()?;
        self.targets.get(at)
    }

    /// Returns the SendTargets entry of a target for an initiator and a portal; `None` if the portal does not
    /// serve the target or the target does not admit the initiator.
    fn listed(
        &self,
        target: &TargetConfig,
        via: &ConnectionPath,
        initiator: &IscsiName,
    ) -> Option<SendTargetsEntry> {
        let may_know = target.port_at(via.portal).is_some()
            && !matches!(target.admit(initiator.as_str()), Admission::Refused);
        may_know
            .then(|| SendTargetsEntry { name: target.name.clone(), addresses: self.addresses(target, via) })
    }

    /// Returns whether the portal exists.
    pub(crate) fn has_portal(&self, id: PortalId) -> bool {
        self.portals.iter().any(|portal| portal.id == id)
    }

    fn portal(&self, via: &ConnectionPath) -> Option<&Portal> {
        self.portals.iter().find(|portal| portal.id == via.portal)
    }

    /// Returns the addresses of `target` for an initiator that connected through `via`, in the order in which
    /// it should try them: the address of this connection first. An address does not tell whether it is one
    /// with TLS, so that an initiator gets those of the kind that it uses.
    fn addresses(
        &self,
        target: &TargetConfig,
        via: &ConnectionPath,
    ) -> alloc::vec::Vec<(TargetAddress, PortalGroupTag)> {
        let has_tls = self.portal(via).is_some_and(|portal| portal.tls);
        let served = self.portals.iter().filter(|portal| target.port_at(portal.id).is_some());
        let served = served.filter(|portal| portal.tls == has_tls);
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
    /// Returns the address that SendTargets reports for this portal. `arrived_at` is the local address of the
    /// initiator's connection if that came through this portal.
    fn address(&self, arrived_at: Option<SocketAddr>) -> Option<TargetAddress> {
        self.announced.clone().or(arrived_at.or(self.bound).map(TargetAddress::Socket))
    }
}

/// The directory of a running shard: its configuration and its present sessions.
pub(crate) struct LoginDirectory<'a> {
    pub(crate) config: &'a ShardConfig,
    pub(crate) target: &'a Target,
    pub(crate) draining: bool,
}

impl LoginDirectory<'_> {
    /// Returns how an initiator must authenticate.
    fn auth(&self, realm: Realm, initiator: &IscsiName) -> Option<&AuthConfig> {
        Some(match realm {
            Realm::Discovery => &self.config.discovery.auth,
            Realm::Target(id) => self.config.target(id)?.auth_of(initiator.as_str()),
        })
    }

    /// Returns whether the target can accept a session in addition to those that it has.
    fn has_room(&self, target: &TargetConfig) -> bool {
        let sessions = self.target.nexuses().filter(|(_, entry)| entry.target().0 == target.id.0).count();
        u32::try_from(sessions).is_ok_and(|count| count < target.sessions_max)
    }
}

impl Directory for LoginDirectory<'_> {
    fn find_target(&self, via: &ConnectionPath, initiator: &IscsiName, name: &IscsiName) -> TargetLookup {
        let Some(target) = self.config.target_by_name(name) else { return TargetLookup::NotFound };
        let (Some(portal), Some(_)) = (self.config.portal(via), target.port_at(via.portal)) else {
            return TargetLookup::NotFound;
        };
        if matches!(target.admit(initiator.as_str()), Admission::Refused) {
            return TargetLookup::Forbidden;
        }
        if self.draining {
            return TargetLookup::Unavailable;
        }
        let found = if self.has_room(target) { TargetLookup::Found } else { TargetLookup::AtSessionLimit };
        let auth = &target.auth_of(initiator.as_str()).policy;
        found(TargetAccess {
            target: target.id,
            portal_group: portal.group,
            alias: target.alias.clone(),
            auth: auth.clone(),
            sessions_max: target.quota_of(initiator.as_str()).sessions_max,
            // TLS protects the connection already.
            keys: match portal.tls {
                true => KeyPolicy { min_protection: Level::None, ..target.keys.clone() },
                false => target.keys.clone(),
            },
        })
    }

    fn discovery(&self, _via: &ConnectionPath, _initiator: &IscsiName) -> DiscoveryAccess {
        let discovery = &self.config.discovery;
        if !discovery.enabled {
            return DiscoveryAccess::NotServed;
        }
        // An initiator that reads "session type not supported" would not try again later.
        if self.draining {
            return DiscoveryAccess::Unavailable;
        }
        DiscoveryAccess::Granted { auth: discovery.auth.policy.clone(), keys: discovery.keys.clone() }
    }

    fn portal_group(&self, via: &ConnectionPath) -> PortalGroupTag {
        self.config.portal(via).map_or(PortalGroupTag(1), |portal| portal.group)
    }

    fn certifies(&self, via: &ConnectionPath, initiator: &IscsiName) -> bool {
        let certificates = self.config.portal(via).and_then(|portal| portal.certificates.as_ref());
        certificates.is_none_or(|known| known.0.certifies(via.local, via.peer, initiator.as_str()))
    }

    fn is_tls(&self, portal: PortalId) -> bool {
        self.config.portals.iter().any(|known| known.id == portal && known.tls)
    }

    fn chap_secret(&self, realm: Realm, initiator: &IscsiName, user: &str) -> Option<Secret> {
        self.auth(realm, initiator)?
            .users
            .iter()
            .find(|known| known.name == user)
            .map(|known| known.secret.clone())
    }

    fn password_record(
        &self,
        realm: Realm,
        initiator: &IscsiName,
        user: &str,
    ) -> Option<Arc<PasswordRecord>> {
        let passwords = self.auth(realm, initiator)?.passwords.as_ref()?;
        Some(Arc::clone(passwords.answering(user)))
    }

    fn find_session(&self, _query: &SessionQuery<'_>) -> Option<SessionInfo> {
        // Sessions are in the engine, which checks its own sessions before it calls this.
        None
    }

    fn next_target(
        &self,
        via: &ConnectionPath,
        initiator: &IscsiName,
        after: Option<&IscsiName>,
    ) -> Option<SendTargetsEntry> {
        let targets = &self.config.targets;
        let start = after.map_or(0, |after| targets.partition_point(|target| target.name <= *after));
        targets.get(start..)?.iter().find_map(|target| self.config.listed(target, via, initiator))
    }

    fn target_named(
        &self,
        via: &ConnectionPath,
        initiator: &IscsiName,
        name: &IscsiName,
    ) -> Option<SendTargetsEntry> {
        self.config.listed(self.config.target_by_name(name)?, via, initiator)
    }
}

#[cfg(test)]
mod tests;
