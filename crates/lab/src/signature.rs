//! Finds out from its first bytes whether a disk holds data: a file system, a partition table, or a part of a
//! volume manager or an array. Experiments that write refuse such a disk unless the user insists.

/// How many bytes from the start of a disk [`signature`] needs.
pub const SIGNATURE_LEN: usize = 68 << 10;

/// A signature: its offset in bytes, its bytes, and what they belong to.
type Magic = (usize, &'static [u8], &'static str);

/// The signatures whose offset does not depend on the logical block length. Specific ones come first: an MBR
/// or GPT disk can also carry one of the others, and its boot signature says least.
const MAGICS: &[Magic] = &[
    (0, b"XFSB", "an XFS file system"),
    (1080, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
    (0x10040, b"_BHRfS_M", "a btrfs file system"),
    (0, b"LUKS\xba\xbe", "a LUKS volume"),
    (4086, b"SWAPSPACE2", "swap space"),
    (4086, b"SWAP-SPACE", "swap space"),
    (0x8001, b"CD001", "an ISO 9660 file system"),
    (0, &MD_MAGIC, "a member of an md array"),
    (4096, &MD_MAGIC, "a member of an md array"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (512, b"EFI PART", "a GPT partition table"),
    (4096, b"EFI PART", "a GPT partition table"),
    (510, &[0x55, 0xaa], "an MBR partition table or a boot sector"),
];

/// The superblock of an md array, versions 1.1 (at the start) and 1.2 (at 4096 bytes). Version 1.0 is at the
/// end of the disk.
const MD_MAGIC: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();

/// An LVM physical volume is labelled in one of the first four sectors of 512 bytes.
const LVM_LABEL: &[u8] = b"LABELONE";
const LVM_SECTORS: usize = 4;

/// Returns what the disk that begins with `first` holds, such as `an XFS file system`; `None` if no known
/// signature is found. `first` is the first [`SIGNATURE_LEN`] bytes, or the whole disk if it is shorter.
pub fn signature(first: &[u8]) -> Option<&'static str> {
    if (0..LVM_SECTORS).any(|sector| has(first, sector * 512, LVM_LABEL)) {
        return Some("an LVM physical volume");
    }
    MAGICS.iter().find(|(at, magic, _)| has(first, *at, magic)).map(|(.., name)| *name)
}

fn has(bytes: &[u8], at: usize, magic: &[u8]) -> bool {
    bytes.get(at..).is_some_and(|rest| rest.starts_with(magic))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the signature of an empty disk with `magic` at `at`.
    fn found(at: usize, magic: &[u8]) -> Option<&'static str> {
        let mut disk = vec![0; SIGNATURE_LEN];
        disk[at..at + magic.len()].copy_from_slice(magic);
        signature(&disk)
    }

    #[test]
    fn every_signature_is_found_at_its_offset_and_nowhere_else() {
        for (at, magic, name) in MAGICS {
            assert_eq!(found(*at, magic), Some(*name));
            assert_eq!(found(at + 100, magic), None, "{name}");
        }
        for sector in 0..4 {
            assert_eq!(found(sector * 512, b"LABELONE"), Some("an LVM physical volume"));
        }
    }

    #[test]
    fn empty_signed_and_short_disks_have_none() {
        let mut block = vec![0; SIGNATURE_LEN];
        assert_eq!(signature(&block), None);
        assert_eq!(signature(&[]), None);
        assert_eq!(signature(b"XFS"), None);
        for (lba, sector) in (0..).zip(block.chunks_mut(512)) {
            let header = oracle::block_header::BlockHeader {
                device: oracle::block_header::DeviceId(1),
                lba: base::units::Lba(lba),
                generation: oracle::block_header::Generation(1),
                writer: oracle::block_header::WriterId(1),
                sequence: oracle::block_header::Sequence(1),
                time_ns: 0,
                seed: 1,
                pattern: oracle::pattern::Pattern::Counting,
            };
            header.sign(sector).unwrap();
        }
        assert_eq!(signature(&block), None);
    }
}
