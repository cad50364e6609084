//! Tests of the lock and of the replacement of the configuration file.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};

use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr};

use super::*;
use crate::file_attributes::ACCESS_LIST as ACL;
use crate::scratch::Scratch;

fn file(scratch: &Scratch) -> PathBuf {
    let path = scratch.path().join("targe.toml");
    fs::write(&path, "old").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    path
}

fn names(scratch: &Scratch) -> Vec<String> {
    let entries = fs::read_dir(scratch.path()).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_is_replaced_with_its_mode_through_a_link_and_leaves_nothing() {
    let scratch = Scratch::new();
    let path = file(&scratch);
    let link = scratch.path().join("link");
    symlink(&path, &link).unwrap();
    // A program that was killed left its file.
    fs::write(scratch.path().join(".targe.toml.new"), "half").unwrap();
    let mut locked = LockedFile::open(&link).unwrap();
    assert_eq!(locked.text(), "old");
    assert!(locked.replace("new", None).unwrap().is_none());
    assert!(locked.replace("newer", None).unwrap().is_none());
    drop(locked);
    assert_eq!(fs::read_to_string(&path).unwrap(), "newer");
    assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o640);
    assert_eq!(names(&scratch), ["link", "targe.toml"]);
}

#[test]
fn a_change_by_an_editor_is_not_overwritten() {
    let scratch = Scratch::new();
    let path = file(&scratch);
    let mut locked = LockedFile::open(&path).unwrap();
    fs::write(&path, "by hand").unwrap();
    assert!(matches!(locked.replace("new", None), Err(ConfigFileError::Changed(_))));
    let moved = scratch.path().join("moved");
    fs::write(&moved, "moved here").unwrap();
    fs::rename(&moved, &path).unwrap();
    assert!(matches!(locked.replace("new", None), Err(ConfigFileError::Changed(_))));
    drop(locked);
    assert_eq!(fs::read_to_string(&path).unwrap(), "moved here");
    assert_eq!(names(&scratch), ["targe.toml"]);
}

#[test]
fn a_file_that_is_late_is_not_put_in_place() {
    let scratch = Scratch::new();
    let path = file(&scratch);
    let mut locked = LockedFile::open(&path).unwrap();
    assert!(matches!(locked.replace("new", Some(Instant::now())), Err(ConfigFileError::Late(_))));
    drop(locked);
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
    assert_eq!(names(&scratch), ["targe.toml"]);
}

#[test]
fn the_text_of_an_editor_gets_its_place_back_or_is_kept() {
    let scratch = Scratch::new();
    let path = file(&scratch);
    let locked = LockedFile::open(&path).unwrap();
    let fresh = locked.beside("new");
    // As after the exchange: the editor had saved "by hand" just before it.
    fs::write(&path, "new").unwrap();
    fs::write(&fresh, "by hand").unwrap();
    assert!(matches!(locked.put_back(&fresh, "new"), ConfigFileError::Changed(_)));
    assert_eq!(fs::read_to_string(&path).unwrap(), "by hand");
    // The editor has saved once more after the exchange.
    fs::write(&path, "by hand 2").unwrap();
    fs::write(&fresh, "by hand").unwrap();
    assert!(matches!(locked.put_back(&fresh, "new"), ConfigFileError::Changed(_)));
    assert_eq!(fs::read_to_string(&path).unwrap(), "by hand 2");
    // The place is gone.
    fs::remove_file(&path).unwrap();
    fs::write(&fresh, "by hand").unwrap();
    let ConfigFileError::Aside { aside, .. } = locked.put_back(&fresh, "new") else { panic!() };
    assert_eq!(fs::read_to_string(aside).unwrap(), "by hand");
}

#[test]
fn a_reader_of_the_file_cannot_hold_up_a_change() {
    let scratch = Scratch::new();
    let path = file(&scratch);
    let reader = File::open(&path).unwrap();
    flock(&reader, FlockOperation::NonBlockingLockExclusive).unwrap();
    let locked = LockedFile::open(&path).unwrap();
    let lock = locked.beside("lock").metadata().unwrap();
    assert_eq!((lock.mode() & 0o777, lock.uid()), (0o600, path.metadata().unwrap().uid()));
}

#[test]
fn a_link_in_the_place_of_the_lock_is_refused_and_left_alone() {
    let scratch = Scratch::new();
    let path = file(&scratch);
    let (lock, victim) = (scratch.path().join(".targe.toml.lock"), scratch.path().join("victim"));
    fs::write(&victim, "").unwrap();
    fs::hard_link(&victim, &lock).unwrap();
    assert!(matches!(LockedFile::open(&path), Err(ConfigFileError::ForeignLock(_))));
    fs::remove_file(&lock).unwrap();
    symlink(&victim, &lock).unwrap();
    assert!(matches!(LockedFile::open(&path), Err(ConfigFileError::ForeignLock(_))));
    fs::remove_file(&lock).unwrap();
    fs::create_dir(&lock).unwrap();
    assert!(matches!(LockedFile::open(&path), Err(ConfigFileError::ForeignLock(_))));
    assert_eq!(names(&scratch), [".targe.toml.lock", "targe.toml", "victim"]);
}

#[test]
fn a_lock_that_a_killed_program_left_is_taken() {
    let scratch = Scratch::new();
    let path = file(&scratch);
    fs::write(scratch.path().join(".targe.toml.lock"), "").unwrap();
    drop(LockedFile::open(&path).unwrap());
    assert_eq!(names(&scratch), ["targe.toml"]);
}

#[test]
fn the_lock_of_another_program_is_not_removed() {
    let scratch = Scratch::new();
    let path = file(&scratch);
    let locked = LockedFile::open(&path).unwrap();
    fs::remove_file(locked.beside("lock")).unwrap();
    let other = LockedFile::open(&path).unwrap();
    drop(locked);
    assert_eq!(names(&scratch), [".targe.toml.lock", "targe.toml"]);
    drop(other);
    assert_eq!(names(&scratch), ["targe.toml"]);
}

#[test]
fn the_new_file_has_the_access_list_of_the_old_one() {
    let scratch = Scratch::new();
    let path = file(&scratch);
    // Version 2; owner rw, user 4711 r, group r, mask r, others nothing.
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, allowed, id) in
        [(1_u16, 6_u16, u32::MAX), (2, 4, 4711), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)]
    {
        list.extend(tag.to_le_bytes());
        list.extend(allowed.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    let open = || File::open(&path).unwrap();
    fsetxattr(open(), ACL, &list, XattrFlags::empty()).expect(
        "TMPDIR must be on a file system with POSIX access lists, which ext4, XFS, Btrfs and tmpfs have",
    );
    assert!(LockedFile::open(&path).unwrap().replace("new", None).unwrap().is_none());
    let mut found = [0; 256];
    let len = fgetxattr(open(), ACL, found.as_mut_slice()).unwrap();
    assert_eq!(found[..len], list);
    // A default list of the directory gives no access to a file without a list.
    fremovexattr(open(), ACL).unwrap();
    let directory = File::open(scratch.path()).unwrap();
    fsetxattr(&directory, "system.posix_acl_default", &list, XattrFlags::empty()).unwrap();
    assert!(LockedFile::open(&path).unwrap().replace("newer", None).unwrap().is_none());
    assert_eq!(fgetxattr(open(), ACL, found.as_mut_slice()), Err(Errno::NODATA));
}

#[test]
fn the_new_file_has_the_other_attributes_of_the_old_one() {
    let scratch = Scratch::new();
    let path = file(&scratch);
    let open = || File::open(&path).unwrap();
    let values: [(&str, &[u8]); 3] =
        [("user.note", b"of the storage team"), ("user.empty", b""), ("user.long", &[7; 1000])];
    for (name, value) in values {
        fsetxattr(open(), name, value, XattrFlags::empty())
            .expect("TMPDIR must be on a file system with extended attributes of users");
    }
    let mut locked = LockedFile::open(&path).unwrap();
    for text in ["new", "newer"] {
        assert!(locked.replace(text, None).unwrap().is_none());
        for (name, value) in values {
            let mut found = [0; 2000];
            let len = fgetxattr(open(), name, found.as_mut_slice()).unwrap();
            assert_eq!(found[..len], *value, "{name}");
        }
    }
}

#[test]
fn a_file_that_is_only_read_needs_no_lock() {
    let scratch = Scratch::new();
    let path = file(&scratch);
    let link = scratch.path().join("link");
    symlink(&path, &link).unwrap();
    let _locked = LockedFile::open(&path).unwrap();
    let mut file = LockedFile::read(&link).unwrap();
    assert_eq!((file.text(), file.path(), file.given_path()), ("old", path.as_path(), link.as_path()));
    assert!(matches!(file.replace("new", None), Err(ConfigFileError::NotLocked(_))));
    assert_eq!(fs::read_to_string(&path).unwrap(), "old");
}

#[test]
fn two_programs_take_turns() {
    let scratch = Scratch::new();
    let path = file(&scratch);
    fs::write(&path, "").unwrap();
    let add = |path: &Path| {
        let mut locked = LockedFile::open(path).unwrap();
        let more = format!("{}x", locked.text());
        locked.replace(&more, None).unwrap();
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..10).for_each(|_| add(&path)));
        }
    });
    assert_eq!(fs::read_to_string(&path).unwrap(), "x".repeat(40));
}

#[test]
fn a_file_that_is_no_text_is_refused() {
    let scratch = Scratch::new();
    let path = file(&scratch);
    fs::write(&path, b"\xff").unwrap();
    assert!(matches!(LockedFile::open(&path), Err(ConfigFileError::NotText(_))));
    File::create(&path).unwrap().set_len(FILE_LEN_MAX + 1).unwrap();
    assert!(matches!(LockedFile::open(&path), Err(ConfigFileError::TooLong(_))));
}
