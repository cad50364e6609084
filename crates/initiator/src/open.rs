//! From a URL to a disk.

use iscsi::initiator::contract::Purpose;

use crate::client::{Client, Session};
use crate::disk::RemoteDisk;
use crate::down::SessionDown;
use crate::login::{NoPlan, plan, plan_for};
use crate::unit::UnitError;
use crate::url::{Place, Secrets, Url};

/// Why what a URL names cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The session cannot be planned.
    #[error(transparent)]
    Plan(#[from] NoPlan),
    /// There is no session.
    #[error("cannot log in to {at}: {why}")]
    LogIn {
        /// Where.
        at: String,
        /// Why.
        why: SessionDown,
    },
    /// The unit cannot be made out.
    #[error("{at}: {why}")]
    Unit {
        /// Where.
        at: String,
        /// Why.
        why: UnitError,
    },
}

impl OpenError {
    /// Returns whether the caller asked for something that cannot be, rather than that it failed.
    pub const fn is_misuse(&self) -> bool {
        matches!(self, Self::Plan(_))
    }
}

/// Logs in to the target of a URL.
///
/// # Errors
/// [`OpenError`]
pub async fn open_session(client: &Client, url: &Url, secrets: &dyn Secrets) -> Result<Session, OpenError> {
    let plan = plan(url, secrets)?;
    let at = || format!("{}/{}", url.place, url.target);
    client.log_in(plan).await.map_err(|why| OpenError::LogIn { at: at(), why })
}

/// Logs in to the target of a URL and makes its unit out as a disk.
///
/// # Errors
/// [`OpenError`]
pub async fn open_disk(client: &Client, url: &Url, secrets: &dyn Secrets) -> Result<RemoteDisk, OpenError> {
    let session = open_session(client, url, secrets).await?;
    RemoteDisk::open(session, url.lun).await.map_err(|why| OpenError::Unit { at: url.to_string(), why })
}

/// Logs in for discovery.
pub(crate) async fn open_discovery(
    client: &Client,
    place: &Place,
    secrets: &dyn Secrets,
) -> Result<Session, OpenError> {
    let plan = plan_for(place, Purpose::Discovery, secrets)?;
    client.log_in(plan).await.map_err(|why| OpenError::LogIn { at: place.to_string(), why })
}
