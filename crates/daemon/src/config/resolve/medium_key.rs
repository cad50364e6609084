//! Keys that identify media. The configuration compares them, so that no two units use one medium.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The identity of a file, a device or an export.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MediumKey {
    Inode(u64, u64),
    Device(u64),
    CharacterDevice(u64),
    Path(PathBuf),
    Uri(String),
}

/// Returns every key that identifies a medium; for a loop device also the key of the file behind it.
pub(super) fn medium_keys(path: &Path) -> Vec<MediumKey> {
    let key = medium_key(path);
    let behind = match &key {
        MediumKey::Device(device) => loop_file(*device),
        _ => None,
    };
    std::iter::once(key).chain(behind.map(|file| medium_key(&file))).collect()
}

/// Returns the file behind a loop device, or behind the loop device that this device is a partition of.
fn loop_file(device: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}")).canonicalize().ok()?;
    let told = |device: &Path| std::fs::read_to_string(device.join("loop/backing_file")).ok();
    let name = told(&device).or_else(|| told(device.parent()?))?;
    Some(PathBuf::from(name.trim_end_matches('\n')))
}

/// Returns the key of a medium, which is the same for each path that leads to the medium.
fn medium_key(path: &Path) -> MediumKey {
    let of_meta = |meta: &Metadata| {
        if meta.file_type().is_block_device() {
            MediumKey::Device(meta.rdev())
        } else if meta.file_type().is_char_device() {
            MediumKey::CharacterDevice(meta.rdev())
        } else {
            MediumKey::Inode(meta.dev(), meta.ino())
        }
    };
    if let Ok(meta) = path.metadata() {
        return of_meta(&meta);
    }
    let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
    MediumKey::Path(match (parent, path.file_name()) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => path.to_path_buf(),
    })
}
