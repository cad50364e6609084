//! What can be known of a medium without opening it, so that a check of a configuration finds what would fail
//! at the start. A medium that is served already looks like one that is not.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::geometry;

/// Returns what offsets and lengths of reads and writes must be multiples of, for a block device, and for a
/// file whose I/O bypasses the page cache (`direct`). `None` if there is no such number, or if it is not
/// known before the medium is open.
pub fn block_len(path: &Path, direct: bool) -> Option<u32> {
    let meta = path.metadata();
    if let Ok(meta) = &meta
        && meta.file_type().is_block_device()
    {
        return device_block_len(meta.rdev());
    }
    if !direct {
        return None;
    }
    let Ok(_) = meta else {
        // The file will be made. File systems on one device need what the device does.
        return device_block_len(path.parent()?.metadata().ok()?.dev());
    };
    let facts = statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN).ok()?;
    geometry::direct_alignment(&facts).map(|(granule, _)| granule)
}

/// Returns the logical block length of a device, or of the disk that it is a partition of.
fn device_block_len(device: u64) -> Option<u32> {
    let directory = directory_of(device);
    let read = |file: &str| fs::read_to_string(directory.join(file)).ok()?.trim().parse().ok();
    read("queue/logical_block_size").or_else(|| read("../queue/logical_block_size"))
}

/// Returns a sentence fragment about what of this host uses a block device, its partitions or its disk: a
/// device that is used cannot be opened for writing. This function does not find what another process has
/// open.
pub fn host_use(device: &Path) -> Option<String> {
    let number = device.metadata().ok()?.rdev();
    let directory = directory_of(number).canonicalize().ok()?;
    let whole = directory.join("partition").exists().then(|| directory.parent().map(Path::to_path_buf));
    let parts = fs::read_dir(&directory).ok()?.flatten().map(|entry| entry.path());
    let parts = parts.filter(|path| path.join("partition").exists());
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    std::iter::once(directory.clone()).chain(whole.flatten()).chain(parts).find_map(|block| {
        let number = fs::read_to_string(block.join("dev")).ok()?;
        let name = block.file_name()?.to_string_lossy().into_owned();
        if let Some(at) = mounted_at(&mounts, number.trim()) {
            return Some(format!("{name} is mounted at {at}"));
        }
        let holder = fs::read_dir(block.join("holders")).ok()?.flatten().next()?;
        Some(format!("{name} is part of {}", holder.file_name().to_string_lossy()))
    })
}

/// Returns where the device with this number is mounted, from the text of `/proc/self/mountinfo`.
fn mounted_at<'m>(mounts: &'m str, number: &str) -> Option<&'m str> {
    mounts.lines().find_map(|mount| {
        let mut fields = mount.split(' ');
        (fields.nth(2) == Some(number)).then(|| fields.nth(1))?
    })
}

fn directory_of(device: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_direct_files_and_devices_have_a_block_length() {
        let directory = std::env::temp_dir();
        let file = directory.join(format!("targe-unopened-{}", std::process::id()));
        fs::write(&file, [0; 4096]).unwrap();
        assert_eq!(block_len(&file, false), None);
        let opened = fs::File::open(&file).unwrap();
        let expected = geometry::of_file(&opened, true).unwrap().logical_block_len;
        if geometry::can_be_direct(&opened).unwrap() {
            assert_eq!(block_len(&file, true), Some(expected));
        }
        fs::remove_file(&file).unwrap();
        assert_eq!(block_len(&directory.join("none/of/this"), true), None);
    }

    #[test]
    fn the_place_where_a_device_is_mounted_is_found_by_its_number() {
        let mounts =
            "22 1 0:20 / /proc rw - proc proc rw\n30 1 8:1 / /srv/data rw,noatime - xfs /dev/sda1 rw\n";
        assert_eq!(mounted_at(mounts, "8:1"), Some("/srv/data"));
        assert_eq!(mounted_at(mounts, "8:16"), None);
        assert_eq!(host_use(Path::new("/dev/no-such-device")), None);
    }
}
