//! Tests of ublk devices that outlive their processes. The program that deletes them is a script, and the
//! device is a disk of this host that the tests do not open.

use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::*;

const ID: &str = "v-15f136e330e8165b416a4888c47275ef";
const DELETION: &str = "attach --ublk --delete iscsi://me@san:3260/iqn.2026-11.example:csi:a/0\n";

/// A test that tries whether a device is unused uses it meanwhile, so the tests run one after the other.
static ALONE: Mutex<()> = Mutex::new(());

/// A node whose program records its arguments. It reaches no target.
struct Rig {
    node: Node,
    log: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Rig {
    fn new(name: &str) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let run_dir = std::env::temp_dir().join(format!("targe-csi-left-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&run_dir);
        let settings = NodeSettings {
            initiator: "iqn.2026-11.example.node:one".to_owned(),
            targe: run_dir.join("targe"),
            run_dir: run_dir.clone(),
            method: AttachMethod::Ublk,
            protected_method: None,
            iscsiadm: vec!["true".to_owned()],
            max_volumes: None,
        };
        let rig = Self { node: Node::open(settings).unwrap(), log: run_dir.join("log"), _alone: alone };
        rig.set_program("case \"$1\" in info) exit 1; esac");
        rig
    }

    fn set_program(&self, rest: &str) {
        let path = &self.node.settings.targe;
        fs::write(path, format!("#!/bin/sh\necho \"$@\" >> {}\n{rest}\n", self.log.display())).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Records a volume whose process has died, and left a device.
    fn lose(&self, staged: &Staged) -> PathBuf {
        record::write(&self.node.records_dir(), staged).unwrap();
        let names = fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().file_name());
        let mut devices: Vec<PathBuf> = names.map(|name| Path::new("/dev").join(name)).collect();
        devices.sort();
        // Others on this host use some, and take the first loop device that is free.
        let exclusive = rustix::fs::OFlags::EXCL.bits().cast_signed();
        let is_unused =
            |path: &&PathBuf| File::options().read(true).custom_flags(exclusive).open(path).is_ok();
        let device = devices.iter().rev().find(is_unused).or(devices.last()).unwrap().clone();
        let number = Path::new("/sys/block").join(device.file_name().unwrap()).join("diskseq");
        let number = fs::read_to_string(number).unwrap();
        self.put("device", &format!("{} {}", device.display(), number.trim()));
        self.put("secret", "secret");
        assert_eq!(self.node.settings.device_left(staged), Some(device.clone()));
        device
    }

    fn file(&self, ending: &str) -> PathBuf {
        self.node.settings.run_dir.join(format!("{ID}.{ending}"))
    }

    fn put(&self, ending: &str, text: &str) {
        fs::write(self.file(ending), text).unwrap();
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.node.settings.run_dir);
    }
}

fn staged(publication: &str) -> Staged {
    Staged {
        id: ID.to_owned(),
        method: AttachMethod::Ublk,
        portal: "san:3260".to_owned(),
        target: "iqn.2026-11.example:csi:a".to_owned(),
        naa: "315f136e330e8165".to_owned(),
        user: "me".to_owned(),
        staging_path: PathBuf::from("/nowhere/staged"),
        block: true,
        read_only: false,
        formatting: false,
        publication: publication.to_owned(),
        protection: Protection::None,
    }
}

#[test]
fn a_later_publication_deletes_the_device_of_a_dead_process_and_takes_it_from_all_paths() {
    let rig = Rig::new("fenced");
    let device = rig.lose(&staged("first"));
    let path = rig.node.settings.run_dir.join("published");
    fs::write(&path, "").unwrap();
    // Only root can bind. A sandbox may not let it.
    let is_bound = mounts::bind(&device, &path).is_ok();
    let recorded = rig.node.record(staged("second"));
    let is_bound_still = is_bound && mounts::at(&path).unwrap().is_some();
    if is_bound_still {
        mounts::unmount(&path, true).unwrap();
    }
    assert_eq!(recorded.unwrap(), staged("second"));
    assert!(!is_bound_still);
    assert!(rig.log().contains(DELETION), "{}", rig.log());
    assert_eq!(rig.node.settings.device_left(&staged("second")), None);
    assert_eq!(rig.node.staged(ID).unwrap(), Some(staged("second")));
}

#[test]
fn a_device_that_cannot_be_deleted_keeps_its_record() {
    let rig = Rig::new("kept");
    rig.lose(&staged("first"));
    rig.set_program("exit 1");
    rig.node.record(staged("second")).unwrap_err();
    assert_eq!(rig.node.staged(ID).unwrap(), Some(staged("first")));
    assert!(rig.node.settings.device_left(&staged("first")).is_some());
}

#[test]
fn only_the_device_of_the_same_publication_and_url_is_taken_over() {
    let rig = Rig::new("taken-over");
    // Its process has the publication's device.
    rig.lose(&staged("first"));
    assert_eq!(rig.node.record(staged("first")).unwrap(), staged("first"));
    rig.node.settings.attach(&staged("first"), "secret").unwrap_err();
    assert!(!rig.log().contains("--delete"), "{}", rig.log());
    // A process with another URL does not find the device.
    let moved = Staged { portal: "other:3260".to_owned(), ..staged("first") };
    assert_eq!(rig.node.record(moved.clone()).unwrap(), moved);
    assert!(rig.log().contains(DELETION), "{}", rig.log());
}

#[test]
fn a_device_that_an_earlier_version_did_not_note_is_taken_over() {
    let rig = Rig::new("not-noted");
    record::write(&rig.node.records_dir(), &staged("first")).unwrap();
    assert_eq!(rig.node.record(staged("first")).unwrap(), staged("first"));
    rig.node.settings.attach(&staged("first"), "secret").unwrap_err();
    assert!(rig.log().contains("info ") && !rig.log().contains("--delete"), "{}", rig.log());
}

#[test]
fn a_volume_is_recorded_after_the_device_of_an_earlier_publication_was_deleted() {
    let rig = Rig::new("unrecorded");
    rig.set_program("exit 1");
    rig.node.record(staged("first")).unwrap_err();
    assert_eq!(rig.node.staged(ID).unwrap(), None);
    rig.set_program("");
    assert_eq!(rig.node.record(staged("first")).unwrap(), staged("first"));
    assert_eq!(rig.log(), DELETION.repeat(2));
}

#[test]
fn the_path_of_a_device_that_has_gone_is_not_the_volume() {
    let rig = Rig::new("reused");
    let device = rig.lose(&staged("first"));
    rig.put("device", &format!("{} 0", device.display()));
    assert_eq!(rig.node.settings.device_left(&staged("first")), None);
}

#[test]
fn a_volume_is_unstaged_once_its_device_has_waited_in_vain() {
    let rig = Rig::new("unstaged");
    let known = staged("first");
    rig.lose(&known);
    let unstage = || rig.node.unstage(ID, &known.staging_path);
    assert_eq!(unstage().unwrap_err().code, tonic::Code::Unavailable);
    assert!(!rig.log().contains("--delete"), "{}", rig.log());
    thread::sleep(user_space::LOSS_MAX);
    rig.set_program("exit 1");
    unstage().unwrap_err();
    assert_eq!(rig.node.staged(ID).unwrap(), Some(known.clone()));
    rig.set_program("case \"$1\" in info) exit 1; esac");
    unstage().unwrap();
    assert!(rig.log().ends_with(DELETION), "{}", rig.log());
    assert_eq!(rig.node.staged(ID).unwrap(), None);
    assert!(!rig.file("device").exists());
}
