//! Makes files with the contents of the files of LUNs, all at one point in time.
//!
//! First every disk writes out what is in the page cache, while it is used. Then the operations of all of
//! them are held, then all files are cloned, and each disk goes on when its file is cloned. So no copy has a
//! write that was sent after the acknowledgement of a write that another copy lacks, whatever reactors the
//! LUNs are on. The files have no names before all of them are complete.

use crate::mailbox::{Receiver, RecvTimeoutError, channel};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use drivers::files::ReleasedFile;
use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use rustix::io::Errno;
use target::units::UnitId;

use super::{Found, LunMaintenance, refuse_other_folder};
use crate::admin::api::{ErrorKind, Failure};
use crate::admin::change::Peer;
use crate::admin::lun_api::{LunList, LunSelector, Snapshot, Snapshots};
use crate::os_error;
use crate::serve::changes::failure;
use crate::serve::media::disk::snapshot::{SnapshotId, SnapshotOrder, SnapshotProgress, SnapshotReport};
use crate::serve::reactor_shard::ReactorShard;

/// The most LUNs that are copied at one point in time. Each has an open file and a clone under way.
const LUNS_MAX: usize = 64;
/// How long the file of a LUN may take to be written out or cloned. A file of many fragments takes seconds.
const CLONE_MAX: Duration = Duration::from_secs(240);
/// How long the operations of several LUNs wait for the slowest of them, before their files are cloned.
/// Initiators give commands 30 s and more.
const HOLD_MAX: Duration = Duration::from_secs(5);

/// A snapshot that is wanted.
struct Wanted {
    /// The name of the LUN.
    name: String,
    id: UnitId,
    /// The new file.
    path: PathBuf,
}

impl Wanted {
    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    fn refused(&self, why: &str) -> Failure {
        failure(ErrorKind::Refused, format!("LUN {}: no snapshot: {why}", self.name))
    }

    fn cannot(&self, what: &str, error: &std::io::Error) -> Failure {
        let folder = self.folder().display();
        failure(ErrorKind::Refused, format!("cannot {what} {folder}: {}", os_error(error)))
    }
}

impl LunMaintenance<'_> {
    /// Makes a file with the contents of the file of a LUN.
    pub(in crate::serve) fn snapshot(&self, selector: Option<LunSelector>) -> Result<Snapshot, Failure> {
        let selector = selector.ok_or_else(|| failure(ErrorKind::Malformed, "the request has no \"lun\""))?;
        let mut made = self.make_and_record(vec![selector])?;
        made.pop().ok_or_else(|| failure(ErrorKind::Unavailable, "no file was made"))
    }

    /// Makes files with the contents that the files of LUNs have at one point in time, or none.
    pub(in crate::serve) fn snapshots(&self, list: Option<LunList>) -> Result<Snapshots, Failure> {
        let list = list.ok_or_else(|| failure(ErrorKind::Malformed, "the request has no \"luns\""))?;
        if list.luns.is_empty() || list.luns.len() > LUNS_MAX {
            let why = format!("a snapshot is of 1 to {LUNS_MAX} LUNs, not of {}", list.luns.len());
            return Err(failure(ErrorKind::Refused, why));
        }
        Ok(Snapshots { snapshots: self.make_and_record(list.luns)? })
    }

    fn make_and_record(&self, selectors: Vec<LunSelector>) -> Result<Vec<Snapshot>, Failure> {
        let (mut found_luns, mut wanted) = (Vec::new(), Vec::new());
        for selector in selectors {
            let (selector, found) = self.find(Some(selector))?;
            let path = selector.path.filter(|path| path.starts_with('/')).map(PathBuf::from);
            let path =
                path.ok_or_else(|| failure(ErrorKind::Malformed, "the request has no absolute \"path\""))?;
            wanted.push(Wanted { name: found.name.clone(), id: found.id, path });
            found_luns.push(found);
        }
        let made = self.make(&found_luns, &wanted);
        let subject = |one: &Wanted| format!("+ file {}: snapshot of LUN {}", one.path.display(), one.name);
        let subjects: Vec<String> = wanted.iter().map(subject).collect();
        let told = made.as_ref().map(|made| {
            let bytes: u64 = made.iter().map(|one| one.bytes).sum();
            format!("{bytes} bytes")
        });
        self.record("lun snapshot", &subjects, &told.map_err(Clone::clone));
        made
    }

    fn make(&self, found: &[Found], wanted: &[Wanted]) -> Result<Vec<Snapshot>, Failure> {
        refuse_twice(wanted)?;
        for (found, one) in found.iter().zip(wanted) {
            self.refuse_medium(found)?;
            if one.path.symlink_metadata().is_ok() {
                let why = format!("{} exists already; nothing was changed", one.path.display());
                return Err(failure(ErrorKind::Refused, why));
            }
            if matches!(self.peer, Peer::Token { .. }) {
                refuse_other_folder(found, one.folder())?;
            }
        }
        // A file has no name until all are complete, so that nothing is left of those that are not.
        let flags = i32::try_from(OFlags::TMPFILE.bits()).unwrap_or(0);
        let open = |one: &Wanted| {
            let mut options = File::options();
            let file = options.read(true).write(true).mode(0o600).custom_flags(flags).open(one.folder());
            file.map(|file| Arc::new(file.into())).map_err(|error| one.cannot("create a file in", &error))
        };
        let files: Vec<Arc<ReleasedFile>> = wanted.iter().map(open).collect::<Result<_, _>>()?;
        self.clone_files(wanted, &files)?;
        for (one, file) in wanted.iter().zip(&files) {
            file.sync_all().map_err(|error| one.cannot("make durable what was written to", &error))?;
        }
        name_files(wanted, &files)?;
        let snapshot = |(one, file): (&Wanted, &Arc<ReleasedFile>)| Snapshot {
            path: one.path.display().to_string(),
            bytes: file.metadata().map_or(0, |facts| facts.size()),
        };
        Ok(wanted.iter().zip(&files).map(snapshot).collect())
    }

    /// Clones the files of all LUNs at one point in time.
    fn clone_files(&self, wanted: &[Wanted], files: &[Arc<ReleasedFile>]) -> Result<(), Failure> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = SnapshotId(NEXT.fetch_add(1, Ordering::Relaxed));
        let units: Arc<[UnitId]> = wanted.iter().map(|one| one.id).collect();
        let ordered = Arc::clone(&units);
        let mut orders = Orders::new(|order| {
            for (handle, _) in self.reactors {
                let units = Arc::clone(&ordered);
                // A daemon that is stopping carries nothing out.
                let _ = handle.post(move |member: &mut ReactorShard, now| {
                    member.order_snapshot(now, id, order, &units);
                });
            }
        });
        let (sender, reports) = channel();
        let pairs: Arc<[(UnitId, Arc<ReleasedFile>)]> =
            units.iter().copied().zip(files.iter().map(Arc::clone)).collect();
        let found = self.all(move |member, now| member.begin_snapshot(now, id, &pairs, &sender))?;
        if found.iter().sum::<usize>() < wanted.len() {
            return Err(failure(ErrorKind::Conflict, "no snapshot: a LUN was removed meanwhile"));
        }
        // A single LUN waits for nothing but its own operations, which hosts wait for anyway.
        let hold_max = if wanted.len() > 1 { HOLD_MAX } else { CLONE_MAX };
        orders.pass(wanted.len(), &reports, hold_max).map_err(|(number, why)| {
            wanted.get(number).map_or_else(|| failure(ErrorKind::Refused, &why), |one| one.refused(&why))
        })
    }
}

/// Gives orders to the disks of a snapshot. They are released when this is dropped before its end, be it by a
/// panic.
struct Orders<G: Fn(SnapshotOrder)> {
    give: G,
    ended: bool,
}

impl<G: Fn(SnapshotOrder)> Orders<G> {
    const fn new(give: G) -> Self {
        Self { give, ended: false }
    }

    /// Has `count` disks that have begun a snapshot take each step when all of them have taken the one
    /// before.
    ///
    /// # Errors
    /// The number of a disk, and why there is no snapshot.
    fn pass(
        &mut self,
        count: usize,
        reports: &Receiver<SnapshotReport>,
        hold_max: Duration,
    ) -> Result<(), (usize, String)> {
        await_all(count, reports, &SnapshotProgress::WrittenOut, CLONE_MAX)?;
        (self.give)(SnapshotOrder::Hold);
        await_all(count, reports, &SnapshotProgress::Held, hold_max)?;
        (self.give)(SnapshotOrder::Clone);
        await_all(count, reports, &SnapshotProgress::Cloned, CLONE_MAX)?;
        self.ended = true;
        Ok(())
    }
}

impl<G: Fn(SnapshotOrder)> Drop for Orders<G> {
    fn drop(&mut self) {
        if !self.ended {
            (self.give)(SnapshotOrder::Release);
        }
    }
}

/// Waits until every disk has reported a step.
fn await_all(
    count: usize,
    reports: &Receiver<SnapshotReport>,
    wanted: &SnapshotProgress,
    longest: Duration,
) -> Result<(), (usize, String)> {
    const REMOVED: &str = "the LUN was removed meanwhile";
    let deadline = Instant::now() + longest;
    let mut missing: BTreeSet<usize> = (0..count).collect();
    while let Some(first) = missing.first().copied() {
        match reports.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((number, progress)) if progress == *wanted => drop(missing.remove(&number)),
            Ok((number, SnapshotProgress::Failed(why))) => return Err((number, why)),
            Ok((number, SnapshotProgress::Removed)) => return Err((number, REMOVED.to_owned())),
            // No disk takes a step before the order.
            Ok(_) => {}
            Err(RecvTimeoutError::Disconnected) => return Err((first, REMOVED.to_owned())),
            Err(RecvTimeoutError::Timeout) if *wanted == SnapshotProgress::Held => {
                let seconds = longest.as_secs();
                let why =
                    format!("its commands do not end within the {seconds} s that LUNs may wait for that");
                return Err((first, why));
            }
            Err(RecvTimeoutError::Timeout) => return Err((first, "it takes too long".to_owned())),
        }
    }
    Ok(())
}

/// Refuses two copies of one disk, and two files of one name.
fn refuse_twice(wanted: &[Wanted]) -> Result<(), Failure> {
    for (at, one) in wanted.iter().enumerate() {
        let mut others = wanted.iter().take(at);
        if let Some(other) = others.clone().find(|other| other.id == one.id) {
            return Err(one.refused(&format!("LUN {} is the same disk", other.name)));
        }
        if others.any(|other| other.path == one.path) {
            let why = format!("{} is to be the snapshot of another LUN, too", one.path.display());
            return Err(one.refused(&why));
        }
    }
    Ok(())
}

/// Gives the files their names, durably, or none.
fn name_files(wanted: &[Wanted], files: &[Arc<ReleasedFile>]) -> Result<(), Failure> {
    let mut named = Vec::new();
    let mut name_all = || {
        for (one, file) in wanted.iter().zip(files) {
            let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
            match linkat(CWD, &*unnamed, CWD, &one.path, AtFlags::SYMLINK_FOLLOW) {
                Ok(()) => named.push((&one.path, file)),
                Err(Errno::EXIST) => {
                    return Err(one.refused(&format!("{} exists already", one.path.display())));
                }
                Err(errno) => return Err(one.cannot("create a file in", &errno.into())),
            }
        }
        let mut synced_folders = BTreeSet::new();
        for one in wanted.iter().filter(|one| synced_folders.insert(one.folder())) {
            let synced = File::open(one.folder()).and_then(|folder| folder.sync_all());
            synced.map_err(|error| one.cannot("make durable", &error))?;
        }
        Ok(())
    };
    let done = name_all();
    if done.is_err() {
        for (path, file) in named {
            remove_if_same(path, file);
        }
    }
    done
}

/// Removes the name of a file, unless another file has it.
fn remove_if_same(path: &Path, file: &File) {
    let identity = |facts: std::fs::Metadata| (facts.dev(), facts.ino());
    let (there, ours) = (path.symlink_metadata().map(identity), file.metadata().map(identity));
    if matches!((there, ours), (Ok(there), Ok(ours)) if there == ours)
        && let Err(error) = std::fs::remove_file(path)
    {
        crate::warning!("cannot remove {}, which is of no use: {}", path.display(), os_error(&error));
    }
}

#[cfg(test)]
mod tests;
