//! Disks with a file system: loop devices over files, and LUNs that `targe attach` makes disks of.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use drivers::loop_device::LoopDevice;
use rustix::fs::syncfs;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::program;
use crate::bed::{MountNamespace, Namespace};
use crate::experiment::LabError;
use crate::target_process::supervisor::Supervised;
use crate::target_process::{PrivateDirectory, TargetProcess};
use crate::targets::{disk_directory, search_path};

/// How long mkfs.ext4 may take: it writes less than 100 MiB to a disk of at most 3 GiB. A LUN whose target
/// does not answer fails before.
const MADE_WITHIN: Duration = Duration::from_secs(120);

/// How long `targe attach` may take to have a disk.
const ATTACHED_WITHIN: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The bytes that a copy reads and writes at a time, as cp(1) does.
const CHUNK: usize = 128 << 10;

/// A mounted ext4 file system in a mount namespace. Dropping it unmounts it, and detaches its loop device.
#[derive(Debug)]
pub(super) struct FileSystem {
    mounts: Arc<MountNamespace>,
    device: Device,
    directory: PathBuf,
}

/// What a file system is on.
#[derive(Debug)]
pub(super) enum DiskFile {
    /// A file, which needs a loop device.
    Plain(PathBuf),
    /// A block device.
    Device(PathBuf),
}

/// The block device of a file system.
#[derive(Debug)]
enum Device {
    Loop(LoopDevice),
    Other(PathBuf),
}

impl FileSystem {
    /// Makes a file system on a disk, and mounts it on a directory.
    pub(super) fn create(
        mounts: &Arc<MountNamespace>,
        disk: &DiskFile,
        directory: &Path,
        stop: &AtomicBool,
    ) -> Result<Self, LabError> {
        let device = mounts.run(|| {
            let device = match disk {
                DiskFile::Plain(file) => Device::Loop(attach_loop_device(file)?),
                DiskFile::Device(path) => Device::Other(path.clone()),
            };
            // What mkfs.ext4 leaves for later would be written during a measurement.
            let options = ["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"].map(OsStr::new);
            let arguments = options.into_iter().chain([device.path().as_os_str()]);
            program::run("mkfs.ext4", arguments, MADE_WITHIN, stop)?;
            mount_at(device.path(), directory)?;
            Ok(device)
        })??;
        Ok(Self { mounts: Arc::clone(mounts), device, directory: directory.to_owned() })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Runs `work` where the file system is mounted.
    pub(super) fn run<T: Send>(
        &self,
        what: &str,
        work: impl FnOnce(&Path) -> io::Result<T> + Send,
    ) -> Result<T, LabError> {
        let done = self.mounts.run(|| work(&self.directory))?;
        done.map_err(|why| LabError::System { what: what.to_owned(), why })
    }

    /// Unmounts the file system and mounts it again, so that nothing of it is in the page cache.
    pub(super) fn remount(&self) -> Result<(), LabError> {
        self.mounts.run(|| {
            let unmounted = unmount(&self.directory, UnmountFlags::empty());
            unmounted.map_err(|why| LabError::System {
                what: "unmount a file system".to_owned(),
                why: why.into(),
            })?;
            mount_at(self.device.path(), &self.directory)
        })?
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        // Whatever cannot be unmounted now is unmounted when the namespace ends.
        let _ = self.mounts.run(|| unmount(&self.directory, UnmountFlags::empty()));
    }
}

impl Device {
    fn path(&self) -> &Path {
        match self {
            Self::Loop(device) => device.path(),
            Self::Other(path) => path,
        }
    }
}

fn attach_loop_device(path: &Path) -> Result<LoopDevice, LabError> {
    let file = File::options().read(true).write(true).open(path);
    file.and_then(|file| LoopDevice::attach(&file))
        .map_err(|why| LabError::System { what: format!("attach a loop device to {}", path.display()), why })
}

fn mount_at(device: &Path, directory: &Path) -> Result<(), LabError> {
    mount(device, directory, "ext4", MountFlags::NOATIME, None)
        .map_err(|why| LabError::System { what: "mount an ext4 file system".to_owned(), why: why.into() })
}

/// A LUN that `targe attach` has made a disk of. Dropping it detaches the disk.
#[derive(Debug)]
pub(super) struct AttachedDisk {
    pub(super) process: TargetProcess,
    pub(super) disk: DiskFile,
}

/// How LUNs become disks here: by the kernel's ublk if it has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttachKind {
    Ublk,
    Fuse,
}

impl AttachKind {
    pub(super) fn of_this_kernel() -> Self {
        if Path::new("/dev/ublk-control").exists() { Self::Ublk } else { Self::Fuse }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ublk => "targe attach --ublk",
            Self::Fuse => "targe attach --fuse and a loop device",
        }
    }

    const fn options(self) -> &'static str {
        match self {
            Self::Ublk => "--ublk",
            Self::Fuse => "--fuse \"$DIR/disk\"",
        }
    }
}

impl AttachedDisk {
    /// Starts `program attach` on a host, in a mount namespace, and waits for its disk.
    pub(super) fn attach(
        (host, mounts): (&Namespace, &MountNamespace),
        program: &Path,
        url: &str,
        kind: AttachKind,
        stop: &AtomicBool,
    ) -> Result<Self, LabError> {
        let system = |why| LabError::System { what: "create a directory".to_owned(), why };
        let directory = PrivateDirectory::create_in(&disk_directory().0).map_err(system)?;
        fs::create_dir(directory.path().join("disk")).map_err(system)?;
        let supervised = Supervised {
            serve: format!("exec \"$PROGRAM\" attach \"$URL\" {} > \"$DIR/address\"", kind.options()),
            // Whatever is mounted there would keep the directory.
            teardown: "umount -l \"$DIR/disk\" 2>/dev/null".to_owned(),
            variables: vec![
                ("PATH".to_owned(), search_path()),
                ("PROGRAM".to_owned(), program.display().to_string()),
                ("URL".to_owned(), url.to_owned()),
            ],
        };
        let mut process = mounts.run(|| supervised.start(Some(host), directory))??;
        let address = process.directory().path().join("address");
        let deadline = Instant::now() + ATTACHED_WITHIN;
        loop {
            let printed = fs::read_to_string(&address).unwrap_or_default();
            if let Some(path) = printed.strip_suffix('\n') {
                let disk = match kind {
                    AttachKind::Ublk => DiskFile::Device(path.into()),
                    AttachKind::Fuse => DiskFile::Plain(path.into()),
                };
                return Ok(Self { process, disk });
            }
            if let Some(end) = process.end() {
                return Err(LabError::Target(format!("targe attach: {end}")));
            }
            if stop.load(Ordering::Relaxed) || Instant::now() >= deadline {
                let said = process.messages_now();
                return Err(LabError::Target(format!("targe attach does not have a disk: {said}")));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Copies the files of a directory to another one.
///
/// # Errors
/// Those of the files; [`io::ErrorKind::Interrupted`] if it was stopped.
pub(super) fn copy_files(names: &[String], from: &Path, to: &Path, stop: &AtomicBool) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    for name in names {
        let (mut source, mut copy) = (File::open(from.join(name))?, File::create(to.join(name))?);
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let len = source.read(&mut chunk)?;
            let Some(read) = chunk.get(..len).filter(|read| !read.is_empty()) else { break };
            copy.write_all(read)?;
        }
    }
    Ok(())
}

/// Waits until all of a file system is on its disk.
pub(super) fn sync(directory: &Path) -> io::Result<()> {
    Ok(syncfs(File::open(directory)?)?)
}

/// Returns the first file of a directory that is not as in another one.
pub(super) fn first_difference(names: &[String], one: &Path, other: &Path) -> io::Result<Option<String>> {
    for name in names {
        let (mut one, mut other) = (File::open(one.join(name))?, File::open(other.join(name))?);
        let [mut left, mut right] = [(); 2].map(|()| vec![0; CHUNK]);
        if one.metadata()?.len() != other.metadata()?.len() {
            return Ok(Some(name.clone()));
        }
        loop {
            let len = one.read(&mut left)?;
            let (Some(left), Some(right)) = (left.get(..len), right.get_mut(..len)) else { break };
            if len == 0 {
                break;
            }
            other.read_exact(right)?;
            if left != right {
                return Ok(Some(name.clone()));
            }
        }
    }
    Ok(None)
}
