//! A disk as a block device, from its start to its end.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use store::api::Failure;
use store::shared::SharedStore;
use thiserror::Error;

use super::control::Control;
use super::device_lookup::{DYING_MAX, LOOK_AGAIN, WaitingDevice, disk_path, find_waiting, is_open, open};
use super::params::{DEPTH, DeviceParams, Unfit, params};
use super::queue::{Queue, Shared};
use crate::device_key::DeviceKey;
use crate::events::EventHandler;
use crate::flush::flush;
use crate::unaligned::UnalignedStore;

/// Why there is no device.
#[derive(Debug, Error)]
pub enum UblkStartError {
    /// The kernel was built without ublk.
    #[error(
        "this kernel has no ublk: it has no module ublk_drv (CONFIG_BLK_DEV_UBLK, Linux 6.5 or later; Debian has it \
         from 13 on); attach with --nbd or --fuse"
    )]
    NoUblk,
    /// The kernel has the module, but it is not loaded.
    #[error("this kernel has ublk, but its module is not loaded: modprobe ublk_drv")]
    NotLoaded,
    /// ublk takes a privilege that this process lacks.
    #[error("a block device by ublk needs root (CAP_SYS_ADMIN); an NBD socket does not")]
    NotAllowed,
    /// The kernel's ublk lacks features that this module needs.
    #[error(
        "this kernel's ublk is too old: it copies no payloads (UBLK_F_USER_COPY, Linux 6.5); attach with --nbd or --fuse"
    )]
    TooOld,
    /// There is no io_uring, or this process may not use it.
    #[error("ublk needs io_uring, which this system does not allow (see kernel.io_uring_disabled)")]
    NoRing(#[source] io::Error),
    /// Another process serves the device.
    #[error("this disk is already attached as {}, by process {server}", path.display())]
    InUse {
        /// The path of the device.
        path: PathBuf,
        /// The process that serves it.
        server: i32,
    },
    /// A device waits for its server, but for another disk, or for the same disk in another form.
    #[error(
        "{} waits for the disk that was attached under this name, and this is another disk, another LUKS2 volume \
         (--luks) or another initiator name: nothing was written to either; attach as before, or delete the device \
         (--delete)",
        .0.display()
    )]
    OtherDisk(PathBuf),
    /// A device waits for its server, and the disk does not fit it.
    #[error("cannot take over {}", path.display())]
    OtherForm {
        /// The path of the device.
        path: PathBuf,
        /// Why the disk does not fit.
        source: Unfit,
    },
    /// The disk cannot be a device.
    #[error("the disk cannot be attached as a block device")]
    Unfit(#[source] Unfit),
    /// The control device refused a command.
    #[error("the kernel's ublk control device refused a command")]
    Control(#[source] io::Error),
    /// The device's own node cannot be used.
    #[error("cannot use {}", path.display())]
    Node {
        /// The path of the node.
        path: PathBuf,
        /// The error that the system returned.
        source: io::Error,
    },
    /// The system has no thread or descriptor to spare.
    #[error("cannot start the server")]
    Start(#[source] io::Error),
}

/// Why a device did not end cleanly.
#[derive(Debug, Error)]
pub enum EndError {
    /// The last writes may be lost.
    #[error("the last writes may be lost: flush: {}", .0.fault)]
    NotDurable(Failure),
    /// This process cannot serve the device any more, and leaves it for the next server.
    #[error("the device is no longer served; it waits to be attached again")]
    Broken(#[source] io::Error),
}

/// How the service of a device started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// With a new device.
    Anew,
    /// With a device whose server had died.
    TakenOver,
}

/// Whether a device is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceUse {
    /// No process uses it.
    Free,
    /// It is mounted, mapped or open.
    InUse,
}

/// A block device that this process serves.
pub struct Device {
    control: Control,
    number: u32,
    started: Started,
    disk: UnalignedStore,
    /// Whether the thread ended while the device did not.
    broken: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<()>>,
}

/// A device that was added, or is to be taken over, and is not served yet.
struct Begun {
    number: u32,
    node: File,
    started: Started,
}

impl Device {
    /// Adds a device for `disk`, or takes over the device that waits for this disk. `ended` is called once
    /// the device is no longer served, whichever process stopped it.
    ///
    /// # Errors
    /// Fails when there is no such device.
    pub fn start(
        disk: Arc<dyn SharedStore>,
        key: DeviceKey,
        watch: EventHandler,
        ended: Box<dyn FnOnce() + Send>,
    ) -> Result<Self, UblkStartError> {
        let mut control = Control::open()?;
        let disk = UnalignedStore::new(disk);
        let wanted = params(&disk.capabilities()).map_err(UblkStartError::Unfit)?;
        control.lock().map_err(UblkStartError::Control)?;
        let begun = prepare(&mut control, key, &DeviceParams::of(&wanted));
        control.unlock().map_err(UblkStartError::Control)?;
        let Begun { number, node, started } = begun?;
        let made = match started {
            Started::Anew => control.set_params(number, wanted).map(|()| DeviceParams::of(&wanted)),
            // The kernel uses the parameters that it received when the device was added.
            Started::TakenOver => control.params(number).map(|told| DeviceParams::of(&told)),
        };
        let broken = Arc::new(AtomicBool::new(false));
        let served = made.map_err(UblkStartError::Control).and_then(|told| {
            let shared = Shared::new(node, disk.clone(), watch, told).map_err(UblkStartError::Start)?;
            serve(Arc::new(shared), Arc::clone(&broken), ended).map_err(UblkStartError::Start)
        });
        let thread = match served {
            Ok(thread) => thread,
            Err(why) => {
                give_up(&mut control, number, started);
                return Err(why);
            }
        };
        let mut device = Self { control, number, started, disk, broken, thread };
        let running = match started {
            Started::Anew => device.control.start(number),
            Started::TakenOver => device.control.end_recovery(number),
        };
        match running {
            Ok(()) => Ok(device),
            Err(error) => {
                // No write went through this process. A device that was taken over waits for another server
                // once this process has ended.
                if started == Started::Anew {
                    let _ = device.stop();
                }
                Err(UblkStartError::Control(error))
            }
        }
    }

    /// Returns the path of the disk.
    pub fn path(&self) -> PathBuf {
        disk_path(self.number)
    }

    /// Returns how the service of the device started.
    pub const fn started(&self) -> Started {
        self.started
    }

    /// Returns whether any process uses the disk. If none does, all writes were received from the kernel and
    /// are flushed.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn check_use(&self) -> io::Result<DeviceUse> {
        let in_use = |error: &io::Error| error.raw_os_error() == Some(libc::EBUSY);
        // Mounts, mappings and swap open the disk exclusively, so this open fails.
        let claim =
            OpenOptions::new().read(true).custom_flags(libc::O_EXCL | libc::O_CLOEXEC).open(self.path());
        let claim = match claim {
            Ok(claim) => claim,
            Err(error) if in_use(&error) => return Ok(DeviceUse::InUse),
            // The device was removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(DeviceUse::Free),
            Err(error) => return Err(error),
        };
        claim.sync_all()?;
        drop(claim);
        Ok(if is_open(self.number)? { DeviceUse::InUse } else { DeviceUse::Free })
    }

    /// Removes the device, which no process uses: requests under way are finished. Then makes all that was
    /// written durable.
    ///
    /// # Errors
    /// [`EndError`]
    pub fn stop(self) -> Result<(), EndError> {
        self.end(Control::remove)
    }

    /// Removes the device even if it is in use: requests under way are finished, later ones fail. The kernel
    /// deletes it once all users have closed it. Then makes all that was written durable.
    ///
    /// # Errors
    /// [`EndError`]
    pub fn cut_off(self) -> Result<(), EndError> {
        self.end(Control::remove_in_time)
    }

    fn end(mut self, remove: fn(&mut Control, u32) -> io::Result<()>) -> Result<(), EndError> {
        if self.broken.load(Ordering::Acquire) {
            // The users of the device wait for another server.
            joined(self.thread).map_err(EndError::Broken)?;
        } else {
            // Stopping fails when another process stopped or removed the device before.
            let _ = self.control.stop(self.number);
            // All requests are answered by now; no user waits for the thread, whatever error ended it.
            let _ = joined(self.thread);
        }
        let flushed = flush(&self.disk);
        // If the device stays, the next start removes it.
        let _ = remove(&mut self.control, self.number);
        flushed.map_err(EndError::NotDurable)
    }
}

fn joined(thread: JoinHandle<io::Result<()>>) -> io::Result<()> {
    thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

/// Adds a device, or prepares the waiting one for the takeover. Either way, this process then has its
/// character device open.
fn prepare(control: &mut Control, key: DeviceKey, disk: &DeviceParams) -> Result<Begun, UblkStartError> {
    let opened = |number: u32| {
        open(number)
            .map_err(|source| UblkStartError::Node { path: format!("/dev/ublkc{number}").into(), source })
    };
    let has_name = |waiting: DeviceKey| waiting.has_name_of(key);
    if let Some(WaitingDevice { device: number, key: theirs }) =
        find_waiting(control, has_name, Control::remove)?
    {
        let path = disk_path(number);
        let info = control.info(number).map_err(UblkStartError::Control)?;
        let told = DeviceParams::of(&control.params(number).map_err(UblkStartError::Control)?);
        match continues(theirs, &told, key, disk) {
            Continuation::Allowed => {}
            Continuation::OtherStack => return Err(UblkStartError::OtherDisk(path)),
            Continuation::Unfit(source) => return Err(UblkStartError::OtherForm { path, source }),
        }
        if (info.queues, info.depth) != (1, DEPTH) {
            return Err(UblkStartError::Control(io::Error::other(
                "its queues differ from those of this version",
            )));
        }
        begin_recovery(control, number, info.server)?;
        return Ok(Begun { number, node: opened(number)?, started: Started::TakenOver });
    }
    let number = control.add(key.note()).map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => UblkStartError::NotAllowed,
        _ => UblkStartError::Control(error),
    })?;
    match opened(number) {
        Ok(node) => Ok(Begun { number, node, started: Started::Anew }),
        Err(why) => {
            give_up(control, number, Started::Anew);
            Err(why)
        }
    }
}

/// Whether a disk may serve a device that waits for its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Continuation {
    Allowed,
    /// The disk shows other data than the device did.
    OtherStack,
    /// The disk shows the same data in another form.
    Unfit(Unfit),
}

/// Decides whether a disk may serve a device with the key `theirs` and the parameters `device`.
fn continues(theirs: DeviceKey, device: &DeviceParams, key: DeviceKey, disk: &DeviceParams) -> Continuation {
    if theirs != key {
        return Continuation::OtherStack;
    }
    device.fits(disk).map_or_else(Continuation::Unfit, |()| Continuation::Allowed)
}

/// Prepares a device that waits, once its last server has ended.
fn begin_recovery(control: &mut Control, number: u32, server: i32) -> Result<(), UblkStartError> {
    let deadline = Instant::now() + DYING_MAX;
    loop {
        match control.begin_recovery(number) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                if Instant::now() > deadline {
                    return Err(UblkStartError::InUse { path: disk_path(number), server });
                }
                std::thread::sleep(LOOK_AGAIN);
            }
            other => return other.map_err(UblkStartError::Control),
        }
    }
}

/// Removes a device that cannot be served. A device that is a disk already stays for the next server.
fn give_up(control: &mut Control, number: u32, started: Started) {
    if started == Started::Anew {
        // If the removal fails, the device stays, and the next start removes it.
        let _ = control.remove(number);
    }
}

/// Starts the thread. Returns once the kernel can pass requests to it.
fn serve(
    shared: Arc<Shared>,
    broken: Arc<AtomicBool>,
    ended: Box<dyn FnOnce() + Send>,
) -> io::Result<JoinHandle<io::Result<()>>> {
    let (tell, told) = channel::<io::Result<()>>();
    let run = move || {
        let served = run_queue(shared, &tell);
        broken.store(served.is_err(), Ordering::Release);
        ended();
        served
    };
    let thread = std::thread::Builder::new().name("ublk".to_owned()).spawn(run)?;
    told.recv().unwrap_or_else(|_| Err(io::Error::other("the thread ended while it started")))?;
    Ok(thread)
}

fn run_queue(shared: Arc<Shared>, tell: &Sender<io::Result<()>>) -> io::Result<()> {
    match Queue::new(shared) {
        Ok(queue) => {
            // The thread that called `serve` waits for this message.
            let _ = tell.send(Ok(()));
            queue.run()
        }
        Err(error) => {
            let _ = tell.send(Err(error));
            Ok(())
        }
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("number", &self.number).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_key::DeviceStack;

    const HEADER_LEN: u64 = 16 << 20;

    fn key(decryption: Option<&str>) -> DeviceKey {
        let stack = DeviceStack {
            disks: "naa.6001".to_owned(),
            initiators: "iqn.2026-11.org.targe:host".to_owned(),
            decryption: decryption.map(str::to_owned),
        };
        DeviceKey::new(b"iscsi://host/iqn.2026-11.org.targe:rig/0", &stack)
    }

    fn of_len(len: u64) -> DeviceParams {
        DeviceParams { len, block: 512, io_len_max: 256 << 10, cache: true }
    }

    #[test]
    fn the_plain_disk_does_not_continue_the_device_of_a_decrypted_volume() {
        let (plain, luks) = (key(None), key(Some("1111 16777216 512")));
        let (whole, volume) = (of_len(64 << 20), of_len((64 << 20) - HEADER_LEN));
        assert_eq!(continues(luks, &volume, luks, &volume), Continuation::Allowed);
        assert_eq!(continues(luks, &volume, plain, &whole), Continuation::OtherStack);
        assert_eq!(continues(plain, &whole, luks, &volume), Continuation::OtherStack);
        let other = key(Some("2222 16777216 512"));
        assert_eq!(continues(luks, &volume, other, &volume), Continuation::OtherStack);
        // A disk that has grown serves the device at the length that the device has.
        assert_eq!(continues(plain, &whole, plain, &of_len(65 << 20)), Continuation::Allowed);
        let shorter = continues(plain, &whole, plain, &of_len(63 << 20));
        assert!(matches!(shorter, Continuation::Unfit(_)), "{shorter:?}");
    }
}
