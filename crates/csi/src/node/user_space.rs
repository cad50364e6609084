//! Volumes attached by `targe attach`, as ublk devices, or as loop devices over a file in a FUSE mount. Each
//! has a process of its own, which outlives the driver and is found by its arguments.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::Read;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{AttachMethod, NodeSettings, Staged, mounts};
use crate::error::{CsiError, CsiResult};
use crate::program::{run, run_well, text};
use crate::record::replace_file;

/// How long a volume may take to appear.
const APPEAR_MAX: Duration = Duration::from_secs(60);
/// How long a process may take to end after a signal. With a target that does not answer it takes five
/// seconds.
const END_MAX: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });
/// How long the host may take to notice a new size.
const NOTICE_MAX: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long requests wait for a target that is away. After that they fail, and a file system does
/// not recover from it: longer than an orchestrator takes to start the target's container again, which waits
/// for five minutes between attempts.
pub(super) const LOSS_MAX: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 900 });
/// The pause between two signals. The process takes signals that follow each other faster for one.
const SIGNAL_PAUSE: Duration = Duration::from_secs(1);
/// What is read to have the LUN answer.
const PROBE_LEN: usize = 4096;
/// How much of a log is read.
const LOG_SHOWN: usize = 400;

/// Attaches a volume, or finds it attached.
pub(super) fn attach(settings: &NodeSettings, staged: &Staged, secret: &str) -> CsiResult<PathBuf> {
    let files = Files::of(settings, staged);
    if files.process().is_none() {
        files.forget_address();
        replace_file(&files.secret, secret.as_bytes())?;
        check(settings, staged, &files)?;
    }
    start(settings, staged, &files)
}

/// Starts the process of a volume again if it has ended, with the secret that it had.
pub(super) fn restore(settings: &NodeSettings, staged: &Staged) -> CsiResult<()> {
    let files = Files::of(settings, staged);
    if files.process().is_some() || !files.secret.exists() {
        return Ok(());
    }
    files.forget_address();
    match staged.method {
        // The kernel keeps the device and its requests until a server takes it over.
        AttachMethod::Ublk => {
            check(settings, staged, &files)?;
            start(settings, staged, &files).map(drop)
        }
        _ => Err(CsiError::unavailable("its process has ended; it has to be staged again")),
    }
}

/// Returns the block device of a volume that is attached.
pub(super) fn device(settings: &NodeSettings, staged: &Staged) -> CsiResult<PathBuf> {
    let files = Files::of(settings, staged);
    let detached = || CsiError::precondition(format!("volume {} is not attached", staged.id));
    match staged.method {
        _ if files.process().is_none() => Err(detached()),
        AttachMethod::Loop => files.loop_device().ok_or_else(detached),
        _ => files.address().ok_or_else(detached),
    }
}

/// Returns the loop device of a volume, even if its process has ended.
pub(super) fn loop_device(settings: &NodeSettings, staged: &Staged) -> Option<PathBuf> {
    Files::of(settings, staged).loop_device()
}

/// Returns the ublk device of a volume, even if its process has ended.
pub(super) fn ublk_device(settings: &NodeSettings, staged: &Staged) -> Option<PathBuf> {
    Files::of(settings, staged).ublk_device()
}

/// Notes the ublk device of a process that an earlier version has started.
pub(super) fn note_device(settings: &NodeSettings, staged: &Staged) -> CsiResult<()> {
    let files = Files::of(settings, staged);
    match device(settings, staged) {
        Ok(device) if files.ublk_device().is_none() => files.note_ublk_device(&device),
        _ => Ok(()),
    }
}

/// Returns whether the process of a volume was asked to end, and has not ended.
pub(super) fn is_ending(settings: &NodeSettings, staged: &Staged) -> bool {
    let files = Files::of(settings, staged);
    files.process().is_some_and(|process| files.was_asked(process) || files.is_asked(process))
}

/// Ends the process of a volume, whatever the target does, and even while programs use the disk: it only
/// fails from now on.
pub(super) fn interrupt(settings: &NodeSettings, staged: &Staged) -> CsiResult<()> {
    Files::of(settings, staged).end_process(End::AtOnce)?;
    delete_left(settings, staged)
}

/// Deletes the ublk device of a volume that has no record yet: an earlier publication left it, and its
/// requests are older than what other nodes have written since. A volume with a record keeps its device, even
/// if it is not noted: drivers of earlier versions noted none.
pub(super) fn delete_unrecorded(settings: &NodeSettings, staged: &Staged) -> CsiResult<()> {
    match Files::of(settings, staged).process() {
        Some(_) => Ok(()),
        None => delete_left(settings, staged),
    }
}

/// Deletes the ublk device that a process left which has died. The requests that wait in it fail. No later
/// process finds them.
fn delete_left(settings: &NodeSettings, staged: &Staged) -> CsiResult<()> {
    if staged.method != AttachMethod::Ublk {
        return Ok(());
    }
    let Staged { user, portal, target, .. } = staged;
    // A process that serves a device has its URL there, where this one has an option.
    let url = format!("iscsi://{user}@{portal}/{target}/0");
    run_well(&[text(&settings.targe)?, "attach", "--ublk", "--delete", &url]).map(drop)
}

/// Detaches a volume: ends its process, whatever the target does.
pub(super) fn detach(settings: &NodeSettings, staged: &Staged) -> CsiResult<()> {
    let files = Files::of(settings, staged);
    // The process of a loop device ends only after that was detached, which `end` does.
    if staged.method == AttachMethod::Ublk {
        files.end_process(End::WhenUnused)?;
        // The device stays noted until it is deleted.
        delete_left(settings, staged)?;
    }
    files.end()?;
    for path in [&files.secret, &files.address, &files.log, &files.asked] {
        let _ = fs::remove_file(path);
    }
    let _ = fs::remove_dir(&files.mountpoint);
    Ok(())
}

/// Makes a loop device notice the length of its file, if that becomes as long as required.
pub(super) fn rescan(
    settings: &NodeSettings,
    staged: &Staged,
    device: &Path,
    required: u64,
) -> CsiResult<()> {
    let file = Files::of(settings, staged).mountpoint.join(DISK);
    let failed = |error: std::io::Error| CsiError::io("read", &file, &error);
    let began = Instant::now();
    loop {
        // The initiator learns of the size by the answer to a command.
        File::open(&file).and_then(|mut file| file.read_exact(&mut [0; PROBE_LEN])).map_err(failed)?;
        run_well(&["losetup", "--set-capacity", text(device)?])?;
        if mounts::device_bytes(device)? >= required || began.elapsed() > NOTICE_MAX {
            return Ok(());
        }
        sleep(LOOK_AGAIN);
    }
}

/// When a process is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// When no program uses the disk any more: it gets one signal, however often it is asked.
    WhenUnused,
    /// Even while programs use the disk: it gets more signals.
    AtOnce,
}

/// The files of a volume in the folder of the node.
struct Files {
    /// The CHAP secret.
    secret: PathBuf,
    /// What the process printed: where the disk is.
    address: PathBuf,
    /// The messages of the process.
    log: PathBuf,
    /// Where FUSE is mounted.
    mountpoint: PathBuf,
    /// Which loop device was made of the disk, or which ublk device is the disk.
    device: PathBuf,
    /// Which process was asked to end: another signal would take the disk away from its users.
    asked: PathBuf,
}

/// The name of the disk where FUSE is mounted. It is all that the kernel tells of the file behind a loop
/// device when that is no longer mounted.
const DISK: &str = "disk";

impl Files {
    fn of(settings: &NodeSettings, staged: &Staged) -> Self {
        let path = |ending: &str| settings.run_dir.join(format!("{}.{ending}", staged.id));
        Self {
            secret: path("secret"),
            address: path("address"),
            log: path("log"),
            mountpoint: path("disk"),
            device: path("device"),
            asked: path("asked"),
        }
    }

    /// Returns the URL of a volume.
    fn url(&self, settings: &NodeSettings, staged: &Staged) -> String {
        let Staged { user, portal, target, protection, .. } = staged;
        let (initiator, secret) = (&settings.initiator, self.secret.display());
        let keys = match protection.needs_keys() {
            true => format!("&auth=opaque&protection={}", protection.name()),
            false => String::new(),
        };
        // The process is found by what stands last.
        format!(
            "iscsi://{user}@{portal}/{target}/0?initiator={initiator}&timeout={}{keys}&password_file={secret}",
            LOSS_MAX.as_secs()
        )
    }

    /// Removes what a process printed that has ended.
    fn forget_address(&self) {
        let _ = fs::remove_file(&self.address);
    }

    /// Finds the process: the one of the driver's own user that reads the secret of this volume. Other users
    /// can run programs with the same arguments.
    fn process(&self) -> Option<Pid> {
        let marker = format!("password_file={}", self.secret.display());
        let user = rustix::process::geteuid().as_raw();
        let processes = fs::read_dir("/proc").ok()?;
        processes.flatten().find_map(|entry| {
            if entry.metadata().ok()?.uid() != user {
                return None;
            }
            let number: i32 = entry.file_name().to_str()?.parse().ok()?;
            let words = fs::read(entry.path().join("cmdline")).ok()?;
            let mut words = words.split(|byte| *byte == 0).skip(1);
            let is_it = words.next()? == b"attach" && words.next()?.ends_with(marker.as_bytes());
            Pid::from_raw(number).filter(|_| is_it)
        })
    }

    /// Returns what the process printed.
    fn address(&self) -> Option<PathBuf> {
        let printed = fs::read_to_string(&self.address).ok()?;
        let line = printed.strip_suffix('\n')?;
        Some(PathBuf::from(line)).filter(|path| path.is_absolute())
    }

    /// Finds the loop device of the file. After FUSE is no longer mounted, no path leads to the file: the
    /// device is then the one that was noted, if its file is not mounted either.
    fn loop_device(&self) -> Option<PathBuf> {
        let file = self.mountpoint.join(DISK);
        let backing = |name: &OsStr| {
            let path =
                fs::read_to_string(Path::new("/sys/block").join(name).join("loop/backing_file")).ok()?;
            Some(PathBuf::from(path.trim_end()))
        };
        let mut devices = fs::read_dir("/sys/block").ok()?.flatten().map(|entry| entry.file_name());
        if let Some(name) = devices.find(|name| backing(name).as_ref() == Some(&file)) {
            return Some(Path::new("/dev").join(name));
        }
        let noted = PathBuf::from(fs::read_to_string(&self.device).ok()?);
        let is_it = backing(noted.file_name()?)? == Path::new("/").join(DISK);
        is_it.then_some(noted)
    }

    /// Returns the ublk device that was noted, if it still exists. Its path may be that of another volume by
    /// now, but its sequence number belongs to one disk only.
    fn ublk_device(&self) -> Option<PathBuf> {
        let noted = fs::read_to_string(&self.device).ok()?;
        let (path, number) = noted.split_once(' ')?;
        let path = PathBuf::from(path);
        (sequence_number(&path).ok()? == number).then_some(path)
    }

    fn note_ublk_device(&self, device: &Path) -> CsiResult<()> {
        let failed = |error: std::io::Error| CsiError::io("read the sequence number of", device, &error);
        let noted = format!("{} {}", text(device)?, sequence_number(device).map_err(failed)?);
        replace_file(&self.device, noted.as_bytes())
    }

    /// Makes a loop device of the file, and notes which.
    fn make_loop_device(&self, file: &Path) -> CsiResult<PathBuf> {
        let printed = run_well(&["losetup", "--find", "--show", "--direct-io=on", text(file)?])?;
        let device = printed.trim();
        fs::write(&self.device, device).map_err(|error| CsiError::io("write", &self.device, &error))?;
        Ok(PathBuf::from(device))
    }

    /// Returns whether a process was asked to end when its disk is unused, by this call or an earlier one.
    fn was_asked(&self, process: Pid) -> bool {
        self.has_note(&process.as_raw_nonzero().to_string())
    }

    /// Returns whether a process was to be asked, and may not have been.
    fn is_asked(&self, process: Pid) -> bool {
        self.has_note(&beginning(process))
    }

    fn has_note(&self, note: &str) -> bool {
        fs::read_to_string(&self.asked).is_ok_and(|text| text == note)
    }

    fn note(&self, note: &str) -> CsiResult<()> {
        fs::write(&self.asked, note).map_err(|error| CsiError::io("write", &self.asked, &error))
    }

    /// Asks the process to end, and waits until it has.
    fn end_process(&self, end: End) -> CsiResult<()> {
        let began = Instant::now();
        let mut signals = 0;
        while let Some(process) = self.process() {
            let is_due = match end {
                End::WhenUnused => !self.was_asked(process),
                End::AtOnce => began.elapsed() >= SIGNAL_PAUSE * signals,
            };
            if is_due {
                // Another signal takes the disk away from its users. A driver that is killed between these
                // steps has one sent again, when nothing has mounted the disk.
                if end == End::WhenUnused {
                    self.note(&beginning(process))?;
                }
                let _ = kill_process(process, Signal::TERM);
                if end == End::WhenUnused {
                    self.note(&process.as_raw_nonzero().to_string())?;
                }
                signals += 1;
            }
            if began.elapsed() > END_MAX {
                let process = process.as_raw_nonzero();
                return Err(CsiError::aborted(format!(
                    "process {process}, which serves the disk, does not end: a program may still use the disk"
                )));
            }
            sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Ends the process, and with it the disk.
    fn end(&self) -> CsiResult<()> {
        if let Some(device) = self.loop_device() {
            // From then on the device ends with its last user.
            if let Some(process) = self.process().filter(|process| !self.was_asked(*process)) {
                self.note(&beginning(process))?;
            }
            run_well(&["losetup", "--detach", text(&device)?])?;
        }
        self.end_process(End::WhenUnused)?;
        let began = Instant::now();
        // A loop device lasts as long as it is used, and would be found for the next file.
        while self.loop_device().is_some() {
            if began.elapsed() > END_MAX {
                return Err(CsiError::aborted("a program still uses the disk"));
            }
            sleep(LOOK_AGAIN);
        }
        // A process that died leaves its mount.
        while mounts::at(&self.mountpoint)?.is_some() {
            mounts::unmount(&self.mountpoint, true)?;
        }
        let _ = fs::remove_file(&self.device);
        Ok(())
    }
}

/// Returns the number that the kernel gave to a disk, and gives to no other one until it boots again.
fn sequence_number(device: &Path) -> std::io::Result<String> {
    let path = Path::new("/sys/block").join(device.file_name().unwrap_or_default()).join("diskseq");
    Ok(fs::read_to_string(path)?.trim_end().to_owned())
}

/// Returns the note about a process that is to be asked to end.
fn beginning(process: Pid) -> String {
    format!("{} is asked", process.as_raw_nonzero())
}

/// Starts the process of a volume unless it runs, and waits for the disk.
fn start(settings: &NodeSettings, staged: &Staged, files: &Files) -> CsiResult<PathBuf> {
    let mut child = None;
    if files.process().is_none() {
        if staged.method == AttachMethod::Loop {
            // A loop device of a file that has gone only fails.
            files.end()?;
        }
        child = Some(spawn(settings, staged, files)?);
    }
    let address = wait_for_address(files, child.as_mut());
    if let Some(mut child) = child {
        // Reaps it, if it ends before the driver.
        thread::spawn(move || drop(child.wait()));
    }
    let address = address?;
    match (staged.method, files.loop_device()) {
        (AttachMethod::Loop, Some(device)) => Ok(device),
        (AttachMethod::Loop, None) => files.make_loop_device(&address),
        _ => {
            files.note_ublk_device(&address)?;
            Ok(address)
        }
    }
}

/// Waits until a process has printed where the disk is. The arguments of a child cannot be seen at once, so
/// it is asked itself whether it has ended.
fn wait_for_address(files: &Files, mut child: Option<&mut Child>) -> CsiResult<PathBuf> {
    let began = Instant::now();
    loop {
        if let Some(address) = files.address() {
            return Ok(address);
        }
        let has_ended = match &mut child {
            Some(child) => child.try_wait().is_ok_and(|status| status.is_some()),
            None => files.process().is_none(),
        };
        if has_ended {
            return Err(CsiError::unavailable(format!("targe attach failed: {}", last_lines(&files.log))));
        }
        if began.elapsed() > APPEAR_MAX {
            return Err(CsiError::unavailable("the disk does not appear"));
        }
        sleep(LOOK_AGAIN);
    }
}

fn spawn(settings: &NodeSettings, staged: &Staged, files: &Files) -> CsiResult<Child> {
    let failed = |error: std::io::Error| CsiError::internal(format!("cannot start targe attach: {error}"));
    let url = files.url(settings, staged);
    let mut command = Command::new(&settings.targe);
    // The service manager waits for the driver, not for its disks.
    command.env_remove("NOTIFY_SOCKET").arg("attach").arg(url);
    match staged.method {
        AttachMethod::Loop => {
            match DirBuilder::new().mode(0o700).create(&files.mountpoint) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(error)),
                _ => {}
            }
            command.arg("--fuse").arg(&files.mountpoint);
        }
        _ => {
            command.arg("--ublk");
        }
    }
    // A process that ended may have had the number of this one.
    let _ = fs::remove_file(&files.asked);
    // The address is that of this process, once it is there.
    let address = File::create(&files.address).map_err(failed)?;
    let log = File::create(&files.log).map_err(failed)?;
    // Signals to the driver's group are not for the disk.
    command.process_group(0).stdin(Stdio::null()).stdout(address).stderr(log);
    command.spawn().map_err(failed)
}

/// Checks that the LUN is the volume.
fn check(settings: &NodeSettings, staged: &Staged, files: &Files) -> CsiResult<()> {
    let url = files.url(settings, staged);
    let done = run(&[text(&settings.targe)?, "info", &url, "--json"])?;
    if done.code != 0 {
        let said = done.said.trim().replace('\n', "; ");
        return Err(CsiError::unavailable(format!("cannot reach {}: {said}", staged.target)));
    }
    let told: serde_json::Value = serde_json::from_str(&done.said)
        .map_err(|error| CsiError::internal(format!("targe info said something else: {error}")))?;
    let designators = told.get("designators").and_then(serde_json::Value::as_array);
    let is_it = |designator: &serde_json::Value| {
        let word = |key: &str| designator.get(key).and_then(serde_json::Value::as_str).unwrap_or_default();
        word("type") == "naa" && word("of") == "unit" && word("value") == staged.naa
    };
    if !designators.is_some_and(|all| all.iter().any(is_it)) {
        return Err(CsiError::internal(format!(
            "LUN 0 of {} is not the disk {} of volume {}; it is left alone",
            staged.target, staged.naa, staged.id
        )));
    }
    Ok(())
}

/// Returns the end of a log.
fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let line = text.trim().replace('\n', "; ");
    let skipped = line.chars().count().saturating_sub(LOG_SHOWN);
    line.chars().skip(skipped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::Write;

    const NOBODY: u32 = 65534;

    /// Starts a program with the arguments of the process of a volume.
    fn started(folder: &Path, files: &Files, user: Option<u32>) -> Child {
        let mut command = Command::new("sh");
        command.arg("attach").arg(format!("iscsi://x?password_file={}", files.secret.display()));
        command.current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(user) = user {
            command.uid(user);
        }
        let mut child = command.spawn().unwrap();
        // It runs its own program once it has said so.
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 1]).unwrap();
        child
    }

    /// Runs a program with the arguments of the process of a volume, and returns whether it is taken for it.
    fn is_found(folder: &Path, files: &Files, user: Option<u32>) -> bool {
        let mut child = started(folder, files, user);
        let found = files.process();
        drop(child.stdin.take());
        child.wait().unwrap();
        found.is_some_and(|found| found == Pid::from_child(&child))
    }

    /// Makes a folder with a program `attach`.
    fn folder(name: &str, program: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let folder = std::env::temp_dir().join(format!("targe-csi-process-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(folder.join("attach"), program).unwrap();
        folder
    }

    fn files(folder: &Path) -> Files {
        let path = |ending: &str| folder.join(ending);
        Files {
            secret: path("secret"),
            address: path("address"),
            log: path("log"),
            mountpoint: path("disk"),
            device: path("device"),
            asked: path("asked"),
        }
    }

    #[test]
    fn the_process_of_another_user_is_not_that_of_a_volume() {
        let folder = folder("user", "echo; read -r line");
        let files = files(&folder);
        assert!(is_found(&folder, &files, None));
        if rustix::process::geteuid().is_root() {
            assert!(!is_found(&folder, &files, Some(NOBODY)));
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_process_gets_one_signal_until_its_disk_is_unused() {
        let folder = folder("signals", "trap 'echo signal' TERM; echo; while ! read -r line; do :; done");
        let files = files(&folder);
        let mut child = started(&folder, &files, None);
        for _ in 0..2 {
            assert_eq!(files.end_process(End::WhenUnused).unwrap_err().code, tonic::Code::Aborted);
        }
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        child.wait().unwrap();
        assert_eq!(said, "signal\n");
        // The next process is not that one.
        let mut child = started(&folder, &files, None);
        fs::write(&files.asked, "1").unwrap();
        assert!(files.end_process(End::WhenUnused).is_err());
        drop(child.stdin.take());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(files.was_asked(Pid::from_child(&child)));
        fs::remove_dir_all(&folder).unwrap();
    }
}
