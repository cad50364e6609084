//! The daemon as the controller sees it: edits of its configuration file that are applied in one step, as by
//! `targe target` and `targe lun`.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use csi::target_admin::{Access, AdminError, TargetAdmin, VolumeTarget};
use daemon::admin::api::{Method, Request, Status};
use daemon::admin::lun_api::{LunList, LunSelector, Snapshot, Snapshots};
use daemon::config::{AuthPlace, Edit};
use daemon::config_file::LockedFile;

use crate::change::{ChangeArgs, Target, call, candidate_of_all};
use crate::{Failure, daemon_socket};

/// How long a snapshot may take: writing out and cloning take at most 240 seconds each, and nearly always
/// seconds.
const SNAPSHOT_MAX: Duration = Duration::from_secs(250);

/// A running daemon.
pub(super) struct Daemon {
    /// Its admin socket.
    socket: Option<PathBuf>,
    /// Held by the call that edits the configuration. Calls that wait for their turn have no connection: the
    /// daemon has few, and disconnects idle clients when there are more.
    editing: Mutex<()>,
}

impl Daemon {
    pub(super) const fn new(socket: Option<PathBuf>) -> Self {
        Self { socket, editing: Mutex::new(()) }
    }

    /// Makes edits in one step. They are chosen by whether the file has the target.
    fn edit(&self, name: &str, action: &str, edits: impl Fn(bool) -> Vec<Edit>) -> Result<(), AdminError> {
        let _editing = self.editing.lock().unwrap_or_else(PoisonError::into_inner);
        self.status()?;
        let how = ChangeArgs { dry_run: false, socket: self.socket.clone(), json: true };
        let mut target = Target::open(&how, LockedFile::open).map_err(refused)?;
        // Without this, a file with mistakes would look like one that lacks the target.
        candidate_of_all(&[], action, true, target.file()).map_err(refused)?;
        let remove = [Edit::RemoveTarget { name: name.to_owned() }];
        let exists = candidate_of_all(&remove, action, true, target.file()).is_ok();
        let edits = edits(exists);
        if edits.is_empty() {
            if self.serves(name)? {
                return Err(AdminError::Refused(format!(
                    "the daemon serves {name}, but its configuration file, which was edited and not applied, lacks it or \
                     cannot be edited; run targe apply, or undo the edit"
                )));
            }
            return Ok(());
        }
        let candidate = candidate_of_all(&edits, action, true, target.file()).map_err(refused)?;
        target.change_quietly(&candidate, &how).map_err(refused)
    }

    fn serves(&self, name: &str) -> Result<bool, AdminError> {
        Ok(self.status()?.targets.iter().any(|target| target.name == name))
    }

    fn status(&self) -> Result<Status, AdminError> {
        let unavailable = |failure| AdminError::Unavailable(message(failure));
        let mut connection = daemon_socket::connect(self.socket.as_deref()).map_err(unavailable)?;
        call(&mut connection, &Request::new(Method::Status)).map_err(unavailable)
    }
}

impl TargetAdmin for Daemon {
    fn serve(&self, target: &VolumeTarget) -> Result<(), AdminError> {
        self.edit(&target.name, "csi publish", |exists| {
            let remove = exists.then(|| Edit::RemoveTarget { name: target.name.clone() });
            remove.into_iter().chain(additions(target)).collect()
        })
    }

    fn remove(&self, name: &str) -> Result<(), AdminError> {
        self.edit(name, "csi unpublish", |exists| {
            exists.then(|| Edit::RemoveTarget { name: name.to_owned() }).into_iter().collect()
        })
    }

    fn snapshots(&self, wanted: &[(String, PathBuf)]) -> Result<Vec<bool>, AdminError> {
        let targets = self.status()?.targets;
        let is_served = |name: &str| targets.iter().any(|target| target.name == name);
        let served: Vec<bool> = wanted.iter().map(|(name, _)| is_served(name)).collect();
        let selector = |(name, to): &(String, PathBuf)| LunSelector {
            target: name.clone(),
            lun: 0,
            path: to.to_str().map(str::to_owned),
            wait_s: None,
        };
        let luns = wanted.iter().zip(&served).filter(|(_, served)| **served).map(|(one, _)| selector(one));
        let mut luns: Vec<LunSelector> = luns.collect();
        if luns.is_empty() {
            return Ok(served);
        }
        let mut connection = daemon_socket::connect(self.socket.as_deref()).map_err(refused)?;
        connection.wait_for(SNAPSHOT_MAX).map_err(|error| AdminError::Unavailable(error.to_string()))?;
        if luns.len() == 1 {
            // A daemon that was not replaced yet knows this one only.
            let request = Request { lun: luns.pop(), ..Request::new(Method::SnapshotLun) };
            let _: Snapshot = call(&mut connection, &request).map_err(refused)?;
        } else {
            let request = Request { luns: Some(LunList { luns }), ..Request::new(Method::SnapshotLuns) };
            let _: Snapshots = call(&mut connection, &request).map_err(refused)?;
        }
        Ok(served)
    }

    fn is_alive(&self) -> bool {
        self.status().is_ok()
    }
}

/// Returns the edits that add a target.
fn additions(target: &VolumeTarget) -> Vec<Edit> {
    let VolumeTarget { name, file, bytes, naa, serial, settings, access } = target;
    let settings: String = settings.iter().map(|(key, value)| format!(",{key}={value}")).collect();
    let lun = format!("file:{},lun=0,size={bytes},naa={naa},serial={serial}{settings}", file.display());
    let mut edits = vec![Edit::AddTarget { name: name.clone(), luns: vec![lun], settings: Vec::new() }];
    for Access { initiator, read_only, user, secret_file } in access {
        edits.push(Edit::AddAcl {
            target: name.clone(),
            initiators: vec![initiator.clone()],
            settings: read_only.then(|| ("ro".to_owned(), "true".to_owned())).into_iter().collect(),
            first: false,
        });
        edits.push(Edit::AddUser {
            place: AuthPlace::Initiator(name.clone(), initiator.clone()),
            user: user.clone(),
            settings: vec![("secret_file".to_owned(), secret_file.display().to_string())],
        });
    }
    edits
}

fn refused(failure: Failure) -> AdminError {
    AdminError::Refused(message(failure))
}

fn message(failure: Failure) -> String {
    match failure {
        Failure::Failed(message) | Failure::Misused(message) | Failure::Misconfigured(message) => {
            message.trim_end().replace('\n', "; ")
        }
    }
}
