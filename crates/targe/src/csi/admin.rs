//! The daemon as the controller sees it: edits of its configuration file that are applied in one step, as by
//! `targe target` and `targe lun`.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use csi::target_admin::{Access, AdminError, Login, Strength, TargetAdmin, VolumeTarget};
use daemon::admin::api::{Method, Request, Status};
use daemon::admin::lun_api::{LunList, LunSelector, Snapshot, Snapshots};
use daemon::config::{AuthPlace, Edit};
use daemon::config_file::LockedFile;
use security::opaque::{Password, StretchCost, USUAL_COST};
use security::password_file::UserName;

use crate::change::{ChangeArgs, Target, call, candidate_of_all, has_target};
use crate::{Failure, daemon_socket};

/// How long a snapshot may take: writing out and cloning take at most 240 seconds each, and nearly always
/// seconds.
const SNAPSHOT_MAX: Duration = Duration::from_secs(250);

/// The cost of trying a password that nobody can guess anyway.
const LEAST_COST: StretchCost = StretchCost { memory_kib: 8, passes: 1, lanes: 1 };

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
        let source = target.source().map_err(refused)?;
        let edits = edits(has_target(name, &source).map_err(refused)?);
        if edits.is_empty() {
            if self.serves(name)? {
                return Err(AdminError::Refused(format!(
                    "the daemon serves {name}, but its configuration file, which was edited and not applied, lacks it or \
                     cannot be edited; run targe apply, or undo the edit"
                )));
            }
            return Ok(());
        }
        let candidate = candidate_of_all(&edits, action, true, &source).map_err(refused)?;
        target.change_quietly(&candidate, &how).map_err(refused)
    }

    /// Fails if the daemon does not answer, and says why.
    pub(super) fn expect_answer(&self) -> Result<(), AdminError> {
        self.status().map(drop)
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
        self.edit(&target.name, "csi publish", |exists| edits(target, exists))
    }

    fn password_records(
        &self,
        user: &str,
        password: &str,
        strength: Strength,
    ) -> Result<Vec<u8>, AdminError> {
        let cost = match strength {
            Strength::Random => LEAST_COST,
            Strength::Chosen => USUAL_COST,
        };
        let user = UserName::new(user).map_err(|why| AdminError::Refused(why.to_string()))?;
        let password =
            Password::new(password.as_bytes()).map_err(|why| AdminError::Refused(why.to_string()))?;
        let text = daemon::passwords::text_of(&user, &password, cost).map_err(AdminError::Refused)?;
        Ok(text.as_bytes().to_vec())
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

/// Returns the edits that add a target, or replace the one that exists.
fn edits(target: &VolumeTarget, exists: bool) -> Vec<Edit> {
    let VolumeTarget { name, file, bytes, naa, serial, settings, protection, access } = target;
    let own_name = name.clone();
    let settings: String = settings.iter().map(|(key, value)| format!(",{key}={value}")).collect();
    let lun = format!("file:{},lun=0,size={bytes},naa={naa},serial={serial}{settings}", file.display());
    let luns = vec![lun];
    let settings = match protection.needs_keys() {
        true => vec![("session.protection".to_owned(), protection.name().to_owned())],
        false => Vec::new(),
    };
    let mut edits = vec![match exists {
        true => Edit::ReplaceTarget { name: own_name, luns, settings },
        false => Edit::AddTarget { name: own_name, luns, settings },
    }];
    for Access { initiator, read_only, login } in access {
        edits.push(Edit::AddAcl {
            target: name.clone(),
            initiators: vec![initiator.clone()],
            settings: read_only.then(|| ("ro".to_owned(), "true".to_owned())).into_iter().collect(),
            first: false,
        });
        let place = AuthPlace::Initiator(name.clone(), initiator.clone());
        edits.push(match login {
            Login::Chap { user, secret_file } => Edit::AddUser {
                place,
                user: user.clone(),
                settings: vec![("secret_file".to_owned(), secret_file.display().to_string())],
            },
            Login::Password { password_file } => {
                Edit::AddPasswordFile { place, password_file: password_file.display().to_string() }
            }
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

#[cfg(test)]
mod tests {
    use csi::protection::Protection;
    use security::password_file::PasswordFile;

    use super::*;

    #[test]
    fn an_encrypted_volume_is_served_with_the_password_login_only() {
        let target = |protection: Protection, login: Login| VolumeTarget {
            name: "iqn.2026-11.example:csi:v".to_owned(),
            file: PathBuf::from("/pool/v.img"),
            bytes: 1 << 20,
            naa: "315f136e330e8165".to_owned(),
            serial: "1".to_owned(),
            settings: Vec::new(),
            protection,
            access: vec![Access { initiator: "iqn.2026-11.example:n".to_owned(), read_only: false, login }],
        };
        let login = Login::Password { password_file: PathBuf::from("/pool/p") };
        let [target_edit, _, login_edit] = &edits(&target(Protection::Encrypt, login), false)[..] else {
            panic!("three edits");
        };
        let settings = vec![("session.protection".to_owned(), "encrypt".to_owned())];
        assert!(matches!(target_edit, Edit::AddTarget { settings: found, .. } if *found == settings));
        assert!(
            matches!(login_edit, Edit::AddPasswordFile { password_file, .. } if password_file == "/pool/p")
        );
        let login = Login::Chap { user: "u".to_owned(), secret_file: PathBuf::from("/pool/s") };
        let [target_edit, _, login_edit] = &edits(&target(Protection::None, login), true)[..] else {
            panic!("three edits");
        };
        assert!(matches!(target_edit, Edit::ReplaceTarget { settings, .. } if settings.is_empty()));
        assert!(matches!(login_edit, Edit::AddUser { user, .. } if user == "u"));
    }

    #[test]
    fn a_password_is_recorded_at_a_cost_of_its_strength() {
        let daemon = Daemon::new(None);
        for (strength, cost) in [(Strength::Random, LEAST_COST), (Strength::Chosen, USUAL_COST)] {
            let text = daemon.password_records("v-1", "0123456789abcdef", strength).unwrap();
            let file = PasswordFile::parse(&text).unwrap();
            assert_eq!(file.find("v-1").unwrap().cost(), cost);
        }
        assert!(daemon.password_records("v\n1", "0123456789abcdef", Strength::Random).is_err());
    }
}
