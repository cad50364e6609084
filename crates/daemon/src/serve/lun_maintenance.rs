//! Drains LUNs and makes snapshots of them, at the request of a client of the admin socket, on the client's
//! thread.

use std::fs::File;
use std::io::ErrorKind as IoErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, OFlags, linkat};
use rustix::io::Errno;
use target::units::UnitId;

use super::admin_api::Shared;
use super::audit::AuditEntry;
use super::changes::failure;
use super::media;
use super::media_key::key_file_path;
use super::reactor_shard::ReactorShard;
use crate::admin::api::{ErrorKind, Failure};
use crate::admin::change::Peer;
use crate::admin::lun_api::{Drained, LunSelector, Snapshot};
use crate::config::{Medium, Unit};
use crate::os_error;

/// The longest wait for the tasks of a LUN that is drained.
const DRAIN_MAX: Duration = Duration::from_secs(240);
/// The pause between two looks at the tasks of a LUN that is drained.
const DRAIN_PAUSE: Duration = Duration::from_millis(20);
/// How long the file of a LUN may take to be cloned. A file of many fragments takes seconds.
const CLONE_MAX: Duration = Duration::from_secs(240);

/// A LUN, by its names and by its unit.
struct Found {
    name: String,
    id: UnitId,
    unit: Unit,
}

/// Drains a LUN and waits until its tasks have ended, or ends the drain.
pub(super) fn drain(shared: &Shared, selector: Option<LunSelector>, peer: &Peer) -> Result<Drained, Failure> {
    let (selector, found) = find(shared, selector)?;
    let done = drain_unit(shared, &found, selector.wait_s);
    let action = if selector.wait_s.is_some() { "lun drain" } else { "lun drain --undo" };
    let told = done.as_ref().map(|done| format!("{} tasks left", done.tasks));
    record(shared, peer, action, &format!("~ LUN {}", found.name), &told.map_err(Clone::clone));
    done
}

fn drain_unit(shared: &Shared, found: &Found, wait_s: Option<u32>) -> Result<Drained, Failure> {
    let (id, drained) = (found.id, wait_s.is_some());
    for (handle, _) in &shared.reactors {
        let posted = handle.post(move |member: &mut ReactorShard, now| member.drain_unit(now, id, drained));
        posted.map_err(|_| failure(ErrorKind::Unavailable, "targe is stopping"))?;
    }
    let wait = Duration::from_secs(wait_s.unwrap_or(0).into()).min(DRAIN_MAX);
    let deadline = Instant::now() + wait;
    loop {
        let tasks = shared.query_reactors(move |member| member.tasks_of(id))?;
        let Some(tasks) = tasks.into_iter().flatten().next() else {
            return Err(failure(ErrorKind::Conflict, format!("LUN {} was removed meanwhile", found.name)));
        };
        if drained && tasks == 0 {
            media::sync(&found.unit).map_err(|error| failure(ErrorKind::Refused, error.to_string()))?;
        }
        if !drained || tasks == 0 || Instant::now() >= deadline {
            return Ok(Drained { drained, tasks });
        }
        std::thread::sleep(DRAIN_PAUSE);
    }
}

/// Makes a file with the contents of the file of a LUN.
pub(super) fn snapshot(
    shared: &Shared,
    selector: Option<LunSelector>,
    peer: &Peer,
) -> Result<Snapshot, Failure> {
    let (selector, found) = find(shared, selector)?;
    let path = selector.path.filter(|path| path.starts_with('/')).map(PathBuf::from);
    let path = path.ok_or_else(|| failure(ErrorKind::Malformed, "the request has no absolute \"path\""))?;
    let made = make(shared, &found, &path);
    let subject = format!("+ file {}: snapshot of LUN {}", path.display(), found.name);
    let told = made.as_ref().map(|made| format!("{} bytes", made.bytes)).map_err(Clone::clone);
    record(shared, peer, "lun snapshot", &subject, &told);
    made
}

fn make(shared: &Shared, found: &Found, path: &Path) -> Result<Snapshot, Failure> {
    refuse_medium(shared, found)?;
    let shown = path.display();
    if path.symlink_metadata().is_ok() {
        return Err(failure(ErrorKind::Refused, format!("{shown} exists already; nothing was changed")));
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    let cannot = |what: &str, error: &std::io::Error| {
        failure(ErrorKind::Refused, format!("cannot {what} {}: {}", folder.display(), os_error(error)))
    };
    // The file has no name until it is complete, so that nothing is left of one that is not.
    let flags = i32::try_from(OFlags::TMPFILE.bits()).unwrap_or(0);
    let file = File::options().read(true).write(true).mode(0o600).custom_flags(flags).open(folder);
    let file = Arc::new(file.map_err(|error| cannot("create a file in", &error))?);
    let (told, result) = channel();
    for (handle, _) in &shared.reactors {
        let (id, to, told) = (found.id, Arc::clone(&file), told.clone());
        let posted = handle.post(move |member: &mut ReactorShard, _| member.snapshot(id, to, told));
        posted.map_err(|_| failure(ErrorKind::Unavailable, "targe is stopping"))?;
    }
    drop(told);
    let refused = |why: &str| failure(ErrorKind::Refused, format!("LUN {}: no snapshot: {why}", found.name));
    match result.recv_timeout(CLONE_MAX) {
        Ok(done) => done.map_err(|why| refused(&why))?,
        Err(RecvTimeoutError::Timeout) => return Err(refused("it takes too long")),
        Err(RecvTimeoutError::Disconnected) => return Err(refused("the LUN was removed meanwhile")),
    }
    file.sync_all().map_err(|error| cannot("make durable what was written to", &error))?;
    let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
    match linkat(CWD, &*unnamed, CWD, path, AtFlags::SYMLINK_FOLLOW) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Err(refused(&format!("{shown} exists already"))),
        Err(errno) => return Err(cannot("create a file in", &errno.into())),
    }
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| cannot("make durable", &error))?;
    let bytes = file.metadata().map_or(0, |facts| facts.size());
    Ok(Snapshot { path: shown.to_string(), bytes })
}

/// Refuses media that have no file which can be cloned.
fn refuse_medium(shared: &Shared, found: &Found) -> Result<(), Failure> {
    let why = match &found.unit.medium {
        Medium::File { .. } => {
            let former = key_file_path(&found.unit, &shared.state).filter(|_| found.unit.encrypt.is_some());
            match former.map(|path| path.try_exists()) {
                None | Some(Ok(false)) => return Ok(()),
                Some(Err(error)) if error.kind() == IoErrorKind::NotFound => return Ok(()),
                Some(_) => {
                    "its key is in a file of its own, as earlier versions made it; convert it first (targe luks convert)"
                }
            }
        }
        Medium::Block { .. } => {
            "it is a block device; what provides the device (LVM, ZFS) can make a snapshot"
        }
        Medium::Nbd { .. } => "its data is behind an NBD server; what serves it can make a snapshot",
        Medium::Ram { .. } | Medium::Null { .. } => "its data is in no file",
        Medium::Disc { .. } => "it is a drive for discs; hosts never change the image, so copy that file",
        Medium::Tape { .. } => "it is a tape drive; copy the folder of the cartridge while it is not served",
    };
    Err(failure(ErrorKind::Refused, format!("LUN {}: no snapshot: {why}", found.name)))
}

/// Finds the unit of a LUN.
fn find(shared: &Shared, selector: Option<LunSelector>) -> Result<(LunSelector, Found), Failure> {
    let selector = selector.ok_or_else(|| failure(ErrorKind::Malformed, "the request has no \"lun\""))?;
    let current = shared.current();
    let runtime = &current.runtime;
    let wanted = selector.target.to_lowercase();
    let target = runtime.config.targets.iter().find(|target| target.name.as_str() == wanted);
    let target = target
        .ok_or_else(|| failure(ErrorKind::Refused, format!("no target is named \"{}\"", selector.target)))?;
    let name = format!("{}/{}", target.name, selector.lun);
    let lun = target.luns.iter().find(|lun| lun.lun == selector.lun);
    let found = lun.and_then(|lun| Some((runtime.number(lun.unit)?, runtime.config.units.get(lun.unit.0)?)));
    let (id, unit) = found.ok_or_else(|| failure(ErrorKind::Refused, format!("there is no LUN {name}")))?;
    let unit = unit.clone();
    drop(current);
    Ok((selector, Found { name, id, unit }))
}

fn record(shared: &Shared, peer: &Peer, action: &str, subject: &str, done: &Result<String, Failure>) {
    let (result, message) = match done {
        Ok(message) => ("done", message.as_str()),
        Err(failure) => ("refused", failure.message.as_str()),
    };
    let changes = &[subject.to_owned()];
    let entry = AuditEntry { peer: Some(peer), action, changes, result, message, ..AuditEntry::default() };
    shared.audit.record(&entry);
}
