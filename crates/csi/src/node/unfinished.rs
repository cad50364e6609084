//! The mark of a volume whose file system is being made. It is on the volume itself, so that the next node
//! finds it after this one lost its power: what was written until then is no file system, or half of one.
//!
//! A file system of e2fsprogs is made shorter than the device. The mark is in the part after it, and durable,
//! from before the first byte of the file system until after the last one. XFS has a mark of its own in its
//! superblock.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::{CsiError, CsiResult};
use crate::ext::ExtSuperblock;

/// The length of the part of a device that a new file system leaves free, which begins with the mark.
pub(super) const TAIL_LEN: u64 = 64 << 10;
/// The length of the mark.
const MARK_LEN: usize = 4096;
const MAGIC: &[u8] = b"targe csi: a file system is being made here\n";
/// The superblock of XFS: its magic number, and whether it is being made.
const XFS_MAGIC: &[u8] = b"XFSB";
const XFS_IN_PROGRESS_AT: usize = 126;

/// Returns whether the file system of a volume was not completed.
pub(super) fn is_marked(device: &Path, id: &str) -> CsiResult<bool> {
    let wanted = mark(id);
    let superblock = ExtSuperblock::read(device)?;
    let failed = |error: io::Error| CsiError::io("read", device, &error);
    let mut file = File::open(device).map_err(failed)?;
    let len = file.seek(SeekFrom::End(0)).map_err(failed)?;
    // A device that was enlarged meanwhile still has the mark after the file system.
    let places = [len.checked_sub(TAIL_LEN), superblock.map(|found| found.len)];
    for at in places.into_iter().flatten() {
        let mut found = vec![0; MARK_LEN];
        match file.read_exact_at(&mut found, at) {
            Ok(()) if found == wanted => return Ok(true),
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(failed(error)),
            _ => {}
        }
    }
    let mut first = [0; 512];
    match file.read_exact_at(&mut first, 0) {
        Ok(()) => Ok(first.starts_with(XFS_MAGIC) && first.get(XFS_IN_PROGRESS_AT) != Some(&0)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

/// Writes the mark, durably. Returns how long a file system before it can be.
pub(super) fn set_mark(device: &Path, id: &str) -> CsiResult<u64> {
    write(device, &mark(id))
}

/// Removes the mark, after the file system has been made durable.
pub(super) fn clear_mark(device: &Path) -> CsiResult<()> {
    write(device, &[0; MARK_LEN]).map(drop)
}

fn write(device: &Path, bytes: &[u8]) -> CsiResult<u64> {
    let failed = |error: io::Error| CsiError::io("write to", device, &error);
    let mut file = File::options().write(true).open(device).map_err(failed)?;
    let len = file.seek(SeekFrom::End(0)).map_err(failed)?;
    let at = len.checked_sub(TAIL_LEN).filter(|at| *at > 0);
    let at = at.ok_or_else(|| CsiError::precondition("the volume is too small for a file system"))?;
    file.sync_all().and_then(|()| file.write_all_at(bytes, at)).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    Ok(at)
}

/// Returns the bytes of the mark of a volume. A copy of the volume is another volume.
fn mark(id: &str) -> Vec<u8> {
    let mut bytes = [MAGIC, id.as_bytes()].concat();
    bytes.resize(MARK_LEN - 32, 0);
    let digest = Sha256::digest(&bytes);
    bytes.extend_from_slice(&digest);
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::file_system;
    use super::*;
    use std::path::PathBuf;

    const ID: &str = "v-15f136e330e8165b416a4888c47275ef";
    const LEN: u64 = 16 << 20;

    fn device(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("targe-csi-{name}-{}", std::process::id()));
        File::create(&path).unwrap().set_len(LEN).unwrap();
        path
    }

    #[test]
    fn a_mark_stays_while_a_file_system_is_made_and_is_that_of_one_volume() {
        let path = device("mark");
        assert!(!is_marked(&path, ID).unwrap());
        let len = set_mark(&path, ID).unwrap();
        for kind in ["ext4", "ext3"] {
            file_system::make(&path, kind, Some(len)).unwrap();
            assert!(is_marked(&path, ID).unwrap(), "{kind}");
        }
        assert!(!is_marked(&path, "v-25f136e330e8165b416a4888c47275ef").unwrap());
        // It is found after an enlargement, too.
        File::options().write(true).open(&path).unwrap().set_len(2 * LEN).unwrap();
        assert!(is_marked(&path, ID).unwrap());
        File::options().write(true).open(&path).unwrap().set_len(LEN).unwrap();
        clear_mark(&path).unwrap();
        assert!(!is_marked(&path, ID).unwrap());
        file_system::preen(&path, "ext4").unwrap();
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn an_xfs_that_is_being_made_says_so_itself() {
        let path = device("inprogress");
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(XFS_MAGIC, 0).unwrap();
        assert!(!is_marked(&path, ID).unwrap());
        file.write_all_at(&[1], 126).unwrap();
        assert!(is_marked(&path, ID).unwrap());
        std::fs::remove_file(path).unwrap();
    }
}
