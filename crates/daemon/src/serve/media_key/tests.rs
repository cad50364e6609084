use std::os::unix::fs::{MetadataExt, PermissionsExt};

use base::units::{BlockSize, ByteLen};
use device::contract::InquiryOverrides;

use super::*;
use crate::config::{Identity, Naa};
use crate::scratch::Scratch;

const SECRET: &[u8] = b"what stands in the file with the secret, 32 bytes or more";

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
        File::create(&path).unwrap().set_len(4 << 20).unwrap();
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

    fn keys(&self) -> MediaKeys {
        of(&self.unit, &self.state, &mut |_| {}).unwrap().expect("encrypted")
    }

    fn refusal(&self) -> String {
        of(&self.unit, &self.state, &mut |_| {})
            .expect_err("refused")
            .replace(self.scratch.path().to_str().unwrap(), "")
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

fn wait<W: Fn() + Clone + Send + 'static>(keeper: &mut Keeper<W>, woken: &Receiver<()>) -> Replaced {
    keeper.replace();
    woken.recv().unwrap();
    keeper.poll().expect("ended")
}

#[test]
fn a_blank_disk_gets_a_key_and_keeps_it() {
    let mut world = World::new();
    let first = world.keys();
    assert_eq!(world.kept().metadata().unwrap().mode() & 0o777, 0o600);
    assert_eq!(world.kept().metadata().unwrap().len(), u64::try_from(FILE_LEN).unwrap());
    world.write(1 << 20, b"something that was written since");
    assert_eq!(world.keys().key.bytes(), first.key.bytes());
    world.unit.read_only = true;
    assert_eq!(world.keys().key.bytes(), first.key.bytes());
    let other = World::new();
    assert_ne!(other.keys().key.bytes(), first.key.bytes());
}

#[test]
fn a_disk_with_data_and_no_key_is_not_touched() {
    let mut world = World::new();
    world.write((4 << 20) - 1, b"x");
    assert_eq!(
        world.refusal(),
        "/disk.img.media-key does not exist, but the disk holds data: if the data is encrypted, restore that \
         file; if it is not, it cannot be encrypted in place"
    );
    assert!(!world.kept().exists());
    // Zeros that occupy storage count as blank.
    world.write(0, &vec![0; 4 << 20]);
    world.unit.read_only = true;
    assert_eq!(
        world.refusal(),
        "/disk.img.media-key does not exist, and \"ro\" does not allow starting encryption"
    );
    world.unit.read_only = false;
    world.keys();
}

#[test]
fn an_encrypted_disk_is_not_served_without_its_secret() {
    let mut world = World::new();
    world.keys();
    let secret = world.unit.encrypt.take();
    assert_eq!(
        world.refusal(),
        "it is encrypted, as /disk.img.media-key shows; name the file with its secret (encrypt = …)"
    );
    world.unit.encrypt = secret;
    fs::write(world.unit.encrypt.as_ref().unwrap(), [7; 32]).unwrap();
    assert_eq!(
        world.refusal(),
        "/disk.img.media-key: the secret is not the one that this media key was made with, or it is damaged"
    );
}

#[test]
fn a_file_that_is_no_media_key_is_named_and_stays() {
    let world = World::new();
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
    assert_eq!(world.keys().unit, DataUnit::B512);
    world.unit.block_size = BlockSize::from_bytes(4096).unwrap();
    assert_eq!(world.keys().unit, DataUnit::B512);
    let mut world = World::new();
    world.unit.block_size = BlockSize::from_bytes(4096).unwrap();
    assert_eq!(world.keys().unit, DataUnit::B4096);
    world.unit.block_size = BlockSize::B512;
    assert_eq!(world.refusal(), "it was encrypted in sectors of 4096 bytes, which \"bs\" must be");
}

#[test]
fn a_replaced_key_is_the_one_that_is_found_and_the_old_one_opens_nothing() {
    let world = World::new();
    let keys = world.keys();
    let old = keys.key.bytes().to_vec();
    let old_file = File::open(world.kept()).unwrap();
    let (sender, woken) = channel();
    let mut keeper = Keeper::new(keys, move || sender.send(()).unwrap());
    let Replaced::Fresh(new) = wait(&mut keeper, &woken) else { panic!("replaced") };
    assert_ne!(new.bytes(), old);
    assert_eq!(world.keys().key.bytes(), new.bytes());
    // The storage of the old file is overwritten.
    let mut left = Vec::new();
    (&old_file).read_to_end(&mut left).unwrap();
    assert_eq!(left, [0; FILE_LEN]);
}

#[test]
fn whenever_a_replacement_breaks_off_one_of_the_two_keys_is_found() {
    let world = World::new();
    let old = world.keys();
    let kept = old.kept.clone().unwrap();
    let new = fresh().unwrap();
    let bytes = kept.wrap.seal(&new, DataUnit::B512).unwrap();
    // A crash while the new file is written, or before the rename: the temporary file has no effect.
    for written in [0, 1, HEADER_LEN, FILE_LEN - 1, FILE_LEN] {
        fs::write(temp_path(&kept.path), &bytes[..written]).unwrap();
        assert_eq!(world.keys().key.bytes(), old.key.bytes(), "{written} bytes");
    }
    // A crash directly after the rename.
    fs::rename(temp_path(&kept.path), &kept.path).unwrap();
    assert_eq!(world.keys().key.bytes(), new.bytes());
    // A temporary file that a crash left does not prevent the next replacement.
    fs::write(temp_path(&kept.path), b"left behind").unwrap();
    assert!(matches!(replace(&kept.path, &kept.wrap.seal(&old.key, DataUnit::B512).unwrap()), Step::Done));
    assert_eq!(world.keys().key.bytes(), old.key.bytes());
}

#[test]
fn a_replacement_that_finds_no_way_keeps_the_old_key() {
    let world = World::new();
    let keys = world.keys();
    let old = keys.key.bytes().to_vec();
    // The path of the temporary file is a directory, so writing it fails.
    fs::create_dir(temp_path(&world.kept())).unwrap();
    let (sender, woken) = channel();
    let mut keeper = Keeper::new(keys, move || sender.send(()).unwrap());
    assert!(matches!(wait(&mut keeper, &woken), Replaced::Kept));
    assert_eq!(world.keys().key.bytes(), old);
}

#[test]
fn memory_has_a_key_for_as_long_as_it_lives() {
    let mut world = World::new();
    world.unit.medium = Medium::Ram { size: ByteLen(1 << 20) };
    let (first, second) = (world.keys(), world.keys());
    assert_ne!(first.key.bytes(), second.key.bytes());
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
fn only_a_key_that_was_made_is_told_of_as_created() {
    let world = World::new();
    let created = || {
        let mut told = Vec::new();
        let _ = of(&world.unit, &world.state, &mut |path| told.push(path.to_owned()));
        told
    };
    let path = key_file_path(&world.unit, &world.state).unwrap();
    assert_eq!(created(), vec![path.clone()]);
    assert_eq!(created(), Vec::<PathBuf>::new());
    // A file that cannot be accessed counts as existing.
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&path, &path).unwrap();
    assert_eq!(created(), Vec::<PathBuf>::new());
    let plain = Unit { encrypt: None, ..world.unit.clone() };
    let told = of(&plain, &world.state, &mut |_| {}).unwrap_err();
    assert!(told.starts_with("cannot determine whether it is encrypted: /"), "{told}");
    assert!(path.symlink_metadata().is_ok());
}
