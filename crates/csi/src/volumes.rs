//! The volumes of a pool: made, listed, enlarged, limited and removed. [`publish`](crate::publish) gives
//! nodes access, [`snapshots`](crate::snapshots) and [`groups`](crate::groups) copy them.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{CsiError, CsiResult};
use crate::kill_point::{kill_point, was_killed};
use crate::parameters;
use crate::pool::{Pool, is_id};
use crate::record::{self, Group, Publication, Record, Snapshot, Source, Volume};
use crate::target_admin::TargetAdmin;

/// The bytes of a MiB.
const MIB: u64 = 1 << 20;
/// The size of a volume whose size is not given.
const SIZE_DEFAULT: u64 = 1 << 30;
/// The limits of the size of a LUN.
const SIZE_MIN: u64 = 1 << 20;
const SIZE_MAX: u64 = 1 << 60;
/// Sizes are whole multiples of this, the physical block of a LUN.
const SIZE_STEP: u64 = 4096;

/// The settings of a controller, which the operator chooses.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What the names of targets begin with.
    pub target_prefix: String,
    /// The portals that nodes reach the daemon at.
    pub portals: Vec<String>,
    /// How many volumes may be published to one node at a time.
    pub max_volumes: Option<NonZeroU32>,
}

/// The volumes and snapshots of a pool.
pub struct Volumes {
    pub(crate) pool: Pool,
    pub(crate) admin: Box<dyn TargetAdmin>,
    pub(crate) settings: Settings,
    records: Mutex<Records>,
    /// The names and IDs that a call works on.
    busy: Mutex<BTreeSet<String>>,
    /// The volumes that are about to be published, each with the node: they count as volumes of the node
    /// before they are recorded. This is locked only while volumes are counted.
    pub(crate) counted: Mutex<BTreeSet<(String, String)>>,
}

/// The records, as they are on disk.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) volumes: BTreeMap<String, Volume>,
    pub(crate) snapshots: BTreeMap<String, Snapshot>,
    pub(crate) groups: BTreeMap<String, Group>,
}

/// A size that is wanted, with the least and the most that will do. Zero says nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct SizeRange {
    /// The least.
    pub required: u64,
    /// The most.
    pub limit: u64,
}

impl SizeRange {
    /// Chooses a size of at least `least`.
    fn choose(self, least: u64, default: u64) -> CsiResult<u64> {
        let wanted = if self.required > 0 { self.required } else { default };
        // Without a required size, the limit decides how large the default may be.
        let limit = self.limit - self.limit % SIZE_STEP;
        let wanted = if self.required == 0 && self.limit > 0 { wanted.min(limit) } else { wanted };
        let whole = wanted.max(SIZE_MIN).max(least).checked_next_multiple_of(SIZE_STEP);
        match whole {
            Some(bytes) if bytes <= SIZE_MAX && (self.limit == 0 || bytes <= self.limit) => Ok(bytes),
            Some(bytes) if bytes <= SIZE_MAX => Err(CsiError::out_of_range(format!(
                "the volume would have {bytes} bytes, and at most {} are wanted; sizes are multiples of {SIZE_STEP}, from \
                 {SIZE_MIN}",
                self.limit
            ))),
            _ => Err(CsiError::out_of_range(format!("a volume has at most {SIZE_MAX} bytes"))),
        }
    }

    const fn admits(self, bytes: u64) -> bool {
        self.required <= bytes && (self.limit == 0 || bytes <= self.limit)
    }
}

/// A volume that is wanted.
#[derive(Clone, Debug, Default)]
pub struct NewVolume {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size: SizeRange,
    /// What it is a copy of.
    pub source: Option<Source>,
    /// Its parameters.
    pub parameters: BTreeMap<String, String>,
    /// Those of its parameters that can be modified later.
    pub mutable: BTreeMap<String, String>,
}

/// A part of a list, and the token of the next part.
pub type Page<T> = (Vec<T>, Option<String>);

impl Volumes {
    /// Takes a pool, and completes or undoes what a controller before left half done.
    ///
    /// # Errors
    /// The pool cannot be used, or another driver uses it.
    pub fn open(folder: &Path, admin: Box<dyn TargetAdmin>, settings: Settings) -> CsiResult<Self> {
        let pool = Pool::open(folder)?;
        let mut records = Records {
            volumes: record::read_all(&pool.volumes())?,
            snapshots: record::read_all(&pool.snapshots())?,
            groups: record::read_all(&pool.groups())?,
        };
        remove_partial_groups(&pool, &mut records)?;
        let ids = records.volumes.keys().chain(records.snapshots.keys()).cloned().collect();
        for path in pool.recover(&ids)? {
            eprintln!("targe: {} belongs to no volume and no snapshot; it is left alone", path.display());
        }
        let secrets = records.volumes.values().flat_map(|volume| {
            let of_node = |(node, publication): (&String, &Publication)| {
                [pool.secret(&volume.id, node), pool.password_file(&volume.id, node, &publication.user)]
            };
            volume.publications.iter().flat_map(of_node)
        });
        pool.keep_secrets(&secrets.collect())?;
        let records = Mutex::new(records);
        Ok(Self { pool, admin, settings, records, busy: Mutex::default(), counted: Mutex::default() })
    }

    /// Returns whether volumes can be copied.
    pub const fn can_copy(&self) -> bool {
        self.pool.can_reflink()
    }

    /// Returns whether the daemon answers.
    pub fn is_ready(&self) -> bool {
        self.admin.is_alive()
    }

    /// Makes a volume, or returns the one that was made for the same request before.
    ///
    /// # Errors
    /// [`CsiError`]
    pub fn create(&self, wanted: &NewVolume) -> CsiResult<Volume> {
        let (mut limits, protection) = parameters::of_new_volume(&wanted.parameters)?;
        limits = parameters::changed(&limits, parameters::limits(&wanted.mutable)?);
        let _busy = self.claim(&format!("name {}", wanted.name))?;
        let known = self.records().volumes.values().find(|volume| volume.name == wanted.name).cloned();
        if let Some(known) = known {
            let known = same_volume(known, wanted)?;
            self.pool.finish_again(&known.id)?;
            return Ok(known);
        }
        let (source, least) = self.source(wanted.source.as_ref())?;
        let bytes = wanted.size.choose(least, SIZE_DEFAULT.max(least))?;
        let free = self.pool.free_bytes()?;
        if bytes > free {
            return Err(CsiError::exhausted(format!(
                "the volume needs {} MiB, and the pool has {} MiB free",
                bytes.div_ceil(MIB),
                free / MIB
            )));
        }
        let volume = Volume {
            id: new_id('v')?,
            name: wanted.name.clone(),
            bytes,
            source: wanted.source.clone(),
            parameters: wanted.parameters.clone(),
            limits,
            protection,
            publications: BTreeMap::new(),
        };
        let _making = self.claim(&volume.id)?;
        self.copy(source, &volume.id, bytes)?;
        self.write_first(&self.pool.volumes(), &volume)?;
        self.records().volumes.insert(volume.id.clone(), volume.clone());
        kill_point()?;
        self.pool.finish(&volume.id)?;
        Ok(volume)
    }

    /// Writes the record of a file that was made, or removes both.
    pub(crate) fn write_first<T: Record>(&self, folder: &Path, record: &T) -> CsiResult<()> {
        record::write(folder, record).inspect_err(|_| {
            // The record can be in place although that was not made durable. While it may be, it keeps its
            // file: a start completes the two, and then they can be removed.
            if record::remove(folder, record.id()).is_ok() {
                self.pool.undo(record.id());
            }
        })
    }

    /// Returns the ID of a source, and its size.
    fn source(&self, source: Option<&Source>) -> CsiResult<(Option<String>, u64)> {
        let records = self.records();
        match source {
            None => Ok((None, 0)),
            Some(_) if !self.can_copy() => Err(CsiError::precondition(NO_REFLINK)),
            Some(Source::Volume(id)) => match records.volumes.get(id) {
                Some(volume) => Ok((Some(id.clone()), volume.bytes)),
                None => Err(no_volume(id)),
            },
            Some(Source::Snapshot(id)) => match records.snapshots.get(id) {
                Some(snapshot) => Ok((Some(id.clone()), snapshot.bytes)),
                None => Err(CsiError::not_found(format!("there is no snapshot {id}"))),
            },
        }
    }

    /// Makes a durable file of a size under its temporary name, with the contents of a volume or snapshot if
    /// one is named. Nothing is left of it after a failure.
    pub(crate) fn copy(&self, source: Option<String>, to: &str, bytes: u64) -> CsiResult<()> {
        let copied = self.copy_contents(source, to);
        let made = copied.and_then(|()| self.pool.enlarge(&self.pool.making(to), bytes));
        made.map(drop).inspect_err(|error| {
            if !was_killed(error) {
                self.pool.undo(to);
            }
        })
    }

    /// Makes the file. The daemon copies a volume that it serves, while its I/O waits.
    fn copy_contents(&self, source: Option<String>, to: &str) -> CsiResult<()> {
        self.sweep()?;
        let Some(source) = source else { return self.pool.make(to, None) };
        let is_published =
            self.records().volumes.get(&source).is_some_and(|volume| !volume.publications.is_empty());
        if is_published {
            let served = self.admin.snapshots(&[(self.target_name(&source), self.pool.making(to))])?;
            if served.first() == Some(&true) {
                return kill_point();
            }
        }
        self.pool.make(to, Some(&self.pool.image(&source)))
    }

    /// Removes files that nobody makes any more: the daemon can complete a copy after the wait for it.
    pub(crate) fn sweep(&self) -> CsiResult<()> {
        for id in self.pool.being_made()? {
            let Ok(_claim) = self.claim(&id) else { continue };
            // The record of a call that failed can be on disk still, and keeps its file then.
            let is_recorded =
                [self.pool.volumes(), self.pool.snapshots()].iter().any(|folder| record::exists(folder, &id));
            if !is_recorded {
                self.pool.undo(&id);
            }
        }
        Ok(())
    }

    /// Removes a volume that no node may use. Nothing happens if there is none.
    ///
    /// # Errors
    /// [`CsiError`]
    pub fn delete(&self, id: &str) -> CsiResult<()> {
        if !is_id(id) {
            return Ok(());
        }
        let _busy = self.claim(id)?;
        let Some(volume) = self.records().volumes.get(id).cloned() else {
            return self.pool.end_removal(id);
        };
        if let Some(node) = volume.publications.keys().next() {
            return Err(CsiError::precondition(format!("volume {id} is published to {node}")));
        }
        self.pool.begin_removal(id)?;
        record::remove(&self.pool.volumes(), id)?;
        self.records().volumes.remove(id);
        kill_point()?;
        self.pool.end_removal(id)
    }

    /// Enlarges a volume. Returns its size.
    ///
    /// # Errors
    /// [`CsiError`]
    pub fn expand(&self, id: &str, size: SizeRange) -> CsiResult<u64> {
        let _busy = self.claim(id)?;
        let mut volume = self.volume(id)?;
        let bytes = size.choose(volume.bytes, volume.bytes)?;
        if bytes > volume.bytes {
            let free = self.pool.free_bytes()?;
            if bytes.saturating_sub(volume.bytes) > free {
                return Err(CsiError::exhausted(format!("the pool has {} MiB free", free / MIB)));
            }
        }
        volume.bytes = bytes;
        if volume.publications.is_empty() {
            self.pool.enlarge(&self.pool.image(id), bytes)?;
        } else {
            self.serve(&volume)?;
        }
        self.save(volume)?;
        Ok(bytes)
    }

    /// Sets limits of a volume.
    ///
    /// # Errors
    /// [`CsiError`]
    pub fn modify(&self, id: &str, parameters: &BTreeMap<String, String>) -> CsiResult<()> {
        let _busy = self.claim(id)?;
        let mut volume = self.volume(id)?;
        volume.limits = parameters::changed(&volume.limits, parameters::limits(parameters)?);
        if !volume.publications.is_empty() {
            self.serve(&volume)?;
        }
        self.save(volume)
    }

    /// Returns a volume.
    ///
    /// # Errors
    /// There is none.
    pub fn volume(&self, id: &str) -> CsiResult<Volume> {
        self.records().volumes.get(id).cloned().ok_or_else(|| no_volume(id))
    }

    /// Lists volumes in the order of their IDs.
    ///
    /// # Errors
    /// The token is of another list.
    pub fn list(&self, max: usize, token: &str) -> CsiResult<Page<Volume>> {
        page(&self.records().volumes, max, token, |_| true)
    }

    /// Returns the free bytes of the pool.
    ///
    /// # Errors
    /// [`CsiError`]
    pub fn free_bytes(&self) -> CsiResult<u64> {
        self.pool.free_bytes()
    }

    /// Returns the name of the target of a volume.
    pub(crate) fn target_name(&self, id: &str) -> String {
        format!("{}:{id}", self.settings.target_prefix)
    }

    /// Writes the record of a volume.
    pub(crate) fn save(&self, volume: Volume) -> CsiResult<()> {
        record::replace(self.pool.spares(), &self.pool.volumes(), &volume)?;
        self.records().volumes.insert(volume.id.clone(), volume);
        kill_point()
    }

    pub(crate) fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps other calls away from a name or an ID.
    pub(crate) fn claim(&self, key: &str) -> CsiResult<Claim<'_>> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if !busy.insert(key.to_owned()) {
            return Err(CsiError::aborted(format!("another call works on {key}")));
        }
        Ok(Claim { busy: &self.busy, key: key.to_owned() })
    }
}

/// A name or an ID that no other call works on.
pub(crate) struct Claim<'v> {
    busy: &'v Mutex<BTreeSet<String>>,
    key: String,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

/// Removes the records of snapshots whose group was not completed or is being removed; their files have
/// temporary names still.
///
/// # Errors
/// A group lacks a snapshot, or a file system refuses it.
fn remove_partial_groups(pool: &Pool, records: &mut Records) -> CsiResult<()> {
    for group in records.groups.values() {
        if let Some(lost) = group.snapshots.iter().find(|id| !records.snapshots.contains_key(*id)) {
            let message = format!("the record of {lost}, a snapshot of the group {}, is missing", group.id);
            return Err(CsiError::internal(message));
        }
    }
    let (groups, snapshots) = (&records.groups, std::mem::take(&mut records.snapshots));
    let is_whole = |snapshot: &Snapshot| snapshot.group.as_ref().is_none_or(|id| groups.contains_key(id));
    let (whole, rest): (BTreeMap<_, _>, BTreeMap<_, _>) =
        snapshots.into_iter().partition(|(_, snapshot)| is_whole(snapshot));
    records.snapshots = whole;
    for id in rest.keys() {
        record::remove(&pool.snapshots(), id)?;
    }
    Ok(())
}

/// Why volumes cannot be copied.
pub(crate) const NO_REFLINK: &str = "the file system of the pool cannot share storage between files (reflink); use Btrfs, or XFS with reflink=1";

fn no_volume(id: &str) -> CsiError {
    CsiError::not_found(format!("there is no volume {id}"))
}

/// Returns a volume that exists, if it is the one that is wanted.
fn same_volume(known: Volume, wanted: &NewVolume) -> CsiResult<Volume> {
    let differs =
        |what: &str| Err(CsiError::exists(format!("volume {} with this name has another {what}", known.id)));
    match () {
        () if !wanted.size.admits(known.bytes) => differs("size"),
        () if known.source != wanted.source => differs("source"),
        () if known.parameters != wanted.parameters => differs("set of parameters"),
        () => Ok(known),
    }
}

/// Returns a part of a list: at most `max` items (zero: all), behind the one that `token` names.
pub(crate) fn page<T: Clone>(
    all: &BTreeMap<String, T>,
    max: usize,
    token: &str,
    wanted: impl Fn(&T) -> bool,
) -> CsiResult<Page<T>> {
    if !token.is_empty() && !is_id(token) {
        return Err(CsiError::aborted("the starting token is of another list"));
    }
    let max = if max == 0 { usize::MAX } else { max };
    let mut rest = all.iter().filter(|(id, item)| id.as_str() > token && wanted(item));
    let found: Vec<(&String, &T)> = rest.by_ref().take(max).collect();
    let next = rest.next().and(found.last()).map(|(id, _)| (*id).clone());
    Ok((found.into_iter().map(|(_, item)| item.clone()).collect(), next))
}

/// Returns an ID that was never used: the identity of a disk follows from it.
pub(crate) fn new_id(kind: char) -> CsiResult<String> {
    Ok(format!("{kind}-{}", random_hex()?))
}

/// Returns 16 random bytes in hexadecimal digits.
pub(crate) fn random_hex() -> CsiResult<String> {
    let mut bytes = [0; 16];
    let flags = rustix::rand::GetRandomFlags::empty();
    let got =
        rustix::rand::getrandom(&mut bytes, flags).map_err(|error| CsiError::internal(error.to_string()))?;
    if got < bytes.len() {
        return Err(CsiError::internal("the kernel gave too few random bytes"));
    }
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests;
