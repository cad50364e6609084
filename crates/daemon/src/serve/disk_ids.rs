//! Identities of disks across reloads: an initiator that logs in again must find under a LUN the disk that it
//! opened there, or none.

use std::time::SystemTime;
use target::units::DiskId;

use backends::open::FileIdentity;

use crate::config::{Medium, Naa, Unit};

/// Every disk that was served since the start. The list has one entry for each disk that was ever configured,
/// so the operator bounds its length.
#[derive(Debug, Default)]
pub(super) struct DiskIds {
    known: Vec<DiskKey>,
}

/// The properties that make a disk the one that an initiator opened: its identity, its format, and the place
/// of its data.
#[derive(Debug, PartialEq)]
struct DiskKey {
    naa: Naa,
    /// With another logical block length each LBA addresses other data.
    block_bytes: u32,
    encrypted: bool,
    data: Data,
}

#[derive(Debug, PartialEq)]
enum Data {
    /// A file or device. The creation time, if the file system has one, distinguishes a file from a later one
    /// with the same inode number.
    Stored(FileIdentity, Option<SystemTime>),
    /// Memory, which is lost with the disk. The number distinguishes the disk.
    Memory(usize),
    /// Zeros, with the length in bytes.
    Null(u64),
}

impl DiskIds {
    /// Returns the identity of a disk that was just opened. `identity` is that of its file or device, if it
    /// has one.
    pub(super) fn name(&mut self, unit: &Unit, identity: Option<FileIdentity>) -> DiskId {
        let data = match (&unit.medium, identity) {
            (Medium::Ram { .. }, _) => Data::Memory(self.known.len()),
            (Medium::Null { size }, _) => Data::Null(size.0),
            (Medium::File { path, .. } | Medium::Block { path, .. }, Some(identity)) => {
                let created = match identity {
                    FileIdentity::File(..) => path.metadata().and_then(|facts| facts.created()).ok(),
                    FileIdentity::Block(_) => None,
                };
                Data::Stored(identity, created)
            }
            // Every file has an identity. If there were none, the disk could not be recognised, so it counts
            // as a new one.
            (Medium::File { .. } | Medium::Block { .. }, None) => Data::Memory(self.known.len()),
        };
        let (naa, block_bytes) = (unit.identity.naa, unit.block_size.bytes());
        let key = DiskKey { naa, block_bytes, encrypted: unit.encrypt.is_some(), data };
        let at = self.known.iter().position(|known| *known == key).unwrap_or_else(|| {
            self.known.push(key);
            self.known.len() - 1
        });
        DiskId(u64::try_from(at).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use base::units::{BlockSize, ByteLen};
    use device::contract::InquiryOverrides;

    use super::*;
    use crate::config::Identity;
    use crate::scratch::Scratch;

    fn unit(medium: Medium) -> Unit {
        Unit {
            label: "disk".to_owned(),
            medium,
            block_size: BlockSize::B512,
            physical_block_size: BlockSize::B512,
            read_only: false,
            thin: true,
            write_cache: true,
            io_timeout: None,
            tasks: device::contract::TaskRules::default(),
            encrypt: None,
            atomic_block_size: None,
            removable: false,
            long_cdbs: false,
            claims: InquiryOverrides::default(),
            identity: Identity {
                serial: String::new(),
                naa: Naa::Short([0x3a, 0, 0, 0, 0, 0, 0, 1]),
                vendor: String::new(),
                product: String::new(),
                revision: String::new(),
            },
        }
    }

    #[test]
    fn a_file_keeps_its_name_and_another_in_its_place_has_another() {
        let scratch = Scratch::new();
        let path = scratch.path().join("disk");
        let name = |names: &mut DiskIds, unit: &Unit| {
            let (identity, _) = FileIdentity::of_path(unit.medium.path().unwrap()).unwrap();
            names.name(unit, Some(identity))
        };
        let mut names = DiskIds::default();
        let mut served = unit(Medium::File { path: path.clone(), size: None, direct: false });
        std::fs::write(&path, "one").unwrap();
        let first = name(&mut names, &served);
        std::fs::write(&path, "changed by its initiator").unwrap();
        (served.read_only, served.thin) = (true, false);
        assert_eq!(name(&mut names, &served), first);
        served.block_size = BlockSize::B4096;
        assert_ne!(name(&mut names, &served), first, "every address means other data");
        served.block_size = BlockSize::B512;
        std::fs::write(scratch.path().join("other"), "two").unwrap();
        std::fs::rename(scratch.path().join("other"), &path).unwrap();
        assert_ne!(name(&mut names, &served), first);
    }

    #[test]
    fn memory_is_another_disk_each_time() {
        let mut names = DiskIds::default();
        let ram = unit(Medium::Ram { size: ByteLen(1 << 20) });
        assert_ne!(names.name(&ram, None), names.name(&ram, None));
        let null = unit(Medium::Null { size: ByteLen(1 << 20) });
        assert_eq!(names.name(&null, None), names.name(&null, None));
    }
}
