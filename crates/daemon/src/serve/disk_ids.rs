//! Identities of disks across reloads: an initiator that logs in again must find under a LUN the disk that it
//! opened there, or none.

use backends::open::FileIdentity;
use target::units::DiskId;

use super::device_identity::Comparison;
use super::media::identity::MediumIdentity;
use crate::config::{Medium, Naa, Unit};

/// Every disk that was served since the start, or that an initiator had used before. The list has one entry
/// for each disk that was ever configured, so the operator bounds its length.
#[derive(Clone, Debug, Default)]
pub(super) struct DiskIds {
    known: Vec<DiskKey>,
    /// How many disks in memory there were.
    memories: usize,
}

/// The properties that make a disk the one that an initiator opened: its name and the place of its data.
#[derive(Clone, Debug, PartialEq)]
struct DiskKey {
    name: DiskName,
    data: Data,
    /// Another disk of this name is served, or was served last.
    is_replaced: bool,
}

impl DiskKey {
    /// Returns the name for another process.
    fn stored_name(&self) -> DiskName {
        if self.is_replaced { DiskName { block_bytes: REPLACED, ..self.name } } else { self.name }
    }
}

/// The properties by which another process recognises a disk: its identity and its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DiskName {
    pub(super) naa: Naa,
    /// With another logical block length each LBA addresses other data. No disk has the length [`REPLACED`].
    pub(super) block_bytes: u32,
    pub(super) encrypted: bool,
}

/// The block length in the stored name of a disk that another one of its name has replaced: no process may
/// take that other one for it.
const REPLACED: u32 = 0;

#[derive(Clone, Debug, PartialEq)]
enum Data {
    /// A file or device. What lasts of it distinguishes a file from a later one with the same inode number,
    /// and a device from another one that has got its number.
    Stored(FileIdentity, MediumIdentity),
    /// Memory, which is lost with the disk. The number distinguishes the disk.
    Memory(usize),
    /// Zeros, with the length in bytes.
    Null(u64),
    /// Any disc or cartridge that is in the drive, and the library of a changer.
    Drive,
    /// An export of a server, or a device of another process, by its address: a server tells nothing else to
    /// recognise it by.
    Export(String),
    /// The place is not known: the disk was not served since the start.
    NotServed,
}

impl Data {
    /// Returns whether two disks of one name have the same data.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Stored(FileIdentity::Block(number), medium),
                Self::Stored(FileIdentity::Block(other_number), other_medium),
            ) => match medium.compare(&other_medium.encode()) {
                Comparison::Same => true,
                Comparison::Other => false,
                Comparison::Unknown => number == other_number,
            },
            // The number of its file system belongs to a file: a snapshot of the file system has a file with
            // the same inode number and time of creation.
            _ => self == other,
        }
    }
}

impl DiskIds {
    /// Returns the identity of a disk that was just opened. `identity` is that of its file or device, if it
    /// has one, with what lasts of it.
    pub(super) fn name(&mut self, unit: &Unit, identity: Option<(FileIdentity, MediumIdentity)>) -> DiskId {
        self.memories += 1;
        let data = match (&unit.medium, identity) {
            (Medium::Ram { .. }, _) => Data::Memory(self.memories),
            (Medium::Null { size }, _) => Data::Null(size.0),
            (Medium::Disc { .. } | Medium::Changer { .. } | Medium::LibraryDrive { .. }, _) => Data::Drive,
            (Medium::Nbd { uri, .. }, _) => Data::Export(uri.to_string()),
            (Medium::VhostUserBlk { .. } | Medium::VhostUserScsi { .. }, _) => {
                Data::Export(unit.medium.to_string())
            }
            (
                Medium::File { .. } | Medium::Block { .. } | Medium::Tape { .. } | Medium::Sg { .. },
                Some((identity, medium)),
            ) => Data::Stored(identity, medium),
            // Every file has an identity. If there were none, the disk could not be recognised, so it counts
            // as a new one.
            (Medium::File { .. } | Medium::Block { .. } | Medium::Tape { .. } | Medium::Sg { .. }, None) => {
                Data::Memory(self.memories)
            }
        };
        let (naa, block_bytes) = (unit.identity.naa, unit.block_size.bytes());
        let name = DiskName { naa, block_bytes, encrypted: unit.encrypt.is_some() };
        let is_same = |known: &DiskKey| {
            known.name == name && (known.data.is_same(&data) || known.data == Data::NotServed)
        };
        let at = self.known.iter().position(is_same).unwrap_or(self.known.len());
        for known in self.known.iter_mut().filter(|known| known.name == name) {
            known.is_replaced = true;
        }
        let key = DiskKey { name, data, is_replaced: false };
        match self.known.get_mut(at) {
            Some(known) => *known = key,
            None => self.known.push(key),
        }
        id(at)
    }

    /// Returns the identity of a disk that an initiator had used before this process began: the first disk of
    /// this name that this process has served, even if another one has replaced it since.
    pub(super) fn restore(&mut self, name: DiskName) -> DiskId {
        let known = self.known.iter().position(|known| known.name == name);
        id(known.unwrap_or_else(|| {
            self.known.push(DiskKey { name, data: Data::NotServed, is_replaced: false });
            self.known.len() - 1
        }))
    }

    /// Returns the name for another process of a disk that an initiator had used before this process began.
    pub(super) fn restored_name(&self, name: DiskName) -> DiskName {
        self.known.iter().find(|known| known.name == name).map_or(name, DiskKey::stored_name)
    }

    /// Returns whether a disk has the name that a unit gives its disk, and no other disk has replaced it.
    pub(super) fn is_named(&self, disk: DiskId, unit: &Unit) -> bool {
        let (naa, block_bytes) = (unit.identity.naa, unit.block_size.bytes());
        self.find(disk) == Some(DiskName { naa, block_bytes, encrypted: unit.encrypt.is_some() })
    }

    /// Returns the name of a disk for another process.
    pub(super) fn find(&self, disk: DiskId) -> Option<DiskName> {
        Some(self.known.get(usize::try_from(disk.0).ok()?)?.stored_name())
    }
}

fn id(at: usize) -> DiskId {
    DiskId(u64::try_from(at).unwrap_or(u64::MAX))
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
            limit: device::rate_limit::RateLimit::NONE,
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
            let path = unit.medium.path().unwrap();
            let (identity, _) = FileIdentity::of_path(path).unwrap();
            names.name(unit, Some((identity, MediumIdentity::of_path(path, identity))))
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
    fn a_device_keeps_its_name_under_another_number_and_another_with_its_number_has_another() {
        let scratch = Scratch::new();
        let device = |number, wwid: &str, boot| {
            std::fs::write(scratch.path().join("wwid"), wwid).unwrap();
            std::fs::write(scratch.path().join("diskseq"), boot).unwrap();
            let device = super::super::device_identity::DeviceIdentity::read(scratch.path(), "b1");
            Data::Stored(FileIdentity::Block(number), MediumIdentity::Device(device))
        };
        let first = device(1, "naa.5", "7");
        assert!(first.is_same(&device(2, "naa.5", "8")), "it was unplugged in between");
        assert!(!first.is_same(&device(1, "naa.6", "8")));
        assert!(!device(1, "", "7").is_same(&device(1, "", "8")));
        assert!(device(1, "", "").is_same(&device(1, "", "")), "nothing else is known");
        assert!(!device(1, "", "").is_same(&device(2, "", "")));
    }

    #[test]
    fn another_process_does_not_take_a_disk_for_the_one_that_it_has_replaced() {
        let (mut before, mut ram) = (DiskIds::default(), unit(Medium::Ram { size: ByteLen(1 << 20) }));
        let [first, second] = [before.name(&ram, None), before.name(&ram, None)];
        let stored = [before.find(first).unwrap(), before.find(second).unwrap()];
        let mut after = DiskIds::default();
        let restored = stored.map(|name| after.restore(name));
        assert_eq!(after.name(&ram, None), restored[1]);
        assert_eq!(after.find(restored[0]), Some(stored[0]), "a third process does not either");
        ram.block_size = BlockSize::B4096;
        assert!(!restored.contains(&after.name(&ram, None)));

        let null = |bytes| unit(Medium::Null { size: ByteLen(bytes) });
        let [first, second] = [before.name(&null(1 << 20), None), before.name(&null(2 << 20), None)];
        assert_eq!(before.name(&null(1 << 20), None), first, "the first is served again");
        let block_bytes = [first, second].map(|disk| before.find(disk).unwrap().block_bytes);
        assert_eq!(block_bytes, [512, REPLACED]);
    }

    #[test]
    fn a_record_of_before_the_start_does_not_lead_to_the_successor_of_a_disk() {
        let null = |bytes| unit(Medium::Null { size: ByteLen(bytes) });
        let mut before = DiskIds::default();
        let disk = before.name(&null(1 << 20), None);
        let stored = before.find(disk).unwrap();
        // A target with another record of the disk is not served at the start, while another target serves
        // it.
        let mut ids = DiskIds::default();
        assert_eq!(ids.restored_name(stored), stored, "no disk of this name is known");
        let first = ids.name(&null(1 << 20), None);
        assert_eq!(ids.restored_name(stored), stored);
        let second = ids.name(&null(2 << 20), None);
        assert_eq!(ids.restore(stored), first);
        assert_ne!(first, second);
        assert_eq!(ids.restored_name(stored).block_bytes, REPLACED, "nor does it after the next restart");
        assert_eq!(ids.name(&null(1 << 20), None), first);
        assert_eq!(ids.restored_name(stored), stored, "the first disk is back");
    }

    #[test]
    fn a_disk_is_recognised_after_a_restart_by_its_name() {
        let null = |last, block_size| {
            let mut unit = unit(Medium::Null { size: ByteLen(1 << 20) });
            unit.identity.naa = Naa::Short([0x3a, 0, 0, 0, 0, 0, 0, last]);
            unit.block_size = block_size;
            unit
        };
        let mut before = DiskIds::default();
        let mut name = |unit: &Unit| {
            let disk = before.name(unit, None);
            before.find(disk).unwrap()
        };
        let names = [name(&null(1, BlockSize::B512)), name(&null(2, BlockSize::B512))];
        let mut after = DiskIds::default();
        let [one, two] = [after.restore(names[0]), after.restore(names[1])];
        assert_ne!(one, two);
        assert_eq!(after.restore(names[0]), one);
        assert_ne!(after.name(&null(2, BlockSize::B4096), None), two, "every address means other data");
        assert_eq!(after.name(&null(2, BlockSize::B512), None), two);
        assert_eq!(after.restore(names[1]), two);
        let ram = unit(Medium::Ram { size: ByteLen(1 << 20) });
        assert_eq!(after.name(&ram, None), one, "its name is that of the first");
        assert_ne!(after.name(&ram, None), one);
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
