//! What the first text of a login settles: who asks, for what, and on which terms (RFC 7143 §6.3.1, §13.4–5,
//! §13.21).

use alloc::string::{String, ToString};

use super::super::directory::{
    AuthPolicy, Directory, DiscoveryAccess, Found, Realm, SessionQuery, TargetAccess, Via,
};
use super::super::printable;
use super::{Entry, Failure, Fixed, SessionKind, Sorted, Why, entry};
use crate::keys::{Key, Role};
use crate::name::{BadName, IscsiName, PortalGroupTag, Tsih};
use crate::negotiate::KeyPolicy;
use crate::negotiate::exchange::{Exchange, Setting};
use crate::text::TextOut;

/// How initiator names are read.
type ParseName = fn(&[u8]) -> Result<IscsiName, BadName>;

#[derive(Debug)]
pub(super) struct Identity {
    pub(super) initiator: IscsiName,
    pub(super) alias: Option<String>,
    pub(super) kind: SessionKind,
    pub(super) realm: Realm,
    pub(super) auth: AuthPolicy,
    pub(super) exchange: Exchange,
}

impl Identity {
    /// Reads the first text, and appends what a target says about itself in its first answer.
    pub(super) fn establish(
        sorted: &Sorted<'_>,
        (fixed, parse_name): (Fixed, ParseName),
        via: &Via,
        directory: &dyn Directory,
        out: &mut TextOut,
    ) -> Result<Self, Failure> {
        let name = sorted.initiator_name.ok_or(Why::NoInitiatorName)?;
        let initiator = parse_name(name).map_err(Why::BadInitiatorName)?;
        match sorted.session_type.unwrap_or(b"Normal") {
            b"Discovery" => Self::discovery(initiator, fixed, via, directory),
            b"Normal" => Self::normal(initiator, sorted.target_name, fixed, via, directory, out),
            _ => Err(Why::SessionTypeUnknown.into()),
        }
    }

    fn discovery(
        initiator: IscsiName,
        fixed: Fixed,
        via: &Via,
        directory: &dyn Directory,
    ) -> Result<Self, Failure> {
        let (auth, keys) = match directory.discovery(via, &initiator) {
            DiscoveryAccess::Granted { auth, keys } => (auth, keys),
            DiscoveryAccess::NotServed => return Err(Why::DiscoveryNotServed.into()),
            DiscoveryAccess::Forbidden => return Err(Why::DiscoveryForbidden.into()),
        };
        // A discovery session has one connection (RFC 7143 §13.21), so there is none to join.
        if fixed.tsih != Tsih::NEW {
            return Err(Why::NoSuchSession.into());
        }
        let exchange = Exchange::new(Role::Target, keys, Setting::Discovery);
        let (kind, realm) = (SessionKind::Discovery, Realm::Discovery);
        Ok(Self { initiator, alias: None, kind, realm, auth, exchange })
    }

    fn normal(
        initiator: IscsiName,
        target_name: Option<&[u8]>,
        fixed: Fixed,
        via: &Via,
        directory: &dyn Directory,
        out: &mut TextOut,
    ) -> Result<Self, Failure> {
        let name = target_name.ok_or(Why::NoTargetName)?;
        let name = IscsiName::parse(name).map_err(Why::BadTargetName)?;
        let access = here(directory.find_target(via, &initiator, &name))?;
        let TargetAccess { target, portal_group, alias, auth, keys } = access;
        if let Some(alias) = alias {
            out.put(Key::TargetAlias.name(), printable(alias.as_bytes()));
        }
        //= rfc7143#section-13.9
        // The first answer to a request that names a target carries the tag of the portal group.
        out.put(Key::TargetPortalGroupTag.name(), portal_group.0.to_string());
        let mut identity = Self {
            initiator,
            alias: None,
            kind: SessionKind::Normal { target, name, portal_group },
            realm: Realm::Target(target),
            auth,
            exchange: Exchange::new(Role::Target, KeyPolicy::default(), Setting::Leading),
        };
        let setting = identity.setting(fixed, directory)?;
        identity.exchange = Exchange::new(Role::Target, keys, setting);
        Ok(identity)
    }

    /// Finds out whether the connection starts a session or joins one, so that it fails early if it cannot.
    fn setting(&self, fixed: Fixed, directory: &dyn Directory) -> Result<Setting, Why> {
        let query = self.query(fixed);
        if let Entry::NewSession | Entry::ReplacesSession(_) = entry(&query, directory)? {
            return Ok(Setting::Leading);
        }
        let facts = directory.find_session(&query).ok_or(Why::NoSuchSession)?;
        Ok(Setting::Joining(facts.parameters))
    }

    pub(super) fn query(&self, fixed: Fixed) -> SessionQuery<'_> {
        let (target, portal_group) = match &self.kind {
            SessionKind::Discovery => (None, PortalGroupTag(0)),
            SessionKind::Normal { target, portal_group, .. } => (Some(*target), *portal_group),
        };
        let (isid, tsih, cid) = (fixed.isid, fixed.tsih, fixed.cid);
        SessionQuery { initiator: &self.initiator, isid, tsih, target, portal_group, cid }
    }

    /// Returns whether a later text only repeats what the first one said; `None` for keys that do not belong there.
    /// libiscsi names both sides once more in its first text after CHAP.
    pub(super) fn repeats(&self, key: Key, value: &[u8]) -> Option<bool> {
        let (session_type, target) = match &self.kind {
            SessionKind::Discovery => ("Discovery", None),
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
    /// Returns whether a method that was offered is one that we take.
    pub(super) fn takes(&self, method: &[u8]) -> bool {
        match method {
            b"None" => self.allows_none,
            b"CHAP" => !self.chap.is_empty(),
            _ => false,
        }
    }

    /// Lets an initiator in that proved nothing, if it may.
    pub(super) fn without_proof(&self) -> Result<Option<String>, Why> {
        if self.allows_none { Ok(None) } else { Err(Why::AuthenticationSkipped) }
    }
}

fn here(found: Found) -> Result<TargetAccess, Failure> {
    let why = match found {
        Found::Here(access) => return Ok(access),
        Found::NotFound => Why::TargetNotFound,
        Found::Forbidden => Why::TargetForbidden,
        Found::Removed => Why::TargetRemoved,
        Found::Unavailable => Why::TargetUnavailable,
        Found::OutOfResources | Found::Full(_) => Why::OutOfResources,
        Found::Moved { to, permanently } => {
            let mut text = TextOut::new();
            text.put(Key::TargetAddress.name(), to.to_string());
            let why = if permanently { Why::TargetMovedPermanently } else { Why::TargetMovedTemporarily };
            return Err(Failure { why, text: text.into_bytes() });
        }
    };
    Err(why.into())
}
