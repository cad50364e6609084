//! The controller on a file system whose last byte and last inode are used. What a call frees is used
//! immediately, as the data of volumes in use would.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::process::Command;

use super::*;

/// A pool on a small file system in memory.
struct SmallBed(Bed);

impl SmallBed {
    /// Returns `None` and prints the reason if the privilege for a file system is missing.
    fn new(name: &str) -> Option<Self> {
        let bed = Bed::new(name);
        let options = ["-t", "tmpfs", "-o", "size=3m,nr_inodes=300", "tmpfs"];
        match Command::new("mount").args(options).arg(&bed.folder).output() {
            Ok(done) if done.status.success() => Some(Self(bed)),
            other => {
                eprintln!("skipped: no small file system: {other:?}");
                None
            }
        }
    }

    /// Uses what is free.
    fn fill(&self) {
        let filler = self.0.folder.join("filler");
        fs::create_dir_all(&filler).unwrap();
        let mut file = OpenOptions::new().append(true).create(true).open(filler.join("data")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
        let first = fs::read_dir(&filler).unwrap().count();
        let _ = (first..).find(|number| File::create(filler.join(number.to_string())).is_err());
        let free = self.free();
        assert_eq!((free.f_bfree, free.f_ffree), (0, 0));
    }

    fn free(&self) -> rustix::fs::StatVfs {
        rustix::fs::statvfs(&self.0.folder).unwrap()
    }
}

impl Drop for SmallBed {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0.folder).status();
    }
}

fn chosen(password: &str) -> BTreeMap<String, String> {
    [(SECRET_USER, "user"), (SECRET_PASSWORD, password)].map(|(key, text)| (key.into(), text.into())).into()
}

fn publish_with(
    volumes: &Volumes,
    id: &str,
    node: &str,
    secrets: &BTreeMap<String, String>,
) -> CsiResult<()> {
    let mode = capability(Mode::MultiNodeMultiWriter, true);
    volumes.publish(id, node, &mode, false, secrets).map(drop)
}

/// Returns the contents of the file that the daemon lets a node log in by.
fn login(bed: &Bed, volumes: &Volumes, id: &str, node: &str) -> String {
    let targets = bed.daemon.targets();
    let access = &targets[&volumes.target_name(id)].access;
    let access = access.iter().find(|access| access.initiator == node).unwrap();
    fs::read_to_string(login_file(access)).unwrap()
}

fn new_volume(name: &str, protection: &str) -> NewVolume {
    let parameters = BTreeMap::from([("protection".to_owned(), protection.to_owned())]);
    let size = SizeRange { required: MIB, limit: 0 };
    NewVolume { parameters, size, ..wanted(name) }
}

#[test]
fn nodes_lose_and_get_volumes_of_a_full_pool_and_volumes_are_removed() {
    for protection in ["none", "encrypt"] {
        let Some(small) = SmallBed::new(&format!("full-{protection}")) else { return };
        let bed = &small.0;
        let mut volumes = bed.open();
        let id = volumes.create(&new_volume("a", protection)).unwrap().id;
        let other = volumes.create(&new_volume("b", protection)).unwrap().id;
        publish_with(&volumes, &id, NODE, &BTreeMap::new()).unwrap();
        small.fill();
        let said = volumes.create(&new_volume("c", protection)).unwrap_err();
        assert_eq!(said.code, Code::ResourceExhausted, "{said}");
        for round in 0..20 {
            let (node, former) = if round % 2 == 0 { (OTHER, NODE) } else { (NODE, OTHER) };
            for turn in ["first", "second"] {
                let password = format!("the {turn} of round {round}");
                publish_with(&volumes, &id, node, &chosen(&password)).unwrap();
                small.fill();
                assert!(login(bed, &volumes, &id, node).ends_with(&password));
            }
            volumes.unpublish(&id, Some(former)).unwrap();
            small.fill();
            let limit = BTreeMap::from([("limit_iops".to_owned(), (100 + round).to_string())]);
            volumes.modify(&id, &limit).unwrap();
            small.fill();
            let known = volumes.volume(&id).unwrap();
            assert_eq!(known.publications.keys().collect::<Vec<_>>(), [node]);
            drop(volumes);
            volumes = bed.open();
            assert_eq!(volumes.volume(&id).unwrap(), known);
            small.fill();
        }
        assert_eq!(
            bed.files().iter().filter(|name| name.contains("secrets/")).count(),
            match protection {
                "none" => 1,
                _ => 2,
            }
        );
        volumes.unpublish(&id, None).unwrap();
        small.fill();
        for id in [&id, &other] {
            volumes.delete(id).unwrap();
            small.fill();
        }
        let rest: Vec<String> = bed.files().into_iter().filter(|name| !name.starts_with("filler")).collect();
        assert!(rest.is_empty(), "{rest:?}");
        // Spare files are made again when there is room.
        fs::remove_dir_all(bed.folder.join("filler")).unwrap();
        volumes.create(&new_volume("c", protection)).unwrap();
        drop(volumes);
        let stored = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().metadata().unwrap();
        let spares: Vec<_> = fs::read_dir(bed.folder.join(".csi/spare")).unwrap().map(stored).collect();
        assert!(spares.len() == 16 && spares.iter().all(|spare| spare.len() == 0));
    }
}

#[test]
fn a_call_without_room_leaves_everything_as_it_was() {
    let Some(small) = SmallBed::new("no-room") else { return };
    let bed = &small.0;
    let volumes = bed.open();
    let id = volumes.create(&new_volume("a", "encrypt")).unwrap().id;
    publish_with(&volumes, &id, NODE, &chosen("the first password")).unwrap();
    let spares = || fs::read_dir(bed.folder.join(".csi/spare")).unwrap().map(|entry| entry.unwrap().path());
    // As a pool of an earlier version is, apart from one spare file: the password record can be written.
    for left in [0, 1] {
        small.fill();
        let (before, known) = (contents(bed), volumes.volume(&id).unwrap());
        if left == 1 {
            let one = bed.folder.join("filler/data");
            let len = one.metadata().unwrap().len();
            OpenOptions::new().write(true).open(&one).unwrap().set_len(len - 4096).unwrap();
            fs::remove_file(bed.folder.join("filler/1")).unwrap();
        } else {
            spares().for_each(|path| fs::remove_file(path).unwrap());
            small.fill();
        }
        let calls: [&dyn Fn() -> CsiResult<()>; 2] =
            [&|| publish_with(&volumes, &id, NODE, &chosen("the second password")), &|| {
                volumes.create(&NewVolume { size: SizeRange::default(), ..new_volume("b", "none") }).map(drop)
            }];
        for call in calls {
            let said = call().unwrap_err();
            assert_eq!(said.code, Code::ResourceExhausted, "{said}");
            assert_eq!((contents(bed), volumes.volume(&id).unwrap()), (before.clone(), known.clone()));
        }
        assert_eq!(login(bed, &volumes, &id, NODE), records_of("user", "the first password"));
    }
    drop(volumes);
    small.fill();
    spares().for_each(|path| fs::remove_file(path).unwrap());
    small.fill();
    let volumes = bed.open();
    assert_eq!(code(publish_with(&volumes, &id, OTHER, &BTreeMap::new())), Code::ResourceExhausted);
    fs::remove_dir_all(bed.folder.join("filler")).unwrap();
    publish_with(&volumes, &id, OTHER, &BTreeMap::new()).unwrap();
}

/// Returns the files of the pool with their contents, but for what fills the file system.
fn contents(bed: &Bed) -> Vec<(String, Vec<u8>)> {
    let files = bed.files().into_iter().filter(|name| !name.starts_with("filler"));
    files
        .map(|name| (fs::read(bed.folder.join(&name)).unwrap(), name))
        .map(|(text, name)| (name, text))
        .collect()
}

#[test]
fn a_pool_without_spare_files_that_is_full_is_opened() {
    let Some(small) = SmallBed::new("earlier") else { return };
    let bed = &small.0;
    let volumes = bed.open();
    let id = volumes.create(&new_volume("a", "encrypt")).unwrap().id;
    drop(volumes);
    fs::remove_dir_all(bed.folder.join(".csi/spare")).unwrap();
    small.fill();
    let volumes = bed.open();
    assert!(!volumes.can_copy());
    volumes.delete(&id).unwrap();
    assert!(!bed.folder.join(format!("{id}.img")).exists());
}
