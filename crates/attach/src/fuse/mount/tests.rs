use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, channel};

use base::rng::Rng;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use store::api::Fault;

use super::*;
use crate::fuse::refuse_served;
use crate::testing::{Medium, seed};

/// A mounted medium in a directory of its own.
struct MountedMedium {
    medium: Arc<Medium>,
    dir: PathBuf,
    mount: Option<Mount>,
    ended: Receiver<()>,
}

impl MountedMedium {
    /// Mounts the medium, or returns `None` where mounting is impossible.
    fn new(name: &str) -> Option<Self> {
        let dir = std::env::temp_dir().join(format!("targe-fuse-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let medium = Medium::new(64 << 20, 512, 1 << 20);
        let (tell, ended) = channel();
        let disk = Arc::clone(&medium) as Arc<dyn SharedStore>;
        let told = Box::new(move || {
            let _ = tell.send(());
        });
        match Mount::start(&dir, disk, "test", Arc::new(|_| ()), told) {
            Ok(mount) => Some(Self { medium, dir, mount: Some(mount), ended }),
            Err(why @ (FuseStartError::NoFuse(_) | FuseStartError::NotAllowed)) => {
                println!("SKIP {name}: {why}");
                let _ = std::fs::remove_dir(&dir);
                None
            }
            Err(other) => panic!("{other:?}"),
        }
    }

    fn mount(&self) -> &Mount {
        self.mount.as_ref().unwrap()
    }

    fn open(&self) -> File {
        OpenOptions::new().read(true).write(true).open(self.mount().file()).unwrap()
    }
}

impl Drop for MountedMedium {
    fn drop(&mut self) {
        if let Some(mount) = self.mount.take() {
            self.medium.release();
            mount.abort();
            let _ = mount.wait();
        }
        let _ = std::fs::remove_dir(&self.dir);
    }
}

#[test]
fn the_file_is_the_medium() {
    let Some(mounted) = MountedMedium::new("medium") else { return };
    let file = mounted.open();
    assert_eq!(file.metadata().unwrap().len(), 64 << 20);
    let names: Vec<_> =
        std::fs::read_dir(&mounted.dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["disk"]);
    let mut rng = Rng::from_seed(seed());
    let mut expected = vec![0; 8 << 20];
    for _ in 0..200 {
        let at = rng.below(4 << 20) as usize;
        let len_max = 1 << rng.below(22);
        let mut data = vec![0; 1 + rng.below(len_max) as usize];
        rng.fill(&mut data);
        file.write_all_at(&data, at as u64).unwrap();
        expected[at..at + data.len()].copy_from_slice(&data);
    }
    let mut read = vec![0; expected.len()];
    file.read_exact_at(&mut read, 0).unwrap();
    assert!(read == expected);
    assert!(mounted.medium.bytes(0, expected.len()) == expected);
}

#[test]
fn syncs_holes_and_seeks_reach_the_medium() {
    let Some(mounted) = MountedMedium::new("holes") else { return };
    let file = mounted.open();
    file.write_all_at(&[7; 256 << 10], 0).unwrap();
    mounted.medium.log();
    file.sync_all().unwrap();
    assert_eq!(mounted.medium.log(), ["flush 0+0"]);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 64 << 10, 64 << 10).unwrap();
    fallocate(&file, FallocateFlags::ZERO_RANGE, 200 << 10, 100).unwrap();
    let log = mounted.medium.log();
    assert_eq!(log.first().map(String::as_str), Some("zero Cached hole 65536+65536"));
    assert_eq!(seek(&file, SeekFrom::Hole(0)).unwrap(), 64 << 10);
    assert_eq!(seek(&file, SeekFrom::Data(64 << 10)).unwrap(), 128 << 10);
    let mut read = [1; 102];
    file.read_exact_at(&mut read, (200 << 10) - 1).unwrap();
    assert_eq!((read[0], &read[1..101], read[101]), (7, &[0; 100][..], 7));
    let synchronous = rustix::fs::open(
        mounted.mount().file(),
        rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::DSYNC,
        rustix::fs::Mode::empty(),
    );
    mounted.medium.log();
    rustix::io::pwrite(synchronous.unwrap(), &[1; 512], 0).unwrap();
    assert_eq!(mounted.medium.log()[0], "write Stable 0+512");
}

#[test]
fn sees_the_disk_grow() {
    let Some(mounted) = MountedMedium::new("grow") else { return };
    let file = mounted.open();
    assert_eq!(file.write_at(&[1; 10], 64 << 20).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    mounted.medium.change_profile(|profile| profile.len = 128 << 20);
    assert_eq!(file.metadata().unwrap().len(), 128 << 20);
    file.write_all_at(&[1; 10], 100 << 20).unwrap();
    assert_eq!(file.set_len(1 << 30).unwrap_err().raw_os_error(), Some(libc::EPERM));
    assert_eq!(file.set_len(0).unwrap_err().raw_os_error(), Some(libc::EPERM));
    OpenOptions::new().write(true).truncate(true).open(mounted.mount().file()).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 128 << 20, "truncation is for files");
    assert_eq!(mounted.medium.bytes(100 << 20, 10), [1; 10]);
}

#[test]
fn failures_reach_the_program() {
    let Some(mounted) = MountedMedium::new("failures") else { return };
    let file = mounted.open();
    mounted.medium.fail(Some(Fault::Medium.into()));
    assert_eq!(file.write_at(&[1; 512], 0).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(file.read_at(&mut [0; 512], 0).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
    mounted.medium.fail(None);
    file.write_all_at(&[1; 512], 0).unwrap();
}

#[test]
fn many_requests_are_under_way_at_once() {
    let Some(mounted) = MountedMedium::new("many") else { return };
    mounted.medium.hold();
    let threads: Vec<_> = (0..8_u64)
        .map(|n| {
            let file = mounted.open();
            std::thread::spawn(move || file.write_all_at(&[n as u8; 4096], n * 4096).unwrap())
        })
        .collect();
    mounted.medium.await_held(8);
    mounted.medium.release();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(mounted.medium.bytes(7 * 4096, 4096), [7; 4096]);
}

#[test]
fn detaches_at_once_when_nobody_has_it_open() {
    let Some(mut mounted) = MountedMedium::new("detach") else { return };
    mounted.open().write_all_at(&[1; 512], 0).unwrap();
    let mount = mounted.mount.take().unwrap();
    assert_eq!(mount.detach().unwrap(), Detached::Now);
    mounted.ended.recv().unwrap();
    mounted.medium.log();
    mount.wait().unwrap();
    assert_eq!(mounted.medium.log(), ["flush 0+0"]);
    assert!(!mounted.dir.join("disk").exists());
}

#[test]
fn serves_on_until_the_last_one_closes_it() {
    let Some(mut mounted) = MountedMedium::new("busy") else { return };
    let file = mounted.open();
    let mount = mounted.mount.take().unwrap();
    assert_eq!(mount.detach().unwrap(), Detached::OnceClosed);
    assert!(!mounted.dir.join("disk").exists());
    file.write_all_at(&[9; 512], 0).unwrap();
    file.sync_all().unwrap();
    assert!(mounted.ended.try_recv().is_err());
    drop(file);
    mounted.ended.recv().unwrap();
    mount.wait().unwrap();
    assert_eq!(mounted.medium.bytes(0, 512), [9; 512]);
}

#[test]
fn an_abort_finishes_what_is_under_way_and_fails_the_rest() {
    let Some(mut mounted) = MountedMedium::new("abort") else { return };
    let file = mounted.open();
    mounted.medium.hold();
    let theirs = file.try_clone().unwrap();
    let writing = std::thread::spawn(move || theirs.write_all_at(&[9; 512], 0));
    mounted.medium.await_held(1);
    let mount = mounted.mount.take().unwrap();
    mount.abort();
    mounted.medium.release();
    mount.wait().unwrap();
    writing.join().unwrap().unwrap();
    assert!(file.write_at(&[1; 512], 0).is_err());
    assert_eq!(mounted.medium.bytes(0, 512), [9; 512]);
    assert!(std::fs::read_dir(&mounted.dir).unwrap().next().is_none());
}

#[test]
fn a_directory_in_use_is_refused() {
    let Some(mounted) = MountedMedium::new("in-use") else { return };
    let disk = Arc::clone(&mounted.medium) as Arc<dyn SharedStore>;
    let second = Mount::start(&mounted.dir, Arc::clone(&disk), "test", Arc::new(|_| ()), Box::new(|| ()));
    assert!(matches!(second, Err(FuseStartError::InUse(_))));
    assert!(matches!(refuse_served(&mounted.dir), Err(FuseStartError::InUse(_))));
    let file = std::env::current_exe().unwrap();
    let third = Mount::start(&file, disk, "test", Arc::new(|_| ()), Box::new(|| ()));
    assert!(matches!(third, Err(FuseStartError::NotADirectory(_))));
}

#[test]
fn a_loss_fails_one_fsync_of_every_open_file() {
    let Some(mounted) = MountedMedium::new("losses") else { return };
    let (one, two) = (mounted.open(), mounted.open());
    for file in [&one, &two] {
        file.write_all_at(&[1; 512], 0).unwrap();
        file.sync_all().unwrap();
    }
    mounted.medium.lose(Fault::Medium.into());
    for file in [&one, &two] {
        assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(libc::EIO));
        file.sync_all().unwrap();
    }
    mounted.open().sync_all().unwrap();
}
