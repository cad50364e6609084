//! A small file that is replaced as a whole, and whose replacement needs no new storage: hosts' data may have
//! filled the file system by then.
//!
//! Next to the file is a second one, with `.new` at the end of its name. New contents are written into that,
//! over storage that it has already, and made durable; then both files exchange their names. The former file
//! is the second one after that. Both hold storage for longer contents than they have. Nobody reads the
//! second file: a crash can leave anything in it.
//!
//! File systems that cannot exchange names (NFS) or reserve storage need new storage for each replacement.
//! Everything here blocks.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use base::int_cast::to_u64;
use rustix::fs::{CWD, FallocateFlags, RenameFlags, fallocate, renameat_with};
use rustix::io::Errno;

/// Returns the path of the second file.
pub fn second_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

/// Reserves storage of `len` bytes for the file, if it is there, and for the second one, so that contents of
/// that length can be written when the file system is full. What cannot be reserved is needed later.
pub fn reserve(path: &Path, len: u64) {
    let second =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(second_path(path));
    for file in [OpenOptions::new().write(true).open(path), second].into_iter().flatten() {
        reserve_in(&file, len);
    }
}

/// Writes the next contents into the second file, durably. Storage of `reserve` bytes is kept for it.
/// [`exchange`] makes it the file.
///
/// # Errors
/// The error of the system.
pub fn write_next(path: &Path, bytes: &[u8], reserve: u64) -> io::Result<()> {
    let second = second_path(path);
    match second.symlink_metadata() {
        // Until the exchange that made it the second file is durable, it is the one that a loss of power
        // leaves.
        Ok(found) if found.is_file() => {
            if let Some(folder) = path.parent() {
                File::open(folder)?.sync_all()?;
            }
        }
        // Whatever a link leads to is not ours.
        Ok(_) => std::fs::remove_file(&second)?,
        Err(_) => {}
    }
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(second)?;
    let len = to_u64(bytes.len());
    if file.metadata()?.len() > len {
        file.set_len(len)?;
    }
    reserve_in(&file, reserve.max(len));
    file.write_all_at(bytes, 0)?;
    file.sync_all()
}

/// Exchanges the names of the file and of the second one. Synchronizing the folder makes that durable.
///
/// # Errors
/// The error of the system. The file is the former one then.
pub fn exchange(path: &Path, reserve: u64) -> io::Result<()> {
    let second = second_path(path);
    let is_file = path.symlink_metadata().is_ok_and(|found| found.is_file());
    let exchanged = match is_file {
        true => renameat_with(CWD, &second, CWD, path, RenameFlags::EXCHANGE),
        false => Err(Errno::NOENT),
    };
    match exchanged {
        // There is no file yet, or a link, or the file system cannot exchange names.
        Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            std::fs::rename(&second, path)?;
            self::reserve(path, reserve);
            Ok(())
        }
        exchanged => Ok(exchanged?),
    }
}

/// Removes the second file, because the file is gone.
pub fn forget(path: &Path) {
    // It holds nothing that anybody reads.
    let _ = std::fs::remove_file(second_path(path));
}

fn reserve_in(file: &File, len: u64) {
    // A file system that cannot reserve storage may have some when it is needed.
    let _ = fallocate(file, FallocateFlags::KEEP_SIZE, 0, len.max(1));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const RESERVED: u64 = 64 << 10;

    /// A folder that is removed when this is dropped.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("targe-exchanged-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn replace(path: &Path, bytes: &[u8]) {
        write_next(path, bytes, RESERVED).unwrap();
        exchange(path, RESERVED).unwrap();
    }

    /// Returns the numbers and the storage of both files.
    fn storage(path: &Path) -> (BTreeSet<u64>, u64) {
        let files = [path.metadata().unwrap(), second_path(path).metadata().unwrap()];
        (files.iter().map(MetadataExt::ino).collect(), files.iter().map(MetadataExt::blocks).sum())
    }

    #[test]
    fn a_replacement_uses_the_storage_of_the_one_before() {
        let scratch = Scratch::new("storage");
        let path = scratch.0.join("state");
        replace(&path, b"first");
        let before = storage(&path);
        assert!(before.1 >= 2 * RESERVED / 512, "both hold storage for longer contents");
        for len in [1, 5000, 60_000, 3, 4096, 4097, 60_000] {
            let bytes = vec![b'x'; len];
            replace(&path, &bytes);
            assert_eq!(std::fs::read(&path).unwrap(), bytes);
            assert_eq!(storage(&path), before, "{len} bytes");
        }
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_of_an_earlier_release_gets_a_second_one() {
        let scratch = Scratch::new("earlier");
        let path = scratch.0.join("state");
        std::fs::write(&path, "former").unwrap();
        reserve(&path, RESERVED);
        assert_eq!(std::fs::read(&path).unwrap(), b"former");
        let before = storage(&path);
        replace(&path, b"next");
        assert_eq!((std::fs::read(&path).unwrap(), storage(&path)), (b"next".to_vec(), before));
    }

    #[test]
    fn a_link_is_replaced_and_a_folder_is_not() {
        let scratch = Scratch::new("link");
        let (path, other) = (scratch.0.join("state"), scratch.0.join("other"));
        std::fs::write(&other, "other").unwrap();
        for link in [path.clone(), second_path(&path)] {
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(&other, &link).unwrap();
            replace(&path, b"new");
            replace(&path, b"newer");
            assert_eq!(std::fs::read(&path).unwrap(), b"newer");
            assert_eq!(std::fs::read(&other).unwrap(), b"other");
        }
        let folder = scratch.0.join("folder");
        std::fs::create_dir(&folder).unwrap();
        write_next(&folder, b"x", RESERVED).unwrap();
        exchange(&folder, RESERVED).unwrap_err();
        assert!(folder.is_dir());
    }

    #[test]
    fn what_a_crash_left_in_the_second_file_is_overwritten() {
        let scratch = Scratch::new("crash");
        let path = scratch.0.join("state");
        replace(&path, b"old");
        std::fs::write(second_path(&path), vec![b'h'; 9000]).unwrap();
        replace(&path, b"new");
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        forget(&path);
        assert!(!second_path(&path).exists());
        replace(&path, b"newer");
        assert_eq!(std::fs::read(&path).unwrap(), b"newer");
    }
}
