//! Opens the session or the disk of a URL.

use iscsi::initiator::contract::Purpose;
use iscsi::name::Isid;

use crate::client::{Client, Session, Watcher};
use crate::disk::RemoteDisk;
use crate::login::{PlanError, ProtocolPlan, plan, plan_for};
use crate::session_error::SessionError;
use crate::unit::UnitError;
use crate::url::{Endpoint, Secrets, Url};

/// Why the target or unit of a URL cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The session cannot be planned.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The login failed.
    #[error("cannot log in to {at}: {why}")]
    LogIn {
        /// The address of the target.
        at: String,
        /// The error.
        why: SessionError,
    },
    /// The properties of the unit could not be read.
    #[error("{at}: {why}")]
    Unit {
        /// The URL.
        at: String,
        /// The error.
        why: UnitError,
    },
}

impl OpenError {
    /// Returns whether the URL is impossible to satisfy, in contrast to a failed attempt.
    pub const fn is_misuse(&self) -> bool {
        matches!(self, Self::Plan(_))
    }
}

/// Logs in to the target of a URL.
///
/// # Errors
/// [`OpenError`]
pub async fn open_session(client: &Client, url: &Url, secrets: &dyn Secrets) -> Result<Session, OpenError> {
    open_session_watched(client, url, secrets, Vec::new()).await
}

/// Logs in to the target of a URL, and calls `watchers` with every event from the first attempt on.
///
/// # Errors
/// [`OpenError`]
pub async fn open_session_watched(
    client: &Client,
    url: &Url,
    secrets: &dyn Secrets,
    watchers: Vec<Watcher>,
) -> Result<Session, OpenError> {
    log_in(client, url, plan(url, secrets)?, watchers).await
}

/// Logs in to the target of a URL and opens its unit as a disk.
///
/// # Errors
/// [`OpenError`]
pub async fn open_disk(client: &Client, url: &Url, secrets: &dyn Secrets) -> Result<RemoteDisk, OpenError> {
    open_disk_watched(client, url, secrets, Vec::new()).await
}

/// Logs in to the target of a URL, opens its unit as a disk, and calls `watchers` with every event from the
/// first attempt on.
///
/// # Errors
/// [`OpenError`]
pub async fn open_disk_watched(
    client: &Client,
    url: &Url,
    secrets: &dyn Secrets,
    watchers: Vec<Watcher>,
) -> Result<RemoteDisk, OpenError> {
    open_planned_disk(client, url, plan(url, secrets)?, watchers).await
}

/// Like [`open_disk_watched`], with session reinstatement: the session replaces one with the same ISID from a
/// host of the same name. The target ends the tasks of the old session before it accepts the login (RFC 7143
/// §6.3.5).
///
/// # Errors
/// [`OpenError`]
pub async fn open_disk_as(
    client: &Client,
    url: &Url,
    secrets: &dyn Secrets,
    isid: Isid,
    watchers: Vec<Watcher>,
) -> Result<RemoteDisk, OpenError> {
    let mut plan = plan(url, secrets)?;
    plan.set_isid(isid);
    open_planned_disk(client, url, plan, watchers).await
}

async fn open_planned_disk(
    client: &Client,
    url: &Url,
    plan: ProtocolPlan,
    watchers: Vec<Watcher>,
) -> Result<RemoteDisk, OpenError> {
    let session = log_in(client, url, plan, watchers).await?;
    RemoteDisk::open(session, url.lun).await.map_err(|why| OpenError::Unit { at: url.to_string(), why })
}

async fn log_in(
    client: &Client,
    url: &Url,
    plan: ProtocolPlan,
    watchers: Vec<Watcher>,
) -> Result<Session, OpenError> {
    let at = || format!("{}/{}", url.endpoint, url.target);
    let session =
        client.log_in_watched(plan, watchers).await.map_err(|why| OpenError::LogIn { at: at(), why })?;
    if let Some(limit) = url.endpoint.options.command_timeout {
        session.limit_commands(Some(limit).filter(|limit| !limit.is_zero()));
    }
    Ok(session)
}

/// Logs in to a discovery session.
pub(crate) async fn open_discovery(
    client: &Client,
    place: &Endpoint,
    secrets: &dyn Secrets,
) -> Result<Session, OpenError> {
    let plan = plan_for(place, Purpose::Discovery, secrets)?;
    client.log_in(plan).await.map_err(|why| OpenError::LogIn { at: place.to_string(), why })
}
