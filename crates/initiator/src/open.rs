//! Opens the session or the disk of a URL.

use iscsi::initiator::contract::Purpose;
use iscsi::name::{Isid, PortalGroupTag};

use crate::client::{Client, Session, Watcher};
use crate::disk::Disk;
use crate::error::Error;
use crate::login::{ProtocolPlan, plan, plan_for};
use crate::sessions::Event;
use crate::url::{Endpoint, EnvSecrets, Secrets, Url};

/// How to open the session or the disk of a URL, where the defaults do not suffice.
///
/// ```no_run
/// # fn main() -> Result<(), targe_initiator::Error> {
/// use targe_initiator::{Client, OpenOptions, block_on};
///
/// let client = Client::new()?;
/// let options = OpenOptions::new().watch(|event| {
///     eprintln!("{event:?}");
///     true
/// });
/// let disk = block_on(options.open(&client, "iscsi://192.0.2.7/iqn.2026-01.com.example:disk/0"))?;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub struct OpenOptions {
    secrets: Box<dyn Secrets + Send + Sync>,
    watchers: Vec<Watcher>,
    isid: Option<Isid>,
    portal_group: Option<PortalGroupTag>,
}

impl OpenOptions {
    /// Returns the defaults: passwords that the URL does not contain come from the files that it names, or
    /// from the environment ([`EnvSecrets`]).
    pub fn new() -> Self {
        Self { secrets: Box::new(EnvSecrets), watchers: Vec::new(), isid: None, portal_group: None }
    }

    /// Sets the source of secrets that the URL does not contain.
    pub fn secrets(mut self, secrets: impl Secrets + Send + Sync + 'static) -> Self {
        self.secrets = Box::new(secrets);
        self
    }

    /// Calls `watcher` with every event from the first attempt to log in on, for as long as it returns true.
    /// It is called on the client's thread and must not block.
    pub fn watch(mut self, watcher: impl FnMut(&Event) -> bool + Send + 'static) -> Self {
        self.watchers.push(Box::new(watcher));
        self
    }

    /// Asks for session reinstatement: the session replaces one with the same ISID from a host of the same
    /// name. The target ends the tasks of the old session before it accepts the login (RFC 7143 §6.3.5).
    pub const fn isid(mut self, isid: [u8; 6]) -> Self {
        self.isid = Some(Isid(isid));
        self
    }

    /// Logs in only in the portal group with this tag. Session reinstatement needs the portal group of the
    /// session that it replaces: a login in another one leaves that session with all its tasks (RFC 7143
    /// §4.4.3). HyperSCSI has no portal groups.
    pub const fn portal_group(mut self, tag: u16) -> Self {
        self.portal_group = Some(PortalGroupTag(tag));
        self
    }

    /// Logs in to the target of a URL and opens its unit as a disk.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn open<U>(self, client: &Client, url: U) -> Result<Disk, Error>
    where
        U: TryInto<Url, Error: Into<Error>>,
    {
        let url = url.try_into().map_err(Into::into)?;
        let session = self.log_in(client, &url).await?;
        Disk::open_unit(session, url.lun).await.map_err(|source| Error::of_unit(&url, source))
    }

    /// Logs in to the target of a URL.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn log_in<U>(self, client: &Client, url: U) -> Result<Session, Error>
    where
        U: TryInto<Url, Error: Into<Error>>,
    {
        let url = url.try_into().map_err(Into::into)?;
        let Self { secrets, watchers, isid, portal_group } = self;
        let mut plan = plan(&url, &*secrets)?;
        if let Some(isid) = isid {
            plan.set_isid(isid);
        }
        if let ProtocolPlan::Iscsi(plan) = &mut plan {
            plan.session.portal_group = portal_group;
        }
        // From here on, the future holds no secret but those in the plan.
        drop(secrets);
        log_in(client, &url, plan, watchers).await
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenOptions")
            .field("isid", &self.isid)
            .field("portal_group", &self.portal_group)
            .finish_non_exhaustive()
    }
}

async fn log_in(
    client: &Client,
    url: &Url,
    plan: ProtocolPlan,
    watchers: Vec<Watcher>,
) -> Result<Session, Error> {
    let target = || format!("{}/{}", url.endpoint, url.target);
    let failed = |source| Error::of_login(target(), &url.endpoint, source);
    let login = client.log_in_planned_watched(plan, watchers);
    let session = login.await.map_err(failed)?;
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
) -> Result<Session, Error> {
    let plan = plan_for(place, Purpose::Discovery, secrets)?;
    let login = client.log_in_planned(plan);
    login.await.map_err(|source| Error::of_login(place.to_string(), place, source))
}
