//! Snapshots of several volumes at one point in time.
//!
//! A group is a record of its own, which decides: first the files are made, then the records of the
//! snapshots are written, then that of the group, and then the files get their names. A removal goes the same
//! way back. A start removes snapshots whose group has no record. An earlier version, which knows no groups,
//! refuses the records of such snapshots, and so does not start.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{CsiError, CsiResult};
use crate::kill_point::{kill_point, was_killed};
use crate::pool::is_id;
use crate::record::{self, Group, Snapshot};
use crate::volumes::{Claim, NO_REFLINK, Volumes, new_id};

/// The most volumes in a group: as many LUNs as the daemon copies at one point in time.
const VOLUMES_MAX: usize = 64;

impl Volumes {
    /// Makes snapshots of volumes at one point in time, or returns those that were made for the same request
    /// before.
    ///
    /// # Errors
    /// [`CsiError`]; none of the snapshots is made then.
    pub fn create_group(&self, name: &str, volumes: &[String]) -> CsiResult<(Group, Vec<Snapshot>)> {
        let wanted: BTreeSet<&str> = volumes.iter().map(String::as_str).collect();
        if wanted.is_empty() || wanted.len() > VOLUMES_MAX || wanted.len() < volumes.len() {
            let message =
                format!("a group snapshot is of 1 to {VOLUMES_MAX} volumes, each of which is named once");
            return Err(CsiError::invalid(message));
        }
        let _busy = self.claim(&format!("group {name}"))?;
        let known = self.records().groups.values().find(|group| group.name == name).cloned();
        if let Some(known) = known {
            return self.same_group(known, &wanted);
        }
        if !self.can_copy() {
            return Err(CsiError::precondition(NO_REFLINK));
        }
        // No volume is published meanwhile: the volumes that nobody can write are copied after the others.
        let _claims =
            wanted.iter().map(|volume| self.claim(volume)).collect::<CsiResult<Vec<Claim<'_>>>>()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let created_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let id = new_id('g')?;
        let mut snapshots = Vec::new();
        for volume in wanted {
            snapshots.push(Snapshot {
                id: new_id('s')?,
                name: String::new(),
                bytes: self.volume(volume)?.bytes,
                volume: volume.to_owned(),
                created_s,
                group: Some(id.clone()),
            });
        }
        let ids = snapshots.iter().map(|snapshot| snapshot.id.clone());
        let group = Group { id, name: name.to_owned(), snapshots: ids.collect(), created_s };
        let _making =
            group.snapshots.iter().map(|id| self.claim(id)).collect::<CsiResult<Vec<Claim<'_>>>>()?;
        self.make_group(&group, &snapshots)?;
        self.name_files(&group)?;
        Ok((group, snapshots))
    }

    /// Returns a group that exists, if it is of the volumes that are wanted.
    fn same_group(&self, known: Group, wanted: &BTreeSet<&str>) -> CsiResult<(Group, Vec<Snapshot>)> {
        let snapshots = self.members(&known)?;
        let volumes: BTreeSet<&str> = snapshots.iter().map(|snapshot| snapshot.volume.as_str()).collect();
        if volumes != *wanted {
            let message = format!("group snapshot {} with this name is of other volumes", known.id);
            return Err(CsiError::exists(message));
        }
        self.name_files(&known)?;
        Ok((known, snapshots))
    }

    /// Gives the files of a group their names, if they lack them.
    fn name_files(&self, group: &Group) -> CsiResult<()> {
        group.snapshots.iter().try_for_each(|id| self.pool.finish_again(id))
    }

    /// Makes the files and the records of a group. Nothing is left of them after a failure.
    fn make_group(&self, group: &Group, snapshots: &[Snapshot]) -> CsiResult<()> {
        let made = self.copy_together(snapshots).and_then(|()| {
            for snapshot in snapshots {
                record::write(&self.pool.snapshots(), snapshot)?;
                kill_point()?;
            }
            record::write(&self.pool.groups(), group)
        });
        made.inspect_err(|error| {
            if !was_killed(error) {
                self.undo_group(group);
            }
        })?;
        let mut records = self.records();
        records.snapshots.extend(snapshots.iter().map(|one| (one.id.clone(), one.clone())));
        records.groups.insert(group.id.clone(), group.clone());
        drop(records);
        kill_point()
    }

    /// Removes what was made of a group. A start removes the rest, if something stays; while the record of
    /// the group may be in place, everything does.
    fn undo_group(&self, group: &Group) {
        if record::remove(&self.pool.groups(), &group.id).is_err() {
            return;
        }
        for id in &group.snapshots {
            if record::remove(&self.pool.snapshots(), id).is_ok() {
                self.pool.undo(id);
            }
        }
    }

    /// Makes the files of snapshots under their temporary names, all at one point in time.
    fn copy_together(&self, snapshots: &[Snapshot]) -> CsiResult<()> {
        self.sweep()?;
        let is_published = |snapshot: &&Snapshot| {
            let records = self.records();
            records.volumes.get(&snapshot.volume).is_some_and(|volume| !volume.publications.is_empty())
        };
        let published: Vec<&Snapshot> = snapshots.iter().filter(is_published).collect();
        let request: Vec<(String, PathBuf)> = published
            .iter()
            .map(|snapshot| (self.target_name(&snapshot.volume), self.pool.making(&snapshot.id)))
            .collect();
        let served = if request.is_empty() { Vec::new() } else { self.admin.snapshots(&request)? };
        let copied: BTreeSet<&str> = published
            .iter()
            .zip(served)
            .filter_map(|(snapshot, served)| served.then_some(snapshot.id.as_str()))
            .collect();
        if !copied.is_empty() {
            kill_point()?;
        }
        for snapshot in snapshots {
            if !copied.contains(snapshot.id.as_str()) {
                self.pool.make(&snapshot.id, Some(&self.pool.image(&snapshot.volume)))?;
            }
            self.pool.enlarge(&self.pool.making(&snapshot.id), snapshot.bytes)?;
        }
        Ok(())
    }

    /// Returns a group and its snapshots.
    ///
    /// # Errors
    /// There is none, or it has other snapshots.
    pub fn group(&self, id: &str, snapshots: &[String]) -> CsiResult<(Group, Vec<Snapshot>)> {
        let group = self.records().groups.get(id).cloned();
        let group = group.ok_or_else(|| CsiError::not_found(format!("there is no group snapshot {id}")))?;
        check_members(&group, snapshots)?;
        let members = self.members(&group)?;
        Ok((group, members))
    }

    fn members(&self, group: &Group) -> CsiResult<Vec<Snapshot>> {
        let records = self.records();
        let member = |id: &String| {
            let snapshot = records.snapshots.get(id).cloned();
            snapshot.ok_or_else(|| CsiError::aborted(format!("group snapshot {} is being removed", group.id)))
        };
        group.snapshots.iter().map(member).collect()
    }

    /// Removes a group and its snapshots; volumes that were made from them stay. Nothing happens if there is
    /// none.
    ///
    /// # Errors
    /// [`CsiError`]
    pub fn delete_group(&self, id: &str, snapshots: &[String]) -> CsiResult<()> {
        if !is_id(id) {
            return Ok(());
        }
        let _busy = self.claim(id)?;
        let group = self.records().groups.get(id).cloned();
        if let Some(group) = &group {
            check_members(group, snapshots)?;
        }
        // After a removal that failed, the caller knows the snapshots still.
        let is_left =
            |snapshot: &&String| is_id(snapshot) && !self.records().snapshots.contains_key(*snapshot);
        let left: Vec<&String> = snapshots.iter().filter(is_left).collect();
        let members: Vec<String> = {
            let records = self.records();
            let of_group = records.snapshots.values().filter(|one| one.group.as_deref() == Some(id));
            of_group.map(|snapshot| snapshot.id.clone()).collect()
        };
        let _claims = members.iter().map(|id| self.claim(id)).collect::<CsiResult<Vec<Claim<'_>>>>()?;
        if group.is_some() {
            for member in &members {
                self.pool.begin_removal(member)?;
            }
            record::remove(&self.pool.groups(), id)?;
            self.records().groups.remove(id);
            kill_point()?;
        }
        for member in &members {
            record::remove(&self.pool.snapshots(), member)?;
            self.records().snapshots.remove(member);
            kill_point()?;
            self.pool.end_removal(member)?;
        }
        left.into_iter().try_for_each(|snapshot| self.pool.end_removal(snapshot))
    }
}

/// Refuses a list of snapshots that is not that of a group.
fn check_members(group: &Group, snapshots: &[String]) -> CsiResult<()> {
    let sorted = |list: &[String]| list.iter().cloned().collect::<BTreeSet<String>>();
    if sorted(snapshots) != sorted(&group.snapshots) {
        let message = format!("group snapshot {} has other snapshots than those that are named", group.id);
        return Err(CsiError::invalid(message));
    }
    Ok(())
}
