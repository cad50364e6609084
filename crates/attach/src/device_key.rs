//! Identifies what a local disk shows, so that only a server of the same thing continues a dead server's
//! disk.

use std::fs;
use std::path::Path;

use base::int_cast::to_u64;

/// What a local disk shows, from the disks at the targets up.
///
/// A file system on the local disk survives the death of its server. If the next server shows anything else,
/// the file system overwrites data: plain blocks in place of a LUKS2 header, for example.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceStack {
    /// The identities that the disks report, in order.
    pub disks: String,
    /// The initiator names that the sessions log in with, in order. Only a login with the same name ends the
    /// session of the dead server (RFC 7143 §6.3.5).
    pub initiators: String,
    /// Names the volume whose decrypted data are shown; `None` if the disks are shown as they are.
    pub decryption: Option<String>,
}

/// A digest of the name by which a disk is attached, and of its [`DeviceStack`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceKey {
    name: u32,
    stack: u32,
}

impl DeviceKey {
    /// Makes the key of a disk that is attached by `name`, and shows `stack`.
    pub fn new(name: &[u8], stack: &DeviceStack) -> Self {
        let DeviceStack { disks, initiators, decryption } = stack;
        // No part contains a zero byte, so different stacks are different bytes.
        let decryption = decryption.as_deref().map(|volume| ["\0decrypted\0", volume].concat());
        let whole = [disks, "\0", initiators, &decryption.unwrap_or_default()].concat();
        Self { name: folded(name), stack: folded(whole.as_bytes()) }
    }

    /// Returns the key as a number.
    pub(crate) fn note(self) -> u64 {
        u64::from(self.name) << 32 | u64::from(self.stack)
    }

    pub(crate) fn of_note(note: u64) -> Self {
        let low = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or_default();
        Self { name: low(note >> 32), stack: low(note) }
    }

    /// Returns whether the name by which the disk was attached is this one.
    pub(crate) fn has_name(self, name: &[u8]) -> bool {
        self.name == folded(name)
    }

    /// Returns whether both disks were attached by the same name.
    pub(crate) fn has_name_of(self, other: Self) -> bool {
        self.name == other.name
    }
}

/// Returns five bytes by which a target identifies the server of a local disk of this name, and its disk
/// number `member`. The next server of the local disk gets the same bytes; no other server gets them, on this
/// machine or on others.
///
/// A target ends the last server's session when the next server logs in with the same bytes. Without that, a
/// delayed write of the dead server could be executed after a newer write to the same blocks.
///
/// The bytes stay the same when the machine boots again, so that the session of before a crash ends too.
pub fn initiator_id(name: &[u8], member: usize) -> [u8; 5] {
    id_on(&machine_id(Path::new("/")), name, member)
}

fn id_on(machine: &[u8], name: &[u8], member: usize) -> [u8; 5] {
    let hash = fnv(&[machine, name, &to_u64(member).to_be_bytes()].concat());
    let [a, b, c, d, e, ..] = (hash ^ hash >> 24).to_le_bytes();
    [a, b, c, d, e]
}

/// Returns what tells this machine from others with the same name: their sessions would replace each other
/// otherwise. That is the machine-id (machine-id(5)), or the identifier of the boot on machines without one.
fn machine_id(root: &Path) -> Vec<u8> {
    let id = |file: &str| {
        let text = fs::read(root.join(file)).ok()?;
        let id = text.trim_ascii();
        // Before its first boot, an image has an empty file, or one with the word "uninitialized".
        (id.len() == MACHINE_ID_LEN && id.iter().all(u8::is_ascii_hexdigit)).then(|| id.to_ascii_lowercase())
    };
    let lasting = id("etc/machine-id").or_else(|| id("var/lib/dbus/machine-id"));
    lasting.unwrap_or_else(|| boot_id(root))
}

fn boot_id(root: &Path) -> Vec<u8> {
    fs::read(root.join("proc/sys/kernel/random/boot_id")).unwrap_or_default()
}

/// The length of a machine-id, in hexadecimal digits.
const MACHINE_ID_LEN: usize = 32;

/// Hashes a name to 32 bits: FNV-1a of 64 bits, both halves combined. Devices outlive processes, so this hash
/// never changes.
fn folded(name: &[u8]) -> u32 {
    let hash = fnv(name);
    u32::try_from((hash >> 32) ^ (hash & u64::from(u32::MAX))).unwrap_or_default()
}

pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &[u8] = b"iscsi://host/iqn.2026-11.org.targe:rig/0";

    fn plain() -> DeviceStack {
        DeviceStack {
            disks: "naa.6001".to_owned(),
            initiators: "iqn.2026-11.org.targe:host".to_owned(),
            decryption: None,
        }
    }

    #[test]
    fn a_key_survives_the_kernel() {
        let key = DeviceKey::new(NAME, &plain());
        assert_eq!(DeviceKey::of_note(key.note()), key);
    }

    #[test]
    fn every_layer_of_the_stack_is_part_of_the_key() {
        let luks = |volume: &str| DeviceStack { decryption: Some(volume.to_owned()), ..plain() };
        let stacks = [
            plain(),
            DeviceStack { disks: "naa.6002".to_owned(), ..plain() },
            DeviceStack { initiators: "iqn.2026-11.org.targe:other".to_owned(), ..plain() },
            luks(""),
            luks("1111 16777216 512"),
            luks("2222 16777216 512"),
            luks("1111 33554432 512"),
        ];
        let keys = stacks.map(|stack| DeviceKey::new(NAME, &stack));
        for (number, one) in keys.iter().enumerate() {
            assert!(keys[..number].iter().all(|other| other != one), "stack {number}");
            assert!(one.has_name_of(keys[0]) && one.has_name(NAME));
        }
        let elsewhere = DeviceKey::new(b"iscsi://host/iqn.2026-11.org.targe:rig/1", &plain());
        assert!(!elsewhere.has_name_of(keys[0]));
    }

    #[test]
    fn hashes_stay_as_they_were() {
        // FNV-1a's own vectors: "" and "a" are cbf29ce484222325 and af63dc4c8601ec8c.
        assert_eq!(folded(b""), 0xcbf2_9ce4 ^ 0x8422_2325);
        assert_eq!(folded(b"a"), 0xaf63_dc4c ^ 0x8601_ec8c);
    }

    #[test]
    fn the_next_server_has_the_same_card_and_nobody_else() {
        let card = initiator_id(b"disk", 0);
        assert_eq!(card, initiator_id(b"disk", 0));
        assert!(card != initiator_id(b"disk", 1) && card != initiator_id(b"disc", 0));
    }

    #[test]
    fn a_machine_is_known_by_its_machine_id_across_boots_and_by_the_boot_if_it_has_none() {
        let root = std::env::temp_dir().join(format!("targe-machine-id-{}", std::process::id()));
        let put = |file: &str, text: &str| {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let boot = "proc/sys/kernel/random/boot_id";
        let id = || id_on(&machine_id(&root), b"disk", 0);
        put(boot, "first\n");
        for missing in ["", "\n", "uninitialized\n"] {
            put("etc/machine-id", missing);
            assert_eq!(id(), id_on(b"first\n", b"disk", 0), "{missing:?}");
        }
        put("var/lib/dbus/machine-id", "0123456789abcdef0123456789abcdef\n");
        let by_bus = id();
        put("etc/machine-id", "fedcba9876543210fedcba9876543210\n");
        let card = id();
        put(boot, "second\n");
        assert_eq!(card, id(), "the session of before the boot would go on");
        put("etc/machine-id", "fedcba9876543210fedcba9876543211\n");
        assert!(id() != card && by_bus != card);
        fs::remove_dir_all(&root).unwrap();
    }
}
