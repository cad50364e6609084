//! The geometry of a medium, as the kernel reports it: sizes, alignments, features.

use std::fs::File;
use std::path::Path;
use std::time::SystemTime;

use drivers::files::Errno;
use rustix::fs::{
    AtFlags, FallocateFlags, SeekFrom, Statx, StatxFlags, fallocate, fstatfs, fstatvfs, seek, statx,
};

/// The alignment assumed for `O_DIRECT` if the kernel does not report it: no medium in use has larger
/// sectors.
const CAUTIOUS_ALIGNMENT: u32 = 4096;

/// `NFS_SUPER_MAGIC` of linux/magic.h.
const NFS: u64 = 0x6969;

/// Alignments and features of an open medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Offsets and lengths must be multiples of this.
    pub(crate) logical_block_len: u32,
    /// Addresses of buffers must be multiples of this.
    pub(crate) memory_alignment: u32,
    pub(crate) preferred_block_len: u32,
    pub(crate) rotational: bool,
    /// Whether storage can be deallocated.
    pub(crate) can_deallocate: bool,
    /// Whether a write that is not stable may take the report of a failed write-back, see
    /// [`reports_in_writes`].
    pub(crate) reports_in_writes: bool,
    /// When the file was created, if it is a file whose file system records that.
    pub(crate) created: Option<SystemTime>,
}

pub(crate) fn of_file(file: &File, direct: bool) -> Result<Geometry, Errno> {
    let facts = facts(file)?;
    let (granule, memory_alignment) = match direct {
        true => direct_alignment(&facts).unwrap_or((CAUTIOUS_ALIGNMENT, CAUTIOUS_ALIGNMENT)),
        false => (1, 1),
    };
    Ok(Geometry {
        created: file.metadata().and_then(|facts| facts.created()).ok(),
        logical_block_len: granule,
        memory_alignment,
        preferred_block_len: preferred(facts.stx_blksize, granule),
        rotational: is_set(facts.stx_dev_major, facts.stx_dev_minor, "rotational"),
        can_deallocate: punches(file, facts.stx_size),
        reports_in_writes: !direct && reports_in_writes(file),
    })
}

pub(crate) fn of_block_device(file: &File, direct: bool) -> Result<Geometry, Errno> {
    let facts = facts(file)?;
    let (major, minor) = (facts.stx_rdev_major, facts.stx_rdev_minor);
    let logical = rustix::fs::ioctl_blksszget(file)?;
    let physical = rustix::fs::ioctl_blkpbszget(file).unwrap_or(logical);
    let memory_alignment = if direct { logical } else { 1 };
    Ok(Geometry {
        created: None,
        logical_block_len: logical,
        memory_alignment,
        preferred_block_len: preferred(physical, logical),
        rotational: is_set(major, minor, "rotational"),
        can_deallocate: is_set(major, minor, "discard_max_bytes"),
        // The node of a device may be in any file system.
        reports_in_writes: false,
    })
}

/// Returns the size of a file or block device in bytes.
pub(crate) fn size(file: &File) -> Result<u64, Errno> {
    seek(file, SeekFrom::End(0))
}

/// Returns the length of a block device in bytes as reported by sysfs, which does not require permission to
/// open the device.
pub(crate) fn device_len(device: u64) -> Option<u64> {
    /// The unit of sysfs, whatever the block length of the device is.
    const SECTOR: u64 = 512;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/size")).ok()?;
    text.trim().parse::<u64>().ok()?.checked_mul(SECTOR)
}

/// Returns how much storage a file occupies, and how much its file system has left for it, in bytes.
pub(crate) fn space(file: &File) -> Result<(u64, u64), Errno> {
    /// The unit of `st_blocks` (stat(2)), whatever the block length of the file system is.
    const STAT_BLOCK: u64 = 512;
    let used = facts(file)?.stx_blocks.saturating_mul(STAT_BLOCK);
    let system = fstatvfs(file)?;
    Ok((used, system.f_bavail.saturating_mul(system.f_frsize)))
}

/// What a file takes from its file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSpace {
    /// The device number of the file system.
    pub system: u64,
    /// What the file system holds.
    pub whole: u64,
    /// How many bytes this process can still allocate in it.
    pub free: u64,
    /// What is allocated to the file.
    pub allocated: u64,
    /// What the file can still take: its length without what is allocated.
    pub promised: u64,
}

pub(crate) fn file_space(file: &File) -> Result<FileSpace, Errno> {
    let (allocated, free) = space(file)?;
    let (facts, system) = (rustix::fs::fstat(file)?, fstatvfs(file)?);
    let len = u64::try_from(facts.st_size).unwrap_or(0);
    Ok(FileSpace {
        system: facts.st_dev,
        whole: system.f_blocks.saturating_mul(system.f_frsize),
        free,
        allocated,
        promised: len.saturating_sub(allocated),
    })
}

/// Checks that the file system has space for the storage that a file of `len` bytes still lacks.
///
/// # Errors
/// ENOSPC, or the error of the system.
pub(crate) fn expect_room(file: &File, len: u64) -> Result<(), Errno> {
    let (used, _) = space(file)?;
    let system = fstatvfs(file)?;
    let room = system.f_bfree.saturating_mul(system.f_frsize);
    if len.saturating_sub(used) > room { Err(Errno::NOSPC) } else { Ok(()) }
}

/// Returns whether a buffered write to a regular file may end with the report that an earlier write was not
/// written back, so that the next `fdatasync` succeeds. The NFS client of Linux does so where the server has
/// no space.
pub(crate) fn reports_in_writes(file: &File) -> bool {
    fstatfs(file).is_ok_and(|facts| u64::try_from(facts.f_type) == Ok(NFS))
}

fn facts(file: &File) -> Result<Statx, Errno> {
    statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN)
}

/// Returns whether I/O on an open file bypasses the page cache if it was opened with `O_DIRECT`. Some file
/// systems open such a file and use the page cache, for example ext4 if it encrypts or compresses the file.
pub(crate) fn can_be_direct(file: &File) -> Result<bool, Errno> {
    Ok(direct_alignment(&facts(file)?).is_some())
}

/// Returns the alignments of offsets and of addresses that direct I/O needs, or `None` if the file has none.
pub(crate) fn direct_alignment(facts: &Statx) -> Option<(u32, u32)> {
    let is_told = facts.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    match facts.stx_dio_offset_align {
        _ if !is_told => Some((CAUTIOUS_ALIGNMENT, CAUTIOUS_ALIGNMENT)),
        0 => None,
        granule => Some((granule, facts.stx_dio_mem_align.max(1))),
    }
}

/// Returns a power of two within sane bounds, whatever the file system reports.
fn preferred(said: u32, granule: u32) -> u32 {
    said.clamp(granule.max(512), 1 << 20).next_power_of_two()
}

/// Tries to punch a hole beyond the end of the file, which changes nothing. A file opened for reading only
/// counts as supporting holes: it may contain some, and it will get no request to punch more.
fn punches(file: &File, size: u64) -> bool {
    let behind = size.next_multiple_of(1 << 20);
    let tried = fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, behind, 4096);
    matches!(tried, Ok(()) | Err(Errno::BADF))
}

/// Returns whether a queue attribute of a disk (or of the disk that contains a partition) is not zero.
fn is_set(major: u32, minor: u32, attribute: &str) -> bool {
    let device = format!("/sys/dev/block/{major}:{minor}");
    [format!("{device}/queue/{attribute}"), format!("{device}/../queue/{attribute}")]
        .iter()
        .find_map(|path| std::fs::read_to_string(Path::new(path)).ok())
        .is_some_and(|text| text.trim() != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_direct_io_is_told_from_one_whose_alignment_is_unknown() {
        let mut known = facts(&File::open("/proc/self/exe").unwrap()).unwrap();
        known.stx_mask |= StatxFlags::DIOALIGN.bits();
        (known.stx_dio_offset_align, known.stx_dio_mem_align) = (512, 4);
        assert_eq!(direct_alignment(&known), Some((512, 4)));
        (known.stx_dio_offset_align, known.stx_dio_mem_align) = (0, 0);
        assert_eq!(direct_alignment(&known), None);
        known.stx_mask &= !StatxFlags::DIOALIGN.bits();
        assert_eq!(direct_alignment(&known), Some((CAUTIOUS_ALIGNMENT, CAUTIOUS_ALIGNMENT)));
    }
}
