//! Volumes on this host: attached as block devices, made into file systems if they are blank, mounted.
//!
//! Records tell which volumes are attached. A reboot empties their folder, and removes the devices.

mod attach;
mod condition;
mod context;
mod file_system;
mod in_use;
mod iscsi;
#[cfg(test)]
mod left_device_tests;
mod mounts;
pub(crate) mod service;
mod staging;
mod unfinished;
mod user_space;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File};
use std::num::NonZeroU32;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::capability::Capability;
use crate::error::{CsiError, CsiResult};
use crate::lock;
use crate::protection::Protection;
use crate::proto::volume_capability::access_mode::Mode;
use crate::publish;
use crate::record::{self, Record};

pub use self::attach::AttachMethod;
use self::condition::Condition;

/// How often the processes of ublk devices are looked after.
const KEEP_PAUSE: Duration = Duration::from_secs(3);
/// The most pauses between two attempts to start a process: a node that was fenced is refused for ever.
const KEEP_PAUSES_MAX: u32 = 64;

/// The settings of a node, which the operator chooses.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// The name of this host's initiator, which is the ID of the node.
    pub initiator: String,
    /// The folder of the records; a reboot must empty it.
    pub run_dir: PathBuf,
    /// How volumes are attached whose data needs no protection on the network.
    pub method: AttachMethod,
    /// How the others are attached; `None` if this host cannot.
    pub protected_method: Option<AttachMethod>,
    /// The program `targe`.
    pub targe: PathBuf,
    /// `iscsiadm`, with the words before it that reach it, such as `chroot /host`.
    pub iscsiadm: Vec<String>,
    /// How many volumes may be published to this host at a time; the controller enforces it.
    pub max_volumes: Option<NonZeroU32>,
}

/// A node.
pub struct Node {
    settings: NodeSettings,
    /// The volumes that a call works on.
    busy: Mutex<BTreeSet<String>>,
    /// Since when the process of a volume could not be started again.
    lost: Mutex<BTreeMap<String, Instant>>,
    /// Locked until this is dropped.
    _lock: File,
}

/// A volume that is attached, or about to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Staged {
    id: String,
    /// How it is attached.
    method: AttachMethod,
    portal: String,
    target: String,
    naa: String,
    user: String,
    /// Where its file system is mounted, or would be.
    staging_path: PathBuf,
    /// Whether it is used as a block device.
    block: bool,
    read_only: bool,
    /// Whether its file system is being made: what is found is not to be kept then.
    formatting: bool,
    /// The token of the publication that it was attached for. Empty in older records.
    #[serde(default)]
    publication: String,
    /// The least protection of its data on the network. Older records do not have it.
    #[serde(default)]
    protection: Protection,
}

impl Record for Staged {
    fn id(&self) -> &str {
        &self.id
    }
}

/// The use of a volume, and its condition.
pub(crate) struct Usage {
    /// `None` if the file system does not answer.
    pub(crate) measured: Option<Measured>,
    pub(crate) condition: Condition,
}

/// How much of a volume is used.
pub(crate) struct Measured {
    /// Bytes: total, used and available.
    pub(crate) bytes: [u64; 3],
    /// Inodes, of a file system.
    pub(crate) inodes: Option<[u64; 3]>,
}

impl Node {
    /// Prepares this host.
    ///
    /// # Errors
    /// Another driver uses the folder, or the records cannot be read.
    pub fn open(settings: NodeSettings) -> CsiResult<Self> {
        let initiator = publish::initiator_name(&settings.initiator).ok_or_else(|| {
            CsiError::invalid(format!("\"{}\" is not an iSCSI initiator name", settings.initiator))
        })?;
        let settings = NodeSettings { initiator, ..settings };
        let run_dir = settings.run_dir.clone();
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/-._".contains(byte);
        let is_plain = run_dir.to_str().is_some_and(|path| path.as_bytes().iter().all(plain));
        if !run_dir.is_absolute() || !is_plain {
            let message = format!("{} is not an absolute path of letters and digits", run_dir.display());
            return Err(CsiError::invalid(message));
        }
        let failed = |error: std::io::Error| CsiError::io("make", &run_dir, &error);
        DirBuilder::new().recursive(true).mode(0o700).create(&run_dir).map_err(failed)?;
        let path = run_dir.join("lock");
        let lock = lock::take(&path)
            .map_err(failed)?
            .ok_or_else(|| CsiError::precondition(format!("another driver uses {}", run_dir.display())))?;
        let node = Self { settings, busy: Mutex::default(), lost: Mutex::default(), _lock: lock };
        let records = node.records_dir();
        DirBuilder::new().recursive(true).mode(0o700).create(&records).map_err(failed)?;
        for (id, staged) in record::read_all::<Staged>(&records)? {
            if staged.method == AttachMethod::Ublk
                && let Err(error) = user_space::note_device(&node.settings, &staged)
            {
                eprintln!("targe: volume {id}: {error}");
            }
            // A ublk device waits for its process, which `keep` starts. That can take long.
            if staged.method == AttachMethod::Loop
                && let Err(error) = node.settings.restore(&staged)
            {
                eprintln!("targe: volume {id} is not attached any more: {error}");
            }
        }
        Ok(node)
    }

    /// Returns how many volumes may be published to this host at a time; `None` if there is no limit.
    pub(crate) const fn max_volumes(&self) -> Option<NonZeroU32> {
        self.settings.max_volumes
    }

    /// Returns the ID of the node.
    pub(crate) fn id(&self) -> &str {
        &self.settings.initiator
    }

    /// Records a volume that is to be attached. What is recorded of the same publication goes on.
    fn record(&self, wanted: Staged) -> CsiResult<Staged> {
        let staged = match self.staged(&wanted.id)? {
            None => {
                // The record comes last: from then on the device that waits is this publication's.
                self.settings.delete_unrecorded(&wanted)?;
                wanted
            }
            Some(known) if known.publication != wanted.publication => {
                // Other nodes may have written since: what this host knows of the contents is wrong.
                self.drop_mounts(&known)?;
                self.detach(&known)?;
                wanted
            }
            Some(known) if !known.is_used_as(&wanted) => {
                let path = known.staging_path.display();
                let message = format!("volume {} is staged at {path} in another way", known.id);
                return Err(CsiError::exists(message));
            }
            Some(known) if self.settings.is_ending(&known) => {
                // Its device can go at any moment.
                self.detach(&known)?;
                Staged { method: known.method, formatting: known.formatting, ..wanted }
            }
            // The portal and the way to attach may have changed since; the device has not.
            Some(known) if self.settings.device(&known).is_ok() => return Ok(known),
            Some(known) => {
                match known.method {
                    // Its process has ended, so its device only fails.
                    AttachMethod::Loop => self.drop_mounts(&known)?,
                    // The device waits for a process that has the same URL.
                    AttachMethod::Ublk if !known.has_url_of(&wanted) => {
                        self.drop_mounts(&known)?;
                        self.detach(&known)?;
                    }
                    AttachMethod::Ublk | AttachMethod::Iscsi => {}
                }
                Staged { method: known.method, formatting: known.formatting, ..wanted }
            }
        };
        record::write(&self.records_dir(), &staged)?;
        Ok(staged)
    }

    /// Takes a volume away from all paths, even while programs use it. The disk is made to fail first:
    /// unmounting would wait for a target that refuses this host for ever.
    fn drop_mounts(&self, staged: &Staged) -> CsiResult<()> {
        let paths = match self.settings.device_left(staged) {
            Some(device) if staged.block => mounts::binds_of(&device)?,
            Some(device) => mounts::of(mounts::number_of(&device)?)?,
            None => Vec::new(),
        };
        self.settings.interrupt(staged)?;
        for path in paths {
            mounts::unmount(&path, true)?;
        }
        while mounts::at(&staged.staging_path)?.is_some() {
            mounts::unmount(&staged.staging_path, true)?;
        }
        Ok(())
    }

    /// Unmounts and detaches a volume. Nothing happens if it is not attached. A volume that is still used is
    /// not detached: what was not written to it yet would be lost.
    pub(crate) fn unstage(&self, id: &str, staging_path: &Path) -> CsiResult<()> {
        let _busy = self.claim(id)?;
        let Some(staged) = self.staged(id)? else { return Ok(()) };
        if staged.staging_path != staging_path {
            let path = staged.staging_path.display();
            return Err(CsiError::precondition(format!("volume {id} is staged at {path}")));
        }
        let restored = self.restore(&staged);
        let device = self.settings.device_left(&staged);
        in_use::check_unpublished(&staged, device.as_deref())?;
        let is_used = device.is_some() || mounts::at(staging_path)?.is_some();
        if staged.method == AttachMethod::Ublk
            && is_used
            && let Err(error) = restored
        {
            // Unmounting would wait for ever. What was not written waits as long as it would in a process.
            if !self.is_given_up(id) {
                return Err(error);
            }
            eprintln!("targe: volume {id}: what was not written to it is lost: {error}");
            self.settings.interrupt(&staged)?;
        }
        while mounts::at(staging_path)?.is_some() {
            mounts::unmount(staging_path, false)?;
        }
        if let Some(device) = self.settings.device_left(&staged) {
            in_use::check_unused(&staged, &device)?;
        }
        self.detach(&staged)?;
        record::remove(&self.records_dir(), id)
    }

    /// Starts the process of a volume again if it has ended.
    fn restore(&self, staged: &Staged) -> CsiResult<()> {
        let restored = self.settings.restore(staged);
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        if restored.is_ok() {
            lost.remove(&staged.id);
        } else {
            lost.entry(staged.id.clone()).or_insert_with(Instant::now);
        }
        restored
    }

    /// Forgets since when a volume has no process.
    fn forget_loss(&self, id: &str) {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// Returns whether the requests to a volume have waited for a process as long as a process lets them wait
    /// for a target.
    fn is_given_up(&self, id: &str) -> bool {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.get(id).is_some_and(|since| since.elapsed() >= user_space::LOSS_MAX)
    }

    /// Detaches a volume, whatever of it is attached.
    fn detach(&self, staged: &Staged) -> CsiResult<()> {
        self.settings.detach(staged)?;
        self.forget_loss(&staged.id);
        Ok(())
    }

    /// Makes a staged volume appear at a path: its file system, or its block device.
    pub(crate) fn publish(
        &self,
        id: &str,
        path: &Path,
        capability: &Capability,
        read_only: bool,
    ) -> CsiResult<()> {
        let _busy = self.claim(id)?;
        let staged = self
            .staged(id)?
            .ok_or_else(|| CsiError::precondition(format!("volume {id} is not staged on this node")))?;
        if staged.block != capability.mount.is_none() {
            return Err(CsiError::precondition(format!("volume {id} is staged with another access type")));
        }
        if staged.block && read_only && !staged.read_only {
            return Err(CsiError::precondition(
                "a block device is read-only for the whole node or not at all: publish the volume read-only",
            ));
        }
        let is_single = capability.mode == Mode::SingleNodeSingleWriter;
        let read_only = read_only || capability.mounts_read_only();
        let device = self.settings.device(&staged)?;
        let number = mounts::number_of(&device)?;
        if is_single {
            in_use::check_single(&staged, &device, path)?;
        }
        while let Some(found) = mounts::at(path)? {
            if !is_at(&staged, number, path)? {
                // The mount or node there belongs to a device that has gone.
                mounts::unmount(path, true)?;
                continue;
            }
            if found.read_only == (read_only || staged.read_only) || staged.block {
                return Ok(());
            }
            if !found.read_only && self.unfinished_bind(path).exists() {
                return self.finish_bind(path);
            }
            return Err(CsiError::exists(format!("{} is published in another way", path.display())));
        }
        let failed = |error: std::io::Error| CsiError::io("make", path, &error);
        if staged.block {
            File::options().create(true).append(true).open(path).map_err(failed)?;
            mounts::bind(&device, path)
        } else {
            if !is_at(&staged, number, &staged.staging_path)? {
                return Err(CsiError::precondition(format!("volume {id} is not mounted; stage it again")));
            }
            if !read_only && !staged.read_only {
                self.check_writable(&staged, &device)?;
            }
            fs::create_dir_all(path).map_err(failed)?;
            if !read_only {
                return mounts::bind(&staged.staging_path, path);
            }
            let note = self.unfinished_bind(path);
            fs::write(&note, "").map_err(|error| CsiError::io("write", &note, &error))?;
            mounts::bind(&staged.staging_path, path)?;
            self.finish_bind(path).inspect_err(|_| {
                // Nobody may use it for writing, and nobody else removes it if the call is not repeated.
                if mounts::unmount(path, true).is_ok() {
                    let _ = fs::remove_file(note);
                }
            })
        }
    }

    /// Refuses to publish for writing a file system that takes no writes any more.
    fn check_writable(&self, staged: &Staged, device: &Path) -> CsiResult<()> {
        match Condition::of(staged, device, &staged.staging_path)? {
            Condition::Stopped(what) => Err(CsiError::precondition(format!(
                "volume {}: {what}; end the pods that use it on this node, so that it is checked and mounted again",
                staged.id
            ))),
            Condition::Good | Condition::Suspect(_) => Ok(()),
        }
    }

    /// Makes a bind mount read-only that was begun for it.
    fn finish_bind(&self, path: &Path) -> CsiResult<()> {
        mounts::make_read_only(path)?;
        let _ = fs::remove_file(self.unfinished_bind(path));
        Ok(())
    }

    /// Returns the file that says of a path that its bind mount is to be read-only, and may not be yet.
    fn unfinished_bind(&self, path: &Path) -> PathBuf {
        let digest = Sha256::digest(path.as_os_str().as_bytes());
        let key: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        self.settings.run_dir.join(format!("{key}.bind"))
    }

    /// Removes a volume from a path, and the path.
    pub(crate) fn unpublish(&self, id: &str, path: &Path) -> CsiResult<()> {
        let _busy = self.claim(id)?;
        while mounts::at(path)?.is_some() {
            mounts::unmount(path, false)?;
        }
        let _ = fs::remove_file(self.unfinished_bind(path));
        let removed = match fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_dir() => fs::remove_dir(path),
            Ok(metadata) if metadata.len() == 0 => fs::remove_file(path),
            Ok(_) => {
                return Err(CsiError::precondition(format!("{} is a file with contents", path.display())));
            }
            Err(_) => Ok(()),
        };
        removed.map_err(|error| CsiError::io("remove", path, &error))
    }

    /// Returns the use of a volume that is at a path.
    pub(crate) fn usage(&self, id: &str, path: &Path) -> CsiResult<Usage> {
        let (staged, device) = self.found(id, path)?;
        if staged.block {
            let bytes = mounts::device_bytes(&device)?;
            let measured = Some(Measured { bytes: [bytes, bytes, 0], inodes: None });
            return Ok(Usage { measured, condition: Condition::Good });
        }
        let condition = Condition::of(&staged, &device, path)?;
        let usage = match rustix::fs::statvfs(path) {
            Ok(usage) => usage,
            Err(_) if condition.fault().is_some() => return Ok(Usage { measured: None, condition }),
            Err(error) => return Err(CsiError::io("measure", path, &error.into())),
        };
        let bytes = |blocks: u64| blocks.saturating_mul(usage.f_frsize);
        let used = |total: u64, free: u64| total.saturating_sub(free);
        let measured = Measured {
            bytes: [bytes(usage.f_blocks), bytes(used(usage.f_blocks, usage.f_bfree)), bytes(usage.f_bavail)],
            inodes: Some([usage.f_files, used(usage.f_files, usage.f_ffree), usage.f_ffree]),
        };
        Ok(Usage { measured: Some(measured), condition })
    }

    /// Makes this host notice that a volume was enlarged, and enlarges its file system. Returns its size.
    pub(crate) fn expand(&self, id: &str, path: &Path, required: u64) -> CsiResult<u64> {
        let _busy = self.claim(id)?;
        let (staged, device) = self.found(id, path)?;
        self.settings.rescan(&staged, &device, required)?;
        let bytes = mounts::device_bytes(&device)?;
        if bytes < required {
            let more = match staged.method {
                AttachMethod::Ublk => "; a ublk device keeps its size until the volume is staged again",
                _ => "",
            };
            return Err(CsiError::precondition(format!(
                "{} has {bytes} bytes, and {required} are required{more}",
                device.display()
            )));
        }
        if !staged.block && !staged.read_only {
            let kind = file_system::probe(&device)?.unwrap_or_default();
            file_system::grow(&device, &staged.staging_path, &kind)?;
        }
        Ok(bytes)
    }

    /// Returns a volume that is at a path, and its device.
    fn found(&self, id: &str, path: &Path) -> CsiResult<(Staged, PathBuf)> {
        let missing = || CsiError::not_found(format!("volume {id} is not at {}", path.display()));
        let staged = self.staged(id)?.ok_or_else(missing)?;
        let device = self.settings.device(&staged)?;
        if is_at(&staged, mounts::number_of(&device)?, path)? { Ok((staged, device)) } else { Err(missing()) }
    }

    fn staged(&self, id: &str) -> CsiResult<Option<Staged>> {
        // IDs of others are no names of files.
        if !crate::pool::is_id(id) {
            return Ok(None);
        }
        record::read_one(&self.records_dir(), id)
    }

    fn records_dir(&self) -> PathBuf {
        self.settings.run_dir.join("staged")
    }

    /// Starts again the processes of ublk devices that have ended: until then, what uses the device waits. A
    /// volume that a call works on is left to it. `failed` is what the rounds before failed with.
    fn keep(&self, failed: &mut BTreeMap<String, Failed>) -> CsiResult<()> {
        let is_dead =
            |staged: &Staged| staged.method == AttachMethod::Ublk && self.settings.device(staged).is_err();
        for id in record::ids(&self.records_dir())? {
            if !self.staged(&id)?.is_some_and(|staged| is_dead(&staged)) {
                failed.remove(&id);
                continue;
            }
            let known = failed.entry(id.clone()).or_default();
            known.rounds = known.rounds.saturating_add(1);
            if !known.rounds.is_power_of_two() && !known.rounds.is_multiple_of(KEEP_PAUSES_MAX) {
                continue;
            }
            let Ok(_busy) = self.claim(&id) else { continue };
            let Some(staged) = self.staged(&id)?.filter(is_dead) else { continue };
            if let Err(error) = self.restore(&staged)
                && known.why != error.message
            {
                eprintln!("targe: volume {id} is not attached any more: {error}");
                known.why = error.message;
            }
        }
        Ok(())
    }

    /// Keeps other calls away from a volume.
    fn claim(&self, id: &str) -> CsiResult<Claim<'_>> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if !busy.insert(id.to_owned()) {
            return Err(CsiError::aborted(format!("another call works on {id}")));
        }
        Ok(Claim { node: self, id: id.to_owned() })
    }
}

impl Staged {
    /// Returns whether a call that wants another one wants the same.
    fn is_used_as(&self, other: &Self) -> bool {
        self.staging_path == other.staging_path
            && self.block == other.block
            && self.read_only == other.read_only
            && self.naa == other.naa
    }

    /// Returns whether a process that attaches the other one takes over what the process of this one left.
    fn has_url_of(&self, other: &Self) -> bool {
        self.portal == other.portal && self.target == other.target && self.user == other.user
    }
}

/// Returns whether a volume is at a path: its file system, or its block device.
fn is_at(staged: &Staged, device: mounts::Number, path: &Path) -> CsiResult<bool> {
    match staged.block {
        true => match fs::metadata(path) {
            Ok(metadata) if metadata.file_type().is_block_device() => Ok(mounts::number_of(path)? == device),
            _ => Ok(false),
        },
        false => Ok(mounts::at(path)?.is_some_and(|found| found.device == Some(device))),
    }
}

/// A process that does not start.
#[derive(Default)]
struct Failed {
    /// For how many rounds it has been dead.
    rounds: u32,
    why: String,
}

/// Looks after the processes of volumes, on a thread of its own, until the node is dropped.
pub(crate) fn keep(node: Weak<Node>) {
    thread::spawn(move || {
        let mut failed = BTreeMap::new();
        while let Some(node) = node.upgrade() {
            if let Err(error) = node.keep(&mut failed) {
                eprintln!("targe: {error}");
            }
            drop(node);
            thread::sleep(KEEP_PAUSE);
        }
    });
}

/// A volume that no other call works on.
struct Claim<'n> {
    node: &'n Node,
    id: String,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.node.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::context;

    const ID: &str = "v-15f136e330e8165b416a4888c47275ef";

    /// A host that has attached nothing, and whose iscsiadm does nothing.
    fn node(name: &str) -> Node {
        let run_dir = std::env::temp_dir().join(format!("targe-csi-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&run_dir);
        Node::open(NodeSettings {
            initiator: "iqn.2026-11.example.node:one".to_owned(),
            run_dir,
            method: AttachMethod::Iscsi,
            protected_method: None,
            targe: PathBuf::from("targe"),
            iscsiadm: vec!["true".to_owned()],
            max_volumes: None,
        })
        .unwrap()
    }

    fn wanted(publication: &str, user: &str) -> Staged {
        Staged {
            id: ID.to_owned(),
            method: AttachMethod::Iscsi,
            portal: "san:3260".to_owned(),
            target: format!("iqn.2026-11.example:csi:{ID}"),
            naa: "315f136e330e8165".to_owned(),
            user: user.to_owned(),
            staging_path: PathBuf::from("/nowhere/staged"),
            block: false,
            read_only: false,
            formatting: false,
            publication: publication.to_owned(),
            protection: Protection::None,
        }
    }

    #[test]
    fn a_file_system_that_was_being_made_is_kept_in_mind_for_one_publication() {
        let node = node("publications");
        node.record(wanted("first", "me")).unwrap();
        record::write(&node.records_dir(), &Staged { formatting: true, ..wanted("first", "me") }).unwrap();
        let again = node.record(wanted("first", "me")).unwrap();
        assert!(again.formatting);
        // Another node can have made a file system meanwhile.
        let later = wanted("second", "me");
        assert_eq!(node.record(later.clone()).unwrap(), later);
        assert_eq!(node.staged(ID).unwrap(), Some(later));
        fs::remove_dir_all(&node.settings.run_dir).unwrap();
    }

    #[test]
    fn a_host_that_can_encrypt_nothing_does_not_attach_a_volume_that_is_to_be_encrypted() {
        let mut node = node("unprotected");
        let log = node.settings.run_dir.join("log");
        let program = format!("echo \"$@\" >> {}", log.display());
        node.settings.iscsiadm = ["sh", "-c", &program, "iscsiadm"].map(str::to_owned).to_vec();
        let published = [
            (context::PORTALS, "san:3260"),
            (context::TARGET, "iqn.2026-11.example:csi:a"),
            (context::NAA, "315f136e330e8165"),
            (context::USER, "me"),
            (context::SECRET, "correct horse"),
            (context::PROTECTION, "encrypt"),
        ];
        let published = published.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let capability = Capability { mode: Mode::SingleNodeWriter, mount: None };
        let path = Path::new("/nowhere/staged");
        let error = node.stage(ID, path, &capability, &published, &BTreeMap::new()).unwrap_err();
        assert_eq!(error.code, tonic::Code::FailedPrecondition);
        assert!(error.message.contains("--attach ublk or loop"), "{error}");
        assert!(!log.exists() && node.staged(ID).unwrap().is_none());
        fs::remove_dir_all(&node.settings.run_dir).unwrap();
    }

    #[test]
    fn a_newline_at_the_end_of_a_secret_is_not_for_the_initiator() {
        let mut node = node("newline");
        let log = node.settings.run_dir.join("log");
        // It fails, so that nothing waits for a disk.
        let program =
            format!("printf '%s|' \"$@\" >> {}; case \"$*\" in *--login*) exit 8; esac", log.display());
        node.settings.iscsiadm = ["sh", "-c", &program, "iscsiadm"].map(str::to_owned).to_vec();
        let published = [
            (context::PORTALS, "san:3260"),
            (context::TARGET, "iqn.2026-11.example:csi:a"),
            (context::NAA, "315f136e330e8165"),
            (context::USER, "me"),
        ];
        let published = published.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let capability = Capability { mode: Mode::SingleNodeWriter, mount: None };
        let code = |password: &str| {
            let secrets = BTreeMap::from([(publish::SECRET_PASSWORD.to_owned(), password.to_owned())]);
            node.stage(ID, Path::new("/nowhere/staged"), &capability, &published, &secrets).unwrap_err().code
        };
        assert_eq!(code("correct\nhorse\n"), tonic::Code::InvalidArgument);
        assert!(!log.exists());
        assert_eq!(code("correct horse\n"), tonic::Code::Unavailable);
        let words = fs::read_to_string(&log).unwrap();
        assert!(words.contains("|node.session.auth.password|-v|correct horse|"), "{words}");
        fs::remove_dir_all(&node.settings.run_dir).unwrap();
    }

    #[test]
    fn a_volume_that_is_not_attached_takes_the_portal_and_user_of_the_call() {
        let node = node("portals");
        node.record(wanted("first", "me")).unwrap();
        let moved = Staged { portal: "other:3260".to_owned(), ..wanted("first", "you") };
        assert_eq!(node.record(moved.clone()).unwrap(), moved);
        assert_eq!(node.staged(ID).unwrap(), Some(moved.clone()));
        let error = node.record(Staged { block: true, ..moved }).unwrap_err();
        assert_eq!(error.code, tonic::Code::AlreadyExists);
        fs::remove_dir_all(&node.settings.run_dir).unwrap();
    }
}
