//! Makes the plan of a session from a URL.

use std::path::Path;

use hyperscsi::initiator::contract as ether;
use hyperscsi::pdu::name::{GroupName, Name};
use iscsi::initiator::contract::{Portal, Purpose, SessionPlan};
use iscsi::name::{BadName, IscsiName, Isid};
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};
use security::Level;
use transport::initiator::Retry;

use tls::{ClientSettings, TlsError};

use crate::url::{Endpoint, Options, Protection, SecretError, Secrets, TlsOptions, Transport, Url};

/// The prefix of our iSCSI names; the name of the host follows.
const NAME: &str = "iqn.2026-11.example.targe:";

/// Why a session cannot be planned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A secret is missing or cannot be read.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The name of the host is not valid in an iSCSI name.
    #[error("this host's name cannot be used in an iSCSI name ({0}); set one with initiator=")]
    Name(#[from] BadName),
    /// The endpoint is not one of iSCSI.
    #[error("the URL must name an iSCSI portal")]
    NotIscsi,
    /// The endpoint is not one of HyperSCSI, or has no group.
    #[error("the URL must name a group and an interface")]
    NotAGroup,
    /// An iSCSI name that is not valid in HyperSCSI.
    #[error("\"{0}\" is not a HyperSCSI name: it may contain only letters, digits, '-', '.' and ':'")]
    EtherName(String),
    /// A certificate or a key cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// The plan of a session of either protocol.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ProtocolPlan {
    /// Of iSCSI.
    Iscsi(Box<IscsiPlan>),
    /// Of HyperSCSI.
    HyperScsi(Box<HyperScsiPlan>),
}

/// The plan of an iSCSI session.
#[derive(Clone, Debug)]
pub struct IscsiPlan {
    /// The session.
    pub session: SessionPlan,
    /// TLS around its connections, if they are to have it.
    pub tls: Option<TlsPlan>,
}

/// TLS around the connections of a session.
#[derive(Clone, Debug)]
pub struct TlsPlan {
    /// What the initiator trusts, and its certificate if it has one.
    pub settings: ClientSettings,
    /// The name in the target's certificate, where it is not the host of the portal.
    pub name: Option<String>,
}

/// The plan of a HyperSCSI session.
#[derive(Clone, Debug)]
pub struct HyperScsiPlan {
    /// The session.
    pub session: ether::SessionPlan,
    /// The interfaces that it uses.
    pub interfaces: Vec<String>,
}

impl From<SessionPlan> for ProtocolPlan {
    fn from(plan: SessionPlan) -> Self {
        Self::from(IscsiPlan { session: plan, tls: None })
    }
}

impl From<IscsiPlan> for ProtocolPlan {
    fn from(plan: IscsiPlan) -> Self {
        Self::Iscsi(Box::new(plan))
    }
}

impl ProtocolPlan {
    /// Gives the session a random ISID, which no other session of this host is likely to have.
    pub fn renew_isid(&mut self) {
        match self {
            Self::Iscsi(plan) => plan.session.isid = random_isid(),
            Self::HyperScsi(plan) => plan.session.isid = random_isid().0,
        }
    }

    /// Sets the ISID of the session. The next login with this ISID from a host of the same name replaces the
    /// session.
    pub fn set_isid(&mut self, isid: Isid) {
        match self {
            Self::Iscsi(plan) => plan.session.isid = isid,
            Self::HyperScsi(plan) => plan.session.isid = isid.0,
        }
    }

    /// Returns how many connections the session is to have. HyperSCSI has no connections; it uses all paths.
    pub fn connections(&self) -> u16 {
        match self {
            Self::Iscsi(plan) => plan.session.connections,
            Self::HyperScsi(_) => 1,
        }
    }

    /// Sets how many connections the session is to have. Does nothing for HyperSCSI.
    pub fn set_connections(&mut self, connections: u16) {
        if let Self::Iscsi(plan) = self {
            plan.session.connections = connections;
        }
    }

    /// Returns how long and how often the session tries to log in again.
    pub(crate) fn retry(&self) -> Retry {
        match self {
            Self::Iscsi(plan) => plan.session.retry,
            Self::HyperScsi(plan) => plan.session.retry,
        }
    }

    /// Raises the number of commands that the session accepts at a time to at least `tasks`.
    pub fn want_tasks(&mut self, tasks: usize) {
        let limit = match self {
            Self::Iscsi(plan) => &mut plan.session.limits.tasks_max,
            Self::HyperScsi(plan) => &mut plan.session.limits.tasks_max,
        };
        *limit = tasks.max(*limit);
    }
}

impl Endpoint {
    /// Returns the initiator name that a login there uses: the one that the URL names, or one made of this
    /// host's name.
    ///
    /// # Errors
    /// This host's name cannot be part of an iSCSI name.
    pub fn initiator_name(&self) -> Result<IscsiName, PlanError> {
        Ok(self.options.initiator.clone().map_or_else(default_name, Ok)?)
    }
}

/// Plans the session that a URL asks for.
///
/// # Errors
/// [`PlanError`]
pub fn plan(url: &Url, secrets: &dyn Secrets) -> Result<ProtocolPlan, PlanError> {
    match &url.endpoint.transport {
        Transport::Iscsi(_) => {
            plan_for(&url.endpoint, Purpose::Target(url.target.clone()), secrets).map(ProtocolPlan::from)
        }
        Transport::HyperScsi(interfaces) => {
            let session = plan_ether(url, secrets)?;
            Ok(ProtocolPlan::HyperScsi(Box::new(HyperScsiPlan { session, interfaces: interfaces.clone() })))
        }
    }
}

fn plan_ether(url: &Url, secrets: &dyn Secrets) -> Result<ether::SessionPlan, PlanError> {
    let options = &url.endpoint.options;
    let name = |name: &IscsiName| {
        Name::new(name.as_str()).ok_or_else(|| PlanError::EtherName(name.as_str().to_owned()))
    };
    let initiator = url.endpoint.initiator_name()?;
    let group = url.endpoint.login.user.as_deref().unwrap_or_default();
    let group = GroupName::new(group).ok_or_else(|| PlanError::EtherName(group.to_owned()))?;
    let password = url.endpoint.login.own_password(options, secrets)?;
    let isid = options.isid.unwrap_or_else(|| random_isid().0);
    let mut plan = ether::SessionPlan::new(name(&initiator)?, isid, group, password, name(&url.target)?);
    adjust(&mut plan, options);
    Ok(plan)
}

fn adjust(plan: &mut ether::SessionPlan, options: &Options) {
    match options.protection {
        None => {}
        Some(Protection::None) => plan.level = Level::None,
        Some(Protection::Integrity) => plan.level = Level::Integrity,
        Some(Protection::Encrypt) => plan.level = Level::Encrypt,
    }
    // The frame length is bounded by the interface, unless the URL has a smaller limit.
    plan.parameters.frame_max = options.mtu.unwrap_or(u16::MAX);
    plan.parameters.repair = options.retransmission;
    if let Some(patience) = options.patience {
        let lasting = Retry { timeout: patience, ..plan.retry };
        plan.retry = if patience.is_zero() { Retry::NONE } else { lasting };
    }
    if let Some(within) = options.connect_timeout {
        plan.limits.login_within = within;
    }
}

/// Plans a session with a portal, for a target or for discovery.
///
/// # Errors
/// [`PlanError`]
pub fn plan_for(place: &Endpoint, purpose: Purpose, secrets: &dyn Secrets) -> Result<IscsiPlan, PlanError> {
    let options = &place.options;
    let initiator = place.initiator_name()?;
    let Transport::Iscsi(portal) = &place.transport else { return Err(PlanError::NotIscsi) };
    let portals = vec![Portal { address: portal.clone() }];
    let mut plan = SessionPlan::new(initiator, options.isid.map_or_else(random_isid, Isid), purpose, portals);
    plan.auth = place.login.auth(options, secrets)?;
    plan.keys = options.keys.clone();
    plan.connections = options.connections;
    if let Some(patience) = options.patience {
        plan.retry = if patience.is_zero() { Retry::NONE } else { Retry { timeout: patience, ..plan.retry } };
    }
    if let Some(within) = options.connect_timeout {
        plan.limits.login_within = within;
    }
    Ok(IscsiPlan { session: plan, tls: options.tls.as_ref().map(TlsPlan::read).transpose()? })
}

impl TlsPlan {
    /// Reads the files of the options.
    ///
    /// # Errors
    /// [`TlsError`], a part of [`crate::unstable`], names the file and what is wrong with it.
    pub fn read(options: &TlsOptions) -> Result<Self, TlsError> {
        let identity = options.certificate.as_ref().zip(options.key.as_ref());
        let identity = identity.map(|(certificate, key)| (Path::new(certificate), Path::new(key)));
        let settings = ClientSettings::read(options.authority.as_ref().map(Path::new), identity)?;
        Ok(Self { settings, name: options.name.clone() })
    }
}

/// Returns the iSCSI name that is used if the URL has none: one name for each host.
///
/// # Errors
/// Returns an error if the name of the host makes no iSCSI name, which happens only for a name of more than
/// 190 bytes.
pub(crate) fn default_name() -> Result<IscsiName, BadName> {
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy().to_lowercase();
    let clean: String =
        host.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')).collect();
    let clean = if clean.is_empty() { "initiator" } else { &clean };
    IscsiName::parse(format!("{NAME}{clean}").as_bytes())
}

/// Returns a random ISID that no other session of this host is likely to have, so that no session replaces
/// another.
pub(crate) fn random_isid() -> Isid {
    let mut bytes = [0_u8; 5];
    // Only kernels without `getrandom` fail here. Then the process id distinguishes the processes.
    if retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty())).is_err() {
        for (to, from) in bytes.iter_mut().zip(std::process::id().to_be_bytes()) {
            *to = from;
        }
    }
    let [a, b, c, d, e] = bytes;
    Isid::random([a, b, c], u16::from_be_bytes([d, e]))
}
