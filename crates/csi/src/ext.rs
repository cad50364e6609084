//! Inspects and repairs file systems of e2fsprogs that are not mounted.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::OFlags;

use crate::error::{CsiError, CsiResult};
use crate::link_free;
use crate::program::{OWN_INPUT, end_of, run_on};

/// The exit code bits of `e2fsck` that say: errors were corrected, and the system should be rebooted, which
/// is about file systems that are mounted.
pub(crate) const E2FSCK_REPAIRED: i32 = 1 | 2;

/// Returns whether a type of file systems is one of e2fsprogs.
pub(crate) fn is_ext(kind: &str) -> bool {
    matches!(kind, "ext2" | "ext3" | "ext4")
}

/// Replays the journal of a file system in a file that is neither mounted nor served, if it has to be
/// replayed. Nothing else is checked or repaired. A file without such a file system stays as it is.
///
/// # Errors
/// The journal is as it was, or is replayed in part. Then the file system still says that it has to be
/// replayed.
pub(crate) fn replay_journal(file: &Path) -> CsiResult<()> {
    // The program opens the same file, whatever the path leads to by then.
    let opened = link_free::open(file, OFlags::RDWR).map_err(|error| CsiError::io("open", file, &error))?;
    if !ExtSuperblock::of(&opened, file)?.is_some_and(|ext| ext.needs_recovery) {
        return Ok(());
    }
    let done = run_on(&["e2fsck", "-y", "-E", "journal_only", OWN_INPUT], opened)?;
    if done.code & !E2FSCK_REPAIRED == 0 {
        return Ok(());
    }
    let said = end_of(&done.said.trim().replace('\n', "; "));
    Err(CsiError::internal(format!(
        "e2fsck cannot replay the journal in {} ({}): {said}",
        file.display(),
        done.code
    )))
}

/// The superblock of ext2, ext3 and ext4.
pub(crate) struct ExtSuperblock {
    /// The journal has to be replayed.
    pub(crate) needs_recovery: bool,
    /// The kernel has found errors since the last check.
    pub(crate) has_errors: bool,
    /// The length of the file system in bytes.
    pub(crate) len: u64,
}

impl ExtSuperblock {
    /// The offset of the superblock, and the offsets of its fields.
    const AT: u64 = 1024;
    const LEN: usize = 1024;
    const BLOCKS: usize = 0x4;
    const BLOCK_SIZE: usize = 0x18;
    const BLOCKS_HIGH: usize = 0x150;
    const MAGIC: usize = 0x38;
    const STATE: usize = 0x3a;
    const INCOMPAT: usize = 0x60;

    /// Reads the superblock of a device or file; `None` if it has none.
    pub(crate) fn read(device: &Path) -> CsiResult<Option<Self>> {
        Self::of(&File::open(device).map_err(|error| CsiError::io("read", device, &error))?, device)
    }

    /// Reads the superblock of what was opened at a path.
    fn of(opened: &File, path: &Path) -> CsiResult<Option<Self>> {
        let failed = |error: std::io::Error| CsiError::io("read", path, &error);
        let mut bytes = [0; Self::LEN];
        match opened.read_exact_at(&mut bytes, Self::AT) {
            Ok(()) => Ok(Self::parse(&bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    fn parse(bytes: &[u8; Self::LEN]) -> Option<Self> {
        let word = |at: usize| bytes.get(at..at + 2)?.try_into().ok().map(u16::from_le_bytes);
        (word(Self::MAGIC)? == 0xef53).then_some(())?;
        let half = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        // EXT4_FEATURE_INCOMPAT_64BIT.
        let high = if half(Self::INCOMPAT)? & 0x80 != 0 { half(Self::BLOCKS_HIGH)? } else { 0 };
        let blocks = u64::from(high) << 32 | u64::from(half(Self::BLOCKS)?);
        let block_len = 1024_u64.checked_shl(half(Self::BLOCK_SIZE)?).unwrap_or(0);
        Some(Self {
            len: blocks.saturating_mul(block_len),
            // EXT3_FEATURE_INCOMPAT_RECOVER and EXT2_ERROR_FS.
            needs_recovery: word(Self::INCOMPAT)? & 4 != 0,
            has_errors: word(Self::STATE)? & 2 != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_superblock_says_what_it_needs() {
        let mut bytes = [0; ExtSuperblock::LEN];
        assert!(ExtSuperblock::parse(&bytes).is_none());
        bytes[0x38..0x3c].copy_from_slice(&[0x53, 0xef, 1, 0]);
        let needs = |bytes: &[u8; ExtSuperblock::LEN]| {
            let found = ExtSuperblock::parse(bytes).unwrap();
            (found.needs_recovery, found.has_errors)
        };
        assert_eq!(needs(&bytes), (false, false));
        bytes[0x60] = 0xc2 | 4;
        assert_eq!(needs(&bytes), (true, false));
        bytes[0x3a] = 3;
        assert_eq!(needs(&bytes), (true, true));
        // 2 blocks of 4 KiB, and 2^32 more where numbers of blocks have 64 bits.
        (bytes[0x4], bytes[0x18], bytes[0x150]) = (2, 2, 1);
        let len = |bytes: &[u8; ExtSuperblock::LEN]| ExtSuperblock::parse(bytes).unwrap().len;
        assert_eq!(len(&bytes), (2 << 12) + (1 << 44));
        bytes[0x60] = 4;
        assert_eq!(len(&bytes), 2 << 12);
    }
}
