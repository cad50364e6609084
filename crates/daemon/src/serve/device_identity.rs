//! What distinguishes a block device from others. The number and the name of a device lead to another disk
//! after a restart of the host, or when another disk is attached.
//!
//! Sysfs names what lasts: world-wide names, serial numbers, the UUID of a device of the device mapper, the
//! file of a loop device. Some devices have none of these. Within one boot each disk also has a sequence
//! number of its own (`diskseq`), which no later disk gets.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use backends::open::FileIdentity;
use rustix::fs::{major, minor};
use sha2::{Digest, Sha256};

/// What distinguishes a disk from others, also after a restart of the host.
const LASTING: [&str; 8] = [
    "wwid",
    "device/wwid",
    "serial",
    "device/serial",
    "device/cid",
    "dm/uuid",
    "md/uuid",
    "loop/backing_file",
];

/// What part of that disk a device is.
const PLACE: [&str; 3] = ["partition", "start", "loop/offset"];

/// The longest value that is recorded.
const VALUE_LEN_MAX: usize = 512;

/// The number of a disk within one boot.
const BOOT: &str = "boot";

/// The length of a device in sectors of 512 bytes.
const SIZE: &str = "size";

/// The properties of a block device, by their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeviceIdentity(BTreeMap<String, String>);

/// How a device compares with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Same,
    Other,
    /// The system knows nothing that tells.
    Unknown,
}

impl DeviceIdentity {
    /// Returns the identity of a block device; `None` for a file. Some drivers ask the device.
    pub(super) fn of(identity: FileIdentity) -> Option<Self> {
        let FileIdentity::Block(number) = identity else { return None };
        let node = format!("/sys/dev/block/{}:{}", major(number), minor(number));
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Some(Self::read(Path::new(&node), boot.trim()))
    }

    /// Reads the properties from the directory of a device.
    pub(super) fn read(node: &Path, boot: &str) -> Self {
        let partition = node.join("partition").exists();
        let disk = node.canonicalize().ok().and_then(|node| Some(node.parent()?.to_owned()));
        let disk = disk.filter(|_| partition).unwrap_or_else(|| node.to_owned());
        let property = |directory: &Path, name: &str| {
            let bytes = fs::read(directory.join(name)).ok()?;
            let text = String::from_utf8_lossy(bytes.get(..VALUE_LEN_MAX).unwrap_or(&bytes)).into_owned();
            let value = text.trim_matches(|letter: char| letter.is_whitespace() || letter == '\0').to_owned();
            Some((name.to_owned(), value)).filter(|(_, value)| !value.is_empty())
        };
        let lasting = LASTING.iter().filter_map(|name| property(&disk, name));
        let place = PLACE.iter().chain([&SIZE]).filter_map(|name| property(node, name));
        let mut all: BTreeMap<_, _> = lasting.chain(place).collect();
        if let Some((_, number)) = property(&disk, "diskseq").filter(|_| !boot.is_empty()) {
            all.insert(BOOT.to_owned(), format!("{boot} {number}"));
        }
        Self(all)
    }

    /// Returns whether a line was [encoded](Self::encode).
    pub(super) fn is_encoded(line: &str) -> bool {
        Self::parse(line).is_some()
    }

    /// Returns a name of the device that is the same after a restart of the host; `None` if nothing lasts.
    pub(super) fn tag(&self) -> Option<String> {
        let is_lasting = |name: &&String| LASTING.contains(&name.as_str());
        self.0.keys().find(is_lasting)?;
        let mut hash = Sha256::new();
        for (name, value) in &self.0 {
            if ![BOOT, SIZE].contains(&name.as_str()) {
                hash.update(format!("{name}={value:?}\n"));
            }
        }
        let digest: [u8; 32] = hash.finalize().into();
        Some(digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect())
    }

    /// Returns the identity on one line.
    pub(super) fn encode(&self) -> String {
        let properties = self.0.iter().map(|(name, value)| format!(" {name}={value:?}"));
        std::iter::once("device".to_owned()).chain(properties).collect()
    }

    /// Returns the properties that a line names, with their values in quotes; `None` if it is none.
    fn parse(line: &str) -> Option<BTreeMap<&str, &str>> {
        let mut rest = line.strip_prefix("device")?;
        let mut properties = BTreeMap::new();
        while !rest.is_empty() {
            let (name, value) = rest.strip_prefix(' ')?.split_once('=')?;
            let mut is_escaped = false;
            let end = value.char_indices().skip(1).find(|(_, letter)| {
                let ends = *letter == '"' && !is_escaped;
                is_escaped = *letter == '\\' && !is_escaped;
                ends
            });
            let (value, others) = value.split_at_checked(end?.0 + 1)?;
            properties.insert(name, value.strip_prefix('"').map(|_| value)?);
            rest = others;
        }
        Some(properties)
    }

    /// Compares the device with a line that was recorded.
    pub(super) fn compare(&self, recorded: &str) -> Comparison {
        let Some(recorded) = Self::parse(recorded) else { return Comparison::Unknown };
        let quoted = |name: &str| self.0.get(name).map(|value| format!("{value:?}"));
        let is_same = |name: &&str| recorded.get(*name).map(|was| quoted(name).as_deref() == Some(*was));
        let boot_of = |value: &str| value.trim_matches('"').split(' ').next().map(str::to_owned);
        let boots =
            (recorded.get(BOOT).and_then(|was| boot_of(was)), self.0.get(BOOT).and_then(|now| boot_of(now)));
        let is_placed = |name: &&str| recorded.get(*name).copied() == quoted(name).as_deref();
        if !PLACE.iter().all(is_placed) {
            return Comparison::Other;
        }
        if is_same(&BOOT) == Some(true) {
            return Comparison::Same;
        }
        if LASTING.iter().filter_map(is_same).any(|same| !same) {
            return Comparison::Other;
        }
        match LASTING.iter().filter_map(is_same).next() {
            // The loop device was detached and attached again, or the disk unplugged and plugged in again.
            Some(_) => Comparison::Same,
            None if matches!(&boots, (Some(was), Some(now)) if was == now) => Comparison::Other,
            None => Comparison::Unknown,
        }
    }

    /// Returns whether the device is as long as the recorded one.
    pub(super) fn has_recorded_len(&self, recorded: &str) -> bool {
        let recorded = Self::parse(recorded).and_then(|properties| Some((*properties.get(SIZE)?).to_owned()));
        recorded.is_some() && recorded == self.0.get(SIZE).map(|now| format!("{now:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    /// Makes the directory of a device, and returns its identity.
    fn device(properties: &[(&str, &str)], boot: &str) -> DeviceIdentity {
        let scratch = Scratch::new();
        for (name, value) in properties {
            let path = scratch.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
        DeviceIdentity::read(scratch.path(), boot)
    }

    #[test]
    fn a_device_is_recognised_by_what_lasts_or_within_one_boot() {
        let first = [("size", "8"), ("diskseq", "7"), ("wwid", "naa.5"), ("dm/uuid", "LVM-\"a\" b\\")];
        let recorded = device(&first, "b1").encode();
        let compare = |properties: &[(&str, &str)], boot| device(properties, boot).compare(&recorded);
        assert_eq!(compare(&first, "b1"), Comparison::Same);
        assert_eq!(compare(&first, "b2"), Comparison::Same);
        let changed = |at: usize, value| {
            let mut all = first;
            all[at].1 = value;
            all
        };
        assert_eq!(compare(&changed(1, "8"), "b1"), Comparison::Same, "it was unplugged in between");
        assert_eq!(compare(&changed(2, "naa.6"), "b2"), Comparison::Other);
        assert_eq!(compare(&changed(3, "LVM-c"), "b2"), Comparison::Other);
        assert_eq!(compare(&first[..3], "b2"), Comparison::Other, "it has lost a name");
        assert_eq!(compare(&[("partition", "1")], "b2"), Comparison::Other);
        let tag = device(&first, "b1").tag();
        assert!(tag.is_some() && tag == device(&changed(1, "8"), "b2").tag());
        assert_ne!(tag, device(&changed(2, "naa.6"), "b2").tag());
        assert_eq!(device(&first[..2], "b1").tag(), None);
        assert!(device(&first, "b2").has_recorded_len(&recorded));
        assert!(!device(&changed(0, "9"), "b2").has_recorded_len(&recorded));
    }

    #[test]
    fn nothing_tells_a_device_without_a_name_from_another_after_a_restart_of_the_host() {
        let recorded = device(&[("size", "8"), ("diskseq", "7"), ("serial", "")], "b1").encode();
        for (number, boot, expected) in [
            ("7", "b1", Comparison::Same),
            ("8", "b1", Comparison::Other),
            ("7", "b2", Comparison::Unknown),
            ("7", "", Comparison::Unknown),
        ] {
            let now = device(&[("size", "8"), ("diskseq", number)], boot);
            assert_eq!(now.compare(&recorded), expected, "{number} {boot}");
        }
        for damaged in ["", "block:/dev/sda", "device x", "device a=\"", "device a=b", "device"] {
            assert_eq!(device(&[("serial", "5")], "b1").compare(damaged), Comparison::Unknown, "{damaged}");
        }
    }

    #[test]
    fn another_partition_of_a_disk_is_another_device() {
        let scratch = Scratch::new();
        let partition = |number: &str| {
            let node = scratch.path().join(format!("sda/sda{number}"));
            fs::create_dir_all(&node).unwrap();
            fs::write(node.join("partition"), number).unwrap();
            fs::write(scratch.path().join("sda/wwid"), "naa.5").unwrap();
            DeviceIdentity::read(&node, "b1")
        };
        let recorded = partition("1").encode();
        assert!(recorded.contains("naa.5"), "{recorded}");
        assert_eq!(partition("1").compare(&recorded), Comparison::Same);
        assert_eq!(partition("2").compare(&recorded), Comparison::Other);
    }
}
