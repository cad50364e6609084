//! The folder with the files of volumes and snapshots.
//!
//! A file is made under a temporary name, then its record is written, and then it gets its name; a removal
//! renames it, removes the record, and then the file. So the record decides: a start completes what was
//! under way if there is a record, and undoes it otherwise. A file under its own name is never removed
//! without a request.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, statvfs};
use sha2::{Digest, Sha256};

use crate::error::{CsiError, CsiResult};
use crate::kill_point::kill_point;
use crate::link_free;
use crate::lock;
use crate::record::{NextFile, sync_folder};
use crate::spares::{Spares, is_full};

/// The endings of files that are being made and removed.
const MAKING: &str = "making";
const REMOVING: &str = "removing";
const IMAGE: &str = "img";
/// The longest secret that is read: that of a Secret has 255 bytes.
const SECRET_LEN_MAX: u64 = 4096;

/// The folder, which one driver owns.
#[derive(Debug)]
pub struct Pool {
    folder: PathBuf,
    /// Locked until this is dropped.
    _lock: File,
    owner: (u32, u32),
    can_reflink: bool,
    spares: Spares,
}

impl Pool {
    /// Takes a folder.
    ///
    /// # Errors
    /// Another driver has it, it is no folder, or its path cannot be written in a LUN spec.
    pub fn open(folder: &Path) -> CsiResult<Self> {
        let failed = |what: &str, path: &Path, error: &io::Error| CsiError::io(what, path, error);
        let folder = folder.canonicalize().map_err(|error| failed("open", folder, &error))?;
        if folder.to_str().is_none_or(|path| path.contains([',', '\\'])) {
            let message = format!(
                "the path of the pool {} has a comma or backslash, or is not UTF-8",
                folder.display()
            );
            return Err(CsiError::invalid(message));
        }
        let metadata = fs::metadata(&folder).map_err(|error| failed("open", &folder, &error))?;
        let owner = (metadata.uid(), metadata.gid());
        let own = folder.join(".csi");
        for path in
            [own.clone(), own.join("volumes"), own.join("snapshots"), own.join("groups"), own.join("secrets")]
        {
            // A driver that was killed may have made the folder and not given it away. A link of the owner's
            // must not make another folder theirs.
            let folder = link_free::make_folder(&path).map_err(|error| failed("make", &path, &error))?;
            give(&folder, owner).map_err(|error| failed("give away", &path, &error))?;
        }
        let path = own.join("lock");
        let lock = lock::take(&path).map_err(|error| failed("lock", &path, &error))?.ok_or_else(|| {
            CsiError::precondition(format!("another driver uses the pool {}", folder.display()))
        })?;
        let spare = own.join("spare");
        let made = link_free::make_folder(&spare).and_then(|folder| give(&folder, owner));
        // A pool of an earlier version can be full already: volumes can be removed nevertheless.
        made.or_else(|error| if is_full(&error) { Ok(()) } else { Err(failed("make", &spare, &error)) })?;
        let spares = Spares::open(spare);
        let mut pool = Self { folder, _lock: lock, owner, can_reflink: false, spares };
        pool.can_reflink = pool.try_reflink()?;
        Ok(pool)
    }

    /// Returns the folder of the records of volumes.
    pub fn volumes(&self) -> PathBuf {
        self.folder.join(".csi/volumes")
    }

    /// Returns the folder of the records of snapshots.
    pub fn snapshots(&self) -> PathBuf {
        self.folder.join(".csi/snapshots")
    }

    /// Returns the folder of the records of groups.
    pub fn groups(&self) -> PathBuf {
        self.folder.join(".csi/groups")
    }

    /// Returns whether files of the folder can share storage.
    pub const fn can_reflink(&self) -> bool {
        self.can_reflink
    }

    /// Returns the storage for records and secrets when the file system is full.
    pub(crate) const fn spares(&self) -> &Spares {
        &self.spares
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Returns the file of a volume or snapshot.
    pub fn image(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.{IMAGE}"))
    }

    /// Returns the file of a volume or snapshot while it is made.
    pub fn making(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.{MAKING}"))
    }

    /// Returns the free bytes of the file system.
    ///
    /// # Errors
    /// The file system does not tell.
    pub fn free_bytes(&self) -> CsiResult<u64> {
        let usage =
            statvfs(&self.folder).map_err(|error| CsiError::io("measure", &self.folder, &error.into()))?;
        Ok(usage.f_bavail.saturating_mul(usage.f_frsize))
    }

    /// Makes the file of a volume under its temporary name: empty, or as a copy that shares storage.
    ///
    /// # Errors
    /// A file system that refuses it.
    pub fn make(&self, id: &str, copy_of: Option<&Path>) -> CsiResult<()> {
        let path = self.making(id);
        let failed = |error: io::Error| CsiError::io("make", &path, &error);
        let file = link_free::create(&path).map_err(failed)?;
        give(&file, self.owner).map_err(failed)?;
        if let Some(source) = copy_of {
            let from = link_free::open(source, OFlags::RDONLY).map_err(|error| match error.kind() {
                ErrorKind::NotFound => CsiError::not_found("the source was removed meanwhile"),
                _ => CsiError::io("open", source, &error),
            })?;
            share_storage(&file, &from).map_err(failed)?;
        }
        kill_point()
    }

    /// Enlarges a file, durably. It is never made shorter. Returns its length.
    ///
    /// # Errors
    /// A file system that refuses it.
    pub fn enlarge(&self, path: &Path, bytes: u64) -> CsiResult<u64> {
        let failed = |error: io::Error| CsiError::io("enlarge", path, &error);
        let file = link_free::open(path, OFlags::WRONLY).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        if len < bytes {
            file.set_len(bytes).map_err(failed)?;
        }
        file.sync_all().map_err(failed)?;
        kill_point()?;
        Ok(len.max(bytes))
    }

    /// Returns the length of the file of a volume.
    ///
    /// # Errors
    /// The file is not there.
    pub fn len(&self, id: &str) -> CsiResult<u64> {
        let path = self.image(id);
        let file = link_free::open(&path, OFlags::RDONLY).and_then(|file| file.metadata());
        Ok(file.map_err(|error| CsiError::io("open", &path, &error))?.len())
    }

    /// Gives a file that was made its name, after its record was written.
    ///
    /// # Errors
    /// A file system that refuses it.
    pub fn finish(&self, id: &str) -> CsiResult<()> {
        self.rename(&self.making(id), &self.image(id))
    }

    /// Gives a file its name if that failed before.
    ///
    /// # Errors
    /// A file system that refuses it; the file is being removed.
    pub fn finish_again(&self, id: &str) -> CsiResult<()> {
        if link_free::exists(&self.removing(id)) {
            return Err(CsiError::aborted(format!("the removal of {id} has begun and must be repeated")));
        }
        if link_free::exists(&self.making(id)) { self.finish(id) } else { Ok(()) }
    }

    /// Returns the IDs of the files that are being made.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn being_made(&self) -> CsiResult<Vec<String>> {
        let failed = |error: io::Error| CsiError::io("read", &self.folder, &error);
        let mut ids = Vec::new();
        for name in link_free::names(&self.folder).map_err(failed)? {
            let path = self.folder.join(name);
            if path.extension().is_some_and(|ending| ending == MAKING) {
                ids.extend(stem(&path));
            }
        }
        Ok(ids)
    }

    /// Removes a file that was made and has no record.
    pub fn undo(&self, id: &str) {
        // Otherwise the next start removes it.
        let _ = link_free::remove(&self.making(id));
    }

    /// Renames a file before its record is removed. Nothing happens if that was done already, or if there is
    /// no file.
    ///
    /// # Errors
    /// A file system that refuses it.
    pub fn begin_removal(&self, id: &str) -> CsiResult<()> {
        let removing = self.removing(id);
        // A file whose making failed has its temporary name still.
        let file = [self.image(id), self.making(id)].into_iter().find(|path| link_free::exists(path));
        match file {
            Some(file) if !link_free::exists(&removing) => self.rename(&file, &removing),
            _ => Ok(()),
        }
    }

    /// Removes a file whose record is removed, if there is one.
    ///
    /// # Errors
    /// A file system that refuses it.
    pub fn end_removal(&self, id: &str) -> CsiResult<()> {
        let path = self.removing(id);
        match link_free::remove(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(CsiError::io("remove", &path, &error)),
            _ => {
                self.spares.stock();
                kill_point()
            }
        }
    }

    fn removing(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.{REMOVING}"))
    }

    fn rename(&self, from: &Path, to: &Path) -> CsiResult<()> {
        let renamed = self.spares.with_room(|| link_free::rename(from, to));
        renamed.map_err(|error| CsiError::io("rename", from, &error))?;
        sync_folder(to)?;
        kill_point()
    }

    /// Completes or undoes what a driver left half done. Returns what belongs to nothing, and stays.
    ///
    /// # Errors
    /// A file system that refuses it.
    pub fn recover(&self, recorded: &BTreeSet<String>) -> CsiResult<Vec<PathBuf>> {
        let mut strangers = Vec::new();
        let failed = |error: io::Error| CsiError::io("read", &self.folder, &error);
        for name in link_free::names(&self.folder).map_err(failed)? {
            let path = self.folder.join(name);
            let (Some(id), Some(ending)) = (stem(&path), path.extension()) else { continue };
            let is_recorded = recorded.contains(&id);
            match ending.to_str() {
                Some(MAKING | REMOVING) if is_recorded => self.rename(&path, &self.image(&id))?,
                Some(MAKING | REMOVING) => {
                    link_free::remove(&path).map_err(|error| CsiError::io("remove", &path, &error))?;
                }
                Some(IMAGE) if !is_recorded => strangers.push(path),
                _ => {}
            }
        }
        Ok(strangers)
    }

    /// Returns the file with the secret of a node for a volume.
    pub fn secret(&self, volume: &str, node: &str) -> PathBuf {
        self.folder.join(".csi/secrets").join(format!("{volume}.{}.secret", key_of(node)))
    }

    /// Returns the file with the password record of a node for a volume, under the name of a user.
    pub fn password_file(&self, volume: &str, node: &str, user: &str) -> PathBuf {
        let key = key_of(&format!("{node} {user}"));
        self.folder.join(".csi/secrets").join(format!("{volume}.{key}.passwords"))
    }

    /// Writes a secret and the password record that `make` makes of it, durably. The secret is put in place
    /// last: where it is, the record is the one of this secret. Files that say the same already stay.
    ///
    /// # Errors
    /// A file system that refuses it, or `make`. If there is no room, the former files stay.
    pub fn write_password(
        &self,
        path: &Path,
        secret: &str,
        password_file: &Path,
        make: impl FnOnce() -> CsiResult<Vec<u8>>,
    ) -> CsiResult<()> {
        if self.has_secret(path, secret) && self.is_readable(password_file) {
            sync_folder(path)?;
            return kill_point();
        }
        let passwords = self.next_file(password_file, &make()?)?;
        let next = self.next_file(path, secret.as_bytes())?;
        kill_point()?;
        self.spares.recycle(path);
        match link_free::remove(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(CsiError::io("remove", path, &error));
            }
            _ => sync_folder(path)?,
        }
        kill_point()?;
        passwords.put_in_place()?;
        kill_point()?;
        next.put_in_place()?;
        kill_point()
    }

    /// Writes a secret durably. A file that has it already stays.
    ///
    /// # Errors
    /// A file system that refuses it.
    pub fn write_secret(&self, path: &Path, secret: &str) -> CsiResult<()> {
        if self.has_secret(path, secret) {
            sync_folder(path)?;
        } else {
            self.next_file(path, secret.as_bytes())?.put_in_place()?;
        }
        kill_point()
    }

    /// Writes the next contents of a file with a secret. The daemon can read the file as soon as it appears.
    fn next_file(&self, path: &Path, content: &[u8]) -> CsiResult<NextFile<'_>> {
        NextFile::write(path, content, |file| give(file, self.owner), Some(&self.spares))
    }

    /// Removes a file with a secret that no publication has any more.
    pub fn remove_secret(&self, path: &Path) {
        self.spares.recycle(path);
    }

    /// Returns whether a file has a secret, and the daemon can read it.
    fn has_secret(&self, path: &Path, secret: &str) -> bool {
        self.is_readable(path) && self.read_secret(path).is_some_and(|text| text == secret)
    }

    /// Returns the secret in a file, if there is one. A secret that was being removed can be empty.
    pub fn read_secret(&self, path: &Path) -> Option<String> {
        let mut text = String::new();
        let file = link_free::open(path, OFlags::RDONLY).ok()?;
        file.take(SECRET_LEN_MAX).read_to_string(&mut text).ok().map(|_| text).filter(|text| !text.is_empty())
    }

    /// Returns whether a file is there, and only the daemon can read it.
    fn is_readable(&self, path: &Path) -> bool {
        let is_own = |found: fs::Metadata| found.mode() & 0o077 == 0 && !is_to_give(&found, self.owner);
        link_free::open(path, OFlags::RDONLY).and_then(|file| file.metadata()).is_ok_and(is_own)
    }

    /// Removes the secrets that are not in a list.
    ///
    /// # Errors
    /// A file system that refuses it.
    pub fn keep_secrets(&self, wanted: &BTreeSet<PathBuf>) -> CsiResult<()> {
        let folder = self.folder.join(".csi/secrets");
        let failed = |error: io::Error| CsiError::io("read", &folder, &error);
        for name in link_free::names(&folder).map_err(failed)? {
            let path = folder.join(name);
            if !wanted.contains(&path) {
                link_free::remove(&path).map_err(|error| CsiError::io("remove", &path, &error))?;
            }
        }
        Ok(())
    }

    /// Finds out whether files of the folder can share storage.
    fn try_reflink(&self) -> CsiResult<bool> {
        const LEN: usize = 4096;
        let paths = [self.folder.join(".csi/reflink-from"), self.folder.join(".csi/reflink-to")];
        let [from, to] = &paths;
        let tried = (|| {
            self.spares.make(from, LEN, |file| file.write_all(&[1; LEN]))?;
            self.spares.make(to, 0, |_| Ok(()))?;
            let source = link_free::open(from, OFlags::RDONLY)?;
            Ok(share_storage(&link_free::open(to, OFlags::WRONLY)?, &source).is_ok())
        })();
        for path in &paths {
            self.spares.recycle(path);
        }
        tried.or_else(|error| match is_full(&error) {
            true => {
                let folder = self.folder.display();
                eprintln!("targe: {folder} is full: volumes are not copied until the next start with room");
                Ok(false)
            }
            false => Err(CsiError::io("write", from, &error)),
        })
    }
}

/// Makes a file have the contents of another one, in the same storage.
#[cfg(not(test))]
fn share_storage(to: &File, from: &File) -> io::Result<()> {
    Ok(rustix::fs::ioctl_ficlone(to, from)?)
}

/// Copies a file, so that tests run on any file system.
#[cfg(test)]
fn share_storage(mut to: &File, mut from: &File) -> io::Result<()> {
    io::copy(&mut from, &mut to).map(drop)
}

/// Gives a file to the owner of the folder, as whom the daemon runs, where this process is another user.
fn give(file: &File, (user, group): (u32, u32)) -> io::Result<()> {
    match is_to_give(&file.metadata()?, (user, group)) {
        true => fchown(file, Some(user), Some(group)),
        false => Ok(()),
    }
}

/// Returns whether a file has another owner than it should, and this process can change that.
fn is_to_give(file: &fs::Metadata, (user, _): (u32, u32)) -> bool {
    file.uid() != user && rustix::process::geteuid().is_root()
}

/// Returns the ID that a file is named after, if the controller made it.
fn stem(path: &Path) -> Option<String> {
    let stem = path.file_stem()?.to_str()?;
    is_id(stem).then(|| stem.to_owned())
}

/// Returns whether a text has the form of an ID: a letter and 32 hexadecimal digits.
pub fn is_id(text: &str) -> bool {
    let digits = ["v-", "s-", "g-"].iter().find_map(|kind| text.strip_prefix(kind));
    digits.is_some_and(|digits| {
        digits.len() == 32 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Returns a name for a file of a node.
fn key_of(text: &str) -> String {
    Sha256::digest(text).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const NOBODY: u32 = 65534;

    /// Makes a folder that the daemon's user owns. `None` if this process cannot give it away.
    fn folder(name: &str) -> Option<PathBuf> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let folder = std::env::temp_dir().join(format!("targe-csi-pool-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        chown(&folder, Some(NOBODY), Some(NOBODY)).unwrap();
        Some(folder)
    }

    fn owner(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().uid()
    }

    #[test]
    fn a_folder_that_was_made_and_not_given_away_is_given_away_by_the_next_start() {
        let Some(folder) = folder("folders") else { return };
        let paths = [".csi", ".csi/volumes", ".csi/secrets"].map(|path| folder.join(path));
        for path in &paths {
            fs::create_dir(path).unwrap();
        }
        drop(Pool::open(&folder).unwrap());
        for path in &paths {
            assert_eq!(owner(path), NOBODY, "{}", path.display());
        }
        // The owner cannot get another folder by a link.
        let other = folder.join("other");
        fs::create_dir(&other).unwrap();
        fs::remove_dir(&paths[2]).unwrap();
        std::os::unix::fs::symlink(&other, &paths[2]).unwrap();
        assert!(Pool::open(&folder).is_err());
        assert_eq!(owner(&other), 0);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_daemon_can_read_a_secret_whenever_there_is_one() {
        let Some(folder) = folder("secrets") else { return };
        let pool = Pool::open(&folder).unwrap();
        let path = pool.secret("v", "node");
        pool.write_secret(&path, "first").unwrap();
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::SeqCst) {
                    assert_eq!(owner(&path), NOBODY);
                }
            });
            for number in 0..50 {
                pool.write_secret(&path, &number.to_string()).unwrap();
            }
            ends.store(true, Ordering::SeqCst);
        });
        let file = || fs::metadata(&path).unwrap().ino();
        let known = file();
        pool.write_secret(&path, "49").unwrap();
        assert_eq!(file(), known, "an equal file was replaced");
        chown(&path, Some(0), None).unwrap();
        pool.write_secret(&path, "49").unwrap();
        assert_eq!((owner(&path), fs::read_to_string(&path).unwrap().as_str()), (NOBODY, "49"));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn no_link_of_the_owner_makes_the_controller_write_or_give_away_another_file() {
        let Some(folder) = folder("links") else { return };
        let other = std::env::temp_dir().join(format!("targe-csi-pool-root-{}", std::process::id()));
        fs::write(&other, "data of root").unwrap();
        let link = |path: &Path| {
            let _ = fs::remove_file(path);
            std::os::unix::fs::symlink(&other, path).unwrap();
            std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        };
        fs::create_dir(folder.join(".csi")).unwrap();
        for path in ["reflink-from", "reflink-to"] {
            link(&folder.join(".csi").join(path));
        }
        let pool = Pool::open(&folder).unwrap();
        let secret = pool.secret("v", "node");
        link(&secret.with_extension("new"));
        link(&secret);
        pool.write_secret(&secret, "first").unwrap();
        let id = format!("v-{:032x}", 7);
        for path in [pool.making(&id), pool.image(&id)] {
            link(&path);
            assert!(pool.enlarge(&path, 1 << 20).is_err());
        }
        assert!(pool.len(&id).is_err() && pool.make(&id, None).is_err());
        assert!(crate::ext::replay_journal(&pool.image(&id)).is_err());
        drop(pool);
        link(&folder.join(".csi/lock"));
        assert!(Pool::open(&folder).is_err());
        assert_eq!((owner(&other), fs::read_to_string(&other).unwrap().as_str()), (0, "data of root"));
        fs::remove_file(&other).unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }
}
