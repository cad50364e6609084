use std::os::unix::fs::PermissionsExt;

use store::encrypt::DataUnit;
use store::luks2::MediumIo;
use zeroize::Zeroizing;

use super::*;
use crate::luks::fresh_key;
use crate::scratch::Scratch;

const SECRET: &[u8] = b"what stands in the file with the secret, 32 bytes or more";
const LEN: u64 = 20 << 20;
/// Where the disk has data, which stand for encrypted ones.
const AT: u64 = 17 << 20;

/// Makes a disk of the former format. Returns the disk, its secret, and its key.
fn former(scratch: &Scratch) -> (PathBuf, PathBuf, MediaKey) {
    let (disk, secret) = (scratch.path().join("disk.img"), scratch.path().join("secret"));
    fs::write(&secret, SECRET).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let key = fresh_key().unwrap();
    let file = File::create(&disk).unwrap();
    file.set_len(LEN).unwrap();
    file.write_all_at(&[7; 4096], AT).unwrap();
    fs::write(beside(&disk), Wrap::new(SECRET).seal(&key, DataUnit::B512).unwrap()).unwrap();
    (disk, secret, key)
}

fn run_all(disk: &Path, secret: &Path) -> Result<(), String> {
    convert(disk, secret, &mut |_, _| {})
}

/// Checks that the disk is the LUKS2 image of what it was.
fn check(disk: &Path, key: &MediaKey) {
    let image = ImageFile::new(disk, Zeroizing::new(SECRET.to_vec()));
    let volume = image.volume(true).unwrap().expect("a header");
    assert_eq!((volume.key.bytes(), volume.offset), (key.bytes(), DATA_OFFSET));
    let mut io = FileIo::open(disk, false).unwrap();
    assert_eq!(io.len().unwrap(), LEN + DATA_OFFSET);
    let mut page = [0; 4096];
    io.read(AT + DATA_OFFSET, &mut page).unwrap();
    assert_eq!(page, [7; 4096]);
    assert!(!beside(disk).exists() && !journal_path(disk).exists());
}

#[test]
fn a_disk_is_converted_and_what_stored_its_key_is_gone() {
    let scratch = Scratch::new();
    let (disk, secret, key) = former(&scratch);
    run_all(&disk, &secret).unwrap();
    check(&disk, &key);
    let told = run_all(&disk, &secret).unwrap_err();
    assert!(told.ends_with("disk.img is a LUKS2 image already"), "{told}");
}

#[test]
fn an_interrupted_conversion_goes_on_wherever_it_was() {
    // Nothing but an empty record, nothing moved, one of two pieces moved, all moved, the former key
    // overwritten, and removed.
    for steps in 0..6 {
        let scratch = Scratch::new();
        let (disk, secret, key) = former(&scratch);
        let mut journal = open_journal(&journal_path(&disk)).unwrap();
        let mut io = locked(&disk).unwrap();
        let mut conversion = Conversion::new(LEN, DataUnit::B512);
        if steps > 0 {
            conversion.store(&mut journal).unwrap();
        }
        if steps > 1 {
            io.0.set_len(LEN + DATA_OFFSET).unwrap();
        }
        for _ in 1..steps.min(3) {
            conversion.move_piece(&mut io, &mut journal, &key).unwrap();
        }
        if steps > 3 {
            let image = ImageFile::new(&disk, Zeroizing::new(SECRET.to_vec()));
            let new = image.new_header(&key, DataUnit::B512);
            conversion.write_header(&mut io, &mut journal, &new, &mut random).unwrap();
            match steps {
                4 => fs::write(beside(&disk), [0; crate::luks::former::FILE_LEN]).unwrap(),
                _ => remove(&beside(&disk)).unwrap(),
            }
        }
        drop((io, journal));
        run_all(&disk, &secret).unwrap();
        check(&disk, &key);
    }
}

#[test]
fn a_key_file_of_zeros_is_removed_only_after_the_header_is_written() {
    let scratch = Scratch::new();
    let (disk, secret, _) = former(&scratch);
    fs::write(beside(&disk), [0; crate::luks::former::FILE_LEN]).unwrap();
    let mut journal = open_journal(&journal_path(&disk)).unwrap();
    Conversion::new(LEN, DataUnit::B512).store(&mut journal).unwrap();
    let told = run_all(&disk, &secret).unwrap_err();
    assert!(told.ends_with(".media-key: this is not a media key"), "{told}");
    fs::remove_file(beside(&disk)).unwrap();
    let told = run_all(&disk, &secret).unwrap_err();
    assert!(told.ends_with("is no LUKS2 image yet: restore the key file"), "{told}");
    assert!(journal_path(&disk).exists());
}

#[test]
fn what_cannot_be_converted_stays_as_it_was() {
    let scratch = Scratch::new();
    let (disk, secret, _) = former(&scratch);
    let before = fs::read(&disk).unwrap();
    fs::write(&secret, [1; 40]).unwrap();
    let told = run_all(&disk, &secret).unwrap_err();
    assert!(told.contains("the secret is not the one"), "{told}");
    fs::write(&secret, SECRET).unwrap();
    let held = locked(&disk).unwrap();
    let told = run_all(&disk, &secret).unwrap_err();
    assert!(told.ends_with("is in use by another process"), "{told}");
    drop(held);
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(run_all(&disk, &secret).unwrap_err().contains("can be read by others"));
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    fs::remove_file(beside(&disk)).unwrap();
    let told = run_all(&disk, &secret).unwrap_err();
    assert!(told.contains(".media-key does not exist, so "), "{told}");
    assert!(!journal_path(&disk).exists() && fs::read(&disk).unwrap() == before);
}
