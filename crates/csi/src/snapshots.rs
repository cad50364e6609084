//! Snapshots of volumes: files that share storage with the volume's.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::{CsiError, CsiResult};
use crate::kill_point::kill_point;
use crate::pool::is_id;
use crate::record::{self, Snapshot};
use crate::volumes::{NO_REFLINK, Page, Volumes, new_id, page};

impl Volumes {
    /// Makes a snapshot, or returns the one that was made for the same request before. A volume that nodes
    /// use is copied between two of its writes: the copy is as after a crash.
    ///
    /// # Errors
    /// [`CsiError`]
    pub fn create_snapshot(&self, name: &str, volume: &str) -> CsiResult<Snapshot> {
        let _busy = self.claim(&format!("snapshot {name}"))?;
        let known =
            self.records().snapshots.values().find(|one| one.group.is_none() && one.name == name).cloned();
        if let Some(known) = known {
            return match known.volume == volume {
                true => self.pool.finish_again(&known.id).map(|()| known),
                false => Err(CsiError::exists(format!(
                    "snapshot {} with this name is of another volume",
                    known.id
                ))),
            };
        }
        let bytes = self.volume(volume)?.bytes;
        if !self.can_copy() {
            return Err(CsiError::precondition(NO_REFLINK));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let snapshot = Snapshot {
            id: new_id('s')?,
            name: name.to_owned(),
            volume: volume.to_owned(),
            bytes,
            created_s: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
            group: None,
        };
        let _making = self.claim(&snapshot.id)?;
        self.copy(Some(volume.to_owned()), &snapshot.id, bytes)?;
        self.write_first(&self.pool.snapshots(), &snapshot)?;
        self.records().snapshots.insert(snapshot.id.clone(), snapshot.clone());
        kill_point()?;
        self.pool.finish(&snapshot.id)?;
        Ok(snapshot)
    }

    /// Removes a snapshot; volumes that were made from it stay. Nothing happens if there is none.
    ///
    /// # Errors
    /// [`CsiError`]
    pub fn delete_snapshot(&self, id: &str) -> CsiResult<()> {
        if !is_id(id) {
            return Ok(());
        }
        let _busy = self.claim(id)?;
        let Some(snapshot) = self.records().snapshots.get(id).cloned() else {
            return self.pool.end_removal(id);
        };
        if let Some(group) = snapshot.group.filter(|group| self.records().groups.contains_key(group)) {
            let message = format!("snapshot {id} is part of the group snapshot {group}, and removed with it");
            return Err(CsiError::invalid(message));
        }
        self.pool.begin_removal(id)?;
        record::remove(&self.pool.snapshots(), id)?;
        self.records().snapshots.remove(id);
        kill_point()?;
        self.pool.end_removal(id)
    }

    /// Lists snapshots in the order of their IDs: of a volume, or with an ID, if these are not empty.
    ///
    /// # Errors
    /// The token is of another list.
    pub fn list_snapshots(
        &self,
        max: usize,
        token: &str,
        volume: &str,
        id: &str,
    ) -> CsiResult<Page<Snapshot>> {
        page(&self.records().snapshots, max, token, |snapshot| {
            (volume.is_empty() || snapshot.volume == volume) && (id.is_empty() || snapshot.id == id)
        })
    }
}
