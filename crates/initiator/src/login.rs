//! From a URL to the plan of a session.

use iscsi::initiator::contract::{Portal, Purpose, Retry, SessionPlan};
use iscsi::name::{BadName, IscsiName, Isid};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::url::{NoSecret, Place, Secrets, Url, Way};

/// What our names start with; the host's follows.
const NAME: &str = "iqn.2026-11.example.targe:";

/// Why a session cannot be planned.
#[derive(Debug, thiserror::Error)]
pub enum NoPlan {
    /// A secret that it needs cannot be had.
    #[error(transparent)]
    Secret(#[from] NoSecret),
    /// The host's name makes no name of an initiator.
    #[error("this host has no name that makes an iSCSI name ({0}); give one with initiator=")]
    Name(#[from] BadName),
    /// It is of the other protocol.
    #[error("hyperscsi:// names what `discover` finds; sessions of it are not in this build")]
    HyperScsi,
}

/// Plans the session that a URL asks for.
///
/// # Errors
/// [`NoPlan`]
pub fn plan(url: &Url, secrets: &dyn Secrets) -> Result<SessionPlan, NoPlan> {
    plan_for(&url.place, Purpose::Target(url.target.clone()), secrets)
}

/// Plans a session with a portal, for a target or for discovery.
///
/// # Errors
/// [`NoPlan`]
pub fn plan_for(place: &Place, purpose: Purpose, secrets: &dyn Secrets) -> Result<SessionPlan, NoPlan> {
    let options = &place.options;
    let initiator = options.initiator.clone().map_or_else(default_name, Ok)?;
    let Way::Iscsi(portal) = &place.way else { return Err(NoPlan::HyperScsi) };
    let portals = vec![Portal { address: portal.clone(), group: None }];
    let mut plan = SessionPlan::new(initiator, random_isid(), purpose, portals);
    plan.auth = place.login.auth(options, secrets)?;
    plan.keys = options.keys.clone();
    plan.connections = options.connections;
    if let Some(patience) = options.patience {
        plan.retry = if patience.is_zero() { Retry::NONE } else { Retry { patience, ..plan.retry } };
    }
    if let Some(within) = options.connect_timeout {
        plan.limits.login_within = within;
    }
    Ok(plan)
}

/// Returns the name that we have if none is given: one for each host.
///
/// # Errors
/// The host's name makes no iSCSI name, which needs a name of more than 190 bytes.
pub fn default_name() -> Result<IscsiName, BadName> {
    let uname = rustix::system::uname();
    let host = uname.nodename().to_string_lossy().to_lowercase();
    let clean: String =
        host.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')).collect();
    let clean = if clean.is_empty() { "initiator" } else { &clean };
    IscsiName::parse(format!("{NAME}{clean}").as_bytes())
}

/// Makes an ISID that no other session of this host is likely to have, so that none takes another's place.
pub fn random_isid() -> Isid {
    let mut bytes = [0_u8; 5];
    // It fails only for kernels without the call; then the process is told apart by its number.
    if getrandom(&mut bytes, GetRandomFlags::empty()).is_err() {
        for (to, from) in bytes.iter_mut().zip(std::process::id().to_be_bytes()) {
            *to = from;
        }
    }
    let [a, b, c, d, e] = bytes;
    Isid::random([a, b, c], u16::from_be_bytes([d, e]))
}
