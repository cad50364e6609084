use std::io::Read;
use std::os::unix::fs::PermissionsExt;

use base::units::{BlockSize, ByteLen};
use device::contract::InquiryOverrides;

use super::*;
use crate::config::{Identity, Naa};
use crate::luks::former::HEADER_LEN;
use crate::luks::former::beside;
use crate::luks::is_formattable;
use crate::scratch::Scratch;
use crate::serve::media;

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

    /// Makes the disk one of the former format.
    fn former(self) -> Self {
        let key = fresh_key().unwrap();
        let unit = if self.unit.block_size.bytes() < 4096 { DataUnit::B512 } else { DataUnit::B4096 };
        fs::write(self.kept(), Wrap::new(SECRET).seal(&key, unit).unwrap()).unwrap();
        self
    }

    fn kept(&self) -> PathBuf {
        beside(self.unit.medium.path().unwrap())
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
        MediaKeys::Bare { key, .. } => key.bytes().to_vec(),
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
    assert!(matches!(world.keys(), MediaKeys::Luks { .. }) && !world.kept().exists());
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
        "/disk.img holds data, but no LUKS2 header and no key beside it: if the data is encrypted, restore what is \
         missing; if it is not, it cannot be encrypted in place"
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
    let mut world = World::new().former();
    world.keys();
    let secret = world.unit.encrypt.take();
    assert_eq!(
        world.refusal(),
        "it is encrypted, as /disk.img.media-key shows; name the file with its secret (encrypt = …), or remove \
         /disk.img.media-key if that disk is gone and this is another one"
    );
    // The path can be a link to the file that the key is beside.
    let link = world.scratch.path().join("link.img");
    std::os::unix::fs::symlink(world.unit.medium.path().unwrap(), &link).unwrap();
    let linked = Medium::File { path: link, size: None, direct: false };
    let disk = std::mem::replace(&mut world.unit.medium, linked);
    assert!(world.refusal().contains("it is encrypted, as /disk.img.media-key shows"));
    world.unit.encrypt.clone_from(&secret);
    world.keys();
    world.unit.medium = disk;
    world.unit.encrypt = secret;
    fs::write(world.unit.encrypt.as_ref().unwrap(), [7; 32]).unwrap();
    assert_eq!(
        world.refusal(),
        "/disk.img.media-key: the secret is not the one that this media key was made with, or it is damaged"
    );
}

#[test]
fn the_key_of_a_disk_that_is_gone_is_not_that_of_another_one() {
    let mut world = World::new();
    let luks = world.key();
    let world_key = world.kept();
    let image = fs::read(world.unit.medium.path().unwrap()).unwrap();
    world = world.former();
    assert_eq!(
        world.refusal(),
        "/disk.img has a LUKS2 header, and /disk.img.media-key is the key of a disk without one: remove \
         /disk.img.media-key if that disk is gone, or restore that disk"
    );
    assert_eq!(fs::read(world.unit.medium.path().unwrap()).unwrap(), image);
    let sealed = fs::read(&world_key).unwrap();
    fs::remove_file(&world_key).unwrap();
    assert_eq!(world.key(), luks);
    // No new file is made in the place of the disk, encrypted or not.
    fs::write(&world_key, sealed).unwrap();
    let path = world.unit.medium.path().unwrap().clone();
    fs::remove_file(&path).unwrap();
    let size = Some(ByteLen(LEN));
    world.unit.medium = Medium::File { path: path.clone(), size, direct: false };
    for unit in [world.unit.clone(), Unit { encrypt: None, ..world.unit.clone() }] {
        let open = || media::open(&unit, &world.state, &mut media::FileRollback::default(), None).map(drop);
        let why = open().unwrap_err();
        assert!(why.to_string().contains("disk.img is missing, and its key ") && why.is_fault(), "{why}");
        assert!(!path.exists());
    }
    fs::remove_file(&world_key).unwrap();
    media::open(&world.unit, &world.state, &mut media::FileRollback::default(), None).unwrap();
}

#[test]
fn a_disk_whose_conversion_was_interrupted_is_not_served() {
    let world = World::new().former();
    world.keys();
    fs::write(journal_path(world.unit.medium.path().unwrap()), b"").unwrap();
    assert_eq!(
        world.refusal(),
        "its conversion to LUKS2 was interrupted, as /disk.img.luks-conversion shows; complete it with: targe luks \
         convert /disk.img"
    );
    // By the path that a link leads to.
    let mut world = World::new().former();
    world.keys();
    let disk = world.unit.medium.path().unwrap().clone();
    let link = disk.with_file_name("link");
    std::os::unix::fs::symlink("disk.img", &link).unwrap();
    world.unit.medium = Medium::File { path: link, size: None, direct: false };
    world.keys();
    fs::write(journal_path(&disk), b"").unwrap();
    assert!(world.refusal().ends_with("complete it with: targe luks convert /disk.img"));
}

#[test]
fn a_file_that_is_no_media_key_is_named_and_stays() {
    let world = World::new().former();
    world.keys();
    let whole = fs::read(world.kept()).unwrap();
    let changed = |at: usize, to: u8| {
        let mut bytes = whole.clone();
        bytes[at] = to;
        bytes
    };
    for (bytes, why) in [
        (vec![], "this is not a media key"),
        (changed(0, b'T'), "this is not a media key"),
        (changed(16, 2), "this media key has a version that this release does not support"),
        (changed(17, 9), "this media key has a version that this release does not support"),
        (whole[..25].to_vec(), "this media key is truncated"),
        (
            whole[..60].to_vec(),
            "the secret is not the one that this media key was made with, or it is damaged",
        ),
        (changed(18, 1), "the secret is not the one that this media key was made with, or it is damaged"),
        (
            changed(70, whole[70] ^ 1),
            "the secret is not the one that this media key was made with, or it is damaged",
        ),
        (
            [&whole[..], b"x"].concat(),
            "the secret is not the one that this media key was made with, or it is damaged",
        ),
    ] {
        fs::write(world.kept(), &bytes).unwrap();
        assert_eq!(world.refusal(), format!("/disk.img.media-key: {why}"));
        assert_eq!(fs::read(world.kept()).unwrap(), bytes);
    }
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
fn a_replaced_key_is_the_one_that_is_found_and_the_old_one_opens_nothing() {
    let world = World::new().former();
    let keys = world.keys();
    let old = bytes(&keys);
    let old_file = File::open(world.kept()).unwrap();
    let (sender, woken) = channel();
    let mut keeper = Keeper::new(keys, move || sender.send(()).unwrap());
    let Replaced::Fresh(new) = wait(&mut keeper, &woken) else { panic!("replaced") };
    assert_ne!(new.bytes(), old);
    assert_eq!(world.key(), new.bytes());
    // The storage of the old file is overwritten.
    let mut left = Vec::new();
    (&old_file).read_to_end(&mut left).unwrap();
    assert_eq!(left, [0; FILE_LEN]);
}

#[test]
fn whenever_a_replacement_breaks_off_one_of_the_two_keys_is_found() {
    let world = World::new().former();
    let MediaKeys::Bare { key: old, kept: Some(kept), .. } = world.keys() else { panic!("former") };
    let new = fresh_key().unwrap();
    let bytes = kept.wrap.seal(&new, DataUnit::B512).unwrap();
    // A crash while the new file is written, or before the rename: the temporary file has no effect.
    for written in [0, 1, HEADER_LEN, FILE_LEN - 1, FILE_LEN] {
        fs::write(temp_path(&kept.path), &bytes[..written]).unwrap();
        assert_eq!(world.key(), old.bytes(), "{written} bytes");
    }
    // A crash directly after the rename.
    fs::rename(temp_path(&kept.path), &kept.path).unwrap();
    assert_eq!(world.key(), new.bytes());
    // A temporary file that a crash left does not prevent the next replacement.
    fs::write(temp_path(&kept.path), b"left behind").unwrap();
    assert!(matches!(replace(&kept.path, &kept.wrap.seal(&old, DataUnit::B512).unwrap()), Step::Done));
    assert_eq!(world.key(), old.bytes());
}

#[test]
fn a_replacement_that_finds_no_way_keeps_the_old_key() {
    let world = World::new().former();
    let keys = world.keys();
    let old = bytes(&keys);
    // The path of the temporary file is a directory, so writing it fails.
    fs::create_dir(temp_path(&world.kept())).unwrap();
    let (sender, woken) = channel();
    let mut keeper = Keeper::new(keys, move || sender.send(()).unwrap());
    assert!(matches!(wait(&mut keeper, &woken), Replaced::Kept));
    assert_eq!(world.key(), old);
}

#[test]
fn a_disk_that_took_the_path_of_the_served_one_keeps_its_key() {
    for is_former in [false, true] {
        let (served, other) = (World::new(), World::new());
        let (served, other) = if is_former { (served.former(), other.former()) } else { (served, other) };
        let (keys, old, others) = (served.keys(), served.key(), other.key());
        let path = served.unit.medium.path().unwrap();
        fs::rename(path, served.scratch.path().join("moved.img")).unwrap();
        fs::copy(other.unit.medium.path().unwrap(), path).unwrap();
        if is_former {
            fs::rename(served.kept(), served.scratch.path().join("moved.img.media-key")).unwrap();
            fs::copy(other.kept(), served.kept()).unwrap();
        }
        let (sender, woken) = channel();
        let mut keeper = Keeper::new(keys, move || sender.send(()).unwrap());
        assert!(matches!(wait(&mut keeper, &woken), Replaced::Kept), "{is_former}");
        assert_eq!(served.key(), others, "{is_former}");
        // The served disk has its former key.
        fs::rename(served.scratch.path().join("moved.img"), path).unwrap();
        if is_former {
            fs::rename(served.scratch.path().join("moved.img.media-key"), served.kept()).unwrap();
        }
        assert_eq!(served.key(), old, "{is_former}");
    }
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

/// The file as release 0.1 writes it.
#[test]
fn a_media_key_of_version_1_is_read() {
    let file = include_bytes!("version-1.media-key");
    let (key, unit) = Wrap::new(SECRET).open(file).unwrap();
    let expected: Vec<u8> = (0..64).collect();
    assert_eq!((key.bytes(), unit), (&expected[..], DataUnit::B4096));
}

#[test]
fn a_key_file_that_cannot_be_accessed_counts_as_existing() {
    let world = World::new();
    let path = key_file::path(&world.unit, &world.state).unwrap();
    std::os::unix::fs::symlink(&path, &path).unwrap();
    assert!(world.refusal().starts_with("cannot read /disk.img.media-key: "));
    let plain = Unit { encrypt: None, ..world.unit.clone() };
    let told = of(&plain, world.identity(), &world.state, false).unwrap_err().why;
    assert!(told.starts_with("cannot determine whether it is encrypted: /"), "{told}");
    assert!(path.symlink_metadata().is_ok());
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
    for world in [World::new(), World::new().former()] {
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
