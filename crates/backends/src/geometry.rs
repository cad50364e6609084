//! What the kernel knows of a medium: sizes, alignments, abilities.

use std::fs::File;
use std::path::Path;

use drivers::files::Errno;
use rustix::fs::{AtFlags, FallocateFlags, SeekFrom, Statx, StatxFlags, fallocate, fstatvfs, seek, statx};

/// What `O_DIRECT` asks for when the kernel does not say: no medium in use has larger sectors.
const CAUTIOUS_ALIGNMENT: u32 = 4096;

/// Alignments and abilities of an open medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Offsets and lengths must be multiples of it.
    pub(crate) logical_block_len: u32,
    /// Addresses of buffers must be multiples of it.
    pub(crate) memory_alignment: u32,
    pub(crate) preferred_block_len: u32,
    pub(crate) rotational: bool,
    /// Whether storage can be given back.
    pub(crate) can_deallocate: bool,
}

pub(crate) fn of_file(file: &File, direct: bool) -> Result<Geometry, Errno> {
    let facts = facts(file)?;
    let (granule, memory_alignment) = if direct { direct_alignment(&facts) } else { (1, 1) };
    Ok(Geometry {
        logical_block_len: granule,
        memory_alignment,
        preferred_block_len: preferred(facts.stx_blksize, granule),
        rotational: is_set(facts.stx_dev_major, facts.stx_dev_minor, "rotational"),
        can_deallocate: punches(file, facts.stx_size),
    })
}

pub(crate) fn of_block_device(file: &File, direct: bool) -> Result<Geometry, Errno> {
    let facts = facts(file)?;
    let (major, minor) = (facts.stx_rdev_major, facts.stx_rdev_minor);
    let logical = rustix::fs::ioctl_blksszget(file)?;
    let physical = rustix::fs::ioctl_blkpbszget(file).unwrap_or(logical);
    let memory_alignment = if direct { logical } else { 1 };
    Ok(Geometry {
        logical_block_len: logical,
        memory_alignment,
        preferred_block_len: preferred(physical, logical),
        rotational: is_set(major, minor, "rotational"),
        can_deallocate: is_set(major, minor, "discard_max_bytes"),
    })
}

/// Returns the size of a file or block device in bytes.
pub(crate) fn size(file: &File) -> Result<u64, Errno> {
    seek(file, SeekFrom::End(0))
}

/// Returns the length of a block device in bytes as sysfs tells it, which needs no right to open it.
pub(crate) fn device_len(device: u64) -> Option<u64> {
    /// sysfs counts these, whatever the device's blocks are.
    const SECTOR: u64 = 512;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/size")).ok()?;
    text.trim().parse::<u64>().ok()?.checked_mul(SECTOR)
}

/// Returns how much storage a file has, and how much its file system has left for it, in bytes.
pub(crate) fn space(file: &File) -> Result<(u64, u64), Errno> {
    /// stat(2): `st_blocks` counts these, whatever the blocks of the file system are.
    const STAT_BLOCK: u64 = 512;
    let used = facts(file)?.stx_blocks.saturating_mul(STAT_BLOCK);
    let system = fstatvfs(file)?;
    Ok((used, system.f_bavail.saturating_mul(system.f_frsize)))
}

/// Makes sure that the file system has room for what a file of `len` bytes still lacks.
///
/// # Errors
/// ENOSPC, or what the system says.
pub(crate) fn expect_room(file: &File, len: u64) -> Result<(), Errno> {
    let (used, _) = space(file)?;
    let system = fstatvfs(file)?;
    let room = system.f_bfree.saturating_mul(system.f_frsize);
    if len.saturating_sub(used) > room { Err(Errno::NOSPC) } else { Ok(()) }
}

fn facts(file: &File) -> Result<Statx, Errno> {
    statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN)
}

fn direct_alignment(facts: &Statx) -> (u32, u32) {
    let told = facts.stx_mask & StatxFlags::DIOALIGN.bits() != 0 && facts.stx_dio_offset_align != 0;
    if told {
        (facts.stx_dio_offset_align, facts.stx_dio_mem_align.max(1))
    } else {
        (CAUTIOUS_ALIGNMENT, CAUTIOUS_ALIGNMENT)
    }
}

/// Returns a power of two that is sane whatever a file system says.
fn preferred(said: u32, granule: u32) -> u32 {
    said.clamp(granule.max(512), 1 << 20).next_power_of_two()
}

/// Tries a hole where nothing is: behind the end of the file. It changes nothing. A file that cannot be written is taken
/// for one with holes: it may well have some, and nobody will ask for more.
fn punches(file: &File, size: u64) -> bool {
    let behind = size.next_multiple_of(1 << 20);
    let tried = fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, behind, 4096);
    matches!(tried, Ok(()) | Err(Errno::BADF))
}

/// Returns whether a queue attribute of a disk (or of the disk that a partition is on) is other than zero.
fn is_set(major: u32, minor: u32, attribute: &str) -> bool {
    let device = format!("/sys/dev/block/{major}:{minor}");
    [format!("{device}/queue/{attribute}"), format!("{device}/../queue/{attribute}")]
        .iter()
        .find_map(|path| std::fs::read_to_string(Path::new(path)).ok())
        .is_some_and(|text| text.trim() != "0")
}
