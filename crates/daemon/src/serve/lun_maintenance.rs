//! Drains LUNs and makes [snapshots] of them, at the request of a client of the admin socket, on the client's
//! thread.

use crate::mailbox::channel;
use std::path::Path;
use std::time::{Duration, Instant};

use device::drain::Drain;
use drivers::message_queue::Handle;
use target::units::UnitId;

use super::audit::{AuditEntry, AuditLog};
use super::changes::failure;
use super::media::holds_hosts_writes;
use super::media::known_loss::NotAccepted;
use super::media::lost_writes;
use super::reactor_shard::ReactorShard;
use super::reactors::{REACTOR_REPLY_TIMEOUT, ReactorInfo};
use super::runtime_config::RuntimeConfig;
use super::state::StateDir;
use crate::admin::api::{ErrorKind, Failure};
use crate::admin::change::Peer;
use crate::admin::lun_api::{Drained, LossAccepted, LunSelector};
use crate::config::{Medium, Unit};

pub(super) mod reservations;
mod snapshots;

/// The longest wait for the tasks of a LUN that is drained.
const DRAIN_MAX: Duration = Duration::from_secs(240);
/// The longest wait for the flush before a loss is accepted.
const ACCEPT_MAX: Duration = Duration::from_secs(100);
/// The pause between two looks at the tasks of a LUN that is drained.
const DRAIN_PAUSE: Duration = Duration::from_millis(20);

/// Refuses a folder that is not that of the file of a LUN. An initiator chooses what the file contains, and a
/// token allows the work of an administrator, not the choice of files of the daemon's user.
fn refuse_other_folder(found: &Found, folder: &Path) -> Result<(), Failure> {
    if matches!(&found.unit.medium, Medium::File { path, .. } if is_folder_of(folder, path)) {
        return Ok(());
    }
    let why = "over HTTP, a snapshot is made in the folder of the LUN's file";
    Err(failure(ErrorKind::Refused, format!("LUN {}: no snapshot: {why}", found.name)))
}

/// Returns whether a file is in a folder, whatever links lead to both.
fn is_folder_of(folder: &Path, file: &Path) -> bool {
    let (Ok(folder), Ok(file)) = (folder.canonicalize(), file.canonicalize()) else { return false };
    file.parent() == Some(&folder)
}

/// Returns whether a unit keeps what hosts wrote until hosts have it written out.
const fn keeps_writes(unit: &Unit) -> bool {
    holds_hosts_writes(unit) || matches!(unit.medium, Medium::Sg { .. } | Medium::VhostUserScsi { .. })
}

/// A LUN, by its names and by its unit.
struct Found {
    name: String,
    id: UnitId,
    unit: Unit,
}

/// What is needed to maintain LUNs.
pub(super) struct LunMaintenance<'s> {
    pub(super) runtime: RuntimeConfig,
    pub(super) reactors: &'s [(Handle<ReactorShard>, ReactorInfo)],
    pub(super) state: &'s StateDir,
    pub(super) audit: &'s AuditLog,
    /// Who wants it.
    pub(super) peer: &'s Peer,
}

impl LunMaintenance<'_> {
    /// Drains a LUN and waits until its tasks have ended, or ends the drain.
    pub(super) fn drain(&self, selector: Option<LunSelector>) -> Result<Drained, Failure> {
        let (selector, found) = self.find(selector)?;
        let done = self.drain_unit(&found, selector.wait_s);
        let action = if selector.wait_s.is_some() { "lun drain" } else { "lun drain --undo" };
        let told = done.as_ref().map(|done| match (done.drained, done.ended) {
            (true, false) => format!("not ended, {} tasks left", done.tasks),
            (_, _) => format!("{} tasks left", done.tasks),
        });
        self.record(action, &[format!("~ LUN {}", found.name)], &told.map_err(Clone::clone));
        done
    }

    fn drain_unit(&self, found: &Found, wait_s: Option<u32>) -> Result<Drained, Failure> {
        let (id, drained) = (found.id, wait_s.is_some());
        let _: Vec<()> = self.all(move |member, now| member.drain_unit(now, id, drained))?;
        let wait = Duration::from_secs(wait_s.unwrap_or(0).into()).min(DRAIN_MAX);
        let deadline = Instant::now() + wait;
        loop {
            let progress = self.all(move |member, _| member.drain_progress(id))?;
            let Some((drain, tasks)) = progress.into_iter().flatten().next() else {
                return Err(failure(
                    ErrorKind::Conflict,
                    format!("LUN {} was removed meanwhile", found.name),
                ));
            };
            if drain == (Drain::Ended { flush_failed: true }) {
                let name = &found.name;
                let why = format!(
                    "LUN {name} is drained, but writes that it acknowledged may be lost: its medium could not be flushed"
                );
                return Err(failure(ErrorKind::Refused, why));
            }
            let ended = matches!(drain, Drain::Ended { .. });
            if !drained || ended || Instant::now() >= deadline {
                let durable = ended && !keeps_writes(&found.unit);
                return Ok(Drained { drained, ended, durable, tasks });
            }
            std::thread::sleep(DRAIN_PAUSE);
        }
    }

    /// Lets the flushes of a LUN succeed again although writes are lost.
    pub(super) fn accept_loss(&self, selector: Option<LunSelector>) -> Result<LossAccepted, Failure> {
        let (_, found) = self.find(selector)?;
        let done = self.accept_loss_of(&found);
        let told = done.as_ref().map(|done| match done {
            LossAccepted { lost: Some(lost), .. } => format!("lost: {lost}"),
            LossAccepted { failed, .. } => format!("failed: {}", failed.as_deref().unwrap_or_default()),
        });
        self.record("lun accept-loss", &[format!("~ LUN {}", found.name)], &told.map_err(Clone::clone));
        done
    }

    fn accept_loss_of(&self, found: &Found) -> Result<LossAccepted, Failure> {
        let (id, name) = (found.id, &found.name);
        let refuse = |why: String| failure(ErrorKind::Refused, format!("LUN {name}: {why}"));
        let lost = self.all(move |member, _| member.lost_writes(id))?.into_iter().flatten().next();
        let Some(lost) = lost else {
            let failed = self.all(move |member, _| member.accept_failure(id))?.into_iter().flatten().next();
            let failed =
                failed.ok_or_else(|| refuse("it has not lost writes, and nothing has failed".to_owned()));
            return failed.map(|failed| LossAccepted { lost: None, failed: Some(failed) });
        };
        let (sender, flushed) = channel();
        let begun = self.all(move |member, now| member.begin_acceptance(now, id, sender.clone()))?;
        match begun.into_iter().flatten().next() {
            Some(Ok(())) => {}
            Some(Err(NotAccepted::NothingLost)) => return Err(refuse("it has not lost writes".to_owned())),
            Some(Err(NotAccepted::NotRecorded)) => {
                return Err(refuse("the loss is still being recorded; try again".to_owned()));
            }
            None => return Err(failure(ErrorKind::Conflict, format!("LUN {name} was removed meanwhile"))),
        }
        let flushed = flushed.recv_timeout(ACCEPT_MAX);
        let accepted = match flushed {
            Ok(Ok(())) => self.forget_loss(id),
            Ok(Err(why)) => Err(format!("its medium still cannot be flushed: {why}")),
            Err(_) => Err("the flush of its medium does not end".to_owned()),
        };
        let is_accepted = accepted.is_ok();
        let ended = self.all(move |member, now| member.end_acceptance(now, id, is_accepted))?;
        accepted.map_err(|why| refuse(format!("{why}; nothing has changed")))?;
        match ended.into_iter().flatten().next() {
            Some(true) => Ok(LossAccepted { lost: Some(lost), failed: None }),
            _ => Err(refuse("it has lost writes again meanwhile".to_owned())),
        }
    }

    /// Removes the record of a loss, if the unit has a file or device.
    fn forget_loss(&self, id: UnitId) -> Result<(), String> {
        let subjects = self.all(move |member, _| member.loss_subject(id)).map_err(|why| why.message)?;
        match subjects.into_iter().flatten().next() {
            Some(subject) => lost_writes::remove(self.state, &subject).map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }

    /// Refuses media that have no file which can be cloned.
    fn refuse_medium(&self, found: &Found) -> Result<(), Failure> {
        let why = match &found.unit.medium {
            Medium::File { .. } => return Ok(()),
            Medium::Block { .. } => {
                "it is a block device; what provides the device (LVM, ZFS) can make a snapshot"
            }
            Medium::Sg { .. } => "it is a device of this host; what provides the device can make a snapshot",
            Medium::Nbd { .. } => "its data is behind an NBD server; what serves it can make a snapshot",
            Medium::VhostUserBlk { .. } | Medium::VhostUserScsi { .. } => {
                "it is a device of another process; what serves it can make a snapshot"
            }
            Medium::Ram { .. } | Medium::Null { .. } => "its data is in no file",
            Medium::Disc { .. } => "it is a drive for discs; copy the file while no host writes the disc",
            Medium::Changer { .. } => {
                "it is a medium changer; copy the folder of the library while it is not served"
            }
            Medium::Tape { .. } | Medium::LibraryDrive { .. } => {
                "it is a tape drive; copy the folder of the cartridge while it is not served"
            }
        };
        Err(failure(ErrorKind::Refused, format!("LUN {}: no snapshot: {why}", found.name)))
    }

    /// Finds the unit of a LUN.
    fn find(&self, selector: Option<LunSelector>) -> Result<(LunSelector, Found), Failure> {
        let selector = selector.ok_or_else(|| failure(ErrorKind::Malformed, "the request has no \"lun\""))?;
        let runtime = &self.runtime;
        let wanted = selector.target.to_lowercase();
        let target = runtime.config.targets.iter().find(|target| target.name.as_str() == wanted);
        let target = target.ok_or_else(|| {
            failure(ErrorKind::Refused, format!("no target is named \"{}\"", selector.target))
        })?;
        let name = format!("{}/{}", target.name, selector.lun);
        let lun = target.luns.iter().find(|lun| lun.lun == selector.lun);
        let found =
            lun.and_then(|lun| Some((runtime.number(lun.unit)?, runtime.config.units.get(lun.unit.0)?)));
        let (id, unit) =
            found.ok_or_else(|| failure(ErrorKind::Refused, format!("there is no LUN {name}")))?;
        let unit = unit.clone();
        Ok((selector, Found { name, id, unit }))
    }

    fn record(&self, action: &str, changes: &[String], done: &Result<String, Failure>) {
        let (result, message) = match done {
            Ok(message) => ("done", message.as_str()),
            Err(failure) => ("refused", failure.message.as_str()),
        };
        let peer = Some(self.peer);
        let entry = AuditEntry { peer, action, changes, result, message, ..AuditEntry::default() };
        self.audit.record(&entry);
    }

    /// Runs `job` on every reactor, and returns its results.
    fn all<T: Send + 'static>(
        &self,
        job: impl Fn(&mut ReactorShard, base::time::Instant) -> T + Clone + Send + 'static,
    ) -> Result<Vec<T>, Failure> {
        let (sender, receiver) = channel();
        for (handle, _) in self.reactors {
            let (sender, job) = (sender.clone(), job.clone());
            // The client's thread waits for every answer.
            let posted =
                handle.post(move |member: &mut ReactorShard, now| drop(sender.send(job(member, now))));
            posted.map_err(|_| failure(ErrorKind::Unavailable, "targe is stopping"))?;
        }
        let deadline = Instant::now() + REACTOR_REPLY_TIMEOUT;
        let answer = |_| receiver.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        let answers: Result<Vec<T>, _> = self.reactors.iter().map(answer).collect();
        answers.map_err(|_| failure(ErrorKind::Unavailable, "a reactor does not answer"))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn the_folder_of_a_file_is_found_through_links() {
        let scratch = Scratch::new();
        let path = |name: &str| scratch.path().join(name);
        for folder in ["disks", "other"] {
            std::fs::create_dir(path(folder)).unwrap();
        }
        std::fs::write(path("disks/root.img"), "").unwrap();
        symlink(path("disks"), path("link")).unwrap();
        symlink(path("disks/root.img"), path("other/root.img")).unwrap();
        for file in ["disks/root.img", "link/root.img", "other/root.img"] {
            assert!(
                is_folder_of(&path("disks"), &path(file)) && is_folder_of(&path("link"), &path(file)),
                "{file}"
            );
            assert!(is_folder_of(&path("other/../disks"), &path(file)), "{file}");
            for folder in ["other", "disks/..", "missing", "disks/root.img"] {
                assert!(!is_folder_of(&path(folder), &path(file)), "{folder}, {file}");
            }
        }
        assert!(!is_folder_of(&path("disks"), &path("disks/missing.img")));
    }
}
