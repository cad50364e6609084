//! Evaluates the first text of a login: the initiator, its purpose, and the terms of the login (RFC 7143
//! §6.3.1, §13.4–5, §13.21).

use alloc::string::{String, ToString};

use security::Level;

use super::super::directory::{
    AuthPolicy, ConnectionPath, Directory, DiscoveryAccess, Realm, SessionQuery, TargetAccess, TargetLookup,
};
use super::super::printable;
use super::{Failure, Fixed, LoginEffect, LoginError, SessionKind, Sorted};
use crate::chap::Algorithms;
use crate::keys::{Key, Role};
use crate::name::{BadName, IscsiName, PortalGroupTag, Tsih};
use crate::negotiate::KeyPolicy;
use crate::negotiate::negotiator::{LoginContext, Negotiator};
use crate::opaque::METHOD;
use crate::text::TextBuilder;

/// The function that parses initiator names.
type ParseName = fn(&[u8]) -> Result<IscsiName, BadName>;

#[derive(Debug)]
pub(super) struct Identity {
    pub(super) initiator: IscsiName,
    pub(super) alias: Option<String>,
    pub(super) kind: SessionKind,
    pub(super) realm: Realm,
    pub(super) auth: AuthPolicy,
    pub(super) negotiator: Negotiator,
}

impl Identity {
    /// Parses the first text, and appends the keys that a target declares in its first answer.
    pub(super) fn establish(
        sorted: &Sorted<'_>,
        (fixed, parse_name): (Fixed, ParseName),
        via: &ConnectionPath,
        directory: &dyn Directory,
        out: &mut TextBuilder,
    ) -> Result<Self, Failure> {
        //= rfc7143#section-6.3
        //# The initial Login Request of any connection MUST include the InitiatorName key=value
        //# pair.
        let name = sorted.initiator_name.ok_or(LoginError::NoInitiatorName)?;
        let initiator = parse_name(name).map_err(LoginError::BadInitiatorName)?;
        if !directory.certifies(via, &initiator) {
            return Err(LoginError::NameNotCertified.into());
        }
        match sorted.session_type.unwrap_or(b"Normal") {
            b"Discovery" => Self::discovery(initiator, sorted.target_name, fixed, via, directory, out),
            b"Normal" => Self::normal(initiator, sorted.target_name, fixed, via, directory, out),
            _ => Err(LoginError::SessionTypeUnknown.into()),
        }
    }

    fn discovery(
        initiator: IscsiName,
        target_name: Option<&[u8]>,
        fixed: Fixed,
        via: &ConnectionPath,
        directory: &dyn Directory,
        out: &mut TextBuilder,
    ) -> Result<Self, Failure> {
        let (auth, keys) = match directory.discovery(via, &initiator) {
            DiscoveryAccess::Granted { auth, keys } => (auth, keys),
            DiscoveryAccess::NotServed => return Err(LoginError::DiscoveryNotServed.into()),
            DiscoveryAccess::Unavailable => return Err(LoginError::DiscoveryUnavailable.into()),
            DiscoveryAccess::Forbidden => return Err(LoginError::DiscoveryForbidden.into()),
        };
        // A discovery session has one connection (RFC 7143 §13.21), so a connection cannot join it.
        if fixed.tsih != Tsih::NEW {
            return Err(LoginError::NoSuchSession.into());
        }
        // The name of a target that the initiator cannot reach changes nothing.
        let found = target_name
            .and_then(|name| IscsiName::parse(name).ok())
            .map(|name| directory.find_target(via, &initiator, &name));
        let named = match found {
            Some(TargetLookup::Found(access) | TargetLookup::AtSessionLimit(access)) => {
                Some((access.target, access.portal_group))
            }
            _ => None,
        };
        //= rfc7143#section-6.3.1
        //# During the Login Phase, the iSCSI target MUST return the TargetPortalGroupTag key with
        //# the first Login Response PDU with which it is allowed to do so (i.e., the first Login
        //# Response issued after the first Login Request with the C bit set to 0) for all session
        //# types.
        let group = named.map_or_else(|| directory.portal_group(via), |(_, group)| group);
        out.put(Key::TargetPortalGroupTag.name(), group.0.to_string());
        let auth = auth.for_protection(keys.min_protection);
        let negotiator = Negotiator::new(Role::Target, keys, LoginContext::Discovery);
        let (kind, realm) = (SessionKind::Discovery { named }, Realm::Discovery);
        Ok(Self { initiator, alias: None, kind, realm, auth, negotiator })
    }

    fn normal(
        initiator: IscsiName,
        target_name: Option<&[u8]>,
        fixed: Fixed,
        via: &ConnectionPath,
        directory: &dyn Directory,
        out: &mut TextBuilder,
    ) -> Result<Self, Failure> {
        //= rfc7143#section-6.3
        //# the first Login Request MUST also include the TargetName key=value pair.
        let name = target_name.ok_or(LoginError::NoTargetName)?;
        let name = IscsiName::parse(name).map_err(LoginError::BadTargetName)?;
        let access = here(directory.find_target(via, &initiator, &name))?;
        let TargetAccess { target, portal_group, alias, auth, keys, sessions_max: _ } = access;
        if let Some(alias) = alias {
            out.put(Key::TargetAlias.name(), printable(alias.as_bytes()));
        }
        //= rfc7143#section-13.9
        // The first answer to a request that names a target carries the portal group tag.
        //= rfc7143#section-11.13.8
        //# The target MUST provide some basic parameters in order to enable the initiator to determine if it
        //# is connected to the correct port and the initial text parameters for the security exchange.
        out.put(Key::TargetPortalGroupTag.name(), portal_group.0.to_string());
        let mut identity = Self {
            initiator,
            alias: None,
            kind: SessionKind::Normal { target, name, portal_group },
            realm: Realm::Target(target),
            auth: auth.for_protection(keys.min_protection),
            negotiator: Negotiator::new(Role::Target, KeyPolicy::default(), LoginContext::Leading),
        };
        let setting = identity.setting(fixed, directory)?;
        identity.negotiator = Negotiator::new(Role::Target, keys, setting);
        Ok(identity)
    }

    /// Determines whether the connection starts a session or joins one, so that the login fails early if
    /// neither is possible.
    fn setting(&self, fixed: Fixed, directory: &dyn Directory) -> Result<LoginContext, LoginError> {
        let query = self.query(fixed);
        if let LoginEffect::NewSession | LoginEffect::ReinstatesSession(_) = login_effect(&query, directory)?
        {
            return Ok(LoginContext::Leading);
        }
        let facts = directory.find_session(&query).ok_or(LoginError::NoSuchSession)?;
        Ok(LoginContext::Joining(facts.parameters))
    }

    pub(super) fn query(&self, fixed: Fixed) -> SessionQuery<'_> {
        let (target, portal_group) = match &self.kind {
            SessionKind::Discovery { named: None } => (None, PortalGroupTag(0)),
            SessionKind::Normal { target, portal_group, .. }
            | SessionKind::Discovery { named: Some((target, portal_group)) } => {
                (Some(*target), *portal_group)
            }
        };
        let is_discovery = matches!(self.kind, SessionKind::Discovery { .. });
        let (isid, tsih, cid) = (fixed.isid, fixed.tsih, fixed.cid);
        SessionQuery { initiator: &self.initiator, isid, tsih, is_discovery, target, portal_group, cid }
    }

    /// Returns whether a later text repeats the value of the first one; `None` for keys that do not belong in
    /// the first text. libiscsi names both sides once more in its first text after CHAP.
    pub(super) fn repeats(&self, key: Key, value: &[u8]) -> Option<bool> {
        let (session_type, target) = match &self.kind {
            SessionKind::Discovery { .. } => ("Discovery", None),
            SessionKind::Normal { name, .. } => ("Normal", Some(name)),
        };
        let names = |name: &IscsiName| IscsiName::parse_leniently(value).as_ref() == Ok(name);
        match key {
            Key::InitiatorName => Some(names(&self.initiator)),
            Key::TargetName => Some(target.is_none_or(names)),
            Key::SessionType => Some(value == session_type.as_bytes()),
            Key::InitiatorAlias => self.alias.as_ref().map(|alias| *alias == printable(value)),
            _ => None,
        }
    }

    pub(super) fn set_alias(&mut self, alias: &[u8]) {
        self.alias = Some(printable(alias));
    }
}

impl AuthPolicy {
    /// Returns the policy without the methods that give a connection no keys, if it needs a protection.
    fn for_protection(self, min_protection: Level) -> Self {
        if min_protection == Level::None {
            return self;
        }
        Self { allows_none: false, chap: Algorithms::NONE, own: None, opaque: self.opaque }
    }

    /// Returns whether the target accepts the offered authentication method.
    pub(super) fn takes(&self, method: &[u8]) -> bool {
        match method {
            b"None" => self.allows_none,
            b"CHAP" => !self.chap.is_empty(),
            method => self.opaque && method == METHOD.as_bytes(),
        }
    }

    /// Accepts an initiator that did not authenticate itself, if the policy permits that.
    pub(super) fn without_proof(&self) -> Result<Option<String>, LoginError> {
        if self.allows_none { Ok(None) } else { Err(LoginError::AuthenticationSkipped) }
    }
}

fn here(found: TargetLookup) -> Result<TargetAccess, Failure> {
    let why = match found {
        TargetLookup::Found(access) => return Ok(access),
        TargetLookup::NotFound => LoginError::TargetNotFound,
        TargetLookup::Forbidden => LoginError::TargetForbidden,
        TargetLookup::Removed => LoginError::TargetRemoved,
        TargetLookup::Unavailable => LoginError::TargetUnavailable,
        TargetLookup::OutOfResources | TargetLookup::AtSessionLimit(_) => LoginError::OutOfResources,
        TargetLookup::Moved { to, permanently } => {
            let mut text = TextBuilder::new();
            //= rfc7143#section-11.13.5
            //# All of the redirection Status-Class responses MUST return one or more text key parameters of
            //# the type "TargetAddress", which indicates the target's new address.
            text.put(Key::TargetAddress.name(), to.to_string());
            let why = if permanently {
                LoginError::TargetMovedPermanently
            } else {
                LoginError::TargetMovedTemporarily
            };
            return Err(Failure { why, text: text.into_bytes() });
        }
    };
    Err(why.into())
}

/// Determines the effect of the login on the set of sessions. The result can change until the login is
/// complete, so this function is called again then.
pub(super) fn login_effect(
    query: &SessionQuery<'_>,
    directory: &dyn Directory,
) -> Result<LoginEffect, LoginError> {
    //= rfc7143#section-11.12.6
    //# The target MUST check the value presented with the first Login Request and act as specified in Section
    //# 6.3.1.
    let facts = directory.find_session(query);
    if query.tsih == Tsih::NEW {
        return Ok(facts.map_or(LoginEffect::NewSession, |facts| LoginEffect::ReinstatesSession(facts.tsih)));
    }
    let facts = facts.ok_or(LoginError::NoSuchSession)?;
    if query.target.is_some() && facts.portal_group != query.portal_group {
        return Err(LoginError::OtherPortalGroup);
    }
    if facts.has_cid {
        //= rfc7143#section-6.3.4
        //# Targets MUST support opening a second connection even when they do not support
        //# multiple connections in the Full Feature Phase if ErrorRecoveryLevel is 2 and SHOULD
        //# support opening a second connection if ErrorRecoveryLevel is less than 2.
        return Ok(LoginEffect::ReinstatesConnection(facts.tsih));
    }
    if facts.connections >= facts.parameters.max_connections {
        return Err(LoginError::TooManyConnections);
    }
    Ok(LoginEffect::AddsConnection(facts.tsih))
}
