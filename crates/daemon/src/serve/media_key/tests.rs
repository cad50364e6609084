use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};

use base::units::{BlockSize, ByteLen};
use device::contract::InquiryOverrides;

use super::*;
use crate::config::{Identity, Naa};
use crate::luks::is_formattable;
use crate::scratch::Scratch;

const SECRET: &[u8] = b"what stands in the file with the secret, 32 bytes or more";

const LEN: u64 = 20 << 20;

/// A disk in a directory of its own, with a secret.
struct World {
    scratch: Scratch,
    state: StateDir,
    unit: Unit,
}

impl World {
    fn new() -> Self {
        let scratch = Scratch::new();
        let state = StateDir::open(&scratch.path().join("state")).unwrap();
        let path = scratch.path().join("disk.img");
        File::create(&path).unwrap().set_len(LEN).unwrap();
        let secret = scratch.path().join("secret");
        fs::write(&secret, SECRET).unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let unit = Unit {
            label: "disk".to_owned(),
            medium: Medium::File { path, size: None, direct: false },
            block_size: BlockSize::B512,
            physical_block_size: BlockSize::B512,
            read_only: false,
            thin: true,
            write_cache: true,
            io_timeout: None,
            limit: device::rate_limit::RateLimit::NONE,
            encrypt: Some(secret),
            atomic_block_size: None,
            removable: false,
            long_cdbs: false,
            tasks: device::contract::TaskRules::default(),
            claims: InquiryOverrides::default(),
            identity: Identity {
                serial: String::new(),
                naa: Naa::Short([0x3a, 0, 0, 0, 0, 0, 0, 1]),
                vendor: String::new(),
                product: String::new(),
                revision: String::new(),
            },
        };
        Self { scratch, state, unit }
    }

    /// Returns the identity of the disk that is served.
    fn identity(&self) -> Option<FileIdentity> {
        Some(FileIdentity::of_path(self.unit.medium.path()?).ok()?.0)
    }

    fn keys(&self) -> MediaKeys {
        match of(&self.unit, self.identity(), &self.state, false).unwrap().expect("encrypted") {
            UnitKeys::Ready(keys) => keys,
            UnitKeys::Unread(unread) => unread.prepare(|_| true).unwrap().expect("not stopped"),
        }
    }

    /// Returns the key.
    fn key(&self) -> Vec<u8> {
        bytes(&self.keys())
    }

    fn refusal(&self) -> String {
        of(&self.unit, self.identity(), &self.state, false)
            .expect_err("refused")
            .why
            .replace(self.scratch.path().to_str().unwrap(), "")
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        OpenOptions::new()
            .write(true)
            .open(self.unit.medium.path().unwrap())
            .unwrap()
            .write_all_at(bytes, at)
            .unwrap();
    }
}

fn bytes(keys: &MediaKeys) -> Vec<u8> {
    match keys {
        MediaKeys::Luks { volume, .. } => volume.key.bytes().to_vec(),
        MediaKeys::Memory { key, .. } => key.bytes().to_vec(),
    }
}

fn wait<W: Fn() + Clone + Send + 'static>(keeper: &mut Keeper<W>, woken: &Receiver<()>) -> Replaced {
    keeper.replace();
    woken.recv().unwrap();
    keeper.poll().expect("ended")
}

#[test]
fn a_blank_disk_becomes_an_image_and_keeps_its_key() {
    let mut world = World::new();
    let first = world.key();
    assert!(matches!(world.keys(), MediaKeys::Luks { .. }));
    world.write(18 << 20, b"something that was written since");
    assert_eq!(world.key(), first);
    world.unit.read_only = true;
    assert_eq!(world.key(), first);
    assert_ne!(World::new().key(), first);
}

#[test]
fn a_disk_with_data_and_no_header_is_not_touched() {
    let mut world = World::new();
    world.write(LEN - 1, b"x");
    let before = fs::read(world.unit.medium.path().unwrap()).unwrap();
    assert_eq!(
        world.refusal(),
        "/disk.img holds data, but no LUKS2 header: if the data is encrypted, restore the header; if it is not, it \
         cannot be encrypted in place"
    );
    assert!(fs::read(world.unit.medium.path().unwrap()).unwrap() == before);
    // Zeros that occupy storage count as blank.
    world.write(LEN - 4096, &[0; 4096]);
    world.unit.read_only = true;
    assert_eq!(world.refusal(), "/disk.img is blank, and \"ro\" does not allow making a LUKS2 image of it");
    world.unit.read_only = false;
    world.keys();
}

#[test]
fn a_disk_too_small_for_a_header_is_refused() {
    let world = World::new();
    let path = world.unit.medium.path().unwrap();
    OpenOptions::new().write(true).open(path).unwrap().set_len(16 << 20).unwrap();
    assert_eq!(
        world.refusal(),
        "/disk.img: the LUKS2 image is too small: it has 16777216 bytes where at least 16777728 are needed"
    );
    assert!(is_formattable(path).unwrap());
}

#[test]
fn a_damaged_header_is_repaired_from_the_backup_header() {
    let mut world = World::new();
    let key = world.key();
    let damage = |world: &World| world.write(300, b"damage");
    damage(&world);
    assert_eq!(world.key(), key);
    let header = crate::luks::header_of(world.unit.medium.path().unwrap()).unwrap();
    assert!(crate::luks::describe_copies(header.copies()).is_none());
    // A disk that is only read is not repaired, but served.
    damage(&world);
    world.unit.read_only = true;
    assert_eq!(world.key(), key);
    let header = crate::luks::header_of(world.unit.medium.path().unwrap()).unwrap();
    assert!(crate::luks::describe_copies(header.copies()).is_some());
}

#[test]
fn an_encrypted_disk_is_not_served_without_its_secret() {
    let world = World::new();
    world.keys();
    fs::write(world.unit.encrypt.as_ref().unwrap(), [7; 32]).unwrap();
    assert_eq!(world.refusal(), "/disk.img: the secret opens no keyslot of the LUKS2 image");
    // Without a secret, the disk is served as it is: its initiators may have the secret.
    let plain = Unit { encrypt: None, ..world.unit.clone() };
    assert!(of(&plain, world.identity(), &world.state, false).unwrap().is_none());
}

#[test]
fn sectors_stay_as_long_as_they_were_when_the_disk_was_encrypted() {
    let mut world = World::new();
    assert_eq!(world.keys().unit(), DataUnit::B512);
    world.unit.block_size = BlockSize::from_bytes(4096).unwrap();
    assert_eq!(world.keys().unit(), DataUnit::B512);
    let mut world = World::new();
    world.unit.block_size = BlockSize::from_bytes(4096).unwrap();
    assert_eq!(world.keys().unit(), DataUnit::B4096);
    assert_eq!(crate::luks::check_header(&world.unit), Ok(()));
    world.unit.block_size = BlockSize::B512;
    let why = crate::luks::check_header(&world.unit).unwrap_err();
    assert!(why.ends_with("/disk.img: it is encrypted in sectors of 4096 bytes: add bs = 4096"), "{why}");
    assert_eq!(world.refusal(), "it is encrypted in sectors of 4096 bytes: add bs = 4096");
}

#[test]
fn a_disk_that_took_the_path_of_the_served_one_keeps_its_key() {
    let (served, other) = (World::new(), World::new());
    let (keys, old, others) = (served.keys(), served.key(), other.key());
    let path = served.unit.medium.path().unwrap();
    fs::rename(path, served.scratch.path().join("moved.img")).unwrap();
    fs::copy(other.unit.medium.path().unwrap(), path).unwrap();
    let (sender, woken) = channel();
    let mut keeper = Keeper::new(keys, move || sender.send(()).unwrap());
    assert!(matches!(wait(&mut keeper, &woken), Replaced::Kept));
    assert_eq!(served.key(), others);
    // The served disk has its former key.
    fs::rename(served.scratch.path().join("moved.img"), path).unwrap();
    assert_eq!(served.key(), old);
}

#[test]
fn memory_has_a_key_for_as_long_as_it_lives() {
    let mut world = World::new();
    world.unit.medium = Medium::Ram { size: ByteLen(1 << 20) };
    let (first, second) = (world.keys(), world.keys());
    assert_ne!(bytes(&first), bytes(&second));
    let (sender, woken) = channel();
    let mut keeper = Keeper::new(first, move || sender.send(()).unwrap());
    assert!(matches!(wait(&mut keeper, &woken), Replaced::Fresh(_)));
}

#[test]
fn the_replaced_key_of_an_image_is_the_one_that_is_found() {
    let world = World::new();
    let keys = world.keys();
    let old = bytes(&keys);
    let (sender, woken) = channel();
    let mut keeper = Keeper::new(keys, move || sender.send(()).unwrap());
    let Replaced::Fresh(new) = wait(&mut keeper, &woken) else { panic!("replaced") };
    assert_ne!(new.bytes(), old);
    assert_eq!(world.key(), new.bytes());
    // If the header is gone, the key stays.
    world.write(0, &[0; 32768]);
    assert!(matches!(wait(&mut keeper, &woken), Replaced::Kept));
}

#[test]
fn a_key_that_was_replaced_since_it_was_read_is_not_current() {
    let world = World::new();
    // The process that serves, and the one that takes over.
    let serving = world.keys();
    let found = of(&world.unit, world.identity(), &world.state, true).unwrap();
    let Some(UnitKeys::Ready(taking_over)) = found else { panic!("{found:?}") };
    taking_over.check_current().unwrap();
    let (sender, woken) = channel();
    let mut keeper = Keeper::new(serving, move || sender.send(()).unwrap());
    assert!(matches!(wait(&mut keeper, &woken), Replaced::Fresh(_)));
    assert!(taking_over.check_current().unwrap_err().contains("try again"));
    let found = of(&world.unit, world.identity(), &world.state, true).unwrap();
    let Some(UnitKeys::Ready(again)) = found else { panic!("{found:?}") };
    again.check_current().unwrap();
    assert_ne!(bytes(&again), bytes(&taking_over));
}

#[test]
fn an_image_that_another_process_serves_is_not_written() {
    let world = World::new();
    world.keys();
    // The end of the primary copy is damaged, as while it is being replaced.
    world.write(8192, b"torn");
    let before = fs::read(world.unit.medium.path().unwrap()).unwrap();
    of(&world.unit, world.identity(), &world.state, true).unwrap().unwrap();
    assert!(fs::read(world.unit.medium.path().unwrap()).unwrap() == before);
    world.keys();
    assert!(fs::read(world.unit.medium.path().unwrap()).unwrap() != before, "a start repairs it");
}
