//! The identity file of a state directory, which the first start makes.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use super::ServeError;
use super::state;
use crate::config::{StateIdentity, machine_hash};

/// Bytes of a salt.
const SALT_LEN: usize = 16;

/// Makes the identity file of a state directory if there is none, and reports that the directory was used on
/// another host before. Returns whether the names that are derived for disks have changed: the configuration
/// must be read again.
///
/// A directory that a release without identity files has used gets no salt, so that its disks keep their
/// names.
///
/// # Errors
/// The directory or the file cannot be used.
pub(super) fn ensure(state_dir: &Path, host: &str) -> Result<bool, ServeError> {
    let failed = |what: &str, error: &io::Error| {
        let file = StateIdentity::file(state_dir);
        ServeError::Failed(format!("cannot {what} {}: {}", file.display(), crate::os_error(error)))
    };
    let machine = machine_hash(host);
    if let Some(known) = StateIdentity::read(state_dir).map_err(|error| failed("read", &error))? {
        if known.machine != machine {
            crate::warning!(
                "the state directory {} was used on another machine before: if that machine, or the one that this one \
                 is a copy of, still serves its disks, hosts take two disks for one; then give the LUNs here another \
                 naa and serial",
                state_dir.display()
            );
            let known = StateIdentity { machine, ..known };
            state::replace(&StateIdentity::file(state_dir), known.to_text().as_bytes())?;
        }
        return Ok(false);
    }
    let salt = if StateIdentity::is_unused(state_dir) {
        let bytes = crate::random::entropy().map_err(|error| failed("get random bytes for", &error))?;
        Some(bytes.iter().take(SALT_LEN).map(|byte| format!("{byte:02x}")).collect())
    } else {
        None
    };
    let made = DirBuilder::new().recursive(true).mode(0o700).create(state_dir);
    made.and_then(|()| create(state_dir, &StateIdentity { salt, machine }))
        .map_err(|error| failed("write", &error))?;
    let identity = StateIdentity::read(state_dir).map_err(|error| failed("read", &error))?;
    Ok(identity.is_some_and(|identity| identity.salt.is_some()))
}

/// Makes the file unless another process has made it meanwhile.
fn create(state_dir: &Path, identity: &StateIdentity) -> io::Result<()> {
    let fresh = state_dir.join(format!("identity.new.{}", std::process::id()));
    state::write_durably(&fresh, identity.to_text().as_bytes())?;
    let file = StateIdentity::file(state_dir);
    match fs::hard_link(&fresh, &file) {
        Ok(()) => fs::remove_file(&fresh)?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => fs::remove_file(&fresh)?,
        // The file system has no links.
        Err(_) => fs::rename(&fresh, &file)?,
    }
    File::open(state_dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn salt(state_dir: &Path) -> Option<String> {
        StateIdentity::read(state_dir).unwrap().unwrap().salt
    }

    #[test]
    fn the_first_start_makes_a_salt_of_its_own_and_keeps_it() {
        let scratch = Scratch::new();
        let [one, other] = ["one", "other"].map(|name| scratch.path().join(name).join("state"));
        assert!(ensure(&one, "host").unwrap());
        let first = salt(&one).unwrap();
        assert!(!ensure(&one, "host").unwrap());
        assert_eq!(salt(&one).as_deref(), Some(first.as_str()));
        assert!(ensure(&other, "host").unwrap());
        assert_ne!(salt(&other).unwrap(), first);
        assert_eq!(fs::read_dir(&one).unwrap().count(), 1, "a temporary file is left");
    }

    #[test]
    fn a_directory_that_has_been_used_keeps_the_names_of_its_disks() {
        for used in ["ports", "bindings", "audit.log", "units/3000000000000001.state"] {
            let scratch = Scratch::new();
            fs::create_dir(scratch.path().join("units")).unwrap();
            fs::write(scratch.path().join(used), "").unwrap();
            assert!(!ensure(scratch.path(), "host").unwrap(), "{used}");
            assert_eq!(salt(scratch.path()), None, "{used}");
        }
    }

    #[test]
    fn another_machine_is_recorded_and_the_names_stay() {
        let scratch = Scratch::new();
        ensure(scratch.path(), "host").unwrap();
        let before = StateIdentity::read(scratch.path()).unwrap().unwrap();
        assert!(!ensure(scratch.path(), "another host").unwrap());
        let after = StateIdentity::read(scratch.path()).unwrap().unwrap();
        assert_eq!(after, StateIdentity { machine: machine_hash("another host"), ..before });
    }

    #[test]
    fn a_damaged_file_stops_the_start() {
        let scratch = Scratch::new();
        fs::write(StateIdentity::file(scratch.path()), "targe identity 1\n").unwrap();
        assert!(ensure(scratch.path(), "host").is_err());
    }
}
