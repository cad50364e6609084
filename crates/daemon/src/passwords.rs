//! Files of password records (`targe passwd`): reading one, and changing one as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, fchown, flock};
use rustix::process::{Gid, Uid};
use security::opaque::{Password, PasswordRecord, StretchCost};
use security::password_file::{PasswordFile, UserName};
use zeroize::Zeroizing;

use crate::config::secret;
use crate::{file_attributes, os_error, random};

/// Reads a file of password records, which only its owner may be able to read.
///
/// # Errors
/// A fragment that describes the mistake.
pub fn read(path: &Path) -> Result<PasswordFile, String> {
    secret::password_records(path).map_err(|why| why.to_string())
}

/// Returns the text of a new file with the record of one user. This runs Argon2 once, at the cost that is
/// wanted.
///
/// # Errors
/// A fragment that describes what is wrong.
pub fn text_of(user: &UserName, password: &Password, cost: StretchCost) -> Result<Zeroizing<String>, String> {
    let bad_cost = |why| format!("cost {},{},{}: {why}", cost.memory_kib, cost.passes, cost.lanes);
    let record = PasswordRecord::make(password, user.as_str(), cost, entropy()?).map_err(bad_cost)?;
    let mut file = PasswordFile::new(cost, entropy()?).map_err(bad_cost)?;
    file.set(user.clone(), record).map_err(|why| why.to_string())?;
    Ok(file.to_text())
}

/// Stores the record of a user's password, and makes the file if there is none. Returns whether the user had
/// a record before. This is slow on purpose, since it runs Argon2 once.
///
/// # Errors
/// A fragment that describes what is wrong. The file is then as it was before.
pub fn set(path: &Path, user: &UserName, password: &Password, cost: StretchCost) -> Result<bool, String> {
    let bad_cost = |why| format!("cost {},{},{}: {why}", cost.memory_kib, cost.passes, cost.lanes);
    let record = PasswordRecord::make(password, user.as_str(), cost, entropy()?).map_err(bad_cost)?;
    let guarded = Guarded::lock(path)?;
    let mut file = match guarded.read()? {
        Some(file) => file,
        None => PasswordFile::new(cost, entropy()?).map_err(bad_cost)?,
    };
    let known = file.set(user.clone(), record).map_err(|why| format!("{}: {why}", path.display()))?;
    guarded.replace(&file)?;
    Ok(known)
}

/// Removes the record of a user.
///
/// # Errors
/// A fragment that describes what is wrong. The file is then as it was before.
pub fn delete(path: &Path, user: &UserName) -> Result<(), String> {
    let guarded = Guarded::lock(path)?;
    // The error of a file that does not exist is that of reading it.
    let mut file = guarded.read()?.map_or_else(|| read(path), Ok)?;
    if !file.remove(user) {
        return Err(format!("{} has no user \"{}\"", path.display(), user.as_str()));
    }
    guarded.replace(&file)
}

/// A file that no other process changes at the same time.
struct Guarded {
    /// The file itself, where `path` was a symbolic link to it.
    path: PathBuf,
    /// The locked directory. The file cannot carry the lock, because each change replaces it.
    directory: File,
}

impl Guarded {
    fn lock(path: &Path) -> Result<Self, String> {
        let path = match path.is_symlink() {
            true => path.canonicalize().map_err(|error| cannot("use", path, &error))?,
            false => path.to_path_buf(),
        };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let locked = File::open(parent).and_then(|directory| {
            flock(&directory, FlockOperation::LockExclusive).map(|()| directory).map_err(Into::into)
        });
        let directory = locked.map_err(|error| cannot("lock", parent, &error))?;
        Ok(Self { path, directory })
    }

    /// Returns the contents; `None` if the file does not exist.
    fn read(&self) -> Result<Option<PasswordFile>, String> {
        match self.path.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            _ => read(&self.path).map(Some),
        }
    }

    /// Replaces the file as a whole: after a crash it has the old contents or the new ones.
    fn replace(&self, file: &PasswordFile) -> Result<(), String> {
        let mut name = self.path.as_os_str().to_owned();
        name.push(".new");
        let fresh = PathBuf::from(name);
        let written = self.write(&fresh, file.to_text().as_bytes());
        let replaced = written.and_then(|()| fs::rename(&fresh, &self.path));
        replaced.map_err(|error| {
            // Nothing is left of a change that failed. If this fails too, the first error says more.
            let _ = fs::remove_file(&fresh);
            cannot("write", &self.path, &error)
        })?;
        self.directory.sync_all().map_err(|error| cannot("sync the directory of", &self.path, &error))
    }

    /// Opens the file that is replaced, if there is one.
    fn former(&self) -> io::Result<Option<File>> {
        match File::open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            former => former.map(Some),
        }
    }

    fn write(&self, fresh: &Path, text: &[u8]) -> io::Result<()> {
        // A file that a crash left may have another mode.
        match fs::remove_file(fresh) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(fresh)?;
        // The daemon that reads the file may be another user than the one who changes it.
        if let Some(former) = self.former()? {
            let (old, new) = (former.metadata()?, file.metadata()?);
            if (old.uid(), old.gid()) != (new.uid(), new.gid()) {
                fchown(&file, Some(Uid::from_raw(old.uid())), Some(Gid::from_raw(old.gid())))?;
            }
            file_attributes::copy(&former, &file)?;
        }
        file.write_all(text)?;
        file.sync_all()
    }
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> String {
    format!("cannot {what} {}: {}", path.display(), os_error(error))
}

fn entropy() -> Result<[u8; 32], String> {
    random::entropy()
        .map_err(|error| format!("the operating system gives no random bytes: {}", os_error(&error)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::scratch::Scratch;

    const CHEAP: StretchCost = StretchCost { memory_kib: 8, passes: 1, lanes: 1 };

    fn file(scratch: &Scratch, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = scratch.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn user(name: &str) -> UserName {
        UserName::new(name).unwrap()
    }

    fn password(text: &str) -> Password {
        Password::new(text.as_bytes()).unwrap()
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o777
    }

    fn names(path: &Path) -> Vec<String> {
        read(path).unwrap().users().map(|(user, _)| user.as_str().to_owned()).collect()
    }

    #[test]
    fn records_are_added_replaced_and_removed() {
        let scratch = Scratch::new();
        let path = scratch.path().join("passwords");
        assert_eq!(set(&path, &user("alice"), &password("correct horse"), CHEAP), Ok(false));
        assert_eq!(mode(&path), 0o600);
        assert_eq!(set(&path, &user("bob"), &password("battery staple"), CHEAP), Ok(false));
        let first = read(&path).unwrap();
        assert_eq!(set(&path, &user("alice"), &password("another"), CHEAP), Ok(true));
        let second = read(&path).unwrap();
        assert_ne!(first.find("alice"), second.find("alice"));
        assert_eq!(first.find("bob"), second.find("bob"));
        assert_eq!(first.answering("carol"), second.answering("carol"), "the decoy stays");
        assert_eq!(names(&path), ["alice", "bob"]);
        assert_eq!(delete(&path, &user("alice")), Ok(()));
        let gone = delete(&path, &user("alice")).unwrap_err();
        assert_eq!(gone, format!("{} has no user \"alice\"", path.display()));
        assert_eq!(names(&path), ["bob"]);
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("horse") && !text.contains("staple"));
    }

    #[test]
    fn a_file_that_is_open_or_something_else_stays_as_it_is() {
        let scratch = Scratch::new();
        let (alice, secret) = (user("alice"), password("correct horse"));
        let open = scratch.path().join("open");
        set(&open, &alice, &secret, CHEAP).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o640)).unwrap();
        let other = file(&scratch, "other", "correct horse battery\n", 0o600);
        let cut = file(&scratch, "cut", "targe passwords 1\ndecoy 8,1,1 00\n", 0o600);
        for (path, why) in [
            (&open, "secret file PATH can be read by others (mode 640); run: chmod 600 PATH"),
            (&other, "PATH: no password records: the first line is not \"targe passwords 1\""),
            (&cut, "PATH: line 2: not a password record"),
        ] {
            let before = fs::read(path).unwrap();
            let expected = why.replace("PATH", &path.display().to_string());
            assert_eq!(set(path, &alice, &secret, CHEAP), Err(expected.clone()));
            assert_eq!(delete(path, &alice), Err(expected.clone()));
            assert_eq!(read(path), Err(expected));
            assert_eq!(fs::read(path).unwrap(), before);
        }
        let none = scratch.path().join("none");
        assert!(delete(&none, &alice).unwrap_err().contains("no such file or directory"));
        assert!(!none.exists());
        let far = scratch.path().join("missing").join("passwords");
        assert!(set(&far, &alice, &secret, CHEAP).unwrap_err().starts_with("cannot lock "));
        let costly = StretchCost { memory_kib: u32::MAX, ..CHEAP };
        assert!(set(&none, &alice, &secret, costly).unwrap_err().starts_with("cost 4294967295,1,1: "));
        assert!(!none.exists());
    }

    #[test]
    fn a_link_leads_to_the_file_that_changes() {
        let scratch = Scratch::new();
        let (path, link) = (scratch.path().join("passwords"), scratch.path().join("link"));
        set(&path, &user("alice"), &password("correct horse"), CHEAP).unwrap();
        std::os::unix::fs::symlink("passwords", &link).unwrap();
        file(&scratch, "passwords.new", "left by a crash", 0o644);
        set(&link, &user("bob"), &password("correct horse"), CHEAP).unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!((names(&path).len(), mode(&path)), (2, 0o600));
        assert!(!scratch.path().join("passwords.new").exists());
    }

    #[test]
    fn two_changes_at_the_same_time_are_both_kept() {
        let scratch = Scratch::new();
        let path = scratch.path().join("passwords");
        std::thread::scope(|scope| {
            for at in 0..8 {
                let path = &path;
                scope.spawn(move || set(path, &user(&format!("u{at}")), &password("p"), CHEAP).unwrap());
            }
        });
        assert_eq!(names(&path).len(), 8);
    }
}
